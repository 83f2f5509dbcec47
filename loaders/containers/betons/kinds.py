"""FFCV's .beton container, version 2: its dtypes, and how each kind of field is stored.

A file is: header, one descriptor per field, one metadata record per sample, zeros up to the next page, data pages,
allocation table (to the end of the file). Numbers are little-endian; pointers are offsets in the file. All regions of a
sample lie within one page, and none is empty: an empty `bytes` value has a region of one NUL and the size 0 in its
metadata. A JPEG's length is only in the allocation table. files.py writes and reads the files.

Values are the same when written and when read: `rgb` is a JPEG as bytes, or pixels [H, W, 3] uint8; `int` and `float`
are numbers; `bytes` is bytes; `json` is what json.loads returns; `ndarray` and `tensor` are arrays of the field's dtype
and shape.
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

from fastimg.loaders.containers.fields import StoredField
from fastimg.loaders.containers.targets import TargetKind
from fastimg.loaders.errors import ImageError

if TYPE_CHECKING:
    from fastimg.loaders.decode import Header

HEADER = np.dtype(
    [("version", "<u2"), ("num_fields", "<u2"), ("page_size", "<u4"), ("num_samples", "<u8"), ("table_ptr", "<u8")]
)
DESCRIPTOR = np.dtype([("type_id", "u1"), ("name", "S16"), ("arguments", "V1024")])
RGB = np.dtype([("mode", "u1"), ("width", "<u2"), ("height", "<u2"), ("ptr", "<u8")])
SPAN = np.dtype([("ptr", "<u8"), ("size", "<u8")])
REGION = np.dtype([("sample_id", "<u8"), ("ptr", "<u8"), ("size", "<u8")])  # an entry of the allocation table
ARRAY = np.dtype([("shape", "<u8", (32,)), ("type_length", "<u8")])  # an array's arguments; dtype.descr as JSON follows

VERSION = 2
PAGE_SIZES = tuple(1 << bits for bits in range(21, 32))
JPG = 0  # modes of an image
RAW = 1
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
# How targets are stored: the index of a class, -1 where it is missing; a number, or NaN; for several labels, uint8 [C]
# of zeros and ones, or ABSENT_LABELS throughout.
BETON_KINDS: dict[TargetKind, str] = {"class": "int", "number": "float", "multilabel": "ndarray"}
ABSENT_LABELS = 255

_KINDS = {number: kind for kind, number in TYPE_IDS.items()}
_PLAIN_TYPE = re.compile(r"[<>|][biufcmMSUV][0-9]{1,9}(\[\w{1,16}\])?")


@dataclass(frozen=True)
class BetonField:
    """A field that every sample has. Only ndarray and tensor have `dtype` and `shape`."""

    kind: str  # a key of TYPE_IDS
    dtype: np.dtype[Any] | None = None
    shape: tuple[int, ...] = ()

    @property
    def nbytes(self) -> int:
        """Size of one array in bytes."""
        return math.prod(self.shape) * (self.dtype.itemsize if self.dtype else 0)


def beton_field(field: StoredField) -> BetonField:
    """What holds a field of samples in a .beton: int, float or ndarray; bytes for items without a header, and files."""
    if field.kind == "number":
        return BetonField("float" if np.dtype(field.dtype).kind == "f" else "int")
    if field.kind == "array" and not field.varies:
        return BetonField("ndarray", np.dtype(field.dtype).newbyteorder("<"), field.shape)
    return BetonField("bytes")


def sample_dtype(metadata: list[np.dtype[Any]]) -> np.dtype[Any]:
    """The record of a sample, with fields named f0, f1, ...: scalars are aligned, structures are not."""
    return np.dtype([("", dtype) for dtype in metadata], align=True)


def pointers(metadata: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """A view of the pointers in the records of one field."""
    view: npt.NDArray[Any] = metadata["ptr"] if metadata.dtype.names else metadata
    return view


def jpeg_fault(data: bytes | memoryview) -> str:
    """Why an rgb field cannot hold these bytes as they are, or '' if it can. FFCV would return wrong pixels."""
    try:
        header = _read_header(data)
    except ImageError as error:
        return str(error)
    if header.format != "jpeg":
        return f"{header.format}, not JPEG; give its pixels"
    if not header.turbo:
        return "a JPEG that is neither grayscale nor 8-bit YCbCr with a common subsampling; give its pixels"
    if header.orientation != 1:
        return "it has an EXIF orientation, which FFCV ignores; give its pixels upright, or encode it again upright"
    return ""


def _read_header(data: bytes | memoryview) -> "Header":
    from fastimg.loaders.decode import read_header  # imported here because text datasets do not need the parser

    return read_header(data, sys.maxsize)


def describe(name: str, field: BetonField) -> tuple[int, bytes, bytes]:
    """The descriptor of a field: type id, name, arguments. Raises ValueError if FFCV could not read the field."""
    if not name or not name.isascii() or len(name) > 16 or "\0" in name:
        raise ValueError(f"{name!r}: a field's name must have 1 to 16 ASCII characters")
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
            raise ValueError("it would not be read back as the same field")
    except (ValueError, TypeError, OverflowError) as error:
        raise ValueError(
            f"{name}: an array needs a plain dtype, 1 to 32 dimensions and at least one element ({error}): {field}"
        ) from error
    return TYPE_IDS[field.kind], name.encode(), arguments


def parse_descriptor(descriptor: npt.NDArray[Any]) -> tuple[str, BetonField]:
    """Name and field of a descriptor. Raises ValueError if FFCV would not write it."""
    name = bytes(descriptor["name"]).split(b"\0")[0].decode("ascii", "backslashreplace")
    kind = _KINDS.get(int(descriptor["type_id"]))
    if kind is None:
        raise ValueError(f"field {name} has the unknown type {descriptor['type_id']}")
    if kind not in ("ndarray", "tensor"):
        return name, BetonField(kind)
    try:
        return name, parse_array(descriptor["arguments"].tobytes(), kind)
    except (ValueError, TypeError, RecursionError) as error:
        raise ValueError(f"field {name} has no valid description of an array ({error})") from error


def parse_array(arguments: bytes, kind: str) -> BetonField:
    """The field that `arguments` describe. Raises ValueError, TypeError or RecursionError for invalid arguments."""
    head = np.frombuffer(arguments, ARRAY, 1)[0]
    ((_, described),) = json.loads(arguments[ARRAY.itemsize :][: int(head["type_length"])])  # [["", "<f4"]]
    if not _PLAIN_TYPE.fullmatch(described):  # in particular, no Python objects
        raise ValueError(f"{described!r} is not a plain dtype")
    shape = [int(n) for n in head["shape"]]
    while shape and shape[-1] == 0:
        shape.pop()
    field = BetonField(kind, np.dtype(described), tuple(shape))
    if not shape or not field.nbytes:
        raise ValueError("it has no elements")
    return field


def encode(field: BetonField, value: Any) -> tuple[object, memoryview | None]:
    """A value's metadata, with a pointer of 0, and its region. Raises ValueError, TypeError or OverflowError."""
    match field.kind:
        case "float":
            return float(value), None
        case "int":
            return operator.index(value), None
        case "bytes":
            return (0, len(value)), memoryview(value or b"\0")
        case "json":
            if isinstance(value, bytes):  # already JSON
                json.loads(value.decode())
            text = value if isinstance(value, bytes) else json.dumps(value).encode()
            return (0, len(text) + 1), memoryview(text + b"\0")
        case "rgb" if isinstance(value, np.ndarray):
            if value.dtype != np.uint8 or value.ndim != 3 or value.shape[2] != 3:
                raise ValueError(f"pixels must be uint8 [H, W, 3], not {value.dtype} {list(value.shape)}")
            height, width, _ = value.shape
            if not (0 < height <= 65535 and 0 < width <= 65535):
                raise ValueError(f"an image must have 1 to 65535 pixels per side, not {width} x {height}")
            return (RAW, width, height, 0), np.ascontiguousarray(value).reshape(-1).data
        case "rgb":
            if fault := jpeg_fault(value):
                raise ValueError(fault)
            header = _read_header(value)
            return (JPG, header.width, header.height, 0), memoryview(value)
        case _:
            array = np.asarray(value)
            if array.dtype != field.dtype or array.shape != field.shape:
                raise ValueError(f"expected {field.dtype} {list(field.shape)}, not {array.dtype} {list(array.shape)}")
            return 0, memoryview(array.tobytes())
