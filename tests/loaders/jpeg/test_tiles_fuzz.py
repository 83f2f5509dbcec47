"""Mutated JPEGs: returned unchanged, or tiled to the same pixels; never a crash or a read out of bounds.

libjpeg-turbo decodes every accepted JPEG without a warning, since `convert` does not decode images that it tiles.

python tests/loaders/jpeg/test_tiles_fuzz.py COUNT SEED        more cases
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

from fastimg.loaders.decode import read_header
from fastimg.loaders.errors import ImageError
from fastimg.loaders.jpeg.rewriting import tiles
from fastimg.loaders.jpeg.rewriting.splice import can_splice, splice
from fastimg.loaders.runtime.compiled import compiled

COUNT = 3000
STRUCTURED = 4500


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
    """Change, remove or repeat a few bytes; sometimes truncate the end."""
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


def segments(data):
    """A JPEG's parts: [marker, body] of each segment, and each scan's data under the marker None."""
    at, parts = 2, []
    while data[at + 1] != 0xD9:
        end = at + 2 + int.from_bytes(data[at + 2 : at + 4], "big")
        parts.append([data[at + 1], bytearray(data[at + 4 : end])])
        at = end
        if parts[-1][0] == 0xDA:
            while data[end] != 0xFF or data[end + 1] == 0 or 0xD0 <= data[end + 1] <= 0xD7:
                end += 1
            parts.append([None, bytearray(data[at:end])])
            at = end
    return parts


def joined(parts):
    out = b"\xff\xd8"
    for marker, body in parts:
        out += bytes(body) if marker is None else bytes((255, marker)) + (len(body) + 2).to_bytes(2, "big") + body
    return out + b"\xff\xd9"


EXTRA = [
    (0xE0, b"JFIF\0\1\1\0\0\1\0\1\0\0"),
    (0xE0, b"JFIF\0\2\1\0\0\1\0\1\0\0"),
    (0xE0, b"JFXX\0\x13"),
    *((0xEE, b"Adobe\0\x64\0\0\0\0" + bytes([t])) for t in (0, 1, 2, 3)),
    (0xEE, b"Adobe\0"),
    *((0xE2, b"ICC_PROFILE\0" + bytes(b)) for b in ((1, 1, 7), (1, 2, 7), (2, 2, 7), (0, 1, 7), (1, 1), (1, 0), (1,))),
    (0xE1, b"Exif\0\0MM\0*\0\0\0\x08\0\0"),
    (0xDD, b"\0\0"),
    (0xDD, b"\0\2"),
    (0xCC, b"\x10\5"),
    (0xCC, b"\xff\xff"),
    (0xDC, b"\0\x18"),
    (0xFE, b""),
    (0xC4, b"\x13\2" + bytes(15) + b"\1\2"),
    (0xDB, b"\2" + bytes(64)),
    (0xDB, b"\x13" + bytes(128)),
    (0xF5, b""),
]


def restructured(data, rng):
    """Move, repeat, drop or insert segments; change fields, code lengths and bits of the scans."""
    parts = segments(data)
    for _ in range(rng.integers(1, 3)):
        if not parts:
            break
        at = int(rng.integers(0, len(parts)))
        kind = rng.integers(0, 13)
        if kind == 0:
            parts.append(parts.pop(at))
        elif kind == 1:
            parts.insert(int(rng.integers(0, len(parts))), parts.pop(at))
        elif kind == 2:
            parts.insert(int(rng.integers(0, len(parts))), [parts[at][0], parts[at][1][:]])
        elif kind == 3:
            del parts[at]
        elif kind <= 5:
            marker, body = EXTRA[int(rng.integers(0, len(EXTRA)))]
            parts.insert(int(rng.integers(0, len(parts) + 1)), [marker, bytearray(body)])
        else:
            wanted = {6: (0xC0, 0xC2), 7: (0xC4,), 8: (0xDB,), 9: (0xDA,)}.get(int(kind), (None,))
            chosen = [i for i, part in enumerate(parts) if part[0] in wanted and len(part[1]) > 2]
            if not chosen:
                continue
            at = chosen[int(rng.integers(0, len(chosen)))]
            body = parts[at][1]
            if kind >= 10:
                parts[at][1] = shuffled_scan(body, rng)
            elif kind == 7 and rng.random() < 0.7:  # one code moved to another length; or the table completed
                i, j = rng.integers(1, 17, 2)
                if body[i] and body[j] < 255:
                    body[i] -= 1
                    body[j] += 1
            elif rng.random() < 0.1:
                body += bytes([int(rng.integers(0, 256))])
            else:
                i = int(rng.integers(0, min(len(body), 20)))
                body[i] = int(rng.choice([0, 1, 2, 3, 8, 0x11, 0x12, 0x21, 0x22, 0x3F, 255, *rng.integers(0, 256, 6)]))
    return joined(parts)


def shuffled_scan(body, rng):
    """A scan's data with changes of a few bits, bytes or restart markers."""
    at = int(rng.integers(0, len(body)))
    kind = rng.integers(0, 7)
    if kind == 0:
        body[at] ^= 1 << int(rng.integers(0, 8))
    elif kind == 1:
        body += bytes(rng.integers(0, 255, int(rng.integers(1, 4)), dtype=np.uint8))
    elif kind == 2:
        del body[-int(rng.integers(1, 4)) :]
    elif kind == 3:
        body[-1] ^= 1 << int(rng.integers(0, 8))
    else:
        marks = [i for i in range(len(body) - 1) if body[i] == 255 and 0xD0 <= body[i + 1] <= 0xD7]
        if marks and kind == 4:
            body[marks[int(rng.integers(0, len(marks)))] + 1] = 0xD0 + int(rng.integers(0, 8))
        elif marks and kind == 5:
            i = marks[int(rng.integers(0, len(marks)))]
            body[i:i] = (b"\xff", b"\0", b"\x7f", b"\xff\0", b"\xff\xff")[rng.integers(0, 5)]
        elif marks:
            i = marks[int(rng.integers(0, len(marks)))]
            del body[i : i + 2]
        else:
            body[at:at] = (b"\xff\xd0", b"\xff", b"\xff\0", b"\0")[rng.integers(0, 4)]
    return body


def strictly(data):
    """libjpeg-turbo's pixels; None if it warns."""
    try:
        return simplejpeg.decode_jpeg(data, "RGB", strict=True)
    except ValueError:
        return None


def judged(data, made, name):
    """Whether it is tiled. libjpeg-turbo must decode an accepted JPEG without a warning, to the same pixels."""
    if made.kept not in (None, tiles.Reason.TILED):
        return False
    try:
        turbo = read_header(data).turbo
    except ImageError:
        turbo = False
    before = strictly(data)
    assert before is not None or not turbo, name
    if before is not None and made.kept is None:
        after = strictly(made.jpeg)
        assert after is not None and np.array_equal(before, after), name
    return made.kept is None


def fuzz(count, seed):
    """The number of tiled JPEGs. Raises an error if pixels differ."""
    tiles.MAX_COST = float("inf")
    rng = np.random.default_rng(seed)
    seeds = list(corpus())
    seeds += [tiles.tile(data, 16).jpeg for data in seeds]
    tiled = 0
    for number in range(count):
        data = mutated(seeds[number % len(seeds)], rng)
        made = tiles.tile(data, 16, max_pixels=1 << 20)
        tiled += judged(data, made, f"seed {seed}, number {number}")
        box = (int(rng.integers(0, 40)), int(rng.integers(0, 24)), int(rng.integers(1, 20)), int(rng.integers(1, 20)))
        try:
            part, _ = splice(data, box)
        except ValueError:
            continue
        assert len(part) <= len(data) + 2
        assert bytes(part) == data or can_splice(part) or not can_splice(data)
    return tiled


def test_mutated_jpegs(monkeypatch):
    monkeypatch.setattr(tiles, "MAX_COST", tiles.MAX_COST)
    tiled = fuzz(COUNT, 0)
    assert COUNT // 10 < tiled < COUNT


def structured(count, seed):
    """Like `fuzz`, with whole segments and fields."""
    tiles.MAX_COST = float("inf")
    rng = np.random.default_rng(seed)
    seeds = list(corpus())
    seeds += [tiles.tile(data, 16).jpeg for data in seeds]
    tiled = 0
    for number in range(count):
        data = restructured(seeds[number % len(seeds)], rng)
        tiled += judged(data, tiles.tile(data, 16, max_pixels=1 << 20), f"structured, seed {seed}, number {number}")
    return tiled


def test_accepted_jpegs_decode_without_a_warning(monkeypatch):
    monkeypatch.setattr(tiles, "MAX_COST", tiles.MAX_COST)
    tiled = structured(STRUCTURED, 0)
    assert STRUCTURED // 20 < tiled < STRUCTURED


def test_within_bounds(tmp_path):
    """The same with numba's bounds checks, compiled again: an index outside its array raises IndexError."""
    environ = {**os.environ, "NUMBA_BOUNDSCHECK": "1", "NUMBA_CACHE_DIR": str(tmp_path), "NUMBA_OPT": "1"}
    command = [sys.executable, __file__, "1500", "1"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=environ)
    assert done.returncode == 0, done.stderr


def test_large_claims_cost_nothing():
    """65,500 x 65,500 pixels in a few bytes: refused because of the small file, before anything is allocated."""
    for data in corpus():
        at = max(data.find(b"\xff\xc0"), data.find(b"\xff\xc2"))
        huge = data[: at + 5] + b"\xff\xdc\xff\xdc" + data[at + 9 :]
        began = time.thread_time()
        made = tiles.tile(huge)
        assert made.kept in (tiles.Reason.DAMAGED, tiles.Reason.LARGE) and made.jpeg == huge
        splice(huge, (0, 0, 10, 10))
        assert time.thread_time() - began < 1


@compiled
def peek(array, at):
    """Used to test the check itself."""
    return array[at]


if __name__ == "__main__":
    if os.environ.get("NUMBA_BOUNDSCHECK"):
        with pytest.raises(IndexError):
            peek(np.zeros(4), 4)
    print(fuzz(int(sys.argv[1]), int(sys.argv[2])), structured(int(sys.argv[1]), int(sys.argv[2])))
