"""Crop windows, compared with torchvision."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from torchvision.transforms import v2

from fastimg.loaders.crop import (
    CenterCrop,
    RandomCrop,
    RandomResizedCrop,
    Window,
    pair,
    reaches_out,
    shape_of,
    sized,
    smaller,
)
from fastimg.loaders.random import uniforms
from fastimg.loaders.resample import resample

sides = st.integers(1, 6000)
draws = st.lists(st.floats(0, 1, exclude_max=True), min_size=22, max_size=22)


@given(
    width=sides,
    height=sides,
    draws=draws,
    scale=st.tuples(st.floats(0.001, 1), st.floats(0.001, 1)).map(sorted),
    ratio=st.tuples(st.floats(0.1, 10), st.floats(0.1, 10)).map(sorted),
)
def test_random_boxes_stay_inside(width, height, draws, scale, ratio):
    window = RandomResizedCrop(size=32, scale=tuple(scale), ratio=tuple(ratio)).window(width, height, draws)
    x, y, w, h = window.box
    assert min(x, y) >= 0 and min(w, h) > 0 and x + w <= width and y + h <= height
    assert window.size == (32, 32) and window.at == (0, 0)


def their_boxes(transform, width, height, count):
    image = torch.empty(3, height, width, dtype=torch.uint8)
    params = [transform.make_params([image]) for _ in range(count)]
    return np.array([[p["left"], p["top"], p["width"], p["height"]] for p in params])


def our_boxes(crop, width, height, count):
    table = uniforms(1, 2, np.arange(count), 3, crop.draws)
    return np.array([crop.window(width, height, row).box for row in table.tolist()])


@pytest.mark.parametrize(
    ("width", "height", "options"),
    [
        (500, 375, {}),
        (120, 400, {}),  # some of the boxes do not fit, and are drawn again
        (300, 300, {"scale": (0.25, 0.5), "ratio": (0.5, 3.0)}),
        (17, 23, {"scale": (0.5, 1.0)}),
    ],
)
def test_random_boxes_are_distributed_as_torchvisions(width, height, options):
    count = 4000
    with torch.random.fork_rng():
        torch.manual_seed(7)
        theirs = their_boxes(v2.RandomResizedCrop(32, **options), width, height, count)
    ours = our_boxes(RandomResizedCrop(size=32, **options), width, height, count)
    for name, of in {
        "area": lambda b: b[:, 2] * b[:, 3],
        "aspect": lambda b: np.log(b[:, 2] / b[:, 3]),
        "x": lambda b: b[:, 0] / (width - b[:, 2] + 1),
        "y": lambda b: b[:, 1] / (height - b[:, 3] + 1),
        "left": lambda b: b[:, 0],
        "top": lambda b: b[:, 1],
    }.items():
        a, b = of(ours).astype(float), of(theirs).astype(float)
        error = math.sqrt(a.var() / count + b.var() / count)
        assert abs(a.mean() - b.mean()) < 4 * error, name
        assert stats.ks_2samp(a, b).pvalue > 1e-3, name


@pytest.mark.parametrize(
    ("width", "height"), [(10, 1000), (1000, 10), (1, 500), (501, 1), (3, 1000), (333, 7), (2, 100)]
)
def test_the_fallback_is_torchvisions(width, height):
    options = {"scale": (0.9, 1.0)}  # no box of that area fits
    (theirs,) = their_boxes(v2.RandomResizedCrop(32, **options), width, height, 1).tolist()
    ours = our_boxes(RandomResizedCrop(size=32, **options), width, height, 5).tolist()
    assert ours == [theirs] * 5


def test_the_first_try_that_fits_is_taken():
    """Draws in their order: (area, aspect) per attempt, then x, y."""
    crop = RandomResizedCrop(size=8, scale=(1e-9, 1.0), ratio=(0.5, 2.0))
    draws = [0.999, 0.999, 0.25, 0.5] + [0.0] * 16 + [0.5, 0.999]
    assert crop.window(100, 100, draws) == Window((25, 50, 50, 50), (8, 8), (0, 0))


SIDES = (1, 2, 7, 31, 32, 33, 100, 223, 224, 225, 333, 500)


@pytest.mark.parametrize(("size", "resize"), [(32, 32), (32, 37), (31, 36), (224, 256), (7, 8), (1, 1), (224, 235)])
def test_centre_windows_are_torchvisions(size, resize):
    crop = CenterCrop(size=size, resize=resize)
    for width in SIDES:
        for height in SIDES:
            if max(width, height) > 40 * min(width, height):
                continue
            window = crop.window(width, height, ())
            blank = torch.zeros(1, height, width, dtype=torch.uint8)
            resized = v2.functional.resize(blank, [resize], v2.InterpolationMode.NEAREST)
            assert window.size == (resized.shape[2], resized.shape[1]) and window.box == (0, 0, width, height)
            places = torch.arange(resized[0].numel()).view(1, *resized.shape[1:])
            first = int(v2.functional.center_crop(places, [size, size])[0, 0, 0])
            assert window.at == (first % resized.shape[2], first // resized.shape[2]), (width, height)


def test_an_invalid_centre_crop():
    with pytest.raises(ValueError, match="a crop of 33 does not fit an image resized to 32"):
        CenterCrop(size=33, resize=32)


# Rectangles: sizes are (height, width), as in torchvision


@pytest.mark.parametrize(("size", "resize"), [((32, 48), 48), ((48, 32), 55), ((7, 31), (8, 36)), ((1, 9), (10, 9))])
def test_centre_windows_of_rectangles_are_torchvisions(size, resize):
    """A single size means torchvision's Resize; for a pair, the shorter side follows from covering the crop."""
    crop, least = CenterCrop(size=size, resize=resize), (resize, resize) if isinstance(resize, int) else resize
    for width in SIDES:
        for height in SIDES:
            if max(width, height) > 40 * min(width, height):
                continue
            window = crop.window(width, height, ())
            w, h = window.size
            blank = torch.zeros(1, height, width, dtype=torch.uint8)
            if isinstance(resize, int):
                resized = v2.functional.resize(blank, [resize], v2.InterpolationMode.NEAREST)
                assert (h, w) == tuple(resized.shape[1:])
            assert h >= least[0] and w >= least[1]  # covered, and as small as the aspect ratio allows
            assert (w, h) in ((least[1], int(least[1] * height / width)), (int(least[0] * width / height), least[0]))
            places = torch.arange(w * h).view(1, h, w)
            first = int(v2.functional.center_crop(places, list(size))[0, 0, 0])
            assert window.at == (first % w, first // w), (width, height)


def test_random_boxes_do_not_depend_on_the_rectangle():
    for draws in uniforms(1, 0, np.arange(50), 1, 22).tolist():
        square, window = (RandomResizedCrop(size=size).window(60, 400, draws) for size in (32, (32, 48)))
        assert window.box == square.box and (window.size, window.at) == ((48, 32), (0, 0))


def test_squares_are_given_by_their_side():
    assert RandomResizedCrop(size=(32, 32)) == RandomResizedCrop(size=np.int64(32)) == RandomResizedCrop(size=32)
    assert CenterCrop(size=(32, 32), resize=[37, 37]) == CenterCrop(size=32, resize=37)


@pytest.mark.parametrize("size", [0, -1, (32,), (32, 48, 3), (32, 0), 32.5, "32", None])
def test_invalid_sizes(size):
    for make in (RandomResizedCrop, lambda size: CenterCrop(size=size, resize=64)):
        with pytest.raises(ValueError, match=r"size .*: give the side of a square in pixels, or \(height, width\)"):
            make(size=size)


def test_a_rectangle_that_does_not_fit():
    with pytest.raises(ValueError, match="a crop of 32 x 48 does not fit an image resized to 40"):
        CenterCrop(size=(32, 48), resize=40)
    with pytest.raises(ValueError, match="a crop of 32 x 48 does not fit an image resized to 48 x 32"):
        CenterCrop(size=(32, 48), resize=(48, 32))


def test_rectangles_made_smaller():
    crop = CenterCrop(size=(64, 96), resize=(74, 110))
    assert sized(crop, (32, 48)) == CenterCrop(size=(32, 48), resize=(37, 55))
    assert sized(crop, 32) == CenterCrop(size=32, resize=(37, 37))
    assert sized(RandomResizedCrop(size=(64, 96)), (1, 96)).size == (1, 96)
    for size in ((65, 96), (64, 97), 65):
        with pytest.raises(ValueError, match="give at most 64 x 96, or make the loader with a larger crop"):
            smaller(crop, size)
        assert shape_of(sized(crop, size)) == pair(size)


def cut_by_us(crop, pixels, numbers, shape):
    out = np.zeros((*shape, 3), np.uint8)
    resample(pixels, crop.window(pixels.shape[1], pixels.shape[0], numbers), crop.interpolation, out)
    return out


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
@pytest.mark.parametrize(
    ("width", "height", "size", "padding"),
    [(32, 32, (32, 32), 4), (40, 64, (32, 32), 31), (33, 20, (16, 24), 5), (9, 7, (16, 16), 0), (90, 20, (8, 8), 3)],
)
def test_padded_crops_are_torchvisions(width, height, size, padding, interpolation):
    """torchvision's Resize, reflecting Pad and crop at the drawn position; some of them without padding."""
    pixels = np.random.default_rng(width).integers(0, 256, (height, width, 3), dtype=np.uint8)
    image = torch.from_numpy(pixels).permute(2, 0, 1)
    crop = RandomCrop(size=size, padding=padding, interpolation=interpolation)
    w, h = crop.resized(width, height)
    resized = v2.functional.resize(image, [h, w], v2.InterpolationMode(interpolation), antialias=True)
    padded = v2.functional.pad(resized, [padding] * 4, padding_mode="reflect")
    corners = [[0.0, 0.0], [np.nextafter(1, 0)] * 2, [0.0, 0.999]]
    for numbers in [*corners, *uniforms(1, 2, np.arange(12), 3, 2).tolist()]:
        window = crop.window(width, height, numbers)
        x, y = window.at[0] + padding, window.at[1] + padding
        assert 0 <= x <= padded.shape[2] - size[1] and 0 <= y <= padded.shape[1] - size[0]
        expected = padded[:, y : y + size[0], x : x + size[1]].permute(1, 2, 0).numpy()
        assert np.array_equal(cut_by_us(crop, pixels, numbers, size), expected)


def test_padded_crops_are_drawn_evenly():
    crop = RandomCrop(size=32, padding=2)
    table = uniforms(1, 2, np.arange(5000), 3, crop.draws)
    places = np.array([crop.window(32, 32, row).at for row in table.tolist()])
    for axis in (0, 1):
        values, counts = np.unique(places[:, axis], return_counts=True)
        assert values.tolist() == [-2, -1, 0, 1, 2] and stats.chisquare(counts).pvalue > 0.001
    assert reaches_out(Window((0, 0, 32, 32), (32, 32), (-1, 0)), 32, 32)
    assert not reaches_out(Window((0, 0, 32, 32), (34, 32), (2, 0)), 32, 32)


def test_invalid_paddings():
    for padding in (-1, 24, 32):
        with pytest.raises(ValueError, match=f"a padding of {padding} pixels: a crop of 24 x 32 has room for 0 to 23"):
            RandomCrop(size=(24, 32), padding=padding)
    with pytest.raises(TypeError, match="RandomCrop has one size"):
        sized(RandomCrop(size=32, padding=4), 24)
