"""Rows of CSV, TSV, JSONL and Parquet files, in order, as (row number, columns). Rows count as in a spreadsheet.

Strict reading refuses a file that is not UTF-8. Otherwise, invalid bytes become surrogates (`surrogateescape`), so that
only the rows with such bytes are refused.
"""

import codecs
import contextlib
import csv
import io
import json
import mmap
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path

from fastimg.errors import UsageError
from fastimg.loaders.errors import DataError
from fastimg.wording import plural

from .samples import Row

Rows = Iterator[tuple[int, Row]]

_BOM = b"\xef\xbb\xbf"
_STATED = re.compile(rb'(?:\xef\xbb\xbf)?"?sep=([^\w\s"\x80-\xff]|\t)"?\r?\n', re.IGNORECASE)
_SAMPLED_CHARACTERS = 1 << 20  # of a file, for detecting its format
_DELIMITERS = (",", ";", "\t", "|")
_SAMPLED_RECORDS = 100  # for detecting the delimiter
_ENOUGH_ROWS = 10  # that many texts are unlikely to have the same number of semicolons by chance
# A field of a TSV, quoted as in CSV or bare, and its end.
_FIELD = re.compile(rb'(?:"((?:[^"]++|"")*+)"|([^"\t\r\n]*+))(\t|\r?\n|\Z)')


@contextlib.contextmanager
def readable(src: object) -> Iterator[None]:
    """Turn errors from reading a manifest into a DataError."""
    try:
        yield
    except _read_errors() as error:
        reason = (getattr(error, "strerror", None) or str(error) or type(error).__name__).splitlines()[0]
        raise DataError(f"{src}: the manifest cannot be read ({reason}); check it or write it again") from error


def _read_errors() -> tuple[type[Exception], ...]:
    """What reading a manifest can raise. pyarrow's errors count only if it was imported, for Parquet."""
    errors: tuple[type[Exception], ...] = (OSError, UnicodeDecodeError, csv.Error)
    pyarrow = sys.modules.get("pyarrow")
    return errors if pyarrow is None else (*errors, pyarrow.ArrowException)


def table_rows(
    src: Path, delimiter: str = "", *, header: bool = True, strict: bool = True, quoted: bool = True
) -> Rows:
    """Read the rows of a file in the format of its extension.

    Without a `header`, the columns of a CSV or TSV are called 1, 2, ... Fields are separated by `delimiter`, or by the
    default for the extension. If that is a tab and the file is not `quoted`, every line is a row and quotes are text.
    """
    suffix = src.suffix.lower()
    if suffix == ".parquet":
        return parquet_rows(src)
    if suffix == ".jsonl":
        return _jsonl_rows(src, strict)
    return _named(src, _lines(src, delimiter, strict, quoted), header)


def first_fields(src: Path, delimiter: str = "", quoted: bool = True) -> list[str]:
    """The fields of the first line of a CSV or TSV; empty if there is none."""
    return next(_lines(src, delimiter, False, quoted), [])


def stated_delimiter(src: Path) -> str | None:
    """The delimiter that a first line like `sep=;` states, as Excel writes and reads it, or None.

    Raises DataError for UTF-16, in which Excel saves "Unicode Text".
    """
    with src.open("rb") as file:
        line = file.readline(16)
    if line.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        raise DataError(f"{src}: is in UTF-16; save it as UTF-8, which Excel calls CSV UTF-8")
    stated = _STATED.fullmatch(line)
    return stated[1].decode("ascii") if stated else None


def own_delimiter(src: Path) -> str:
    """The delimiter that the first line states, or the default for a CSV or TSV."""
    return stated_delimiter(src) or ("\t" if src.suffix.lower() == ".tsv" else ",")


def first_records(src: Path, delimiter: str, count: int) -> list[list[str]]:
    """Read up to `count` non-empty rows from the first megabyte of a CSV or TSV.

    Empty if the quoting is invalid; with tabs, quotes are text in that case.
    """
    with src.open(encoding="utf-8-sig", errors="surrogateescape", newline="") as file:
        text = file.read(_SAMPLED_CHARACTERS)
    lines = list(io.StringIO(text, newline=""))
    if stated_delimiter(src):
        del lines[0]
    if len(text) == _SAMPLED_CHARACTERS and len(lines) > 1:
        lines.pop()  # it may be incomplete
    records: list[list[str]] = []
    with long_fields():
        reader = csv.reader(iter(lines), delimiter=delimiter, strict=True)
        try:
            records += (record for record in islice(filter(None, reader), count))
        except csv.Error:
            if delimiter == "\t":
                plain = (line.rstrip("\r\n") for line in lines)
                return [line.split("\t") for line in islice(filter(None, plain), count)]
            if len(text) < _SAMPLED_CHARACTERS or reader.line_num < len(lines):
                return []
    return records


@contextlib.contextmanager
def long_fields() -> Iterator[None]:
    """Allow CSV fields longer than 128 KB."""
    before = csv.field_size_limit(sys.maxsize)
    try:
        yield
    finally:
        csv.field_size_limit(before)


def quotes_fields(src: Path) -> bool:
    """Whether the quotes of a TSV are CSV quoting rather than text: all are balanced, and at least one is needed.

    Every field with a quote must be enclosed in quotes, with inner quotes doubled. In addition there must be a doubled
    quote, or a tab or a line break inside quotes (without quoting, lines would have different numbers of fields), or a
    column that is quoted throughout. A single line like `"Good", he said` makes all quotes text.
    """
    if not src.stat().st_size:
        return False
    column = 0
    rows = 0
    doubled = False
    enclosed: Counter[int] = Counter()
    with src.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        position = len(_BOM) if content[: len(_BOM)] == _BOM else 0
        if content.find(b'"') < 0:
            return False
        while position < len(content):
            match = _FIELD.match(content, position)
            if not match:
                return False
            inner, bare, end = match.groups()
            if inner is not None:
                single_line = b"\n" not in inner
                doubled = doubled or (b'""' in inner and single_line)
                enclosed[column] += rows > 0 and single_line  # except in the header
            column += 1
            if end != b"\t":
                rows += column > 1 or bare != b""  # an empty line is not a row
                column = 0
            position = match.end()
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
                f"{src}: row {number}: {plural(len(row), 'field')} {under}; quote fields that contain the delimiter, "
                "or choose another one with --delimiter"
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
                raise DataError(f"{src}: row {number}: not valid JSON ({error}); write one object per line") from error
            if not isinstance(row, dict):
                raise DataError(f"{src}: row {number}: not a JSON object; write one object per line")
            yield number, row


def later_names(src: Path, known: Iterable[str]) -> list[str]:
    """The columns that other rows of a JSONL file have and its first row, whose columns are `known`, lacks.

    None in other formats, whose rows have the same columns. Raises DataError.
    """
    found = dict.fromkeys(known)
    first = len(found)
    if src.suffix.lower() == ".jsonl":
        with readable(src):
            for _, row in _jsonl_rows(src, strict=False):
                found |= row
    return list(found)[first:]


def parquet_names(src: Path) -> list[str]:
    """The column names of a Parquet file."""
    import pyarrow.parquet as pq

    return list(pq.read_schema(src).names)


def parquet_rows(src: Path, undecoded: str = "") -> Rows:
    """Read the rows of a Parquet file, numbered from 1. Strings in the column `undecoded` are returned as bytes."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    with pq.ParquetFile(src) as file:
        if len(set(file.schema_arrow.names)) < len(file.schema_arrow.names):
            raise DataError(f"{src}: two columns have the same name: {', '.join(file.schema_arrow.names)}; rename one")
        number = 0
        for batch in file.iter_batches():
            if undecoded:
                position = batch.schema.names.index(undecoded)
                column = batch.column(position)
                plain = column.dictionary_decode() if pa.types.is_dictionary(column.type) else column
                batch = batch.set_column(position, undecoded, plain.cast(pa.large_binary()))
            for row in batch.to_pylist():
                number += 1
                yield number, row


def parse_delimiter(text: str) -> str:
    """Parse the value of --delimiter. Raises UsageError."""
    delimiter = {"tab": "\t", "\\t": "\t"}.get(text.lower(), text)
    if len(delimiter) != 1 or delimiter.isalnum() or delimiter in "\"'\r\n":
        raise UsageError(f"--delimiter {text!r}: give one character, such as ',' ';' or '|', or tab")
    return delimiter


def spelled(delimiter: str) -> str:
    """Format a delimiter for a message."""
    return "tabs" if delimiter == "\t" else repr(delimiter)


def find_delimiter(src: Path, recognised: Callable[[list[str]], bool]) -> str:
    """Detect the delimiter of a CSV or TSV.

    `recognised` tells whether a first row makes sense, because it has known column names or the path of an image.

    The default for the extension wins if it gives a first row that makes sense, or rows of equal length. Otherwise
    another delimiter that does so is used; equal lengths alone count only if the default does not occur in the first
    row, or if at least ten rows agree. If nothing fits, the default is returned and reading the rows reports the
    problem. Raises UsageError if two delimiters fit equally well.
    """
    if stated := stated_delimiter(src):
        return stated
    own = own_delimiter(src)
    cut = {delimiter: first_records(src, delimiter, _SAMPLED_RECORDS) for delimiter in (own, *_DELIMITERS)}
    several = {delimiter: records for delimiter, records in cut.items() if records and len(records[0]) > 1}
    sensible = [delimiter for delimiter, records in several.items() if recognised(records[0])]
    even = [delimiter for delimiter, records in several.items() if len(set(map(len, records))) == 1]
    if own in sensible:
        return own
    fitting = [delimiter for delimiter in sensible if delimiter in even]
    if not fitting and own in even:
        return own
    if own in several:
        even = [delimiter for delimiter in even if len(several[delimiter]) >= _ENOUGH_ROWS]
    fitting = fitting or sensible or even
    if len(fitting) > 1:
        raise UsageError(
            f"{src}: its columns may be separated by {' or '.join(map(spelled, fitting))}; choose one with --delimiter"
        )
    return fitting[0] if fitting else own
