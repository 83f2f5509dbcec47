"""Writing a Huffman-coded scan with restarts (ITU T.81 E.1.4, F.1.2, K.2) in compiled code."""

from typing import Any

import numpy as np

from fastimg.loaders.jpeg.decoding.memory import copy_wide
from fastimg.loaders.jpeg.decoding.vectors import WIDE
from fastimg.loaders.runtime.compiled import compiled, int64, uint64

from .huffman import OK, RANGE, Ints, load
from .markers import Table

_ALL = uint64(0xFFFFFFFFFFFFFFFF)

# The category of the difference of two DC values, each -2048 to 2047, indexed by the difference + 4096.
_CATEGORIES = np.array([abs(i - 4096).bit_length() for i in range(8193)], np.uint8)


@compiled
def category(value: int) -> int:
    """Number of bits of a coefficient's magnitude."""
    value = abs(value)
    size = 0
    while value:
        value >>= 1
        size += 1
    return size


@compiled
def count_dc(dc: Any, owners: Any, tables: Any, interval: int, counts: Any) -> int:
    """Add the DC differences to `counts` [table, category], with a restart every `interval` MCUs."""
    previous = np.zeros(4, np.int64)
    per_mcu = owners.size
    block = 0
    left = 0
    for _ in range(dc.size // per_mcu):
        if left == 0:
            left = interval
            previous[:] = 0
        left -= 1
        for j in range(per_mcu):
            value = int64(dc[block])
            owner = owners[j]
            counts[tables[owner], _CATEGORIES[value - previous[owner] + 4096]] += 1
            previous[owner] = value
            block += 1
    beyond = 0  # not any(): its code would make every process import numba's array functions
    for number in range(len(counts)):
        beyond |= counts[number, 12]
    return OK if beyond == 0 else RANGE


@compiled
def code_lengths(counts: Any, lengths: Any) -> None:
    """Optimal code lengths of the symbols that occur: at most 16 bits, no code of all ones (K.2)."""
    n = counts.size
    weight = np.zeros(n + 1, np.int64)
    for i in range(n):  # numba compiles an assignment of rows for three seconds
        weight[i] = counts[i]
    weight[n] = 1  # reserves the code of all ones
    depth = np.zeros(n + 1, np.int64)
    chain = np.full(n + 1, -1, np.int64)
    while True:
        low, lower = -1, -1  # second smallest and smallest weight; the later symbol of equal ones
        for i in range(n + 1):
            if weight[i] and (lower < 0 or weight[i] <= weight[lower]):
                low, lower = lower, i
            elif weight[i] and (low < 0 or weight[i] <= weight[low]):
                low = i
        if low < 0:
            break
        weight[lower] += weight[low]
        weight[low] = 0
        tail = lower
        depth[tail] += 1
        while chain[tail] >= 0:
            tail = chain[tail]
            depth[tail] += 1
        chain[tail] = low
        tail = low
        depth[tail] += 1
        while chain[tail] >= 0:
            tail = chain[tail]
            depth[tail] += 1
    by_depth = np.zeros(n + 2, np.int64)
    for i in range(n + 1):
        by_depth[depth[i]] += 1
    for i in range(n + 1, 16, -1):  # figure K.3
        while by_depth[i] > 0:
            j = i - 2
            while by_depth[j] == 0:
                j -= 1
            by_depth[i] -= 2
            by_depth[i - 1] += 1
            by_depth[j + 1] += 2
            by_depth[j] -= 1
    longest = min(16, n + 1)
    while by_depth[longest] == 0:
        longest -= 1
    by_depth[longest] -= 1
    # Figure K.4: the shortest codes for the symbols of the least depth, in order.
    length = 1
    left = by_depth[1]
    for level in range(1, n + 2):
        for i in range(n):
            if depth[i] == level:
                while left == 0:
                    length += 1
                    left = by_depth[length]
                lengths[i] = length
                left -= 1


def optimal_table(counts: Ints) -> tuple[Table, Ints, Ints]:
    """The optimal table for symbols that occur `counts` times, and the code and code length of each symbol."""
    codes = np.zeros(counts.size, np.int64)
    lengths = np.zeros(counts.size, np.int64)
    table = np.zeros(16 + counts.size, np.uint8)
    used = canonical(counts, codes, lengths, table)
    return (table[:16].tobytes(), table[16 : 16 + used].tobytes()), codes, lengths


@compiled
def canonical(counts: Any, codes: Any, lengths: Any, table: Any) -> Any:
    """Fill `codes`, `lengths` and `table` (number of codes of 1 to 16 bits, then the symbols); return their count."""
    code_lengths(counts, lengths)
    code, used = 0, 0
    for length in range(1, 17):
        for value in range(counts.size):
            if lengths[value] == length:
                codes[value] = code
                code += 1
                table[length - 1] += 1
                table[16 + used] = value
                used += 1
        code <<= 1
    return used


@compiled
def write_scan(
    data: Any,
    dc: Any,
    begins: Any,
    lengths: Any,
    owners: Any,
    tables: Any,
    interval: int,
    best: Any,
    scratch: Any,
    out: Any,
) -> tuple[int, int]:
    """Count the DC differences, make their tables and write the scan, in one call: each call reacquires the GIL.

    `tables` is the number of each component's DC table; `best` [4, 30] receives the tables as they are stored
    in a file. Returns a status and the number of bytes.
    """
    counts = np.zeros((4, 13), np.int64)
    codes = np.zeros((4, 13), np.int64)
    sizes = np.zeros((4, 13), np.int64)
    status = count_dc(dc, owners, tables, interval, counts)
    if status != OK:
        return status, 0
    for number in range(4):
        used = 0
        for category in range(13):
            used |= counts[number, category]
        if used:
            canonical(counts[number], codes[number], sizes[number], best[number])
    return OK, emit(data, dc, begins, lengths, owners, tables, codes, sizes, interval, scratch, out)


@compiled
def emit(
    data: Any,
    dc: Any,
    begins: Any,
    lengths: Any,
    owners: Any,
    tables: Any,
    codes: Any,
    sizes: Any,
    interval: int,
    scratch: Any,
    out: Any,
) -> Any:
    """Write the scan with a restart every `interval` MCUs; `codes` and `sizes` [table, category] code the DC.

    A tile is assembled in `scratch`, then copied to `out` with stuffing; both need 16 more bytes than they will
    contain. Returns the number of bytes, stuffing and restart markers included.
    """
    previous = np.zeros(4, np.int64)
    per_mcu = owners.size
    block = 0
    stuffed = uint64(0)
    mcus = dc.size // per_mcu
    for tile, first in enumerate(range(0, mcus, interval)):
        previous[:] = 0
        held, pending, at = uint64(0), uint64(0), uint64(0)  # bits that are not written yet, fewer than 8
        for _ in range(first, min(first + interval, mcus)):
            for j in range(per_mcu):
                owner = owners[j]
                value = int64(dc[block])
                difference = value - previous[owner]
                previous[owner] = value
                size = int64(_CATEGORIES[difference + 4096])
                low = (difference + (difference >> 63)) & ((1 << size) - 1)
                count = uint64(sizes[tables[owner], size] + size)  # at most 27
                held |= uint64(codes[tables[owner], size] << size | low) << (uint64(64) - count) >> pending
                pending += count
                store(scratch, at, held)
                at += pending >> uint64(3)
                held <<= pending & uint64(56)
                pending &= uint64(7)
                position = uint64(begins[block])
                left = uint64(lengths[block])
                while left > uint64(56):
                    held |= load(data, position >> uint64(3)) << (position & uint64(7)) >> pending
                    store(scratch, at, held)
                    at += uint64(7)
                    held = held << uint64(56) & ~(_ALL >> pending)
                    position += uint64(56)
                    left -= uint64(56)
                held |= load(data, position >> uint64(3)) << (position & uint64(7)) >> pending
                store(scratch, at, held)
                pending += left
                at += pending >> uint64(3)
                held <<= pending & uint64(56)
                pending &= uint64(7)
                held &= ~(_ALL >> pending)
                block += 1
        if pending:
            scratch[at] = (held | _ALL >> pending) >> uint64(56)
            at += uint64(1)
        stuffed = stuff(scratch, at, out, stuffed)
        if first + interval < mcus:
            out[stuffed], out[stuffed + uint64(1)] = 255, 0xD0 | tile & 7
            stuffed += uint64(2)
    return int64(stuffed)


@compiled
def store(out: Any, at: Any, word: Any) -> None:
    """Write 64 bits, an unsigned number, to the bytes from `at` on."""
    for i in range(8):  # becomes one store
        out[at + uint64(i)] = word >> uint64(56 - 8 * i) & uint64(255)


@compiled
def stuff(source: Any, size: Any, out: Any, at: Any) -> Any:
    """Copy the first `size` bytes of `source` to `out[at:]`, with a 0 after each 255; return where the copy ends."""
    taken, put = uint64(source.ctypes.data), uint64(out.ctypes.data)
    done, wide, one, two = uint64(0), uint64(WIDE), uint64(1), uint64(2)
    while done + wide <= size:  # as many bytes of `out` will be written, at least
        ahead = copy_wide(taken + done, put + at)
        done += ahead
        at += ahead
        if ahead != wide:  # the byte 255 was copied, too
            out[at + one] = 0
            done += one
            at += two
    while done < size:
        word = load(source, done)
        count = min(uint64(8), size - done)
        if (~word - uint64(0x0101010101010101)) & word & uint64(0x8080808080808080) == uint64(0):  # no byte is 255
            store(out, at, word)
            at += count
        else:
            for i in range(count):
                byte = source[done + uint64(i)]
                out[at] = byte
                at += uint64(1)
                if byte == 255:
                    out[at] = 0
                    at += uint64(1)
        done += count
    return at
