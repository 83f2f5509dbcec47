"""Bands: any number of channels of uint8, uint16 or float32, moved as images of three channels are."""

import numpy as np
import pytest
import torch

from fastimg.augment import Policy, apply, draw, reference
from fastimg.augment.mixing import mix_images

MOVES = {"hflip": 0.5, "vflip": 0.5, "rotate": 25.0, "erase": 0.6, "erase_value": 0.4}
FLIPS = {"hflip": 0.5, "vflip": 0.5, "erase": 0.6, "erase_value": 0.4}
IDS = np.arange(12)


def bands(dtype, channels=5, height=13, width=18):
    values = np.random.default_rng(0).integers(0, 250, (12, height, width, channels)).astype(dtype)
    return torch.from_numpy(values).permute(0, 3, 1, 2)


def policy_of(channels, **settings):
    return Policy(mean=(0.4,) * channels, std=(0.3,) * channels, **settings)


@pytest.mark.parametrize("settings", [MOVES, FLIPS])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_each_three_bands_are_what_an_image_of_them_would_be(settings, dtype):
    images, policy, rgb = bands(np.uint8), policy_of(5, **settings), policy_of(3, **settings)
    seen = apply(draw(policy, IDS, 0, 1), images, dtype=dtype)
    plan, table = draw(rgb, IDS, 0, 1), reference.normalisation_table(rgb, dtype)
    for first in (0, 2):
        assert torch.equal(seen[:, first : first + 3], reference.augment(plan, images[:, first : first + 3], table))
    assert seen.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.float32])
@pytest.mark.parametrize("channels", [1, 3, 4])
def test_values_as_stored_are_normalised_in_their_own_units(dtype, channels):
    mean, std = (tuple(float(x) for x in 90 + np.arange(channels)), (17.0,) * channels)
    images = bands(dtype, channels)
    policy = Policy(mean=mean, std=std, as_stored=True, **MOVES)
    plain = apply(None, images, policy)
    want = (images.double() - torch.tensor(mean).double().view(-1, 1, 1)) / 17.0
    torch.testing.assert_close(plain.double(), want, rtol=0, atol=1e-6)
    own = draw(policy, IDS, 0, 1)
    moved, there = apply(own, images, policy), apply(None, images.to(torch.float32), policy)
    turned = reference.warp(own.sized(13, 18).affine, there, None)
    zero = (0.0 - torch.tensor(mean, dtype=torch.float32).view(-1, 1, 1)) / 17.0  # what lies outside
    outside = ~reference.sources(own.sized(13, 18).affine, 13, 18)[1][:, None]
    want = reference.erase(own.sized(13, 18).box, torch.where(outside, zero, turned), torch.full((channels,), 0.4))
    torch.testing.assert_close(moved, want, rtol=0, atol=1e-6)


def test_bands_are_mixed():
    policy = policy_of(5, mixup=1.0)
    plan = draw(policy, IDS, 0, 0)
    normal = apply(plan.unmixed, bands(np.uint16), policy)
    mixed, mixture = mix_images(plan, normal)
    share = mixture.share.view(-1, 1, 1, 1)
    torch.testing.assert_close(mixed, normal * share + normal[mixture.partner] * (1 - share))


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        ({"brightness": (0.5, 1.5)}, "brightness"),
        ({"trivial": True}, "trivial"),
        ({"named": "rand-m9"}, "named"),
        ({"blur": 0.5}, "blur"),
        ({"hue": 0.1}, "hue"),
    ],
)
def test_what_changes_levels_is_refused_by_name(settings, name):
    with pytest.raises(ValueError, match=f"{name} changes levels of RGB or gray images, and these have 5 bands"):
        policy_of(5, **settings)
    policy = Policy(mean=(1.0,) * 3, std=(1.0,) * 3, as_stored=True, **settings)
    with pytest.raises(ValueError, match=f"{name} changes levels of 8 bits, and these are bands of float32"):
        apply(draw(policy, IDS, 0, 0), bands(np.float32, 3), policy)


def test_other_types_and_channels_are_refused():
    with pytest.raises(ValueError, match="bands of float32 take a policy with as_stored=True"):
        apply(None, bands(np.float32), policy_of(5))
    with pytest.raises(ValueError, match="the policy's mean is for 4"):
        apply(None, bands(np.uint16), policy_of(4))
    with pytest.raises(ValueError, match="become floating point"):
        apply(None, bands(np.uint8), policy_of(5), torch.uint8)
