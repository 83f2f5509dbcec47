"""JPEGs without tiles -> samples of what a window depends on, in compiled code without the GIL.

    frame: header -> region: the wanted MCUs -> entropy.scan: coefficients, a row of MCUs at a time -> dct: samples

Of a progressive JPEG each scan is decoded by `entropy.progressive`, and samples are made when all are there.

A scan is decoded down to the last row of MCUs that is wanted, without the intervals between restarts in which nothing
is, and only wanted MCUs become samples. The result equals libjpeg-turbo's for the whole picture, bit for bit. Damage is
left to the general decoder, except where nothing is decoded; a file without an end of the image (EOI) is taken to be
truncated.
"""

from typing import Any

import numpy as np

from fastimg.loaders.runtime.compiled import compiled, inlined, uint64

from .baseline import WORK, fill_quantisers, fill_tables, table_of
from .columns import aligned
from .dct import BLOCKS, inverse_dct
from .entropy.lookups import TABLE, fill_table
from .entropy.progressive import BLOCK, fill_band_table, first_band, first_means, refine_band, refine_means
from .entropy.scan import DAMAGED, advance_alone, collect_scan, seek, start_block
from .entropy.symbols import NATURAL, PAD, STRIDE
from .frame import EOI, SOI, SOS, mcu_blocks, most_scans, parse_segment

MAX_SCANS_BYTES = 1 << 27  # of coefficients of a progressive JPEG; libjpeg-turbo decodes larger ones
_MOST_SCANS = 200  # libjpeg-turbo decodes those of more
_QUANTISERS = 3 * TABLE  # int64; before them are tables of one scan
_TABLES = _QUANTISERS + 64
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
    nbytes, marker = collect_scan(data, header.offset, bits, bounds)
    if nbytes == 0 or data[marker + 1] != EOI or not fill_tables(data, headers, tables):
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


@inlined
def _blocks_from(number: int, end: int) -> Any:
    """The next numbers of BLOCKS blocks before `end`; the last one again where there are no more."""
    return number, min(number + 1, end - 1), min(number + 2, end - 1), min(number + 3, end - 1)


@inlined
def _placed(numbers: Any, begin: int, step: int) -> Any:
    """Where they are, from `begin` on."""
    a, b, c, d = numbers
    return begin + a * step, begin + b * step, begin + c * step, begin + d * step


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
                for mcu in range(0, across, BLOCKS):
                    mcus = _blocks_from(mcu, across)
                    at = _placed(mcus, block * STRIDE, stream.blocks * STRIDE)
                    places = _placed(mcus, to, 8 * h * stride)
                    fits &= inverse_dct(values, at, quantisers, 64 * c, planes, places, stride)
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


@inlined
def _rows_of_mcus(headers: Any, regions: Any) -> tuple[int, int]:
    """The MCUs across the picture, and the rows of them down to the region's last."""
    return int(-(-headers[0].width // headers[0].mcu_width)), int(regions[0].bottom)


@inlined
def _blocks_of(headers: Any, regions: Any) -> int:
    """The blocks of all components, down to the region's last row of MCUs."""
    across, down = _rows_of_mcus(headers, regions)
    return int(across * down * mcu_blocks(headers))


@inlined
def size_of_scans(headers: Any, regions: Any, nbytes: int) -> int:
    """The bytes that decoding a progressive JPEG of `nbytes` takes, beside those of its planes."""
    blocks = _blocks_of(headers, regions)
    return aligned(8 * _TABLES) + aligned(2 * BLOCK * blocks) + aligned(8 * blocks) + aligned(nbytes + PAD)


@compiled
def decode_progressive(data: Any, headers: Any, regions: Any, work: Any, planes: Any) -> bool:
    """Decode a region of a progressive JPEG to planes. False if it is damaged, or not complete.

    `work` is uint8 [size_of_scans]. The header is that before the first scan, and stays so.
    """
    region = regions[0]
    known = headers.copy()  # of the scan that is decoded
    header = known[0]
    blocks = _blocks_of(headers, regions)
    begin = aligned(8 * _TABLES)
    tables = work[:begin].view(np.int64)
    values = work[begin : begin + 2 * BLOCK * blocks].view(np.int16)
    begin += aligned(2 * BLOCK * blocks)
    masks = work[begin : begin + 8 * blocks].view(np.uint64)
    bits = work[begin + aligned(8 * blocks) :]
    values[:] = 0
    masks[:] = 0
    sent = np.full((3, 64), -1, np.int64)  # of each component and coefficient: bits still to come, -1 before the first
    bounds = np.zeros(3, np.int64)
    for _ in range(min(_MOST_SCANS, most_scans(header.width * header.height))):
        if header.fault or header.interval or not _follows(known, sent):
            return False
        nbytes, header.offset = collect_scan(data, header.offset, bits, bounds)
        if nbytes == 0 or not _decode_one(data, known, regions, bits, nbytes, tables, values, masks):
            return False
        marker = SOI
        while marker not in (0, EOI, SOS):
            marker = parse_segment(data, known)
        if marker == EOI:
            break
        if marker == 0:
            return False
    if header.fault or marker != EOI:
        return False
    for c in range(header.components):
        for k in range(64):
            if sent[c, k] != 0:
                return False
    quantisers = tables[_QUANTISERS:_TABLES].view(np.int16)
    fill_quantisers(data, known, quantisers)
    across, down = _rows_of_mcus(headers, regions)
    fits = True
    origin, first = 0, 0  # of a component's plane; its first block
    for c in range(header.components):
        h, v = header.h[c], header.v[c]
        stride = (region.bottom - region.top) * v * 8
        if c < region.planes:
            for row in range(region.top * v, region.bottom * v):
                to = origin + (row - region.top * v) * 8 - region.left * h * 8 * stride
                for column in range(region.left * h, region.right * h, BLOCKS):
                    columns = _blocks_from(column, region.right * h)
                    at = _placed(columns, (first + row * across * h) * BLOCK, BLOCK)
                    places = _placed(columns, to, 8 * stride)
                    fits &= inverse_dct(values, at, quantisers, 64 * c, planes, places, stride)
        origin += (region.right - region.left) * h * 8 * stride
        first += across * down * h * v
    return bool(fits)


@compiled
def _follows(headers: Any, sent: Any) -> bool:
    """Whether a scan may follow the earlier ones (G.1.1.1); note which bits it sends."""
    header = headers[0]
    if header.low > 13 or not (header.high == 0 or header.high == header.low + 1):
        return False
    if header.first == 0:
        if header.last != 0:
            return False
    elif header.last > 63 or header.last < header.first or header.scan_components != 1:
        return False
    before = header.high if header.high else -1
    for i in range(header.scan_components):
        c = header.chosen[i]
        if c >= 3 or (header.first and sent[c, 0] < 0):
            return False
        for k in range(header.first, header.last + 1):
            if sent[c, k] != before:
                return False
            sent[c, k] = header.low
    return True


@inlined
def _own_blocks(pixels: int, factor: int, mcu: int) -> int:
    """The blocks of a component across or down a picture, in a scan of its own."""
    samples = -(-pixels * factor * 8 // mcu)
    return int((samples + 7) // 8)


@compiled
def _decode_one(
    data: Any, headers: Any, regions: Any, bits: Any, nbytes: int, tables: Any, values: Any, masks: Any
) -> bool:
    """Decode one scan, down to the region's last row of MCUs. False if it is damaged."""
    header = headers[0]
    across, down = _rows_of_mcus(headers, regions)
    begin = uint64(8 * bits.ctypes.data)
    end = begin + uint64(8 * nbytes)
    blocks, natural = uint64(values.ctypes.data), uint64(NATURAL.ctypes.data)
    layout = np.zeros((header.scan_components, 4), np.int64)
    first = 0
    for c in range(header.components):
        for i in range(header.scan_components):
            if header.chosen[i] == c:
                layout[i, 0], layout[i, 1] = first, across * header.h[c]
                layout[i, 2], layout[i, 3] = header.h[c], header.v[c]
        first += across * down * header.h[c] * header.v[c]
    rows, columns = down, across
    whole = down == -(-header.height // header.mcu_height)
    if header.scan_components == 1:  # its blocks, without those that pad the last MCUs (A.2.3)
        c = header.chosen[0]
        columns = _own_blocks(header.width, header.h[c], header.mcu_width)
        rows = min(down * header.v[c], _own_blocks(header.height, header.v[c], header.mcu_height))
        layout[0, 2], layout[0, 3] = 1, 1
    if header.first == 0 and header.high:
        position = refine_means(begin, end, blocks, layout, rows, columns, header.low)
    elif header.first == 0:
        places = np.zeros(header.scan_components, np.int64)
        for i in range(header.scan_components):
            if header.dc[i] > 3 or header.dc_codes[header.dc[i]] == 0:
                return False
            table = tables[i * TABLE : (i + 1) * TABLE]
            if not fill_table(data, header.dc_codes[header.dc[i]], table, False):
                return False
            places[i] = table.ctypes.data
        position = first_means(begin, end, places, blocks, layout, rows, columns, header.low)
    else:
        if header.ac[0] > 3 or header.ac_codes[header.ac[0]] == 0:
            return False
        if not fill_band_table(data, header.ac_codes[header.ac[0]], tables):
            return False
        base = blocks + uint64(2 * BLOCK * layout[0, 0])
        mask = uint64(masks.ctypes.data + 8 * layout[0, 0])
        table = uint64(tables.ctypes.data)
        shape, band = (rows, columns, layout[0, 1]), (header.first, header.last)
        if header.high:
            position = refine_band(begin, end, table, base, mask, natural, shape, band, header.low)
        else:
            position = first_band(begin, end, table, base, mask, natural, shape, band, header.low)
    if position == uint64(0):
        return False
    return bool(position + uint64(8) > end or not whole)
