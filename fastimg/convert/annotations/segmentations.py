"""Outlines of objects made into masks of classes: polygons, and run lengths as COCO's annotations have them.

A polygon has the pixels that pycocotools gives it: its corners are rounded to fifths of a pixel and joined by lines on
that finer grid, and a line that crosses the middle of a column of pixels begins or ends the inside there. What lies
beyond the image is cut off. Run lengths count pixels down the columns, outside and inside in turn; as a text each is a
number of base 32, of which all but the first three are differences from the last but one.
"""

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from fastimg.loaders.containers.fields import StoredField
from fastimg.wording import plural

_FINE = 5  # steps of the finer grid in a pixel
_MIDDLE = 2  # the step left of the middle of a pixel; the one right of it is the next
_FARTHEST = 100_000  # pixels; what memory an outline takes grows with its length
_FIRST, _LAST = ord("0"), ord("o")  # the digits of run lengths as a text
_MOST_BITS = 60  # of a number in it

MASK = "mask"  # the field of drawn masks
_BACKGROUND = "background"


class Outline(NamedTuple):
    """The outline of one object of a sample, as its source states it."""

    what: str  # its name in messages
    value: int  # what its pixels become
    shape: Any  # a list of polygons x, y, x, y, ..., or {"size": [H, W], "counts": run lengths}


class _Area(NamedTuple):
    """Pixels of some columns of an image."""

    left: int  # the first column
    inside: npt.NDArray[np.bool_]  # [H, columns]


def mask_of_classes(names: Iterable[str]) -> StoredField:
    """The field of masks that are drawn of segmentations: 0 is the background, and class k is k + 1."""
    classes = (_BACKGROUND, *names)
    return StoredField(name=MASK, kind="image", dtype="uint8", geometry="mask", classes=classes)


def drawn_mask(
    outlines: Iterable[Outline], size: tuple[int, int], dtype: type[np.uint8 | np.uint16], relative: bool = False
) -> npt.NDArray[np.uint8 | np.uint16]:
    """A mask [H, W] of the values of outlines, and 0 elsewhere, for an image of this `size` (width, height).

    Where objects overlap, the one of fewer pixels is on top, and of equal ones the later one. `relative`: the points
    of polygons are shares of the image. Raises ValueError for an outline that is none, naming it.
    """
    mask = np.zeros(size[::-1], dtype)
    areas: list[tuple[int, _Area]] = []
    for what, value, shape in outlines:
        try:
            area = _area(shape, size, relative)
        except ValueError as error:
            raise ValueError(f"{what}: {error}") from error
        areas.append((value, area))
    for value, (left, inside) in sorted(areas, key=lambda each: -np.count_nonzero(each[1].inside)):
        mask[:, left : left + inside.shape[1]][inside] = value
    return mask


def _area(shape: Any, size: tuple[int, int], relative: bool) -> _Area:
    """The pixels of an object. Raises ValueError."""
    if isinstance(shape, dict):
        return _of_runs(shape, size)
    if not isinstance(shape, list) or not all(isinstance(polygon, list) for polygon in shape):
        raise ValueError("its segmentation is neither a list of polygons nor run lengths")
    areas = []
    for place, polygon in enumerate(shape):
        try:
            areas.append(_of_polygon(_points(polygon, size, relative), size))
        except ValueError as error:
            raise ValueError(f"polygon {place} {error}") from error
    left = min((area.left for area in areas), default=0)
    right = max((area.left + area.inside.shape[1] for area in areas), default=left)
    whole = np.zeros((size[1], right - left), np.bool_)
    for area in areas:
        whole[:, area.left - left : area.left - left + area.inside.shape[1]] |= area.inside
    return _Area(left, whole)


def _points(polygon: list[Any], size: tuple[int, int], relative: bool) -> npt.NDArray[np.float64]:
    """The corners [k, 2] of a polygon in pixels. Raises ValueError."""
    if not all(type(number) in (int, float) for number in polygon):
        raise ValueError("has something that is not a number")
    if len(polygon) % 2:
        raise ValueError(f"has {len(polygon)} numbers, which are not pairs of x and y")
    if len(polygon) < 6:
        raise ValueError(f"has {plural(len(polygon) // 2, 'point')}; it takes three")
    try:
        points = np.array(polygon, np.float64).reshape(-1, 2) * (size if relative else (1, 1))
    except OverflowError as error:  # a whole number beyond all floats
        raise ValueError(f"has a coordinate beyond {_FARTHEST:,} pixels") from error
    if not (np.abs(points) <= _FARTHEST).all():
        raise ValueError(f"has a coordinate that is not a number, or beyond {_FARTHEST:,} pixels")
    return points


def _of_polygon(points: npt.NDArray[np.float64], size: tuple[int, int]) -> _Area:
    """The pixels of a polygon with these corners [k, 2]."""
    width, height = size
    begin = np.trunc(points * _FINE + 0.5).astype(np.int64)
    end = np.roll(begin, -1, 0)
    across = np.abs(end - begin)
    steep = across[:, 0] < across[:, 1]
    # Along each line the axis of more steps goes up by one, and the other one is rounded.
    main, other = np.where(steep, 1, 0), np.where(steep, 0, 1)
    rows = np.arange(len(begin))
    back = begin[rows, main] > end[rows, main]
    begin, end = np.where(back[:, None], end, begin), np.where(back[:, None], begin, end)
    steps = across[rows, main]
    slopes = (end - begin)[rows, other] / np.maximum(steps, 1)
    line = np.repeat(rows, steps)
    step = np.arange(len(line)) - np.repeat(np.cumsum(steps) - steps, steps)
    along = begin[rows, main][line] + step
    start = begin[rows, other][line]
    before = (start + slopes[line] * step + 0.5).astype(np.int64)
    after = (start + slopes[line] * (step + 1) + 0.5).astype(np.int64)
    beside = np.minimum(before, after)
    upwards = steep[line]
    x, y = np.where(upwards, beside, along), np.where(upwards, along, beside)
    column = (x - _MIDDLE) // _FINE
    crossing = (x % _FINE == _MIDDLE) & (~upwards | (before != after)) & (column >= 0) & (column < width)
    columns = column[crossing]
    if not len(columns):
        return _Area(0, np.zeros((height, 0), np.bool_))
    left, count = int(columns.min()), int(columns.max() - columns.min()) + 1
    row = np.clip((y[crossing] + _MIDDLE) // _FINE, 0, height)
    turns = np.bincount((columns - left) * height + row, minlength=count * height + 1) & 1
    inside = np.bitwise_xor.accumulate(turns.astype(np.bool_))[:-1]
    return _Area(left, inside.reshape(count, height).T)


def _of_runs(shape: dict[str, Any], size: tuple[int, int]) -> _Area:
    """The pixels of an object that COCO's run lengths state. Raises ValueError."""
    stated, counts = shape.get("size"), shape.get("counts")
    if stated != [size[1], size[0]]:
        raise ValueError(f"its run lengths have the size {stated}, and the image {[*size[::-1]]} (height, width)")
    runs = _decoded(counts) if isinstance(counts, str) else counts
    if not isinstance(runs, list) or not all(type(run) is int and run >= 0 for run in runs):
        raise ValueError("its run lengths are no list of whole numbers from 0 on")
    if sum(runs) != size[0] * size[1]:
        raise ValueError(f"its run lengths count {sum(runs):,} pixels, where the image has {size[0] * size[1]:,}")
    inside = np.repeat(np.arange(len(runs)) % 2 == 1, runs)
    return _Area(0, inside.reshape(size).T)


def _decoded(text: str) -> list[int]:
    """The run lengths that COCO writes as a text. Raises ValueError."""
    runs: list[int] = []
    number = bits = 0
    for letter in text:
        if not _FIRST <= ord(letter) <= _LAST or bits > _MOST_BITS:
            raise ValueError(f"its run lengths cannot be decoded, at {letter!r} after {plural(len(runs), 'number')}")
        digit = ord(letter) - _FIRST
        number |= (digit & 31) << bits
        bits += 5
        if not digit & 32:  # the last digit of a number, whose highest bit is the sign
            number -= (1 << bits) if digit & 16 else 0
            runs.append(number + (runs[-2] if len(runs) > 2 else 0))
            number = bits = 0
    if bits:
        raise ValueError("its run lengths cannot be decoded: they end within a number")
    return runs
