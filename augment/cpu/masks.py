"""Masks, moved by the same table of sources as images: one value a pixel, compiled."""

import functools
from typing import Any

import numpy as np
import torch

from .compiled import compiled, int64, position
from .rows import is_straight, span
from .threads import in_threads


def warp(masks: torch.Tensor, affine: torch.Tensor, ignore: int) -> torch.Tensor:
    """Resample integer masks [B, H, W] by inverse Q16 affines int32 [B, 6]: nearest, `ignore` outside."""
    source = masks.contiguous().numpy()
    target = np.empty_like(source)
    outside = np.array([ignore], source.dtype)
    in_threads(functools.partial(_warp, source, affine.contiguous().numpy(), outside, target), len(source))
    return torch.from_numpy(target)


@compiled
def _warp(source: Any, affine: Any, outside: Any, target: Any, first: int, last: int) -> None:
    """Masks `first` to `last`."""
    height, width = source.shape[1], source.shape[2]
    for i in range(first, last):
        a0, a1, a2, a3, a4, a5 = affine[i, 0], affine[i, 1], affine[i, 2], affine[i, 3], affine[i, 4], affine[i, 5]
        if is_straight(a0, a1, a2, width) and is_straight(a4, a3, a5, height):
            for y in range(height):
                taken, put = source[i, height - 1 - y if a4 < 0 else y], target[i, y]
                for x in range(width):
                    put[x] = taken[width - 1 - x if a0 < 0 else x]
            continue
        values = source[i].ravel()
        for y in range(height):
            column, line = int64(a2) + int64(a1) * y, int64(a5) + int64(a4) * y
            in_columns, in_rows = span(column, a0, width, width), span(line, a3, height, width)
            begin = max(in_columns[0], in_rows[0])
            end = max(min(in_columns[1], in_rows[1]), begin)
            column += int64(a0) * begin
            line += int64(a3) * begin
            put = target[i, y]
            put[:begin] = outside[0]
            put[end:] = outside[0]
            for x in range(begin, end):
                put[x] = values[position(line >> 16) * position(width) + position(column >> 16)]
                column += a0
                line += a3
