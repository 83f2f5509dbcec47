"""A test rig for the trainer: its own loader and its own step, alone and together, without a run directory."""

import itertools
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from fastimg.augment import draw
from fastimg.config.commands import Train
from fastimg.data.datasets import DatasetPart, names_targets
from fastimg.data.model_input import model_input
from fastimg.loaders import Batch, BatchSource, Dataset
from fastimg.loaders.batch import copied
from fastimg.models.freezing import train_mode
from fastimg.models.precision import choose as choose_precision
from fastimg.models.precision import set_backends
from fastimg.models.ranks import Ranks
from fastimg.system.measurement import seconds, synchronise, wall_seconds
from fastimg.train.assembly import Blueprint, assemble
from fastimg.train.augment_stream import AugmentStream
from fastimg.train.choices import resolution as effective
from fastimg.train.choices import step_rates
from fastimg.train.choices.batch_size import batches
from fastimg.train.choices.machine_profile import device_name
from fastimg.train.opening import build_model
from fastimg.train.parts import Parts
from fastimg.train.run import Run
from fastimg.train.step import optimiser_step, update
from fastimg.train.tasks import selection
from fastimg.train.tasks.selection import ChosenTargets
from fastimg.train.work import MicroBatch

from .budget import Budget

Clock = Callable[[], float]

SECONDS = 1.0  # minimum time to measure a rate for, where no budget says otherwise


@dataclass
class Rig:
    """A run over part of a dataset that never saves. `synthetic` is a batch on the device."""

    run: Run
    synthetic: Batch | None = None
    drained: float | None = None  # share of the last steps in which the GPU had nothing left to do; None on a CPU

    @property
    def loader(self) -> BatchSource:
        """What reads and decodes."""
        return self.run.setup.data.loader

    @property
    def config(self) -> Train:
        """What is measured."""
        return self.run.setup.config

    @property
    def device(self) -> torch.device:
        """Where it computes."""
        return self.run.setup.ranks.device

    def close(self) -> None:
        """End the loader."""
        self.loader.close()


def build(config: Train, dataset: Dataset, indices: npt.NDArray[np.int64], ranks: Ranks) -> Rig:
    """A rig over samples, which may repeat. Raises UsageError for impossible settings, a text model included."""
    set_backends(ranks.device, config.deterministic)
    precision = choose_precision(ranks.device, config.amp, config.amp_dtype)
    part = DatasetPart(dataset, indices, config.train_split)
    targets = chosen(config, part)
    names = targets.tasks.output_names
    model, preprocessing = build_model(replace(config, num_classes=targets.tasks.outputs), ranks, names)
    if ranks.device.type == "cuda":
        precision = step_rates.precision(precision, config, model, device_name(ranks.device))
    final = effective.resolve(config, config.data or Path(), model, preprocessing, None, ranks)
    blueprint = Blueprint(
        config=final,
        directory=Path(),
        model=model,
        preprocessing=preprocessing,
        precision=precision,
        parts=Parts(part, None, None),
        targets=targets,
    )
    run = assemble(blueprint, ranks, alone=True)
    train_mode(run.setup.trained)
    return Rig(run)


def chosen(config: Train, part: DatasetPart) -> ChosenTargets:
    """What a training would learn: the targets that the data names, else the class, also where there is only one.

    Those of the whole split: a few of its images need not have every target.
    """
    if names_targets(part.dataset):
        return selection.choose(config, config.data or Path(), replace(part, indices=None))
    return selection.of_labels(config, part.dataset)


def with_loader(rig: Rig, dataset: Dataset, indices: npt.NDArray[np.int64], **changes: Any) -> Rig:
    """The same model with another loader: other data, or changed settings of `Train`."""
    unknown = changes.keys() - {field.name for field in fields(Train)}
    assert not unknown, unknown
    setup = rig.run.setup
    config = replace(rig.config, **changes)
    part = DatasetPart(dataset, indices, config.train_split)
    blueprint = Blueprint(
        config=config,
        directory=Path(),
        model=setup.model,
        preprocessing=setup.input.preprocessing,
        precision=setup.precision,
        parts=Parts(part, None, None),
        targets=chosen(config, part),
    )
    other = assemble(blueprint, setup.ranks, alone=True)
    train_mode(other.setup.trained)
    return Rig(other)


def loader_rate(rig: Rig, clock: Clock = time.perf_counter) -> float:
    """Images per second of an epoch that nobody waits for but this loop."""
    began = clock()
    count = 0
    for batch in rig.loader:
        count += batch.samples
    synchronise(rig.device)
    return count / max(clock() - began, 1e-12)


def on_device(rig: Rig) -> Batch:
    """A copy of one of the loader's batches, kept on the device."""
    if rig.synthetic is None:
        for batch in rig.loader:
            rig.synthetic = replace(
                copied(batch), weight=torch.ones_like(batch.weight), samples=len(batch.ids), ready=None
            )
            break
        assert rig.synthetic is not None
        rig.loader.set_epoch(0)
    return rig.synthetic


def step_seconds(rig: Rig) -> float:
    """Seconds of a step with its augmentation, on a batch that is on the device: the faster of two, after another."""
    source = itertools.repeat(on_device(rig))
    stream = AugmentStream(rig.device, rig.config.augment_stream)

    def step() -> None:
        optimiser_step(rig.run, source, rig.config.grad_accum_steps, stream)

    for _ in range(rig.run.progress.work.warm):
        step()
    return max(1e-7, min(wall_seconds(step, rig.device) for _ in range(2)))


def synthetic_rate(rig: Rig, budget: Budget, clock: Clock = time.perf_counter) -> float:
    """Images per second of augmentation and step, on a batch that is on the device already. Nothing warms up."""
    return _steps(rig, itertools.repeat(on_device(rig)), 0, clock, budget.training, budget.steps)


def real_rate(rig: Rig, warm: int, clock: Clock = time.perf_counter, seconds: float = SECONDS, steps: int = 2) -> float:
    """Images per second end to end, over at least so many seconds and steps.

    The first `warm` steps, which use up what was read ahead, are not counted; nor are those that record CUDA graphs.
    """
    with_data = batches(rig.loader)
    try:
        return _steps(rig, with_data, warm, clock, seconds, steps)
    finally:
        with_data.close()  # type: ignore[attr-defined]  # a generator; closing it ends the iteration over the loader


def _steps(rig: Rig, source: Iterator[Batch], warm: int, clock: Clock, least: float, steps: int) -> float:
    run = rig.run
    accumulate = rig.config.grad_accum_steps
    account = run.accounting.account
    stream = AugmentStream(rig.device, rig.config.augment_stream)
    for _ in range(max(warm, run.progress.work.warm - run.progress.step)):
        optimiser_step(run, source, accumulate, stream)
    synchronise(rig.device)
    account.skip()  # what was counted before
    began = clock()
    timed = 0
    while timed < steps or clock() - began <= least:
        optimiser_step(run, source, accumulate, stream)
        timed += 1
    synchronise(rig.device)
    window = account.read()
    rig.drained = window.drained_share
    return window.samples / max(clock() - began, 1e-12)


def augment_rate(rig: Rig, budget: Budget) -> float:
    """Images per second of augmentation alone: drawing the plan, and the model's input from uint8."""
    setup = rig.run.setup
    batch = on_device(rig)
    config = rig.config
    policy = setup.input.policy
    kornia = setup.input.kornia
    dtype = setup.precision.input_dtype

    def augment() -> None:
        plan = None if config.no_aug else draw(policy, batch.ids, config.seed, 0)
        model_input(plan, batch.inputs, policy, dtype, kornia, 0)

    return len(batch.ids) / _each(augment, rig.device, budget)


def step_rate(rig: Rig, budget: Budget) -> float:
    """Images per second of forward pass, backward pass and update alone, on an input that is prepared already."""
    setup = rig.run.setup
    batch = on_device(rig)
    images = model_input(None, batch.inputs, setup.input.policy, setup.precision.input_dtype)
    prepared = MicroBatch(images, setup.data.targets.truths(batch), batch.weight)

    def step() -> None:
        work = rig.run.progress.work
        rig.run.progress.counts.begin(batch.samples, 0, whole=True)
        work.room(batch)
        work.forward_backward(work.inputs(prepared))
        update(rig.run)

    return len(batch.ids) / _each(step, rig.device, budget)


def copy_rate(rig: Rig, budget: Budget) -> tuple[float, float, float]:
    """(images per second, bytes per second of a slot and of the budget's bytes) from pinned memory to a GPU."""
    device = rig.device
    size = rig.loader.slot_bytes
    found = []
    for nbytes in (size, budget.nbytes):
        source = torch.ones(nbytes, dtype=torch.uint8, pin_memory=True)
        target = torch.empty(nbytes, dtype=torch.uint8, device=device)
        copy = _copier(source, target)
        copy()
        found.append(nbytes / _each(copy, device, budget))
    return found[0] / size * rig.loader.config.batch_size, found[0], found[1]


def device_copy_rate(device: torch.device, budget: Budget) -> float:
    """Bytes per second read and written, counted together, in a copy of the budget's bytes in the device's memory."""
    a, b = (torch.ones(budget.nbytes, dtype=torch.uint8, device=device) for _ in range(2))
    copy = _copier(a, b)
    copy()
    return 2 * budget.nbytes / _each(copy, device, budget)


def _copier(source: torch.Tensor, target: torch.Tensor) -> Callable[[], object]:
    return lambda: target.copy_(source, non_blocking=True)


def _each(call: Callable[[], object], device: torch.device, budget: Budget) -> float:
    """Seconds per call: the mean over the budget's seconds, and at least as many calls as it says.

    One call warms up, unless it takes as long as all of them may.
    """
    first = max(seconds(call, device), 1e-7)
    if budget.calls == 1 and first > budget.stage:
        return first
    calls = max(budget.calls, min(1000, int(budget.stage / first)))

    def several() -> None:
        for _ in range(calls):
            call()

    return seconds(several, device) / calls
