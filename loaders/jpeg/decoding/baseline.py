"""Tiled baseline JPEGs -> samples of the tiles that a box touches, in compiled code without the GIL.

    frame: header -> region: the touched tiles -> entropy: tables, coefficients -> vectors: inverse DCT -> planes

The result equals libjpeg-turbo's for a splice (`splice`), bit for bit, without writing the splice or reading anything
outside it. It supports photographs as `tile` writes them: 8 bits, Huffman codes, one scan, gray or YCbCr in 4:4:4,
4:2:2 or 4:2:0, with restarts. Everything else, above all damage, is left to the general decoder.

Planes are stored in columns: a plane's sample (x, y) is at `x * stride + y`.
"""

from typing import Any

import numpy as np

from fastimg.loaders.runtime.compiled import compiled

from .entropy import NATURAL, STRIDE, TABLE, coefficients, collect, fill_table
from .frame import MAX_BLOCKS, mcu_blocks
from .vectors import inverse_dct, inverse_dct2, inverse_dct4

_CHUNK = 1 << 15  # coefficients that are decoded at once, 64 KB: they stay in a core's own cache
_WORK = 6 * TABLE + 64  # DC and AC tables of three components, and four quantisers of 64 int16
SCRATCH = _WORK + max(_CHUNK, 2 * MAX_BLOCKS * STRIDE) // 4  # int64


@compiled
def decode_tiles(data: Any, headers: Any, regions: Any, clean: Any, bounds: Any, work: Any, out: Any) -> bool:
    """Decode a region's tiles to planes in `out`, one after the other. False if they are damaged.

    A block of luma becomes `side` x `side` samples. Like libjpeg, chroma of 4:2:0 gets twice as many if `side` is less
    than 8. A component's plane has `(right - left) * interval * h * side` columns of `(bottom - top) * v *
    side` samples. `clean` [data.size + PAD] uint8, `bounds` [tiles + 1] int64 and `work` [SCRATCH] int64 are scratch.
    """
    header = headers[0]
    region = regions[0]
    per_tile = header.interval
    across = region.right - region.left
    down = region.bottom - region.top
    per_mcu = mcu_blocks(headers)
    sides = np.full(3, region.side, np.int64)
    if region.side < 8 and header.h[0] == 2:
        sides[1:] = 2 * region.side
    if not collect(data, headers, regions, clean, bounds):
        return False
    quantisers = work[6 * TABLE : _WORK].view(np.int16)  # [4, 64], in rows
    values = work[_WORK:].view(np.int16)
    rows = np.empty(per_mcu * per_tile, np.int64)
    places = np.empty((rows.size, 3), np.int64)  # of each block of a tile: component, x, y
    origins = np.zeros(4, np.int64)
    strides = np.zeros(3, np.int64)
    for c in range(header.components):
        h, v = header.h[c], header.v[c]
        dc, ac = header.dc[c], header.ac[c]
        slot = 2 * TABLE * c
        for other in range(c):  # the two components of chroma usually share their tables
            if header.dc[other] == dc and header.ac[other] == ac:
                slot = 2 * TABLE * other
        if slot == 2 * TABLE * c and not (
            fill_table(data, header.dc_codes[dc], work[slot : slot + TABLE], False)
            and fill_table(data, header.ac_codes[ac], work[slot + TABLE : slot + 2 * TABLE], True)
        ):
            return False
        quantiser = header.quantisers[header.quantiser[c]]
        for i in range(64):
            quantisers[64 * c + NATURAL[i]] = data[quantiser + i]
        strides[c] = down * v * sides[c]
        origins[c + 1] = origins[c] + across * per_tile * h * sides[c] * strides[c]
        block = header.h[0] * header.v[0] + c - 1 if c else 0
        for y in range(v):
            for x in range(h):
                for mcu in range(per_tile):
                    at = mcu * per_mcu + block
                    rows[at] = slot
                    places[at, 0], places[at, 1], places[at, 2] = c, (mcu * h + x) * sides[c], y * sides[c]
                block += 1
    fits = True
    total = down * across
    chunk = max(2, _CHUNK // (rows.size * STRIDE))
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
                stride = strides[c]
                x = column * per_tile * header.h[c] * sides[c] + places[block, 1]
                to = origins[c] + x * stride + row * header.v[c] * sides[c] + places[block, 2]
                if sides[c] == 8:
                    fits &= inverse_dct(values, at, quantisers, 64 * c, out, to, stride)
                elif sides[c] == 4:
                    fits &= inverse_dct4(values, at, quantisers, 64 * c, out, to, stride)
                elif sides[c] == 2:
                    fits &= inverse_dct2(values, at, quantisers, 64 * c, out, to, stride)
                else:
                    mean = (values[at] * quantisers[64 * c] + 4) >> 3
                    fits &= -512 <= mean < 512  # the range of libjpeg's table of limits
                    out[to] = min(max(mean + 128, 0), 255)
                at += STRIDE
    return fits
