"""A batch, one image at a time: the plan's words are followed by compiled code."""

import functools
import math
import threading
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from fastimg.augment.lines import LevelLine
from fastimg.augment.plan import Plan, Sized
from fastimg.augment.policy import Triple

from . import filters, mixtures
from .compiled import compiled, int32, is_kept
from .hues import turn_hue
from .levels import (
    ADD,
    AUTOCONTRAST,
    BRIGHTNESS,
    COLOR,
    CONTRAST,
    EQUALIZE,
    HUE,
    INVERT,
    POSTERIZE,
    SHARPNESS,
    SOLARIZE,
    color,
    contrast_table,
    count,
    find_ends,
    mean_luma,
    point_table,
    sharpen,
    statistics_tables,
)
from .memory import LANES, LINE, finish_streams
from .results import Bytes, results
from .rows import RowScratch, copy, emit, emit_warped, is_straight, look_up, warp_levels
from .threads import in_threads

_BLACK = np.zeros(3, np.uint8)
_STREAMED = 32 << 20  # bytes of a result from which on it is written past the caches, which do not hold it


def augment(
    plan: Plan | None,
    images: torch.Tensor,
    table: torch.Tensor,
    out: torch.Tensor | None = None,
    line: LevelLine | None = None,
) -> torch.Tensor:
    """uint8 images [B, 3, H, W] -> [B, 3, H, W] in the table's type, channels-last: the same bits as the reference.

    Images that are not channels-last are copied first. Otherwise only the result is allocated, unless `out` is given or
    the memory of an earlier result is free again. `line`, of `lines.double_line_of`, gives the table's values without
    looking them up.
    """
    batch, _, height, width = images.shape
    assert plan is None or len(plan) == batch  # compiled code does not check bounds
    if not batch:
        return torch.empty_like(images, dtype=table.dtype, memory_format=torch.channels_last) if out is None else out
    if out is None:
        out = results.tensor((batch, height, width, 3), table.dtype).permute(0, 3, 1, 2)
    sized = None if plan is None else plan.sized(height, width)
    source = images.permute(0, 2, 3, 1).contiguous().numpy()
    fill = _BLACK if plan is None or plan.warps is None else np.array(plan.warps.fill, np.uint8)
    job = _Job(
        source, sized, _words(table), _words(out.permute(0, 2, 3, 1)), fill, plan is not None and plan.mirrors, line
    )
    in_threads(functools.partial(_work, job), batch)
    return out


def seconds_to_compile(stage: Plan) -> float:
    """About how long the functions for a stage of plans take to compile; 0 if they are there, or in the cache."""
    mirrors = stage.mirrors and stage.blur is None
    function, seconds = (_mirror, 1.5) if mirrors else (_images, 13.0)
    blurs = 0.0 if stage.blur is None else filters.seconds_to_compile()
    mixes = 0.0 if stage.mixing is None else mixtures.seconds_to_compile()
    return (0.0 if is_kept(function) else seconds) + blurs + mixes


class _Job(NamedTuple):
    source: Bytes  # [B, H, W, 3]
    plan: Sized | None
    table: npt.NDArray[Any]  # [771]
    target: npt.NDArray[Any]  # [B, H, W, 3]
    fill: Bytes  # [3], outside of a warped image
    mirrors: bool  # the plan flips and erases, and does nothing else
    line: LevelLine | None


def _work(job: _Job, first: int, last: int) -> None:
    """Process images `first` to `last`."""
    source, plan, table, target, fill, mirrors, line = job
    row = _row(target, line)
    if plan is None:
        _normalise(source, table, target, first, last, row)
        return
    scratch = _scratch(source.shape[1:], target.dtype)
    words, magnitudes = plan.words.numpy(), plan.magnitudes.contiguous().numpy()  # one layout, compiled once
    if mirrors:
        _mirror(source, words, table, target, first, last, scratch[0], row)
        return
    _images(source, words, magnitudes, table, target, fill, first, last, *scratch, row)


_local = threading.local()


def _scratch(shape: tuple[int, ...], dtype: npt.DTypeLike) -> tuple[Any, Any, Any, Any, Any]:
    """This thread's images [2, H, W, 3], line [W * 6], tables [3, 768], counts [2, 768] and joint table [768]."""
    size = math.prod(shape)
    pixels = getattr(_local, "pixels", None)
    if pixels is None or len(pixels) < 2 * size + 4:  # a row is not longer than the image; see `_warp_row`
        pixels = _local.pixels = np.empty(2 * size + 4, np.uint8)
        _local.line = np.empty(2 * size, np.int16)
        _local.tables = np.arange(3 * 768).astype(np.uint8).reshape(3, 768)  # the last stays the identity
        _local.counts = np.empty((2, 768), np.int64)
        _local.joint = {np.dtype(t): np.empty(768, t) for t in (np.int32, np.int16, np.uint8)}
    images = pixels[: 2 * size].reshape(2, *shape)
    return images, _local.line[: shape[1] * 6], _local.tables, _local.counts, _local.joint[np.dtype(dtype)]


def _row(target: npt.NDArray[Any], line: LevelLine | None) -> RowScratch:
    """This thread's memory for a row of the result."""
    width = target.shape[2]
    known: tuple[Any, RowScratch] | None = getattr(_local, "row", None)
    streams = target.nbytes >= _STREAMED and target[0, 0].nbytes % LINE == 0 and target.ctypes.data % LINE == 0
    key = width, line, streams
    if known is None or known[0] != key:
        scales, biases = (np.tile(np.array(v, np.float64), width) for v in _factors(line))
        lined = line is not None and 3 * width >= LANES
        known = _local.row = key, (np.zeros(3 * width + 4, np.uint8), scales, biases, lined, streams)
    return known[1]


def _factors(line: LevelLine | None) -> tuple[Triple, Triple]:
    return ((0.0, 0.0, 0.0),) * 2 if line is None else (line.scales, line.biases)


def _words(tensor: torch.Tensor) -> npt.NDArray[Any]:
    """A tensor's memory as integers: values are only copied here, never computed with."""
    kinds = {1: torch.uint8, 2: torch.int16, 4: torch.int32}
    return tensor.view(kinds[tensor.element_size()]).numpy()


@compiled
def _normalise(source: Any, table: Any, target: Any, first: int, last: int, row: Any) -> None:
    """Normalise images `first` to `last`. A separate function, so that evaluation compiles little."""
    for i in range(first, last):
        emit(source[i], False, False, table[:768], False, row, target[i])
    finish_streams()


@compiled
def _mirror(source: Any, words: Any, table: Any, target: Any, first: int, last: int, scratch: Any, row: Any) -> None:
    """`_images` of plans that only flip and erase. A separate function: they are common, and compile little."""
    for i in range(first, last):
        current = source[i]
        if words[i, 0] < 0:  # memory is fast only when read forwards
            copy(current, scratch[0])
            current = scratch[0]
        emit(current, words[i, 0] < 0, words[i, 4] < 0, table[:768], False, row, target[i])
        for y in range(words[i, 6], words[i, 8]):
            for x in range(words[i, 7], words[i, 9]):
                for channel in range(3):
                    target[i, y, x, channel] = table[768 + channel]
    finish_streams()


@compiled
def _images(
    source: Any,
    words: Any,
    magnitudes: Any,
    table: Any,
    target: Any,
    fill: Any,
    first: int,
    last: int,
    scratch: Any,
    line: Any,
    tables: Any,
    counts: Any,
    joint: Any,
    row: Any,
) -> None:
    """Augment images `first` to `last`: source uint8 [B, H, W, 3], words int32 [B, 10 + 2 K], target [B, H, W, 3]."""
    height, width = source.shape[1], source.shape[2]
    lut, step = tables[0], tables[1]  # the look-ups composed since `current`, and the next operation's
    for i in range(first, last):
        current, free = source[i], 0  # `free` is the index of the unused scratch image
        a0, a1, a2, a3, a4, a5 = words[i, 0], words[i, 1], words[i, 2], words[i, 3], words[i, 4], words[i, 5]
        warped = not (is_straight(a0, a1, a2, width) and is_straight(a4, a3, a5, height))
        mapped = False
        if warped or a0 < 0:  # memory is fast only when read forwards
            copy(current, scratch[free])
            current, free = scratch[free], 1 - free
        for k in range(magnitudes.shape[1]):
            op, magnitude = words[i, 10 + k], magnitudes[i, k]
            if op == 0:
                continue
            if warped and op not in (BRIGHTNESS, POSTERIZE, SOLARIZE, INVERT, ADD):
                warp_levels(current, a0, a1, a2, a3, a4, a5, fill, row[0], scratch[free])
                current, free, warped = scratch[free], 1 - free, False
                a0, a4 = int32(65536), int32(65536)
            if op in (COLOR, SHARPNESS, HUE):
                if mapped:
                    look_up(current, lut, scratch[free])
                    current, free, mapped = scratch[free], 1 - free, False
                if op == COLOR:
                    color(current, magnitude, line, scratch[free])
                elif op == HUE:
                    turn_hue(current, int32(magnitude), scratch[free])
                else:
                    sharpen(current, magnitude, line, scratch[free])
                current, free = scratch[free], 1 - free
                continue
            if op == CONTRAST:
                contrast_table(mean_luma(current, lut, mapped), magnitude, step)
            elif op in (AUTOCONTRAST, EQUALIZE):
                if op == AUTOCONTRAST and not mapped:
                    find_ends(current, line, counts)
                else:
                    count(current, counts)
                statistics_tables(op, counts, lut, mapped, step)
            else:
                point_table(op, magnitude, step)
            for entry in range(768):
                lut[entry] = step[(entry & 768) + lut[entry]] if mapped else step[entry]
            mapped = True
        for entry in range(768):
            joint[entry] = table[(entry & 768) + lut[entry]] if mapped else table[entry]
        if warped:
            emit_warped(current, a0, a1, a2, a3, a4, a5, fill, joint, mapped, row, target[i])
        else:
            emit(current, a0 < 0, a4 < 0, joint, mapped, row, target[i])
        for y in range(words[i, 6], words[i, 8]):
            for x in range(words[i, 7], words[i, 9]):
                for channel in range(3):
                    target[i, y, x, channel] = table[768 + channel]
    finish_streams()
