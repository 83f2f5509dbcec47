"""EXIF orientation (Exif 2.32, tag 0x0112): where it is in a JPEG, and how it turns stored pixels upright."""

from typing import Any, NamedTuple

import numpy as np

from fastimg.loaders.runtime.compiled import compiled, inlined, int64

ORIENTATION = 0x0112
_SHORT, _LONG = 3, 4  # types of a TIFF entry
_TIFF = 6  # bytes of an APP1 segment before its TIFF block: "Exif", 0, 0


class Turn(NamedTuple):
    """The operations that turn stored pixels upright: first the transposition, then the flips."""

    transposed: bool  # the stored rows are the picture's columns
    flip_x: bool
    flip_y: bool


_TURNS = [Turn(n >= 5, n in (2, 3, 6, 7), n in (3, 4, 7, 8)) for n in range(9)]
_TRANSPOSED, _FLIPS_X, _FLIPS_Y = (np.array(column) for column in zip(*_TURNS, strict=True))


def turn_of(orientation: int) -> Turn:
    """The turn for an orientation, 1 to 8."""
    return _TURNS[orientation]


@inlined
def compiled_turn_of(orientation: int) -> tuple[bool, bool, bool]:
    """The same in compiled code."""
    return _TRANSPOSED[orientation], _FLIPS_X[orientation], _FLIPS_Y[orientation]


@compiled
def orientation_entry(data: Any, begin: int, end: int, number: int) -> int:
    """Position of the orientation in IFD0, from entry `number` on, for an APP1 body [begin, end); -1 if there is none.

    It is an entry of one SHORT or one LONG.
    """
    if end - begin < _TIFF + 8 or not _starts_with_exif(data, begin):
        return -1
    tiff = begin + _TIFF
    big = _is_big_endian(data, tiff)
    if not big and not (data[tiff] == 0x49 and data[tiff + 1] == 0x49):
        return -1
    ifd = tiff + _number(data, tiff + 4, 4, big)
    if ifd + 2 > end:
        return -1
    entries = min(ifd + 2 + 12 * _number(data, ifd, 2, big), end - 11)
    for entry in range(ifd + 2 + 12 * number, entries, 12):
        kind = _number(data, entry + 2, 2, big)
        if (
            _number(data, entry, 2, big) == ORIENTATION
            and kind in (_SHORT, _LONG)
            and _number(data, entry + 4, 4, big) == 1
        ):
            return entry
    return -1


@compiled
def read_orientation(data: Any, begin: int, end: int) -> int:
    """The orientation, 1 to 8, of an APP1 body [begin, end); 1 if it is absent or invalid."""
    entry = orientation_entry(data, begin, end, 0)
    if entry < 0:
        return 1
    big = _is_big_endian(data, begin + _TIFF)
    value = _number(data, entry + 8, 2 if _number(data, entry + 2, 2, big) == _SHORT else 4, big)
    return value if 1 <= value <= 8 else 1


@compiled
def is_upright(data: Any, begin: int, end: int) -> bool:
    """Whether EXIF, with or without the name of an APP1 body before it, surely leaves pixels as they are stored."""
    tiff = begin + _TIFF if end - begin > _TIFF and _starts_with_exif(data, begin) else begin
    if end - tiff < 8:
        return False
    big = _is_big_endian(data, tiff)
    if not big and not (data[tiff] == 0x49 and data[tiff + 1] == 0x49):
        return False
    ifd = tiff + _number(data, tiff + 4, 4, big)
    if _number(data, tiff + 2, 2, big) != 42 or ifd < tiff + 8 or ifd + 2 > end:
        return False
    entries = ifd + 2 + 12 * _number(data, ifd, 2, big)
    if entries > end:
        return False
    for entry in range(ifd + 2, entries, 12):
        if _number(data, entry, 2, big) == ORIENTATION and not (
            _number(data, entry + 2, 2, big) == _SHORT
            and _number(data, entry + 4, 4, big) == 1
            and _number(data, entry + 8, 2, big) == 1
        ):
            return False
    return True


@compiled
def clear_orientation(data: Any, begin: int, end: int) -> None:
    """Set every orientation in IFD0 of an APP1 body [begin, end) to 1."""
    entry = orientation_entry(data, begin, end, 0)
    while entry >= 0:
        tiff = begin + _TIFF
        big = _is_big_endian(data, tiff)
        size = 2 if _number(data, entry + 2, 2, big) == _SHORT else 4
        data[entry + 8 : entry + 8 + size] = 0
        data[entry + 8 + (size - 1 if big else 0)] = 1
        ifd = tiff + _number(data, tiff + 4, 4, big)
        entry = orientation_entry(data, begin, end, (entry - ifd - 2) // 12 + 1)


@inlined
def _starts_with_exif(data: Any, at: int) -> bool:
    return bool(
        data[at] == 0x45
        and data[at + 1] == 0x78
        and data[at + 2] == 0x69
        and data[at + 3] == 0x66
        and data[at + 4] == 0
        and data[at + 5] == 0
    )


@inlined
def _is_big_endian(data: Any, tiff: int) -> bool:
    return bool(data[tiff] == 0x4D and data[tiff + 1] == 0x4D)


@inlined
def _number(data: Any, at: int, size: int, big: bool) -> int:
    value = 0
    for i in range(size):
        value = value << 8 | int64(data[at + (i if big else size - 1 - i)])
    return value
