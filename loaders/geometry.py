"""Boxes, points and masks of an upright image, moved into the pixels of its crop.

A place (x, y) is in pixels from the corner of the image or of the crop: the centre of the first pixel is (0.5, 0.5).
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from .crop import Window
from .resample import mirrored

Floats = npt.NDArray[np.float32]
Mask = npt.NDArray[np.integer[Any]]
Shape = tuple[int, int]  # height and width of a crop


def crop_box(window: Window, shape: Shape) -> Floats:
    """The crop's own box in the upright image, xyxy [4]: it reaches beyond the image where the crop is padded."""
    share, _ = _scale_and_shift(window)
    ends = np.array([*window.at, window.at[0] + shape[1], window.at[1] + shape[0]], np.float64)
    box: Floats = (np.tile(window.box[:2], 2) + ends / np.tile(share, 2)).astype(np.float32)
    return box


def crop_boxes(window: Window, shape: Shape, boxes: Floats) -> tuple[Floats, Floats]:
    """Boxes [k, 4] in pixels of the crop, clipped to what it shows of the image, and each one's visible share [k].

    The share of a box that is empty, inverted or of coordinates that are not numbers is 0. Where a crop mirrors the
    image at its edges, mirror images of a box are not boxes.
    """
    share, shift = _scale_and_shift(window)
    moved = boxes.astype(np.float64) * np.tile(share, 2) + np.tile(shift, 2)
    low, high = _shown(window, shape)
    whole = (moved[:, 2:] - moved[:, :2]).clip(min=0.0)
    clipped = np.concatenate([moved[:, :2].clip(low, high), moved[:, 2:].clip(low, high)], axis=1)
    left = (clipped[:, 2:] - clipped[:, :2]).clip(min=0.0)
    filled = (whole > 0).all(axis=1) & (left > 0).all(axis=1)  # False where they are not numbers
    visible = np.zeros(len(boxes))
    visible[filled] = left[filled].prod(axis=1) / whole[filled].prod(axis=1)
    return clipped.astype(np.float32), visible.astype(np.float32)


def crop_points(window: Window, shape: Shape, points: Floats) -> Floats:
    """Points [..., 2] in pixels of the crop; NaN where they lie outside of what it shows of the image."""
    share, shift = _scale_and_shift(window)
    moved = points.astype(np.float64) * share + shift
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


def _scale_and_shift(window: Window) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """A place p of the image is at scale * p + shift in the crop, both [2]."""
    x, y, width, height = window.box
    scale = np.array([window.size[0] / width, window.size[1] / height])
    return scale, -scale * (x, y) - window.at


def _shown(window: Window, shape: Shape) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Top left and bottom right [2] of the part of the crop that shows the image."""
    at, size = np.array(window.at, np.float64), np.array(window.size, np.float64)
    return (-at).clip(min=0.0), np.minimum((size - at), shape[::-1])


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
