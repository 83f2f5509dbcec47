"""The compiled decoder, of progressive JPEGs: the bits of libjpeg-turbo and torch's resize for every accepted image."""

import io
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numba import njit
from PIL import Image

from fastimg.loaders import CenterCrop, ImageDecoder
from fastimg.loaders.crop import Window
from fastimg.loaders.decode import read_header
from fastimg.loaders.jpeg.decoding import crops as compiled
from fastimg.loaders.jpeg.decoding.crops import CropQueue
from fastimg.loaders.jpeg.decoding.entropy import masks
from fastimg.loaders.jpeg.rewriting.tiles import tile
from fastimg.loaders.runtime.scratch import GROUP, Scratch

from .progressive_encoder import progressive, recoded
from .test_crops import LIMIT, SAMPLINGS, Fixed, crops, encoded, expected, found
from .test_untiled import Fenced, decoded_of_mutated, turned

WHOLE = Fixed(Window((0, 0, 96, 80), (40, 40), (4, 4)), 32)  # of a picture of 96 x 80
SPECTRAL = [((0, 1, 2), 0, 0, 0, 0), *(((c,), 1, 63, 0, 0) for c in range(3))]  # no bit is sent later


def by_pillow(jpeg, **options):
    """A JPEG as a progressive one, quantised as before."""
    buffer = io.BytesIO()
    with Image.open(io.BytesIO(jpeg)) as image:
        image.save(buffer, "JPEG", quality="keep", progressive=True, **options)
    return buffer.getvalue()


@pytest.mark.parametrize("sampling", SAMPLINGS)
@settings(max_examples=60, deadline=None)
@given(st.data())
def test_any_window_of_any_picture(sampling, data):
    width, height = data.draw(st.integers(5, 150)), data.draw(st.integers(5, 150))
    seed = data.draw(st.integers(0, 99))
    jpeg = by_pillow(encoded(width, height, sampling, data.draw(st.integers(1, 100)), seed))
    jpeg = turned(jpeg, data.draw(st.sampled_from([1, 1, 3, 6])))
    crop = data.draw(crops(*read_header(jpeg).size))
    assert np.array_equal(found(jpeg, crop, scaling=data.draw(st.booleans())), expected(jpeg, crop))


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_scans_of_any_script(data):
    """Bands, bits and components in any order that decoders must accept, long codes, and runs of many blocks."""
    width, height = data.draw(st.integers(5, 90)), data.draw(st.integers(5, 90))
    jpeg = encoded(width, height, data.draw(st.sampled_from(SAMPLINGS)), data.draw(st.sampled_from([20, 80, 97])))
    jpeg = recoded(jpeg, data.draw(st.integers(0, 1 << 30)))
    crop = data.draw(crops(width, height))
    assert np.array_equal(found(jpeg, crop), expected(jpeg, crop))


def test_blocks_with_more_corrections_than_bits_are_held_at_once():
    """In the last scan all coefficients of each block are known, and corrected."""
    pixels = np.random.default_rng(0).integers(0, 256, (64, 64), np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "JPEG", qtables=[[1] * 64])
    script = [((0,), 0, 0, 0, 0), ((0,), 1, 63, 0, 1), ((0,), 1, 63, 1, 0)]
    jpeg = progressive(buffer.getvalue(), script)
    crop = Fixed(Window((0, 0, 64, 64), (64, 64), (0, 0)), 64)
    assert np.array_equal(found(jpeg, crop), expected(jpeg, crop))


def test_luma_alone():
    for sampling in SAMPLINGS:
        jpeg, crop = by_pillow(encoded(170, 130, sampling)), CenterCrop(size=48, resize=64)
        out, theirs = (np.zeros((1, 48, 48, 1), np.uint8) for _ in range(2))
        queue = CropQueue()
        assert queue.add(jpeg, crop, (), LIMIT, 0) and queue.run(crop, 0, Scratch(), out) == []
        ImageDecoder(crop, channels=1, compiled=False).fill_row(memoryview(jpeg), (), {"inputs": theirs[0]}, Scratch())
        assert np.array_equal(out, theirs)


@settings(max_examples=30, deadline=None)
@given(st.data())
def test_groups_of_all_kinds(data):
    queue, scratch, crop, jpegs = CropQueue(), Fenced(), CenterCrop(size=40, resize=44), []
    for number in range(data.draw(st.integers(1, GROUP))):
        width, height = data.draw(st.integers(5, 200)), data.draw(st.integers(5, 200))
        jpeg = encoded(width, height, data.draw(st.sampled_from(SAMPLINGS)), 80, number)
        make = data.draw(st.sampled_from([by_pillow, by_pillow, lambda jpeg: jpeg, lambda jpeg: tile(jpeg, 16).jpeg]))
        jpegs.append(make(jpeg))
    out = np.zeros((len(jpegs), 40, 40, 3), np.uint8)
    for row, jpeg in enumerate(jpegs):
        assert queue.add(jpeg, crop, (), LIMIT, row)
    assert queue.run(crop, 0, scratch, out) == [] and scratch.intact
    for row, jpeg in enumerate(jpegs):
        assert np.array_equal(out[row], expected(jpeg, crop))


def test_incomplete_ones_are_left_to_the_judge():
    """libjpeg smooths what is missing."""
    jpeg = by_pillow(encoded(96, 80, "420"))
    assert found(jpeg, WHOLE) is not None
    scans = [at for at in range(len(jpeg)) if jpeg[at : at + 2] == b"\xff\xda"]
    assert len(scans) == 10
    for begin in scans[1:]:
        tables = jpeg.rindex(b"\xff\xc4", 0, begin)
        for end in (begin, tables):
            assert found(jpeg[:end] + b"\xff\xd9", WHOLE) is None
    for end in range(len(jpeg) - 1, 300, -311):
        assert found(jpeg[:end], WHOLE) is None


def test_scans_that_may_not_follow_are_left_to_the_judge():
    whole = encoded(96, 80, "420")
    for script in (
        [*SPECTRAL, SPECTRAL[1]],  # twice
        SPECTRAL[1:],  # without DC
        [*SPECTRAL, ((1,), 1, 63, 1, 0)],  # a bit that was sent
        [SPECTRAL[0], ((0,), 1, 63, 0, 2), ((0,), 1, 63, 1, 0), *SPECTRAL[2:]],  # a bit is left out
        [((0, 1), 0, 0, 0, 0), *SPECTRAL[1:]],  # no DC of one component
    ):
        jpeg = progressive(whole, script)
        assert found(jpeg, WHOLE) is None, script
    assert np.array_equal(found(progressive(whole, SPECTRAL), WHOLE), expected(whole, WHOLE))


def test_restarts_and_tables_that_change_are_left_to_the_judge():
    whole = encoded(96, 80, "420")
    assert found(by_pillow(whole, restart_marker_blocks=3), WHOLE) is None
    jpeg = by_pillow(whole)
    tables = jpeg[jpeg.index(b"\xff\xdb") : jpeg.index(b"\xff\xc2")]
    last = jpeg.rindex(b"\xff\xc4")
    assert found(jpeg[:last] + tables + jpeg[last:], WHOLE) is None


def test_what_lies_below_the_crop_is_not_decoded():
    jpeg = bytearray(by_pillow(encoded(96, 160, "Gray")))
    crop = Fixed(Window((0, 0, 96, 20), (24, 24), (0, 0)), 24)
    sound = expected(bytes(jpeg), crop)
    last = jpeg.rindex(b"\xff\xda")
    middle = last + (len(jpeg) - last) * 3 // 4
    jpeg[middle : middle + 100] = bytes([0b01111110]) * 100
    assert np.array_equal(found(bytes(jpeg), crop), sound)
    assert np.array_equal(expected(bytes(jpeg), crop), sound)


def test_very_large_ones_are_left_to_libjpeg(monkeypatch):
    """A picture of 65,000 x 800 in 4:4:4 has more coefficients than are kept in memory."""
    jpeg = bytearray(by_pillow(encoded(96, 80, "444")))
    frame = jpeg.index(b"\xff\xc2")
    jpeg[frame + 5 : frame + 9] = (800).to_bytes(2, "big") + (65000).to_bytes(2, "big")
    scratch = Scratch()
    assert found(bytes(jpeg), Fixed(Window((0, 700, 96, 80), (24, 24), (0, 0)), 24), scratch) is None
    assert scratch.nbytes < 1 << 20


@pytest.mark.filterwarnings("ignore::UserWarning:PIL")
@pytest.mark.parametrize("seed", range(2))
def test_mutated_ones_write_nothing_outside_their_memory(seed):
    """Accepted ones are those that libjpeg-turbo or Pillow accept, too, with their pixels."""
    rng = random.Random(seed)
    whole = [
        encoded(rng.randint(5, 100), rng.randint(5, 100), SAMPLINGS[i % 4], rng.randint(1, 100), i) for i in range(30)
    ]
    whole = [by_pillow(jpeg) if i % 2 else recoded(jpeg, i) for i, jpeg in enumerate(whole)]
    assert 200 < decoded_of_mutated(whole, rng, 150) < 1100


@pytest.mark.parametrize("deposits", [False, True])
def test_masks_with_and_without_an_instruction_for_them(deposits, monkeypatch):
    if not deposits:
        monkeypatch.setattr(masks, "_deposits", lambda context: False)

    @njit
    def run(mask, n, held):
        return masks.nth(mask, n), masks.sent(held, mask), masks.count(mask), masks.lowest(mask)

    rng = random.Random(0)
    for _ in range(300):
        mask = rng.getrandbits(64) & (rng.getrandbits(64) | rng.getrandbits(64)) or 1
        n, held = rng.randrange(20), rng.getrandbits(64)
        places = [k for k in range(64) if mask >> k & 1]
        nth = 1 << places[n] if n < len(places) else 0
        sent = sum(1 << k for i, k in enumerate(places) if held >> (63 - i) & 1)
        found = run(np.uint64(mask), np.uint64(n), np.uint64(held))
        assert tuple(map(int, found)) == (nth, sent, len(places), places[0])


def test_impatient_callers_get_no_compilation(monkeypatch):
    jpeg, crop = by_pillow(encoded(64, 64, "420")), CenterCrop(size=32, resize=32)
    compiled.compile_for(jpeg)
    assert compiled.missing_decoder(jpeg) == ""
    monkeypatch.setattr(compiled, "is_kept", lambda function: function is not compiled._crop_progressive)
    assert compiled.missing_decoder(jpeg) == "progressive"
    assert CropQueue().add(jpeg, crop, (), LIMIT, 0, patient=False)
    monkeypatch.setattr(compiled, "is_ready", lambda kind: False)
    assert not CropQueue().add(jpeg, crop, (), LIMIT, 0, patient=False)
    assert CropQueue().add(jpeg, crop, (), LIMIT, 0)
