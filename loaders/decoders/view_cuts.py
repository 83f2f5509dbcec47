"""Several crops of each PNG, BMP, PPM and TIFF file, and of stored pixels, in few compiled calls, without the GIL.

    the header, or PIXELS -> jpeg.windows: the window of each crop -> the part of the image that any of them shows
        -> picture_queue: its pixels, decoded once, or read -> each window, as for one crop

Each crop has the bits that it has alone. Damaged and unusual files are left to Pillow.
"""

import contextlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from fastimg.loaders.crop import CropRule
from fastimg.loaders.decoder import SampleReader
from fastimg.loaders.jpeg.decoding.columns import size_of_columns, size_of_passes
from fastimg.loaders.jpeg.decoding.memory import bytes_at, view_at
from fastimg.loaders.jpeg.decoding.region import REGION
from fastimg.loaders.jpeg.decoding.union import Outs, targets_of
from fastimg.loaders.jpeg.windows import compiled_rules, is_small, place_window
from fastimg.loaders.pictures.huffman import new_tables
from fastimg.loaders.pictures.png_rows import DAMAGED, decode_rows, size_of_rows
from fastimg.loaders.pictures.record import DEFLATED, GRAY, RGB, STORED, WEBP, new_picture
from fastimg.loaders.runtime.compiled import compiled, int64, may_call
from fastimg.loaders.runtime.file_reads import read_up_to
from fastimg.loaders.runtime.scratch import Encoded, Scratch

from .picture_queue import MOST_SCRATCH, parse_picture, show, size_of_pixels, to_pixels
from .resize_queue import JOB
from .shown import find_shown

_WAITS, _DONE, _OTHER = 0, 1, 2

_PART = np.dtype([(name, np.int64) for name in ("top", "bottom", "left", "right")])


class ViewCuts:
    """Cuts several crops out of each picture. It belongs to one thread, which reuses it."""

    def __init__(self) -> None:
        self._crops: Sequence[CropRule] = ()
        self._rules: tuple[npt.NDArray[np.float64], npt.NDArray[np.int64]] | None = None
        # What compiled code works with: for each crop its window and region; the picture, its part, and Huffman tables.
        self._records = (
            np.zeros(0, JOB),
            np.zeros(0, REGION),
            new_picture(),
            np.zeros(1, _PART),
            new_tables(),
        )

    def cut(
        self,
        reader: SampleReader,
        ids: Sequence[int],
        crops: Sequence[CropRule],
        draws: npt.NDArray[np.float64],
        max_pixels: int,
        scratch: Scratch,
        outs: Outs,
    ) -> npt.NDArray[np.bool_] | None:
        """Fill rows of `outs`, one for each crop, from the samples `ids` [k]; which rows are filled [k].

        `draws` [k, d] are the numbers of all crops, one crop's after the other's. None if none are filled: of other
        rules, and of data that has no stored pixels. Raises Cancelled, and DataError if the data has changed.
        """
        pixels = reader.stored_pixels(ids) if self._knows(crops) else None
        if pixels is None or not may_call(_cut_stored):
            return None
        status = np.full(len(ids), _WAITS)
        numbers, targets = np.ascontiguousarray(draws, np.float64), targets_of(crops, outs)
        known = self._records, self._rules, targets, outs[0].shape[3], max_pixels
        with contextlib.suppress(MemoryError):  # of one of them; those that wait are left to others
            while needed := reader.timed(
                _cut_stored, pixels.table, pixels.places, numbers, *known, status, scratch.work(0)
            ):
                scratch.work(needed)
        filled: npt.NDArray[np.bool_] = status == _DONE
        return filled

    def decode(
        self,
        encoded: Encoded,
        places: Sequence[int],
        crops: Sequence[CropRule],
        draws: npt.NDArray[np.float64],
        max_pixels: int,
        scratch: Scratch,
        outs: Outs,
    ) -> Sequence[int]:
        """Decode these places of a group into their rows of `outs`; returns those that this decoder cannot decode."""
        if not places or not self._knows(crops) or not may_call(_cut_files):
            return places
        status = np.full(len(encoded.spans), _OTHER)
        status[places] = _WAITS
        numbers, targets = np.ascontiguousarray(draws, np.float64), targets_of(crops, outs)
        known = self._records, self._rules, targets, outs[0].shape[3], max_pixels
        with contextlib.suppress(MemoryError):  # of one of them; those that wait are decoded one by one, which names it
            while needed := _cut_files(encoded.spans, numbers, *known, status, scratch.work(0)):
                scratch.work(needed)
        return [place for place in places if status[place] != _DONE]

    def _knows(self, crops: Sequence[CropRule]) -> bool:
        """Whether the rules are known in compiled code. Those of the last call are remembered."""
        if self._crops is not crops:
            self._crops, self._rules = crops, compiled_rules(crops, padded=True)
            jobs, regions = np.zeros(len(crops), JOB), np.zeros(len(crops), REGION)
            self._records = jobs, regions, *self._records[2:]
        return self._rules is not None


@compiled
def _cut_files(
    spans: Any,
    draws: Any,
    records: Any,
    rules: Any,
    targets: Any,
    channels: int,
    max_pixels: int,
    status: Any,
    scratch: Any,
) -> int:
    """Decode the files at `spans` [k, 2] that wait. Returns 0, or the bytes of scratch that the next one needs."""
    _, _, pictures, parts, tables = records
    part, picture = parts[0], pictures[0]
    for i in range(spans.shape[0]):
        if status[i] != _WAITS:
            continue
        status[i] = _OTHER
        address = spans[i, 0]
        if spans[i, 1] == 0 or not parse_picture(view_at(address, spans[i, 1]), pictures):
            continue
        if picture.format == WEBP or not _place_windows(records, draws[i], rules, max_pixels):
            continue
        rest = _find_part(records, i, targets, channels)
        if rest < 0:
            continue
        rows = size_of_rows(picture, part.top, part.bottom) if picture.format == DEFLATED else 0
        if (picture.format == DEFLATED and rows == 0) or rows + rest > MOST_SCRATCH:
            continue
        if scratch.size < rows + rest:
            status[i] = _WAITS
            return int(rows + rest)
        first, pitch = int64(address + picture.first), picture.pitch
        if picture.format == DEFLATED:
            first = int64(decode_rows(address, picture, part.top, part.bottom, tables, scratch))
            pitch = picture.length + 1
        if first != DAMAGED and _write_windows(records, address, first, pitch, i, targets, channels, scratch[rows:]):
            status[i] = _DONE
    return 0


@compiled
def _cut_stored(
    table: Any,
    places: Any,
    draws: Any,
    records: Any,
    rules: Any,
    targets: Any,
    channels: int,
    max_pixels: int,
    status: Any,
    scratch: Any,
) -> int:
    """Cut the stored pixels that wait. Returns 0, or the bytes of scratch that the next one needs.

    They lie where `table`, of PIXELS, says at their `places` [k].
    """
    _, _, pictures, parts, _ = records
    part, picture = parts[0], pictures[0]
    for i in range(places.size):
        stored = table[places[i]]
        if status[i] != _WAITS:
            continue
        status[i] = _OTHER
        if stored.width == 0 or stored.channels not in (1, 3):
            continue
        picture.format, picture.width, picture.height, picture.depth = STORED, stored.width, stored.height, 8
        picture.colour = RGB if stored.channels == 3 else GRAY
        picture.step = stored.channels
        if not _place_windows(records, draws[i], rules, max_pixels):
            continue
        rest = _find_part(records, i, targets, channels)
        if rest < 0:
            continue
        first, nbytes = stored.address, 0
        if not first:
            nbytes = (part.bottom - part.top - 1) * stored.pitch + stored.width * stored.channels
        if nbytes + rest > MOST_SCRATCH:
            continue
        if scratch.size < nbytes + rest:
            status[i] = _WAITS
            return int(nbytes + rest)
        if nbytes:
            memory, skipped = int64(scratch.ctypes.data), part.top * stored.pitch
            if read_up_to(stored.file, memory, nbytes, stored.offset + skipped) != nbytes:
                continue
            first = memory - skipped  # where the image's first row would be
        if _write_windows(records, 0, first, stored.pitch, i, targets, channels, scratch[nbytes:]):
            status[i] = _DONE
    return 0


@compiled
def _place_windows(records: Any, draws: Any, rules: Any, max_pixels: int) -> bool:
    """Fill the windows of all crops. False for a picture that has too many pixels, or gets them by a resize."""
    jobs, _, pictures, _, _ = records
    settings, begins = rules
    picture = pictures[0]
    if picture.width * picture.height > max_pixels:
        return False
    for k in range(jobs.shape[0]):
        place_window(picture.width, picture.height, draws[begins[k] :], settings[k], jobs[k : k + 1])
        if not is_small(jobs[k : k + 1], max_pixels):
            return False
        job = jobs[k]
        job.row, job.done, job.picture_width, job.picture_height = 0, 0, picture.width, picture.height
    return True


@compiled
def _output(targets: Any, k: int, row: int, channels: int) -> Any:
    """A row of a crop's outputs, [1, H, W, C]."""
    across, down = targets[k, 2], targets[k, 3]
    begin = targets[k, 0] + row * targets[k, 1]
    return bytes_at(begin, channels * across * down).reshape((1, down, across, channels))


@compiled
def _find_part(records: Any, row: int, targets: Any, channels: int) -> int:
    """Fill the part of the picture that any of its windows depends on.

    Returns the bytes of scratch that its pixels and their resize take; -1 if a window has to be made in another way.
    """
    jobs, regions, pictures, parts, _ = records
    part, picture = parts[0], pictures[0]
    part.top, part.bottom, part.left, part.right = picture.height, 0, picture.width, 0
    work = 0
    for k in range(jobs.shape[0]):
        job, region, out = jobs[k], regions[k : k + 1], _output(targets, k, row, channels)
        bicubic = targets[k, 4] != 0
        top, bottom, kept = find_shown(picture.width, picture.height, jobs[k : k + 1], out[0], bicubic, region)
        if bottom == 0:
            return -1
        if picture.format == DEFLATED:  # all of the box, so that everywhere the same crops are refused
            top, bottom = job.y, job.y + job.height
        left, wide = (job.x, job.width) if kept else (region[0].x, region[0].width)
        part.top, part.bottom = min(part.top, top), max(part.bottom, bottom)
        part.left, part.right = min(part.left, left), max(part.right, left + wide)
        if not kept:
            work = max(work, size_of_columns(region) + size_of_passes(region, out.shape[2]))
    return int(work + size_of_pixels(picture, part.top, part.bottom, part.right - part.left, channels))


@compiled
def _write_windows(
    records: Any, address: int, first: int, pitch: int, row: int, targets: Any, channels: int, scratch: Any
) -> bool:
    """Write all windows from rows of the part: see `to_pixels`. False if they are no pixels."""
    jobs, regions, pictures, parts, _ = records
    part, picture = parts[0], pictures[0]
    wide = part.right - part.left
    used = size_of_pixels(picture, part.top, part.bottom, wide, channels)
    first, pitch = to_pixels(picture, address, first, pitch, part.top, part.bottom, part.left, wide, channels, scratch)
    if first == DAMAGED:
        return False
    for k in range(jobs.shape[0]):
        job, out = jobs[k], _output(targets, k, row, channels)
        kept = job.resized_width == job.width and job.resized_height == job.height
        bicubic, region = targets[k, 4] != 0, regions[k : k + 1]
        show(jobs[k : k + 1], first, pitch, part.bottom, kept, region, bicubic, scratch[used:], out)
    return True
