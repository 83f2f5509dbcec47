"""Columns of tables as fields: what `--field` asks for, and the schemas that the cells of all rows give.

A cell is a number, a list (in a csv as JSON), or a path relative to the table: of a mask, an image, a file of bytes, of
bands in a TIFF or .npy, or of an .npy instead of a list. Beside image bytes in a parquet file, masks, images and bytes
may be bytes themselves, or Hugging Face's struct of `bytes` and `path`. The first row that has an array, or items,
decides its shape.
"""

import json
import math
import re
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from dataclasses import field as dataclass_field
from pathlib import Path
from typing import Any, TypeVar, get_args

import numpy as np

from fastimg.convert.sources.columns import AskedField, FieldWriting
from fastimg.convert.sources.folders import WrittenPaths
from fastimg.convert.sources.labels import is_empty
from fastimg.convert.sources.samples import Row
from fastimg.convert.stored.heads import AnnouncedHeads, Parse, head_of
from fastimg.errors import UsageError, nearest
from fastimg.loaders.captions.positions import MISSING
from fastimg.loaders.containers.fields import ABSENT, DTYPES, FieldKind, Geometry, StoredField
from fastimg.loaders.errors import DataError, ImageError
from fastimg.loaders.folders.bands import bands_head, is_bands, npy_head
from fastimg.loaders.remote.trees import tree_of
from fastimg.wording import plural, shortened

from .reader import GIVEN, INSIDE, Given, file_value

_Head = TypeVar("_Head")
WRITINGS: tuple[FieldWriting, ...] = get_args(FieldWriting)
_FILES = ("mask", "image", "bytes")
_RESERVED = ("path", MISSING, ABSENT, GIVEN)  # keys of a note, or of an entry, that are their own
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")


def parse_fields(texts: Sequence[str]) -> tuple[AskedField, ...]:
    """The values of --field: NAME:KIND, or NAME:KIND@FIELD for items along those of another. Raises UsageError."""
    asked: list[AskedField] = []
    for text in texts:
        name, _, rest = text.rpartition(":")
        writing, _, along = rest.partition("@")
        kind = next((kind for kind in WRITINGS if kind == writing), None)
        if kind is None or not name:
            said = nearest(writing, WRITINGS) if name else ""
            raise UsageError(f"--field {text}: give NAME:KIND, with a kind of {', '.join(WRITINGS)}{said}")
        check_field_name(f"--field {text}", name)
        if any(other.name == name for other in asked):
            raise UsageError(f"--field {name}: given twice; give each column once")
        asked.append(AskedField(name, kind, along or None))
    ragged = {field.name for field in asked if field.kind in ("ragged", "labels", "keypoint") or "box" in field.kind}
    for field in asked:
        fits = field.kind in ("ragged", "labels") and field.along in ragged - {field.name}
        if field.along is not None and not fits:
            raise UsageError(
                f"--field {field.name}:{field.kind}@{field.along}: only ragged and labels go along another field, "
                "which must be given, too, and be of boxes, key points or ragged"
            )
    return tuple(asked)


def check_field_name(given: str, name: str) -> None:
    """Raise UsageError, which names the flag as `given`, for a name that a field cannot have."""
    if not _NAME.fullmatch(name) or name in _RESERVED:
        raise UsageError(f"{given}: a field's name has A-Z a-z 0-9 _ - and is not {_RESERVED[0]}; rename it")


def check_fields_of(
    src: object, known: Sequence[str], asked: Sequence[AskedField], taken: Iterable[str | None]
) -> None:
    """Raise DataError or UsageError for fields that are no columns, or columns that mean something else."""
    for field in asked:
        if field.name not in known:
            said = f"it has {', '.join(known)}{nearest(field.name, known)}"
            raise DataError(f"{src}: no column {field.name!r} (--field); {said}")
        if field.name in taken:
            raise UsageError(
                f"{src}: --field {field.name}: the column is already its path, label, split, text or a target; leave "
                "it out"
            )


@dataclass
class _CellTally:
    """What all rows have in the column of one field."""

    rows: int = 0
    missing: int = 0
    fractions: bool = False  # whether any number is not an int
    dtype: str = ""  # of the first bands
    shape: tuple[int, ...] | None = None  # of the first array or item
    lengths: tuple[int, int] = (1 << 62, 0)  # the shortest and the longest list
    names: set[str] = dataclass_field(default_factory=set)  # of classes, in `labels`
    numbered: bool = False  # whether any of `labels` is a number


class FieldCells:
    """The fields of a table: their values in a row, and, after all rows, their schemas.

    `named`: the names of the classes whose numbers are in a column of `labels`, where the table states them.
    """

    def __init__(
        self, src: Path, asked: Sequence[AskedField], named: Mapping[str, tuple[str, ...]] | None = None
    ) -> None:
        self._src = src
        self._asked = asked
        self._named = named or {}
        self._file = src  # that has the row which is being read
        self._written = WrittenPaths(src.parent)
        self._inside: dict[str, bytes] = {}  # files that stand in this row, by field
        self._tallies = {field.name: _CellTally() for field in asked}
        self._heads: AnnouncedHeads | None = None

    def rows_ahead(self, rows: Iterator[tuple[int, Row]]) -> Iterator[tuple[int, Row]]:
        """The rows of a table; in a store, the heads of the arrays that they name are fetched some rows ahead."""
        named = [field for field in self._asked if field.kind not in ("number", *_FILES)]
        if tree_of(self._src) is None or not named:
            yield from rows
            return
        self._heads = AnnouncedHeads()
        try:
            window: deque[tuple[int, Row]] = deque()
            for row in rows:
                for field in named:
                    self._announce(field, row[1].get(field.name))
                window.append(row)
                if len(window) > _AHEAD:
                    yield window.popleft()
            yield from window
        finally:
            self._heads.close()
            self._heads = None

    def _announce(self, field: AskedField, cell: Any) -> None:
        bands = field.kind == "bands"
        if not isinstance(cell, str) or not (is_bands(cell.strip()) if bands else _is_array(cell)):
            return
        path = self._path(cell if bands else cell.strip())["path"]
        assert self._heads is not None
        self._heads.announce(self._src.parent / path, path, bands_head if bands else npy_head)

    def read_into(self, extra: Row, number: int, row: Row) -> None:
        """Add the fields of a row to its other columns, as `GIVEN`.

        Raises DataError that names the row, also where a file's bytes stand in it: a listing keeps paths alone.
        """
        extra[GIVEN], inside = self.read(extra, number, row)
        if inside:
            raise DataError(
                f"{self._src}: row {number}: the column {next(iter(inside))!r} holds the bytes of a file, which are "
                "read where the images are bytes, too; write them into files and give their paths, or give the images "
                "as bytes"
            )

    def read(self, extra: Row, number: int, row: Row, file: Path | None = None) -> tuple[Given, dict[str, bytes]]:
        """The values of a row of `file`, and the files that stand in it, by field; numbers move to `extra`.

        Raises DataError that names the row.
        """
        given: Given = {}
        self._file = file or self._src
        self._inside = {}
        for field in self._asked:
            extra.pop(field.name, None)
            tally = self._tallies[field.name]
            tally.rows += 1
            cell = row.get(field.name)
            try:
                value = None if is_empty(cell) and not isinstance(cell, list) else self._value(field, cell, tally)
            except ValueError as error:
                where = f"{self._file}: row {number}: column {field.name!r}"
                raise DataError(f"{where}: {shortened(str(cell), 40)!r} {error}; correct it") from error
            if value is None:
                tally.missing += 1
            if field.kind == "number":
                extra[field.name] = value
            elif value is not None:
                given[field.name] = value
        return given, self._inside

    def decided(self) -> tuple[tuple[StoredField, ...], tuple[str, ...]]:
        """The schemas, and a remark on each field. Raises DataError."""
        schemas = []
        remarks = []
        for field in self._asked:
            tally = self._tallies[field.name]
            where = f"{self._src}: field {field.name!r}"
            if tally.missing == tally.rows:
                raise DataError(f"{where}: every row is empty; fill it in, or leave out --field {field.name}")
            schema = self._schema(field, tally)
            if (0 in schema.shape and not schema.varies) or (schema.kind == "array" and not schema.shape):
                raise DataError(f"{where}: its arrays have no elements; leave out --field {field.name}")
            shape = f" {list(schema.shape)}" if schema.shape else ""
            shape = f" [{schema.shape[0]}, H, W], of several sizes," if schema.varies else shape
            parts = [f"{schema.kind}{shape}" + (f" of {schema.dtype}" if schema.kind in _TYPED else "")]
            parts += [plural(len(schema.classes), "class")] if schema.classes else []
            parts += [f"missing in {tally.missing:,} of {plural(tally.rows, 'row')}"] if tally.missing else []
            remarks.append(f"{where}: {'; '.join(parts)}")
            schemas.append(schema)
        return tuple(schemas), tuple(remarks)

    def member(self, name: str) -> str:
        """The member that a field of files is stored as."""
        field = next(field for field in self._asked if field.name == name)
        return self._schema(field, self._tallies[name]).member

    def _schema(self, field: AskedField, tally: _CellTally) -> StoredField:
        number = "float32" if tally.fractions else "int64"
        kind: FieldKind = "ragged"
        geometry: Geometry | None = None
        dtype, shape = number, tally.shape or ()
        if field.kind == "number":
            kind = "number"
        elif field.kind == "array":
            kind = "array"
        elif field.kind == "bands":
            kind, geometry, dtype = "array", "bands", tally.dtype
        elif field.kind == "keypoint":
            geometry, dtype, shape = "keypoint", "float32", (2,)
            if tally.lengths[0] == tally.lengths[1] > 0:
                kind, shape = "array", (tally.lengths[1], 2)
        elif field.kind == "mask":
            kind, geometry, dtype, shape = "image", "mask", "uint8", ()
        elif field.kind in ("image", "bytes"):
            kind, shape = ("image" if field.kind == "image" else "bytes"), ()
        elif field.kind == "labels":
            dtype, shape = "int64", ()
        elif field.kind != "ragged":
            geometry, dtype, shape = "box", "float32", (4,)
        classes = tuple(sorted(tally.names)) or (self._named.get(field.name, ()) if field.kind == "labels" else ())
        return StoredField(
            name=field.name, kind=kind, dtype=dtype, shape=shape, geometry=geometry, along=field.along, classes=classes
        )

    def _value(self, field: AskedField, cell: Any, tally: _CellTally) -> Any:
        """What is kept of a cell; None if it is missing. Raises ValueError."""
        if field.kind == "number":
            return _number(cell, tally)
        if field.kind == "bands":
            return self._bands(cell, tally)
        if field.kind in _FILES:
            return self._file_in(field.name, cell)
        items = cell
        if isinstance(cell, str):
            if _is_array(cell):
                return self._array_file(field, cell.strip(), tally)
            try:
                items = json.loads(cell)
            except (ValueError, RecursionError) as error:
                raise ValueError("is neither a JSON list nor the path of an .npy file") from error
        if not isinstance(items, list):
            raise ValueError("is not a list")
        if field.kind == "labels":
            return _labels(items, tally, self._named.get(field.name, ()))
        first = items[0] if items and field.kind != "array" else items
        if items and tally.shape is None:
            tally.shape = np.shape(first) if _even(first) else ()
        tally.lengths = min(tally.lengths[0], len(items)), max(tally.lengths[1], len(items))
        tally.fractions = tally.fractions or _has_fractions(items)
        return items

    def _file_in(self, name: str, cell: Any) -> Given | None:
        """The value for a path, bytes, or a struct of both; None if it has neither. Raises ValueError."""
        content, path = (cell.get("bytes"), cell.get("path")) if isinstance(cell, dict) else (cell, None)
        if isinstance(content, bytes):
            if content:
                self._inside[name] = content
                return {"path": path or name, "bytes": len(content), INSIDE: True}
            content = None
        found = path if content is None else content
        if found is None:
            return None
        if not isinstance(found, str):
            raise ValueError("is not a path")
        return self._path(found)

    def _path(self, cell: str) -> Given:
        root = self._file.parent
        if root != self._written.root:
            self._written = WrittenPaths(root)
        tried = dict.fromkeys((cell, cell.strip(), cell.strip().replace("\\", "/")))
        values = [file_value(root, self._written.plain(path)) for path in tried]
        return next((value for value in values if value["bytes"] >= 0), values[0])

    def _bands(self, cell: Any, tally: _CellTally) -> dict[str, Any]:
        """The value for the path of a file of bands, which is as the first one is. Raises ValueError."""
        if not isinstance(cell, str) or not is_bands(cell.strip()):
            raise ValueError("is not the path of a .tif or .npy file")
        value = self._path(cell)
        shape, dtype = self._head(value, bands_head)
        if dtype not in DTYPES:
            raise ValueError(f"holds {dtype}; give one of {', '.join(DTYPES)}")
        if tally.shape is None:
            tally.shape, tally.dtype = shape, dtype
        if (shape[0], dtype) != (tally.shape[0], tally.dtype):
            first = f"{tally.dtype} {list(tally.shape)}" if tally.shape[1] else f"{tally.shape[0]} of {tally.dtype}"
            raise ValueError(f"holds {dtype} {list(shape)}, and the first row's {first} [C, H, W]")
        if shape != tally.shape:
            tally.shape = (shape[0], 0, 0)
        return value

    def _head(self, value: Given, parse: Parse[_Head]) -> _Head:
        """What the head of a file says. Raises ValueError."""
        path = value["path"]
        find = head_of if self._heads is None else self._heads.head
        try:
            return find(self._file.parent / path, path, parse)
        except ImageError as error:
            raise ValueError(str(error)) from error
        except OSError as error:
            raise ValueError(f"cannot be read ({error.strerror or error})") from error

    def _array_file(self, field: AskedField, cell: str, tally: _CellTally) -> dict[str, Any]:
        """The value for the path of an .npy file, whose head is read. Raises ValueError."""
        value = self._path(cell)
        shape, dtype = self._head(value, npy_head)
        if dtype.kind not in "iufb" or not shape:
            raise ValueError(f"holds {dtype} {list(shape)}, not an array of numbers")
        if tally.shape is None:
            tally.shape = shape if field.kind == "array" else shape[1:]
        tally.lengths = min(tally.lengths[0], shape[0]), max(tally.lengths[1], shape[0])
        tally.fractions = tally.fractions or dtype.kind == "f"
        return value


_TYPED = ("number", "array", "ragged")
_AHEAD = 128  # rows


def _is_array(cell: str) -> bool:
    return cell.strip().lower().endswith(".npy")


def _number(cell: Any, tally: _CellTally) -> int | float | None:
    try:
        if isinstance(cell, bool) or not isinstance(cell, str | int | float):
            raise ValueError
        value = int(cell) if isinstance(cell, int) or re.fullmatch(r"\s*[+-]?[0-9]+\s*", str(cell)) else float(cell)
    except ValueError as error:
        raise ValueError("is not a number") from error
    if isinstance(value, float) and math.isnan(value):
        return None
    if math.isinf(value) or abs(value) >= 2**63:
        raise ValueError("is not finite, or does not fit in 64 bits")
    tally.fractions = tally.fractions or isinstance(value, float)
    return value


def _labels(items: list[Any], tally: _CellTally, known: tuple[str, ...]) -> list[Any]:
    """Names, or numbers of classes, which are `known` if there are any.

    Raises ValueError if they are mixed, in this row or with another, or unknown.
    """
    if all(isinstance(item, str) and item for item in items):  # so it is for none
        tally.names.update(items)
    elif all(type(item) is int and item >= 0 for item in items):
        tally.numbered = True
        if known and max(items) >= len(known):
            raise ValueError(f"has the class {max(items)}, and the schema names {plural(len(known), 'class')}")
    else:
        raise ValueError("is not a list of names, or of whole numbers from 0 on")
    if tally.names and tally.numbered:
        raise ValueError("has names where other rows have numbers, or the other way round")
    return items


def _even(items: Any) -> bool:
    try:
        return np.array(items, np.float64).dtype == np.float64
    except (ValueError, TypeError, OverflowError):
        return False


def _has_fractions(items: Any) -> bool:
    if isinstance(items, list):
        return any(map(_has_fractions, items))
    return type(items) is not int
