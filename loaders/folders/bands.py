"""Multi-band images: TIFF files and .npy arrays -> arrays [C, H, W], as they are stored.

TIFFs are read by tifffile, of the extra `tiff`: Pillow keeps 8 bits of several channels, and no more than four of them.
"""

import contextlib
import importlib.util
import io
import math
import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from fastimg.loaders.containers.npy import check_npy_header, npy_array, read_npy_header
from fastimg.loaders.errors import ImageError, first_line
from fastimg.loaders.extras import install
from fastimg.loaders.opening import check_pixels

BANDS = frozenset((".npy", ".tif", ".tiff"))  # extensions
_TIFF = (".tif", ".tiff")
_LAYOUTS = {  # by version, little-endian: the number of entries, an entry (tag, type, count, value), an offset
    b"*\0": ("H", "HHI4s", "I"),
    b"+\0": ("Q", "HHQ8s", "Q"),
}
_SUBIFDS = 330  # TIFF's tag of further directories
_DOUBTED = 1 << 26  # bytes: of larger arrays it is asked whether the file can hold them
_INFLATES = 1100  # bytes that a byte of a file becomes, at most: deflate's 1032


def is_tiff(name: str) -> bool:
    """Whether a file's name is a TIFF's."""
    return name.lower().endswith(_TIFF)


def is_bands(name: str) -> bool:
    """Whether a file of this name may hold bands."""
    return is_tiff(name) or name.lower().endswith(".npy")


def read_bands(content: bytes | Path, name: str, most: int | None = None) -> npt.NDArray[Any]:
    """The array [C, H, W] in a TIFF or .npy file, of the type in which it is stored.

    In a TIFF the bands may be pages, planes, or samples of a pixel; an array [H, W] is one band. Raises ImageError,
    also for more than `most` pixels, where that is given: before they are decoded.
    """
    array: npt.NDArray[Any]
    if is_tiff(name):
        with _series(content) as series:
            axes, stated, shape = series.axes, series.shape, _tiff_shape(series)
            _check_most(shape, most)
            size = len(content) if isinstance(content, bytes) else content.stat().st_size
            if math.prod(shape) * series.dtype.itemsize > max(_DOUBTED, _INFLATES * size):
                raise ImageError(f"states {series.dtype} {list(shape)}, which no file of {size:,} bytes holds")
            array = series.asarray()
        if array.shape != tuple(stated):  # that of its first page alone
            raise ImageError(f"holds {list(array.shape)}, and states {list(stated)}")
        array = array.transpose(_order(axes, array.shape))
        array = array.reshape(-1, *array.shape[-2:])
    else:
        array = _npy(content)
        _check_most(array.shape, most)
    return array.reshape(_shaped(array.shape, array.dtype))


def _check_most(shape: tuple[int, ...], most: int | None) -> None:
    if most is not None and len(shape) >= 2:
        check_pixels(shape[-1], shape[-2], most)


def _tiff_shape(series: Any) -> tuple[int, int, int]:
    """The shape [C, H, W] that a TIFF states."""
    axes, shape, dtype = series.axes, series.shape, np.dtype(series.dtype)
    *others, height, width = (shape[place] for place in _order(axes, shape))
    return _shaped((math.prod(others), height, width), dtype)


def bands_head(file: Path | BinaryIO, name: str) -> tuple[tuple[int, int, int], str]:
    """The shape [C, H, W] and the type of the array in a TIFF or .npy file, without its values. Raises ImageError."""
    if not is_tiff(name):
        try:
            found, kind = npy_head(file, name)
        except (OSError, ValueError) as error:
            raise ImageError(f"cannot be read ({getattr(error, 'strerror', None) or error})") from error
        return _shaped(found, kind), kind.name
    with _series(file) as series:
        return _tiff_shape(series), np.dtype(series.dtype).name


def npy_head(file: Path | BinaryIO, name: str) -> tuple[tuple[int, ...], np.dtype[Any]]:
    """The shape and the type of the array in an .npy file, which is long enough for it. Raises OSError, ValueError."""
    if isinstance(file, Path):
        with file.open("rb") as opened:
            return npy_head(opened, name)
    header = read_npy_header(file)
    begin = file.tell()
    check_npy_header(header, file.seek(0, io.SEEK_END) - begin)
    return header.shape, header.dtype


def _shaped(shape: tuple[int, ...], dtype: np.dtype[Any]) -> tuple[int, int, int]:
    """The shape as [C, H, W]. Raises ImageError where it is no image of bands."""
    if len(shape) == 2:
        shape = (1, *shape)
    if len(shape) != 3 or dtype.kind not in "iuf" or 0 in shape:
        raise ImageError(f"{dtype} {list(shape)} is no image of bands; give numbers, [C, H, W]")
    return shape[0], shape[1], shape[2]


def _npy(content: bytes | Path) -> npt.NDArray[Any]:
    try:
        content = content.read_bytes() if isinstance(content, Path) else content
        if content.startswith(b"PK"):
            raise ImageError("cannot be read (an .npz of several arrays)")
        return npy_array(content)
    except (OSError, ValueError) as error:
        raise ImageError(f"cannot be read ({first_line(error)})") from error


@contextmanager
def _series(content: bytes | Path | BinaryIO) -> Iterator[Any]:
    """The first series of a TIFF, within which it may be read. Raises ImageError."""
    if importlib.util.find_spec("tifffile") is None:
        raise ImageError(
            f"TIFF files of several bands are read by tifffile, which is not installed; `{install('tiff')}`"
        )
    import tifffile  # an extra

    try:
        with contextlib.ExitStack() as stack:
            file = stack.enter_context(content.open("rb")) if isinstance(content, Path) else content
            file = io.BytesIO(file) if isinstance(file, bytes) else file
            check_ifds(file)
            file.seek(0)
            yield stack.enter_context(tifffile.TiffFile(file)).series[0]
    except ImageError:
        raise
    except Exception as error:  # besides tifffile's, those of zlib, lzma and the codecs, and of NumPy
        raise ImageError(f"cannot be read by tifffile ({first_line(error)})") from error


def check_ifds(file: BinaryIO) -> None:
    """Raises ImageError for a TIFF whose directories (IFDs) take more bytes than it has.

    So ends a chain that leads back to an earlier directory, which tifffile does not always notice, and one of
    directories that overlap. TIFF 6.0, section 2; BigTIFF has numbers of 8 bytes.
    """
    size = file.seek(0, io.SEEK_END)
    file.seek(0)
    head = file.read(16)
    order = {b"II": "<", b"MM": ">"}.get(head[:2])
    layout = _LAYOUTS.get(head[2:4] if order == "<" else head[3:1:-1])
    if order is None or layout is None or len(head) < 16:
        return  # tifffile says what it is
    counting, entry, number = (struct.Struct(order + each) for each in layout)
    waiting = [number.unpack_from(head, number.size)[0]]
    room = size
    while waiting:
        if not 0 < (at := waiting.pop()) < size - counting.size:
            continue
        file.seek(at)
        (entries,) = counting.unpack(file.read(counting.size))
        room -= counting.size + entries * entry.size + number.size
        if room < 0:
            raise ImageError("a TIFF whose directories lead in a circle, or overlap")
        body = file.read(entries * entry.size + number.size)
        whole = len(body) // entry.size * entry.size
        for tag, kind, count, value in entry.iter_unpack(body[: min(whole, entries * entry.size)]):
            if tag == _SUBIFDS:
                width = 4 if kind in (4, 13) else 8
                room -= count * width
                if room < 0:
                    raise ImageError("a TIFF whose directories lead in a circle, or overlap")
                if count * width > number.size:
                    file.seek(number.unpack(value)[0])
                    value = file.read(count * width)
                value = value[: min(len(value), count * width) // width * width]
                waiting += [offset for (offset,) in struct.iter_unpack(order + ("I" if width == 4 else "Q"), value)]
        if len(body) == entries * entry.size + number.size:
            waiting += number.unpack_from(body, entries * entry.size)


def _order(axes: str, shape: Sequence[int]) -> list[int]:
    """The axes with Y and X as the last two. Raises ImageError where several others have more than one entry."""
    others = [axis for axis, size in zip(axes, shape, strict=True) if axis not in "YX" and size > 1]
    if len(others) > 1 or "Y" not in axes or "X" not in axes:
        raise ImageError(f"has the axes {axes} {list(shape)}, and bands are one of them, beside Y and X")
    return [place for place, axis in enumerate(axes) if axis not in "YX"] + [axes.index("Y"), axes.index("X")]
