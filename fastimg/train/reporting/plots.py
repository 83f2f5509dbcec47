"""Plots: training curves, and a sheet of predictions."""

import io
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from fastimg.loaders.containers.atomic import replace_output

from .lettering import Lettering, lettering

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_CAPTION = 22
_SMALL = 0.9  # of the samples of the other steps: a record of fewer is one with the record before
_MARKED = 60  # points of a curve that are marked


@dataclass(frozen=True, kw_only=True)
class CurveNotes:
    """Which metric is drawn beside the loss, and why training's numbers differ from validation's, in words; empty if
    they are comparable."""

    metric: str = "top1"
    loss: str = ""  # label smoothing 0.1, mixup 0.2
    top1: str = ""
    validated: str = ""  # of the validation loss, if it is a different loss
    speed: str = ""  # what is counted per second, if not what the records are named by
    title: str = ""
    best: int | None = None  # the epoch of the best checkpoint


def blank(width: float, height: float) -> "Figure":
    """A figure, in inches. matplotlib is imported only to draw: importing it takes a tenth of a run's start."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def plot_curves(records: Sequence[dict[str, Any]], steps_per_epoch: int, notes: CurveNotes, file: Path) -> None:
    """Loss, accuracy, learning rate and speed over epochs, from metrics.jsonl; over steps until one epoch is done.

    Lines show single steps, or means of a few steps in long runs; markers show epochs, and every point of short runs.
    The last batch of an epoch, if it is a small one, counts with the step before it. A star marks the best checkpoint.
    """
    from matplotlib.ticker import MaxNLocator

    trained = [r for r in records if r["kind"] == "train"]
    steps = [r for r in records if r["kind"] == "step"] or trained  # older runs have no records of steps
    each = _spacing(steps)
    steps = steps if steps is trained else _without_small(steps)
    validated = [r for r in records if r["kind"] == "val"]
    epochs = list({r["epoch"]: r for r in trained}.values())  # the last record of an epoch covers all its steps
    last = max((r["step"] for r in records), default=0)
    scale, unit = (steps_per_epoch, "epoch") if last >= steps_per_epoch else (1, "step")
    kind = "" if steps is not trained else ", running mean of the epoch"
    speed = next((key for r in trained for key in r if key.endswith("_per_second")), "images_per_second")
    figure = blank(9, 6)
    axes = list(figure.subplots(2, 2).flat)
    for axis, key, title, note in (
        (axes[0], "loss", "loss (nats)", notes.loss),
        (axes[1], notes.metric, "top-1 accuracy" if notes.metric == "top1" else notes.metric, notes.top1),
    ):
        name = "accuracy" if key == "top1" else key.replace("$", r"\$")
        label = f"training {name}{f' ({note})' if note else ''}{kind}{each}"
        points = [(r["step"] / scale, r[key]) for r in steps if key in r]
        _line(axis, points, label, alpha=0.45 if len(epochs) > 1 else 1.0)
        if len(epochs) > 1:
            points = [(r["step"] / scale, r[key]) for r in epochs if key in r]
            _line(axis, points, "its mean over each epoch", color="tab:blue", marker="s", markersize=3)
        if validated:
            note = f" ({notes.validated})" if key == "loss" and notes.validated else ""
            points = [(r["step"] / scale, r[key]) for r in validated if key in r]
            _line(axis, points, f"validation {name}{note}", color="tab:orange", marker="o", markersize=4)
            best = [(r["step"] / scale, r[key]) for r in validated if key in r and r["epoch"] == notes.best][-1:]
            label = f"best checkpoint, epoch {notes.best}"
            _line(axis, best, label, color="tab:red", marker="*", markersize=11, linestyle="none", zorder=3)
        axis.set_title(title, parse_math=False)
        if axis.get_lines():
            axis.legend(framealpha=0.8, edgecolor="none", fontsize=7)
    _line(axes[2], [(r["step"] / scale, r["lr"]) for r in steps], "learning rate")
    axes[2].set_title("learning rate")
    _line(axes[3], [(r["step"] / scale, r[speed]) for r in trained if speed in r], speed, marker="o", markersize=3)
    axes[3].set_title(f"{notes.speed or speed.partition('_')[0]} per second")
    for axis in axes:
        axis.set_xlabel(unit)
        axis.set_xlim(0, 1.03 * max(last, 1) / scale)
        axis.xaxis.set_major_locator(MaxNLocator(integer=True))
        axis.set_ylim(bottom=min([0.0, *(min(line.get_ydata()) for line in axis.get_lines())]))  # R2 may be negative
        axis.grid(alpha=0.3)
    if notes.title:
        figure.suptitle(notes.title, fontsize=11, parse_math=False)
    save(figure, file, lettering([notes.title]))


def _without_small(steps: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Records in which those of few samples are one with the record before: few samples make means that jump."""
    usual = float(np.median([record.get("samples", 1) for record in steps])) if steps else 0.0
    kept: list[dict[str, Any]] = []
    for record in steps:
        before = kept[-1] if kept else None
        small = "samples" in record and record["samples"] < _SMALL * usual
        if before is not None and small and before["epoch"] == record["epoch"] and "samples" in before:
            kept[-1] = _together(before, record)
        else:
            kept.append(record)
    return kept


def _together(before: dict[str, Any], record: dict[str, Any]) -> dict[str, Any]:
    """Means over the samples of two records, at the step of the second."""
    one, other = before["samples"], record["samples"]
    means = {
        key: (one * before[key] + other * value) / max(one + other, 1)
        for key, value in record.items()
        if key in before and isinstance(value, float) and key != "lr"
    }
    return record | means | {"samples": one + other}


def _spacing(records: Sequence[dict[str, Any]]) -> str:
    """How many steps a record stands for, if it is more than one."""
    gaps = [after["step"] - before["step"] for before, after in pairwise(records)]
    most = max(gaps, default=1)
    return f", means of {most} steps" if most > 1 and records[0]["kind"] == "step" else ""


def _line(axis: "Axes", points: Sequence[tuple[float, float]], label: str, **style: Any) -> None:
    """A line, with markers if there are few points: a single one would be invisible."""
    if points:
        x, y = zip(*points, strict=True)
        marks = {"marker": ".", "markersize": 5} if len(points) <= _MARKED else {}
        axis.plot(x, y, label=label, **{"color": "tab:blue", "linewidth": 1.2, **marks, **style})


def plot_range_test(
    rates: Sequence[float],
    losses: Sequence[float],
    smoothed: Sequence[float],
    chosen: float,
    lowest: float,
    file: Path,
    run: str = "",
) -> None:
    """The loss over rising learning rates: each step and the smoothed curve, with the lowest point and the choice."""
    figure = blank(7, 4.5)
    axis = figure.subplots()
    axis.plot(rates, losses, ".", color="tab:gray", markersize=4, alpha=0.6, label="each step")
    axis.plot(rates, smoothed, color="tab:blue", linewidth=1.5, label="smoothed")
    axis.plot([lowest], [min(smoothed)], "o", color="tab:orange", label=f"lowest at {lowest:.3g}")
    axis.axvline(chosen, color="tab:red", linewidth=1.2, linestyle="--", label=f"chosen: {chosen:g}")
    low, high = min(*smoothed, *losses[: len(losses) // 2]), smoothed[0]
    margin = max(high - low, 1e-9)
    axis.set_ylim(low - 0.1 * margin, high + 0.5 * margin)  # where it diverges, it leaves the picture
    axis.set_xscale("log")
    axis.set(xlabel="learning rate", ylabel="training loss")
    title = ": ".join(filter(None, [run, "learning-rate range test"]))
    axis.set_title(title, parse_math=False)
    axis.grid(alpha=0.3)
    axis.legend(framealpha=0.8, edgecolor="none", fontsize=8)
    save(figure, file, lettering([title]))


def plot_predictions(
    images: Sequence[npt.NDArray[np.uint8]], captions: Sequence[str], right: Sequence[bool], file: Path, title: str = ""
) -> list[str]:
    """A sheet of captioned images [H, W, 3], in red if the prediction was wrong. Returns remarks for the user."""
    columns = min(6, len(images))
    rows = -(-len(images) // columns)
    letters = lettering([*captions, title])
    figure = blank(1.7 * columns, 2.0 * rows + 0.3)
    figure.suptitle(letters.text(title), fontsize=10, parse_math=False)
    axes = figure.subplots(rows, columns, squeeze=False)
    for axis in axes.flat:
        axis.set_axis_off()
    for axis, image, caption, fine in zip(axes.flat, images, captions, right, strict=False):
        axis.imshow(image, interpolation="nearest")
        text = letters.text(caption, _CAPTION)
        axis.set_title(text, fontsize=8, color="black" if fine else "tab:red", parse_math=False)
    save(figure, file, letters)
    return [*filter(None, [letters.note()])]


def save(figure: "Figure", file: Path, letters: Lettering | None = None, whole: bool = False) -> None:
    """Write the picture; `whole` enlarges it to fit all labels, if the layout left no room for some."""
    if letters is not None:
        letters.apply(figure)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "constrained_layout not applied", UserWarning)  # labels leave little room
        write_figure(figure, file, dpi=110, bbox_inches="tight" if whole else None)


def write_figure(figure: "Figure", file: Path, **options: Any) -> None:
    """Write a figure in the format of the file's name, PNG without one. Raises OSError, and ValueError for another."""
    content = io.BytesIO()
    named = file.suffix.removeprefix(".")
    figure.savefig(content, **{"format": named or "png"} | options)
    replace_output(file if named else file.with_name(f"{file.name}.png"), content.getvalue())
