"""Images of 16 bits in groups, against those decoded one by one."""

import io
from pathlib import Path

import numpy as np
import pytest
import tifffile
from PIL import Image

from fastimg.loaders import CenterCrop, FilesDataset, ImageDecoder, RandomCrop, RandomResizedCrop
from fastimg.loaders.decoder import SampleReader
from fastimg.loaders.decoders import deep_queue
from fastimg.loaders.decoders.deep_queue import DeepQueue
from fastimg.loaders.runtime.scratch import Scratch

from .test_depth import levels, png


def pgm(pixels):
    height, width, _ = pixels.shape
    return b"P5 %d %d 65535\n" % (width, height) + pixels.astype(">u2").tobytes()


def tiff(pixels, order, rows=None):
    file = io.BytesIO()
    kind = "rgb" if pixels.shape[2] == 3 else "minisblack"
    whole = pixels if kind == "rgb" else pixels[:, :, 0]
    tifffile.imwrite(file, whole, byteorder=order, photometric=kind, rowsperstrip=rows, metadata=None)
    return file.getvalue()


def files_of(seed):
    """Files of 16 bits that are decoded in groups."""
    draw = np.random.default_rng(seed)

    def pixels(channels):
        return levels(draw.integers(1, 90), draw.integers(1, 90), channels, draw.integers(1000))

    found = {
        f"{channels}-{number}.png": png(pixels(channels), filters)
        for channels in (1, 2, 3, 4)
        for number, filters in enumerate([(0,), (1,), (2,), (3,), (4,), (4, 2, 1, 0, 3)])
    }
    found |= {f"{number}.pgm": pgm(pixels(1)) for number in range(3)}
    found |= {
        f"{channels}{order}{rows}.tif": tiff(pixels(channels), order, rows)
        for channels in (1, 3)
        for order in "<>"
        for rows in (None, 7)
    }
    return found


def dataset(folder, files):
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return FilesDataset(Path(folder), list(files), labels=np.zeros(len(files), np.int64))


CROPS = (
    CenterCrop(size=24, resize=24),
    CenterCrop(size=(9, 30), resize=40, interpolation="bicubic"),
    RandomResizedCrop(size=17),
    RandomResizedCrop(size=(20, 60), interpolation="bicubic"),
    RandomCrop(size=8, padding=2),
)


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("crop", CROPS, ids=lambda crop: type(crop).__name__)
def test_groups_have_the_pixels_of_each_alone(tmp_path, crop, channels):
    files = dataset(tmp_path, files_of(channels))
    decoder = ImageDecoder(crop, channels=channels, depth=16)
    ids = np.arange(len(files))
    draws = decoder.draw(3, 0, ids)
    shape = (len(files), *decoder.fields[0].shape)
    grouped, alone = np.zeros(shape, np.uint16), np.zeros(shape, np.uint16)
    assert decoder.fill(SampleReader(files), ids.tolist(), draws, {"inputs": grouped}, Scratch()) == []
    for index in ids.tolist():
        data = files.read(index, Scratch())
        decoder.fill_row(data, draws[index].tolist(), {"inputs": alone[index]}, Scratch())
    np.testing.assert_array_equal(grouped, alone)


def taken(files, crop=CROPS[0]):
    """Which of some files the queue takes."""
    scratch = Scratch()
    encoded = scratch.group(len(files))
    encoded.reserve(max(map(len, files)))
    for place, content in enumerate(files):
        encoded.buffer(place)[: len(content)] = content
    encoded.take(np.array(list(map(len, files))), np.ones(len(files), np.bool_))
    out = np.zeros((len(files), 24, 24, 3), np.uint16)
    assert deep_queue.can_cut(crop)
    return DeepQueue().cut(encoded, crop, np.zeros((len(files), 0)), 1 << 20, scratch, out).tolist()


def test_what_is_taken():
    assert all(taken(list(files_of(0).values())))


def test_colours_of_a_tiff_need_tifffile(monkeypatch):
    colours, gray = tiff(levels(30, 30, 3), "<"), tiff(levels(30, 30), ">")
    monkeypatch.setattr(deep_queue.importlib.util, "find_spec", lambda name: None)
    assert taken([colours, gray]) == [False, True]


def test_what_is_left_to_others():
    """8 bits, other ends of a PGM's range, colours of a PPM, what is cut short, damaged, or states too much.

    Damage below a crop, too: one by one these files are decoded whole.
    """
    good = png(levels(90, 30, 3))
    eight = io.BytesIO()
    Image.fromarray(np.zeros((30, 30), np.uint8)).save(eight, "png")
    broken = bytearray(good)
    broken[len(good) * 9 // 10] ^= 1
    large = bytearray(good)
    large[16:24] = b"\x00\x00\xff\xff\x00\x00\xff\xff"
    deep = pgm(levels(30, 30))
    flat = tiff(levels(30, 30, 3), "<")
    left = [
        eight.getvalue(),
        b"P5 30 30 1000\n" + bytes(1800),
        b"P6 30 30 65535\n" + bytes(5400),
        deep[:-1],
        good[:-20],
        good[: len(good) // 2],
        bytes(broken),
        bytes(large),
        flat[:-2000],
        b"P5 99999 99999 65535\n" + bytes(100),
    ]
    assert not any(taken(left))
