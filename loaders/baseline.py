"""Tiled baseline JPEGs -> samples of the tiles that a box touches, in compiled code without the GIL.

    frame: header -> entropy: where the touched tiles lie -> tables -> coefficients -> vectors: inverse DCT -> planes

It does what libjpeg-turbo does with a splice (`splice`), bit for bit, without writing the splice and without touching
anything outside. It takes what `tile` leaves of photographs: 8 bits, Huffman, one scan, gray or YCbCr in 4:4:4, 4:2:2
or 4:2:0, with restarts. Whatever else it meets, damage above all, it leaves to the decoder that judges.

Planes stand in columns: a plane's sample (x, y) is at `x * stride + y`.
"""

from typing import Any

import numpy as np

from .compiled import compiled
from .entropy import NATURAL, STRIDE, TABLE, coefficients, collect, fill_table
from .frame import AC, AC_CODES, COMPONENTS, DC, DC_CODES, INTERVAL, MOST_BLOCKS, QUANT, TQ, H, V, blocks_of
from .vectors import inverse_dct, inverse_dct2, inverse_dct4

_CHUNK = 1 << 15  # coefficients that are held at once, 64 KB: they stay in a core's own cache
_WORK = 6 * TABLE + 64  # DC and AC tables of three components, and four quantisers of 64 int16
SCRATCH = _WORK + max(_CHUNK, 2 * MOST_BLOCKS * STRIDE) // 4  # int64


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
    if not collect(data, frame, left, right, top, bottom, clean, bounds):
        return False
    quantisers = work[6 * TABLE : _WORK].view(np.int16)  # [4, 64], in rows
    values = work[_WORK:].view(np.int16)
    rows = np.empty(blocks_of(frame) * per_tile, np.int64)
    places = np.empty((rows.size, 3), np.int64)  # of each block of a tile: component, x, y
    origins = np.zeros(4, np.int64)
    for c in range(frame[COMPONENTS]):
        slot = 2 * TABLE * c
        for other in range(c):  # chroma's two components mostly share their tables
            if frame[DC + other] == frame[DC + c] and frame[AC + other] == frame[AC + c]:
                slot = 2 * TABLE * other
        if slot == 2 * TABLE * c and not (
            fill_table(data, frame[DC_CODES + frame[DC + c]], work[slot : slot + TABLE], False)
            and fill_table(data, frame[AC_CODES + frame[AC + c]], work[slot + TABLE : slot + 2 * TABLE], True)
        ):
            return False
        for i in range(64):
            quantisers[64 * c + NATURAL[i]] = data[frame[QUANT + frame[TQ + c]] + i]
        origins[c + 1] = origins[c] + across * per_tile * frame[H + c] * (bottom - top) * frame[V + c] * sides[c] ** 2
        block = frame[H] * frame[V] + c - 1 if c else 0
        for v in range(frame[V + c]):
            for h in range(frame[H + c]):
                for mcu in range(per_tile):
                    at = mcu * blocks_of(frame) + block
                    rows[at] = slot
                    places[at, 0], places[at, 1], places[at, 2] = c, (mcu * frame[H + c] + h) * sides[c], v * sides[c]
                block += 1
    fits = True
    total, chunk = (bottom - top) * across, max(2, _CHUNK // (rows.size * STRIDE))
    previous = np.empty(3, np.int64)
    for first in range(0, total, chunk):
        stop = min(first + chunk, total)
        if not coefficients(clean, bounds, first, stop, work, rows, NATURAL, values):
            return False
        at = 0
        for tile in range(first, stop):
            previous[:] = 0
            column, row = tile % across, tile // across
            for block in range(rows.size):
                c = places[block, 0]
                previous[c] += values[at]
                values[at] = previous[c]
                stride = (bottom - top) * frame[V + c] * sides[c]
                x = column * per_tile * frame[H + c] * sides[c] + places[block, 1]
                to = origins[c] + x * stride + row * frame[V + c] * sides[c] + places[block, 2]
                if sides[c] == 8:
                    fits &= inverse_dct(values, at, quantisers, 64 * c, out, to, stride)
                elif sides[c] == 4:
                    fits &= inverse_dct4(values, at, quantisers, 64 * c, out, to, stride)
                elif sides[c] == 2:
                    fits &= inverse_dct2(values, at, quantisers, 64 * c, out, to, stride)
                else:
                    mean = (values[at] * quantisers[64 * c] + 4) >> 3
                    fits &= -512 <= mean < 512  # what libjpeg's table of limits is made for
                    out[to] = min(max(mean + 128, 0), 255)
                at += STRIDE
    return fits
