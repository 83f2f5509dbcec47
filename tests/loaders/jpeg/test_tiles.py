"""Tiled JPEGs: the original's coefficients and pixels, compared by Pillow and simplejpeg (both libjpeg-turbo)."""

import hashlib
import io
import os
import subprocess
import sys

import numpy as np
import pytest
import simplejpeg
from PIL import Image

from fastimg.loaders.jpeg.rewriting import tiles
from fastimg.loaders.jpeg.rewriting.coefficients import planes
from fastimg.loaders.jpeg.rewriting.markers import Parser, Segment
from fastimg.loaders.jpeg.rewriting.recode import recode
from fastimg.loaders.jpeg.rewriting.restarts import optimal_table
from fastimg.loaders.jpeg.rewriting.splice import can_splice
from fastimg.loaders.jpeg.rewriting.tiles import Reason, tile

SAMPLINGS = ("444", "422", "420", "440", "411", "Gray")


@pytest.fixture(autouse=True)
def _any_cost(monkeypatch):
    """Tile small images too, unless a test overrides it."""
    monkeypatch.setattr(tiles, "MAX_COST", float("inf"))


def picture(width, height, seed=0):
    y, x = np.mgrid[:height, :width]
    waves = np.stack([128 + 90 * np.sin(x / 7 + y / 11 + c) for c in range(3)], axis=2)
    noise = np.random.default_rng(seed).normal(0, 20, waves.shape)
    return np.clip(waves + noise, 0, 255).astype(np.uint8)


def turbo(width, height, sampling, quality=90):
    pixels = picture(width, height)
    if sampling == "Gray":
        return simplejpeg.encode_jpeg(np.ascontiguousarray(pixels[:, :, :1]), quality, "GRAY", "Gray")
    return simplejpeg.encode_jpeg(pixels, quality, "RGB", sampling)


def pillow(width, height, mode="RGB", **options):
    buffer = io.BytesIO()
    Image.fromarray(picture(width, height)).convert(mode).save(buffer, "JPEG", **options)
    return buffer.getvalue()


def by_pillow(data):
    with Image.open(io.BytesIO(data)) as image:
        image.load()
        return image.mode, np.asarray(image), image.info.get("exif"), image.info.get("icc_profile")


def coefficients(data):
    """The blocks of an image, without the padding to whole MCUs."""
    parser = Parser(memoryview(data))
    found = planes(parser, 1 << 30)
    sizes = [parser.frame.blocks(i) for i in range(len(found))]
    return [plane[:rows, :columns] for plane, (columns, rows) in zip(found, sizes, strict=True)]


def check(data, **options):
    """Tile, and check the result."""
    made = tile(data, **options)
    assert made.kept is None, made.kept
    for before, after in zip(coefficients(data), coefficients(made.jpeg), strict=True):
        np.testing.assert_array_equal(before, after)
    mode, pixels, exif, icc = by_pillow(data)
    mode_after, pixels_after, exif_after, icc_after = by_pillow(made.jpeg)
    assert (mode, exif, icc) == (mode_after, exif_after, icc_after)
    np.testing.assert_array_equal(pixels, pixels_after)
    if mode != "CMYK" and not is_410(data):
        np.testing.assert_array_equal(simplejpeg.decode_jpeg(data, "RGB"), simplejpeg.decode_jpeg(made.jpeg, "RGB"))
    again = tile(made.jpeg, **options)
    assert again.kept is Reason.TILED and again.jpeg == made.jpeg
    assert can_splice(made.jpeg)
    return made


def is_410(data):
    parser = Parser(memoryview(data))
    next(parser.scans())
    return (parser.frame.components[0].h, parser.frame.components[0].v) == (4, 2)


def interval(data):
    parser = Parser(memoryview(data))
    return next(parser.scans()).interval


def sof(width, height, components):
    """The body of a frame's segment; components are (id, factors), and use the first quantisation table."""
    size = height.to_bytes(2, "big") + width.to_bytes(2, "big")
    return bytes((8,)) + size + bytes((len(components),)) + b"".join(bytes((i, f, 0)) for i, f in components)


def parsed(head):
    """A parser that has read a file's segments, but not its scan."""
    tables = [] if any(s.marker == 0xDB for s in head) else [Segment(0xDB, bytes(1) + bytes([1] * 64))]
    frame = next(s.body for s in head if s.marker == 0xC0)
    chosen = b"".join(bytes((i, 0)) for i in frame[6::3])
    scan = Segment(0xDA, frame[5:6] + chosen + bytes((0, 63, 0)))
    parser = Parser(memoryview(b"\xff\xd8" + b"".join(s.encoded() for s in (*tables, *head, scan))))
    next(parser.scans())
    return parser


def insert(data, segment):
    """A segment directly after SOI."""
    return data[:2] + segment + data[2:]


def fourtwo(width=150, height=70):
    """4:1:0, which no available encoder supports: coefficients of noise, encoded here."""
    found = bytearray(pillow(16, 16, subsampling=0))
    at = found.index(b"\xff\xc0")
    found[at + 5 : at + 9] = height.to_bytes(2, "big") + width.to_bytes(2, "big")
    found[at + 11] = 0x42
    parser = Parser(memoryview(found))
    scan = next(parser.scans())
    columns, rows = parser.frame.mcus
    rng = np.random.default_rng(0)
    shapes = [(rows * c.v, columns * c.h, 64) for c in parser.frame.components]
    blocks = [rng.integers(-9, 10, s) * (rng.random(s) < 0.15) * (np.arange(64) < 20) for s in shapes]
    coded, ac = recode([b.astype(np.int16) for b in blocks], parser.frame)
    tables = {(1, i): t for i, t in enumerate(ac)}
    return tiles._written(parser, scan.body, tables, scan.dc, coded, columns * rows)


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("size", [(1, 1), (8, 8), (17, 9), (64, 64), (131, 67), (376, 40), (333, 50)])
def test_samplings_and_sizes(sampling, size):
    check(turbo(*size, sampling))
    check(turbo(*size, sampling, quality=20), width_px=16)


@pytest.mark.parametrize(
    "options",
    [
        {"optimize": True, "subsampling": 0},
        {"optimize": True, "quality": 5},
        {"quality": 100, "subsampling": 0},
        {"restart_marker_blocks": 1},
        {"restart_marker_blocks": 5},
        {"restart_marker_rows": 1},
        {"restart_marker_rows": 2},
        {"exif": b"Exif\0\0MM\0*\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01\0\x06\0\0\0\0\0\0"},
        {"icc_profile": bytes(range(256)) * 400},
        {"comment": b"a comment"},
        {"keep_rgb": True},
    ],
    ids=str,
)
@pytest.mark.parametrize("mode", ["RGB", "L", "CMYK"])
def test_encoders_options(mode, options):
    if mode != "RGB":
        options = {k: v for k, v in options.items() if k != "keep_rgb"}
    check(pillow(219, 77, mode, **options))


@pytest.mark.parametrize("sampling", [0, 1, 2])
@pytest.mark.parametrize("size", [(203, 77), (5, 3), (64, 64)])
@pytest.mark.parametrize("mode", ["RGB", "L", "CMYK"])
def test_progressive_becomes_baseline(mode, size, sampling):
    options = {"subsampling": sampling} if mode == "RGB" else {}
    for quality in (30, 90):
        data = pillow(*size, mode, progressive=True, quality=quality, **options)
        made = check(data)
        assert made.recoded and b"\xff\xc2" in data and b"\xff\xc2" not in made.jpeg[: made.jpeg.index(b"\xff\xda")]


def test_410():
    made = check(fourtwo())
    assert interval(made.jpeg) == 1


def test_tables_without_the_codes_that_restarts_need():
    """A flat picture with a slight gradient: optimised tables have only small differences, a restart a large one."""
    pixels = np.repeat((100 + np.arange(256) // 4).astype(np.uint8)[None, :], 64, axis=0)
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "JPEG", optimize=True, quality=90)
    scan = next(Parser(memoryview(buffer.getvalue())).scans())
    made = check(buffer.getvalue())
    after = next(Parser(memoryview(made.jpeg)).scans())
    assert set(after.tables[0, 0][1]) - set(scan.tables[0, 0][1])


def test_other_segments_are_kept_byte_for_byte():
    thumbnail = pillow(16, 16, restart_marker_blocks=1)  # with SOS and RST inside an APP segment
    body = b"Exif\0\0" + thumbnail
    app1 = b"\xff\xe1" + (len(body) + 2).to_bytes(2, "big") + body
    app7 = b"\xff\xe7\0\x08\xff\xda\xff\xd0\xff\xd9"
    comment = b"\xff\xfe\0\x06late"
    data = insert(turbo(131, 67, "420"), app1 + app7)
    data = data[:-2] + comment + data[-2:]
    made = check(data)
    assert app1 in made.jpeg and app7 in made.jpeg and made.jpeg.endswith(comment + b"\xff\xd9")


def test_fill_bytes_and_data_after_eoi():
    plain = turbo(131, 67, "420")
    at = plain.index(b"\xff\xdb")
    filled = plain[:at] + b"\xff\xff\xff" + plain[at:-2] + b"\xff\xff" + plain[-2:]
    expected = check(plain).jpeg
    made = check(filled)
    assert made.jpeg == expected and made.left_out == 0
    made = check(plain + plain + b"a trailer")
    assert made.jpeg == expected and made.left_out == len(plain) + 9


def test_fill_bytes_before_restarts():
    data = pillow(64, 64, restart_marker_blocks=3)
    for n in range(8):
        data = data.replace(bytes((0xFF, 0xD0 + n)), bytes((0xFF, 0xFF, 0xFF, 0xD0 + n)))
    check(data)


@pytest.mark.parametrize(
    ("columns", "width_px", "expected"), [(63, 64, 7), (32, 64, 8), (47, 64, 1), (1, 64, 1), (8, 1, 1), (6, 500, 6)]
)
def test_the_interval_divides_the_row(columns, width_px, expected):
    assert interval(check(turbo(8 * columns, 16, "444"), width_px=width_px).jpeg) == expected


def test_costs_bound_the_restarts(monkeypatch):
    monkeypatch.setattr(tiles, "MAX_COST", 0.04)
    row = tile(turbo(8 * 47, 64, "444"))  # prime: one restart per MCU costs too much, one per row does not
    assert row.kept is None and interval(row.jpeg) == 47
    for data in (turbo(1, 1, "444"), turbo(8, 8, "420"), turbo(8, 65500, "444", quality=20)):
        made = tile(data)
        assert made.kept is Reason.COSTLY and made.jpeg is data
    for sampling in SAMPLINGS:
        data = turbo(500, 375, sampling)
        assert len(tile(data).jpeg) < 1.04 * len(data)


@pytest.mark.parametrize("size", [(8, 65500), (65500, 8)])
def test_long_strips(size):
    check(turbo(*size, "420"))


def test_non_interleaved_scans():
    """Three scans of one component each, made from those of an interleaved JPEG."""
    data = turbo(131, 67, "420")
    parser = Parser(memoryview(data))
    scan = next(parser.scans())
    found = coefficients(data)
    out = b"".join(s.encoded() for s in parser.head)
    for i, plane in enumerate(found):
        component = parser.frame.components[i]
        gray = parsed([Segment(0xC0, sof(plane.shape[1] * 8, plane.shape[0] * 8, [(component.id, 0x11)]))])
        coded, ac = recode([np.ascontiguousarray(plane)], gray.frame)
        body = bytes((1, component.id, 0, 0, 63, 0))
        gray.head.clear()
        whole = tiles._written(gray, body, {(1, 0): ac[0]}, (0,), coded, plane.shape[0] * plane.shape[1])
        out += whole[2:-2]
    made = check(b"\xff\xd8" + out + b"\xff\xd9")
    assert made.recoded and len(scan.components) == 3
    np.testing.assert_array_equal(by_pillow(made.jpeg)[1], by_pillow(data)[1])


def test_jpegs_that_are_not_tiled():
    good = turbo(131, 67, "420")
    progressive = pillow(131, 67, progressive=True)
    sof = good.index(b"\xff\xc0")
    dht = good.index(b"\xff\xc4")
    last_scan = progressive.rindex(b"\xff\xda")
    cases = {
        b"": Reason.NOT_JPEG,
        b"\x89PNG\r\n\x1a\n": Reason.NOT_JPEG,
        b"\xff\xd8": Reason.DAMAGED,
        good[:-2]: Reason.DAMAGED,
        good[: len(good) // 2] + b"\xff\xd9": Reason.DAMAGED,
        good[:-2] + bytes(8) + b"\xff\xd9": Reason.DAMAGED,  # more data than the blocks need
        good[:sof] + b"\xff\xc3" + good[sof + 2 :]: Reason.LOSSLESS,
        good[:sof] + b"\xff\xc9" + good[sof + 2 :]: Reason.ARITHMETIC,
        good[:sof] + b"\xff\xc5" + good[sof + 2 :]: Reason.HIERARCHICAL,
        good[: sof + 4] + b"\x0c" + good[sof + 5 :]: Reason.PRECISION,
        good[: sof + 5] + bytes(2) + good[sof + 7 :]: Reason.UNUSUAL,  # DNL
        good[: dht + 21] + b"\x10" + good[dht + 22 :]: Reason.DAMAGED,  # a DC difference of 16 bits
        progressive[:last_scan] + b"\xff\xd9": Reason.INCOMPLETE,
    }
    for data, reason in cases.items():
        made = tile(data)
        assert made.kept is reason and made.jpeg == data, (reason, made.kept)
    assert tile(progressive, max_pixels=100).kept is Reason.LARGE


def test_tables_are_legal():
    """At most 16 bits, no code of all ones: Kraft's sum stays below 1."""
    rng = np.random.default_rng(0)
    fibonacci = [1, 1]
    while len(fibonacci) < 40:
        fibonacci.append(fibonacci[-1] + fibonacci[-2])
    for counts in (*(rng.integers(0, 9, 256) ** 4 for _ in range(20)), np.array(fibonacci), np.array([0, 5, 0])):
        table, codes, lengths = optimal_table(counts)
        assert ((lengths > 0) == (counts > 0)).all() and lengths.max() <= 16
        assert sum(2.0 ** -int(n) for n in lengths if n) < 1
        made = parsed([Segment(0xC4, bytes((0x10,)) + table[0] + table[1]), Segment(0xC0, sof(8, 8, [(1, 0x11)]))])
        assert made.codes()[1, 0] == table
        texts = [f"{c:0{n}b}" for c, n in zip(codes, lengths, strict=True) if n]
        assert not any(a != b and b.startswith(a) for a in texts for b in texts)


def of_integers(width, height, factors, interval):
    """A JPEG of noise that depends on no library: coefficients by a hash, luma of `factors` over 1 x 1 chroma."""
    sampling = [factors] + [0x11] * 2 * (factors > 0)
    body = sof(width, height, [(i + 1, factor or 0x11) for i, factor in enumerate(sampling)])
    parser = parsed([Segment(0xDB, bytes(65 - i if i else 0 for i in range(65))), Segment(0xC0, body)])
    columns, rows = parser.frame.mcus
    found = []
    for i, c in enumerate(parser.frame.components):
        shape = (rows, columns, 64) if not factors else (rows * c.v, columns * c.h, 64)
        n = np.arange(np.prod(shape), dtype=np.uint64).reshape(shape) + np.uint64(i << 24)
        hashed = (n ^ n >> np.uint64(7)) * np.uint64(0x9E3779B97F4A7C15)
        hashed ^= hashed >> np.uint64(29)
        hashed *= np.uint64(0xBF58476D1CE4E5B9)
        size = (hashed >> np.uint64(40)) % (11 - np.minimum(np.arange(64), 42) // 4).astype(np.uint64)
        size *= (hashed >> np.uint64(50)) % np.uint64(3) == 0
        values = ((hashed >> np.uint64(20)) & ((np.uint64(1) << size) - np.uint64(1))).astype(np.int64)
        values = np.where(hashed >> np.uint64(63) == 1, -values, values)
        values[..., 1:] //= 2
        found.append(values.astype(np.int16))
    coded, ac = recode(found, parser.frame)
    numbers = tuple(min(i, 1) for i in range(len(found)))
    scan = bytes((len(found),)) + b"".join(bytes((i + 1, 0x11 * t)) for i, t in enumerate(numbers)) + b"\0\x3f\0"
    tables = {(1, i): table for i, table in enumerate(ac)}
    return tiles._written(parser, scan, tables, numbers, coded, interval or columns * rows)


@pytest.mark.parametrize(
    ("factors", "expected"),
    [
        (0x00, "a2793b4ea26781c98902399947acec4c"),
        (0x11, "db18cf0dfcdf6b4df949099c7ae9a9b0"),
        (0x21, "db60314fbfa940b85828031f5cd37fc0"),
        (0x22, "1f59ec91f122153b57ee28bc23318b09"),
        (0x12, "de920ae9acd881399198650ba4aa81c4"),
        (0x41, "6402a97b360cbb6e9578cf636e2a03f7"),
    ],
)
def test_the_bytes_never_change(factors, expected):
    """Converting again gives the same shards in every version."""
    digest = hashlib.sha256()
    for size, interval in (((203, 77), 0), ((640, 33), 3), ((17, 5), 1)):
        data = of_integers(*size, factors, interval)
        strict = simplejpeg.decode_jpeg(data, "RGB", strict=True)
        for width_px in (16, 32, 64):
            made = tile(data, width_px)
            assert made.kept in (None, Reason.TILED)
            np.testing.assert_array_equal(simplejpeg.decode_jpeg(made.jpeg, "RGB", strict=True), strict)
            digest.update(made.jpeg)
    assert digest.hexdigest()[:32] == expected


PROGRAM = """
import sys
import numba.core.caching as caching
from fastimg.loaders.runtime.compiled import compiled

def save(self, signature, data):
    raise OSError(28, "No space left on device")

if sys.argv[1] == "full":
    caching.Cache._save_overload = save

@compiled
def double(x):
    return 2 * x

assert double(21) == 42
assert (double.stats.cache_path is None) == (sys.argv[1] == "nowhere"), double.stats
"""


@pytest.mark.parametrize("disk", ["full", "nowhere"])
def test_without_a_place_for_compiled_code(tmp_path, disk):
    """Code that cannot be cached is compiled again by every process."""
    (tmp_path / "program.py").write_text(PROGRAM)
    environ = {k: v for k, v in os.environ.items() if not k.startswith("NUMBA_")}
    environ["PYTHONDONTWRITEBYTECODE"] = "1"
    if disk == "nowhere":  # files in place of folders
        for name in ("__pycache__", "home", "cache"):
            (tmp_path / name).write_text("")
        environ |= {"HOME": str(tmp_path / "home"), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    command = [sys.executable, tmp_path / "program.py", disk]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=environ)
    assert done.returncode == 0, done.stderr
