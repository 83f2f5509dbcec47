"""The checksums of PNG: CRC-32 of a chunk (PNG, 3rd edition, 5.5), and Adler-32 of all that is inflated (RFC 1950)."""

from typing import Any

import numpy as np

from fastimg.loaders.jpeg.decoding.memory import byte_at, bytes_at, word_at
from fastimg.loaders.runtime.compiled import compiled, int64, uint64

_POLYNOMIAL = 0xEDB88320
_STEP = 16  # bytes at a time
_BASE = 65521
_BLOCK = 4096  # bytes whose weighted sum fits into 32 bits


def _tables() -> Any:
    """The remainders of a byte that is followed by 0 to 15 others, [16, 256]."""
    first = np.arange(256, dtype=np.uint64)
    for _ in range(8):
        first = np.where(first & 1, first >> 1 ^ _POLYNOMIAL, first >> 1).astype(np.uint64)
    tables = [first]
    for _ in range(_STEP - 1):
        tables.append(first[tables[-1] & 255] ^ tables[-1] >> 8)
    return np.array(tables).astype(np.uint32)


_TABLES = _tables()


@compiled
def crc32(address: int, size: int) -> int:
    """The CRC-32 of the bytes at an address."""
    value = uint64(0xFFFFFFFF)
    at, end = address, address + size
    low = uint64(255)
    while at + _STEP <= end:
        one, two = word_at(at) ^ value, word_at(at + 8)
        value = uint64(0)
        for i in range(8):
            value ^= uint64(_TABLES[15 - i, one >> uint64(8 * i) & low])
            value ^= uint64(_TABLES[7 - i, two >> uint64(8 * i) & low])
        at += _STEP
    while at < end:
        value = uint64(_TABLES[0, (value ^ byte_at(at)) & low]) ^ value >> uint64(8)
        at += 1
    return int(value ^ uint64(0xFFFFFFFF))


@compiled
def adler32(address: int, size: int) -> int:
    """The Adler-32 of the bytes at an address."""
    first, second = 1, 0
    data = bytes_at(address, size)
    for begin in range(0, size, _BLOCK):
        count = min(_BLOCK, size - begin)
        total, weighted = np.uint32(0), np.uint32(0)
        for i in range(count):
            value = np.uint32(data[begin + i])
            total = np.uint32(total + value)
            weighted = np.uint32(weighted + np.uint32(np.uint32(count - i) * value))
        second = (second + count * first + int64(weighted)) % _BASE
        first = (first + int64(total)) % _BASE
    return second << 16 | first
