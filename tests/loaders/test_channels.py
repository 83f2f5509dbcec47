"""`channels=1`: gray batches, with libjpeg's luma of JPEGs and Pillow's "L" of everything else."""

import contextlib
import io
import struct
from dataclasses import replace

import numpy as np
import pytest
import simplejpeg
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

import fastimg
from fastimg.loaders import (
    CenterCrop,
    ImageDecoder,
    Letterbox,
    Loader,
    LongestSide,
    RandomCrop,
    RandomResizedCrop,
    View,
    ViewDecoder,
    open_dataset,
)
from fastimg.loaders.backends.selection import open_source
from fastimg.loaders.crop import fill_of, shape_of
from fastimg.loaders.decode import decode, read_header
from fastimg.loaders.epochs.config import LoaderConfig
from fastimg.loaders.jpeg.rewriting.tiles import tile
from fastimg.loaders.resample import resample
from fastimg.loaders.runtime.scratch import Scratch

CROPS = (
    RandomResizedCrop(size=(17, 29)),
    RandomResizedCrop(size=40, scale=(0.01, 0.1), interpolation="bicubic"),
    CenterCrop(size=8, resize=9),
    CenterCrop(size=60, resize=64, interpolation="bicubic"),
    RandomCrop(size=24, padding=5),
    Letterbox(size=(24, 40)),
    LongestSide(size=33),
)


def pixels_of(width, height, seed=0):
    """RGB with structure at several scales."""
    y, x = np.mgrid[:height, :width]
    noise = np.random.default_rng(seed).integers(0, 60, (height, width))
    channels = [128 + 90 * np.sin(x / 9) + noise / 3, 255 * y / height, (x * y) % 251]
    return np.stack(channels, axis=2).clip(0, 255).astype(np.uint8)


def jpeg(width, height, sampling=2, seed=0, gray=False, **options):
    buffer = io.BytesIO()
    image = Image.fromarray(pixels_of(width, height, seed))
    image.convert("L" if gray else "RGB").save(buffer, "JPEG", quality=90, subsampling=sampling, **options)
    return buffer.getvalue()


def filled(decoder, data, draws):
    """The pixels of a decoder's fields."""
    row = {field.name: np.full(field.shape, 7, np.uint8) for field in decoder.fields}
    decoder.fill_row(memoryview(data), draws, row, Scratch())
    return row


def judged(gray, crop, draws):
    """The crop of gray pixels [H, W, 1], resized as three equal channels."""
    out = np.zeros((*shape_of(crop), 3), np.uint8)
    window = crop.window(gray.shape[1], gray.shape[0], draws)
    resample(np.repeat(gray, 3, axis=2), window, crop.interpolation, out, fill_of(crop))
    return out[:, :, :1]


@settings(max_examples=120)
@given(
    width=st.integers(5, 150),
    height=st.integers(5, 150),
    kind=st.sampled_from(["tiled", "plain", "other restarts"]),
    sampling=st.sampled_from([0, 1, 2]),
    gray=st.booleans(),
    crop=st.sampled_from(CROPS),
    seed=st.integers(0, 2**20),
)
def test_luma_is_libjpegs(width, height, kind, sampling, gray, crop, seed):
    restarts = {"restart_marker_blocks": 3} if kind == "other restarts" else {}
    data = jpeg(width, height, sampling, seed % 100, gray, **restarts)
    data = tile(data).jpeg if kind == "tiled" else data
    draws = np.random.default_rng(seed).random(crop.draws).tolist()
    luma = simplejpeg.decode_jpeg(data, "GRAY")
    want = judged(luma, crop, draws)
    for compiled in (True, False):
        decoder = ImageDecoder(crop, channels=1, compiled=compiled)
        assert (filled(decoder, data, draws)["inputs"] == want).all()
    drafted = Image.open(io.BytesIO(data))
    drafted.draft("L", drafted.size)
    assert (np.asarray(drafted) == luma[:, :, 0]).all()


@settings(max_examples=30)
@given(side=st.integers(64, 400), sampling=st.sampled_from([0, 2]), seed=st.integers(0, 2**20))
def test_dct_scaling_has_the_bits_of_its_rgb(side, sampling, seed):
    """A gray JPEG gives the same luma either way, and a colour JPEG that of the gray one with its luma."""
    data = tile(jpeg(side, side - 9, sampling, seed % 100, gray=True)).jpeg
    crop = RandomResizedCrop(size=16, scale=(0.3, 1.0))
    draws = np.random.default_rng(seed).random(crop.draws).tolist()
    rgb, gray = (filled(ImageDecoder(crop, dct_scaling=True, channels=c), data, draws)["inputs"] for c in (3, 1))
    assert (rgb == gray).all()


def saved(image, kind, **options):
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def others():
    """Images that libjpeg's grayscale output has no part in, and Pillow's gray of them."""
    colour = Image.fromarray(pixels_of(40, 30))
    deep = Image.fromarray((np.arange(1200).reshape(30, 40) * 53 % 65536).astype(np.uint16))
    translucent = colour.copy()
    translucent.putalpha(90)
    luma = np.asarray(colour.convert("L"))
    palette = colour.convert("P")
    return {
        "png": (saved(colour, "PNG"), luma),
        "webp": (saved(colour, "WEBP", lossless=True), luma),
        "alpha": (saved(translucent, "PNG"), luma),
        "palette": (saved(palette, "PNG"), np.asarray(palette.convert("RGB").convert("L"))),
        "one bit": (saved(colour.convert("1"), "PNG"), np.asarray(colour.convert("1").convert("L"))),
        "16 bits": (saved(deep, "PNG"), (np.asarray(deep) >> 8).astype(np.uint8)),
        "tiff": (saved(colour, "TIFF"), luma),
    }


@pytest.mark.parametrize("kind", others())
def test_other_formats_are_converted_as_by_pillow(kind):
    data, want = others()[kind]
    assert (decode(data, channels=1)[:, :, 0] == want).all()


def test_a_cmyk_jpeg_is_converted_by_pillow():
    data = saved(Image.fromarray(pixels_of(40, 30)).convert("CMYK"), "JPEG")
    want = np.asarray(Image.open(io.BytesIO(data)).convert("L"))
    assert (decode(data, channels=1)[:, :, 0] == want).all()


def test_a_turned_jpeg_is_turned():
    exif = Image.Exif()
    exif[0x0112] = 6
    data = tile(jpeg(50, 34, exif=exif)).jpeg
    crop = CenterCrop(size=34, resize=34)
    rgb, gray = (filled(ImageDecoder(crop, channels=c), data, ())["inputs"] for c in (3, 1))
    assert np.abs(rgb.astype(int).mean(axis=2) - gray[:, :, 0]).mean() < 60
    want = np.rot90(simplejpeg.decode_jpeg(data, "GRAY")[:, :, 0], -1)
    assert (decode(data, channels=1)[:, :, 0] == want).all()


def test_a_damaged_jpeg_is_decoded_by_pillow_to_gray():
    data = bytearray(tile(jpeg(120, 90)).jpeg)
    data[-400:-300] = bytes(100)  # within a tile
    whole = Image.open(io.BytesIO(data))
    whole.draft("L", whole.size)
    crop = CenterCrop(size=90, resize=90)
    try:
        want = judged(np.asarray(whole)[:, :, None], crop, ())
    except OSError:
        pytest.fail("the damage is to be one that Pillow accepts")
    assert (filled(ImageDecoder(crop, channels=1), bytes(data), ())["inputs"] == want).all()


def test_views_have_the_bits_of_their_crops_alone():
    views = (View(crop=24, n=2, scale=(0.3, 1.0)), View(crop=(9, 40), scale=(0.05, 0.3)), View(crop=Letterbox(size=30)))
    for kind in ("tiled", "plain"):
        data = jpeg(130, 90)
        data = tile(data).jpeg if kind == "tiled" else data
        for chosen in (views, views[:2]):  # with a letterbox, no union is made
            decoder = ViewDecoder(chosen, channels=1)
            draws = decoder.draw(3, 1, np.array([5]))[0].tolist()
            rows = filled(decoder, data, draws)
            crops = [crop for field in decoder.fields for crop in rows[field.name]]
            for crop, part, out in zip(decoder.crops, decoder.parts, crops, strict=True):
                assert (filled(ImageDecoder(crop, channels=1), data, draws[part])["inputs"] == out).all()


@pytest.fixture
def folder(tmp_path):
    for number in range(7):
        data = jpeg(60 + 7 * number, 50, seed=number)
        (tmp_path / "photos" / "ab"[number % 2]).mkdir(parents=True, exist_ok=True)
        (tmp_path / "photos" / "ab"[number % 2] / f"{number}.jpg").write_bytes(data)
    return tmp_path / "photos"


def batches(data, **options):
    with Loader(data, batch_size=4, order="sequential", crop=32, workers=1, copy=True, **options) as loader:
        return torch.cat([batch.inputs for batch in loader]), loader.slot_bytes


def test_a_loader_of_either_container_and_of_a_folder(folder, tmp_path):
    gray, third = batches(folder, channels=1)
    rgb, whole = batches(folder)
    assert gray.shape == (8, 1, 32, 32) and rgb.shape == (8, 3, 32, 32)
    assert 2.5 < whole / third < 3
    weights = torch.tensor([0.299, 0.587, 0.114]).view(1, 3, 1, 1)
    assert ((rgb * weights).sum(dim=1, keepdim=True) - gray).abs().mean() < 2
    for form in ("tar", "beton"):
        fastimg.convert(folder, tmp_path / form, format=form, shuffle=False, no_shuffle=True)
        assert torch.equal(batches(tmp_path / form, channels=1)[0], gray)
    with Loader(folder, batch_size=4, views=[View(crop=20, n=2)], channels=1, workers=1) as loader:
        assert [view.shape for view in next(iter(loader)).views] == [(4, 1, 20, 20)] * 2


def test_other_backends(folder):
    config = LoaderConfig(batch_size=7, order="sequential", workers=1)
    crop = CenterCrop(size=32, resize=37)
    with contextlib.closing(open_dataset(str(folder), "train")) as dataset:
        found = {}
        for backend in ("native", "torch", "synthetic"):
            source = open_source(backend, dataset, crop, config, channels=1)
            found[backend] = next(iter(source)).inputs.clone()
            source.close()
            assert found[backend].shape == (7, 1, 32, 32)
        assert (found["native"].int() - found["torch"].int()).abs().max() <= 3
        with pytest.raises(ValueError, match="channels=1: the resident loader makes only RGB; use the native one"):
            open_source("resident", dataset, crop, config, channels=1)
        with pytest.raises(ValueError, match="channels=1: the decoder of a GPU makes only RGB"):
            open_source("native", dataset, crop, config, decode="gpu", channels=1)


@pytest.mark.parametrize("channels", [0, 2, 4, True, "1", None])
def test_other_numbers_of_channels_are_refused(channels):
    with pytest.raises(ValueError, match=r"channels=.*: give 3 for RGB or 1 for gray; arrays with other numbers"):
        ImageDecoder(CROPS[0], channels=channels)
    with pytest.raises(ValueError, match=r"give 3 for RGB or 1 for gray"):
        ViewDecoder((View(crop=8),), channels=channels)


def test_channels_are_the_decoders(folder):
    with pytest.raises(TypeError, match="crop, views, max_pixels, channels and depth are the decoder's"):
        Loader(folder, ImageDecoder(CROPS[0]), channels=1, batch_size=4)
    assert replace(ImageDecoder(CROPS[0], channels=1)).sized(8).channels == 1
    assert "decoded on the CPU to gray" in ImageDecoder(CROPS[0], channels=1).describe()


def lossless_jpeg(pixels):
    """Pixels [H, W, C] as a lossless JPEG (SOF3, predictor 1): a code of 4 bits for the size of each difference."""

    def segment(marker, body):
        return bytes([255, marker]) + struct.pack(">H", len(body) + 2) + body

    height, width, channels = pixels.shape
    numbers = range(1, channels + 1)
    frame = struct.pack(">BHHB", 8, height, width, channels) + b"".join(bytes([c, 0x11, 0]) for c in numbers)
    scan = bytes([channels, *(part for c in numbers for part in (c, 0)), 1, 0, 0])
    levels = pixels.astype(int)
    predicted = np.full_like(levels, 128)
    predicted[1:, 0] = levels[:-1, 0]
    predicted[:, 1:] = levels[:, :-1]
    bits = ""
    for difference in (levels - predicted).ravel().tolist():
        size = abs(difference).bit_length()
        code = difference if difference > 0 else difference + (1 << size) - 1
        bits += f"{size:04b}" + (f"{code:0{size}b}" if size else "")
    bits += "1" * (-len(bits) % 8)
    data = int(bits, 2).to_bytes(len(bits) // 8, "big").replace(b"\xff", b"\xff\x00")
    table = bytes([0, 0, 0, 0, 9, *[0] * 12, *range(9)])
    adobe = segment(0xEE, b"Adobe\0\x64" + bytes(5))  # RGB
    return b"\xff\xd8" + adobe + segment(0xC3, frame) + segment(0xC4, table) + segment(0xDA, scan) + data + b"\xff\xd9"


@pytest.mark.parametrize("stored", [1, 3])
def test_a_lossless_jpeg_as_one_channel_and_as_three(stored):
    pixels = np.random.default_rng(0).integers(0, 256, (9, 13, stored), dtype=np.uint8)
    data = lossless_jpeg(pixels)
    picture = Image.fromarray(pixels if stored == 3 else pixels[..., 0])
    assert np.array_equal(decode(data, read_header(data), channels=1)[..., 0], np.asarray(picture.convert("L")))
    assert np.array_equal(decode(data, read_header(data)), np.asarray(picture.convert("RGB")))
