"""The header of a JPEG in plain Python: what `decoding.frame.glance` tells, where that is not compiled yet."""

from typing import NamedTuple

from .exif import ORIENTATION

_SOS, _EOI, _DRI, _EXIF = 0xDA, 0xD9, 0xDD, 0xE1
_FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
_READ = _FRAMES | {_SOS, _DRI, _EXIF}
_SHORT, _LONG = 3, 4  # types of a TIFF entry


class Glance(NamedTuple):
    """See `decoding.frame.glance`."""

    sof: int = 0
    width: int = 0
    height: int = 0
    orientation: int = 1
    interval: int = 0
    precision: int = 0
    luma: int = 0
    whole: bool = True  # whether the first scan has all components


def plain_glance(jpeg: bytes | memoryview) -> Glance:
    """What the header says, up to the first scan."""
    data = memoryview(jpeg)
    sof = width = height = interval = precision = luma = components = scan_components = 0
    orientation = 1
    at = 2 if bytes(data[:2]) == b"\xff\xd8" else len(data)
    size = len(data)
    while True:
        while at + 1 < size and data[at] == data[at + 1] == 0xFF:
            at += 1
        if at + 4 > size or data[at] != 0xFF:
            break
        marker, body = data[at + 1], at + 4
        at += 2 + (data[at + 2] << 8 | data[at + 3])
        if marker < 0xC0 or 0xD0 <= marker <= _EOI or at < body or at > size:
            break
        if marker not in _READ:
            continue
        segment = data[body:at]
        if marker == _SOS:
            count = segment[0] if len(segment) else 0
            if sof and 1 <= count <= 4 and len(segment) == 4 + 2 * count:
                scan_components = count
            break
        if marker == _DRI and len(segment) == 2:
            interval = _number(segment)
        elif marker == _EXIF and orientation == 1:
            orientation = _orientation(segment)
        elif marker in _FRAMES and not sof and len(segment) >= 6 and len(segment) == 6 + 3 * segment[5]:
            across, down, count = _number(segment[3:5]), _number(segment[1:3]), segment[5]
            if across and down and 1 <= count <= 4:
                sof, precision, width, height, components = marker, segment[0], across, down, count
                factors = segment[7::3].tolist()
                luma = 0x11 if count == 1 else factors[0] if count == 3 and factors[1:] == [0x11, 0x11] else 0
    return Glance(sof, width, height, orientation, interval, precision, luma, scan_components == components)


def _orientation(segment: memoryview) -> int:
    """The orientation, 1 to 8, of an APP1 segment's body (`exif.read_orientation`); 1 if it is absent or invalid."""
    if len(segment) < 14 or bytes(segment[:6]) != b"Exif\0\0":
        return 1
    tiff = segment[6:]
    order = bytes(tiff[:2])
    if order not in (b"MM", b"II"):
        return 1
    big = order == b"MM"
    ifd = _number(tiff[4:8], big)
    if ifd + 2 > len(tiff):
        return 1
    for at in range(ifd + 2, min(ifd + 2 + 12 * _number(tiff[ifd : ifd + 2], big), len(tiff) - 11), 12):
        entry = tiff[at : at + 12]
        kind = _number(entry[2:4], big)
        if _number(entry[:2], big) == ORIENTATION and kind in (_SHORT, _LONG) and _number(entry[4:8], big) == 1:
            value = _number(entry[8 : 10 if kind == _SHORT else 12], big)
            return value if 1 <= value <= 8 else 1
    return 1


def _number(data: memoryview, big: bool = True) -> int:
    return int.from_bytes(data, "big" if big else "little")
