"""The index of a tiled JPEG: where each row of tiles begins, and how many bits each block has, as bytes.

    rows + 1 times (uint32 data, uint32 lengths, uint64 check) | lengths

`data` is where a row of tiles begins, counted from the first entropy-coded byte; `lengths` where its blocks' lengths
do, counted from the first length. The last entry is the end of all. A length is a sum of bytes up to the first that is
not 255. It counts all bits from the block's beginning to the next block's, in the file as it is: with stuffed bytes,
and after a tile's last block with padding and the restart marker of two bytes. So lengths of a whole tile are a
multiple of 8 bits. `check` is made of the row's lengths, byte by byte, as check * FACTOR + byte, modulo 2 ** 64.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from fastimg.loaders.jpeg.decoding.frame import is_decodable, mcu_blocks, new_header, parse_header, view_of
from fastimg.loaders.jpeg.rewriting.markers import Parser, Untileable
from fastimg.loaders.jpeg.rewriting.tiles import walked
from fastimg.loaders.runtime.compiled import compiled, uint64

from .rows import FACTOR, ROW

MORE = 255  # a byte of a length that another one follows
_MOST = 1 << 29  # bytes of a JPEG: positions are 32 bits


def pack_index(jpeg: bytes | bytearray | memoryview) -> tuple[int, npt.NDArray[np.void], npt.NDArray[np.uint8]] | None:
    """The begin of the entropy-coded bytes, the rows [rows + 1] and the lengths; None if it cannot be indexed.

    That is what the compiled decoder does not decode: no tiles, not upright, unusual structures, damage.
    """
    data = view_of(jpeg)
    headers = new_header()
    if not parse_header(data, headers) or not is_decodable(headers) or headers["orientation"][0] != 1:
        return None
    if data.size >= _MOST:
        return None
    parser = Parser(memoryview(jpeg))
    try:
        coded, bounds, _ = walked(parser, next(parser.scans()))
    except Untileable:
        return None
    header = headers[0]
    down = -(-int(header["height"]) // int(header["mcu_height"]))
    across = -(-int(header["width"]) // int(header["mcu_width"])) // int(header["interval"])
    rows = np.zeros(down + 1, ROW)
    bits = 8 * (data.size + 2 * down * across)
    lengths = np.empty(coded.dc.size + bits // MORE + 1, np.uint8)
    per_tile = int(mcu_blocks(headers) * header["interval"])
    size = _pack(
        data[int(header["offset"]) :], coded.bits, bounds, coded.begins, coded.lengths, per_tile, across, rows, lengths
    )
    return (int(header["offset"]), rows, lengths[:size]) if size else None


@compiled
def _pack(
    data: Any, clean: Any, bounds: Any, begins: Any, sizes: Any, per_tile: int, across: int, rows: Any, lengths: Any
) -> int:
    """Fill `rows` and `lengths`; return the number of the latter, 0 if a tile does not end at its marker."""
    tiles = bounds.size - 1
    at = n = row = block = 0  # a byte of `data`, a length
    check = uint64(0)
    for tile in range(tiles):
        if tile % across == 0:
            rows[row].data, rows[row].lengths = at, n
            check = uint64(0)
        position = 8 * at
        byte, stuffed = bounds[tile], 0
        for i in range(per_tile):
            end = begins[block] + sizes[block]  # in clean bits
            if i + 1 == per_tile:
                end = 8 * bounds[tile + 1]
            while byte < end >> 3:
                stuffed += clean[byte] == 255
                byte += 1
            begin = position
            position = 8 * (at + stuffed) + end - 8 * bounds[tile]
            if i + 1 == per_tile:
                position += 16
            size = position - begin
            while size >= MORE:
                lengths[n] = MORE
                check = check * uint64(FACTOR) + uint64(MORE)
                size -= MORE
                n += 1
            lengths[n] = size
            check = check * uint64(FACTOR) + uint64(size)
            n += 1
            block += 1
        at = position >> 3
        marker = 0xD9 if tile + 1 == tiles else 0xD0 | (tile & 7)
        if at > data.size or data[at - 2] != 255 or data[at - 1] != marker:
            return 0
        if tile % across == across - 1:
            rows[row].check = check
            row += 1
    rows[row].data, rows[row].lengths = at, n
    return n
