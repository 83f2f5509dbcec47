"""Columns of tables: their usual names, the flags that select them, and whether a CSV or TSV has a header."""

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from fastimg.errors import UsageError, nearest
from fastimg.loaders.containers.targets import Target, TargetKind
from fastimg.loaders.errors import DataError
from fastimg.loaders.folders.formats import image_extensions
from fastimg.loaders.remote.trees import is_outside
from fastimg.wording import shortened

from .folders import file_size
from .tables import find_delimiter, first_records, own_delimiter, readable, spelled

PATH_COLUMNS = ("path", "file", "filename", "file_name", "filepath", "image", "image_path")
TEXT_COLUMNS = ("text", "sentence", "review", "content", "document")
LABEL_COLUMNS = ("label", "class", "target")
SPLIT_COLUMNS = ("split",)
KNOWN = frozenset({*PATH_COLUMNS, *TEXT_COLUMNS, *LABEL_COLUMNS, *SPLIT_COLUMNS})
SEPARATED = (".csv", ".tsv")

_SAMPLED_ROWS = 20  # searched for the path of an existing image


@dataclass(frozen=True)
class AskedTarget:
    """A column that --target names, and its kind if that was given."""

    name: str
    kind: TargetKind | None = None


FieldWriting = Literal[
    "number",
    "array",
    "bands",
    "ragged",
    "labels",
    "box",
    "box-xywh",
    "box-yolo",
    "keypoint",
    "mask",
    "image",
    "bytes",
]


@dataclass(frozen=True)
class AskedField:
    """A column that --field names, how its values are written, and the field whose items it accompanies, if any."""

    name: str
    kind: FieldWriting
    along: str | None = None


@dataclass(frozen=True)
class Columns:  # more than 12 fields: a flag each
    """How to read the tables of a source. Columns that are None are detected."""

    path: str | None = None
    label: str | None = None
    split: str | None = None
    text: str | None = None
    no_header: bool = False
    delimiter: str | None = None
    labels_are_classes: bool = False  # accept labels that do not look like classes
    known_classes: frozenset[str] = frozenset()  # of the dataset being appended to
    targets: tuple[AskedTarget, ...] = ()  # columns to learn; then there is no column of labels
    label_delimiter: str | None = None  # between several labels in a cell
    known_targets: tuple[Target, ...] = ()  # of the dataset being appended to
    fields: tuple[AskedField, ...] = ()  # columns that become fields
    image_field: str | None = None  # what the files themselves become: arrays in place of images
    trains: bool = True  # whether the source has a training split with every class; others may, if it is added to them
    as_written: frozenset[str | None] = frozenset()  # targets, or None for labels, whose integers keep their zeros

    def given(self) -> list[str]:
        """The flags that were given, except --labels-are-classes, which is checked once all sources are read."""
        flags = [f"--{name}-column" for name in ("path", "text", "label", "split") if getattr(self, name) is not None]
        flags += ["--target"] * bool(self.targets) + ["--field"] * bool(self.fields)
        return flags + ["--no-header"] * self.no_header + ["--delimiter"] * (self.delimiter is not None)

    def lower(self) -> set[str]:
        """The names of the columns that were given, in lower case."""
        named = (self.path, self.text, self.label, self.split, *(target.name for target in self.targets))
        return {name.lower() for name in named if name is not None}

    def numbered(self) -> bool:
        """Whether any column was given by its number, as in a file without a header."""
        return any(name.isdigit() for name in self.lower())


def with_delimiter(src: Path, columns: Columns) -> Columns:
    """Return `columns` with the delimiter of a CSV or TSV: the given one, or else the detected one."""

    def recognised(fields: list[str]) -> bool:
        named = not columns.no_header and bool(lower(fields) & (KNOWN | columns.lower()))
        return named or image_at(src, [fields]) is not None

    if columns.delimiter is not None:
        return columns
    with readable(src):
        return replace(columns, delimiter=find_delimiter(src, recognised))


def on_delimiter(src: Path, columns: Columns) -> str:
    """Describe a delimiter that differs from the default for the file extension; empty if it does not."""
    delimiter = columns.delimiter or own_delimiter(src)
    return "" if delimiter == own_delimiter(src) else f", columns separated by {spelled(delimiter)}"


def lower(names: Iterable[str]) -> set[str]:
    """Normalize column names for comparison."""
    return {name.strip().strip('"').lower() for name in names}


def image_at(src: Path, records: list[list[str]]) -> int | None:
    """Index of the column that holds image paths, or None.

    The field in the first record must have an image extension, and at least one of the `records` an existing file.
    """
    extensions = image_extensions()
    for column, field in enumerate(records[0] if records else ()):
        if os.path.splitext(field.strip())[1].lower() in extensions:
            paths = (record[column].strip().replace("\\", "/") for record in records if column < len(record))
            if any(not is_outside(src.parent, path) and file_size(src.parent / path) >= 0 for path in paths):
                return column
    return None


def image_columns(src: Path, columns: Columns) -> tuple[Columns, list[str]]:
    """Return the columns of a CSV or TSV of images, and remarks for the user if it has no header."""
    with readable(src):
        records = first_records(src, columns.delimiter or own_delimiter(src), _SAMPLED_ROWS)
    if not records:
        return columns, []
    names = lower(records[0])
    of_path = image_at(src, records[:1])
    if not columns.no_header and (of_path is None or names & columns.lower()):
        if names & (KNOWN | columns.lower()):
            return columns, []
        of_path = image_at(src, records)
        if of_path is None and not columns.numbered():
            return columns, []
    of_path = image_at(src, records) if of_path is None else of_path
    width = len(records[0])
    reason = (
        "--no-header" if columns.no_header else f"its first line is a row: {shortened(', '.join(records[0]), 80)!r}"
    )
    numbered = f"{src}: no header ({reason}): columns are numbered 1 to {width}"
    chosen = replace(columns, no_header=True)
    if columns.path is None and of_path is not None:
        chosen = replace(chosen, path=str(of_path + 1))
    rest = [str(number) for number in range(1, width + 1) if str(number) not in (chosen.path, columns.split)]
    if columns.label is None and chosen.path is not None and not columns.targets:
        if len(rest) != 1:
            raise UsageError(
                f"{numbered}, and column {chosen.path} holds the paths; name the column of labels with --label-column "
                "N (and one of splits with --split-column N), or add a header line"
            )
        chosen = replace(chosen, label=rest[0])
    if chosen.path == columns.path and chosen.label == columns.label:
        return chosen, [numbered]
    flags = "--path-column N --label-column M --no-header"
    label = "" if columns.targets else f", as label: {chosen.label}"
    return chosen, [f"{numbered}; taken as path: {chosen.path}{label}; if that is wrong, give {flags}"]


def check_apart(src: object, image: str, taken: Sequence[str], text: str | None) -> None:
    """Raise UsageError if a column is two of those of images (called `image`), labels, splits and texts."""
    if len(set(taken)) < len(taken):
        raise UsageError(
            f"{src}: {image}, label and split are three columns; {', '.join(taken)} names one of them twice"
        )
    if text in taken:
        raise UsageError(
            f"{src}: --text-column {text}: the column is already its {image}, label or split; name another one"
        )


def find_column(
    src: object, known: list[str], given: str | None, usual: Sequence[str], what: str, later: Sequence[str] = ()
) -> str | None:
    """Return the column to use: the `given` one, or else the first of the `usual` names that the file has.

    `later`: columns that the first row lacks; one with a usual name is used if no other has one. Raises DataError if
    there is none; a split column is optional.
    """
    names = [*known, *later]
    if given is not None:
        if given not in names:
            raise DataError(
                f"{src}: no column {given!r} (--{what}-column); it has {', '.join(names)}{nearest(given, names)}"
            )
        return given
    for some in (known, later):
        for name in usual:
            for column in some:
                if column.strip().lower() == name:
                    return column
    if what == "split":
        return None
    hint = next((hint for name in usual if (hint := nearest(name, names, 1, cutoff=0.6))), "")
    other = ", or a column of texts with --text-column" if what == "path" else ""
    raise DataError(
        f"{src}: no {what} column ({', '.join(usual)}); it has {', '.join(names)}{hint or ';'} "
        f"name it with --{what}-column{other}"
    )
