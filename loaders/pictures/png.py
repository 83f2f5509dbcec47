"""The chunks of a PNG -> what its decoder needs, as a record (PNG, 3rd edition, 5).

Only what is usual is taken, so that Pillow has the last word about the rest: chunks that it would look into for an
orientation, animations, odd lengths and orders, wrong checksums, what is interlaced or cut short.
"""

from typing import Any

from fastimg.loaders.runtime.compiled import compiled, int64

from .checksums import crc32
from .damaged_png import GROUPS
from .record import DEFLATED, GRAY, GRAY_ALPHA, PALETTE, RGB, RGB_ALPHA

_MOST = 1 << 21  # bytes of chunks before the pixels


def _name(letters: bytes) -> int:
    return int.from_bytes(letters, "big")


_IHDR, _PLTE, _IDAT, _IEND, _TRNS = (_name(name) for name in (b"IHDR", b"PLTE", b"IDAT", b"IEND", b"tRNS"))
_GAMA, _CHRM, _SRGB, _PHYS, _ICCP = (_name(name) for name in (b"gAMA", b"cHRM", b"sRGB", b"pHYs", b"iCCP"))
_TEXT, _TIME, _BKGD, _SBIT, _HIST = (_name(name) for name in (b"tEXt", b"tIME", b"bKGD", b"sBIT", b"hIST"))
_GROUPS = _name(GROUPS)
_START = (0x89504E47, 0x0D0A1A0A)


@compiled
def word(data: Any, at: int) -> Any:
    """The number of 32 bits at a place, the highest byte first."""
    return int64(data[at]) << 24 | int64(data[at + 1]) << 16 | int64(data[at + 2]) << 8 | int64(data[at + 3])


@compiled
def parse_png(data: Any, pngs: Any) -> bool:
    """Fill `pngs[0]`; False for what is no PNG, and for one that is left to others."""
    size = data.size
    if size < 57 or word(data, 0) != _START[0] or word(data, 4) != _START[1]:
        return False
    png = pngs[0]
    png.format = DEFLATED
    if word(data, 8) != 13 or word(data, 12) != _IHDR or not _is_whole(data, 8, 13):
        return False
    png.width, png.height = word(data, 16), word(data, 20)
    png.depth, png.colour = int64(data[24]), int64(data[25])
    if data[26] or data[27] or data[28] or png.width < 1 or png.height < 1:
        return False
    if png.width > 0x7FFFFFFF or png.height > 0x7FFFFFFF:
        return False
    samples = _samples(png.depth, png.colour)
    if samples == 0:
        return False
    png.step = max(1, samples * png.depth // 8)
    png.length = (png.width * samples * png.depth + 7) // 8
    png.palette, png.colours, png.profile, png.profile_bytes = 0, 0, 0, 0
    png.parts, png.nbytes, png.group = 0, 0, 0
    at = 33
    while True:
        if at + 12 > size or at > _MOST:
            return False
        length, name = word(data, at), word(data, at + 4)
        if name == _IDAT:
            break
        if at + 12 + length > size or not _is_whole(data, at, length) or not _is_usual(data, at, length, name, png):
            return False
        at += 12 + length
    png.body = at
    if png.colour == PALETTE and png.colours == 0:
        return False
    while name == _IDAT:
        if at + 12 + length > size:
            return False
        png.parts += 1
        png.nbytes += length
        at += 12 + length
        if at + 12 > size:
            return False
        length, name = word(data, at), word(data, at + 4)
    while name != _IEND:
        if at + 12 + length > size or (name != _TEXT and name != _TIME):
            return False
        if not _is_whole(data, at, length) or not _is_usual(data, at, length, name, png):
            return False
        at += 12 + length
        if at + 12 > size:
            return False
        length, name = word(data, at), word(data, at + 4)
    if png.group and png.parts != (png.height + png.group - 1) // png.group:
        png.group = 0
    return bool(length == 0 and png.nbytes > 6)


@compiled
def _is_whole(data: Any, at: int, length: int) -> bool:
    """Whether the checksum of the chunk at a place, which has `length` bytes inside, is right."""
    return bool(crc32(int64(data.ctypes.data) + at + 4, length + 4) == word(data, at + 8 + length))


@compiled
def _samples(depth: int, colour: int) -> int:
    """Samples of a pixel; 0 if there is no such type."""
    if colour == GRAY:
        return 1 if depth in (1, 2, 4, 8, 16) else 0
    if colour == PALETTE:
        return 1 if depth in (1, 2, 4, 8) else 0
    if depth not in (8, 16):
        return 0
    if colour == RGB:
        return 3
    if colour == GRAY_ALPHA:
        return 2
    return 4 if colour == RGB_ALPHA else 0


@compiled
def _is_usual(data: Any, at: int, length: int, name: int, png: Any) -> bool:
    """Whether a chunk is one without an effect on pixels, and as it should be. The palette is noted."""
    if name == _PLTE:
        if png.colours or length == 0 or length % 3 or length > 768:
            return False
        png.palette, png.colours, png.colour_step, png.colour_apart = at + 8, length // 3, 3, 1
        return True
    if name == _TRNS:
        if png.colour == PALETTE:
            return length <= 256
        return length == (2 if png.colour == GRAY else 6 if png.colour == RGB else -1)
    if name == _ICCP:
        end = at + 8 + length
        begin = at + 8
        while begin < min(end, at + 8 + 80) and data[begin]:
            begin += 1
        if begin == at + 8 or begin + 2 >= end or data[begin] or data[begin + 1] or png.profile:
            return False
        png.profile, png.profile_bytes = begin + 2, end - begin - 2
        return True
    if name == _TEXT:
        first = data[at + 8] if length else 0
        return (65 <= first <= 90 and first != 82 and first != 88) or first == 100  # A to Z but R and X; d as in date
    if name == _GROUPS and not png.group and length == 4:
        png.group = word(data, at + 8)
        return bool(png.group > 0)
    if name == _GAMA:
        return length == 4
    if name == _CHRM:
        return length == 32
    if name == _SRGB:
        return length == 1
    if name == _PHYS:
        return length == 9
    return name in (_TIME, _BKGD, _SBIT, _HIST)
