"""Writing a Huffman-coded scan with restarts (ITU T.81 E.1.4, F.1.2, K.2) in compiled code."""

from typing import Any

import numpy as np

from .compiled import compiled, int64, uint32, uint64
from .huffman import OK, RANGE, Ints, window
from .jpeg import Table


@compiled
def category(value: int) -> int:
    """Bits of a coefficient's magnitude."""
    value, size = abs(value), 0
    while value:
        value >>= 1
        size += 1
    return size


@compiled
def count_dc(dc: Any, owners: Any, tables: Any, interval: int, counts: Any) -> int:
    """Add to `counts` [table, category] the DC differences under restarts every `interval` MCUs."""
    previous = np.zeros(4, np.int64)
    per_mcu = owners.size
    for mcu in range(dc.size // per_mcu):
        if mcu % interval == 0:
            previous[:] = 0
        for j in range(per_mcu):
            value, owner = int64(dc[mcu * per_mcu + j]), owners[j]
            size = category(value - previous[owner])
            if size > 11:
                return RANGE
            previous[owner] = value
            counts[tables[owner], size] += 1
    return OK


@compiled
def code_lengths(counts: Any, lengths: Any) -> None:
    """Optimal code lengths of the symbols that occur: at most 16 bits, no code of all ones (K.2)."""
    n = counts.size
    weight = np.zeros(n + 1, np.int64)
    weight[:n] = counts
    weight[n] = 1  # reserves the code of all ones
    depth, chain = np.zeros(n + 1, np.int64), np.full(n + 1, -1, np.int64)
    while True:
        low, lower = -1, -1  # second smallest and smallest weight; of equal ones the later symbol
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
    # Figure K.4: the shortest codes to the symbols that were shallowest, in their order.
    length, left = 1, by_depth[1]
    for level in range(1, n + 2):
        for i in range(n):
            if depth[i] == level:
                while left == 0:
                    length += 1
                    left = by_depth[length]
                lengths[i] = length
                left -= 1


def optimal_table(counts: Ints) -> tuple[Table, Ints, Ints]:
    """The best table for symbols that occur `counts` times; the code and the code length of each symbol."""
    lengths = np.zeros(len(counts), np.int64)
    code_lengths(counts, lengths)
    codes = np.zeros(len(counts), np.int64)
    order = sorted(np.flatnonzero(lengths).tolist(), key=lambda s: (lengths[s], s))
    code, length = 0, 0
    for value in order:
        code <<= int(lengths[value]) - length
        length = int(lengths[value])
        codes[value] = code
        code += 1
    return (bytes(np.bincount(lengths, minlength=17)[1:17].tolist()), bytes(order)), codes, lengths


@compiled
def emit(
    words: Any,
    dc: Any,
    begins: Any,
    lengths: Any,
    owners: Any,
    tables: Any,
    codes: Any,
    sizes: Any,
    interval: int,
    out: Any,
) -> int:
    """Write the scan with a restart every `interval` MCUs; `codes` and `sizes` [table, category] code the DC.

    Returns the number of bytes, stuffing and restart markers included.
    """
    previous = np.zeros(4, np.int64)
    per_mcu, at, tile = owners.size, 0, 0
    held, pending = uint64(0), 0  # bits not yet written: fewer than 32
    mcus = dc.size // per_mcu
    for mcu in range(mcus):
        for j in range(per_mcu):
            block, owner = mcu * per_mcu + j, owners[j]
            difference = int64(dc[block]) - previous[owner]
            previous[owner] = dc[block]
            size = category(difference)
            value = difference if difference >= 0 else difference + (1 << size) - 1
            count = sizes[tables[owner], size] + size  # at most 27
            held = held << uint64(count) | uint64(codes[tables[owner], size] << size | value)
            pending += count
            if pending >= 32:
                pending -= 32
                at = _put(out, at, held >> uint64(pending))
            position, left = begins[block], int64(lengths[block])
            while left > 0:
                count = min(left, 32)
                held = held << uint64(count) | window(words, position) >> uint64(64 - count)
                position += count
                left -= count
                pending += count
                if pending >= 32:
                    pending -= 32
                    at = _put(out, at, held >> uint64(pending))
        if (mcu + 1) % interval == 0 or mcu + 1 == mcus:
            ones = -pending & 7
            held = held << uint64(ones) | uint64((1 << ones) - 1)
            pending += ones
            while pending:
                pending -= 8
                byte = held >> uint64(pending) & uint64(255)
                out[at] = byte
                at += 1
                if byte == 255:
                    out[at] = 0
                    at += 1
            if mcu + 1 < mcus:
                out[at], out[at + 1] = 255, 0xD0 | tile & 7
                at += 2
            tile += 1
            previous[:] = 0
    return at


@compiled
def _put(out: Any, at: int, bits: Any) -> int:
    """Write the low 32 bits, stuffed."""
    word = uint32(bits & uint64(0xFFFFFFFF))
    inverse = ~word
    if (inverse - uint32(0x01010101)) & word & uint32(0x80808080) == 0:  # no byte is 255
        out[at] = word >> uint32(24)
        out[at + 1] = word >> uint32(16) & uint32(255)
        out[at + 2] = word >> uint32(8) & uint32(255)
        out[at + 3] = word & uint32(255)
        return at + 4
    for shift in (24, 16, 8, 0):
        byte = word >> uint32(shift) & uint32(255)
        out[at] = byte
        at += 1
        if byte == 255:
            out[at] = 0
            at += 1
    return at
