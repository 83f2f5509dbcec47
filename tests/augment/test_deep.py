"""Images of 16 bits: what 8 bits would be, with all levels; what changes levels is refused by name."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from fastimg.augment import Policy, apply, draw, mix

ONE = {"mean": (0.4,), "std": (0.3,)}


def images(batch, channels=3, height=13, width=18):
    pixels = np.random.default_rng(0).integers(0, 1 << 16, (batch, height, width, channels), dtype=np.uint16)
    return torch.from_numpy(pixels).permute(0, 3, 1, 2)


@pytest.mark.parametrize("channels", [1, 3])
def test_levels_of_8_bits_are_augmented_alike_in_16(channels):
    policy = Policy(hflip=0.5, vflip=0.5, rotate=30, erase=0.5, erase_value=0.7, **(ONE if channels == 1 else {}))
    narrow = (images(12, channels).to(torch.int32) >> 8).to(torch.uint8)
    deep = (narrow.to(torch.int32) * 257).to(torch.uint16)
    plan = draw(policy, np.arange(12), 0, 3)
    for dtype in (torch.float32, torch.bfloat16):
        assert torch.equal(apply(plan, deep, dtype=dtype), apply(plan, narrow, dtype=dtype))
        assert torch.equal(apply(None, deep, policy, dtype), apply(None, narrow, policy, dtype))


def test_every_level_is_normalised_and_rounded_once():
    levels = torch.arange(1 << 16).view(1, 1, 256, 256)
    seen = apply(None, levels.to(torch.uint16), Policy(**ONE))
    assert torch.equal(seen, ((levels.double() / 65535 - 0.4) / 0.3).float())
    out = torch.empty_like(seen)
    assert apply(None, levels.to(torch.uint16), Policy(**ONE), out=out) is out and torch.equal(out, seen)


def test_images_of_16_bits_are_mixed():
    policy = Policy(mixup=1.0, **ONE)
    mixed, soft = mix(draw(policy, np.arange(4), 0, 0), images(4, 1), torch.arange(4), 4)
    assert mixed.shape == (4, 1, 13, 18) and soft.sum() == pytest.approx(4)


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        ({"brightness": (0.5, 1.5)}, "brightness"),
        ({"contrast": (0.5, 1.5)}, "contrast"),
        ({"saturation": (0.5, 1.5)}, "saturation"),
        ({"hue": 0.1}, "hue"),
        ({"trivial": True}, "trivial"),
        ({"named": "rand-m9"}, "named"),
        ({"grayscale": 0.5}, "grayscale"),
        ({"blur": 0.5}, "blur"),
        ({"solarize": 0.5}, "solarize"),
    ],
)
def test_what_changes_levels_is_refused_by_name(settings, name):
    policy = Policy(**settings)
    with pytest.raises(ValueError, match=f"{name} changes levels of 8 bits, and the images have 16"):
        apply(draw(policy, np.arange(2), 0, 0), images(2))


def test_a_plan_without_its_policy_and_another_type():
    plan = draw(Policy(brightness=(0.5, 1.5)), np.arange(2), 0, 0)
    with pytest.raises(ValueError, match="the plan changes levels of 8 bits"):
        apply(replace(plan, policy=None), images(2), Policy())
    with pytest.raises(ValueError, match="become floating point"):
        apply(None, images(2), Policy(), torch.uint8)
