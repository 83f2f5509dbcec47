"""A JPEG file's segments, tables and scans, as far as lossless rewriting needs them.

The markers are read by `frame`, one segment at a time. Stricter than a decoder: what a decoder would merely warn of is
refused here, since only what is fully understood is rewritten. What libjpeg-turbo refuses or warns of in headers is
refused: who rewrote a file need not decode it to know that it can be decoded. `tests/loaders/jpeg/test_tiles_fuzz.py`
holds that.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from fastimg.loaders.jpeg.decoding.frame import DHT, DRI, EOI, SOI, SOS, Header, new_header, parse_segment, view_of

_ICC = 0xE2


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


# By a header's fault.
_REFUSED = (
    *(None, Reason.DAMAGED, Reason.UNUSUAL, Reason.PRECISION),
    *(Reason.LARGE, Reason.LOSSLESS, Reason.ARITHMETIC, Reason.HIERARCHICAL),
)


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
    """The frame of a header's record: size and components."""

    marker: int
    width: int
    height: int
    components: tuple[Component, ...]
    mcu_size: tuple[int, int]  # pixels of an interleaved MCU, across and down

    @classmethod
    def of(cls, header: Any) -> "Frame":
        """The frame of a record, once its SOF was read."""
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
        """One component: its MCU is a single block, independent of its factors (A.2.2)."""
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
        across, down = -(-self.width * c.h * 8 // width), -(-self.height * c.v * 8 // height)
        return -(-across // 8), -(-down // 8)

    @property
    def owners(self) -> list[int]:
        """The component of each block of an interleaved MCU."""
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


@dataclass
class Parser:
    """Reads segments from the front; the decoder of entropy-coded data skips it, with `resume`."""

    data: memoryview
    header: Header = field(default_factory=new_header)
    head: list[Segment] = field(default_factory=list)  # before the first scan: everything but DHT and DRI; SOF too
    tail: list[Segment] = field(default_factory=list)  # between the scans and after the last
    end: int = 0  # just behind EOI, once it was reached

    @cached_property
    def frame(self) -> Frame:
        """What SOF says. Once a scan was read."""
        return Frame.of(self.header[0])

    @cached_property
    def array(self) -> npt.NDArray[np.uint8]:
        """The data, as compiled code takes it."""
        return view_of(self.data)

    def scans(self) -> Iterator[Scan]:
        """One scan after the other; call `resume` before asking for the next. Raises Untileable."""
        if bytes(self.data[:2]) != bytes((0xFF, SOI)):
            raise Untileable(Reason.NOT_JPEG)
        header = self.header[0]
        header["offset"] = 2
        while True:
            marker = parse_segment(self.array, self.header)
            refused = _REFUSED[header["fault"]]
            if refused is not None:
                raise Untileable(refused)
            if marker == EOI:
                if header["scans"] == 0:
                    raise Untileable(Reason.DAMAGED)
                self.end = int(header["offset"])
                return
            body = bytes(self.data[header["body"] : header["offset"]])
            if marker == SOS:
                if header["scans"] == 1:
                    self._check_profile()
                yield self._scan(body)
            elif marker not in (DHT, DRI):
                (self.tail if header["scans"] else self.head).append(Segment(marker, body))

    def resume(self, at: int) -> None:
        """Go on at the marker that ended a scan's data."""
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
        """The Huffman tables that hold now, by (class, id); class 0 is DC."""
        tables: dict[tuple[int, int], Table] = {}
        for kind, name in enumerate(("dc_codes", "ac_codes")):
            for number, at in enumerate(self.header[0][name].tolist()):
                if at:
                    counts = bytes(self.data[at : at + 16])
                    tables[kind, number] = counts, bytes(self.data[at + 16 : at + 16 + sum(counts)])
        return tables

    def _check_profile(self) -> None:
        """Refuse a colour profile whose pieces are not all there: libjpeg warns of it."""
        pieces = [
            s.body for s in self.head if s.marker == _ICC and s.body[:12] == b"ICC_PROFILE\0" and len(s.body) >= 14
        ]
        if pieces:
            numbered = sorted(body[12] for body in pieces) == list(range(1, len(pieces) + 1))
            agreed = all(body[13] == len(pieces) for body in pieces)
            if not numbered or not agreed or all(len(body) == 14 for body in pieces):
                raise Untileable(Reason.UNUSUAL)


def table_body(kind: int, number: int, table: Table) -> bytes:
    """One table as it stands in a DHT segment."""
    return bytes((kind << 4 | number,)) + table[0] + table[1]
