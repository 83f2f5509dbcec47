"""PNG files of 16 bits -> their pixels: Pillow keeps 8 bits of colours (PNG, 3rd edition, 9 and 11.2).

Chunks are found in Python, zlib inflates them, and the filters of rows are undone in compiled code. Interlaced files
are refused.
"""

import struct
import zlib
from typing import Any

import numpy as np
import numpy.typing as npt

from fastimg.loaders.errors import ImageError
from fastimg.loaders.runtime.compiled import compiled

_PIECE = 1 << 16  # bytes that are inflated at a time, and of the result
_CHANNELS = {0: 1, 2: 3, 4: 2, 6: 4}  # by colour type


def read_deep_png(data: bytes | memoryview) -> npt.NDArray[np.uint16]:
    """The pixels [H, W, C] of a PNG of 16 bits, alpha included, as they are stored: big-endian, with gaps between rows.

    The memory is that of the inflated rows, and no more. Raises ImageError for one that is damaged.
    """
    try:
        width, height, depth, kind, _, _, interlaced = struct.unpack_from(">IIBBBBB", data, 16)
        channels = _CHANNELS[kind]
    except (struct.error, KeyError) as error:
        raise ImageError("a PNG without a valid header") from error
    if depth != 16 or interlaced:
        raise ImageError("an interlaced PNG of 16 bits; save it without interlacing")
    stride = 2 * channels * width
    view = memoryview(data)
    parts, offset = [], 8
    while offset + 8 <= len(data):
        size = int.from_bytes(data[offset : offset + 4], "big")
        if bytes(data[offset + 4 : offset + 8]) == b"IDAT":
            parts.append(view[offset + 8 : offset + 8 + size])
        offset += 12 + size
    rows = np.empty((height, stride + 1), np.uint8)
    _inflate(parts, rows.reshape(-1))
    if not _unfilter(rows, 2 * channels):
        raise ImageError("a PNG with a filter that there is not")
    return np.ndarray((height, width, channels), ">u2", rows.data, 1, (stride + 1, 2 * channels, 2))


def _inflate(parts: list[memoryview], out: npt.NDArray[np.uint8]) -> None:
    """Inflate a PNG's pixels, which `out` is as long as. Raises ImageError for others."""
    inflating = zlib.decompressobj()
    at = 0
    try:
        for part in parts:
            for begin in range(0, len(part), _PIECE):
                left: bytes | memoryview = part[begin : begin + _PIECE]
                while len(left) and not inflating.eof:  # the end has a checksum
                    piece = inflating.decompress(left, _PIECE)
                    if at + len(piece) > out.size:
                        raise ImageError("a PNG that ends after its last row")
                    out[at : at + len(piece)] = np.frombuffer(piece, np.uint8)
                    at += len(piece)
                    left = inflating.unconsumed_tail
        last = inflating.flush()  # up to one match of zlib's, which the last call had no room for
    except zlib.error as error:
        raise ImageError(f"a PNG whose pixels are damaged ({error})") from error
    if at + len(last) <= out.size:
        out[at : at + len(last)] = np.frombuffer(last, np.uint8)
    at += len(last)
    if at != out.size or not inflating.eof:
        raise ImageError("a PNG that ends before its last row")


@compiled
def _unfilter(rows: Any, step: int) -> bool:
    """Undo the filters of rows [H, 1 + bytes], in place; a pixel has `step` bytes. False for an unknown filter."""
    height, length = rows.shape
    for y in range(height):
        kind = rows[y, 0]
        if kind > 4:
            return False
        for x in range(1, length):
            left = int(rows[y, x - step]) if x > step else 0
            above = int(rows[y - 1, x]) if y else 0
            guess = 0
            if kind == 1:
                guess = left
            elif kind == 2:
                guess = above
            elif kind == 3:
                guess = (left + above) // 2
            elif kind == 4:
                corner = int(rows[y - 1, x - step]) if y and x > step else 0
                by_left, by_above, by_corner = abs(above - corner), abs(left - corner), abs(left + above - 2 * corner)
                guess = corner
                if by_left <= by_above and by_left <= by_corner:
                    guess = left
                elif by_above <= by_corner:
                    guess = above
            rows[y, x] = (int(rows[y, x]) + guess) & 255
    return True
