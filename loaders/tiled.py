"""Tiled JPEGs' bytes -> the pixels that a model sees, in one compiled call for several, without the GIL.

    baseline: the touched tiles' samples -> colour: RGB columns -> filters: the window of the resized picture

The bits are those of decoding the whole picture, cutting out the box, resizing it and cutting out the window.
"""

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from .baseline import SCRATCH, decode_tiles
from .colour import to_columns
from .compiled import compiled, held, inlined, is_kept
from .crop import Crop
from .entropy import PAD
from .filters import reach, resize_columns
from .frame import (
    HEADER,
    HEIGHT,
    INTERVAL,
    MCU_HEIGHT,
    MCU_WIDTH,
    ORIENTATION,
    WIDTH,
    H,
    V,
    read_frame,
    scaled,
)
from .vectors import WIDE, bytes_at

_MARGIN = 2  # the upsampling of chroma looks past the box
_MOST_PIXELS = 1 << 24  # that are held at once, 100 MB: the window of a larger picture goes the other way

DONE, OTHER = -1, -2  # what crop_tiled returns, or the bytes of scratch that it needs
_ADDRESS, _BYTES, _ROW, _STATUS, _BOX, _JOB = 0, 1, 2, 3, 4, 12  # of a job: then box, size, at

GROUP = 8  # pictures that are decoded in one call: Python runs for all of them at once, while its code is in the cache


class Tiled:
    """Pictures that wait to be decoded together. One belongs to one thread, and is used again."""

    def __init__(self) -> None:
        frames, jobs = np.zeros((GROUP, HEADER), np.int64), np.zeros((GROUP, _JOB), np.int64)
        self._frames, self._jobs = frames, jobs
        self._places = [(frames[i], jobs[i]) for i in range(GROUP)]
        self._kept: list[npt.NDArray[np.uint8]] = []

    def add(self, data: bytes | memoryview, crop: Crop, draws: Sequence[float], max_pixels: int, row: int) -> bool:
        """Note `crop`'s window of a tiled JPEG for a row of the batch; False where it is for others to decode.

        `data` must stay as it is until `run`.
        """
        if data[:2] != b"\xff\xd8":  # before anything is compiled for it
            return False
        view = np.frombuffer(data, np.uint8)
        view.flags.writeable = False  # one type for numba: one compilation
        frame, job = self._places[len(self._kept)]
        if _peek(view, frame, job) != 1:
            return False
        width, height = frame.item(WIDTH), frame.item(HEIGHT)
        if width * height > max_pixels:
            return False
        box, size, at = crop.window(width, height, draws)
        if size[0] * size[1] > max_pixels:
            return False
        job[_ROW:] = (row, 0, *box, *size, *at)
        self._kept.append(view)
        return True

    def clear(self) -> None:
        """Forget what was noted."""
        self._kept.clear()

    def run(self, crop: Crop, scaling: bool, scratch: "Work", out: npt.NDArray[np.uint8]) -> list[int]:
        """Write what was noted to rows of `out` [B, S, S, 3]: the rows that are for others, being damaged."""
        jobs, bicubic = self._jobs[: len(self._kept)], crop.interpolation == "bicubic"
        while needed := _crop_rows(self._frames, jobs, bicubic, scaling, scratch.work(0), out):
            scratch.work(needed)
        self._kept.clear()
        return [row for row, status in jobs[:, _ROW : _STATUS + 1].tolist() if status == OTHER]


def will_compile(data: bytes | memoryview) -> bool:
    """Whether decoding this image would first compile the decoder, since nobody has done that on this machine."""
    view = np.frombuffer(data, np.uint8)
    view.flags.writeable = False
    return not is_kept(_crop_rows) and _peek(view, np.zeros(HEADER, np.int64), np.zeros(_JOB, np.int64)) == 1


class Work(Protocol):
    """Where memory comes from."""

    def work(self, nbytes: int) -> npt.NDArray[np.uint8]:
        """Room for at least `nbytes`."""


@held
def _peek(data: Any, frame: Any, job: Any) -> int:
    """Fill `frame` and where the data is: the orientation, 0 for what is not tiled."""
    if not read_frame(data, frame):
        return 0
    job[_ADDRESS], job[_BYTES] = data.ctypes.data, data.size
    return int(frame[ORIENTATION])


@compiled
def _crop_rows(frames: Any, jobs: Any, bicubic: bool, scaling: bool, scratch: Any, out: Any) -> int:
    """0 when all are done, else the bytes of scratch that the next one needs."""
    for i in range(jobs.shape[0]):
        if jobs[i, _STATUS]:
            continue
        job = jobs[i, _BOX:]
        status = crop_tiled(
            bytes_at(jobs[i, _ADDRESS], jobs[i, _BYTES]),
            frames[i],
            (job[0], job[1], job[2], job[3]),
            (job[4], job[5]),
            (job[6], job[7]),
            bicubic,
            scaling,
            scratch,
            out[jobs[i, _ROW]],
        )
        if status > 0:
            return int(status)
        jobs[i, _STATUS] = status
    return 0


@inlined
def _aligned(nbytes: int) -> int:
    return (nbytes + 63) // 64 * 64


@compiled
def crop_tiled(
    data: Any, frame: Any, box: Any, size: Any, at: Any, bicubic: bool, scaling: bool, scratch: Any, out: Any
) -> int:
    """Resize `box` (x, y, width, height) of a JPEG to `size` (width, height), and write `out` [S, S, 3] from `at` on.

    `frame` is what `read_frame` filled. With `scaling` a box of at least twice the size is decoded at 1/2, 1/4 or 1/8.
    Returns DONE, OTHER where the data is damaged or not as `tile` leaves it, else the bytes that `scratch` must have.
    """
    side, window = 8, out.shape[0]
    for i in range(2):  # a crop that is wrong is for the other way to name
        if box[i] < 0 or box[2 + i] < 1 or box[i] + box[2 + i] > frame[WIDTH + i]:
            return OTHER
        if at[i] < 0 or at[i] + window > size[i]:
            return OTHER
    while scaling and side > 1 and _scales(frame) and box[2] * side >= 16 * size[0] and box[3] * side >= 16 * size[1]:
        side //= 2
    small = scaled(frame, side)
    start, extent = np.empty(2), np.empty(2)  # the box in samples, not whole ones when scaled
    region = np.empty(4, np.int64)  # what the window is made of
    for i in range(2):
        start[i], extent[i] = box[i] * side / 8, box[2 + i] * side / 8
        # By itself, from 0 on, where samples are whole: torch's numbers then.
        origin = box[i] if side == 8 else 0
        start[i] -= origin
        begin, end = reach(start[i], extent[i], size[i], bicubic, at[i], at[i] + window)
        region[i], region[2 + i] = min(origin + begin, small[WIDTH + i] - 1), end - begin
        region[2 + i] = min(region[2 + i], small[WIDTH + i] - region[i])
    if region[2] * region[3] > _MOST_PIXELS:
        return OTHER
    tile_width, tile_height = small[INTERVAL] * small[MCU_WIDTH], small[MCU_HEIGHT]
    left = max(0, region[0] - _MARGIN) // tile_width
    right = -(-min(small[WIDTH], region[0] + region[2] + _MARGIN) // tile_width)
    top = max(0, region[1] - _MARGIN) // tile_height
    bottom = -(-min(small[HEIGHT], region[1] + region[3] + _MARGIN) // tile_height)
    tiles = -(-small[WIDTH] // tile_width)
    # Chroma of two samples or fewer across is upsampled plainly: as few only where the whole has as few.
    while min(small[WIDTH], right * tile_width) - left * tile_width <= 4:
        if right < tiles:
            right += 1
        elif left > 0:
            left -= 1
        else:
            return OTHER
    height = -(-region[3] // WIDE) * WIDE
    row = -(-3 * window // 8) * 8
    planes = _aligned(3 * (right - left) * tile_width * (bottom - top) * tile_height + 2 * WIDE)
    columns = _aligned(3 * region[2] * height + WIDE)
    bits = _aligned(data.size + PAD)
    bounds = _aligned(8 * ((right - left) * (bottom - top) + 1))
    sums = _aligned(2 * (2 * height + 2 * (region[2] // 2 + 3) * (height + 4) + 2 * WIDE))
    passes = _aligned(height * (row + 8) + WIDE)
    tables = 8 * SCRATCH
    # Bits, bounds and tables are done with when the columns are made: they share their place with what follows.
    needed = planes + columns + max(tables + bits + bounds, sums, passes)
    if scratch.size < needed:
        return needed
    work = scratch[planes + columns :]
    samples = scratch[:planes]
    if not decode_tiles(
        data,
        frame,
        side,
        left,
        right,
        top,
        bottom,
        work[tables + bounds : tables + bounds + bits],
        work[tables : tables + bounds].view(np.int64),
        work[:tables].view(np.int64),
        samples,
    ):
        return OTHER
    rgb = scratch[planes : planes + columns]
    to_columns(samples, small, left, right, top, bottom, region, height, work[:sums].view(np.uint16), rgb)
    x, y = region[0], region[1]
    if side == 8:
        x, y = x - box[0], y - box[1]
    resize_columns(rgb, height, x, y, start, extent, size, at, bicubic, work, out)
    return DONE


@inlined
def _scales(frame: Any) -> bool:
    """Whether chroma has luma's size after DCT scaling: not that of 4:2:2."""
    return bool(frame[H] == frame[V])
