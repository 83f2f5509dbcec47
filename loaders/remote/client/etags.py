"""ETags that are checksums: S3's, of an object that was sent whole, its MD5; of one in parts, the MD5 of theirs.

Of an object in parts nobody states how long these were, so the lengths that programs use are tried.
"""

import hashlib
import os
import re
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from obstore import ObjectMeta

Read = Callable[[int, int], bytes]  # (start, bytes): of a file

_TAG = re.compile(r'"([0-9a-f]{32})(?:-([1-9]\d{0,4}))?"')
_TIME = "written "
_MIB = 1 << 20
_PARTS = (5, 6, 7, 8, 10, 12, 15, 16, 20, 24, 25, 32, 48, 50, 64, 96, 100, 128, 200, 256, 400, 500, 512, 1024)  # MiB
_MOST_PARTS = (9_000, 10_000)  # ours, and S3's: longer parts of very large files
_BLOCK = 1 << 20


def tag_of(described: "ObjectMeta") -> str:
    """What tells a content of a file from another: its ETag, with quotes, or else the time of its writing."""
    tag = described["e_tag"] or f"{_TIME}{described['last_modified'].isoformat()}"
    return f'"{tag}"' if tag.startswith("0x") else tag  # Azure's lists have no quotes around it


def is_time(tag: str) -> bool:
    """Whether a tag is a time, of a store that states no ETag."""
    return tag.startswith(_TIME)


def may_be_checksum(tag: str) -> bool:
    """Whether an ETag may be a checksum of the content, by its form."""
    return _TAG.fullmatch(tag) is not None


def agrees(tag: str, size: int, read: Read) -> bool:
    """Whether an ETag is the checksum of a content of `size` bytes."""
    found = _TAG.fullmatch(tag)
    if found is None:
        return False
    if found[2] is None:
        return _md5(read, 0, size) == bytes.fromhex(found[1])
    return any(_of_parts(read, size, part) == found[1] for part in _lengths(size, int(found[2])))


def reader(file: int) -> Read:
    """What reads an open file."""
    return lambda start, size: os.pread(file, size, start)


def _lengths(size: int, count: int) -> Iterator[int]:
    """The likely lengths of parts, of which so many make `size` bytes."""
    likely = {part * _MIB for part in _PARTS} | {-(-size // most) for most in _MOST_PARTS}
    likely |= {-(-size // most // _MIB) * _MIB for most in _MOST_PARTS}
    likely |= {-(-size // count), -(-size // count // _MIB) * _MIB}
    return (part for part in sorted(likely) if part and -(-size // part) == count)


def _of_parts(read: Read, size: int, part: int) -> str:
    sums = b"".join(_md5(read, start, min(part, size - start)) for start in range(0, size, part))
    return hashlib.md5(sums, usedforsecurity=False).hexdigest()


def _md5(read: Read, start: int, size: int) -> bytes:
    digest = hashlib.md5(usedforsecurity=False)
    at = 0
    while at < size and (block := read(start + at, min(_BLOCK, size - at))):
        digest.update(block)
        at += len(block)
    return digest.digest()
