"""Masks as they are stored: gray PNGs of 8 or 16 bits, whose pixels are numbers of classes or of objects.

A gray PNG of 8 or 16 bits keeps its bytes. A palette is replaced by its indices, since most decoders would give its
colours; other depths and lossless formats are encoded anew, with the same numbers.
"""

import io

import numpy as np
import numpy.typing as npt
from PIL import Image

from fastimg.loaders.errors import ImageError, image_faults
from fastimg.loaders.jpeg.exif import turn_of
from fastimg.loaders.opening import MAX_PIXELS, open_image

_SHALLOW = {2: 85, 4: 17}  # by bits: what Pillow multiplies gray values with, to make them 8 bits
_GRAY = 0  # PNG's colour type


def mask_size(data: bytes, most: int = MAX_PIXELS) -> tuple[int, int]:
    """(width, height) of an encoded mask of up to `most` pixels. Raises ValueError."""
    try:
        with open_image(data, most) as image:
            return image.size
    except ImageError as error:
        raise ValueError(f"not an image that can be decoded ({error})") from error


def mask_png(data: bytes, orientation: int = 1, most: int = MAX_PIXELS) -> bytes:
    """The mask, of up to `most` pixels, as it is stored: turned upright by the EXIF `orientation` of its image.

    Raises ValueError.
    """
    try:
        with image_faults(), open_image(data, most) as image:
            kept = image.format == "PNG" and image.mode in ("L", "I;16") and not _shallow(data) and orientation == 1
            numbers = _numbers(image, data)
    except ImageError as error:
        told = type(error.__cause__) is ValueError  # by `_numbers`, which says what is wrong
        raise ValueError(str(error) if told else f"it cannot be decoded ({error})") from error
    return data if kept else encoded_mask(numbers, orientation)


def encoded_mask(numbers: npt.NDArray[np.uint8 | np.uint16], orientation: int = 1) -> bytes:
    """Numbers [H, W] as a mask is stored, turned upright by the EXIF `orientation` of its image."""
    buffer = io.BytesIO()
    turn = turn_of(orientation)
    numbers = numbers.T if turn.transposed else numbers
    turned = numbers[:: -1 if turn.flip_y else 1, :: -1 if turn.flip_x else 1]
    Image.fromarray(np.ascontiguousarray(turned)).save(buffer, "PNG")
    return buffer.getvalue()


def png_depth(data: bytes) -> int:
    """Bits per sample of a PNG."""
    return data[24]


def _shallow(data: bytes) -> int:
    """What Pillow multiplied the values of a gray PNG of 2 or 4 bits with; 0 for any other PNG."""
    return _SHALLOW.get(png_depth(data), 0) if data[25] == _GRAY else 0


def _numbers(image: Image.Image, data: bytes) -> npt.NDArray[np.uint8 | np.uint16]:
    """The pixels [H, W] of an opened mask as uint8 or uint16. Raises ValueError, and what Pillow raises."""
    if image.format in ("JPEG", "MPO"):
        raise ValueError("a JPEG, whose pixels are not exact; save masks as PNG")
    if image.format == "PNG" and png_depth(data) == 16 and data[25] != _GRAY:
        raise ValueError("16 bits per channel, of which only 8 could be read; save masks as gray")
    pixels = np.asarray(image)
    if pixels.ndim == 3:
        colours = pixels[:, :, : 1 if image.mode == "LA" else 3]
        if (colours != colours[:, :, :1]).any():
            raise ValueError("a mask of colours; give one number per pixel, as gray or with a palette")
        pixels = colours[:, :, 0]
    if pixels.dtype == np.bool_:
        return pixels.astype(np.uint8)
    if pixels.dtype.kind == "f" or pixels.min(initial=0) < 0 or pixels.max(initial=0) > 65_535:
        raise ValueError("numbers that are not whole, or do not fit in 16 bits")
    if image.format == "PNG" and (factor := _shallow(data)):
        return (pixels // factor).astype(np.uint8)
    return pixels.astype(np.uint8 if pixels.dtype == np.uint8 else np.uint16)
