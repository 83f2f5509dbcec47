"""The compiled decoder, of untiled JPEGs: the bits of libjpeg-turbo and torch's resize for every accepted image."""

import io
import itertools
import random

import numpy as np
import pytest
import simplejpeg
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import ExifTags, Image

from fastimg.loaders import CenterCrop, FilesDataset, ImageDecoder, ImageError, RandomResizedCrop
from fastimg.loaders.crop import Window, shape_of
from fastimg.loaders.jpeg.decoding import crops as compiled
from fastimg.loaders.jpeg.decoding.crops import CropQueue
from fastimg.loaders.jpeg.rewriting.tiles import tile
from fastimg.loaders.runtime.scratch import GROUP, Scratch

from .test_crops import LIMIT, SAMPLINGS, Fixed, crops, encoded, expected, found, jpeg_by_pillow

SCAN = b"\xff\xda"


def restarted(jpeg, blocks):
    """A JPEG with a restart after so many MCUs, quantised as before."""
    buffer = io.BytesIO()
    with Image.open(io.BytesIO(jpeg)) as image:
        image.save(buffer, "JPEG", quality="keep", restart_marker_blocks=blocks)
    return buffer.getvalue()


def turned(jpeg, orientation):
    """A JPEG with this EXIF orientation."""
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = orientation
    body = b"Exif\0\0" + exif.tobytes().removeprefix(b"Exif\0\0")
    return jpeg[:2] + b"\xff\xe1" + (len(body) + 2).to_bytes(2, "big") + body + jpeg[2:]


@pytest.mark.parametrize("sampling", SAMPLINGS)
@settings(max_examples=80, deadline=None)
@given(st.data())
def test_any_window_of_any_picture(sampling, data):
    width, height = data.draw(st.integers(1, 150)), data.draw(st.integers(1, 150))
    jpeg = encoded(width, height, sampling, data.draw(st.integers(1, 100)), data.draw(st.integers(0, 99)))
    crop = data.draw(crops(width, height))
    got = found(jpeg, crop)
    assert got is not None or width <= 4
    if got is not None:
        assert np.array_equal(got, expected(jpeg, crop))


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_groups_of_all_kinds(data):
    """Two untiled JPEGs are decoded at a time; each ends at another moment, and tiled ones lie between them."""
    queue, scratch, crop = CropQueue(), Scratch(), CenterCrop(size=40, resize=44)
    jpegs = []
    for number in range(data.draw(st.integers(1, GROUP))):
        width, height = data.draw(st.integers(5, 200)), data.draw(st.integers(5, 200))
        jpeg = encoded(width, height, data.draw(st.sampled_from(SAMPLINGS)), data.draw(st.integers(20, 100)), number)
        jpegs.append(tile(jpeg, width_px=16).jpeg if data.draw(st.integers(0, 4)) == 0 else jpeg)
    for _ in range(2):  # the queue is used again
        out = np.full((GROUP, 40, 40, 3), 7, np.uint8)
        rows = data.draw(st.permutations(range(GROUP)))
        for row, jpeg in zip(rows, jpegs, strict=False):
            assert queue.add(jpeg, crop, (), LIMIT, row)
        assert queue.run(crop, 0, scratch, out) == []
        for row, jpeg in zip(rows, jpegs, strict=False):
            assert np.array_equal(out[row], expected(jpeg, crop))
        assert (out[list(rows[len(jpegs) :])] == 7).all()


@pytest.mark.parametrize("damaged", list(itertools.product([False, True], repeat=4)))
def test_damaged_ones_of_a_group_are_reported_and_the_others_decoded(damaged):
    queue, scratch, crop = CropQueue(), Scratch(), CenterCrop(size=32, resize=36)
    jpegs = []
    for number, broken in enumerate(damaged):
        jpeg = bytearray(encoded(60 + 30 * number, 150 - 20 * number, "420", seed=number))
        if broken:
            at = len(jpeg) * (number + 2) // 8
            jpeg[at : at + 30] = bytes(30)
        jpegs.append(bytes(jpeg))
    out = np.zeros((4, 32, 32, 3), np.uint8)
    for row, jpeg in enumerate(jpegs):
        assert queue.add(jpeg, crop, (), LIMIT, row)
    assert queue.run(crop, 0, scratch, out) == [(i, jpegs[i]) for i in range(4) if damaged[i]]
    for row, jpeg in enumerate(jpegs):
        if not damaged[row]:
            assert np.array_equal(out[row], expected(jpeg, crop))


def test_a_large_one_is_decoded_alone():
    """Its planes and bits take more memory than two images at a time may."""
    large, small = encoded(3600, 3200, "444", 50, noise=0), encoded(300, 200, "420")
    queue, scratch, crop = CropQueue(), Scratch(), CenterCrop(size=32, resize=32)
    out = np.zeros((4, 32, 32, 3), np.uint8)
    for row, jpeg in enumerate((small, large, small, large)):
        assert queue.add(jpeg, crop, (), LIMIT, row)
    assert queue.run(crop, 0, scratch, out) == []
    assert scratch.nbytes < 100e6
    for row, jpeg in enumerate((small, large)):
        theirs = expected(jpeg, crop)
        assert np.array_equal(out[row], theirs) and np.array_equal(out[row + 2], theirs)


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_luma_alone(sampling):
    jpeg, crop = encoded(170, 130, sampling), CenterCrop(size=48, resize=64)
    out = np.zeros((2, 48, 48, 1), np.uint8)
    queue = CropQueue()
    for row in range(2):
        assert queue.add(jpeg, crop, (), LIMIT, row)
    assert queue.run(crop, 0, Scratch(), out) == []
    theirs = np.zeros((48, 48, 1), np.uint8)
    ImageDecoder(crop, channels=1, compiled=False).fill_row(memoryview(jpeg), (), {"inputs": theirs}, Scratch())
    assert np.array_equal(out[0], theirs) and np.array_equal(out[1], theirs)


def test_they_are_not_scaled():
    jpeg, crop = encoded(320, 256, "420"), Fixed(Window((0, 0, 320, 256), (40, 32), (0, 0)), (32, 40))
    assert np.array_equal(found(jpeg, crop, scaling=True), expected(jpeg, crop))


@pytest.mark.parametrize("sampling", SAMPLINGS)
@settings(max_examples=80, deadline=None)
@given(st.data())
def test_any_window_of_any_picture_with_restarts(sampling, data):
    """Also after each MCU, and after more MCUs than there are: nothing is restarted then."""
    width, height = data.draw(st.integers(5, 150)), data.draw(st.integers(5, 150))
    jpeg = encoded(width, height, sampling, data.draw(st.integers(1, 100)), data.draw(st.integers(0, 99)))
    jpeg = restarted(jpeg, data.draw(st.one_of(st.integers(1, 40), st.sampled_from([1, 400, 65535]))))
    crop = data.draw(crops(width, height))
    assert np.array_equal(found(jpeg, crop), expected(jpeg, crop))


def test_rows_that_are_too_wide_for_tiles():
    """Restarts after each row of MCUs of a wide picture, as many cameras write them; a crop skips what it can."""
    jpeg = restarted(encoded(2000, 200, "420"), 125)
    for box in ((1500, 150, 300, 40), (0, 0, 2000, 200), (1990, 0, 10, 200)):
        crop = Fixed(Window(box, (40, 40), (0, 0)), 40)
        assert np.array_equal(found(jpeg, crop), expected(jpeg, crop))


def test_restarts_that_are_missing_or_too_many_or_of_another_number_are_left_to_other_decoders():
    jpeg = restarted(encoded(160, 160, "420"), 7)
    assert jpeg.count(b"\xff\xd0") == 2 and jpeg.count(b"\xff\xd7") == 1
    crop = Fixed(Window((0, 0, 160, 20), (24, 24), (0, 0)), 24)
    assert found(jpeg, crop) is not None
    for number in range(8):
        marker = bytes((0xFF, 0xD0 + number))
        for other in (bytes((0xFF, 0xD0 + (number + 1) % 8)), b"", 2 * marker):
            assert found(jpeg.replace(marker, other, 1), crop) is None
    assert found(jpeg[:-2] + b"\xff\xd6\xff\xd9", crop) is None


def test_bytes_between_two_intervals_are_left_to_other_decoders():
    jpeg = restarted(encoded(160, 160, "420"), 7)
    crop = Fixed(Window((0, 0, 160, 160), (24, 24), (0, 0)), 24)
    assert found(jpeg, crop) is not None
    assert found(jpeg.replace(b"\xff\xd2", b"\0\xff\xd2", 1), crop) is None


def test_intervals_in_which_nothing_is_wanted_are_not_decoded():
    jpeg = bytearray(restarted(encoded(160, 160, "420"), 7))
    crop = Fixed(Window((100, 100, 20, 20), (24, 24), (0, 0)), 24)
    sound = expected(bytes(jpeg), crop)
    first, following = jpeg.index(b"\xff\xd0"), jpeg.index(b"\xff\xd1")
    jpeg[first + 2 : following] = bytes([0b01111110]) * (following - first - 2)
    assert np.array_equal(found(bytes(jpeg), crop), sound)
    assert np.array_equal(expected(bytes(jpeg), crop), sound)  # Pillow accepts it, and says the same
    assert found(bytes(jpeg), Fixed(Window((0, 0, 160, 160), (24, 24), (0, 0)), 24)) is None


def test_other_jpegs_are_left_to_other_decoders():
    crop = Fixed(Window((0, 0, 60, 60), (32, 32), (0, 0)), 32)
    for jpeg in (jpeg_by_pillow(progressive=True, restart_marker_blocks=2), jpeg_by_pillow(keep_rgb=True)):
        assert found(jpeg, crop) is None
    assert found(jpeg_by_pillow(), crop) is not None
    assert found(jpeg_by_pillow(optimize=True), crop) is not None


def test_truncated_files_are_left_to_the_judge_even_if_the_crop_is_there():
    jpeg = encoded(160, 160, "420")
    crop = Fixed(Window((0, 0, 160, 20), (24, 24), (0, 0)), 24)
    assert found(jpeg, crop) is not None
    assert np.array_equal(found(jpeg + b"\xff\xd8 and a thumbnail", crop), found(jpeg, crop))
    for end in range(len(jpeg) - 1, jpeg.index(SCAN), -37):
        assert found(jpeg[:end], crop) is None
    assert found(jpeg[:-1] + b"\xd8", crop) is None
    assert found(jpeg[:-2] + b"\xff\xd0" + jpeg[-2:], crop) is None


def test_what_lies_below_the_crop_is_not_decoded():
    jpeg = bytearray(encoded(160, 160, "420"))
    crop = Fixed(Window((0, 0, 160, 20), (24, 24), (0, 0)), 24)
    sound = expected(bytes(jpeg), crop)
    jpeg[-600:-2] = bytes([0b01111110]) * 598
    assert np.array_equal(found(bytes(jpeg), crop), sound)
    assert np.array_equal(expected(bytes(jpeg), crop), sound)  # Pillow accepts it, and says the same
    assert found(bytes(jpeg), Fixed(Window((0, 0, 160, 160), (24, 24), (0, 0)), 24)) is None


@st.composite
def damaged_jpegs(draw):
    """An untiled JPEG of 96 x 80 with a few other bytes, and perhaps without its end."""
    jpeg = encoded(96, 80, draw(st.sampled_from(SAMPLINGS)), 80)
    jpeg = bytearray(restarted(jpeg, draw(st.integers(1, 40))) if draw(st.booleans()) else jpeg)
    scan = jpeg.index(SCAN)
    for _ in range(draw(st.integers(1, 3))):
        low = 2 if draw(st.booleans()) else scan
        jpeg[draw(st.integers(low, len(jpeg) - 1))] = draw(st.integers(0, 255))
    if draw(st.integers(0, 3)) == 0:
        del jpeg[draw(st.integers(scan, len(jpeg) - 1)) :]
    return bytes(jpeg)


@settings(max_examples=600, deadline=None)
@given(st.data())
def test_damage_is_left_to_the_judge_or_decoded_as_he_does(data):
    """Accepted images are those that libjpeg-turbo or Pillow accept, too, and have their pixels."""
    jpeg = data.draw(damaged_jpegs())
    top = data.draw(st.sampled_from([0, 25, 50]))
    crop = Fixed(Window((10, top, 40, 30), (24, 24), (0, 0)), 24)
    got = found(jpeg, crop)
    if got is not None:
        assert np.array_equal(got, expected(jpeg, crop))


class Fenced(Scratch):
    """Scratch whose work lies between two stretches of memory that nobody may write to."""

    FENCE = 1 << 16

    def __init__(self):
        super().__init__()
        self.size, self.all = 0, np.empty(0, np.uint8)

    def work(self, nbytes):
        if nbytes > self.size:
            self.size, self.all = nbytes, np.full(nbytes + 2 * self.FENCE, 0xAB, np.uint8)
        return self.all[self.FENCE : self.FENCE + self.size]

    @property
    def intact(self):
        return bool((self.all[: self.FENCE] == 0xAB).all() and (self.all[self.FENCE + self.size :] == 0xAB).all())


def mutated(jpeg, rng):
    data = bytearray(jpeg)
    scan = data.index(SCAN)
    for _ in range(rng.choice([0, 1, 1, 2, 5])):
        at = rng.randrange(2, min(scan + 2, len(data)) if rng.random() < 0.2 else len(data))
        match rng.randrange(6):
            case 0 | 1 | 2:
                data[at] = rng.choice([0, 1, 255, rng.randrange(256)])
            case 3:
                data[at:at] = rng.randbytes(rng.randint(1, 9))
            case 4:
                del data[at : min(at + rng.randint(1, 30), len(data) - 4)]
            case 5:
                data[at : at + 2] = b"\xff\xd9"
    return bytes(data)


@pytest.mark.filterwarnings("ignore::UserWarning:PIL")  # of tags of EXIF
@pytest.mark.parametrize("seed", range(3))
def test_mutated_ones_write_nothing_outside_their_memory(seed):
    rng = random.Random(seed)
    whole = [
        encoded(rng.randint(1, 120), rng.randint(1, 120), SAMPLINGS[i % 4], rng.randint(1, 100), i) for i in range(40)
    ]
    for i in range(0, len(whole), 3):
        whole[i] = turned(restarted(whole[i], rng.randint(1, 20)), rng.randint(1, 8))
    assert 500 < decoded_of_mutated(whole, rng, 250) < 1900


def decoded_of_mutated(whole, rng, rounds):
    """How many of 8 mutated JPEGs in each round are accepted: with the judge's pixels, in memory of their own."""
    decoded = 0
    for _ in range(rounds):
        queue, scratch, crop = CropQueue(), Fenced(), RandomResizedCrop(size=rng.choice([1, 5, 16, 33]))
        jpegs = [mutated(rng.choice(whole), rng) for _ in range(8)]
        draws = [[rng.random() for _ in range(crop.draws)] for _ in jpegs]
        out = np.full((8, *shape_of(crop), 3), 7, np.uint8)
        taken = {row for row, jpeg in enumerate(jpegs) if queue.add(jpeg, crop, draws[row], 1 << 20, row)}
        taken -= {row for row, _ in queue.run(crop, 0, scratch, out)}
        assert scratch.intact
        for row in taken:
            theirs = np.zeros_like(out[row])
            judge = ImageDecoder(crop, compiled=False)
            judge.fill_row(memoryview(jpegs[row]), draws[row], {"inputs": theirs}, Scratch())
            assert np.array_equal(out[row], theirs)
        decoded += len(taken)
    return decoded


def test_numbers_that_overflow_are_left_to_the_judge():
    jpeg = bytearray(encoded(96, 80, "444", 100))
    table = jpeg.index(b"\xff\xdb") + 5
    jpeg[table : table + 64] = bytes([255] * 64)  # the factors of luma
    assert found(bytes(jpeg), Fixed(Window((0, 0, 96, 80), (24, 24), (0, 0)), 24)) is None


def test_impatient_callers_get_no_compilation(monkeypatch):
    crop = CenterCrop(size=32, resize=32)
    untiled, tiled = encoded(64, 64, "420"), tile(encoded(64, 64, "420")).jpeg
    compiled.compile_for(untiled)
    assert CropQueue().add(untiled, crop, (), LIMIT, 0, patient=False)
    monkeypatch.setattr(compiled, "is_ready", lambda kind: False)
    assert not CropQueue().add(untiled, crop, (), LIMIT, 0, patient=False)
    assert CropQueue().add(untiled, crop, (), LIMIT, 0)
    assert CropQueue().add(tiled, crop, (), LIMIT, 0, patient=False)


JPEG = encoded(90, 70, "420")


@pytest.mark.parametrize("ready", [False, True])
def test_loaders_give_the_same_batches_with_and_without_it(ready, tmp_path, build, monkeypatch):
    for number in range(40):
        jpeg = encoded(60 + number, 90 - number, SAMPLINGS[number % 4], seed=number)
        (tmp_path / f"{number:02d}.jpg").write_bytes(jpeg[: 500 if number == 13 else None])
    names = [f"{number:02d}.jpg" for number in range(40)]
    dataset = FilesDataset(tmp_path, names)
    monkeypatch.setattr(compiled, "is_ready", lambda kind: ready)
    crop = RandomResizedCrop(size=48)
    ours = build(dataset, ImageDecoder(crop), batch_size=16, seed=3)
    theirs = build(dataset, ImageDecoder(crop, compiled=False), batch_size=16, seed=3)
    for epoch in range(2):
        for loader in (ours, theirs):
            loader.set_epoch(epoch)
        for one, other in zip(ours, theirs, strict=True):
            assert one.inputs.equal(other.inputs) and one.weight.equal(other.weight)
    assert list(ours.unreadable) == list(theirs.unreadable) == [13]


def test_pillow_and_libjpeg_agree_that_this_is_no_image():
    with pytest.raises(ImageError):
        expected(encoded(64, 64, "420")[:700], CenterCrop(size=32, resize=32))
    with pytest.raises(ValueError):
        simplejpeg.decode_jpeg(encoded(64, 64, "420")[:700], strict=True)
