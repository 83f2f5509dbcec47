"""Quantised coefficients of a JPEG, sequential or progressive (ITU T.81 annexes F and G).

This is the straightforward decoder, for files whose AC bits cannot be copied (several scans, progressive), and the
reference that the fast one is tested against.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from fastimg.loaders.jpeg.decoding.frame import PROGRESSIVE, has_too_many_scans
from fastimg.loaders.runtime.compiled import compiled, int64, uint64

from .huffman import DAMAGED, OK, PAD, RANGE, Bits, Ints, Words, lookup, signed, symbol, unstuff, window
from .markers import Frame, Parser, Reason, Scan, Table, Untileable

Plane = npt.NDArray[np.int16]  # [rows, columns, 64] blocks in zigzag order, padded to whole MCUs

MAX_SCANS = 200  # a real progressive JPEG has about ten
_NO_TABLE: Table = (bytes(16), b"")


def scan_room(left: int, intervals: int) -> tuple[Bits, Ints]:
    """Buffers for the bits of a scan in the remaining `left` bytes, and for the bounds of its restart intervals.

    Raises Untileable if so many intervals cannot fit in these bytes.
    """
    if intervals > left // 2 + 1:  # they need a marker of two bytes each; do not allocate what the header claims
        raise Untileable(Reason.DAMAGED)
    return np.empty((left + PAD + 7) // 8 * 8, np.uint8), np.zeros(intervals + 1, np.int64)


def planes(parser: Parser, max_pixels: int) -> list[Plane]:
    """The coefficients of every component. Reads up to and including EOI. Raises Untileable."""
    data = parser.array
    result: list[Plane] = []
    state = np.zeros((0, 64), np.int64)  # per component and coefficient: bits still to come, -1 before the first
    for number, scan in enumerate(parser.scans()):
        frame = parser.frame
        if number == 0:
            if frame.width * frame.height > max_pixels:
                raise Untileable(Reason.LARGE)
            if has_too_many_scans(data, frame.width * frame.height):
                raise Untileable(Reason.UNUSUAL)
            result = _allocate(frame)
            state = np.full((len(result), 64), -1, np.int64)
        if number >= MAX_SCANS:
            raise Untileable(Reason.UNUSUAL)
        _progress(frame, scan, state)
        columns, rows = frame.mcus if len(scan.components) > 1 else frame.blocks(scan.components[0])
        interval = scan.interval or columns * rows
        clean, bounds = scan_room(data.size - scan.begin, -(-columns * rows // interval))
        intervals, end = unstuff(data, scan.begin, clean, bounds)
        if intervals != bounds.size - 1:
            raise Untileable(Reason.DAMAGED)
        words = clean[: (int(bounds[-1]) + PAD) // 8 * 8].view(">u8").astype(np.uint64)
        status = _decode(frame, scan, result, words, bounds, interval, columns, rows)
        if status != OK:
            raise Untileable(Reason.RANGE if status == RANGE else Reason.DAMAGED)
        parser.resume(end)
    if (state != 0).any():
        raise Untileable(Reason.INCOMPLETE)
    return result


def _allocate(frame: Frame) -> list[Plane]:
    columns, rows = frame.mcus
    return [np.zeros((rows * c.v, columns * c.h, 64), np.int16) for c in frame.components]


def _progress(frame: Frame, scan: Scan, state: Ints) -> None:
    """Check that the scan may follow the earlier ones (G.1.1.1), and record which bits it sends."""
    if frame.marker != PROGRESSIVE:
        valid = (scan.first, scan.last, scan.high, scan.low) == (0, 63, 0, 0)
    elif scan.first == 0:
        valid = scan.last == 0
    else:
        valid = scan.first <= scan.last <= 63 and len(scan.components) == 1
    valid = valid and scan.low <= 13 and (scan.high == 0 or scan.high == scan.low + 1)
    before = -1 if scan.high == 0 else scan.high
    for component in scan.components:
        band = state[component, scan.first : scan.last + 1]
        if not valid or (band != before).any() or (scan.first > 0 and state[component, 0] < 0):
            raise Untileable(Reason.DAMAGED if frame.marker == PROGRESSIVE else Reason.UNUSUAL)
        band[:] = scan.low


def _decode(
    frame: Frame,
    scan: Scan,
    coefficients: list[Plane],
    words: Words,
    bounds: Ints,
    interval: int,
    columns: int,
    rows: int,
) -> int:
    def row(kind: int, number: int) -> Any:
        needed = kind == 0 if scan.first == 0 and scan.last == 0 else kind == 1 or scan.first == 0
        if scan.high and kind == 0:
            needed = False  # refinements of DC are not Huffman-coded
        table = scan.tables.get((kind, number))
        if needed and table is None:
            raise Untileable(Reason.UNUSUAL)
        return lookup(table if needed and table else _NO_TABLE)

    dc_rows = np.stack([row(0, t) for t in scan.dc])
    ac_rows = np.stack([row(1, t) for t in scan.ac])
    if frame.marker == PROGRESSIVE and scan.first > 0:
        plane = coefficients[scan.components[0]]
        if scan.high:
            return int(
                _refine_ac(plane, words, bounds, interval, columns, rows, ac_rows, scan.first, scan.last, scan.low)
            )
        return int(_first_ac(plane, words, bounds, interval, columns, rows, ac_rows, scan.first, scan.last, scan.low))
    # One array for all components, with the offset and size of each.
    shapes = []
    pieces = []
    at = 0
    for component in scan.components:
        plane = coefficients[component]
        c = frame.components[component]
        h, v = (c.h, c.v) if len(scan.components) > 1 else (1, 1)
        shapes.append((at, plane.shape[1], h, v))
        pieces.append(plane)
        at += plane.shape[0] * plane.shape[1]
    joined = pieces[0].reshape(-1, 64) if len(pieces) == 1 else np.concatenate([p.reshape(-1, 64) for p in pieces])
    layout = np.array(shapes, np.int64)
    sequential = frame.marker != PROGRESSIVE
    status = _decode_dc(
        joined, layout, words, bounds, interval, columns, rows, dc_rows, ac_rows, sequential, scan.high, scan.low
    )
    if len(pieces) > 1:
        for (begin, *_), piece in zip(shapes, pieces, strict=True):
            piece.reshape(-1, 64)[:] = joined[begin : begin + piece.shape[0] * piece.shape[1]]
    return int(status)


@compiled
def _decode_dc(
    blocks: Any,
    layout: Any,
    words: Any,
    bounds: Any,
    interval: int,
    columns: int,
    rows: int,
    dc_rows: Any,
    ac_rows: Any,
    sequential: bool,
    high: int,
    low: int,
) -> int:
    """A scan with DC: sequential with all AC, or progressive (first or refining) without AC."""
    previous = np.zeros(4, np.int64)
    mcu = 0
    for i in range(bounds.size - 1):
        position = bounds[i] * 8
        end = bounds[i + 1] * 8
        previous[:] = 0
        for mcu in range(i * interval, min((i + 1) * interval, columns * rows)):
            for c in range(layout.shape[0]):
                base = layout[c, 0]
                stride = layout[c, 1]
                h = layout[c, 2]
                v = layout[c, 3]
                for j in range(h * v):
                    block = blocks[base + (mcu // columns * v + j // h) * stride + mcu % columns * h + j % h]
                    bits = window(words, position)
                    if high:
                        if bits >> uint64(63):
                            block[0] |= 1 << low
                        position += 1
                    else:
                        entry = symbol(bits, dc_rows, c)
                        size = entry >> 8
                        if entry == 0 or size > 11:
                            return DAMAGED
                        if size:
                            previous[c] += signed(bits << uint64(entry & 255), size)
                        if abs(previous[c]) << low > 2047:
                            return RANGE
                        block[0] = previous[c] << low
                        position += (entry & 255) + size
                    k = 1 if sequential else 64
                    while k < 64:
                        bits = window(words, position)
                        entry = symbol(bits, ac_rows, c)
                        run = entry >> 12
                        size = entry >> 8 & 15
                        position += (entry & 255) + size
                        if entry == 0 or (size == 0 and run != 0 and run != 15):
                            return DAMAGED
                        if entry >> 8 == 0:
                            break
                        k += run
                        if k > 63:
                            return DAMAGED
                        if size > 10:
                            return RANGE
                        if size:
                            block[k] = signed(bits << uint64(entry & 255), size)
                        k += 1
                    if position > end:
                        return DAMAGED
        if end - position >= 8:
            return DAMAGED
    return OK


@compiled
def _first_ac(
    plane: Any,
    words: Any,
    bounds: Any,
    interval: int,
    columns: int,
    rows: int,
    table: Any,
    first: int,
    last: int,
    low: int,
) -> int:
    """The first bits of a band of AC coefficients of one component (G.1.2.2)."""
    for i in range(bounds.size - 1):
        position = bounds[i] * 8
        end = bounds[i + 1] * 8
        skipped = 0
        for mcu in range(i * interval, min((i + 1) * interval, columns * rows)):
            if skipped:
                skipped -= 1
                continue
            block = plane[mcu // columns, mcu % columns]
            k = first
            while k <= last:
                bits = window(words, position)
                entry = symbol(bits, table, 0)
                if entry == 0:
                    return DAMAGED
                run = entry >> 12
                size = entry >> 8 & 15
                position += entry & 255
                bits = bits << uint64(entry & 255)
                if size:
                    k += run
                    if k > last:
                        return DAMAGED
                    value = signed(bits, size) * (1 << low)
                    if abs(value) > 1023:
                        return RANGE
                    block[k] = value
                    position += size
                    k += 1
                elif run == 15:
                    k += 16
                    if k > last + 1:
                        return DAMAGED
                else:
                    skipped = (1 << run) - 1
                    if run:
                        skipped += int64(bits >> uint64(64 - run))
                    position += run
                    break
            if position > end:
                return DAMAGED
        if skipped or end - position >= 8:
            return DAMAGED
    return OK


@compiled
def _refine_ac(
    plane: Any,
    words: Any,
    bounds: Any,
    interval: int,
    columns: int,
    rows: int,
    table: Any,
    first: int,
    last: int,
    low: int,
) -> int:
    """One more bit of a band of AC coefficients of one component (G.1.2.3)."""
    step = 1 << low
    for i in range(bounds.size - 1):
        position = bounds[i] * 8
        end = bounds[i + 1] * 8
        skipped = 0
        for mcu in range(i * interval, min((i + 1) * interval, columns * rows)):
            block = plane[mcu // columns, mcu % columns]
            k = first
            while k <= last:
                run, value = 64, 0  # to the end of the block: only corrections
                if skipped == 0:
                    bits = window(words, position)
                    entry = symbol(bits, table, 0)
                    size = entry >> 8 & 15
                    if entry == 0 or size > 1:
                        return DAMAGED
                    position += entry & 255
                    bits = bits << uint64(entry & 255)
                    if size or entry >> 12 == 15:
                        run = entry >> 12
                        if size:
                            value = step if bits >> uint64(63) else -step
                            position += 1
                    else:
                        run_bits = entry >> 12
                        skipped = 1 << run_bits
                        if run_bits:
                            skipped += int64(bits >> uint64(64 - run_bits))
                        position += run_bits
                while k <= last:
                    if block[k]:
                        if window(words, position) >> uint64(63):
                            block[k] += step if block[k] > 0 else -step
                            if abs(block[k]) > 1023:
                                return RANGE
                        position += 1
                    else:
                        if run == 0:
                            break
                        run -= 1
                    k += 1
                if value:
                    if k > last:
                        return DAMAGED
                    block[k] = value
                k += 1
            if skipped:
                skipped -= 1
            if position > end:
                return DAMAGED
        if skipped or end - position >= 8:
            return DAMAGED
    return OK
