"""Tiled baseline JPEGs -> samples of the tiles that a box touches, in compiled code without the GIL.

    frame: header -> region: the touched tiles -> lookups: tables -> entropy: coefficients
        -> dct: samples, in planes

The result equals libjpeg-turbo's for a splice (`splice`), bit for bit, without writing the splice or reading anything
outside it. It supports photographs as `tile` writes them: 8 bits, Huffman codes, one scan, gray or YCbCr in 4:4:4,
4:2:2 or 4:2:0, with restarts. Everything else, above all damage, is left to the general decoder.

Planes are stored in columns: a plane's sample (x, y) is at `x * stride + y`.
"""

from typing import Any

import numpy as np

from fastimg.loaders.runtime.compiled import compiled, inlined

from .dct import BLOCKS, inverse_dct, inverse_dct2, inverse_dct4, low_dct2
from .entropy.lookups import TABLE, fill_table
from .entropy.symbols import NATURAL, STRIDE
from .entropy.tiles import coefficients, collect
from .frame import MAX_BLOCKS, mcu_blocks
from .scaled_dct import drop_high, transform_scaled

_CHUNK = 1 << 15  # coefficients that are decoded at once, 64 KB: they stay in a core's own cache
WORK = 6 * TABLE + 64  # DC and AC tables of three components, and four quantisers of 64 int16
SCRATCH = WORK + max(_CHUNK, 2 * MAX_BLOCKS * STRIDE) // 4  # int64


@inlined
def _first_alike(headers: Any, c: int) -> int:
    """The first component with the tables of component `c`: the two of chroma usually share theirs."""
    header = headers[0]
    for other in range(c):
        if header.dc[other] == header.dc[c] and header.ac[other] == header.ac[c]:
            return other
    return c


@inlined
def table_of(headers: Any, c: int) -> int:
    """Where the DC table of a component begins in the work of `fill_tables`; its AC table follows."""
    return 2 * TABLE * _first_alike(headers, c)


@compiled
def fill_quantisers(data: Any, headers: Any, quantisers: Any) -> None:
    """Write the quantiser of each component, in rows, to int16 [4, 64]."""
    header = headers[0]
    for c in range(header.components):
        quantiser = header.quantisers[header.quantiser[c]]
        for i in range(64):
            quantisers[64 * c + NATURAL[i]] = data[quantiser + i]


@compiled
def fill_tables(data: Any, headers: Any, work: Any, values: bool = True) -> bool:
    """Fill the tables and quantisers in `work`, as `fill_table` does. False if a table is not a valid code."""
    header = headers[0]
    fill_quantisers(data, headers, work[6 * TABLE : WORK].view(np.int16))
    for c in range(header.components):
        slot = 2 * TABLE * c
        if _first_alike(headers, c) == c and not (
            fill_table(data, header.dc_codes[header.dc[c]], work[slot : slot + TABLE], False)
            and fill_table(data, header.ac_codes[header.ac[c]], work[slot + TABLE : slot + 2 * TABLE], True, values)
        ):
            return False
    return True


@compiled
def decode_tiles(data: Any, headers: Any, regions: Any, clean: Any, bounds: Any, work: Any, out: Any) -> bool:
    """Decode a region's tiles to planes in `out`, one after the other. False if they are damaged.

    Of a region with one plane chroma is read, as it lies between the luma, and not transformed.

    A block of luma becomes `side` x `side` samples. Like libjpeg, chroma of 4:2:0 gets twice as many across and down if
    `side` is less than 8, but not with low frequencies. A component's plane has `(right - left) * interval * h * side`
    columns of `(bottom - top) * v * side` samples. `clean` [data.size + PAD] uint8, `bounds` [tiles + 1] int64 and
    `work` [SCRATCH] int64 are scratch.
    """
    return collect(data, headers, regions, clean, bounds) and decode_collected(
        data, headers, regions, clean, bounds, work, out
    )


@compiled
def lay_out(headers: Any, regions: Any) -> Any:
    """Where the blocks of a region's tiles are decoded to.

    Returns, for each block of a tile: where its tables begin, and [component, first sample]; for each component: the
    side of a block in samples, the stride, and the samples from one tile to the next, rightwards and downwards.
    """
    header = headers[0]
    region = regions[0]
    per_tile = header.interval
    across = region.right - region.left
    down = region.bottom - region.top
    per_mcu = mcu_blocks(headers)
    sides = np.full(3, region.side, np.int64)
    if region.side < 8 and header.v[0] == 2 and not region.low:
        sides[1:] = 2 * region.side
    rows = np.empty(per_mcu * per_tile, np.int64)
    places = np.empty((rows.size, 2), np.int64)
    origin = 0
    strides, rightwards, downwards = np.zeros(3, np.int64), np.zeros(3, np.int64), np.zeros(3, np.int64)
    for c in range(header.components):
        h, v, side = header.h[c], header.v[c], sides[c]
        strides[c] = down * v * side
        rightwards[c] = per_tile * h * side * strides[c]
        downwards[c] = v * side
        block = header.h[0] * header.v[0] + c - 1 if c else 0
        for y in range(v):
            for x in range(h):
                for mcu in range(per_tile):
                    at = mcu * per_mcu + block
                    rows[at] = table_of(headers, c)
                    places[at, 0], places[at, 1] = c, origin + (mcu * h + x) * side * strides[c] + y * side
                block += 1
        origin += across * rightwards[c]
    return rows, places, sides, strides, rightwards, downwards


@inlined
def _sum_means(values: Any, starts: Any, places: Any, previous: Any) -> None:
    """Make DC values of the differences that some tiles have, of which the last may be the same.

    Not where blocks are transformed: wide loads would wait for these narrow stores.
    """
    previous[:] = 0
    for block in range(places.shape[0]):
        c, skipped = places[block, 0], block * STRIDE
        for n in range(starts.size):
            previous[n, c] += values[starts[n] + skipped]
        for n in range(starts.size):
            values[starts[n] + skipped] = previous[n, c]


@compiled
def decode_collected(data: Any, headers: Any, regions: Any, clean: Any, bounds: Any, work: Any, out: Any) -> bool:
    """What `decode_tiles` does with tiles whose bits `collect` has found."""
    region = regions[0]
    across = region.right - region.left
    down = region.bottom - region.top
    if not fill_tables(data, headers, work):
        return False
    quantisers = work[6 * TABLE : WORK].view(np.int16)
    values = work[WORK:].view(np.int16)
    rows, places, sides, strides, rightwards, downwards = lay_out(headers, regions)
    fits = True
    scaled = region.side == 3 or (region.side > 4 and region.side < 8)
    if scaled:
        drop_high(quantisers, sides)
    corners = np.full((BLOCKS, 3), -1, np.int64)  # of some tiles' components; -1 of those that are not wanted
    starts = np.empty(BLOCKS, np.int64)
    total = down * across
    size = rows.size * STRIDE
    chunk = max(1, _CHUNK // (BLOCKS * size)) * BLOCKS
    previous = np.empty((BLOCKS, 3), np.int64)
    for first in range(0, total, chunk):
        stop = min(first + chunk, total)
        if not coefficients(clean, bounds, first, stop, work, rows, NATURAL, values):
            return False
        for begin in range(first, stop, BLOCKS):
            for n in range(BLOCKS):
                tile = min(begin + n, stop - 1)  # the last one again where there are no more
                starts[n] = (tile - first) * size
                for c in range(min(region.planes, headers[0].components)):
                    corners[n, c] = tile % across * rightwards[c] + tile // across * downwards[c]
            _sum_means(values, starts, places, previous)
            if scaled:
                for n in range(0, BLOCKS, 2):
                    fits &= transform_scaled(
                        values,
                        starts[n],
                        starts[n + 1],
                        quantisers,
                        places,
                        sides,
                        strides,
                        corners[n],
                        corners[n + 1],
                        out,
                    )
                continue
            for block in range(rows.size):
                c, place, skipped = places[block, 0], places[block, 1], block * STRIDE
                if corners[0, c] < 0:
                    continue
                if sides[c] == 8:
                    at = starts[0] + skipped, starts[1] + skipped, starts[2] + skipped, starts[3] + skipped
                    to = place + corners[0, c], place + corners[1, c], place + corners[2, c], place + corners[3, c]
                    fits &= inverse_dct(values, at, quantisers, 64 * c, out, to, strides[c])
                    continue
                for n in range(BLOCKS):
                    at_n, to_n = starts[n] + skipped, place + corners[n, c]
                    if sides[c] == 2 and region.low:
                        low_dct2(values, at_n, quantisers, 64 * c, out, to_n, strides[c])
                    elif sides[c] == 4:
                        fits &= inverse_dct4(values, at_n, quantisers, 64 * c, out, to_n, strides[c])
                    elif sides[c] == 2:
                        fits &= inverse_dct2(values, at_n, quantisers, 64 * c, out, to_n, strides[c])
                    else:
                        mean = (values[at_n] * quantisers[64 * c] + 4) >> 3
                        fits &= -512 <= mean < 512  # the range of libjpeg's table of limits
                        out[to_n] = min(max(mean + 128, 0), 255)
    return fits
