"""The symbols of a block, one or two at a time: for loops that keep their state in registers (ITU T.81 annex F).

Positions are bits from address 0, tables and bases addresses; a base is that of a block's first coefficient.
"""

from typing import Any

import numpy as np

from fastimg.loaders.jpeg.decoding.memory import bits_at, byte_at, store_short, word_at
from fastimg.loaders.runtime.compiled import inlined, uint64

from .lookups import END, LOOK, code_at, entry_of

STRIDE = 72  # of a block's coefficients: a run beyond the 63rd writes to the eight after it
PAD = 512  # bytes after a tile's bits; one block takes fewer

# Row and column of each coefficient of the zigzag order (figure A.6).
ZIGZAG = sorted(((r, c) for r in range(8) for c in range(8)), key=lambda p: (sum(p), p[sum(p) % 2 == 0]))
NATURAL = np.full(256, 64, np.uint8)  # index of each coefficient in row order; 64 for those beyond a block
NATURAL[:64] = [8 * row + column for row, column in ZIGZAG]


@inlined
def held_at(position: Any) -> Any:
    """The bits from a position on, the first one highest: 57 or more, and an entry takes up to 26."""
    return bits_at(position >> uint64(3)) << (position & uint64(7))


@inlined
def entry_at(held: Any, table: Any) -> Any:
    """The entry of the first symbol in `held`, or of the first two."""
    entry = word_at(table + (held >> uint64(64 - LOOK) << uint64(3)))
    if entry & uint64(255) == uint64(0):
        entry = entry_of(held, code_at(held, table))
    return entry


@inlined
def stored(entry: Any, k: Any, base: Any, order: Any) -> Any:
    """Store an entry's values behind coefficient `k`; return the numbers of its first and its last coefficient."""
    byte, one = uint64(255), uint64(1)
    before = k + ((entry >> uint64(8)) & byte)
    store_short(base + (byte_at(order + before) << one), entry >> uint64(32))
    k += (entry >> uint64(16)) & byte
    store_short(base + (byte_at(order + k) << one), entry >> uint64(48))
    return before, k


@inlined
def two_entries(position: Any, table: Any, k: Any, base: Any, order: Any) -> Any:
    """Store what the next entry holds, and the one after it if the block goes on: both are in bits loaded once.

    Returns the position behind them, the last entry, and the numbers of its first and its last coefficient.
    """
    byte = uint64(255)
    held = held_at(position)
    entry = entry_at(held, table)
    position += entry & byte
    before, k = stored(entry, k, base, order)
    if k < uint64(63):
        entry = entry_at(held << (entry & byte), table)
        position += entry & byte
        before, k = stored(entry, k, base, order)
    return position, entry, before, k


@inlined
def behind_block(position: Any, entry: Any, before: Any, k: Any, end: Any) -> Any:
    """The position behind a block whose last entry led over coefficient `before` to `k`; 0 if it is damaged."""
    if before == uint64(63):  # a second symbol belongs to the next block
        position = position - (entry & uint64(255)) + ((entry >> uint64(24)) & uint64(255))
    elif (before > uint64(63) and before < uint64(END)) or (k > uint64(63) and k < uint64(END)):
        return uint64(0)
    return position if position <= end else uint64(0)
