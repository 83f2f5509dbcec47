"""What a run prints after its last step: samples that were left out, a table, how to resume."""

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console

from fastimg.config.commands import Train
from fastimg.config.intent import architecture, loss_kind
from fastimg.errors import printable
from fastimg.loaders import BatchSource
from fastimg.loaders.remote.cache.sizes import in_words
from fastimg.models.ranks import Ranks
from fastimg.system.progress import UNITS, spent
from fastimg.system.terminal import print_rows, say
from fastimg.train.checkpoints import format as checkpoint
from fastimg.train.checkpoints import run_directory as rundir
from fastimg.train.checkpoints.run_places import resuming
from fastimg.train.choices import resolution, step_rates
from fastimg.train.choices.machine_profile import device_name
from fastimg.train.patience import deciding, stopped
from fastimg.train.run import Run
from fastimg.train.tasks.score import TargetScores, shows_top5, zero_recall
from fastimg.train.tasks.score import shown as shown_score
from fastimg.wording import agreeing, number, plural

from .accounting import TrainingTime, overall
from .plots import CurveNotes, plot_curves
from .report import shown

_DRAWING = 0.02  # of the time, at most, while a run trains


def print_summary(run: Run, console: Console, unreadable: list[int], signal: int, verdict: str | None) -> None:
    """The closing words: samples that could not be read, the curves, a table; after an interruption, how to resume.

    `unreadable` counts over all ranks, by loader; `verdict` is the one on waiting for data.
    """
    setup = run.setup
    progress = run.progress
    records = rundir.read_log(setup.directory, partial(say, console, style="yellow"))
    if records:
        file = _draw_curves(run, records)
        if run.accounting.trackers is not None and file.exists():
            run.accounting.trackers.picture(file)
    names = {id(setup.data.loader): "training", id(setup.data.val_loader): "validation"}
    for loader, count in zip(setup.data.loaders, unreadable, strict=True):
        name = names.get(id(loader), "evaluated training")
        if count:
            _print_unreadable(console, f"{name} {setup.unit[:-1]}", loader, count)
    for loader in setup.data.loaders:
        if loader.rerouted:
            _print_rerouted(console, names.get(id(loader), "evaluated training"), loader, setup.ranks)
    if signal:
        say(
            console,
            f"stopped after step {progress.step} of {setup.steps}, saved in {shown(setup.directory / 'last')}; "
            f"{_resuming(run)} goes on from there",
        )
        return
    rows = [*_best_validation(run), *_training(run, records), *_files(run, verdict)]
    print_rows(console, rows, f"{setup.model.arch} on {shown(setup.config.data or Path())}")


def _best_validation(run: Run) -> Iterator[tuple[str, str]]:
    """Rows of the summary."""
    if run.best is None:
        return
    score = run.best.score
    classes = run.setup.data.classes
    samples = plural(score.samples, run.setup.unit[:-1])
    if isinstance(score, TargetScores):
        yield "best validation", f"loss {score.loss:.4f} in epoch {run.best.epoch} ({samples}){_decided(run)}"
        for name, value in run.setup.tasks.told(score):
            yield "", f"{printable(name)} {shown_score(name, value)}"
        return
    yield "best validation", f"top-1 {score.top1:.2%} in epoch {run.best.epoch} ({samples})"
    top5 = f"top-5 {score.top5:.2%}, " if shows_top5(len(classes)) else ""
    balanced = f"balanced accuracy {score.balanced_accuracy:.2%}, " if score.balanced_accuracy is not None else ""
    yield "", f"{top5}{balanced}loss {score.loss:.4f}"
    if score.missed:
        yield "", printable(zero_recall([classes[index] for index in score.missed]))


def _decided(run: Run) -> str:
    """The metric that chose the best checkpoint, if it is not the loss."""
    return "" if run.setup.metric == "loss" else f", best by {printable(run.setup.metric)}"


def _resuming(run: Run) -> str:
    """The command that goes on with the run."""
    return resuming(run.setup.config, run.setup.directory, run.setup.ranks.world_size)


def _training(run: Run, records: list[dict[str, Any]]) -> Iterator[tuple[str, str]]:
    """Rows of the summary."""
    setup = run.setup
    progress = run.progress
    if run.stopped_early:
        yield "stopped", stopped(progress.standing, setup.patience_metric, progress.epoch, setup.metric)
    if run.accounting.out_of_time:
        reached = f"after step {progress.step} of {setup.steps}"
        yield "stopped", f"--max-time {setup.config.max_time} is over {reached}; {_resuming(run)} goes on from there"
    seconds = spent(run.accounting.seconds)
    yield "trained", f"{plural(progress.epoch, 'epoch')}, {plural(progress.step, 'step')}, {seconds}"
    windows = [record for record in records if record["kind"] == "train"]
    if windows:
        speeds = [record[name] for record in windows if (name := f"{setup.unit}_per_second") in record]
        if speeds:
            yield "speed", f"{number(median(speeds))} {UNITS[setup.stepped]} (median)"
        whole = overall(windows)
        yield "time", _time(whole, setup.ranks)
        if whole.network is not None:
            validated = (record for record in records if record["kind"] == "epoch")
            yield "object store", _network(overall([*windows, *validated]))


def _files(run: Run, verdict: str | None) -> Iterator[tuple[str, str]]:
    """Rows of the summary: the verdict, what was compiled, and where everything is."""
    directory = run.setup.directory
    compilation = run.progress.compilation
    if verdict is not None:
        yield "verdict", verdict
    if compilation is not None:
        yield "compiled", compilation.describe()
    if verdict is None and (faster := _faster(run)) is not None:
        yield "faster", faster
    if run.best is not None or run.setup.data.val_loader is None:  # not where it was stopped before
        yield "best checkpoint", shown(directory / "best" / checkpoint.MODEL)
    if run.accounting.timeline is not None:
        yield "timeline", run.accounting.timeline.words
    yield "last checkpoint", shown(directory / "last" / checkpoint.MODEL)
    yield "curves, records", f"{shown(directory / rundir.CURVES)}, {rundir.RESULTS}, {rundir.METRICS}"


def _faster(run: Run) -> str | None:
    """The flag that would have made the run faster, where that was measured; it is never set without being asked."""
    setup = run.setup
    device = setup.ranks.device
    if device.type != "cuda" or setup.data.embedding is not None:
        return None
    found = step_rates.compile_gain(setup.config, setup.precision, setup.model, device_name(device))
    if found is None:
        return None
    flag, gain = found
    return f"with {flag}: {gain.ratio:.2f}x {gain.about} (measured); it compiles before the first step"


def _print_unreadable(console: Console, what: str, loader: BatchSource, count: int) -> None:
    """Samples that were left out: how many over all ranks, and the first of this rank."""
    words = f"{plural(count, what)} could not be decoded and {agreeing(count, 'was')} left out:"
    say(console, words, style="yellow")
    for index, reason in list(loader.unreadable.items())[:5]:
        sample = loader.dataset.sample_name(index)
        say(console, f"  {sample}: {reason}")
    if count > 5:
        say(console, f"  ... and {count - 5:,} more")


class Curves:
    """curves.png, renewed after each epoch, but for epochs so short that drawing would take 2% of the time or more."""

    def __init__(self, run: Run, say: Callable[[str], None]) -> None:
        self._run = run
        self._say = say
        self._drawn_at = time.perf_counter()
        self._took = 1.0  # seconds: what is assumed of the first one

    def renew(self) -> None:
        """An epoch has ended. A picture that cannot be written is mentioned, and does not end the run."""
        began = time.perf_counter()
        if began - self._drawn_at < self._took / _DRAWING:
            return
        try:
            _draw_curves(self._run, rundir.read_log(self._run.setup.directory))
        except OSError as error:
            self._say(f"{rundir.CURVES} is not renewed: {error.strerror or error}")
        self._drawn_at = time.perf_counter()
        self._took = self._drawn_at - began


def _draw_curves(run: Run, records: Sequence[dict[str, Any]]) -> Path:
    setup = run.setup
    metric = deciding(setup.config, setup.tasks)
    if setup.tasks.single is None and metric == "loss":
        metric = next(name for name in setup.tasks.metrics if not name.endswith("loss"))
    best = None if run.best is None else run.best.epoch
    return draw_curves(setup.directory, setup.config, metric, records, setup.optimisation.steps_per_epoch, best)


def draw_curves(
    directory: Path,
    config: Train,
    metric: str,
    records: Sequence[dict[str, Any]],
    steps_per_epoch: int,
    best: int | None = None,
) -> Path:
    """Draw what a run has logged, with a metric beside the loss, and the best epoch marked. Returns the file."""
    file = directory / rundir.CURVES
    classes = any(key.rpartition(".")[2] == "top1" for record in records for key in record)
    title = f"{directory.name}: {architecture(config)}"
    plot_curves(records, steps_per_epoch, replace(_curve_notes(config, metric, classes), title=title, best=best), file)
    return file


def _curve_notes(config: Train, metric: str, classes: bool) -> CurveNotes:
    """What is drawn, and why training's loss and accuracy cannot be compared directly with validation's.

    classes: whether a target is a class; the others are not smoothed.
    """
    mixed = [f"{name} {value:g}" for name, value in (("mixup", config.mixup), ("cutmix", config.cutmix)) if value]
    kind = loss_kind(config)
    names = {"cross-entropy": "", "bce": "binary cross-entropy", "focal": "focal loss", "asymmetric": "asymmetric loss"}
    loss = [names[kind]] if names[kind] else []
    loss += ["class weights"] if config.class_weights else []
    loss += ["adjusted logits"] if config.logit_adjust else []
    loss += [f"label smoothing {config.smoothing:g}"] if config.smoothing and classes else []
    return CurveNotes(
        metric="top1" if metric == "loss" else metric,
        loss=", ".join([*loss, *mixed]),
        top1=f"{', '.join(mixed)}: the larger share counts" if mixed else "",
        speed="embeddings" if resolution.views(config) else "",
        validated=("plain cross-entropy" if loss or mixed else "") if kind == "cross-entropy" else "cross-entropy",
    )


def _time(window: TrainingTime, ranks: Ranks) -> str:
    """Where the time went. On a GPU, copies run in parallel with the rest."""
    waiting = f"{window.wait_share:.1%} waiting for data"
    computing = f"{window.compute_share:.1%} computing"
    if ranks.device.type == "cpu":
        return f"{waiting}, {window.copy_share or 0.0:.1%} copying, {computing}"
    if window.copy_share is None:
        return f"{waiting} or for copies of it (measured together), {computing}"
    return f"{waiting}, {computing}; copying (in parallel) {window.copy_share:.1%}"


def _network(window: TrainingTime) -> str:
    """What was fetched by this process, and the share of the loader's reading that waited for it."""
    fetched, again = window.fetched or 0, window.again or 0
    waiting = min(window.network or 0.0, window.read or 0.0) / max(window.read or 0.0, 1e-9)
    twice = f", {in_words(again)} of them again" if again else ""
    return f"{in_words(fetched)} fetched{twice}; {waiting:.1%} of the loader's reading was waiting for them"


def _print_rerouted(console: Console, name: str, loader: BatchSource, ranks: Ranks) -> None:
    """Images that fastimg decoded because the chosen decoder cannot, by reason."""
    whose = "" if ranks.world_size == 1 else " on this rank"
    for reason, count in Counter(loader.rerouted.values()).most_common(5):
        words = f"{plural(count, f'{name} image', 'was')} decoded by fastimg{whose}: {reason}"
        say(console, words, style="yellow")
        indices = [index for index, why in loader.rerouted.items() if why == reason]
        for sample in map(loader.dataset.sample_name, indices[:5]):
            say(console, f"  {sample}")
