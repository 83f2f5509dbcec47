"""Crops of large tiled JPEGs by an index of their blocks: the bits of the decoder that reads all of them."""

from types import SimpleNamespace
from unittest import mock

import numpy as np
import pytest
import simplejpeg
from hypothesis import given, settings
from hypothesis import strategies as st

from fastimg.loaders.crop import Window, shape_of
from fastimg.loaders.decode import MAX_PIXELS
from fastimg.loaders.decoder import SampleReader
from fastimg.loaders.decoders import large
from fastimg.loaders.decoders.large import PartialReads
from fastimg.loaders.jpeg.decoding.frame import mcu_blocks, new_header, parse_header, view_of
from fastimg.loaders.jpeg.decoding.region import LOW, find_region, new_region
from fastimg.loaders.jpeg.indexed import spans
from fastimg.loaders.jpeg.indexed.packing import MORE, pack_index
from fastimg.loaders.jpeg.rewriting.tiles import tile
from fastimg.loaders.runtime.scratch import Scratch

from .test_crops import SAMPLINGS, Fixed, crops, encoded, found, jpeg_by_pillow


class Stored:
    """A JPEG and its index as datasets give them, and how many bytes were read."""

    dc_images = None

    def __init__(self, jpeg, index=None):
        self.jpeg, self.blocks, self.doubts, self.nbytes = jpeg, self, 0, 0
        self.begin, self.rows, self.lengths = index or pack_index(jpeg)

    def entry(self, index):
        return 1, len(self.jpeg), len(self.rows) - 1, self.begin, 0

    def read(self, entry, top, bottom):
        rows = self.rows[top : bottom + 1]
        return rows.copy(), self.lengths[int(rows[0]["lengths"]) : int(rows[-1]["lengths"])].copy()

    def doubt(self, index):
        self.doubts += 1

    def read_start(self, index, nbytes, scratch):
        self.nbytes += nbytes
        return memoryview(self.jpeg)[:nbytes]

    def read_ranges(self, index, ranges, view):
        data = b"".join(self.jpeg[begin:end] for begin, end in ranges)
        self.nbytes += len(data)
        view[:] = data


def partly(stored, crop, scaling=False):
    out = np.full((*shape_of(crop), 3), 7, np.uint8)
    with mock.patch.object(large, "SHARE", 1.0):
        done = PartialReads().crop(SampleReader(stored), 0, crop, (), MAX_PIXELS, int(scaling), Scratch(), out)
    return out if done else None


@pytest.mark.parametrize("sampling", SAMPLINGS)
@settings(max_examples=60, deadline=None)
@given(st.data())
def test_any_window_of_any_picture(sampling, data):
    width, height = data.draw(st.integers(5, 150)), data.draw(st.integers(1, 150))
    jpeg = encoded(width, height, sampling, data.draw(st.integers(1, 100)), data.draw(st.integers(0, 99)))
    jpeg = tile(jpeg, width_px=data.draw(st.sampled_from([8, 16, 32, 64]))).jpeg
    index = pack_index(jpeg)
    if index is None:  # too small to tile
        return
    crop, scaling = data.draw(crops(width, height)), data.draw(st.sampled_from([0, 1, LOW]))
    stored = Stored(jpeg, index)
    ours, theirs = partly(stored, crop, scaling), found(jpeg, crop, scaling=scaling)
    assert stored.doubts == 0 and (ours is None) == (theirs is None)
    assert ours is None or np.array_equal(ours, theirs)


@pytest.mark.parametrize("size", [7, 14, 21, 28])
def test_bits_of_each_scale_for_long_blocks(size):
    """Noise at quality 100 makes blocks of more bits than a byte counts, and bytes that need stuffing."""
    jpeg = tile(encoded(448, 448, "420", 100, noise=60.0)).jpeg
    stored = Stored(jpeg)
    assert (stored.lengths == MORE).sum() > 100 and jpeg.count(b"\xff\x00") > 100
    crop = Fixed(Window((200, 96, 56, 56), (size, size), (0, 0)), size)
    assert np.array_equal(partly(stored, crop, LOW), found(jpeg, crop, scaling=LOW))


def test_a_crop_reads_its_rows_only():
    stored = Stored(tile(encoded(900, 900, "420")).jpeg)
    assert partly(stored, Fixed(Window((300, 300, 64, 64), (32, 32), (0, 0)), 32)) is not None
    assert stored.nbytes < len(stored.jpeg) / 8


@pytest.mark.parametrize("side", [1, 2])
def test_low_frequencies_are_the_truncated_transform(side):
    """Of the decoded picture's own blocks, in floating point: they differ from the coefficients by its rounding."""
    jpeg = tile(encoded(256, 256, "Gray", 95, noise=4.0)).jpeg
    pixels = simplejpeg.decode_jpeg(jpeg, "GRAY")[..., 0].astype(float) - 128

    def basis(n):
        k, x = np.mgrid[:n, :n]
        return np.sqrt(np.where(k == 0, 1, 2) / n) * np.cos(np.pi * k * (2 * x + 1) / (2 * n))

    blocks = pixels.reshape(32, 8, 32, 8).transpose(0, 2, 1, 3)
    low = (basis(8) @ blocks @ basis(8).T)[..., :side, :side] * side / 8
    theirs = (basis(side).T @ low @ basis(side)).transpose(0, 2, 1, 3).reshape(32 * side, 32 * side) + 128
    ours = found(jpeg, Fixed(Window((0, 0, 256, 256), (32 * side, 32 * side), (0, 0)), 32 * side), scaling=LOW)
    assert np.abs(ours[..., 0] - np.clip(theirs, 0, 255)).max() <= 1.01


def test_what_has_no_index():
    for data in (b"", b"\xff\xd8\xff", jpeg_by_pillow(), tile(jpeg_by_pillow()).jpeg[:400]):
        assert pack_index(data) is None
    cut = bytearray(tile(encoded(300, 300, "420")).jpeg)
    del cut[-200:]
    assert pack_index(bytes(cut)) is None


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_an_index_that_does_not_fit_gives_no_wrong_pixels(data):
    jpeg = tile(encoded(200, 160, "420", 80), width_px=16).jpeg
    begin, rows, lengths = pack_index(jpeg)
    crop = Fixed(Window((40, 30, 120, 90), (30, 22), (0, 0)), (22, 30))
    theirs = found(jpeg, crop, scaling=LOW)
    rows, lengths = rows.copy(), lengths.copy()
    kind = data.draw(st.sampled_from(["length", "row", "moved", "other"]))
    if kind == "length":
        lengths[data.draw(st.integers(0, len(lengths) - 1))] = data.draw(st.integers(0, 255))
    elif kind == "row":
        name = data.draw(st.sampled_from(rows.dtype.names))
        rows[name][data.draw(st.integers(0, len(rows) - 1))] = data.draw(st.integers(0, 2**32 - 1))
    elif kind == "moved":  # the sum of two neighbours stays
        at, bits = data.draw(st.integers(0, len(lengths) - 2)), data.draw(st.integers(1, 20))
        if lengths[at] <= bits or lengths[at + 1] + bits >= MORE:
            return
        lengths[at] -= bits
        lengths[at + 1] += bits
    else:
        other = pack_index(tile(encoded(200, 160, "420", 80, seed=1), width_px=16).jpeg)
        begin, rows, lengths = other
    stored = Stored(jpeg, (begin, rows, lengths))
    ours = partly(stored, crop, LOW)
    assert (ours is None) == (stored.doubts == 1)
    assert ours is None or np.array_equal(ours, theirs)
    assert kind != "other" or ours is None


@pytest.mark.parametrize("last", range(2, 12))
def test_lengths_are_read_up_to_their_rows_end_only(last, monkeypatch):
    """A length that goes on into the next moves those behind it out of the row. Run as Python, which checks indices."""
    jpeg = tile(encoded(64, 32, "420", 80), width_px=32).jpeg
    _, rows, lengths = pack_index(jpeg)
    headers, regions = new_header(), new_region()
    assert parse_header(view_of(jpeg), headers)
    assert find_region(headers, (0, 0, 64, 32), (8, 4), (0, 0), (8, 4), False, LOW, regions)
    lengths[-last] = MORE
    blocks = int(mcu_blocks(headers))
    monkeypatch.setattr(spans, "mcu_blocks", lambda headers: blocks)
    positions, ranges = np.zeros((4, 100), np.uint32), np.zeros((2, 2), np.int64)
    records = [
        [SimpleNamespace(**{name: record[name] for name in record.dtype.names}) for record in array]
        for array in (headers, regions, rows)
    ]
    with np.errstate(over="ignore"):  # sums wrap around
        assert not spans.locate.py_func(*records, lengths, positions, ranges)


def test_damage_is_left_to_the_general_decoder():
    jpeg = bytearray(tile(encoded(200, 160, "420", 80), width_px=16).jpeg)
    stored = Stored(bytes(jpeg))
    half = len(jpeg) // 2
    jpeg[half : half + 300] = bytes(300)  # with some markers
    stored.jpeg = bytes(jpeg)
    assert partly(stored, Fixed(Window((0, 0, 200, 160), (50, 40), (0, 0)), (40, 50))) is None
