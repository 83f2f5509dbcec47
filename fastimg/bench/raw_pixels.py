"""Whether images are worth storing as raw pixels in a `.beton`: they take more room, and no time to decode.

What the loader gains depends on the side of the images and on how they are stored now (benchmarks/raw_pays.py,
docs/convert.md). That holds while all pixels are in memory: from a disk, their bytes cost more than decoding.
"""

from typing import NamedTuple

import numpy as np

MIN_GAIN = 1.2  # that is worth the room
_SHARE = 0.5  # of the free memory, that all pixels may take
_KNOWN = 0.9  # share of the images, at least, that are JPEGs or PNGs

# Images a second from raw pixels over those from JPEGs, flat and tiled, and from PNGs: two threads, medians of 5.
_SIDES = (32, 64, 128, 192, 256, 500)  # of the longer side, pixels
_GAINS = {
    "jpeg": (3.2, 2.8, 2.3, 2.3, 2.5, 2.6),
    "tiled": (3.3, 2.7, 1.9, 1.7, 1.9, 1.8),
    "png": (3.2, 4.0, 3.8, 4.4, 5.7, 7.0),
}


class RawPixels(NamedTuple):
    """A conversion to raw pixels."""

    flags: str  # of `convert`
    options: dict[str, str]  # the same
    nbytes: int  # of all pixels
    gain: float  # images a second of the loader over those of now


def as_raw_pixels(
    count: int, area: float, side: int, largest: int, jpegs: float, tiled: float, pngs: float, available: int
) -> RawPixels | None:
    """The conversion of `count` images to raw pixels; None if they do not fit into memory, or it gains little.

    `area` [pixels] is the mean, `side` the median of the longer sides and `largest` the largest area; `jpegs`, those
    `tiled` among them, and `pngs` are shares of the images, and `available` is the free memory in bytes.
    """
    nbytes = round(3 * area * count)
    if side > _SIDES[-1] or jpegs + pngs < _KNOWN or nbytes > _SHARE * available:
        return None
    shares = {"jpeg": jpegs - tiled, "tiled": tiled, "png": pngs}
    gain = sum(share * float(np.interp(side, _SIDES, _GAINS[name])) for name, share in shares.items())
    gain /= jpegs + pngs
    if gain < MIN_GAIN:
        return None
    below = f"{-(-3 * largest // 1000)}KB"
    options = {"format": "beton", "raw_below": below}
    return RawPixels(f"--format beton --raw-below {below}", options, nbytes, gain)
