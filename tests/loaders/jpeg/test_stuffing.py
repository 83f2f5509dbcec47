"""Entropy-coded bytes without stuffing, against a loop over bytes, with vectors of 512 and of 256 bits."""

import numpy as np
import pytest
from numba import njit

from fastimg.loaders.jpeg.decoding import memory
from fastimg.loaders.jpeg.decoding.entropy import stuffing

ROOM = 64  # bytes that may be written behind the last one


def plainly(data, at):
    """Where the next marker from `at` on begins, and the bytes before it without stuffing; None without a marker."""
    copied = bytearray()
    while at + 1 < len(data):
        if data[at] == 255 and data[at + 1] != 0:
            return at, bytes(copied)
        copied.append(data[at])
        at += 2 if data[at] == 255 else 1
    return None


def scans(rng):
    """Random data of all sizes around a vector's, many bytes of which are 255 and 0."""
    for size in range(2, 300):
        for share in (0.02, 0.3, 0.9):
            data = rng.integers(1, 255, size).astype(np.uint8)
            special = rng.random(size) < share
            data[special] = rng.choice([0, 255], special.sum(), p=[0.6, 0.4])
            data[0] = 1
            behind = np.flatnonzero(data[:-1] == 255) + 1
            stuffed = behind[rng.random(len(behind)) < 0.9]
            data[stuffed] = 0
            yield data


@pytest.mark.parametrize("wide", [True, False])
def test_bytes_up_to_the_next_marker(wide, monkeypatch):
    if not wide:
        monkeypatch.setattr(memory, "has_avx512", lambda context: False)
    find, copy = njit(stuffing.find_marker.py_func), njit(stuffing.copy_to_marker.py_func)
    rng = np.random.default_rng(0)
    one, three = np.uint64(1), np.uint64(3)
    found = 0
    for data in scans(rng):
        clean = np.full(len(data) + 3 + ROOM, 7, np.uint8)
        expected = plainly(data.tobytes(), 1)
        at, end = copy(data, one, clean, three)
        assert at == find(data, one)
        if expected is None:
            assert at == len(data)
            continue
        assert (at, clean[3:end].tobytes()) == expected
        assert (clean[:3] == 7).all()
        found += 1
    assert found > 300
