"""Manifests whose rows are texts: csv, tsv, jsonl or parquet, with a text, a label and, optionally, a split in each.

Texts are stored with the bytes that they have in the file. A row without a valid text or without a label is listed with
its fault, and skipped or refused when its turn comes, as in a manifest of images.
"""

import contextlib
import math
import os
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

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
from .labels import Labels, is_empty, number_classes
from .manifests import first_row, plain, split_of, split_up
from .samples import NO_LABEL, Entries, Row, Source, SourceEntry
from .streams import Spool, SpoolReader
from .tables import (
    Rows,
    first_fields,
    long_fields,
    own_delimiter,
    parquet_names,
    parquet_rows,
    quotes_fields,
    readable,
    table_rows,
)

_SAY = "--text-column N --label-column M --no-header"


class _Chosen(NamedTuple):
    """Which columns are used, and what a person should hear of that."""

    text: str
    label: str
    split: str | None
    said: list[str]


class TextReader(SpoolReader):
    """Reads texts that were spooled, and knows what is wrong with those that were not."""

    def add_text(self, entry: SourceEntry, value: Any, fault: str, extra: Row) -> SourceEntry:
        """`entry` with its size and place, or with its fault."""
        data, wrong = _encoded(value)
        fault = wrong or fault
        if fault:
            return entry._replace(size=-1, extra={"fault": fault})
        return self.add(entry, data, extra, {})

    def name(self, entry: SourceEntry) -> str:
        """The file and the row."""
        return f"{self.where}: row {entry.row}"

    def problem(self, entry: SourceEntry) -> str | None:
        """See SourceReader."""
        return (entry.extra or {}).get("fault")


def holds_texts(src: Path, columns: Columns) -> bool:
    """Whether a manifest's rows are texts: one of its columns is named as such, or says so by its name.

    A csv or tsv without a header, none of the names in its first line being a known one, has rows of text, unless
    they look like paths of images. Raises DataError.
    """
    if columns.text is not None or columns.path is not None:
        if columns.text is not None and columns.path is not None:
            raise UsageError("--text-column is for texts, --path-column for images; give one of them")
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
    """Whether tabs separate columns, and quotes may be text."""
    return src.suffix.lower() in SEPARATED and (columns.delimiter or own_delimiter(src)) == "\t"


def _names(src: Path, columns: Columns, quoted: bool) -> set[str]:
    """Names of the columns, in lower case; without a header whatever stands there."""
    suffix = src.suffix.lower()
    if suffix == ".parquet":
        return lower(parquet_names(src))
    if suffix == ".jsonl":
        return lower(next(table_rows(src, strict=False), (0, {}))[1])
    return lower(first_fields(src, columns.delimiter or "", quoted))


def read_texts(src: Path, columns: Columns, spool: Path) -> Source:
    """List the texts of a manifest. `spool` is the folder for a temporary file.

    Raises DataError, UsageError, and OSError where that folder is full.
    """
    with long_fields(), contextlib.ExitStack() as stack:
        file = stack.enter_context(contextlib.closing(Spool(spool)))
        source = _read(src, columns, TextReader(file, str(src)))
        file.flush()
        stack.pop_all()
    return source


def _read(src: Path, columns: Columns, reader: TextReader) -> Source:
    separated, by_tabs = src.suffix.lower() in SEPARATED, _by_tabs(src, columns)
    with readable(src):
        header = _has_header(src, columns)
        quoted = not by_tabs or (header and quotes_fields(src))
        said = _on_quotes(src, header, quoted) if by_tabs else []
        chosen = _chosen(src, columns, header, quoted)
        names = None
        rows = table_rows(src, columns.delimiter or "", header=header, strict=False, quoted=quoted)
        if src.suffix.lower() == ".parquet":
            names, rows = _parquet(src, chosen)
    _, rows = first_row(src, _readable_rows(src, rows))
    listed = Entries()
    label_cells = Labels(src, chosen.label, columns)
    labels: list[str] = []
    splits: list[str] = []
    taken = set(chosen[:3])
    for number, row in rows:
        where = f"{src}: row {number}"
        label = -1
        if not is_empty(row[chosen.label]):
            label = len(labels)
            labels.append(_label(where, chosen.label, label_cells.read(where, row[chosen.label]), names))
        splits.append("train" if chosen.split is None else split_of(where, row[chosen.split]))
        extra: Row = {name: plain(where, name, value) for name, value in row.items() if name not in taken}
        fault = _fault_beside(extra) if separated else ""
        if label < 0:
            fault = NO_LABEL
        entry = SourceEntry(f"{src.name}:{number}", label, 0, number)
        listed.append(reader.add_text(entry, row[chosen.text], fault, extra))
    judged = label_cells.judged() if names is None else ()
    classes, numbers = number_classes(labels)
    if names is not None:  # in the order of the schema
        used = set(labels)
        classes = tuple(name for name in names if name in used)
        places = {name: at for at, name in enumerate(classes)}
        numbers = np.array([places[label] for label in labels], np.int64)
    listed.relabel(numbers)
    found = split_up(src, listed, splits, chosen.split, classes)
    told = f"{src}: text from column {chosen.text!r}, label from {chosen.label!r}"
    told += f", split from {chosen.split!r}" if chosen.split is not None else ""
    return Source(
        src,
        src.suffix.lower()[1:],
        classes,
        found,
        (reader,),
        remarks=(*chosen.said, *said, *judged),
        content="text",
        columns=(told + (on_delimiter(src, columns) if separated else ""),),
        from_table=names is None,
    )


def _readable_rows(src: Path, rows: Rows) -> Rows:
    """Rows, and what goes wrong while they are read, not while they are used, as a DataError."""
    with readable(src):
        yield from rows


def _has_header(src: Path, columns: Columns) -> bool:
    """Columns of a csv or tsv have names where one of those in the first line is known, or was given."""
    if src.suffix.lower() not in SEPARATED:
        return True
    if columns.no_header:
        return False
    names, given = _names(src, columns, not _by_tabs(src, columns)), columns.lower()
    if not names or names & (KNOWN | given):
        return True
    return any(not name.isdigit() for name in given)  # a name that is not there is told when it is looked for


def _on_quotes(src: Path, header: bool, quoted: bool) -> list[str]:
    if quoted:
        return [f"{src}: fields in quotes are read as csv's quoting, with which they all agree"]
    with src.open("rb") as file:
        if not any(b'"' in line for line in file):
            return []
    why = "which do not all enclose a field" if header else "as there is no header"
    return [f"{src}: quotes in it are text, {why}: every line is a row and tabs separate"]


def _chosen(src: Path, columns: Columns, header: bool, quoted: bool) -> _Chosen:
    if header:
        known = _columns(src, columns, quoted)
        text = find_column(src, known, columns.text, TEXT_COLUMNS, "text")
        label = find_column(src, known, columns.label, LABEL_COLUMNS, "label")
        split = find_column(src, known, columns.split, SPLIT_COLUMNS, "split")
        assert text is not None and label is not None
        return _apart(src, _Chosen(text, label, split, []))
    width = len(first_fields(src, columns.delimiter or "", quoted))
    known = [str(number) for number in range(1, width + 1)]
    for what, given in (("text", columns.text), ("label", columns.label), ("split", columns.split)):
        if given is not None:
            find_column(src, known, given, (), what)
    found = "asked for" if columns.no_header else "none of the names in its first line is a known column"
    numbered = f"{src}: no header ({found}): columns are numbered 1 to {width}"
    text, label = columns.text, columns.label
    rest = [name for name in known if name not in (text, label, columns.split)]
    if (text is None) != (label is None) and len(rest) == 1:
        text, label = text or rest[0], label or rest[0]
    if text is not None and label is not None:
        return _apart(src, _Chosen(text, label, columns.split, [numbered]))
    if width != 2 or columns.split is not None:
        raise UsageError(f"{numbered}; say which are meant with {_SAY}, or write their names into a first line")
    text, label, why = _told_apart(src, columns, quoted, numbered)
    said = f"{numbered}; taken as text: {text}, as label: {label} ({why}); if that is wrong, give {_SAY}"
    return _Chosen(text, label, None, [said])


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


def _told_apart(src: Path, columns: Columns, quoted: bool, numbered: str) -> tuple[str, str, str]:
    """Of two columns the text, the label, and why: labels repeat themselves and are the shorter ones."""
    values: tuple[set[int], set[int]] = (set(), set())  # hashes of the different ones
    length, again, rows = [0, 0], [0, 0], 0
    first: Row = {}
    for _, row in table_rows(src, columns.delimiter or "", header=False, strict=False, quoted=quoted):
        first = first or row
        rows += 1
        for at, (name, value) in enumerate(row.items()):
            values[at].add(hash(value))
            length[at] += len(value)
            again[at] += value == first[name]
    label = 0 if len(values[0]) < len(values[1]) else 1
    text = 1 - label
    few, many = len(values[label]), len(values[text])
    if not (2 * few <= rows and few < many and length[label] < length[text]):
        raise UsageError(
            f"{numbered}; which is the label is unclear ({len(values[0]):,} and {len(values[1]):,} different values in "
            f"{plural(rows, 'row')}); say so with {_SAY}"
        )
    if again[label] < 2:
        raise UsageError(
            f"{numbered}; its first line, {shortened(', '.join(first.values()), 80)!r}, may be a header, as "
            f"{plural(few - 1, 'other label', 'is')} "
            f"in it: name columns of it with --text-column and --label-column, or give {_SAY}"
        )
    return str(text + 1), str(label + 1), f"{many:,} and {few:,} different values in {plural(rows, 'row')}"


def _parquet(src: Path, chosen: _Chosen) -> tuple[tuple[str, ...] | None, Rows]:
    """Names of the classes where the schema tells them, and rows with texts as bytes."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    from .image_parquets import class_names

    schema = pq.read_schema(src)
    kind = schema.field(chosen.text).type
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    strings = pa.types.is_string(kind) or pa.types.is_large_string(kind)
    if not (strings or pa.types.is_binary(kind) or pa.types.is_large_binary(kind)):
        raise DataError(f"{src}: the column {chosen.text!r} is of type {kind}, not of strings; name another one")
    return class_names(schema, chosen.label), parquet_rows(src, chosen.text)


def _label(where: str, column: str, label: str, names: tuple[str, ...] | None) -> str:
    if names is not None:
        if not 0 <= int(label) < len(names):
            raise DataError(
                f"{where}: the label {label} in column {column!r} is none of the {plural(len(names), 'class')} "
                "that the schema "
                "names; correct it or drop the row"
            )
        return names[int(label)]
    if not _is_utf8(label):
        raise DataError(f"{where}: the label {shortened(label, 40)!r} in column {column!r} is not UTF-8; write it anew")
    return label


def _encoded(value: Any) -> tuple[bytes, str]:
    """The bytes of a text, and why there are none."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return b"", "no text (null)"
    if isinstance(value, bytes):
        return value, "" if value else "empty"
    if not isinstance(value, str):
        return b"", f"no text but {'a number' if isinstance(value, int | float) else 'a list or an object'}"
    if not value:
        return b"", "empty"
    if not _is_utf8(value):
        return b"", "not UTF-8"
    return value.encode(), ""


def _fault_beside(extra: Row) -> str:
    """What is wrong in further columns of a csv or tsv."""
    return next((f"not UTF-8 (column {name!r})" for name, value in extra.items() if not _is_utf8(value)), "")


def _is_utf8(text: str) -> bool:
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:  # surrogates: bytes that are not UTF-8, or half of a pair in json
        return False
    return True
