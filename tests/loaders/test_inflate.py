"""Deflate streams in compiled code, one and two in turn, against zlib."""

import random
import zlib

import numpy as np

from fastimg.loaders.pictures.huffman import new_tables
from fastimg.loaders.pictures.inflate import DAMAGED, SLACK, inflate, inflate_two

ROOM = 80_000


def content(draw):
    """Bytes that are compressed well, badly, or not at all."""
    size = draw.choice([0, 1, 7, 300, 5_000, 60_000])
    kind = draw.randrange(4)
    if kind == 0:
        return draw.randbytes(size)
    if kind == 1:
        return bytes(size)
    if kind == 2:
        return bytes(draw.choice(b"abcdefgh ") for _ in range(size))
    return (draw.randbytes(draw.randrange(1, 200)) * (size + 1))[:size]


def deflated(data, draw):
    strategy = draw.choice([zlib.Z_DEFAULT_STRATEGY, zlib.Z_FILTERED, zlib.Z_HUFFMAN_ONLY, zlib.Z_RLE, zlib.Z_FIXED])
    engine = zlib.compressobj(draw.choice([0, 1, 6, 9]), zlib.DEFLATED, -15, draw.choice([1, 8, 9]), strategy)
    begin = draw.randrange(len(data) + 1)
    flush = draw.choice([zlib.Z_SYNC_FLUSH, zlib.Z_FULL_FLUSH, zlib.Z_NO_FLUSH])
    return engine.compress(data[:begin]) + engine.flush(flush) + engine.compress(data[begin:]) + engine.flush()


def streams(seed):
    """(content, stream, bytes that are wanted): some streams end early or have another byte, then content is None."""
    draw = random.Random(seed)
    found = []
    for _ in range(2):
        data = content(draw)
        stream = bytearray(deflated(data, draw))
        wanted = draw.choice([len(data), len(data) + 1, len(data) // 2])
        if draw.random() < 0.3:
            data = None
            if draw.random() < 0.5:
                del stream[draw.randrange(len(stream)) :]
            else:
                stream[draw.randrange(len(stream))] ^= 1 << draw.randrange(8)
        found.append((data, np.frombuffer(bytes(stream) + bytes(8), np.uint8), len(stream), wanted))
    return found


def test_two_streams_in_turn_are_inflated_as_each_by_itself():
    for seed in range(300):
        check(seed)


def check(seed):
    tables = new_tables()
    alone, together = np.zeros((2, ROOM), np.uint8), np.zeros((2, ROOM), np.uint8)
    results, arguments = [], []
    both = streams(seed)  # they stay in memory
    for place, (data, stream, size, wanted) in enumerate(both):
        result = inflate(stream.ctypes.data, size, alone[place].ctypes.data, wanted, tables)
        if data is not None:
            taken, used, ended = result
            assert min(wanted, len(data)) <= taken <= len(data)
            assert bytes(alone[place, :taken]) == data[:taken]
            assert not alone[place, wanted + SLACK :].any()
            if wanted > len(data):
                assert ended and used == size
        results.append(result)
        arguments += [stream.ctypes.data, size, together[place].ctypes.data, wanted]
    assert inflate_two(*arguments, tables) == tuple(results)
    for place, (taken, _, _) in enumerate(results):
        if taken != DAMAGED:
            assert (together[place, :taken] == alone[place, :taken]).all()
