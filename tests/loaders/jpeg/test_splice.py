"""Splices: crops decoded from them equal crops of the whole decoded image, bit for bit."""

import io

import numpy as np
import pytest
import simplejpeg
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from fastimg.loaders.jpeg.rewriting import tiles
from fastimg.loaders.jpeg.rewriting.splice import can_splice, splice
from fastimg.loaders.jpeg.rewriting.tiles import tile

SAMPLINGS = ("444", "422", "420", "440", "411", "Gray", "410", "CMYK")


def encoded(width, height, sampling, seed=0):
    y, x = np.mgrid[:height, :width]
    waves = np.stack([128 + 90 * np.sin(x / 7 + y / 11 + c) for c in range(3)], axis=2)
    noise = np.random.default_rng(seed).normal(0, 25, waves.shape)
    pixels = np.clip(waves + noise, 0, 255).astype(np.uint8)
    if sampling == "Gray":
        return simplejpeg.encode_jpeg(np.ascontiguousarray(pixels[:, :, :1]), 90, "GRAY", "Gray")
    if sampling == "CMYK":
        buffer = io.BytesIO()
        Image.fromarray(pixels).convert("CMYK").save(buffer, "JPEG")
        return buffer.getvalue()
    if sampling == "410":
        return four_by_two(width, height, seed)
    return simplejpeg.encode_jpeg(pixels, 90, "RGB", sampling)


def four_by_two(width, height, seed):
    """4:1:0: the scan of a 4:1:1 JPEG with luma of twice the height, read as 4 x 2 blocks per MCU.

    The different order of the blocks gives another picture, which serves as well.
    """
    rows = -(-height // 16)
    pixels = np.random.default_rng(seed).integers(90, 160, (rows * 8, -(-width // 32) * 64, 3), dtype=np.uint8)
    found = bytearray(simplejpeg.encode_jpeg(pixels, 80, "RGB", "411"))
    parser = tiles.Parser(memoryview(found))
    next(parser.scans())
    coefficients = tiles.planes(tiles.Parser(memoryview(bytes(found))), 1 << 30)
    at = found.index(b"\xff\xc0")
    found[at + 5 : at + 9] = height.to_bytes(2, "big") + width.to_bytes(2, "big")
    found[at + 11] = 0x42
    parser = tiles.Parser(memoryview(found))
    scan = next(parser.scans())
    columns, down = parser.frame.mcus
    luma = np.ascontiguousarray(coefficients[0].reshape(down, -1, 64).reshape(down * 2, -1, 64))
    chroma = [np.ascontiguousarray(c[:, :columns]) for c in coefficients[1:]]
    coded, ac = tiles.recode([luma, *chroma], parser.frame)
    tables = {(1, i): t for i, t in enumerate(ac)}
    return tiles._written(parser, scan.body, tables, scan.dc, coded, columns * down)


def tiled(width, height, sampling, width_px=64, seed=0):
    cost, tiles.MAX_COST = tiles.MAX_COST, float("inf")
    try:
        made = tile(encoded(width, height, sampling, seed), width_px)
    finally:
        tiles.MAX_COST = cost
    return made.jpeg


def decoded(data):
    """Decoded by Pillow (libjpeg-turbo)."""
    with Image.open(io.BytesIO(data)) as image:
        return np.asarray(image)


def check(data, box):
    part, (left, top) = splice(data, box)
    x, y, width, height = box
    cut = decoded(part)[y - top : y - top + height, x - left : x - left + width]
    np.testing.assert_array_equal(cut, decoded(data)[y : y + height, x : x + width])


@st.composite
def crops(draw):
    width, height = draw(st.integers(1, 300)), draw(st.integers(1, 120))
    w, h = draw(st.integers(1, width)), draw(st.integers(1, height))
    return (width, height), (draw(st.integers(0, width - w)), draw(st.integers(0, height - h)), w, h)


@pytest.mark.parametrize("sampling", SAMPLINGS)
@settings(max_examples=40, deadline=None)
@given(crop=crops(), width_px=st.sampled_from([8, 16, 32, 64]), seed=st.integers(0, 9))
def test_crops(sampling, crop, width_px, seed):
    size, box = crop
    data = tiled(*size, sampling, width_px, seed)
    check(data, box)


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_narrow_crops_at_every_edge(sampling):
    """Chroma with a width of two samples or fewer is upsampled differently: the splice must not be that narrow."""
    for width, height in ((131, 37), (67, 35), (65, 33), (99, 19)):
        data = tiled(width, height, sampling, 8)
        edges = [
            *((0, 0), (width - 1, height - 1), (width - 3, 0), (width // 2, height // 2)),
            *((16, 8), (15, 7), (63, 15)),
        ]
        for x, y in edges:
            check(data, (x, y, 1, 1))


@pytest.mark.parametrize("sampling", ["444", "422", "420", "440", "411", "Gray"])
def test_simplejpeg_decodes_splices(sampling):
    data = tiled(320, 240, sampling)
    whole = simplejpeg.decode_jpeg(data, "RGB")
    buffer = bytearray(len(data) + 2)
    for box in ((0, 0, 9, 9), (100, 50, 120, 100), (200, 130, 120, 110), (63, 0, 2, 240)):
        part, (left, top) = splice(data, box, buffer)
        x, y, w, h = box
        pixels = simplejpeg.decode_jpeg(part, "RGB")[y - top : y - top + h, x - left : x - left + w]
        np.testing.assert_array_equal(pixels, whole[y : y + h, x : x + w])
        assert len(part) < len(data)


def test_long_strips():
    for size in ((8, 65500), (65500, 8)):
        data = tiled(*size, "420")
        whole = simplejpeg.decode_jpeg(data, "RGB")
        for at in (0, 30000, 65490):
            box = (at, 1, 10, 5) if size[0] > 8 else (1, at, 5, 10)
            part, (left, top) = splice(data, box)
            assert len(part) < 3000
            x, y, w, h = box
            pixels = simplejpeg.decode_jpeg(part, "RGB")[y - top : y - top + h, x - left : x - left + w]
            np.testing.assert_array_equal(pixels, whole[y : y + h, x : x + w])


def test_jpegs_without_tiles_are_returned_unchanged():
    plain = encoded(200, 100, "420")
    buffer = io.BytesIO()
    Image.fromarray(np.zeros((100, 200, 3), np.uint8)).save(buffer, "JPEG", restart_marker_blocks=5)
    made = tiled(200, 100, "420")
    assert can_splice(made)
    third = made.index(b"\xff\xd2")
    for data in (
        plain,
        buffer.getvalue(),
        b"",
        b"\xff\xd8\xff",
        b"no JPEG",
        made[:third] + b"\xff\xd5" + made[third + 2 :],
    ):
        part, offset = splice(data, (150, 60, 10, 10))
        assert bytes(part) == data and offset == (0, 0)
        assert not can_splice(data)
    part, offset = splice(made, (0, 0, 200, 100))
    assert bytes(part) == made and offset == (0, 0)


def test_a_buffer_that_is_too_small_leaves_the_file_whole():
    data = tiled(200, 100, "420")
    for nbytes in (0, 1, 100, 700):
        part, offset = splice(data, (150, 60, 10, 10), bytearray(nbytes))
        assert bytes(part) == data and offset == (0, 0)


def test_wrong_arguments():
    data = tiled(200, 100, "420")
    for box in ((-1, 0, 5, 5), (0, 0, 0, 5), (0, 0, 201, 5), (190, 0, 20, 5), (0, 99, 5, 2)):
        with pytest.raises(ValueError, match="not inside the image"):
            splice(data, box)


def test_a_splice_has_no_baggage():
    """EXIF and profiles are dropped; segments that affect colours are kept."""
    body = b"Exif\0\0" + bytes(5000)
    data = tiled(200, 100, "CMYK")
    data = data[:2] + b"\xff\xe1" + (len(body) + 2).to_bytes(2, "big") + body + data[2:]
    part, _ = splice(data, (0, 0, 10, 10))
    assert body not in bytes(part) and b"Adobe" in bytes(part)
    with Image.open(io.BytesIO(part)) as cut, Image.open(io.BytesIO(data)) as whole:
        box = (0, 0, 10, 10)
        np.testing.assert_array_equal(np.asarray(cut.crop(box)), np.asarray(whole.crop(box)))
