"""JPEGs for a decoder on a device, several in one compiled call: headers, windows, tables, and the crops' tiles."""

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from fastimg.loaders.crop import CropRule, Window
from fastimg.loaders.jpeg.decoding.crops import KINDS, have_jpegs, look
from fastimg.loaders.jpeg.decoding.frame import JPEG_HEADER
from fastimg.loaders.jpeg.decoding.memory import view_at
from fastimg.loaders.jpeg.decoding.region import WINDOW
from fastimg.loaders.jpeg.exif import compiled_turn_of
from fastimg.loaders.jpeg.rewriting.splice import splice_tiles
from fastimg.loaders.jpeg.windows import compiled_rule, find_window
from fastimg.loaders.runtime.compiled import compiled, may_call
from fastimg.loaders.runtime.scratch import MOST, Encoded

from .ragged import Table, fill_words
from .ragged_ring import Cut

_ALL = sum(1 << kind for kind in KINDS)
_ROOM = 2  # bytes that a splice may take more than its JPEG

_JOB = np.dtype(
    [
        ("taken", np.int64),  # whether the device gets it
        ("begin", np.int64),  # where its bytes lie
        ("end", np.int64),
        ("orientation", np.int64),
        *[
            (f"stored_{name}", np.int64) for name in ("x", "y", "width", "height")
        ],  # of the crop, in these bytes' picture
        *WINDOW,
    ]
)


class TileCuts:
    """The parts of up to MOST JPEGs. It belongs to one thread, which reuses it."""

    def __init__(self) -> None:
        self._headers = np.zeros(MOST, JPEG_HEADER)
        self._jobs = np.zeros(MOST, _JOB)

    def cut(
        self,
        encoded: Encoded,
        crop: CropRule,
        draws: npt.NDArray[np.float64],
        max_pixels: int,
        size: int,
        tables: Table,
        parse: Callable[[memoryview], object | None],
    ) -> list[Cut | None]:
        """The parts for crops of `size` pixels, parsed, and their `tables` [k, words]; None for what is left to others.

        Left are what is no JPEG that compiled code knows, crops by other rules, tables without room, and all of them
        where the code is not ready. Their tables may have been written.
        """
        count = len(encoded.spans)
        rule = compiled_rule(crop)
        known = rule is not None and may_call(have_jpegs) and have_jpegs(encoded.spans)
        if not known or not may_call(cut_tiles):
            return [None] * count
        out = np.empty(encoded.total + _ROOM * count, np.uint8)  # lives as long as one of the parts
        numbers = np.ascontiguousarray(draws, np.float64)
        cubic = crop.interpolation == "bicubic"
        cut_tiles(self._headers, self._jobs, encoded.spans, numbers, rule, max_pixels, size, cubic, tables, out)
        room = out.data
        cuts: list[Cut | None] = []
        for taken, begin, end, orientation, x, y, width, height, *window in self._jobs[:count].tolist():
            if not taken:
                cuts.append(None)
                continue
            jpeg = room[begin:end]
            left, top, across, down, wide, tall, at_x, at_y = window
            of_all = Window((left, top, across, down), (wide, tall), (at_x, at_y))
            cuts.append(Cut(jpeg, parse(jpeg), (x, y, width, height), orientation, of_all))
        return cuts


@compiled
def cut_tiles(
    headers: Any,
    jobs: Any,
    spans: Any,
    draws: Any,
    rule: Any,
    max_pixels: int,
    size: int,
    cubic: bool,
    tables: Any,
    out: Any,
) -> None:
    """Fill the jobs and tables of the JPEGs at `spans` [k, 2], addresses and sizes; write their parts to `out`.

    `out` has room for all of them, and two more bytes for each.
    """
    at = 0
    for i in range(spans.shape[0]):
        job = jobs[i]
        job.taken = 0
        nbytes = spans[i, 1]
        kind, width, height = look(spans[i, 0], nbytes, headers[i : i + 1], max_pixels, _ALL)
        if kind <= 0 or not find_window(width, height, draws[i], rule, jobs[i : i + 1], max_pixels):
            continue
        resized = (job.resized_width, job.resized_height)
        if not fill_words(job.width, job.height, *resized, job.at_x, job.at_y, size, cubic, tables[i]):
            continue
        _store_box(width, height, headers[i].orientation, jobs[i : i + 1])
        data = view_at(spans[i, 0], nbytes)
        room = out[at : at + nbytes + _ROOM]
        box = (job.stored_x, job.stored_y, job.stored_width, job.stored_height)
        written, left, top = splice_tiles(data, headers[i : i + 1], box[0], box[1], box[2], box[3], room)
        if written < 0:
            continue
        if written == 0:  # it is not tiled, or all of it is touched
            room[:nbytes] = data
            written = nbytes
        job.stored_x -= left
        job.stored_y -= top
        job.orientation = headers[i].orientation
        job.begin, job.end = at, at + written
        job.taken = 1
        at = job.end


@compiled
def _store_box(width: int, height: int, orientation: int, jobs: Any) -> None:
    """Where the box of `jobs[0]`, in the upright picture of `width` x `height`, lies in the stored one."""
    job = jobs[0]
    transposed, flip_x, flip_y = compiled_turn_of(orientation)
    x = width - job.x - job.width if flip_x else job.x
    y = height - job.y - job.height if flip_y else job.y
    if transposed:
        job.stored_x, job.stored_y, job.stored_width, job.stored_height = y, x, job.height, job.width
    else:
        job.stored_x, job.stored_y, job.stored_width, job.stored_height = x, y, job.width, job.height
