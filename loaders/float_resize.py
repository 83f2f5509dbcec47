"""The antialiased resize of numbers in float32, in compiled code: torch's kernels, bit for bit.

    rows of uint8, uint16 or float32 -> columns of floats -> resized across -> rows -> resized down -> rounded

An output is the sum of its products in order (ATen's UpSampleKernel.cpp). Which of them are rounded before they are
added, and which with the sum, is the choice of the compiler that built torch: none in its code for any CPU; for AVX2
and AVX-512, GCC makes vectors of four of their products, which are rounded first. `order_of_sums` compares with torch.
"""

import functools
import math
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from .float_vectors import (
    FLOATS,
    clear_floats,
    float_at,
    fused,
    narrow_to_bytes,
    narrow_to_shorts,
    store_float,
    turn_bytes,
    turn_floats,
    turn_many,
    turn_shorts,
    weighted_floats,
)
from .jpeg.decoding.memory import byte_at, copy_bytes
from .jpeg.decoding.region import WINDOW
from .runtime.compiled import compiled, float32, inlined, int64, is_ready, may_call

# Products that are rounded first: all, none but the first one, those of whole fours behind it; none of these.
PLAIN, FUSED, FOURS, UNKNOWN = range(4)
MOST = 1 << 26  # bytes of scratch that are taken
_LONGEST = 1 << 22  # numbers along an axis: float32 tells their places and the half-way points apart
_SQUARE = 8  # numbers across and down that are turned at once
_AT_ONCE = 256  # numbers of a row of the output that are made at once, where it has fewer channels

# The filters' numbers, in the precision of torch's.
_NONE, _HALF, _ONE, _ONE_HALF, _TWO, _TWO_HALF, _FOUR = (float32(number) for number in (0, 0.5, 1, 1.5, 2, 2.5, 4))


@inlined
def _filter(x: Any, bicubic: bool, order: int) -> Any:
    """The filter of both kinds (Keys, with a = -1/2), rounded as the sums are."""
    x = abs(x)
    if not bicubic:
        return _ONE - x if x < _ONE else _NONE
    if x < _ONE:
        if order == PLAIN:
            return (_ONE_HALF * x - _TWO_HALF) * x * x + _ONE
        return fused(fused(_ONE_HALF, x, -_TWO_HALF) * x, x, _ONE)
    if x < _TWO:
        if order == PLAIN:
            return ((-_HALF * x + _TWO_HALF) * x - _FOUR) * x + _TWO
        return fused(fused(fused(-_HALF, x, _TWO_HALF), x, -_FOUR), x, _TWO)
    return _NONE


@inlined
def _scale_and_support(extent: int, size: int, bicubic: bool) -> tuple[Any, Any]:
    scale = float32(extent) / float32(size)
    reach = 2.0 if bicubic else 1.0
    return scale, float32(reach * scale) if scale >= _ONE else float32(reach)


@inlined
def _taps(extent: int, size: int, bicubic: bool) -> int:
    """The largest number of weights of an output when `extent` numbers are resized to `size`."""
    _, support = _scale_and_support(extent, size, bicubic)
    return int(math.ceil(support) * 2 + 1)


@inlined
def _reach(extent: int, size: int, bicubic: bool, place: int) -> tuple[int, int, Any]:
    """What output `place` of `size` depends on: the first number, how many, and the output's centre among them."""
    scale, support = _scale_and_support(extent, size, bicubic)
    centre = float32(np.float64(scale) * (place + 0.5))
    if extent == size:  # torch leaves such an axis out, and so the signs of zeros as they are
        return place, 1, centre
    begin = max(int(np.float64(float32(centre - support)) + 0.5), 0)
    end = min(int(np.float64(float32(centre + support)) + 0.5), extent)
    return begin, min(max(end - begin, 0), _taps(extent, size, bicubic)), centre


@inlined
def _span(extent: int, size: int, bicubic: bool, at: int, count: int) -> tuple[int, int]:
    """The numbers [first, last) that outputs [at, at + count) depend on."""
    first, _, _ = _reach(extent, size, bicubic, at)
    begin, length, _ = _reach(extent, size, bicubic, at + count - 1)
    return first, begin + length


@compiled
def _fill_weights(
    extent: int, size: int, bicubic: bool, order: int, at: int, reaches: Any, weights: int, each: int
) -> None:
    """Write the weights of outputs [at, at + k) of `size` to an address, `each` bytes for one.

    `reaches` [k, 2]: the first number that an output depends on, and how many.
    """
    scale, _ = _scale_and_support(extent, size, bicubic)
    inverse = float32(1.0 / np.float64(scale)) if scale >= _ONE else _ONE
    for i in range(reaches.shape[0]):
        begin, count, centre = _reach(extent, size, bicubic, at + i)
        reaches[i, 0], reaches[i, 1] = begin, count
        total = _NONE
        for j in range(count):
            distance = np.float64(float32(float32(begin + j) - centre)) + 0.5
            value = _filter(float32(distance * np.float64(inverse)), bicubic, order)
            store_float(weights + i * each + 4 * j, value)
            total = float32(total + value)
        if total != _NONE:
            for j in range(count):
                place = weights + i * each + 4 * j
                store_float(place, float32(float_at(place) / total))


@inlined
def _plain(taps: int, order: int) -> int:
    """How many products behind the first one are rounded before they are added."""
    behind = taps - 1
    return behind if order == PLAIN else 0 if order == FUSED else behind - behind % 4


@inlined
def _times(count: int) -> int:
    """The whole FLOATS that so many floats fill."""
    return -(-count // FLOATS)


@inlined
def _stride(count: int) -> int:
    """The bytes from one column, or row, of so many floats to the next: of whole FLOATS, an odd number of them.

    Neighbours that are a power of two apart would have the same places in the processor's cache.
    """
    return 4 * FLOATS * (_times(count) | 1)


@inlined
def _across(channels: int) -> int:
    """The outputs across that are made at once."""
    return max(1, _AT_ONCE // channels)


@compiled
def _most_across(job: Any, wide: int, at_once: int, bicubic: bool) -> int:
    """The most numbers of a row that outputs depend on which are made at once."""
    most = 0
    for x in range(0, wide, at_once):
        left, right = _span(job.width, job.resized_width, bicubic, job.at_x + x, min(at_once, wide - x))
        most = max(most, right - left)
    return most


@compiled
def size_of_floats(job: Any, wide: int, tall: int, channels: int, bicubic: bool) -> int:
    """The bytes of scratch that `resize_floats` takes for the window of a job; more than MOST where it does not."""
    if max(job.width, job.height) > _LONGEST:
        return MOST + 1
    top, bottom = _span(job.height, job.resized_height, bicubic, job.at_y, tall)
    at_once = min(_across(channels), wide)
    weights = wide * _taps(job.width, job.resized_width, bicubic)
    weights += tall * _taps(job.height, job.resized_height, bicubic)
    columns = (channels * _most_across(job, wide, at_once, bicubic) + FLOATS) * _stride(bottom - top)
    rows = (_times(bottom - top) * FLOATS + 1) * _stride(channels * at_once)
    return int(columns + rows + 4 * weights)


@compiled
def resize_floats(
    address: int,
    layout: Any,
    job: Any,
    shape: Any,
    bicubic: bool,
    order: int,
    scratch: int,
    to: int,
) -> None:
    """Resize the box of a job, and write its window, of `shape` (height, width, channels), to an address.

    The box begins at `address`. `layout` is (itemsize, pitch, apart) in bytes: of a number, which is uint8, uint16 or
    float32, from a row to the next, and from a channel to the next, 0 where the channels of a pixel are side by side.
    At `scratch` there are `size_of_floats` bytes. Some columns of the output are made at once, so that what is kept
    between the steps stays in the processor's cache.
    """
    tall, wide, channels = shape
    itemsize, pitch, apart = layout
    step = 1 if apart else channels  # numbers from a pixel to the next
    top, bottom = _span(job.height, job.resized_height, bicubic, job.at_y, tall)
    height = bottom - top
    at_once = min(_across(channels), wide)
    stride, row, times = _stride(height), _stride(channels * at_once), _times(height)
    each, each_down = (
        4 * _taps(job.width, job.resized_width, bicubic),
        4 * _taps(job.height, job.resized_height, bicubic),
    )
    columns = scratch
    turned = columns + channels * _most_across(job, wide, at_once, bicubic) * stride  # columns, resized across
    rows = turned + FLOATS * stride
    line = rows + times * FLOATS * row
    known = line + row
    known_down = known + wide * each
    reaches, reaches_down = np.empty((wide, 2), np.int64), np.empty((tall, 2), np.int64)
    _fill_weights(job.width, job.resized_width, bicubic, order, job.at_x, reaches, known, each)
    _fill_weights(job.height, job.resized_height, bicubic, order, job.at_y, reaches_down, known_down, each_down)
    for begin in range(0, wide, at_once):
        end = min(begin + at_once, wide)
        count = channels * (end - begin)
        left, right = reaches[begin, 0], reaches[end - 1, 0] + reaches[end - 1, 1]
        across = right - left
        source = address + top * pitch + left * step * itemsize
        for plane in range(channels // step):
            place = columns + plane * across * stride
            _to_columns(source + plane * apart, pitch, itemsize, across * step, height, place)
        for group in range(0, count, FLOATS):
            for i in range(FLOATS):
                place = min(group + i, count - 1)
                x, channel = begin + place // channels, place % channels
                column = columns + ((reaches[x, 0] - left) * step + channel * (across if apart else 1)) * stride
                taps, result = reaches[x, 1], turned + i * stride
                weighted_floats(column, step * stride, known + x * each, taps, _plain(taps, order), result, times)
            for y in range(0, times * FLOATS, FLOATS):
                turn_many(turned + 4 * y, stride, rows + y * row + 4 * group, row)
        for y in range(tall):
            taps = reaches_down[y, 1]
            source, plain = rows + (reaches_down[y, 0] - top) * row, _plain(taps, order)
            weighted_floats(source, row, known_down + y * each_down, taps, plain, line, _times(count))
            if itemsize == 1:
                narrow_to_bytes(line, _times(count))
            elif itemsize == 2:
                narrow_to_shorts(line, _times(count))
            copy_bytes(line, to + (y * wide + begin) * channels * itemsize, count * itemsize)


@compiled
def _to_columns(address: int, pitch: int, itemsize: int, width: int, height: int, to: int) -> None:
    """Rows of numbers at an address -> columns of floats at another, each of whole FLOATS, with zeros behind."""
    stride = _stride(height)
    last = 4 * FLOATS * (_times(height) - 1)
    for x in range(width):
        clear_floats(to + x * stride + last)
    if width < _SQUARE or height < _SQUARE:
        for x in range(width):
            for y in range(height):
                store_float(to + x * stride + 4 * y, _number_at(address + y * pitch + x * itemsize, itemsize))
        return
    for group in range(0, width, _SQUARE):
        x = min(group, width - _SQUARE)  # the last squares overlap those before
        for square in range(0, height, _SQUARE):
            y = min(square, height - _SQUARE)
            source, place = address + y * pitch + x * itemsize, to + x * stride + 4 * y
            if itemsize == 1:
                turn_bytes(source, pitch, place, stride)
            elif itemsize == 2:
                turn_shorts(source, pitch, place, stride)
            else:
                turn_floats(source, pitch, place, stride)


@inlined
def _number_at(address: int, itemsize: int) -> Any:
    if itemsize == 4:
        return float_at(address)
    low = int64(byte_at(address))
    return float32(low) if itemsize == 1 else float32(low | int64(byte_at(address + 1)) << 8)


@functools.cache
def order_of_sums() -> int:
    """The order of sums that torch has on this machine; UNKNOWN where it is none of ours."""
    for order in (FOURS, PLAIN, FUSED):
        if all(_is_torchs(order, interpolation) for interpolation in _KERNELS):
            return order
    return UNKNOWN


_SIZES = ((7, 9), (40, 26), (150, 170))  # (width, height) that the comparison resizes to: sums of 2 to 57 products
_KERNELS = {"bilinear": torch.ops.aten._upsample_bilinear2d_aa, "bicubic": torch.ops.aten._upsample_bicubic2d_aa}


def _is_torchs(order: int, interpolation: str) -> bool:
    """Whether numbers are resized as torch resizes them."""
    tall, wide = 61, 97
    numbers = np.arange(tall * wide, dtype=np.uint64) * np.uint64(2654435761) % np.uint64(65521)
    values = numbers.astype(np.float32).reshape(tall, wide, 1)
    for width, height in _SIZES:
        found = np.empty((height, width, 1), np.float32)
        _resize(values, (wide, tall, width, height, 0, 0), interpolation, order, found)
        source = torch.from_numpy(values).permute(2, 0, 1).unsqueeze(0)
        wanted = _KERNELS[interpolation](source, [height, width], False, None, None)[0].permute(1, 2, 0)
        if not torch.equal(torch.from_numpy(found), wanted):
            return False
    return True


def resize_box(
    box: npt.NDArray[Any], size: tuple[int, int], at: tuple[int, int], interpolation: str, out: npt.NDArray[Any]
) -> bool:
    """Resize `box` [h, w, C] to `size` (width, height), and write what begins `at` (x, y) to `out` [H, W, C].

    They are of one type, uint8, uint16 or float32. False where torch has to do it: where machine code is not ready, and
    where torch's sums have another order. Pixels one across, whose sums depend on torch's layout, are left to it, too.
    """
    if box.dtype != out.dtype or box.dtype.str not in ("|u1", "<u2", "<f4") or not is_ready(_resize_at):
        return False
    if size[0] == 1 or not out.flags.c_contiguous or (order := order_of_sums()) == UNKNOWN:
        return False
    return _resize(box, (box.shape[1], box.shape[0], *size, *at), interpolation, order, out)


def may_resize() -> bool:
    """Whether machine code of `resize_box` is ready, or may be made here, which `order_of_sums` does."""
    return may_call(_resize_at)


def make_ready() -> None:
    """Have the machine code of `resize_box`, in threads that compile: before many boxes are resized."""
    if may_resize():
        order_of_sums()


def _resize(
    box: npt.NDArray[Any], window: tuple[int, ...], interpolation: str, order: int, out: npt.NDArray[Any]
) -> bool:
    """See `resize_box`; `window` is (width, height, resized width, resized height, x, y)."""
    channels = box.shape[2]
    pitch, step, apart = box.strides
    planes = step == box.itemsize and apart > 0 and channels > 1
    packed = step == channels * box.itemsize and (apart == box.itemsize or channels == 1)
    if not planes and not packed:
        box = np.ascontiguousarray(box)
        pitch, step, apart = box.strides
    layout = box.itemsize, pitch, apart if planes else 0
    windows = np.array([(0, 0, *window)], np.dtype(WINDOW))
    address, to = (each.__array_interface__["data"][0] for each in (box, out))
    scratch = np.empty(0, np.uint8)
    while needed := _resize_at(address, layout, windows, out.shape, interpolation == "bicubic", order, scratch, to):
        if needed > MOST:
            return False
        scratch = np.empty(needed, np.uint8)
    return True


@compiled
def _resize_at(
    address: int, layout: Any, windows: Any, shape: Any, bicubic: bool, order: int, scratch: Any, to: int
) -> int:
    """Resize a box, as `resize_floats` does. Returns 0, or the bytes of scratch that it needs."""
    tall, wide, channels = shape
    needed = size_of_floats(windows[0], wide, tall, channels, bicubic)
    if scratch.size < needed:
        return int(needed)
    resize_floats(address, layout, windows[0], shape, bicubic, order, int64(scratch.ctypes.data), to)
    return 0
