"""What is predicted of each file or text, as a table or as csv."""

import csv
import io
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from fastimg.errors import UserError, printable
from fastimg.loaders.containers.atomic import replace_output
from fastimg.loaders.errors import not_written
from fastimg.system.terminal import print_table
from fastimg.wording import legible, with_flags


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


def print_answers(answers: list[Answer], out: Console) -> None:
    """As a table."""
    table = Table()
    table.add_column("file", overflow="fold")
    several = any(answer.targets is not None for answer in answers)
    table.add_column("targets" if several else "classes", overflow="fold")
    for answer in answers:
        if answer.error is not None:
            table.add_row(printable(answer.file), with_flags(f"not read: {answer.error}"), style="yellow")
        else:
            table.add_row(printable(answer.file), printable(_words(answer)))
    print_table(out, table)


def _words(answer: Answer) -> str:
    if answer.targets is None:
        return _shares(answer.classes, answer.probabilities)
    parts = []
    for name, told in answer.targets.items():
        if "number" in told:
            parts.append(f"{name}: {legible(told['number'])}")
        else:
            names = told["classes"] if "classes" in told else told["labels"]
            parts.append(f"{name}: {_shares(names, told['probabilities']) or 'none'}")
    return "; ".join(parts)


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


def check_csv(target: Path) -> None:
    """Find out before anything is predicted whether the file can be written. Raises UserError."""
    try:
        there = target.exists()
        if str(target) == "-" or (there and not target.is_file() and not target.is_dir()):
            return  # a pipe has one reader, who would see it end
        target.open("ab").close()  # permissions alone do not tell
        if not there:
            target.resolve().unlink()  # where the file is a link, it stays
    except OSError as error:
        raise _unwritable(target, error) from error


def write_csv(answers: list[Answer], target: Path) -> None:
    """A row per file: file, error, then class and probability by rank, or what is predicted of each target."""
    ranks = max((len(answer.classes) for answer in answers), default=0)
    buffer = io.StringIO(newline="")
    writer = csv.writer(buffer, lineterminator="\n")
    if any(answer.targets is not None for answer in answers):
        writer.writerows(_csv_of_targets(answers))
        answers = []
    else:
        writer.writerow(
            ["file", "error", *(f"{kind}{i + 1}" for i in range(ranks) for kind in ("class", "probability"))]
        )
    for answer in answers:
        pairs = [
            value for pair in zip(map(printable, answer.classes), answer.probabilities, strict=True) for value in pair
        ]
        writer.writerow([printable(answer.file), answer.error or "", *pairs])
    if str(target) == "-":
        sys.stdout.write(buffer.getvalue())
        return
    try:
        replace_output(target, buffer.getvalue().encode())
    except OSError as error:
        raise _unwritable(target, error) from error


def _unwritable(target: Path, error: OSError) -> UserError:
    return UserError(f"--csv {target}: {not_written(error, 'choose a file that can be written')}")
