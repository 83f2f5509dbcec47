"""A PNG's rows, inflated and without their filters, down to the last one that is wanted."""

from typing import Any

from fastimg.loaders.jpeg.decoding.memory import byte_at, copy_bytes
from fastimg.loaders.runtime.compiled import compiled, int64

from .checksums import adler32, crc32
from .filters import SUB, undo_filters
from .inflate import DAMAGED as DAMAGED
from .inflate import SLACK, inflate

_PAD = 8  # bytes that may be read behind a stream
_RATIO = 1032  # bytes that deflate makes of one at most
_PROFILE = 1 << 20  # bytes that Pillow allows a colour profile
_CHECKSUM = 4  # bytes behind a stream


@compiled
def size_of_rows(png: Any, top: int, bottom: int) -> int:
    """The bytes of scratch that decoding rows [top, bottom) takes; 0 if the file cannot hold them."""
    nbytes = (png.length + 1) * (bottom - _first_row(png, top))
    if nbytes > png.nbytes * _RATIO:
        return 0
    if png.profile_bytes * _RATIO > _PROFILE:
        nbytes = max(nbytes, _PROFILE + 1)
    return int(nbytes + SLACK + (png.nbytes + _PAD if png.parts > 1 and not png.group else 0))


@compiled
def _first_row(png: Any, top: int) -> int:
    """The first row that has to be decoded for one."""
    return int(top // png.group * png.group if png.group else 0)


@compiled
def decode_rows(data: int, png: Any, top: int, bottom: int, tables: Any, scratch: Any) -> int:
    """Decode rows [top, bottom) of a PNG at the address `data`; those above only as far as needed.

    Returns the address of the first row of the image, behind its filter's number; a row takes length + 1 bytes. That is
    in `scratch`, which has `size_of_rows`. DAMAGED if they cannot be decoded here.
    """
    source = data + png.body + 8
    to = int64(scratch.ctypes.data)
    if png.profile_bytes * _RATIO > _PROFILE:
        taken, _, _ = inflate(data + png.profile + 2, png.profile_bytes - 2, to, _PROFILE, tables)
        if taken >= _PROFILE:
            return DAMAGED
    if png.group:
        first = _first_row(png, top)
        if not _inflate_groups(data, png, first, bottom, to, tables):
            return DAMAGED
        if first and int64(byte_at(to)) > SUB:
            return DAMAGED
        if not undo_filters(to, bottom - first, png.length, png.step, top - first):
            return DAMAGED
        return int(to + 1 - first * (png.length + 1))
    if png.parts > 1:
        _join(data, png, to)
        source = to
        to += png.nbytes + _PAD
    if not _begins_stream(source):
        return DAMAGED
    nbytes = (png.length + 1) * bottom
    whole = bottom == png.height
    taken, used, ended = inflate(source + 2, png.nbytes - 2 - _CHECKSUM, to, nbytes + whole, tables)
    used += 2
    if taken < nbytes:
        return DAMAGED
    if whole:
        if taken > nbytes or not ended or not _is_sum(source + used, adler32(to, nbytes)):
            return DAMAGED
        used += _CHECKSUM
    if not _are_whole(data, png, used):
        return DAMAGED
    if not undo_filters(to, bottom, png.length, png.step, top):
        return DAMAGED
    return int(to + 1)


@compiled
def _begins_stream(at: int) -> bool:
    first, second = int64(byte_at(at)), int64(byte_at(at + 1))
    return bool(first & 15 == 8 and first <= 0x78 and not second & 32 and (first << 8 | second) % 31 == 0)


@compiled
def _inflate_groups(data: int, png: Any, first: int, bottom: int, to: int, tables: Any) -> bool:
    """Inflate rows [first, bottom), which begin with a group, to an address. False if they are damaged."""
    at, begin = data + png.body, to
    for group in range(png.parts):
        length, row = _number(at), group * png.group
        if row >= bottom:
            break
        if row >= first:
            if crc32(at + 4, length + 4) != _number(at + 8 + length):
                return False
            source, nbytes = at + 8, length
            if group == 0:
                if length < 2 or not _begins_stream(source):
                    return False
                source, nbytes = source + 2, nbytes - 2
            rows = min(png.group, png.height - row)
            wanted = (png.length + 1) * min(rows, bottom - row)
            last = group == png.parts - 1
            whole = last and row + rows == bottom
            taken, used, ended = inflate(source, nbytes - _CHECKSUM * last, to, wanted + whole, tables)
            if taken < wanted or (taken > wanted and row + rows <= bottom) or ended != whole:
                return False
            to += wanted
            if whole and first == 0 and not _is_sum(source + used, adler32(begin, to - begin)):
                return False
        at += 12 + length
    return True


@compiled
def _number(at: int) -> Any:
    """The number of 32 bits at an address, the highest byte first."""
    value = 0
    for i in range(4):
        value = value << 8 | int64(byte_at(at + i))
    return value


@compiled
def _is_sum(at: int, value: int) -> bool:
    return bool(_number(at) == value)


@compiled
def _join(data: int, png: Any, to: int) -> None:
    """Copy what is in the chunks of pixels to an address, side by side."""
    at = data + png.body
    for _ in range(png.parts):
        length = _number(at)
        copy_bytes(at + 8, to, length)
        to += length
        at += 12 + length


@compiled
def _are_whole(data: int, png: Any, used: int) -> bool:
    """Whether the checksums of the chunks are right in which the first `used` bytes of pixels lie."""
    at, done = data + png.body, 0
    for _ in range(png.parts):
        if done >= used:
            break
        length = _number(at)
        if crc32(at + 4, length + 4) != _number(at + 8 + length):
            return False
        done += length
        at += 12 + length
    return True
