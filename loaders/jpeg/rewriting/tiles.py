"""Lossless tiled JPEG: an ordinary JPEG whose restart interval divides its MCUs per row (ITU T.81 E.1.4, F.1.2.3).

Every tile of that many MCUs begins on a byte boundary with reset DC predictors, so a crop needs only the tiles that it
touches, and `splice` makes a smaller JPEG of them. The quantised coefficients are unchanged, so every decoder gives the
same pixels as for the original.
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from fastimg.loaders.decode import MAX_PIXELS
from fastimg.loaders.jpeg.decoding.frame import BASELINE, DHT, DRI, EOI, EXTENDED, PROGRESSIVE, SOI, SOS

from .coefficients import Plane, planes, scan_room
from .huffman import OK, RANGE, Coded, Ints, read_scan
from .markers import Frame, Parser, Reason, Scan, Segment, Table, Untileable, table_body
from .recode import recode
from .restarts import write_scan

DEFAULT_TILE_PX = 32  # by benchmarks/tiles.py: crops 1.62 times as fast for 2.1 % of size; 64 gives 1.57 for 1.1 %
MAX_COST = 0.05  # share of the scan's bytes that restarts may add, as estimated


@dataclass(frozen=True, slots=True)
class Rewritten:
    """The result of rewriting a file."""

    jpeg: bytes
    kept: Reason | None = None  # why `jpeg` is the unchanged file; None if it was rewritten
    left_out: int = 0  # bytes after EOI that the rewritten file does not contain
    recoded: bool = False  # whether it had several scans, as progressive JPEGs do, and has one now


def tile(jpeg: bytes | memoryview, width_px: int = DEFAULT_TILE_PX, max_pixels: int = MAX_PIXELS) -> Rewritten:
    """Rewrite a JPEG with tiles of up to `width_px` pixels across, one MCU high, with the same coefficients.

    Tiles are wider, at most a whole row of MCUs, if the width has no such divisor or if so many restarts would add more
    than 5 % to the scan.

    Huffman-coded JPEGs of 8 bits are rewritten: sequential ones with one scan by copying their AC bits with new DC
    tables; those with several scans, and progressive ones, by coding their coefficients again as baseline, up to
    `max_pixels`. APPn and COM segments, quantisation tables and component ids are kept byte for byte. Fill bytes
    between segments and data after EOI (more pictures of an MPO, a camera's trailer) are dropped. A file that is not
    fully understood, or that is tiled already, is returned unchanged with the reason; no error is raised.
    """
    data = bytes(jpeg)
    try:
        return _tile(data, width_px, max_pixels)
    except Untileable as refusal:
        return Rewritten(data, refusal.reason)


def _tile(data: bytes, width_px: int, max_pixels: int) -> Rewritten:
    parser = Parser(memoryview(data))
    scans = parser.scans()
    scan = next(scans)
    frame = parser.frame
    if frame.marker == PROGRESSIVE or len(scan.components) < len(frame.components):
        return _recoded(data, width_px, max_pixels)
    coded, _, end = walked(parser, scan)
    parser.resume(end)
    if next(scans, None) is not None:
        raise Untileable(Reason.UNUSUAL)
    interval = _interval(frame, coded, width_px)
    if scan.interval == interval:
        raise Untileable(Reason.TILED)
    ac = {key: table for key, table in scan.tables.items() if key[0] == 1 and key[1] in scan.ac}
    out = _written(parser, scan.body, ac, scan.dc, coded, interval)
    return Rewritten(out, left_out=len(data) - parser.end)


def _recoded(data: bytes, width_px: int, max_pixels: int) -> Rewritten:
    parser = Parser(memoryview(data))
    out = interleaved(parser, planes(parser, max_pixels), width_px)
    return Rewritten(out, left_out=len(data) - parser.end, recoded=True)


def interleaved(parser: Parser, coefficients: list[Plane], width_px: int, costly: bool = False) -> bytes:
    """The file that `parser` read, with these coefficients as one tiled scan.

    With `costly`, a file that is too small to tile gets tiles of a whole row. Raises Untileable.
    """
    frame = parser.frame
    if len(frame.owners) > 10:
        raise Untileable(Reason.UNUSUAL)
    coded, tables = recode(coefficients, frame)
    numbers = tuple(min(i, 1) for i in range(len(frame.components)))
    selectors = b"".join(bytes((c.id, n << 4 | n)) for c, n in zip(frame.components, numbers, strict=True))
    body = bytes((len(frame.components),)) + selectors + bytes((0, 63, 0))
    ac = {(1, i): table for i, table in enumerate(tables)}
    try:
        interval = _interval(frame, coded, width_px)
    except Untileable:
        if not costly:
            raise
        interval = frame.mcus[0]
    return _written(parser, body, ac, numbers, coded, interval)


def walked(parser: Parser, scan: Scan) -> tuple[Coded, Ints, int]:
    """The blocks of the only scan, the bounds of its restart intervals in its bits, and where its data ends.

    Raises Untileable.
    """
    array = parser.array
    frame = parser.frame
    if (scan.first, scan.last, scan.high, scan.low) != (0, 63, 0, 0):
        raise Untileable(Reason.UNUSUAL)
    columns, rows = frame.mcus
    owners = np.array(frame.owners)
    blocks = columns * rows * owners.size
    if blocks > 4 * (array.size - scan.begin):  # a block takes at least two bits, which limits the allocation
        raise Untileable(Reason.DAMAGED)
    interval = scan.interval or columns * rows
    bits, bounds = scan_room(array.size - scan.begin, -(-columns * rows // interval))
    numbers, places = np.array((scan.dc, scan.ac)), parser.code_places
    if any((kind, t) not in scan.tables for kind, chosen in enumerate((scan.dc, scan.ac)) for t in chosen):
        raise Untileable(Reason.UNUSUAL)
    dc = np.empty(blocks, np.int32)
    begins = np.empty(blocks, np.int64)
    lengths = np.empty(blocks, np.int32)
    status, total, end = read_scan(
        array, scan.begin, bits, bounds, interval, owners, numbers, places, dc, begins, lengths
    )
    _check(status)
    return Coded(bits, dc, begins, lengths, total), bounds, end


def _interval(frame: Frame, coded: Coded, width_px: int) -> int:
    """MCUs per tile. Depends only on what tiling does not change, so that tiling twice changes nothing."""
    columns, rows = frame.mcus
    divisors = _divisors(columns)
    across = frame.mcu_size[0]
    fitting = max([k for k in divisors if k * across <= width_px], default=1)
    restart = 2.5 + 0.5 * len(frame.components)  # bytes of a marker, padding, and a DC value in place of a difference
    per_mcu = (coded.total / 8 + 0.6 * coded.lengths.size) / (columns * rows)
    for k in divisors:
        if k >= fitting and restart <= MAX_COST * k * per_mcu:
            return k
    raise Untileable(Reason.COSTLY)


@lru_cache(maxsize=4096)
def _divisors(n: int) -> list[int]:
    return [k for k in range(1, n + 1) if n % k == 0]


def _written(
    parser: Parser,
    scan_body: bytes,
    ac: dict[tuple[int, int], Table],
    dc_numbers: tuple[int, ...],
    coded: Coded,
    interval: int,
) -> bytes:
    """The whole file: segments, tables, and the scan with restarts."""
    owners = np.array(parser.frame.owners)
    blocks = coded.dc.size
    restarts = coded.dc.size // owners.size // interval
    size = (coded.total + 27 * blocks) // 8 + restarts + 16
    scratch = np.empty(size, np.uint8)
    out = np.empty(2 * (size + restarts), np.uint8)
    best = np.zeros((4, 30), np.uint8)
    status, nbytes = write_scan(*coded[:4], owners, np.array(dc_numbers), interval, best, scratch, out)
    _check(status)
    dht = b"".join([table_body(*key, table) for key, table in sorted(ac.items())])
    for number in sorted(set(dc_numbers)):
        table = best[number].tobytes()
        dht += table_body(0, number, (table[:16], table[16 : 16 + sum(table[:16])]))
    marker = parser.frame.marker
    if marker == PROGRESSIVE:  # baseline has quantisation tables of 8 bits only
        marker = EXTENDED if parser.header[0]["wide"].any() else BASELINE
    parts: list[bytes | memoryview] = [bytes((0xFF, SOI))]
    parts += [
        Segment(marker, s.body).encoded() if s.marker == parser.frame.marker else s.encoded() for s in parser.head
    ]
    parts += [Segment(*s).encoded() for s in ((DHT, dht), (DRI, interval.to_bytes(2, "big")), (SOS, scan_body))]
    parts.append(out[:nbytes].data)
    parts += [s.encoded() for s in parser.tail]
    parts.append(bytes((0xFF, EOI)))
    return b"".join(parts)


def _check(status: Any) -> None:
    if status != OK:
        raise Untileable(Reason.RANGE if status == RANGE else Reason.DAMAGED)
