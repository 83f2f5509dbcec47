"""Rows of csv, tsv, jsonl and parquet files, in order: (row number, columns), as a spreadsheet counts rows.

Strict reading refuses a file that is not UTF-8. Otherwise bytes that are not stand as surrogates in the values
(`surrogateescape`), so that one row can be told from the file.
"""

import contextlib
import csv
import io
import json
import mmap
import re
import sys
from collections import Counter
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from fastimg.loaders.errors import DataError
from fastimg.wording import plural

from .samples import Row

Rows = Iterator[tuple[int, Row]]

_BOM = b"\xef\xbb\xbf"
_STATED = re.compile(rb'(?:\xef\xbb\xbf)?"?sep=([^\w\s"\x80-\xff]|\t)"?\r?\n', re.IGNORECASE)
_LOOKED_AT = 1 << 20  # characters of a file, to see what it is like
# A field of a tsv as csv's quoting writes it, and what ends it.
_FIELD = re.compile(rb'(?:"((?:[^"]++|"")*+)"|([^"\t\r\n]*+))(\t|\r?\n|\Z)')


@contextlib.contextmanager
def readable(src: Path) -> Iterator[None]:
    """Turn what goes wrong while a manifest is read into a DataError."""
    try:
        yield
    except _read_errors() as error:
        reason = (getattr(error, "strerror", None) or str(error) or type(error).__name__).splitlines()[0]
        raise DataError(f"{src}: the manifest cannot be read ({reason}); check or write it again") from error


def _read_errors() -> tuple[type[Exception], ...]:
    """What reading a manifest raises; pyarrow's own errors only where it was imported, for parquet."""
    errors: tuple[type[Exception], ...] = (OSError, UnicodeDecodeError, csv.Error)
    pyarrow = sys.modules.get("pyarrow")
    return errors if pyarrow is None else (*errors, pyarrow.ArrowException)


def table_rows(
    src: Path, delimiter: str = "", *, header: bool = True, strict: bool = True, quoted: bool = True
) -> Rows:
    """The rows of a file by its ending. Without a `header` the columns of a csv or tsv are called 1, 2, ...

    Its fields are separated by `delimiter`, else by what its ending says. Where that is a tab, a file that is not
    `quoted` is lines and tabs, and quotes in it are text.
    """
    suffix = src.suffix.lower()
    if suffix == ".parquet":
        return parquet_rows(src)
    if suffix == ".jsonl":
        return _jsonl_rows(src, strict)
    return _named(src, _lines(src, delimiter, strict, quoted), header)


def first_fields(src: Path, delimiter: str = "", quoted: bool = True) -> list[str]:
    """The first line of a csv or tsv; empty where there is none."""
    return next(_lines(src, delimiter, False, quoted), [])


def stated_delimiter(src: Path) -> str | None:
    """The delimiter that a file names in a first line `sep=;`, as Excel writes and reads it; None without one."""
    with src.open("rb") as file:
        line = file.readline(16)
    stated = _STATED.fullmatch(line)
    return stated[1].decode("ascii") if stated else None


def own_delimiter(src: Path) -> str:
    """What separates columns: what the first line states, or the usual one for a csv or tsv."""
    return stated_delimiter(src) or ("\t" if src.suffix.lower() == ".tsv" else ",")


def first_records(src: Path, delimiter: str, count: int) -> list[list[str]]:
    """Up to `count` rows of a csv or tsv that are not empty, of its first megabyte.

    Where the quotes are not csv's, there are none; with tabs these are then text.
    """
    with src.open(encoding="utf-8-sig", errors="surrogateescape", newline="") as file:
        text = file.read(_LOOKED_AT)
    lines = list(io.StringIO(text, newline=""))
    if stated_delimiter(src):
        del lines[0]
    if len(text) == _LOOKED_AT and len(lines) > 1:
        lines.pop()  # it may go on
    records: list[list[str]] = []
    with long_fields():
        reader = csv.reader(iter(lines), delimiter=delimiter, strict=True)
        try:
            records += (record for record in islice(filter(None, reader), count))
        except csv.Error:
            if delimiter == "\t":
                plain = (line.rstrip("\r\n") for line in lines)
                return [line.split("\t") for line in islice(filter(None, plain), count)]
            if len(text) < _LOOKED_AT or reader.line_num < len(lines):
                return []
    return records


@contextlib.contextmanager
def long_fields() -> Iterator[None]:
    """Let csv's fields be longer than 128 KB."""
    before = csv.field_size_limit(sys.maxsize)
    try:
        yield
    finally:
        csv.field_size_limit(before)


def quotes_fields(src: Path) -> bool:
    """Whether the quotes of a tsv are csv's, and no text: all of them are balanced, and one at least is needed.

    Every field that holds a quote is enclosed in them, with those inside doubled; and there is a doubled one, or a tab
    or a line break inside (else lines would differ in their numbers of fields), or a column that is enclosed
    throughout. `"Good", he said` in a single line makes them text in all.
    """
    if not src.stat().st_size:
        return False
    column = rows = 0
    doubled = False
    enclosed: Counter[int] = Counter()
    with src.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        at = len(_BOM) if content[: len(_BOM)] == _BOM else 0
        if content.find(b'"') < 0:
            return False
        while at < len(content):
            match = _FIELD.match(content, at)
            if not match:
                return False
            inner, bare, end = match.groups()
            if inner is not None:
                of_one_line = b"\n" not in inner
                doubled = doubled or (b'""' in inner and of_one_line)
                enclosed[column] += rows > 0 and of_one_line  # the header apart
            column += 1
            if end != b"\t":
                rows += column > 1 or bare != b""  # a line with nothing in it is no row
                column = 0
            at = match.end()
        file.seek(0)
        tabs = {line.count(b"\t") for line in file if line.strip(b"\r\n")}
    return doubled or len(tabs) > 1 or any(count == rows - 1 > 0 for count in enclosed.values())


def _lines(src: Path, delimiter: str, strict: bool, quoted: bool) -> Iterator[list[str]]:
    delimiter = delimiter or own_delimiter(src)
    if delimiter == "\t" and not quoted:
        return _plain_fields(src)
    return _fields(src, delimiter, strict)


def _fields(src: Path, delimiter: str, strict: bool) -> Iterator[list[str]]:
    errors = "strict" if strict else "surrogateescape"
    with src.open(encoding="utf-8-sig", errors=errors, newline="") as file:
        lines = islice(file, 1, None) if stated_delimiter(src) else file
        yield from csv.reader(lines, delimiter=delimiter, strict=True)


def _plain_fields(src: Path) -> Iterator[list[str]]:
    with src.open("rb") as file:
        for number, line in enumerate(file):
            line = line.removesuffix(b"\n").removesuffix(b"\r")
            line = line.removeprefix(_BOM) if number == 0 else line
            yield line.decode("utf-8", "surrogateescape").split("\t") if line else []


def _named(src: Path, lines: Iterator[list[str]], header: bool) -> Rows:
    names = next(lines, None)
    if names is None:
        raise DataError(f"{src}: the manifest is empty; give a header and one row per sample")
    numbered = enumerate(lines, start=2)
    under = f"under a header of {len(names)} ({', '.join(names)})"
    if not header:
        numbered = enumerate(_chain(names, lines), start=1)
        under = f"where the first row has {len(names)}"
        names = [str(number) for number in range(1, len(names) + 1)]
    if len(set(names)) < len(names):
        raise DataError(f"{src}: two columns of the header have the same name: {', '.join(names)}; rename one")
    for number, row in numbered:
        if not row:
            continue
        if len(row) != len(names):
            raise DataError(
                f"{src}: row {number}: {plural(len(row), 'field')} {under}; quote fields that hold the separator, or "
                "name another one with --delimiter"
            )
        yield number, dict(zip(names, row, strict=True))


def _chain(first: list[str], rest: Iterator[list[str]]) -> Iterator[list[str]]:
    yield first
    yield from rest


def _jsonl_rows(src: Path, strict: bool) -> Rows:
    errors = "strict" if strict else "surrogateescape"
    with src.open(encoding="utf-8-sig", errors=errors) as file:
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


def parquet_names(src: Path) -> list[str]:
    """The names of a parquet file's columns."""
    import pyarrow.parquet as pq

    return list(pq.read_schema(src).names)


def parquet_rows(src: Path, undecoded: str = "") -> Rows:
    """Of a parquet file; row 1 is the first. The strings of the column `undecoded` stay the bytes that they are."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    with pq.ParquetFile(src) as file:
        if len(set(file.schema_arrow.names)) < len(file.schema_arrow.names):
            raise DataError(f"{src}: two columns have the same name: {', '.join(file.schema_arrow.names)}; rename one")
        number = 0
        for batch in file.iter_batches():
            if undecoded:
                at = batch.schema.names.index(undecoded)
                column = batch.column(at)
                plain = column.dictionary_decode() if pa.types.is_dictionary(column.type) else column
                batch = batch.set_column(at, undecoded, plain.cast(pa.large_binary()))
            for row in batch.to_pylist():
                number += 1
                yield number, row
