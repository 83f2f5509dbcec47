"""Huffman codes of a JPEG -> tables of what the next bits mean (ITU T.81 annexes C, F), in compiled code.

A table [TABLE] is indexed by LOOK bits. An entry has the value of a symbol whose code and value fit into them, and that
of the next symbol if both symbols fit.
"""

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types

from fastimg.loaders.jpeg.decoding.memory import word_at
from fastimg.loaders.jpeg.decoding.vectors import I64, LANES, gather, intrinsic, pointer, splat, vector
from fastimg.loaders.runtime.compiled import compiled, inlined, int64, uint64

# The bytes of an entry: the number of its bits; the number of coefficients that its first symbol covers, END at the end
# of a block; the number that all of it covers; the number of bits of the first symbol. Above them are the values of the
# first and of the last symbol, 16 bits each. Without a second symbol, the first is the last.
LOOK = 11
SIZE = 1 << LOOK
END = 140

# Where the value does not fit, and in tables of DC, the lowest byte is 0, and the code's entry is above it. Its bytes:
# the number of bits of the code and its value; 63 less the value's size; the code's length; the number of coefficients
# that it covers. Above them, signed, is the number to add to a value whose first bit is 0. All is 0 for longer codes.
_NONE = 65 << 24 | 1  # an invalid code covers more coefficients than a block has, and fewer than END
LAST, OFFSET, SYMBOLS = SIZE, SIZE + 17, SIZE + 34  # after the entries, for longer codes
TABLE = SYMBOLS + 256


@compiled
def fill_table(data: Any, at: int, table: Any, ac: bool, values: bool = True) -> bool:
    """Fill a table [TABLE] from the 16 counts and the symbols at `data[at]`. False if they are not a valid code.

    Without `values` a table of AC has only codes' entries, as those of DC have: `code_at` reads it, and `entry_of` not.
    """
    table[:SIZE] = 0
    code = 0
    first = 0
    symbols = at + 16
    for length in range(1, 17):
        count = int64(data[at + length - 1])
        if count and code + count >= 1 << length:  # a code of only ones is not allowed
            return False
        table[LAST + length] = code + count - 1 if count else -1
        table[OFFSET + length] = first - code
        for i in range(count):
            symbol = int64(data[symbols + first + i])
            if symbol > 15 and not ac:
                return False
            entry = _code(symbol, length, ac)
            table[SYMBOLS + first + i] = entry
            if length <= LOOK:
                place = (code + i) << (LOOK - length)
                for further in range(1 << (LOOK - length)):
                    table[place + further] = entry << 8
        first += count
        code = (code + count) << 1
    if ac and values:
        _add_values(table)
    return True


@inlined
def _code(symbol: int, length: int, ac: bool) -> Any:
    """A code's entry; _NONE if no 8-bit baseline image can contain it."""
    size = symbol & 15
    passed = 1
    if ac:
        passed = END if symbol == 0 else (symbol >> 4) + 1
        if size > 10 or (size == 0 and symbol != 0 and symbol != 0xF0):
            return int64(_NONE)
    elif symbol > 11:
        return int64(_NONE)
    return int64((length + size) | (63 - size) << 8 | length << 16 | passed << 24 | (1 - (1 << size)) << 32)


@inlined
def _entry(code: Any, value: Any) -> Any:
    """The entry of a single symbol, of its code's entry and its value."""
    bits = code & 255
    passed = (code >> 24) & 255
    return bits | passed << 8 | passed << 16 | bits << 24 | (value & 0xFFFF) << 32 | value << 48


@compiled
def _add_values(table: Any) -> None:
    """Make entries of symbols, and of two symbols, of codes' entries, where they fit."""
    single = np.empty(SIZE, np.int64)
    for place in range(SIZE):
        code = table[place] >> 8
        fits = (code != 0) & (code != _NONE) & (code & 255 <= LOOK)
        entry = int64(entry_of(uint64(place) << uint64(64 - LOOK), uint64(code)))
        single[place] = entry if fits else code << 8
    for place in range(0, SIZE, LANES):
        _add_second_symbols(single, place, table)


@intrinsic
def _add_second_symbols(_: Any, single: Any, place: Any, table: Any) -> Any:
    """Make table[place:place + LANES] of entries of single symbols: of two symbols, where both fit."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        b = builder
        kind = ir.VectorType(I64, LANES)

        def all_of(value: int) -> Any:
            return vector(I64, value, LANES)

        def byte(entry: Any, number: int) -> Any:
            return b.and_(b.lshr(entry, all_of(8 * number)), all_of(255))

        source, target = (pointer(b, context, signature.args[i], arguments[i], arguments[1]) for i in (0, 2))
        entry = b.load(b.bitcast(source, kind.as_pointer()), align=8)
        bits = byte(entry, 0)
        places = b.add(splat(b, arguments[1], LANES), ir.Constant(kind, [*range(LANES)]))
        behind = b.and_(b.shl(places, bits), all_of(SIZE - 1))
        second = gather(b, context, pointer(b, context, signature.args[0], arguments[0], ir.Constant(I64, 0)), behind)
        both = b.add(bits, byte(second, 3))
        fits = b.and_(b.icmp_unsigned("!=", bits, all_of(0)), b.icmp_unsigned("!=", byte(entry, 1), all_of(END)))
        fits = b.and_(fits, b.icmp_unsigned("!=", byte(second, 0), all_of(0)))
        fits = b.and_(fits, b.icmp_unsigned("<=", both, all_of(LOOK)))
        passed = b.shl(b.add(byte(entry, 1), byte(second, 1)), all_of(16))
        values = b.shl(b.lshr(second, all_of(32)), all_of(48))
        pair = b.or_(b.or_(b.and_(entry, all_of(0xFFFFFF00FF00)), both), b.or_(passed, values))
        b.store(b.select(fits, pair, entry), b.bitcast(target, kind.as_pointer()), align=8)
        return context.get_dummy_value()

    return types.none(single, types.intp, table), generate


@inlined
def code_at(held: Any, table: Any) -> Any:
    """The entry of the first code in `held`, of the table at an address."""
    entry = int64(word_at(table + (held >> uint64(64 - LOOK) << uint64(3)))) >> 8
    if entry:
        return uint64(entry)
    for length in range(LOOK + 1, 17):
        code = int64(held >> uint64(64 - length))
        if code <= int64(word_at(table + uint64(8 * (LAST + length)))):
            number = (int64(word_at(table + uint64(8 * (OFFSET + length)))) + code) & 255
            return word_at(table + uint64(8 * (SYMBOLS + number)))
    return uint64(_NONE)


@inlined
def value_of(held: Any, code: Any) -> Any:
    """The value after the first code in `held` (table F.1)."""
    bits = held << ((code >> uint64(16)) & uint64(63))
    missing = int64(code) >> 32 if int64(bits) >= 0 else 0
    return int64((bits >> uint64(1)) >> ((code >> uint64(8)) & uint64(63))) + missing


@inlined
def entry_of(held: Any, code: Any) -> Any:
    """The entry of a single symbol, of its code's entry and the bits that begin with it."""
    return uint64(_entry(int64(code), value_of(held, code)))
