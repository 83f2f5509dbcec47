"""A manifest as a source: csv, tsv, jsonl or parquet, one row per image, with a path, a label and, optionally, a split.

Paths are absolute or relative to the manifest's folder. Labels that are all integers give classes named after the
sorted integers; any other labels give the sorted strings. What other columns say is kept with each sample.
"""

import contextlib
import csv
import json
import math
import os
import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from .errors import UsageError, nearest
from .files import FilesReader, file_size
from .loaders.errors import DataError
from .loaders.folder import SPLIT_FOLDERS
from .samples import Entries, Entry, Row, Source

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

    def given(self) -> list[str]:
        """The flags that name a column."""
        return [f"--{name}-column" for name in ("path", "label", "split") if getattr(self, name) is not None]


def read_manifest(src: Path, columns: Columns) -> Source:
    """List the images of a manifest. Raises DataError, UsageError."""
    readers = {".csv": _csv_rows, ".tsv": _csv_rows, ".jsonl": _jsonl_rows, ".parquet": _parquet_rows}
    with readable(src):
        return _read(src, readers[src.suffix.lower()](src), columns)


@contextlib.contextmanager
def readable(src: Path) -> Iterator[None]:
    """Turn what goes wrong while a manifest is read into a DataError."""
    try:
        yield
    except (OSError, UnicodeDecodeError, csv.Error, pa.ArrowException) as error:
        reason = (getattr(error, "strerror", None) or str(error) or type(error).__name__).splitlines()[0]
        raise DataError(f"{src}: the manifest cannot be read ({reason}); check or write it again") from error


def _read(src: Path, rows: Iterator[tuple[int, Row]], columns: Columns) -> Source:
    """`rows` are (row number, columns); the same columns in each, None where a row has nothing there."""
    first = next(rows, None)
    if first is None:
        raise DataError(f"{src}: the manifest has no rows; give one row per image")
    known = list(first[1])
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
    for number, row in _chain(first, rows):
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
    if "train" not in splits:
        raise DataError(
            f"{src}: no row of the training split in column {split_column!r}; it has {', '.join(sorted(set(splits)))}"
        )
    found = {
        split: listed.select(np.flatnonzero(np.array(splits) == split)).sorted(
            key=lambda entry: (entry.path, entry.row)
        )
        for split in sorted(set(splits))
    }
    trained = set(found["train"].labels.tolist())
    for split, entries in found.items():
        if untrained := set(entries.labels.tolist()) - trained:
            entry = min((entry for entry in entries if entry.label in untrained), key=lambda entry: entry.row)
            raise DataError(
                f"{src}: row {entry.row}: the training split has no class {classes[entry.label]!r}, "
                f"which {split} has; add it there or drop the row"
            )
    return Source(src, src.suffix.lower()[1:], classes, found, (FilesReader(src.parent, src),))


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


def _chain(first: tuple[int, Row], rows: Iterator[tuple[int, Row]]) -> Iterator[tuple[int, Row]]:
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
    raise DataError(
        f"{src}: no {what} column ({', '.join(usual)}); it has {', '.join(known)}{hint or ';'} "
        f"name it with --{what}-column"
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


def _csv_rows(src: Path) -> Iterator[tuple[int, Row]]:
    with src.open(encoding="utf-8-sig", newline="") as file:
        rows = csv.reader(file, delimiter="\t" if src.suffix.lower() == ".tsv" else ",", strict=True)
        header = next(rows, None)
        if header is None:
            raise DataError(f"{src}: the manifest is empty; give a header and one row per image")
        if len(set(header)) < len(header):
            raise DataError(f"{src}: two columns of the header have the same name: {', '.join(header)}; rename one")
        for number, row in enumerate(rows, start=2):
            if not row:
                continue
            if len(row) != len(header):
                raise DataError(
                    f"{src}: row {number}: {len(row)} fields under a header of {len(header)} ({', '.join(header)}); "
                    "quote fields that hold the separator"
                )
            yield number, dict(zip(header, row, strict=True))


def _jsonl_rows(src: Path) -> Iterator[tuple[int, Row]]:
    with src.open(encoding="utf-8-sig") as file:
        for number, line in enumerate(file, start=1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except (ValueError, RecursionError) as error:
                raise DataError(f"{src}: row {number}: not json ({error}); write one object a line") from error
            if not isinstance(row, dict):
                raise DataError(f"{src}: row {number}: not a json object; write one object a line")
            yield number, row


def _parquet_rows(src: Path) -> Iterator[tuple[int, Row]]:
    with pq.ParquetFile(src) as file:
        if len(set(file.schema_arrow.names)) < len(file.schema_arrow.names):
            raise DataError(f"{src}: two columns have the same name: {', '.join(file.schema_arrow.names)}; rename one")
        number = 0
        for batch in file.iter_batches():
            for row in batch.to_pylist():
                number += 1
                yield number, row
