"""The first rows of a PNG that is damaged below them: what compiled code decodes of it, without compiled code."""

import struct
import zlib

_CHANNELS = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}  # by colour type
_SIGNATURE = 8
_KEPT = (b"PLTE", b"tRNS")


def first_rows(data: bytes | memoryview, bottom: int) -> bytes | None:
    """A PNG of rows [0, bottom) of this one, whose header is known to be right; None if they are not whole, either.

    They are whole if all chunks that they take have the right checksums. Interlaced files have no first rows.
    """
    view = memoryview(data)
    width, _, depth, kind, _, _, interlaced = struct.unpack_from(">IIBBBBB", view, 16)
    if interlaced or kind not in _CHANNELS:
        return None
    wanted = ((width * _CHANNELS[kind] * depth + 7) // 8 + 1) * bottom
    inflating = zlib.decompressobj()
    rows, kept = bytearray(), bytearray()
    offset = _SIGNATURE
    while offset + 12 <= len(view) and len(rows) < wanted:
        size = int.from_bytes(view[offset : offset + 4], "big")
        name, content = bytes(view[offset + 4 : offset + 8]), view[offset + 8 : offset + 8 + size]
        end = offset + 8 + size
        if end + 4 > len(view) or zlib.crc32(view[offset + 4 : end]) != int.from_bytes(view[end : end + 4], "big"):
            return None
        if name == b"IDAT":
            try:
                rows += inflating.decompress(content, wanted - len(rows))
            except zlib.error:
                return None
        elif name in _KEPT:
            kept += view[offset : end + 4]
        offset = end + 4
    if len(rows) < wanted:
        return None
    header = struct.pack(">IIBBBBB", width, bottom, depth, kind, 0, 0, 0)
    pixels = chunk(b"IDAT", zlib.compress(rows, 0))
    return b"".join((bytes(view[:_SIGNATURE]), chunk(b"IHDR", header), kept, pixels, chunk(b"IEND", b"")))


def chunk(name: bytes, content: bytes) -> bytes:
    """A chunk of a PNG."""
    return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))
