"""The markers of a JPEG file (ITU T.81 annex B): its frame, tables and scans, as far as lossless rewriting needs them.

Stricter than a decoder: what a decoder would merely warn of is refused here, since only what is fully understood is
rewritten. What libjpeg-turbo refuses or warns of in headers is refused: who rewrote a file need not decode it to
know that it can be decoded. `tests/loaders/test_tiles_fuzz.py` holds that.
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from functools import lru_cache
from typing import NamedTuple

SOI, EOI, SOS, DQT, DHT, DRI = 0xD8, 0xD9, 0xDA, 0xDB, 0xC4, 0xDD
BASELINE, EXTENDED, PROGRESSIVE = 0xC0, 0xC1, 0xC2

_DC = 0  # class of a table
_CODING = {
    **dict.fromkeys((0xC3, 0xC7, 0xCB, 0xCF), "LOSSLESS"),
    **dict.fromkeys((0xC9, 0xCA, 0xCD, 0xCE), "ARITHMETIC"),
    **dict.fromkeys((0xC5, 0xC6, 0xDE, 0xDF), "HIERARCHICAL"),
}
_JFIF, _ICC, _ADOBE = 0xE0, 0xE2, 0xEE
_OTHER = frozenset({0xFE, *range(0xE0, 0xF0)})  # comments, APP0-15
_MOST_PIXELS_ACROSS = 65500  # libjpeg's limit, and down


class Reason(StrEnum):
    """Why a file stays as it is."""

    TILED = "already tiled"
    NOT_JPEG = "not a JPEG"
    LOSSLESS = "a lossless JPEG"
    ARITHMETIC = "arithmetic coding"
    HIERARCHICAL = "a hierarchical JPEG"
    PRECISION = "not 8 bits per sample"
    INCOMPLETE = "a progression that is not sent to its end"
    RANGE = "coefficients beyond what baseline can code"
    LARGE = "too many pixels"
    COSTLY = "too small or too thin: restarts would cost more than they give"
    UNUSUAL = "a structure that is not understood"
    DAMAGED = "damaged or cut short"


class Untileable(Exception):
    """The file has to stay as it is."""

    def __init__(self, reason: Reason) -> None:
        super().__init__(reason.value)
        self.reason = reason


class Component(NamedTuple):
    """One colour plane of the frame."""

    id: int
    h: int  # blocks per MCU across
    v: int  # and down
    quantisation: int


class Segment(NamedTuple):
    """A marker and what follows its length field."""

    marker: int
    body: bytes

    def encoded(self) -> bytes:
        """As it stands in a file."""
        return bytes((0xFF, self.marker)) + (len(self.body) + 2).to_bytes(2, "big") + self.body


Table = tuple[bytes, bytes]  # codes of length 1 to 16: how many; the symbols in the order of their codes


class Frame(NamedTuple):
    """SOF: size and components."""

    marker: int
    width: int
    height: int
    components: tuple[Component, ...]

    @property
    def gray(self) -> bool:
        """One component: its MCU is a single block, whatever its factors say (A.2.2)."""
        return len(self.components) == 1

    @property
    def mcu_size(self) -> tuple[int, int]:
        """Pixels of an interleaved MCU, across and down."""
        if self.gray:
            return 8, 8
        return 8 * max(c.h for c in self.components), 8 * max(c.v for c in self.components)

    @property
    def mcus(self) -> tuple[int, int]:
        """MCUs of the interleaved image, across and down."""
        width, height = self.mcu_size
        return -(-self.width // width), -(-self.height // height)

    def blocks(self, component: int) -> tuple[int, int]:
        """Blocks of a component in a scan of its own, across and down (A.2.3)."""
        c = self.components[component]
        h_max, v_max = max(c.h for c in self.components), max(c.v for c in self.components)
        across, down = -(-self.width * c.h // h_max), -(-self.height * c.v // v_max)
        return -(-across // 8), -(-down // 8)

    @property
    def owners(self) -> list[int]:
        """The component of each block of an interleaved MCU."""
        if self.gray:
            return [0]
        return [i for i, c in enumerate(self.components) for _ in range(c.h * c.v)]


class Scan(NamedTuple):
    """SOS, and the state of tables and restarts that holds for it."""

    components: tuple[int, ...]  # indices into the frame's
    dc: tuple[int, ...]  # table of each
    ac: tuple[int, ...]
    first: int  # of the zigzag order
    last: int
    high: int  # bits that were sent before: successive approximation
    low: int
    interval: int  # MCUs between restarts, 0 for none
    tables: dict[tuple[int, int], Table]  # (class, id): class 0 is DC
    begin: int  # where the entropy-coded data begins
    body: bytes


@dataclass(slots=True)
class Parser:
    """Reads markers from the front; entropy-coded data is skipped by whoever decodes it, with `resume`."""

    data: memoryview
    frame: Frame | None = None
    head: list[Segment] = field(default_factory=list)  # before the first scan: everything but DHT and DRI; SOF too
    tail: list[Segment] = field(default_factory=list)  # between the scans and after the last
    end: int = 0  # just behind EOI, once it was reached
    _at: int = 2
    _interval: int = 0
    _tables: dict[tuple[int, int], Table] = field(default_factory=dict)
    _quantisers: set[int] = field(default_factory=set)
    _scans: int = 0

    def scans(self) -> Iterator[Scan]:
        """One scan after the other; call `resume` before asking for the next. Raises Untileable."""
        if bytes(self.data[:2]) != b"\xff\xd8":
            raise Untileable(Reason.NOT_JPEG)
        while True:
            marker, body = self._segment()
            if marker == EOI:
                if self._scans == 0:
                    raise Untileable(Reason.DAMAGED)
                self.end = self._at
                return
            if marker == SOS:
                yield self._scan(body)
                self._scans += 1
            else:
                self._take(marker, body)

    def resume(self, at: int) -> None:
        """Go on at the marker that ended a scan's data."""
        self._at = at

    def _segment(self) -> tuple[int, bytes]:
        data, at = self.data, self._at
        if at + 2 > len(data) or data[at] != 0xFF:
            raise Untileable(Reason.DAMAGED)
        while at + 1 < len(data) and data[at + 1] == 0xFF:  # fill bytes
            at += 1
        if at + 2 > len(data):
            raise Untileable(Reason.DAMAGED)
        marker = data[at + 1]
        if marker == EOI:
            self._at = at + 2
            return marker, b""
        if marker in (0x00, 0x01, SOI) or 0xD0 <= marker <= 0xD7 or at + 4 > len(data):
            raise Untileable(Reason.DAMAGED)
        length = data[at + 2] << 8 | data[at + 3]
        if length < 2 or at + 2 + length > len(data):
            raise Untileable(Reason.DAMAGED)
        self._at = at + 2 + length
        return marker, bytes(data[at + 4 : self._at])

    def _take(self, marker: int, body: bytes) -> None:
        if marker in _CODING:
            raise Untileable(Reason[_CODING[marker]])
        if marker == DHT:
            self._tables.update(_split_tables(body))
        elif marker == DRI:
            if len(body) != 2:
                raise Untileable(Reason.DAMAGED)
            self._interval = body[0] << 8 | body[1]
        elif marker in (BASELINE, EXTENDED, PROGRESSIVE):
            if self.frame is not None:
                raise Untileable(Reason.UNUSUAL)
            self.frame = _frame(marker, body)
            self.head.append(Segment(marker, body))
        elif marker == DQT:
            if self._scans:  # decoders disagree about when it takes effect
                raise Untileable(Reason.UNUSUAL)
            self._quantisers.update(_quantisers(body))
            self.head.append(Segment(marker, body))
        elif marker in _OTHER:
            if marker == _JFIF and len(body) >= 14 and body[:5] == b"JFIF\0" and body[5] != 1:
                raise Untileable(Reason.UNUSUAL)
            (self.tail if self._scans else self.head).append(Segment(marker, body))
        else:  # DNL, reserved codes
            raise Untileable(Reason.UNUSUAL)

    def _scan(self, body: bytes) -> Scan:
        frame = self.frame
        if frame is None or len(body) < 1 or len(body) != 4 + 2 * body[0] or body[0] == 0:
            raise Untileable(Reason.DAMAGED)
        if self._scans == 0:
            self._judge(frame)
        count = body[0]
        ids = [c.id for c in frame.components]
        chosen = list(body[1 : 1 + 2 * count : 2])
        if len(set(chosen)) != count or any(i not in ids for i in chosen):
            raise Untileable(Reason.DAMAGED)
        components = tuple(ids.index(i) for i in chosen)
        if components != tuple(sorted(components)):
            raise Untileable(Reason.UNUSUAL)
        if count > 1 and sum(frame.components[i].h * frame.components[i].v for i in components) > 10:
            raise Untileable(Reason.DAMAGED)
        tables = body[2 : 2 + 2 * count : 2]
        first, last, bits = body[-3:]
        return Scan(
            components,
            tuple(t >> 4 for t in tables),
            tuple(t & 15 for t in tables),
            first,
            last,
            bits >> 4,
            bits & 15,
            self._interval,
            dict(self._tables),
            self._at,
            body,
        )

    def _judge(self, frame: Frame) -> None:
        """Refuse headers that a decoder would refuse or warn of."""
        if any(c.quantisation not in self._quantisers for c in frame.components):
            raise Untileable(Reason.DAMAGED)
        transforms = {1: range(256), 3: (0, 1), 4: (0, 2)}.get(len(frame.components), ())
        pieces: list[bytes] = []  # of a colour profile
        for marker, body in self.head:
            if marker == _ADOBE and body[:5] == b"Adobe" and len(body) >= 12 and body[11] not in transforms:
                raise Untileable(Reason.UNUSUAL)
            if marker == _ICC and body[:12] == b"ICC_PROFILE\0" and len(body) >= 14:
                pieces.append(body)
        if pieces:
            numbered = sorted(body[12] for body in pieces) == list(range(1, len(pieces) + 1))
            agreed = all(body[13] == len(pieces) for body in pieces)
            if not numbered or not agreed or all(len(body) == 14 for body in pieces):
                raise Untileable(Reason.UNUSUAL)


def _frame(marker: int, body: bytes) -> Frame:
    if len(body) < 6 or len(body) != 6 + 3 * body[5]:
        raise Untileable(Reason.DAMAGED)
    precision, height, width, count = struct.unpack_from(">BHHB", body)
    if precision != 8:
        raise Untileable(Reason.PRECISION)
    components = tuple(
        Component(body[i], body[i + 1] >> 4, body[i + 1] & 15, body[i + 2]) for i in range(6, 6 + 3 * count, 3)
    )
    if width == 0 or height == 0 or not 1 <= count <= 4:  # height 0: a DNL marker tells it later
        raise Untileable(Reason.UNUSUAL)
    if width > _MOST_PIXELS_ACROSS or height > _MOST_PIXELS_ACROSS:
        raise Untileable(Reason.LARGE)
    if len({c.id for c in components}) != count or any(not (1 <= c.h <= 4 and 1 <= c.v <= 4) for c in components):
        raise Untileable(Reason.DAMAGED)
    return Frame(marker, width, height, components)


def split_tables(body: bytes) -> dict[tuple[int, int], Table]:
    """The Huffman tables of a DHT segment by (class, id); class 0 is DC. Raises Untileable."""
    return dict(_split_tables(body))


@lru_cache(maxsize=256)  # encoders use the same tables over and over
def _split_tables(body: bytes) -> tuple[tuple[tuple[int, int], Table], ...]:
    tables: dict[tuple[int, int], Table] = {}
    at = 0
    while at < len(body):
        counts = body[at + 1 : at + 17]
        total = sum(counts)
        symbols = body[at + 17 : at + 17 + total]
        kind, number = body[at] >> 4, body[at] & 15
        if len(counts) != 16 or total > 256 or len(symbols) != total or kind > 1 or number > 3:
            raise Untileable(Reason.DAMAGED)
        space = sum(count << (15 - i) for i, count in enumerate(counts))
        # More codes than fit (Kraft), or one of all ones: it is reserved (C.2), and libjpeg refuses it.
        if space >= 1 << 16 or (kind == _DC and max(symbols, default=0) > 15):
            raise Untileable(Reason.DAMAGED)
        tables[kind, number] = (counts, symbols)
        at += 17 + total
    return tuple(tables.items())


def _quantisers(body: bytes) -> Iterator[int]:
    """Which quantisation tables a DQT segment defines. Raises Untileable."""
    at = 0
    while at < len(body):
        precision, number = body[at] >> 4, body[at] & 15
        at += 65 + 64 * precision
        if precision > 1 or number > 3 or at > len(body):
            raise Untileable(Reason.DAMAGED)
        yield number


def table_body(kind: int, number: int, table: Table) -> bytes:
    """One table as it stands in a DHT segment."""
    return bytes((kind << 4 | number,)) + table[0] + table[1]
