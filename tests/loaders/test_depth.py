"""`depth=16`: PNG and TIFF files of 16 bits with all their levels, and 8 bits times 257."""

import io
import struct
import tracemalloc
import zlib

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from torchvision.transforms import InterpolationMode
from torchvision.transforms.v2 import functional

from fastimg.loaders import (
    CenterCrop,
    ImageDecoder,
    ImageError,
    Letterbox,
    Loader,
    RandomCrop,
    RandomResizedCrop,
    View,
    ViewDecoder,
)
from fastimg.loaders.crop import shape_of
from fastimg.loaders.decode import decode, deep_part
from fastimg.loaders.folders.deep_png import read_deep_png
from fastimg.loaders.jpeg.rewriting.tiles import tile
from fastimg.loaders.runtime.scratch import Scratch

MODES = {"bilinear": InterpolationMode.BILINEAR, "bicubic": InterpolationMode.BICUBIC}


def levels(height, width, channels=1, seed=0):
    return np.random.default_rng(seed).integers(0, 1 << 16, (height, width, channels), dtype=np.uint16)


def png(pixels, filters=(0,)):
    """A PNG of 16 bits, which Pillow cannot write with colours; `filters` of its rows in turn."""
    height, width, channels = pixels.shape
    kind = {1: 0, 2: 4, 3: 2, 4: 6}[channels]

    def chunk(name, content):
        return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))

    raw = np.ascontiguousarray(pixels.astype(">u2")).view(np.uint8).reshape(height, -1).astype(np.int64)
    rows = b"".join(filtered(raw, y, 2 * channels, filters[y % len(filters)]) for y in range(height))
    header = struct.pack(">IIBBBBB", width, height, 16, kind, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


def filtered(raw, y, step, kind):
    """One row of bytes as a PNG has it: what a neighbour, or two, or Paeth's choice of three do not say."""
    row, above = raw[y], raw[y - 1] if y else np.zeros_like(raw[0])
    left, corner = (np.concatenate([np.zeros(step, np.int64), line[:-step]]) for line in (row, above))
    guess = left + above - corner
    near = np.stack([abs(guess - left), abs(guess - above), abs(guess - corner)]).argmin(axis=0)
    paeth = np.stack([left, above, corner])[near, np.arange(len(row))]
    guesses = (np.zeros_like(row), left, above, (left + above) // 2, paeth)
    return bytes([kind]) + ((row - guesses[kind]) % 256).astype(np.uint8).tobytes()


def saved(pixels, kind, **options):
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, kind, **options)
    return buffer.getvalue()


def filled(data, crop, draws=(), channels=3, depth=16):
    decoder = ImageDecoder(crop, channels=channels, depth=depth)
    row = np.zeros((*shape_of(crop), channels), f"uint{depth}")
    decoder.fill_row(memoryview(data), draws, {"inputs": row}, Scratch())
    return row


def whole(data, size, channels):
    height, width = size
    return filled(data, RandomCrop(size=(height, width), padding=0), (0.0, 0.0), channels)


@pytest.mark.parametrize("kind", ["png", "tiff"])
def test_gray_files_keep_their_levels(kind):
    pixels = levels(21, 30)
    data = saved(pixels[:, :, 0], kind)
    assert (whole(data, (21, 30), 1) == pixels).all()
    assert (whole(data, (21, 30), 3) == pixels).all()
    assert (decode(data)[:, :, :1] == pixels >> 8).all()  # of 8 bits: the higher byte


@pytest.mark.parametrize("channels", [2, 3, 4])
def test_png_files_of_several_channels_keep_their_levels_without_alpha(channels):
    pixels = levels(21, 30, channels)
    pixels[5:9] = pixels[4]
    colours = pixels[:, :, :3] if channels > 2 else np.repeat(pixels[:, :, :1], 3, axis=2)
    for filters in ((0,), (1,), (2,), (3,), (4,), (4, 2, 0, 3, 1)):
        data = png(pixels, filters)
        assert (whole(data, (21, 30), 3) == colours).all()
        assert (decode(data) == colours >> 8).all()  # Pillow
    luma = colours.astype(np.float64) @ [19595, 38470, 7471] / 65536
    assert np.abs(whole(png(pixels), (21, 30), 1)[:, :, 0] - luma).max() <= 0.5


@pytest.mark.parametrize("kind", ["jpeg", "png", "webp", "tiff"])
def test_files_of_8_bits_are_scaled_before_they_are_resized(kind):
    narrow = (levels(40, 40, 3) >> 8).astype(np.uint8)
    data = saved(narrow, kind)
    assert (whole(data, (40, 40), 3) == decode(data).astype(int) * 257).all()
    wide = png(decode(data).astype(np.uint16) * 257)
    crop = CenterCrop(size=17, resize=19)
    assert (filled(data, crop) == filled(wide, crop)).all()


@settings(max_examples=60)
@given(
    width=st.integers(2, 90),
    height=st.integers(2, 90),
    size=st.sampled_from([3, 17, (9, 40), 64]),
    interpolation=st.sampled_from(list(MODES)),
    seed=st.integers(0, 2**20),
)
def test_crops_are_torchvisions_resize_of_floats(width, height, size, interpolation, seed):
    pixels = levels(height, width, seed=seed)
    crop = RandomResizedCrop(size=size, interpolation=interpolation)
    draws = np.random.default_rng(seed).random(crop.draws).tolist()
    x, y, wide, high = crop.window(width, height, draws).box
    box = torch.from_numpy(pixels[y : y + high, x : x + wide].astype(np.float64)).permute(2, 0, 1)
    want = functional.resize(box, list(shape_of(crop)), MODES[interpolation], antialias=True).clamp(0, 65535)
    seen = torch.from_numpy(filled(saved(pixels[:, :, 0], "png"), crop, draws, 1).astype(np.float64)).permute(2, 0, 1)
    assert (seen - want).abs().max() < 1  # of 65535
    same = functional.resize(box.float(), list(shape_of(crop)), MODES[interpolation], antialias=True)
    assert torch.equal(seen, same.round().clamp(0, 65535).double())


def test_padding_and_letterboxes():
    pixels = levels(8, 8)
    data = saved(pixels[:, :, 0], "png")
    row = filled(data, Letterbox(size=(8, 12)), channels=1)
    assert (row[:, 2:10] == pixels).all() and (row[:, :2] == 114 * 257).all()
    row = filled(data, RandomCrop(size=8, padding=2), (0.0, 0.0), channels=1)
    assert (row[2:, 2:] == pixels[:6, :6]).all() and (row[0, 2:] == pixels[2, :6]).all()


@pytest.fixture
def folder(tmp_path):
    files = {"a": saved(levels(30, 40)[:, :, 0], "png"), "b": png(levels(33, 30, 3))}
    files["c"] = saved((levels(30, 30, 3) >> 8).astype(np.uint8), "jpeg")
    for name, data in files.items():
        (tmp_path / "deep" / "one").mkdir(parents=True, exist_ok=True)
        (tmp_path / "deep" / "one" / f"{name}.{'jpg' if name == 'c' else 'png'}").write_bytes(data)
    return tmp_path / "deep"


def test_batches_of_both_depths_in_one_folder(folder):
    given_ = {"batch_size": 3, "crop": 24, "order": "sequential", "workers": 1}
    with Loader(folder, depth=16, **given_) as loader, Loader(folder, **given_) as narrow:
        batch, other = next(iter(loader)), next(iter(narrow))
        assert batch.inputs.dtype == torch.uint16 and batch.inputs.shape == (3, 3, 24, 24)
        assert loader.unreadable == {} and loader.slot_bytes > 1.5 * narrow.slot_bytes
        assert (batch.inputs.int() / 257 - other.inputs.int()).abs().max() < 3
    with Loader(folder, depth=16, fields=[], **given_) as loader:
        assert next(iter(loader)).boxes_of_crop.shape == (3, 4)


@pytest.mark.parametrize("channels", [1, 3])
def test_views_have_the_pixels_of_their_crops_alone(folder, channels):
    """Files of 16 bits, with and without colours, and a JPEG; the third view is padded."""
    tiled = tile((folder / "one" / "c.jpg").read_bytes()).jpeg
    (folder / "one" / "d.jpg").write_bytes(tiled)
    given_ = {"batch_size": 4, "order": "sequential", "workers": 1, "depth": 16, "channels": channels}
    views = [View(crop=12, n=2, scale=(0.2, 0.6)), View(crop=Letterbox(size=20), name="boxed")]
    with Loader(folder, views=views, **given_) as loader:
        batch = next(iter(loader))
        assert loader.unreadable == {} and [view.dtype for view in batch.views] == [torch.uint16] * 3
        seen = [view.int() for view in batch.views]
        assert "with 16 bits, views 2 x 12x12, 1 x 20x20" in loader.describe()
    for number, crop in ((0, RandomResizedCrop(size=12, scale=(0.2, 0.6))), (2, Letterbox(size=20))):
        with Loader(folder, crop=crop, **given_) as alone:
            assert torch.equal(next(iter(alone)).inputs.int(), seen[number])
    assert not torch.equal(seen[0], seen[1])
    decoder = ViewDecoder((View(crop=12),), depth=16)
    row = {field.name: np.zeros(field.shape, field.dtype) for field in decoder.fields}
    decoder.fill_row(memoryview(tiled), (0.5,) * decoder.crops[0].draws, row, Scratch())
    assert (row["inputs"][0] == filled(tiled, decoder.crops[0], (0.5,) * decoder.crops[0].draws)).all()


def test_a_large_file_takes_little_more_memory_than_its_rows():
    """Of 515 KB one channel took 3.9 GB: the conversion of the whole, and not of the crop, in 64 bits."""
    side = 2000
    data = png(np.zeros((side, side, 3), np.uint16))
    decoder = ImageDecoder(CenterCrop(size=8, resize=16), channels=1, depth=16)
    row = {"inputs": np.ones((8, 8, 1), np.uint16)}
    decoder.fill_row(memoryview(png(levels(21, 30, 3))), (), row, Scratch())  # imports are not counted
    tracemalloc.start()
    try:
        decoder.fill_row(memoryview(data), (), row, Scratch())
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert not row["inputs"].any()
    assert most < 14 * side**2  # bytes: 6 of the rows, 2 of the luma, 4 for torch's resize


def test_the_luma_of_the_highest_levels():
    """Their sum needs all of 32 bits."""
    pixels = np.full((70, 2, 3), 65535, ">u2")
    pixels[69] = (65535, 0, 65535)
    gray, box = deep_part(pixels, (1, 0, 1, 70), 1)
    assert gray.dtype == np.uint16 and box == (0, 0, 1, 70)
    assert gray[:69].min() == 65535 and gray[69, 0, 0] == (65535 * (19595 + 7471) + 0x8000) >> 16


def test_what_cannot_be_read_with_16_bits(tmp_path):
    for depth in (1, 12, 32, "16"):
        with pytest.raises(ValueError, match=r"depth=.*: give 8, or 16 for images of 16 bits"):
            ImageDecoder(CenterCrop(size=8, resize=8), depth=depth)
    with pytest.raises(ValueError, match="dct_scaling is for JPEGs"):
        ViewDecoder((View(crop=8),), depth=16, dct_scaling=True)
    with pytest.raises(ValueError, match="dct_scaling is for JPEGs"):
        ImageDecoder(CenterCrop(size=8, resize=8), depth=16, dct_scaling=True)
    floats = saved(np.zeros((9, 9), np.float32), "tiff")
    with pytest.raises(ImageError, match="pixels of mode F have no defined range; save the image with 8 or 16 bits"):
        whole(floats, (9, 9), 1)
    good = png(levels(21, 30, 3))
    for damaged in (good[:900], good[:60] + b"damaged" + good[67:], png(levels(21, 30, 3))[:28] + b"\1" + good[29:]):
        with pytest.raises(ImageError, match="PNG"):
            read_deep_png(damaged)
        with pytest.raises(ImageError):
            whole(damaged, (21, 30), 3)
