"""Boxes, points, masks and bands of an upright image, moved into the pixels of its crop.

A place (x, y) is in pixels from the corner of the image or of the crop: the centre of the first pixel is (0.5, 0.5).
"""

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from fastimg.loaders.crop import Interpolation, Window
from fastimg.loaders.resample import mirrored, resample_deep

Floats = npt.NDArray[np.float32]
Mask = npt.NDArray[np.integer[Any]]
Shape = tuple[int, int]  # height and width of a crop


class CropView(NamedTuple):
    """What the crop of one sample shows."""

    window: Window
    shape: Shape
    size: tuple[int, int]  # width, height of the upright image
    mirrors: bool  # beyond the image
    ignore: int  # a mask's value there, unless it is mirrored
    interpolation: Interpolation


def crop_box(window: Window, shape: Shape) -> tuple[float, float, float, float]:
    """The crop's own box in the upright image, xyxy: it reaches beyond the image where the crop is padded."""
    across, down, _, _ = _scale_and_shift(window)
    x, y, left, top = *window.box[:2], *window.at
    return x + left / across, y + top / down, x + (left + shape[1]) / across, y + (top + shape[0]) / down


def crop_boxes(window: Window, shape: Shape, boxes: Floats) -> tuple[Floats, Floats]:
    """Boxes [k, 4] in pixels of the crop, clipped to what it shows of the image, and each one's visible share [k].

    The share of a box that is empty, inverted or of coordinates that are not numbers is 0. Where a crop mirrors the
    image at its edges, mirror images of a box are not boxes.
    """
    across, down, right, below = _scale_and_shift(window)
    moved = boxes * np.array((across, down, across, down)) + np.array((right, below, right, below))
    low, high = _shown(window, shape)
    clipped = np.minimum(np.maximum(moved, low * 2), high * 2)
    whole, left = moved[:, 2:] - moved[:, :2], clipped[:, 2:] - clipped[:, :2]
    filled = np.minimum(whole, left).min(axis=1, initial=np.inf) > 0  # False where they are not numbers
    visible = np.zeros(len(boxes), np.float32)
    np.divide(left[:, 0] * left[:, 1], whole[:, 0] * whole[:, 1], out=visible, where=filled, casting="same_kind")
    return clipped.astype(np.float32), visible


def crop_points(window: Window, shape: Shape, points: Floats) -> Floats:
    """Points [..., 2] in pixels of the crop; NaN where they lie outside of what it shows of the image."""
    across, down, right, below = _scale_and_shift(window)
    moved = points * np.array((across, down)) + np.array((right, below))
    low, high = _shown(window, shape)
    inside = ((moved >= low) & (moved <= high)).all(axis=-1, keepdims=True)
    return np.where(inside, moved, np.nan).astype(np.float32)


def crop_mask(window: Window, mask: Mask, ignore: int, mirrors: bool, out: Mask) -> None:
    """Write a mask [H, W] into `out` [h, w], by nearest neighbour.

    The pixels that it takes are those of torch's mode "nearest", and so of torchvision's resize of a
    `tv_tensors.Mask`: pixel i of n is taken from pixel floor(i * N / n) of N, in float32. What lies beyond the image
    is mirrored with it (`mirrors`) or `ignore`.
    """
    x, y, width, height = window.box
    rows, columns = y + _nearest(height, window.size[1]), x + _nearest(width, window.size[0])
    left, top = window.at
    tall, wide = out.shape
    if mirrors:
        rows, columns = rows[mirrored(top, tall, len(rows))], columns[mirrored(left, wide, len(columns))]
        out[...] = mask.take(rows, axis=0).take(columns, axis=1)
        return
    rows, columns = rows[max(top, 0) : max(top + tall, 0)], columns[max(left, 0) : max(left + wide, 0)]
    if (len(rows), len(columns)) != out.shape:
        out[...] = ignore
    first, begin = max(-top, 0), max(-left, 0)
    out[first : first + len(rows), begin : begin + len(columns)] = mask.take(rows, axis=0).take(columns, axis=1)


def crop_bands(
    window: Window, bands: npt.NDArray[Any], interpolation: Interpolation, mirrors: bool, out: npt.NDArray[Any]
) -> None:
    """Write what a crop shows of bands [C, H, W] to `out` [C, h, w]: resized as the image is, with 0 beyond it.

    Where the crop `mirrors`, so are the bands.
    """
    resized = np.empty((*out.shape[1:], len(out)), out.dtype)
    values = bands.transpose(1, 2, 0).astype(out.dtype, copy=False)
    resample_deep(values, window, interpolation, resized, None if mirrors else 0)
    out[...] = resized.transpose(2, 0, 1)


def _scale_and_shift(window: Window) -> tuple[float, float, float, float]:
    """A place (x, y) of the image is at (across * x + right, down * y + below) in the crop: the four numbers."""
    x, y, width, height = window.box
    across, down = window.size[0] / width, window.size[1] / height
    return across, down, -across * x - window.at[0], -down * y - window.at[1]


def _shown(window: Window, shape: Shape) -> tuple[tuple[float, float], tuple[float, float]]:
    """Top left and bottom right of the part of the crop that shows the image."""
    left, top = window.at
    first = (float(max(-left, 0)), float(max(-top, 0)))
    return first, (float(min(window.size[0] - left, shape[1])), float(min(window.size[1] - top, shape[0])))


def _nearest(count: int, size: int) -> npt.NDArray[np.int64]:
    """The pixels of `count` that `size` pixels show, as torch's `nearest_idx` computes them."""
    places = np.arange(size, dtype=np.int64)
    if size == count:
        return places
    if size == 2 * count:
        return places >> 1
    scaled = places.astype(np.float32) * (np.float32(count) / np.float32(size))
    taken: npt.NDArray[np.int64] = np.minimum(np.floor(scaled).astype(np.int64), count - 1)
    return taken
