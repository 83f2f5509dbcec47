"""Decoding at any eighth of the size: the bits of libjpeg-turbo's scaled decoding, and of torch's resize behind it."""

import numpy as np
import pytest
import simplejpeg
from hypothesis import given, settings
from hypothesis import strategies as st
from numba import njit

from fastimg.loaders import CenterCrop, ImageDecoder, RandomResizedCrop, View, ViewDecoder
from fastimg.loaders.crop import Window
from fastimg.loaders.decode import read_header
from fastimg.loaders.jpeg.decoding import scaled_dct, vectors
from fastimg.loaders.jpeg.decoding.filters import fill_weights, taps
from fastimg.loaders.jpeg.decoding.region import EIGHTHS, scaling_of
from fastimg.loaders.jpeg.indexed.packing import pack_index
from fastimg.loaders.jpeg.rewriting.splice import splice
from fastimg.loaders.jpeg.rewriting.tiles import tile
from fastimg.loaders.runtime.scratch import Scratch

from .test_crops import SAMPLINGS, Fixed, crops, damaged, encoded, expected, found
from .test_dc_images import stored
from .test_indexed import Stored, partly


def scaled(jpeg, side, colours="RGB", strict=True):
    """The whole picture at side / 8, by libjpeg-turbo."""
    height, width = simplejpeg.decode_jpeg_header(jpeg, strict=strict)[:2]
    size = -(-height * side // 8), -(-width * side // 8)
    pixels = simplejpeg.decode_jpeg(jpeg, colours, min_height=size[0], min_width=size[1], strict=strict)
    assert pixels.shape[:2] == size
    return pixels


def side_of(window):
    """The smallest number of eighths at which the box is as large as what it is resized to."""
    (_, _, width, height), (across, down), _ = window
    return next((n for n in range(1, 8) if width * n >= 8 * across and height * n >= 8 * down), 8)


def resized(pixels, start, extent, size, at, window, bicubic):
    """Rows [start, start + extent), which may begin and end within one, resized to `size`, and a window of them."""
    begins, counts = np.zeros(window, np.int64), np.zeros(window, np.int64)
    weights = np.zeros((window, taps(extent, size, bicubic)), np.int32)
    bits = fill_weights(start, extent, size, bicubic, at, begins, counts, weights)
    sums = [
        np.tensordot(weights[i, :n].astype(np.int64), pixels[begin : begin + n].astype(np.int64), 1)
        for i, (begin, n) in enumerate(zip(begins.tolist(), counts.tolist(), strict=True))
    ]
    return ((np.stack(sums) + (1 << (bits - 1))) >> bits).clip(0, 255).astype(np.uint8)


def judged(jpeg, crop):
    """The crop of the whole picture that libjpeg-turbo scaled."""
    (x, y, width, height), size, at = crop.window_
    side, bicubic = side_of(crop.window_), crop.interpolation == "bicubic"
    if side == 8:
        return expected(jpeg, crop)
    down, across = crop.size
    pixels = scaled(jpeg, side).transpose(1, 0, 2)
    columns = resized(pixels, x * side / 8, width * side / 8, size[0], at[0], across, bicubic).transpose(1, 0, 2)
    return resized(columns, y * side / 8, height * side / 8, size[1], at[1], down, bicubic)


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("side", range(1, 8))
def test_whole_pictures_have_libjpegs_bits(side, sampling):
    for quality in (30, 95):
        jpeg = tile(encoded(328, 248, sampling, quality)).jpeg
        pixels = scaled(jpeg, side)
        down, across = pixels.shape[:2]
        crop = Fixed(Window((0, 0, 328, 248), (across, down), (2, 1)), (down - 2, across - 3))
        assert np.array_equal(found(jpeg, crop, scaling=EIGHTHS), pixels[1:-1, 2:-1])


@pytest.mark.parametrize("sampling", SAMPLINGS)
@settings(max_examples=60, deadline=None)
@given(st.data())
def test_any_window_of_any_picture(sampling, data):
    width, height = data.draw(st.integers(8, 150)), data.draw(st.integers(8, 150))
    jpeg = encoded(width, height, sampling, data.draw(st.integers(1, 100)), data.draw(st.integers(0, 99)))
    jpeg = tile(jpeg, width_px=data.draw(st.sampled_from([8, 16, 32, 64]))).jpeg
    crop = data.draw(crops(width, height))
    got = found(jpeg, crop, scaling=EIGHTHS)
    narrow = -(-width * side_of(crop.window_) // 8) <= 4  # libjpeg-turbo upsamples such chroma in another way
    if not read_header(jpeg).restarts:  # too small for tiles; untiled pictures are not scaled
        assert np.array_equal(got, expected(jpeg, crop))
        return
    assert (got is None) == narrow
    if got is not None:
        assert np.array_equal(got, judged(jpeg, crop))
        index = pack_index(jpeg)
        assert index is None or np.array_equal(partly(Stored(jpeg, index), crop, EIGHTHS), got)


def test_pixels_of_the_darkest_and_brightest():
    pixels = np.random.default_rng(0).choice(np.array([0, 255], np.uint8), (96, 128, 3))
    for quality in (1, 20, 100):
        for sampling in ("444", "422", "420"):
            jpeg = tile(simplejpeg.encode_jpeg(pixels, quality, "RGB", sampling)).jpeg
            for side in (3, 5, 6, 7):
                crop = Fixed(Window((0, 0, 128, 96), (16 * side, 12 * side), (0, 0)), (12 * side, 16 * side))
                assert np.array_equal(found(jpeg, crop, scaling=EIGHTHS), scaled(jpeg, side))


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_damage_is_left_to_the_judge_or_decoded_as_he_does(data):
    jpeg = damaged(data)
    side = data.draw(st.integers(1, 7))
    crop = Fixed(Window((0, 0, 40, 32), (5 * side, 4 * side), (0, 0)), (4 * side, 5 * side))
    got = found(jpeg, crop, scaling=EIGHTHS)
    if got is not None:
        part, _ = splice(bytes(jpeg), crop.window_.box)
        assert np.array_equal(got, scaled(part, side, strict=False)[: 4 * side, : 5 * side])


def test_auto_stays_what_it_was():
    """Between its scales it decodes at the larger one, and 4:2:2 in full, as recorded runs did."""
    for sampling in SAMPLINGS:
        jpeg = tile(encoded(320, 256, sampling)).jpeg
        for side, auto in ((7, 8), (5, 8), (3, 4), (2, 2), (1, 1)):
            crop = Fixed(Window((0, 0, 320, 256), (40 * side, 32 * side), (0, 0)), (32 * side, 40 * side))
            pixels = found(jpeg, crop, scaling=scaling_of(True))
            if sampling == "422" or auto == 8:
                assert np.array_equal(pixels, expected(jpeg, crop))
            elif auto == side:
                assert np.array_equal(pixels, scaled(jpeg, side))
            else:
                assert not np.array_equal(pixels, scaled(jpeg, side))


def test_decoders_take_it_by_name():
    assert [scaling_of(name) for name in (False, True, "low", "eighths")] == [0, 1, 2, 3]
    jpeg, crop = tile(encoded(320, 240, "420")).jpeg, CenterCrop(size=180, resize=180)
    row = {"inputs": np.zeros((180, 180, 3), np.uint8)}
    ImageDecoder(crop, dct_scaling="eighths").fill_row(memoryview(jpeg), [], row, Scratch())
    assert np.array_equal(row["inputs"], scaled(jpeg, 6)[:, 30:210])
    gray = {"inputs": np.zeros((180, 180, 1), np.uint8)}
    ImageDecoder(crop, dct_scaling="eighths", channels=1).fill_row(memoryview(jpeg), [], gray, Scratch())
    assert np.array_equal(gray["inputs"], scaled(jpeg, 6, "GRAY")[:, 30:210])


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_views_of_one_image_have_scales_of_their_own(sampling):
    jpeg = memoryview(tile(encoded(330, 250, sampling)).jpeg)
    rules = [CenterCrop(size=size, resize=size) for size in (250, 210, 180, 150, 120, 90, 60, 30)]
    decoder = ViewDecoder([View(crop=rule) for rule in rules], dct_scaling="eighths")
    rows = {field.name: np.zeros(field.shape, np.uint8) for field in decoder.fields}
    decoder.fill_row(jpeg, [], rows, Scratch())
    for rule, field in zip(rules, decoder.fields, strict=True):
        alone = {"inputs": np.zeros(field.shape[1:], np.uint8)}
        ImageDecoder(rule, dct_scaling="eighths").fill_row(jpeg, [], alone, Scratch())
        assert np.array_equal(rows[field.name][0], alone["inputs"])


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_at_an_eighth_a_kept_image_has_the_same_bits(sampling):
    jpeg = tile(encoded(640, 480, sampling, 95), width_px=32).jpeg
    kept, crop = stored(jpeg), Fixed(Window((320, 70, 300, 400), (30, 40), (3, 1)), (36, 24))
    assert np.array_equal(partly(kept, crop, EIGHTHS), judged(jpeg, crop))
    assert kept.dc_images.doubts == 0 and kept.dc_images.nbytes > 0


def test_crops_are_drawn_as_without():
    crop = RandomResizedCrop(size=32)
    ids = np.arange(5)
    theirs = ImageDecoder(crop).draw(3, 1, ids)
    assert np.array_equal(ImageDecoder(crop, dct_scaling="eighths").draw(3, 1, ids), theirs)


def transformed(blocks, quantiser, sides):
    """Samples of pairs of blocks [n, 128] at each side, and whether they are sound; compiled anew at each call."""

    def kernel(blocks, quantiser, factors, size, sides, samples, sound):
        inverse = scaled_dct.inverse_dct_scaled
        for s in range(sides.size):
            side = sides[s]
            for i in range(sound.shape[1]):
                at, to = 128 * i, 512 * (s * sound.shape[1] + i)
                sound[s, i] = inverse(
                    blocks, at, at + 64, quantiser, 64 * s, factors, size * side, side, samples, to, to + 256, 16
                )

    samples = np.full((len(sides), len(blocks), 2, 16, 16), 7, np.uint8)
    sound = np.zeros((len(sides), len(blocks)), bool)
    factors, size = scaled_dct.FACTORS.reshape(-1), scaled_dct.FACTORS_OF_SIDE
    njit(kernel)(blocks.reshape(-1), quantiser, factors, size, np.array(sides), samples.reshape(-1), sound)
    return samples, sound


def by_matrices(blocks, quantiser, side):
    """The same in integers of 64 bits: samples [n, 2, side, side] by column, and whether nothing takes over 15 bits."""
    factors = np.zeros((side, 8), np.int64)
    half = scaled_dct.FACTORS[side, : (side + 1) // 2][:, [0, 4, 1, 5, 2, 6, 3, 7]].astype(np.int64)
    factors[: len(half)], factors[side - len(half) :] = half, half[::-1]
    factors[side - side // 2 :, 1::2] *= -1
    values = blocks.reshape(-1, 2, 8, 8).astype(np.int64) * quantiser.reshape(8, 8)
    passed = (factors @ values + (1 << 10)) >> 11
    pixels = (passed @ factors.T + (1 << 17)) >> 18
    pixels = ((pixels + 512) % 1024 - 512).clip(-128, 127) + 128
    within = [(np.abs(2 * part + 1) < 1 << 15).all((1, 2, 3)) for part in (values, passed)]
    return pixels.transpose(0, 1, 3, 2), within[0] & within[1]


def test_every_machine_makes_the_same_bits(monkeypatch):
    rng = np.random.default_rng(0)
    ranges = np.repeat([3, 30, 300, 3000, 32000], 20)
    blocks = np.stack([rng.integers(-limit, limit + 1, 128) for limit in ranges]).astype(np.int16)
    sides = scaled_dct.SIDES
    quantiser = np.zeros((len(sides), 8, 8), np.int16)
    for place, side in enumerate(sides):
        quantiser[place, :side, :side] = rng.integers(1, 4, (min(side, 8), min(side, 8)))
    here = transformed(blocks, quantiser.reshape(-1), sides)
    for place, side in enumerate(sides):
        pixels, sound = by_matrices(blocks, quantiser[place], side)
        assert np.array_equal(here[1][place], sound) and 30 < sound.sum() < 90
        samples = here[0][place]
        assert np.array_equal(samples[sound, :, :side, :side], pixels[sound])
        assert (samples[:, :, side:] == 7).all() and (samples[:, :, :, side:] == 7).all()  # nothing beside them
    for module in (scaled_dct, vectors):
        monkeypatch.setattr(module, "has_avx2", lambda context: False)
    for some, others in zip(transformed(blocks, quantiser.reshape(-1), sides), here, strict=True):
        assert np.array_equal(some, others)


def test_factors_are_cosines():
    """Of 13 bits: libjpeg-turbo's are sums of rounded ones."""
    for side in scaled_dct.SIDES:
        sample, frequency = np.mgrid[: (side + 1) // 2, : min(side, 8)]
        cosines = np.cos((2 * sample + 1) * frequency * np.pi / (2 * side)) * np.where(frequency, np.sqrt(2), 1)
        factors = scaled_dct.FACTORS[side, : len(sample)][:, [0, 4, 1, 5, 2, 6, 3, 7]]
        assert np.abs(factors[:, : frequency.shape[1]] - 8192 * cosines).max() < 1.5
        assert not factors[:, frequency.shape[1] :].any()
