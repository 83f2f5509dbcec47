"""Tiled baseline JPEGs -> samples of the tiles that a box touches, in compiled code without the GIL.

    header -> tables -> where the touched tiles lie -> Huffman codes -> coefficients -> inverse DCT -> planes

It does what libjpeg-turbo does with a splice (`splice`), bit for bit, without writing the splice and without touching
anything outside. It takes what `tile` leaves of photographs: 8 bits, Huffman, one scan, gray or YCbCr in 4:4:4, 4:2:2
or 4:2:0, with restarts. Whatever else it meets, damage above all, it leaves to the decoder that judges.

Tiles are independent: two are decoded at a time, so that one's table look-ups fill the other's waits.

Planes stand in columns: a plane's sample (x, y) is at `x * stride + y`.
"""

from typing import Any

import numpy as np

from .compiled import compiled, inlined, int64, uint64
from .huffman import load, skip
from .vectors import inverse_dct, inverse_dct2, inverse_dct4

# What the header says, by place in an array of int64.
# BEGIN: the scan's first byte. ORIENTATION: of EXIF, 1 to 8.
WIDTH, HEIGHT, MCU_WIDTH, MCU_HEIGHT, INTERVAL, COMPONENTS, BEGIN, ORIENTATION = range(8)
# Of each component. H and V: its blocks across and down an MCU.
H, V, _TQ, _DC, _AC, _ID = 8, 11, 14, 17, 20, 23
_QUANT, _DC_CODES, _AC_CODES = 26, 30, 34  # where each of four tables stands, 0 where there is none
HEADER = 38

# A table is looked up by LOOK bits. An entry has, in bytes: the bits that a code and its value take; 63 less the
# value's size; the code's length; the coefficients that it passes, _END at the end of a block. Above them, signed, is
# what is added to a value whose first bit is 0. An entry of 0: a long code.
LOOK = 9
_SIZE = 1 << LOOK
_END = 140
_NONE = 65 << 24 | 1  # a code that there is not passes more coefficients than a block has, and fewer than _END
_LAST, _OFFSET, _SYMBOLS = _SIZE, _SIZE + 17, _SIZE + 34  # behind it, for long codes
_TABLE = _SYMBOLS + 256

STRIDE = 72  # of a block's coefficients: a run beyond the 63rd writes to the eight behind it
_MOST_BLOCKS = 6 * 64  # of a tile: wider ones go the other way
_CHUNK = 1 << 15  # coefficients that are held at once, 64 KB: they stay in a core's own cache
PAD = 512  # bytes behind a tile's bits: one block takes less
_WORK = 6 * _TABLE + 64  # DC and AC tables of three components, and four quantisers of 64 int16
SCRATCH = _WORK + max(_CHUNK, 2 * _MOST_BLOCKS * STRIDE) // 4  # int64

# Row and column of each coefficient of the zigzag order (figure A.6).
ZIGZAG = sorted(((r, c) for r in range(8) for c in range(8)), key=lambda p: (sum(p), p[sum(p) % 2 == 0]))
_NATURAL = np.full(256, 64, np.uint8)  # where the coefficient stands in rows; 64 for what no block has
_NATURAL[:64] = [8 * row + column for row, column in ZIGZAG]


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
            jfif = jfif or (data[body + 3] == 0x46 and data[body + 4] == 0)
        elif marker == 0xE1 and size >= 14 and frame[ORIENTATION] == 1:
            frame[ORIENTATION] = _orientation(data, body, end)
        elif marker == 0xEE and size >= 12 and data[body] == 0x41 and data[body + 1] == 0x64:
            adobe = int64(data[body + 11])
        elif marker == 0xDB:
            while body + 65 <= end:
                if data[body] > 3:  # 16 bits
                    return False
                frame[_QUANT + int64(data[body])] = body + 1
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
                frame[(_AC_CODES if kind >> 4 else _DC_CODES) + (kind & 15)] = body + 1
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
                frame[_ID + i] = data[body + 6 + 3 * i]
                frame[H + i] = int64(data[body + 7 + 3 * i]) >> 4
                frame[V + i] = int64(data[body + 7 + 3 * i]) & 15
                frame[_TQ + i] = data[body + 8 + 3 * i]
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
                if data[body + 1 + 2 * i] != frame[_ID + i] or codes >> 4 > 3 or codes & 15 > 3 or frame[_TQ + i] > 3:
                    return False
                frame[_DC + i], frame[_AC + i] = codes >> 4, codes & 15
                if (
                    frame[_QUANT + frame[_TQ + i]] == 0
                    or frame[_DC_CODES + (codes >> 4)] == 0
                    or frame[_AC_CODES + (codes & 15)] == 0
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
        ids = frame[_ID] == 1 and frame[_ID + 1] == 2 and frame[_ID + 2] == 3
        if not (jfif or adobe == 1 or (adobe < 0 and ids)):  # pixels may be RGB
            return False
        if frame[H + 1] != 1 or frame[H + 2] != 1 or frame[V + 1] != 1 or frame[V + 2] != 1:
            return False
        luma = frame[H] << 4 | frame[V]
        if luma != 0x11 and luma != 0x21 and luma != 0x22:
            return False
    frame[MCU_WIDTH], frame[MCU_HEIGHT] = 8 * frame[H], 8 * frame[V]
    across = -(-frame[WIDTH] // frame[MCU_WIDTH])
    return bool(across % frame[INTERVAL] == 0 and _blocks(frame) * frame[INTERVAL] <= _MOST_BLOCKS)


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
def _blocks(frame: Any) -> Any:
    """Of an MCU."""
    return frame[H] * frame[V] + frame[COMPONENTS] - 1


@compiled
def _fill_table(data: Any, at: int, table: Any, ac: bool) -> bool:
    """A table [_TABLE] from the 16 counts and the symbols at `data[at]`. False where they make no code."""
    table[:_SIZE] = 0
    code, first, symbols = 0, 0, at + 16
    for length in range(1, 17):
        count = int64(data[at + length - 1])
        if count and code + count >= 1 << length:  # a code of ones alone is no code
            return False
        table[_LAST + length] = code + count - 1 if count else -1
        table[_OFFSET + length] = first - code
        for i in range(count):
            symbol = int64(data[symbols + first + i])
            if symbol > 15 and not ac:
                return False
            entry = _entry(symbol, length, ac)
            table[_SYMBOLS + first + i] = entry
            if length <= LOOK:
                begin = (code + i) << (LOOK - length)
                for place in range(begin, begin + (1 << (LOOK - length))):
                    table[place] = entry
        first += count
        code = (code + count) << 1
    return True


@inlined
def _entry(symbol: int, length: int, ac: bool) -> Any:
    """_NONE for a symbol that no 8-bit baseline image has."""
    size, passed = symbol & 15, 1
    if ac:
        passed = _END if symbol == 0 else (symbol >> 4) + 1
        if size > 10 or (size == 0 and symbol != 0 and symbol != 0xF0):
            return int64(_NONE)
    elif symbol > 11:
        return int64(_NONE)
    return int64((length + size) | (63 - size) << 8 | length << 16 | passed << 24 | (1 - (1 << size)) << 32)


@inlined
def _long(held: Any, tables: Any, table: Any) -> Any:
    """The entry of a code of more than LOOK bits at the head of `held`."""
    base = int64(table)
    for length in range(LOOK + 1, 17):
        code = int64(held >> uint64(64 - length))
        if code <= tables[base + _LAST + length]:
            return uint64(tables[base + _SYMBOLS + ((tables[base + _OFFSET + length] + code) & 255)])
    return uint64(_NONE)


@inlined
def _value(held: Any, entry: Any) -> Any:
    """The value behind the code at the head of `held` (table F.1)."""
    bits = held << ((entry >> uint64(16)) & uint64(63))
    missing = int64(entry) >> 32 if int64(bits) >= 0 else 0
    return int64((bits >> uint64(1)) >> ((entry >> uint64(8)) & uint64(63))) + missing


@compiled
def _coefficients(
    bits: Any, bounds: Any, first: int, stop: int, tables: Any, rows: Any, natural: Any, out: Any
) -> bool:
    """The coefficients of tiles [first, stop), two tiles at a time; DC values are differences still. False: damaged.

    `rows[b]` is where block b's DC table begins in `tables`; its AC table is behind it. Whoever finds no tile left does
    its last one again until the other is done. No read leaves `bits`: a block takes less than PAD, and one that began
    in its tile is checked to have ended there.
    """
    start, zero, one, stride = uint64(0) - uint64(1), uint64(0), uint64(1), uint64(STRIDE)
    count, per_tile = uint64(rows.size), uint64(rows.size * STRIDE)
    out[: (stop - first) * rows.size * STRIDE] = 0
    done, following = 0, first + 2
    tile, tile2 = first, min(first + 1, stop - 1)
    new, new2 = 1, tile2 - tile  # 0 while a tile is done again
    table = table2 = uint64(rows[0])
    block, block2, k, k2 = zero, zero, start, start
    position, end, base = uint64(bounds[tile]) << uint64(3), uint64(bounds[tile + 1]) << uint64(3), zero
    position2, end2 = uint64(bounds[tile2]) << uint64(3), uint64(bounds[tile2 + 1]) << uint64(3)
    base2 = uint64(tile2 - first) * per_tile
    while done < stop - first:
        held = load(bits, position >> uint64(3)) << (position & uint64(7))
        held2 = load(bits, position2 >> uint64(3)) << (position2 & uint64(7))
        entry = uint64(tables[table + (held >> uint64(64 - LOOK))])
        entry2 = uint64(tables[table2 + (held2 >> uint64(64 - LOOK))])
        if entry == zero:
            entry = _long(held, tables, table)
        if entry2 == zero:
            entry2 = _long(held2, tables, table2)
        position += entry & uint64(255)
        position2 += entry2 & uint64(255)
        k += (entry >> uint64(24)) & uint64(255)
        k2 += (entry2 >> uint64(24)) & uint64(255)
        out[base + uint64(natural[k])] = _value(held, entry)
        out[base2 + uint64(natural[k2])] = _value(held2, entry2)
        if k == zero:
            table += uint64(_TABLE)
        elif k >= uint64(63):
            if (k != uint64(63) and k < uint64(_END)) or position > end:
                return False
            k, block, base = start, block + one, base + stride
            if block == count:
                if position + uint64(8) <= end:  # more bits than padding
                    return False
                done += new
                if following < stop:
                    tile, following = following, following + 1
                else:
                    new = 0
                position, end = uint64(bounds[tile]) << uint64(3), uint64(bounds[tile + 1]) << uint64(3)
                block, base = zero, uint64(tile - first) * per_tile
            table = uint64(rows[block])
        if k2 == zero:
            table2 += uint64(_TABLE)
        elif k2 >= uint64(63):
            if (k2 != uint64(63) and k2 < uint64(_END)) or position2 > end2:
                return False
            k2, block2, base2 = start, block2 + one, base2 + stride
            if block2 == count:
                if position2 + uint64(8) <= end2:
                    return False
                done += new2
                if following < stop:
                    tile2, following = following, following + 1
                else:
                    new2 = 0
                position2, end2 = uint64(bounds[tile2]) << uint64(3), uint64(bounds[tile2 + 1]) << uint64(3)
                block2, base2 = zero, uint64(tile2 - first) * per_tile
            table2 = uint64(rows[block2])
    return True


@compiled
def _collect(data: Any, frame: Any, left: int, right: int, top: int, bottom: int, clean: Any, bounds: Any) -> bool:
    """Copy the bits of tiles [left, right) of rows [top, bottom) to `clean`, without stuffing; False: damaged.

    Tile i of them lies in clean[bounds[i]:bounds[i + 1]].
    """
    tiles = -(-frame[WIDTH] // frame[MCU_WIDTH]) // frame[INTERVAL]
    total = tiles * -(-frame[HEIGHT] // frame[MCU_HEIGHT])
    at, size, n, found = int64(frame[BEGIN]), int64(data.size), 0, 0
    bounds[0], restart = 0, False
    for tile in range((bottom - 1) * tiles + right):
        column = tile % tiles
        wanted = tile >= top * tiles and left <= column < right
        while True:
            stop = skip(data, at)
            if wanted:
                source, target = data[at:stop], clean[n : n + stop - at]
                for i in range(stop - at):
                    target[i] = source[i]
                n += stop - at
            at = stop
            if at + 2 > size:
                return False
            if data[at + 1]:
                break
            if wanted:
                clean[n] = 255
                n += 1
            at += 2
        if wanted:
            found += 1
            bounds[found] = n
        restart = 0xD0 <= data[at + 1] <= 0xD7
        if restart != (tile + 1 < total) or (restart and data[at + 1] & 7 != tile & 7):
            return False
        at += 2
    if at + 2 > size and restart:  # as `splice` does: the file ends with a tile
        return False
    clean[n : n + PAD] = 0
    return True


@compiled
def decode_tiles(
    data: Any,
    frame: Any,
    side: int,
    left: int,
    right: int,
    top: int,
    bottom: int,
    clean: Any,
    bounds: Any,
    work: Any,
    out: Any,
) -> bool:
    """Decode tiles [left, right) of rows [top, bottom) to planes in `out`, one after the other. False: damaged.

    A block of luma becomes `side` x `side` samples: 8, or 4, 2 or 1 by DCT scaling. As libjpeg does, it gives chroma of
    4:2:0 twice as many then. A component's plane has `(right - left) * INTERVAL * h * side` columns of
    `(bottom - top) * v * side` samples. `clean` [data.size + PAD] uint8, `bounds` [tiles + 1] int64 and `work`
    [SCRATCH] int64 are scratch.
    """
    per_tile, across = frame[INTERVAL], right - left
    sides = np.full(3, side, np.int64)
    if side < 8 and frame[H] == 2:
        sides[1:] = 2 * side
    if not _collect(data, frame, left, right, top, bottom, clean, bounds):
        return False
    quantisers = work[6 * _TABLE : _WORK].view(np.int16)  # [4, 64], in rows
    coefficients = work[_WORK:].view(np.int16)
    rows = np.empty(_blocks(frame) * per_tile, np.int64)
    places = np.empty((rows.size, 3), np.int64)  # of each block of a tile: component, x, y
    origins = np.zeros(4, np.int64)
    for c in range(frame[COMPONENTS]):
        slot = 2 * _TABLE * c
        for other in range(c):  # chroma's two components mostly share their tables
            if frame[_DC + other] == frame[_DC + c] and frame[_AC + other] == frame[_AC + c]:
                slot = 2 * _TABLE * other
        if slot == 2 * _TABLE * c and not (
            _fill_table(data, frame[_DC_CODES + frame[_DC + c]], work[slot : slot + _TABLE], False)
            and _fill_table(data, frame[_AC_CODES + frame[_AC + c]], work[slot + _TABLE : slot + 2 * _TABLE], True)
        ):
            return False
        for i in range(64):
            quantisers[64 * c + _NATURAL[i]] = data[frame[_QUANT + frame[_TQ + c]] + i]
        origins[c + 1] = origins[c] + across * per_tile * frame[H + c] * (bottom - top) * frame[V + c] * sides[c] ** 2
        block = frame[H] * frame[V] + c - 1 if c else 0
        for v in range(frame[V + c]):
            for h in range(frame[H + c]):
                for mcu in range(per_tile):
                    at = mcu * _blocks(frame) + block
                    rows[at] = slot
                    places[at, 0], places[at, 1], places[at, 2] = c, (mcu * frame[H + c] + h) * sides[c], v * sides[c]
                block += 1
    total, chunk = (bottom - top) * across, max(2, _CHUNK // (rows.size * STRIDE))
    previous = np.empty(3, np.int64)
    for first in range(0, total, chunk):
        stop = min(first + chunk, total)
        if not _coefficients(clean, bounds, first, stop, work, rows, _NATURAL, coefficients):
            return False
        at = 0
        for tile in range(first, stop):
            previous[:] = 0
            column, row = tile % across, tile // across
            for block in range(rows.size):
                c = places[block, 0]
                previous[c] += coefficients[at]
                coefficients[at] = previous[c]
                stride = (bottom - top) * frame[V + c] * sides[c]
                x = column * per_tile * frame[H + c] * sides[c] + places[block, 1]
                to = origins[c] + x * stride + row * frame[V + c] * sides[c] + places[block, 2]
                if sides[c] == 8:
                    inverse_dct(coefficients, at, quantisers, 64 * c, out, to, stride)
                elif sides[c] == 4:
                    inverse_dct4(coefficients, at, quantisers, 64 * c, out, to, stride)
                elif sides[c] == 2:
                    inverse_dct2(coefficients, at, quantisers, 64 * c, out, to, stride)
                else:
                    dc = np.int16(coefficients[at] * quantisers[64 * c])
                    out[to] = min(max(((dc + 4) >> 3) + 128, 0), 255)
                at += STRIDE
    return True
