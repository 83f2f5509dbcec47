"""`.npy` files: an array as bytes, and the array in such bytes.

NumPy parses a header as Python, with `ast`, which in CPython 3.11 keeps its depth of recursion for all threads at
once: two threads that parse may end in SystemError (CPython issue 106905). So headers as NumPy and most other programs
write them are parsed here; NumPy reads the others, and says what is wrong with a file that is none.
"""

import io
import itertools
import math
import re
from functools import lru_cache
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import numpy.lib.format
import numpy.typing as npt

MAGIC = b"\x93NUMPY"  # then two bytes of the version, and the length of the header
_LENGTHS = {b"\x01\x00": 2, b"\x02\x00": 4, b"\x03\x00": 4}  # by version: bytes of the header's length
_SMALL = 4096  # entries that an array without values may have
_KNOWN = 4096  # headers, of as many shapes

_COUNT = rb"(?:0|[1-9][0-9]*)"
_HEADER = re.compile(
    rb"\{'descr': '([<>|=]?[a-zA-Z][0-9]*(?:\[[0-9a-zA-Z]+\])?)', 'fortran_order': (True|False), "
    rb"'shape': \((|%b,|%b(?:, ?%b)+,?)\)(?:, ?)?\}[ \n]*" % (_COUNT, _COUNT, _COUNT)
)
_LONGEST = 4096  # bytes of a header that is parsed here


class NpyHeader(NamedTuple):
    """What stands before an array's values."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    fortran_order: bool

    @property
    def nbytes(self) -> int:
        """Bytes of the values."""
        return math.prod(self.shape) * self.dtype.itemsize


def npy_bytes(array: npt.NDArray[Any]) -> bytes:
    """An array as a .npy file (format 1.0). Raises ValueError for objects."""
    array = np.asarray(array, order="C")
    if array.dtype.hasobject:
        raise ValueError("an array of objects would need pickle")
    return _npy_head(array.dtype, array.shape) + array.tobytes()


@lru_cache(_KNOWN)
def _npy_head(dtype: np.dtype[Any], shape: tuple[int, ...]) -> bytes:
    buffer = io.BytesIO()
    stated = {"descr": numpy.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
    numpy.lib.format.write_array_header_1_0(buffer, stated)
    return buffer.getvalue()


def npy_array(data: memoryview | bytes) -> npt.NDArray[Any]:
    """The array of a .npy file, as one of its own. Raises ValueError if it is not one, or holds objects."""
    begin = _begin(data)
    header = _header(bytes(data[:begin]), begin) if 0 < begin <= min(len(data), _LONGEST) else None
    if header is None:
        file = io.BytesIO(data)
        header = read_npy_header(file)
        begin = file.tell()
    check_npy_header(header, len(data) - begin)
    array: npt.NDArray[Any] = np.ndarray(
        header.shape, header.dtype, data, begin, order="F" if header.fortran_order else "C"
    )
    return array.copy(order="K")


def check_npy_header(header: NpyHeader, nbytes: int) -> None:
    """Raises ValueError for an array whose values are not in the `nbytes` behind its header, or are Python objects.

    An array of 8 TB is stated in 128 bytes. One without values may not be larger in its other axes than an array that
    has some, since each entry of them becomes a list where it is read as one.
    """
    if header.dtype.hasobject:
        raise ValueError("an array of Python objects, which would need pickle; store numbers")
    filled = list(itertools.takewhile(bool, header.shape))
    if header.nbytes > nbytes or math.prod(filled) > max(nbytes, _SMALL):
        raise ValueError(f"not the whole of {header.dtype} {list(header.shape)}")


def read_npy_header(file: BinaryIO) -> NpyHeader:
    """The header at the start of a .npy file, which is then read up to the values. Raises ValueError and OSError."""
    start = file.read(12)
    begin = _begin(start)
    if 0 < begin <= _LONGEST:
        head = start[:begin] + file.read(max(0, begin - len(start)))
        known = _header(head, begin) if len(head) == begin else None
        if known is not None:
            return known
    file.seek(0)
    try:
        return _numpys_header(file)
    except (OSError, ValueError, Warning):  # a warning, where warnings are errors
        raise
    except Exception as error:  # tokenize's of what is no Python; MemoryError and RecursionError of the parser
        raise ValueError(f"its header cannot be parsed ({type(error).__name__})") from error


def _numpys_header(file: BinaryIO) -> NpyHeader:
    """The header as NumPy reads it."""
    version = numpy.lib.format.read_magic(file)
    if version not in ((1, 0), (2, 0), (3, 0)):
        raise ValueError(f"version {version} of the format, which there is not")
    # Version 3 differs in the characters that names of fields may have, and numbers have none.
    read = numpy.lib.format.read_array_header_1_0 if version == (1, 0) else numpy.lib.format.read_array_header_2_0
    shape, fortran_order, dtype = read(file)
    if any(isinstance(count, bool) or count < 0 for count in shape):
        raise ValueError(f"an array of shape {shape}")
    return NpyHeader(dtype, shape, fortran_order)


def _begin(data: memoryview | bytes) -> int:
    """Where the values begin, in bytes; 0 where no version of the format is stated."""
    length = _LENGTHS.get(bytes(data[6:8]), 0) if data[:6] == MAGIC else 0
    return 8 + length + int.from_bytes(data[8 : 8 + length], "little") if length else 0


@lru_cache(_KNOWN)
def _header(head: bytes, begin: int) -> NpyHeader | None:
    """What a header states; None where NumPy is to read it."""
    found = _HEADER.fullmatch(head, 8 + _LENGTHS[head[6:8]], begin)
    if found is None:
        return None
    descr, fortran_order, shape = found.groups()
    try:
        dtype = np.dtype(descr.decode())
    except TypeError:
        return None
    return NpyHeader(dtype, tuple(int(count) for count in shape.split(b",") if count), fortran_order == b"True")
