"""PNG files whose rows can be read in groups, without loss: ordinary PNGs that every reader reads.

Of each group of rows the deflated bytes are a chunk of their own. It begins behind a full flush, and its first row has
a filter that needs no row above, so that a crop inflates only the groups that it touches: the lengths of the chunks are
the index. A chunk `fgRP` before the pixels says how many rows a group has (4 bytes): ancillary, private, and not to be
copied by programs that change pixels (PNG, 3rd edition, 5.4, 11.2.3, 14).
"""

import struct
import zlib
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
import numpy.typing as npt

from .damaged_png import CHANNELS, GROUPS, SIGNATURE, chunk
from .filters import filter_first, undo_filters

ROWS = 64  # of a group; 16 cost more bytes, and what they save is lost in beginning more groups
MAX_COST = 0.03  # share of the file's bytes that groups may add
_LEAST_GROUPS = 4  # with fewer, most crops touch all of them


class Kept(StrEnum):
    """Why a PNG is not rewritten."""

    GROUPED = "already"
    SMALL = "small"
    INTERLACED = "interlaced"
    ANIMATED = "animated"
    COSTLY = "groups would add more than 3 %"
    DAMAGED = "damaged"
    OTHER = "its groups would decode to other pixels"


@dataclass(frozen=True, slots=True)
class Grouped:
    """The result of rewriting a file."""

    png: bytes
    kept: Kept | None = None  # why `png` is the unchanged file; None if it was rewritten


def group_rows(png: bytes, rows: int = ROWS, max_cost: float = MAX_COST) -> Grouped:
    """Rewrite a PNG in groups of `rows` rows, with the same pixels and other chunks.

    Groups may make it larger by `max_cost` of its bytes.

    Chunks but those of pixels stay byte for byte. A file that is not fully understood is returned unchanged with the
    reason; no error is raised.
    """
    try:
        return _rewritten(png, rows, max_cost)
    except (struct.error, zlib.error, KeyError):
        return Grouped(png, Kept.DAMAGED)


def _rewritten(png: bytes, count: int, max_cost: float) -> Grouped:
    found = _chunks(png)
    names = [name for name, _ in found]
    if not found or names[0] != b"IHDR" or names[-1] != b"IEND":
        return Grouped(png, Kept.DAMAGED)
    if GROUPS in names:
        return Grouped(png, Kept.GROUPED)
    if b"acTL" in names:
        return Grouped(png, Kept.ANIMATED)
    width, height, depth, colour, _, _, interlaced = struct.unpack(">IIBBBBB", found[0][1])
    if interlaced:
        return Grouped(png, Kept.INTERLACED)
    length = (width * CHANNELS[colour] * depth + 7) // 8
    if -(-height // count) < _LEAST_GROUPS:
        return Grouped(png, Kept.SMALL)
    places = [number for number, name in enumerate(names) if name == b"IDAT"]
    if not places or places != list(range(places[0], places[-1] + 1)):
        return Grouped(png, Kept.DAMAGED)
    rows = _inflated([found[place][1] for place in places], height, length)
    if rows is None:
        return Grouped(png, Kept.DAMAGED)
    step = max(1, CHANNELS[colour] * depth // 8)
    pixels = rows.copy()
    if not undo_filters(pixels.ctypes.data, height, length, step, 0):
        return Grouped(png, Kept.DAMAGED)
    for first in range(0, height, count):
        filter_first(rows, pixels, first, length, step)
    parts = _deflated(rows[: height * (length + 1)], count * (length + 1))
    again = _inflated(parts, height, length)
    if again is None or not undo_filters(again.ctypes.data, height, length, step, 0):
        return Grouped(png, Kept.OTHER)
    before, after = (each[: height * (length + 1)].reshape(height, -1)[:, 1:] for each in (pixels, again))
    if not np.array_equal(before, after):
        return Grouped(png, Kept.OTHER)
    mark = (GROUPS, struct.pack(">I", count))
    chunks = [*found[: places[0]], mark, *((b"IDAT", part) for part in parts), *found[places[-1] + 1 :]]
    made = SIGNATURE + b"".join(chunk(*each) for each in chunks)
    return Grouped(png, Kept.COSTLY) if len(made) > len(png) * (1 + max_cost) else Grouped(made)


def _chunks(png: bytes) -> list[tuple[bytes, bytes]]:
    """The chunks of a PNG, up to its end; none if one of them has a wrong checksum."""
    found: list[tuple[bytes, bytes]] = []
    offset = len(SIGNATURE)
    while offset + 12 <= len(png) and (not found or found[-1][0] != b"IEND"):
        end = offset + 8 + int.from_bytes(png[offset : offset + 4], "big")
        name, content = png[offset + 4 : offset + 8], png[offset + 8 : end]
        if zlib.crc32(png[offset + 4 : end]) != int.from_bytes(png[end : end + 4], "big"):
            return []
        found.append((name, content))
        offset = end + 4
    return found


def _inflated(parts: list[bytes], height: int, length: int) -> npt.NDArray[np.uint8] | None:
    """The filtered rows, and some bytes behind them; None if they are others."""
    nbytes = height * (length + 1)
    inflating = zlib.decompressobj()
    rows = inflating.decompress(b"".join(parts), nbytes + 1)
    if len(rows) != nbytes or not inflating.eof:
        return None
    out = np.zeros(nbytes + 16, np.uint8)
    out[:nbytes] = np.frombuffer(rows, np.uint8)
    return out


def _deflated(rows: npt.NDArray[np.uint8], nbytes: int) -> list[bytes]:
    """One stream, a part for every `nbytes` of the rows."""
    packer = zlib.compressobj(9, zlib.DEFLATED, 15, 9, zlib.Z_FILTERED)
    parts = []
    for begin in range(0, len(rows), nbytes):
        last = begin + nbytes >= len(rows)
        part = packer.compress(rows[begin : begin + nbytes].data)
        parts.append(part + packer.flush(zlib.Z_FINISH if last else zlib.Z_FULL_FLUSH))
    return parts
