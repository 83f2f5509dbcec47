"""Turning a JPEG upright by its EXIF orientation without decoding it, like `jpegtran -perfect`.

A flip negates the odd frequencies of its axis and reverses the blocks; a transposition transposes blocks, coefficients
and quantisation tables. No coefficient changes otherwise, so the turn can be reversed exactly.
"""

from typing import Any

import numpy as np

from fastimg.loaders.decode import MAX_PIXELS, read_header
from fastimg.loaders.errors import ImageError
from fastimg.loaders.jpeg.decoding.entropy.symbols import ZIGZAG
from fastimg.loaders.jpeg.decoding.frame import EXIF, SOS, new_header, parse_segment, view_of
from fastimg.loaders.jpeg.exif import Turn, clear_orientation, turn_of
from fastimg.loaders.runtime.compiled import compiled

from .coefficients import Plane, planes
from .markers import Parser, Untileable
from .tiles import DEFAULT_TILE_PX, interleaved

_ACROSS = np.array([ZIGZAG.index((c, r)) for r, c in ZIGZAG])  # index of each coefficient after transposition
_ROWS, _COLUMNS = np.array(ZIGZAG).T


def upright_jpeg(jpeg: bytes, width_px: int = DEFAULT_TILE_PX, max_pixels: int = MAX_PIXELS) -> bytes | None:
    """The JPEG tiled, with its EXIF orientation applied to the coefficients and set to 1; itself if it is upright.

    Returns None if that is not possible without loss: an incomplete MCU would move to the left or to the top, a turned
    4:1:1 would have a sampling that simplejpeg does not support, or `tile` does not understand the file.

    The turned coefficients are exact; decoded pixels differ by rounding. A vertical flip (orientation 4) of anything
    but 4:4:0 gives equal bits. Otherwise the islow DCT, which rounds between its two passes, gave gray values that are
    1 level off, and up to 4 of 255 with conversion to RGB and fancy upsampling, in 4 to 8 % of the pixels (298 turns of
    photographs; noise of every sampling).

    Everything that `tile` keeps is kept; an EXIF thumbnail and XMP are not changed.
    """
    try:
        header = read_header(jpeg, max_pixels)
        if header.format != "jpeg" or header.orientation == 1:
            return jpeg if header.format == "jpeg" else None
        turn = turn_of(header.orientation)
        parser = Parser(memoryview(jpeg))
        coefficients = planes(parser, max_pixels)
        upright = Parser(memoryview(_turned_header(jpeg, turn)))
        next(upright.scans())
        frame = upright.frame
        if (turn.flip_x and frame.width % frame.mcu_size[0]) or (turn.flip_y and frame.height % frame.mcu_size[1]):
            return None
        upright.tail = parser.tail
        out = interleaved(upright, turned(coefficients, header.orientation), width_px, costly=True)
        result = read_header(out, max_pixels)
    except (ImageError, Untileable):
        return None
    if result.orientation != 1 or result.size != header.size or result.turbo != header.turbo:
        return None
    return out


def turned(coefficients: list[Plane], orientation: int) -> list[Plane]:
    """Blocks [rows, columns, 64] in zigzag order, turned upright from an EXIF orientation."""
    transposed, flip_x, flip_y = turn_of(orientation)
    order = _ACROSS if transposed else np.arange(64)
    signs = np.where(flip_x & _COLUMNS ^ flip_y & _ROWS & 1, -1, 1).astype(np.int16)
    result = []
    for plane in coefficients:
        rows, columns, _ = plane.shape
        out = np.empty((columns, rows, 64) if transposed else plane.shape, np.int16)
        _turn(plane, transposed, flip_x, flip_y, order, signs, out)
        result.append(out)
    return result


@compiled
def _turn(plane: Any, transposed: bool, flip_x: bool, flip_y: bool, order: Any, signs: Any, out: Any) -> None:
    rows, columns, _ = out.shape
    for row in range(rows):
        for column in range(columns):
            y = rows - 1 - row if flip_y else row
            x = columns - 1 - column if flip_x else column
            source = plane[x, y] if transposed else plane[y, x]
            for k in range(64):
                out[row, column, k] = source[order[k]] * signs[k]


def _turned_header(jpeg: bytes, turn: Turn) -> bytearray:
    """The bytes before the first scan's data with the size, sampling factors, tables and EXIF of the upright file."""
    out = bytearray(jpeg)
    data = np.frombuffer(out, np.uint8)
    view = view_of(out)
    headers = new_header()
    header = headers[0]
    header["offset"] = 2
    marker = None
    while marker != SOS:
        marker = parse_segment(view, headers)
        assert marker, "its coefficients have been read"
        if marker == EXIF:
            clear_orientation(data, header["body"], header["offset"])
    if turn.transposed:
        size = data[header["sof_body"] + 1 :][:4]
        size[:] = np.roll(size, 2)
        factors = data[header["sof_body"] + 7 :][: 3 * header["components"] : 3]
        factors[:] = factors >> 4 | factors << 4
        for begin, wide in zip(header["quantisers"].tolist(), header["wide"].tolist(), strict=True):
            if begin:
                table = np.frombuffer(out, np.uint16 if wide else np.uint8, 64, begin)
                table[:] = table[_ACROSS]
    return out[: header["offset"]]
