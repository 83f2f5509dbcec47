"""Multi-band images: TIFF files and .npy arrays -> arrays [C, H, W], as they are stored.

TIFFs are read by tifffile, of the extra `tiff`: Pillow keeps 8 bits of several channels, and no more than four of them.
"""

import importlib.util
import io
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fastimg.loaders.errors import ImageError

MISSING = "TIFF files of several bands are read by tifffile, which is not installed; pip install 'fastimg[tiff]'"
_EXTENSIONS = (".tif", ".tiff")


def is_tiff(name: str) -> bool:
    """Whether a file's name is a TIFF's."""
    return name.lower().endswith(_EXTENSIONS)


def is_bands(name: str) -> bool:
    """Whether a file of this name may hold bands."""
    return is_tiff(name) or name.lower().endswith(".npy")


def read_bands(content: bytes | Path, name: str) -> npt.NDArray[Any]:
    """The array [C, H, W] in a TIFF or .npy file, of the type in which it is stored.

    In a TIFF the bands may be pages, planes, or samples of a pixel; an array [H, W] is one band. Raises ImageError.
    """
    array = _tiff(content) if is_tiff(name) else _npy(content)
    if array.ndim == 2:
        array = array[None]
    if array.ndim != 3 or array.dtype.kind not in "iuf" or 0 in array.shape:
        raise ImageError(f"{array.dtype} {list(array.shape)} is no image of bands; give numbers, [C, H, W]")
    return array


def _npy(content: bytes | Path) -> npt.NDArray[Any]:
    try:
        array: npt.NDArray[Any] = np.load(io.BytesIO(content) if isinstance(content, bytes) else content)
    except (OSError, ValueError, EOFError) as error:
        raise ImageError(f"cannot be read ({getattr(error, 'strerror', None) or error})") from error
    return array


def _tiff(content: bytes | Path) -> npt.NDArray[Any]:
    if importlib.util.find_spec("tifffile") is None:
        raise ImageError(MISSING)
    import tifffile  # an extra

    try:
        with tifffile.TiffFile(io.BytesIO(content) if isinstance(content, bytes) else content) as file:
            series = file.series[0]
            axes, array = series.axes, series.asarray()
    except (OSError, ValueError, RuntimeError, LookupError, TypeError, tifffile.TiffFileError) as error:
        reason = getattr(error, "strerror", None) or (str(error).splitlines() or [""])[0]
        raise ImageError(f"cannot be read by tifffile ({reason})") from error
    others = [axis for axis, size in zip(axes, array.shape, strict=True) if axis not in "YX" and size > 1]
    if len(others) > 1 or "Y" not in axes or "X" not in axes:
        raise ImageError(f"has the axes {axes} {list(array.shape)}, and bands are one of them, beside Y and X")
    order = [axes.index(axis) for axis in axes if axis not in "YX"] + [axes.index("Y"), axes.index("X")]
    moved: npt.NDArray[Any] = array.transpose(order)
    return moved.reshape(-1, *moved.shape[-2:])
