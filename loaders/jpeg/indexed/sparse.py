"""Blocks at known positions -> samples of a scaled picture, from the coefficients that count and no others.

The samples are those of `baseline.decode_tiles`, bit for bit. At 1/8 a sample of luma is a block's mean; chroma of
4:2:0 has 2 x 2 samples for a block then, of all coefficients, unless only low frequencies count. What is not decoded is
not checked either.
"""

from typing import Any

import numpy as np

from fastimg.loaders.jpeg.decoding.baseline import SCRATCH, WORK, fill_tables, lay_out
from fastimg.loaders.jpeg.decoding.dct import inverse_dct2, low_samples
from fastimg.loaders.jpeg.decoding.entropy.lookups import END, TABLE, code_at, value_of
from fastimg.loaders.jpeg.decoding.entropy.symbols import NATURAL, PAD, STRIDE
from fastimg.loaders.jpeg.decoding.memory import bits_at, copy_wide
from fastimg.loaders.jpeg.decoding.vectors import WIDE
from fastimg.loaders.runtime.compiled import compiled, inlined, int64, uint64

_ONES, _HIGHS = 0x0101010101010101, 0x8080808080808080


@inlined
def _stuffed(word: Any) -> bool:
    """Whether one of eight bytes is 255."""
    return bool((~word - uint64(_ONES)) & word & uint64(_HIGHS))


@inlined
def _first(nbytes: Any) -> Any:
    """A mask of the first bytes of a word, 0 to 8 or more."""
    half = uint64(32) - (min(nbytes, uint64(8)) << uint64(2))
    return ~uint64(0) << half << half


@compiled
def _clean(data: Any, begin: int, end: int, room: Any) -> None:
    """Copy data[begin:end], or as much of it as fits, to `room` without stuffing, and zeros after it."""
    n = 0
    at = begin
    while at < end and n < room.size - 8:
        room[n] = data[at]
        at += 2 if data[at] == 255 else 1
        n += 1
    room[n : n + 8] = 0


@compiled
def _is_marked(data: Any, at: int, code: int) -> bool:
    """Whether a marker is at a byte."""
    return bool(at >= 0 and at + 2 <= data.size and data[at] == 255 and data[at + 1] == code)


@compiled
def are_marked(data: Any, headers: Any, regions: Any, positions: Any, places: Any) -> bool:
    """Whether the region's tiles lie between the markers that belong there."""
    header = headers[0]
    region = regions[0]
    tiles = -(-header.width // header.mcu_width) // header.interval
    total = tiles * -(-header.height // header.mcu_height)
    across = region.right - region.left
    last = positions.shape[1] - 1
    for i in range(positions.shape[0]):
        tile = (region.top + i // across) * tiles + region.left + i % across
        place = places[i // across]
        begin, end = place + (int64(positions[i, 0]) >> 3), place + (int64(positions[i, last]) >> 3)
        if tile and not _is_marked(data, begin - 2, 0xD0 | ((tile - 1) & 7)):
            return False
        if not _is_marked(data, end, 0xD9 if tile + 1 == total else 0xD0 | (tile & 7)):
            return False
    return True


@compiled
def collect_known(data: Any, positions: Any, places: Any, across: int, clean: Any, bounds: Any) -> None:
    """What `entropy.collect` does, for tiles whose positions are known."""
    source, target = uint64(data.ctypes.data), uint64(clean.ctypes.data)
    wide = uint64(WIDE)
    n = uint64(0)
    last = positions.shape[1] - 1
    for i in range(positions.shape[0]):
        place = places[i // across]
        at, end = uint64(place + (int64(positions[i, 0]) >> 3)), uint64(place + (int64(positions[i, last]) >> 3))
        bounds[i] = int64(n)
        while at < end:
            ahead = copy_wide(source + at, target + n)
            taken = min(ahead, end - at)
            at += taken
            n += taken
            if ahead != wide and at < end:  # a stuffed byte
                clean[n] = 255
                n += uint64(1)
                at += uint64(2)
    bounds[positions.shape[0]] = int64(n)
    clean[int64(n) : int64(n) + PAD] = 0


@compiled
def decode_sparse(data: Any, headers: Any, regions: Any, positions: Any, places: Any, work: Any, out: Any) -> bool:
    """Decode a region at 1/8, or at 1/4 by low frequencies, to planes in `out`, laid out as by `decode_tiles`.

    False if it is damaged. `data` ends with PAD bytes that do not count; `work` [SCRATCH] int64 is scratch.
    """
    region = regions[0]
    if not fill_tables(data, headers, work, False):
        return False
    quantisers = work[6 * TABLE : WORK].view(np.int16)
    values = work[WORK : WORK + STRIDE].view(np.int16)
    room = work[WORK + STRIDE : SCRATCH].view(np.uint8)
    rows, layout, sides, strides, rightwards, downwards = lay_out(headers, regions)
    source, cleaned = uint64(data.ctypes.data), uint64(room.ctypes.data)
    across = region.right - region.left
    byte, one = uint64(255), uint64(1)
    tables = np.empty(rows.size, np.uint64)
    most = np.empty(rows.size, np.uint64)  # bytes of a block that count: a DC code and its value take 27 bits, AC's 26
    for block in range(rows.size):
        tables[block] = uint64(work.ctypes.data) + (uint64(rows[block]) << uint64(3))
        most[block] = 5 if sides[layout[block, 0]] == 1 else 18 if region.low else PAD
    dcs = np.empty(3, np.int64)
    begins = np.empty(rows.size, np.int64)
    fits = True
    for tile in range(positions.shape[0]):
        row, column = tile // across, tile % across
        shift = uint64(8 * places[row])
        for block in range(rows.size):
            c = layout[block, 0]
            begins[block] = layout[block, 1] + column * rightwards[c] + row * downwards[c]
        dcs[:] = 0
        behind = uint64(positions[tile, 0]) + shift
        for block in range(rows.size):
            begin = behind
            behind = uint64(positions[tile, block + 1]) + shift
            address = source + (begin >> uint64(3))
            word = bits_at(address)
            nbytes = min(((behind + uint64(7)) >> uint64(3)) - (begin >> uint64(3)), most[block])
            c = layout[block, 0]
            stuffed = _stuffed(word & _first(nbytes))
            if sides[c] > 1:
                rest = bits_at(address + uint64(8)) & _first(max(nbytes, uint64(8)) - uint64(8))
                stuffed |= _stuffed(rest)
                ahead, stop = address + uint64(16), address + nbytes
                while ahead < stop:
                    stuffed |= _stuffed(bits_at(ahead))
                    ahead += uint64(8)
            if stuffed:
                _clean(data, int64(begin >> uint64(3)), int64((behind + uint64(7)) >> uint64(3)), room)
                address = cleaned
                word = bits_at(address)
            held = word << (begin & uint64(7))
            code = code_at(held, tables[block])
            fits &= (code >> uint64(24)) & byte == one
            dcs[c] += value_of(held, code)
            dc = int64(np.int16(dcs[c]))
            to = begins[block]
            if sides[c] == 1:
                mean = (dc * quantisers[64 * c] + 4) >> 3
                fits &= -512 <= mean < 512
                out[to] = min(max(mean + 128, 0), 255)
                continue
            position = (address << uint64(3)) + (begin & uint64(7)) + (code & byte)
            table = tables[block] + uint64(8 * TABLE)
            if region.low:
                wide, tall, both, sound = _lowest(position, table)
                fits &= sound
                low_samples(dc, wide, tall, both, quantisers, 64 * c, out, to, strides[c])
            else:
                fits &= _all(position, table, values)
                values[0] = dc
                fits &= inverse_dct2(values, 0, quantisers, 64 * c, out, to, strides[c])
    return fits


@inlined
def _lowest(position: Any, table: Any) -> Any:
    """The coefficients [0, 1], [1, 0] and [1, 1] of a block whose AC codes begin here, and whether it is sound."""
    byte = uint64(255)
    k = uint64(0)
    wide, tall, both = 0, 0, 0
    for _ in range(4):  # always, and without branches: how many symbols count cannot be predicted
        held = bits_at(position >> uint64(3)) << (position & uint64(7))
        code = code_at(held, table)
        position += code & byte
        value = value_of(held, code)
        counts = k < uint64(4)
        k += ((code >> uint64(24)) & byte) * uint64(counts)
        wide += value * int64(counts & (k == uint64(1)))
        tall += value * int64(counts & (k == uint64(2)))
        both += value * int64(counts & (k == uint64(4)))
    return wide, tall, both, not (k > uint64(63) and k < uint64(END))


@compiled
def _all(position: Any, table: Any, values: Any) -> bool:
    """Fill a block's AC coefficients, values[:64] int16 in rows."""
    values[:] = 0
    byte = uint64(255)
    k = uint64(0)
    while k < uint64(63):
        held = bits_at(position >> uint64(3)) << (position & uint64(7))
        code = code_at(held, table)
        position += code & byte
        k += (code >> uint64(24)) & byte
        values[NATURAL[k]] = value_of(held, code)
    return bool(k == uint64(63) or k >= uint64(END))
