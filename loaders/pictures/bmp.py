"""The header of a BMP without compression -> what is needed of it, as a record.

As with PNG only what is usual is taken: 24 and 32 bits, and 8 with a palette.
"""

from typing import Any

from fastimg.loaders.runtime.compiled import compiled, int64

from .record import BGR, PALETTE, RGB, STORED

_FILE = 14  # bytes of the file's header
_SMALLEST, _V4, _V5 = 40, 108, 124  # of the picture's: versions 3, 4 and 5


@compiled
def low_word(data: Any, at: int) -> Any:
    """The number of 32 bits at a place, the lowest byte first."""
    return int64(data[at]) | int64(data[at + 1]) << 8 | int64(data[at + 2]) << 16 | int64(data[at + 3]) << 24


@compiled
def parse_bmp(data: Any, pictures: Any) -> bool:
    """Fill `pictures[0]`; False for what is no BMP, and for one that is left to others."""
    if data.size < _FILE + _SMALLEST or data[0] != 0x42 or data[1] != 0x4D:
        return False
    picture = pictures[0]
    begin, header = low_word(data, 10), low_word(data, _FILE)
    if header not in (_SMALLEST, _V4, _V5) or begin < _FILE + header:
        return False
    width, height = low_word(data, 18), low_word(data, 22)
    upward = True
    if data[25] == 0xFF:  # a negative height: the first row comes first
        height, upward = (1 << 32) - height, False
    bits, compression, colours = int64(data[28]) | int64(data[29]) << 8, low_word(data, 30), low_word(data, 46)
    if compression or bits not in (8, 24, 32) or not 0 < width < 1 << 31 or not 0 < height < 1 << 31:
        return False
    pitch = (width * bits + 31) // 32 * 4
    if begin + pitch * height > data.size:
        return False
    picture.format, picture.width, picture.height = STORED, width, height
    picture.depth, picture.colour, picture.step = 8, RGB | BGR, bits // 8
    picture.first, picture.pitch = begin, pitch
    picture.palette, picture.colours, picture.colour_step, picture.colour_apart = 0, 0, 4, 1
    if upward:
        picture.first, picture.pitch = begin + (height - 1) * pitch, -pitch
    if bits == 8:
        picture.colour = PALETTE | BGR
        picture.palette, picture.colours = _FILE + header, colours if colours else 256
        if not 2 < picture.colours <= 256 or begin < picture.palette + 4 * picture.colours:
            return False
    return True
