"""The header of a TIFF without compression -> what is needed of it, as a record (TIFF 6.0, parts 1 and 2).

Only what is usual is taken: one picture, upright, of 8 or 16 bits, gray, in colours or with a palette, whose strips lie
one behind the other. Tiles, planes, several pages, and tags by which Pillow would do more are left to others.
"""

from typing import Any

import numpy as np

from fastimg.loaders.runtime.compiled import compiled, int64

from .record import GRAY, GRAY_ALPHA, LOW_FIRST, PALETTE, RGB, RGB_ALPHA, STORED, new_picture

_TEXT, _SHORT, _LONG, _RATIONAL, _UNDEFINED = 2, 3, 4, 5, 7  # types of values, and the bytes of each:
_BYTES = (0, 1, 1, 2, 4, 8, 1, 1)
_ENTRY = 12  # bytes of a tag, its type, its number of values, and the values or where they lie

_WIDTH, _HEIGHT, _BITS, _COMPRESSION, _PHOTOMETRIC = 256, 257, 258, 259, 262
_STRIPS, _ORIENTATION, _SAMPLES, _STRIP_ROWS, _STRIP_BYTES, _PLANES = 273, 274, 277, 278, 279, 284
_FILL_ORDER, _PREDICTOR, _COLOURS, _EXTRA, _FORMAT = 266, 317, 320, 338, 339
# What changes no pixel: the kind of picture, resolution and its unit, the page, what white and the primary colours are,
# texts, an ICC profile.
_WHITE, _PRIMARIES = 318, 319
_KIND, _X_RESOLUTION, _Y_RESOLUTION, _UNIT, _PAGE, _PROFILE = 254, 282, 283, 296, 297, 34675
_GRAY, _RGB, _PALETTE = 1, 2, 3  # values of _PHOTOMETRIC; of gray, 0 is black
_DESCRIPTION = 270
_SHAPE = np.frombuffer(b'{"shape": [#, #, 3]}', np.uint8)  # what tifffile describes colours with; #: height and width
_NONE = -1  # no further channel; 0 is one of which nothing is known, 2 one that is not multiplied into the others
_TEXTS = (269, 270, 271, 272, 285, 305, 306, 315, 316, 33432)


@compiled
def _number(data: Any, at: int, size: int, high_first: bool) -> Any:
    """The number of `size` bytes at a place."""
    value = int64(0)
    for i in range(size):
        shift = 8 * (size - 1 - i if high_first else i)
        value |= int64(data[at + i]) << shift
    return value


@compiled
def _are_all(data: Any, at: int, count: int, wanted: int, high_first: bool) -> bool:
    """Whether numbers of 16 bits are all the same one."""
    same = True
    for i in range(count):
        same = same and _number(data, at + 2 * i, 2, high_first) == wanted
    return same


@compiled
def _find_strips(data: Any, at: int, size: int, count: int, nbytes: int, high_first: bool) -> Any:
    """Where the first strip begins; -1 unless the others, of `nbytes` each but perhaps the last, follow it."""
    first = _number(data, at, size, high_first)
    for i in range(count):
        if _number(data, at + size * i, size, high_first) != first + i * nbytes:
            return int64(-1)
    return first


@compiled
def _changes_nothing(tag: int, kind: int, count: int) -> bool:
    """Whether a tag's values change no pixel, whatever they are."""
    if tag in _TEXTS:
        return kind == _TEXT
    if tag in (_X_RESOLUTION, _Y_RESOLUTION):
        return kind == _RATIONAL and count == 1
    if tag in (_WHITE, _PRIMARIES):
        return kind == _RATIONAL
    if tag in (_KIND, _UNIT):
        return kind in (_SHORT, _LONG) and count == 1
    return (tag == _PAGE and kind == _SHORT) or (tag == _PROFILE and kind == _UNDEFINED)


@compiled
def _place(data: Any, entry: int, high_first: bool) -> Any:
    """Where the values of an entry begin; -1 if they are not in the file."""
    nbytes = _BYTES[_number(data, entry + 2, 2, high_first)] * _number(data, entry + 4, 4, high_first)
    at = int64(entry + 8) if nbytes <= 4 else _number(data, entry + 8, 4, high_first)
    return at if at + nbytes <= data.size else int64(-1)


@compiled
def _is_usual(data: Any, entry: int, before: int, depth: int, high_first: bool) -> bool:
    """Whether a tag is one of those here, comes behind the tag `before`, and has values that are taken here.

    Of samples these are `depth` bits.
    """
    tag, kind = _number(data, entry, 2, high_first), _number(data, entry + 2, 2, high_first)
    count = _number(data, entry + 4, 4, high_first)
    if tag <= before or not _TEXT <= kind <= _UNDEFINED or count < 1:
        return False
    at = _place(data, entry, high_first)
    if at < 0:
        return False
    if _changes_nothing(tag, kind, count):
        return True
    if kind != _SHORT and (kind != _LONG or tag in (_BITS, _FORMAT, _COLOURS)):
        return False
    if tag == _BITS:
        return _are_all(data, at, count, depth, high_first)
    if tag == _FORMAT:
        return _are_all(data, at, count, 1, high_first)
    if tag in (_COMPRESSION, _ORIENTATION, _PLANES, _FILL_ORDER, _PREDICTOR):
        return bool(count == 1 and _number(data, at, _BYTES[kind], high_first) == 1)
    if tag in (_WIDTH, _HEIGHT, _PHOTOMETRIC, _SAMPLES, _STRIP_ROWS, _EXTRA):
        return bool(count == 1)
    return bool(tag in (_STRIPS, _STRIP_BYTES) or (tag == _COLOURS and count == 3 * 256))


@compiled
def _find(data: Any, begin: int, end: int, wanted: int, high_first: bool) -> Any:
    """The entry of a tag; -1 if there is none."""
    for entry in range(begin, end, _ENTRY):
        if _number(data, entry, 2, high_first) == wanted:
            return int64(entry)
    return int64(-1)


@compiled
def _value(data: Any, begin: int, end: int, wanted: int, otherwise: int, high_first: bool) -> Any:
    """The first value of a tag of numbers."""
    entry = _find(data, begin, end, wanted, high_first)
    if entry < 0:
        return int64(otherwise)
    size = _BYTES[_number(data, entry + 2, 2, high_first)]
    return _number(data, _place(data, entry, high_first), size, high_first)


@compiled
def parse_tiff(data: Any, pictures: Any) -> bool:
    """Fill `pictures[0]`; False for what is no TIFF of 8 bits, and for one that is left to others."""
    return _parse(data, pictures, 8)


@compiled
def parse_deep_tiff(data: Any, pictures: Any) -> bool:
    """`parse_tiff` of 16 bits, without palette and alpha."""
    if not _parse(data, pictures, 16):
        return False
    colour = pictures[0].colour & ~LOW_FIRST
    return bool(colour == GRAY or (colour == RGB and _is_plain_elsewhere(data, pictures[0])))


@compiled
def _is_plain_elsewhere(data: Any, picture: Any) -> bool:
    """Whether tifffile, which otherwise reads colours of 16 bits, finds the same pixels.

    It reads as many bytes of each strip as are stated, none of one at place 0, and takes axes and several pictures from
    a description.
    """
    high_first = data[0] == 0x4D
    begin = _number(data, 4, 4, high_first) + 2
    end = begin + _ENTRY * _number(data, begin - 2, 2, high_first)
    lengths = _find(data, begin, end, _STRIP_BYTES, high_first)
    described = _find(data, begin, end, _DESCRIPTION, high_first)
    if lengths < 0 or picture.first == 0:
        return False
    rows = min(_value(data, begin, end, _STRIP_ROWS, picture.height, high_first), picture.height)
    at, size = _place(data, lengths, high_first), _BYTES[_number(data, lengths + 2, 2, high_first)]
    for i in range(_number(data, lengths + 4, 4, high_first)):
        if _number(data, at + i * size, size, high_first) != min(rows, picture.height - i * rows) * picture.pitch:
            return False
    if described < 0:
        return True
    at, count = _place(data, described, high_first), _number(data, described + 4, 4, high_first)
    return bool(_states_shape(data[at : at + count], picture.height, picture.width))


@compiled
def _states_shape(text: Any, height: int, width: int) -> bool:
    """Whether a description says the shape of these colours, and nothing else."""
    at, wanted = 0, height
    for letter in _SHAPE:
        if letter != 0x23:
            if at == text.size or text[at] != letter:
                return False
            at += 1
            continue
        value = 0
        while at < text.size and 0x30 <= text[at] <= 0x39 and value < wanted:
            value = 10 * value + int64(text[at]) - 0x30
            at += 1
        if value != wanted:
            return False
        wanted = width
    return bool((text[at:] == 0).all())


@compiled
def _parse(data: Any, pictures: Any, depth: int) -> bool:
    """Fill `pictures[0]` for a TIFF whose samples have so many bits."""
    if data.size < 8 or data[0] != data[1] or (data[0] != 0x49 and data[0] != 0x4D):
        return False
    high_first = data[0] == 0x4D
    begin = _number(data, 4, 4, high_first)
    if _number(data, 2, 2, high_first) != 42 or begin < 8 or begin + 2 > data.size:
        return False
    end = begin + 2 + _ENTRY * _number(data, begin, 2, high_first)
    begin += 2
    if end + 4 > data.size or _number(data, end, 4, high_first):  # another page
        return False
    before = int64(0)
    for entry in range(begin, end, _ENTRY):
        if not _is_usual(data, entry, before, depth, high_first):
            return False
        before = _number(data, entry, 2, high_first)
    width = _value(data, begin, end, _WIDTH, 0, high_first)
    height = _value(data, begin, end, _HEIGHT, 0, high_first)
    photometric = _value(data, begin, end, _PHOTOMETRIC, 0, high_first)
    samples = _value(data, begin, end, _SAMPLES, 1, high_first)
    extra = _value(data, begin, end, _EXTRA, _NONE, high_first)
    bits, strips = _find(data, begin, end, _BITS, high_first), _find(data, begin, end, _STRIPS, high_first)
    colours = _find(data, begin, end, _COLOURS, high_first)
    if width < 1 or height < 1 or bits < 0 or strips < 0 or not _GRAY <= photometric <= _PALETTE:
        return False
    if extra != _NONE and (photometric == _PALETTE or (extra != 0 and extra != 2)):
        return False
    if samples != (3 if photometric == _RGB else 1) + (extra != _NONE) or (photometric == _PALETTE) != (colours >= 0):
        return False
    if _number(data, bits + 4, 4, high_first) != samples:
        return False
    pitch = samples * width * depth // 8
    if height > data.size // pitch:
        return False
    rows = min(_value(data, begin, end, _STRIP_ROWS, height, high_first), height)
    count = _number(data, strips + 4, 4, high_first)
    if rows < 1 or count != (height + rows - 1) // rows:
        return False
    lengths = _find(data, begin, end, _STRIP_BYTES, high_first)
    if lengths >= 0 and _number(data, lengths + 4, 4, high_first) != count:
        return False
    size = _BYTES[_number(data, strips + 2, 2, high_first)]
    first = _find_strips(data, _place(data, strips, high_first), size, count, rows * pitch, high_first)
    if first < 0 or first + height * pitch > data.size:
        return False
    picture = pictures[0]
    picture.format, picture.width, picture.height, picture.depth = STORED, width, height, depth
    picture.step, picture.first, picture.pitch = samples * depth // 8, first, pitch
    picture.palette, picture.colours, picture.colour_step, picture.colour_apart = 0, 0, 2, 2 * 256
    if photometric == _RGB:
        picture.colour = RGB if extra == _NONE else RGB_ALPHA
    elif photometric == _GRAY:
        picture.colour = GRAY if extra == _NONE else GRAY_ALPHA
    else:
        picture.colour, picture.colours = PALETTE, 256
        picture.palette = _place(data, colours, high_first) + (0 if high_first else 1)  # the higher bytes
    if depth == 16 and not high_first:
        picture.colour |= LOW_FIRST
    return True


def is_plain_tiff(data: bytes | memoryview) -> bool:
    """Whether a file is such a TIFF, of which crops take what they show."""
    return bool(parse_tiff(np.frombuffer(data, np.uint8), new_picture()))
