"""The optimiser step: training, the batch size search and bench use the same one; and its arithmetic."""

import math
import signal
import threading
from dataclasses import dataclass

import numpy as np
import pytest
import torch

from fastimg.augment.cpu import images
from fastimg.bench import rig as bench
from fastimg.data import planning
from fastimg.data.datasets import DatasetPart
from fastimg.loaders import Loader, open_dataset
from fastimg.models.precision import Precision
from fastimg.models.ranks import Ranks
from fastimg.train import loop, setup, step
from fastimg.train.assembly import Blueprint, assemble
from fastimg.train.augment_stream import AugmentStream
from fastimg.train.choices import batch_size
from fastimg.train.counts import StepCounts
from fastimg.train.opening import build_model
from fastimg.train.parts import Parts
from fastimg.train.reporting import lines
from fastimg.train.step import average_gradients, optimiser_step
from fastimg.train.tasks.selection import of_labels

ALONE = Ranks(0, 1, 1, torch.device("cpu"), None)
FLOAT = Precision("cpu", None, "float32")


class Scaled(Precision):
    """float32 with fp16's gradient scaler: by a power of two, so that no bit differs from float32 without it."""

    def scaler(self):
        return torch.amp.GradScaler("cpu", init_scale=2.0**10)


SCALED = Scaled("cpu", None, "float32 with a gradient scaler")
HALF = Precision("cpu", torch.float16, "fp16 with a gradient scaler")

CASES = {
    "a last batch that is not full": (("-b", "5"), FLOAT),
    "accumulated, mixed and averaged": (
        ("-b", "4", "--grad-accum-steps", "2", "--mixup", "0.2", "--model-ema", "--model-ema-decay", "0.9"),
        FLOAT,
    ),
    "clipped with a scaler": (("-b", "5", "--clip-grad", "0.1"), SCALED),
    "clipped in fp16": (("-b", "4", "--grad-accum-steps", "2", "--clip-grad", "0.1"), HALF),
}


@pytest.fixture
def train(trained, fast, tmp_path, cli, monkeypatch):
    """train(flags, precision): an epoch of training, as in `fastimg train`. Returns the run."""

    def call(flags, precision, name="run"):
        runs = []
        prepare = setup.prepare
        monkeypatch.setattr(loop, "prepare", lambda *args: runs.append(prepare(*args)) or runs[-1])
        monkeypatch.setattr(setup, "choose_precision", lambda *_: precision)
        arguments = (*fast, "--lr", "0.01", *flags)
        ran = cli("train", trained.shards, *arguments, "-o", tmp_path / "runs", "--name", name)
        assert ran.code == 0, ran.err
        return runs[0]

    return call


def assembled(run, trained):
    """A run with the settings of another one, as in the search for a batch size."""
    config, dataset = run.setup.config, open_dataset(trained.shards, "train")
    model, preprocessing = build_model(config, ALONE, dataset.classes)
    blueprint = Blueprint(
        config=config,
        directory=run.setup.directory,
        model=model,
        preprocessing=preprocessing,
        precision=run.setup.precision,
        parts=Parts(DatasetPart(dataset, None, "train"), None, None),
        targets=of_labels(config, dataset),
    )
    return assemble(blueprint, ALONE, alone=True)


def outcome(run):
    """Weights, moving averages and optimiser state."""
    optimisation = run.setup.optimisation
    tensors = dict(run.setup.model.module.state_dict())
    if optimisation.ema is not None:
        tensors |= {f"average of {name}": value for name, value in optimisation.ema.tensors.items()}
    for index, state in optimisation.optimizer.state_dict()["state"].items():
        tensors |= {f"{name} {index}": torch.as_tensor(value) for name, value in state.items()}
    return {name: value.clone() for name, value in tensors.items()}


def assert_same(first, second):
    assert first.keys() == second.keys()
    for name in first:
        assert torch.equal(first[name], second[name]), name


@pytest.mark.parametrize(("flags", "precision"), CASES.values(), ids=CASES)
def test_what_is_measured_is_what_trains(train, trained, monkeypatch, flags, precision):
    """After the same number of steps with the same seed, all three are equal bit for bit."""
    run = train(flags, precision)
    steps, expected = run.progress.step, outcome(run)
    assert steps >= 3 and run.setup.precision is precision

    searched = assembled(run, trained)
    monkeypatch.setattr(batch_size, "WARM", 1)
    monkeypatch.setattr(batch_size, "STEPS", steps - 1)
    monkeypatch.setattr(batch_size, "SECONDS", math.inf)
    batch_size._rate(searched)
    for loader in searched.setup.data.loaders:
        loader.close()
    assert_same(outcome(searched), expected)

    monkeypatch.setattr(bench, "choose_precision", lambda *_: precision)
    dataset = open_dataset(trained.shards, "train")
    rig = bench.build(run.setup.config, dataset, np.arange(len(dataset)), ALONE)
    bench.real_rate(rig, warm=steps - 2, seconds=-1.0)  # and two timed steps
    rig.close()
    assert rig.run.progress.step == steps
    assert_same(outcome(rig.run), expected)


@pytest.mark.parametrize(
    "flags",
    [
        ("-b", "5", "--aa", "trivial", "--reprob", "0.5"),
        ("-b", "4", "--grad-accum-steps", "2", "--aa", "rand-m9-mstd0.5-inc1", "--mixup", "0.2", "--cutmix", "1"),
        ("-b", "4", "--sampler", "balanced", "--progressive", "32:64", "--progressive-epochs", "1:2"),
    ],
)
def test_plans_are_drawn_by_the_loaders_threads(train, monkeypatch, flags):
    """As the trainer draws them where a loader has no threads: the weights are the same."""
    drawn = []
    inner = planning.draw

    def noted(policy, keys, *rest):
        drawn.append(threading.current_thread().name)
        return inner(policy, keys, *rest)

    monkeypatch.setattr(planning, "draw", noted)
    monkeypatch.setattr(planning.Planning, "count_words", lambda self, rows, shape: 0)  # draws one plan, to count
    by_threads = outcome(train((*flags, "--epochs", "3"), FLOAT, "threads"))
    drawn.remove("MainThread")  # the batch that compiles the augmentation
    assert drawn and all(name.startswith("fastimg-loader") for name in drawn)
    monkeypatch.setattr(Loader, "prepare", lambda self, preparation: None)
    drawn.clear()
    assert_same(outcome(train((*flags, "--epochs", "3"), FLOAT, "trainer")), by_threads)
    assert set(drawn) == {"MainThread"}


def test_augmented_batches_share_memory(train, monkeypatch):
    """A batch is released before the next but one is made, so two buffers serve all; values are as without them."""
    places = []
    made = step.model_input

    def noted(*arguments):
        batch = made(*arguments)
        places.append(batch.untyped_storage().data_ptr())
        return batch

    monkeypatch.setattr(step, "model_input", noted)
    flags = ("-b", "4", "--grad-accum-steps", "2", "--epochs", "2")
    pooled = train(flags, FLOAT, "pooled")
    assert len(places) >= 12 and len(set(places[-8:])) <= 2  # the first ones are larger, or kept for a while
    monkeypatch.setattr(images.results, "tensor", lambda shape, dtype: torch.empty(shape, dtype=dtype))
    assert_same(outcome(train(flags, FLOAT, "fresh")), outcome(pooled))


def test_clipping_compares_with_the_true_norm(train):
    """Not with the norm of gradients that a scaler has multiplied by 1,024."""
    flags = ("-b", "5", "--clip-grad", "0.1", "--opt", "sgd", "--momentum", "0")
    assert_same(outcome(train(flags, SCALED, "scaled")), outcome(train(flags, FLOAT, "plain")))


def test_a_run_without_a_scaler_goes_on_with_one(train):
    """As one that began in bf16, on a GPU that has none: its checkpoint says nothing of a scale."""
    train(("--epochs", "1"), FLOAT)
    resumed = train(("--epochs", "2", "--resume", "auto"), SCALED)
    assert resumed.progress.epoch == 2 and resumed.setup.optimisation.scaler.is_enabled()


@dataclass(frozen=True)
class Alike(Ranks):
    """Ranks that all do the same."""

    def sum(self, tensor):
        return tensor.mul_(self.world_size)

    def begin_sum(self, tensor):
        return lambda: self.sum(tensor)


@pytest.fixture
def fifteen(train):
    """A run on fifteen ranks with equal gradients."""
    run = train(("-b", "4"), FLOAT)
    alike = Alike(0, 15, 15, torch.device("cpu"), "gloo")
    object.__setattr__(run.setup, "ranks", alike)
    run.progress.counts = StepCounts(alike, run.setup.nominal_batch)
    for parameter in run.progress.parameters:
        parameter.grad = torch.ones_like(parameter)
    return run


@pytest.mark.parametrize("heard", [0, signal.SIGINT, signal.SIGTERM])
def test_fifteen_ranks_that_hear_a_signal(fifteen, heard):
    """15 x SIGINT is not SIGTERM, with the meter's sums as with the step's."""
    fifteen.progress.counts.begin(2, heard, whole=False)
    assert average_gradients(fifteen) == heard
    assert all((parameter.grad == 2.0).all() for parameter in fifteen.progress.parameters)  # 4 / 2 samples
    assert lines.show(fifteen, None, lines.send(fifteen, heard, None)) == heard


@pytest.mark.parametrize(("rows", "whole", "denominator", "correction"), [(2, True, 2.0, None), (6, False, 4.0, 2 / 3)])
def test_what_losses_and_gradients_of_fifteen_ranks_are_divided_by(rows, whole, denominator, correction):
    """Of one batch by the ranks' mean number of samples; of several by the nominal batch, with a correction."""
    counts = StepCounts(Alike(0, 15, 15, torch.device("cpu"), "gloo"), nominal=4)
    for _ in range(2):
        counts.begin(rows, 0, whole=whole)
        assert float(counts.denominator()) == denominator
        factor = counts.correction()
        assert factor is None if correction is None else float(factor) == pytest.approx(correction)
        assert counts.end() == 0


def test_the_denominator_of_one_rank_stays_where_it_is():
    counts = StepCounts(ALONE, nominal=4)
    found = []
    for rows, whole in ((4, True), (3, True), (0, True), (4, True), (3, False)):
        counts.begin(rows, rows, whole=whole)
        found.append((float(counts.denominator()), counts.correction(), counts.denominator().data_ptr()))
        assert counts.end() == rows
    assert [values[:2] for values in found] == [(4.0, None), (3.0, None), (1.0, None), (4.0, None), (4.0, 4 / 3)]
    assert len({place for _, _, place in found}) == 1


def test_the_sum_over_ranks_begins_with_the_batch_and_ends_behind_the_forward_pass(train, trained, monkeypatch):
    said = []

    class Told(Alike):
        def begin_sum(self, tensor):
            said.append("begins")
            return lambda: (said.append("ends"), self.sum(tensor))[1]

    run = assembled(train(("-b", "4"), FLOAT), trained)
    told = Told(0, 15, 15, torch.device("cpu"), "gloo")
    object.__setattr__(run.setup, "ranks", told)
    run.progress.counts = StepCounts(told, run.setup.nominal_batch)
    run.progress.parallel.register_forward_hook(lambda *_: said.append("forward"))
    next(iter(run.progress.parallel.parameters())).register_hook(lambda gradient: said.append("backward"))
    optimiser_step(run, iter(run.setup.data.loader), 1, AugmentStream(torch.device("cpu")))
    assert said == ["begins", "forward", "ends", "backward"]
    run.setup.data.loader.close()


def test_a_step_takes_no_more_batches_than_it_was_given(train, trained):
    run = assembled(train(("-b", "4", "--grad-accum-steps", "2"), FLOAT), trained)
    stream, batches = AugmentStream(torch.device("cpu")), iter(run.setup.data.loader)
    assert optimiser_step(run, batches, 2, stream) == 0
    assert optimiser_step(run, batches, 1, stream) == 0
    assert run.progress.step == 2 and len(list(batches)) == 6 - 3
    run.setup.data.loader.close()
