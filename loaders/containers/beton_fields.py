"""FFCV's .beton container, version 2: its page of dtypes, and what a field of each kind is on disk.

A file is: header, one descriptor per field, one metadata record per sample, zeros up to a page, data pages, allocation
table (to the end of the file). Little-endian; pointers are offsets in the file. A region lies in one page, all regions
of a sample in the same one, and none is empty: an empty `bytes` value has a region of one NUL, and the size 0 in its
metadata. A JPEG's length is only in the allocation table. Written and read in beton.py.

Values, the same on the way in and out: `rgb` a JPEG as bytes, or pixels [H, W, 3] uint8; `int` and `float` numbers;
`bytes` bytes; `json` what json.loads gives; `ndarray` and `tensor` arrays of the field's dtype and shape.
"""

import json
import math
import operator
import re
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from fastimg.loaders.errors import ImageError

if TYPE_CHECKING:
    from fastimg.loaders.decode import Header

HEADER = np.dtype(
    [("version", "<u2"), ("num_fields", "<u2"), ("page_size", "<u4"), ("num_samples", "<u8"), ("table_ptr", "<u8")]
)
DESCRIPTOR = np.dtype([("type_id", "u1"), ("name", "S16"), ("arguments", "V1024")])
RGB = np.dtype([("mode", "u1"), ("width", "<u2"), ("height", "<u2"), ("ptr", "<u8")])
SPAN = np.dtype([("ptr", "<u8"), ("size", "<u8")])
REGION = np.dtype([("sample_id", "<u8"), ("ptr", "<u8"), ("size", "<u8")])  # of the allocation table
ARRAY = np.dtype([("shape", "<u8", (32,)), ("type_length", "<u8")])  # of an array's arguments; json of dtype.descr

VERSION = 2
PAGE_SIZES = tuple(1 << bits for bits in range(21, 32))
JPG, RAW = 0, 1  # modes of an image
TYPE_IDS = {"float": 0, "int": 1, "rgb": 2, "bytes": 3, "ndarray": 4, "json": 5, "tensor": 6, "custom": 255}
METADATA: dict[str, np.dtype[Any]] = {
    "float": np.dtype("<f8"),
    "int": np.dtype("<i8"),
    "rgb": RGB,
    "bytes": SPAN,
    "json": SPAN,
    "ndarray": np.dtype("<u8"),
    "tensor": np.dtype("<u8"),
}
SCALARS = ("float", "int")

_KINDS = {number: kind for kind, number in TYPE_IDS.items()}
_PLAIN_TYPE = re.compile(r"[<>|][biufcmMSUV][0-9]{1,9}(\[\w{1,16}\])?")


@dataclass(frozen=True)
class BetonField:
    """What one field of every sample is. `dtype` and `shape` belong to ndarray and tensor."""

    kind: str  # of TYPE_IDS
    dtype: np.dtype[Any] | None = None
    shape: tuple[int, ...] = ()

    @property
    def nbytes(self) -> int:
        """Bytes of an array."""
        return math.prod(self.shape) * (self.dtype.itemsize if self.dtype else 0)


def sample_dtype(metadata: list[np.dtype[Any]]) -> np.dtype[Any]:
    """The record of a sample from those of its fields: scalars are aligned, structures are not. Named f0, f1, ..."""
    return np.dtype([("", dtype) for dtype in metadata], align=True)


def pointers(metadata: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """A view of the pointers in the records of one field."""
    view: npt.NDArray[Any] = metadata["ptr"] if metadata.dtype.names else metadata
    return view


def jpeg_fault(data: bytes | memoryview) -> str:
    """Why an rgb field cannot hold these bytes as they are; empty where it can. FFCV would give wrong pixels."""
    try:
        header = _read_header(data)
    except ImageError as error:
        return str(error)
    if header.format != "jpeg":
        return f"{header.format} and not a JPEG; give its pixels"
    if not header.turbo:
        return "a JPEG that is neither gray nor YCbCr of 8 bits in the usual subsamplings; give its pixels"
    if header.orientation != 1:
        return "it has an EXIF orientation, which FFCV ignores; give its pixels upright, or encode them again"
    return ""


def _read_header(data: bytes | memoryview) -> "Header":
    from fastimg.loaders.decode import read_header  # here, because text datasets do not need the parser

    return read_header(data, sys.maxsize)


def describe(name: str, field: BetonField) -> tuple[int, bytes, bytes]:
    """The descriptor of a field: type id, name, arguments. Raises ValueError for what FFCV could not read."""
    if not name or not name.isascii() or len(name) > 16 or "\0" in name:
        raise ValueError(f"{name!r}: a field's name has 1 to 16 ASCII characters")
    if field.kind not in METADATA:
        raise ValueError(f"{name}: {field.kind!r} is not one of {', '.join(METADATA)}")
    if field.dtype is None:
        if field.kind in ("ndarray", "tensor"):
            raise ValueError(f"{name}: {field.kind} needs a dtype and a shape")
        return TYPE_IDS[field.kind], name.encode(), b""
    described = json.dumps(field.dtype.descr).encode()
    shape = field.shape + (0,) * (32 - len(field.shape))
    try:
        arguments = np.array((shape, len(described)), ARRAY).tobytes() + described
        if parse_array(arguments, field.kind) != field or len(arguments) > 1024:
            raise ValueError("it would come back as another one")
    except (ValueError, TypeError, OverflowError) as error:
        raise ValueError(
            f"{name}: an array has a plain dtype, 1 to 32 dimensions, and elements: {error}: {field}"
        ) from error
    return TYPE_IDS[field.kind], name.encode(), arguments


def parse_descriptor(descriptor: npt.NDArray[Any]) -> tuple[str, BetonField]:
    """Name and field. Raises ValueError where they are not what FFCV writes."""
    name = bytes(descriptor["name"]).split(b"\0")[0].decode("ascii", "backslashreplace")
    kind = _KINDS.get(int(descriptor["type_id"]))
    if kind is None:
        raise ValueError(f"field {name} is of the unknown type {descriptor['type_id']}")
    if kind not in ("ndarray", "tensor"):
        return name, BetonField(kind)
    try:
        return name, parse_array(descriptor["arguments"].tobytes(), kind)
    except (ValueError, TypeError, RecursionError) as error:
        raise ValueError(f"field {name} is not described as an array ({error})") from error


def parse_array(arguments: bytes, kind: str) -> BetonField:
    """The field that its arguments describe. Raises ValueError, TypeError or RecursionError where they do not."""
    head = np.frombuffer(arguments, ARRAY, 1)[0]
    ((_, described),) = json.loads(arguments[ARRAY.itemsize :][: int(head["type_length"])])  # of [["", "<f4"]]
    if not _PLAIN_TYPE.fullmatch(described):  # above all no Python objects
        raise ValueError(f"{described!r} is not a plain dtype")
    shape = [int(n) for n in head["shape"]]
    while shape and shape[-1] == 0:
        shape.pop()
    field = BetonField(kind, np.dtype(described), tuple(shape))
    if not shape or not field.nbytes:
        raise ValueError("it has no elements")
    return field


def encode(field: BetonField, value: Any) -> tuple[object, memoryview | None]:
    """A value's metadata, with the pointer 0, and its region. Raises ValueError, TypeError, OverflowError."""
    match field.kind:
        case "float":
            return float(value), None
        case "int":
            return operator.index(value), None
        case "bytes":
            return (0, len(value)), memoryview(value or b"\0")
        case "json":
            if isinstance(value, bytes):  # json already
                json.loads(value.decode())
            text = value if isinstance(value, bytes) else json.dumps(value).encode()
            return (0, len(text) + 1), memoryview(text + b"\0")
        case "rgb" if isinstance(value, np.ndarray):
            if value.dtype != np.uint8 or value.ndim != 3 or value.shape[2] != 3:
                raise ValueError(f"pixels are uint8 [H, W, 3], not {value.dtype} {list(value.shape)}")
            height, width, _ = value.shape
            if not (0 < height <= 65535 and 0 < width <= 65535):
                raise ValueError(f"an image has 1 to 65535 pixels a side, not {width} x {height}")
            return (RAW, width, height, 0), np.ascontiguousarray(value).reshape(-1).data
        case "rgb":
            if fault := jpeg_fault(value):
                raise ValueError(fault)
            header = _read_header(value)
            return (JPG, header.width, header.height, 0), memoryview(value)
        case _:
            array = np.asarray(value)
            if array.dtype != field.dtype or array.shape != field.shape:
                raise ValueError(f"{array.dtype} {list(array.shape)} where {field.dtype} {list(field.shape)} is due")
            return 0, memoryview(array.tobytes())
