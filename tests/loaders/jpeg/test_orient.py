"""JPEGs turned upright: the original's coefficients rotated, and its pixels up to the rounding of decoders."""

import io
import struct

import numpy as np
import pytest
import simplejpeg
from PIL import Image, ImageOps

from fastimg.loaders.decode import decode, read_header, upright
from fastimg.loaders.jpeg.decoding.entropy.symbols import ZIGZAG
from fastimg.loaders.jpeg.decoding.frame import DQT
from fastimg.loaders.jpeg.rewriting.coefficients import planes
from fastimg.loaders.jpeg.rewriting.markers import Parser
from fastimg.loaders.jpeg.rewriting.orient import turned, upright_jpeg
from fastimg.loaders.jpeg.rewriting.splice import can_splice
from fastimg.loaders.jpeg.rewriting.tiles import Reason, tile

SAMPLINGS = ("444", "422", "420", "440", "411", "Gray")
BACK = {1: 1, 2: 2, 3: 3, 4: 4, 5: 5, 6: 8, 7: 7, 8: 6}


def oriented(data, orientation, order=">", kind=3):
    """With an EXIF block that contains the orientation, with two entries."""
    value = struct.pack(order + ("HH" if kind == 3 else "I"), *((orientation, 0) if kind == 3 else (orientation,)))
    tiff = {">": b"MM\0*", "<": b"II*\0"}[order] + struct.pack(order + "IH", 8, 2)
    tiff += struct.pack(order + "HHI4s", 0x010E, 2, 4, b"abc\0")
    tiff += struct.pack(order + "HHI", 0x0112, kind, 1) + value + bytes(4)
    body = b"Exif\0\0" + tiff
    return data[:2] + b"\xff\xe1" + struct.pack(">H", len(body) + 2) + body + data[2:]


def noise(width, height, sampling="444", seed=0, **options):
    """Encoded noise; progressive JPEGs by Pillow."""
    y, x = np.mgrid[:height, :width]
    waves = np.stack([128 + 90 * np.sin(x / 7 + y / 11 + c) for c in range(3)], axis=2)
    pixels = np.clip(waves + np.random.default_rng(seed).normal(0, 20, waves.shape), 0, 255).astype(np.uint8)
    if options:
        buffer = io.BytesIO()
        mode = options.pop("mode", "RGB")
        if mode == "RGB":
            options["subsampling"] = {"444": 0, "422": 1, "420": 2}[sampling]
        Image.fromarray(pixels).convert(mode).save(buffer, "JPEG", **options)
        return buffer.getvalue()
    if sampling == "Gray":
        return simplejpeg.encode_jpeg(np.ascontiguousarray(pixels[:, :, :1]), 85, "GRAY", "Gray")
    return simplejpeg.encode_jpeg(pixels, 85, "RGB", sampling)


def read(data):
    """Coefficients of each component in whole MCUs, its 8 x 8 quantisation table, and the frame."""
    parser = Parser(memoryview(data))
    found = planes(parser, 1 << 30)
    tables = {}
    for marker, body in parser.head:
        at = 0
        while marker == DQT and at < len(body):
            values = np.frombuffer(body, ">u2" if body[at] >> 4 else np.uint8, 64, at + 1)
            table = np.zeros((8, 8))
            for value, place in zip(values, ZIGZAG, strict=True):
                table[place] = value
            tables[body[at] & 15] = table
            at += 1 + 64 * values.itemsize
    return found, [tables[c.quantisation] for c in parser.frame.components], parser.frame


def samples(plane, table):
    """The component's samples before rounding: the inverse DCT (A.3.3) in float64."""
    square = np.zeros((*plane.shape[:2], 8, 8))
    for k, (row, column) in enumerate(ZIGZAG):
        square[:, :, row, column] = plane[:, :, k] * table[row, column]
    n = np.arange(8)
    basis = np.cos((2 * n[None, :] + 1) * n[:, None] * np.pi / 16) * np.where(n == 0, 0.5**0.5, 1)[:, None] / 2
    blocks = np.einsum("ui,rcuv,vj->ricj", basis, square, basis)
    return blocks.reshape(plane.shape[0] * 8, plane.shape[1] * 8)


def perfect(frame, orientation):
    """The rule: a flipped axis must have whole MCUs."""
    across, down = frame.mcu_size
    swapped = orientation >= 5
    across_flips, down_flips = orientation in (2, 3, 6, 7), orientation in (3, 4, 7, 8)
    width_flips, height_flips = (down_flips, across_flips) if swapped else (across_flips, down_flips)
    return not (width_flips and frame.width % across) and not (height_flips and frame.height % down)


def check(data, orientation):
    source = oriented(data, orientation)
    before, tables, frame = read(source)
    out = upright_jpeg(source)
    if not perfect(frame, orientation):
        assert out is None
        return None
    assert out is not None
    after, tables_after, _ = read(out)
    for plane, table, plane_after, table_after in zip(before, tables, after, tables_after, strict=True):
        expected = upright(samples(plane, table)[:, :, None], orientation)[:, :, 0]
        np.testing.assert_allclose(samples(plane_after, table_after), expected, atol=1e-6)
    header, source_header = read_header(out), read_header(source)
    assert header.orientation == 1 and header.size == source_header.size and header.turbo == source_header.turbo
    assert can_splice(out) and tile(out).kept in (Reason.TILED, Reason.COSTLY)

    back = upright_jpeg(out.replace(oriented(b"\xff\xd8", 1)[2:], oriented(b"\xff\xd8", BACK[orientation])[2:]))
    again, tables_again, frame_again = read(back)
    for a, b in zip((*before, *tables), (*again, *tables_again), strict=True):
        np.testing.assert_array_equal(a, b)
    assert frame_again[1:] == frame[1:]
    return np.abs(decode(source).astype(int) - decode(out)).max(), out


@pytest.mark.parametrize("orientation", range(2, 9))
@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("size", [(96, 64), (64, 33), (37, 48), (8, 8), (200, 112)])
def test_orientations_and_samplings(sampling, orientation, size):
    data = noise(*size, sampling)
    if sampling == "411" and orientation >= 5:
        assert upright_jpeg(oriented(data, orientation)) is None
        return
    result = check(data, orientation)
    if result is not None:
        exact = orientation == 4 and sampling != "440"  # the sums of other flips are rounded differently
        assert result[0] <= (0 if exact else 1 if sampling == "Gray" else 5)


@pytest.mark.parametrize("orientation", range(2, 9))
@pytest.mark.parametrize("sampling", ["444", "422", "420"])
def test_progressive(sampling, orientation):
    made = check(noise(96, 64, sampling, progressive=True), orientation)
    assert made is not None and b"\xff\xc2" not in made[1][: made[1].index(b"\xff\xda")]


@pytest.mark.parametrize("orientation", range(2, 9))
def test_other_modes(orientation):
    for options in ({"mode": "CMYK"}, {"mode": "L", "progressive": True}, {"mode": "RGB", "keep_rgb": True}):
        assert check(noise(96, 64, **options), orientation) is not None


def test_pillow_agrees():
    """Another EXIF reader finds no rotation left to apply, and gets the same picture as before."""
    for orientation in range(2, 9):
        for order, kind in ((">", 3), ("<", 3), (">", 4), ("<", 4)):
            source = oriented(noise(96, 64), orientation, order, kind)
            out = upright_jpeg(source)
            with Image.open(io.BytesIO(source)) as before, Image.open(io.BytesIO(out)) as after:
                assert after.getexif()[0x0112] == 1 and after.getexif()[0x010E] == "abc"
                expected = np.asarray(ImageOps.exif_transpose(before)).astype(int)
                assert np.abs(np.asarray(after) - expected).max() <= 5
                assert np.asarray(ImageOps.exif_transpose(after)).shape == expected.shape


def test_groups():
    """The eight orientations of a plane form a group."""
    plane = np.random.default_rng(0).integers(-99, 99, (3, 5, 64)).astype(np.int16)
    for orientation, back in BACK.items():
        np.testing.assert_array_equal(turned(turned([plane], orientation), back)[0], plane)
    for a, b, both in ((2, 4, 3), (6, 6, 3), (8, 8, 3), (6, 3, 8), (5, 2, 6), (5, 4, 8)):
        np.testing.assert_array_equal(turned(turned([plane], a), b)[0], turned([plane], both)[0])


def test_tables_of_16_bits():
    """A quantiser above 255 is transposed with the rest."""
    data = noise(64, 48, "444", quality=1, mode="RGB")
    at = data.index(b"\xff\xdb")
    length = int.from_bytes(data[at + 2 : at + 4], "big")
    wide = b"".join(
        bytes((0x10 | i,)) + np.arange(200 + i, 264 + i, dtype=">u2").tobytes() for i in range((length - 2) // 65)
    )
    if length == 67:  # a segment for each table
        wide = bytes((0x10,)) + np.arange(200, 264, dtype=">u2").tobytes()
    data = data[:at] + b"\xff\xdb" + (len(wide) + 2).to_bytes(2, "big") + wide + data[at + 2 + length :]
    data = data.replace(b"\xff\xc0", b"\xff\xc1", 1)
    for orientation in range(2, 9):
        assert check(data, orientation) is not None


def test_jpegs_that_are_returned_unchanged():
    data = noise(64, 48)
    assert upright_jpeg(data) is data
    source = oriented(data, 1)
    assert upright_jpeg(source) is source
    buffer = io.BytesIO()
    Image.new("RGB", (8, 8)).save(buffer, "PNG")
    broken = oriented(data, 6)
    for other in (b"", b"no image", buffer.getvalue(), broken[: len(broken) // 2]):
        assert upright_jpeg(other) is None
    assert upright_jpeg(broken, max_pixels=100) is None
