"""The header of a binary PPM or PGM of 8 bits -> what is needed of it, as a record. Comments are left to others."""

from typing import Any

from fastimg.loaders.runtime.compiled import compiled, int64

from .record import GRAY, RGB, STORED

_MOST_DIGITS = 10  # of a number


@compiled
def _is_space(value: int) -> bool:
    return value == 32 or 9 <= value <= 13


@compiled
def _read_number(data: Any, at: int) -> tuple[int, int]:
    """The number behind white space at a place, and the place behind the single space that ends it; -1 for none."""
    while at < data.size and _is_space(data[at]):
        at += 1
    value, begin = 0, at
    while at < data.size and at - begin < _MOST_DIGITS and 48 <= data[at] <= 57:
        value = 10 * value + int64(data[at]) - 48
        at += 1
    if at == begin or at >= data.size or not _is_space(data[at]):
        return -1, at
    return value, at + 1


@compiled
def parse_ppm(data: Any, pictures: Any) -> bool:
    """Fill `pictures[0]`; False for what is no PPM or PGM of 8 bits, and for one that is left to others."""
    return _parse(data, pictures, 8)


@compiled
def parse_deep_pgm(data: Any, pictures: Any) -> bool:
    """`parse_ppm` of a PGM of 16 bits, the higher byte first; Pillow keeps 8 bits of such a PPM's colours."""
    return bool(_parse(data, pictures, 16) and pictures[0].colour == GRAY)


@compiled
def _parse(data: Any, pictures: Any, depth: int) -> bool:
    """Fill `pictures[0]` for a PPM or PGM whose samples have all values of so many bits."""
    if data.size < 8 or data[0] != 0x50 or (data[1] != 0x35 and data[1] != 0x36) or not _is_space(data[2]):
        return False
    picture = pictures[0]
    width, at = _read_number(data, 3)
    height, at = _read_number(data, at)
    highest, at = _read_number(data, at)
    if width < 1 or height < 1 or highest != (1 << depth) - 1 or width >= 1 << 31 or height >= 1 << 31:
        return False
    picture.colour, picture.step = (RGB, 3 * depth // 8) if data[1] == 0x36 else (GRAY, depth // 8)
    picture.format, picture.width, picture.height, picture.depth = STORED, width, height, depth
    picture.first, picture.pitch = at, width * picture.step
    picture.palette, picture.colours = 0, 0
    return bool(at + height * picture.pitch <= data.size)
