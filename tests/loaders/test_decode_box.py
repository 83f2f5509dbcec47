"""Random access within an image: the pixels of a box equal those of the whole image, however little is decoded."""

import io

import numpy as np
import pytest
import simplejpeg
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from fastimg.loaders import decode as decode_module
from fastimg.loaders.decode import decode, decode_box, read_header, stored_box, upright
from fastimg.loaders.jpeg.rewriting.tiles import tile
from fastimg.loaders.runtime.scratch import Scratch


def photograph(width: int, height: int, orientation: int = 1, subsampling: int = 2) -> bytes:
    """A JPEG with structure at several scales, tiled."""
    y, x = np.mgrid[:height, :width]
    noise = np.random.default_rng(width * height).integers(0, 60, (height, width))
    pixels = np.stack([128 + 90 * np.sin(x / 9) + noise / 3, 255 * y / height, (x * y) % 251], axis=2)
    exif = Image.Exif()
    exif[0x0112] = orientation
    buffer = io.BytesIO()
    image = Image.fromarray(pixels.clip(0, 255).astype(np.uint8))
    image.save(buffer, "JPEG", quality=90, subsampling=subsampling, exif=exif)
    return tile(buffer.getvalue()).jpeg


@pytest.mark.parametrize("orientation", range(1, 9))
def test_a_box_of_a_tiled_jpeg_has_the_pixels_of_the_whole(orientation: int) -> None:
    data = photograph(333, 217, orientation)
    header = read_header(data)
    assert header.restarts
    whole, scratch = decode(data, header), Scratch()
    width, height = header.size
    draws = np.random.default_rng(orientation)
    for _ in range(40):
        w, h = int(draws.integers(1, width + 1)), int(draws.integers(1, height + 1))
        x, y = int(draws.integers(0, width - w + 1)), int(draws.integers(0, height - h + 1))
        pixels, (left, top, *_) = decode_box(data, header, (x, y, w, h), scratch)
        np.testing.assert_array_equal(pixels[top : top + h, left : left + w], whole[y : y + h, x : x + w])


def test_only_overlapping_tiles_are_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    data = photograph(640, 480)
    sizes = []
    real = simplejpeg.decode_jpeg

    def spy(jpeg: bytes, *args: object, **kwargs: object) -> object:
        pixels = real(jpeg, *args, **kwargs)
        sizes.append(pixels.shape)
        return pixels

    monkeypatch.setattr(simplejpeg, "decode_jpeg", spy)
    decode_box(data, read_header(data), (100, 100, 60, 60))
    assert sizes[0][0] <= 96
    assert sizes[0][1] <= 256


def test_a_jpeg_without_tiles_is_decoded_whole() -> None:
    buffer = io.BytesIO()
    Image.new("RGB", (100, 80), (9, 200, 30)).save(buffer, "JPEG")
    data = buffer.getvalue()
    header = read_header(data)
    assert not header.restarts
    pixels, box = decode_box(data, header, (10, 10, 5, 5))
    assert pixels.shape == (80, 100, 3)
    assert box == (10, 10, 5, 5)


def test_missing_tiles_are_an_image_error() -> None:
    data = photograph(320, 240)
    cut = data[: len(data) // 2]
    header = read_header(cut)
    with pytest.raises(decode_module.ImageError):
        decode_box(cut, header, (0, 0, 320, 239))
    with pytest.raises(decode_module.ImageError):
        decode_box(cut, header, (200, 200, 20, 20))


@given(st.integers(1, 8), st.integers(1, 40), st.integers(1, 40), st.data())
@settings(max_examples=60, deadline=None)
def test_boxes_are_mapped_as_pixels_are(orientation: int, width: int, height: int, data: st.DataObject) -> None:
    stored = np.arange(width * height * 3).reshape(height, width, 3) % 256
    header = decode_module.Header("jpeg", width, height, orientation, True)
    seen = upright(stored.astype(np.uint8), orientation)
    w, h = data.draw(st.integers(1, header.size[0])), data.draw(st.integers(1, header.size[1]))
    x, y = data.draw(st.integers(0, header.size[0] - w)), data.draw(st.integers(0, header.size[1] - h))
    sx, sy, sw, sh = stored_box((x, y, w, h), header)
    cut = upright(stored[sy : sy + sh, sx : sx + sw].astype(np.uint8), orientation)
    np.testing.assert_array_equal(cut, seen[y : y + h, x : x + w])
