"""What a run says at its beginning and at its end."""

from collections import Counter
from pathlib import Path
from statistics import median

from rich.console import Console
from rich.table import Table

from fastimg.config.commands import Train
from fastimg.config.durations import parse
from fastimg.data.augmentation import sentence
from fastimg.data.datasets import Part
from fastimg.errors import printable
from fastimg.loaders import BatchSource
from fastimg.loaders.containers.arrays import ArrayDataset
from fastimg.loaders.order import BLOCK
from fastimg.models.ranks import Ranks
from fastimg.models.registry import TextSide
from fastimg.system.progress import UNITS, duration
from fastimg.system.terminal import print_table
from fastimg.train.checkpoints import format as checkpoint
from fastimg.train.checkpoints import run_directory as rundir
from fastimg.train.metrics import shows_top5, zero_recall
from fastimg.train.optimisers import implementation
from fastimg.train.patience import rule, stopped
from fastimg.train.run import Run
from fastimg.wording import agreeing, plural

from .accounting import TrainingTime, overall
from .plots import CurveNotes, plot_curves


def print_effective(console: Console, run: Run, part: Part, val_part: Part | None, rate: str) -> None:
    """The effective configuration: what will be done, every choice made. `rate`: where the learning rate is from."""
    config, ranks, model = run.config, run.ranks, run.model
    data = config.data or Path()
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    resize = f"; resize {config.val_resize_size}, centre crop {config.val_crop_size}, {config.interpolation}"
    total = sum(p.numel() for p in model.module.parameters())
    trained = sum(p.numel() for p in model.module.parameters() if p.requires_grad)
    origin = (
        f"weights {shown(config.weights)}" if config.weights else "published weights" if config.pretrained else "random"
    )
    reading = f"mean {_triple(config.mean)}, std {_triple(config.std)}; "
    if model.text is not None:
        resize, origin, reading = "", origin if config.weights else "its own weights", ""
    layout = "channels-last" if config.channels_last and model.convolutional else "contiguous"
    layout += " activations, contiguous weights" if layout == "channels-last" and config.strategy == "fsdp" else ""
    words = sentence(config, run.preprocessing.train_size) if model.text is None else _texts(part, model.text)
    learning = f"({trained:,} trained)"
    validation = "none"
    if val_part is not None:
        validation = f"{plural(len(val_part), run.unit[:-1])} ({val_part.origin}){resize}"
    rows: dict[str, str | None] = {
        "data": f"{shown(data)}: {plural(len(part), run.unit[:-1])}, {plural(len(part.dataset.classes), 'class')}",
        "validation": validation,
        "model": f"{config.arch}, {total / 1e6:.1f} M parameters {learning}, from {origin}" + _changed(config),
        "frozen": _frozen(config),
        "embeddings": run.cached,
        "input": f"{reading}{words}",
        "progressive": _progressive(run),
        "loss": _loss(config),
        "optimiser": _optimiser(config, implementation(run.optimizer), rate),
        "schedule": _schedule(run),
        "patience": _patience(run),
        "batch": _batch(run),
        "memory": "activations within blocks are computed twice, not kept" if config.grad_checkpointing else None,
        "average": _average(config),
        "evaluation": _evaluation(config, val_part is not None),
        "compile": f"{config.compile}, before the first step" if config.compile else None,
        "order": _order(config, len(part)),
        "loader": run.loader.describe(),
        "device": f"{_devices(ranks)}, {run.precision.reason}, {layout}, seed {config.seed}",
        "run": shown(run.directory),
    }
    for name, value in rows.items():
        if value is not None:
            table.add_row(name, value)
    print_table(console, table)


def _texts(part: Part, text: TextSide) -> str:
    """What becomes of texts."""
    lengths = part.dataset.lengths if isinstance(part.dataset, ArrayDataset) else None
    words = f"tokens, up to {text.tokenizer.length} a text"
    if lengths is None:
        return words
    own = lengths if part.indices is None else lengths[part.indices]
    cut = int((own >= text.tokenizer.length).sum())
    return (
        f"{words}, {own.mean():.0f} on average; {cut:,} of {plural(len(own), 'text')} {agreeing(cut, 'is')} "
        "as long or cut there"
    )


def shown(path: Path) -> str:
    """A path as a person types it: relative where it lies below the current directory."""
    here = Path.cwd()
    return str(path.relative_to(here)) if path.is_relative_to(here) else str(path)


def _triple(values: tuple[float, float, float] | None) -> str:
    return " ".join(f"{value:.4g}" for value in values or ())


def _changed(config: Train) -> str:
    """What is done to the model's layers."""
    changes = [
        f"mlp head of {config.head_hidden}" if config.head == "mlp" else "",
        _classifier(config),
        f"drop path {config.drop_path:g}" if config.drop_path else "",
        f"ghost batch norm over {config.ghost_bn}" if config.ghost_bn else "",
        "BlurPool" if config.blurpool else "",
    ]
    return "".join(f", {change}" for change in changes if change)


def _classifier(config: Train) -> str:
    """How the classifier of a trained model begins."""
    if config.head_init is not None:
        return f"{config.head_init} head"
    return "its classifier kept" if config.weights or config.pretrained else ""


def _frozen(config: Train) -> str | None:
    if config.freeze is None:
        return None
    blocks = "the first block" if config.freeze == "1" else f"the first {config.freeze} blocks"
    what = "all but the classifier" if config.freeze == "backbone" else blocks
    return f"{what}, for {plural(config.freeze_epochs, 'epoch')}" if config.freeze_epochs else what


def _progressive(run: Run) -> str | None:
    if run.progressive is None:
        return None
    sizes = ", ".join(str(size) for size in run.progressive.sizes(run.epochs))
    return f"crops of {sizes} pixels, growing from epoch {run.progressive.start} to {run.progressive.end}"


def _loss(config: Train) -> str:
    name = "binary cross-entropy of each class" if config.bce_loss else "cross-entropy"
    return f"{name}, label smoothing {config.smoothing:g}"


def _optimiser(config: Train, implementation: str, rate: str) -> str:
    found = f" ({rate})" if rate else ""
    norms = f" ({config.norm_weight_decay:g} on norms and biases)" if config.norm_weight_decay else ""
    words = [f"{config.opt} ({implementation})", f"lr {config.lr:g}{found}"]
    words += [f"layer decay {config.layer_decay:g}"] if config.layer_decay is not None else []
    words += [f"weight decay {config.weight_decay:g}{norms}"]
    words += [f"momentum {config.momentum:g}"] if config.momentum is not None else []
    words += [f"gradients clipped at {config.clip_grad:g}"] if config.clip_grad is not None else []
    return ", ".join(words)


def _schedule(run: Run) -> str:
    config = run.config
    fall = {
        "cosine": f"cosine to {config.min_lr or 0:g}",
        "linear": f"linear to {config.min_lr or 0:g}",
        "step": f"times {config.decay_rate} every {_span(config.decay)}",
        "constant": "constant",
    }[config.sched or "constant"]
    whole = plural(run.epochs, "epoch") if config.duration is None else _span(config.duration)
    return (
        f"{whole} ({plural(run.steps, 'step')}), {fall}, warmup {_span(config.warmup)} "
        f"({plural(run.schedule.warmup_steps, 'step')})"
    )


def _patience(run: Run) -> str | None:
    if run.config.patience is None:
        return None
    changes = ["everything trains"] if run.config.freeze_epochs is not None else []
    changes += ["crops have their full size"] if run.progressive is not None else []
    counted = f", counted once {' and '.join(changes)}" if changes else ""
    return rule(run.config.patience, run.patience_metric) + counted


def _span(text: str | None) -> str:
    return "" if text is None else str(parse(text, ""))


def _average(config: Train) -> str | None:
    if not config.model_ema:
        return None
    return f"moving average of the weights, decay {config.model_ema_decay:g}: validated and saved"


def _evaluation(config: Train, validated: bool) -> str | None:
    words = ["each image and its mirror image"] if config.tta and (validated or config.evaluate_training_set) else []
    words += ["the training split too"] if config.evaluate_training_set else []
    return ", ".join(words) or None


def _batch(run: Run) -> str:
    factors = {"accumulated": run.config.grad_accum_steps, "ranks": run.ranks.world_size}
    total, true = run.global_batch, run.true_batch
    text = "".join(f" x {count} {name}" for name, count in factors.items() if count > 1)
    words = f"{run.batch_size}{text} = {total}" if text else str(total)
    if true < total:
        words += f", more than the {true:,} {run.unit} there are: each step takes all of them, as a batch of {true:,}"
    return words


def _order(config: Train, samples: int) -> str:
    if config.order_window is None:
        return config.order
    all_of_it = ", twice the data or more: as good as random" if config.order_window >= 2 * samples else ""
    return f"{config.order}: blocks of {BLOCK} images within a window of {config.order_window}{all_of_it}"


def _devices(ranks: Ranks) -> str:
    return f"{ranks.world_size} x {ranks.device.type} ({ranks.backend})" if ranks.backend else str(ranks.device)


def print_summary(run: Run, console: Console, unreadable: list[int], signal: int, verdict: str | None) -> None:
    """The closing words: what could not be read, the curves, a table; how to go on after an interruption.

    `unreadable` counts over all ranks, of training, then of validation; `verdict` is that on waiting for data.
    """
    records = rundir.read_log(run.directory)
    if records:
        plot_curves(records, run.steps_per_epoch, _curve_notes(run.config), run.directory / rundir.CURVES)
    names = {id(run.loader): "training", id(run.val_loader): "validation"}
    for loader, count in zip(run.loaders, unreadable, strict=True):
        if not count:
            continue
        name = names.get(id(loader), "evaluated training")
        words = (
            f"{plural(count, f'{name} {run.unit[:-1]}')} could not be decoded and {agreeing(count, 'was')} left out:"
        )
        console.print(words, style="yellow", highlight=False)
        for index, reason in list(loader.unreadable.items())[:5]:
            name = loader.dataset.sample_name(index)
            console.print(printable(f"  {name}: {reason}"), highlight=False, markup=False, soft_wrap=True)
        if count > 5:
            console.print(f"  ... and {count - 5:,} more", highlight=False)
    for loader in run.loaders:
        if loader.rerouted:
            _print_rerouted(console, names.get(id(loader), "evaluated training"), loader, run.ranks)
    if signal:
        console.print(
            f"stopped after step {run.step} of {run.steps}, saved in {shown(run.directory / 'last')}; "
            "the same command with --resume auto goes on from there",
            soft_wrap=True,
            highlight=False,
            markup=False,
        )
        return
    table = Table(show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    if run.best is not None:
        score = run.best.score
        table.add_row(
            "best validation",
            f"top-1 {score.top1:.2%} in epoch {run.best.epoch} ({plural(score.samples, run.unit[:-1])})",
        )
        top5 = f"top-5 {score.top5:.2%}, " if shows_top5(len(run.classes)) else ""
        balanced = f"balanced accuracy {score.balanced_accuracy:.2%}, " if score.balanced_accuracy is not None else ""
        table.add_row("", f"{top5}{balanced}loss {score.loss:.4f}")
        if score.missed:
            table.add_row("", printable(zero_recall([run.classes[index] for index in score.missed])))
    if run.stopped_early:
        table.add_row("stopped", stopped(run.standing, run.patience_metric, run.epoch))
    table.add_row("trained", f"{plural(run.epoch, 'epoch')}, {plural(run.step, 'step')}, {duration(run.seconds)}")
    steps = [record for record in records if record["kind"] == "train"]
    if steps:
        speed = median(record[f"{run.unit}_per_second"] for record in steps)
        table.add_row("speed", f"{speed:,.1f} {UNITS[run.unit]} (median)")
        table.add_row("time", _time(overall(steps), run.ranks))
    if verdict is not None:
        table.add_row("verdict", verdict)
    if run.compilation is not None:
        table.add_row("compiled", run.compilation.describe())
    table.add_row("best checkpoint", shown(run.directory / "best" / checkpoint.MODEL))
    table.add_row("last checkpoint", shown(run.directory / "last" / checkpoint.MODEL))
    table.add_row("curves, records", f"{shown(run.directory / rundir.CURVES)}, {rundir.METRICS}")
    print_table(console, table, f"{run.model.arch} on {shown(run.config.data or Path())}")


def _curve_notes(config: Train) -> CurveNotes:
    """Why training's loss and accuracy are not to be compared with validation's as they are."""
    mixed = [f"{name} {value:g}" for name, value in (("mixup", config.mixup), ("cutmix", config.cutmix)) if value]
    loss = ["binary cross-entropy"] if config.bce_loss else []
    loss += [f"label smoothing {config.smoothing:g}"] if config.smoothing else []
    return CurveNotes(
        loss=", ".join([*loss, *mixed]),
        top1=f"{', '.join(mixed)}: the larger share counts" if mixed else "",
        validated="cross-entropy" if config.bce_loss else "",
    )


def _time(window: TrainingTime, ranks: Ranks) -> str:
    """Where it went. On a GPU copies run beside the rest."""
    waiting, computing = f"{window.wait_share:.1%} waiting for data", f"{window.compute_share:.1%} computing"
    if ranks.device.type == "cpu":
        return f"{waiting}, {window.copy_share or 0.0:.1%} copying, {computing}"
    if window.copy_share is None:
        return f"{waiting} and its copies, which are not told apart, {computing}"
    return f"{waiting}, {computing}; copying, beside both, {window.copy_share:.1%}"


def _print_rerouted(console: Console, name: str, loader: BatchSource, ranks: Ranks) -> None:
    """Images that fastimg decoded since the chosen decoder does not, by reason."""
    whose = "" if ranks.world_size == 1 else " on this rank"
    for reason, count in Counter(loader.rerouted.values()).most_common(5):
        words = f"{plural(count, f'{name} image', 'was')} decoded by fastimg{whose}: {reason}"
        console.print(printable(words), style="yellow", highlight=False, markup=False, soft_wrap=True)
        indices = [index for index, why in loader.rerouted.items() if why == reason]
        for sample in map(loader.dataset.sample_name, indices[:5]):
            console.print(printable(f"  {sample}"), highlight=False, markup=False, soft_wrap=True)
