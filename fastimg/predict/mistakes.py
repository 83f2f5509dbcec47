"""The mistakes of an evaluation: a table of all of them, and a sheet of the most confident ones."""

import csv
import io
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from fastimg.errors import UserError, printable
from fastimg.loaders import Dataset
from fastimg.loaders.containers.atomic import replace_file
from fastimg.loaders.decode import MAX_PIXELS
from fastimg.loaders.errors import not_written
from fastimg.loaders.runtime.scratch import Scratch
from fastimg.train.reporting.lettering import LEFT_TO_RIGHT, Lettering, lettering
from fastimg.train.reporting.tiles import Tile, line_length, save_sheet
from fastimg.wording import plural

from .pictures import COLUMNS, SIDE, grey, thumbnail

SHOWN = 24  # mistakes on the sheet


@dataclass(frozen=True)
class Predictions:
    """What a model predicts of N samples: arrays [N] in the dataset's order. `confidence` is a probability."""

    ids: npt.NDArray[np.int64]
    truth: npt.NDArray[np.int64]
    predicted: npt.NDArray[np.int64]
    confidence: npt.NDArray[np.float64]
    top5: npt.NDArray[np.bool_]  # whether the true class is among the five likeliest
    losses: npt.NDArray[np.float64]  # nats

    def mistakes(self) -> npt.NDArray[np.int64]:
        """The places of the mistakes, the most confident first; ties are in the dataset's order, NaN last."""
        wrong = np.flatnonzero(self.truth != self.predicted)
        return wrong[np.lexsort((self.ids[wrong], -self.confidence[wrong]))]


@dataclass(frozen=True)
class MistakeFiles:
    """What was written; no sheet for texts."""

    table: Path
    sheet: Path | None = None
    undecodable: int = 0  # pictures on the sheet that are grey
    note: str | None = None  # for the user: names that no font has


def mistake_files(folder: Path, label: str, texts: bool) -> list[Path]:
    """The table, and of images the sheet."""
    return [folder / f"mistakes-{label}.{kind}" for kind in (("csv",) if texts else ("csv", "png"))]


def write_mistakes(
    found: Predictions,
    dataset: Dataset,
    classes: Sequence[str],
    label: str,
    part: str,
    folder: Path,
    max_pixels: int = MAX_PIXELS,
) -> MistakeFiles:
    """Write mistakes-LABEL.csv and, of images, mistakes-LABEL.png to `folder`.

    `label` is a short name of what was evaluated, `part` says it in words, and `max_pixels` which images the evaluation
    read. Raises UserError if they cannot be written.
    """
    places = found.mistakes()
    texts = dataset.content == "text"
    table, *sheets = mistake_files(folder, label, texts)
    sheet = sheets[0] if sheets else None
    try:
        replace_file(table, _table(found, places, dataset, classes, texts).encode())
        if sheet is None:
            return MistakeFiles(table)
        undecodable, note = _draw(found, places, dataset, classes, part, sheet, max_pixels)
        return MistakeFiles(table, sheet, undecodable, note)
    except OSError as error:
        raise UserError(
            f"{folder}: {not_written(error, 'choose a folder that can be written, by --output')}"
        ) from error


def _table(found: Predictions, places: Iterable[int], dataset: Dataset, classes: Sequence[str], texts: bool) -> str:
    """All mistakes as csv, with the numbers of the classes, and with the texts where they are texts."""
    written = io.StringIO()
    rows = csv.writer(written, lineterminator="\n")
    rows.writerow(
        ["key", "true", "true_index", "predicted", "predicted_index", "confidence", *(["text"] if texts else [])]
    )
    scratch = Scratch()
    for place in places:
        index, true, predicted = int(found.ids[place]), int(found.truth[place]), int(found.predicted[place])
        text = [bytes(dataset.read(index, scratch)).decode(errors="replace")] if texts else []
        names = [printable(classes[true]), true, printable(classes[predicted]), predicted]
        rows.writerow([printable(dataset.sample_key(index)), *names, f"{found.confidence[place]:.6f}", *text])
    return written.getvalue()


def _draw(
    found: Predictions,
    places: npt.NDArray[np.int64],
    dataset: Dataset,
    classes: Sequence[str],
    part: str,
    file: Path,
    max_pixels: int,
) -> tuple[int, str | None]:
    """Draw the most confident mistakes. Returns how many could not be decoded, and a note on names that no font has."""
    shown = places[:SHOWN]
    keys = [printable(dataset.sample_key(int(found.ids[place]))) for place in shown]
    used = sorted({*found.truth[shown].tolist(), *found.predicted[shown].tolist()})
    names = {number: printable(classes[number]) for number in used}
    count = plural(len(places), "mistake") if len(places) else "no mistakes"
    order = ", the most confident first" if len(places) > 1 else ""
    if len(places) > SHOWN:
        order = f", the {SHOWN} most confident of them"
    colours = "; red: what was predicted" if len(places) else ""
    title = f"{part}: {count} among {plural(len(found.ids), 'image')}{order}{colours}"
    letters = lettering([*names.values(), *keys, title])
    tiles, broken = list[Tile](), 0
    for place, key in zip(shown, keys, strict=True):
        pixels = thumbnail(dataset, int(found.ids[place]), max_pixels)
        broken += pixels is None
        lines = _caption(found, int(place), names, key, letters)
        tiles.append(Tile(grey() if pixels is None else pixels, lines, wrong=True))
    rows = [tiles[at : at + COLUMNS] for at in range(0, len(tiles), COLUMNS)]
    save_sheet(rows, [""] * len(rows), SIDE, file, letters, letters.text(title))
    return broken, letters.note(names)


def _caption(
    found: Predictions, place: int, names: dict[int, str], key: str, letters: Lettering
) -> tuple[str, str, str]:
    """The predicted class with its probability, the true class, and the sample's key."""
    length = line_length(SIDE)
    true, predicted = int(found.truth[place]), int(found.predicted[place])
    sure = f"{LEFT_TO_RIGHT}{found.confidence[place]:.0%} "
    return (
        sure + letters.class_label(names[predicted], predicted, length - len(sure)),
        "true: " + letters.class_label(names[true], true, length - 6),
        letters.text(key, length),
    )
