"""Crops for detectors: the whole image on a canvas."""

import io

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from torchvision.transforms.v2 import functional as F

from fastimg.loaders import Crop, ImageDecoder, ImageError, Letterbox, Loader, LongestSide, RandomResizedCrop
from fastimg.loaders.backends.resident import ResidentImages
from fastimg.loaders.backends.torch_loader import TorchLoader
from fastimg.loaders.crop import fill_of, sized
from fastimg.loaders.decode import decode, read_header
from fastimg.loaders.epochs.config import LoaderConfig
from fastimg.loaders.jpeg.rewriting.tiles import tile
from fastimg.loaders.runtime.scratch import Scratch

CROPS = [Letterbox(size=(48, 64)), LongestSide(size=(48, 64), fill=7), Letterbox(size=33, interpolation="bicubic")]


def ultralytics(width, height, tall, wide):
    """(width, height) and (left, top) as ultralytics 8.3's LetterBox.__call__ computes them, with auto=False."""
    r = min(tall / height, wide / width)
    new_unpad = round(width * r), round(height * r)
    dw, dh = (wide - new_unpad[0]) / 2, (tall - new_unpad[1]) / 2
    return new_unpad, (round(dw - 0.1), round(dh - 0.1))


@given(st.integers(16, 6000), st.integers(16, 6000), st.integers(32, 1400), st.integers(32, 1400))
def test_the_letterbox_is_ultralytics(width, height, tall, wide):
    window = Letterbox(size=(tall, wide)).window(width, height, ())
    size, (left, top) = ultralytics(width, height, tall, wide)
    if min(size) > 0:
        assert window == ((0, 0, width, height), size, (-left, -top))
    assert window.size[0] <= wide and window.size[1] <= tall and min(window.size) >= 1


@given(st.integers(1, 6000), st.integers(1, 6000), st.integers(1, 1400))
def test_the_longest_side_is_segment_anythings(width, height, side):
    window = LongestSide(size=side).window(width, height, ())
    scale = side * 1.0 / max(height, width)
    expected = max(1, int(width * scale + 0.5)), max(1, int(height * scale + 0.5))
    assert window == ((0, 0, width, height), expected, (0, 0)) and max(expected) == side


def encoded(kind, width, height, orientation=1):
    """A picture as a tiled JPEG, a plain one or a PNG."""
    ramp = np.linspace(0, 255, width)[None, :, None] * (1.0, 0.5, 0.2) + np.arange(height)[:, None, None]
    image, buffer = Image.fromarray(np.clip(ramp, 0, 255).astype(np.uint8)), io.BytesIO()
    exif = Image.Exif()
    exif[0x0112] = orientation
    image.save(buffer, "PNG" if kind == "png" else "JPEG", exif=exif)
    return tile(buffer.getvalue()).jpeg if kind == "tiled" else buffer.getvalue()


@pytest.mark.parametrize("crop", CROPS, ids=str)
@pytest.mark.parametrize(
    ("kind", "size", "orientation"),
    [("tiled", (210, 97), 1), ("tiled", (40, 30), 1), ("plain", (97, 210), 6), ("png", (300, 20), 1)],
)
def test_pixels_are_the_resized_image_on_a_canvas(crop, kind, size, orientation):
    data = encoded(kind, *size, orientation)
    pixels = torch.from_numpy(np.array(decode(data, read_header(data)), order="C")).permute(2, 0, 1)
    window = crop.window(pixels.shape[2], pixels.shape[1], ())
    filters = {"bilinear": F.InterpolationMode.BILINEAR, "bicubic": F.InterpolationMode.BICUBIC}
    resized = F.resize(pixels, list(window.size[::-1]), filters[crop.interpolation], antialias=True)
    tall, wide = (crop.size, crop.size) if isinstance(crop.size, int) else crop.size
    left, top = -window.at[0], -window.at[1]
    right, bottom = wide - left - window.size[0], tall - top - window.size[1]
    expected = F.pad(resized, [left, top, right, bottom], fill=crop.fill).permute(1, 2, 0).numpy()
    for compiled in (True, False):
        out = np.full((tall, wide, 3), 200, np.uint8)
        ImageDecoder(crop, compiled=compiled).fill_row(memoryview(data), (), {"inputs": out}, Scratch())
        assert np.array_equal(out, expected)


def test_batches_of_any_format(files):
    crop = Letterbox(size=40)
    whole = [batch.inputs.clone() for batch in Loader(files, crop=crop, batch_size=23, order="sequential")]
    assert whole[0].shape == (23, 3, 40, 40)
    assert (whole[0][0, :, :, 20] == 114).all(dim=0).sum() == 0  # 40 x 60 pixels: padded left and right
    assert (whole[0][0, :, :, :6] == 114).all()
    smaller = Loader(files, crop=crop, batch_size=23, order="sequential")
    smaller.set_size(20)
    assert next(iter(smaller)).inputs.shape == (23, 3, 20, 20)


def test_a_damaged_tiled_image_is_left_to_the_other_decoder():
    data = encoded("tiled", 210, 97)
    out = np.zeros((48, 64, 3), np.uint8)
    with pytest.raises(ImageError):
        ImageDecoder(CROPS[0]).fill_row(memoryview(data[:400]), (), {"inputs": out}, Scratch())


def test_short_names():
    assert Crop.letterbox(640) == Letterbox(size=640)
    assert Crop.longest_side((48, 64), fill=7) == LongestSide(size=(48, 64), fill=7)
    with pytest.raises(ValueError, match="fill=256: give a level, 0 to 255"):
        Crop.letterbox(640, fill=256)


def test_sizes_and_fills():
    assert sized(Letterbox(size=64), 32) == Letterbox(size=32) and sized(LongestSide(size=64), 32).size == 32
    assert fill_of(Letterbox(size=8)) == 114 and fill_of(RandomResizedCrop(size=8)) is None
    for kind in (Letterbox, LongestSide):
        with pytest.raises(ValueError, match="fill=256: give a level, 0 to 255"):
            kind(size=8, fill=256)


def test_loaders_that_do_not_pad_refuse(files):
    config = LoaderConfig(batch_size=4, workers=1)
    with pytest.raises(ValueError, match="the torch loader does not pad"):
        TorchLoader(files, Letterbox(size=8), config, torch.device("cpu"))
    with pytest.raises(ValueError, match="are not padded"):
        ResidentImages(files, LongestSide(size=8), "cpu", None, 1 << 20, 1, "skip")
