"""Huffman codes of tiles -> coefficients, in compiled code (ITU T.81 annex F).

Tiles are independent. Two are decoded at a time, so that the CPU works on one while it waits for the other's look-ups,
and two entries of each are looked up in bits that are loaded once.
"""

from typing import Any

from fastimg.loaders.jpeg.decoding.frame import EOI
from fastimg.loaders.jpeg.decoding.memory import store_short
from fastimg.loaders.runtime.compiled import compiled, inlined, int64, uint64

from .lookups import TABLE, code_at, value_of
from .stuffing import copy_to_marker, find_marker
from .symbols import PAD, STRIDE, behind_block, held_at, two_entries


@inlined
def _begun(position: Any, table: Any, to: Any) -> Any:
    """Store the DC difference that begins at a position, and return the position behind it; 0 if it is damaged."""
    held = held_at(position)
    code = code_at(held, table)
    store_short(to, uint64(value_of(held, code)))
    covered = (code >> uint64(24)) & uint64(255)
    return position + (code & uint64(255)) if covered == uint64(1) else uint64(0)


@inlined
def _ended(position: Any, entry: Any, before: Any, k: Any, end: Any, last: bool) -> Any:
    """What `behind_block` gives, but 0 also for a tile's last block that leaves more than padding."""
    position = behind_block(position, entry, before, k, end)
    return uint64(0) if last and position + uint64(8) <= end else position


@inlined
def _span(start: Any, begin: int, end: int) -> Any:
    """A tile's bytes as positions of bits."""
    return start + (uint64(begin) << uint64(3)), start + (uint64(end) << uint64(3))


@compiled
def coefficients(bits: Any, bounds: Any, first: int, stop: int, tables: Any, rows: Any, natural: Any, out: Any) -> bool:
    """Decode the coefficients of tiles [first, stop), two at a time; DC values remain differences. False if damaged.

    Block b's DC table begins at `tables[rows[b]]`, followed by its AC table. When no tile is left for one of the two,
    it repeats its last one until the other is done. No read leaves `bits`: a block takes less than PAD bytes, and each
    block that began in its tile is checked to end there.
    """
    out[: (stop - first) * rows.size * STRIDE] = 0
    kept, known = uint64(out.ctypes.data), uint64(tables.ctypes.data)
    start, order = uint64(bits.ctypes.data) << uint64(3), uint64(natural.ctypes.data)
    left, following = stop - first, first + 2
    tile, tile2 = first, min(first + 1, stop - 1)
    new, new2 = 1, tile2 - tile  # 0 while a tile is repeated
    block = block2 = 0
    # Positions are bits from address 0, tables and bases addresses; a base is a block's first coefficient's.
    position, end = _span(start, bounds[tile], bounds[tile + 1])
    position2, end2 = _span(start, bounds[tile2], bounds[tile2 + 1])
    base, base2 = kept, kept + uint64(2 * (tile2 - first) * rows.size * STRIDE)
    table = table2 = known + (uint64(rows[0]) << uint64(3))
    position, position2 = _begun(position, table, base), _begun(position2, table, base2)
    if position == uint64(0) or position2 == uint64(0):
        return False
    table = table2 = table + uint64(8 * TABLE)
    k = k2 = uint64(0)
    while True:
        position, entry, before, k = two_entries(position, table, k, base, order)
        position2, entry2, before2, k2 = two_entries(position2, table2, k2, base2, order)
        if k >= uint64(63):
            block += 1
            position = _ended(position, entry, before, k, end, block == rows.size)
            if position == uint64(0):
                return False
            base += uint64(2 * STRIDE)
            if block == rows.size:
                left -= new
                if left == 0:
                    return True
                tile, new = (following, 1) if following < stop else (tile, 0)
                following += 1
                position, end = _span(start, bounds[tile], bounds[tile + 1])
                block, base = 0, kept + uint64(2 * (tile - first) * rows.size * STRIDE)
            table = known + (uint64(rows[block]) << uint64(3))
            position = _begun(position, table, base)
            if position == uint64(0):
                return False
            table, k = table + uint64(8 * TABLE), uint64(0)
        if k2 >= uint64(63):
            block2 += 1
            position2 = _ended(position2, entry2, before2, k2, end2, block2 == rows.size)
            if position2 == uint64(0):
                return False
            base2 += uint64(2 * STRIDE)
            if block2 == rows.size:
                left -= new2
                if left == 0:
                    return True
                tile2, new2 = (following, 1) if following < stop else (tile2, 0)
                following += 1
                position2, end2 = _span(start, bounds[tile2], bounds[tile2 + 1])
                block2, base2 = 0, kept + uint64(2 * (tile2 - first) * rows.size * STRIDE)
            table2 = known + (uint64(rows[block2]) << uint64(3))
            position2 = _begun(position2, table2, base2)
            if position2 == uint64(0):
                return False
            table2, k2 = table2 + uint64(8 * TABLE), uint64(0)


@compiled
def collect(data: Any, headers: Any, regions: Any, clean: Any, bounds: Any) -> bool:
    """Copy the bits of a region's tiles to `clean`, without stuffing. False if they are damaged.

    Tile i is then in clean[bounds[i]:bounds[i + 1]].
    """
    header = headers[0]
    region = regions[0]
    left = region.left
    right = region.right
    top = region.top
    bottom = region.bottom
    tiles = -(-header.width // header.mcu_width) // header.interval
    total = tiles * -(-header.height // header.mcu_height)
    at, n = uint64(header.offset), uint64(0)
    found = 0
    bounds[0] = 0
    stop = (bottom - 1) * tiles + right
    for tile in range(stop):
        column = tile % tiles
        if tile >= top * tiles and left <= column < right:
            at, n = copy_to_marker(data, at, clean, n)
            found += 1
            bounds[found] = int64(n)
        else:
            at = find_marker(data, at)
        if at == uint64(data.size):
            return False
        marker = int64(data[at + uint64(1)])
        if marker != (0xD0 + tile % 8 if tile + 1 < total else EOI):
            return False
        at += uint64(2)
    if at + uint64(2) > uint64(data.size) and stop < total:  # as in `splice`: the file ends with a tile
        return False
    clean[int64(n) : int64(n) + PAD] = 0
    return True
