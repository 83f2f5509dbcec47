"""The compiled decoder, of JPEGs that EXIF turns: the bits of libjpeg-turbo, turned upright, and torch's resize."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fastimg.loaders import CenterCrop, ImageDecoder, RandomResizedCrop
from fastimg.loaders.crop import Window
from fastimg.loaders.decode import read_header
from fastimg.loaders.jpeg.decoding.crops import CropQueue
from fastimg.loaders.jpeg.rewriting.tiles import tile
from fastimg.loaders.runtime.scratch import GROUP, Scratch

from .test_crops import LIMIT, SAMPLINGS, Fixed, crops, encoded, expected, found
from .test_untiled import Fenced, restarted, turned

ORIENTATIONS = range(1, 9)


@pytest.mark.parametrize("orientation", ORIENTATIONS)
@settings(max_examples=60, deadline=None)
@given(st.data())
def test_any_window_of_any_picture(orientation, data):
    width, height = data.draw(st.integers(5, 150)), data.draw(st.integers(5, 150))
    jpeg = encoded(width, height, data.draw(st.sampled_from(SAMPLINGS)), 90, data.draw(st.integers(0, 99)))
    kind = data.draw(st.sampled_from(["untiled", "untiled", "tiled", "restarts"]))
    if kind == "restarts":
        jpeg = restarted(jpeg, data.draw(st.integers(1, 30)))
    elif kind == "tiled":
        jpeg = tile(jpeg, width_px=16).jpeg
    jpeg = turned(jpeg, orientation)
    crop = data.draw(crops(*read_header(jpeg).size))
    got = found(jpeg, crop, scaling=data.draw(st.booleans()) and orientation > 1)  # turned ones are not scaled
    assert np.array_equal(got, expected(jpeg, crop))


@pytest.mark.parametrize("orientation", ORIENTATIONS)
@pytest.mark.parametrize("is_tiled", [False, True])
def test_luma_alone(orientation, is_tiled):
    for number, sampling in enumerate(SAMPLINGS):
        jpeg = encoded(170 - number, 130 + number, sampling)
        jpeg, crop = turned(tile(jpeg).jpeg if is_tiled else jpeg, orientation), CenterCrop(size=48, resize=64)
        out, theirs = (np.zeros((1, 48, 48, 1), np.uint8) for _ in range(2))
        queue = CropQueue()
        assert queue.add(jpeg, crop, (), LIMIT, 0) and queue.run(crop, 0, Scratch(), out) == []
        ImageDecoder(crop, channels=1, compiled=False).fill_row(memoryview(jpeg), (), {"inputs": theirs[0]}, Scratch())
        assert np.array_equal(out, theirs)


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_groups_of_all_kinds_in_memory_of_their_own(data):
    """Two at a time, each turned in memory that is shared; small ones are turned without vectors."""
    channels, bicubic = data.draw(st.sampled_from([1, 3])), data.draw(st.booleans())
    side = data.draw(st.sampled_from([1, 5, 24, 33]))
    crop = RandomResizedCrop(size=side, interpolation="bicubic" if bicubic else "bilinear", scale=(0.001, 1.0))
    queue, scratch, jpegs = CropQueue(), Fenced(), []
    for number in range(data.draw(st.integers(1, GROUP))):
        sizes = st.integers(5, data.draw(st.sampled_from([12, 60, 200])))
        width, height = data.draw(sizes), data.draw(sizes)
        jpeg = encoded(width, height, data.draw(st.sampled_from(SAMPLINGS)), data.draw(st.integers(20, 100)), number)
        jpeg = tile(jpeg, width_px=16).jpeg if data.draw(st.integers(0, 3)) == 0 else jpeg
        jpegs.append(turned(jpeg, data.draw(st.sampled_from(ORIENTATIONS))))
    draws = [[data.draw(st.floats(0, 1, exclude_max=True)) for _ in range(crop.draws)] for _ in jpegs]
    out = np.full((len(jpegs), side, side, channels), 7, np.uint8)
    for row, jpeg in enumerate(jpegs):
        assert queue.add(jpeg, crop, draws[row], LIMIT, row)
    undecoded = {row for row, _ in queue.run(crop, 0, scratch, out)}
    assert scratch.intact
    for row, jpeg in enumerate(jpegs):
        if row not in undecoded:
            theirs = np.zeros((side, side, channels), np.uint8)
            judge = ImageDecoder(crop, channels=channels, compiled=False)
            judge.fill_row(memoryview(jpeg), draws[row], {"inputs": theirs}, Scratch())
            assert np.array_equal(out[row], theirs)
    assert not undecoded


@pytest.mark.parametrize("orientation", ORIENTATIONS)
def test_boxes_of_one_pixel_across(orientation):
    """Of gray ones the general path read beside the pixels, as an axis of length 1 has strides of its own."""
    jpeg = turned(encoded(20, 30, "444"), orientation)
    for box in ((3, 4, 1, 2), (3, 4, 2, 1), (0, 0, 1, 20), (0, 0, 20, 1), (19, 19, 1, 1)):
        for channels in (1, 3):
            crop = Fixed(Window(box, (8, 8), (0, 0)), 8)
            out, theirs = (np.zeros((1, 8, 8, channels), np.uint8) for _ in range(2))
            queue = CropQueue()
            assert queue.add(jpeg, crop, (), LIMIT, 0) and queue.run(crop, 0, Scratch(), out) == []
            judge = ImageDecoder(crop, channels=channels, compiled=False)
            judge.fill_row(memoryview(jpeg), (), {"inputs": theirs[0]}, Scratch())
            assert np.array_equal(out, theirs)


def test_the_window_is_of_the_upright_picture():
    jpeg = turned(encoded(90, 60, "420"), 6)
    assert read_header(jpeg).size == (60, 90)
    assert found(jpeg, Fixed(Window((0, 60, 60, 30), (24, 24), (0, 0)), 24)) is not None
    assert found(jpeg, Fixed(Window((60, 0, 30, 60), (24, 24), (0, 0)), 24)) is None
    assert CropQueue().add(jpeg, CenterCrop(size=8, resize=8), (), 60 * 90, 0)
    assert not CropQueue().add(jpeg, CenterCrop(size=8, resize=8), (), 60 * 90 - 1, 0)
