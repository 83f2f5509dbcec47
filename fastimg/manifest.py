"""A manifest as a source: csv, tsv, jsonl or parquet, one row per image, with a path, a label and, optionally, a split.

Paths are absolute or relative to the manifest's folder. Labels that are all integers give classes named after the
sorted integers; any other labels give the sorted strings. What other columns say is kept with each sample.
"""

import math
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from .errors import UsageError, nearest
from .files import FilesReader, file_size
from .loaders.errors import DataError
from .loaders.folder import SPLIT_FOLDERS
from .samples import Entries, Entry, Row, Source
from .tables import Rows, readable, table_rows

PATH_COLUMNS = ("path", "file", "filename", "image")
LABEL_COLUMNS = ("label", "class", "target")
SPLIT_COLUMNS = ("split",)
MANIFESTS = (".csv", ".tsv", ".jsonl", ".parquet")

_INTEGER = re.compile(r"[+-]?[0-9]{1,4000}")


@dataclass(frozen=True)
class Columns:
    """Names of a manifest's columns; None: found by the usual names."""

    path: str | None = None
    label: str | None = None
    split: str | None = None
    text: str | None = None
    no_header: bool = False

    def given(self) -> list[str]:
        """The flags that say something of columns."""
        flags = [f"--{name}-column" for name in ("path", "text", "label", "split") if getattr(self, name) is not None]
        return flags + ["--no-header"] * self.no_header

    def lower(self) -> set[str]:
        """The columns that were named, in lower case."""
        return {name.lower() for name in (self.path, self.text, self.label, self.split) if name is not None}


def read_manifest(src: Path, columns: Columns) -> Source:
    """List the images of a manifest. Raises DataError, UsageError."""
    with readable(src):
        return _read(src, table_rows(src, header=not columns.no_header), columns)


def first_row(src: Path, rows: Rows) -> tuple[list[str], Rows]:
    """The columns of the first row, and all rows with those of it: None where a row has nothing there."""
    first = next(rows, None)
    if first is None:
        raise DataError(f"{src}: the manifest has no rows; give one row per sample")
    return list(first[1]), _chain(first, rows)


def _read(src: Path, rows: Rows, columns: Columns) -> Source:
    known, rows = first_row(src, rows)
    path_column = find_column(src, known, columns.path, PATH_COLUMNS, "path")
    label_column = find_column(src, known, columns.label, LABEL_COLUMNS, "label")
    split_column = find_column(src, known, columns.split, SPLIT_COLUMNS, "split")
    taken = [name for name in (path_column, label_column, split_column) if name is not None]
    if len(set(taken)) < len(taken):
        raise UsageError(f"{src}: path, label and split are three columns; {', '.join(taken)} names one of them twice")
    assert path_column is not None and label_column is not None
    if "path" in known and "path" not in taken:
        raise DataError(
            f"{src}: the column 'path' beside --path-column {path_column} would hide where an image came from; "
            "rename it"
        )
    listed = Entries()
    labels: list[str] = []
    splits: list[str] = []
    for number, row in rows:
        where = f"{src}: row {number}"
        path = row[path_column]
        if not isinstance(path, str) or not _is_path(path):
            raise DataError(f"{where}: {path!r} in column {path_column!r} is not a path; fill it in or drop the row")
        labels.append(sys.intern(label_of(where, label_column, row[label_column])))
        splits.append("train" if split_column is None else split_of(where, row[split_column]))
        extra: Row = {name: plain(where, name, value) for name, value in row.items() if name not in taken}
        listed.append(Entry(_relative(src.parent, path), len(listed), file_size(src.parent / path), number, extra))
    classes, numbers = number_classes(labels)
    listed.relabel(numbers)
    found = split_up(src, listed, splits, split_column, classes, lambda entry: (entry.path, entry.row))
    return Source(src, src.suffix.lower()[1:], classes, found, (FilesReader(src.parent, src),))


def split_up(
    src: Path,
    listed: Entries,
    splits: list[str],
    split_column: str | None,
    classes: tuple[str, ...],
    key: Callable[[Entry], Any] | None = None,
) -> dict[str, Entries]:
    """Entries by their split, in the order of `key` or their own. The training split has every class."""
    if "train" not in splits:
        raise DataError(
            f"{src}: no row of the training split in column {split_column!r}; it has {', '.join(sorted(set(splits)))}"
        )
    found = {split: listed.select(np.flatnonzero(np.array(splits) == split)) for split in sorted(set(splits))}
    if key:
        found = {split: entries.sorted(key) for split, entries in found.items()}
    trained = set(found["train"].labels.tolist())
    for split, entries in found.items():
        if untrained := set(entries.labels.tolist()) - trained:
            entry = min((entry for entry in entries if entry.label in untrained), key=lambda entry: entry.row)
            raise DataError(
                f"{src}: row {entry.row}: the training split has no class {classes[entry.label]!r}, "
                f"which {split} has; add it there or drop the row"
            )
    return found


def number_classes(labels: list[str]) -> tuple[tuple[str, ...], npt.NDArray[np.int64]]:
    """Class names, and the class of each label: sorted integers where all labels are, else sorted strings."""
    names = set(labels)
    if all(_INTEGER.fullmatch(name) for name in names):
        values = {name: int(name) for name in names}
        ordered = sorted(set(values.values()))
        places = {value: at for at, value in enumerate(ordered)}
        index = {name: places[value] for name, value in values.items()}
        classes = tuple(map(str, ordered))
    else:
        classes = tuple(sorted(names))
        index = {name: at for at, name in enumerate(classes)}
    return classes, np.array([index[label] for label in labels], np.int64)


def _chain(first: tuple[int, Row], rows: Rows) -> Iterator[tuple[int, Row]]:
    yield first
    for number, row in rows:
        yield number, {name: row.get(name) for name in {**first[1], **row}}


def find_column(src: Path, known: list[str], given: str | None, usual: Iterable[str], what: str) -> str | None:
    """The column to use: the one that was named, else the first of the usual ones that is there."""
    if given is not None:
        if given not in known:
            raise DataError(
                f"{src}: no column {given!r} (--{what}-column); it has {', '.join(known)}{nearest(given, known)}"
            )
        return given
    for name in usual:
        for column in known:
            if column.strip().lower() == name:
                return column
    if what == "split":
        return None
    hint = next((hint for name in usual if (hint := nearest(name, known, n=1))), "")
    other = ", or a column of texts with --text-column" if what == "path" else ""
    raise DataError(
        f"{src}: no {what} column ({', '.join(usual)}); it has {', '.join(known)}{hint or ';'} "
        f"name it with --{what}-column{other}"
    )


def label_of(where: str, column: str, value: Any) -> str:
    if isinstance(value, float) and value.is_integer():  # what pandas makes of integers once one is missing
        value = int(value)
    if isinstance(value, float) and math.isnan(value):
        value = None
    text = "" if value is None else str(value).strip()
    if not text:
        raise DataError(f"{where}: the label in column {column!r} is empty; fill it in or drop the row")
    if not isinstance(value, str | int):
        raise DataError(f"{where}: the label {text[:40]!r} in column {column!r} is neither a string nor an integer")
    return text


def split_of(where: str, value: Any) -> str:
    split = SPLIT_FOLDERS.get(str(value).strip().lower())
    if split is None:
        raise DataError(f"{where}: {value!r} is no split; use one of {', '.join(SPLIT_FOLDERS)}")
    return split


def _is_path(text: str) -> bool:
    try:
        return bool(text) and b"\0" not in os.fsencode(text)
    except UnicodeEncodeError:  # json may hold half of a surrogate pair
        return False


def _relative(root: Path, path: str) -> str:
    return os.path.relpath(path, os.path.abspath(root)) if os.path.isabs(path) else os.path.normpath(path)


def plain(where: str, name: str, value: Any) -> Any:
    """`value` as json can hold it: dates and decimals as text, what is no number as nothing."""
    if value is None or isinstance(value, str | int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, list | tuple):
        return [plain(where, name, item) for item in value]
    if isinstance(value, dict):
        return {str(key): plain(where, name, item) for key, item in value.items()}
    if isinstance(value, bytes):
        raise DataError(f"{where}: the column {name!r} holds bytes, which no json can; drop the column")
    return str(value)
