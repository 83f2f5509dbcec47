"""The picture of a confusion matrix: shares of each true class, and a list of the pairs that are confused most."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from fastimg.wording import plural

from .lettering import LEFT_TO_RIGHT, Lettering, lettering
from .plots import blank, save

if TYPE_CHECKING:
    from matplotlib.axes import Axes

NAMED = 40  # classes whose names stand at the axes; of more, numbers do
WHOLE = 400  # classes that are all drawn; of more, the NAMED most confused ones are
_COUNTED = 12  # classes for which there is room for counts below the shares
_LABEL = 32  # characters
_PAIRS = 12  # pairs that are listed, if there are as many
_MOST_PAIRS = 30  # where there is room for them
_LINE = 0.2  # inches of a line of the list
_SIZE = 9.0  # points of its letters
_NAMES_AT = 74.0  # points from the left, where its names begin
_HEADING = "true class"
_LETTER = 0.6  # of its size, the width of a letter

Counts = npt.NDArray[np.int64]  # [true, predicted]


@dataclass(frozen=True, kw_only=True)
class ConfusedPair:
    """Images of one class that were taken for another."""

    true: int
    predicted: int
    count: int
    share: float  # of the images of the true class


def confused_pairs(matrix: Counts, most: int) -> list[ConfusedPair]:
    """The pairs with the most mistakes; of equal counts the larger share comes first, then the lower class."""
    totals = matrix.sum(axis=1)
    rows, columns = np.nonzero(matrix * (1 - np.eye(len(matrix), dtype=np.int64)))
    counts = matrix[rows, columns]
    shares = counts / totals[rows]
    order = np.lexsort((columns, rows, -shares, -counts))[:most]
    values = zip(
        rows[order].tolist(), columns[order].tolist(), counts[order].tolist(), shares[order].tolist(), strict=True
    )
    return [ConfusedPair(true=t, predicted=p, count=n, share=s) for t, p, n, s in values]


def most_confused(matrix: Counts, count: int) -> Counts:
    """The `count` classes with the most mistakes, false negatives and false positives, in their usual order."""
    mistakes = matrix.sum(axis=0) + matrix.sum(axis=1) - 2 * matrix.diagonal()
    return np.sort(np.argsort(-mistakes, kind="stable")[:count])


def plot_confusion(matrix: Counts, classes: Sequence[str], title: str, file: Path) -> list[str]:
    """Rows are true classes, columns predicted ones; colour and numbers are shares of the row, in percent.

    Rows of classes without samples are grey.
    Up to `NAMED` classes are named at the axes, and up to `WHOLE` are drawn, else the most confused ones. The worst
    pairs are listed beside them. Returns remarks for the user: what is shown, and what no font has.
    """
    drawn = np.arange(len(classes))
    remarks = list[str]()
    if len(classes) > WHOLE:
        drawn = most_confused(matrix, NAMED)
        left = f"the {NAMED} most confused of {plural(len(classes), 'class')}"
        remarks.append(f"the picture shows {left}; --json has all of them")
        title += f"\n{left}; shares are of all images of the true class"
    totals = matrix.sum(axis=1, keepdims=True)
    share = np.where(totals > 0, matrix / np.maximum(totals, 1), np.nan)[np.ix_(drawn, drawn)]
    if np.isnan(share).any():
        title += "\ngrey: classes without samples"
    counts = matrix[np.ix_(drawn, drawn)]
    n = len(drawn)
    cell = max(0.5 if n <= _COUNTED else 0.36, 2.4 / n) if n <= NAMED else max(0.025, 7.5 / n)  # inches
    side = cell * n
    pairs = confused_pairs(matrix, max(_PAIRS, min(_MOST_PAIRS, int(side / _LINE) - 2)))
    letters = lettering([*classes, title])
    shown = {index: str(classes[index]) for index in drawn.tolist()}
    listed = shown | {index: str(classes[index]) for pair in pairs for index in (pair.true, pair.predicted)}
    labels = _labels(shown, letters) if n <= NAMED else []
    size = min(10.0, 72 * 0.6 * cell) if n <= NAMED else _SIZE
    margin = 0.8 + _width(labels, size) / 72
    rows = _pair_rows(pairs, listed, letters, numbered=n > NAMED)
    beside = (
        _NAMES_AT + _width([_HEADING, *(row[2] for row in rows)]) + _width([row[3] for row in rows]) + 3 * _SIZE
    ) / 72
    figure = blank(margin + side + 0.9 + beside, max(margin + side + 0.6, _LINE * (len(rows) + 5)))
    axis, beside_it = figure.subplots(1, 2, width_ratios=[margin + side + 0.9, beside])
    image = axis.imshow(share, cmap="Blues", vmin=0, vmax=1, interpolation="nearest")
    axis.set(xlabel="predicted", ylabel="true", facecolor="lightgrey")  # NaN is not drawn
    figure.suptitle("\n".join(map(letters.text, title.splitlines())), parse_math=False)
    if n <= NAMED:
        axis.set_xticks(range(n), labels=labels, rotation=90, parse_math=False, fontsize=size)
        axis.set_yticks(range(n), labels=labels, parse_math=False, fontsize=size)
        _write_shares(axis, counts, share)
    figure.colorbar(image, ax=axis, shrink=0.7, fraction=0.03, format=lambda value, _: f"{value:.0%}")
    if n > NAMED and pairs:
        marked = [(pair.predicted, pair.true) for pair in pairs]
        axis.scatter(*zip(*marked, strict=True), s=28, facecolors="none", edgecolors="tab:red", linewidths=0.7)
    _list_pairs(beside_it, rows)
    save(figure, file, letters, whole=True)
    return [*remarks, *filter(None, [letters.note(listed)])]


def _write_shares(axis: "Axes", counts: Counts, share: npt.NDArray[np.float64]) -> None:
    """Percentages in the cells, with the counts where there is room for them."""
    for (row, column), count in np.ndenumerate(counts):
        if not count:
            continue
        percent = f"{100 * share[row, column]:.0f}"
        text = f"{percent}%\n{count:,}" if len(counts) <= _COUNTED else percent if percent != "0" else "<1"
        colour = "white" if share[row, column] > 0.5 else "black"
        axis.text(column, row, text, ha="center", va="center", fontsize=7, color=colour)


def _pair_rows(
    pairs: Sequence[ConfusedPair], classes: dict[int, str], letters: Lettering, numbered: bool
) -> list[tuple[str, str, str, str]]:
    """(images, share, true class, predicted class) of each pair, with numbers where the axes have no names."""
    labels = dict(zip(classes, _labels(classes, letters), strict=True))
    if numbered:
        alone = {number: f"class {number}" for number in labels}
        labels = {
            number: text if text == alone[number] else f"{LEFT_TO_RIGHT}{number} {text}"
            for number, text in labels.items()
        }
    return [(f"{pair.count:,}", f"{pair.share:.0%}", labels[pair.true], labels[pair.predicted]) for pair in pairs]


def _list_pairs(axis: "Axes", rows: Sequence[tuple[str, str, str, str]]) -> None:
    """Each text on its own: one that is written from right to left would turn its line around."""
    axis.set_axis_off()
    arrow = _NAMES_AT + _width([_HEADING, *(row[2] for row in rows)]) + _SIZE
    columns = ((28.0, "right"), (62.0, "right"), (_NAMES_AT, "left"), (arrow, "center"), (arrow + _SIZE, "left"))

    def write(line: int, texts: Sequence[str], colour: str = "black") -> None:
        for (x, side), text in zip(columns, texts, strict=True):
            at = (x, -72 * _LINE * line)
            axis.annotate(
                text,
                (0, 1),
                at,
                xycoords="axes fraction",
                textcoords="offset points",
                ha=side,
                va="top",
                fontsize=_SIZE,
                color=colour,
                parse_math=False,
            )

    write(0, ("", "", "taken for another class most often" if rows else "no mistakes", "", ""))
    if rows:
        write(1, ("images", "of true", _HEADING, "→", "predicted"), "dimgray")
    for line, (count, share, true, predicted) in enumerate(rows, 2):
        write(line, (count, share, true, "→", predicted))


def _width(texts: Sequence[str], size: float = _SIZE) -> float:
    """Points that the longest text takes."""
    return max(map(len, texts), default=4) * size * _LETTER


def _labels(classes: dict[int, str], letters: Lettering) -> list[str]:
    """Labels of classes by number; labels that look alike, such as shortened names, get the number of their class."""
    labels = [letters.class_label(name, number, _LABEL) for number, name in classes.items()]
    alike = Counter(labels)
    return [f"{number}: {label}" if alike[label] > 1 else label for number, label in zip(classes, labels, strict=True)]
