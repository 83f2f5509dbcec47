"""Reading Huffman-coded JPEG scans (ITU T.81 annexes C, F) in compiled code: symbols are walked over, not decoded.

Moving restarts changes only DC differences: the bits of a block's AC coefficients are copied as they are. So a walk
notes each block's DC value and where its AC bits lie; `restarts` writes them out again under new DC tables.

No read can leave its array: bits are read from an array of words that ends in `PAD` zero bytes, more than one block
can take; a block that began inside its interval is checked to have ended inside it before the next one is read.
"""

from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from .compiled import compiled, int64, uint64
from .jpeg import Table

Words = npt.NDArray[np.uint64]  # the scan's bits without stuffing, first bit highest, and PAD zero bytes
Ints = npt.NDArray[np.int64]

PAD = 512  # bytes: a block takes at most 16 + 11 + 63 * (16 + 16) bits
LOOK = 11  # bits looked up at once
_SIZE = 1 << LOOK

# A row of int32 holds a table: symbols by LOOK bits, runs of AC symbols by LOOK bits, then what long codes need.
_SYMBOL, _RUN, _LAST, _OFFSET, _SYMBOLS = 0, _SIZE, 2 * _SIZE, 2 * _SIZE + 17, 2 * _SIZE + 34
_ROW = _SYMBOLS + 256

OK, DAMAGED, RANGE = 0, 1, 2  # what the compiled functions return


@lru_cache(maxsize=256)  # encoders use the same tables over and over; a row is 17 KB
def lookup(table: Table) -> npt.NDArray[np.int32]:
    """The row that the compiled functions read a table from."""
    row = np.zeros(_ROW, np.int32)
    symbols = np.frombuffer(table[1], np.uint8).astype(np.int64)
    _fill_row(np.frombuffer(table[0], np.uint8).astype(np.int64), symbols, row)
    row.flags.writeable = False
    return row


def lookups(tables: list[Table]) -> npt.NDArray[np.int32]:
    """Rows of several tables [n, ...]."""
    return np.stack([lookup(table) for table in tables])


@compiled
def _fill_row(counts: Any, symbols: Any, row: Any) -> None:
    code, first = 0, 0
    for length in range(1, 17):
        count = counts[length - 1]
        row[_LAST + length] = code + count - 1 if count else -1
        row[_OFFSET + length] = first - code
        for i in range(count):
            symbol = symbols[first + i]
            row[_SYMBOLS + first + i] = symbol
            if length <= LOOK:
                begin = (code + i) << (LOOK - length)
                for entry in range(begin, begin + (1 << (LOOK - length))):
                    row[_SYMBOL + entry] = length | symbol << 8
        first += count
        code = (code + count) << 1
    for bits in range(_SIZE):  # as many AC symbols as have their codes in `bits`; the last one's value may lie outside
        used, run, end = 0, 0, 0
        while used < LOOK and end == 0:
            entry = row[_SYMBOL + (bits << used & (_SIZE - 1))]
            length, symbol = entry & 255, entry >> 8
            if entry == 0 or used + length > LOOK or (symbol & 15 == 0 and symbol != 0 and symbol != 0xF0):
                break
            if symbol == 0:
                end = 1
            else:
                run += (symbol >> 4) + 1
            used += length + (symbol & 15)
        row[_RUN + bits] = used | run << 8 | end << 16


@compiled
def skip(data: Any, begin: int) -> Any:
    """Where the first byte of 255 stands from `begin` on; the end of the data where there is none."""
    at, size = uint64(begin), uint64(data.size)  # unsigned: no test for negative indices
    while at + uint64(8) <= size:
        word = uint64(0)
        for i in range(8):  # becomes one load
            word |= uint64(data[at + uint64(i)]) << uint64(8 * i)
        inverse = ~word
        if (inverse - uint64(0x0101010101010101)) & word & uint64(0x8080808080808080):
            break
        at += uint64(8)
    while at < size and data[at] != 255:
        at += uint64(1)
    return int64(at)


@compiled
def unstuff(data: Any, at: int, clean: Any, bounds: Any) -> tuple[int, int]:
    """Copy a scan's bytes from `data[at]` to `clean`, without stuffing and restart markers, and PAD zeros behind.

    `bounds[i]` is where interval i begins in `clean`, the last entry where the data ends. Returns the number of
    intervals, and where the marker stands that ends the scan. No intervals: damaged.
    """
    size, n, intervals = data.size, 0, 0
    bounds[0] = 0
    while True:
        stop = skip(data, at)
        source, target = data[at:stop], clean[n : n + stop - at]
        for i in range(stop - at):
            target[i] = source[i]
        n += stop - at
        at = stop
        if at + 2 > size:
            return 0, at
        marker = data[at + 1]
        if marker == 0:
            clean[n] = 255
            n += 1
            at += 2
            continue
        begin = at
        while at + 2 <= size and data[at + 1] == 255:  # fill bytes
            at += 1
        if at + 2 > size or data[at + 1] == 0:  # stuffing after fill bytes: decoders disagree
            return 0, at
        intervals += 1
        if intervals >= bounds.size:
            return 0, at
        bounds[intervals] = n
        marker = data[at + 1]
        if marker < 0xD0 or marker > 0xD7:
            clean[n : n + PAD] = 0
            return intervals, begin
        if marker & 7 != (intervals - 1) & 7:
            return 0, at
        at += 2


@compiled
def window(words: Any, position: int) -> Any:
    """The 64 bits that begin at bit `position`."""
    word, shift = uint64(position) >> uint64(6), uint64(position & 63)
    return (words[word] << shift) | ((words[word + uint64(1)] >> uint64(1)) >> (uint64(63) - shift))


@compiled
def symbol(bits: Any, row: Any) -> Any:
    """The code at the head of `bits`: its length, and its symbol << 8. 0 where there is no such code."""
    entry = int64(row[_SYMBOL + int64(bits >> uint64(64 - LOOK))])
    if entry:
        return entry
    for length in range(LOOK + 1, 17):
        code = int64(bits >> uint64(64 - length))
        if code <= row[_LAST + length]:
            return length | int64(row[_SYMBOLS + ((row[_OFFSET + length] + code) & 255)]) << 8
    return 0


@compiled
def signed(bits: Any, size: int) -> Any:
    """The value whose `size` bits, 1 to 16, stand at the head of `bits` (table F.1)."""
    value = int64(bits >> uint64(64 - size))
    return value if value >> (size - 1) else value - (1 << size) + 1


@compiled
def walk(
    words: Any, bounds: Any, interval: int, owners: Any, dc_rows: Any, ac_rows: Any, dc: Any, begins: Any, lengths: Any
) -> int:
    """Walk over an interleaved sequential scan: per block its DC value, where its AC bits begin and how many they are.

    `owners` is the component of each block of an MCU, the rows are the components' tables.
    """
    previous = np.zeros(4, np.int64)
    per_mcu, block = owners.size, 0
    for i in range(bounds.size - 1):
        position, end = bounds[i] * 8, bounds[i + 1] * 8
        previous[:] = 0
        stop = min(block + interval * per_mcu, dc.size)
        while block < stop:
            for j in range(per_mcu):
                owner = owners[j]
                bits = window(words, position)
                entry = symbol(bits, dc_rows[owner])
                size = entry >> 8
                if entry == 0 or size > 11:
                    return DAMAGED
                if size:
                    previous[owner] += signed(bits << uint64(entry & 255), size)
                if abs(previous[owner]) > 2047:
                    return RANGE
                dc[block] = previous[owner]
                position += (entry & 255) + size
                begins[block] = position
                row = ac_rows[owner]
                k = 1
                while k < 64:
                    bits = window(words, position)
                    run = int64(row[_RUN + int64(bits >> uint64(64 - LOOK))])
                    after = k + (run >> 8 & 255)
                    if run and after + (run >> 16) <= 64:
                        k = after
                        position += run & 255
                        if run >> 16:
                            break
                        continue
                    entry = symbol(bits, row)  # a long code, or the block ends without saying so
                    size = entry >> 8 & 15
                    if entry == 0:
                        return DAMAGED
                    position += (entry & 255) + size
                    if entry >> 8 == 0:
                        break
                    k += (entry >> 12) + 1
                    if k > 64 or (size == 0 and entry >> 12 != 15):
                        return DAMAGED
                lengths[block] = position - begins[block]
                if position > end:
                    return DAMAGED
                block += 1
        if end - position >= 8:  # more data than the blocks needed
            return DAMAGED
    return OK if block == dc.size else DAMAGED
