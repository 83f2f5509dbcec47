"""Mixup and cutmix: each image is mixed with its partner by its own lambda, and so are the targets."""

import numpy as np
import pytest
import torch
from torchvision.transforms import v2

from fastimg.augment import Policy, apply, draw, mix
from fastimg.augment.mixing import boxes

CLASSES = 7
MIXED = draw(Policy(mixup=1.0), np.arange(8), 0, 0)


def batch(size=8, height=20, width=30, dtype=torch.float32):
    pixels = np.random.default_rng(size).integers(0, 256, (size, height, width, 3), dtype=np.uint8)
    images = apply(None, torch.from_numpy(pixels).permute(0, 3, 1, 2), Policy(), dtype)
    return images, torch.arange(size) % CLASSES


def one_hot(targets, smoothing=0.0):
    return torch.nn.functional.one_hot(targets, CLASSES).float() * (1 - smoothing) + smoothing / CLASSES


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_mixup(dtype):
    images, targets = batch(dtype=dtype)
    plan = draw(Policy(mixup=0.8), np.arange(8), 0, 0)
    mixed, soft = mix(plan, images, targets, CLASSES)
    assert mixed.dtype == dtype and mixed.is_contiguous(memory_format=torch.channels_last)
    for i in range(8):
        share, other = float(plan.mixing.share[i]), i ^ 1
        expected = share * images[i].double() + (1 - share) * images[other].double()
        torch.testing.assert_close(mixed[i].double(), expected, rtol=torch.finfo(dtype).eps, atol=1e-5)
        torch.testing.assert_close(soft[i], share * one_hot(targets)[i] + (1 - share) * one_hot(targets)[other])


def test_cutmix():
    images, targets = batch()
    plan = draw(Policy(cutmix=1.0), np.arange(8), 3, 0)
    mixed, soft = mix(plan, images, targets, CLASSES, smoothing=0.1)
    taken = 0
    for i, (top, left, bottom, right) in enumerate(boxes(plan.mixing, 20, 30).tolist()):
        expected = images[i].clone()
        expected[:, top:bottom, left:right] = images[i ^ 1][:, top:bottom, left:right]
        assert torch.equal(mixed[i], expected)
        share = 1 - (bottom - top) * (right - left) / 600
        hot = one_hot(targets, 0.1)
        torch.testing.assert_close(soft[i], share * hot[i] + (1 - share) * hot[i ^ 1])
        taken += share < 1
    assert taken > 4
    torch.testing.assert_close(soft.sum(1), torch.ones(8))


def test_cutmix_boxes_are_torchvisions(monkeypatch):
    """For given lambda and centre."""
    mixing = draw(Policy(cutmix=1.0), np.arange(200), 3, 0).mixing
    theirs, (height, width) = v2.CutMix(num_classes=2), (37, 53)
    image = torch.zeros(1, 3, height, width)
    for i, box in enumerate(boxes(mixing, height, width).tolist()):
        centre = iter([mixing.centre[i, 1] * width, mixing.centre[i, 0] * height])
        monkeypatch.setattr(theirs._dist, "sample", lambda _, i=i: mixing.share[i])
        monkeypatch.setattr(torch, "randint", lambda *_, centre=centre, **__: next(centre).long())
        left, top, right, bottom = theirs.make_params([image])["box"]
        assert box == [top, left, bottom, right] or (box[0] >= box[2] and top >= bottom)


def test_both_at_once_and_the_last_of_an_odd_batch():
    images, targets = batch(9)
    plan = draw(Policy(mixup=0.5, cutmix=0.5), np.arange(9), 5, 1)
    assert 0 < plan.mixing.cut.sum() < 9
    mixed, soft = mix(plan, images, targets, CLASSES)
    for i in range(9):
        only = Policy(cutmix=0.5) if plan.mixing.cut[i] else Policy(mixup=0.5)
        alone = draw(only, np.arange(9), 5, 1)
        assert alone.mixing.share[i] == plan.mixing.share[i]
        own, own_soft = mix(alone, images, targets, CLASSES)
        assert torch.equal(mixed[i], own[i]) and torch.equal(soft[i], own_soft[i])
    assert plan.mixing.partner[8] == 7


def test_images_without_mixing_are_unchanged():
    images, targets = batch()
    for plan in (None, draw(Policy(hflip=0.5), np.arange(8), 0, 0)):
        same, soft = mix(plan, images, targets, CLASSES, smoothing=0.2)
        assert same is images
        torch.testing.assert_close(soft, one_hot(targets, 0.2))


def test_a_batch_of_one_is_mixed_with_itself():
    images, targets = batch(1)
    for policy in (Policy(mixup=1.0), Policy(cutmix=1.0)):
        mixed, soft = mix(draw(policy, np.arange(1), 0, 0), images, targets, CLASSES)
        torch.testing.assert_close(mixed, images)
        torch.testing.assert_close(soft, one_hot(targets))


def test_padding_is_not_mixed_in():
    images, targets = batch()
    images[3] = float("nan")
    weight = torch.ones(8)
    weight[3] = 0
    for policy in (Policy(mixup=1.0), Policy(cutmix=1.0)):
        mixed, soft = mix(draw(policy, np.arange(8), 0, 0), images, targets, CLASSES, weight=weight)
        assert torch.equal(mixed[2], images[2]) and torch.equal(soft[2], one_hot(targets)[2])
        assert not torch.equal(mixed[4], images[4])


@pytest.mark.parametrize("policy", [Policy(hflip=0.5, mixup=0.8), Policy(rotate=9, cutmix=1.0), Policy(hflip=0.5)])
def test_pixels_are_augmented_and_normalised_first(policy):
    """One call for plans that `apply` refuses; without mixing it equals `apply`."""
    pixels = torch.from_numpy(np.random.default_rng(0).integers(0, 256, (8, 20, 30, 3), dtype=np.uint8))
    targets, plan = torch.arange(8) % CLASSES, draw(policy, np.arange(8), 0, 0)
    for dtype in (torch.float32, torch.bfloat16):
        expected = mix(plan, apply(plan.unmixed, pixels, dtype=dtype), targets, CLASSES, 0.1)
        mixed, soft = mix(plan, pixels, targets, CLASSES, 0.1, dtype=dtype)
        assert mixed.dtype == dtype and torch.equal(mixed, expected[0]) and torch.equal(soft, expected[1])
    other = Policy(mean=(0.0, 0.0, 0.0))
    mixed, _ = mix(plan, pixels, targets, CLASSES, policy=other)
    assert torch.equal(mixed, mix(plan, apply(plan.unmixed, pixels, other), targets, CLASSES)[0])


def test_evaluation_by_mix_is_normalisation_and_smoothed_targets():
    pixels = torch.zeros(2, 3, 4, 4, dtype=torch.uint8)
    images, soft = mix(None, pixels, torch.tensor([1, 2]), CLASSES, 0.1, policy=Policy())
    assert torch.equal(images, apply(None, pixels, Policy()))
    torch.testing.assert_close(soft, one_hot(torch.tensor([1, 2]), 0.1))


@pytest.mark.parametrize("policy", [Policy(mixup=0.2), Policy(cutmix=1.0), Policy(mixup=0.2, cutmix=1.0, hflip=0.5)])
def test_apply_refuses_a_plan_that_mixes(policy):
    pixels, plan = torch.zeros(4, 3, 8, 8, dtype=torch.uint8), draw(policy, np.arange(4), 0, 0)
    with pytest.raises(ValueError, match=r"mixes images .* call `images, targets = mix\(plan, images, targets, num_cl"):
        apply(plan, pixels)
    assert torch.equal(
        apply(plan.unmixed, pixels, policy), apply(draw(Policy(hflip=policy.hflip), range(4), 0, 0), pixels)
    )
    assert apply(None, pixels, policy).shape == pixels.shape  # evaluation: only the policy's normalisation


def test_an_empty_batch():
    images, targets = (part[:0] for part in batch())
    mixed, soft = mix(draw(Policy(mixup=1.0), np.arange(0), 0, 0), images, targets, CLASSES)
    assert mixed.shape == (0, 3, 20, 30) and soft.shape == (0, CLASSES)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"targets": torch.zeros(7, dtype=torch.int64)}, r"targets must be integer class indices \[8\]"),
        ({"targets": torch.zeros(8)}, r"targets must be integer class indices \[8\]; got torch.float32"),
        (
            {"images": torch.zeros(8, 3, 4, 4, dtype=torch.int64)},
            "images must be uint8, or normalised and floating point",
        ),
        (
            {"images": torch.zeros(8, 3, 4, 4, dtype=torch.uint8), "policy": Policy(), "dtype": torch.uint8},
            "images are mixed after normalisation, so dtype must be floating point; got torch.uint8",
        ),
        ({"images": torch.zeros(8, 3, 4, 4, dtype=torch.uint8)}, "a policy is required when there is no plan"),
        ({"plan": draw(Policy(mixup=1.0), np.arange(5), 0, 0)}, "the plan and the batch differ in size: 5 and 8"),
        ({"smoothing": 1.0}, "smoothing must be at least 0 and below 1"),
        (
            {"targets": torch.tensor([0, 1, 2, CLASSES, 0, -1, 0, 0])},
            "targets must be classes below num_classes, 7; got 7: give num_classes of all classes, or -1 for a sample",
        ),
        (
            {"targets": torch.full((8,), 255, dtype=torch.uint8)},
            "targets must be classes below num_classes, 7; got 255",
        ),
        ({"num_classes": 0}, "num_classes must be at least 1; got 0"),
        ({"num_classes": -2}, "num_classes must be at least 1; got -2"),
        ({"weight": torch.ones(7)}, r"weight must have a number for each image, \[8\]; got \[7\]"),
        ({"weight": torch.ones(8, 1), "plan": MIXED}, r"weight must have a number for each image, \[8\]; got \[8, 1\]"),
        ({"weight": torch.ones(9), "plan": MIXED}, r"weight must have a number for each image, \[8\]; got \[9\]"),
        ({"weight": torch.tensor(1.0)}, r"weight must have a number for each image, \[8\]; got \[\]"),
    ],
)
def test_mismatched_arguments(change, message):
    images, targets = batch()
    with pytest.raises(ValueError, match=message):
        mix(**{"plan": None, "images": images, "targets": targets, "num_classes": CLASSES, **change})


@pytest.mark.parametrize("none", [-1, -100])
def test_a_negative_target_has_no_class(none):
    _, soft = mix(None, torch.zeros(2, 3, 4, 4), torch.tensor([none, 6]), CLASSES)
    assert soft.tolist() == [[0.0] * 7, [0.0] * 6 + [1.0]]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_gpu_mixes_the_same():
    images, targets = batch()
    plan = draw(Policy(mixup=1.0, cutmix=1.0), np.arange(8), 0, 0)
    mixed, soft = mix(plan, images.cuda(), targets.cuda(), CLASSES, 0.1, torch.ones(8).cuda())
    expected, expected_soft = mix(plan, images, targets, CLASSES, 0.1, torch.ones(8))
    torch.testing.assert_close(mixed.cpu(), expected)
    torch.testing.assert_close(soft.cpu(), expected_soft)
