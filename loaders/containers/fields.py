"""Fields: what samples have beside their image and their targets, such as boxes, a mask, or further numbers.

`StoredField` is one field's schema, as dataset.json states it. In a tar a field is a member of the sample: an array is
`boxes.npy`, an image `mask.png`, bytes `NAME.bin`; a number stands in `.json` under its own name. In a .beton an array
of one shape is an ndarray field, a number is float or int, and anything else is bytes: the items of a ragged array one
after the other, without a header, or the encoded image. `SplitFields` reads the values of a split by its sample ids.

Boxes, key points and masks are those of the upright image: xyxy and xy in its pixels, (0, 0) being the corner of the
first one. Bands are an array [C, H, W] of the image's height and width. Where these differ between samples, the shape
is stated as [C, 0, 0], and a .beton has the array as an .npy file in bytes.
"""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from types import MappingProxyType
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from fastimg.loaders.errors import DataError, ShardError
from fastimg.loaders.runtime.scratch import Encoded

from .extents import are_flags, are_inside

FieldKind = Literal["number", "array", "ragged", "image", "bytes"]
Geometry = Literal["box", "keypoint", "mask", "bands"]

KINDS: tuple[FieldKind, ...] = get_args(FieldKind)
GEOMETRIES: tuple[Geometry, ...] = get_args(Geometry)
DTYPES = tuple(np.dtype(name).name for name in ("u1", "u2", "u4", "i1", "i2", "i4", "i8", "f2", "f4", "f8", "?"))
ABSENT = "__absent__"  # key in the note of a .beton's sample: the members that it lacks

POSITION = np.dtype([("offset", "<u8"), ("size", "<u4"), ("shard", "<u4")])  # of a value; offset 0 where it is missing

_NPY = b"\x93NUMPY\x01\x00"
_SHAPE = re.compile(rb"'shape': \(([0-9]+), ([0-9]+), ([0-9]+)\)")  # of three dimensions
_NPY_HEAD = 10  # bytes: the magic, the version, and the length of the description


@dataclass(frozen=True, kw_only=True)
class StoredField:
    """The schema of one field, as dataset.json states it."""

    name: str
    kind: FieldKind
    dtype: str = "float32"  # of numbers, arrays, items, or of a decoded mask (uint8, uint16); numpy's name
    shape: tuple[int, ...] = ()  # of an array; of one item if ragged
    geometry: Geometry | None = None
    longest: int = 0  # ragged: most items in one sample; bytes: most bytes
    optional: bool = False  # whether some samples lack it
    along: str | None = None  # ragged: the field whose items it accompanies, and with which they are dropped
    classes: tuple[str, ...] = ()  # names of the classes that the values, or a mask's pixels, are the indices of

    def to_json(self) -> dict[str, Any]:
        """The field as dataset.json states it: without what is left out for its kind."""
        stated: dict[str, Any] = {"name": self.name, "kind": self.kind}
        if self.kind in ("number", "array", "ragged") or self.geometry == "mask":
            stated["dtype"] = self.dtype
        if self.kind in ("array", "ragged"):
            stated["shape"] = list(self.shape)
        stated |= {"geometry": self.geometry} if self.geometry else {}
        stated |= {"longest": self.longest} if self.kind in ("ragged", "bytes") else {}
        stated |= {"optional": True} if self.optional else {}
        stated |= {"along": self.along} if self.along else {}
        return stated | ({"classes": list(self.classes)} if self.classes else {})

    @classmethod
    def of_json(cls, stated: Mapping[str, Any]) -> "StoredField":
        """The field that dataset.json states. Raises LookupError, TypeError or ValueError if it is not valid."""
        made = cls(
            name=stated["name"],
            kind=stated["kind"],
            dtype=stated.get("dtype", "float32"),
            shape=tuple(stated.get("shape", ())),
            geometry=stated.get("geometry"),
            longest=stated.get("longest", 0),
            optional=stated.get("optional", False),
            along=stated.get("along"),
            classes=tuple(stated.get("classes", ())),
        )
        if not isinstance(made.name, str) or not made.name or made.kind not in KINDS or made.dtype not in DTYPES:
            raise ValueError(f"field {made.name!r} of kind {made.kind!r} and dtype {made.dtype!r}")
        odd = (made.geometry == "box" and made.shape != (4,)) or (made.geometry == "bands" and len(made.shape) != 3)
        if made.geometry not in (None, *GEOMETRIES) or odd:
            raise ValueError(f"geometry {made.geometry!r} of field {made.name!r}")
        sizes = made.shape[:1] if made.varies else made.shape
        if not all(type(size) is int and size > 0 for size in sizes) or type(made.longest) is not int:
            raise ValueError(f"shape {made.shape!r} of field {made.name!r}")
        if not all(isinstance(name, str) for name in made.classes):
            raise ValueError(f"classes of field {made.name!r}")
        return made

    @property
    def varies(self) -> bool:
        """Whether height and width of its bands differ between samples."""
        return self.geometry == "bands" and self.shape[1:] == (0, 0)

    @property
    def member(self) -> str:
        """The extension of its member in a tar; empty for a number, which stands in the sample's `.json`."""
        return {"image": f"{self.name}.png", "bytes": f"{self.name}.bin", "number": ""}.get(
            self.kind, f"{self.name}.npy"
        )


def check_fields(fields: Mapping[str, StoredField]) -> None:
    """Raises ValueError for fields that do not go together."""
    for each in fields.values():
        if each.along is not None and (each.kind != "ragged" or fields[each.along].kind != "ragged"):
            raise ValueError(f"field {each.name!r} along {each.along!r}")


def packed_npy(array: npt.NDArray[Any]) -> bytes:
    """An array as an .npy file of version 1.0, in C order and little-endian. The bytes depend on the array alone."""
    array = np.ascontiguousarray(array, array.dtype.newbyteorder("<"))
    shape = f"({', '.join(map(str, array.shape))}{',' if array.ndim == 1 else ''})"
    said = f"{{'descr': '{array.dtype.str}', 'fortran_order': False, 'shape': {shape}, }}"
    padding = -(_NPY_HEAD + len(said) + 1) % 64
    text = said.encode() + b" " * padding + b"\n"
    return _NPY + len(text).to_bytes(2, "little") + text + array.tobytes()


def unpacked_npy(schema: StoredField, data: bytes) -> npt.NDArray[Any]:
    """The array in an .npy file that `packed_npy` made. Raises ValueError unless it has the field's dtype and shape."""
    start = _NPY_HEAD + int.from_bytes(data[8:10], "little")
    if data[:8] != _NPY or not data.startswith(_layout(schema.dtype)[1], _NPY_HEAD):
        raise ValueError(f"not an .npy file of {schema.dtype}")
    if schema.varies:
        schema = replace(schema, shape=_shape_of(schema, data[_NPY_HEAD:start]))
    return unpacked_items(schema, data[start:])


def _shape_of(schema: StoredField, description: bytes) -> tuple[int, ...]:
    """The shape that the description in an .npy file states. Raises ValueError if it is not one of these bands."""
    found = _SHAPE.search(description)
    shape = tuple(map(int, found.groups())) if found else ()
    if not shape or shape[0] != schema.shape[0] or 0 in shape:
        raise ValueError(f"{list(shape)} is not [{schema.shape[0]}, height, width]")
    return shape


@cache
def _layout(name: str) -> tuple[np.dtype[Any], bytes]:
    """The dtype of this name in little-endian, and how the description in an .npy file of it begins."""
    dtype = np.dtype(name).newbyteorder("<")
    return dtype, f"{{'descr': '{dtype.str}', 'fortran_order': False, ".encode()


def unpacked_items(schema: StoredField, data: bytes) -> npt.NDArray[Any]:
    """An array of the field from its elements alone. Raises ValueError if they do not fill its shape."""
    dtype, _ = _layout(schema.dtype)
    if schema.kind == "ragged":
        if len(data) % (math.prod(schema.shape) * dtype.itemsize):
            raise ValueError(f"{len(data)} bytes are not items of {list(schema.shape)} {schema.dtype}")
        return np.frombuffer(data, dtype).reshape(-1, *schema.shape)
    if len(data) != math.prod(schema.shape) * dtype.itemsize:
        raise ValueError(f"{len(data)} bytes are not {list(schema.shape)} {schema.dtype}")
    return np.frombuffer(data, dtype).reshape(schema.shape)


def no_field(dataset: str, name: str, known: Mapping[str, StoredField]) -> DataError:
    """The error for a field that a dataset does not have."""
    has = f"it has {', '.join(known)}" if known else "it stores none; convert its source with fields"
    return DataError(f"{dataset}: no field {name!r}; {has}")


@dataclass(frozen=True, kw_only=True)
class FieldColumn:
    """Where the values of one field of the N samples of a split are, or the numbers themselves.

    numbers: of a number, its dtype [N], 0 where it is missing. positions: of any other kind, POSITION [N].
    present: bool [N].
    """

    schema: StoredField
    present: npt.NDArray[np.bool_]
    numbers: npt.NDArray[Any] = field(default_factory=lambda: np.zeros(0))
    positions: npt.NDArray[np.void] = field(default_factory=lambda: np.zeros(0, POSITION))

    def packed(self) -> bytes:
        """The column as bytes: which samples have it, u1 [N], and its numbers or POSITION [N]."""
        values = self.numbers if self.schema.kind == "number" else self.positions
        return self.present.astype("u1").tobytes() + values.tobytes()

    @classmethod
    def unpacked(cls, schema: StoredField, content: memoryview, count: int) -> tuple["FieldColumn", memoryview]:
        """The column at the beginning of `content`, and what follows. Raises ValueError if it is not one."""
        flags = np.frombuffer(content, np.uint8, count)
        if not are_flags(flags):
            raise ValueError("which samples have it is not a flag each")
        present = flags.view(np.bool_)
        content = content[count:]
        is_number = schema.kind == "number"
        dtype = np.dtype(schema.dtype).newbyteorder("<") if is_number else POSITION
        values = np.frombuffer(content, dtype, count)
        column = cls(schema=schema, present=present, **{"numbers" if is_number else "positions": values})
        return column, content[count * dtype.itemsize :]

    def is_inside(self, lengths: npt.NDArray[np.uint64]) -> bool:
        """Whether all values lie in shards of these lengths, and are no longer than stated."""
        at = self.positions[self.present] if len(self.positions) else self.positions
        short = self.schema.kind != "bytes" or int(at["size"].max(initial=0)) <= self.schema.longest
        return short and bool((at["offset"] > 0).all()) and are_inside(at["shard"], at["offset"], at["size"], lengths)


class SplitFields:
    """The fields of a split. `fetch(shard, offset, size)` reads bytes, on any thread, and raises ShardError.

    `of_beton`: arrays are stored without the header of an .npy file. `fetch_group` reads several values into memory for
    them, of their POSITION [k]; without it they are read one by one.
    """

    def __init__(
        self,
        columns: Mapping[str, FieldColumn],
        fetch: Callable[[int, int, int], bytes],
        of_beton: bool,
        fetch_group: Callable[[npt.NDArray[np.void], Encoded], None] | None = None,
    ) -> None:
        self.columns = columns
        self.schemas: Mapping[str, StoredField] = {name: column.schema for name, column in columns.items()}
        self._fetch = fetch
        self._fetch_group = fetch_group
        self._of_beton = of_beton

    def read(self, dataset: str, name: str, index: int) -> npt.NDArray[Any] | bytes | None:
        """See Dataset.read_field; `dataset` is the name of the data in messages."""
        column = self.columns.get(name)
        if column is None:
            raise no_field(dataset, name, self.schemas)
        if not column.present[index]:
            return None
        schema = column.schema
        if schema.kind == "number":
            return column.numbers[index, ...]
        offset, size, shard = column.positions[index].item()
        data = self._fetch(shard, offset, size) if size else b""
        if schema.kind in ("image", "bytes"):
            return data
        try:
            return unpacked_items(schema, data) if self.is_plain(name) else unpacked_npy(schema, data)
        except ValueError as error:
            raise ShardError(
                f"{dataset}: {name} of sample {index}: {error}; copy it again, or convert again with overwrite=True"
            ) from error

    def is_plain(self, name: str) -> bool:
        """Whether arrays of a field are stored without the header of an .npy file."""
        return self._of_beton and not self.schemas[name].varies

    def read_group(self, name: str, indices: Sequence[int], encoded: Encoded) -> None:
        """Read several values as they are stored, but those that have to be read by `read`. Raises ShardError."""
        column = self.columns[name]
        chosen = list(indices)
        if self._fetch_group is not None and column.present[chosen].all():
            self._fetch_group(column.positions[chosen], encoded)


class WithFields:
    """What a dataset says and reads of its fields: nothing, unless its dataset.json states them."""

    name: str
    stored: SplitFields | None = None

    @property
    def fields(self) -> Mapping[str, StoredField]:
        """The schemas of the fields by name, in the order in which dataset.json states them."""
        return self.stored.schemas if self.stored else MappingProxyType({})

    def read_field(self, name: str, index: int) -> npt.NDArray[Any] | bytes | None:
        """See Dataset."""
        if self.stored is None:
            raise no_field(self.name, name, {})
        return self.stored.read(self.name, name, index)

    def read_fields(self, name: str, indices: Sequence[int], encoded: Encoded) -> None:
        """See SplitFields.read_group."""
        if self.stored is not None:
            self.stored.read_group(name, indices, encoded)
