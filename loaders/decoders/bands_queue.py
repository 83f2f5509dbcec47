"""Bands in memory -> the rows of a batch, all of a group in one compiled call, without the GIL.

    the header of an .npy file -> jpeg.windows: the window of the crop
        -> what keeps its size is copied | float_resize: the window of the resized bands

The result equals `resample_deep`, bit for bit. Other headers, layouts and windows are left to that, and what is wrong
with an array is told by others.
"""

from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from fastimg.loaders.containers.bands import StoredBands
from fastimg.loaders.containers.npy import MAGIC
from fastimg.loaders.crop import CropRule
from fastimg.loaders.float_resize import MOST, UNKNOWN, may_resize, order_of_sums, resize_floats, size_of_floats
from fastimg.loaders.jpeg.decoding.memory import bytes_at, view_at
from fastimg.loaders.jpeg.windows import compiled_rule, is_inside, is_small, place_window
from fastimg.loaders.runtime.compiled import compiled, int64, may_call, uint16, uint32
from fastimg.loaders.runtime.scratch import Encoded, Scratch

from .resize_queue import JOB

_WAITS, _DONE, _OTHER = 0, 1, 2
_BEGIN = 10  # bytes before what a header says: the magic, the version, and a length
_MOST_DIGITS = 9  # of a number in a shape
_COMMA, _SPACE, _LINE, _ZERO = 0x2C, 0x20, 0x0A, 0x30
_END = np.frombuffer(b"), }", np.uint8)
_EXPONENT = 0x7F800000  # of floats that are infinite or no numbers


class BandsQueue:
    """Cuts crops out of arrays [C, H, W]. It belongs to one thread, which reuses it."""

    def __init__(self) -> None:
        self._jobs = np.zeros(1, JOB)

    def cut(
        self,
        encoded: Encoded,
        stored: StoredBands,
        crop: CropRule,
        draws: npt.NDArray[np.float64],
        max_pixels: int,
        scratch: Scratch,
        out: npt.NDArray[Any],
    ) -> npt.NDArray[np.bool_]:
        """Fill rows of `out` [k, H, W, C] with crops of samples in memory [k]; which rows are filled [k]."""
        rule = compiled_rule(crop)
        assert rule is not None
        itemsize = out.dtype.itemsize
        head = np.frombuffer(_head_of(out.dtype.str) if stored.headed else b"", np.uint8)
        stated = np.array([out.shape[3], stored.height, stored.width, stored.may_be_flat], np.int64)
        status = np.where(encoded.spans[:, 1] > 0, _WAITS, _OTHER)
        numbers = np.ascontiguousarray(draws, np.float64)
        how = crop.interpolation == "bicubic", order_of_sums(), itemsize
        rows = out.view(np.uint8)
        try:
            while needed := _cut(
                encoded.spans, head, stated, max_pixels, numbers, rule, how, self._jobs, status, scratch.work(0), rows
            ):
                scratch.work(needed)
        except MemoryError:  # of one of them; those that wait are cut one by one, which names it
            pass
        filled: npt.NDArray[np.bool_] = status == _DONE
        return filled


def can_cut(crop: CropRule) -> bool:
    """Whether `BandsQueue` cuts windows of a crop, and has its machine code."""
    cuts, resizes = may_call(_cut), may_resize()  # both are asked: what is missed is compiled together
    return compiled_rule(crop) is not None and cuts and resizes


@lru_cache
def _head_of(dtype: str) -> bytes:
    """How an .npy file of a type begins, but for the length of its header, as NumPy writes it in C order."""
    return MAGIC + b"\x01\x00\x00\x00" + f"{{'descr': '{dtype}', 'fortran_order': False, 'shape': (".encode()


@compiled
def _cut(
    spans: Any,
    head: Any,
    stated: Any,
    max_pixels: int,
    draws: Any,
    rule: Any,
    how: Any,
    jobs: Any,
    status: Any,
    scratch: Any,
    out: Any,
) -> int:
    """Cut what waits. Returns 0 when all is done, otherwise the bytes of scratch that the next one needs.

    `stated`: the bands, the height and the width that arrays have, 0 for any, and whether a single band may have no
    axis. `how`: whether the filter is bicubic, the order of sums, and the bytes of a value.
    """
    bicubic, order, itemsize = how
    tall, wide = out.shape[1], out.shape[2]
    bands = stated[0]
    shape = np.empty(2, np.int64)
    job = jobs[0]
    for i in range(spans.shape[0]):
        if status[i] != _WAITS:
            continue
        status[i] = _OTHER
        address, nbytes = spans[i, 0], spans[i, 1]
        begin = _find_values(view_at(address, nbytes), head, stated, shape)
        height, width = shape[0], shape[1]
        if begin < 0 or height * width > min(max_pixels, nbytes):
            continue
        if begin + bands * height * width * itemsize != nbytes:
            continue
        values = address + begin
        if itemsize == 4 and not _are_finite(values, bands * height * width):
            continue
        place_window(width, height, draws[i], rule, jobs)
        if not is_small(jobs, max_pixels) or not is_inside(jobs, wide, tall):
            continue
        pitch, apart = width * itemsize, height * width * itemsize
        to = int64(out[i].ctypes.data)
        first = values + job.y * pitch + job.x * itemsize
        if job.resized_width == job.width and job.resized_height == job.height:
            first += job.at_y * pitch + job.at_x * itemsize
            _interleave(first, pitch, apart, itemsize, tall, wide, bands, to)
            status[i] = _DONE
            continue
        if order == UNKNOWN or job.resized_width == 1:  # torch's width of 1 depends on the layout in memory
            continue
        needed = size_of_floats(job, wide, tall, bands, bicubic)
        if needed > MOST:
            continue
        if scratch.size < needed:
            status[i] = _WAITS
            return int(needed)
        room = int64(scratch.ctypes.data)
        layout = itemsize, pitch, apart
        resize_floats(first, layout, job, (tall, wide, bands), bicubic, order, room, to)
        status[i] = _DONE
    return 0


@compiled
def _find_values(data: Any, head: Any, stated: Any, shape: Any) -> int:
    """Where the values of bands begin, whose height and width are written to `shape` [2]; -1 for what others read.

    An empty `head` is that of values without a header.
    """
    bands, height, width, may_be_flat = stated
    shape[0], shape[1] = height, width
    if head.size == 0:
        return 0
    if data.size < head.size + _END.size:
        return -1
    for i in range(head.size):
        if data[i] != head[i] and i not in (_BEGIN - 2, _BEGIN - 1):
            return -1
    begin = _BEGIN + int64(data[_BEGIN - 2]) + (int64(data[_BEGIN - 1]) << 8)
    if begin > data.size:
        return -1
    at, axes = head.size, 0
    first, before, last = int64(0), int64(0), int64(0)
    while True:
        value, at = _read_number(data, at, begin)
        first, before, last = before, last, value
        axes += 1
        if value == 0 or at + _END.size > begin:
            return -1
        if data[at] == _END[0]:
            break
        if axes == 3 or data[at] != _COMMA or data[at + 1] != _SPACE:
            return -1
        at += 2
    for i in range(_END.size):
        if data[at + i] != _END[i]:
            return -1
    for i in range(at + _END.size, begin):
        if data[i] != _SPACE and data[i] != _LINE:
            return -1
    if axes == 2 and may_be_flat:
        first = int64(1)
    if first != bands or (height > 0 and (before != height or last != width)):
        return -1
    shape[0], shape[1] = before, last
    return int(begin)


@compiled
def _read_number(data: Any, at: int, end: int) -> tuple[int, int]:
    """The number at a place, and the place behind it; 0 for none, and for one with a 0 before it."""
    value, begin = int64(0), at
    while at < end and at - begin < _MOST_DIGITS and 0 <= int64(data[at]) - _ZERO <= 9:
        value = 10 * value + int64(data[at]) - _ZERO
        at += 1
    return (value, at) if at > begin and data[begin] != _ZERO else (int64(0), at)


@compiled
def _are_finite(address: int, count: int) -> bool:
    """Whether all of some floats at an address are numbers."""
    words = bytes_at(address, 4 * count).view(uint32)
    found = 0
    for i in range(count):
        found += (words[i] & _EXPONENT) == _EXPONENT
    return found == 0


@compiled
def _interleave(address: int, pitch: int, apart: int, itemsize: int, tall: int, wide: int, bands: int, to: int) -> None:
    """Write rows of bands, whose first values are at an address, to another one: the bands of a pixel side by side."""
    for y in range(tall):
        line, row = address + y * pitch, to + y * wide * bands * itemsize
        if itemsize == 1:
            _interleave_row(bytes_at(line, (bands - 1) * apart + wide), apart, bands, bytes_at(row, wide * bands))
        elif itemsize == 2:
            source = bytes_at(line, (bands - 1) * apart + 2 * wide).view(uint16)
            _interleave_row(source, apart // 2, bands, bytes_at(row, 2 * wide * bands).view(uint16))
        else:
            source = bytes_at(line, (bands - 1) * apart + 4 * wide).view(uint32)
            _interleave_row(source, apart // 4, bands, bytes_at(row, 4 * wide * bands).view(uint32))


@compiled
def _interleave_row(source: Any, apart: int, bands: int, out: Any) -> None:
    wide = out.size // bands
    if bands == 1:
        out[:] = source[:wide]
    elif bands == 3:
        for x in range(wide):
            out[3 * x], out[3 * x + 1], out[3 * x + 2] = source[x], source[apart + x], source[2 * apart + x]
    else:
        for band in range(bands):
            for x in range(wide):
                out[x * bands + band] = source[band * apart + x]
