"""The samples of a picture's rows -> RGB or gray of 8 bits, by the rule of `loaders.decode`."""

from typing import Any

from fastimg.loaders.jpeg.decoding.memory import byte_at, bytes_at, copy_bytes, view_at
from fastimg.loaders.runtime.compiled import compiled, int64

from .record import BGR, GRAY, GRAY_ALPHA, PALETTE, RGB


@compiled
def as_stored(picture: Any, channels: int) -> bool:
    """Whether the pixels of a row are what `fill_row` would make of them."""
    return bool(picture.depth == 8 and picture.colour == (RGB if channels == 3 else GRAY))


@compiled
def fill_rows(
    picture: Any, first: int, pitch: int, palette: int, rows: Any, columns: Any, channels: int, to: int
) -> bool:
    """Write the pixels of `rows` (top, bottom) and `columns` (begin, count) to an address, as `fill_row` does.

    `first` is the address of the first row's samples, and `pitch` the bytes to the next. False if `fill_row` is.
    """
    top, bottom = rows
    begin, count = columns
    for y in range(top, bottom):
        if not fill_row(picture, first + y * pitch, palette, begin, count, channels, to + (y - top) * count * channels):
            return False
    return True


@compiled
def fill_row(picture: Any, row: int, palette: int, begin: int, count: int, channels: int, to: int) -> bool:
    """Write `count` pixels of a row, from pixel `begin` on, as `channels` bytes each, to an address.

    `row` is the address of its samples, and `palette` that of the colours. False for a pixel that the palette lacks.
    """
    out = bytes_at(to, count * channels)
    size = picture.depth // 8  # of a sample
    blue_first = bool(picture.colour & BGR)
    kind = picture.colour & ~BGR
    if picture.depth < 8 or kind == PALETTE:
        apart = picture.colour_apart
        colours = view_at(palette, picture.colour_step * (picture.colours - 1) + 2 * apart + 1)
        per_byte, mask = 8 // picture.depth, (1 << picture.depth) - 1
        scale = 255 // mask
        red, blue = (2 * apart, 0) if blue_first else (0, 2 * apart)
        for i in range(count):
            place = begin + i
            shift = 8 - picture.depth * (place % per_byte + 1)
            level = int64(byte_at(row + place // per_byte)) >> shift & mask
            if kind == GRAY:
                for channel in range(channels):
                    out[channels * i + channel] = level * scale
                continue
            if level >= picture.colours:
                return False
            at = picture.colour_step * level
            _put(out, i, channels, colours[at + red], colours[at + apart], colours[at + blue])
        return True
    row += begin * picture.step
    if as_stored(picture, channels):
        copy_bytes(row, to, count * channels)
        return True
    if kind in (GRAY, GRAY_ALPHA):
        for i in range(count):
            level = byte_at(row + i * picture.step)
            for channel in range(channels):
                out[channels * i + channel] = level
        return True
    red, blue = (2 * size, 0) if blue_first else (0, 2 * size)
    for i in range(count):
        at = row + i * picture.step
        _put(out, i, channels, byte_at(at + red), byte_at(at + size), byte_at(at + blue))
    return True


@compiled
def _put(out: Any, place: int, channels: int, red: int, green: int, blue: int) -> None:
    """Write a pixel, in gray by Pillow's weights."""
    if channels == 3:
        out[3 * place], out[3 * place + 1], out[3 * place + 2] = red, green, blue
        return
    out[place] = (int64(red) * 19595 + int64(green) * 38470 + int64(blue) * 7471 + 0x8000) >> 16
