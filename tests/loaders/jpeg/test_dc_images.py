"""Crops at 1/8 from the image that is kept at 1/8: the bits of the decoder that reads the photograph."""

from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fastimg.loaders.crop import Window
from fastimg.loaders.decoders import large
from fastimg.loaders.jpeg.decoding.region import LOW
from fastimg.loaders.jpeg.indexed.dc_images import fill_sums, pack_dc_images
from fastimg.loaders.jpeg.indexed.packing import pack_index
from fastimg.loaders.jpeg.rewriting.tiles import tile

from .test_crops import SAMPLINGS, Fixed, crops, encoded, found, jpeg_by_pillow
from .test_indexed import Stored, partly


class Kept:
    """An image at 1/8 as DcImages gives it, and how many bytes of it were read."""

    def __init__(self, jpeg):
        count, tiles, self.content = pack_dc_images(jpeg)
        self.stated, self.doubts, self.nbytes = (1, count, tiles, 0), 0, 0

    def entry(self, index):
        return self.stated

    def read(self, entry, planes, extents, sizes, view):
        _, count, tiles, _ = entry
        at, start = 0, 8 * count * tiles
        for number, (begin, end) in zip(planes, extents, strict=True):
            place = start + sum(sizes[:number])
            view[at : at + end - begin] = self.content[place + begin : place + end]
            at += end - begin
        assert start + sum(sizes) == len(self.content)
        self.nbytes += at
        return np.frombuffer(self.content[:start], np.uint64).reshape(count, tiles)

    def doubt(self, index):
        self.doubts += 1


def stored(jpeg):
    result = Stored(jpeg)
    result.dc_images = Kept(jpeg)
    return result


@pytest.mark.parametrize("sampling", SAMPLINGS)
@settings(max_examples=40, deadline=None)
@given(st.data())
def test_any_window_of_any_picture(sampling, data):
    width, height = data.draw(st.integers(40, 300)), data.draw(st.integers(20, 300))
    jpeg = encoded(width, height, sampling, data.draw(st.integers(1, 100)), data.draw(st.integers(0, 99)))
    jpeg = tile(jpeg, width_px=data.draw(st.sampled_from([8, 16, 32, 64]))).jpeg
    if pack_index(jpeg) is None:  # too small to tile
        return
    crop, scaling = data.draw(crops(width, height)), data.draw(st.sampled_from([1, LOW]))
    wide, tall = data.draw(st.integers(16, width)), data.draw(st.integers(16, height))
    if data.draw(st.booleans()):  # one that is decoded at 1/8, if it can be
        size = (wide // 16, tall // 16)
        crop = Fixed(Window((width - wide, 0, wide, tall), size, (0, 0)), size[::-1])
    ours, theirs = partly(stored(jpeg), crop, scaling), found(jpeg, crop, scaling=scaling)
    assert (ours is None) == (theirs is None)
    assert ours is None or np.array_equal(ours, theirs)


@pytest.mark.parametrize("scaling", [1, LOW])
@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_at_an_eighth_nothing_is_decoded(sampling, scaling):
    jpeg = tile(encoded(640, 480, sampling, 95), width_px=32).jpeg
    crop = Fixed(Window((320, 70, 300, 400), (30, 40), (3, 1)), (36, 24))
    kept = stored(jpeg)
    if sampling == "422" and scaling == 1:  # libjpeg-turbo's rule scales no chroma of 4:2:2
        assert partly(kept, crop, scaling) is not None and kept.dc_images.nbytes == 0
        return
    with mock.patch.object(large, "crop_known", None):
        ours = partly(kept, crop, scaling)
    assert np.array_equal(ours, found(jpeg, crop, scaling=scaling))
    assert kept.dc_images.doubts == 0 and kept.nbytes < 1000
    assert 0 < kept.dc_images.nbytes < len(kept.dc_images.content) * 0.6


def test_how_many_bytes_it_takes():
    jpeg = tile(encoded(640, 480, "420", 90)).jpeg
    count, tiles, content = pack_dc_images(jpeg)
    assert (count, tiles) == (5, 20)
    assert len(content) == 8 * count * tiles + 640 * 480 // 64 * 7 // 2


def test_an_image_that_does_not_fit_gives_no_wrong_pixels():
    jpeg = tile(encoded(200, 160, "444", 80), width_px=16).jpeg
    crop = Fixed(Window((0, 0, 200, 160), (20, 16), (0, 0)), (16, 20))
    theirs, kept = found(jpeg, crop, scaling=LOW), stored(jpeg)
    sound = kept.dc_images.content
    for at in range(0, len(sound), 31):
        for end in (at + 1, at + 50):
            damaged = bytearray(sound)
            damaged[at:end] = bytes(len(damaged[at:end]))
            kept.dc_images.content, kept.dc_images.doubts = bytes(damaged), 0
            assert np.array_equal(partly(kept, crop, LOW), theirs)
            assert kept.dc_images.doubts == (damaged != sound)


def test_what_cannot_be_kept():
    narrow = tile(encoded(32, 300, "420")).jpeg
    for data in (b"", b"\xff\xd8\xff", jpeg_by_pillow(), tile(jpeg_by_pillow()).jpeg[:400], narrow):
        assert pack_dc_images(data) is None
    damaged = bytearray(tile(encoded(200, 160, "420", 80), width_px=16).jpeg)
    damaged[len(damaged) // 2 : len(damaged) // 2 + 300] = bytes(300)
    assert pack_dc_images(bytes(damaged)) is None


def test_a_sum_changes_with_any_bit_and_any_two_and_with_the_order_of_words() -> None:
    def sum_of(content: np.ndarray) -> int:
        sums = np.empty(1, np.uint64)
        fill_sums(content, content.size, sums)
        return int(sums[0])

    drawn = np.random.default_rng(0)
    for size in (8, 21, 24, 40):
        content = drawn.integers(0, 256, size, np.uint8)
        right = sum_of(content)
        bits = [(at, np.uint8(1 << bit)) for at in range(size) for bit in range(8)]
        for number, (at, bit) in enumerate(bits):
            content[at] ^= bit
            assert sum_of(content) != right, (size, at, bit)
            for other, second in bits[number + 1 :]:
                content[other] ^= second
                assert sum_of(content) != right, (size, at, bit, other, second)
                content[other] ^= second
            content[at] ^= bit
    words = np.zeros((3, 8), np.uint8)
    words[0, 7] = 0x80  # alike but for their uppermost bit
    assert len({sum_of(np.roll(words, turned, axis=0).reshape(-1)) for turned in range(3)}) == 3
