"""The record of a JPEG's header: the fields as Pillow and libjpeg-turbo read them, with the names of ITU T.81."""

import io
import struct

import numpy as np
import pytest
import simplejpeg
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageOps

from fastimg.config.flag_types import MAX_PIXELS
from fastimg.loaders import CenterCrop, ImageDecoder, decode
from fastimg.loaders.backends.ragged import HEADER, fill_table, table_words
from fastimg.loaders.crop import Window
from fastimg.loaders.jpeg import exif
from fastimg.loaders.jpeg.decoding import frame
from fastimg.loaders.jpeg.decoding.entropy.symbols import ZIGZAG
from fastimg.loaders.jpeg.decoding.filters import fill_weights, taps
from fastimg.loaders.jpeg.decoding.frame import (
    EOI,
    SOS,
    is_decodable,
    is_tiled,
    new_header,
    parse_header,
    parse_segment,
    view_of,
)
from fastimg.loaders.jpeg.decoding.region import find_region, new_region
from fastimg.loaders.jpeg.rewriting.huffman import unstuff
from fastimg.loaders.jpeg.rewriting.tiles import tile
from fastimg.loaders.runtime.scratch import Scratch

FACTORS = {"444": (1, 1), "422": (2, 1), "420": (2, 2), "440": (1, 2), "411": (4, 1)}


def pixels(width, height):
    return np.random.default_rng(0).integers(0, 256, (height, width, 3), np.uint8)


def pillow(width=150, height=70, mode="RGB", **options):
    buffer = io.BytesIO()
    Image.fromarray(pixels(width, height)).convert(mode).save(buffer, "JPEG", **options)
    return buffer.getvalue()


def parsed(data):
    """The record, and whether it reached a scan."""
    headers = new_header()
    return headers[0], parse_header(view_of(data), headers)


def insert(data, before, marker, body):
    """Insert a segment before the first one of another marker."""
    at = data.index(bytes((0xFF, before)))
    return data[:at] + bytes((0xFF, marker)) + struct.pack(">H", len(body) + 2) + body + data[at:]


@pytest.mark.parametrize("sampling", FACTORS)
def test_the_fields_are_those_of_the_file(sampling):
    data = simplejpeg.encode_jpeg(pixels(150, 70), 90, "RGB", sampling)
    header, reached = parsed(data)
    h, v = FACTORS[sampling]
    assert reached and header["fault"] == frame.SOUND
    assert (header["width"], header["height"], header["components"], header["precision"]) == (150, 70, 3, 8)
    assert header["h"][:3].tolist() == [h, 1, 1] and header["v"][:3].tolist() == [v, 1, 1]
    assert (header["mcu_width"], header["mcu_height"]) == (8 * h, 8 * v)
    assert header["id"][:3].tolist() == [1, 2, 3] and header["chosen"][:3].tolist() == [0, 1, 2]
    assert (header["interval"], header["orientation"], header["jfif"], header["adobe"]) == (0, 1, 1, -1)
    assert [int(header[name]) for name in ("scans", "first", "last", "high", "low")] == [1, 0, 63, 0, 0]
    assert data[header["offset"] - 3 : header["offset"]] == bytes((0, 63, 0))  # the end of SOS
    with Image.open(io.BytesIO(data)) as image:
        for number, table in image.quantization.items():
            at = header["quantisers"][number]
            found = np.zeros((8, 8), np.int64)
            found[tuple(np.array(ZIGZAG).T)] = list(data[at : at + 64])
            assert found.reshape(-1).tolist() == table


def test_other_kinds_of_files():
    gray, cmyk = parsed(pillow(mode="L"))[0], parsed(pillow(mode="CMYK"))[0]
    assert (gray["components"], gray["h"][0], gray["mcu_width"], gray["mcu_height"]) == (1, 1, 8, 8)
    assert (cmyk["components"], cmyk["adobe"]) == (4, 0)
    turned = Image.Exif()
    turned[exif.ORIENTATION] = 8
    restarting, _ = parsed(pillow(restart_marker_blocks=5, exif=turned))
    assert (restarting["interval"], restarting["orientation"]) == (5, 8)
    progressive, _ = parsed(pillow(progressive=True))
    assert (progressive["sof"], progressive["last"], progressive["low"]) == (frame.PROGRESSIVE, 0, 1)


def test_segments_between_the_scans():
    data = pillow(progressive=True)
    view, headers = view_of(data), new_header()
    headers[0]["offset"], bands = 2, []
    while (marker := parse_segment(view, headers)) != EOI:
        assert marker and headers[0]["fault"] == frame.SOUND
        if marker == SOS:
            header = headers[0]
            bands.append([int(header[name]) for name in ("scan_components", "first", "last", "high", "low")])
            clean, bounds = np.zeros(len(data) + 600, np.uint8), np.zeros(2, np.int64)
            _, header["offset"] = unstuff(view, int(header["offset"]), clean, bounds)
    assert headers[0]["scans"] == len(bands) == 10 and headers[0]["offset"] == len(data)
    assert bands[0] == [3, 0, 0, 0, 1] and [1, 1, 63, 2, 1] in bands and [3, 0, 0, 1, 0] in bands


@pytest.mark.parametrize("cut", [0, 1, 2, 3, 10, 25, 100, 170, 300, 600])
def test_truncated_headers_have_no_scan(cut):
    data = pillow()
    header, reached = parsed(data[:cut])
    assert not reached and (header["sof"] != 0) == (cut >= 177)


def test_the_first_fault_is_kept_and_the_size_is_still_read():
    good = pillow()
    for marker, body, fault in (
        (0xE0, b"JFIF\0\2\1\0\0\1\0\1\0\0", frame.UNUSUAL),  # a revision about which libjpeg warns
        (0xDB, b"\4" + bytes(64), frame.DAMAGED),
        (0xC4, b"\0" + bytes([3]) + bytes(15) + b"\0\1\2", frame.DAMAGED),  # three codes of one bit
        (0xDD, b"\0", frame.DAMAGED),
        (0xDC, b"\0\x18", frame.UNUSUAL),
        (0xCC, b"\x10\5", frame.UNUSUAL),
        (0xDE, bytes(15), frame.HIERARCHICAL),
    ):
        header, reached = parsed(insert(insert(good, 0xDA, 0xDC, b"\0\0"), 0xC0, marker, body))
        assert reached and header["fault"] == fault, hex(marker)
        assert (header["width"], header["height"]) == (150, 70)


def test_an_orientation_behind_the_frame_counts():
    """Pillow reads every segment before the scan."""
    turned = Image.Exif()
    turned[exif.ORIENTATION] = 6
    data = insert(pillow(), 0xDA, 0xE1, turned.tobytes())
    with Image.open(io.BytesIO(data)) as image:
        expected = np.asarray(ImageOps.exif_transpose(image))
    header = decode.read_header(data)
    assert header.orientation == 6 and header.size == expected.shape[1::-1]
    np.testing.assert_array_equal(decode.decode(data), expected)


def test_a_segment_that_only_begins_like_jfif_says_nothing_of_colours():
    """libjpeg checks all 14 bytes: otherwise the component ids decide, and these are those of RGB."""
    data = tile(simplejpeg.encode_jpeg(pixels(64, 48), 90, "RGB", "444"), 16).jpeg
    at = data.index(b"\xff\xe0")
    short = data[:at] + b"\xff\xe0\0\x0eJFIF\0\1\1\0\0\1\0\1" + data[at + 18 :]
    for old, new in zip(b"\1\2\3", b"RGB", strict=True):
        for marker, step in ((b"\xff\xc0", 3), (b"\xff\xda", 2)):
            begin = short.index(marker) + (10 if step == 3 else 5)
            place = begin + step * (old - 1)
            short = short[:place] + bytes((new,)) + short[place + 1 :]
    headers = new_header()
    assert parse_header(view_of(short), headers) and is_tiled(headers)
    assert not headers["jfif"][0] and not is_decodable(headers)
    ours, theirs = np.zeros((2, 32, 32, 3), np.uint8)
    for out, compiled in ((ours, True), (theirs, False)):
        decoder = ImageDecoder(CenterCrop(size=32, resize=40), compiled=compiled)
        decoder.fill_row(memoryview(short), (), {"inputs": out}, Scratch())
    np.testing.assert_array_equal(ours, theirs)


def test_tiled_jpegs_are_decodable():
    for sampling in FACTORS:
        headers = new_header()
        made = tile(simplejpeg.encode_jpeg(pixels(320, 240), 90, "RGB", sampling))
        assert parse_header(view_of(made.jpeg), headers) and is_tiled(headers)
        assert is_decodable(headers) == (sampling in ("444", "422", "420"))


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_a_region_holds_what_its_window_needs(data):
    """Its tiles lie inside the image, cover the samples, and contain all taps of the window."""
    width, height = data.draw(st.integers(9, 200)), data.draw(st.integers(9, 200))
    headers, region = new_header(), new_region()
    made = tile(
        simplejpeg.encode_jpeg(pixels(width, height), 80, "RGB", data.draw(st.sampled_from(["444", "420"]))), 16
    )
    assert parse_header(view_of(made.jpeg), headers)
    if not is_decodable(headers):
        return
    box_width, box_height = data.draw(st.integers(1, width)), data.draw(st.integers(1, height))
    x, y = data.draw(st.integers(0, width - box_width)), data.draw(st.integers(0, height - box_height))
    side, bicubic, scaling = data.draw(st.integers(1, 40)), data.draw(st.booleans()), data.draw(st.booleans())
    size = side + data.draw(st.integers(0, 9)), side + data.draw(st.integers(0, 9))
    at = data.draw(st.integers(0, size[0] - side)), data.draw(st.integers(0, size[1] - side))
    box = (x, y, box_width, box_height)
    fits = find_region(headers, box, size, at, (side, side), bicubic, scaling, region)
    r = region[0]
    if not fits:  # a picture that scaling makes too narrow to cut is left to libjpeg-turbo
        assert scaling and r["side"] < 8 and r["picture_width"] <= 4
        return
    assert r["side"] in ((8, 4, 2, 1) if scaling else (8,))
    assert 0 <= r["left"] * r["tile_width"] <= r["x"] <= r["x"] + r["width"] <= r["right"] * r["tile_width"]
    assert 0 <= r["top"] * r["tile_height"] <= r["y"] <= r["y"] + r["height"] <= r["bottom"] * r["tile_height"]
    assert r["x"] + r["width"] <= r["picture_width"] and r["y"] + r["height"] <= r["picture_height"]
    for axis, name in (("x", "width"), ("y", "height")):
        extent, resized = float(r[f"extent_{axis}"]), int(r[f"resized_{name}"])
        most = taps(extent, resized, bicubic)
        begins, counts = np.zeros(side, np.int64), np.zeros(side, np.int64)
        weights, place = np.zeros((side, most), np.int32), int(r[f"at_{axis}"])
        fill_weights(float(r[f"start_{axis}"]), extent, resized, bicubic, place, begins, counts, weights)
        first = r[axis] - r[f"origin_{axis}"]
        assert first <= begins.min() and (begins + counts).max() <= first + r[name]


def test_a_window_that_is_not_inside_has_no_region():
    headers, region = new_header(), new_region()
    parse_header(view_of(tile(simplejpeg.encode_jpeg(pixels(96, 64), 90, "RGB", "444"), 16).jpeg), headers)
    for box, at in (
        ((-1, 0, 5, 5), (0, 0)),
        ((0, 0, 97, 5), (0, 0)),
        ((0, 60, 5, 5), (0, 0)),
        ((0, 0, 0, 5), (0, 0)),
        ((0, 0, 5, 5), (3, 0)),
        ((0, 0, 5, 5), (0, -1)),
    ):
        assert not find_region(headers, box, (10, 10), at, (8, 8), False, False, region)
    assert find_region(headers, (0, 0, 96, 64), (10, 10), (2, 2), (8, 8), False, False, region)


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
def test_the_device_has_the_same_taps_as_the_host(interpolation):
    size, window = 24, Window((3, 5, 131, 40), (30, 26), (4, 1))
    table = np.full(table_words(size, 200), 99, np.int32)
    assert fill_table(window, size, interpolation, table)
    at, place = HEADER + 2 * size, 0
    for axis in range(2):
        extent, resized, bicubic = float(window.box[2 + axis]), window.size[axis], interpolation == "bicubic"
        most = taps(extent, resized, bicubic)
        begins, counts = np.zeros(size, np.int64), np.zeros(size, np.int64)
        weights, place = np.zeros((size, most), np.int32), HEADER + axis * size
        bits = fill_weights(0.0, extent, resized, bicubic, window.at[axis], begins, counts, weights)
        assert (table[axis], table[2 + axis]) == (counts.max(), bits)
        assert table[place : place + size].tolist() == begins.tolist()
        found = table[at : at + counts.max() * size].reshape(-1, size).T
        np.testing.assert_array_equal(found, weights[:, : counts.max()])
        at += counts.max() * size


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("kind", [3, 4])
def test_every_orientation_of_a_segment_is_cleared(order, kind):
    """The first of two entries counts; a reader of the second must not rotate the picture either."""
    entry = struct.pack(order + "HHI", exif.ORIENTATION, kind, 1) + struct.pack(
        order + ("H2x" if kind == 3 else "I"), 6
    )
    other = struct.pack(order + "HHII", 0x0100, 4, 1, 77)
    tiff = {">": b"MM\0*", "<": b"II*\0"}[order] + struct.pack(order + "IH", 8, 3) + entry + other + entry + bytes(4)
    body = np.frombuffer(bytearray(b"Exif\0\0" + tiff), np.uint8)
    assert exif.read_orientation(body, 0, body.size) == 6
    before = body.copy()
    exif.clear_orientation(body, 0, body.size)
    assert exif.read_orientation(body, 0, body.size) == 1
    assert exif.orientation_entry(body, 0, body.size, 1) == 6 + 8 + 2 + 24
    assert np.flatnonzero(body != before).size == 2  # and nothing else changed


def test_the_limit_of_pixels_is_one():
    """The defaults in the flags' help are those of the loaders, which are too slow to import for `--help`."""
    assert MAX_PIXELS == decode.MAX_PIXELS
