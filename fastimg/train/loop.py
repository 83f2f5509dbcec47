"""Training: `train` prepares the run, `_epoch` is the hot loop, `_end_of_epoch` validates and saves.

A run that is interrupted anywhere and resumed does the same arithmetic as one that is not: order, crops, augmentation
and dropout are functions of the step.
"""

import math
import time
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist
from rich.console import Console

from fastimg.config.commands import Train
from fastimg.errors import UserError
from fastimg.loaders import BatchSource
from fastimg.models.ranks import Ranks, agree_on_buffers, start
from fastimg.models.registry import train_mode
from fastimg.system.memory import advice, ran_out
from fastimg.system.progress import Display, Line
from fastimg.system.signals import Interrupt, strongest, votes
from fastimg.train.checkpoints.saving import save, write_pending
from fastimg.train.reporting.summary import print_summary
from fastimg.train.reporting.waiting import verdict, warn
from fastimg.wording import plural

from .augment_stream import AugmentStream
from .metrics import Meter, Score, evaluate, shows_top5
from .patience import stopped
from .run import Run
from .setup import prepare
from .step import optimiser_step
from .wrapping import compile_ahead, unfreeze


@dataclass(frozen=True)
class Result:
    """How a run ended. `signal` is 0 unless a signal interrupted it; `run` is None for a dry run."""

    run: Path | None
    signal: int
    best: Score | None


def train(config: Train, console: Console) -> Result:
    """Train as `config` says. Raises UsageError, UserError and DataError, each with a sentence for the user."""
    with ExitStack() as stack:
        ranks = stack.enter_context(start(config.device, config.numa_binding))
        run = prepare(config, ranks, console, stack)
        if run is None:
            return Result(None, 0, None)
        try:
            compile_ahead(run, partial(console.print, highlight=False) if ranks.first else _silent)
            signal = _all_epochs(run, console)
        except Exception as error:
            write_pending(run)
            if ran_out(error):
                raise _out_of_memory(run) from error
            raise
        unreadable = [_total(len(loader.unreadable), ranks) for loader in run.setup.data.loaders]
        if ranks.first:
            print_summary(run, console, unreadable, signal, None if signal else verdict(run))
        return Result(run.setup.directory, signal, run.best.score if run.best else None)


def _all_epochs(run: Run, console: Console) -> int:
    """Train until the last epoch, a signal, or the end of patience. Returns the signal, else 0."""
    setup = run.setup
    progress = run.progress
    with Interrupt() as interrupt, ExitStack() as stack:
        display = None
        if setup.ranks.first:
            display = stack.enter_context(Display(console, setup.epochs, setup.optimisation.steps_per_epoch))
        while progress.epoch < setup.epochs and not run.out_of_patience:
            if run.step_in_epoch < run.steps_of_epoch:
                signal = _epoch(run, interrupt, display)
                if signal:
                    return signal
            _end_of_epoch(run, display)
        if run.stopped_early and display is not None:
            display.say(f"stopped: {stopped(progress.standing, setup.patience_metric, progress.epoch)}")
    return 0


def _epoch(run: Run, interrupt: Interrupt, display: Display | None) -> int:
    """Train to the end of the epoch, from wherever the run is. Returns the signal that stopped it, else 0."""
    setup = run.setup
    progress = run.progress
    accounting = run.accounting
    config = setup.config
    loader = setup.data.loader
    accumulate = setup.config.grad_accum_steps

    unfreeze(run, display.say if display is not None else _silent)
    train_mode(setup.trained)
    if setup.input.progressive is not None:
        loader.set_size(setup.input.progressive.size(progress.epoch))
    if run.step_in_epoch == 0:
        loader.set_epoch(progress.epoch)
    accounting.account.begin()
    accounting.trace.begin(progress.step, progress.meter)
    left = len(loader) - run.step_in_epoch * accumulate
    batches = iter(loader)
    stream = AugmentStream(setup.ranks.device, config.augment_stream)
    began = time.perf_counter()

    while run.step_in_epoch < run.steps_of_epoch:
        # Sync point between ranks: gradients, the true batch and signals are exchanged. On a GPU the host goes on.
        stop = optimiser_step(run, batches, min(accumulate, left), stream, interrupt)
        left -= accumulate
        if display is not None:
            display.advance(progress.epoch, run.step_in_epoch)

        ended = run.step_in_epoch == run.steps_of_epoch
        save_now = progress.step % config.save_interval == 0 and not ended
        accounting.trace.note(progress.step, progress.meter, ended or save_now or stop > 0)
        if run.step_in_epoch % config.log_interval == 0 or ended:
            stop = _report(run, display, interrupt.signal) or stop  # sync point: the meter is read

        if stop or save_now:
            _totals(run, 0)  # sync point: a run that has diverged is not saved
            _log_steps(run)
            began = accounting.spend(began)
            save(run)
        if stop:
            return stop
    accounting.spend(began)
    return 0


def _report(run: Run, display: Display | None, signal: int) -> int:
    """Show and log the state of the epoch, over all ranks. Returns the signal that some rank heard, else 0."""
    setup = run.setup
    progress = run.progress
    score, signal = _totals(run, signal)
    if score.samples == 0 and run.step_in_epoch == run.steps_of_epoch:
        raise _nothing_decoded(run, setup.data.loader, "training")
    _log_steps(run)
    window = run.accounting.account.read()
    speed = window.speed * setup.ranks.world_size
    if display is not None and run.accounting.log is not None:
        lr = setup.optimisation.schedule(progress.step - 1)
        line = Line(
            epoch=progress.epoch,
            step=run.step_in_epoch,
            loss=score.loss,
            top1=score.top1,
            lr=lr,
            speed=speed,
            wait_share=window.wait_share,
            eta=(setup.steps - progress.step) * setup.true_batch / max(speed, 1e-9),
            unit=setup.unit,
        )
        display.show(line)
        values = score.as_dict(len(setup.data.classes))
        speeds = {"lr": lr, f"{setup.unit}_per_second": round(speed, 1), **window.record()}
        run.accounting.log.add("train", epoch=progress.epoch + 1, step=progress.step, **values, **speeds)
        warn(run, display)
    return signal


def _log_steps(run: Run) -> None:
    """Log the steps since the last call, over all ranks; in long runs one record has the mean of several steps."""
    schedule = run.setup.optimisation.schedule
    classes = len(run.setup.data.classes)
    records = [
        {"epoch": run.progress.epoch + 1, "step": step, **score.as_dict(classes), "lr": schedule(step - 1)}
        for step, score in run.accounting.trace.read(run.setup.ranks)
    ]
    if run.accounting.log is not None:
        run.accounting.log.add_all("step", records)


def _totals(run: Run, signal: int) -> tuple[Score, int]:
    """The epoch so far over all ranks, and the signal that some rank heard. Raises UserError if the loss is NaN."""
    ranks = run.setup.ranks
    sums = run.progress.meter.sums
    total = ranks.sum(torch.cat([sums, sums.new_tensor(votes(signal))])).tolist()  # sync point
    score = Score.of(total[: len(sums)])
    if not math.isfinite(score.loss):
        raise _diverged(run, score.loss)
    return score, strongest(total[len(sums) :])


def _diverged(run: Run, loss: float) -> UserError:
    """The step in which the loss stopped being finite, and what to do about it. All ranks have to call this."""
    setup = run.setup
    progress = run.progress
    if setup.ranks.world_size > 1:
        dist.all_reduce(progress.bad_step, dist.ReduceOp.MIN)
    bad = round(float(progress.bad_step))
    last = setup.directory / "last"
    kept = f"the last good checkpoint is {last}" if last.exists() else "no checkpoint was written before it"
    return UserError(
        f"the loss became {loss} in step {bad} (learning rate {setup.optimisation.schedule(bad - 1):.3g}); lower --lr, "
        f"raise --warmup or set --clip-grad; {kept}"
    )


def _out_of_memory(run: Run) -> UserError:
    setup = run.setup
    what = f"images of {setup.input.preprocessing.train_size} pixels"
    if setup.model.text is not None:
        what = f"texts of up to {plural(setup.model.text.tokenizer.length, 'token')}"
    return UserError(
        f"out of memory on {setup.ranks.device} in step {run.progress.step + 1}, with batches of {setup.batch_size} "
        f"{what}: {advice(setup.config)}"
    )


def _end_of_epoch(run: Run, display: Display | None) -> None:
    """Validate, save, and move on to the next epoch."""
    setup = run.setup
    progress = run.progress
    accounting = run.accounting
    if display is not None:
        display.note("validating and saving")
    ended = time.perf_counter()
    progress.epoch += 1
    progress.meter = Meter(setup.ranks.device)
    agree_on_buffers(setup.model.module, setup.ranks)
    is_best = setup.data.val_loader is None
    due = progress.epoch % setup.config.val_interval == 0 or progress.epoch == setup.epochs
    if setup.data.val_loader is not None and due:
        score = _evaluate(run, setup.data.val_loader, "validation")
        counts = not setup.changing(progress.epoch - 1)
        progress.standing = progress.standing.after(score, progress.epoch, setup.patience_metric, counts=counts)
        is_best = run.best is not None and run.best.epoch == progress.epoch
        _report_evaluation(run, display, "val", "validation", score, "  (best)" if is_best else "")
    if setup.data.train_eval_loader is not None and due:
        score = _evaluate(run, setup.data.train_eval_loader, "training")
        _report_evaluation(run, display, "train_eval", "training split", score)
    evaluated = time.perf_counter()
    save(run, best=is_best, may_wait=progress.epoch < setup.epochs and not run.out_of_patience)
    if accounting.log is not None:
        spent = {"train": accounting.epoch_seconds, "val": evaluated - ended, "save": time.perf_counter() - evaluated}
        seconds = {f"{name}_seconds": round(value, 4) for name, value in spent.items()}
        accounting.log.add("epoch", epoch=progress.epoch, step=progress.step, **seconds)
    accounting.epoch_seconds = 0.0


def _evaluate(run: Run, loader: BatchSource, name: str) -> Score:
    """Evaluate the weights that would be saved."""
    setup = run.setup
    policy = setup.input.policy
    classes = len(setup.data.classes)
    with setup.averaged():
        agree_on_buffers(setup.model.module, setup.ranks)
        score = evaluate(setup.trained, loader, policy, setup.precision, setup.ranks, classes, setup.config.tta)
    if score.samples == 0:
        raise _nothing_decoded(run, loader, name)
    return score


def _report_evaluation(run: Run, display: Display | None, kind: str, name: str, score: Score, mark: str = "") -> None:
    """Show and log an evaluation."""
    progress = run.progress
    classes = len(run.setup.data.classes)
    if display is not None and run.accounting.log is not None:
        top5 = f"  top5 {score.top5:.2%}" if shows_top5(classes) else ""
        balanced = f"  balanced {score.balanced_accuracy:.2%}" if score.balanced_accuracy is not None else ""
        text = f"{name}  loss {score.loss:.4f}  top1 {score.top1:.2%}{top5}{balanced}{mark}"
        display.say(f"epoch {progress.epoch}/{run.setup.epochs}  {text}")
        run.accounting.log.add(kind, epoch=progress.epoch, step=progress.step, **score.as_dict(classes))


def _nothing_decoded(run: Run, loader: BatchSource, name: str) -> UserError:
    """Names one sample that could not be decoded, and why; if this rank has none, another one does."""
    failures = (f"{loader.dataset.sample_name(index)}: {reason}" for index, reason in loader.unreadable.items())
    example = next(failures, "see the other ranks")
    data = run.setup.config.data
    unit = run.setup.unit[:-1]
    return UserError(f"{data}: no {name} {unit} could be decoded ({example}); replace them")


def _silent(_: str) -> None:
    """Print nothing: for ranks other than the first."""


def _total(count: int, ranks: Ranks) -> int:
    return int(ranks.sum(torch.tensor([count], device=ranks.device)))
