"""A PNG's rows, inflated and without their filters, down to the last one that is wanted."""

from typing import Any

import numpy as np

from fastimg.loaders.jpeg.decoding.memory import byte_at, copy_bytes
from fastimg.loaders.runtime.compiled import compiled, inlined, int64

from .checksums import adler32, crc32
from .filters import SUB, undo_filters
from .inflate import DAMAGED as DAMAGED
from .inflate import SLACK, inflate, inflate_two

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
    return int(nbytes + 2 * SLACK + (png.nbytes + _PAD if png.parts > 1 and not png.group else 0))


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
    to = int64(scratch.ctypes.data)
    if png.group:
        if not _has_small_profile(data, png, to, tables):
            return DAMAGED
        first = _first_row(png, top)
        if not _inflate_groups(data, png, first, bottom, to, tables):
            return DAMAGED
        if first and int64(byte_at(to)) > SUB:
            return DAMAGED
        if not undo_filters(to, bottom - first, png.length, png.step, top - first):
            return DAMAGED
        return int(to + 1 - first * (png.length + 1))
    source, to, wanted = _begin_rows(data, png, bottom, to, tables)
    taken, used, ended = inflate(source, _size_of_stream(png, source), to, wanted, tables)
    return _end_rows(data, png, top, bottom, source, to, taken, used, ended)


@compiled
def decode_two(
    data: int,
    png: Any,
    top: int,
    bottom: int,
    scratch: Any,
    data_2: int,
    png_2: Any,
    top_2: int,
    bottom_2: int,
    scratch_2: Any,
    tables: Any,
) -> tuple[int, int]:
    """`decode_rows` of two PNGs without groups, whose streams are inflated in turn."""
    source, to, wanted = _begin_rows(data, png, bottom, int64(scratch.ctypes.data), tables)
    source_2, to_2, wanted_2 = _begin_rows(data_2, png_2, bottom_2, int64(scratch_2.ctypes.data), tables)
    size, size_2 = _size_of_stream(png, source), _size_of_stream(png_2, source_2)
    one, other = inflate_two(source, size, to, wanted, source_2, size_2, to_2, wanted_2, tables)
    return (
        _end_rows(data, png, top, bottom, source, to, one[0], one[1], one[2]),
        _end_rows(data_2, png_2, top_2, bottom_2, source_2, to_2, other[0], other[1], other[2]),
    )


@compiled
def _has_small_profile(data: int, png: Any, to: int, tables: Any) -> bool:
    """Whether the colour profile has as few bytes as Pillow allows, which is seen by inflating it."""
    if png.profile_bytes * _RATIO <= _PROFILE:
        return True
    taken, _, _ = inflate(data + png.profile + 2, png.profile_bytes - 2, to, _PROFILE, tables)
    return bool(taken < _PROFILE)


@compiled
def _begin_rows(data: int, png: Any, bottom: int, to: int, tables: Any) -> tuple[int, int, int]:
    """Where the deflated stream of a PNG begins, where to inflate it, and how many bytes of it.

    The first is 0 if it is damaged.
    """
    source = data + png.body + 8
    if not _has_small_profile(data, png, to, tables):
        return 0, to, 0
    if png.parts > 1:
        _join(data, png, to)
        source = to
        to += png.nbytes + _PAD
    if not _begins_stream(source):
        return 0, to, 0
    return source + 2, to, (png.length + 1) * bottom + (bottom == png.height)


@inlined
def _size_of_stream(png: Any, source: int) -> int:
    """The bytes of a stream without its header and its checksum; 0 if it is damaged."""
    return int(png.nbytes - 2 - _CHECKSUM) if source else 0


@compiled
def _end_rows(
    data: int, png: Any, top: int, bottom: int, source: int, to: int, taken: int, used: int, ended: bool
) -> int:
    """Check what was inflated, and undo the filters. See `decode_rows` for the result."""
    nbytes = (png.length + 1) * bottom
    if source == 0 or taken < nbytes:
        return DAMAGED
    used += 2
    if bottom == png.height:
        if taken > nbytes or not ended or not _is_sum(source - 2 + used, adler32(to, nbytes)):
            return DAMAGED
        used += _CHECKSUM
    if not _are_whole(data, png, used) or not undo_filters(to, bottom, png.length, png.step, top):
        return DAMAGED
    return to + 1


@compiled
def _begins_stream(at: int) -> bool:
    first, second = int64(byte_at(at)), int64(byte_at(at + 1))
    return bool(first & 15 == 8 and first <= 0x78 and not second & 32 and (first << 8 | second) % 31 == 0)


@compiled
def _inflate_groups(data: int, png: Any, first: int, bottom: int, to: int, tables: Any) -> bool:
    """Inflate rows [first, bottom), which begin with a group, to an address, two groups in turn.

    False if they are damaged.
    """
    at, begin, whole = data + png.body, to, False
    sources, sizes = np.zeros(2, np.int64), np.zeros(2, np.int64)
    places, wanted = np.zeros(2, np.int64), np.zeros(2, np.int64)
    waiting, used = 0, 0
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
            last = group == png.parts - 1
            whole = last and row + rows == bottom
            sources[waiting], sizes[waiting], places[waiting] = source, nbytes - _CHECKSUM * last, to
            wanted[waiting] = (png.length + 1) * min(rows, bottom - row)
            to += wanted[waiting]
            waiting += 1
            following = bottom if last else row + png.group
            if waiting == 2 or following >= bottom:
                exact = row + rows <= bottom
                used = _inflate_waiting(sources, sizes, places, wanted, waiting, exact, whole, tables)
                if used == DAMAGED:
                    return False
                source, waiting = sources[waiting - 1], 0
                if whole and first == 0 and not _is_sum(source + used, adler32(begin, to - begin)):
                    return False
        at += 12 + length
    return True


@compiled
def _inflate_waiting(
    sources: Any, sizes: Any, places: Any, wanted: Any, count: int, exact: bool, whole: bool, tables: Any
) -> int:
    """Inflate one or two groups. Returns the bytes of the last one's stream that are read; DAMAGED if one is.

    `exact`: whether the last one has no more rows than are wanted, as the first of two; `whole`: and is the last of
    all, where the stream ends.
    """
    one = 0, 0, False
    if count == 2:
        behind = places[1] + SLACK  # as the first one may write so much behind its own rows
        one, other = inflate_two(
            sources[0], sizes[0], places[0], wanted[0], sources[1], sizes[1], behind, wanted[1] + whole, tables
        )
        for begin in range(0, wanted[1], SLACK):
            copy_bytes(behind + begin, places[1] + begin, min(SLACK, wanted[1] - begin))
        if one[0] != wanted[0] or one[2]:
            return DAMAGED
    else:
        other = inflate(sources[0], sizes[0], places[0], wanted[0] + whole, tables)
    taken, used, ended = other
    if taken < wanted[count - 1] or (taken > wanted[count - 1] and exact) or ended != whole:
        return DAMAGED
    return used


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
