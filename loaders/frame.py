"""The header of a tiled baseline JPEG, as numbers in an array, for compiled code (ITU T.81 annex B).

What it takes is what `tile` leaves of photographs: 8 bits, Huffman, one scan, gray or YCbCr in 4:4:4, 4:2:2 or 4:2:0,
with restarts.
"""

from typing import Any

from .compiled import compiled, inlined, int64

# What the header says, by place in an array of int64.
# BEGIN: the scan's first byte. ORIENTATION: of EXIF, 1 to 8.
WIDTH, HEIGHT, MCU_WIDTH, MCU_HEIGHT, INTERVAL, COMPONENTS, BEGIN, ORIENTATION = range(8)
# Of each component. H and V: its blocks across and down an MCU.
H, V, TQ, DC, AC, ID = 8, 11, 14, 17, 20, 23
QUANT, DC_CODES, AC_CODES = 26, 30, 34  # where each of four tables stands, 0 where there is none
HEADER = 38

MOST_BLOCKS = 6 * 64  # of a tile: wider ones go the other way


@compiled
def read_frame(data: Any, frame: Any) -> bool:
    """Fill `frame` [HEADER] from a JPEG's markers (ITU T.81 annex B). False: not what this file decodes."""
    if data.size < 4 or data[0] != 0xFF or data[1] != 0xD8:
        return False
    at, jfif, adobe = 2, False, -1
    frame[:] = 0
    frame[ORIENTATION] = 1
    while at + 4 <= data.size:
        if data[at] != 0xFF:
            return False
        marker = data[at + 1]
        if marker == 0xFF:
            at += 1
            continue
        body, end = at + 4, at + 2 + (int64(data[at + 2]) << 8 | data[at + 3])
        if marker < 0xC0 or 0xD0 <= marker <= 0xD9 or end < body or end > data.size:
            return False
        size = end - body
        if marker == 0xE0 and size >= 12 and data[body] == 0x4A and data[body + 1] == 0x46 and data[body + 2] == 0x49:
            if data[body + 5] != 1:  # a revision of JFIF that libjpeg warns of
                return False
            jfif = jfif or (data[body + 3] == 0x46 and data[body + 4] == 0)
        elif marker == 0xE1 and size >= 14 and frame[ORIENTATION] == 1:
            frame[ORIENTATION] = _orientation(data, body, end)
        elif marker == 0xEE and size >= 12 and data[body] == 0x41 and data[body + 1] == 0x64:
            adobe = int64(data[body + 11])
        elif marker == 0xDB:
            while body + 65 <= end:
                if data[body] > 3:  # 16 bits
                    return False
                frame[QUANT + int64(data[body])] = body + 1
                body += 65
            if body != end:
                return False
        elif marker == 0xC4:
            while body + 17 <= end:
                kind, count = int64(data[body]), 0
                for i in range(16):
                    count += int64(data[body + 1 + i])
                if kind & 15 > 3 or kind >> 4 > 1 or count > 256 or body + 17 + count > end:
                    return False
                frame[(AC_CODES if kind >> 4 else DC_CODES) + (kind & 15)] = body + 1
                body += 17 + count
            if body != end:
                return False
        elif marker == 0xDD:
            if size != 2:
                return False
            frame[INTERVAL] = int64(data[body]) << 8 | data[body + 1]
        elif marker == 0xC0 or marker == 0xC1:
            if frame[COMPONENTS] or size < 9 or size != 6 + 3 * int64(data[body + 5]) or data[body] != 8:
                return False
            frame[COMPONENTS] = int64(data[body + 5])
            if frame[COMPONENTS] != 1 and frame[COMPONENTS] != 3:
                return False
            frame[HEIGHT] = int64(data[body + 1]) << 8 | data[body + 2]
            frame[WIDTH] = int64(data[body + 3]) << 8 | data[body + 4]
            for i in range(frame[COMPONENTS]):
                frame[ID + i] = data[body + 6 + 3 * i]
                frame[H + i] = int64(data[body + 7 + 3 * i]) >> 4
                frame[V + i] = int64(data[body + 7 + 3 * i]) & 15
                frame[TQ + i] = data[body + 8 + 3 * i]
                if not (1 <= frame[H + i] <= 4 and 1 <= frame[V + i] <= 4):
                    return False
        elif 0xC2 <= marker <= 0xCF:
            return False
        elif marker == 0xDA:
            n = frame[COMPONENTS]
            if n == 0 or size != 4 + 2 * n or data[body] != n:
                return False
            if data[end - 3] != 0 or data[end - 2] != 63 or data[end - 1] != 0:  # all of it in one scan
                return False
            for i in range(n):
                codes = int64(data[body + 2 + 2 * i])
                if data[body + 1 + 2 * i] != frame[ID + i] or codes >> 4 > 3 or codes & 15 > 3 or frame[TQ + i] > 3:
                    return False
                frame[DC + i], frame[AC + i] = codes >> 4, codes & 15
                if (
                    frame[QUANT + frame[TQ + i]] == 0
                    or frame[DC_CODES + (codes >> 4)] == 0
                    or frame[AC_CODES + (codes & 15)] == 0
                ):
                    return False
            frame[BEGIN] = end
            break
        at = end
    if frame[BEGIN] == 0 or frame[WIDTH] == 0 or frame[HEIGHT] == 0 or frame[INTERVAL] == 0:
        return False
    if frame[COMPONENTS] == 1:
        frame[H], frame[V] = 1, 1
    else:
        ids = frame[ID] == 1 and frame[ID + 1] == 2 and frame[ID + 2] == 3
        if not (jfif or adobe == 1 or (adobe < 0 and ids)):  # pixels may be RGB
            return False
        if frame[H + 1] != 1 or frame[H + 2] != 1 or frame[V + 1] != 1 or frame[V + 2] != 1:
            return False
        luma = frame[H] << 4 | frame[V]
        if luma != 0x11 and luma != 0x21 and luma != 0x22:
            return False
    frame[MCU_WIDTH], frame[MCU_HEIGHT] = 8 * frame[H], 8 * frame[V]
    across = -(-frame[WIDTH] // frame[MCU_WIDTH])
    return bool(across % frame[INTERVAL] == 0 and blocks_of(frame) * frame[INTERVAL] <= MOST_BLOCKS)


@compiled
def scaled(frame: Any, side: int) -> Any:
    """The frame of the picture that has `side` samples for eight: its size, its MCUs, and how chroma is sampled."""
    small = frame.copy()
    for i in (WIDTH, HEIGHT):
        small[i] = -(-frame[i] * side // 8)
    for i in (MCU_WIDTH, MCU_HEIGHT):
        small[i] = frame[i] * side // 8
    if side < 8:
        small[H], small[V] = 1, 1
    return small


@inlined
def _orientation(data: Any, at: int, end: int) -> int:
    """Of an APP1 segment, 1 where it has none. The rule is `decode`'s: IFD0, tag 0x0112 of one SHORT or LONG."""
    if not (data[at] == 0x45 and data[at + 1] == 0x78 and data[at + 2] == 0x69 and data[at + 3] == 0x66):
        return 1
    if data[at + 4] or data[at + 5]:
        return 1
    tiff = at + 6
    big = data[tiff] == 0x4D and data[tiff + 1] == 0x4D
    if not big and not (data[tiff] == 0x49 and data[tiff + 1] == 0x49):
        return 1
    ifd = tiff + _number(data, tiff + 4, 4, big)
    if ifd + 2 > end:
        return 1
    for entry in range(ifd + 2, min(ifd + 2 + 12 * _number(data, ifd, 2, big), end - 11), 12):
        kind = _number(data, entry + 2, 2, big)
        if (
            _number(data, entry, 2, big) == 0x0112
            and (kind == 3 or kind == 4)
            and _number(data, entry + 4, 4, big) == 1
        ):
            value = _number(data, entry + 8, 2 if kind == 3 else 4, big)
            return value if 1 <= value <= 8 else 1
    return 1


@inlined
def _number(data: Any, at: int, size: int, big: bool) -> int:
    value = 0
    for i in range(size):
        value = value << 8 | int64(data[at + (i if big else size - 1 - i)])
    return value


@inlined
def blocks_of(frame: Any) -> Any:
    """Of an MCU."""
    return frame[H] * frame[V] + frame[COMPONENTS] - 1
