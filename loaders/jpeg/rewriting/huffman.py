"""Reading Huffman-coded JPEG scans (ITU T.81 annexes C, F) in compiled code, without decoding AC coefficients.

Moving restarts changes only DC differences; the bits of a block's AC coefficients are copied unchanged. So `walk`
records each block's DC value and the position of its AC bits, and `restarts` writes them again with new DC tables.

No read leaves its array: the bits are followed by `PAD` zero bytes, more than one block can take, and each block that
began inside its interval is checked to end inside it before the next one is read.
"""

from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from fastimg.loaders.runtime.compiled import compiled, inlined, int64, uint64

from .markers import Table

Bits = npt.NDArray[np.uint8]  # a scan's bits without stuffing, followed by PAD zero bytes
Words = npt.NDArray[np.uint64]  # the same bits, the first one highest
Ints = npt.NDArray[np.int64]

PAD = 512  # bytes: a block takes at most 16 + 11 + 63 * (16 + 16) bits
LOOK = 11  # bits that are looked up at once
_SIZE = 1 << LOOK

# A table is a row of int32: symbols by LOOK bits, then the entries for longer codes.
_SYMBOL = 0
_LAST = _SIZE
_OFFSET = _SIZE + 17
_SYMBOLS = _SIZE + 34
_ROW = _SYMBOLS + 256

# A row of uint16 holds runs of AC symbols by RUN_LOOK bits: the number of bits of their codes and values, and << 6 the
# number of coefficients that they cover, plus _ENDED if the block ends with them; _NONE if the first code is longer.
# Of 11 to 14 bits, 12 are the fastest: two such rows and everything else fit in a 32 KB cache.
RUN_LOOK = 12
_ENDED, _NONE = 128, 64


class Coded(NamedTuple):
    """The blocks of an interleaved sequential scan, in its order."""

    bits: Bits
    dc: npt.NDArray[np.int32]
    begins: Ints  # the bit at which a block's AC bits begin
    lengths: npt.NDArray[np.int32]  # number of AC bits of a block
    total: int  # number of AC bits of all blocks


OK, DAMAGED, RANGE = 0, 1, 2  # what the compiled functions return


@lru_cache(maxsize=256)  # encoders reuse the same tables; a row is 9 KB
def lookup(table: Table) -> npt.NDArray[np.int32]:
    """A Huffman table as the row that the compiled functions read."""
    row = np.empty(_ROW, np.int32)
    _fill_row(np.frombuffer(table[0] + table[1], np.uint8), 0, row)
    row.flags.writeable = False
    return row


@compiled
def _fill_row(data: Any, at: int, row: Any) -> None:
    """Fill a row [_ROW] from the 16 counts and the symbols at `data[at]`, which are a valid code."""
    for entry in range(_ROW):
        row[entry] = 0
    code, first = 0, 0
    for length in range(1, 17):
        count = int64(data[at + length - 1])
        row[_LAST + length] = code + count - 1 if count else -1
        row[_OFFSET + length] = first - code
        for i in range(count):
            symbol = int64(data[at + 16 + first + i])
            row[_SYMBOLS + first + i] = symbol
            if length <= LOOK:
                begin = (code + i) << (LOOK - length)
                for entry in range(begin, begin + (1 << (LOOK - length))):
                    row[_SYMBOL + entry] = length | symbol << 8
        first += count
        code = (code + count) << 1


@compiled
def _fill_runs(data: Any, at: int, levels: Any, row: Any) -> None:
    """Fill a row of runs [1 << RUN_LOOK] from the counts and symbols at `data[at]`.

    An entry has as many symbols as have their codes in these bits; the last one's value may lie outside. Those behind
    the first symbol are taken from the runs of fewer bits: of n bits from place 1 << n of `levels` [1 << RUN_LOOK] on.
    """
    for place in range(1 << RUN_LOOK):
        levels[place] = row[place] = 0
    least = _least_bits(data, at)
    for bits in range(1, RUN_LOOK + 1):
        if RUN_LOOK - least < bits < RUN_LOOK:  # behind no symbol are so many bits
            continue
        filled, begin = (row, 0) if bits == RUN_LOOK else (levels, 1 << bits)
        code, first = 0, 0
        for length in range(1, bits + 1):
            count = int64(data[at + length - 1])
            for i in range(count):
                coded = int64(data[at + 16 + first + i])
                size = coded & 15
                place = begin + ((code + i) << (bits - length))
                entries = 1 << (bits - length)
                entry = (length + size) | ((coded >> 4) + 1) << 6
                if coded == 0:
                    entry = length | _ENDED << 6
                if size == 0 and coded != 0 and coded != 0xF0:
                    continue  # no such symbol
                if coded == 0 or length + size >= bits:
                    for further in range(entries):
                        filled[place + further] = entry
                else:
                    _fill_further(levels, entries >> size, filled, place, entries, entry)
            first += count
            code = (code + count) << 1
    for place in range(1 << RUN_LOOK):
        if row[place] == 0:
            row[place] = _NONE << 6


@inlined
def _least_bits(data: Any, at: int) -> Any:
    """The number of bits of the shortest symbol with its value, except for the end of a block."""
    least, first = RUN_LOOK, 0
    for length in range(1, 17):
        count = int64(data[at + length - 1])
        for i in range(count):
            coded = int64(data[at + 16 + first + i])
            if coded != 0:
                least = min(least, length + (coded & 15))
        first += count
    return least


@inlined
def _fill_further(levels: Any, behind: int, filled: Any, place: int, entries: int, entry: int) -> None:
    """Fill `entries` from `place` on: a symbol, and after each of its values the runs of the bits behind it."""
    for begin in range(place, place + entries, behind):
        for rest in range(behind):
            further = int64(levels[behind + rest])
            fits = (further >> 6 & 63) + (entry >> 6) < 64
            filled[begin + rest] = entry + further if fits else entry


@compiled
def skip(data: Any, begin: int) -> Any:
    """The position of the first byte 255 at or after `begin`; the end of the data if there is none."""
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
    """Copy a scan's bytes from `data[at]` to `clean`, without stuffing and restart markers, then PAD zeros.

    Interval i begins at `clean[bounds[i]]`; the last entry of `bounds` is the end of the data. Returns the number of
    intervals, 0 if the data is damaged, and the position of the marker that ends the scan.
    """
    size = data.size
    n = 0
    intervals = 0
    bounds[0] = 0
    while True:
        stop = skip(data, at)
        source = data[at:stop]
        target = clean[n : n + stop - at]
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
def load(data: Any, at: Any) -> Any:
    """The 64 bits that begin at byte `at`, as an unsigned number."""
    word = uint64(0)
    for i in range(8):  # becomes one load
        word |= uint64(data[at + uint64(i)]) << uint64(56 - 8 * i)
    return word


@compiled
def window(words: Any, position: int) -> Any:
    """The 64 bits that begin at bit `position`."""
    word = uint64(position) >> uint64(6)
    shift = uint64(position & 63)
    return (words[word] << shift) | ((words[word + uint64(1)] >> uint64(1)) >> (uint64(63) - shift))


@compiled
def symbol(bits: Any, rows: Any, number: Any) -> Any:
    """The first code of table `number` in `bits`: its length, and its symbol << 8. 0 if there is no such code.

    A row by itself would be counted as a reference to its array, in each call and by all threads.
    """
    entry = int64(rows[number, bits >> uint64(64 - LOOK)])
    if entry:
        return entry
    for length in range(LOOK + 1, 17):
        code = int64(bits >> uint64(64 - length))
        if code <= rows[number, _LAST + length]:
            return length | int64(rows[number, _SYMBOLS + ((rows[number, _OFFSET + length] + code) & 255)]) << 8
    return 0


@compiled
def signed(bits: Any, size: int) -> Any:
    """The value of the first `size` bits, 1 to 16, of `bits` (table F.1)."""
    value = int64(bits >> uint64(64 - size))
    return value if value >> (size - 1) else value - (1 << size) + 1


@compiled
def walk(
    data: Any,
    bounds: Any,
    interval: int,
    owners: Any,
    numbers: Any,
    dc_rows: Any,
    ac_rows: Any,
    runs: Any,
    dc: Any,
    begins: Any,
    lengths: Any,
) -> tuple[int, int]:
    """Go through an interleaved sequential scan, and record the DC value and the AC bits' position of each block.

    `owners` is the component of each block of an MCU; `numbers` [2, components] are the rows of its tables of DC and
    AC. Returns a status and the total number of AC bits.

    `held` contains the next bits, the first one highest; at least `left` of them are valid, and `at` is the byte after
    those. A refill leaves 56 or more. Between two refills at most these are consumed: a DC difference of 27 bits and a
    run of 27, or two runs of 27. A symbol that is too long for the runs, 31 bits with its value, has a refill before
    and after it.
    """
    previous = np.zeros(4, np.int64)
    per_mcu = owners.size
    block = 0
    total = uint64(0)
    for i in range(bounds.size - 1):
        end = uint64(bounds[i + 1]) << uint64(3)
        at = uint64(bounds[i])
        held = load(data, at)
        left = uint64(64)
        at += uint64(8)
        previous[:] = 0
        stop = min(block + interval * per_mcu, dc.size)
        while block < stop:
            for j in range(per_mcu):
                owner = owners[j]
                number = uint64(numbers[1, owner])
                entry = symbol(held, dc_rows, uint64(numbers[0, owner]))
                size = entry >> 8
                if entry == 0 or size > 11:
                    return DAMAGED, 0
                value = held << uint64(entry & 255)
                negative = int64(value >> uint64(63)) - 1  # all bits set, or none
                previous[owner] += int64(value >> uint64(1) >> uint64(63 - size)) + (negative & (1 - (1 << size)))
                if abs(previous[owner]) > 2047:
                    return RANGE, 0
                dc[block] = previous[owner]
                held <<= uint64((entry & 255) + size)
                left -= uint64((entry & 255) + size)
                begin = (at << uint64(3)) - left
                begins[block] = begin
                k = uint64(1)
                while True:
                    run = uint64(runs[number, held >> uint64(64 - RUN_LOOK)])
                    after = k + (run >> uint64(6))
                    if after < uint64(64):
                        k = after
                        held <<= run & uint64(63)
                        left -= run & uint64(63)
                        held |= load(data, at) >> left
                        at += (uint64(63) - left) >> uint64(3)
                        left |= uint64(56)
                        run = uint64(runs[number, held >> uint64(64 - RUN_LOOK)])
                        after = k + (run >> uint64(6))
                        if after < uint64(64):
                            k = after
                            held <<= run & uint64(63)
                            left -= run & uint64(63)
                            continue
                    if after == uint64(64) or uint64(_ENDED) < after < uint64(_ENDED + 64):
                        held <<= run & uint64(63)
                        left -= run & uint64(63)
                        break
                    # A long code, or the block ends inside the run.
                    held |= load(data, at) >> left
                    at += (uint64(63) - left) >> uint64(3)
                    left |= uint64(56)
                    entry = symbol(held, ac_rows, number)
                    size = entry >> 8 & 15
                    if entry == 0:
                        return DAMAGED, 0
                    held <<= uint64((entry & 255) + size)
                    left -= uint64((entry & 255) + size)
                    if entry >> 8 == 0:
                        break
                    k += uint64((entry >> 12) + 1)
                    if k > uint64(64) or (size == 0 and entry >> 12 != 15):
                        return DAMAGED, 0
                    if k == uint64(64):
                        break
                    held |= load(data, at) >> left
                    at += (uint64(63) - left) >> uint64(3)
                    left |= uint64(56)
                position = (at << uint64(3)) - left
                if position > end:
                    return DAMAGED, 0
                lengths[block] = position - begin
                total += position - begin
                held |= load(data, at) >> left
                at += (uint64(63) - left) >> uint64(3)
                left |= uint64(56)
                block += 1
        if end - ((at << uint64(3)) - left) >= uint64(8):  # more data than the blocks need
            return DAMAGED, 0
    return (OK if block == dc.size else DAMAGED), int64(total)


@compiled
def read_scan(
    data: Any,
    at: int,
    clean: Any,
    bounds: Any,
    interval: int,
    owners: Any,
    numbers: Any,
    places: Any,
    dc: Any,
    begins: Any,
    lengths: Any,
) -> tuple[int, int, int]:
    """`unstuff`, the tables and `walk` in one call, because each call reacquires the GIL.

    `places` [2, 4] are where `data` has the tables of DC and AC of each number, 0 for none. Returns a status, the
    number of AC bits, and the position of the next marker.
    """
    intervals, end = unstuff(data, at, clean, bounds)
    if intervals != bounds.size - 1:
        return DAMAGED, 0, end
    dc_rows, ac_rows = np.empty((4, _ROW), np.int32), np.empty((4, _ROW), np.int32)
    runs, levels = np.empty((4, 1 << RUN_LOOK), np.uint16), np.empty(1 << RUN_LOOK, np.uint16)
    for number in range(4):
        if places[0, number]:
            _fill_row(data, places[0, number], dc_rows[number])
        if places[1, number]:
            _fill_row(data, places[1, number], ac_rows[number])
            _fill_runs(data, places[1, number], levels, runs[number])
    status, total = walk(clean, bounds, interval, owners, numbers, dc_rows, ac_rows, runs, dc, begins, lengths)
    return status, total, end
