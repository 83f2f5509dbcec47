"""Quantised coefficients -> the AC bits of a sequential scan (ITU T.81 F.1.2.2), in compiled code."""

from typing import Any

import numpy as np

from fastimg.loaders.runtime.compiled import compiled, int64, uint64

from .coefficients import Plane
from .huffman import OK, RANGE, Coded
from .markers import Frame, Reason, Table, Untileable
from .restarts import category, optimal_table


def recode(planes: list[Plane], frame: Frame) -> tuple[Coded, list[Table]]:
    """The coefficients as an interleaved scan, its AC bits coded with two optimal tables: first component, all others.

    Raises Untileable for coefficients that baseline cannot code.
    """
    blocks = _interleaved(planes, frame)
    tables = np.minimum(np.array(frame.owners), 1)
    counts = np.zeros((2, 256), np.int64)
    if _count_ac(blocks, tables, counts) != OK:
        raise Untileable(Reason.RANGE)
    codes = np.zeros((2, 256), np.int64)
    sizes = np.zeros((2, 256), np.int64)
    best: list[Table] = []
    for i in range(int(tables.max()) + 1):
        table, codes[i], sizes[i] = optimal_table(counts[i])
        best.append(table)
    total = int((counts * (sizes + (np.arange(256) & 15))).sum())
    words = np.zeros(total // 64 + 4, np.uint64)
    begins = np.zeros(len(blocks), np.int64)
    lengths = np.zeros(len(blocks), np.int32)
    _write_ac(blocks, tables, codes, sizes, words, begins, lengths)
    return Coded(words.astype(">u8").view(np.uint8), blocks[:, 0].astype(np.int32), begins, lengths, total), best


def _interleaved(planes: list[Plane], frame: Frame) -> Plane:
    """All blocks in the order of an interleaved scan [n, 64]."""
    columns, rows = frame.mcus
    if frame.gray:
        return planes[0].reshape(-1, 64)
    pieces = [
        plane.reshape(rows, c.v, columns, c.h, 64).transpose(0, 2, 1, 3, 4).reshape(rows * columns, c.v * c.h, 64)
        for plane, c in zip(planes, frame.components, strict=True)
    ]
    return np.ascontiguousarray(np.concatenate(pieces, axis=1).reshape(-1, 64))


@compiled
def _count_ac(blocks: Any, tables: Any, counts: Any) -> int:
    """Add the AC symbols to `counts` [table, symbol]."""
    for n in range(blocks.shape[0]):
        table = tables[n % tables.size]
        run = 0
        for k in range(1, 64):
            value = int64(blocks[n, k])
            if value == 0:
                run += 1
                continue
            while run > 15:
                counts[table, 0xF0] += 1
                run -= 16
            size = category(value)
            if size > 10:
                return RANGE
            counts[table, run << 4 | size] += 1
            run = 0
        if run:
            counts[table, 0] += 1
    return OK


@compiled
def _write_ac(blocks: Any, tables: Any, codes: Any, sizes: Any, words: Any, begins: Any, lengths: Any) -> None:
    position = 0
    for n in range(blocks.shape[0]):
        table = tables[n % tables.size]
        run = 0
        begins[n] = position
        for k in range(1, 64):
            value = int64(blocks[n, k])
            if value == 0:
                run += 1
                continue
            while run > 15:
                position = _append(words, position, codes[table, 0xF0], sizes[table, 0xF0])
                run -= 16
            size = category(value)
            coded = run << 4 | size
            bits = value if value > 0 else value + (1 << size) - 1
            position = _append(words, position, codes[table, coded] << size | bits, sizes[table, coded] + size)
            run = 0
        if run:
            position = _append(words, position, codes[table, 0], sizes[table, 0])
        lengths[n] = position - begins[n]


@compiled
def _append(words: Any, position: int, bits: int, count: int) -> int:
    """Write `count` bits, at most 32, at bit `position`; the words must be zero from there on."""
    word = position >> 6
    shift = position & 63
    aligned = uint64(bits) << uint64(64 - count)
    words[word] |= aligned >> uint64(shift)
    words[word + 1] |= aligned << uint64(63 - shift) << uint64(1)
    return position + count
