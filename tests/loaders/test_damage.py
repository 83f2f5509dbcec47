"""Which damaged files are read: docs/design.md, "Damaged files", row by row, by each decoder."""

import io

import numpy as np
import pytest
from PIL import Image

from fastimg.loaders.crop import Window
from fastimg.loaders.decode import decode
from fastimg.loaders.decoders.images import ImageDecoder
from fastimg.loaders.errors import ImageError
from fastimg.loaders.jpeg.rewriting.tiles import tile
from fastimg.loaders.runtime.scratch import Scratch

SIDE = 200
TOP, BOTTOM, WHOLE = (0, 0, 100, 40), (0, 160, SIDE, 40), (0, 0, SIDE, SIDE)
SCRATCH = Scratch()


class Cut:
    """A crop of one box of an image."""

    size, draws, interpolation = 16, 0, "bilinear"

    def __init__(self, box):
        self.box = box

    def window(self, width, height, draws):
        return Window(self.box, (16, 16), (0, 0))


def encoded(kind):
    """A picture as a file of a kind."""
    draws = np.random.default_rng(0)
    coarse = Image.fromarray(draws.integers(0, 255, (24, 24, 3), np.uint8)).resize(
        (SIDE, SIDE), Image.Resampling.BICUBIC
    )
    options = {"progressive": {"progressive": True}, "lzw": {"compression": "tiff_lzw"}}.get(kind, {})
    file = {"tiled": "JPEG", "untiled": "JPEG", "progressive": "JPEG", "lzw": "TIFF"}.get(kind, kind.upper())
    buffer = io.BytesIO()
    coarse.save(buffer, file, **options)
    return tile(buffer.getvalue()).jpeg if kind == "tiled" else buffer.getvalue()


def cut_short(data):
    return data[: len(data) * 6 // 10]


def without_its_end(data):
    return data[:-2]


def altered(data):
    begin = len(data) * 7 // 10
    return data[:begin] + bytes(20) + data[begin + 20 :]


JPEGS = ("tiled", "untiled", "progressive")
ROWS = [  # kind, damage, whether crops above it can be read, and those with it
    ("tiled", cut_short, True, False),
    ("tiled", without_its_end, True, False),
    *((kind, damage, False, False) for kind in JPEGS[1:] for damage in (cut_short, without_its_end)),
    *((kind, altered, True, True) for kind in JPEGS[:2]),
    ("png", cut_short, False, False),
    ("png", altered, False, False),
    ("png", without_its_end, True, True),
    *((kind, cut_short, False, False) for kind in ("webp", "gif", "lzw", "ppm", "bmp", "tiff")),
    *((kind, altered, True, True) for kind in ("ppm", "bmp", "tiff")),
]


def cropped(data, box, compiled):
    """A crop's pixels, or None if the file cannot be read for it."""
    out = np.zeros((16, 16, 3), np.uint8)
    try:
        ImageDecoder(Cut(box), 1 << 30, False, compiled).fill_row(memoryview(data), [], {"inputs": out}, SCRATCH)
    except ImageError:
        return None
    return out


@pytest.mark.parametrize(("kind", "damage", "above", "within"), ROWS)
@pytest.mark.filterwarnings("ignore::UserWarning")  # Pillow's of TIFF
def test_a_file_is_read_for_the_crops_whose_pixels_are_there(kind, damage, above, within):
    sound = encoded(kind)
    data = damage(sound)
    for box, readable in ((TOP, above), (BOTTOM, within), (WHOLE, within)):
        compiled, other = cropped(data, box, True), cropped(data, box, False)
        assert (compiled is not None) == (other is not None) == readable
        assert compiled is None or np.array_equal(compiled, other)
    if above and kind != "bmp":  # whose last row comes first
        assert np.array_equal(cropped(data, TOP, True), cropped(sound, TOP, True))
    if not within:
        with pytest.raises(ImageError):
            decode(data)  # what `verify --deep` and `convert` do


def test_decoders_agree_about_a_progressive_jpeg_with_altered_bytes():
    sound = encoded("progressive")
    read = 0
    for begin in range(len(sound) // 4, len(sound) - 100, len(sound) // 10):
        data = sound[:begin] + bytes(20) + sound[begin + 20 :]
        for box in (TOP, WHOLE):
            compiled, other = cropped(data, box, True), cropped(data, box, False)
            assert (compiled is None) == (other is None)
            assert compiled is None or np.array_equal(compiled, other)
            read += compiled is not None
    assert read
