"""Cutting a smaller JPEG out of a tiled one without decoding it: the tiles that a box touches.

    SOI | JFIF and Adobe segments, tables, SOF with the crop's size, DRI, SOS | tiles, RSTn renumbered | EOI

Everything runs in one compiled call without the GIL. A file that is not as `tile` writes it (no restarts, an interval
that does not divide the row, several scans, markers out of order) is returned whole, for the decoder to handle.
"""

from typing import Any

import numpy as np

from fastimg.loaders.jpeg.decoding.frame import (
    ADOBE,
    BASELINE,
    DHT,
    DQT,
    DRI,
    EXTENDED,
    JFIF,
    SOS,
    is_adobe,
    is_jfif,
    is_tiled,
    new_header,
    next_segment,
    parse_header,
    view_of,
)
from fastimg.loaders.jpeg.decoding.region import tiles_around
from fastimg.loaders.runtime.compiled import compiled, may_call

from .huffman import skip

Box = tuple[int, int, int, int]  # x, y, width, height in stored pixels: before any EXIF orientation


def splice(
    jpeg: bytes | bytearray | memoryview, box: Box, buffer: bytearray | None = None
) -> tuple[memoryview, tuple[int, int]]:
    """The JPEG of the tiles that `box` touches, and the stored pixel (x, y) at its upper left.

    Decoding it and cutting out the box, shifted by the offset, gives the same pixels as decoding the whole image. For
    that the box is widened first, because the upsampling of chroma looks past it. A JPEG that is not tiled, or all of
    whose tiles are touched, is returned itself, at (0, 0).

    `buffer`, if given, receives the result and must have at least the size of `jpeg` and two more bytes. Raises
    ValueError for a box that is not inside the image.
    """
    data = view_of(jpeg)
    out = np.frombuffer(buffer, np.uint8) if buffer is not None else np.empty(data.size + 2, np.uint8)
    size, left, top = splice_tiles(data, new_header(), box[0], box[1], box[2], box[3], out)
    if size < 0:
        raise ValueError(f"the box {box} is not inside the image")
    if size == 0:
        return memoryview(jpeg), (0, 0)
    return out.data[:size], (left, top)


def may_splice() -> bool:
    """Whether to splice rather than to decode a whole image: see `may_call`."""
    return may_call(splice_tiles)


def can_splice(jpeg: bytes | bytearray | memoryview) -> bool:
    """Whether the JPEG is tiled from its first tile to its last."""
    return bool(_has_tiles(view_of(jpeg), new_header()))


@compiled
def _has_tiles(data: Any, headers: Any) -> bool:
    if not parse_header(data, headers) or not is_tiled(headers):
        return False
    header = headers[0]
    at = header.offset
    total = _tiles(headers) * -(-header.height // header.mcu_height)
    for tile in range(total):
        if tile:
            if not _is_restart(data, at, tile):
                return False
            at += 2
        at = _next_marker(data, at)
    return bool(at + 2 <= data.size and not 0xD0 <= data[at + 1] <= 0xD7)


@compiled
def _tiles(headers: Any) -> int:
    """Number of tiles in a row."""
    header = headers[0]
    return int(-(-header.width // header.mcu_width) // header.interval)


@compiled
def _next_marker(data: Any, at: int) -> Any:
    """The position of the marker that ends the tile at `at`; the end of the data if there is none."""
    size = data.size
    while True:
        at = skip(data, at)
        if at + 1 >= size:
            return size
        if data[at + 1]:
            return at
        at += 2


@compiled
def _copy(data: Any, begin: int, end: int, out: Any, at: int) -> int:
    """Copy data[begin:end] to `out[at:]`; return where the copy ends, -1 if it does not fit."""
    if at + end - begin > out.size:
        return -1
    source, target = data[begin:end], out[at : at + end - begin]  # views: the loop becomes a copy of whole vectors
    for i in range(end - begin):
        target[i] = source[i]
    return at + end - begin


@compiled
def _is_restart(data: Any, at: int, tile: int) -> bool:
    """Whether the restart marker before tile number `tile` is at `at`."""
    return bool(at + 2 <= data.size and data[at] == 255 and data[at + 1] == 0xD0 | (tile - 1) & 7)


@compiled
def _copy_header(data: Any, headers: Any, width: int, height: int, out: Any) -> int:
    """Write the segments that a decoder needs, with another image size; return their end, -1 if they do not fit."""
    if out.size < 2:
        return -1
    out[0], out[1] = data[0], data[1]
    at, size, marker = 2, 2, 0
    while marker != SOS:
        begin = at
        marker, body, at = next_segment(data, begin)
        if not (
            marker == DQT
            or marker == DHT
            or marker == DRI
            or marker == BASELINE
            or marker == EXTENDED
            or marker == SOS
            or (marker == JFIF and is_jfif(data, body, at))
            or (marker == ADOBE and is_adobe(data, body, at))  # the colour transform
        ):
            continue
        size = _copy(data, begin, at, out, size)
        if size < 0:
            return -1
        if body == headers[0].sof_body:
            sof = size - (at - body)
            out[sof + 1], out[sof + 2] = height >> 8, height & 255
            out[sof + 3], out[sof + 4] = width >> 8, width & 255
    return size


@compiled
def splice_tiles(data: Any, headers: Any, x: int, y: int, width: int, height: int, out: Any) -> tuple[int, int, int]:
    """Write the splice. Returns its size (0: use the whole file; -1: the box is outside the image) and the offset."""
    if not parse_header(data, headers) or not is_tiled(headers):
        return 0, 0, 0
    header = headers[0]
    if x < 0 or y < 0 or width < 1 or height < 1 or x + width > header.width or y + height > header.height:
        return -1, 0, 0
    tiles = _tiles(headers)
    rows = -(-header.height // header.mcu_height)
    tile_width, tile_height = header.interval * header.mcu_width, header.mcu_height
    left, right, top, bottom = tiles_around(
        (x, y, width, height), (header.width, header.height), (tile_width, tile_height)
    )
    if right - left == tiles and bottom - top == rows:
        return 0, 0, 0
    crop_width = min(header.width, right * tile_width) - left * tile_width
    crop_height = min(header.height, bottom * tile_height) - top * tile_height
    size = _copy_header(data, headers, crop_width, crop_height, out)
    if size < 0:
        return 0, 0, 0
    at = header.offset
    written = 0
    for tile in range((bottom - 1) * tiles + right):
        begin = at
        at = _next_marker(data, begin)
        if tile >= top * tiles and left <= tile % tiles < right:
            size = _copy(data, begin, at, out, size)
            if size < 0 or size + 2 > out.size:
                return 0, 0, 0
            out[size], out[size + 1] = 0xFF, 0xD0 | written & 7
            size += 2
            written += 1
        if tile + 1 < tiles * rows:
            if not _is_restart(data, at, tile + 1):
                return 0, 0, 0
            at += 2
    if at + 2 > data.size:  # the last tile was cut short
        return 0, 0, 0
    out[size - 2], out[size - 1] = 0xFF, 0xD9
    return size, left * tile_width, top * tile_height
