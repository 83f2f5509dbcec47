"""The sheet that `predict --sheet` draws: the first samples, with what is predicted of each."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

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
    """Holds pictures, which are taken while their data is open, and drawn when everything is predicted."""

    max_pixels: int
    pictures: list[tuple[Answer, Pixels | None]] = field(default_factory=list)

    def take(self, dataset: Dataset, answers: Sequence[Answer]) -> None:
        """Keep the pictures of the dataset's first samples, of which these are the answers, while there is room."""
        for index, answer in enumerate(answers[: SHOWN - len(self.pictures)]):
            self.pictures.append((answer, thumbnail(dataset, index, self.max_pixels)))

    def named(self, files: Sequence[str]) -> None:
        """Call the samples by these names: those that the caller gave."""
        self.pictures = [
            (replace(answer, file=file), pixels)
            for (answer, pixels), file in zip(self.pictures, files[: len(self.pictures)], strict=True)
        ]

    def draw(self, file: Path, model: str, number: int) -> str | None:
        """Draw the sheet of the first of `number` answers of a model. Returns a note on names that no font has.

        Raises UserError if the file cannot be written.
        """
        shown = len(self.pictures)
        first = "" if shown == number else f", of which these are the first {shown}"
        title = f"{printable(model)}: {plural(number, 'prediction')}{first}"
        texts = [text for answer, _ in self.pictures for text in (answer.file, words(answer))]
        letters = lettering([*texts, title])
        tiles = [
            Tile(grey() if pixels is None else pixels, _caption(answer, letters), wrong=answer.error is not None)
            for answer, pixels in self.pictures
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
