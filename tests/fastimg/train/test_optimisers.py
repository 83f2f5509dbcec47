"""Optimisers and schedules: which parameters decay, and the learning rate at key steps."""

import copy
import io
import json
import math
import re
import socket

import pytest
import timm
import torch
from safetensors.torch import load_file, save_file
from torch import nn
from torch.distributed.fsdp import fully_shard

from fastimg.config.commands import Train
from fastimg.config.intent import SCHEDULE_FREE
from fastimg.errors import UsageError
from fastimg.models.blocks import blocks
from fastimg.models.registry import build
from fastimg.train.checkpoints.host_copy import HostCopy
from fastimg.train.choices import refusals
from fastimg.train.optimisers import catalogue
from fastimg.train.optimisers.construction import build_optimizer, implementation
from fastimg.train.optimisers.groups import parameter_groups, set_lr
from fastimg.train.optimisers.schedule_free import ScheduleFreeAverage
from fastimg.train.optimisers.schedules import Schedule


def test_warmup_rises_in_even_steps_to_the_peak():
    schedule = Schedule(kind="cosine", lr=1.0, steps=100, warmup_steps=10)
    assert [schedule(step) for step in range(10)] == pytest.approx([(step + 1) / 10 for step in range(10)])
    assert schedule(10) == 1.0


def test_warmup_may_rise_from_another_rate():
    schedule = Schedule(kind="linear", lr=1.0, steps=20, warmup_steps=10, warmup_lr=0.2, min_lr=0.1)
    assert [schedule(step) for step in (0, 4, 9, 10)] == pytest.approx([0.28, 0.6, 1.0, 1.0])
    assert schedule(20) == pytest.approx(0.1)


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("cosine", {0: 1.0, 25: 0.1 + 0.9 * (1 + math.sqrt(0.5)) / 2, 50: 0.55, 100: 0.1}),
        ("linear", {0: 1.0, 25: 0.775, 50: 0.55, 100: 0.1}),
        ("step", {0: 1.0, 29: 1.0, 30: 0.5, 59: 0.5, 60: 0.25, 99: 0.125}),
        ("constant", {0: 1.0, 50: 1.0, 99: 1.0}),
    ],
)
def test_decay_schedules(kind, expected):
    schedule = Schedule(kind=kind, lr=1.0, steps=100, warmup_steps=0, min_lr=0.1, decay_steps=30.0, decay_rate=0.5)
    assert {step: schedule(step) for step in expected} == pytest.approx(expected)


def test_decay_begins_after_warmup():
    schedule = Schedule(kind="linear", lr=2.0, steps=30, warmup_steps=10)
    assert (schedule(10), schedule(20), schedule(30)) == (2.0, 1.0, 0.0)


@pytest.mark.parametrize("kind", ["cosine", "linear", "step", "constant"])
def test_a_run_that_is_all_warmup(kind):
    schedule = Schedule(kind=kind, lr=1.0, steps=5, warmup_steps=5)
    assert [schedule(step) for step in range(5)] == pytest.approx([0.2, 0.4, 0.6, 0.8, 1.0])
    assert math.isfinite(schedule(5))


@pytest.mark.parametrize("arch", ["test_resnet", "test_vit"])
def test_norms_biases_and_embeddings_do_not_decay(arch):
    model = timm.create_model(arch, num_classes=3)
    decayed, others = parameter_groups(model, 0.3)
    assert (decayed["weight_decay"], others["weight_decay"]) == (0.3, 0.0)
    assert len(decayed["params"]) + len(others["params"]) == len(list(model.parameters()))
    kept = {id(p) for p in others["params"]}
    for name, parameter in model.named_parameters():
        plain = parameter.ndim <= 1 or name in ("pos_embed", "cls_token", "reg_token")
        assert (id(parameter) in kept) == plain, name


def test_norms_and_biases_may_decay_but_embeddings_never():
    model = timm.create_model("test_vit", num_classes=3)
    names = {id(p): name for name, p in model.named_parameters()}
    groups = parameter_groups(model, 0.3, norm_weight_decay=0.1)
    assert [group["weight_decay"] for group in groups] == [0.3, 0.1, 0.0]
    assert {names[id(p)] for p in groups[2]["params"]} == {"pos_embed", "cls_token"}
    assert all(p.ndim <= 1 for p in groups[1]["params"]) and all(p.ndim > 1 for p in groups[0]["params"])
    assert sum(len(group["params"]) for group in groups) == len(names)


@pytest.mark.parametrize("arch", ["test_resnet", "test_vit", "test_convnext"])
def test_lower_blocks_learn_slower(arch):
    model = timm.create_model(arch, num_classes=3)
    groups = parameter_groups(model, 0.3, layer_decay=0.5)
    scales = {id(p): (group["lr_scale"], group["weight_decay"]) for group in groups for p in group["params"]}
    assert len(scales) == sum(len(group["params"]) for group in groups) == len(list(model.parameters()))
    cut = blocks(model)
    parameters = dict(model.named_parameters())
    for above, block in enumerate(reversed(cut)):
        assert {scales[id(parameters[name])][0] for name in block.parameters} == {0.5**above}, block.name
    plain = parameter_groups(model, 0.3)
    assert {group["lr_scale"] for group in plain} == {1.0}
    for group in plain:  # decay does not depend on the block
        assert {scales[id(p)][1] for p in group["params"]} == {group["weight_decay"]}


def test_the_learning_rate_follows_the_group():
    model = timm.create_model("test_resnet", num_classes=3)
    optimizer = build_optimizer(model, "sgd", 0.1, 0.0, 0.0, layer_decay=0.5)
    set_lr(optimizer, 0.8)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    for p in model.parameters():
        p.grad = torch.ones_like(p)
    optimizer.step()
    steps = {name: float((before[name] - p.detach()).mean()) for name, p in model.named_parameters()}
    assert steps["fc.bias"] == pytest.approx(0.8, rel=1e-5)
    assert steps["layer4.0.conv1.weight"] == pytest.approx(0.4, rel=1e-5)
    assert steps["bn1.weight"] == pytest.approx(0.8 * 0.5**5, rel=1e-5)


def test_frozen_parameters_are_in_no_group():
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2))
    model[0].requires_grad_(False)
    assert sum(len(group["params"]) for group in parameter_groups(model, 0.1)) == 2
    assert sum(len(group["params"]) for group in parameter_groups(model, 0.1, frozen_too=True)) == 4
    model[1].weight.requires_grad_(False)
    assert [group["weight_decay"] for group in parameter_groups(model, 0.1)] == [0.0]  # none that decays


def test_optimisers():
    model = torch.nn.Linear(2, 2)
    sgd = build_optimizer(model, "sgd", 0.1, 0.01, 0.9)
    assert isinstance(sgd, torch.optim.SGD) and sgd.defaults["nesterov"] and sgd.defaults["momentum"] == 0.9
    assert not build_optimizer(model, "sgd", 0.1, 0.01, 0.0).defaults["nesterov"]
    adamw = build_optimizer(model, "adamw", 0.1, 0.01, None)
    assert isinstance(adamw, torch.optim.AdamW)
    set_lr(adamw, 0.7)
    assert [group["lr"] for group in adamw.param_groups] == [0.7, 0.7]


def train_steps(model, optimizer, count, seed):
    torch.manual_seed(seed)
    for _ in range(count):
        optimizer.zero_grad()
        model(torch.randn(5, 6)).square().mean().backward()
        optimizer.step()


def small_model():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(6, 4), torch.nn.Tanh(), torch.nn.Linear(4, 2))


@pytest.mark.parametrize("opt", ["sgd", "adamw"])
def test_implementations_agree_and_say_what_they_are(opt):
    ends = {}
    for impl, runs in (("auto", "fused"), ("fused", "fused"), ("foreach", "foreach")):
        model = small_model()
        optimizer = build_optimizer(model, opt, 0.05, 0.1, 0.9, impl=impl)
        assert implementation(optimizer) == runs
        train_steps(model, optimizer, 5, seed=1)
        ends[impl] = torch.cat([p.detach().flatten() for p in model.parameters()])
    assert ends["auto"].equal(ends["fused"])
    assert torch.allclose(ends["fused"], ends["foreach"], rtol=1e-5, atol=1e-6)
    kind = torch.optim.SGD if opt == "sgd" else torch.optim.AdamW
    assert implementation(kind(small_model().parameters(), foreach=False)) == "for-loop"


@pytest.fixture
def lone_rank(monkeypatch):
    """A process group of one process, as sharding needs it."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    torch.distributed.init_process_group("gloo", f"tcp://127.0.0.1:{port}", rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


@pytest.mark.filterwarnings("ignore")
def test_sharded_weights(lone_rank):
    """Fused where torch can; for SGD it cannot. Each choice takes a step."""
    for opt, expected in (("sgd", "foreach"), ("adamw", "fused")):
        model, plain = small_model(), small_model()
        fully_shard(model)
        optimizer = build_optimizer(model, opt, 0.05, 0.1, 0.9, layer_decay=0.5)
        assert implementation(optimizer) == expected
        train_steps(model, optimizer, 3, seed=1)
        train_steps(plain, build_optimizer(plain, opt, 0.05, 0.1, 0.9, layer_decay=0.5), 3, seed=1)
        for ours, theirs in zip(model.parameters(), plain.parameters(), strict=True):
            assert torch.allclose(ours.full_tensor(), theirs, atol=1e-6)
    for opt in catalogue.ELEMENTWISE:
        model, plain = small_model(), small_model()
        fully_shard(model)
        optimizer = build_optimizer(model, opt, 0.01, 0.1, None)
        before = {key: value for key, value in optimizer.param_groups[0].items() if key != "params"}
        train_steps(model, optimizer, 3, seed=1)
        train_steps(plain, build_optimizer(plain, opt, 0.01, 0.1, None), 3, seed=1)
        for ours, theirs in zip(model.parameters(), plain.parameters(), strict=True):
            assert torch.allclose(ours.full_tensor(), theirs, atol=1e-6), opt
        for p, state in optimizer.state.items():  # what `sharded` saves, it can give back: tensors, by parameter
            sizes = {key: value.shape for key, value in state.items() if isinstance(value, torch.Tensor)}
            assert sizes.keys() == state.keys(), opt
            assert set(sizes.values()) <= {p.shape, torch.Size([])}, opt
        counted = {key: value for key, value in optimizer.param_groups[0].items() if key != "params"}
        assert counted == before, opt
    with pytest.raises(UsageError, match=r"--opt-impl fused.*foreach"):
        build_optimizer(fully_shard(small_model()), "sgd", 0.1, 0.0, 0.9, impl="fused")


@pytest.mark.parametrize("opt", ["sgd", "adamw"])
def test_resuming_with_parameters_that_were_frozen(opt):
    """Saved while a layer was frozen, with no momentum or zeros, then unfrozen: an uninterrupted run, bit for bit."""

    def begin():
        model = small_model()
        model[0].requires_grad_(False)
        return model, build_optimizer(model, opt, 0.05, 0.1, 0.9, layer_decay=0.5, frozen_too=True)

    model, optimizer = begin()
    train_steps(model, optimizer, 3, seed=1)
    saved = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
    assert len(saved[1]["state"]) == (4 if opt == "sgd" else 2) and saved[1]["param_groups"][0]["lr_scale"] == 0.5
    model.requires_grad_(True)
    train_steps(model, optimizer, 3, seed=2)
    again, other = begin()
    again.load_state_dict(saved[0])
    other.load_state_dict(saved[1])
    again.requires_grad_(True)
    train_steps(again, other, 3, seed=2)
    assert all(one.equal(two) for one, two in zip(model.parameters(), again.parameters(), strict=True))
    assert not again[0].weight.equal(small_model()[0].weight)
    set_lr(other, 1.0)
    assert {group["lr"] for group in other.param_groups} == {0.5, 1.0}


@pytest.fixture
def start(tmp_path):
    """Weights of test_vit for three classes, with a non-zero classifier."""
    torch.manual_seed(3)
    model = build("test_vit", 3, img_size=32).module
    torch.nn.init.normal_(model.head.weight, std=0.1)
    save_file(model.state_dict(), tmp_path / "start.safetensors")
    return tmp_path / "start.safetensors"


@pytest.fixture
def step_by_step(trained, start, tmp_path, cli):
    """Train test_vit (no batch norm) with plain SGD, three steps of eight images; returns its weights and log."""

    def train(name, *flags):
        run = tmp_path / name
        common = ("--arch", "test_vit", "--img-size", "32", "--weights", start, "--no-amp", "--no-aug", "-j", "1")
        sgd = ("--opt", "sgd", "--momentum", "0", "--wd", "0", "--sched", "constant", "--warmup-fraction", "0")
        ran = cli("train", trained.images, *common, *sgd, "--epochs", "1", "-o", tmp_path, "--name", name, *flags)
        assert ran.code == 0, ran.err
        log = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        return load_file(run / "last" / "model.safetensors"), log

    return train


def distance(one, other):
    return math.sqrt(sum(float((one[name] - other[name]).double().square().sum()) for name in one))


def test_accumulated_gradients_are_those_of_a_large_batch(step_by_step, start):
    large, _ = step_by_step("large", "-b", "8", "--lr", "0.1")
    small, _ = step_by_step("small", "-b", "2", "--grad-accum-steps", "4", "--lr", "0.1")
    assert distance(large, load_file(start)) > 0.05
    assert max(float((large[name] - small[name]).abs().max()) for name in large) < 1e-5


def test_a_short_last_batch_weighs_as_its_samples(step_by_step):
    """24 images in batches of 16: the second batch has 8, and its loss is a mean over 8."""
    large, _ = step_by_step("large", "-b", "16", "--lr", "0.1")
    small, _ = step_by_step("small", "-b", "4", "--grad-accum-steps", "4", "--lr", "0.1")
    assert max(float((large[name] - small[name]).abs().max()) for name in large) < 1e-5


def test_clipping_bounds_the_step(step_by_step, start):
    free, _ = step_by_step("free", "-b", "8", "--lr", "1")
    clipped, _ = step_by_step("clipped", "-b", "8", "--lr", "1", "--clip-grad", "0.01")
    before = load_file(start)
    assert distance(free, before) > 0.3
    assert 0.015 < distance(clipped, before) <= 3 * 0.01 * 1.001


def test_label_smoothing_mixes_in_the_mean_over_classes(step_by_step):
    """The loss is linear in the smoothing for the same logits: those before the first step."""
    flags = ("-b", "24", "--lr", "0.1")
    losses = [step_by_step(f"s{s}", *flags, "--smoothing", str(s))[1][0]["loss"] for s in (0.0, 0.3, 0.6)]
    assert abs(losses[1] - losses[0]) > 1e-4
    assert losses[2] - losses[0] == pytest.approx(2 * (losses[1] - losses[0]), rel=1e-3)


def test_weight_decay_leaves_vectors_alone(step_by_step, start):
    """With learning rate 0.1 and decay 5, a step halves a matrix, and would halve a norm with zero gradient."""
    plain, _ = step_by_step("plain", "-b", "24", "--lr", "0.1")
    decayed, _ = step_by_step("decayed", "-b", "24", "--lr", "0.1", "--wd", "5")
    before = load_file(start)
    for name, tensor in before.items():
        difference = decayed[name] - plain[name]
        expected = -0.5 * tensor if tensor.ndim > 1 and name not in ("pos_embed", "cls_token") else 0 * tensor
        assert torch.allclose(difference, expected, atol=1e-5), name


def test_sgd_whose_first_step_overflows_goes_on_as_if_it_had_not_been():
    """As the scaler of fp16 asks for: momentum is then zeros, not what was in the memory before."""
    memory = [torch.full((1000,), float("nan")) for _ in range(50)]
    weights = []
    for overflows in (True, False):
        model = nn.Linear(1000, 1, bias=False)
        nn.init.zeros_(model.weight)
        optimizer = build_optimizer(model, "sgd", 0.1, 0.0, 0.9)
        memory.clear()
        if overflows:
            model.weight.grad = torch.full((1, 1000), float("inf"))
            optimizer.grad_scale, optimizer.found_inf = torch.ones(()), torch.ones(())
            optimizer.step()
            del optimizer.grad_scale, optimizer.found_inf
            assert not model.weight.any()
        for _ in range(2):
            model.weight.grad = torch.ones(1, 1000)
            optimizer.step()
        weights.append(model.weight.detach().clone())
    assert torch.equal(*weights)


@pytest.mark.parametrize("extra", [{}, {"dampening": 0.5, "nesterov": False}])
def test_sgd_begins_as_torchs_does(extra):
    moved = []
    for impl in ("fused", "foreach"):
        torch.manual_seed(0)
        model = nn.Linear(5, 3)
        optimizer = build_optimizer(model, "sgd", 0.1, 0.01, 0.9, impl=impl, kwargs=extra)
        for _ in range(3):
            model(torch.ones(1, 5)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        moved.append(model.weight.detach())
    assert torch.allclose(*moved, rtol=1e-6)


def test_any_of_timms_goes_on_to_the_bit(small, step_of):
    """All of timm's that can run here, in one process: state through a checkpoint's own path, and two steps more."""
    checked = 0
    for name in (*timm.optim.list_optimizers(), *SCHEDULE_FREE):
        try:
            catalogue.check(Train(opt=name, lr=1e-3))
        except UsageError as error:
            assert any(word in str(error) for word in ("needs second derivatives", "is not installed", "CUDA")), error
            continue
        model = small()
        optimizer = build_optimizer(model, name, 1e-3, 0.01, None)
        before = copy.deepcopy(model.state_dict())
        for number in (0, 1):
            step_of(model, optimizer, number)
        file = io.BytesIO()
        torch.save(HostCopy(torch.device("cpu")).take([model.state_dict(), optimizer.state_dict()]), file)
        file.seek(0)
        weights, state = torch.load(file, weights_only=True)
        again = small()
        again.load_state_dict(weights)
        resumed = build_optimizer(again, name, 1e-3, 0.01, None)
        resumed.load_state_dict(state)
        for number in (2, 3):
            step_of(model, optimizer, number)
            step_of(again, resumed, number)
        for key, value in model.state_dict().items():
            assert torch.equal(value, again.state_dict()[key]), (name, key)
        assert not torch.equal(before["0.weight"], model.state_dict()["0.weight"]), name
        checked += 1
    assert checked >= 70


@pytest.fixture
def small():
    """A plain stack: a stem, a hidden convolution, a head."""

    def build_it():
        torch.manual_seed(0)
        hidden = (nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8))
        return nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), *hidden, nn.Flatten(), nn.Linear(128, 5))

    return build_it


@pytest.fixture
def step_of():
    def step(model, optimizer, number):
        torch.manual_seed(number)
        logits = model(torch.randn(6, 3, 6, 6))
        torch.nn.functional.cross_entropy(logits, torch.arange(6) % 5).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def test_muon_has_the_hidden_matrices_alone(small):
    model = small()
    groups = build_optimizer(model, "muon", 1e-3, 0.1, None).param_groups
    hidden = [p for group in groups if not group["use_fallback"] for p in group["params"]]
    assert [id(p) for p in hidden] == [id(model[2].weight)]
    assert sum(len(group["params"]) for group in groups) == len(list(model.parameters()))
    assert {group["weight_decay"] for group in groups if group["params"][0].ndim > 1} == {0.1}
    with pytest.raises(UsageError, match="no hidden matrix of the model trains"):
        build_optimizer(nn.Sequential(nn.Linear(4, 2)), "muon", 1e-3, 0.1, None)


def test_arguments_reach_the_optimiser(small):
    adan = build_optimizer(small(), "adan", 1e-3, 0.0, None, eps=1e-5, betas=(0.9, 0.8, 0.7), kwargs={"caution": True})
    group = adan.param_groups[0]
    assert (group["eps"], group["betas"], group["caution"], group["foreach"]) == (1e-5, (0.9, 0.8, 0.7), True, True)
    assert build_optimizer(small(), "adamw", 1e-3, 0.0, None, kwargs={"amsgrad": True}).param_groups[0]["amsgrad"]
    with pytest.raises(UsageError, match="--opt lion: Invalid beta"):
        build_optimizer(small(), "lion", 1e-3, 0.0, None, betas=(2.0, 0.9))
    with pytest.raises(UsageError, match="--opt-impl fused: lion has no such implementation"):
        build_optimizer(small(), "lion", 1e-3, 0.0, None, impl="fused")


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"opt": "adamv"}, "--opt adamv: no such optimiser; did you mean"),
        ({"opt": "lion"}, "--opt lion: no learning rate is known to serve it; give --lr"),
        ({"opt": "adahessian"}, "needs second derivatives"),
        ({"opt": "lamb", "strategy": "fsdp"}, "--opt lamb: looks at whole weights"),
        ({"opt": "adan", "opt_betas": (0.9, 0.9)}, "--opt-betas 0.9 0.9: adan has 3; give 3 numbers"),
        ({"opt": "lion", "opt_eps": 1e-3}, "--opt-eps has no effect with --opt lion"),
        ({"opt": "lamb", "momentum": 0.8}, "--momentum has no effect with --opt lamb"),
        ({"opt_kwargs": ("amsgrat=1",)}, "adamw has no such argument; did you mean amsgrad"),
        ({"opt_kwargs": ("lr=1",)}, "--opt-kwargs lr=1: there is a flag for it; use --lr instead"),
        ({"opt_kwargs": ("amsgrad",)}, "--opt-kwargs amsgrad: give name=value, such as nesterov=True"),
        ({"opt": "schedule_free_sgd", "sched": "cosine"}, "needs no schedule"),
        ({"opt": "schedule_free_sgd", "model_ema": True}, "which averages weights itself"),
        ({"opt": "schedule_free_sgd", "freeze": "1", "freeze_epochs": 2}, "from the first step on"),
    ],
)
def test_what_an_optimiser_does_not_know_is_refused(settings, words):
    config = Train(**settings if "no learning rate" in words else {"lr": 1e-3, **settings})
    with pytest.raises(UsageError, match=re.escape(words)):
        refusals.check(config)


@pytest.mark.parametrize("opt", ["schedule_free_sgd", "schedule_free_adamw"])
def test_schedule_free_is_its_three_sequences(opt):
    """Against the paper's own x, y and z, kept apart, in float64."""
    torch.manual_seed(1)
    layer = nn.Linear(4, 1, bias=False).double()
    optimizer = build_optimizer(layer, opt, 0.1, 0.02, None)
    beta, beta2, eps = 0.9, 0.999, 1e-8
    x = z = layer.weight.detach().clone()
    second, highest, total = torch.zeros_like(z), 0.0, 0.0
    average = ScheduleFreeAverage(layer, optimizer)
    for number, rate in enumerate([0.03, 0.06, 0.1, 0.1, 0.1], start=1):
        set_lr(optimizer, rate)
        y = (1 - beta) * z + beta * x
        torch.testing.assert_close(layer.weight.detach(), y)
        gradient = torch.randn_like(y)
        layer.weight.grad = gradient.clone()
        optimizer.step()
        assert torch.equal(layer.weight.grad, gradient)
        if opt == "schedule_free_adamw":
            second = beta2 * second + (1 - beta2) * gradient**2
            gradient = gradient / ((second / (1 - beta2**number)).sqrt() + eps)
        z = z - rate * (gradient + 0.02 * y)
        highest = max(highest, rate)
        total += highest**2
        x = (1 - highest**2 / total) * x + highest**2 / total * z
        torch.testing.assert_close(average.tensors["weight"], x)
    own = layer.weight.detach().clone()
    with average.swapped(layer):
        torch.testing.assert_close(layer.weight.detach(), x)
    assert torch.equal(layer.weight, own)
