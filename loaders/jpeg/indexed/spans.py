"""An index's rows -> where the blocks of a region are, and which bytes of the file they need, in compiled code."""

from typing import Any

from fastimg.loaders.jpeg.decoding.frame import mcu_blocks
from fastimg.loaders.runtime.compiled import compiled, int64, uint64

from .packing import MORE
from .rows import FACTOR


@compiled
def locate(headers: Any, regions: Any, rows: Any, lengths: Any, positions: Any, spans: Any) -> bool:
    """Find the blocks of a region by the `rows` [down + 1] of its tiles and their `lengths`.

    Tile i of the region gets `positions[i]` [blocks + 1] uint32, in bits of the file: where its blocks begin, and where
    its restart marker does. Row r needs the bytes `spans[r]` (begin, end) of the file, with the markers around its
    tiles. False if the index contradicts itself: then nothing of it is to be used.
    """
    header = headers[0]
    region = regions[0]
    tiles = -(-header.width // header.mcu_width) // header.interval
    per_tile = mcu_blocks(headers) * header.interval
    found = 0
    for r in range(region.bottom - region.top):
        position = 8 * (header.offset + int64(rows[r].data))
        n, stop = int64(rows[r].lengths) - rows[0].lengths, int64(rows[r + 1].lengths) - rows[0].lengths
        if n < 0 or stop > lengths.size:
            return False
        check = uint64(0)
        for tile in range(tiles):
            wanted = region.left <= tile < region.right
            if tile == region.left:
                spans[r, 0] = (position >> 3) - (2 if tile + r + region.top else 0)
            for i in range(per_tile):
                if wanted:
                    positions[found, i] = position
                more = MORE
                while more == MORE:
                    if n >= stop:
                        return False
                    more = int64(lengths[n])
                    n += 1
                    position += more
                    check = check * uint64(FACTOR) + uint64(more)
            if position & 7:
                return False
            if wanted:
                positions[found, per_tile] = position - 16
                found += 1
                spans[r, 1] = position >> 3
        if n != stop or position != 8 * (header.offset + int64(rows[r + 1].data)) or position >> 32:
            return False
        if check != rows[r].check:
            return False
    return True


@compiled
def join(spans: Any, gap: int, begin: int, places: Any, ranges: Any) -> int:
    """Join the spans [rows, 2] that lie at most `gap` bytes apart into `ranges` [n, 2]; return n.

    The ranges are put one after the other into a buffer, from byte `begin` on: `places[r]` is what leads from a byte of
    row r in the file to its place in the buffer.
    """
    n = 0
    at = begin
    for r in range(spans.shape[0]):
        if n and spans[r, 0] <= ranges[n - 1, 1] + gap:
            ranges[n - 1, 1] = spans[r, 1]
        else:
            if n:
                at += ranges[n - 1, 1] - ranges[n - 1, 0]
            ranges[n, 0], ranges[n, 1] = spans[r, 0], spans[r, 1]
            n += 1
        places[r] = at - ranges[n - 1, 0]
    return n
