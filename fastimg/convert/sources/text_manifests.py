"""Manifests whose rows are texts: CSV, TSV, JSONL or Parquet, each row with a text, a label and, optionally, a split.

Texts are stored byte for byte. A row without a valid text or without a label is listed with its problem, and skipped or
refused when it is read, as in a manifest of images.
"""

import contextlib
import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from fastimg.errors import UsageError
from fastimg.loaders.errors import DataError
from fastimg.loaders.folders.formats import image_extensions
from fastimg.wording import plural, shortened

from .columns import (
    KNOWN,
    LABEL_COLUMNS,
    PATH_COLUMNS,
    SEPARATED,
    SPLIT_COLUMNS,
    TEXT_COLUMNS,
    Columns,
    find_column,
    lower,
    on_delimiter,
)
from .labels import Labels, is_empty
from .manifests import (
    classes_of,
    first_row,
    labelled_splits,
    plain,
    respelled_in,
    schema_names,
    split_of,
    split_up,
)
from .recognition.one_hot import find_one_hot
from .samples import NO_LABEL, Entries, Row, Source, SourceEntry
from .spools import Spool, SpoolReader
from .tables import (
    Rows,
    first_fields,
    later_names,
    long_fields,
    own_delimiter,
    parquet_names,
    parquet_rows,
    quotes_fields,
    readable,
    table_rows,
)
from .targets import TargetCells, check_targets, labels_from

_FLAGS = "--text-column N --label-column M --no-header"


class _Chosen(NamedTuple):
    """Which columns to use, and remarks for the user."""

    text: str
    label: str | None  # None if there are targets
    split: str | None
    remarks: list[str]


class TextReader(SpoolReader):
    """Reads spooled texts, and reports the problems of those that could not be spooled."""

    def add_text(self, entry: SourceEntry, value: Any, fault: str, extra: Row) -> SourceEntry:
        """Store a text. Returns `entry` with its size and place, or with its problem."""
        data, text_fault = _encoded(value)
        return self.add(entry, data, extra, {}, text_fault or fault)

    def name(self, entry: SourceEntry) -> str:
        """The file and the row."""
        return f"{self.where}: row {entry.row}"


def holds_texts(src: Path, columns: Columns) -> bool:
    """Whether the rows of a manifest are texts: --text-column is given, or a column has a usual name for texts.

    A CSV or TSV without a header, that is, without a known column name in its first line, has rows of text unless they
    look like paths of images. Raises DataError.
    """
    if columns.text is not None or columns.path is not None:
        return columns.text is not None
    with readable(src), long_fields():
        quoted = not _by_tabs(src, columns)
        names = _names(src, columns, quoted)
        if names & set(PATH_COLUMNS):
            return False
        if names & set(TEXT_COLUMNS):
            return True
        if src.suffix.lower() not in SEPARATED or names & (KNOWN | columns.lower()):
            return False
        lines = table_rows(src, columns.delimiter or "", header=False, strict=False, quoted=quoted)
        first = [row for (_, row), _ in zip(lines, range(2), strict=False)]
    extensions = image_extensions()
    of_images = any(os.path.splitext(value)[1].lower() in extensions for row in first for value in row.values())
    return bool(first) and (columns.no_header or len(first[0]) > 1) and not of_images


def _by_tabs(src: Path, columns: Columns) -> bool:
    """Whether tabs separate the columns, so that quotes may be text."""
    return src.suffix.lower() in SEPARATED and (columns.delimiter or own_delimiter(src)) == "\t"


def _names(src: Path, columns: Columns, quoted: bool) -> set[str]:
    """Column names in lower case; the fields of the first line if there is no header.

    Of a JSONL file those that have a value in any row, or all if these tell neither images nor texts.
    """
    suffix = src.suffix.lower()
    if suffix == ".parquet":
        return lower(parquet_names(src))
    if suffix != ".jsonl":
        return lower(first_fields(src, columns.delimiter or "", quoted))
    filled: set[str] = set()
    names: set[str] = set()
    for _, row in table_rows(src, strict=False):
        names.update(row)
        filled.update(name for name, value in row.items() if not is_empty(value))
    return found if (found := lower(filled)) & {*PATH_COLUMNS, *TEXT_COLUMNS} else lower(names)


def read_texts(src: Path, columns: Columns, spool: Path) -> Source:
    """List the texts of a manifest. `spool` is the folder for a temporary file.

    Raises DataError, UsageError, and OSError if that folder is full.
    """
    with long_fields(), contextlib.ExitStack() as stack:
        file = stack.enter_context(contextlib.closing(Spool(spool)))
        source = _read(src, columns, TextReader(file, str(src)))
        file.flush()
        stack.pop_all()
    return source


def _read(src: Path, columns: Columns, reader: TextReader) -> Source:
    separated = src.suffix.lower() in SEPARATED
    by_tabs = _by_tabs(src, columns)
    with readable(src):
        header = _has_header(src, columns)
        quoted = not by_tabs or (header and quotes_fields(src))
        remarks = _on_quotes(src, header, quoted) if by_tabs else []
        one_hot = None

        def read_rows() -> Rows:
            rows = table_rows(src, columns.delimiter or "", header=header, strict=False, quoted=quoted)
            return rows if one_hot is None else one_hot.joined(rows)

        if header:
            known = _columns(src, columns, quoted)
            known += later_names(src, known)
            if (one_hot := find_one_hot(src, read_rows(), columns, known)) is not None:
                columns = one_hot.asked(columns)
                remarks = [*remarks, one_hot.remark]
        chosen = _chosen(src, columns, header, quoted, () if one_hot is None else (one_hot.name,))
        rows = read_rows()
        if src.suffix.lower() == ".parquet":
            rows = _parquet_rows(src, chosen.text)
            rows = rows if one_hot is None else one_hot.joined(rows)
    known, rows = first_row(src, _readable_rows(src, rows))
    if columns.targets:
        check_targets(src, [*known, *later_names(src, known)], columns.targets, chosen[:3])
    with readable(src):
        names = schema_names(src, columns, chosen.label)
    target_cells = None
    if columns.targets:
        target_cells = TargetCells(src, columns, _readable_rows(src, read_rows()), names)
    listed = Entries()
    label_cells = None
    if chosen.label is not None:
        label_cells = Labels(src, chosen.label, columns, names.get(chosen.label))
    labels: list[str] = []
    splits: list[str] = []
    taken = set(chosen[:3])
    for number, row in rows:
        where = f"{src}: row {number}"
        label = -1
        if label_cells is not None and chosen.label is not None and not label_cells.is_missing(row.get(chosen.label)):
            label = len(labels)
            labels.append(_checked_label(where, chosen.label, label_cells.read(where, row[chosen.label])))
        splits.append("train" if chosen.split is None else split_of(where, row.get(chosen.split)))
        extra: Row = {name: plain(where, name, value) for name, value in row.items() if name not in taken}
        if is_empty(extra.get("path")):  # a note's path tells where the text came from
            extra.pop("path", None)
        fault = _fault_beside(extra) if separated else ""
        if target_cells is not None:
            label = target_cells.read_into(extra, number, row, splits[-1])
        elif label < 0:
            fault = NO_LABEL
        entry = SourceEntry(f"{src.name}:{number}", label, 0, number)
        listed.append(reader.add_text(entry, row.get(chosen.text), fault, extra))
    classes, judged = classes_of(listed, labels, label_cells, target_cells)
    entries = split_up(src, listed, splits, chosen.split, classes, trains=columns.trains)
    if label_cells is not None:
        entries, left_out = labelled_splits(src, entries, label_cells)
        remarks += left_out
    columns_used = f"{src}: text from column {chosen.text!r}{labels_from(chosen.label, columns)}"
    columns_used += f", split from {chosen.split!r}" if chosen.split is not None else ""
    return Source(
        src,
        src.suffix.lower()[1:],
        classes,
        entries,
        (reader,),
        remarks=(*chosen.remarks, *remarks, *judged),
        content="text",
        columns=(columns_used + (on_delimiter(src, columns) if separated else ""),),
        from_table=label_cells is not None and label_cells.names is None,
        targets=target_cells.targets if target_cells is not None else (),
        respelled=respelled_in(label_cells, target_cells),
    )


def _readable_rows(src: Path, rows: Rows) -> Rows:
    """Turn errors while reading rows into a DataError, but not errors of the code that uses them."""
    with readable(src):
        yield from rows


def _has_header(src: Path, columns: Columns) -> bool:
    """Whether columns have names. Those of a CSV or TSV do if a name in the first line is known or was given."""
    if src.suffix.lower() not in SEPARATED:
        return True
    if columns.no_header:
        return False
    names = _names(src, columns, not _by_tabs(src, columns))
    given = columns.lower()
    if not names or names & (KNOWN | given):
        return True
    return any(not name.isdigit() for name in given)  # find_column reports a missing name


def _on_quotes(src: Path, header: bool, quoted: bool) -> list[str]:
    if quoted:
        return [f"{src}: quotes in it enclose fields, because all of them follow the rules of CSV"]
    with src.open("rb") as file:
        if not any(b'"' in line for line in file):
            return []
    why = "not all of them enclose a field" if header else "there is no header"
    return [f"{src}: quotes in it are text, because {why}; every line is a row, and tabs separate its columns"]


def _chosen(src: Path, columns: Columns, header: bool, quoted: bool, joined: Sequence[str]) -> _Chosen:
    """`joined`: a column that the rows have besides those of the file."""
    if header:
        known = _columns(src, columns, quoted)
        later = [*later_names(src, known), *joined]
        text = find_column(src, known, columns.text, TEXT_COLUMNS, "text", later)
        label = None if columns.targets else find_column(src, known, columns.label, LABEL_COLUMNS, "label", later)
        split = find_column(src, known, columns.split, SPLIT_COLUMNS, "split", later)
        assert text is not None
        return _apart(src, _Chosen(text, label, split, []))
    width = len(first_fields(src, columns.delimiter or "", quoted))
    known = [str(number) for number in range(1, width + 1)]
    for what, given in (("text", columns.text), ("label", columns.label), ("split", columns.split)):
        if given is not None:
            find_column(src, known, given, (), what)
    reason = "--no-header" if columns.no_header else "none of the names in its first line is a known column"
    numbered = f"{src}: no header ({reason}): columns are numbered 1 to {width}"
    text = columns.text
    label = columns.label
    rest = [name for name in known if name not in (text, label, columns.split)]
    if columns.targets:
        if text is None:
            raise UsageError(f"{numbered}; choose the one of texts with --text-column N, or add a header line")
        return _apart(src, _Chosen(text, None, columns.split, [numbered]))
    if (text is None) != (label is None) and len(rest) == 1:
        text = text or rest[0]
        label = label or rest[0]
    if text is not None and label is not None:
        return _apart(src, _Chosen(text, label, columns.split, [numbered]))
    if width != 2 or columns.split is not None:
        raise UsageError(f"{numbered}; choose the columns with {_FLAGS}, or add a header line")
    text, label, why = _text_and_label(src, columns, quoted, numbered)
    remark = f"{numbered}; taken as text: {text}, as label: {label} ({why}); if that is wrong, give {_FLAGS}"
    return _Chosen(text, label, None, [remark])


def _columns(src: Path, columns: Columns, quoted: bool) -> list[str]:
    if src.suffix.lower() == ".parquet":
        return parquet_names(src)
    if src.suffix.lower() == ".jsonl":
        return first_row(src, table_rows(src, strict=False))[0]
    return first_fields(src, columns.delimiter or "", quoted)


def _apart(src: Path, chosen: _Chosen) -> _Chosen:
    taken = [name for name in chosen[:3] if name is not None]
    if len(set(taken)) < len(taken):
        raise UsageError(f"{src}: text, label and split are three columns; {', '.join(taken)} names one of them twice")
    return chosen


def _text_and_label(src: Path, columns: Columns, quoted: bool, numbered: str) -> tuple[str, str, str]:
    """Tell two columns apart: labels repeat and are shorter. Returns the text, the label, and the reason."""
    values: tuple[set[int], set[int]] = (set(), set())  # hashes of the distinct values
    length = [0, 0]
    like_first = [0, 0]  # values equal to that of the first row
    rows = 0
    first: Row = {}
    for _, row in table_rows(src, columns.delimiter or "", header=False, strict=False, quoted=quoted):
        first = first or row
        rows += 1
        for column, (name, value) in enumerate(row.items()):
            values[column].add(hash(value))
            length[column] += len(value)
            like_first[column] += value == first[name]
    label = 0 if len(values[0]) < len(values[1]) else 1
    text = 1 - label
    few = len(values[label])
    many = len(values[text])
    if not (2 * few <= rows and few < many and length[label] < length[text]):
        raise UsageError(
            f"{numbered}; it is unclear which is the label ({len(values[0]):,} and {len(values[1]):,} different values "
            f"in {plural(rows, 'row')}); choose it with {_FLAGS}"
        )
    if like_first[label] < 2:
        raise UsageError(
            f"{numbered}; its first line, {shortened(', '.join(first.values()), 80)!r}, may be a header, because "
            f"no other row has its label; choose columns by its names with --text-column and --label-column, or by "
            f"number with {_FLAGS}"
        )
    return str(text + 1), str(label + 1), f"{many:,} and {few:,} different values in {plural(rows, 'row')}"


def _parquet_rows(src: Path, text: str) -> Rows:
    """The rows of a Parquet file, with texts as bytes. Raises DataError if its column `text` has none."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    kind = pq.read_schema(src).field(text).type
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    strings = pa.types.is_string(kind) or pa.types.is_large_string(kind)
    if not (strings or pa.types.is_binary(kind) or pa.types.is_large_binary(kind)):
        raise DataError(f"{src}: the column {text!r} is of type {kind}, not of strings; name another one")
    return parquet_rows(src, text)


def _checked_label(where: str, column: str, label: str) -> str:
    if not _is_utf8(label):
        raise DataError(f"{where}: the label {shortened(label, 40)!r} in column {column!r} is not UTF-8; correct it")
    return label


def _encoded(value: Any) -> tuple[bytes, str]:
    """The bytes of a text, or why there are none."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return b"", "no text (null)"
    if isinstance(value, bytes):
        return value, "" if value else "empty"
    if not isinstance(value, str):
        return b"", f"not text but {'a number' if isinstance(value, int | float) else 'a list or an object'}"
    if not value:
        return b"", "empty"
    if not _is_utf8(value):
        return b"", "not UTF-8"
    return value.encode(), ""


def _fault_beside(extra: Row) -> str:
    """What is wrong in the other columns of a CSV or TSV."""
    texts = ((name, value) for name, value in extra.items() if isinstance(value, str))
    return next((f"not UTF-8 (column {name!r})" for name, value in texts if not _is_utf8(value)), "")


def _is_utf8(text: str) -> bool:
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:  # surrogates: bytes that are not UTF-8, or half of a pair in JSON
        return False
    return True
