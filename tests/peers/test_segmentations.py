"""pycocotools is the judge of what polygons and run lengths cover."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pycocotools import mask as coco

from fastimg.convert.annotations.segmentations import Outline, drawn_mask

SIZES = st.tuples(st.integers(1, 40), st.integers(1, 40))
CORNERS = st.floats(-30, 70) | st.integers(-5, 45) | st.integers(-10, 90).map(lambda number: number / 2)
POLYGONS = st.lists(st.tuples(CORNERS, CORNERS), min_size=3, max_size=9)


def ours(shape: Any, size: tuple[int, int]) -> Any:
    return drawn_mask([Outline("it", 1, shape)], size, np.uint8)


@settings(deadline=None, max_examples=500)
@given(size=SIZES, polygons=st.lists(POLYGONS, min_size=1, max_size=3))
def test_polygons_cover_the_same_pixels(size: tuple[int, int], polygons: list[list[tuple[float, float]]]) -> None:
    shape = [[float(number) for corner in polygon for number in corner] for polygon in polygons]
    theirs = coco.decode(coco.merge(coco.frPyObjects(shape, size[1], size[0])))
    np.testing.assert_array_equal(ours(shape, size), theirs)


@settings(deadline=None, max_examples=200)
@given(size=SIZES, seed=st.integers(0, 1 << 20), share=st.floats(0, 1))
def test_run_lengths_cover_the_same_pixels(size: tuple[int, int], seed: int, share: float) -> None:
    inside = np.random.default_rng(seed).random(size[::-1]) < share
    encoded = coco.encode(np.asfortranarray(inside.astype(np.uint8)))
    text = {"size": encoded["size"], "counts": encoded["counts"].decode()}
    np.testing.assert_array_equal(ours(text, size), inside)
    columns = inside.T.reshape(-1)
    ends = [*np.flatnonzero(np.diff(columns, prepend=False)).tolist(), len(columns)]
    lengths = {"size": [size[1], size[0]], "counts": np.diff(ends, prepend=0).tolist()}
    np.testing.assert_array_equal(ours(lengths, size), inside)
    np.testing.assert_array_equal(coco.decode(coco.frPyObjects(lengths, size[1], size[0])), inside)


@pytest.mark.parametrize("length", [1 << 5, 1 << 15, 1 << 20])
def test_long_runs(length: int) -> None:
    inside = np.zeros((1024, 2048), np.uint8)
    inside.T.reshape(-1)[length : 2 * length] = 1
    encoded = coco.encode(np.asfortranarray(inside))
    shape = {"size": encoded["size"], "counts": encoded["counts"].decode()}
    np.testing.assert_array_equal(ours(shape, (2048, 1024)), inside)
