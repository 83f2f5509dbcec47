"""Large photographs for benchmarks, made of small ones: mosaics as JPEGs 4:2:0 at quality 90, each of other pictures.

They are no photographs of a large sensor: the parts are sharp to the pixel, so a mosaic has more bytes to decode than
a phone's picture of its size.
"""

import itertools
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image

# Width and height by megapixels.
SIZES = {1: (1152, 864), 2: (1632, 1224), 4: (2304, 1728), 12: (4000, 3000), 24: (6000, 4000), 48: (8000, 6000)}
_HEIGHT = 375  # pixels of a row of pictures
_QUALITY = 90


def write_mosaics(folder: Path, pictures: Sequence[Path], megapixels: int, count: int) -> list[Path]:
    """Write `count` mosaics of `pictures`, in random order; the same arguments give the same bytes."""
    folder.mkdir(parents=True, exist_ok=True)
    files = []
    for number in range(count):
        files.append(folder / f"mosaic-{megapixels}mp-{number:03d}.jpg")
        order = np.random.default_rng([megapixels, number]).permutation(len(pictures))
        mosaic = _mosaic([pictures[i] for i in order], SIZES[megapixels])
        mosaic.save(files[-1], "JPEG", quality=_QUALITY, subsampling="4:2:0")
    return files


def _mosaic(pictures: Sequence[Path], size: tuple[int, int]) -> Image.Image:
    """Pictures of one height side by side, in rows, until the canvas is full."""
    canvas = Image.new("RGB", size)
    x = y = 0
    for picture in itertools.cycle(pictures):
        with Image.open(picture) as opened:
            width = max(1, round(opened.width * _HEIGHT / opened.height))
            canvas.paste(opened.convert("RGB").resize((width, _HEIGHT), Image.Resampling.LANCZOS), (x, y))
        x += width
        if x >= size[0]:
            x, y = 0, y + _HEIGHT
        if y >= size[1]:
            return canvas
    raise AssertionError("cycle ends only if there are no pictures")
