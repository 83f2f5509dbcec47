"""Progress lines and records of steps: sent to the host at one log step, shown there, or on a GPU at the next one.

    Lines.add(request, at_once) -> sent to the host; shown and logged here, or by the next `add` or `settle`
    Lines.glance()              -> on a terminal, what this rank has counted between two lines, once it has arrived

On a GPU a line that was shown at once would wait for all the work that is enqueued, and the device would then wait for
the host to enqueue more. A line later its numbers have long arrived. Each line is labelled with its own step.
"""

import math
import time
from dataclasses import dataclass
from pathlib import Path

import torch

from fastimg.errors import UserError
from fastimg.loaders import BatchSource
from fastimg.models.registry import read_weights
from fastimg.system.progress import Display, Line
from fastimg.system.signals import strongest, votes
from fastimg.train.checkpoints.format import MODEL
from fastimg.train.metrics import OnTheWay, TracedSteps
from fastimg.train.run import Run
from fastimg.train.tasks.score import AnyScore

from .accounting import TrainingTime
from .waiting import warn


@dataclass(frozen=True, kw_only=True)
class Glanced:
    """The state of the epoch after `step`, as this rank counted it, on its way to the host."""

    step: int  # optimiser steps of the run
    step_in_epoch: int
    totals: OnTheWay  # the meter's sums
    window: TrainingTime  # lately


@dataclass(frozen=True, kw_only=True)
class Unread:
    """The state of the epoch after `step`, over all ranks, on its way to the host."""

    step: int  # optimiser steps of the run
    step_in_epoch: int
    totals: OnTheWay  # the meter's sums, and what the ranks ask for
    traced: TracedSteps
    window: TrainingTime | None  # since the last line; None: no line is shown


_GLANCES = 0.5  # seconds between two, at least
_ENOUGH = 2.0  # seconds that tell a speed; before them, the last line's window counts too


def behind(device: torch.device) -> bool:
    """Whether lines are shown a line later."""
    return device.type == "cuda"


class Lines:
    """The progress lines of an epoch. Ranks call its methods alike, and get the same requests back.

    All of them raise UserError where the loss is not finite, or where nothing could be decoded in a whole epoch.
    """

    def __init__(self, run: Run, display: Display | None) -> None:
        self._run = run
        self._display = display
        self._unread: Unread | None = None
        self._glanced: Glanced | None = None
        self._glanced_at = 0.0
        self._window = TrainingTime()  # the steady part of the last line's

    def glance(self) -> None:
        """On a terminal, show what has been counted since the last line, of this rank alone: no sync, no collective.

        A step reads the clock once. On a GPU the numbers are shown by the first step that finds them arrived.
        """
        display = self._display
        if display is None or not display.live:
            return
        now = time.monotonic()
        if self._glanced is None and now - self._glanced_at >= _GLANCES:
            self._glanced_at = now
            window = self._run.accounting.account.peek()
            self._glanced = Glanced(
                step=self._run.progress.step,
                step_in_epoch=self._run.step_in_epoch,
                totals=OnTheWay(self._run.progress.meter.sums.clone()),
                window=window if window.seconds >= _ENOUGH else self._window + window,
            )
        if (seen := self._glanced) is not None and seen.totals.arrived():
            self._glanced = None
            score = self._run.setup.tasks.score(seen.totals.read())
            if score.samples:
                display.glance(_line(self._run, seen, score, seen.window))

    def add(self, request: int, at_once: bool) -> int:
        """A line for this step, shown now if `at_once`. Returns the strongest request that was read, else 0."""
        read = self.settle()
        self._glanced = None  # the line is as new
        self._window = self._run.accounting.account.peek()
        self._unread = send(self._run, request, self._run.accounting.account.read())
        if at_once or not behind(self._run.setup.ranks.device):
            return max(read, self.settle())  # sync point: the meter is read
        return read

    def settle(self) -> int:
        """Show the line that is on its way, if there is one."""
        if self._unread is None:
            return 0
        unread = self._unread
        self._unread = None
        return show(self._run, self._display, unread)

    def record(self) -> None:
        """Log the steps so far, without a line: before a save, since a run that has diverged is not saved."""
        show(self._run, self._display, send(self._run, 0, None))  # sync point: the meter is read


def send(run: Run, request: int, window: TrainingTime | None) -> Unread:
    """Send the state of the epoch to the host, with what this rank asks for. No sync; all ranks call it."""
    ranks = run.setup.ranks
    sums = run.progress.meter.sums
    own = [torch.full((), vote, dtype=sums.dtype, device=sums.device) for vote in votes(request)]  # no list is copied
    return Unread(
        step=run.progress.step,
        step_in_epoch=run.step_in_epoch,
        totals=OnTheWay(ranks.sum(torch.cat([sums, torch.stack(own)]))),
        traced=run.accounting.trace.fetch(ranks),
        window=window,
    )


def show(run: Run, display: Display | None, unread: Unread) -> int:
    """Log what was sent, and show its line. Returns the strongest request of any rank, else 0.

    A sync point only where the numbers have not arrived yet.
    """
    setup = run.setup
    totals = unread.totals.read()
    sums = len(run.progress.meter.sums)
    score = setup.tasks.score(totals[:sums])
    if not math.isfinite(score.loss):
        raise _diverged(run, score.loss)
    if unread.window is not None and score.samples == 0 and unread.step_in_epoch == run.steps_of_epoch:
        raise nothing_decoded(run, setup.data.loader, "training")
    _log_steps(run, unread)
    log = run.accounting.log
    window = unread.window
    if unread.step_in_epoch == run.steps_of_epoch:
        run.accounting.epoch_loss = score.loss
    if window is not None and display is not None and log is not None:
        line = _line(run, unread, score, window)
        display.show(line)
        values = setup.tasks.record(score)
        speeds = {"lr": line.lr, f"{setup.unit}_per_second": round(line.speed, 1), **window.record()}
        log.add("train", epoch=run.progress.epoch + 1, step=unread.step, **values, **speeds)
        warn(run, display)
    return strongest(totals[sums:])


def _line(run: Run, unread: Unread | Glanced, score: AnyScore, window: TrainingTime) -> Line:
    setup = run.setup
    speed = window.speed * setup.ranks.world_size
    return Line(
        epoch=run.progress.epoch,
        step=unread.step_in_epoch,
        loss=score.loss,
        score=setup.tasks.line(score),
        lr=setup.optimisation.schedule(unread.step - 1),
        speed=speed,
        wait_share=window.wait_share,
        eta=(setup.steps - unread.step) * setup.true_batch / max(speed, 1e-9),
        unit=setup.stepped,
    )


def _log_steps(run: Run, unread: Unread) -> None:
    """Log the steps since the line before; in long runs one record has the mean of several steps."""
    schedule = run.setup.optimisation.schedule
    tasks = run.setup.tasks
    records = [
        {"epoch": run.progress.epoch + 1, "step": step, **tasks.record(score), "lr": schedule(step - 1)}
        for step, score in unread.traced.read(tasks)
    ]
    if run.accounting.log is not None:
        run.accounting.log.add_all("step", records)


def _diverged(run: Run, loss: float) -> UserError:
    """The step in which the loss stopped being finite, and what to do about it. All ranks have to call this."""
    setup = run.setup
    progress = run.progress
    bad = progress.first_bad.read(setup.ranks) or progress.step  # the latest, where only a sum became infinite
    progress.writer.complete()  # an epoch that waits in memory is a checkpoint, too
    last = setup.directory / "last"
    if not last.exists():
        kept = "no checkpoint was written before it"
    elif _is_finite(last / MODEL):
        kept = f"the last good checkpoint is {last}"
    else:  # the last step before it had made weights infinite, and its own loss was that of the weights before
        kept = f"the weights in {last} are not finite, either"
    return UserError(
        f"the loss became {loss} in step {bad} (learning rate {setup.optimisation.schedule(bad - 1):.3g}); lower --lr, "
        f"raise --warmup or set --clip-grad; {kept}"
    )


def _is_finite(weights: Path) -> bool:
    """Whether all of a checkpoint's numbers are finite."""
    tensors, _ = read_weights(weights)
    return all(bool(tensor.isfinite().all()) for tensor in tensors.values())


def nothing_decoded(run: Run, loader: BatchSource, name: str) -> UserError:
    """Names one sample that could not be decoded, and why; if this rank has none, another one does."""
    failures = (f"{loader.dataset.sample_name(index)}: {reason}" for index, reason in loader.unreadable.items())
    example = next(failures, "see the other ranks")
    data = run.setup.config.data
    unit = run.setup.unit[:-1]
    return UserError(f"{data}: no {name} {unit} could be decoded ({example}); replace them")
