"""The resampler equals torchvision's antialiased resize on uint8 bit for bit."""

import io

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision.transforms import v2

from fastimg.loaders.crop import CenterCrop, RandomResizedCrop, Window
from fastimg.loaders.decode import decode, upright
from fastimg.loaders.decoders.images import ImageDecoder
from fastimg.loaders.resample import resample, resample_deep
from fastimg.loaders.runtime.scratch import Scratch

MODES = {"bilinear": v2.InterpolationMode.BILINEAR, "bicubic": v2.InterpolationMode.BICUBIC}


def noise(height, width, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


def by_torchvision(pixels, window, interpolation, side):
    """Crop the box, resize it, cut the window: contiguous [3, H, W] throughout."""
    x, y, w, h = window.box
    image = torch.from_numpy(pixels[y : y + h, x : x + w].copy()).permute(2, 0, 1).contiguous()
    resized = v2.functional.resize(image, [window.size[1], window.size[0]], MODES[interpolation], antialias=True)
    left, top = window.at
    return resized[:, top : top + side, left : left + side]


def check(pixels, window, interpolation, side):
    out = np.full((side, side, 3), 77, np.uint8)
    resample(pixels, window, interpolation, out)
    expected = by_torchvision(pixels, window, interpolation, side)
    assert expected.shape == (3, side, side)
    assert torch.equal(torch.from_numpy(out).permute(2, 0, 1), expected)


@pytest.mark.parametrize("interpolation", MODES)
@pytest.mark.parametrize(
    ("height", "width", "box"),
    [
        (90, 120, (0, 0, 120, 90)),  # the whole, smaller
        (90, 120, (13, 7, 101, 60)),
        (90, 120, (119, 89, 1, 1)),
        (20, 13, (0, 0, 13, 20)),  # larger
        (20, 13, (1, 2, 9, 5)),
        (33, 33, (0, 0, 33, 33)),  # as it is
        (1, 1, (0, 0, 1, 1)),
        (1, 57, (3, 0, 50, 1)),
        (500, 3, (0, 0, 3, 500)),
    ],
)
def test_random_windows(interpolation, height, width, box):
    for side in (33, 8, 2):  # torchvision fails an assertion in torch at 1 x 1
        check(noise(height, width), Window(box, (side, side), (0, 0)), interpolation, side)


@pytest.mark.parametrize("interpolation", MODES)
@pytest.mark.parametrize("orientation", range(1, 9))
def test_views_of_rotated_images(interpolation, orientation):
    pixels = upright(noise(41, 30), orientation)
    height, width, _ = pixels.shape
    check(pixels, Window((2, 3, width - 5, height - 4), (17, 17), (0, 0)), interpolation, 17)
    check(pixels, CenterCrop(size=16, resize=19).window(width, height, ()), interpolation, 16)


@pytest.mark.parametrize("interpolation", MODES)
@pytest.mark.parametrize(("height", "width"), [(90, 121), (121, 90), (20, 21), (32, 32), (1, 1), (64, 3), (37, 200)])
def test_centre_windows(interpolation, height, width):
    for size, resize in ((32, 32), (31, 36)):
        check(noise(height, width), CenterCrop(size=size, resize=resize).window(width, height, ()), interpolation, size)


def test_read_only_pixels():
    pixels = noise(40, 50)
    pixels.flags.writeable = False
    before = pixels.copy()
    check(pixels, Window((0, 0, 50, 40), (20, 20), (0, 0)), "bilinear", 20)
    np.testing.assert_array_equal(pixels, before)


def test_a_single_pixel_of_a_mirrored_image():
    """NumPy calls its array contiguous, whatever the strides."""
    out = np.zeros((1, 1, 3), np.uint8)
    resample(noise(3, 4)[::-1, ::-1], Window((1, 1, 1, 1), (1, 1), (0, 0)), "bilinear", out)
    np.testing.assert_array_equal(out[0, 0], noise(3, 4)[1, 2])


@pytest.mark.parametrize("interpolation", MODES)
@pytest.mark.parametrize("orientation", range(1, 9))
def test_lines_of_turned_images(interpolation, orientation):
    """NumPy and torch call strides (1, H, 1) contiguous, and torch's resize takes the second for a row's bytes."""
    for channels in (1, 3):
        for height, width in ((1, 20_000), (20_000, 1), (1, 2), (2, 1), (1, 1)):
            stored = noise(height, width)[:, :, :channels].copy()
            pixels = upright(stored, orientation)
            tall, wide, _ = pixels.shape
            window = Window((0, 0, wide, tall), (wide * 2, tall * 2), (0, 0))
            found, plain = (np.zeros((tall * 2, wide * 2, channels), np.uint8) for _ in range(2))
            resample(pixels, window, interpolation, found)
            resample(pixels.copy(), window, interpolation, plain)
            np.testing.assert_array_equal(found, plain)
            deep, plain = (np.zeros_like(found, np.uint16) for _ in range(2))
            resample_deep(pixels.astype(np.uint16), window, interpolation, deep)
            resample_deep(pixels.copy().astype(np.uint16), window, interpolation, plain)
            np.testing.assert_array_equal(deep, plain)


@pytest.mark.parametrize("interpolation", MODES)
@pytest.mark.parametrize("kind", [np.uint8, np.uint16, np.float32])
def test_planes_are_resized_as_interleaved_pixels_are(interpolation, kind):
    rng = np.random.default_rng(0)
    for channels in (1, 3, 4, 13):
        for height, width in ((1, 1), (1, 30), (30, 1), (40, 30)):
            planes = rng.integers(0, 256, (channels, height, width)).astype(kind).transpose(1, 2, 0)
            for box in ((0, 0, width, height), (width // 3, height // 2, width - width // 3, height - height // 2)):
                for size, at in (((9, 7), (0, 0)), ((31, 42), (4, 9)), (box[2:], (0, 0)), ((9, 7), (-3, 1))):
                    tall, wide = min(7, size[1]), min(9, size[0])
                    window = Window(box, size, at if size[0] > 8 else (0, 0))
                    rows = [np.zeros((tall, wide, channels), kind) for _ in range(3)]
                    turned = planes.transpose(1, 0, 2).copy().transpose(1, 0, 2)
                    for pixels, out in zip((planes, planes.copy(), turned), rows, strict=True):
                        resample_deep(pixels, window, interpolation, out)
                        np.testing.assert_array_equal(out, rows[0])


def encoded(height, width, kind, orientation):
    exif, buffer = Image.Exif(), io.BytesIO()
    exif[0x0112] = orientation
    Image.fromarray(noise(height, width)).save(buffer, kind, exif=exif)
    return buffer.getvalue()


@pytest.mark.parametrize("interpolation", MODES)
@pytest.mark.parametrize("kind", ["JPEG", "PNG"])
def test_evaluation_is_torchvisions_resize_and_centre_crop(interpolation, kind):
    decoder = ImageDecoder(CenterCrop(size=32, resize=37, interpolation=interpolation))
    theirs = v2.Compose([v2.Resize(37, MODES[interpolation], antialias=True), v2.CenterCrop(32)])
    scratch = Scratch()
    for orientation in (1, 3, 6):
        for height, width in ((50, 75), (75, 51), (37, 37), (20, 30), (5, 100), (301, 200)):
            data = encoded(height, width, kind, orientation)
            row = {"inputs": np.full((32, 32, 3), 77, np.uint8)}
            decoder.fill_row(memoryview(data), (), row, scratch)
            image = torch.from_numpy(decode(data).copy()).permute(2, 0, 1)
            assert torch.equal(torch.from_numpy(row["inputs"]).permute(2, 0, 1), theirs(image)), (height, width)


def test_training_is_torchvisions_resized_crop():
    crop = RandomResizedCrop(size=24)
    decoder, scratch = ImageDecoder(crop), Scratch()
    data = encoded(90, 120, "JPEG", 8)
    image = torch.from_numpy(decode(data).copy()).permute(2, 0, 1)
    for draws in decoder.draw(3, 1, np.arange(20)).tolist():
        row = {"inputs": np.zeros((24, 24, 3), np.uint8)}
        decoder.fill_row(memoryview(data), draws, row, scratch)
        x, y, w, h = crop.window(90, 120, draws).box
        expected = v2.functional.resized_crop(image, y, x, h, w, [24, 24], antialias=True)
        assert torch.equal(torch.from_numpy(row["inputs"]).permute(2, 0, 1), expected)
