"""PNG masks -> the rows of a batch, several in one compiled call, without the GIL.

    pictures.png: the header -> pictures.png_rows: the rows of the crop's box, inflated, and their filters undone
        -> the nearest pixel for each one of the window

The result equals what `decode_mask_box` and `crop_mask` make of it. Interlaced, unusual and damaged files are left to
them.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from fastimg.loaders.jpeg.decoding.memory import byte_at, bytes_at, copy_bytes, view_at
from fastimg.loaders.jpeg.decoding.region import WINDOW
from fastimg.loaders.pictures.huffman import new_tables
from fastimg.loaders.pictures.png import parse_png
from fastimg.loaders.pictures.png_rows import DAMAGED, decode_rows, size_of_rows
from fastimg.loaders.pictures.record import GRAY, PALETTE, new_picture
from fastimg.loaders.runtime.compiled import compiled, inlined, int32, int64, may_call
from fastimg.loaders.runtime.scratch import MOST, Scratch, address_of

from .geometry import CropView
from .shown import mirrored

_MOST = 1 << 26  # bytes of scratch that a mask may take; larger ones are left to Pillow
_ENOUGH = 1 << 24  # bytes of masks that are kept until they are decoded
_WAITS, _DONE, _OTHER = 0, 1, 2

_JOB = np.dtype(
    [
        ("address", np.int64),  # of the file
        ("nbytes", np.int64),
        ("status", np.int64),
        ("picture_width", np.int64),  # that it has to have
        ("picture_height", np.int64),
        *WINDOW,
        # The output: its address, its size, the bytes of a value, and the most bytes that a value of the file may have.
        ("out", np.int64),
        ("across", np.int64),
        ("down", np.int64),
        ("itemsize", np.int64),
        ("most", np.int64),
        ("ignore", np.int64),  # beyond the image
        ("mirrors", np.int64),  # whether the image is mirrored there instead
    ]
)


class MaskQueue:
    """Up to MOST masks that are decoded in one call. It belongs to one thread, which reuses it."""

    def __init__(self) -> None:
        self._jobs = np.zeros(MOST, _JOB)
        self._picture = new_picture()
        self._tables = new_tables()
        self._columns = np.zeros(0, np.int64)
        self._queued: list[bytes] = []
        self._nbytes = 0

    def __len__(self) -> int:
        return len(self._queued)

    @property
    def full(self) -> bool:
        """Whether it has to be run before another mask is added."""
        return len(self._queued) == MOST or self._nbytes > _ENOUGH

    def clear(self) -> None:
        """Forget what is queued."""
        self._queued.clear()
        self._nbytes = 0

    def add(self, data: bytes, view: CropView, most: int, out: npt.NDArray[Any]) -> bool:
        """Queue the window of a mask for `out` [h, w]; False if it has to be decoded in another way.

        Its values may have `most` bytes. `out` must stay in memory until `run`.
        """
        if out.dtype.str not in ("|u1", "<i4") or not out.flags.c_contiguous or not may_call(_crop_masks):
            return False
        (x, y, width, height), size, at = view.window
        inside = x >= 0 and y >= 0 and x + width <= view.size[0] and y + height <= view.size[1]
        if not inside or min(width, height, *size) < 1 or not data:
            return False
        begin = address_of(np.frombuffer(data, np.uint8))
        target = address_of(out), out.shape[1], out.shape[0], out.itemsize, most, view.ignore, view.mirrors
        window = (x, y, width, height, *size, *at)
        self._jobs[len(self._queued)] = (begin, len(data), _WAITS, *view.size, *window, *target)
        self._queued.append(data)
        self._nbytes += len(data)
        if len(self._columns) < out.shape[1]:
            self._columns = np.zeros(out.shape[1], np.int64)
        return True

    def run(self, scratch: Scratch) -> list[int]:
        """Decode the queue; return the numbers of those that could not be decoded, in the order they were added in."""
        if not self._queued:
            return []
        jobs = self._jobs[: len(self._queued)]
        try:
            while needed := _crop_masks(jobs, self._picture, self._tables, self._columns, scratch.work(0)):
                scratch.work(needed)
        except MemoryError:  # of one of them; those that wait are decoded one by one, which names it
            pass
        self.clear()
        return np.flatnonzero(jobs["status"] != _DONE).tolist()


@compiled
def _crop_masks(jobs: Any, pictures: Any, tables: Any, columns: Any, scratch: Any) -> int:
    """Decode what waits. Returns 0 when all is done, otherwise the bytes of scratch that the next one needs."""
    picture = pictures[0]
    for i in range(jobs.shape[0]):
        job = jobs[i]
        if job.status != _WAITS:
            continue
        job.status = _OTHER
        if not parse_png(view_at(job.address, job.nbytes), pictures) or not _is_mask(picture, job):
            continue
        bottom = job.y + job.height
        needed = size_of_rows(picture, job.y, bottom)
        if needed == 0 or needed > _MOST:
            continue
        if scratch.size < needed:
            job.status = _WAITS
            return int(needed)
        first = decode_rows(job.address, picture, job.y, bottom, tables, scratch)
        if first != DAMAGED and _write_nearest(picture, first, job, columns):
            job.status = _DONE
    return 0


@inlined
def _is_mask(picture: Any, job: Any) -> bool:
    """Whether a PNG has the image's size, and one channel whose values the output holds."""
    sized = picture.width == job.picture_width and picture.height == job.picture_height
    return bool(sized and picture.colour in (GRAY, PALETTE) and picture.depth <= 8 * job.most)


@compiled
def _write_nearest(picture: Any, first: int, job: Any, columns: Any) -> bool:
    """Write the window of a mask, whose first row begins at an address, as `geometry.crop_mask` does.

    `columns` [w] is for the pixels that a row is made of. False where mirroring does not reach far enough.
    """
    for x in range(job.across):
        columns[x] = _source(job.at_x + x, job.width, job.resized_width, job.mirrors)
        if columns[x] < -1:
            return False
        if columns[x] >= 0:
            columns[x] += job.x
    nbytes = job.across * job.itemsize
    last, written = -1, 0  # the row of the mask that was written last, and where
    for y in range(job.down):
        line = job.out + y * nbytes
        row = _source(job.at_y + y, job.height, job.resized_height, job.mirrors)
        if row < -1:
            return False
        if row >= 0 and row == last:
            copy_bytes(written, line, nbytes)
            continue
        begin = int64(first + (job.y + row) * (picture.length + 1)) if row >= 0 else int64(-1)
        out = bytes_at(line, nbytes)
        if job.itemsize == 1:
            _write_row(picture, begin, columns[: job.across], job.ignore, out)
        else:
            _write_row(picture, begin, columns[: job.across], job.ignore, out.view(int32))
        last, written = row, line
    return True


@compiled
def _write_row(picture: Any, begin: int, columns: Any, ignore: int, out: Any) -> None:
    """Write the values of a row that begins at an address, of the pixels `columns`; `ignore` for -1, in either."""
    depth = picture.depth
    if begin >= 0 and depth == 8:
        for x in range(columns.size):
            out[x] = byte_at(begin + columns[x]) if columns[x] >= 0 else ignore
        return
    # Pillow stretches gray of 2 and 4 bits to 8.
    scale = 255 // ((1 << depth) - 1) if picture.colour == GRAY and 1 < depth < 8 else 1
    for x in range(columns.size):
        at = columns[x]
        if begin < 0 or at < 0:
            out[x] = ignore
        elif depth == 16:
            out[x] = int64(byte_at(begin + 2 * at)) << 8 | int64(byte_at(begin + 2 * at + 1))
        else:
            per_byte = 8 // depth
            shift = 8 - depth * (at % per_byte + 1)
            out[x] = (int64(byte_at(begin + at // per_byte)) >> shift & (1 << depth) - 1) * scale


@inlined
def _source(place: int, count: int, size: int, mirrors: int) -> int:
    """The pixel of `count` that is shown at a place of `size`, as torch's `nearest_idx` computes it.

    -1 beyond the image; less than that where it is not mirrored so far.
    """
    if mirrors:
        place = mirrored(place, size)
        if place < 0:
            return -2
    elif place < 0 or place >= size:
        return -1
    if size == count:
        return place
    if size == 2 * count:
        return place >> 1
    return min(int(np.floor(np.float32(place) * (np.float32(count) / np.float32(size)))), count - 1)
