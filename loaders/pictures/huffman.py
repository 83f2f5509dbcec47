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

from fastimg.loaders.runtime.compiled import compiled, int64, uint32

SPECIAL, SUBTABLE, END = 0x8000, 0x4000, 0x2000
INVALID = SPECIAL | SUBTABLE | END  # no code begins like this

LITERALS, LENGTHS, DISTANCES = 256, 29, 30  # symbols
MOST_BITS = 15  # of a code
LITERAL_BITS, DISTANCE_BITS = 12, 8  # of the index of a main table
WORK = 64 + 320  # numbers that making a table takes
SIZE = 1 << 13  # entries of a table with its subtables: more than any complete code needs


def _table(first: int, extras: list[int]) -> Any:
    """The least value of each symbol and its extra bits, [k, 2]."""
    rows, value = [], first
    for extra in extras:
        rows.append((value, extra))
        value += 1 << extra
    return np.array(rows, np.int64)


_LENGTHS = _table(3, [0] * 8 + [bits for bits in range(1, 6) for _ in range(4)])
_LENGTHS = np.concatenate([_LENGTHS, [[258, 0]]])
_DISTANCES = _table(1, [0, 0] + [bits for bits in range(14) for _ in range(2)])


@compiled
def build(lengths: Any, count: int, bits: int, literals: bool, pairs: bool, work: Any, table: Any) -> int:
    """Fill the table of a code whose symbols have these lengths [count]; its main part has 2^bits entries.

    `literals`: symbols are literals, the end of a block, and lengths; otherwise they are distances. `work` int64 [WORK]
    is scratch. Returns the bits of the main table's index, which are fewer if no code is that long; 0 for a code that
    is not complete or has too many symbols. A single distance may have a code of one bit.
    """
    numbers, starts, ordered = work[:32], work[32:64], work[64:]
    for i in range(MOST_BITS + 2):
        numbers[i] = starts[i] = 0
    for symbol in range(count):
        numbers[lengths[symbol]] += 1
    longest = MOST_BITS
    while longest > 0 and numbers[longest] == 0:
        longest -= 1
    left = 1
    for length in range(1, MOST_BITS + 1):
        left = 2 * left - numbers[length]
        if left < 0:
            return 0
    if left > 0 and (literals or longest > 1):
        return 0
    bits = min(bits, max(longest, 1))
    if left > 0:  # of distances: none, or a single one
        for i in range(1 << bits):
            table[i] = uint32(INVALID)
    for length in range(1, MOST_BITS + 1):
        starts[length + 1] = starts[length] + numbers[length]
    for symbol in range(count):
        if lengths[symbol]:
            ordered[starts[lengths[symbol]]] = symbol
            starts[lengths[symbol]] += 1
    used = starts[MOST_BITS]  # symbols that have a code
    code, end = 0, 1 << bits  # the code with its first bit lowest; where the next subtable begins
    prefix, begin, index_bits = -1, 0, 0
    for i in range(used):
        symbol = ordered[i]
        length = lengths[symbol]
        if length <= bits:
            entry = uint32(_entry(symbol, length, literals))
            place = code
            while place < 1 << bits:
                table[place] = entry
                place += 1 << length
        else:
            first = code & ((1 << bits) - 1)
            if first != prefix:
                prefix, begin = first, end
                index_bits = length - bits
                room = 1 << index_bits
                while index_bits + bits < longest:
                    room -= numbers[index_bits + bits]
                    if room <= 0:
                        break
                    index_bits += 1
                    room *= 2
                end += 1 << index_bits
                if end > table.size:
                    return 0
                table[first] = uint32(SPECIAL | SUBTABLE | begin << 16 | index_bits << 8 | bits)
            entry = uint32(_entry(symbol, length - bits, literals))
            place = code >> bits
            while place < 1 << index_bits:
                table[begin + place] = entry
                place += 1 << (length - bits)
        numbers[length] -= 1
        step = 1 << (length - 1)
        while code & step:
            step >>= 1
        code = (code & (step - 1)) + step if step else 0
    if pairs:
        _pair(table, bits)
    return bits


@compiled
def _entry(symbol: int, length: int, literals: bool) -> int:
    if literals and symbol < LITERALS:
        return int(symbol << 16 | 1 << 8 | length)
    if literals and symbol == LITERALS:
        return int(SPECIAL | END | length)
    number = symbol - LITERALS - 1 if literals else symbol
    if number >= (LENGTHS if literals else DISTANCES):
        return INVALID
    least, extra = (
        (_LENGTHS[number, 0], _LENGTHS[number, 1]) if literals else (_DISTANCES[number, 0], _DISTANCES[number, 1])
    )
    return int(least << 16 | SPECIAL | length << 8 | (length + extra))


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
