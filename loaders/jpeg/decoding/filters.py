"""The antialiased resize of columns of RGB or of luma, in compiled code: torch's uint8 kernels, bit for bit.

It resizes across, then down. Each pass is rounded to uint8, with weights of 16 bits whose precision depends on the
largest (ATen's UpSampleKernel.cpp; the filters are Pillow's, Resample.c). Only the requested output is computed.
"""

import math
from typing import Any

import numpy as np

from fastimg.loaders.runtime.compiled import compiled, inlined

from .vectors import WIDE, quotient, transpose, weighted


@inlined
def _support(scale: float, bicubic: bool) -> float:
    return (2.0 if bicubic else 1.0) * max(scale, 1.0)


@compiled
def taps(extent: float, size: int, bicubic: bool) -> int:
    """The largest number of weights of an output when `extent` samples are resized to `size`."""
    return math.ceil(_support(extent / size, bicubic)) * 2 + 1


@compiled
def reach(begin: float, extent: float, size: int, bicubic: bool, first: int, last: int) -> tuple[int, int]:
    """The samples that outputs [first, last) depend on, when [begin, begin + extent) is resized to `size`."""
    scale = extent / size
    support = _support(scale, bicubic)
    low = int(begin + scale * (first + 0.5) - support + 0.5)
    high = int(begin + scale * (last - 0.5) + support + 0.5)
    return max(low, math.floor(begin)), min(high, math.ceil(begin + extent))


@inlined
def _filter(x: float, bicubic: bool) -> float:
    x = abs(x)
    if not bicubic:
        return 1.0 - x if x < 1.0 else 0.0
    a = -0.5
    if x < 1.0:
        return ((a + 2.0) * x - (a + 3.0)) * x * x + 1.0
    if x < 2.0:
        return (((x - 5.0) * x + 8.0) * x - 4.0) * a
    return 0.0


@compiled
def fill_weights(
    start: float, extent: float, size: int, bicubic: bool, at: int, begins: Any, counts: Any, weights: Any
) -> int:
    """Weights for outputs [at, at + begins.size) of `size`: output i takes `counts[i]` samples from `begins[i]` on.

    The outputs, all of which exist, cover samples [start, start + extent), which may be fractional after DCT scaling.
    `weights` is [begins.size, taps or more] int16 or int32: 0 for the taps beyond the counts. Returns the number of
    fractional bits of the weights.
    """
    scale = extent / size
    support = _support(scale, bicubic)
    inverse = 1.0 / max(scale, 1.0)
    low, high = math.floor(start), math.ceil(start + extent)
    most = taps(extent, size, bicubic)
    starts, numbers, firsts = np.empty(size, np.int64), np.empty(size, np.int64), np.empty(size)
    for i in range(size):
        centre = start + scale * (i + 0.5)
        starts[i] = max(int(centre - support + 0.5), low)
        numbers[i] = min(max(min(int(centre + support + 0.5), high) - starts[i], 0), most)
        firsts[i] = starts[i] - centre
    # All outputs side by side, so that the loops are vectorised.
    values, totals, peaks = np.empty((most, size)), np.zeros(size), np.zeros(size)
    for j in range(most):
        for i in range(size):
            value = _filter((j + firsts[i] + 0.5) * inverse, bicubic)
            value = value if j < numbers[i] else 0.0
            values[j, i] = value
            totals[i] += value
    for i in range(size):
        totals[i] = 1.0 if totals[i] == 0.0 else totals[i]
    for j in range(most):
        for i in range(size):
            value = quotient(values[j, i], totals[i])
            values[j, i] = value
            peaks[i] = value if value > peaks[i] else peaks[i]
    largest, precision = 0.0, 0
    for i in range(size):  # the precision depends on the largest of all weights, requested or not
        largest = max(largest, peaks[i])
    while precision < 22 and int(0.5 + largest * (1 << (precision + 1))) < 1 << 15:
        precision += 1
    whole = np.empty((most, size), np.int32)
    for j in range(most):
        for i in range(size):
            value = values[j, i] * (1 << precision)
            whole[j, i] = int(value - 0.5 if value < 0.0 else value + 0.5)
    for i in range(begins.size):
        begins[i], counts[i] = starts[i + at], numbers[i + at]
    for j in range(most):
        for i in range(begins.size):
            weights[i, j] = whole[j, i + at]
    return precision


@compiled
def resize_columns(columns: Any, regions: Any, bicubic: bool, work: Any, out: Any) -> None:
    """Resize a region's columns, and write the window to `out` [H, W, C].

    Channel c of the column of samples x, from sample `held_y` on, begins at `columns[(C * (x - held_x) + c) *
    held_stride]`. `work` uint8 is scratch: stride * (8 + row) bytes, a row being C W rounded up to 8.
    """
    region = regions[0]
    height = region.stride
    stride = region.held_stride
    skipped = region.y - region.held_y
    across, down, channels = out.shape[1], out.shape[0], out.shape[2]
    row = channels * across
    step = channels * stride  # from a column to the next of its channel
    width = -(-row // 8) * 8  # bytes of a row between the passes
    begins = np.empty(across, np.int64)
    counts = np.empty(across, np.int64)
    left = region.held_x - region.origin_x
    extent = region.extent_x
    size = region.resized_width
    most = taps(extent, size, bicubic)
    most += most % 2  # `weighted` takes them in pairs
    weights = np.zeros((across, most), np.int16)
    precision = fill_weights(region.start_x, extent, size, bicubic, region.at_x, begins, counts, weights)
    flat = weights.reshape(-1)
    rows = work[8 * height :]
    for group in range(0, width, 8):
        for i in range(8):
            q = min(group + i, row - 1)
            x = q // channels
            c = q % channels
            begin = (channels * (begins[x] - left) + c) * stride + skipped
            weighted(columns, begin, step, flat, x * most, counts[x], precision, work, i * height, height // WIDE)
        for y in range(0, height, 8):
            transpose(work, y, height, rows, y * width + group, width)
    begins = np.empty(down, np.int64)
    counts = np.empty(down, np.int64)
    top = region.y - region.origin_y
    extent = region.extent_y
    size = region.resized_height
    most = taps(extent, size, bicubic)
    most += most % 2
    weights = np.zeros((down, most), np.int16)
    precision = fill_weights(region.start_y, extent, size, bicubic, region.at_y, begins, counts, weights)
    flat = weights.reshape(-1)
    target = out.reshape(-1)
    for y in range(down):
        begin = (begins[y] - top) * width
        weighted(rows, begin, width, flat, y * most, counts[y], precision, target, y * row, row // WIDE)
        for q in range(row - row % WIDE, row):
            total = 1 << (precision - 1)
            for j in range(counts[y]):
                total += int(rows[begin + j * width + q]) * int(weights[y, j])
            target[y * row + q] = min(max(total >> precision, 0), 255)
