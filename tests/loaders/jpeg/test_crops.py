"""The compiled decoder, of tiled JPEGs: the bits of libjpeg-turbo and torch's resize for every accepted image."""

import io
from dataclasses import dataclass

import numpy as np
import pytest
import simplejpeg
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from fastimg.loaders import CenterCrop, ImageDecoder, Loader, RandomResizedCrop, View, ViewDecoder
from fastimg.loaders.crop import Window, shape_of
from fastimg.loaders.decode import MAX_PIXELS, decode_box, read_header
from fastimg.loaders.folders.folder import FilesDataset
from fastimg.loaders.jpeg.decoding import crops as compiling
from fastimg.loaders.jpeg.decoding.crops import CropQueue
from fastimg.loaders.jpeg.decoding.filters import fill_weights, taps
from fastimg.loaders.jpeg.decoding.frame import SCANS, TILED, UNTILED
from fastimg.loaders.jpeg.rewriting.splice import splice
from fastimg.loaders.jpeg.rewriting.tiles import tile
from fastimg.loaders.resample import resample
from fastimg.loaders.runtime.scratch import GROUP, Scratch

SAMPLINGS = ("444", "422", "420", "Gray")
LIMIT = MAX_PIXELS
CENTRE = CenterCrop(size=32, resize=40)


@dataclass(frozen=True)
class Fixed:
    """A crop with a given window."""

    window_: Window
    size: int | tuple[int, int]
    interpolation: str = "bilinear"
    draws: int = 0

    def window(self, width, height, draws):
        return self.window_


def encoded(width, height, sampling, quality=90, seed=0, noise=25.0):
    y, x = np.mgrid[:height, :width]
    waves = np.stack([128 + 90 * np.sin(x / 7 + y / 11 + c) for c in range(3)], axis=2)
    pixels = np.clip(waves + np.random.default_rng(seed).normal(0, noise, waves.shape), 0, 255).astype(np.uint8)
    if sampling == "Gray":
        return simplejpeg.encode_jpeg(np.ascontiguousarray(pixels[:, :, :1]), quality, "GRAY", "Gray")
    return simplejpeg.encode_jpeg(pixels, quality, "RGB", sampling)


def expected(data, crop):
    """Decoded by libjpeg-turbo and resized by torch."""
    header = read_header(data)
    window = crop.window(*header.size, ())
    pixels, box = decode_box(data, header, window.box)
    out = np.zeros((*shape_of(crop), 3), np.uint8)
    resample(pixels, window._replace(box=box), crop.interpolation, out)
    return out


def found(data, crop, scratch=None, scaling=False):
    out = np.full((1, *shape_of(crop), 3), 7, np.uint8)
    scratch, queue = scratch or Scratch(), CropQueue()
    taken = queue.add(data, crop, (), LIMIT, 0) and not queue.run(crop, scaling, scratch, out)
    return out[0] if taken else None


@st.composite
def crops(draw, width, height):
    box_width, box_height = draw(st.integers(1, width)), draw(st.integers(1, height))
    box = (draw(st.integers(0, width - box_width)), draw(st.integers(0, height - box_height)), box_width, box_height)
    wide, tall = (draw(st.sampled_from([1, 3, 8, 11, 16, 33, 64])) for _ in range(2))
    size = (wide + draw(st.integers(0, 20)), tall + draw(st.integers(0, 20)))
    at = (draw(st.integers(0, size[0] - wide)), draw(st.integers(0, size[1] - tall)))
    return Fixed(Window(box, size, at), (tall, wide), draw(st.sampled_from(["bilinear", "bicubic"])))


@pytest.mark.parametrize("sampling", SAMPLINGS)
@settings(max_examples=60, deadline=None)
@given(st.data())
def test_any_window_of_any_picture(sampling, data):
    width, height = data.draw(st.integers(1, 150)), data.draw(st.integers(1, 150))
    jpeg = encoded(width, height, sampling, data.draw(st.integers(1, 100)), data.draw(st.integers(0, 99)))
    jpeg = tile(jpeg, width_px=data.draw(st.sampled_from([8, 16, 32, 64]))).jpeg
    crop = data.draw(crops(width, height))
    got = found(jpeg, crop)
    assert got is not None or width <= 4 or not read_header(jpeg).restarts
    if got is not None:
        assert np.array_equal(got, expected(jpeg, crop))


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_it_accepts_tiled_jpegs(sampling):
    jpeg = tile(encoded(320, 240, sampling)).jpeg
    for crop in (
        Fixed(Window((0, 0, 320, 240), (64, 48), (8, 0)), 48),
        Fixed(Window((201, 3, 70, 200), (64, 64), (0, 0)), 64),
    ):
        got = found(jpeg, crop)
        assert got is not None
        assert np.array_equal(got, expected(jpeg, crop))


@pytest.mark.parametrize("sampling", ["444", "420", "Gray"])
@pytest.mark.parametrize("denominator", [2, 4, 8])
def test_scaled_decoding_is_libjpegs(sampling, denominator):
    jpeg = tile(encoded(320, 256, sampling)).jpeg
    side = 256 // denominator
    pixels = simplejpeg.decode_jpeg(jpeg, "RGB", min_height=side, min_width=320 // denominator, min_factor=2)
    assert pixels.shape[:2] == (side, 320 // denominator)
    crop = Fixed(Window((0, 0, 320, 256), (320 // denominator, side), (5, 0)), side)
    assert np.array_equal(found(jpeg, crop, scaling=True), pixels[:, 5 : 5 + side])


@pytest.mark.parametrize("sampling", SAMPLINGS)
@settings(max_examples=40, deadline=None)
@given(st.data())
def test_scaled_crops_are_near_the_exact_ones(sampling, data):
    width, height = data.draw(st.integers(40, 200)), data.draw(st.integers(40, 200))
    y, x = np.mgrid[:height, :width]
    pixels = np.stack([128 + 100 * np.sin(x / 40 + y / 50 + c) for c in range(3)], axis=2).astype(np.uint8)
    gray = sampling == "Gray"
    pixels = np.ascontiguousarray(pixels[:, :, :1]) if gray else pixels
    jpeg = tile(simplejpeg.encode_jpeg(pixels, 95, "GRAY" if gray else "RGB", sampling), width_px=16).jpeg
    crop = data.draw(crops(width, height))
    exact, near = found(jpeg, crop), found(jpeg, crop, scaling=True)
    assert (exact is None) == (near is None)
    if exact is not None:
        difference = np.abs(exact.astype(int) - near)
        assert difference.mean() < 6 and difference.max() < 25
        box, size, _ = crop.window_
        if box[2] < 2 * size[0] or box[3] < 2 * size[1] or sampling == "422":
            assert not difference.any()


def test_pixels_of_the_darkest_and_brightest():
    rng = np.random.default_rng(0)
    pixels = rng.choice(np.array([0, 255], np.uint8), (90, 130, 3))
    for quality in (1, 20, 100):
        jpeg = tile(simplejpeg.encode_jpeg(pixels, quality, "RGB", "420")).jpeg
        crop = Fixed(Window((3, 2, 120, 80), (50, 50), (0, 0)), 50)
        assert np.array_equal(found(jpeg, crop), expected(jpeg, crop))


def test_one_scratch_for_pictures_of_all_sizes():
    scratch, crop = Scratch(), CenterCrop(size=32, resize=40)
    for size in (300, 40, 500, 41, 64):
        jpeg = tile(encoded(size, size + 9, "420", seed=size)).jpeg
        assert np.array_equal(found(jpeg, crop, scratch), expected(jpeg, crop))


def jpeg_by_pillow(**options):
    buffer = io.BytesIO()
    Image.fromarray(np.random.default_rng(0).integers(90, 160, (60, 80, 3), np.uint8)).save(buffer, "JPEG", **options)
    return buffer.getvalue()


def test_unsupported_jpegs_are_left_to_other_decoders():
    crop = Fixed(Window((0, 0, 60, 60), (32, 32), (0, 0)), 32)
    for name, data in {
        "nothing": b"",
        "no JPEG": b"\x89PNG\r\n\x1a\n" + bytes(50),
        "4:4:0": tile(encoded(200, 100, "440")).jpeg,
    }.items():
        assert found(data, crop) is None, name
    upright = Image.Exif()
    upright[0x0112] = 1
    assert found(tile(jpeg_by_pillow(exif=upright)).jpeg, crop) is not None


def test_a_last_tile_that_the_image_does_not_end_is_left_to_the_judge():
    jpeg, crop = tile(encoded(64, 64, "420")).jpeg, CenterCrop(size=32, resize=32)
    assert jpeg[-2:] == b"\xff\xd9" and found(jpeg, crop) is not None
    for marker in (b"\xff\x0f", b"\xff\xc5", b"\xff\xd0", b"\xff", b""):
        assert found(jpeg[:-2] + marker, crop) is None
    assert found(jpeg + b"and more", crop) is not None


def test_more_pixels_than_allowed_are_not_decoded():
    jpeg, crop = tile(encoded(64, 64, "420")).jpeg, CenterCrop(size=32, resize=32)
    assert CropQueue().add(jpeg, crop, (), 64 * 64, 0)
    assert not CropQueue().add(jpeg, crop, (), 64 * 64 - 1, 0)


def test_windows_outside_the_image_are_left_to_other_decoders():
    jpeg = tile(encoded(64, 48, "420")).jpeg
    for box, size, at in (
        ((0, 0, 65, 48), (32, 32), (0, 0)),
        ((0, -1, 64, 48), (32, 32), (0, 0)),
        ((60, 0, 5, 5), (32, 32), (0, 0)),
        ((0, 0, 0, 5), (32, 32), (0, 0)),
        ((0, 0, 64, 48), (32, 31), (0, 0)),
        ((0, 0, 64, 48), (40, 40), (9, 0)),
        ((0, 0, 64, 48), (40, 40), (0, -1)),
    ):
        assert found(jpeg, Fixed(Window(box, size, at), 32)) is None
    assert found(jpeg, Fixed(Window((0, 0, 64, 48), (40, 40), (8, 8)), 32)) is not None


def test_several_in_one_call_with_damaged_ones_reported():
    scratch, queue, crop = Scratch(), CropQueue(), CenterCrop(size=32, resize=36)
    jpegs = [tile(encoded(60 + 9 * i, 50 + 5 * i, "420", seed=i)).jpeg for i in range(GROUP)]
    damaged = bytearray(jpegs[3])
    half = len(damaged) // 2
    damaged[half : half + 30] = bytes(30)
    jpegs[3] = bytes(damaged)
    out = np.full((2 * GROUP + 4, 32, 32, 3), 7, np.uint8)
    rows = [2 * GROUP + 3 - 2 * i for i in range(GROUP)]
    for row, jpeg in zip(rows, jpegs, strict=True):
        assert queue.add(jpeg, crop, (), LIMIT, row)
    assert queue.run(crop, False, scratch, out) == [(rows[3], jpegs[3])]
    for row, jpeg in zip(rows, jpegs, strict=True):
        if row != rows[3]:
            assert np.array_equal(out[row], expected(jpeg, crop))
    assert (out[0] == 7).all()  # nobody's row
    assert queue.run(crop, False, scratch, out) == []


def damaged(data):
    """A tiled JPEG of 96 x 80 with a few other bytes, and perhaps without its end."""
    sampling = data.draw(st.sampled_from(SAMPLINGS))
    jpeg = bytearray(tile(encoded(96, 80, sampling, 80), width_px=16).jpeg)
    scan = jpeg.index(b"\xff\xda")
    for _ in range(data.draw(st.integers(1, 3))):
        low = 2 if data.draw(st.booleans()) else scan
        at = data.draw(st.integers(low, len(jpeg) - 1))
        jpeg[at] = data.draw(st.integers(0, 255))
    if data.draw(st.booleans()):
        del jpeg[data.draw(st.integers(scan, len(jpeg) - 1)) :]
    return bytes(jpeg)


@settings(max_examples=400, deadline=None)
@given(st.data())
def test_damage_is_left_to_the_judge_or_decoded_as_he_does(data):
    """Some damage only changes values. For accepted images, the pixels must then equal libjpeg's, too."""
    jpeg = damaged(data)
    crop = Fixed(Window((0, 0, 40, 30), (24, 24), (0, 0)), 24)
    got = found(jpeg, crop)
    if got is not None:
        part, _ = splice(bytes(jpeg), crop.window_.box)  # from the first tile on, like the box
        pixels = simplejpeg.decode_jpeg(part, "RGB", strict=False)
        theirs = np.zeros((24, 24, 3), np.uint8)
        resample(pixels, crop.window_, "bilinear", theirs)
        assert np.array_equal(got, theirs)


def test_numbers_that_overflow_are_left_to_the_judge():
    """libjpeg-turbo has a shortcut for blocks with only a first row, which wraps where the general code saturates."""
    jpeg = bytearray(tile(encoded(96, 80, "444", 80), width_px=16).jpeg)
    assert jpeg[218] == 0x81  # a Huffman symbol
    jpeg[218] = 25
    assert found(bytes(jpeg), Fixed(Window((0, 0, 40, 30), (24, 24), (0, 0)), 24)) is None


def test_the_decoder_of_a_loader_uses_it(monkeypatch):
    jpeg = memoryview(tile(encoded(400, 300, "420")).jpeg)
    for crop in (RandomResizedCrop(size=96), CenterCrop(size=96, resize=110, interpolation="bicubic")):
        ours, theirs = ImageDecoder(crop), ImageDecoder(crop, compiled=False)
        scratch, rows = Scratch(), np.zeros((2, 96, 96, 3), np.uint8)
        for epoch in range(10):
            draws = ours.draw(0, epoch, np.zeros(1, np.int64))[0].tolist()
            theirs.fill_row(jpeg, draws, {"inputs": rows[1]}, scratch)
            with monkeypatch.context() as patch:
                patch.setattr("fastimg.loaders.decoders.images.read_header", None)  # the other path begins with it
                ours.fill_row(jpeg, draws, {"inputs": rows[0]}, scratch)
            assert np.array_equal(rows[0], rows[1])


@pytest.mark.parametrize("scarce", ["decoding", "reading"])
@pytest.mark.parametrize("decoder", [ImageDecoder(CENTRE), ViewDecoder([View(crop=CENTRE, n=2)])])
def test_without_memory_for_a_group_its_images_are_decoded_one_by_one(decoder, scarce, tmp_path, monkeypatch):
    for number in range(3):
        jpeg = tile(encoded(200 + number, 150, "420")).jpeg
        tmp_path.joinpath("c").mkdir(exist_ok=True)
        (tmp_path / "c" / f"{number}.jpg").write_bytes(jpeg)

    def lacking(*_):
        raise MemoryError

    def rows():
        with Loader(tmp_path, decoder, batch_size=3, order="sequential", workers=1) as loader:
            (batch,) = loader
            return loader.unreadable, [batch.inputs.tolist(), *(field.tolist() for field in batch.fields.values())]

    unreadable, pixels = rows()
    with monkeypatch.context() as patch:
        if scarce == "reading":
            patch.setattr(FilesDataset, "read_group", lacking)
        else:
            patch.setattr(Scratch, "work", lambda self, nbytes: lacking() if nbytes else np.empty(0, np.uint8))
        assert rows() == (unreadable, pixels) and not unreadable
        patch.setattr(Scratch, "pixels", lacking)
        # no decoder has the room that it needs: every image is named
        if scarce == "decoding":
            assert rows()[0] == dict.fromkeys(range(3), "it needs more memory than there is")


@pytest.mark.parametrize("bicubic", [False, True])
def test_weights_are_torchs(bicubic):
    """Resizing single bright pixels reads the weights, for every pair of sizes up to 40 and some large ones."""
    kernel = torch.ops.aten._upsample_bicubic2d_aa if bicubic else torch.ops.aten._upsample_bilinear2d_aa
    pairs = [(a, b) for a in range(1, 40) for b in range(1, 40)] + [(3000, 7), (7, 300), (1023, 224), (500, 224)]
    for source, size in pairs:
        bright = torch.eye(source, dtype=torch.uint8)[:, None, None, :] * 255  # [source, 1, 1, source]
        bright = bright.expand(-1, 3, -1, -1).contiguous(memory_format=torch.channels_last)
        theirs = kernel(bright, [1, size], False, None, None)[:, 0, 0].numpy()
        most = taps(float(source), size, bicubic)
        begins, counts = np.zeros(size, np.int64), np.zeros(size, np.int64)
        weights = np.zeros((size, most), np.int32)
        bits = fill_weights(0.0, float(source), size, bicubic, 0, begins, counts, weights)
        ours = np.zeros((source, size), np.int64)
        for i in range(size):
            for j in range(counts[i]):
                value = (255 * int(weights[i, j]) + (1 << (bits - 1))) >> bits
                ours[begins[i] + j, i] = min(max(value, 0), 255)
        if source != size:  # torch skips a pass that changes nothing
            assert np.array_equal(ours, theirs), (source, size)


def test_what_must_be_compiled_for_an_image(monkeypatch):
    jpegs = {
        "tiled": tile(encoded(100, 80, "420")).jpeg,
        "untiled": jpeg_by_pillow(),
        "progressive": jpeg_by_pillow(progressive=True),
    }
    for jpeg in jpegs.values():
        compiling.compile_for(jpeg)
        assert compiling.missing_decoder(jpeg) == ""
    assert all(compiling.is_ready(kind) for kind in (TILED, UNTILED, SCANS))
    monkeypatch.setattr(compiling, "is_kept", lambda function: False)
    for name, jpeg in jpegs.items():
        assert compiling.missing_decoder(jpeg) == name
    assert compiling.missing_decoder(jpeg_by_pillow(keep_rgb=True)) == ""
    assert compiling.missing_decoder(b"\x89PNG\r\n\x1a\n") == ""
