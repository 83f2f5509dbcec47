"""What a crop shows of boxes, points and masks, compared with torchvision's v2 functions of tv_tensors."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torchvision import tv_tensors
from torchvision.transforms.v2 import functional as F

from fastimg.loaders import CenterCrop, Letterbox, LongestSide, RandomCrop, RandomResizedCrop
from fastimg.loaders.crop import shape_of
from fastimg.loaders.decoders.geometry import crop_box, crop_boxes, crop_mask, crop_points

EPSILON = 1e-3  # pixels: torchvision rounds places to float32

sides = st.integers(1, 90)
draws = st.lists(st.floats(0, 1, exclude_max=True), min_size=22, max_size=22)
shapes = st.tuples(st.integers(1, 60), st.integers(1, 60))


def torchvisions(value, window, shape):
    """The window's box cut out and resized, then the crop cut out of that."""
    x, y, width, height = window.box
    value = F.resized_crop(value, y, x, height, width, list(window.size[::-1]))
    return F.crop(value, window.at[1], window.at[0], *shape)


def boxes_in(width, height, seed, count=6):
    ends = np.sort(np.random.default_rng(seed).uniform(-0.2, 1.2, (count, 2, 2)), axis=1) * (width, height)
    ends[:, 1] += 0.01
    return ends.reshape(count, 4).astype(np.float32)


def windows(width, height, draws, shape):
    """The window of each crop that stays within the image."""
    for crop in (
        RandomResizedCrop(size=shape, scale=(0.05, 1.0)),
        CenterCrop(size=shape, resize=(shape[0] + 9, shape[1] + 4)),
        RandomCrop(size=shape, padding=0),
    ):
        yield crop.window(width, height, draws)


@settings(max_examples=60, deadline=None)
@given(sides, sides, draws, shapes, st.integers(0, 99))
def test_boxes_and_points_move_as_torchvisions(width, height, draws, shape, seed):
    boxes = boxes_in(width, height, seed)
    for window in windows(width, height, draws, shape):
        ours, visible = crop_boxes(window, shape, boxes)
        whole = tv_tensors.BoundingBoxes(
            torch.from_numpy(boxes).double(), format="XYXY", canvas_size=(height, width), clamping_mode=None
        )
        theirs = F.clamp_bounding_boxes(torchvisions(whole, window, shape), clamping_mode="hard").numpy()
        tolerance = EPSILON * max(1.0, np.abs(theirs).max())
        assert np.abs(ours - theirs).max() < tolerance
        assert ((visible == 0) | ((theirs[:, 2:] - theirs[:, :2]) > -tolerance).all(axis=1)).all()
        assert (visible >= 0).all() and (visible <= 1 + 1e-6).all()
        centres = tv_tensors.KeyPoints(torch.from_numpy(boxes[:, :2]).double(), canvas_size=(height, width))
        points = crop_points(window, shape, boxes[:, :2])
        inside = ~np.isnan(points).any(axis=1)
        moved = torchvisions_of_points(centres, window)
        assert np.abs(points[inside] - moved[inside]).max(initial=0.0) < EPSILON * max(1.0, np.abs(moved).max())


def torchvisions_of_points(points, window):
    x, y, width, height = window.box
    moved = F.resize(
        tv_tensors.KeyPoints(points - torch.tensor([x, y]), canvas_size=(height, width)), list(window.size[::-1])
    )
    return moved.numpy() - window.at


@settings(max_examples=60, deadline=None)
@given(sides, sides, draws, shapes, st.integers(0, 99))
def test_masks_move_as_torchvisions_to_the_bit(width, height, draws, shape, seed):
    mask = np.random.default_rng(seed).integers(0, 256, (height, width), dtype=np.uint8)
    for window in windows(width, height, draws, shape):
        ours = np.empty(shape, np.uint8)
        crop_mask(window, mask, 255, False, ours)
        theirs = torchvisions(tv_tensors.Mask(torch.from_numpy(mask)), window, shape)
        assert np.array_equal(ours, theirs.numpy())


@settings(max_examples=40, deadline=None)
@given(sides, sides, draws, st.sampled_from([RandomResizedCrop, RandomCrop, CenterCrop, Letterbox, LongestSide]))
def test_the_crops_box_is_what_the_crop_shows(width, height, draws, kind):
    options = {RandomCrop: {"padding": 5}, CenterCrop: {"resize": 40}}.get(kind, {})
    crop = kind(size=(24, 31), **options)
    window = crop.window(width, height, draws)
    box = np.array(crop_box(window, (24, 31)))
    corners = (box.reshape(2, 2) - window.box[:2]) * np.array(window.size) / window.box[2:] - window.at
    assert np.abs(corners - [[0, 0], [31, 24]]).max() < 0.01


def test_what_is_cut_off_is_no_longer_visible():
    window = RandomCrop(size=20, padding=0).window(40, 20, (0.5, 0.0))  # 10 pixels from the left
    boxes = np.array([[0, 0, 10, 10], [0, 0, 20, 10], [12, 2, 14, 4], [35, 0, 45, 10], [9, 9, 3, 3]], np.float32)
    moved, visible = crop_boxes(window, (20, 20), boxes)
    assert visible.tolist() == [0.0, 0.5, 1.0, 0.0, 0.0]
    assert moved[1].tolist() == [0, 0, 10, 10] and moved[2].tolist() == [2, 2, 4, 4]
    nan = np.full((1, 4), np.nan, np.float32)
    assert crop_boxes(window, (20, 20), nan)[1].tolist() == [0.0]
    assert crop_boxes(window, (20, 20), np.zeros((0, 4), np.float32))[0].shape == (0, 4)
    points = np.array([[[10, 5], [30, 20]], [[9.9, 5], [np.nan, 0]]], np.float32)
    moved = crop_points(window, (20, 20), points)
    assert moved[0].tolist() == [[0, 5], [20, 20]] and np.isnan(moved[1]).all()


def test_a_mirrored_margin_shows_no_further_boxes_but_its_mask():
    crop = RandomCrop(size=8, padding=4)
    window = crop.window(8, 8, (0.0, 0.0))  # 4 pixels up and to the left
    moved, visible = crop_boxes(window, (8, 8), np.array([[1, 1, 3, 3], [6, 6, 8, 8]], np.float32))
    assert moved[0].tolist() == [5, 5, 7, 7] and visible.tolist() == [1.0, 0.0]
    mask = np.arange(64, dtype=np.uint8).reshape(8, 8)
    shown = np.empty((8, 8), np.uint8)
    crop_mask(window, mask, 255, True, shown)
    assert np.array_equal(shown, np.pad(mask, 4, mode="reflect")[:8, :8])


@pytest.mark.parametrize("crop", [Letterbox(size=(40, 64)), LongestSide(size=(40, 64))])
@pytest.mark.parametrize("size", [(100, 100), (30, 90), (64, 40), (1, 700)])
def test_a_mask_is_ignored_beyond_the_image(crop, size):
    width, height = size
    window = crop.window(width, height, ())
    mask = np.ones((height, width), np.uint8)
    shown = np.empty(shape_of(crop), np.uint8)
    crop_mask(window, mask, 9, False, shown)
    boxes, visible = crop_boxes(window, shape_of(crop), np.array([[0, 0, width, height]], np.float32))
    left, top, right, bottom = (round(float(end)) for end in boxes[0])
    assert visible[0] == 1.0 and (right - left, bottom - top) == window.size
    assert (shown[top:bottom, left:right] == 1).all() and (shown == 1).sum() == (right - left) * (bottom - top)
    assert ((shown == 1) | (shown == 9)).all()
