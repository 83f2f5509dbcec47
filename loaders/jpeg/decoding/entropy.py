"""Huffman codes of tiles -> coefficients, in compiled code (ITU T.81 annex F).

Tiles are independent. Two are decoded at a time, so that the CPU works on one while it waits for the other's look-ups.
"""

from typing import Any

import numpy as np

from fastimg.loaders.jpeg.rewriting.huffman import load, skip
from fastimg.loaders.runtime.compiled import compiled, inlined, int64, uint64

# A table is indexed by LOOK bits. The bytes of an entry are: the number of bits of a code and its value; 63 less the
# value's size; the code's length; the number of coefficients that it covers, _END at the end of a block. Above them,
# signed, is the number to add to a value whose first bit is 0. An entry of 0 means a longer code.
LOOK = 9
_SIZE = 1 << LOOK
_END = 140
_NONE = 65 << 24 | 1  # an invalid code covers more coefficients than a block has, and fewer than _END
_LAST, _OFFSET, _SYMBOLS = _SIZE, _SIZE + 17, _SIZE + 34  # after the entries, for longer codes
TABLE = _SYMBOLS + 256

STRIDE = 72  # of a block's coefficients: a run beyond the 63rd writes to the eight after it
PAD = 512  # bytes after a tile's bits; one block takes fewer

# Row and column of each coefficient of the zigzag order (figure A.6).
ZIGZAG = sorted(((r, c) for r in range(8) for c in range(8)), key=lambda p: (sum(p), p[sum(p) % 2 == 0]))
NATURAL = np.full(256, 64, np.uint8)  # index of each coefficient in row order; 64 for those beyond a block
NATURAL[:64] = [8 * row + column for row, column in ZIGZAG]


@compiled
def fill_table(data: Any, at: int, table: Any, ac: bool) -> bool:
    """Fill a table [TABLE] from the 16 counts and the symbols at `data[at]`. False if they are not a valid code."""
    table[:_SIZE] = 0
    code = 0
    first = 0
    symbols = at + 16
    for length in range(1, 17):
        count = int64(data[at + length - 1])
        if count and code + count >= 1 << length:  # a code of only ones is not allowed
            return False
        table[_LAST + length] = code + count - 1 if count else -1
        table[_OFFSET + length] = first - code
        for i in range(count):
            symbol = int64(data[symbols + first + i])
            if symbol > 15 and not ac:
                return False
            entry = _entry(symbol, length, ac)
            table[_SYMBOLS + first + i] = entry
            if length <= LOOK:
                begin = (code + i) << (LOOK - length)
                for place in range(begin, begin + (1 << (LOOK - length))):
                    table[place] = entry
        first += count
        code = (code + count) << 1
    return True


@inlined
def _entry(symbol: int, length: int, ac: bool) -> Any:
    """The entry of a symbol; _NONE if no 8-bit baseline image can contain it."""
    size = symbol & 15
    passed = 1
    if ac:
        passed = _END if symbol == 0 else (symbol >> 4) + 1
        if size > 10 or (size == 0 and symbol != 0 and symbol != 0xF0):
            return int64(_NONE)
    elif symbol > 11:
        return int64(_NONE)
    return int64((length + size) | (63 - size) << 8 | length << 16 | passed << 24 | (1 - (1 << size)) << 32)


@inlined
def _long(held: Any, tables: Any, table: Any) -> Any:
    """The entry of the first code in `held`, which has more than LOOK bits."""
    base = int64(table)
    for length in range(LOOK + 1, 17):
        code = int64(held >> uint64(64 - length))
        if code <= tables[base + _LAST + length]:
            return uint64(tables[base + _SYMBOLS + ((tables[base + _OFFSET + length] + code) & 255)])
    return uint64(_NONE)


@inlined
def _value(held: Any, entry: Any) -> Any:
    """The value after the first code in `held` (table F.1)."""
    bits = held << ((entry >> uint64(16)) & uint64(63))
    missing = int64(entry) >> 32 if int64(bits) >= 0 else 0
    return int64((bits >> uint64(1)) >> ((entry >> uint64(8)) & uint64(63))) + missing


@compiled
def coefficients(bits: Any, bounds: Any, first: int, stop: int, tables: Any, rows: Any, natural: Any, out: Any) -> bool:
    """Decode the coefficients of tiles [first, stop), two at a time; DC values remain differences. False if damaged.

    Block b's DC table begins at `tables[rows[b]]`, followed by its AC table. When no tile is left for one of the two,
    it repeats its last one until the other is done. No read leaves `bits`: a block takes less than PAD bytes, and each
    block that began in its tile is checked to end there.
    """
    start = uint64(0) - uint64(1)
    zero = uint64(0)
    one = uint64(1)
    stride = uint64(STRIDE)
    count = uint64(rows.size)
    per_tile = uint64(rows.size * STRIDE)
    out[: (stop - first) * rows.size * STRIDE] = 0
    done = 0
    following = first + 2
    tile = first
    tile2 = min(first + 1, stop - 1)
    new, new2 = 1, tile2 - tile  # 0 while a tile is repeated
    table = table2 = uint64(rows[0])
    block = zero
    block2 = zero
    k = start
    k2 = start
    position = uint64(bounds[tile]) << uint64(3)
    end = uint64(bounds[tile + 1]) << uint64(3)
    base = zero
    position2 = uint64(bounds[tile2]) << uint64(3)
    end2 = uint64(bounds[tile2 + 1]) << uint64(3)
    base2 = uint64(tile2 - first) * per_tile
    while done < stop - first:
        held = load(bits, position >> uint64(3)) << (position & uint64(7))
        held2 = load(bits, position2 >> uint64(3)) << (position2 & uint64(7))
        entry = uint64(tables[table + (held >> uint64(64 - LOOK))])
        entry2 = uint64(tables[table2 + (held2 >> uint64(64 - LOOK))])
        if entry == zero:
            entry = _long(held, tables, table)
        if entry2 == zero:
            entry2 = _long(held2, tables, table2)
        position += entry & uint64(255)
        position2 += entry2 & uint64(255)
        k += (entry >> uint64(24)) & uint64(255)
        k2 += (entry2 >> uint64(24)) & uint64(255)
        out[base + uint64(natural[k])] = _value(held, entry)
        out[base2 + uint64(natural[k2])] = _value(held2, entry2)
        if k == zero:
            table += uint64(TABLE)
        elif k >= uint64(63):
            if (k != uint64(63) and k < uint64(_END)) or position > end:
                return False
            k = start
            block = block + one
            base = base + stride
            if block == count:
                if position + uint64(8) <= end:  # more bits than padding
                    return False
                done += new
                if following < stop:
                    tile = following
                    following = following + 1
                else:
                    new = 0
                position = uint64(bounds[tile]) << uint64(3)
                end = uint64(bounds[tile + 1]) << uint64(3)
                block = zero
                base = uint64(tile - first) * per_tile
            table = uint64(rows[block])
        if k2 == zero:
            table2 += uint64(TABLE)
        elif k2 >= uint64(63):
            if (k2 != uint64(63) and k2 < uint64(_END)) or position2 > end2:
                return False
            k2 = start
            block2 = block2 + one
            base2 = base2 + stride
            if block2 == count:
                if position2 + uint64(8) <= end2:
                    return False
                done += new2
                if following < stop:
                    tile2 = following
                    following = following + 1
                else:
                    new2 = 0
                position2 = uint64(bounds[tile2]) << uint64(3)
                end2 = uint64(bounds[tile2 + 1]) << uint64(3)
                block2 = zero
                base2 = uint64(tile2 - first) * per_tile
            table2 = uint64(rows[block2])
    return True


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
    at = header.offset
    size = int64(data.size)
    n = 0
    found = 0
    bounds[0], restart = 0, False
    for tile in range((bottom - 1) * tiles + right):
        column = tile % tiles
        wanted = tile >= top * tiles and left <= column < right
        while True:
            stop = skip(data, at)
            if wanted:
                source = data[at:stop]
                target = clean[n : n + stop - at]
                for i in range(stop - at):
                    target[i] = source[i]
                n += stop - at
            at = stop
            if at + 2 > size:
                return False
            if data[at + 1]:
                break
            if wanted:
                clean[n] = 255
                n += 1
            at += 2
        if wanted:
            found += 1
            bounds[found] = n
        restart = 0xD0 <= data[at + 1] <= 0xD7
        if restart != (tile + 1 < total) or (restart and data[at + 1] & 7 != tile & 7):
            return False
        at += 2
    if at + 2 > size and restart:  # as in `splice`: the file ends with a tile
        return False
    clean[n : n + PAD] = 0
    return True
