"""What is predicted of each file or text, as a table or as csv."""

import csv
import io
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.table import Table

from fastimg import notebook
from fastimg.errors import UserError, printable
from fastimg.loaders.containers.atomic import replace_output
from fastimg.loaders.errors import not_written
from fastimg.system.terminal import print_table
from fastimg.wording import legible, with_flags

_BORDERS = 7  # columns of a table of two columns that hold no text
_FILE = 12  # columns that a file's name, and what is predicted, have at least


@dataclass(frozen=True)
class Answer:
    """One file or text: its classes, most likely first, or the reason why it could not be read.

    targets: of a model of several targets, or of one that is not a class, what is predicted of each, by name: `classes`
        and `probabilities`, most likely first; the `labels` that are predicted and their `probabilities`; or a
        `number`. `classes` and `probabilities` are then those of the first class target, if there is one.
    """

    file: str
    classes: list[str]
    probabilities: list[float]
    error: str | None = None
    targets: Mapping[str, Mapping[str, Any]] | None = None

    def as_dict(self) -> dict[str, Any]:
        """For JSON; without `targets` where only a class is predicted."""
        fields = asdict(self)
        if self.targets is None:
            del fields["targets"]
        return fields

    def _repr_html_(self) -> str:
        return Answers([self])._repr_html_()


class Answers(list[Answer]):
    """A list of answers that a notebook shows as a table with small pictures."""

    def _repr_html_(self) -> str:
        several = any(answer.targets is not None for answer in self)
        rows = (
            (
                notebook.thumbnail(answer.file),
                answer.file,
                words(answer) if answer.error is None else f"not read: {answer.error}",
            )
            for answer in self[: notebook.ROWS]
        )
        return notebook.page(notebook.table(("", "file", "targets" if several else "classes"), rows, len(self)))


def print_answers(answers: list[Answer], out: Console) -> None:
    """As a table, in which each answer has one line: on a terminal as many classes as fit, and the end of a long path.

    Only the reason why a file could not be read may take more lines.
    """
    files = [printable(answer.file) for answer in answers]
    told = [words(answer) for answer in answers]
    if out.is_terminal:
        room = out.width - _BORDERS
        most = max(map(cell_len, told), default=0)
        longest = max(room - min(most, room // 3), _FILE)
        files = [_end_of(file, longest) for file in files]
        left = max(room - max(map(cell_len, files), default=0), _FILE)
        told = [_fitting(answer, text, left) for answer, text in zip(answers, told, strict=True)]
    table = Table()
    table.add_column("file", no_wrap=True)
    several = any(answer.targets is not None for answer in answers)
    table.add_column("targets" if several else "classes", overflow="fold")
    for file, answer, text in zip(files, answers, told, strict=True):
        if answer.error is not None:
            table.add_row(file, with_flags(f"not read: {answer.error}"), style="yellow")
        else:
            table.add_row(file, text)
    print_table(out, table)


def _end_of(path: str, room: int) -> str:
    """A path, or as much of its end as fits."""
    if cell_len(path) <= room:
        return path
    while cell_len(path) > room - 1:
        path = path[1:]
    return f"…{path}"


def _fitting(answer: Answer, text: str, room: int) -> str:
    """What is predicted, with as many classes as fit into one line."""
    for most in range(max(len(answer.classes), 5), 0, -1):
        if cell_len(text) <= room:
            return text
        text = f"{words(answer, most)}, …"
    return text if cell_len(text) <= room else f"{set_cell_size(text, room - 1).rstrip()}…"


def words(answer: Answer, most: int | None = None) -> str:
    """What is predicted, of classes and labels `most` at most."""
    if answer.targets is None:
        return printable(_shares(answer.classes[:most], answer.probabilities[:most]))
    parts = []
    for name, told in answer.targets.items():
        if "number" in told:
            parts.append(f"{name}: {legible(told['number'])}")
        else:
            names = told["classes"] if "classes" in told else told["labels"]
            parts.append(f"{name}: {_shares(names[:most], told['probabilities'][:most]) or 'none'}")
    return printable("; ".join(parts))


def _shares(names: Sequence[str], probabilities: Sequence[float]) -> str:
    return ", ".join(f"{name} {share:.1%}" for name, share in zip(names, probabilities, strict=True))


def _columns_of(told: Mapping[str, Any]) -> list[str]:
    """The cells of one target in a csv row: its first class and that class's probability, its labels as a JSON list,
    or its number."""
    if "number" in told:
        return [repr(told["number"])]  # the shortest digits that give the same float64
    if "labels" in told:
        return [json.dumps(told["labels"], ensure_ascii=False)]
    return [told["classes"][0], f"{told['probabilities'][0]}"]


def _csv_of_classes(answers: list[Answer]) -> list[list[str]]:
    """A row per file: file, error, and two columns for each rank."""
    ranks = max((len(answer.classes) for answer in answers), default=0)
    rows = [["file", "error", *(f"{kind}{i + 1}" for i in range(ranks) for kind in ("class", "probability"))]]
    for answer in answers:
        pairs = zip(map(printable, answer.classes), map(str, answer.probabilities), strict=True)
        cells = [value for pair in pairs for value in pair]
        cells += [""] * (2 * ranks - len(cells))  # every row has all columns
        rows.append([printable(answer.file), answer.error or "", *cells])
    return rows


def _csv_of_targets(answers: list[Answer]) -> list[list[str]]:
    """A row per file: file, error, and a column for each target, two for a class."""
    first = next((answer.targets for answer in answers if answer.targets), {})
    names = [[name, f"{name}_probability"] if "classes" in told else [name] for name, told in first.items()]
    columns = [column for group in names for column in group]
    rows = [["file", "error", *columns]]
    for answer in answers:
        told = answer.targets or {}
        cells = [cell for name in first for cell in _columns_of(told[name])] if told else [""] * len(columns)
        rows.append([printable(answer.file), answer.error or "", *map(printable, cells)])
    return rows


def check_output(flag: str, target: Path) -> None:
    """Find out before anything is predicted whether the file can be written. Raises UserError."""
    try:
        there = target.exists()
        if str(target) == "-" or (there and not target.is_file() and not target.is_dir()):
            return  # a pipe has one reader, who would see it end
        target.open("ab").close()  # permissions alone do not tell
        if not there:
            target.resolve().unlink()  # where the file is a link, it stays
    except OSError as error:
        raise _unwritable(flag, target, error) from error


def write_csv(answers: list[Answer], target: Path) -> list[str]:
    """A row per file: file, error, then class and probability by rank, or what is predicted of each target.

    Returns the names of the columns.
    """
    targets = any(answer.targets is not None for answer in answers)
    rows = _csv_of_targets(answers) if targets else _csv_of_classes(answers)
    buffer = io.StringIO(newline="")
    csv.writer(buffer, lineterminator="\n").writerows(rows)
    if str(target) == "-":
        sys.stdout.write(buffer.getvalue())
        return rows[0]
    try:
        replace_output(target, buffer.getvalue().encode())
    except OSError as error:
        raise _unwritable("--csv", target, error) from error
    return rows[0]


def _unwritable(flag: str, target: Path, error: OSError) -> UserError:
    return UserError(f"{flag} {target}: {not_written(error, 'choose a file that can be written')}")
