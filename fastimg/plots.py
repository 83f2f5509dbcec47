"""Pictures: training curves, a confusion matrix, a sheet of predictions."""

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def blank(width: float, height: float) -> "Figure":
    """A figure, in inches. matplotlib is imported where something is drawn: that takes a tenth of a run's start."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def plot_curves(records: Sequence[dict[str, Any]], file: Path) -> None:
    """Loss, accuracy, learning rate and speed over epochs, from the records of metrics.jsonl."""
    train = [r for r in records if r["kind"] == "train"]
    val = [r for r in records if r["kind"] == "val"]
    per_epoch = max((r["step"] / r["epoch"] for r in val), default=0) or max((r["step"] for r in train), default=1)
    x, vx = [r["step"] / per_epoch for r in train], [r["step"] / per_epoch for r in val]
    speed = next((key for r in train for key in r if key.endswith("_per_second")), "images_per_second")
    figure = blank(9, 6)
    axes = figure.subplots(2, 2)
    panels = (
        ("loss", "loss (nats)", True),
        ("top1", "top-1 accuracy", True),
        ("lr", "learning rate", False),
        (speed, speed.replace("_", " "), False),
    )
    for axis, (key, title, validated) in zip(axes.flat, panels, strict=True):
        axis.plot(x, [r[key] for r in train], label="training (running mean of the epoch)", linewidth=1.2)
        if validated and val:
            axis.plot(vx, [r[key] for r in val], "o-", label="validation", markersize=3)
            axis.legend(frameon=False)
        axis.set(title=title, xlabel="epoch")
        axis.set_ylim(bottom=0)
        axis.grid(alpha=0.3)
    _save(figure, file)


def plot_confusion(matrix: npt.NDArray[np.int64], classes: Sequence[str], title: str, file: Path) -> None:
    """Rows are true classes, columns predicted ones; coloured by share of the row, numbered while there is room."""
    n = len(classes)
    side = min(18.0, 2.8 + 0.42 * n)
    figure = blank(side, side)
    axis = figure.subplots()
    share = matrix / np.maximum(matrix.sum(axis=1, keepdims=True), 1)
    image = axis.imshow(share, cmap="Blues", vmin=0, vmax=1)
    axis.set(title=title, xlabel="predicted", ylabel="true")
    if n <= 60:
        axis.set_xticks(range(n), labels=[str(c)[:24] for c in classes], rotation=90, parse_math=False)
        axis.set_yticks(range(n), labels=[str(c)[:24] for c in classes], parse_math=False)
    if n <= 25:
        for (row, column), count in np.ndenumerate(matrix):
            if count:
                colour = "white" if share[row, column] > 0.5 else "black"
                axis.text(column, row, str(count), ha="center", va="center", fontsize=7, color=colour)
    else:
        figure.colorbar(image, shrink=0.7)
    _save(figure, file)


def plot_predictions(
    images: Sequence[npt.NDArray[np.uint8]], captions: Sequence[str], right: Sequence[bool], file: Path
) -> None:
    """A sheet of images [H, W, 3] with a caption under each, red where the prediction was wrong."""
    columns = min(6, len(images))
    rows = -(-len(images) // columns)
    figure = blank(1.7 * columns, 2.0 * rows)
    axes = figure.subplots(rows, columns, squeeze=False)
    for axis in axes.flat:
        axis.set_axis_off()
    for axis, image, caption, fine in zip(axes.flat, images, captions, right, strict=False):
        axis.imshow(image, interpolation="nearest")
        axis.set_title(caption, fontsize=8, color="black" if fine else "tab:red", parse_math=False)
    _save(figure, file)


def _save(figure: "Figure", file: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # letters that the font lacks, labels that leave little room
        figure.savefig(file, dpi=110)
