"""Where annotations are: boxes and points in the frame of their source, turned to that of the upright image.

The frame of a source is that of the stored pixels, or of the upright image, which differ where a photograph has an EXIF
orientation. The size that the annotations state tells which it is; where it does not (a square, half a turn, or no
size), it is the frame that is usual for the source: stored pixels, except in YOLO's folders, since Ultralytics turns
images upright when it reads them.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from fastimg.loaders.decode import Header
from fastimg.loaders.jpeg.exif import turn_of

Points = npt.NDArray[np.float64]


def orientation_of(header: Header, stated: tuple[int, int] | None, usually_upright: bool) -> int:
    """The EXIF orientation by which annotations of an image must be turned; 1 if they are upright already.

    `stated`: the (width, height) that they are for. Raises ValueError if the image has another size.
    """
    stored, seen = (header.width, header.height), header.size
    if stated is not None and stated not in (stored, seen):
        raise ValueError(f"for {stated[0]} x {stated[1]} pixels, where the image has {seen[0]} x {seen[1]}")
    if stated is None or stored == seen:
        return 1 if usually_upright else header.orientation
    return 1 if stated == seen else header.orientation


def turned(points: Points, header: Header, orientation: int) -> Points:
    """Points [..., 2] of the stored image, in its upright frame."""
    turn = turn_of(orientation)
    width, height = header.size
    x, y = (points[..., 1], points[..., 0]) if turn.transposed else (points[..., 0], points[..., 1])
    return np.stack([width - x if turn.flip_x else x, height - y if turn.flip_y else y], -1)


def turned_boxes(boxes: Points, header: Header, orientation: int) -> Points:
    """Boxes [k, 4], xyxy of the stored image, in its upright frame."""
    corners = turned(boxes.reshape(-1, 2, 2), header, orientation)
    return np.concatenate([corners.min(1), corners.max(1)], 1)


def boxes_of(items: Sequence[Any], style: str, size: tuple[int, int]) -> Points:
    """Boxes [k, 4] as xyxy in pixels of an image of this size.

    `style`: how they are written: `box` is xyxy, `box-xywh` the corner with the size, `box-yolo` the centre with the
    size in shares of the image. Raises ValueError for a box that is no box, naming it.
    """
    boxes = numbers_of(items, (4,))
    if style == "box-xywh":
        boxes = np.concatenate([boxes[:, :2], boxes[:, :2] + boxes[:, 2:]], 1)
    elif style == "box-yolo":
        sides = np.array([*size, *size], np.float64)
        boxes = np.concatenate([boxes[:, :2] - boxes[:, 2:] / 2, boxes[:, :2] + boxes[:, 2:] / 2], 1) * sides
    for bad, why in (
        (~np.isfinite(boxes).all(1), "a coordinate that is not a number"),
        ((boxes[:, 2:] < boxes[:, :2]).any(1), "its second corner before its first one"),
        ((boxes[:, 2:] < 0).any(1) | (boxes[:, :2] > size).any(1), f"no part in the {size[0]} x {size[1]} pixels"),
    ):
        if bad.any():
            place = int(bad.argmax())
            raise ValueError(f"item {place}, {[round(float(x), 3) for x in boxes[place]]} (xyxy), has {why}")
    return boxes


def points_of(items: Sequence[Any]) -> Points:
    """Points [k, 2] in pixels; a point that is null, or has null or NaN in it, is missing: NaN."""
    return numbers_of([[None, None] if item is None else item for item in items], (2,), missing=True)


def numbers_of(items: Any, shape: tuple[int, ...], missing: bool = False) -> Points:
    """A list of items of this shape as float64 [k, *shape]. Raises ValueError.

    `missing`: null and NaN are allowed, and NaN.
    """
    if not isinstance(items, list):
        raise ValueError("not a list")
    if not items:
        return np.zeros((0, *shape))
    try:
        array = np.array(items, np.float64)  # None becomes NaN
    except (ValueError, TypeError, OverflowError) as error:  # OverflowError: a whole number beyond all floats
        sizes = {len(item) if isinstance(item, list) else None for item in items}
        what = "items of several lengths" if len(sizes) > 1 else "something that is not a number"
        raise ValueError(what) from error
    if array.shape[1:] != shape:
        raise ValueError(f"items of shape {list(array.shape[1:])}, not {list(shape)}")
    if not missing and np.isnan(array).any():
        place = int(np.isnan(array.reshape(len(array), -1)).any(1).argmax())
        raise ValueError(f"item {place} has a value that is not a number")
    return array
