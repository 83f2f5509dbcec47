"""`--lr find`: the learning-rate range test (Smith, 2015 and 2018), with the run's own loader and whole steps.

From step to step the rate rises by the same factor until the loss diverges. Everything is undone then, and the rate is
chosen from the curve: the one at which the loss falls fastest, which did better than a tenth of the one at which it is
lowest (benchmarks/lr_find.py).
"""

import math
import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from rich.console import Console

from fastimg.errors import UserError
from fastimg.loaders import Batch
from fastimg.models.freezing import train_mode
from fastimg.system.memory import advice, ran_out, release
from fastimg.system.terminal import say
from fastimg.train.augment_stream import AugmentStream
from fastimg.train.checkpoints.run_directory import RANGE_TEST
from fastimg.train.optimisers.schedules import RisingRate
from fastimg.train.reporting.plots import plot_range_test
from fastimg.train.run import Run
from fastimg.train.step import optimiser_step
from fastimg.wording import plural

FIRST = 1e-6  # the first rate
LAST = 100.0  # the last, where the loss has not diverged before
PER_DECADE = 12  # steps in which the rate rises tenfold
_REACH = 30.0  # the fall is looked for from this part of the rate at which the loss is lowest: before it is noise
_MEMORY = 0.8  # share of the running mean that a step keeps: what decides on divergence
_WIDTH = 2.0  # steps: standard deviation of the weights that smooth the whole curve
_NOISE = 5.0  # standard deviations by which the loss has to fall
_LEAST = 0.01  # share of the first loss by which it has to fall


@dataclass(frozen=True, kw_only=True)
class RangeTest:
    """The curve, and the rate that is chosen from it.

    rates, losses: of each step, over all ranks; smoothed: the same losses, smoothed over the neighbouring steps.
    lowest: the rate at which the smoothed loss is lowest; steepest: the one shortly below it at which it falls fastest.
    """

    rates: tuple[float, ...]
    losses: tuple[float, ...]
    smoothed: tuple[float, ...]
    lowest: float
    steepest: float
    diverged: bool
    seconds: float = 0.0

    @property
    def lr(self) -> float:
        """The chosen rate, with three digits."""
        return float(f"{self.steepest:.3g}")

    def words(self) -> str:
        """Why it was chosen."""
        until = "it diverged" if self.diverged else "the test ended"
        return (
            f"where the loss fell fastest, from {self.smoothed[0]:.3g} to {min(self.smoothed):.3g} at "
            f"{self.lowest:.3g}; {until} at {self.rates[-1]:.3g}; {plural(len(self.rates), 'step')} in "
            f"{self.seconds:.1f} s, undone"
        )


def find_learning_rate(trial: Callable[[], Run], console: Console) -> RangeTest:
    """Take steps at rising rates with the run that `trial` makes, undo them, and choose a rate; all ranks alike.

    The model's weights and statistics, and the generators of random numbers, are afterwards what they were. Raises
    UserError where the loss never falls, and where memory runs out.
    """
    run = trial()
    setup = run.setup
    began = time.perf_counter()
    try:
        with _undone(run):
            rates, losses, diverged = _rise(run)
    except Exception as error:
        if ran_out(error):
            raise UserError(f"--lr find: out of memory on {setup.ranks.device}; {advice(setup.config)}") from error
        raise
    seconds = time.perf_counter() - began
    found = replace(evaluated(rates, losses, diverged=diverged), seconds=seconds)
    device = setup.ranks.device
    del run, setup
    release(device)
    say(console, f"learning rate {found.lr:g}: {found.words()}")
    return found


def record(run: Run, found: RangeTest) -> None:
    """Write a range test into the run's log, and draw it; on rank 0, which has the log."""
    log = run.accounting.log
    if log is None:
        return
    numbers = {"lr": found.lr, "lowest": found.lowest, "steepest": found.steepest, "seconds": round(found.seconds, 3)}
    curve = {"rates": [float(f"{rate:.6g}") for rate in found.rates], "losses": [*found.losses]}
    log.add("lr_find", step=0, **numbers, **curve)
    file: Path = run.setup.directory / RANGE_TEST
    plot_range_test(found.rates, found.losses, found.smoothed, found.lr, found.lowest, file, run.setup.directory.name)
    if run.accounting.trackers is not None:
        run.accounting.trackers.picture(file)


def evaluated(rates: Sequence[float], losses: Sequence[float], *, diverged: bool) -> RangeTest:
    """What a curve says. Raises UserError where the loss does not fall by more than its noise."""
    few = len(rates) <= PER_DECADE
    levels = np.array(losses, np.float64)
    smooth = smoothed(levels) if len(levels) else levels
    bottom = int(smooth.argmin()) if len(levels) else 0
    start = levels[:PER_DECADE]  # so slow that nothing is learned
    noise = float(start.std(ddof=1)) / math.sqrt(2 * math.sqrt(math.pi) * _WIDTH) if not few else 0.0
    fall = float(start.mean() - smooth[bottom]) if not few else 0.0
    if few or fall <= max(_NOISE * noise, _LEAST * abs(float(start.mean()))):
        shown = f"{float(start.mean()):.4g} at first, {smooth[bottom]:.4g} at best" if len(levels) else "not a number"
        top = f" from {FIRST:g} to {rates[-1]:.3g}" if len(levels) else ""
        raise UserError(
            f"--lr find: the loss does not fall at any rate{top} ({shown}), so there is nothing to choose by; "
            "give --lr auto, or a number"
        )
    first = int(np.searchsorted(rates, rates[bottom] / _REACH))
    slope = np.gradient(smooth[first : bottom + 1]) if bottom > first else np.zeros(1)
    return RangeTest(
        rates=tuple(rates),
        losses=tuple(losses),
        smoothed=tuple(smooth.tolist()),
        lowest=rates[bottom],
        steepest=rates[first + int(slope.argmin())],
        diverged=diverged,
    )


def smoothed(losses: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Means over neighbouring steps, with normal weights, so that no point is moved to later rates."""
    steps = np.arange(len(losses))
    weights = np.exp(-0.5 * ((steps[:, None] - steps) / _WIDTH) ** 2)
    means: npt.NDArray[np.float64] = (weights @ losses) / weights.sum(axis=1)
    return means


@contextmanager
def _undone(run: Run) -> Iterator[None]:
    """Within, the run may train; afterwards the model, and the generators, are what they were, to the bit."""
    module = run.setup.model.module
    kept = {name: tensor.detach().clone() for name, tensor in _tensors(module)}
    devices = [run.setup.ranks.device] if run.setup.ranks.device.type == "cuda" else []
    python, numbers = random.getstate(), np.random.get_state()
    try:
        with torch.random.fork_rng(devices):
            yield
    finally:
        for loader in run.setup.data.loaders:
            loader.close()
        run.setup.optimisation.optimizer.zero_grad(set_to_none=True)
        with torch.no_grad():
            for name, tensor in _tensors(module):
                tensor.copy_(kept[name])
        random.setstate(python)
        np.random.set_state(numbers)


def _tensors(module: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    yield from module.named_parameters()
    yield from module.named_buffers()


def _rise(run: Run) -> tuple[list[float], list[float], bool]:
    """(rates, losses, whether the last was infinite or far above the lowest). A sync point in each step."""
    setup = run.setup
    schedule = RisingRate(kind="constant", lr=FIRST, steps=0, warmup_steps=0, factor=10 ** (1 / PER_DECADE))
    run = replace(run, setup=replace(setup, optimisation=replace(setup.optimisation, schedule=schedule)))
    train_mode(setup.trained)
    if setup.input.progressive is not None:
        setup.data.loader.set_size(setup.input.progressive.size(0))
    source = _batches(run)
    stream = AugmentStream(setup.ranks.device, setup.config.augment_stream)
    rates: list[float] = []
    losses: list[float] = []
    for step in range(round(PER_DECADE * math.log10(LAST / FIRST)) + 1):
        before = run.progress.meter.sums.clone()
        optimiser_step(run, source, setup.config.grad_accum_steps, stream)
        counted = setup.ranks.sum(run.progress.meter.sums - before)  # on every rank the same, so that all stop together
        loss = setup.tasks.score(counted.tolist()).loss
        if not math.isfinite(loss):
            return rates, losses, True
        rates.append(schedule(step))
        losses.append(loss)
        if _diverged(losses):
            return rates, losses, True
    return rates, losses, False


def _diverged(losses: Sequence[float]) -> bool:
    """Whether the running mean of the loss is far above its lowest value: twice as far as it had fallen, or as the
    first loss is from 0."""
    mean = lowest = losses[0]
    for loss in losses[1:]:
        mean = _MEMORY * mean + (1 - _MEMORY) * loss
        lowest = min(lowest, mean)
    return mean > lowest + max(2 * (losses[0] - lowest), abs(losses[0]))


def _batches(run: Run) -> Iterator[Batch]:
    """The batches of one epoch after another, without end; crops, augmentation and kept outputs are the epoch's."""
    for run.progress.epoch in count():
        run.setup.data.loader.set_epoch(run.progress.epoch)
        yield from run.setup.data.loader
