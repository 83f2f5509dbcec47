"""Applying a plan: flips are exact, and normalisation equals torchvision's and is rounded once."""

import numpy as np
import pytest
import torch
from torchvision.transforms import v2

from fastimg.augment import Policy, apply, draw

DTYPES = [torch.float32, torch.bfloat16, torch.float16]
POLICIES = [Policy(), Policy(mean=(0.5, 0.1, 0.0), std=(0.5, 1.0, 0.01))]


def images(batch=6, height=5, width=7, seed=0, channels_last=True):
    pixels = np.random.default_rng(seed).integers(0, 256, (batch, height, width, 3), dtype=np.uint8)
    tensor = torch.from_numpy(pixels).permute(0, 3, 1, 2)  # the layout of the loader's batches
    return tensor if channels_last else tensor.contiguous()


def every_level():
    """[3, 3, 16, 16]: every level in every channel, in three shifted images."""
    levels = torch.arange(256, dtype=torch.uint8).view(1, 1, 16, 16)
    return torch.cat([torch.cat([levels + 31 * (c + i) for c in range(3)], 1) for i in range(3)])


@pytest.mark.parametrize("policy", POLICIES)
def test_normalisation_is_torchvisions(policy):
    theirs = v2.Compose([v2.ToDtype(torch.float32, scale=True), v2.Normalize(policy.mean, policy.std)])
    for batch in (every_level(), images()):
        got = apply(None, batch, policy)
        assert got.dtype == torch.float32
        torch.testing.assert_close(got, theirs(batch), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("policy", POLICIES)
def test_normalisation_is_rounded_once(policy, dtype):
    batch = every_level()
    mean, std = (torch.tensor(v, dtype=torch.float64).view(1, 3, 1, 1) for v in (policy.mean, policy.std))
    expected = ((batch.double() / 255 - mean) / std).to(dtype)
    got = apply(None, batch, policy, dtype)
    assert got.dtype == dtype and torch.equal(got, expected)


def test_policies_and_types_are_not_confused():
    batch = every_level()
    for _ in range(2):  # the second call uses the cache
        for policy in POLICIES:
            for dtype in DTYPES:
                expected = (batch[0, 0, 3, 3].double() / 255 - policy.mean[0]) / policy.std[0]
                assert apply(None, batch, policy, dtype)[0, 0, 3, 3] == expected.to(dtype)


@pytest.mark.parametrize("channels_last", [True, False])
@pytest.mark.parametrize("shape", [(6, 5, 7), (1, 1, 1), (2, 8, 1)])
def test_flips_follow_the_plan(shape, channels_last):
    batch, policy = images(*shape, channels_last=channels_last), Policy(hflip=0.5, vflip=0.5)
    plain = apply(None, batch, policy)
    for seed in range(5):
        plan = draw(policy, np.arange(shape[0]), seed, 0)
        got = apply(plan, batch, policy)
        assert got.shape == batch.shape and got.is_contiguous(memory_format=torch.channels_last)
        for i in range(shape[0]):
            axes = [axis for chosen, axis in ((plan.hflip, 2), (plan.vflip, 1)) if chosen[i]]
            assert torch.equal(got[i], plain[i].flip(axes)), (seed, i)


def test_probability_0_and_1():
    batch, ids = images(), np.arange(6)
    plain = apply(None, batch, Policy())
    for h in (0.0, 1.0):
        for v in (0.0, 1.0):
            policy = Policy(hflip=h, vflip=v)
            axes = [axis for p, axis in ((h, 3), (v, 2)) if p]
            assert torch.equal(apply(draw(policy, ids, 1, 1), batch, policy), plain.flip(axes))


def test_an_image_does_not_depend_on_its_batch():
    batch, policy, ids = images(12), Policy(hflip=0.5, vflip=0.5), np.arange(100, 112)
    whole = apply(draw(policy, ids, 3, 1), batch, policy)
    for size in (1, 5):
        for i in range(0, 12, size):
            part = apply(draw(policy, ids[i : i + size], 3, 1), batch[i : i + size], policy)
            assert torch.equal(part, whole[i : i + size])


def test_the_batch_is_not_modified():
    """The memory belongs to the loader."""
    batch, policy = images(), Policy(hflip=1.0, vflip=1.0)
    before = batch.clone()
    got = apply(draw(policy, np.arange(6), 0, 0), batch, policy)
    assert torch.equal(batch, before)
    batch.zero_()
    assert torch.equal(got, apply(None, before, policy).flip((2, 3)))


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_output_is_channels_last(dtype):
    for channels_last in (True, False):
        got = apply(None, images(channels_last=channels_last), Policy(), dtype)
        assert got.is_contiguous(memory_format=torch.channels_last) and got.shape == (6, 3, 5, 7)


def test_an_empty_batch():
    policy = Policy(hflip=0.5)
    for plan in (None, draw(policy, np.arange(0), 0, 0)):
        with pytest.raises(ValueError, match="at least one image and one pixel"):
            apply(plan, images(0), policy)


def test_the_plans_own_policy_and_images_with_channels_last():
    policy, batch = Policy(hflip=0.5, trivial=True, mean=(0.5, 0.4, 0.3)), images()
    plan = draw(policy, np.arange(6), 0, 0)
    expected = apply(plan, batch, policy)
    assert torch.equal(apply(plan, batch), expected)
    assert torch.equal(apply(plan, batch.permute(0, 2, 3, 1)), expected)
    with pytest.raises(ValueError, match="a policy is required when there is no plan"):
        apply(None, batch)


@pytest.mark.parametrize(
    "batch",
    [
        torch.zeros(2, 3, 4, 4),
        torch.zeros(2, 3, 4, 4, dtype=torch.int8),
        torch.zeros(3, 4, 4, dtype=torch.uint8),
        torch.zeros(2, 4, 4, 1, dtype=torch.uint8),
        torch.zeros(2, 1, 4, 4, dtype=torch.uint8),
    ],
)
def test_images_of_another_type_or_shape(batch):
    with pytest.raises(ValueError, match=r"images must be uint8 \[B, 3, H, W\] or .*; got torch\..* \["):
        apply(None, batch, Policy())


@pytest.mark.parametrize("size", [1, 5, 7])
def test_a_plan_of_another_batch(size):
    plan = draw(Policy(hflip=0.5), np.arange(size), 0, 0)
    with pytest.raises(ValueError, match=f"the plan and the batch differ in size: {size} and 6"):
        apply(plan, images(), Policy())


@pytest.mark.parametrize("value", [0.0, (1.0, -2.0, 0.5)])
@pytest.mark.parametrize("dtype", [*DTYPES, torch.uint8])
def test_erasing_comes_after_normalisation(value, dtype):
    """As with torchvision's RandomErasing after Normalize."""
    batch, ids = images(40, 30, 20), np.arange(40)
    policy = Policy(erase=0.5, erase_value=value, hflip=0.5)
    plan = draw(policy, ids, 0, 0)
    got = apply(plan, batch, policy, dtype)
    plain = apply(draw(Policy(hflip=0.5), ids, 0, 0), batch, policy, dtype)
    fill = torch.tensor(policy.erase_values, dtype=torch.float64)
    if dtype == torch.uint8:
        fill = ((fill * torch.tensor(policy.std).double() + torch.tensor(policy.mean).double()) * 255).round()
        fill = fill.clamp(0, 255)
    boxes = plan.sized(30, 20).box.tolist()
    assert 10 < sum(bottom > 0 for _, _, bottom, _ in boxes) < 30
    for i, (top, left, bottom, right) in enumerate(boxes):
        plain[i, :, top:bottom, left:right] = fill.to(dtype)[:, None, None]
        assert torch.equal(got[i], plain[i])


def test_uint8_is_not_normalised():
    batch = every_level()
    assert torch.equal(apply(None, batch, Policy(), torch.uint8), batch)


def test_unsupported_output_types():
    with pytest.raises(ValueError, match=r"dtype must be one of torch.float32, .*; got torch.float64"):
        apply(None, images(), Policy(), torch.float64)


@pytest.mark.parametrize("shape", [(2, 3, 0, 4), (2, 3, 4, 0)])
def test_images_without_pixels(shape):
    with pytest.raises(ValueError, match="images must be uint8"):
        apply(None, torch.zeros(shape, dtype=torch.uint8), Policy())


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_gpu_gives_the_same_bits(dtype):
    policy = Policy(hflip=0.5, vflip=0.5)
    plan, batch = draw(policy, np.arange(6), 0, 0), images()
    got = apply(plan, batch.cuda(), policy, dtype)
    assert got.is_cuda and torch.equal(got.cpu(), apply(plan, batch, policy, dtype))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("dtype", [*DTYPES, torch.uint8])
@pytest.mark.parametrize("backend", ["reference", None])
def test_a_gpu_gives_the_same_bits_of_every_operation(dtype, backend):
    factors = (0.5, 1.5)
    policy = Policy(
        hflip=0.5, rotate=30, brightness=factors, contrast=factors, saturation=factors, trivial=True, erase=0.3
    )
    batch, plan = images(400, 37, 53), draw(policy, np.arange(400), 0, 0)
    expected = apply(plan, batch, policy, dtype, backend="reference")
    assert torch.equal(apply(plan, batch.cuda(), policy, dtype, backend=backend).cpu(), expected)
