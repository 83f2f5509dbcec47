"""The samples of a PNG's rows -> RGB or gray of 8 bits, by the rule of `loaders.decode`."""

from typing import Any

from fastimg.loaders.jpeg.decoding.memory import byte_at, bytes_at, copy_bytes, view_at
from fastimg.loaders.runtime.compiled import compiled, int64

from .chunks import GRAY, GRAY_ALPHA, PALETTE, RGB


@compiled
def as_stored(png: Any, channels: int) -> bool:
    """Whether the pixels of a row are what `fill_row` would make of them."""
    return bool(png.depth == 8 and png.colour == (RGB if channels == 3 else GRAY))


@compiled
def fill_row(png: Any, row: int, palette: int, begin: int, count: int, channels: int, to: int) -> bool:
    """Write `count` pixels of a row, from pixel `begin` on, as `channels` bytes each, to an address.

    `row` is the address of its samples, and `palette` that of the colours. False for a pixel that the palette lacks.
    """
    out = bytes_at(to, count * channels)
    size = png.depth // 8  # of a sample
    if png.depth < 8 or png.colour == PALETTE:
        colours = view_at(palette, 3 * png.colours)
        per_byte, mask = 8 // png.depth, (1 << png.depth) - 1
        scale = 255 // mask
        for i in range(count):
            place = begin + i
            shift = 8 - png.depth * (place % per_byte + 1)
            level = int64(byte_at(row + place // per_byte)) >> shift & mask
            if png.colour == GRAY:
                for channel in range(channels):
                    out[channels * i + channel] = level * scale
                continue
            if level >= png.colours:
                return False
            _put(out, i, channels, colours[3 * level], colours[3 * level + 1], colours[3 * level + 2])
        return True
    if as_stored(png, channels):
        copy_bytes(row + begin * channels, to, count * channels)
        return True
    row += begin * png.step
    if png.colour == GRAY or png.colour == GRAY_ALPHA:
        for i in range(count):
            level = byte_at(row + i * png.step)
            for channel in range(channels):
                out[channels * i + channel] = level
        return True
    for i in range(count):
        at = row + i * png.step
        _put(out, i, channels, byte_at(at), byte_at(at + size), byte_at(at + 2 * size))
    return True


@compiled
def _put(out: Any, place: int, channels: int, red: int, green: int, blue: int) -> None:
    """Write a pixel, in gray by Pillow's weights."""
    if channels == 3:
        out[3 * place], out[3 * place + 1], out[3 * place + 2] = red, green, blue
        return
    out[place] = (int64(red) * 19595 + int64(green) * 38470 + int64(blue) * 7471 + 0x8000) >> 16
