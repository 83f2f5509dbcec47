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
from .region import tiles_of_all
from .vectors import WIDE, inverse_dct, inverse_dct2, inverse_dct4

_CHUNK = 1 << 15  # coefficients that are decoded at once, 64 KB: they stay in a core's own cache
_WORK = 6 * TABLE + 64  # DC and AC tables of three components, and four quantisers of 64 int16
SCRATCH = _WORK + max(_CHUNK, 2 * MAX_BLOCKS * STRIDE) // 4  # int64


@compiled
def plane_bytes(region: Any) -> int:
    """Room for a region's planes, in whole cache lines."""
    tiles = (region.right - region.left) * (region.bottom - region.top)
    return int((3 * tiles * region.tile_width * region.tile_height + 2 * WIDE + 63) // 64 * 64)


@compiled
def decode_tiles(data: Any, headers: Any, regions: Any, clean: Any, bounds: Any, work: Any, out: Any) -> bool:
    """Decode the tiles of regions, which differ in `side`, to planes in `out`. False if they are damaged.

    Every tile of the rectangle around all regions is read once. A region's planes begin `plane_bytes` behind those of
    the one before, one after the other. A block of luma becomes `side` x `side` samples. Like libjpeg, chroma of 4:2:0
    gets twice as many if `side` is less than 8. A component's plane has `(right - left) * interval * h * side` columns
    of `(bottom - top) * v * side` samples. `clean` [data.size + PAD] uint8, `bounds` [tiles + 1] int64 and `work`
    [SCRATCH] int64 are scratch.
    """
    header = headers[0]
    per_tile = header.interval
    left, right, top, bottom = tiles_of_all(regions)
    across = right - left
    per_mcu = mcu_blocks(headers)
    if not collect(data, headers, regions, clean, bounds):
        return False
    quantisers = work[6 * TABLE : _WORK].view(np.int16)  # [4, 64], in rows
    values = work[_WORK:].view(np.int16)
    rows = np.empty(per_mcu * per_tile, np.int64)
    places = np.empty((rows.size, 3), np.int64)  # of each block of a tile: component, x, y in blocks
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
        block = header.h[0] * header.v[0] + c - 1 if c else 0
        for y in range(v):
            for x in range(h):
                for mcu in range(per_tile):
                    at = mcu * per_mcu + block
                    rows[at] = slot
                    places[at, 0], places[at, 1], places[at, 2] = c, mcu * h + x, y
                block += 1
    planes = np.empty((regions.size, 3, 3), np.int64)
    lay_out(headers, regions, planes)
    fits = True
    total = (bottom - top) * across
    chunk = max(2, _CHUNK // (rows.size * STRIDE))
    previous = np.empty(3, np.int64)
    for first in range(0, total, chunk):
        stop = min(first + chunk, total)
        if not coefficients(clean, bounds, first, stop, work, rows, NATURAL, values):
            return False
        for tile in range(first, stop):
            begin = (tile - first) * rows.size * STRIDE
            previous[:] = 0
            for block in range(rows.size):
                at = begin + block * STRIDE
                previous[places[block, 0]] += values[at]
                values[at] = previous[places[block, 0]]
            column, row = left + tile % across, top + tile // across
            for i in range(regions.size):
                region = regions[i]
                if region.left <= column < region.right and region.top <= row < region.bottom:
                    place = (column - region.left, row - region.top)
                    fits &= transform(headers, places, place, planes[i], values, begin, quantisers, out)
    return fits


@compiled
def lay_out(headers: Any, regions: Any, planes: Any) -> None:
    """Fill `planes` [region, component] with the plane's place in memory, its stride and its blocks' side."""
    header = headers[0]
    begin = 0
    for i in range(regions.size):
        region = regions[i]
        place = begin
        for c in range(header.components):
            side = 2 * region.side if c and region.side < 8 and header.h[0] == 2 else region.side
            stride = (region.bottom - region.top) * header.v[c] * side
            planes[i, c, 0], planes[i, c, 1], planes[i, c, 2] = place, stride, side
            place += (region.right - region.left) * header.interval * header.h[c] * side * stride
        begin += plane_bytes(region)


@compiled
def transform(
    headers: Any, places: Any, tile: Any, planes: Any, values: Any, begin: int, quantisers: Any, out: Any
) -> bool:
    """The samples of a tile, at (column, row) of a region, from its coefficients `values[begin:]`.

    False where numbers overflow.
    """
    header = headers[0]
    at = begin
    fits = True
    for block in range(len(places)):
        c = places[block, 0]
        stride = planes[c, 1]
        side = planes[c, 2]
        x = (tile[0] * header.interval * header.h[c] + places[block, 1]) * side
        to = planes[c, 0] + x * stride + (tile[1] * header.v[c] + places[block, 2]) * side
        if side == 8:
            fits &= inverse_dct(values, at, quantisers, 64 * c, out, to, stride)
        elif side == 4:
            fits &= inverse_dct4(values, at, quantisers, 64 * c, out, to, stride)
        elif side == 2:
            fits &= inverse_dct2(values, at, quantisers, 64 * c, out, to, stride)
        else:
            mean = (values[at] * quantisers[64 * c] + 4) >> 3
            fits &= -512 <= mean < 512  # the range of libjpeg's table of limits
            out[to] = min(max(mean + 128, 0), 255)
        at += STRIDE
    return fits
