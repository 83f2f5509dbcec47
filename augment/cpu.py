"""Plans on the CPU: `reference.augment`, compiled, one image at a time, on as many threads as torch uses.

Look-up operations are composed with the normalisation into one table, so most images are read once and written once.
Only operations that need statistics of the whole image (the mean for contrast, histograms for autocontrast and
equalize) or more than one level (colour, sharpness, and a warp before any of these) cost an extra pass. These passes
write to per-thread scratch memory, two images that fit the cache and are reused.
"""

import itertools
import math
import os
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from .compiled import compiled, float32, float64, int32, int64, position, uint8
from .plan import Plan, Sized

Bytes = npt.NDArray[np.uint8]

_LINE = 64  # bytes of a cache line; results are aligned to it

# The values of ops.Op, for compiled code.
BRIGHTNESS, COLOR, CONTRAST, SHARPNESS, POSTERIZE, SOLARIZE, AUTOCONTRAST, EQUALIZE = range(1, 9)


class ResultPool:
    """Memory for results, reused once no tensor refers to it. At most `capacity` buffers are kept.

    The system maps new memory page by page at the first write, which takes longer than the augmentation itself, even
    with the huge pages that NumPy asks for. A training loop holds one batch while it makes the next, hence two buffers.
    """

    def __init__(self, capacity: int = 2) -> None:
        self._capacity = capacity
        self._buffers: list[Bytes] = []  # newest last
        self._unreferenced = [np.empty(0, np.uint8)]  # gives the reference count of a free buffer
        self._lock = threading.Lock()

    def tensor(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """A contiguous tensor with arbitrary content."""
        size = math.prod(shape) * dtype.itemsize
        with self._lock:
            number = next((n for n in range(len(self._buffers)) if self._is_free(n) and self._fits(n, size)), None)
            if number is None:
                self._buffers = [*self._buffers, np.empty(size + _LINE, np.uint8)][-self._capacity :]
                number = len(self._buffers) - 1
            buffer = self._buffers[number]
            start = -buffer.ctypes.data % _LINE
            # The tensor, and whatever shares its storage, references this view, and the view references the buffer.
            return torch.from_numpy(buffer[start : start + size]).view(dtype).view(shape)

    def _fits(self, number: int, size: int) -> bool:
        """Large enough, but not so large that a small result would keep a large buffer alive."""
        return size + _LINE <= self._buffers[number].size <= 4 * (size + _LINE)

    def _is_free(self, number: int) -> bool:
        return sys.getrefcount(self._buffers[number]) == sys.getrefcount(self._unreferenced[0])


results = ResultPool()


def augment(
    plan: Plan | None, images: torch.Tensor, table: torch.Tensor, out: torch.Tensor | None = None
) -> torch.Tensor:
    """uint8 images [B, 3, H, W] -> [B, 3, H, W] in the table's type, channels-last: the same bits as the reference.

    Images that are not channels-last are copied first. Otherwise only the result is allocated, unless `out` is given or
    the memory of an earlier result is free again.
    """
    batch, _, height, width = images.shape
    assert plan is None or len(plan) == batch  # compiled code does not check bounds
    if not batch:
        return torch.empty_like(images, dtype=table.dtype, memory_format=torch.channels_last) if out is None else out
    if out is None:
        out = results.tensor((batch, height, width, 3), table.dtype).permute(0, 3, 1, 2)
    sized = None if plan is None else plan.sized(height, width)
    source = images.permute(0, 2, 3, 1).contiguous().numpy()
    job = _Job(source, sized, _words(table), _words(out.permute(0, 2, 3, 1)))
    threads = min(torch.get_num_threads(), batch)
    chunk = -(-batch // (8 * threads)) if threads > 1 else batch
    starts = itertools.count(0, chunk)  # its `next` is atomic
    others = [_thread_pool(os.getpid(), threads - 1).submit(_work, job, starts, chunk) for _ in range(threads - 1)]
    try:
        _work(job, starts, chunk)
    finally:
        for other in others:
            other.result()
    return out


class _Job(NamedTuple):
    source: Bytes  # [B, H, W, 3]
    plan: Sized | None
    table: npt.NDArray[Any]  # [771]
    target: npt.NDArray[Any]  # [B, H, W, 3]


def _work(job: _Job, starts: Iterator[int], chunk: int) -> None:
    """Process chunks of the batch until none are left."""
    source, plan, table, target = job
    while (first := next(starts)) < len(source):
        last = min(first + chunk, len(source))
        if plan is None:
            _normalise(source, table, target, first, last)
        else:
            scratch = _scratch(source.shape[1:], target.dtype)
            words, magnitudes = plan.words.numpy(), plan.magnitudes.numpy()
            _images(source, words, magnitudes, table, target, first, last, *scratch)


@lru_cache(maxsize=1)
def _thread_pool(process: int, threads: int) -> ThreadPoolExecutor:
    """The threads besides the caller's; a forked process starts its own."""
    return ThreadPoolExecutor(max(threads, 1), thread_name_prefix=f"augment-{process}")


_local = threading.local()


def _scratch(shape: tuple[int, ...], dtype: npt.DTypeLike) -> tuple[Any, Any, Any, Any, Any]:
    """This thread's images [2, H, W, 3], line [W * 3], tables [3, 768], counts [2, 768] and joint table [768]."""
    size = math.prod(shape)
    pixels = getattr(_local, "pixels", None)
    if pixels is None or len(pixels) < 2 * size:  # a row is not longer than the image
        pixels = _local.pixels = np.empty(2 * size, np.uint8)
        _local.line = np.empty(size, np.int16)
        _local.tables = np.arange(3 * 768).astype(np.uint8).reshape(3, 768)  # the last stays the identity
        _local.counts = np.empty((2, 768), np.int64)
        _local.joint = {np.dtype(t): np.empty(768, t) for t in (np.int32, np.int16, np.uint8)}
    images = pixels[: 2 * size].reshape(2, *shape)
    return images, _local.line[: shape[1] * 3], _local.tables, _local.counts, _local.joint[np.dtype(dtype)]


def _words(tensor: torch.Tensor) -> npt.NDArray[Any]:
    """A tensor's memory as integers: values are only copied here, never computed with."""
    kinds = {1: torch.uint8, 2: torch.int16, 4: torch.int32}
    return tensor.view(kinds[tensor.element_size()]).numpy()


@compiled
def _normalise(source: Any, table: Any, target: Any, first: int, last: int) -> None:
    """Normalise images `first` to `last`. A separate function, so that evaluation compiles little."""
    for i in range(first, last):
        _emit(source[i], False, False, table[:768], target[i])


@compiled
def _images(
    source: Any,
    words: Any,
    magnitudes: Any,
    table: Any,
    target: Any,
    first: int,
    last: int,
    scratch: Any,
    line: Any,
    tables: Any,
    counts: Any,
    joint: Any,
) -> None:
    """Augment images `first` to `last`: source uint8 [B, H, W, 3], words int32 [B, 10 + 2 K], target [B, H, W, 3]."""
    height, width = source.shape[1], source.shape[2]
    lut, step = tables[0], tables[1]  # the look-ups composed since `current`, and the next operation's
    unchanged = tables[2]
    for i in range(first, last):
        current, free = source[i], 0  # `free` is the index of the unused scratch image
        a0, a1, a2, a3, a4, a5 = words[i, 0], words[i, 1], words[i, 2], words[i, 3], words[i, 4], words[i, 5]
        warped = not (_is_straight(a0, a1, a2, width) and _is_straight(a4, a3, a5, height))
        mapped = False
        if warped or a0 < 0:  # memory is fast only when read forwards
            _copy(current, scratch[free])
            current, free = scratch[free], 1 - free
        for k in range(magnitudes.shape[1]):
            op, magnitude = words[i, 10 + k], magnitudes[i, k]
            if op == 0:
                continue
            if warped and op not in (BRIGHTNESS, POSTERIZE, SOLARIZE):
                _emit_warped(current, a0, a1, a2, a3, a4, a5, unchanged, scratch[free])
                current, free, warped = scratch[free], 1 - free, False
                a0, a4 = int32(65536), int32(65536)
            if op in (COLOR, SHARPNESS):
                if mapped:
                    _emit(current, False, False, lut, scratch[free])
                    current, free, mapped = scratch[free], 1 - free, False
                if op == COLOR:
                    _color(current, magnitude, line, scratch[free])
                else:
                    _sharpen(current, magnitude, line, scratch[free])
                current, free = scratch[free], 1 - free
                continue
            if op == CONTRAST:
                _contrast_table(_mean_luma(current, lut, mapped), magnitude, step)
            elif op in (AUTOCONTRAST, EQUALIZE):
                _count(current, counts)
                _statistics_tables(op, counts, lut, mapped, step)
            else:
                _point_table(op, magnitude, step)
            for entry in range(768):
                lut[entry] = step[(entry & 768) + lut[entry]] if mapped else step[entry]
            mapped = True
        for entry in range(768):
            joint[entry] = table[(entry & 768) + lut[entry]] if mapped else table[entry]
        if warped:
            _emit_warped(current, a0, a1, a2, a3, a4, a5, joint, target[i])
        else:
            _emit(current, a0 < 0, a4 < 0, joint, target[i])
        for y in range(words[i, 6], words[i, 8]):
            for x in range(words[i, 7], words[i, 9]):
                for channel in range(3):
                    target[i, y, x, channel] = table[768 + channel]


@compiled
def _copy(current: Any, moved: Any) -> None:
    taken, put = current.ravel(), moved.ravel()
    for entry in range(len(taken)):
        put[entry] = taken[entry]


@compiled
def _is_straight(scale: int, across: int, shift: int, side: int) -> bool:
    """Whether an axis is unchanged or just mirrored."""
    return across == 0 and (
        (scale == 65536 and shift == 32768) or (scale == -65536 and shift == side * 65536 - 1 - 32768)
    )


@compiled
def _emit(current: Any, mirrored: bool, upside_down: bool, joint: Any, target: Any) -> None:
    """Look up the levels of an image [H, W, 3] in a table [768]."""
    height, width, _ = current.shape
    red, green, blue = joint[:256], joint[256:512], joint[512:]
    for y in range(height):
        taken, put = current[height - 1 - y if upside_down else y], target[y]
        if mirrored:
            u = position(width)
            for x in range(width):
                u -= position(1)
                put[x, 0] = red[taken[u, 0]]
                put[x, 1] = green[taken[u, 1]]
                put[x, 2] = blue[taken[u, 2]]
        else:
            for x in range(width):
                put[x, 0] = red[taken[x, 0]]
                put[x, 1] = green[taken[x, 1]]
                put[x, 2] = blue[taken[x, 2]]


@compiled
def _emit_warped(current: Any, a0: int, a1: int, a2: int, a3: int, a4: int, a5: int, joint: Any, target: Any) -> None:
    """Warp an image [H, W, 3], with zeros outside, and look up its levels in a table [768]."""
    height, width, _ = current.shape
    red, green, blue = joint[:256], joint[256:512], joint[512:]
    source = current.ravel()
    for y in range(height):
        column, line = int64(a2) + int64(a1) * y, int64(a5) + int64(a4) * y
        in_columns, in_rows = _inside(column, a0, width, width), _inside(line, a3, height, width)
        first = max(in_columns[0], in_rows[0])
        last = max(min(in_columns[1], in_rows[1]), first)
        column += int64(a0) * first
        line += int64(a3) * first
        put = target[y, first:last]
        for x in range(last - first):
            offset = position(3) * (position(line >> 16) * position(width) + position(column >> 16))
            column += a0
            line += a3
            put[x, 0] = red[source[offset]]
            put[x, 1] = green[source[offset + position(1)]]
            put[x, 2] = blue[source[offset + position(2)]]
        for put in (target[y, :first], target[y, last:]):
            for x in range(len(put)):
                put[x, 0] = red[0]
                put[x, 1] = green[0]
                put[x, 2] = blue[0]


@compiled
def _inside(start: int, step: int, side: int, count: int) -> tuple[int, int]:
    """(first, last + 1) of the x in range(count) for which 0 <= (start + step * x) >> 16 < side."""
    end = side * 65536
    if step == 0:
        return (0, count) if 0 <= start < end else (0, 0)
    if step < 0:  # the same, from the other end
        start, step = end - 1 - start, -step
    first = max(-(start // step), 0)
    last = min((end - 1 - start) // step + 1, count)
    return (first, last) if first < last else (0, 0)


@compiled
def _blend(degenerate: int, level: int, factor: float) -> Any:
    """`ops.blend`."""
    value = float32(degenerate) + float32(factor * float32(int32(level) - int32(degenerate)))
    return uint8(int32(min(max(value, float32(0)), float32(255))))


@compiled
def _luma(red: int, green: int, blue: int) -> Any:
    """`ops.luma`."""
    return int32(int32(int32(red) * 19595) + int32(int32(green) * 38470) + int32(int32(blue) * 7471) + 0x8000) >> 16


@compiled
def _color(current: Any, factor: float, line: Any, changed: Any) -> None:
    """`ops.Op.COLOR`. `line` int16 [W * 3] holds the grey levels of a row."""
    height, width, _ = current.shape
    for y in range(height):
        taken, put = current[y].ravel(), changed[y].ravel()
        for x in range(width):
            gray = _luma(current[y, x, 0], current[y, x, 1], current[y, x, 2])
            line[3 * x] = line[3 * x + 1] = line[3 * x + 2] = gray
        for entry in range(3 * width):
            put[entry] = _blend(line[entry], taken[entry], factor)


@compiled
def _sharpen(current: Any, factor: float, line: Any, changed: Any) -> None:
    """`ops.Op.SHARPNESS`. The outermost pixels are unchanged. `line` int16 [W * 3] holds sums over three rows."""
    height, width, _ = current.shape
    for y in range(height):
        taken, put = current[y].ravel(), changed[y].ravel()
        for entry in range(3 * width):
            put[entry] = taken[entry]
        if y == 0 or y == height - 1 or width < 3:
            continue
        above, below = current[y - 1].ravel(), current[y + 1].ravel()
        for entry in range(3 * width):
            line[entry] = int32(above[entry]) + int32(taken[entry]) + int32(below[entry])
        left, middle, right = line[:-6], line[3:-3], line[6:]
        taken, put = taken[3:-3], put[3:-3]
        for entry in range(3 * width - 6):
            total = int32(left[entry]) + int32(middle[entry]) + int32(right[entry]) + 4 * int32(taken[entry])
            put[entry] = _blend(_smooth(total), taken[entry], factor)


@compiled
def _smooth(total: int) -> Any:
    """(2 * total + 13) // 26 for totals up to 13 * 255."""
    return int32(int32(int32(2 * total + 13) * 20165) >> 19)


@compiled
def _mean_luma(current: Any, lut: Any, mapped: bool) -> Any:
    """`ops.mean_level` of an image [H, W, 3] after the look-up tables lut [768]."""
    height, width, _ = current.shape
    total = 0
    for y in range(height):
        taken = current[y]
        line = int32(0)
        if mapped:
            for x in range(width):
                line += _luma(lut[taken[x, 0]], lut[256 + taken[x, 1]], lut[512 + taken[x, 2]])
        else:
            for x in range(width):
                line += _luma(taken[x, 0], taken[x, 1], taken[x, 2])
        total += line
    pixels = height * width
    return (2 * total + pixels) // (2 * pixels)


@compiled
def _count(current: Any, counts: Any) -> None:
    """Histograms of the three channels, in counts[0] [768]. Two sets avoid stalls, as neighbours are often equal."""
    height, width, _ = current.shape
    counts[:] = 0
    for y in range(height):
        for x in range(width):
            chosen = counts[x & 1]
            chosen[current[y, x, 0]] += 1
            chosen[256 + current[y, x, 1]] += 1
            chosen[512 + current[y, x, 2]] += 1
    for entry in range(768):
        counts[0, entry] += counts[1, entry]


@compiled
def _point_table(op: int, magnitude: float, step: Any) -> None:
    """`ops.lookup` for operations without statistics."""
    for level in range(256):
        if op == BRIGHTNESS:
            value = _blend(0, level, magnitude)
        elif op == POSTERIZE:
            dropped = 8 - int32(magnitude)
            value = uint8((level >> dropped) << dropped)
        else:
            value = uint8(level if level < magnitude else 255 - level)
        step[level] = step[256 + level] = step[512 + level] = value


@compiled
def _contrast_table(mean: int, magnitude: float, step: Any) -> None:
    for level in range(256):
        step[level] = step[256 + level] = step[512 + level] = _blend(mean, level, magnitude)


@compiled
def _statistics_tables(op: int, counts: Any, lut: Any, mapped: bool, step: Any) -> None:
    """`ops.lookup` from the histograms counts[0] [768]; levels go through lut [768] first."""
    if mapped:
        counts[1] = counts[0]
        counts[0] = 0
        for entry in range(768):
            counts[0, (entry & 768) + lut[entry]] += counts[1, entry]
    for channel in range(0, 768, 256):
        histogram, lines = counts[0, channel : channel + 256], step[channel : channel + 256]
        low, high, total = 255, 0, 0
        for level in range(256):
            if histogram[level]:
                low, high = min(low, level), level
                total += histogram[level]
        if op == AUTOCONTRAST:
            scale = float64(255.0) / float64(max(high - low, 1))
            offset = -low * scale
            for level in range(256):
                value = float64(level * scale) + offset
                lines[level] = level if high <= low else int(min(max(value, 0.0), 255.0))
        else:
            spread = (total - histogram[high]) // 255
            below = spread // 2
            for level in range(256):
                lines[level] = level if spread == 0 else min(below // spread, 255)
                below += histogram[level]
