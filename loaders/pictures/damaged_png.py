"""Rows of a PNG that is damaged elsewhere: what compiled code decodes of it, without compiled code."""

import struct
import zlib
from typing import NamedTuple

CHANNELS = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}  # by colour type
GROUPS = b"fgRP"  # the chunk that says how many rows a group has: see `grouped_png`
SIGNATURE = b"\x89PNG\r\n\x1a\n"

_HEADER = 2  # bytes of a stream of zlib before what is deflated
_KEPT = (b"PLTE", b"tRNS")


class WholeRows(NamedTuple):
    """A PNG of some rows of another one, and the first of these."""

    png: bytes
    first: int


def whole_rows(data: bytes | memoryview, top: int, bottom: int) -> WholeRows | None:
    """A PNG with rows [top, bottom) of this one, whose header is known to be right; None if they are damaged, too.

    They are whole if all chunks that they take have the right checksums: those down to the last row, or of a PNG in
    groups of rows only these groups. Interlaced files have no such rows.
    """
    view = memoryview(data)
    width, height, depth, kind, _, _, interlaced = struct.unpack_from(">IIBBBBB", view, 16)
    if interlaced or kind not in CHANNELS:
        return None
    length = (width * CHANNELS[kind] * depth + 7) // 8 + 1
    before, parts = _parts(view)
    if before is None:
        return None
    group = before.pop(GROUPS, None)
    count = 0 if group is None or len(group) != 4 else int.from_bytes(group)
    if not count or len(parts) != -(-height // count):
        first, rows = 0, _inflated(parts, bottom * length, _HEADER)
    else:
        first = top // count * count
        rows = b""
        for number in range(top // count, -(-bottom // count)):
            wanted = (min(bottom, (number + 1) * count) - number * count) * length
            found = _inflated(parts[number : number + 1], wanted, 0 if number else _HEADER)
            if found is None:
                return None
            rows += found
    if rows is None or (first and rows[0] > 1):  # a filter that needs the row above
        return None
    header = struct.pack(">IIBBBBB", width, bottom - first, depth, kind, 0, 0, 0)
    kept = [chunk(name, before[name]) for name in _KEPT if name in before]
    pixels = chunk(b"IDAT", zlib.compress(rows, 0))
    return WholeRows(b"".join((SIGNATURE, chunk(b"IHDR", header), *kept, pixels, chunk(b"IEND", b""))), first)


def _parts(view: memoryview) -> tuple[dict[bytes, bytes] | None, list[memoryview | None]]:
    """The chunks before the pixels, None if one is damaged; and those of pixels, each None if it is damaged."""
    before: dict[bytes, bytes] = {}
    parts: list[memoryview | None] = []
    offset = len(SIGNATURE)
    while offset + 12 <= len(view):
        end = offset + 8 + int.from_bytes(view[offset : offset + 4], "big")
        name, content = bytes(view[offset + 4 : offset + 8]), view[offset + 8 : end]
        whole = end + 4 <= len(view)
        whole = whole and zlib.crc32(view[offset + 4 : end]) == int.from_bytes(view[end : end + 4], "big")
        if name == b"IDAT":
            parts.append(content if whole else None)
        elif parts:
            break
        elif not whole:
            return None, parts
        else:
            before[name] = bytes(content)
        offset = end + 4
    return before, parts


def _inflated(parts: list[memoryview | None], wanted: int, skipped: int) -> bytes | None:
    """The first bytes of a stream that is cut into chunks, without its header; None if these are damaged.

    The checksum of all rows is not looked at, as it is behind them.
    """
    inflating = zlib.decompressobj(-zlib.MAX_WBITS)
    rows = bytearray()
    try:
        for part in parts:
            if len(rows) >= wanted or part is None:
                break
            rows += inflating.decompress(part[skipped:], wanted - len(rows))
            skipped = max(skipped - len(part), 0)
    except zlib.error:
        return None
    return bytes(rows) if len(rows) == wanted else None


def chunk(name: bytes, content: bytes) -> bytes:
    """A chunk of a PNG."""
    return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))
