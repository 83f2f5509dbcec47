"""Masks, boxes and points move with their images: torchvision's v2 functions of tv_tensors are the judge.

Boxes agree within 1e-3 pixels, torchvision's rounding to float32. Masks agree wherever the source lies more than 1e-3
pixels from the edge of a pixel: torchvision samples them by grid_sample in float32, we as Pillow does, in Q16.
"""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torchvision import tv_tensors
from torchvision.transforms.v2 import functional as F

from fastimg.augment import (
    MovedBoxes,
    Plan,
    Policy,
    apply,
    apply_boxes,
    apply_keypoints,
    apply_masks,
    cpu,
    draw,
    reference,
)
from fastimg.augment.ops import BINS, TRIVIAL, trivial_table

WARPS = ("Identity", "ShearX", "ShearY", "TranslateX", "TranslateY", "Rotate")
EPSILON = 1e-3  # pixels

motions = st.tuples(
    st.booleans(),
    st.booleans(),
    st.sampled_from(WARPS),
    st.integers(0, BINS - 1),
    st.booleans(),
    st.sampled_from([(37, 53), (53, 37), (64, 64), (20, 97)]),
)


def plan_of(hflip, vflip, name, at, negative, batch=1):
    """A plan in which all images are flipped and then warped by an operation of TrivialAugment."""
    row = (list(TRIVIAL).index(name) * BINS + at) * 2 + negative
    table = trivial_table()
    return Plan(
        hflip=torch.full((batch,), hflip),
        vflip=torch.full((batch,), vflip),
        angle=torch.zeros(batch, dtype=torch.float64),
        trivial=torch.full((batch,), row),
        ops=torch.full((batch, 1), int(table.ops[row]), dtype=torch.int32),
        magnitudes=torch.full((batch, 1), float(table.magnitudes[row])),
    )


def torchvisions(value, hflip, vflip, name, at, negative):
    """The same by torchvision, with the parameters that its TrivialAugmentWide gives an image."""
    value = F.horizontal_flip(value) if hflip else value
    value = F.vertical_flip(value) if vflip else value
    most = {"Translate": 32.0, "Rotate": 135.0}.get(name.rstrip("XY"), 0.99)
    magnitude = float(torch.linspace(0.0, most, BINS)[at]) * (-1 if negative else 1)
    extra = {"fill": 255} if isinstance(value, tv_tensors.Mask) else {}
    if name == "Rotate":
        return F.rotate(value, magnitude, **extra)
    shear, translate = [0.0, 0.0], [0, 0]
    if name.startswith("Shear"):
        shear["XY".index(name[-1])] = math.degrees(math.atan(magnitude))
    elif name.startswith("Translate"):
        translate["XY".index(name[-1])] = int(magnitude)
    centre = [0, 0] if name.startswith("Shear") else None
    return F.affine(value, angle=0.0, translate=translate, scale=1.0, shear=shear, center=centre, **extra)


def boxes_in(height, width, count, seed):
    """Boxes float32 [N, 4] inside an image, none of them empty."""
    corners = np.sort(np.random.default_rng(seed).uniform(0.0, 1.0, (count, 2, 2)), axis=1)
    corners[:, 1] += 0.01
    return torch.from_numpy((corners / 1.01 * (width, height)).reshape(count, 4).astype(np.float32))


@settings(max_examples=60, deadline=None)
@given(motions, st.integers(0, 1000))
def test_boxes_move_as_torchvisions(motion, seed):
    *parameters, (height, width) = motion
    boxes = boxes_in(height, width, 5, seed)
    theirs = torchvisions(tv_tensors.BoundingBoxes(boxes, format="XYXY", canvas_size=(height, width)), *parameters)
    kept = (theirs[:, 2] - theirs[:, 0] > EPSILON) & (theirs[:, 3] - theirs[:, 1] > EPSILON)
    moved = apply_boxes(plan_of(*parameters), boxes[None], None, (height, width))
    ours = torch.full_like(boxes, -1.0)
    count = int(moved.counts)
    ours[moved.order[0, :count]] = moved.boxes[0, :count]
    if kept.any():
        assert (ours[kept] - theirs[kept]).abs().max() < EPSILON
    assert count >= int(kept.sum())


@settings(max_examples=60, deadline=None)
@given(motions, st.integers(0, 1000))
def test_masks_move_as_torchvisions(motion, seed):
    *parameters, (height, width) = motion
    mask = torch.from_numpy(np.random.default_rng(seed).integers(0, 200, (height, width), dtype=np.uint8))
    plan = plan_of(*parameters)
    theirs = torchvisions(tv_tensors.Mask(mask), *parameters)
    different = apply_masks(plan, mask[None])[0] != theirs
    linear, shift = plan.inverse(height, width)
    y, x = np.mgrid[:height, :width] + 0.5
    places = np.einsum("ij,jhw->ihw", linear[0], np.stack([x, y])) + shift[0][:, None, None]
    at_an_edge = (np.abs(places - np.rint(places)) < EPSILON).any(axis=0)
    assert not (different.numpy() & ~at_an_edge).any()


@settings(max_examples=40, deadline=None)
@given(motions, st.integers(0, 1000))
def test_points_move_as_torchvisions_but_for_flips(motion, seed):
    """torchvision flips points as if they were numbers of pixels, and warps them as places: we do only the latter."""
    *parameters, (height, width) = motion
    hflip, vflip, *warp = parameters
    points = torch.from_numpy(np.random.default_rng(seed).uniform(1.0, (width - 1, height - 1), (6, 2)))
    flipped = tv_tensors.KeyPoints(points.clone(), canvas_size=(height, width))
    flipped[:, 0] = width - points[:, 0] if hflip else points[:, 0]
    flipped[:, 1] = height - points[:, 1] if vflip else points[:, 1]
    theirs = torchvisions(tv_tensors.KeyPoints(flipped, canvas_size=(height, width)), False, False, *warp)
    ours = apply_keypoints(plan_of(*parameters), points[None], (height, width))[0]
    inside = ((theirs > EPSILON) & (theirs < torch.tensor([width, height]) - EPSILON)).all(dim=1)
    if inside.any():
        assert (ours[inside] - theirs[inside]).abs().max() < EPSILON
    outside = ((theirs < -EPSILON) | (theirs > torch.tensor([width, height]) + EPSILON)).any(dim=1)
    if outside.any():
        assert ours[outside].isnan().all()


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int32])
@settings(max_examples=30, deadline=None)
@given(motion=motions, seed=st.integers(0, 1000))
def test_compiled_masks_equal_the_reference(dtype, motion, seed):
    *parameters, (height, width) = motion
    plan = replace(plan_of(*parameters, batch=3), angle=torch.tensor([0.0, 0.0, seed / 3]))
    masks = torch.from_numpy(np.random.default_rng(seed).integers(0, 200, (3, width, height))).to(dtype).mT
    affine = plan.sized(height, width).affine
    assert torch.equal(cpu.warp(masks, affine, 255), reference.warp_masks(masks, affine, 255))


POLICIES = [
    Policy(hflip=0.5, vflip=0.5),
    Policy(hflip=0.5, rotate=180.0),
    Policy(hflip=0.5, rotate=20.0, trivial=True, erase=0.5),
    Policy(hflip=0.5, named="rand-m9-mstd0.5-inc1"),
    Policy(named="v0", blur=0.5),
]


@pytest.mark.parametrize("policy", POLICIES, ids=str)
def test_masks_show_what_the_image_shows(policy):
    """A mask of an image's own levels stays that, whatever the plan: the map is the image's, to the bit."""
    policy = replace(policy, erase=0.0)
    plan = draw(policy, np.arange(64), 3, 1)
    still = torch.zeros_like
    stages = [
        replace(stage, ops=still(stage.ops), magnitudes=still(stage.magnitudes), kinds=None, blur=None, then=())
        for stage in plan.stages
    ]
    levels = torch.from_numpy(np.random.default_rng(1).integers(0, 256, (64, 40, 56), dtype=np.uint8))
    shown = levels
    for stage in stages:
        shown = apply(stage, shown[:, None].expand(-1, 3, -1, -1), Policy(), torch.uint8)[:, 0]
    seen = apply_masks(plan, levels.to(torch.int32) + 1000, ignore=-1)
    inside = seen >= 0
    assert inside.float().mean() > 0.5
    assert torch.equal(seen[inside] - 1000, shown[inside].to(torch.int32))


@pytest.mark.parametrize("policy", POLICIES, ids=str)
def test_a_mask_of_a_box_stays_within_the_box(policy):
    """What a rectangle of the mask becomes lies in its moved box; and a plan may be divided into batches."""
    plan = draw(policy, np.arange(64), 3, 2)
    mask = torch.zeros(64, 60, 80, dtype=torch.uint8)
    mask[:, 10:30, 20:60] = 1
    boxes = torch.tensor([[[20.0, 10.0, 60.0, 30.0]]]).expand(64, 1, 4)
    seen = apply_masks(plan, mask) == 1
    moved = apply_boxes(plan, boxes, None, (60, 80))
    for row in range(64):
        y, x = np.nonzero(seen[row].numpy())
        if not len(x):
            continue
        left, top, right, bottom = moved.boxes[row, 0].tolist()
        assert left - 0.5 <= x.min() + 0.5 and x.max() + 0.5 <= right + 0.5
        assert top - 0.5 <= y.min() + 0.5 and y.max() + 0.5 <= bottom + 0.5
        assert moved.counts[row] == 1 and moved.visible[row, 0] > 0
    centre = apply_keypoints(plan, torch.full((64, 1, 2), 30.0), (60, 80))[:, 0]
    for row in np.flatnonzero(~centre.isnan().any(dim=1).numpy()):
        left, top, right, bottom = moved.boxes[row, 0].tolist()
        assert left <= centre[row, 0] <= right and top <= centre[row, 1] <= bottom


def test_what_leaves_the_image_is_dropped_with_what_belongs_to_it():
    plan = plan_of(False, False, "TranslateX", 30, False, batch=2)  # 32 pixels to the right
    boxes = torch.tensor([[5.0, 0, 15, 10], [20, 0, 60, 10], [40, 5, 60, 25], [0, 0, 0, 0]]).expand(2, 4, 4)
    moved = apply_boxes(plan, boxes, torch.tensor([3, 2]), 64)
    assert isinstance(moved, MovedBoxes)
    assert moved.counts.tolist() == [2, 2]
    assert moved.boxes[0].tolist() == [[37, 0, 47, 10], [52, 0, 64, 10], [0] * 4, [0] * 4]
    assert moved.visible[0].tolist() == pytest.approx([1.0, 12 / 40, 0.0, 0.0])
    labels = torch.tensor([[7, 8, 9, 5], [1, 2, 3, 4]])
    assert moved.along(labels).tolist() == [[7, 8, 0, 0], [1, 2, 0, 0]]
    few = apply_boxes(plan, boxes, torch.tensor([3, 2]), 64, min_visibility=0.31)
    assert few.counts.tolist() == [1, 1] and few.along(labels).tolist() == [[7, 0, 0, 0], [1, 0, 0, 0]]
    rest = apply_boxes(plan, boxes, None, 64, visible=torch.tensor([0.5, 1.0, 1.0, 1.0]).expand(2, 4))
    assert rest.visible[0].tolist() == pytest.approx([0.5, 0.3, 0.0, 0.0])


def test_boxes_that_are_none_are_dropped():
    nan = math.nan
    boxes = torch.tensor([[[0.0, 0, 0, 5], [3, 3, 1, 9], [nan, 0, 5, 5], [1, 1, 4, 4]]])
    for plan in (None, plan_of(True, False, "Identity", 0, False)):
        moved = apply_boxes(plan, boxes, None, (10, 10))
        assert moved.counts.tolist() == [1] and moved.order[0, 0] == 3
    assert apply_boxes(None, torch.zeros(2, 0, 4), None, 8).counts.tolist() == [0, 0]


def test_points_are_missing_where_they_leave_and_swap_where_mirrored():
    plan = plan_of(True, False, "TranslateX", 30, False, batch=1)
    points = torch.tensor([[[40.0, 3.0], [10.0, 3.0], [math.nan, 1.0]]])
    moved = apply_keypoints(plan, points, 64)  # x -> 64 - x + 32
    assert moved[0, 0].tolist() == [56.0, 3.0] and moved[0, 1:].isnan().all()
    swapped = apply_keypoints(plan, points, 64, mirrored=(1, 0, 2))
    assert swapped[0, 1].tolist() == [56.0, 3.0] and swapped[0, 0].isnan().all()
    both = apply_keypoints(plan_of(True, True, "Identity", 0, False), points, 64, mirrored=(1, 0, 2))
    assert both[0, 0].tolist() == [24.0, 61.0]  # turned by half a circle is not mirrored
    padded = apply_keypoints(plan, points, 64, counts=torch.tensor([1]))
    assert padded[0].tolist() == [[56.0, 3.0], [0.0, 0.0], [0.0, 0.0]]


def test_the_callers_tensors_stay_as_they_are():
    plan = plan_of(True, False, "Identity", 0, False)
    mask, boxes, points = torch.ones(1, 4, 4, dtype=torch.uint8), torch.ones(1, 1, 4), torch.ones(1, 1, 2)
    for moved in (None, plan):
        apply_masks(moved, mask).zero_()
        apply_boxes(moved, boxes, None, 4).boxes.zero_()
        apply_keypoints(moved, points, 4).zero_()
    assert mask.all() and boxes.all() and points.all()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda plan: apply_masks(plan, torch.zeros(1, 4, 4)), "masks must be integers"),
        (lambda plan: apply_masks(plan, torch.zeros(1, 4, 4, dtype=torch.uint8), 256), "ignore=256"),
        (lambda plan: apply_masks(plan, torch.zeros(2, 4, 4, dtype=torch.uint8)), "differ in size: 1 and 2"),
        (lambda plan: apply_boxes(plan, torch.zeros(1, 4), None, 4), r"boxes must be floating point \[B, N, 4\]"),
        (lambda plan: apply_boxes(plan, torch.zeros(1, 2, 4), torch.ones(2), 4), r"counts must be \[1\]"),
        (lambda plan: apply_boxes(plan, torch.zeros(1, 2, 4), None, 0), "size=0"),
        (lambda plan: apply_boxes(plan, torch.zeros(1, 2, 4), None, 4, min_visibility=2), "min_visibility=2"),
        (lambda plan: apply_boxes(plan, torch.zeros(1, 2, 4), None, 4, visible=torch.ones(1)), "visible must be"),
        (lambda plan: apply_boxes(plan, torch.zeros(1, 2, 4), None, 4).along(torch.ones(1, 3)), "values must be"),
        (lambda plan: apply_keypoints(plan, torch.zeros(1, 2, 3), 4), "points must be"),
        (lambda plan: apply_keypoints(plan, torch.zeros(1, 2, 2), 4, mirrored=(0, 0)), "mirrored="),
    ],
)
def test_what_does_not_fit_is_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call(plan_of(False, False, "Identity", 0, False))


@pytest.mark.parametrize("policy", [Policy(mixup=0.2), Policy(cutmix=1.0), Policy(named="augmix-m3-w3")], ids=str)
def test_mixed_images_are_refused(policy):
    plan = draw(policy, np.arange(2), 0, 0)
    with pytest.raises(ValueError, match="masks cannot follow"):
        apply_masks(plan, torch.zeros(2, 4, 4, dtype=torch.uint8))
    with pytest.raises(ValueError, match="boxes cannot follow"):
        apply_boxes(plan, torch.zeros(2, 1, 4), None, 4)
    if plan.mixing is not None:
        assert apply_masks(plan.unmixed, torch.ones(2, 4, 4, dtype=torch.uint8)).all()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_gpu_moves_as_the_cpu(sync_debug_mode):
    plan = draw(Policy(hflip=0.5, rotate=30.0, named="rand-m9-mstd0.5-inc1"), np.arange(32), 0, 0)
    masks = torch.from_numpy(np.random.default_rng(0).integers(0, 9, (32, 40, 56), dtype=np.uint8))
    boxes = torch.stack([boxes_in(40, 56, 6, seed) for seed in range(32)])
    assert torch.equal(apply_masks(plan, masks.cuda()).cpu(), apply_masks(plan, masks))
    ours, theirs = apply_boxes(plan, boxes, None, (40, 56)), apply_boxes(plan, boxes.cuda(), None, (40, 56))
    assert torch.equal(ours.counts, theirs.counts.cpu()) and torch.equal(ours.order, theirs.order.cpu())
    assert torch.allclose(ours.boxes, theirs.boxes.cpu(), atol=1e-4)
    there = boxes.cuda()
    with sync_debug_mode("error"):  # the host does not wait
        apply_boxes(plan, there, None, (40, 56))
    points = apply_keypoints(plan, boxes[..., :2].cuda(), (40, 56)).cpu()
    assert torch.allclose(apply_keypoints(plan, boxes[..., :2], (40, 56)), points, atol=1e-4, equal_nan=True)
