"""The one resampler: bit-equal to torchvision's antialiased uint8 resize of the box, then a cut of the window."""

from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from .crop import Interpolation, Window, reaches_out
from .decode import Pixels, T
from .float_resize import resize_box

_KERNELS = {
    "bilinear": torch.ops.aten._upsample_bilinear2d_aa,
    "bicubic": torch.ops.aten._upsample_bicubic2d_aa,
}


def resample(
    pixels: Pixels, window: Window, interpolation: Interpolation, out: Pixels, fill: int | None = None
) -> None:
    """Write `window` of `pixels` [H, W, C] into `out` [h, w, C], contiguous uint8. The kernels run without the GIL.

    What lies beyond the resized pixels is `fill`; with None they are mirrored there.
    """
    x, y, width, height = window.box
    if reaches_out(window, out.shape[1], out.shape[0]):
        if fill is None:
            _resample_mirrored(pixels, window, interpolation, out)
        else:
            resized = np.empty((window.size[1], window.size[0], out.shape[2]), np.uint8)
            resample(pixels, window._replace(at=(0, 0)), interpolation, resized)
            paste(resized, window, fill, out)
        return
    if window.size == (width, height):  # no filter changes a value
        left, top = x + window.at[0], y + window.at[1]
        out[...] = pixels[top : top + out.shape[0], left : left + out.shape[1]]
        return
    box = pixels[y : y + height, x : x + width]
    if not (_is_packed(box) and box.flags.writeable):  # Pillow's are not: torch warns about what it might write to
        box = box.copy()
    source = torch.from_numpy(box).permute(2, 0, 1).unsqueeze(0)  # [1, C, h, w], channels-last
    kernel = _KERNELS[interpolation]
    size = [window.size[1], window.size[0]]
    if size == [out.shape[0], out.shape[1]]:
        kernel.out(source, size, False, None, None, out=torch.from_numpy(out).permute(2, 0, 1).unsqueeze(0))
        return
    resized = kernel(source, size, False, None, None)
    left, top = window.at
    cut = resized[0, :, top : top + out.shape[0], left : left + out.shape[1]]
    torch.from_numpy(out).permute(2, 0, 1).copy_(cut)


def _is_packed(pixels: npt.NDArray[Any]) -> bool:
    """Whether the strides of `pixels` [H, W, C] are those of its shape, also of axes of length 1.

    NumPy and torch call an array contiguous whatever those are. A turned column of gray pixels has the strides
    (1, H, 1), and torch's resize of uint8 takes the second for the bytes of a row, and reads beyond the end.
    """
    _, width, channels = pixels.shape
    return pixels.strides == (width * channels * pixels.itemsize, channels * pixels.itemsize, pixels.itemsize)


def paste(resized: npt.NDArray[T], window: Window, fill: int, out: npt.NDArray[T]) -> None:
    """Write what `window` shows of what was resized [h, w, C] into `out` [H, W, C], and `fill` around it."""
    left, top = window.at
    rows = slice(max(top, 0), max(top + out.shape[0], 0))
    columns = slice(max(left, 0), max(left + out.shape[1], 0))
    shown = resized[rows, columns]
    out[...] = fill
    first, begin = max(-top, 0), max(-left, 0)
    out[first : first + shown.shape[0], begin : begin + shown.shape[1]] = shown


def resample_deep(
    pixels: npt.NDArray[T], window: Window, interpolation: Interpolation, out: npt.NDArray[T], fill: int | None = None
) -> None:
    """`resample` of other types [H, W, C]: torchvision's resize of the box, and a cut.

    It is computed in float32, or in float64 for types of more than 16 bits, and rounded to whole numbers where they
    are. A box that keeps its size keeps its values.
    """
    x, y, width, height = window.box
    resized = pixels[y : y + height, x : x + width]
    if window.size != (width, height):
        inside = not reaches_out(window, out.shape[1], out.shape[0])
        if inside and resize_box(resized, window.size, window.at, interpolation, out):
            return
        resized = _resized_deep(resized, window.size, interpolation, out.dtype)
    left, top = window.at
    if fill is not None:
        paste(resized, window, fill, out)
        return
    if not reaches_out(window, out.shape[1], out.shape[0]):
        out[...] = resized[top : top + out.shape[0], left : left + out.shape[1]]
        return
    rows = mirrored(top, out.shape[0], len(resized))
    columns = mirrored(left, out.shape[1], resized.shape[1])
    out[...] = resized[rows[:, None], columns]


def _resized_deep(
    box: npt.NDArray[T], size: tuple[int, int], interpolation: Interpolation, dtype: np.dtype[T]
) -> npt.NDArray[T]:
    """`box` [h, w, C] resized by torch to `size` (width, height)."""
    wide = np.float64 if dtype.itemsize > 2 and dtype != np.float32 else np.float32
    kept = box.astype(wide, order="K")  # planes stay planes: interleaving them saves nothing
    source = torch.from_numpy(kept).permute(2, 0, 1).unsqueeze(0)
    levels = _KERNELS[interpolation](source, [size[1], size[0]], False, None, None)
    values: npt.NDArray[Any] = levels[0].permute(1, 2, 0).numpy()
    if dtype.kind in "iu":
        limits = np.iinfo(dtype.name)
        values = np.rint(values).clip(limits.min, limits.max)
    made: npt.NDArray[T] = values.astype(dtype)
    return made


def mirrored(begin: int, count: int, n: int) -> npt.NDArray[np.int64]:
    """Places `begin` to `begin + count` along an axis of `n` pixels; beyond its ends it is mirrored about the last."""
    inside = np.abs(np.arange(begin, begin + count))
    places: npt.NDArray[np.int64] = n - 1 - np.abs(n - 1 - inside)
    return places


def _resample_mirrored(pixels: Pixels, window: Window, interpolation: Interpolation, out: Pixels) -> None:
    x, y, width, height = window.box
    resized = pixels[y : y + height, x : x + width]
    if window.size != (width, height):
        resized = np.empty((window.size[1], window.size[0], out.shape[2]), np.uint8)
        resample(pixels, window._replace(at=(0, 0)), interpolation, resized)
    left, top = window.at
    rows = mirrored(top, out.shape[0], len(resized))
    columns = mirrored(left, out.shape[1], resized.shape[1])
    out[...] = resized[rows[:, None], columns]
