"""Huffman codes of deflate -> tables that are looked up by the next bits of a stream (RFC 1951, 3.2).

An entry is uint32. Its low 8 bits are the number of bits that it takes, extra bits of lengths and distances included.
A literal's next bits count its bytes, 1 or 2, which are the upper half; two short literals share an entry. Others are
SPECIAL:

    | SUBTABLE | the longer codes with these first bits: where their table begins, and the bits that are its index |
    | END | the end of the block |
    | SUBTABLE and END | no code begins like this |
    | neither | a length or a distance: its least value in the upper half, and the bits of its code without extra ones |
"""

from typing import Any

import numpy as np
import numpy.typing as npt
from numba import types

from fastimg.loaders.jpeg.decoding.memory import copy_bytes
from fastimg.loaders.jpeg.decoding.vectors import I16, I64, intrinsic
from fastimg.loaders.runtime.compiled import compiled, inlined, int64, uint32

SPECIAL, SUBTABLE, END = 0x8000, 0x4000, 0x2000
INVALID = SPECIAL | SUBTABLE | END  # no code begins like this

LITERALS, DISTANCES, CODES = 256, 30, 19  # symbols; those of the code that the lengths of the others are in
MOST_BITS = 15  # of a code
LITERAL_BITS, DISTANCE_BITS, CODE_BITS = 12, 8, 7  # of the index of a main table
SIZE = 1 << 13  # entries of a table with its subtables: more than any complete code needs

# What making tables takes: the symbols that have a code, those of distances behind the others, each with its length in
# the low bits; how many of either have each length, where those of a length begin, and the symbols by their lengths.
SYMBOLS = 288 + 32
NEAR, FAR = SYMBOLS, SYMBOLS + 16  # where the numbers of either begin
_STARTS = FAR + 16
_ORDERED = _STARTS + 16
_LENGTH_BITS = 4  # of a length, below its symbol


def new_tables() -> npt.NDArray[np.uint32]:
    """The tables of two streams, of literals and of distances each, and behind them what making them takes."""
    return np.zeros((5, SIZE), np.uint32)


def _table(first: int, extras: list[int], before: list[tuple[int, int]], size: int) -> npt.NDArray[np.uint32]:
    """What an entry is without its code, and what each bit of the code adds, [size, 2], of each symbol.

    Those of literals are given; of the others there are the bits behind their codes, the first of which stands for
    `first`. Symbols behind all of these are no codes.
    """
    rows, value = list(before), first
    for extra in extras:
        rows.append((value << 16 | SPECIAL | extra, 1 << 8 | 1))
        value += 1 << extra
    rows += [(INVALID, 0)] * (size - len(rows))
    return np.array(rows, np.uint32)


_LITERALS = [(symbol << 16 | 1 << 8, 1) for symbol in range(LITERALS)] + [(SPECIAL | END, 1)]
_LENGTHS = [0] * 8 + [bits for bits in range(1, 6) for _ in range(4)]
LITERAL_ENTRIES = _table(3, _LENGTHS, _LITERALS, 288)
LITERAL_ENTRIES[285] = 258 << 16 | SPECIAL, 1 << 8 | 1  # the longest match, without bits behind its code
DISTANCE_ENTRIES = _table(1, [0, 0] + [bits for bits in range(14) for _ in range(2)], [], 32)
CODE_ENTRIES = _table(0, [], [(symbol << 8, 1) for symbol in range(CODES)], CODES)


@intrinsic
def _reversed(_: Any, code: Any) -> Any:
    """A number of 16 bits with its first bit last."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        bits = builder.bitreverse(builder.trunc(arguments[0], I16))
        return builder.zext(bits, I64)

    return types.int64(types.int64), generate


@inlined
def _in_stream(code: int, length: int) -> int:
    """A code as it is read, its first bit lowest."""
    return int(_reversed(code) >> (16 - length))


@inlined
def forget_lengths(work: Any) -> None:
    """Begin anew with lengths, of which there are none."""
    for i in range(NEAR, _STARTS):
        work[i] = 0


@inlined
def note_length(work: Any, place: int, numbers: int, symbol: int, length: int) -> int:
    """Have a symbol have a length, at the first free place, and count it among the `numbers`, NEAR or FAR.

    Symbols come in ascending order. Returns the next free place: the same for a length of 0, which is no code.
    """
    work[place] = symbol << _LENGTH_BITS | length
    work[numbers + length] += 1
    return place + (length > 0)


@inlined
def has_end(work: Any, count: int) -> bool:
    """Whether the end of a block is among the first `count` symbols that have a code."""
    place = count - 1
    while place >= 0 and int64(work[place]) >> _LENGTH_BITS > LITERALS:
        place -= 1
    return place >= 0 and int64(work[place]) >> _LENGTH_BITS == LITERALS


@compiled
def build(work: Any, begin: int, numbers: int, entries: Any, bits: int, pairs: bool, alone: bool, table: Any) -> int:
    """Fill the table of a code whose symbols were noted from the place `begin` on, and counted at `numbers`.

    The table's main part has 2^bits entries. `alone`: a single symbol may have a code of one bit, or none; `pairs`: two
    short literals share an entry.

    Returns the bits of the main table's index, which are fewer if no code is that long; 0 for a code that is not
    complete or has too many symbols.
    """
    used, left, shortest, longest = 0, 1, 0, 0
    for length in range(1, MOST_BITS + 1):
        number = int64(work[numbers + length])
        work[_STARTS + length] = used
        used += number
        left = 2 * left - number
        if left < 0:
            return 0
        if number:
            longest = length
            if shortest == 0:
                shortest = length
    if left > 0 and (longest > 1 or not alone):
        return 0
    for place in range(begin, begin + used):
        noted = int64(work[place])
        start = _STARTS + (noted & ((1 << _LENGTH_BITS) - 1))
        work[_ORDERED + work[start]] = noted >> _LENGTH_BITS
        work[start] += 1
    if left > 0:  # none, or a single one
        table[0] = table[1] = uint32(INVALID)
        if used:
            table[0] = _entry(entries, work[_ORDERED], 1)
        return 1
    bits = min(bits, longest)
    least = min(shortest, bits)
    code, place, end = 0, _ORDERED, 1 << least  # the next code, its symbol, and the entries so far
    for length in range(least, bits + 1):
        if length > least:  # shorter codes repeat
            copy_bytes(int64(table.ctypes.data), int64(table.ctypes.data) + 4 * end, 4 * end)
            end *= 2
        code *= 2
        for _ in range(work[numbers + length]):
            table[_in_stream(code, length)] = _entry(entries, work[place], length)
            code += 1
            place += 1
    if longest > bits and not _build_longer(work, place, code, numbers, entries, bits, longest, table):
        return 0
    if pairs:
        _pair(table, bits)
    return bits


@inlined
def _entry(entries: Any, symbol: int, length: int) -> Any:
    return uint32(int64(entries[symbol, 0]) + length * int64(entries[symbol, 1]))


@compiled
def _build_longer(
    work: Any, place: int, code: int, numbers: int, entries: Any, bits: int, longest: int, table: Any
) -> bool:
    """Fill the subtables of codes that are longer than `bits`: those behind `code`, of the symbols from `place` on.

    False if they do not fit.
    """
    prefix, begin, end, index_bits = -1, 0, 1 << bits, 0
    for length in range(bits + 1, longest + 1):
        code *= 2
        for waiting in range(work[numbers + length], 0, -1):
            first = _in_stream(code >> (length - bits), bits)
            if first != prefix:
                prefix, begin = first, end
                index_bits = length - bits
                room = (1 << index_bits) - waiting
                while index_bits + bits < longest and room > 0:
                    index_bits += 1
                    room = 2 * room - int64(work[numbers + index_bits + bits])
                end += 1 << index_bits
                if end > table.size:
                    return False
                table[first] = uint32(SPECIAL | SUBTABLE | begin << 16 | index_bits << 8 | bits)
            entry = _entry(entries, work[place], length - bits)
            for at in range(_in_stream(code, length) >> bits, 1 << index_bits, 1 << (length - bits)):
                table[begin + at] = entry
            code += 1
            place += 1
    return True


@compiled
def _pair(table: Any, bits: int) -> None:
    """Have entries of literals tell the next literal, too, where both codes fit into the index."""
    for i in range((1 << bits) - 1, -1, -1):  # those that are looked up are still single: i >> n < i, but for 0
        one = int64(table[i])
        if one & SPECIAL:
            continue
        taken = one & 255
        two = int64(table[i >> taken])
        if two & SPECIAL or (two & 255) + taken > bits:
            continue
        table[i] = uint32((two >> 16 & 255) << 24 | (one >> 16 & 255) << 16 | 2 << 8 | (taken + (two & 255)))
