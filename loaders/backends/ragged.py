"""Images of different sizes, cropped and resized on the device: the bits of `resample`, a batch in one Triton kernel.

The host computes the taps and weights of each output row and column, per image, in `filters`: in float64, like torch
for uint8, then rounded to int16 with as many fractional bits as fit. The kernel only needs integers, so its bits do not
depend on the device: sums along rows, rounded and clamped to a byte, then sums of those along columns. An image is an
address and three strides, so mirrored and transposed (EXIF), interleaved and planar pixels are read in place.

A program makes ROWS output rows of BLOCK values (3 per pixel). It reads the source rows that they need once; rows that
neighbouring programs share, 2 * support for ROWS * scale, are computed by both, and nothing is written between the two
passes. `tests/loaders/backends/test_ragged.py` checks that it equals `resample` under Triton's interpreter, and
compiles it for an H200 (sm_90) without spills. On an H100 and an H200 its bits are the CPU's; its speed has not been
measured there.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import triton  # type: ignore[import-untyped]
import triton.language as tl  # type: ignore[import-untyped]

from fastimg.loaders.crop import Interpolation, Window
from fastimg.loaders.jpeg.decoding.filters import fill_weights
from fastimg.loaders.jpeg.decoding.filters import taps as most_taps
from fastimg.loaders.jpeg.exif import turn_of
from fastimg.loaders.runtime.compiled import compiled

_INTERPRETED = bool(triton.knobs.runtime.interpret)
ROWS, BLOCK = (16, 128) if _INTERPRETED else (8, 256)
OPTIONS = {"num_warps": 4, "enable_fp_fusion": False}  # there are no floats

PLACE = 4  # int64 values of an image: address of the box's upper left, bytes to the next column, row and channel
# A table (int32): taps across and down, their fractional bits, the box's width and height, two for alignment; the first
# tap of each output column and row, within the box; the weights, [taps across, size] and [taps down, size].
HEADER = 8
LEFT_ALONE = -1  # in place of the number of taps: the kernel does not write this image

Table = npt.NDArray[np.int32]
Place = tuple[int, int, int, int]
Box = tuple[int, int, int, int]


def table_words(size: int, taps: int) -> int:
    """The number of int32 values of a table with `taps`, across and down together, for an output of `size` pixels."""
    return HEADER + (2 + taps) * size


def fill_table(window: Window, size: int, interpolation: Interpolation, table: Table) -> bool:
    """Write the table of `window` for an output of `size` pixels. False if it does not fit; it is then unusable."""
    _, _, width, height = window.box
    cubic = interpolation == "bicubic"
    return bool(fill_words(width, height, *window.size, *window.at, size, cubic, table))


def fill_tables(windows: npt.NDArray[np.int64], size: int, interpolation: Interpolation, tables: Table) -> bool:
    """`fill_table` for rows [B, 8], a window's box, size and place: one call, without Python's lock.

    A row of zeros makes a table of zeros. False if a table does not fit.
    """
    return bool(_fill_all(windows, size, interpolation == "bicubic", tables))


def place(address: int, strides: tuple[int, int, int], box: Box, orientation: int) -> Place:
    """Where the kernel finds the pixels of `box`, in any layout, and turns them upright.

    `address` is that of the first byte; `strides` are the bytes to the next column, row and channel. They and `box`
    (x, y, width, height) describe the stored pixels, before `orientation` (EXIF, 1 to 8) is applied.
    """
    across, down, channel = strides
    x, y, width, height = box
    address += x * across + y * down
    turn = turn_of(orientation)
    if turn.transposed:
        width, height, across, down = height, width, down, across
    if turn.flip_x:
        address = address + (width - 1) * across
        across = -across
    if turn.flip_y:
        address = address + (height - 1) * down
        down = -down
    return address, across, down, channel


def resize(places: torch.Tensor, tables: torch.Tensor, out: torch.Tensor) -> None:
    """Resize the images at `places` int64 [B, 4] to `out` uint8 [B, S, S, 3], contiguous, by `tables` int32 [B, words].

    Everything is on one device; the kernel is enqueued on the current stream. A table of zeros makes an image of zeros;
    one that begins with LEFT_ALONE leaves the output as it is. Addresses are not checked.
    """
    assert places.dtype == torch.int64 and tables.dtype == torch.int32 and out.dtype == torch.uint8
    batch, size, _, channels = out.shape
    assert places.shape == (batch, PLACE) and len(tables) == batch and channels == 3
    assert out.is_contiguous() and places.is_contiguous() and tables.stride(1) == 1
    if not batch:
        return
    grid = (triton.cdiv(3 * size, BLOCK), triton.cdiv(size, ROWS), batch)
    with torch.cuda.device_of(out):  # type: ignore[no-untyped-call]
        _resize[grid](out, places, tables, tables.stride(0), SIZE=size, ROWS=ROWS, BLOCK=BLOCK, **OPTIONS)


@compiled
def fill_words(
    width: Any, height: Any, to_width: Any, to_height: Any, left: Any, top: Any, size: Any, cubic: bool, table: Any
) -> bool:
    starts = HEADER + 2 * size
    table[:HEADER] = 0
    table[4], table[5] = width, height
    across = _taps(width, to_width, left, size, cubic, table, HEADER, starts)
    if across[0] == 0:
        return False
    down = _taps(height, to_height, top, size, cubic, table, HEADER + size, starts + across[0] * size)
    table[0], table[1], table[2], table[3] = across[0], down[0], across[1], down[1]
    return bool(down[0] > 0)


@compiled
def _fill_all(windows: Any, size: Any, cubic: bool, tables: Any) -> bool:
    for row in range(windows.shape[0]):
        width, height = windows[row, 2], windows[row, 3]
        to_width, to_height = windows[row, 4], windows[row, 5]
        left, top = windows[row, 6], windows[row, 7]
        if width == 0:
            tables[row, :] = 0
        elif not fill_words(width, height, to_width, to_height, left, top, size, cubic, tables[row]):
            return False
    return True


@compiled
def _taps(n: Any, to: Any, first: Any, size: Any, cubic: bool, table: Any, starts: Any, weights: Any) -> Any:
    """One axis, `n` pixels to `to`: taps and fractional bits for outputs `first` to `first + size`.

    Outputs with fewer taps have weights of 0 for the rest. 0 taps: no room, or outputs beyond the image.
    """
    if first < 0 or first + size > to:
        return 0, 0
    most = most_taps(float(n), to, cubic)
    begins = np.empty(size, np.int64)
    counts = np.empty(size, np.int64)
    found = np.zeros((size, most), np.int32)
    bits = fill_weights(0.0, float(n), to, cubic, first, begins, counts, found)
    taps = counts[0]
    for count in counts:  # not max(): its code would make every process import numba's array functions
        taps = max(taps, count)
    if weights + taps * size > table.size:
        return 0, 0
    table[starts : starts + size] = begins
    for k in range(taps):
        table[weights + k * size : weights + (k + 1) * size] = found[:, k]
    return taps, bits


def _kernel(function: Callable[..., Any]) -> Any:
    return triton.jit(function)


_HEADER = tl.constexpr(HEADER)
_PLACE = tl.constexpr(PLACE)
_LEFT_ALONE = tl.constexpr(LEFT_ALONE)


@_kernel
def _resize(out, places, tables, stride, SIZE: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """Grid: blocks of values in a row, blocks of rows, images."""
    b = tl.program_id(2).to(tl.int64)
    table = tables + b * stride
    at = places + b * _PLACE
    taps_x = tl.load(table)
    if taps_x != _LEFT_ALONE:
        taps_y = tl.load(table + 1)
        bits_x = tl.load(table + 2)
        bits_y = tl.load(table + 3)
        width, height = tl.load(table + 4), tl.load(table + 5)
        across = tl.load(at + 1)
        down = tl.load(at + 2)
        channel = tl.load(at + 3)
        value = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)  # [BLOCK] of a row of output
        inside = value < 3 * SIZE
        x = tl.minimum(value // 3, SIZE - 1)
        y = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
        row_of = tl.minimum(y, SIZE - 1)
        start_x = tl.load(table + _HEADER + x)
        start_y = tl.load(table + _HEADER + SIZE + row_of)  # [ROWS]
        weights_x = table + _HEADER + 2 * SIZE + x
        weights_y = table + _HEADER + (2 + taps_x) * SIZE + row_of
        pixels = tl.load(at).to(tl.pointer_type(tl.uint8)) + (start_x * across + (value % 3) * channel)
        total = tl.zeros((ROWS, BLOCK), tl.int32)
        half_x, half_y = (1 << bits_x) >> 1, (1 << bits_y) >> 1
        first = tl.min(start_y, axis=0)
        last = tl.minimum(tl.max(start_y, axis=0) + taps_y, height)
        for source in range(first, last):
            line = pixels + source * down
            sums = tl.zeros((BLOCK,), tl.int32)
            for k in range(taps_x):
                # Beyond the box the weights are 0; what lies there may not be the image's any more.
                pixel = tl.load(line + k * across, mask=inside & (start_x + k < width), other=0)
                sums += tl.load(weights_x + k * SIZE) * pixel.to(tl.int32)
            level = tl.minimum(tl.maximum((sums + half_x) >> bits_x, 0), 255)
            k_y = source - start_y
            weight = tl.load(weights_y + k_y * SIZE, mask=(k_y >= 0) & (k_y < taps_y), other=0)
            total += weight[:, None] * level[None, :]
        result = tl.minimum(tl.maximum((total + half_y) >> bits_y, 0), 255)
        target = out + b * (SIZE * SIZE * 3) + y[:, None] * (SIZE * 3) + value[None, :]
        tl.store(target, result.to(tl.uint8), mask=(y < SIZE)[:, None] & inside[None, :])
