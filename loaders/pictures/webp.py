"""The chunks of a WebP of one frame -> what libwebp needs, as a record (RFC 9649, 2).

As with PNG only what is usual is taken: Pillow has the last word about animations, chunks in other orders or behind the
end, and all that turns the picture.
"""

from typing import Any

from fastimg.loaders.jpeg.exif import is_upright
from fastimg.loaders.runtime.compiled import compiled, int64

from .bmp import low_word
from .record import RGB, WEBP


def _name(letters: bytes) -> int:
    return int.from_bytes(letters, "little")


_RIFF, _WEBP, _VP8, _VP8L, _VP8X = (_name(name) for name in (b"RIFF", b"WEBP", b"VP8 ", b"VP8L", b"VP8X"))
_ICCP, _ALPH, _EXIF, _XMP = (_name(name) for name in (b"ICCP", b"ALPH", b"EXIF", b"XMP "))
_HAS_XMP, _HAS_EXIF, _HAS_ALPHA, _HAS_PROFILE = 4, 8, 16, 32  # flags of VP8X
_MOST_XMP = 1 << 16  # bytes that are searched
_TURNS = _name(b"Orie")  # of tiff:Orientation


@compiled
def parse_webp(data: Any, pictures: Any) -> bool:
    """Fill `pictures[0]`; False for what is no WebP, and for one that is left to others."""
    size = data.size
    if size < 26 or low_word(data, 0) != _RIFF or low_word(data, 8) != _WEBP or low_word(data, 4) + 8 != size:
        return False
    picture = pictures[0]
    picture.format, picture.depth, picture.colour, picture.step = WEBP, 8, RGB, 3
    picture.palette, picture.colours, picture.colour_step = 0, 0, 3
    if low_word(data, 12) != _VP8X:
        return bool(_take_pixels(data, 12, picture) and _behind(data, 12) == size)
    flags = int64(data[20])
    if size < 38 or low_word(data, 16) != 10 or flags & ~(_HAS_XMP | _HAS_EXIF | _HAS_ALPHA | _HAS_PROFILE):
        return False
    at = 30
    if flags & _HAS_PROFILE:
        if low_word(data, at) != _ICCP or _behind(data, at) < 0:
            return False
        at = _behind(data, at)
    alpha = at + 8 <= size and low_word(data, at) == _ALPH
    if alpha:
        at = _behind(data, at)
    if at < 0 or not _take_pixels(data, at, picture) or (alpha and picture.lossless):
        return False
    if alpha != bool(flags & _HAS_ALPHA) and not picture.lossless:
        return False
    if picture.width != 1 + (low_word(data, 24) & 0xFFFFFF) or picture.height != 1 + (low_word(data, 26) >> 8):
        return False
    at = _behind(data, at)
    left = flags & (_HAS_EXIF | _HAS_XMP)
    while at < size:
        end = _behind(data, at)
        if end < 0:
            return False
        name, begin, length = low_word(data, at), at + 8, low_word(data, at + 4)
        if name == _EXIF and left & _HAS_EXIF and is_upright(data, begin, begin + length):
            left &= ~_HAS_EXIF
        elif name == _XMP and left & _HAS_XMP and not _may_turn(data, begin, length):
            left &= ~_HAS_XMP
        else:
            return False
        at = end
    return bool(left == 0)


@compiled
def _behind(data: Any, at: int) -> int:
    """The place behind the chunk at a place; -1 if it is cut short."""
    if at + 8 > data.size:
        return -1
    length = low_word(data, at + 4)
    end = at + 8 + length + (length & 1)
    return int(end) if end <= data.size else -1


@compiled
def _take_pixels(data: Any, at: int, picture: Any) -> bool:
    """Note the chunk of pixels at a place, and the size that its first bytes say (RFC 6386, 9.1; RFC 9649, 3.4)."""
    if _behind(data, at) < 0:
        return False
    name, body, nbytes = low_word(data, at), at + 8, low_word(data, at + 4)
    picture.body, picture.nbytes, picture.lossless = body, nbytes, name == _VP8L
    if name == _VP8L:
        if nbytes < 5 or data[body] != 0x2F:
            return False
        bits = low_word(data, body + 1)
        picture.width, picture.height = 1 + (bits & 0x3FFF), 1 + (bits >> 14 & 0x3FFF)
        return bool(bits >> 29 == 0)  # the version
    if name != _VP8 or nbytes < 10 or data[body + 3] != 0x9D or data[body + 4] != 1 or data[body + 5] != 0x2A:
        return False
    bits = low_word(data, body) & 0xFFFFFF
    picture.width, picture.height = low_word(data, body + 6) & 0x3FFF, low_word(data, body + 6) >> 16 & 0x3FFF
    if picture.width == 0 or picture.height == 0:
        return False
    return bool(bits & 1 == 0 and bits >> 1 & 7 <= 3 and bits >> 4 & 1 and bits >> 5 < nbytes)  # a key frame, shown


@compiled
def _may_turn(data: Any, begin: int, length: int) -> bool:
    """Whether XMP may hold an orientation."""
    if length > _MOST_XMP:
        return True
    at, last = begin, begin + length - 4
    while at <= last and low_word(data, at) != _TURNS:
        at += 1
    return at <= last
