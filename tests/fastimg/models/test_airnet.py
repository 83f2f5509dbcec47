"""fastimg/airnet: its first layer whitens, fixed parameters never train, and it is found by its name."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fastimg.errors import UsageError
from fastimg.models.blocks import blocks
from fastimg.models.freezing import fixed, freeze
from fastimg.models.networks import airnet
from fastimg.models.registry import build
from fastimg.train.optimisers.construction import build_optimizer
from fastimg.train.optimisers.lookahead import Lookahead


def images(count=200):
    """Smooth colours with similar neighbours: uint8 [count, 3, 16, 16]."""
    coarse = torch.rand(count, 3, 4, 4, generator=torch.Generator().manual_seed(1))
    noise = torch.rand(count, 3, 16, 16, generator=torch.Generator().manual_seed(2))
    return ((0.85 * F.interpolate(coarse, 16) + 0.15 * noise) * 255).to(torch.uint8)


def test_its_filters_whiten_patches():
    """The second moments of the outputs are the identity, except for the floor under small eigenvalues."""
    pixels = images()
    filters = airnet.whitening_filters(airnet.patch_moments(pixels), airnet.MEAN, airnet.STD)
    assert filters.shape == (24, 3, 2, 2) and torch.equal(filters[12:], -filters[:12])
    mean, std = (torch.tensor(values).view(3, 1, 1) for values in (airnet.MEAN, airnet.STD))
    normalised = (pixels / 255 - mean) / std
    found = F.conv2d(normalised, filters[:12]).permute(1, 0, 2, 3).flatten(1).double()
    assert torch.allclose(found @ found.T / found.shape[1], torch.eye(12, dtype=torch.float64), atol=0.02)
    assert (filters.flatten(1).gather(1, filters.flatten(1).abs().argmax(1, keepdim=True))[:12] > 0).all()


def test_moments_are_sums_over_patches():
    pixels = images(3)
    moments = airnet.patch_moments(pixels.contiguous(memory_format=torch.channels_last))
    patches = F.unfold(pixels.double(), 2).transpose(1, 2).flatten(0, 1)  # [patches, D]
    assert moments.patches == len(patches) == 3 * 15 * 15
    assert torch.equal(moments.products, patches.T @ patches) and torch.equal(moments.levels, patches.sum(dim=0))


def test_moments_do_not_depend_on_chunks_and_order():
    pixels = images()
    whole = airnet.patch_moments(pixels)
    parts = airnet.patch_moments(pixels[150:]) + airnet.patch_moments(pixels[:150].flip(0))
    assert whole.patches == parts.patches == 200 * 15 * 15
    assert torch.equal(whole.products, parts.products) and torch.equal(whole.levels, parts.levels)


def test_stages_begin_as_identities_with_small_logits():
    model = build("fastimg/airnet", 7, kwargs={"width": 32})
    stage = model.module.stages[0]
    x = torch.rand(2, 24, 8, 8)
    assert torch.equal(stage.conv1(x)[:, :24], x) and stage.conv1.out_channels == 32
    assert model.classifier == ("head",) and model.native_size == 32
    names = [block.name for block in blocks(model.module)]
    assert names == ["stem", "stages.0", "stages.1", "stages.2", "head"]
    assert model.module(torch.rand(2, 3, 40, 40)).shape == (2, 7)  # other sizes, too


def test_its_last_pooling_has_the_bits_of_an_adaptive_one_and_a_deterministic_backward_pass():
    torch.manual_seed(0)
    x = torch.randint(0, 4, (2, 5, 3, 4)).float().requires_grad_()  # with ties
    own, adaptive = F.max_pool2d(x, x.shape[2:]), F.adaptive_max_pool2d(x, 1)
    assert torch.equal(own, adaptive)
    weights = torch.rand(2, 5, 1, 1)
    gradients = [torch.autograd.grad((pooled * weights).sum(), x)[0] for pooled in (own, adaptive)]
    assert torch.equal(*gradients) and gradients[0].count_nonzero() == 10
    logits = build("fastimg/airnet", 7, kwargs={"width": 4}).module(torch.rand(2, 3, 32, 32))
    nodes, names = [logits.grad_fn], set()
    while nodes:
        node = nodes.pop()
        names.add(node.name())
        nodes += [other for other, _ in node.next_functions if other is not None]
    assert not any("Adaptive" in name for name in names) and any("MaxPool2D" in name for name in names)


def test_fixed_parameters_do_not_change():
    model = build("fastimg/airnet", 7, kwargs={"width": 4})
    norms = {f"stages.{i}.norm{j}.weight" for i in range(3) for j in (1, 2)}
    assert fixed(model.module) == {"stem.weight", *norms}
    freeze(model, "1")
    trains = {name for name, p in model.module.named_parameters() if p.requires_grad}
    assert not trains & fixed(model.module) and "stages.0.norm1.bias" in trains and "stem.bias" not in trains


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"arch": "fastimg/airnett"}, "fastimg has no such model of its own"),
        ({"arch": "fastimg/airnet", "pretrained": True}, "there are no weights for fastimg/airnet"),
        ({"arch": "fastimg/airnet", "kwargs": {"depth": 3}}, "--model-kwargs: fastimg/airnet does not accept them"),
    ],
)
def test_invalid_arguments(arguments, words):
    with pytest.raises(UsageError, match=words):
        build(num_classes=3, **arguments)


def test_norms_learn_faster_and_decay_as_ever():
    """One step of SGD on known gradients: the rate is 64 times that of the others, with the same relative decay."""
    model = build("fastimg/airnet", 7, kwargs={"width": 4}).module
    optimizer = build_optimizer(model, "sgd", 0.5, 0.01, 0.0, norm_weight_decay=0.01, norm_lr_scale=64.0)
    for group in optimizer.param_groups:  # as `set_lr`
        group["lr"] = 0.5 * group["lr_scale"]
    bias, weight = model.stages[0].norm1.bias, model.stages[0].conv1.weight
    with torch.no_grad():
        bias.fill_(1.0)
        weight.fill_(1.0)
    for parameter in model.parameters():
        parameter.grad = torch.full_like(parameter, 0.001) if parameter.requires_grad else None
    optimizer.step()
    assert torch.allclose(bias, torch.full_like(bias, 1 - 0.5 * 64 * 0.001 - 0.5 * 0.01))
    assert torch.allclose(weight, torch.full_like(weight, 1 - 0.5 * 0.001 - 0.5 * 0.01))


def test_lookahead_averages_running_statistics_too():
    """As the weights, and from the first time on; they are restored from a checkpoint, or begin anew."""
    norm = nn.BatchNorm1d(2, momentum=0.5)
    optimizer = torch.optim.SGD(norm.parameters(), lr=0.1)
    lookahead = Lookahead.of(norm, 2, 10)
    assert set(lookahead.averages) == {"running_mean", "running_var"}
    average = None
    for step in range(1, 11):
        norm(torch.randn(8, 2, generator=torch.Generator().manual_seed(step)) + step)
        before = norm.running_mean.clone()
        lookahead.step(optimizer, step)
        assert lookahead.due(step) == (step in (4, 6, 8, 10))
        if not lookahead.due(step):
            assert torch.equal(norm.running_mean, before)
            continue
        average = before if average is None else average.lerp(before, 1 - 0.95**2 * (step / 10) ** 3)
        assert torch.equal(norm.running_mean, average) and torch.equal(lookahead.averages["running_mean"], average)
    assert not torch.equal(average, before)
    again = Lookahead.of(norm, 2, 10)
    norm.running_mean.zero_()
    again.restore(lookahead.averages)
    assert torch.equal(again.averages["running_mean"], average)
    again.restore({})
    assert not again.averages["running_mean"].any()


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_lookahead_moves_weights_back_to_their_average(momentum):
    layer = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1, momentum=momentum)
    lookahead = Lookahead(every=2, steps=10)
    average = None
    for step in range(1, 11):
        layer(torch.full((4, 3), float(step))).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        before = layer.weight.detach().clone()
        lookahead.step(optimizer, step)
        if step % 2 or step < 3:  # not due, or before 0.3 of the run
            assert torch.equal(layer.weight, before)
            continue
        average = before if average is None else average.lerp(before, 1 - 0.95**2 * (step / 10) ** 3)
        assert torch.allclose(layer.weight, average) and (step == 4 or not torch.equal(layer.weight, before))
    copy = torch.optim.SGD(layer.parameters(), lr=0.1, momentum=momentum)
    copy.load_state_dict(optimizer.state_dict())  # checkpoints include it with the optimiser's state
    assert torch.equal(copy.state[layer.weight]["lookahead"], layer.weight)
