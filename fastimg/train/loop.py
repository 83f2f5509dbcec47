"""Training: `train` sets the scene, `_epoch` is the hot loop, `_end_of_epoch` validates and saves.

A run that is interrupted anywhere and resumed does the same arithmetic as one that is not: order, crops, augmentation
and dropout are functions of the step.
"""

import math
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist
from rich.console import Console
from torch import nn

from fastimg.config.commands import Train
from fastimg.errors import UserError
from fastimg.loaders import BatchSource
from fastimg.models import ranks as parallel
from fastimg.models.compilation import ahead
from fastimg.models.ranks import Ranks, agree_on_buffers, start
from fastimg.models.registry import train_mode
from fastimg.system.memory import advice, ran_out
from fastimg.system.progress import Display, Line
from fastimg.system.signals import Interrupt
from fastimg.train.checkpoints.saving import save, write_held
from fastimg.train.reporting.report import print_summary
from fastimg.train.reporting.waiting import tell, try_native, verdict
from fastimg.wording import plural

from .augment_stream import Beside
from .metrics import Meter, Score, evaluate, shows_top5
from .optimisers import set_lr
from .patience import stopped
from .run import Run
from .setup import compiled, prepare, wrapped
from .step import forward_backward, passes, seed_of


@dataclass(frozen=True)
class Result:
    """How a run ended. `signal` is that of an interruption, 0 for a run that is complete; `run` None for a dry run."""

    run: Path | None
    signal: int
    best: Score | None


def train(config: Train, console: Console) -> Result:
    """Train as `config` says. Raises UsageError, UserError and DataError, each a sentence for a person."""
    with ExitStack() as stack:
        ranks = stack.enter_context(start(config.device))
        run = prepare(config, ranks, console, stack)
        if run is None:
            return Result(None, 0, None)
        try:
            _compile(run, partial(console.print, highlight=False) if ranks.first else _silent)
            signal = _all_epochs(run, console)
        except Exception as error:
            write_held(run)
            if ran_out(error):
                raise _out_of_memory(run) from error
            raise
        unreadable = [_total(len(loader.unreadable), ranks) for loader in run.loaders]
        if ranks.first:
            print_summary(run, console, unreadable, signal, None if signal else verdict(run))
        return Result(run.directory, signal, run.best.score if run.best else None)


def _compile(run: Run, say: Callable[[str], None]) -> None:
    """Compile all that is to come, before the first step of it."""
    if run.compilation is not None:
        say("compiling the model for every size that it will see")
        train_mode(run.trained)
        ahead(run.compilation, run.trained, passes(run))
        say(f"compiled    {run.compilation.describe()}")


def _all_epochs(run: Run, console: Console) -> int:
    """Train until the last epoch, a signal, or the end of patience. Returns the signal, else 0."""
    with Interrupt() as interrupt, ExitStack() as stack:
        display = None
        if run.ranks.first:
            display = stack.enter_context(Display(console, run.epochs, run.steps_per_epoch))
        while run.epoch < run.epochs and not run.out_of_patience:
            if run.step_in_epoch < run.steps_of_epoch:
                signal = _epoch(run, interrupt, display)
                if signal:
                    return signal
                if display is not None:
                    try_native(run, display)
            _end_of_epoch(run, display)
        if run.stopped_early and display is not None:
            display.say(f"stopped: {stopped(run.standing, run.patience_metric, run.epoch)}")
    return 0


def _epoch(run: Run, interrupt: Interrupt, display: Display | None) -> int:
    """Train to the end of the epoch, from where the run stands. Returns the signal that stopped it, else 0."""
    config, ranks, accumulate = run.config, run.ranks, run.config.grad_accum_steps
    _thaw(run, display)
    parameters = [p for p in run.trained.parameters() if p.requires_grad]
    batches = len(run.loader) - run.step_in_epoch * accumulate
    if run.progressive is not None:
        run.loader.set_size(run.progressive.size(run.epoch))
    if run.step_in_epoch == 0:
        run.loader.set_epoch(run.epoch)
    train_mode(run.trained)
    run.account.begin()
    run.trace.begin(run.step, run.meter)
    rows, began, beside = 0, time.perf_counter(), Beside(ranks.device, config.augment_stream)
    for number, batch in enumerate(run.loader, start=1):
        last = number % accumulate == 0 or number == batches
        seed = seed_of(config.seed, run.step, number % accumulate, ranks.rank)
        forward_backward(run, batch, beside, seed, parallel.accumulate(run.parallel, last))
        rows += batch.samples
        run.account.add(batch.samples)
        if not last:
            continue
        stop = _settle(run, parameters, rows, interrupt.signal)
        set_lr(run.optimizer, run.schedule(run.step))
        run.scaler.step(run.optimizer)
        run.scaler.update()
        run.optimizer.zero_grad(set_to_none=True)
        if run.ema is not None:
            run.ema.update(run.trained, run.step)
        run.step, rows = run.step + 1, 0
        if display is not None:
            display.advance(run.epoch, run.step_in_epoch)
        ended = run.step_in_epoch == run.steps_of_epoch
        due = run.step % config.save_interval == 0 and not ended
        run.trace.note(run.step, run.meter, ended or due or stop > 0)
        if run.step_in_epoch % config.log_interval == 0 or ended:
            stop = _report(run, display, interrupt.signal) or stop  # sync point: the meter is read
        if stop or due:
            _totals(run, 0)  # sync point: nothing is saved that has diverged
            _log_steps(run)
            began = run.spend(began)
            save(run)
        if stop:
            return stop
        if ended:
            break
    run.spend(began)
    return 0


def _thaw(run: Run, display: Display | None) -> None:
    """Gradual unfreezing: from here on everything trains."""
    parameters = list(run.model.module.parameters())
    if run.frozen or run.config.freeze_epochs is None or all(p.requires_grad for p in parameters):
        return
    for parameter in parameters:
        parameter.requires_grad_(True)
    if display is not None:
        display.say(f"epoch {run.epoch + 1}/{run.epochs}  --freeze {run.config.freeze} is over: everything trains")
    if run.config.strategy == "ddp":
        run.parallel = wrapped(run.model.module, run.config, run.ranks, run.precision)  # it knows what has gradients
    if run.compilation is not None:
        run.compilation = compiled(run.parallel, run.config)
        _compile(run, display.say if display is not None else _silent)


def _settle(run: Run, parameters: list[nn.Parameter], rows: int, signal: int) -> int:
    """Before the optimiser steps: weigh by the rows that counted over all ranks, clip, and hear who wants to stop.

    Gradients were divided by the nominal batch. The last batch of an epoch, and images that could not be read, make the
    true one smaller: the quotient makes every batch the mean over its real samples. Returns a signal, 0 to go on.
    """
    config, ranks = run.config, run.ranks
    nominal = run.batch_size * config.grad_accum_steps
    if ranks.world_size == 1:
        if rows != nominal:
            parallel.scale_gradients(parameters, nominal / max(rows, 1))
    else:
        # Filled on the device: a tensor made of a list would be copied there, and wait for all that is enqueued.
        counted = ranks.sum(torch.stack([torch.full((), float(n), device=ranks.device) for n in (rows, signal)]))
        parallel.scale_gradients(parameters, nominal * ranks.world_size / counted[0].clamp(min=1.0))
        # On a GPU no sync: there the wish to stop is heard when the meter is read.
        signal = _agreed(int(counted[1])) if ranks.device.type == "cpu" else 0
    if config.clip_grad is not None:
        run.scaler.unscale_(run.optimizer)
        parallel.clip_gradients(parameters, config.clip_grad)
    return signal


def _agreed(total: int) -> int:
    """One signal's number from the sum over ranks, of which some may not have heard it yet."""
    return 0 if total == 0 else 15 if total % 15 == 0 else 2


def _report(run: Run, display: Display | None, signal: int) -> int:
    """Show and log the state of the epoch, over all ranks. Returns the signal that some rank has heard."""
    ranks, lr = run.ranks, run.schedule(run.step - 1)
    score, signal = _totals(run, signal)
    if score.samples == 0 and run.step_in_epoch == run.steps_of_epoch:
        fault = _first_fault(run.loader)
        raise UserError(f"{run.config.data}: no training {run.unit[:-1]} could be decoded ({fault}); replace them")
    _log_steps(run)
    window = run.account.read()
    speed, waited = window.speed * ranks.world_size, window.wait_share
    if display is not None and run.log is not None:
        eta = (run.steps - run.step) * run.true_batch / max(speed, 1e-9)
        display.show(Line(run.epoch, run.step_in_epoch, score.loss, score.top1, lr, speed, waited, eta, run.unit))
        values = score.as_dict(len(run.classes))
        speeds = {"lr": lr, f"{run.unit}_per_second": round(speed, 1), **window.record()}
        run.log.add("train", epoch=run.epoch + 1, step=run.step, **values, **speeds)
        tell(run, display)
    return signal


def _log_steps(run: Run) -> None:
    """Records of the steps since the last ones, over all ranks, each with the mean of the steps that it stands for."""
    records = [
        {"epoch": run.epoch + 1, "step": step, **score.as_dict(len(run.classes)), "lr": run.schedule(step - 1)}
        for step, score in run.trace.read(run.ranks)
    ]
    if run.log is not None:
        run.log.add_all("step", records)


def _totals(run: Run, signal: int) -> tuple[Score, int]:
    """The epoch so far over all ranks, and the signal that some rank has heard. Raises UserError for a loss of nan."""
    total = Meter(run.ranks.device)
    sums = run.ranks.sum(torch.cat([run.meter.sums, run.meter.sums.new_tensor([float(signal)])]))
    total.sums = sums[:4]
    score = total.read()
    if not math.isfinite(score.loss):
        raise _diverged(run, score.loss)
    return score, _agreed(int(sums[4]))


def _diverged(run: Run, loss: float) -> UserError:
    """In which step the loss was no number any more, and what to do. All ranks ask for it."""
    if run.ranks.world_size > 1:
        dist.all_reduce(run.bad_step, dist.ReduceOp.MIN)
    bad = round(float(run.bad_step))
    last = run.directory / "last"
    kept = f"; the last good checkpoint is {last}" if last.exists() else "; there is no checkpoint before it"
    return UserError(
        f"the loss became {loss} in step {bad} (learning rate {run.schedule(bad - 1):.3g}); lower --lr, raise "
        f"--warmup or set --clip-grad{kept}"
    )


def _out_of_memory(run: Run) -> UserError:
    size = run.preprocessing.train_size
    of = f"images of {size} pixels"
    if run.model.text is not None:
        of = f"texts of up to {plural(run.model.text.tokenizer.length, 'token')}"
    return UserError(
        f"out of memory on {run.ranks.device} in step {run.step + 1}, with batches of {run.batch_size} {of}: "
        f"{advice(run.config)}"
    )


def _end_of_epoch(run: Run, display: Display | None) -> None:
    """Validate, save, and stand at the beginning of the next epoch."""
    if display is not None:
        display.note("validating and saving")
    ended = time.perf_counter()
    run.epoch += 1
    run.meter = Meter(run.ranks.device)
    agree_on_buffers(run.model.module, run.ranks)
    is_best = run.val_loader is None
    due = run.epoch % run.config.val_interval == 0 or run.epoch == run.epochs
    if run.val_loader is not None and due:
        score = _evaluate(run, run.val_loader, "validation")
        run.standing = run.standing.after(score, run.epoch, run.patience_metric, counts=not run.changing)
        is_best = run.best is not None and run.best.epoch == run.epoch
        _tell(run, display, "val", "validation", score, "  (best)" if is_best else "")
    if run.train_eval_loader is not None and due:
        _tell(run, display, "train_eval", "training split", _evaluate(run, run.train_eval_loader, "training"))
    evaluated = time.perf_counter()
    save(run, best=is_best, may_wait=run.epoch < run.epochs and not run.out_of_patience)
    if run.log is not None:
        spent = {"train": run.epoch_seconds, "val": evaluated - ended, "save": time.perf_counter() - evaluated}
        seconds = {f"{name}_seconds": round(value, 4) for name, value in spent.items()}
        run.log.add("epoch", epoch=run.epoch, step=run.step, **seconds)
    run.epoch_seconds = 0.0


def _evaluate(run: Run, loader: BatchSource, name: str) -> Score:
    """Evaluate the weights that would be saved."""
    with run.averaged():
        agree_on_buffers(run.model.module, run.ranks)
        score = evaluate(run.trained, loader, run.policy, run.precision, run.ranks, len(run.classes), run.config.tta)
    if score.samples == 0:
        fault = _first_fault(loader)
        raise UserError(f"{run.config.data}: no {name} {run.unit[:-1]} could be decoded ({fault}); replace them")
    return score


def _tell(run: Run, display: Display | None, kind: str, name: str, score: Score, mark: str = "") -> None:
    """A line and a record of an evaluation."""
    if display is not None and run.log is not None:
        top5 = f"  top5 {score.top5:.2%}" if shows_top5(len(run.classes)) else ""
        balanced = f"  balanced {score.balanced_accuracy:.2%}" if score.balanced_accuracy is not None else ""
        text = f"{name}  loss {score.loss:.4f}  top1 {score.top1:.2%}{top5}{balanced}{mark}"
        display.say(f"epoch {run.epoch}/{run.epochs}  {text}")
        run.log.add(kind, epoch=run.epoch, step=run.step, **score.as_dict(len(run.classes)))


def _first_fault(loader: BatchSource) -> str:
    """One of the images that could not be decoded, and why; another rank may have met them all."""
    faults = (f"{loader.dataset.sample_name(index)}: {reason}" for index, reason in loader.unreadable.items())
    return next(faults, "see the other ranks")


def _silent(_: str) -> None:
    """What ranks other than the first say."""


def _total(count: int, ranks: Ranks) -> int:
    return int(ranks.sum(torch.tensor([count], device=ranks.device)))
