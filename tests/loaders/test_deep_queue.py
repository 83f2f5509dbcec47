"""Images of 16 bits in groups, against those decoded one by one."""

import io
from pathlib import Path

import numpy as np
import pytest
import tifffile
from PIL import Image

from fastimg.loaders import CenterCrop, FilesDataset, ImageDecoder, ImageError, RandomCrop, RandomResizedCrop
from fastimg.loaders.decoder import SampleReader
from fastimg.loaders.decoders import deep_queue
from fastimg.loaders.decoders.deep_queue import DeepQueue
from fastimg.loaders.runtime.scratch import Scratch

from .picture_files import tiff as tiff_of
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


@pytest.mark.parametrize("high_first", [False, True])
def test_what_tifffile_reads_in_another_way_is_left_to_it(high_first):
    """Strips of other lengths than they must have; several pictures, or other axes, in a description."""

    def made(kind="RGB", **tags):
        numbers = {"lengths": 279, "description": 270, "begins": 273}
        given = {numbers[name]: value for name, value in tags.items()}
        return tiff_of(np.random.default_rng(0), 30, 31, kind, high_first, 8, tags=given, depth=16)

    def described(text):
        return made(description=(2, text + b"\0"))

    row = 30 * 6
    assert all(taken([made(), described(b'{"shape": [31, 30, 3]}'), made("L", lengths=None)]))
    shapes = (b"[30, 31, 3]", b"[3, 31, 30]", b"[31, 30, 4]", b"[31, 300, 3]", b"[1, 31, 30, 3]", b"[31, 30]")
    left = [described(b'{"shape": ' + shape + b"}") for shape in shapes]
    left += [described(text) for text in (b'{"shape": [31, 30, 3], "axes": "XYS"}', b'{"shape": [31, 30, 3', b"a cat")]
    left += [made(lengths=value) for value in (None, (4, [8 * row] * 4), (4, [8 * row] * 3 + [6 * row]), (4, [0] * 4))]
    left.append(made(begins=(4, [0, 8 * row, 16 * row, 24 * row])))
    assert not any(taken(left))


def test_a_description_with_other_axes_than_the_picture_is_refused():
    tags = {270: (2, b'{"shape": [31, 30, 3], "axes": "XYS"}\0')}
    file = tiff_of(np.random.default_rng(0), 30, 31, tags=tags, depth=16)
    decoder, out = ImageDecoder(CROPS[0], depth=16), np.zeros((24, 24, 3), np.uint16)
    with pytest.raises(ImageError, match="other axes"):
        decoder.fill_row(memoryview(file), (), {"inputs": out}, Scratch())
