"""Crops that are cut, not resized, out of images that lie one after the other in a device's memory.

cut_rows     on a CPU, compiled
cut          on any device, images of any sizes: 25 kernels for a batch
cut_shifted  the same for images of one size, whose crops a `shift_table` knows: 3 kernels
"""

from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from fastimg.loaders.runtime.compiled import compiled

_TABLE = 1 << 24  # bytes that a table may have: that of CIFAR's crops has 0.1 MB


def shift_table(size: tuple[int, int], shape: tuple[int, int], padding: int) -> npt.NDArray[np.int32] | None:
    """Where the pixels of every crop of `shape` (height, width) lie in an image of `size` (width, height).

    int32 [places of a crop, height * width], the places in rows; the first is `padding` pixels outside on both sides.
    None where it would be too large.
    """
    tall, wide = shape
    down, across = (side + 2 * padding - crop + 1 for side, crop in zip((size[1], size[0]), shape, strict=True))
    if 4 * down * across * tall * wide > _TABLE:
        return None
    rows = _folded(np.arange(down)[:, None] - padding + np.arange(tall), size[1])  # [down, height]
    columns = _folded(np.arange(across)[:, None] - padding + np.arange(wide), size[0])  # [across, width]
    places = rows[:, None, :, None] * size[0] + columns[None, :, None, :]
    return places.reshape(down * across, tall * wide).astype(np.int32)


def shifts_of(jobs: npt.NDArray[np.int64], size: tuple[int, int], wide: int, padding: int) -> npt.NDArray[np.int64]:
    """What `cut_shifted` takes for the `jobs` [B, 5] of `cut`: int64 [2, B], the first pixel and the table's row."""
    across = size[0] + 2 * padding - wide + 1
    return np.stack([jobs[:, 0], (jobs[:, 4] + padding) * across + jobs[:, 3] + padding])


def cut_shifted(
    pixels: torch.Tensor, table: torch.Tensor, shifts: torch.Tensor, shape: tuple[int, int]
) -> torch.Tensor:
    """uint8 [B, H, W, 3] out of `pixels` [pixels of all images, 3] by `shifts_of` [2, B]; no sync."""
    first, row = shifts.unbind()
    places = table.index_select(0, row) + first[:, None]  # int64 [B, H * W]
    return pixels[places].view(len(row), *shape, 3)


def _folded(places: npt.NDArray[np.int64], n: int) -> npt.NDArray[np.int64]:
    """As `resample.mirrored`."""
    folded: npt.NDArray[np.int64] = np.abs(n - 1 - np.abs(n - 1 - np.abs(places)))
    return folded


def cut(pixels: torch.Tensor, jobs: torch.Tensor, shape: tuple[int, int]) -> torch.Tensor:
    """uint8 [B, H, W, 3] out of `pixels` [pixels of all images, 3], on their device, by `jobs_of`; no sync."""
    first, width, height, x, y = (part[:, None] for part in jobs.unbind(dim=1))  # [B, 1]
    tall, wide = shape
    rows = _mirrored(y + torch.arange(tall, device=jobs.device), height.clamp(min=1))  # [B, H]
    columns = _mirrored(x + torch.arange(wide, device=jobs.device), width.clamp(min=1))  # [B, W]
    known = width > 0  # [B, 1]
    places = (first + rows * width)[:, :, None] + columns[:, None, :]
    places = torch.where(known[:, :, None], places, 0)
    return pixels[places] * known[:, :, None, None]


def _mirrored(places: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
    """As `resample.mirrored`."""
    last = n - 1
    return (last - (last - places.abs()).abs()).abs()


@compiled
def cut_rows(pixels: Any, jobs: Any, out: Any) -> None:
    """`cut` on a CPU, into the first rows of `out`; those of images that cannot be decoded stay as they are."""
    tall, wide = out.shape[1], out.shape[2]
    for b in range(jobs.shape[0]):
        first, width, height, x, y = jobs[b, 0], jobs[b, 1], jobs[b, 2], jobs[b, 3], jobs[b, 4]
        if width == 0:
            continue
        for row in range(tall):
            source = height - 1 - abs(height - 1 - abs(y + row))
            line = first + source * width
            for column in range(wide):
                place = line + width - 1 - abs(width - 1 - abs(x + column))
                out[b, row, column, 0] = pixels[place, 0]
                out[b, row, column, 1] = pixels[place, 1]
                out[b, row, column, 2] = pixels[place, 2]
