"""Training: from a configuration to a run directory with a model that predicts.

`train` sets the scene, `_epoch` is the hot loop, `_end_of_epoch` evaluates and saves. A run that is interrupted anywhere
and resumed does the same arithmetic as one that is not: order, crops, augmentation and dropout are functions of the step.
"""

import math
import time
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from rich.console import Console
from rich.table import Table
from torch import nn

from . import checkpoint, effective, rundir
from .augment import Policy, apply, draw
from .config import Train
from .data import (
    Part,
    build_loader,
    center_crop,
    display_name,
    find_dataset,
    is_plain_folder,
    open_parts,
    train_crop,
    worker_count,
)
from .errors import UsageError, UserError
from .interrupt import Interrupt
from .loaders import Loader, LoaderConfig
from .loaders.crop import Crop
from .metrics import Meter, Score, evaluate, shows_top5
from .models import Model, Preprocessing, build, check_input, freeze_backbone, parse_kwargs, train_mode
from .optim import Schedule, build_optimizer, set_lr
from .parallel import Ranks, agree_on_buffers, start, wrap
from .plots import plot_curves
from .precision import Precision
from .precision import choose as choose_precision
from .progress import Display, Line, Rate, duration


@dataclass(frozen=True)
class Result:
    """How a run ended. `signal` is that of an interruption, 0 for a run that is complete."""

    run: Path
    signal: int
    best: Score | None = None


@dataclass
class Run:
    """All that the loop touches."""

    config: Train
    ranks: Ranks
    directory: Path
    model: Model
    parallel: nn.Module  # the model as it is called: wrapped for several ranks
    classes: tuple[str, ...]
    preprocessing: Preprocessing
    policy: Policy
    precision: Precision
    optimizer: torch.optim.Optimizer
    scaler: torch.amp.GradScaler
    schedule: Schedule
    loader: Loader
    val_loader: Loader | None
    steps_per_epoch: int
    log: rundir.Log | None = None
    epoch: int = 0
    step: int = 0  # optimiser steps done
    meter: Meter = field(init=False)
    best: dict[str, float] = field(default_factory=dict)  # score and epoch of the best validation
    stale: int = 0  # validations since then
    seconds: float = 0.0  # of training so far, interruptions aside

    def __post_init__(self) -> None:
        self.meter = Meter(self.ranks.device)

    @property
    def steps(self) -> int:
        """Optimiser steps of the whole run."""
        return self.steps_per_epoch * self.config.epochs


def train(config: Train, console: Console) -> Result:
    """Train as `config` says. Raises UsageError, UserError and DataError, each a sentence for a person."""
    effective.check(config)
    with ExitStack() as stack:
        ranks = stack.enter_context(start(config.device))
        say = console.print if ranks.first else lambda *args, **kwargs: None
        run = _prepare(config, ranks, console, stack)
        if run is None:
            return Result(Path(), 0)
        interrupt = stack.enter_context(Interrupt())
        done_before = run.step
        signal = 0
        display = stack.enter_context(Display(console, config.epochs, run.steps_per_epoch)) if ranks.first else None
        while run.epoch < run.config.epochs and not signal:
            signal = _epoch(run, interrupt, display)
            if not signal and _end_of_epoch(run, display):
                break
        unreadable = ranks.sum(torch.tensor([len(run.loader.unreadable)], device=ranks.device))
        if ranks.first:
            _finish(run, console, signal, int(unreadable), run.step - done_before)
        if signal:
            say(f"stopped at step {run.step} of {run.steps}; the same command with --resume auto goes on from there")
        best = Score(**run.best["score"]) if run.best else None  # type: ignore[arg-type]
        return Result(run.directory, signal, best)


def _prepare(config: Train, ranks: Ranks, console: Console, stack: ExitStack) -> Run | None:
    """Everything before the first step; None for a dry run or a run that is complete."""
    say = console.print if ranks.first else lambda *args, **kwargs: None
    if ranks.device.type == "cuda":
        torch.backends.cudnn.benchmark = not config.deterministic
        torch.set_float32_matmul_precision("high")
    torch.use_deterministic_algorithms(config.deterministic)
    with ranks.first_goes_first():
        data, note = (config.data, "") if config.data else find_dataset()
        part, val_part = open_parts(data, config.train_split, config.val_split, config.val_fraction, config.seed)
    for opened in (part, val_part):
        if opened is not None:
            stack.callback(opened.dataset.close)
    if note:
        say(f"[bold yellow]{note}", soft_wrap=True)
    elif is_plain_folder(data):
        say(
            f"{data} is a plain folder: {len(part.dataset)} files are opened one by one; `fastimg convert {data} DST` "
            "checks every image once and stores them in a few large files, read in a shuffled order that disks like",
            soft_wrap=True,
            highlight=False,
        )
    precision = choose_precision(ranks.device, config.amp, config.amp_dtype)
    model, pre = _build_model(config, ranks, len(part.dataset.classes))
    data = data.resolve()
    split = None if val_part is None or val_part.indices is not None else val_part.origin.split()[1]
    resolved = effective.resolve(config, data, model, pre, split, ranks)
    base = f"{display_name(data)}-{config.arch.replace('/', '-')}"
    directory, resuming = rundir.choose(config.output, base, config.name, config.resume)
    directory = Path(ranks.broadcast(str(directory)))
    global_batch = config.batch_size * config.grad_accum_steps * ranks.world_size
    if ranks.first:
        _print_effective(console, resolved, ranks, precision, model, part, val_part, directory)
    if config.dry_run:
        return None
    found = rundir.last_checkpoint(directory, resolved, global_batch) if resuming else None
    if config.resume is not None and not resuming:
        say(f"--resume auto: no earlier run of this data and model in {config.output}; starting one")
    ranks.barrier()
    if ranks.first and not resuming:
        rundir.begin(directory, resolved)
    run = _assemble(resolved, ranks, directory, model, pre, precision, part, val_part)
    stack.callback(run.loader.close)
    if run.val_loader is not None:
        stack.callback(run.val_loader.close)
    if found is not None:
        _restore(run, *found)
        say(f"resuming {directory} at epoch {run.epoch + 1}, step {run.step} of {run.steps}")
    if config.verbose:
        slots = run.config.prefetch * run.loader.slot_bytes
        say(
            f"loader: {run.loader.workers} threads, {run.config.prefetch} slots of {run.loader.slot_bytes / 2**20:.1f} MiB "
            f"({slots / 2**20:.1f} MiB{', pinned' if ranks.device.type == 'cuda' else ''}); scratch per thread follows "
            "the largest image"
        )
    if ranks.first:
        run.log = rundir.Log(directory, run.step)
    return run


def _build_model(config: Train, ranks: Ranks, classes: int) -> tuple[Model, Preprocessing]:
    num_classes = config.num_classes or classes
    if num_classes < classes:
        raise UsageError(f"--num-classes {num_classes}: the dataset has {classes} classes; give that many or more")
    kwargs = parse_kwargs(config.model_kwargs)
    if config.drop_path is not None:
        kwargs["drop_path_rate"] = config.drop_path
    torch.manual_seed(config.seed)
    with ranks.first_goes_first():
        model = build(
            config.arch,
            num_classes,
            pretrained=config.pretrained,
            weights=config.weights,
            kwargs=kwargs,
            img_size=config.train_crop_size or config.img_size,
        )
    pre = effective.preprocessing(config, model.preprocessing)
    check_input(model, pre.train_size, num_classes, "--img-size")
    if pre.val_size != pre.train_size:
        check_input(model, pre.val_size, num_classes, "--val-crop-size")
    if config.freeze == "backbone":
        freeze_backbone(model)
    return model, pre


def _assemble(
    config: Train,
    ranks: Ranks,
    directory: Path,
    model: Model,
    pre: Preprocessing,
    precision: Precision,
    part: Part,
    val_part: Part | None,
) -> Run:
    """Put the pieces of a resolved configuration together on the device."""
    if config.sync_bn:
        if ranks.world_size == 1 or ranks.device.type != "cuda":
            raise UsageError("--sync-bn has no effect on one process, and needs GPUs on several; leave it out")
        model = replace(model, module=nn.SyncBatchNorm.convert_sync_batchnorm(model.module))
    memory_format = torch.channels_last if config.channels_last and model.convolutional else torch.contiguous_format
    model.module.to(ranks.device, memory_format=memory_format)
    workers = worker_count(config.workers, ranks)

    def loader(part: Part, crop: Crop, order: Any) -> Loader:
        settings = LoaderConfig(
            batch_size=config.batch_size,
            order=order,
            seed=config.seed,
            workers=workers,
            prefetch=config.prefetch,
            on_error=config.on_error,
            rank=ranks.rank,
            world_size=ranks.world_size,
        )
        return build_loader(part, crop, settings, config.max_pixels, ranks.device)

    crop = center_crop(replace(pre, val_size=pre.train_size, val_resize=max(pre.train_size, pre.val_resize)))
    train_loader = loader(part, crop if config.no_aug else train_crop(pre, config.scale, config.ratio), "random")
    val_loader = None if val_part is None else loader(val_part, center_crop(pre), "sequential")
    assert config.lr is not None and config.weight_decay is not None and config.sched is not None
    steps_per_epoch = math.ceil(len(train_loader) / config.grad_accum_steps)
    steps = steps_per_epoch * config.epochs
    warmup = (
        steps * config.warmup_fraction
        if config.warmup_fraction is not None
        else steps_per_epoch * (config.warmup_epochs or 0.0)
    )
    return Run(
        config=config,
        ranks=ranks,
        directory=directory,
        model=model,
        parallel=wrap(model.module, ranks),
        classes=part.dataset.classes,
        preprocessing=pre,
        policy=Policy(hflip=config.hflip or 0.0, vflip=config.vflip or 0.0, mean=pre.mean, std=pre.std),
        precision=precision,
        optimizer=build_optimizer(model.module, config.opt, config.lr, config.weight_decay, config.momentum),
        scaler=precision.scaler(),
        schedule=Schedule(
            kind=config.sched,
            lr=config.lr,
            steps=steps,
            warmup_steps=round(warmup),
            min_lr=config.min_lr or 0.0,
            decay_steps=(config.decay_epochs or math.inf) * steps_per_epoch,
            decay_rate=config.decay_rate or 1.0,
        ),
        loader=train_loader,
        val_loader=val_loader,
        steps_per_epoch=steps_per_epoch,
    )


def _epoch(run: Run, interrupt: Interrupt, display: Display | None) -> int:
    """Train to the end of the epoch, from where the run stands. Returns the signal that stopped it, else 0."""
    config, ranks, precision, device = run.config, run.ranks, run.precision, run.ranks.device
    parameters = [p for p in run.model.module.parameters() if p.requires_grad]
    nominal = config.batch_size * config.grad_accum_steps  # rows per rank and optimiser step, when none is missing
    batches = len(run.loader) - run.step % run.steps_per_epoch * config.grad_accum_steps
    rows, rate, began = 0, Rate(), time.perf_counter()
    train_mode(run.model.module)
    for number, batch in enumerate(run.loader, start=1):
        last = number % config.grad_accum_steps == 0 or number == batches
        plan = None if config.no_aug else draw(run.policy, batch.ids, config.seed, run.epoch)
        images = apply(plan, batch.inputs, run.policy, precision.input_dtype)
        torch.manual_seed(_step_seed(config.seed, run.step, number % config.grad_accum_steps, ranks.rank))  # dropout
        sync = nullcontext() if last or ranks.world_size == 1 else run.parallel.no_sync()  # type: ignore[operator]
        with sync:
            with precision.autocast():
                logits = run.parallel(images)
            losses = F.cross_entropy(
                logits.float(), batch.targets, reduction="none", label_smoothing=config.smoothing
            )  # [B]
            run.scaler.scale((losses * batch.weight).sum() / nominal).backward()  # type: ignore[no-untyped-call]
        run.meter.add(logits.detach(), losses.detach(), batch.targets, batch.weight)
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
        at = run.step - run.epoch * run.steps_per_epoch
        if at % config.log_interval == 0 or at == run.steps_per_epoch:
            stop |= _report(run, rate, at, display, interrupt.signal)  # sync point: the meter is read
        if stop:
            run.seconds += time.perf_counter() - began
            _save(run)
            return stop
        if run.step % config.save_interval == 0 and at != run.steps_per_epoch:
            _save(run)
    run.seconds += time.perf_counter() - began
    return 0


def _step_seed(seed: int, step: int, micro: int, rank: int) -> int:
    """Seeds torch's generators for one forward pass, so that resuming needs no generator's state."""
    return (seed * 1_000_003 + step * 4099 + micro * 67 + rank * 7919) & 0x7FFFFFFFFFFFFFFF


def _settle(run: Run, parameters: list[nn.Parameter], rows: int, signal: int) -> int:
    """Before the optimiser steps: weigh by the rows that counted over all ranks, clip, and hear who wants to stop.

    Gradients were divided by the nominal batch. The last batch of an epoch, and images that could not be read, make the
    true one smaller: the quotient makes every batch the mean over its real samples. Returns a signal, 0 to go on.
    """
    config, ranks = run.config, run.ranks
    nominal = config.batch_size * config.grad_accum_steps
    gradients = [p.grad for p in parameters if p.grad is not None]
    if ranks.world_size == 1:
        if rows != nominal:
            torch._foreach_mul_(gradients, nominal / max(rows, 1))
    else:
        counted = ranks.sum(torch.tensor([float(rows), float(signal)], device=ranks.device))
        factor = nominal * ranks.world_size / counted[0].clamp(min=1.0)
        torch._foreach_mul_(gradients, factor)
        if ranks.device.type == "cpu":  # no sync on a GPU: there the wish is heard when the meter is read
            signal = _agreed(int(counted[1]), ranks)
    if config.clip_grad is not None:
        run.scaler.unscale_(run.optimizer)
        nn.utils.clip_grad_norm_(parameters, config.clip_grad)
    return signal if ranks.world_size == 1 or ranks.device.type == "cpu" else 0


def _agreed(total: int, ranks: Ranks) -> int:
    """One signal's number from the sum over ranks, of which some may not have heard it yet."""
    return 0 if total == 0 else 15 if total % 15 == 0 else 2


def _report(run: Run, rate: Rate, at: int, display: Display | None, signal: int) -> int:
    """Show and log the state. Returns the signal that some rank has heard, on GPUs of several ranks."""
    ranks = run.ranks
    sums = ranks.sum(torch.cat([run.meter.sums, run.meter.sums.new_tensor([float(signal)])]))
    view = Meter(ranks.device)
    view.sums = sums[:4]
    score = view.read()
    if not math.isfinite(score.loss):
        raise UserError(
            f"the loss became {score.loss} at step {run.step} (learning rate {run.schedule(run.step - 1):.3g}); "
            f"lower --lr, raise --warmup-fraction or set --clip-grad; the last good checkpoint is {run.directory / 'last'}"
        )
    speed, waited = rate.read(run.loader.wait_seconds)
    speed *= ranks.world_size
    left = (run.steps - run.step) * run.config.batch_size * run.config.grad_accum_steps * ranks.world_size
    if display is not None and run.log is not None:
        lr = run.schedule(run.step - 1)
        display.show(
            Line(
                epoch=run.epoch,
                step=at,
                loss=score.loss,
                top1=score.top1,
                lr=lr,
                images_per_second=speed,
                wait_share=waited,
                eta=left / max(speed, 1e-9),
            )
        )
        run.log.add(
            "train",
            epoch=run.epoch + 1,
            step=run.step,
            **score.as_dict(len(run.classes)),
            lr=lr,
            images_per_second=round(speed, 1),
            wait_share=round(waited, 4),
        )
    return _agreed(int(sums[4]), ranks) if ranks.world_size > 1 and ranks.device.type == "cuda" else 0


def _end_of_epoch(run: Run, display: Display | None) -> bool:
    """Validate, save, begin the next epoch. Returns whether patience has run out."""
    run.epoch += 1
    run.meter = Meter(run.ranks.device)
    agree_on_buffers(run.model.module, run.ranks)
    is_best = run.val_loader is None
    if run.val_loader is not None and (run.epoch % run.config.val_interval == 0 or run.epoch == run.config.epochs):
        score = evaluate(run.model.module, run.val_loader, run.policy, run.precision, run.ranks)
        is_best = not run.best or score.top1 > run.best["score"]["top1"]  # type: ignore[index]
        run.stale = 0 if is_best else run.stale + 1
        if is_best:
            run.best = {"score": score.__dict__, "epoch": run.epoch}  # type: ignore[dict-item]
        if display is not None and run.log is not None:
            top5 = f"  top5 {score.top5:.2%}" if shows_top5(len(run.classes)) else ""
            mark = "  (best)" if is_best else ""
            display.say(
                f"epoch {run.epoch}/{run.config.epochs}  validation  loss {score.loss:.4f}  top1 {score.top1:.2%}{top5}{mark}"
            )
            run.log.add("val", epoch=run.epoch, step=run.step, **score.as_dict(len(run.classes)))
    _save(run, best=is_best)
    return run.config.patience is not None and run.stale >= run.config.patience


def _save(run: Run, best: bool = False) -> None:
    """A checkpoint of this step, by rank 0, with what going on needs."""
    agree_on_buffers(run.model.module, run.ranks)
    sums = run.ranks.sum(run.meter.sums.clone())
    if run.ranks.first:
        card = checkpoint.Card(
            arch=run.model.arch,
            kwargs=run.model.kwargs,
            classes=run.classes,
            num_classes=run.config.num_classes or len(run.classes),
            preprocessing=run.preprocessing,
            step=run.step,
            epoch=run.epoch,
            metrics={k: v for k, v in run.best.get("score", {}).items()},  # type: ignore[attr-defined]
        )
        training = {
            "step": run.step,
            "epoch": run.epoch,
            "global_batch": run.config.batch_size * run.config.grad_accum_steps * run.ranks.world_size,
            "loader": run.loader.state_dict(),
            "optimizer": run.optimizer.state_dict(),
            "scaler": run.scaler.state_dict(),
            "meter": sums.cpu(),
            "best": run.best,
            "stale": run.stale,
            "seconds": run.seconds,
        }
        saved = checkpoint.save(run.directory, card, run.model.module, training)
        checkpoint.point(run.directory, "last", saved)
        if best:
            checkpoint.point(run.directory, "best", saved)
        checkpoint.prune(run.directory, run.config.checkpoint_hist)
    run.ranks.barrier()


def _restore(run: Run, saved: Path, training: dict[str, Any]) -> None:
    """Stand where the checkpoint stood."""
    tensors, _ = checkpoint.read_weights(saved / checkpoint.MODEL)
    run.model.module.load_state_dict(tensors)
    run.optimizer.load_state_dict(training["optimizer"])
    run.scaler.load_state_dict(training["scaler"])
    run.step, run.epoch = training["step"], training["epoch"]
    run.best, run.stale, run.seconds = training["best"], training["stale"], training["seconds"]
    if run.ranks.first:  # the sums over all ranks go on in one of them
        run.meter.sums.copy_(training["meter"])
    if run.step < run.steps:
        if run.step % run.steps_per_epoch == 0:
            run.loader.load_state_dict({**training["loader"], "epoch": run.epoch, "position": 0})
        else:
            run.loader.load_state_dict(training["loader"])


def _print_effective(
    console: Console,
    config: Train,
    ranks: Ranks,
    precision: Precision,
    model: Model,
    part: Part,
    val_part: Part | None,
    directory: Path,
) -> None:
    """The effective configuration as a table."""
    total = sum(p.numel() for p in model.module.parameters())
    trained = sum(p.numel() for p in model.module.parameters() if p.requires_grad)
    crop = f"resize {config.val_resize_size}, centre crop {config.val_crop_size}, {config.interpolation}"
    if config.no_aug:
        augmentation = "none: the centre crops of validation"
    else:
        assert config.scale and config.ratio
        augmentation = (
            f"random resized crop {config.train_crop_size} (scale {config.scale[0]:g}-{config.scale[1]:g}, "
            f"ratio {config.ratio[0]:.3g}-{config.ratio[1]:.3g}), flip {config.hflip:g} / {config.vflip:g}"
        )
    start_from = (
        f"weights {config.weights}" if config.weights else "published weights" if config.pretrained else "random"
    )
    warmup = (
        f"{config.warmup_fraction:g} of all steps" if config.warmup_epochs is None else f"{config.warmup_epochs:g} ep"
    )
    momentum = f", momentum {config.momentum:g}" if config.momentum is not None else ""
    devices = f"{ranks.world_size} x {ranks.device.type} ({ranks.backend})" if ranks.backend else str(ranks.device)
    layout = "channels-last" if config.channels_last and model.convolutional else "contiguous"
    batch = f"{config.batch_size}"
    if config.grad_accum_steps * ranks.world_size > 1:
        whole = config.batch_size * config.grad_accum_steps * ranks.world_size
        batch += f" x {config.grad_accum_steps} steps x {ranks.world_size} ranks = {whole}"
    rows = {
        "data": f"{config.data}: {len(part)} images, {len(part.dataset.classes)} classes",
        "validation": "none" if val_part is None else f"{len(val_part)} images ({val_part.origin}); {crop}",
        "model": f"{config.arch}, {total / 1e6:.1f} M parameters ({trained:,} trained), from {start_from}",
        "augmentation": augmentation,
        "optimiser": f"{config.opt}, lr {config.lr:g}, weight decay {config.weight_decay:g}{momentum}",
        "schedule": f"{config.sched}, {config.epochs} epochs, warmup {warmup}, smoothing {config.smoothing:g}"
        + (f", clip {config.clip_grad:g}" if config.clip_grad else ""),
        "batch": batch,
        "device": f"{devices}, {precision.reason}, {layout}, "
        f"{worker_count(config.workers, ranks)} loader threads, seed {config.seed}",
        "run": str(directory),
    }
    table = Table.grid(padding=(0, 2))
    for name, value in rows.items():
        table.add_row(f"[bold]{name}", value)
    console.print(table, highlight=False, markup=True)


def _finish(run: Run, console: Console, signal: int, unreadable: int, steps: int) -> None:
    """The closing words: curves, what could not be read, a table."""
    records = rundir.read_log(run.directory)
    if records:
        plot_curves(records, run.directory / rundir.CURVES)
    for reader in (run.loader, run.val_loader):
        if reader is None or not reader.unreadable:
            continue
        part = "training" if reader is run.loader else "validation"
        console.print(
            f"[yellow]{unreadable if reader is run.loader else len(reader.unreadable)} {part} images could not be read:"
        )
        for index, reason in list(reader.unreadable.items())[:5]:
            console.print(
                f"  {reader.dataset.sample_name(index)}: {reason}", highlight=False, markup=False, soft_wrap=True
            )
    if signal:
        return
    table = Table(title=f"{run.model.arch} on {run.config.data}", title_justify="left", show_header=False)
    if run.best:
        score = Score(**run.best["score"])  # type: ignore[arg-type]
        table.add_row(
            "best validation top-1", f"{score.top1:.2%} in epoch {run.best['epoch']} ({score.samples} images)"
        )
        if shows_top5(len(run.classes)):
            table.add_row("  its top-5", f"{score.top5:.2%}")
        table.add_row("  its loss", f"{score.loss:.4f}")
    table.add_row("epochs, steps", f"{run.epoch}, {run.step}")
    table.add_row("training time", duration(run.seconds))
    if steps:
        speeds = sorted(r["images_per_second"] for r in records if r["kind"] == "train")
        waits = sorted(r["wait_share"] for r in records if r["kind"] == "train")
        table.add_row("speed", f"{speeds[len(speeds) // 2]:.1f} img/s (median)")
        table.add_row("waiting for data", f"{waits[len(waits) // 2]:.0%} of the time (median)")
    table.add_row("best checkpoint", str(run.directory / "best" / checkpoint.MODEL))
    table.add_row("curves", str(run.directory / rundir.CURVES))
    console.print(table, highlight=False)
