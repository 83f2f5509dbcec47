"""Samples of 16 bits in a picture's rows -> RGB or gray of 16 bits, by the rule of `loaders.decode`."""

from typing import Any

from fastimg.loaders.jpeg.decoding.memory import bytes_at, view_at
from fastimg.loaders.runtime.compiled import compiled, int64, uint16

from .png import parse_png
from .ppm import parse_deep_pgm
from .record import GRAY, GRAY_ALPHA, LOW_FIRST
from .tiff import parse_deep_tiff


@compiled
def parse_deep(data: Any, pictures: Any) -> bool:
    """Fill `pictures[0]` with what the header of a file of 16 bits says; False for what is left to others."""
    if parse_png(data, pictures):
        return bool(pictures[0].depth == 16)
    return bool(parse_deep_pgm(data, pictures) or parse_deep_tiff(data, pictures))


@compiled
def fill_deep_rows(picture: Any, first: int, pitch: int, rows: Any, columns: Any, channels: int, to: int) -> None:
    """Write the pixels of `rows` (top, bottom) and `columns` (begin, count) to an address, `channels` uint16 each.

    `first` is the address of the first row's samples, and `pitch` the bytes to the next. Alpha is left out.
    """
    (top, bottom), (begin, count) = rows, columns
    low = 0 if picture.colour & LOW_FIRST else 1  # the place of a sample's lower byte
    kind, step = picture.colour & ~LOW_FIRST, picture.step
    stored = 1 if kind in (GRAY, GRAY_ALPHA) else 3
    for y in range(top, bottom):
        source = view_at(first + y * pitch + begin * step, count * step)
        out = bytes_at(to + 2 * (y - top) * count * channels, 2 * count * channels).view(uint16)
        if stored == channels:
            for i in range(count):
                for channel in range(channels):
                    out[channels * i + channel] = _level(source, step * i + 2 * channel, low)
        elif stored == 1:
            for i in range(count):
                out[3 * i] = out[3 * i + 1] = out[3 * i + 2] = _level(source, step * i, low)
        else:
            for i in range(count):
                at = step * i
                luma = 19595 * _level(source, at, low) + 38470 * _level(source, at + 2, low)
                out[i] = (luma + 7471 * _level(source, at + 4, low) + 0x8000) >> 16  # Pillow's weights


@compiled
def _level(source: Any, at: int, low: int) -> int:
    """A sample, whose lower byte is at the place `low` of both."""
    return int(int64(source[at + 1 - low]) << 8 | int64(source[at + low]))
