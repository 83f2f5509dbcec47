"""Mutated JPEGs: given back as they are, or tiled to the same pixels; never a crash, never a read out of bounds.

python tests/loaders/test_tiles_fuzz.py COUNT SEED        more of it
"""

import io
import os
import subprocess
import sys
import time

import numpy as np
import pytest
import simplejpeg
from PIL import Image

from fastimg.loaders import tiles
from fastimg.loaders.compiled import compiled

COUNT = 6000


def corpus():
    """Small JPEGs of every kind."""
    rng = np.random.default_rng(0)
    pixels = np.clip(rng.normal(128, 40, (24, 40, 3)), 0, 255).astype(np.uint8)
    for sampling in ("444", "422", "420", "440", "411"):
        yield simplejpeg.encode_jpeg(pixels, 60, "RGB", sampling)
    for mode in ("RGB", "L", "CMYK"):
        for options in ({}, {"progressive": True}, {"optimize": True}, {"restart_marker_blocks": 2}):
            buffer = io.BytesIO()
            Image.fromarray(pixels).convert(mode).save(buffer, "JPEG", quality=60, **options)
            yield buffer.getvalue()


def mutated(data, rng):
    """A few bytes changed, removed or doubled; now and then the end is missing."""
    data = bytearray(data)
    for _ in range(rng.integers(1, 4)):
        at = int(rng.integers(2, len(data)))
        kind = rng.integers(0, 7)
        if kind == 0:
            data[at] = rng.integers(0, 256)
        elif kind == 1:
            data[at] ^= 1 << int(rng.integers(0, 8))
        elif kind == 2:
            data[at] = (0, 1, 0x7F, 0x80, 0xFF, 0xD0, 0xD9)[rng.integers(0, 7)]
        elif kind == 3:
            del data[at : at + int(rng.integers(1, 9))]
        elif kind == 4:
            data[at:at] = data[at : at + int(rng.integers(1, 30))]
        elif kind == 5:
            data[at:at] = (b"\xff\xd0", b"\xff\xff", b"\xff\xdd\0\4\0\3", b"\xff\xd9", b"\xff\x00")[rng.integers(0, 5)]
        elif rng.random() < 0.2:
            del data[at:]
        if len(data) < 4:
            break
    return bytes(data)


def strictly(data):
    """libjpeg-turbo's pixels, None where it warns."""
    try:
        return simplejpeg.decode_jpeg(data, "RGB", strict=True)
    except ValueError:
        return None


def fuzz(count, seed):
    """How many were tiled; raises where pixels differ."""
    tiles.MAX_COST = float("inf")
    rng = np.random.default_rng(seed)
    seeds = list(corpus())
    seeds += [tiles.tile(data, 16).jpeg for data in seeds]
    tiled = 0
    for number in range(count):
        data = mutated(seeds[number % len(seeds)], rng)
        made = tiles.tile(data, 16, max_pixels=1 << 20)
        if made.kept is None:
            tiled += 1
            before = strictly(data[: len(data) - made.left_out])
            if before is not None:
                after = strictly(made.jpeg)
                assert after is not None and np.array_equal(before, after), f"seed {seed}, number {number}"
        index = tiles.row_index(data)
        assert (index is None) or (index.size and (np.diff(index) >= 0).all() and index[-1] <= len(data))
        box = (int(rng.integers(0, 40)), int(rng.integers(0, 24)), int(rng.integers(1, 20)), int(rng.integers(1, 20)))
        other = rng.integers(-9, len(data) + 9, int(rng.integers(1, 6)))
        for rows in (None, index, other, index if index is None else mutated_index(index, rng)):
            try:
                part, _ = tiles.splice(data, box, denominator=int(rng.choice([1, 2, 4, 8])), index=rows)
            except ValueError:
                continue
            assert len(part) <= len(data) + 2
    return tiled


def mutated_index(index, rng):
    """One row elsewhere."""
    index = index.copy()
    index[rng.integers(0, len(index))] += rng.integers(-3, 4)
    return index


def test_mutated_jpegs(monkeypatch):
    monkeypatch.setattr(tiles, "MAX_COST", tiles.MAX_COST)
    tiled = fuzz(COUNT, 0)
    assert COUNT // 10 < tiled < COUNT


def test_within_bounds(tmp_path):
    """The same with numba's bounds checks, compiled anew: an index outside its array would be an IndexError."""
    environ = {**os.environ, "NUMBA_BOUNDSCHECK": "1", "NUMBA_CACHE_DIR": str(tmp_path), "NUMBA_OPT": "1"}
    command = [sys.executable, __file__, "3000", "1"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=environ)
    assert done.returncode == 0, done.stderr


def test_large_claims_cost_nothing():
    """65,500 x 65,500 pixels in a few bytes: refused by the size of what is there, before anything is allocated."""
    for data in corpus():
        at = max(data.find(b"\xff\xc0"), data.find(b"\xff\xc2"))
        huge = data[: at + 5] + b"\xff\xdc\xff\xdc" + data[at + 9 :]
        began = time.perf_counter()
        made = tiles.tile(huge)
        assert made.kept in (tiles.Reason.DAMAGED, tiles.Reason.LARGE) and made.jpeg == huge
        tiles.splice(huge, (0, 0, 10, 10))
        assert time.perf_counter() - began < 1


@compiled
def peek(array, at):
    """For the check of the check."""
    return array[at]


if __name__ == "__main__":
    if os.environ.get("NUMBA_BOUNDSCHECK"):
        with pytest.raises(IndexError):
            peek(np.zeros(4), 4)
    print(fuzz(int(sys.argv[1]), int(sys.argv[2])))
