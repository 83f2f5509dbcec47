"""--lr find: the rate that a curve gives, what is refused, and that nothing is left of the test in the run."""

import os
import random
import shutil
import subprocess
from contextlib import suppress
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file
from torch import nn

import fastimg
from fastimg.config import yaml_file as configfile
from fastimg.config.commands import Train
from fastimg.errors import UserError
from fastimg.models.ranks import Ranks
from fastimg.train.checkpoints import run_directory as rundir
from fastimg.train.checkpoints.format import load_training
from fastimg.train.choices import learning_rate
from fastimg.train.choices.learning_rate import FIRST, LAST, PER_DECADE, evaluated, smoothed
from fastimg.train.optimisers.schedules import RisingRate
from fastimg.train.reporting import plots

ALONE = Ranks(0, 1, 1, torch.device("cpu"), None)
FAST = ("--arch", "test_resnet", "--img-size", "32", "--batch-size", "8", "--workers", "1", "--no-amp")

RATES = np.geomspace(FIRST, LAST, 8 * PER_DECADE + 1)


def curve(best, noise=0.02, depth=1.0, level=2.3):
    """Losses of a test whose lowest point is at the rate `best`, until they are far above it."""
    place = np.log10(RATES / best)
    losses = level - depth * np.exp(-0.5 * (place / 0.7) ** 2) + np.maximum(place - 1, 0) ** 2 * 10
    losses += noise * np.random.default_rng(0).standard_normal(len(RATES))
    kept = int(np.argmax(losses > 3 * level)) or len(losses)
    return RATES[:kept].tolist(), losses[:kept].tolist()


@pytest.fixture
def short(monkeypatch):
    """A test of 33 steps that draws nothing, for runs of a few images."""
    monkeypatch.setattr(learning_rate, "PER_DECADE", 4)
    monkeypatch.setattr(learning_rate, "plot_range_test", lambda *_: None)


@pytest.mark.parametrize("best", [3e-4, 2e-2, 1.0])
@pytest.mark.parametrize("level", [2.3, -0.5])  # learned weights of targets can make a loss negative
def test_the_rate_at_which_the_loss_falls_fastest(best, level):
    found = evaluated(*curve(best, level=level), diverged=True)
    assert found.lowest == pytest.approx(best, rel=0.3)
    assert found.lr == pytest.approx(best / 10**0.7, rel=0.4)  # where a normal curve is steepest
    assert found.lr == float(f"{found.steepest:.3g}") and found.diverged
    assert f"fell fastest, from {found.smoothed[0]:.3g} to" in found.words() and "it diverged at" in found.words()


def test_smoothing_moves_no_point_to_later_rates():
    losses = np.abs(np.arange(41.0) - 20)
    assert smoothed(losses).argmin() == 20 and smoothed(np.full(9, 3.0)) == pytest.approx(np.full(9, 3.0))


@pytest.mark.parametrize(
    ("losses", "words"),
    [
        ((2.3 + 0.1 * np.random.default_rng(1).standard_normal(len(RATES))).tolist(), "from 1e-06 to 100 (2.3"),
        (np.geomspace(2.3, 400, len(RATES)).tolist(), "at best), so there is nothing to choose by"),
        ([2.3, 2.2, 2.1], "from 1e-06 to"),  # diverged at once
        ([], "at any rate (not a number)"),
    ],
    ids=("noise", "it only rises", "three steps", "not a number"),
)
def test_a_curve_that_says_nothing_is_refused(losses, words):
    with pytest.raises(UserError, match=r"--lr find: the loss does not fall at any rate.*give --lr auto") as refused:
        evaluated(RATES[: len(losses)].tolist(), losses, diverged=False)
    assert words in str(refused.value)


def test_divergence_is_seen_in_the_running_mean():
    falling = [2.3, 2.0, 1.7, 1.5]
    assert not learning_rate._diverged([*falling, 5.0])  # one step may be bad
    assert learning_rate._diverged([*falling, 5.0, 9.0, 20.0])
    assert not learning_rate._diverged([-1.0, -1.2, -1.1]) and learning_rate._diverged([-1.0, -1.2, 3.0, 9.0])


def test_the_rate_rises_by_the_same_factor():
    schedule = RisingRate(kind="constant", lr=1e-6, steps=0, warmup_steps=0, factor=10 ** (1 / 12))
    assert [schedule(step) for step in (0, 12, 96)] == pytest.approx([1e-6, 1e-5, 1e2])


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--lr-scale", "sqrt"), "--lr-scale has no effect with --lr find"),
        (("--lr-base-size", "64"), "--lr-base-size has no effect with --lr find"),
        (("--strategy", "fsdp"), "--lr find: takes steps that are undone, and --strategy fsdp"),
        (("--freeze", "1", "--freeze-epochs", "1", "--epochs", "2"), "--lr find: measures with what is frozen"),
    ],
)
def test_what_does_not_go_with_it(cli, trained, flags, words):
    ran = cli("train", trained.shards, "--arch", "test_resnet", "--lr", "find", *flags)
    assert ran.code == 2 and words in ran.err


def state(run):
    """Everything that a run has learned: weights, averages, the optimiser's state, and its generators' position."""
    training = load_training((run / "last").resolve())
    tensors = {**load_file(run / "last/model.safetensors"), **training.get("weights", {})}
    for index, values in training["optimizer"]["state"].items():
        tensors |= {f"{name} {index}": torch.as_tensor(value) for name, value in values.items()}
    return tensors | {"scaler": training["scaler"], "loader": training["loader"], "meter": training["meter"]}


def assert_alike(first, second):
    one, two = state(first), state(second)
    assert one.keys() == two.keys()
    for name, value in one.items():
        assert torch.equal(value, two[name]) if isinstance(value, torch.Tensor) else value == two[name], name


def rate_of(run):
    return configfile.load(run / "config.yaml", Train).lr


FOUND = {
    "averaged and accumulated": ("--model-ema", "--grad-accum-steps", "2", "--clip-grad", "1"),
    "sgd": ("--opt", "sgd", "--epochs", "2"),
    "kept embeddings": ("--freeze", "backbone", "--head", "mlp", "-b", "4"),
    "schedule-free, by layers": ("--opt", "schedule_free_adamw", "--layer-decay", "0.8"),
    "no rate is known": ("--opt", "lion", "--weight-decay", "0.1", "--lookahead", "2"),
    "batch first": ("-b", "auto"),
}


@pytest.mark.parametrize("flags", FOUND.values(), ids=FOUND)
def test_the_run_is_that_of_the_rate_that_was_found(trained, fast, tmp_path, cli, short, flags):
    place = ("-o", tmp_path / "runs")
    ran = cli("train", trained.shards, *fast, *flags, *place, "--lr", "find", "--name", "found")
    assert ran.code == 0, ran.err
    found = tmp_path / "runs/found"
    rate = rate_of(found)
    assert (
        f"learning rate {rate:g}: where the loss fell fastest" in ran.out
        and f"lr {rate:g} (found by --lr find)" in ran.out
    )
    given = (*flags[:-1], configfile.load(found / "config.yaml", Train).batch_size) if flags[-1] == "auto" else flags
    ran = cli("train", trained.shards, *fast, *given, *place, "--lr", rate, "--name", "given")
    assert ran.code == 0, ran.err
    assert_alike(found, tmp_path / "runs/given")
    assert rate_of(tmp_path / "runs/given") == rate


@pytest.mark.parametrize("fails", [False, True])
def test_what_a_test_changes_is_undone(fails):
    module = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
    optimizer = torch.optim.SGD(module.parameters(), lr=1.0)
    closed = []
    setup = SimpleNamespace(
        model=SimpleNamespace(module=module),
        ranks=ALONE,
        data=SimpleNamespace(loaders=[SimpleNamespace(close=lambda: closed.append(True))]),
        optimisation=SimpleNamespace(optimizer=optimizer),
    )

    def everything():
        numbers = np.random.get_state()[1].tolist()
        tensors = {name: tensor.tolist() for name, tensor in module.state_dict().items()}
        return tensors, torch.get_rng_state().tolist(), random.getstate(), numbers

    before = everything()
    with suppress(ArithmeticError), learning_rate._undone(SimpleNamespace(setup=setup)):
        for seed in (torch.manual_seed, random.seed, np.random.seed):
            seed(12345)
        module(torch.randn(8, 3)).square().sum().backward()
        optimizer.step()
        assert all(now != then for now, then in zip(everything(), before, strict=True))
        if fails:
            raise ArithmeticError
    assert everything() == before and closed == [True]
    assert all(parameter.grad is None for parameter in module.parameters())


def test_the_curve_is_kept_in_the_run(trained, fast, tmp_path, monkeypatch):
    monkeypatch.setattr(learning_rate, "PER_DECADE", 4)
    settings = {"arch": "test_resnet", "img_size": 32, "batch_size": 8, "workers": 1, "amp": False, "epochs": 1}
    run = fastimg.train(trained.shards, **settings, lr="find", output=tmp_path / "runs").run
    (record,) = [record for record in rundir.read_log(run) if record["kind"] == "lr_find"]
    assert record["lr"] == rate_of(run) == float(f"{record['steepest']:.3g}") and record["step"] == 0
    assert record["rates"][:5] == pytest.approx(np.geomspace(FIRST, 10 * FIRST, 5), rel=1e-4)
    assert (
        len(record["losses"]) == len(record["rates"])
        and record["steepest"] <= record["lowest"] <= 31 * record["steepest"]
    )
    with Image.open(run / "lr_find.png") as image:
        assert image.size[0] > 500


def test_the_picture_shows_the_curve(tmp_path, monkeypatch):
    kept = []
    monkeypatch.setattr(plots, "save", lambda figure, *_: kept.append(figure))
    found = evaluated(*curve(1e-2), diverged=True)
    plots.plot_range_test(found.rates, found.losses, found.smoothed, found.lr, found.lowest, tmp_path / "a.png")
    axis = kept[0].axes[0]
    steps, smooth, lowest, chosen = axis.get_lines()
    assert steps.get_xydata().tolist() == [[*point] for point in zip(found.rates, found.losses, strict=True)]
    assert smooth.get_ydata().tolist() == list(found.smoothed) and axis.get_xscale() == "log"
    assert lowest.get_xydata().tolist() == [[found.lowest, min(found.smoothed)]]
    assert set(chosen.get_xdata()) == {found.lr}
    assert axis.get_ylim()[1] < max(found.losses)  # where it diverges, the curve leaves the picture


def test_a_resumed_run_keeps_its_rate(trained, tmp_path, cli, monkeypatch):
    shutil.copytree(trained.run, tmp_path / "runs/run", symlinks=True)
    monkeypatch.setattr(learning_rate, "_rise", lambda _: pytest.fail("it is not searched for again"))
    flags = (*FAST, "--epochs", "2", "--no-aug", "-o", tmp_path / "runs", "--name", "run")
    ran = cli("train", trained.images, *flags, "--lr", "find", "--resume", "auto")
    assert ran.code == 0, ran.err
    assert "--resume: the run's own learning rate, 0.003, is kept, not searched for again" in ran.out


def test_a_dry_run_takes_no_step(trained, fast, tmp_path, cli, monkeypatch):
    monkeypatch.setattr(learning_rate, "_rise", lambda _: pytest.fail("a dry run takes no steps"))
    ran = cli("train", trained.shards, *fast, "--lr", "find", "--dry-run", "-o", tmp_path / "runs")
    assert ran.code == 0 and "adamw (fused), lr measured when the run begins, weight decay" in ran.out


def test_a_flat_curve_ends_the_run_before_it_begins(trained, fast, tmp_path, cli, monkeypatch):
    monkeypatch.setattr(learning_rate, "_rise", lambda _: (RATES.tolist(), [2.3] * len(RATES), False))
    ran = cli("train", trained.shards, *fast, "--lr", "find", "-o", tmp_path / "runs")
    assert ran.code == 1 and "--lr find: the loss does not fall" in ran.err and not (tmp_path / "runs").exists()


def test_memory_that_runs_out_is_said(trained, fast, tmp_path, cli, monkeypatch):
    def short_of_memory(*_):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB")

    monkeypatch.setattr(learning_rate, "optimiser_step", short_of_memory)
    ran = cli("train", trained.shards, *fast, "--lr", "find", "-o", tmp_path / "runs")
    assert ran.code == 1 and "--lr find: out of memory on cpu; lower --batch-size" in ran.err


SHORT = """
import sys
from fastimg import cli
from fastimg.train.choices import learning_rate
from fastimg.train.reporting import summary
learning_rate.PER_DECADE = 2
learning_rate.plot_range_test = summary.plot_curves = lambda *_: None
sys.exit(cli.run(sys.argv[1:]))
"""


@pytest.mark.slow
def test_two_ranks_find_and_undo_alike(trained, tmp_path, python, two_ranks):
    """Norms are shared, gradients accumulate, and weights are averaged: whatever the test does is undone on each."""
    (tmp_path / "short.py").write_text(SHORT)
    launcher = [python, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    flags = ("train", trained.shards, "--arch", "test_efficientnet", "--img-size", "32", "-b", "4", "--workers", "1")
    flags = (*flags, "--grad-accum-steps", "2", "--model-ema", "--sync-bn", "--no-amp", "--epochs", "1")
    command = [*launcher, tmp_path / "short.py", *flags, "-o", tmp_path, "--lr", "find", "--name", "found"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, timeout=240, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    two_ranks((*flags, "-o", tmp_path, "--lr", rate_of(tmp_path / "found"), "--name", "given"))
    assert_alike(tmp_path / "found", tmp_path / "given")
