"""Activation checkpointing: the same arithmetic, less memory."""

import copy

import pytest
import timm
import torch
from torch import nn

from fastimg.models.blocks import repeated
from fastimg.models.ghost_norm import ghost_norms
from fastimg.models.recompute import checkpoint_blocks

ARCHS = {
    "test_resnet": {"drop_path_rate": 0.3, "drop_rate": 0.2},
    "test_vit": {"drop_path_rate": 0.3, "proj_drop_rate": 0.2, "img_size": 32},
    "test_efficientnet": {"drop_path_rate": 0.3},
    "test_vit_relpos": {"proj_drop_rate": 0.2, "img_size": 32},
}


def pair(arch, *, ghost=0, **kwargs):
    """A model, and the same model with checkpointing."""
    torch.manual_seed(0)
    model = timm.create_model(arch, num_classes=3, **kwargs).train()
    if ghost:
        assert ghost_norms(model, ghost) > 0
    other = copy.deepcopy(model)
    assert checkpoint_blocks(other) == len(repeated(model)) > 0
    return model, other


def step(model, images, seed=3):
    """Loss and gradients of one pass, and the bytes kept for the backward pass."""
    kept = {}

    def keep(tensor):
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    torch.manual_seed(seed)
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        loss = model(images).float().square().mean()
    own = {p.untyped_storage().data_ptr() for p in model.parameters()}
    loss.backward()
    return loss.detach(), [p.grad for p in model.parameters()], sum(n for at, n in kept.items() if at not in own)


def check_equal(model, other, images):
    for _ in range(2):
        one, two = step(model, images), step(other, images)
        assert one[0].equal(two[0])
        assert all(a.equal(b) for a, b in zip(one[1], two[1], strict=True))
        assert two[2] < 0.8 * one[2]
    assert list(model.state_dict()) == list(other.state_dict())
    for name, value in model.state_dict().items():
        assert value.equal(other.state_dict()[name]), name


@pytest.mark.parametrize("arch", ARCHS)
def test_results_are_equal_and_less_is_kept(arch):
    """Loss, gradients and running statistics, bit for bit, with dropout and stochastic depth."""
    check_equal(*pair(arch, **ARCHS[arch]), torch.randn(4, 3, 32, 32))


def test_with_ghost_norms():
    check_equal(*pair("test_resnet", ghost=2, drop_path_rate=0.3), torch.randn(4, 3, 32, 32))


class Block(nn.Module):
    """A small model, as compilers are slow."""

    def __init__(self):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4)

    def forward(self, images):
        return images + self.norm(self.conv(images)).relu()


def test_compiled():
    """One graph, with ghost norms; the compiled model also keeps less, and updates statistics once."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 4, 1), Block(), Block(), nn.Conv2d(4, 2, 1))
    assert ghost_norms(model, 2) == 2
    plain, other = copy.deepcopy(model), copy.deepcopy(model)
    assert checkpoint_blocks(other) == 2
    images = torch.randn(4, 3, 32, 32)
    kept = [step(torch.compile(m, backend="aot_eager", fullgraph=True), images)[2] for m in (plain, other)]
    assert kept[1] < 0.8 * kept[0]
    gradients = step(model, images)[1]
    for ours, theirs in zip(gradients, other.parameters(), strict=True):
        torch.testing.assert_close(theirs.grad, ours)
    for name, value in model.state_dict().items():
        torch.testing.assert_close(other.state_dict()[name], value)


@pytest.mark.parametrize("arch", ["test_resnet", "test_vit"])
def test_under_autocast(arch):
    model, other = pair(arch, **ARCHS[arch])
    images = torch.randn(4, 3, 32, 32)
    results = []
    for one in (model, other):
        torch.manual_seed(1)
        with torch.autocast("cpu", torch.bfloat16):
            logits = one(images)
        assert logits.dtype == torch.bfloat16
        logits.float().square().mean().backward()  # outside of autocast, as in training
        results.append([p.grad for p in one.parameters()])
    assert all(a.equal(b) for a, b in zip(*results, strict=True))


def test_only_where_it_trains():
    """Evaluation and frozen blocks run once; a copy of the model recomputes its own blocks."""
    _, model = pair("test_resnet")
    twin = copy.deepcopy(model)
    calls = []
    for one in (model, twin):
        for block in repeated(one):
            block.conv2.register_forward_hook(lambda *_, owner=one: calls.append(owner))
    images = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        twin(images)
    twin.eval()(images).sum().backward()
    assert len(calls) == 8 and model not in calls
    calls.clear()
    twin.train()(images).sum().backward()
    assert len(calls) == 8 and set(calls) == {twin}
    calls.clear()
    repeated(twin)[0].eval()
    twin(images).sum().backward()
    assert len(calls) == 7


def test_classes_of_blocks_are_kept():
    model, other = pair("test_resnet")
    for one, two in zip(repeated(model), repeated(other), strict=True):
        assert isinstance(two, type(one)) and type(one) is not type(two)
    assert checkpoint_blocks(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))) == 0
