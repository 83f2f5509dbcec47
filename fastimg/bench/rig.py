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
from fastimg.data.augmentation import model_input
from fastimg.data.datasets import Part
from fastimg.loaders import Batch, BatchSource, Dataset
from fastimg.models.precision import choose as choose_precision
from fastimg.models.ranks import Ranks
from fastimg.models.registry import train_mode
from fastimg.system.measurement import seconds, synchronise
from fastimg.train.augment_stream import Beside
from fastimg.train.choices import resolution as effective
from fastimg.train.choices.batch_size import batches
from fastimg.train.opening import build_model
from fastimg.train.parts import Parts
from fastimg.train.run import Run
from fastimg.train.setup import assemble, set_backends
from fastimg.train.step import whole_step

Clock = Callable[[], float]

SECONDS = 1.0  # minimum time to measure a rate for
_STEPS = 2  # minimum number of steps


@dataclass
class Rig:
    """A run over part of a dataset that never saves. `synthetic` is a batch on the device."""

    run: Run
    synthetic: Batch | None = None

    @property
    def loader(self) -> BatchSource:
        """The run's loader."""
        return self.run.loader

    def close(self) -> None:
        """Close the loader."""
        self.run.loader.close()


def build(config: Train, dataset: Dataset, indices: npt.NDArray[np.int64], ranks: Ranks) -> Rig:
    """A rig over samples, which may repeat. Raises UsageError for impossible settings, a text model included."""
    set_backends(config, ranks)
    precision = choose_precision(ranks.device, config.amp, config.amp_dtype)
    classes = dataset.classes or ("one", "two")
    model, preprocessing = build_model(replace(config, num_classes=max(2, len(classes))), ranks, classes)
    final = effective.resolve(config, config.data or Path(), model, preprocessing, None, ranks)
    parts = Parts(Part(dataset, indices, config.train_split), None, None)
    run = assemble(final, ranks, Path(), model, preprocessing, precision, parts, wrapping=False)
    train_mode(run.trained)
    return Rig(run)


def with_loader(rig: Rig, dataset: Dataset, indices: npt.NDArray[np.int64], **changes: Any) -> Rig:
    """The same model with another loader: other data, or changed settings of `Train`."""
    unknown = changes.keys() - {field.name for field in fields(Train)}
    assert not unknown, unknown
    run, config = rig.run, replace(rig.run.config, **changes)
    parts = Parts(Part(dataset, indices, config.train_split), None, None)
    preprocessing, precision = run.preprocessing, run.precision
    other = assemble(config, run.ranks, Path(), run.model, preprocessing, precision, parts, wrapping=False)
    train_mode(other.trained)
    return Rig(other)


def loader_rate(rig: Rig, clock: Clock = time.perf_counter) -> float:
    """Images per second of an epoch of the loader alone."""
    began, count = clock(), 0
    for batch in rig.loader:
        count += batch.samples
    synchronise(rig.run.ranks.device)
    return count / max(clock() - began, 1e-12)


def on_device(rig: Rig) -> Batch:
    """A copy of one of the loader's batches, kept on the device."""
    if rig.synthetic is None:
        for batch in rig.loader:
            rig.synthetic = replace(
                batch,
                inputs=batch.inputs.clone(),
                targets=batch.targets.clone(),
                weight=torch.ones_like(batch.weight),
                ids=batch.ids.clone(),
                samples=len(batch.ids),
                ready=None,
            )
            break
        assert rig.synthetic is not None
        rig.loader.set_epoch(0)
    return rig.synthetic


def synthetic_rate(rig: Rig, warm: int = 1, clock: Clock = time.perf_counter) -> float:
    """Images per second of augmentation and step, on a batch that is on the device already."""
    return _steps(rig, itertools.repeat(on_device(rig)), warm, clock)


def real_rate(rig: Rig, warm: int, clock: Clock = time.perf_counter, seconds: float = SECONDS) -> float:
    """Images per second end to end. The first `warm` steps, which use up what was read ahead, are not counted."""
    with_data = batches(rig.loader)
    try:
        return _steps(rig, with_data, warm, clock, seconds)
    finally:
        with_data.close()  # type: ignore[attr-defined]  # a generator; closing it ends the iteration over the loader


def _steps(rig: Rig, source: Iterator[Batch], warm: int, clock: Clock, least: float = SECONDS) -> float:
    run, beside, count, began, timed = rig.run, Beside(rig.run.ranks.device, rig.run.config.augment_stream), 0, 0.0, 0
    for number in itertools.count(-warm):
        if number == 0:
            synchronise(run.ranks.device)
            began = clock()
        batch = next(source)
        whole_step(run, batch, beside, number + warm)
        if number >= 0:
            count, timed = count + batch.samples, timed + 1
            if timed >= _STEPS and clock() - began > least:
                break
    synchronise(run.ranks.device)
    return count / max(clock() - began, 1e-12)


def augment_rate(rig: Rig) -> float:
    """Images per second of augmentation alone: drawing the plan, and computing the model's input from uint8."""
    run, batch = rig.run, on_device(rig)

    def one() -> None:
        plan = None if run.config.no_aug else draw(run.policy, batch.ids, run.config.seed, 0)
        model_input(plan, batch.inputs, run.policy, run.precision.input_dtype, run.kornia, 0)

    return len(batch.ids) / _each(one, run.ranks.device)


def step_rate(rig: Rig) -> float:
    """Images per second of forward pass, backward pass and update alone, on an input computed beforehand."""
    run, batch = rig.run, on_device(rig)
    images = model_input(None, batch.inputs, run.policy, run.precision.input_dtype)
    targets = batch.targets.clamp(min=0)

    def one() -> None:
        with run.precision.autocast():
            logits = run.parallel(images)
        loss = torch.nn.functional.cross_entropy(logits.float(), targets)
        run.scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
        run.scaler.step(run.optimizer)
        run.scaler.update()
        run.optimizer.zero_grad(set_to_none=True)

    one()
    return len(batch.ids) / _each(one, run.ranks.device)


def copy_rate(rig: Rig) -> tuple[float, float, float] | None:
    """(images per second, bytes per second of a slot, bytes per second of 256 MB) to the device; None on a CPU."""
    device = rig.run.ranks.device
    if device.type != "cuda":
        return None
    size = rig.loader.slot_bytes
    found = []
    for nbytes in (size, 2**28):
        source = torch.ones(nbytes, dtype=torch.uint8, pin_memory=True)
        target = torch.empty(nbytes, dtype=torch.uint8, device=device)
        copy = _copier(source, target)
        copy()
        found.append(nbytes / _each(copy, device))
    return found[0] / size * rig.loader.config.batch_size, found[0], found[1]


def device_copy_rate(device: torch.device, nbytes: int = 2**28) -> float:
    """Bytes per second read and written, counted together, in a copy of `nbytes` in the device's memory."""
    a, b = (torch.ones(nbytes, dtype=torch.uint8, device=device) for _ in range(2))
    copy = _copier(a, b)
    copy()
    return 2 * nbytes / _each(copy, device)


def _copier(source: torch.Tensor, target: torch.Tensor) -> Callable[[], object]:
    return lambda: target.copy_(source, non_blocking=True)


def _each(call: Callable[[], object], device: torch.device) -> float:
    """Seconds per call: the mean over about a third of a second, and at least 3 calls."""
    first = max(seconds(call, device), 1e-7)
    calls = max(3, min(1000, int(SECONDS / 3 / first)))

    def several() -> None:
        for _ in range(calls):
            call()

    return seconds(several, device) / calls
