"""Huffman codes of a JPEG -> tables of what the next bits mean (ITU T.81 annexes C, F), in compiled code.

A table [TABLE] is indexed by LOOK bits. An entry has the value of a symbol whose code and value fit into them, and that
of the next symbol if both symbols fit.
"""

from typing import Any

from fastimg.loaders.jpeg.decoding.memory import word_at
from fastimg.loaders.runtime.compiled import compiled, inlined, int64, uint64

# The bytes of an entry: the number of its bits; the number of coefficients that its first symbol covers, END at the end
# of a block; the number that all of it covers; the number of bits of the first symbol. Above them are the values of the
# first and of the last symbol, 16 bits each. Without a second symbol, the first is the last.
LOOK = 10
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
            place = (code + i) << max(LOOK - length, 0)
            size = symbol & 15
            unused = LOOK - length - size
            if ac and values and entry != _NONE and unused >= 0:
                for bits in range(1 << size):
                    value = bits if bits >= 1 << size >> 1 else bits + 1 - (1 << size)
                    full = _entry(entry, value if size else 0)
                    for _ in range(1 << unused):
                        table[place] = full
                        place += 1
            elif length <= LOOK:
                for further in range(1 << (LOOK - length)):
                    table[place + further] = entry << 8
        first += count
        code = (code + count) << 1
    if ac and values:
        _add_second_symbols(table)
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
def _add_second_symbols(table: Any) -> None:
    for place in range(SIZE):
        entry = table[place]
        bits = entry & 255
        passed = (entry >> 8) & 255
        if bits == 0 or passed == END:
            continue
        second = table[(place << bits) & (SIZE - 1)]  # its first symbol stays what it was
        both = bits + ((second >> 24) & 255)
        if second & 255 and both <= LOOK:
            passed = passed + ((second >> 8) & 255)
            table[place] = (entry & 0xFFFFFF00FF00) | both | passed << 16 | second >> 32 << 48


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
