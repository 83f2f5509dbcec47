"""Parquet files that hold images, in the layout of Hugging Face or similar ones, read row by row.

An image is a struct of `bytes` and `path`, or a value of a column of bytes. A label is an integer with names in the
metadata of the schema (ClassLabel), or any label that a manifest may have. Other columns of bytes or images become
members of the sample, and columns that --field names its fields; all remaining columns go into its note.
"""

import contextlib
import json
import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from fastimg.convert.annotations.cells import check_fields_of
from fastimg.convert.hub.ranges import HubFile, RangeFile
from fastimg.loaders.decode import read_header
from fastimg.loaders.errors import DataError, ImageError
from fastimg.loaders.folders.formats import image_extensions
from fastimg.loaders.remote.trees import tree_of
from fastimg.wording import plural

from .columns import LABEL_COLUMNS, SPLIT_COLUMNS, Columns, check_apart, find_column
from .labels import Labels, is_empty
from .manifests import plain, split_of
from .samples import NO_LABEL, Row
from .tables import Rows, readable
from .targets import check_targets

IMAGE_COLUMNS = ("image", "img", "jpg", "jpeg", "png", "webp", "bytes")
LABELS = (*LABEL_COLUMNS, "labels", "cls")

ParquetPath = Path | HubFile  # here, or on the hub

_ONLY_PATH = "only the path of an image, and no bytes; store the bytes in the file, or convert a manifest of the paths"
_FIELD = re.compile(r"[A-Za-z0-9_-]+")
_BATCH_BYTES = 1 << 23  # of rows in memory, approximately
_BATCH_ROWS = 256
_BUFFER_BYTES = 1 << 20  # read from a column at once


class ParquetLayout(NamedTuple):
    """What the columns of a file mean. All files of a source have the same layout."""

    columns: frozenset[str]
    image: str
    key: str | None  # column of strings that name the images
    label: str | None
    split: str | None
    classes: tuple[str, ...] | None  # names of a ClassLabel
    fields: frozenset[str]  # other columns of bytes or images
    targets: frozenset[str]  # columns that --target names
    asked: frozenset[str]  # columns that --field names


class ImageRow(NamedTuple):
    """One row of a file."""

    row: int  # counted from 1
    key: str | None
    image: bytes  # empty if there is none
    label: int | str  # class index if the layout has classes, else the label itself; -1 if there is none
    split: str | None
    extra: Row
    fields: dict[str, bytes]
    targets: Row  # the columns that --target names, as they are
    cells: Row  # those that --field names
    fault: str  # why it is skipped; empty if it is not


def holds_images(file: Path, columns: Columns) -> bool:
    """Whether the schema of a file has a column of encoded images. False if the file cannot be read."""
    try:
        with _opened(file) as source:
            return _image_column(pq.read_schema(source), columns) is not None
    except (OSError, pa.ArrowException):
        return False


def may_hold_images(file: Path) -> bool:
    """Whether any column could hold images. True if the file cannot be read, so that reading it reports the error."""
    try:
        with _opened(file) as source:
            return any(_is_bytes(field.type) or _is_image(field.type) for field in pq.read_schema(source))
    except (OSError, pa.ArrowException):
        return True


@contextlib.contextmanager
def _opened(file: ParquetPath) -> Iterator[Path | RangeFile]:
    """What pyarrow reads a file from."""
    if isinstance(file, Path):
        tree = tree_of(file)
        if tree is None or not tree.holds(file):
            yield file
            return
        stored = RangeFile(file.stat().st_size, tree.reader(file))
    else:
        stored = file.open()
    with stored as opened:
        yield opened


def read_layout(file: ParquetPath, columns: Columns, stated: Mapping[str, Any] | None = None) -> ParquetLayout:
    """Determine what the columns of a file mean. Raises DataError, UsageError.

    `stated` are Hugging Face's features, for files whose metadata has none.
    """
    with readable(file), _opened(file) as source:
        schema = pq.read_schema(source)
    names = list(schema.names)
    if len(set(names)) < len(names):
        raise DataError(f"{file}: two columns have the same name: {', '.join(names)}; rename one")
    features = _features(schema) or dict(stated or {})
    image = _image_column(schema, columns, features)
    if image is None:
        if columns.path is not None:
            find_column(file, names, columns.path, IMAGE_COLUMNS, "path")
        what = f"the column {columns.path!r} holds no encoded images" if columns.path else "no column of encoded images"
        raise DataError(
            f"{file}: {what} ({', '.join(IMAGE_COLUMNS)}: bytes, or a struct of bytes and path); it has "
            f"{', '.join(names)}; name it with --path-column"
        )
    label = None if columns.targets else _label_column(file, schema, features, columns)
    split = find_column(file, names, columns.split, SPLIT_COLUMNS, "split")
    taken = [name for name in (image, label, split) if name is not None]
    check_apart(file, "image", taken, columns.text)
    check_targets(file, names, columns.targets, [*taken, columns.text])
    targets = frozenset(target.name for target in columns.targets)
    asked = frozenset(field.name for field in columns.fields)
    check_fields_of(file, names, columns.fields, [*taken, *targets])
    rest = [field for field in schema if field.name not in taken and field.name not in asked]
    key = next((field.name for field in rest if field.name == "path"), None)
    if key and not (pa.types.is_string(schema.field(key).type) or pa.types.is_large_string(schema.field(key).type)):
        raise DataError(f"{file}: the column 'path' beside {image!r} is not text and cannot name the images; rename it")
    fields = [field.name for field in rest if _is_bytes(field.type) or _is_image(field.type)]
    if target := next((name for name in fields if name in targets), None):
        raise DataError(f"{file}: --target {target}: the column holds bytes or images; name another one")
    for name in fields:
        if not _FIELD.fullmatch(name) or name in ("cls", "json") or f".{name.lower()}" in image_extensions():
            raise DataError(
                f"{file}: the column {name!r} holds bytes beside the images in {image!r}, but cannot be stored under "
                "that name; rename it (letters and digits, not an image extension) or drop it"
            )
    classes = _class_names(features.get(label or ""))
    if label is not None and not pa.types.is_integer(schema.field(label).type):
        classes = None
    return ParquetLayout(frozenset(names), image, key, label, split, classes, frozenset(fields), targets, asked)


def _image_column(schema: pa.Schema, columns: Columns, features: Mapping[str, Any] | None = None) -> str | None:
    holding: list[str] = [field.name for field in schema if _is_bytes(field.type) or _is_image(field.type)]
    if columns.path is not None:
        return next((name for name in holding if name == columns.path), None)
    for usual in IMAGE_COLUMNS:
        for name in holding:
            if name.strip().lower() == usual:
                return name
    known = _features(schema) if features is None else features
    images = [name for name in holding if _is_image(schema.field(name).type) or _kind(known.get(name)) == "Image"]
    images = [name for name in images if all(name != field.name for field in columns.fields)]
    return images[0] if len(images) == 1 else None


def _is_bytes(kind: pa.DataType) -> bool:
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind))


def _is_image(kind: pa.DataType) -> bool:
    """Whether a type is that of Hugging Face's Image: a struct of bytes and path."""
    return pa.types.is_struct(kind) and any(field.name == "bytes" and _is_bytes(field.type) for field in kind)


def _features(schema: pa.Schema) -> dict[str, Any]:
    """The features in Hugging Face's metadata, by column; empty if there are none."""
    try:
        features = json.loads((schema.metadata or {})[b"huggingface"])["info"]["features"]
    except (KeyError, TypeError, ValueError, RecursionError):
        return {}
    return features if isinstance(features, dict) else {}


def class_names(schema: pa.Schema, column: str, stated: Mapping[str, Any] | None = None) -> tuple[str, ...] | None:
    """The class names that Hugging Face's metadata gives the integers of a column, or of its lists, or None."""
    feature = (_features(schema) or stated or {}).get(column)
    kind = schema.field(column).type
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        kind = kind.value_type
        feature = feature.get("feature") if isinstance(feature, dict) else next(iter(feature or ()), None)
    names = _class_names(feature)
    return names if names and pa.types.is_integer(kind) else None


def named_columns(
    file: ParquetPath, columns: Iterable[str], stated: Mapping[str, Any] | None = None
) -> dict[str, tuple[str, ...]]:
    """The class names of those columns whose numbers have names in the schema of a file, or in `stated` features."""
    with _opened(file) as source:
        schema = pq.read_schema(source)
    present = [name for name in columns if name in schema.names]
    return {name: names for name in present if (names := class_names(schema, name, stated))}


def target_rows(files: Iterable[ParquetPath], layout: ParquetLayout) -> Rows:
    """Yield the targets of all rows, without reading the images."""
    for file in files:
        number = 0
        with readable(file), _opened(file) as source, pq.ParquetFile(source) as opened:
            for batch in opened.iter_batches(columns=sorted(layout.targets)):
                for row in batch.to_pylist():
                    number += 1
                    yield number, row


def _kind(feature: Any) -> str:
    return str(feature.get("_type", "")) if isinstance(feature, dict) else ""


def _class_names(feature: Any) -> tuple[str, ...] | None:
    """The names of a ClassLabel, or None."""
    names = feature.get("names") if _kind(feature) == "ClassLabel" else None
    if not isinstance(names, list) or not names or len(set(map(str, names))) < len(names):
        return None
    return tuple(map(str, names))


def _label_column(file: ParquetPath, schema: pa.Schema, features: dict[str, Any], columns: Columns) -> str | None:
    """Return the given column, else the first with a usual name, else the only ClassLabel, else None."""
    names = list(schema.names)
    if columns.label is not None or any(name.strip().lower() in LABELS for name in names):
        return find_column(file, names, columns.label, LABELS, "label")
    marked = [name for name in names if _kind(features.get(name)) == "ClassLabel"]
    if len(marked) > 1:
        raise DataError(f"{file}: {', '.join(marked)} all hold labels; choose one with --label-column")
    return marked[0] if marked else None


def read_rows(file: ParquetPath, layout: ParquetLayout, labels: Labels | None) -> Iterator[ImageRow]:
    """Yield the samples of a file in order. `labels` reads labels without names in the schema.

    Raises DataError that names the row.
    """
    number = 0
    for batch in _batches(file):
        for row in batch:
            number += 1
            yield _sample(f"{file}: row {number}", number, row, layout, labels)


def _batches(file: ParquetPath) -> Iterator[list[Row]]:
    """Yield batches of rows, each a few megabytes according to the metadata of the row groups."""
    with readable(file), _opened(file) as source, pq.ParquetFile(source, buffer_size=_BUFFER_BYTES) as opened:
        for group in range(opened.num_row_groups):
            metadata = opened.metadata.row_group(group)
            rows = min(max(_BATCH_BYTES * metadata.num_rows // max(metadata.total_byte_size, 1), 1), _BATCH_ROWS)
            for batch in opened.iter_batches(rows, row_groups=[group]):
                try:
                    values = batch.to_pylist()
                except (OverflowError, ValueError) as error:
                    if isinstance(error, UnicodeDecodeError | pa.ArrowException):
                        raise
                    raise DataError(
                        f"{file}: row group {group}: {error}; drop the column or change its type"
                    ) from error
                yield values


def _sample(where: str, number: int, row: Row, layout: ParquetLayout, labels: Labels | None) -> ImageRow:
    image, key, extra = _picture(layout.image, row.pop(layout.image))
    fault = _ONLY_PATH if key and not image else ""
    if layout.key and (given := row.pop(layout.key)):
        if key and key != given:
            extra[f"{layout.image}.path"] = key
        key = given
    label: int | str = -1
    if layout.label is not None:
        value = row.pop(layout.label)
        if labels is None:
            label = _label(where, layout, value)
        elif is_empty(value):
            fault = fault or NO_LABEL
        else:
            label = labels.read(where, value)
    split = None if layout.split is None else split_of(where, row.pop(layout.split))
    cells = {name: row.pop(name) for name in layout.asked}
    fields: dict[str, bytes] = {}
    for name, value in row.items():
        if name not in layout.fields:
            extra[name] = value
        elif value is not None:
            content, path, more = _picture(name, value)
            extra |= more | ({f"{name}.path": path} if path else {})
            if content or not isinstance(value, dict):
                fields[_field_name(name, content, path) if isinstance(value, dict) else name] = content
    noted = {name: plain(where, name, value) for name, value in extra.items()}
    targets = {name: extra[name] for name in layout.targets}
    return ImageRow(number, key or None, image, label, split, noted, fields, targets, cells, fault)


def _picture(name: str, value: Any) -> tuple[bytes, str, Row]:
    """The bytes and the path of an image, and the other members of its struct."""
    if not isinstance(value, dict):
        return value or b"", "", {}
    path = value.get("path")
    other = {f"{name}.{key}": part for key, part in value.items() if key != "bytes" and part is not None}
    if isinstance(path, str):
        other.pop(f"{name}.path")
    return value["bytes"] or b"", path if isinstance(path, str) else "", other


def _field_name(name: str, content: bytes, path: str) -> str:
    """The field for an additional image, such as `mask.png`: the extension comes from its path, else its content."""
    extension = os.path.splitext(path)[1].lower()[1:]
    if f".{extension}" not in image_extensions():
        try:
            extension = read_header(content, sys.maxsize).extension
        except ImageError:
            return name
    return f"{name}.{extension}"


def _label(where: str, layout: ParquetLayout, value: Any) -> int:
    assert layout.classes is not None
    if value is None:
        return -1
    if not -1 <= value < len(layout.classes):
        raise DataError(
            f"{where}: the label {value} in column {layout.label!r} is not one of the "
            f"{plural(len(layout.classes), 'class')} that the schema names; correct it or drop the row"
        )
    return int(value)


def same_layout(file: ParquetPath, layout: ParquetLayout, first: ParquetPath, expected: ParquetLayout) -> None:
    """Raise DataError if two files of a source differ."""
    if layout == expected:
        return
    differing = sorted(layout.columns ^ expected.columns)
    what = f"only one of them has {_listed(differing)}" if differing else "their labels or types differ"
    raise DataError(
        f"{file}: its columns differ from those of {first}: {what}; convert them separately, or make them match"
    )


def _listed(names: Iterable[str]) -> str:
    return ", ".join(map(repr, names))
