"""A part of a WebP's pixels by libwebp, the one that Pillow uses, without the GIL.

Pillow's module for WebP depends on the library, whose functions are found through it where the system's linker looks
into what a library depends on, as on Linux and macOS, and where Pillow is not linked with it statically. Elsewhere
there is no such decoder, and Pillow decodes.
"""

import ctypes
import functools
from typing import Any

import numpy as np
import numpy.typing as npt
from llvmlite import ir
from numba import types

from fastimg.loaders.jpeg.decoding.vectors import I8, I32, I64, intrinsic
from fastimg.loaders.runtime.compiled import compiled, int64

Box = tuple[int, int, int, int]  # x, y, width, height

_ABI = 0x0209  # the version of the struct below (src/webp/decode.h)

# WebPDecoderConfig, of which what is not named is 0: RGB without scaling, filters and upsampling as they should be.
CONFIG = np.dtype(
    {
        "names": ["external", "pixels", "pitch", "room", "cropped", "x", "y", "width", "height"],
        "formats": [np.int32, np.int64, np.int32, np.int64, *[np.int32] * 5],
        "offsets": [52, 56, 64, 72, 168, 172, 176, 180, 184],
        "itemsize": 240,
    }
)


@functools.cache
def webp_decoder() -> int:
    """The address of libwebp's WebPDecode; 0 where it is not found, or has another struct."""
    try:
        from PIL import _webp

        library = ctypes.CDLL(_webp.__file__)
        decode, initialise = library.WebPDecode, library.WebPInitDecoderConfigInternal
    except (ImportError, OSError, AttributeError):
        return 0
    room = np.full(2 * CONFIG.itemsize, 0xFF, np.uint8)
    known = initialise(ctypes.c_void_p(room.ctypes.data), _ABI)
    if not known or room[: CONFIG.itemsize].any() or not (room[CONFIG.itemsize :] == 0xFF).all():
        return 0
    return ctypes.cast(decode, ctypes.c_void_p).value or 0


def _around(picture_width: int, picture_height: int, x: int, y: int, width: int, height: int) -> Box:
    """The part of a picture that a box depends on.

    A pixel's colours depend on those of its neighbours, as one sample of them stands for two pixels, of which the first
    is an even one.
    """
    left, top = max(x - 1, 0) & ~1, max(y - 1, 0) & ~1
    return left, top, min(x + width + 1, picture_width) - left, min(y + height + 1, picture_height) - top


around = compiled(_around)


@compiled
def decode_part(decoder: int, data: int, nbytes: int, part: Any, configs: Any, to: int) -> bool:
    """Decode a part as RGB, from the content of a chunk to an address; False if libwebp refuses it.

    `part` is of `around`, and `configs` [1] is the memory for what libwebp is told.
    """
    config = configs[0]
    config.external, config.cropped, config.pixels = 1, 1, to
    config.x, config.y, config.width, config.height = part
    config.pitch, config.room = 3 * part[2], 3 * part[2] * part[3]
    return bool(_call(decoder, data, nbytes, int64(configs.ctypes.data)) == 0)


def decode_box_alone(
    data: bytes | memoryview, size: tuple[int, int], box: Box
) -> tuple[npt.NDArray[np.uint8], tuple[int, int]] | None:
    """The pixels [h, w, 3] that hold a box (x, y, width, height) of a WebP, and (x, y) of the box in them.

    This is `decode_part` without compiled code. None if there is no such decoder, or it refuses the pixels. `size` is
    (width, height) of the picture, whose chunks are known to be whole.
    """
    decoder, content = webp_decoder(), _content(memoryview(data))
    if not decoder or content is None:
        return None
    x, y, width, height = _around(*size, *box)
    pixels = np.empty((height, width, 3), np.uint8)
    config = np.zeros(1, CONFIG)  # what has no name is 0
    config[0] = (1, pixels.ctypes.data, 3 * width, pixels.nbytes, 1, x, y, width, height)
    call = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p)(decoder)
    if call(content.ctypes.data, content.size, config.ctypes.data):
        return None
    return pixels, (box[0] - x, box[1] - y)


def _content(view: memoryview) -> npt.NDArray[np.uint8] | None:
    """What is in the chunk of pixels; None of an animation, which has several."""
    at = 12
    while at + 8 <= len(view):
        length = int.from_bytes(view[at + 4 : at + 8], "little")
        if bytes(view[at : at + 4]) in (b"VP8 ", b"VP8L"):
            return np.frombuffer(view[at + 8 : at + 8 + length], np.uint8)
        at += 8 + length + length % 2
    return None


@intrinsic
def _call(_: Any, function: Any, data: Any, nbytes: Any, config: Any) -> Any:
    """`WebPDecode` at an address."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer = I8.as_pointer()
        kind = ir.FunctionType(I32, (pointer, I64, pointer)).as_pointer()
        function, data, nbytes, config = arguments
        places = builder.inttoptr(data, pointer), nbytes, builder.inttoptr(config, pointer)
        return builder.sext(builder.call(builder.inttoptr(function, kind), places), I64)

    return types.int64(types.int64, types.int64, types.int64, types.int64), generate
