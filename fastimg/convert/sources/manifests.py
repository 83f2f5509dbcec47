"""A manifest as a source: CSV, TSV, JSONL or Parquet, one row per image with a path, a label and, optionally, a split.

Paths are absolute or relative to the folder of the manifest. A CSV or TSV without a header is recognised by the path of
an image in its first line. The classes are the names that a Parquet file's schema gives to the numbers of its labels;
else the sorted integers if all labels are integers, or the sorted strings. The values of other columns are kept with
each sample.
"""

import math
import os
import unicodedata
from array import array
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import Any, Literal

import numpy as np

from fastimg.convert.annotations.cells import FieldCells, check_fields_of
from fastimg.convert.annotations.reader import FieldsReader
from fastimg.loaders.containers.fields import StoredField
from fastimg.loaders.errors import DataError
from fastimg.loaders.folders.folder import SPLIT_FOLDERS
from fastimg.loaders.remote.trees import tree_of
from fastimg.wording import plural

from .columns import (
    LABEL_COLUMNS,
    PATH_COLUMNS,
    SEPARATED,
    SPLIT_COLUMNS,
    Columns,
    check_apart,
    find_column,
    image_columns,
    on_delimiter,
)
from .folders import FilesReader, WrittenPaths, size_below
from .labels import Labels, is_empty
from .recognition.near_files import NearFiles
from .recognition.one_hot import find_one_hot
from .samples import Entries, Row, Source, SourceEntry, SourceReader
from .tables import Rows, later_names, readable, table_rows
from .targets import TargetCells, check_targets, labels_from

MANIFESTS = (*SEPARATED, ".jsonl", ".parquet")
_EXAMINED = 100  # paths that lead to no file, for which one with almost the same name is looked for
_FORMS: tuple[Literal["NFC", "NFD"], ...] = ("NFC", "NFD")
NO_IMAGE = 1  # the place of an entry that has no image; those of files are 0


def read_manifest(src: Path, columns: Columns) -> Source:
    """List the images of a manifest. Raises DataError, UsageError."""
    remarks: list[str] = []
    if src.suffix.lower() in SEPARATED:
        columns, remarks = image_columns(src, columns)
    with readable(src):
        read_rows = partial(table_rows, src, columns.delimiter or "", header=not columns.no_header)
        known, _ = first_row(src, read_rows())
        one_hot = find_one_hot(src, read_rows(), columns, [*known, *later_names(src, known)])
        if one_hot is None:
            return _read(src, read_rows, columns, remarks)
        joined = one_hot.joined
        return _read(src, lambda: joined(read_rows()), one_hot.asked(columns), [*remarks, one_hot.remark])


def first_row(src: Path, rows: Rows) -> tuple[list[str], Rows]:
    """Return the columns of the first row, and all rows with these columns; a missing value is None."""
    first = next(rows, None)
    if first is None:
        raise DataError(f"{src}: the manifest has no rows; give one row per sample")
    return list(first[1]), _chain(first, rows)


def _read(src: Path, read_rows: Callable[[], Rows], columns: Columns, header_remarks: list[str]) -> Source:
    known, rows = first_row(src, read_rows())
    later = later_names(src, known)
    path_column = find_column(src, known, columns.path, PATH_COLUMNS, "path", later)
    split_column = find_column(src, known, columns.split, SPLIT_COLUMNS, "split", later)
    label_column = _label_column(src, known, columns, later)
    known += later
    taken = [name for name in (path_column, label_column, split_column) if name is not None]
    check_apart(src, "path", taken, columns.text)
    assert path_column is not None
    check_targets(src, known, columns.targets, [*taken, columns.text])
    check_fields_of(src, known, columns.fields, [*taken, columns.text, *(target.name for target in columns.targets)])
    _refuse_second_path(src, known, taken, path_column)
    listed = Entries()
    names = schema_names(src, columns, label_column)
    label_cells = None if label_column is None else Labels(src, label_column, columns, names.get(label_column))
    target_cells = None
    if columns.targets:
        target_cells = TargetCells(src, columns, read_rows(), names)
    field_cells = FieldCells(src, columns.fields, names) if columns.fields else None
    paths = _Paths(src)
    read_apart = {*taken, *(field.name for field in columns.fields)}
    labels: list[str] = []
    splits: list[str] = []
    for number, row in rows if field_cells is None else field_cells.rows_ahead(rows):
        where = f"{src}: row {number}"
        path: Any = row.get(path_column)
        absent = columns.text is not None and is_empty(path)  # a text may stand alone
        if not absent and (not isinstance(path, str) or not _is_path(path)):
            raise DataError(f"{where}: {path!r} in column {path_column!r} is not a path; fill it in or drop the row")
        label = -1
        if label_cells is not None and label_column is not None and not label_cells.is_missing(row.get(label_column)):
            label = len(labels)
            labels.append(label_cells.read(where, row[label_column]))
        splits.append("train" if split_column is None else split_of(where, row.get(split_column)))
        extra: Row = {name: plain(where, name, value) for name, value in row.items() if name not in read_apart}
        if target_cells is not None:
            label = target_cells.read_into(extra, number, row, splits[-1])
        if field_cells is not None:
            field_cells.read_into(extra, number, row)
        path, size = paths.absent(number) if absent else paths.find(path, number)
        listed.append(SourceEntry(path, label, size, number, extra, NO_IMAGE if absent else 0))
    classes, judged = classes_of(listed, labels, label_cells, target_cells)
    remarks = (*header_remarks, *judged, *paths.remarks(listed, classes))
    if split_column is None and SPLIT_FOLDERS.get(src.parent.name.lower(), "train") != "train":
        remarks = (
            *remarks,
            f"{src}: its rows are training samples, although it is in {src.parent.name}/; a column "
            "'split' says which rows are of another split",
        )
    by_place = attrgetter("path", "row")
    entries = split_up(src, listed, splits, split_column, classes, by_place, trains=columns.trains)
    if label_cells is not None:
        entries, left_out = labelled_splits(src, entries, label_cells)
        remarks = (*remarks, *left_out)
    reader: SourceReader = FilesReader(src.parent, src, labelled=label_cells is not None)
    schemas: tuple[StoredField, ...] = ()
    if field_cells is not None:
        schemas, of_fields = field_cells.decided()
        remarks = (*remarks, *of_fields)
        reader = FieldsReader(reader, src.parent, schemas, {field.name: field.kind for field in columns.fields})
    uncounted = f"{src.name} names the files to read; other files beside them are not counted"
    return Source(
        src,
        src.suffix.lower()[1:],
        classes,
        entries,
        (reader,),
        uncounted=(uncounted,),
        remarks=remarks,
        columns=(_used(src, columns, path_column, label_column, split_column),),
        from_table=label_cells is not None and label_cells.names is None,
        targets=target_cells.targets if target_cells is not None else (),
        fields=tuple(schema.member for schema in schemas if schema.member),
        stored_fields=schemas,
        respelled=respelled_in(label_cells, target_cells),
    )


def _refuse_second_path(src: Path, known: list[str], taken: list[str], path_column: str) -> None:
    if "path" in known and "path" not in taken:
        raise DataError(
            f"{src}: the column 'path' beside --path-column {path_column} would hide where an image came from; "
            "rename it"
        )


def _used(src: Path, columns: Columns, path: str, label: str | None, split: str | None) -> str:
    """Which columns were read as what."""
    used = f"{src}: path from column {path!r}{labels_from(label, columns)}"
    used += f", split from {split!r}" if split is not None else ""
    used += f", fields from {', '.join(repr(field.name) for field in columns.fields)}" if columns.fields else ""
    return used + on_delimiter(src, columns)


def schema_names(src: Path, columns: Columns, label: str | None) -> dict[str, tuple[str, ...]]:
    """The class names that the schema of a Parquet file gives to the numbers of labels, targets and fields."""
    if src.suffix.lower() != ".parquet":
        return {}
    from .image_parquets import named_columns  # brings pyarrow

    asked = (label, *(target.name for target in columns.targets), *(field.name for field in columns.fields))
    return named_columns(src, [name for name in asked if name is not None])


def classes_of(
    listed: Entries, labels: Sequence[str], label_cells: Labels | None, target_cells: TargetCells | None
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The classes, which `listed` then has the numbers of, and remarks on them. Raises DataError.

    An entry's label is its place in `labels`, or, with targets, the number of its class already.
    """
    if target_cells is not None:
        return target_cells.classes, target_cells.judged()
    if label_cells is None:
        return (), ()
    judged = label_cells.judged()
    classes, numbers = label_cells.numbered(labels)
    listed.relabel(numbers)
    return classes, judged


def labelled_splits(src: Path, splits: dict[str, Entries], cells: Labels) -> tuple[dict[str, Entries], list[str]]:
    """The splits with labels, and remarks on those without, where a schema names the classes: benchmarks keep the
    labels of their test splits to themselves.
    """
    bare = [split for split, entries in splits.items() if cells.names is not None and (entries.labels < 0).all()]
    remarks = [
        f"{src}: the split {split} is left out: its {plural(len(splits[split]), 'row', 'has')} no label"
        for split in bare
    ]
    return {split: entries for split, entries in splits.items() if split not in bare}, remarks


def respelled_in(labels: Labels | None, targets: TargetCells | None) -> frozenset[str | None]:
    """See Source.respelled."""
    return (labels.respelled() if labels else frozenset()) | (targets.respelled if targets else frozenset())


def _label_column(src: Path, known: list[str], columns: Columns, later: list[str]) -> str | None:
    """The column of labels; None if there are targets instead, or only fields."""
    usual = any(name.strip().lower() in LABEL_COLUMNS for name in (*known, *later))
    if columns.targets or (columns.fields and columns.label is None and not usual):
        return None
    return find_column(src, known, columns.label, LABEL_COLUMNS, "label", later)


class _Paths:
    """Finds the files that the paths of a manifest name, and collects remarks on them."""

    def __init__(self, src: Path) -> None:
        self._src = src
        self._written = WrittenPaths(src.parent)
        self._hashes = array("q")
        self._missing = 0
        self._first_missing: list[tuple[int, str]] = []  # rows and paths of the first ones
        self._respelled = 0
        self._first_respelled = ""

    def find(self, path: str, row: int) -> tuple[str, int]:
        """Return the path from the manifest's folder on, and the size of its file or -1 if there is none.

        If the path as written leads to no file, it is tried without the blanks around it, with backslashes as slashes,
        and with its accents composed or not.
        """
        root = self._src.parent
        size = size_below(root, path)
        if size < 0:
            others = [path.strip(), path.replace("\\", "/"), path.strip().replace("\\", "/")]
            others += [unicodedata.normalize(form, others[-1]) for form in _FORMS if not path.isascii()]
            for other in dict.fromkeys(others):
                if other != path and (size := size_below(root, other)) >= 0:
                    self._respelled += 1
                    self._first_respelled = self._first_respelled or f"row {row}: {path!r} is {other!r}"
                    path = other
                    break
        if size < 0:
            self._missing += 1
            if self._missing <= _EXAMINED:
                self._first_missing.append((row, path))
        path = self._written.below(path)
        self._hashes.append(hash(path))
        return path, size

    def absent(self, row: int) -> tuple[str, int]:
        """Return what names a row without a path, and its size."""
        path = f"{self._src.name}:{row}"
        self._hashes.append(hash(path))
        return path, 0

    def remarks(self, listed: Entries, classes: Sequence[str]) -> list[str]:
        """Sentences for the user. Raises DataError if none of the files exist."""
        src = self._src
        remarks = []
        if self._missing == len(listed):
            absent = self._first_missing[0][1]
            in_cwd = tree_of(src.parent) is None and os.path.exists(absent)
            hint = "; they exist relative to the current directory, so move the manifest there" if in_cwd else ""
            raise DataError(
                f"{src}: none of its {len(listed):,} paths leads to a file, such as {absent!r}; paths are absolute or "
                f"relative to the manifest's folder{self._nearly() or hint}"
            )
        if nearly := self._nearly():
            remarks.append(f"{src}: {self._missing:,} of {len(listed):,} paths lead to no file{nearly}")
        if self._respelled:
            remarks.append(
                f"{src}: {self._respelled:,} paths lead to files without the blanks around them, with / for each \\, "
                f"or in another Unicode form ({self._first_respelled})"
            )
        hashes = np.array(self._hashes)
        _, places, counts = np.unique(hashes, return_inverse=True, return_counts=True)
        rows: dict[str, list[int]] = {}
        for index in np.flatnonzero(counts[places] > 1).tolist():
            rows.setdefault(listed[index].path, []).append(index)
        repeated = {path: group for path, group in rows.items() if len(group) > 1}
        indices = (index for group in repeated.values() for index in group)
        names = {index: classes[label] if (label := listed[index].label) >= 0 else "no label" for index in indices}
        differing = [group for group in repeated.values() if len({names[index] for index in group}) > 1]
        if repeated:
            first = (differing or list(repeated.values()))[0]
            shown = ", ".join(f"{listed[index].row} ({names[index]})" for index in first[:3])
            remarks.append(
                f"{src}: {plural(len(repeated), 'file', 'is')} in several rows, {len(differing):,} of them with "
                f"different labels; {listed[first[0]].path!r} is in rows {shown}"
            )
        return remarks

    def _nearly(self) -> str:
        """Which files the first paths that lead to none probably mean; empty if there are no such files."""
        near = NearFiles(self._src.parent)
        meant = [(row, path, found) for row, path in self._first_missing if (found := near.meant(path))]
        if not meant:
            return ""
        row, path, found = meant[0]
        of = f"{len(meant)} of the first {len(self._first_missing)}" if len(self._first_missing) > 1 else "it"
        return f"; {of} may mean files of almost the same name: row {row}: {path!r} may be {found!r}; correct them"


def split_up(
    src: Path,
    listed: Entries,
    splits: list[str],
    split_column: str | None,
    classes: tuple[str, ...],
    key: Callable[[SourceEntry], Any] | None = None,
    *,
    trains: bool = True,
) -> dict[str, Entries]:
    """Group entries by split, sorted by `key` if given. Raises DataError if the training split lacks a class.

    trains: whether there has to be a training split; see Columns.
    """
    if trains and "train" not in splits:
        raise DataError(
            f"{src}: no row of the training split in column {split_column!r}; it has {', '.join(sorted(set(splits)))}"
        )
    by_split = {split: listed.select(np.flatnonzero(np.array(splits) == split)) for split in sorted(set(splits))}
    if key:
        by_split = {split: entries.sorted(key) for split, entries in by_split.items()}
    if not trains:
        return by_split
    trained = {-1, *by_split["train"].labels.tolist()}  # rows without a label are skipped later
    for split, entries in by_split.items():
        if untrained := set(entries.labels.tolist()) - trained:
            entry = min((entry for entry in entries if entry.label in untrained), key=lambda entry: entry.row)
            raise DataError(
                f"{src}: row {entry.row}: the training split has no class {classes[entry.label]!r}, "
                f"which {split} has; add it there or drop the row"
            )
    return by_split


def _chain(first: tuple[int, Row], rows: Rows) -> Iterator[tuple[int, Row]]:
    yield first
    for number, row in rows:
        yield number, {name: row.get(name) for name in {**first[1], **row}}


def split_of(where: str, value: Any) -> str:
    """Normalize the name of a split. Raises DataError."""
    split = SPLIT_FOLDERS.get(str(value).strip().lower())
    if split is None:
        shown = "has no split" if is_empty(value) else f"{value!r} is not a split"
        raise DataError(f"{where}: {shown}; use one of {', '.join(SPLIT_FOLDERS)}")
    return split


def _is_path(text: str) -> bool:
    try:
        return bool(text) and b"\0" not in os.fsencode(text)
    except UnicodeEncodeError:  # JSON may contain half of a surrogate pair
        return False


def plain(where: str, name: str, value: Any) -> Any:
    """Convert `value` for JSON: dates and decimals become text, NaN and infinities None. Raises DataError for bytes."""
    if value is None or isinstance(value, str | int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, list | tuple):
        return [plain(where, name, item) for item in value]
    if isinstance(value, dict):
        return {str(key): plain(where, name, item) for key, item in value.items()}
    if isinstance(value, bytes):
        raise DataError(f"{where}: the column {name!r} holds bytes, which JSON cannot store; drop the column")
    return str(value)
