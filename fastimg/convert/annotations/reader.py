"""Reads samples with their fields: the values that a listing found, or the files that it names, as they are stored.

An entry keeps the values of its fields as JSON, under `GIVEN` in its further columns: a list, for a file its `path`
and `bytes`, or for a mask the outlines that it is drawn of. So everything that determines a sample is part of the
listing, and of its fingerprint. Numbers are columns of their own, and stay in the sample's note.
"""

import io
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from fastimg.convert.sources.folders import file_part, size_below
from fastimg.convert.sources.samples import Original, SamplePart, SourceEntry, SourceReader, WrappingReader
from fastimg.convert.stored.files import announced_files
from fastimg.loaders.containers.fields import StoredField, packed_npy
from fastimg.loaders.containers.npy import npy_array
from fastimg.loaders.decode import Header, read_header
from fastimg.loaders.errors import ImageError, image_faults
from fastimg.loaders.folders.bands import read_bands
from fastimg.loaders.opening import MAX_PIXELS, open_image
from fastimg.wording import plural

from .geometry import boxes_of, numbers_of, orientation_of, points_of, turned, turned_boxes
from .masks import encoded_mask, mask_png, mask_size
from .segmentations import Outline, drawn_mask

GIVEN = "__fields__"  # key in an entry's further columns: the values of its fields by name
INSIDE = "inside"  # key in the value of a file: that its bytes come with the sample, not from `path`
OUTLINES = "outlines"  # key in the value of a mask that is drawn: Outline, of each object
RELATIVE = "relative"  # key beside it: whether points are shares of the image
SIZE = "__size__"  # key beside these values: the (width, height) that they are for, if the source states it

Given = dict[str, Any]


class AnnotationFrame(NamedTuple):
    """What the annotations of a sample are for."""

    header: Header
    stated: tuple[int, int] | None  # (width, height), if the source states it
    usually_upright: bool

    @property
    def orientation(self) -> int:
        """The EXIF orientation by which they must be turned. Raises ValueError if they are for another size."""
        return orientation_of(self.header, self.stated, self.usually_upright)

    @property
    def size(self) -> tuple[int, int]:
        """(width, height) of what they are for. Raises ValueError as `orientation` does."""
        return self.header.size if self.orientation == 1 else (self.header.width, self.header.height)


def file_value(root: Path, path: str) -> Given:
    """The value of a field that is a file: its path below `root`, and its size, -1 if there is none."""
    return {"path": path, "bytes": size_below(root, path)}


class FieldsReader(WrappingReader):
    """Reads what `reader` reads, with fields.

    `styles`: how the boxes of a field are written, see `boxes_of`; by default as `box`. `usually_upright`: the frame of
    the annotations where their size does not tell.
    """

    def __init__(
        self,
        reader: SourceReader,
        root: Path,
        schemas: Sequence[StoredField],
        styles: Mapping[str, str] | None = None,
        usually_upright: bool = False,
    ) -> None:
        super().__init__(reader)
        self._root = root
        self._schemas = [schema for schema in schemas if schema.member]
        self._classes = {each.name: {name: i for i, name in enumerate(each.classes)} for each in schemas}
        self._styles = styles or {}
        self._usually_upright = usually_upright
        self._stored = announced_files(root)  # None: the files of fields are here

    @property
    def fetches(self) -> bool:
        """See FetchingReader."""
        return self._stored is not None or super().fetches

    def announce(self, entry: SourceEntry) -> int:
        """See FetchingReader: the image, and the files of its fields."""
        size = super().announce(entry)
        if self._stored is not None and self.problem(entry) is None:
            for value in self._files_of(entry):
                self._stored.announce(value["path"])
                size += value["bytes"]
        return size

    def _files_of(self, entry: SourceEntry) -> Iterator[Given]:
        """The values that are files of their own."""
        given: Given = (entry.extra or {}).get(GIVEN, {})
        for schema in self._schemas:
            value = given.get(schema.name)
            if isinstance(value, dict) and INSIDE not in value and value.get("bytes", -1) >= 0:
                yield value

    def parts(self, entry: SourceEntry) -> Iterator[SamplePart]:
        """See SourceReader: the image, and the files of its fields."""
        yield from super().parts(entry)
        for value in self._files_of(entry):
            yield file_part(self._root, self._stored, value["path"], value["bytes"])

    def close(self) -> None:
        """See SourceReader."""
        super().close()
        if self._stored is not None:
            self._stored.close()

    def read(self, entry: SourceEntry) -> Original:
        """See SourceReader."""
        try:
            return self._read(entry)
        except (OSError, ImageError):
            if self._stored is not None:
                for value in self._files_of(entry):
                    self._stored.drop(value["path"])
            raise

    def _read(self, entry: SourceEntry) -> Original:
        extra = dict(entry.extra or {})
        given: Given = extra.pop(GIVEN, {})
        original = self.reader.read(entry._replace(extra=extra or None))
        assert isinstance(original.image, bytes)
        header = read_header(original.image, sys.maxsize)
        stated = given.get(SIZE) or self._size_of_mask(given, header, original.fields)
        frame = AnnotationFrame(header, (stated[0], stated[1]) if stated else None, self._usually_upright)
        fields = dict(original.fields)
        lengths: dict[str, int] = {}
        for schema in self._schemas:
            value = given.get(schema.name)
            if value is None:
                continue
            try:
                if isinstance(value, dict) and schema.kind in ("image", "bytes"):
                    fields[schema.member] = self._file(schema, value, frame, original.fields)
                else:
                    array = self._array(schema, value, frame)
                    fields[schema.member] = packed_npy(array)
                    lengths[schema.name] = len(array) if schema.kind == "ragged" else 0
            except ValueError as error:
                raise ImageError(f"{schema.name}: {error}") from error
        self._refuse_lengths(lengths)
        return original._replace(fields=fields)

    def _refuse_lengths(self, lengths: Mapping[str, int]) -> None:
        for schema in self._schemas:
            other = schema.along
            if other is not None and lengths.get(schema.name) != lengths.get(other):
                here = plural(lengths.get(schema.name, 0), "item")
                raise ImageError(f"{schema.name}: {here} along {lengths.get(other, 0):,} of {other}")

    def _content(self, value: Given) -> bytes:
        try:
            path = value["path"]
            data = (self._root / path).read_bytes() if self._stored is None else self._stored.read(path)
        except OSError as error:
            raise ValueError(f"{value['path']}: {error.strerror or error}") from error
        if len(data) != value["bytes"]:
            raise ValueError(f"{value['path']}: changed after the source was listed")
        return data

    def _size_of_mask(self, given: Given, header: Header, inside: Mapping[str, bytes]) -> tuple[int, int] | None:
        """(width, height) of a mask of the sample: what lies beside it is for the same pixels. None if it has none, or
        where the image is not turned; and of a mask that cannot be read or has another size, which is refused later.
        """
        if header.orientation == 1:
            return None
        for schema in self._schemas:
            value = given.get(schema.name)
            if schema.geometry != "mask" or not isinstance(value, dict) or OUTLINES in value:
                continue
            try:
                data = inside[schema.member] if INSIDE in value else self._content(value)
                size = mask_size(data, _most(header))
            except ValueError:
                continue
            if size in (header.size, (header.width, header.height)):
                return size
        return None

    def _file(self, schema: StoredField, value: Given, frame: AnnotationFrame, inside: Mapping[str, bytes]) -> bytes:
        if OUTLINES in value:
            return _drawn(schema, value, frame)
        data = inside[schema.member] if INSIDE in value else self._content(value)
        try:
            if schema.geometry == "mask":
                its_frame = frame._replace(stated=mask_size(data, _most(frame.header)))
                return mask_png(data, its_frame.orientation, _most(frame.header))
            return data if schema.kind == "bytes" else _as_png(data, _most(frame.header))
        except ValueError as error:
            raise ValueError(f"{os.path.basename(value['path'])}: {error}") from error

    def _bands(self, schema: StoredField, value: Given, header: Header) -> npt.NDArray[Any]:
        """The bands of an upright image of their size. Raises ValueError and ImageError."""
        bands = read_bands(self._content(value), value["path"], _most(header))
        height, width = bands.shape[1:]
        if header.orientation != 1 or (width, height) != header.size:
            turned = " and is turned by its EXIF" if header.orientation != 1 else ""
            raise ValueError(f"{width} x {height} pixels; the image has {header.size[0]} x {header.size[1]}{turned}")
        if bands.dtype.name != schema.dtype:
            raise ValueError(f"of {bands.dtype}, not {schema.dtype}")
        if schema.varies and len(bands) == schema.shape[0]:
            return bands
        return _shaped(bands, schema)

    def _array(self, schema: StoredField, value: Any, frame: AnnotationFrame) -> npt.NDArray[Any]:
        header = frame.header
        if schema.geometry == "bands":
            return self._bands(schema, value, header)
        if isinstance(value, dict):
            value = npy_array(self._content(value)).tolist()
        if schema.geometry == "box":
            boxes = boxes_of(value, self._styles.get(schema.name, "box"), frame.size)
            return turned_boxes(boxes, header, frame.orientation).astype(np.float32)
        if schema.geometry == "keypoint":
            several = schema.kind == "ragged" and schema.shape != (2,)  # each item has as many points
            places = numbers_of(value, schema.shape, missing=True) if several else points_of(value)
            return _shaped(turned(places, header, frame.orientation).astype(np.float32), schema)
        if any(isinstance(item, str) for item in value):  # the name of a class, as the listing found it
            value = [self._classes[schema.name].get(name, name) for name in value]
        if np.dtype(schema.dtype).kind in "iu":
            return _shaped(_whole(value, schema), schema)
        return _shaped(_floats(value, schema), schema)


def _drawn(schema: StoredField, value: Given, frame: AnnotationFrame) -> bytes:
    """The mask of the outlines of a sample, with as many bits as its classes need beside 255. Raises ValueError."""
    dtype = np.uint8 if len(schema.classes) <= 255 else np.uint16
    outlines = [Outline(*each) for each in value[OUTLINES]]
    return encoded_mask(drawn_mask(outlines, frame.size, dtype, value[RELATIVE]), frame.orientation)


def _shaped(array: npt.NDArray[Any], schema: StoredField) -> npt.NDArray[Any]:
    """The array, if it has the field's shape. Raises ValueError."""
    found = array.shape[1:] if schema.kind == "ragged" else array.shape
    if found != schema.shape:
        what = "items of shape " if schema.kind == "ragged" else "shape "
        raise ValueError(f"{what}{list(found)}, not {list(schema.shape)}")
    return array


def _whole(value: Any, schema: StoredField) -> npt.NDArray[Any]:
    if value == [] and schema.kind == "ragged":
        return np.zeros((0, *schema.shape), schema.dtype)
    try:
        array = np.array(value)
        if array.dtype.kind not in "iub":
            raise ValueError("something that is not a whole number")
        limits = np.iinfo(schema.dtype)
        if array.size and not limits.min <= array.min() <= array.max() <= limits.max:
            raise ValueError(f"a number that {schema.dtype} cannot hold")
    except (TypeError, OverflowError) as error:
        raise ValueError("something that is not a whole number") from error
    return array.astype(schema.dtype)


def _floats(value: Any, schema: StoredField) -> npt.NDArray[Any]:
    if schema.kind == "ragged":
        return numbers_of(value, schema.shape, missing=True).astype(schema.dtype)
    try:
        return np.array(value, np.float64).astype(schema.dtype)
    except (TypeError, ValueError) as error:
        raise ValueError("something that is not a number, or rows of several lengths") from error


def _most(header: Header) -> int:
    """The pixels that an image beside a sample's image may have."""
    return max(MAX_PIXELS, header.width * header.height)


def _as_png(data: bytes, most: int) -> bytes:
    """An image of up to `most` pixels as PNG, as it is if it is one. Raises ValueError if it cannot be decoded."""
    try:
        with image_faults(), open_image(data, most) as image:
            image.load()
            if image.format == "PNG":
                return data
            buffer = io.BytesIO()
            image.save(buffer, "PNG")
            return buffer.getvalue()
    except ImageError as error:
        raise ValueError(f"it cannot be decoded, or stored as PNG ({error})") from error
