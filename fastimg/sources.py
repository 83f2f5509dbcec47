"""What a source is: a class folder or a manifest, read into one list of entries per split. Nothing is decoded here.

A manifest is csv, tsv, jsonl or parquet: one row per image, with a path, a label and, optionally, a split. Paths are
absolute or relative to the manifest's folder. Labels that are all integers give classes named after the sorted
integers; any other labels give the sorted strings. What other columns say is kept with each sample.
"""

import csv
import hashlib
import json
import math
import os
import re
import stat
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from fastimg.errors import UsageError, nearest
from fastimg.loaders.errors import DataError
from fastimg.loaders.folder import SPLIT_FOLDERS, list_folder
from fastimg.loaders.shards import foreign_shards

PATH_COLUMNS = ("path", "file", "filename", "image")
LABEL_COLUMNS = ("label", "class", "target")
SPLIT_COLUMNS = ("split",)

_MAX_BYTES = 8**11  # a ustar member's size has 11 octal digits
_INTEGER = re.compile(r"[+-]?[0-9]+")

Kind = Literal["folder", "csv", "tsv", "jsonl", "parquet"]
Row = dict[str, Any]


class Entry(NamedTuple):
    """One image of a source."""

    path: str  # relative to the source's root
    label: int
    size: int  # bytes; -1: there is no file to read
    row: int = 0  # of the manifest, as a spreadsheet counts: 1 is the header of a csv. 0: no manifest
    extra: Row | None = None  # further columns of the manifest


@dataclass(frozen=True)
class Columns:
    """Names of a manifest's columns; None: found by the usual names."""

    path: str | None = None
    label: str | None = None
    split: str | None = None

    def given(self) -> list[str]:
        """The flags that name a column."""
        return [f"--{name}-column" for name in ("path", "label", "split") if getattr(self, name) is not None]


@dataclass(frozen=True)
class Source:
    """Entries by split; classes are the same in every split."""

    src: Path
    root: Path
    kind: Kind
    classes: tuple[str, ...]
    splits: dict[str, list[Entry]]
    ignored: int  # files in a folder whose names are not those of images

    def file(self, entry: Entry) -> Path:
        """Where the image lies."""
        return self.root / entry.path

    def name(self, entry: Entry) -> str:
        """What a person calls the entry: its file, after the manifest's row where there is one."""
        return f"{self.src}: row {entry.row}: {entry.path}" if entry.row else str(self.file(entry))

    def problem(self, entry: Entry) -> str | None:
        """Why the file cannot be read, as far as the listing knows; None where it can."""
        if entry.size >= _MAX_BYTES:
            return "8 GiB or more: no member of a tar shard may be so large"
        if entry.size >= 0:
            return None
        try:
            regular = stat.S_ISREG(os.stat(self.file(entry)).st_mode)
        except OSError as error:
            return "no such file" if isinstance(error, FileNotFoundError) else (error.strerror or str(error))
        return "appeared after the source was listed" if regular else "not a file"

    def fingerprint(self) -> str:
        """sha256 of everything in the listing that the samples are made of."""
        digest = hashlib.sha256(json.dumps(self.classes).encode())
        for split, entries in sorted(self.splits.items()):
            for entry in entries:
                digest.update(json.dumps((split, entry.path, entry.label, entry.size, entry.extra)).encode())
        return digest.hexdigest()


def read_source(src: Path, columns: Columns) -> Source:
    """List a class folder or read a manifest. Raises DataError, UsageError."""
    if os.path.isdir(src):
        if columns.given():
            raise UsageError(
                f"{', '.join(columns.given())}: {src} is a folder and has no columns; leave it out, or give a manifest"
            )
        return _read_folder(src)
    if not os.path.exists(src):
        raise DataError(f"{src}: no such file or folder, or none that you may read; check the path")
    readers = {".csv": _csv_rows, ".tsv": _csv_rows, ".jsonl": _jsonl_rows, ".parquet": _parquet_rows}
    suffix = src.suffix.lower()
    if suffix not in readers:
        raise DataError(f"{src}: neither a folder nor a manifest that ends in {', '.join(readers)}; give one of these")
    try:
        return _read_manifest(src, readers[suffix](src), columns)
    except (OSError, UnicodeDecodeError, csv.Error, pa.ArrowException) as error:
        reason = (getattr(error, "strerror", None) or str(error) or type(error).__name__).splitlines()[0]
        raise DataError(f"{src}: the manifest cannot be read ({reason}); check or write it again") from error


def _read_folder(src: Path) -> Source:
    if (src / "dataset.json").exists() or foreign_shards(src):
        raise DataError(f"{src}: holds tar shards already; `fastimg train {src}` reads them as they are")
    listing = list_folder(src)
    splits = {
        split: [Entry(path, label, _size(src / path)) for path, label in files]
        for split, files in listing.files.items()
    }
    return Source(src, src, "folder", listing.classes, splits, listing.ignored)


def _size(file: Path) -> int:
    try:
        found = os.stat(file)
    except (OSError, ValueError):  # ValueError: a null byte in a manifest's path
        return -1
    return found.st_size if stat.S_ISREG(found.st_mode) else -1


def _read_manifest(src: Path, rows: Iterator[tuple[int, Row]], columns: Columns) -> Source:
    """`rows` are (row number, columns); the same columns in each, None where a row has nothing there."""
    first = next(rows, None)
    if first is None:
        raise DataError(f"{src}: the manifest has no rows; give one row per image")
    known = list(first[1])
    path_column = _column(src, known, columns.path, PATH_COLUMNS, "path")
    label_column = _column(src, known, columns.label, LABEL_COLUMNS, "label")
    split_column = _column(src, known, columns.split, SPLIT_COLUMNS, "split")
    taken = [name for name in (path_column, label_column, split_column) if name is not None]
    if len(set(taken)) < len(taken):
        raise UsageError(f"{src}: path, label and split are three columns; {', '.join(taken)} names one of them twice")
    assert path_column is not None and label_column is not None
    if "path" in known and "path" not in taken:
        raise DataError(
            f"{src}: the column 'path' beside --path-column {path_column} would hide where an image came from; "
            "rename it"
        )
    paths: list[tuple[int, str, Row | None]] = []
    labels: list[str] = []
    splits: list[str] = []
    for number, row in _chain(first, rows):
        where = f"{src}: row {number}"
        path = row[path_column]
        if not isinstance(path, str) or not path or "\0" in path:
            raise DataError(f"{where}: {path!r} in column {path_column!r} is not a path; fill it in or drop the row")
        labels.append(_label(where, label_column, row[label_column]))
        splits.append("train" if split_column is None else _split(where, row[split_column]))
        extra: Row = {name: _plain(where, name, value) for name, value in row.items() if name not in taken}
        paths.append((number, _relative(src.parent, path), extra or None))
    if all(_INTEGER.fullmatch(label) for label in labels):
        labels = [str(int(label)) for label in labels]
        classes = tuple(sorted(set(labels), key=int))
    else:
        classes = tuple(sorted(set(labels)))
    indices = {name: index for index, name in enumerate(classes)}
    found: dict[str, list[Entry]] = {}
    for (number, path, rest), label, split in zip(paths, labels, splits, strict=True):
        found.setdefault(split, []).append(Entry(path, indices[label], _size(src.parent / path), number, rest))
    if "train" not in found:
        raise DataError(
            f"{src}: no row of the training split in column {split_column!r}; it has {', '.join(sorted(found))}"
        )
    trained = {entry.label for entry in found["train"]}
    for split, entries in sorted(found.items()):
        for entry in entries:
            if entry.label not in trained:
                raise DataError(
                    f"{src}: row {entry.row}: the training split has no class {classes[entry.label]!r}, "
                    f"which {split} has; add it there or drop the row"
                )
        entries.sort(key=lambda entry: (entry.path, entry.row))
    kind: Any = src.suffix.lower()[1:]
    return Source(src, src.parent, kind, classes, dict(sorted(found.items())), 0)


def _chain(first: tuple[int, Row], rows: Iterator[tuple[int, Row]]) -> Iterator[tuple[int, Row]]:
    yield first
    for number, row in rows:
        yield number, {name: row.get(name) for name in {**first[1], **row}}


def _column(src: Path, known: list[str], given: str | None, usual: Iterable[str], what: str) -> str | None:
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


def _label(where: str, column: str, value: Any) -> str:
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


def _split(where: str, value: Any) -> str:
    split = SPLIT_FOLDERS.get(str(value).strip().lower())
    if split is None:
        raise DataError(f"{where}: {value!r} is no split; use one of {', '.join(SPLIT_FOLDERS)}")
    return split


def _relative(root: Path, path: str) -> str:
    return os.path.relpath(path, os.path.abspath(root)) if os.path.isabs(path) else os.path.normpath(path)


def _plain(where: str, name: str, value: Any) -> Any:
    """`value` as json can hold it: dates and decimals as text, what is no number as nothing."""
    if value is None or isinstance(value, str | int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, list | tuple):
        return [_plain(where, name, item) for item in value]
    if isinstance(value, dict):
        return {str(key): _plain(where, name, item) for key, item in value.items()}
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
