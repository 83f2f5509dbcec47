"""Training: `train` sets the scene, `_epoch` is the hot loop, `_end_of_epoch` validates and saves.

A run that is interrupted anywhere and resumed does the same arithmetic as one that is not: order, crops, augmentation
and dropout are functions of the step.
"""

import math
import time
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from rich.console import Console
from torch import nn

from .augment import draw, mix
from .augmentation import model_input
from .beside import Beside
from .config import Train
from .errors import UserError
from .interrupt import Interrupt
from .loaders import BatchSource
from .metrics import Meter, Score, evaluate, shows_top5
from .models import train_mode
from .optim import set_lr
from .parallel import Ranks, agree_on_buffers, start
from .prepare import prepare
from .progress import Display, Line, Rate
from .report import print_summary
from .run import Best, Run
from .saving import save

_KORNIA = 0x6B6F726E  # keeps what Kornia draws apart from dropout


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
        signal = _all_epochs(run, console)
        unreadable = [_total(len(loader.unreadable), ranks) for loader in (run.loader, run.val_loader) if loader]
        if ranks.first:
            print_summary(run, console, unreadable, signal)
        return Result(run.directory, signal, run.best.score if run.best else None)


def _all_epochs(run: Run, console: Console) -> int:
    """Train until the last epoch, a signal, or the end of patience. Returns the signal, else 0."""
    with Interrupt() as interrupt, ExitStack() as stack:
        display = None
        if run.ranks.first:
            display = stack.enter_context(Display(console, run.epochs, run.steps_per_epoch))
        while run.epoch < run.epochs and not _out_of_patience(run):
            if run.step_in_epoch < run.steps_per_epoch:
                signal = _epoch(run, interrupt, display)
                if signal:
                    return signal
            _end_of_epoch(run, display)
    return 0


def _epoch(run: Run, interrupt: Interrupt, display: Display | None) -> int:
    """Train to the end of the epoch, from where the run stands. Returns the signal that stopped it, else 0."""
    config, ranks, precision, accumulate = run.config, run.ranks, run.precision, run.config.grad_accum_steps
    parameters = [p for p in run.model.module.parameters() if p.requires_grad]
    nominal = run.batch_size * accumulate  # rows per rank and optimiser step, when none is missing
    batches = len(run.loader) - run.step_in_epoch * accumulate
    if run.step_in_epoch == 0:
        run.loader.set_epoch(run.epoch)
    train_mode(run.model.module)
    rows, rate, began, beside = 0, Rate(run.loader.wait_seconds), time.perf_counter(), Beside(ranks.device)
    for number, batch in enumerate(run.loader, start=1):
        last = number % accumulate == 0 or number == batches
        plan = None if config.no_aug else draw(run.policy, batch.ids, config.seed, run.epoch)
        seed = _seed(config.seed, run.step, number % accumulate, ranks.rank)
        targets, smoothing = batch.targets, config.smoothing
        with beside.step(batch):
            images = model_input(plan, batch.inputs, run.policy, precision.input_dtype, run.kornia, seed ^ _KORNIA)
            if run.policy.mixes:  # soft targets, smoothed already
                images, targets = mix(plan, images, targets, run.outputs, smoothing, batch.weight)
                smoothing = 0.0
        beside.keep(batch, images, targets)
        torch.manual_seed(seed)  # for dropout
        sync = nullcontext() if last or ranks.world_size == 1 else run.parallel.no_sync()  # type: ignore[operator]
        with sync:
            with precision.autocast():
                logits = run.parallel(images)
            losses = F.cross_entropy(logits.float(), targets, reduction="none", label_smoothing=smoothing)  # [B]
            run.scaler.scale((losses * batch.weight).sum() / nominal).backward()  # type: ignore[no-untyped-call]
        run.meter.add(logits.detach(), losses.detach(), targets, batch.weight)
        rows += batch.samples
        rate.add(batch.samples)
        if not last:
            continue
        stop = _settle(run, parameters, rows, interrupt.signal)
        set_lr(run.optimizer, run.schedule(run.step))
        run.scaler.step(run.optimizer)
        run.scaler.update()
        run.optimizer.zero_grad(set_to_none=True)
        run.step, rows = run.step + 1, 0
        if display is not None:
            display.advance(run.epoch, run.step_in_epoch)
        ended = run.step_in_epoch == run.steps_per_epoch
        if run.step_in_epoch % config.log_interval == 0 or ended:
            stop = _report(run, rate, display, interrupt.signal) or stop  # sync point: the meter is read
        if stop or (run.step % config.save_interval == 0 and not ended):
            run.seconds, began = run.seconds + time.perf_counter() - began, time.perf_counter()
            save(run)
        if stop:
            return stop
    run.seconds += time.perf_counter() - began
    return 0


def _seed(seed: int, step: int, micro: int, rank: int) -> int:
    """Seeds torch's generators for one forward pass, so that resuming needs no generator's state."""
    return (seed * 1_000_003 + step * 4099 + micro * 67 + rank * 7919) & 0x7FFFFFFFFFFFFFFF


def _settle(run: Run, parameters: list[nn.Parameter], rows: int, signal: int) -> int:
    """Before the optimiser steps: weigh by the rows that counted over all ranks, clip, and hear who wants to stop.

    Gradients were divided by the nominal batch. The last batch of an epoch, and images that could not be read, make the
    true one smaller: the quotient makes every batch the mean over its real samples. Returns a signal, 0 to go on.
    """
    config, ranks = run.config, run.ranks
    nominal = run.batch_size * config.grad_accum_steps
    gradients = [p.grad for p in parameters if p.grad is not None]
    if ranks.world_size == 1:
        if rows != nominal:
            torch._foreach_mul_(gradients, nominal / max(rows, 1))
    else:
        # Filled on the device: a tensor made of a list would be copied there, and wait for all that is enqueued.
        counted = ranks.sum(torch.stack([torch.full((), float(n), device=ranks.device) for n in (rows, signal)]))
        torch._foreach_mul_(gradients, nominal * ranks.world_size / counted[0].clamp(min=1.0))
        # On a GPU no sync: there the wish to stop is heard when the meter is read.
        signal = _agreed(int(counted[1])) if ranks.device.type == "cpu" else 0
    if config.clip_grad is not None:
        run.scaler.unscale_(run.optimizer)
        nn.utils.clip_grad_norm_(parameters, config.clip_grad)
    return signal


def _agreed(total: int) -> int:
    """One signal's number from the sum over ranks, of which some may not have heard it yet."""
    return 0 if total == 0 else 15 if total % 15 == 0 else 2


def _report(run: Run, rate: Rate, display: Display | None, signal: int) -> int:
    """Show and log the state of the epoch, over all ranks. Returns the signal that some rank has heard."""
    ranks = run.ranks
    total = Meter(ranks.device)
    sums = ranks.sum(torch.cat([run.meter.sums, run.meter.sums.new_tensor([float(signal)])]))
    total.sums = sums[:4]
    score = total.read()
    lr = run.schedule(run.step - 1)
    if not math.isfinite(score.loss):
        last = run.directory / "last"
        kept = f"; the last good checkpoint is {last}" if last.exists() else ""
        raise UserError(
            f"the loss became {score.loss} by step {run.step} (learning rate {lr:.3g}); lower --lr, raise "
            f"--warmup-fraction or set --clip-grad{kept}"
        )
    if score.samples == 0 and run.step_in_epoch == run.steps_per_epoch:
        raise UserError(
            f"{run.config.data}: no training image could be decoded ({_first_fault(run.loader)}); replace them"
        )
    speed, waited = rate.read(run.loader.wait_seconds)
    speed *= ranks.world_size
    if display is not None and run.log is not None:
        eta = (run.steps - run.step) * run.global_batch / max(speed, 1e-9)
        display.show(Line(run.epoch, run.step_in_epoch, score.loss, score.top1, lr, speed, waited, eta))
        values = score.as_dict(len(run.classes))
        speeds = {"lr": lr, "images_per_second": round(speed, 1), "wait_share": round(waited, 4)}
        run.log.add("train", epoch=run.epoch + 1, step=run.step, **values, **speeds)
    return _agreed(int(sums[4]))


def _end_of_epoch(run: Run, display: Display | None) -> None:
    """Validate, save, and stand at the beginning of the next epoch."""
    if display is not None:
        display.note("validating and saving")
    run.epoch += 1
    run.meter = Meter(run.ranks.device)
    agree_on_buffers(run.model.module, run.ranks)
    is_best = run.val_loader is None
    due = run.epoch % run.config.val_interval == 0 or run.epoch == run.epochs
    if run.val_loader is not None and due:
        score = evaluate(run.model.module, run.val_loader, run.policy, run.precision, run.ranks)
        if score.samples == 0:
            fault = _first_fault(run.val_loader)
            raise UserError(f"{run.config.data}: no validation image could be decoded ({fault}); replace them")
        is_best = run.best is None or score.top1 > run.best.score.top1
        run.stale = 0 if is_best else run.stale + 1
        if is_best:
            run.best = Best(score, run.epoch)
        if display is not None and run.log is not None:
            top5 = f"  top5 {score.top5:.2%}" if shows_top5(len(run.classes)) else ""
            text = f"validation  loss {score.loss:.4f}  top1 {score.top1:.2%}{top5}{'  (best)' if is_best else ''}"
            display.say(f"epoch {run.epoch}/{run.epochs}  {text}")
            run.log.add("val", epoch=run.epoch, step=run.step, **score.as_dict(len(run.classes)))
    save(run, best=is_best)


def _first_fault(loader: BatchSource) -> str:
    """One of the images that could not be decoded, and why; another rank may have met them all."""
    faults = (f"{loader.dataset.sample_name(index)}: {reason}" for index, reason in loader.unreadable.items())
    return next(faults, "see the other ranks")


def _out_of_patience(run: Run) -> bool:
    return run.config.patience is not None and run.stale >= run.config.patience


def _total(count: int, ranks: Ranks) -> int:
    return int(ranks.sum(torch.tensor([count], device=ranks.device)))
