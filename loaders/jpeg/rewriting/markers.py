"""A JPEG file's segments, tables and scans, as far as lossless rewriting needs them.

`frame` reads the markers, one segment at a time. This parser is stricter than a decoder: only a file that is fully
understood is rewritten, so it refuses every header that libjpeg-turbo refuses or warns about. A rewritten file is then
known to be decodable without decoding it; `tests/loaders/jpeg/test_tiles_fuzz.py` checks that.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from fastimg.loaders.jpeg.decoding.frame import DHT, DRI, EOI, SOI, SOS, Header, new_header, parse_segments, view_of

_ICC = 0xE2
_SEGMENTS = 32  # that are read in one call; most files have fewer before their scan


class Reason(StrEnum):
    """Why a file is left unchanged."""

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


# Indexed by a header's fault.
_REFUSED = (
    *(None, Reason.DAMAGED, Reason.UNUSUAL, Reason.PRECISION),
    *(Reason.LARGE, Reason.LOSSLESS, Reason.ARITHMETIC, Reason.HIERARCHICAL),
)


class Untileable(Exception):
    """The file must be left unchanged."""

    def __init__(self, reason: Reason) -> None:
        super().__init__(reason.value)
        self.reason = reason


class Component(NamedTuple):
    """One colour plane of the frame."""

    id: int
    h: int  # blocks per MCU, across
    v: int  # blocks per MCU, down
    quantisation: int


class Segment(NamedTuple):
    """A marker, and the bytes after its length field."""

    marker: int
    body: bytes

    def encoded(self) -> bytes:
        """The segment as bytes of a file."""
        return bytes((0xFF, self.marker)) + (len(self.body) + 2).to_bytes(2, "big") + self.body


Table = tuple[bytes, bytes]  # number of codes of each length, 1 to 16; the symbols in the order of their codes


class Frame(NamedTuple):
    """The frame of a header: size and components."""

    marker: int
    width: int
    height: int
    components: tuple[Component, ...]
    mcu_size: tuple[int, int]  # pixels of an interleaved MCU, across and down

    @classmethod
    def of(cls, header: Any) -> "Frame":
        """The frame of a header record whose SOF has been read."""
        fields = (header[name].tolist() for name in ("id", "h", "v", "quantiser"))
        components = [Component(*values) for values in zip(*fields, strict=True)]
        return cls(
            int(header["sof"]),
            int(header["width"]),
            int(header["height"]),
            tuple(components[: header["components"]]),
            (int(header["mcu_width"]), int(header["mcu_height"])),
        )

    @property
    def gray(self) -> bool:
        """Whether there is one component: its MCU is a single block, whatever its sampling factors (A.2.2)."""
        return len(self.components) == 1

    @property
    def mcus(self) -> tuple[int, int]:
        """MCUs of the interleaved image, across and down."""
        width, height = self.mcu_size
        return -(-self.width // width), -(-self.height // height)

    def blocks(self, component: int) -> tuple[int, int]:
        """Blocks of a component in a scan of its own, across and down (A.2.3)."""
        c = self.components[component]
        width, height = self.mcu_size
        across = -(-self.width * c.h * 8 // width)
        down = -(-self.height * c.v * 8 // height)
        return -(-across // 8), -(-down // 8)

    @property
    def owners(self) -> list[int]:
        """The component of each block of an interleaved MCU."""
        return [i for i, c in enumerate(self.components) for _ in range(c.h * c.v)]


class Scan(NamedTuple):
    """A scan header, and the tables and restart interval that apply to it."""

    components: tuple[int, ...]  # indices into the frame's components
    dc: tuple[int, ...]  # DC table of each component
    ac: tuple[int, ...]  # AC table of each component
    first: int  # coefficient in zigzag order
    last: int
    high: int  # successive approximation: the bit position before this scan, 0 in a first scan
    low: int
    interval: int  # MCUs between restarts, 0 for none
    tables: dict[tuple[int, int], Table]  # (class, id): class 0 is DC
    begin: int  # where the entropy-coded data begins
    body: bytes


@dataclass
class Parser:
    """Reads segments from the start. After each scan the decoder of its data calls `resume` with the next marker."""

    data: memoryview
    header: Header = field(default_factory=new_header)
    head: list[Segment] = field(default_factory=list)  # segments before the first scan, with SOF, without DHT and DRI
    tail: list[Segment] = field(default_factory=list)  # segments between the scans and after the last
    end: int = 0  # position after EOI, once it has been reached

    @cached_property
    def frame(self) -> Frame:
        """The frame, available once a scan has been read."""
        return Frame.of(self.header[0])

    @cached_property
    def array(self) -> npt.NDArray[np.uint8]:
        """The data as an array, for compiled code."""
        return view_of(self.data)

    def scans(self) -> Iterator[Scan]:
        """Yield the scans in order; call `resume` before requesting the next. Raises Untileable."""
        if bytes(self.data[:2]) != bytes((0xFF, SOI)):
            raise Untileable(Reason.NOT_JPEG)
        header = self.header[0]
        header["offset"] = 2
        found = np.empty((_SEGMENTS, 3), np.int64)
        segments = self.head
        while True:
            count = parse_segments(self.array, self.header, found)
            refused = _REFUSED[header["fault"]]
            if refused is not None:
                raise Untileable(refused)
            for marker, begin, end in found[:count].tolist():
                if marker == EOI:
                    if header["scans"] == 0:
                        raise Untileable(Reason.DAMAGED)
                    self.end = end
                    return
                body = bytes(self.data[begin:end])
                if marker == SOS:
                    if header["scans"] == 1:
                        self._check_profile()
                    yield self._scan(body)
                    segments = self.tail
                elif marker not in (DHT, DRI):
                    segments.append(Segment(marker, body))

    def resume(self, at: int) -> None:
        """Continue at the marker that ended a scan's data."""
        self.header[0]["offset"] = at

    def _scan(self, body: bytes) -> Scan:
        header = self.header[0]
        count = int(header["scan_components"])
        chosen, dc, ac = (tuple(header[name].tolist()[:count]) for name in ("chosen", "dc", "ac"))
        first, last, high, low = (int(header[name]) for name in ("first", "last", "high", "low"))
        interval = int(header["interval"])
        begin = int(header["offset"])
        return Scan(chosen, dc, ac, first, last, high, low, interval, self.codes(), begin, body)

    def codes(self) -> dict[tuple[int, int], Table]:
        """The current Huffman tables, by (class, id); class 0 is DC."""
        tables: dict[tuple[int, int], Table] = {}
        for kind, name in enumerate(("dc_codes", "ac_codes")):
            for number, begin in enumerate(self.header[0][name].tolist()):
                if begin:
                    counts = bytes(self.data[begin : begin + 16])
                    tables[kind, number] = counts, bytes(self.data[begin + 16 : begin + 16 + sum(counts)])
        return tables

    @property
    def code_places(self) -> npt.NDArray[np.int64]:
        """Where the current Huffman tables begin in the data [2, 4], by class and id; 0 for none."""
        header = self.header[0]
        return np.array((header["dc_codes"], header["ac_codes"]), np.int64)

    def _check_profile(self) -> None:
        """Refuse a colour profile with missing pieces, which libjpeg warns about."""
        pieces = [
            s.body for s in self.head if s.marker == _ICC and s.body[:12] == b"ICC_PROFILE\0" and len(s.body) >= 14
        ]
        if pieces:
            numbered = sorted(body[12] for body in pieces) == list(range(1, len(pieces) + 1))
            agreed = all(body[13] == len(pieces) for body in pieces)
            if not numbered or not agreed or all(len(body) == 14 for body in pieces):
                raise Untileable(Reason.UNUSUAL)


def table_body(kind: int, number: int, table: Table) -> bytes:
    """A table as the bytes of a DHT segment."""
    return bytes((kind << 4 | number,)) + table[0] + table[1]
