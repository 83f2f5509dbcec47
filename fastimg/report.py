"""What a run says at its beginning and at its end."""

from collections import Counter
from pathlib import Path
from statistics import median

from rich.console import Console
from rich.table import Table
from rich.text import Text

from . import checkpoint, rundir
from .augmentation import sentence
from .config import Train
from .data import Part
from .errors import printable
from .loaders import BatchSource
from .loaders.order import BLOCK
from .metrics import shows_top5
from .parallel import Ranks
from .plots import plot_curves
from .progress import duration
from .run import Run


def print_effective(console: Console, run: Run, part: Part, val_part: Part | None) -> None:
    """The effective configuration: what will be done, every choice made."""
    config, ranks, model = run.config, run.ranks, run.model
    data = config.data or Path()
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    resize = f"resize {config.val_resize_size}, centre crop {config.val_crop_size}, {config.interpolation}"
    total = sum(p.numel() for p in model.module.parameters())
    trained = sum(p.numel() for p in model.module.parameters() if p.requires_grad)
    origin = (
        f"weights {shown(config.weights)}" if config.weights else "published weights" if config.pretrained else "random"
    )
    layout = "channels-last" if config.channels_last and model.convolutional else "contiguous"
    words = sentence(config, config.train_crop_size)
    rows = {
        "data": f"{shown(data)}: {len(part)} images, {len(part.dataset.classes)} classes",
        "validation": "none" if val_part is None else f"{len(val_part)} images ({val_part.origin}); {resize}",
        "model": f"{config.arch}, {total / 1e6:.1f} M parameters ({trained:,} trained), from {origin}",
        "input": f"mean {_triple(config.mean)}, std {_triple(config.std)}; {words}",
        "optimiser": _optimiser(config),
        "schedule": _schedule(config),
        "batch": _batch(config, ranks),
        "order": _order(config, len(part)),
        "loader": run.loader.describe(),
        "device": f"{_devices(ranks)}, {run.precision.reason}, {layout}, seed {config.seed}",
        "run": shown(run.directory),
    }
    for name, value in rows.items():
        table.add_row(name, value)
    console.print(table, highlight=False, markup=False)


def shown(path: Path) -> str:
    """A path as a person types it: relative where it lies below the current directory."""
    here = Path.cwd()
    return str(path.relative_to(here)) if path.is_relative_to(here) else str(path)


def _triple(values: tuple[float, float, float] | None) -> str:
    return " ".join(f"{value:.4g}" for value in values or ())


def _optimiser(config: Train) -> str:
    momentum = f", momentum {config.momentum:g}" if config.momentum is not None else ""
    clip = f", gradients clipped at {config.clip_grad:g}" if config.clip_grad is not None else ""
    return f"{config.opt}, lr {config.lr:g}, weight decay {config.weight_decay:g}{momentum}{clip}"


def _schedule(config: Train) -> str:
    epochs = f"{config.warmup_epochs:g} epochs" if config.warmup_epochs is not None else ""
    warmup = epochs or f"{config.warmup_fraction:g} of all steps"
    fall = {
        "cosine": f"cosine to {config.min_lr or 0:g}",
        "linear": f"linear to {config.min_lr or 0:g}",
        "step": f"times {config.decay_rate} every {config.decay_epochs or 0:g} epochs",
        "constant": "constant",
    }[config.sched or "constant"]
    return f"{config.epochs} epochs, {fall}, warmup {warmup}, label smoothing {config.smoothing:g}"


def _batch(config: Train, ranks: Ranks) -> str:
    factors = {"accumulated": config.grad_accum_steps, "ranks": ranks.world_size}
    assert config.batch_size != "auto"
    total = config.batch_size * config.grad_accum_steps * ranks.world_size
    text = "".join(f" x {count} {name}" for name, count in factors.items() if count > 1)
    return f"{config.batch_size}{text} = {total}" if text else str(total)


def _order(config: Train, samples: int) -> str:
    if config.order_window is None:
        return config.order
    all_of_it = ", twice the data or more: as good as random" if config.order_window >= 2 * samples else ""
    return f"{config.order}: blocks of {BLOCK} images within a window of {config.order_window}{all_of_it}"


def _devices(ranks: Ranks) -> str:
    return f"{ranks.world_size} x {ranks.device.type} ({ranks.backend})" if ranks.backend else str(ranks.device)


def print_summary(run: Run, console: Console, unreadable: list[int], signal: int) -> None:
    """The closing words: what could not be read, the curves, a table; how to go on after an interruption.

    `unreadable` counts over all ranks, of training, then of validation.
    """
    records = rundir.read_log(run.directory)
    if records:
        plot_curves(records, run.directory / rundir.CURVES)
    for name, loader, count in zip(("training", "validation"), (run.loader, run.val_loader), unreadable, strict=False):
        if loader is None or not count:
            continue
        console.print(f"{count} {name} images could not be decoded and were left out:", style="yellow", highlight=False)
        for index, reason in list(loader.unreadable.items())[:5]:
            name = loader.dataset.sample_name(index)
            console.print(printable(f"  {name}: {reason}"), highlight=False, markup=False, soft_wrap=True)
        if count > 5:
            console.print(f"  ... and {count - 5} more", highlight=False)
    for name, loader in (("training", run.loader), ("validation", run.val_loader)):
        if loader is not None and loader.rerouted:
            _print_rerouted(console, name, loader, run.ranks)
    if signal:
        console.print(
            f"stopped after step {run.step} of {run.steps}, saved in {shown(run.directory / 'last')}; "
            "the same command with --resume auto goes on from there",
            soft_wrap=True,
            highlight=False,
            markup=False,
        )
        return
    title = Text(f"{run.model.arch} on {shown(run.config.data or Path())}")
    table = Table(title=title, title_justify="left", show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    if run.best is not None:
        score = run.best.score
        table.add_row("best validation", f"top-1 {score.top1:.2%} in epoch {run.best.epoch} ({score.samples} images)")
        top5 = f"top-5 {score.top5:.2%}, " if shows_top5(len(run.classes)) else ""
        table.add_row("", f"{top5}loss {score.loss:.4f}")
    table.add_row("trained", f"{run.epoch} epochs, {run.step} steps, {duration(run.seconds)}")
    steps = [record for record in records if record["kind"] == "train"]
    if steps:
        table.add_row("speed", f"{median(record['images_per_second'] for record in steps):,.1f} img/s (median)")
        table.add_row("waited for data", f"{median(record['wait_share'] for record in steps):.1%} of the time (median)")
    table.add_row("best checkpoint", shown(run.directory / "best" / checkpoint.MODEL))
    table.add_row("last checkpoint", shown(run.directory / "last" / checkpoint.MODEL))
    table.add_row("curves, records", f"{shown(run.directory / rundir.CURVES)}, {rundir.METRICS}")
    console.print(table, highlight=False, markup=False)


def _print_rerouted(console: Console, name: str, loader: BatchSource, ranks: Ranks) -> None:
    """Images that fastimg decoded since the chosen decoder does not, by reason."""
    whose = "" if ranks.world_size == 1 else " of this rank"
    for reason, count in Counter(loader.rerouted.values()).most_common(5):
        words = f"{count} {name} images{whose} were decoded by fastimg: {reason}"
        console.print(printable(words), style="yellow", highlight=False, markup=False, soft_wrap=True)
        indices = [index for index, why in loader.rerouted.items() if why == reason]
        for sample in map(loader.dataset.sample_name, indices[:5]):
            console.print(printable(f"  {sample}"), highlight=False, markup=False, soft_wrap=True)
