"""The sheet that `predict --sheet` draws: some of the samples, with what is predicted of each."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from fastimg.errors import UserError, printable
from fastimg.loaders import Dataset
from fastimg.loaders.errors import not_written
from fastimg.train.reporting.lettering import LEFT_TO_RIGHT, Lettering, lettering
from fastimg.train.reporting.tiles import Pixels, Tile, line_length, save_sheet
from fastimg.wording import plural

from .answers import Answer, words
from .pictures import COLUMNS, SIDE, grey, thumbnail

SHOWN = 48  # samples on the sheet


@dataclass
class PredictionSheet:
    """Holds pictures, which are taken while their data is open, and drawn when everything is predicted.

    pictures: by the number of the answer.
    """

    max_pixels: int
    pictures: dict[int, Pixels | None] = field(default_factory=dict)

    def take(self, dataset: Dataset, first: int, total: int) -> None:
        """Keep pictures of a dataset whose answers are numbered from `first` on, spread evenly over `total` answers."""
        spread = np.linspace(0, total - 1, min(SHOWN, total)).astype(int).tolist()
        for number in spread:
            if first <= number < first + len(dataset):
                self.pictures[number] = thumbnail(dataset, number - first, self.max_pixels)

    def draw(self, file: Path, model: str, answers: Sequence[Answer]) -> str | None:
        """Draw the sheet of a model's answers. Returns a note on names that no font has.

        Raises UserError if the file cannot be written.
        """
        shown = [(answers[number], pixels) for number, pixels in self.pictures.items()]
        these = "" if len(shown) == len(answers) else f", {len(shown)} of which are shown, spread evenly over all"
        title = f"{printable(model)}: {plural(len(answers), 'prediction')}{these}"
        texts = [text for answer, _ in shown for text in (answer.file, words(answer))]
        letters = lettering([*texts, title])
        tiles = [
            Tile(grey() if pixels is None else pixels, _caption(answer, letters), wrong=answer.error is not None)
            for answer, pixels in shown
        ]
        rows = [tiles[at : at + COLUMNS] for at in range(0, len(tiles), COLUMNS)]
        try:
            save_sheet(rows, [""] * len(rows), SIDE, file, letters, letters.text(title))
        except OSError as error:
            raise UserError(f"--sheet {file}: {not_written(error, 'choose a file that can be written')}") from error
        return letters.note()


def _caption(answer: Answer, letters: Lettering) -> tuple[str, ...]:
    """The likeliest class and the next one, or what is predicted of the first targets; then the file's name."""
    length = line_length(SIDE)
    name = letters.text(Path(answer.file).name, length)
    if answer.error is not None:
        return ("not read", name)
    if answer.targets is None:
        pairs = list(zip(answer.classes, answer.probabilities, strict=True))[:2]
        lines = [(f"{LEFT_TO_RIGHT}{share:.0%} ", name) for name, share in pairs]
        return (*(share + letters.text(text, length - len(share)) for share, text in lines), name)
    parts = words(answer, 1).split("; ")[:2]
    return (*(letters.text(part, length) for part in parts), name)
