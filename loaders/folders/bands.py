"""Multi-band images: TIFF files and .npy arrays -> arrays [C, H, W], as they are stored.

TIFFs are read by tifffile, of the extra `tiff`: Pillow keeps 8 bits of several channels, and no more than four of them.
"""

import importlib.util
import io
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from fastimg.loaders.containers.npy import MAGIC, npy_array, read_npy_header
from fastimg.loaders.errors import ImageError

MISSING = "TIFF files of several bands are read by tifffile, which is not installed; pip install 'fastimg[tiff]'"
BANDS = frozenset((".npy", ".tif", ".tiff"))  # extensions
_TIFF = (".tif", ".tiff")


def is_tiff(name: str) -> bool:
    """Whether a file's name is a TIFF's."""
    return name.lower().endswith(_TIFF)


def is_bands(name: str) -> bool:
    """Whether a file of this name may hold bands."""
    return is_tiff(name) or name.lower().endswith(".npy")


def read_bands(content: bytes | Path, name: str) -> npt.NDArray[Any]:
    """The array [C, H, W] in a TIFF or .npy file, of the type in which it is stored.

    In a TIFF the bands may be pages, planes, or samples of a pixel; an array [H, W] is one band. Raises ImageError.
    """
    array: npt.NDArray[Any]
    if is_tiff(name):
        with _series(content) as series:
            axes, array = series.axes, series.asarray()
        array = array.transpose(_order(axes, array.shape))
        array = array.reshape(-1, *array.shape[-2:])
    else:
        array = _npy(content)
    return array.reshape(_shaped(array.shape, array.dtype))


def bands_head(file: Path | BinaryIO, name: str) -> tuple[tuple[int, int, int], str]:
    """The shape [C, H, W] and the type of the array in a TIFF or .npy file, without its values. Raises ImageError."""
    if not is_tiff(name):
        try:
            found, kind = npy_head(file, name)
        except (OSError, ValueError) as error:
            raise ImageError(f"cannot be read ({getattr(error, 'strerror', None) or error})") from error
        return _shaped(found, kind), kind.name
    with _series(file) as series:
        axes, shape, dtype = series.axes, series.shape, np.dtype(series.dtype)
    *others, height, width = (shape[place] for place in _order(axes, shape))
    return _shaped((int(np.prod(others, dtype=np.int64)), height, width), dtype), dtype.name


def npy_head(file: Path | BinaryIO, name: str) -> tuple[tuple[int, ...], np.dtype[Any]]:
    """The shape and the type of the array in an .npy file, which is long enough for it. Raises OSError, ValueError."""
    if isinstance(file, Path):
        with file.open("rb") as opened:
            return npy_head(opened, name)
    header = read_npy_header(file)
    begin = file.tell()
    if header.dtype.hasobject or file.seek(0, io.SEEK_END) - begin < header.nbytes:
        raise ValueError(f"not the whole of {header.dtype} {list(header.shape)}")
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
        array: npt.NDArray[Any] = npy_array(content) if content.startswith(MAGIC) else np.load(io.BytesIO(content))
    except (OSError, ValueError, EOFError) as error:
        raise ImageError(f"cannot be read ({getattr(error, 'strerror', None) or error})") from error
    if not isinstance(array, np.ndarray):  # an archive of several
        raise ImageError("cannot be read (an .npz of several arrays)")
    return array


@contextmanager
def _series(content: bytes | Path | BinaryIO) -> Iterator[Any]:
    """The first series of a TIFF, within which it may be read. Raises ImageError."""
    if importlib.util.find_spec("tifffile") is None:
        raise ImageError(MISSING)
    import tifffile  # an extra

    try:
        with tifffile.TiffFile(io.BytesIO(content) if isinstance(content, bytes) else content) as file:
            yield file.series[0]
    except (OSError, ValueError, RuntimeError, LookupError, TypeError, tifffile.TiffFileError) as error:
        reason = getattr(error, "strerror", None) or (str(error).splitlines() or [""])[0]
        raise ImageError(f"cannot be read by tifffile ({reason})") from error


def _order(axes: str, shape: Sequence[int]) -> list[int]:
    """The axes with Y and X as the last two. Raises ImageError where several others have more than one entry."""
    others = [axis for axis, size in zip(axes, shape, strict=True) if axis not in "YX" and size > 1]
    if len(others) > 1 or "Y" not in axes or "X" not in axes:
        raise ImageError(f"has the axes {axes} {list(shape)}, and bands are one of them, beside Y and X")
    return [place for place, axis in enumerate(axes) if axis not in "YX"] + [axes.index("Y"), axes.index("X")]
