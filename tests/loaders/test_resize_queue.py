"""Pictures that are resized several in one call: the pixels of `resample`, and what is left to it."""

import numpy as np
import pytest

from fastimg.loaders.crop import RandomResizedCrop, Window
from fastimg.loaders.decoders import resize_queue
from fastimg.loaders.decoders.resize_queue import ResizeQueue
from fastimg.loaders.resample import resample
from fastimg.loaders.runtime.scratch import MOST, Scratch


def pictures(rng, channels, most=60):
    """A picture [H, W, C], whose rows may lie apart, and a window of it inside."""
    high, wide = rng.integers(1, most, 2).tolist()
    pixels = rng.integers(0, 256, (high, wide + rng.integers(0, 3), channels), dtype=np.uint8)[:, :wide]
    width, height = int(rng.integers(1, wide + 1)), int(rng.integers(1, high + 1))
    box = (int(rng.integers(0, wide - width + 1)), int(rng.integers(0, high - height + 1)), width, height)
    size = tuple(rng.integers(1, 80, 2).tolist())
    out = tuple(int(rng.integers(1, extent + 1)) for extent in size[::-1])  # height, width
    at = tuple(int(rng.integers(0, extent - wanted + 1)) for extent, wanted in zip(size, out[::-1], strict=True))
    return pixels, Window(box, size, at), out


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
def test_pixels_are_those_of_resample(channels, interpolation):
    rng = np.random.default_rng(channels)
    queue, scratch = ResizeQueue(), Scratch()
    for number in range(300):
        pixels, window, shape = pictures(rng, channels, most=300 if number % 10 == 0 else 60)
        crop = RandomResizedCrop(size=shape, interpolation=interpolation)
        found = np.full((3, *shape, channels), 77, np.uint8)
        assert queue.add(pixels, window, shape, 1)
        queue.run(crop, scratch, found)
        expected = np.empty((*shape, channels), np.uint8)
        resample(pixels, window, interpolation, expected)
        np.testing.assert_array_equal(found[1], expected, err_msg=f"{pixels.shape} {window}")
        assert (found[[0, 2]] == 77).all() and len(queue) == 0


def test_several_of_different_sizes_in_one_call():
    rng = np.random.default_rng(0)
    queue, crop = ResizeQueue(), RandomResizedCrop(size=32)
    found, expected = np.zeros((2, MOST, 32, 32, 3), np.uint8)
    for row in range(MOST):
        assert not queue.full
        pixels = rng.integers(0, 256, (50 + 2 * row, 40 + row, 3), dtype=np.uint8)
        window = Window((3, 5, 30, 40), (32, 32), (0, 0))
        assert queue.add(pixels, window, (32, 32), row)
        resample(pixels, window, "bilinear", expected[row])
    assert queue.full
    queue.run(crop, Scratch(), found)
    np.testing.assert_array_equal(found, expected)


def test_what_resample_has_to_do():
    queue = ResizeQueue()
    pixels = np.zeros((40, 60, 3), np.uint8)
    plain = Window((0, 0, 60, 40), (32, 32), (0, 0))
    turned = {"mirrored": pixels[:, ::-1], "upside down": pixels[::-1], "transposed": pixels.transpose(1, 0, 2)}
    for name, view in turned.items():
        assert not queue.add(view, plain._replace(box=(0, 0, 40, 40)), (32, 32), 0), name
    for at in ((-1, 0), (0, 1)):  # reaches beyond what is resized
        assert not queue.add(pixels, plain._replace(at=at), (32, 32), 0)
    large = np.zeros((1200, 1200, 3), np.uint8)
    assert not queue.add(large, Window((0, 0, 1200, 1200), (32, 32), (0, 0)), (32, 32), 0)
    assert queue.add(large, Window((5, 5, 300, 300), (32, 32), (0, 0)), (32, 32), 0)
    assert queue.full  # so much is not kept in memory for long
    queue.clear()
    assert len(queue) == 0 and not queue.full


def test_memory_that_is_too_small_grows():
    queue, scratch = ResizeQueue(), Scratch()
    pixels = np.random.default_rng(0).integers(0, 256, (500, 500, 3), dtype=np.uint8)
    window = Window((0, 0, 500, 500), (224, 224), (0, 0))
    found, expected = np.zeros((2, 1, 224, 224, 3), np.uint8)
    assert queue.add(pixels, window, (224, 224), 0)
    queue.run(RandomResizedCrop(size=224), scratch, found)
    resample(pixels, window, "bilinear", expected[0])
    np.testing.assert_array_equal(found, expected)
    assert scratch.nbytes > resize_queue.JOB.itemsize
