"""Headers of tar members: written as ustar, read from any writer.

Supported for reading: v7, ustar, PAX (POSIX.1-2017, pax, "ustar Interchange Format" and "pax Extended Header"), and
GNU's long names and base-256 numbers (GNU tar's manual, "Basic Tar Format"). Anything else is an error, never skipped.
"""

import os
import struct
from collections.abc import Iterator
from typing import NamedTuple

BLOCK = 512
FILE, HARD_LINK, SYMLINK, FOLDER, VOLUME = "0", "1", "2", "5", "V"  # kinds of members

_MAX_OCTAL_SIZE = 8**11
_MAX_NAMES = 1 << 20  # bytes of an extended header, at most
_NO_DATA = frozenset("123456")  # links, devices, folders, pipes: the size in their headers is ignored
_FILES = {"\0": FILE, "7": FILE}  # v7's code for files; contiguous files


class TarMember(NamedTuple):
    """A member of a tar: `data = tar[offset : offset + size]`. `name` and `link` may hold surrogates for odd bytes."""

    name: str
    kind: str  # the type flag
    offset: int
    size: int
    link: str  # what a link points to
    sparse: bool  # the data is a map and the pieces between holes


def _header_of_all() -> bytearray:
    """The header of a regular file, without its name and its size, and with spaces in place of the checksum."""
    header = bytearray(BLOCK)
    for at, field in (
        (100, b"0000644\0"),  # mode
        (108, b"0000000\0"),  # uid
        (116, b"0000000\0"),  # gid
        (136, b"%011o\0" % 0),  # mtime
        (148, b" " * 8),
        (156, b"0"),  # a regular file
        (257, b"ustar\x0000"),
    ):
        header[at : at + len(field)] = field
    return header


_HEADER = _header_of_all()
_HEADER_SUM = sum(_HEADER)
_SIZE, _SUM = slice(124, 136), slice(148, 156)


def member_header(name: str, size: int) -> bytes:
    """A ustar header of 512 bytes, which depends only on the name and size."""
    encoded = name.encode()
    if len(encoded) > 100 or size >= _MAX_OCTAL_SIZE:
        raise ValueError(f"{name}: a ustar member has a name of at most 100 bytes and a size under 8 GiB")
    octal = b"%011o\0" % size
    header = _HEADER.copy()
    header[: len(encoded)] = encoded
    header[_SIZE] = octal
    header[_SUM] = b"%06o\0 " % (_HEADER_SUM + sum(encoded) + sum(octal))
    return bytes(header)


def stated_size(header: bytes | memoryview) -> int:
    """The size in a header, -1 if it has none."""
    return _number(bytes(header[124:136]))


def states_size(header: bytes | memoryview, size: int) -> bool:
    """Whether it is the size in a header."""
    return bytes(header[_SIZE]) == b"%011o\0" % size or stated_size(header) == size


def entries(file: int) -> Iterator[TarMember]:
    """Yield the members of an open tar in order. Raises ValueError for an invalid tar, and OSError."""
    total = os.fstat(file).st_size
    at = 0
    ours: dict[str, bytes] = {}  # extended header of the next member
    everyones: dict[str, bytes] = {}  # extended header of all members that follow
    while True:
        header = os.pread(file, BLOCK, at)
        if len(header) < BLOCK:
            raise ValueError(f"it is cut short: no end marker at byte {at}")
        if not any(header):
            break
        if not _is_header(header):
            raise ValueError(f"byte {at} is not a header")
        kind = chr(header[156])
        stated = stated_size(header)
        begin = at + BLOCK
        if stated < 0:
            raise ValueError(f"the header at byte {at} has no valid size")
        if kind in "xgXLK":
            if stated > _MAX_NAMES:
                raise ValueError(f"the extended header at byte {at} is too long ({stated} bytes)")
            data = os.pread(file, _padded(stated), begin)
            at = begin + _padded(stated)
            if data[stated:].strip(b"\0"):
                raise ValueError(f"the extended header before byte {at} is longer than its stated size")
            data = data[:stated]
            if kind in "LK":
                name = data.rstrip(b"\0")
                if not name or b"\0" in name:
                    raise ValueError(f"the long name before byte {at} is invalid")
                values = {"path" if kind == "L" else "linkpath": name}
            else:
                values = _records(data, at)
            if kind == "g":
                everyones |= values
            elif values.keys() & ours.keys():
                raise ValueError(f"two extended headers before byte {at} contradict each other: a header is missing")
            else:
                ours |= values
            continue
        extended = everyones | ours
        size = _decimal(extended["size"], at) if extended.get("size") else stated
        path = _text(extended.get("path") or _name(header))
        link = _text(extended.get("linkpath") or _field(header, 157, 257))
        kind = FOLDER if kind == "\0" and path.endswith("/") else _FILES.get(kind, kind)
        if kind in _NO_DATA:
            size = 0
        if begin + size > total:
            raise ValueError(f"it is cut short: {path} ends after the end of the file")
        if size != stated and kind == FILE:  # `read` checks the header right before the data
            raise ValueError(f"{path} has a size of {stated} bytes in its header and of {size} in its extended header")
        sparse = kind == "S" or any(key.startswith("GNU.sparse.") for key in extended)
        yield TarMember(path, kind, begin, size, link, sparse)
        at = begin + _padded(size)
        ours = {}
    if ours:
        raise ValueError(f"it ends after an extended header at byte {at}")
    while block := os.pread(file, 1 << 20, at):
        if block.strip(b"\0"):
            raise ValueError(f"there is data after its end marker at byte {at}, perhaps another tar")
        at += len(block)


def _is_header(header: bytes) -> bool:
    stated = _number(header[148:156])
    blank = header[:148] + b" " * 8 + header[156:]
    return stated == sum(blank) or stated == sum(struct.unpack("512b", blank))  # old tars sum signed bytes


def _number(field: bytes) -> int:
    """A number in octal digits, or in base 256 if the first bit is set; -1 if it is invalid or negative."""
    if field[0] & 0x80:
        return int.from_bytes(field[1:], "big") if field[0] == 0x80 else -1
    digits = field.split(b"\0")[0].strip(b" ")
    return -1 if digits.strip(b"01234567") else int(digits or b"0", 8)


def _decimal(digits: bytes, at: int) -> int:
    if not digits.isdigit() or len(digits) > 19:
        raise ValueError(f"the extended header before byte {at} is invalid")
    return int(digits)


def _records(data: bytes, end: int) -> dict[str, bytes]:
    """`<length> <key>=<value>\\n` of a PAX header that ends at `end`."""
    values = {}
    at = 0
    data = data.rstrip(b"\0")
    while at < len(data):
        length = data[at : at + 20].partition(b" ")[0]
        begin = at + len(length) + 1
        until = at + _decimal(length, end)
        key, equals, value = data[begin : until - 1].partition(b"=")
        if until <= begin or not equals or data[until - 1 : until] != b"\n":
            raise ValueError(f"the extended header before byte {end} is invalid")
        values[_text(key)] = value
        at = until
    return values


def _name(header: bytes) -> bytes:
    name = _field(header, 0, 100)
    prefix = _field(header, 345, 500) if header[257:263] == b"ustar\0" else b""  # GNU stores dates there
    return prefix + b"/" + name if prefix else name


def _field(header: bytes, begin: int, end: int) -> bytes:
    return header[begin:end].split(b"\0")[0]


def _text(name: bytes) -> str:
    return name.decode("utf-8", "surrogateescape")


def _padded(size: int) -> int:
    return -(-size // BLOCK) * BLOCK
