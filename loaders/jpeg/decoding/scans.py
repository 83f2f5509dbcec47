"""Untiled baseline JPEGs -> samples of what a window depends on, in compiled code without the GIL.

    frame: header -> region: the wanted MCUs -> entropy.scan: coefficients, a row of MCUs at a time -> dct: samples

A scan is decoded down to the last row of MCUs that is wanted, without the intervals between restarts in which nothing
is, and only wanted MCUs become samples. The result equals libjpeg-turbo's for the whole picture, bit for bit. Damage is
left to the general decoder, except where nothing is decoded; a file without an end of the image (EOI) is taken to be
truncated.
"""

from typing import Any

import numpy as np

from fastimg.loaders.runtime.compiled import compiled, inlined

from .baseline import WORK, fill_tables, table_of
from .columns import aligned
from .dct import inverse_dct
from .entropy.lookups import TABLE
from .entropy.scan import DAMAGED, advance_alone, collect_scan, seek, start_block
from .entropy.symbols import NATURAL, PAD, STRIDE
from .frame import mcu_blocks

_ENDLESS = 1 << 62  # MCUs before a restart that never comes


@inlined
def _values_of_row(headers: Any, regions: Any) -> int:
    """The coefficients of a row's wanted MCUs."""
    return int((regions[0].right - regions[0].left) * mcu_blocks(headers) * STRIDE)


@inlined
def _bounds_of_scan(headers: Any) -> int:
    """The intervals of a scan, and two."""
    header = headers[0]
    mcus = -(-header.width // header.mcu_width) * -(-header.height // header.mcu_height)
    return int(-(-mcus // header.interval) + 2) if header.interval else 3


@inlined
def size_of_scan(headers: Any, regions: Any, nbytes: int) -> int:
    """The bytes that decoding a JPEG of `nbytes` takes, beside those of its planes."""
    values = _values_of_row(headers, regions) + STRIDE
    return aligned(8 * WORK) + aligned(2 * values) + aligned(8 * _bounds_of_scan(headers)) + aligned(nbytes + PAD)


@compiled
def begin_scan(data: Any, headers: Any, regions: Any, work: Any, streams: Any, i: int) -> bool:
    """Make stream `i` the scan of a JPEG, with `work` uint8 [size_of_scan]. False if it is damaged."""
    header = headers[0]
    region = regions[0]
    stream = streams[i]
    tables = work[: 8 * WORK].view(np.int64)
    begin = aligned(8 * WORK)
    wanted = _values_of_row(headers, regions)
    values = work[begin : begin + 2 * (wanted + STRIDE)].view(np.int16)
    begin += aligned(2 * (wanted + STRIDE))
    intervals = _bounds_of_scan(headers)
    bounds = work[begin : begin + 8 * intervals].view(np.int64)
    bits = work[begin + aligned(8 * intervals) :]
    nbytes = collect_scan(data, header.offset, bits, bounds)
    if nbytes == 0 or not fill_tables(data, headers, tables):
        return False
    values[:wanted] = 0
    stream.begin = stream.position = 8 * bits.ctypes.data
    stream.bounds = bounds.ctypes.data
    stream.end = stream.begin + 8 * bounds[1]
    stream.interval, stream.number = header.interval, 0
    stream.ahead = header.interval if header.interval else _ENDLESS
    stream.blocks = mcu_blocks(headers)
    for block in range(stream.blocks):
        c = max(block + 1 - header.h[0] * header.v[0], 0)
        stream.component[block] = c
        stream.tables[block] = tables.ctypes.data + 8 * table_of(headers, c)
    stream.across = -(-header.width // header.mcu_width)
    stream.left, stream.right, stream.top = region.left, region.right, region.top
    stream.out = values.ctypes.data
    stream.spare = stream.out + 2 * wanted
    stream.block = stream.column = stream.row = stream.status = 0
    stream.previous[:] = 0
    stream.base = stream.out if region.left == 0 and region.top == 0 else stream.spare
    seek(streams, i, region.top * stream.across + region.left)
    return bool(start_block(streams, i))


@compiled
def end_row(headers: Any, regions: Any, work: Any, streams: Any, i: int, planes: Any) -> int:
    """Transform the row of MCUs at whose wanted end stream `i` is, to planes as `decode_tiles` makes them.

    Returns 1 if all rows are done, 0 if the stream can go on, -1 if the image is damaged.
    """
    header = headers[0]
    region = regions[0]
    stream = streams[i]
    if stream.status == DAMAGED:
        return -1
    quantisers = work[8 * 6 * TABLE : 8 * WORK].view(np.int16)
    begin = aligned(8 * WORK)
    values = work[begin : begin + 2 * _values_of_row(headers, regions)].view(np.int16)
    row = stream.row - 1 if stream.column == 0 else stream.row
    across = region.right - region.left
    down = region.bottom - region.top
    fits = True
    origin, block = 0, 0  # of a component's plane; of an MCU, the component's first
    for c in range(min(region.planes, header.components)):
        h, v = header.h[c], header.v[c]
        stride = down * v * 8
        for y in range(v):
            for x in range(h):
                to = origin + x * 8 * stride + ((row - region.top) * v + y) * 8
                for mcu in range(0, across, 2):
                    other = min(mcu + 1, across - 1)
                    at, at2 = (mcu * stream.blocks + block) * STRIDE, (other * stream.blocks + block) * STRIDE
                    to1, to2 = to + mcu * 8 * h * stride, to + other * 8 * h * stride
                    fits &= inverse_dct(values, at, at2, quantisers, 64 * c, planes, to1, to2, stride)
                block += 1
        origin += across * h * 8 * stride
    if not fits:
        return -1
    if row + 1 == region.bottom:
        return 1
    values[:] = 0
    stream.status = 0
    seek(streams, i, (row + 1) * stream.across + region.left)
    return 0 if start_block(streams, i) else -1


@compiled
def decode_scan(data: Any, headers: Any, regions: Any, work: Any, streams: Any, planes: Any) -> bool:
    """Decode a region of one JPEG to planes. False if it is damaged. `work` is uint8 [size_of_scan]."""
    if not begin_scan(data, headers, regions, work, streams, 0):
        return False
    ended = 0
    while ended == 0:
        advance_alone(streams, 0, NATURAL)
        ended = end_row(headers, regions, work, streams, 0, planes)
    return bool(ended > 0)
