"""Turning a JPEG upright without decoding it: what `jpegtran -perfect` does, by the EXIF orientation.

A flip negates the odd frequencies of its axis and reverses the blocks; a transposition transposes blocks, coefficients
and quantisation tables. The quantised coefficients are the original's: turning back gives them back.
"""

import struct
from typing import Any

import numpy as np

from .coefficients import Plane, planes
from .compiled import compiled
from .decode import MAX_PIXELS, read_header
from .entropy import ZIGZAG
from .errors import ImageError
from .jpeg import DQT, Frame, Parser, Segment, Untileable
from .tiles import DEFAULT_TILE_PX, interleaved

_APP1 = 0xE1
_ORIENTATION = 0x0112
_TRANSPOSED, _FLIPPED_X, _FLIPPED_Y = (5, 6, 7, 8), (2, 3, 6, 7), (3, 4, 7, 8)  # in this order, as decode.upright

_ACROSS = np.array([ZIGZAG.index((c, r)) for r, c in ZIGZAG])  # where a coefficient's transposed one stands
_ROWS, _COLUMNS = np.array(ZIGZAG).T


def upright_jpeg(jpeg: bytes, width_px: int = DEFAULT_TILE_PX, max_pixels: int = MAX_PIXELS) -> bytes | None:
    """The JPEG with its EXIF orientation undone in its coefficients and set to 1, tiled; itself where it is 1 already.

    None where that is not possible without loss: an incomplete MCU would come to the left or to the top; 4:1:1 lying
    on its side, which simplejpeg does not know; or what `tile` does not understand.

    The planes are the original's turned, exactly; decoded pixels differ by rounding. A vertical flip (orientation 4) of
    anything but 4:4:0 is equal bit for bit. Else islow, which rounds between its two passes, was seen to give gray that
    is 1 level off, and with conversion to RGB and fancy upsampling up to 4 of 255, in 4 to 8 % of the pixels (298 turns
    of photographs; noise of every sampling).

    All other parts are kept but what `tile` leaves out; an EXIF thumbnail and XMP stay as they are.
    """
    try:
        header = read_header(jpeg, max_pixels)
        if header.format != "jpeg" or header.orientation == 1:
            return jpeg if header.format == "jpeg" else None
        parser = Parser(memoryview(jpeg))
        found = planes(np.frombuffer(jpeg, np.uint8), parser, max_pixels)
        assert parser.frame is not None
        frame = _turned(parser.frame, header.orientation)
        flips = header.orientation in _FLIPPED_X, header.orientation in _FLIPPED_Y
        sizes = ((frame.width, frame.mcu_size[0]), (frame.height, frame.mcu_size[1]))
        if any(flip and size % unit for flip, (size, unit) in zip(flips, sizes, strict=True)):
            return None
        parser.head = [_segment(s, parser.frame, frame, header.orientation) for s in parser.head]
        out = interleaved(parser, frame, turned(found, header.orientation), width_px, costly=True)
        now = read_header(out, max_pixels)
    except (ImageError, Untileable):
        return None
    if now.orientation != 1 or now.size != header.size or now.turbo != header.turbo:
        return None
    return out


def turned(found: list[Plane], orientation: int) -> list[Plane]:
    """Blocks [rows, columns, 64] in zigzag order with an EXIF orientation undone."""
    transposed, flip_x, flip_y = (orientation in kinds for kinds in (_TRANSPOSED, _FLIPPED_X, _FLIPPED_Y))
    order = _ACROSS if transposed else np.arange(64)
    signs = np.where(flip_x & _COLUMNS ^ flip_y & _ROWS & 1, -1, 1).astype(np.int16)
    result = []
    for plane in found:
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


def _turned(frame: Frame, orientation: int) -> Frame:
    if orientation not in _TRANSPOSED:
        return frame
    components = tuple(c._replace(h=c.v, v=c.h) for c in frame.components)
    return frame._replace(width=frame.height, height=frame.width, components=components)


def _segment(segment: Segment, before: Frame, frame: Frame, orientation: int) -> Segment:
    """As it has to be in the upright file."""
    marker, body = segment
    if marker == before.marker:
        factors = b"".join(bytes((c.id, c.h << 4 | c.v, c.quantisation)) for c in frame.components)
        body = struct.pack(">BHHB", body[0], frame.height, frame.width, body[5]) + factors
    elif marker == DQT and orientation in _TRANSPOSED:
        body = _transposed_tables(body)
    elif marker == _APP1 and body[:6] == b"Exif\0\0":
        body = body[:6] + _oriented(body[6:])
    return Segment(marker, body)


def _transposed_tables(dqt: bytes) -> bytes:
    out, at = b"", 0
    while at < len(dqt):
        kind = np.dtype(np.uint8 if dqt[at] < 16 else np.uint16)
        table = np.frombuffer(dqt, kind, 64, at + 1)
        out += dqt[at : at + 1] + table[_ACROSS].tobytes()
        at += 1 + 64 * kind.itemsize
    return out


def _oriented(tiff: bytes) -> bytes:
    """A TIFF block whose IFD0 says orientation 1, changed in place."""
    order = {b"II": "<", b"MM": ">"}.get(tiff[:2])
    if order is None or len(tiff) < 8:
        return tiff
    (ifd,) = struct.unpack_from(order + "I", tiff, 4)
    if ifd + 2 > len(tiff):
        return tiff
    (entries,) = struct.unpack_from(order + "H", tiff, ifd)
    out = bytearray(tiff)
    for at in range(ifd + 2, min(ifd + 2 + 12 * entries, len(tiff) - 11), 12):
        tag, kind, count = struct.unpack_from(order + "HHI", tiff, at)
        if tag == _ORIENTATION and kind in (3, 4) and count == 1:
            struct.pack_into(order + ("H" if kind == 3 else "I"), out, at + 8, 1)
    return bytes(out)
