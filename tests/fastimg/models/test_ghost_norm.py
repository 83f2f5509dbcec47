"""Ghost batch norm: each part of a batch is normalised separately."""

import copy

import pytest
import timm
import torch
from timm.layers.norm_act import BatchNormAct2d
from torch import nn

from fastimg.models.ghost_norm import ghost_norms

SHAPES = {"1d": (12, 5), "1d of lines": (12, 5, 7), "2d": (12, 5, 4, 3), "with activation": (12, 5, 4, 3)}


def norm_of(kind):
    torch.manual_seed(0)
    norm = nn.BatchNorm1d(5) if "1d" in kind else nn.BatchNorm2d(5) if kind == "2d" else BatchNormAct2d(5)
    for values in (norm.weight, norm.bias, norm.running_mean, norm.running_var):
        nn.init.uniform_(values, 0.5, 1.5)
    return norm


def batch_of(kind):
    torch.manual_seed(1)
    images = torch.randn(SHAPES[kind]) * 3 + 1
    return (images.contiguous(memory_format=torch.channels_last) if images.ndim == 4 else images).requires_grad_()


def ghost_of(norm, size):
    ghost = nn.Sequential(copy.deepcopy(norm))
    assert ghost_norms(ghost, size) == 1
    return ghost.train()


@pytest.mark.parametrize("kind", SHAPES)
def test_parts_are_batches_of_their_own(kind):
    """Forward pass and gradients; running statistics are the mean over those of the parts."""
    norm, batch = norm_of(kind), batch_of(kind)
    ghost = ghost_of(norm, 4)
    parts = [copy.deepcopy(norm) for _ in range(3)]
    expected = torch.cat([part(rows) for part, rows in zip(parts, batch.split(4), strict=True)])
    weight = torch.randn_like(expected)
    (expected * weight).sum().backward()
    gradient, batch.grad = batch.grad, None
    found = ghost(batch)
    assert found.stride() == expected.stride()
    torch.testing.assert_close(found, expected, rtol=0, atol=0)
    assert not torch.allclose(found, copy.deepcopy(norm)(batch), atol=0.1)
    (found * weight).sum().backward()
    torch.testing.assert_close(batch.grad, gradient, rtol=0, atol=0)
    for name in ("weight", "bias"):
        total = sum(getattr(part, name).grad for part in parts)
        torch.testing.assert_close(getattr(ghost[0], name).grad, total)
    for name in ("running_mean", "running_var"):
        mean = torch.stack([getattr(part, name) for part in parts]).mean(0)
        torch.testing.assert_close(getattr(ghost[0], name), mean)
        assert not torch.allclose(mean, getattr(norm, name))
    assert ghost[0].num_batches_tracked == 1


@pytest.mark.parametrize("kind", SHAPES)
@pytest.mark.parametrize("momentum", [0.1, None])
def test_a_part_as_large_as_the_batch_is_plain(kind, momentum):
    norm, batch = norm_of(kind), batch_of(kind)
    norm.momentum = momentum
    ghost = ghost_of(norm, 12)
    for _ in range(2):
        assert ghost(batch).equal(norm(batch))
    for name, value in norm.state_dict().items():
        assert value.equal(ghost.state_dict()[f"0.{name}"]), name


def test_cumulative_statistics():
    norm = nn.BatchNorm1d(3, momentum=None)
    ghost = ghost_of(norm, 2)
    batches = [torch.randn(4, 3) for _ in range(3)]
    for batch in batches:
        ghost(batch)
    torch.testing.assert_close(ghost[0].running_mean, torch.cat(batches).mean(0))


@pytest.mark.parametrize("kind", SHAPES)
def test_evaluation_is_unchanged(kind):
    """For any batch size, and for a frozen norm while the rest trains."""
    norm, batch = norm_of(kind).eval(), batch_of(kind)
    ghost = ghost_of(norm, 4)
    ghost[0].eval()
    assert ghost(batch[:7]).equal(norm(batch[:7]))
    for name, value in norm.state_dict().items():
        assert value.equal(ghost.state_dict()[f"0.{name}"]), name


def test_a_batch_that_is_not_a_multiple():
    with pytest.raises(AssertionError, match="10 samples are not a multiple of 4"):
        ghost_of(nn.BatchNorm2d(3), 4)(torch.randn(10, 3, 2, 2))


@pytest.mark.parametrize(("arch", "count"), [("test_resnet", 15), ("test_efficientnet", 13), ("test_vit", 0)])
def test_models(arch, count):
    """Names are kept, every norm is replaced, a copy trains like the model, and bf16 stays bf16 under autocast."""
    torch.manual_seed(0)
    model = timm.create_model(arch, num_classes=3, **({"img_size": 32} if arch == "test_vit" else {}))
    before = list(model.state_dict())
    norms = [layer for layer in model.modules() if isinstance(layer, nn.BatchNorm2d)]
    assert len(norms) == ghost_norms(model, 2) == count
    assert all(isinstance(norm, nn.BatchNorm2d) for norm in norms)
    assert list(model.state_dict()) == before
    model.train().to(memory_format=torch.channels_last)
    twin = copy.deepcopy(model)
    images = torch.randn(4, 3, 32, 32).contiguous(memory_format=torch.channels_last)
    for one in (model, twin):
        with torch.autocast("cpu", torch.bfloat16):
            torch.manual_seed(5)
            one(images).float().sum().backward()
    assert all(a.grad.equal(b.grad) for a, b in zip(model.parameters(), twin.parameters(), strict=True))
    assert all(norm.num_batches_tracked == 1 and norm.running_mean.dtype == torch.float32 for norm in norms)
