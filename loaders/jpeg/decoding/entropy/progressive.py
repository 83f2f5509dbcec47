"""The scans of a progressive JPEG -> coefficients, in compiled code (ITU T.81 annex G).

Each scan sends a band of coefficients, or one more bit of it, for all blocks of a component; of DC, for all components.
A mask of each block says which of its coefficients are not 0 yet: a refinement sends a bit for each of these, so those
between two symbols are found in the mask, and corrected from bits loaded once.
"""

from typing import Any

from fastimg.loaders.jpeg.decoding.memory import byte_at, short_at, store_short, store_word, word_at
from fastimg.loaders.runtime.compiled import compiled, inlined, int64, uint64

from .lookups import LAST, LOOK, OFFSET, SIZE, SYMBOLS, code_at, value_of
from .masks import count, lowest, nth, sent
from .symbols import held_at

BLOCK = 64  # coefficients of a block, in rows
_HELD = 57  # bits that are held at once, at least

# A table of AC [TABLE] is laid out as those of `lookups`, for `code_at`. The bytes of an entry: the number of its bits;
# the run; its kind. Above them is the value, 32 bits, of a symbol that has one and fits; the number of bits is 0 if it
# does not, and then the code's entry is above it: its length; the size of its value; the run; the kind.
VALUE, ZEROS, BLOCKS = 1, 2, 3  # a value behind a run of zeros; 16 zeros; the rest of some blocks
NONE = 4  # no code; as is more, of `code_at`


@compiled
def fill_band_table(data: Any, at: int, table: Any) -> bool:
    """Fill a table from the 16 counts and the symbols at `data[at]`. False if they are not a valid code."""
    table[:SIZE] = 0
    code, first = 0, 0
    symbols = at + 16
    for length in range(1, 17):
        count = int64(data[at + length - 1])
        if count and code + count >= 1 << length:  # a code of only ones is not allowed
            return False
        table[LAST + length] = code + count - 1 if count else -1
        table[OFFSET + length] = first - code
        for i in range(count):
            symbol = int64(data[symbols + first + i])
            run, size = symbol >> 4, symbol & 15
            kind = VALUE if size else (ZEROS if run == 15 else BLOCKS)
            kind = NONE if size > 10 else kind
            entry = length | size << 8 | run << 16 | kind << 24
            table[SYMBOLS + first + i] = entry
            place = (code + i) << max(LOOK - length, 0)
            unused = LOOK - length - size
            if unused >= 0:
                for bits in range(1 << size):
                    value = bits if bits >= 1 << size >> 1 else bits + 1 - (1 << size)
                    value = value if size else 0
                    for _ in range(1 << unused):
                        table[place] = (length + size) | run << 8 | kind << 16 | value << 32
                        place += 1
            elif length <= LOOK:
                for further in range(1 << (LOOK - length)):
                    table[place + further] = entry << 8
        first += count
        code = (code + count) << 1
    return True


@inlined
def _entry_at(held: Any, table: Any) -> Any:
    """The number of bits of the next symbol and its value; its run; its kind; its value."""
    byte = uint64(255)
    entry = word_at(table + (held >> uint64(64 - LOOK) << uint64(3)))
    bits = entry & byte
    if bits:
        return bits, (entry >> uint64(8)) & byte, (entry >> uint64(16)) & byte, int64(entry) >> 32
    code = code_at(held, table)
    length, size = code & byte, (code >> uint64(8)) & byte
    value = int64(0)
    if size:
        value = int64((held << length) >> (uint64(64) - size))
        value = value if value >= 1 << int64(size) >> 1 else value + 1 - (1 << int64(size))
    return length + size, (code >> uint64(16)) & byte, (code >> uint64(24)) & byte, value


@inlined
def _more_blocks(held: Any, bits: Any, run: Any) -> Any:
    """How many blocks end with a symbol of BLOCKS, and the bits of it and of that number."""
    count = uint64(1) << run
    if run:
        count += (held << bits) >> (uint64(64) - run)
    return count, bits + run


@compiled
def first_band(
    begin: Any, end: Any, table: Any, blocks: Any, masks: Any, natural: Any, shape: Any, band: Any, low: int
) -> Any:
    """The first bits of a band of AC of one component (G.1.2.2). Returns the position behind them, 0 if damaged.

    `begin` and `end` are bits from address 0; `table`, `blocks`, `masks` and `natural` addresses; `shape` is (rows,
    columns, columns from one row to the next), of blocks, and `band` (first, last).
    """
    rows, columns, stride = shape
    first, last = uint64(band[0]), uint64(band[1])
    position = begin
    skipped = uint64(0)  # blocks that the last symbol ended
    one = uint64(1)
    for row in range(rows):
        column = uint64(0)
        while column < uint64(columns):
            if skipped:
                passed = min(skipped, uint64(columns) - column)
                skipped -= passed
                column += passed
                continue
            number = uint64(row * stride) + column
            base = blocks + number * uint64(2 * BLOCK)
            mask = word_at(masks + (number << uint64(3)))
            k = first
            while k <= last:
                held = held_at(position)
                bits, run, kind, value = _entry_at(held, table)
                if kind == uint64(VALUE):
                    position += bits
                    k += run
                    if k > last:
                        return uint64(0)
                    value = value << low
                    if value > 1023 or value < -1023:
                        return uint64(0)
                    store_short(base + (byte_at(natural + k) << one), uint64(value))
                    mask |= one << k
                    k += one
                elif kind == uint64(ZEROS):
                    position += bits
                    k += uint64(16)
                    if k > last + one:
                        return uint64(0)
                elif kind == uint64(BLOCKS):
                    skipped, bits = _more_blocks(held, bits, run)
                    position += bits
                    skipped -= one
                    break
                else:
                    return uint64(0)
            store_word(masks + (number << uint64(3)), mask)
            if position > end:
                return uint64(0)
            column += one
    return position


@inlined
def _sent(position: Any, known: Any) -> Any:
    """Those of the coefficients `known` for which a 1 is sent, a bit for each from a position on."""
    if count(known) <= uint64(_HELD):
        return sent(held_at(position), known)
    first = known & ((uint64(1) << uint64(_HELD)) - uint64(1))  # no more than so many
    return sent(held_at(position), first) | sent(held_at(position + count(first)), known & ~first)


@inlined
def _moved(moved: Any, base: Any, natural: Any, step: int) -> None:
    """Move the coefficients of a mask away from 0 by `step`."""
    while moved:
        place = base + (byte_at(natural + lowest(moved)) << uint64(1))
        value = short_at(place)
        store_short(place, uint64(value + (step if value > 0 else -step)))
        moved &= moved - uint64(1)


@compiled
def refine_band(
    begin: Any, end: Any, table: Any, blocks: Any, masks: Any, natural: Any, shape: Any, band: Any, low: int
) -> Any:
    """One more bit of a band of AC of one component (G.1.2.3). Takes and returns what `first_band` does."""
    rows, columns, stride = shape
    step = 1 << low
    one = uint64(1)
    whole = ((uint64(2) << uint64(band[1])) - one) & ~((one << uint64(band[0])) - one)  # the band as a mask
    first, last = uint64(band[0]), uint64(band[1])
    position = begin
    skipped = uint64(0)
    for row in range(rows):
        for column in range(columns):
            number = uint64(row * stride + column)
            at = masks + (number << uint64(3))
            mask = word_at(at)
            if skipped and mask & whole == uint64(0):
                skipped -= one
                continue
            base = blocks + number * uint64(2 * BLOCK)
            known = mask & whole  # those that were sent before this scan, and are not corrected yet
            zeros = ~mask & whole
            moved = uint64(0)
            if skipped == uint64(0):
                k = first
                while k <= last:
                    held = held_at(position)
                    bits, run, kind, value = _entry_at(held, table)
                    if kind == uint64(BLOCKS):
                        skipped, bits = _more_blocks(held, bits, run)
                        position += bits
                        break
                    if kind >= uint64(NONE) or value > 1 or value < -1:
                        return uint64(0)
                    position += bits
                    bit = nth(zeros, run)
                    if bit == uint64(0):
                        return uint64(0)
                    below = bit - one
                    passed = known & below
                    moved |= _sent(position, passed)
                    position += count(passed)
                    known &= ~below
                    zeros &= ~(below | bit)
                    k = lowest(bit) + one
                    if kind == uint64(VALUE):
                        store_short(base + (byte_at(natural + k - one) << one), uint64(value * step))
                        mask |= bit
            if skipped:
                moved |= _sent(position, known)
                position += count(known)
                skipped -= one
            _moved(moved, base, natural, step)
            store_word(at, mask)
            if position > end:
                return uint64(0)
    return position


@compiled
def first_means(begin: Any, end: Any, tables: Any, blocks: Any, layout: Any, rows: int, columns: int, low: int) -> Any:
    """The first bits of DC (G.1.2.1). Returns the position behind them, 0 if damaged.

    `tables` [components] are addresses of tables of DC. Of each component `layout` int64 [components, 4] has its first
    block, the blocks from one row to the next, and its blocks across and down an MCU of the scan.
    """
    position = begin
    components = layout.shape[0]
    previous0, previous1, previous2 = int64(0), int64(0), int64(0)
    for row in range(rows):
        for column in range(columns):
            for c in range(components):
                table = uint64(tables[c])
                previous = previous0 if c == 0 else (previous1 if c == 1 else previous2)
                for y in range(layout[c, 3]):
                    number = layout[c, 0] + (row * layout[c, 3] + y) * layout[c, 1] + column * layout[c, 2]
                    for x in range(layout[c, 2]):
                        held = held_at(position)
                        code = code_at(held, table)
                        if (code >> uint64(24)) & uint64(255) != uint64(1):
                            return uint64(0)
                        previous += value_of(held, code)
                        value = previous << low
                        if value > 2047 or value < -2047:
                            return uint64(0)
                        store_short(blocks + uint64((number + x) * 2 * BLOCK), uint64(value))
                        position += code & uint64(255)
                if c == 0:
                    previous0 = previous
                elif c == 1:
                    previous1 = previous
                else:
                    previous2 = previous
            if position > end:
                return uint64(0)
    return position


@compiled
def refine_means(begin: Any, end: Any, blocks: Any, layout: Any, rows: int, columns: int, low: int) -> Any:
    """One more bit of DC. Takes and returns what `first_means` does."""
    position = begin
    for row in range(rows):
        for column in range(columns):
            for c in range(layout.shape[0]):
                for y in range(layout[c, 3]):
                    number = layout[c, 0] + (row * layout[c, 3] + y) * layout[c, 1] + column * layout[c, 2]
                    for x in range(layout[c, 2]):
                        place = blocks + uint64((number + x) * 2 * BLOCK)
                        bit = int64(held_at(position) >> uint64(63))
                        store_short(place, uint64(short_at(place) | bit << low))
                        position += uint64(1)
            if position > end:
                return uint64(0)
    return position
