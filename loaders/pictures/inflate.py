"""Deflate streams -> bytes (RFC 1950, 1951), as far as they are needed, from memory to memory.

What is odd is refused: another decoder has the last word.
"""

from typing import Any

import numpy as np

from fastimg.loaders.jpeg.decoding.memory import (
    byte_at,
    copy_bytes,
    half_at,
    store_byte,
    store_pair,
    store_word,
    word_at,
)
from fastimg.loaders.runtime.compiled import compiled, inlined, int64, uint64

from .huffman import (
    CODE_BITS,
    CODE_ENTRIES,
    CODES,
    DISTANCE_BITS,
    DISTANCE_ENTRIES,
    DISTANCES,
    END,
    FAR,
    LITERAL_BITS,
    LITERAL_ENTRIES,
    MOST_BITS,
    NEAR,
    SPECIAL,
    SUBTABLE,
    build,
    forget_lengths,
    has_end,
    note_length,
)

SLACK = 320  # bytes behind what is wanted that may be written: a match and some literals
DAMAGED = -1
_GOING, _ENDED, _FAILED = 0, 1, 2  # how a block goes

_ORDER = np.array([16, 17, 18, 0, 8, 7, 9, 6, 10, 5, 11, 4, 12, 3, 13, 2, 14, 1, 15], np.int64)
_LARGE = 1 << 13  # bytes that are still wanted, for which tables are made larger
_FEW_BITS = 10  # of the index of literals where fewer are wanted
_LONGEST = 7 + 7  # bits of a length's code, and those behind it


@compiled
def inflate(source: int, nbytes: int, to: int, wanted: int, tables: Any) -> tuple[int, int, bool]:
    """Inflate a deflate stream at `source` to `wanted` bytes or a few more at `to`, where SLACK more may be written.

    `tables` is scratch of `new_tables`. Returns the bytes that are written, DAMAGED if the stream is, the bytes of the
    stream that are read, and whether it has ended.
    """
    state = uint64(to), uint64(0), 0, uint64(source), uint64(0), uint64(0), _ENDED, False
    return _finish(state, source, nbytes, to, wanted, tables[0], tables[1], tables[4])


@compiled
def inflate_two(
    source: int, nbytes: int, to: int, wanted: int, source_2: int, nbytes_2: int, to_2: int, wanted_2: int, tables: Any
) -> tuple[tuple[int, int, bool], tuple[int, int, bool]]:
    """`inflate` of two streams, in turn: while one waits for an entry of its table, the other goes on.

    `tables` is scratch of `new_tables`.
    """
    begin, end, limit = uint64(to), uint64(source + nbytes), uint64(to + wanted)
    begin_2, end_2, limit_2 = uint64(to_2), uint64(source_2 + nbytes_2), uint64(to_2 + wanted_2)
    last, last_2 = _last_word(source, nbytes), _last_word(source_2, nbytes_2)
    table, far = uint64(tables[0].ctypes.data), uint64(tables[1].ctypes.data)
    table_2, far_2 = uint64(tables[2].ctypes.data), uint64(tables[3].ctypes.data)
    out, buffer, count, position = begin, uint64(0), 0, uint64(source)
    out_2, buffer_2, count_2, position_2 = begin_2, uint64(0), 0, uint64(source_2)
    mask, far_mask, status, final = uint64(0), uint64(0), _ENDED, False
    mask_2, far_mask_2, status_2, final_2 = uint64(0), uint64(0), _ENDED, False
    while out < limit and out_2 < limit_2:
        if status == _ENDED and not final:
            out, buffer, count, position, mask, far_mask, status, final = _begin_block(
                out, buffer, count, position, last, end, limit, tables[0], tables[1], tables[4]
            )
        if status_2 == _ENDED and not final_2:
            out_2, buffer_2, count_2, position_2, mask_2, far_mask_2, status_2, final_2 = _begin_block(
                out_2, buffer_2, count_2, position_2, last_2, end_2, limit_2, tables[2], tables[3], tables[4]
            )
        while status == _GOING and status_2 == _GOING and out < limit and out_2 < limit_2:
            out, buffer, count, position, status = _step(
                out, buffer, count, position, begin, last, end, table, far, mask, far_mask
            )
            out_2, buffer_2, count_2, position_2, status_2 = _step(
                out_2, buffer_2, count_2, position_2, begin_2, last_2, end_2, table_2, far_2, mask_2, far_mask_2
            )
        if status == _FAILED or status_2 == _FAILED or (status == _ENDED and final) or (status_2 == _ENDED and final_2):
            break
    state = out, buffer, count, position, mask, far_mask, status, final
    state_2 = out_2, buffer_2, count_2, position_2, mask_2, far_mask_2, status_2, final_2
    return (
        _finish(state, source, nbytes, to, wanted, tables[0], tables[1], tables[4]),
        _finish(state_2, source_2, nbytes_2, to_2, wanted_2, tables[2], tables[3], tables[4]),
    )


@inlined
def _last_word(source: int, nbytes: int) -> Any:
    """The last address of a stream at which 8 bytes can be read."""
    return uint64(max(source + nbytes - 8, 0))


@compiled
def _finish(
    state: Any,
    source: int,
    nbytes: int,
    to: int,
    wanted: int,
    literals: Any,
    distances: Any,
    work: Any,
) -> tuple[int, int, bool]:
    """Inflate what is left of a stream: see `inflate`."""
    out, buffer, count, position, mask, far_mask, status, final = state
    begin, end, limit, last = uint64(to), uint64(source + nbytes), uint64(to + wanted), _last_word(source, nbytes)
    table, far_table = uint64(literals.ctypes.data), uint64(distances.ctypes.data)
    while status != _FAILED:
        while out < limit and status == _GOING:
            out, buffer, count, position, status = _step(
                out, buffer, count, position, begin, last, end, table, far_table, mask, far_mask
            )
        if status != _ENDED or final or out >= limit:
            break
        out, buffer, count, position, mask, far_mask, status, final = _begin_block(
            out, buffer, count, position, last, end, limit, literals, distances, work
        )
    if status == _FAILED or count < 0:
        return DAMAGED, 0, False
    return int64(out) - to, int64(position) - (count >> 3) - source, final and status == _ENDED


@compiled
def _begin_block(
    out: Any,
    buffer: Any,
    count: int,
    position: Any,
    last: Any,
    end: Any,
    limit: Any,
    literals: Any,
    distances: Any,
    work: Any,
) -> tuple[Any, Any, int, Any, Any, Any, int, bool]:
    """Begin a block: its tables are made, or its bytes copied if they are not compressed.

    Returns the new state, the masks of the indexes of both tables, how it goes, and whether it is the stream's last.
    """
    none = uint64(0)
    failed = out, buffer, count, position, none, none, _FAILED, False
    buffer, count, position = _refill(buffer, count, position, last, end)
    if count < 3:
        return failed
    final = bool(buffer & uint64(1))
    kind = int64(buffer >> uint64(1)) & 3
    buffer >>= uint64(3)
    count -= 3
    if kind == 0:
        at = int64(position) - (count >> 3)  # of the next whole byte
        if at + 4 > int64(end):
            return failed
        size = int64(byte_at(at)) | int64(byte_at(at + 1)) << 8
        if size ^ 0xFFFF != (int64(byte_at(at + 2)) | int64(byte_at(at + 3)) << 8):
            return failed
        at += 4
        taken = min(size, int64(limit) - int64(out))
        if at + taken > int64(end):
            return failed
        copy_bytes(at, int64(out), taken)
        return out + uint64(taken), none, 0, uint64(at + taken), none, none, _ENDED, final and taken == size
    if kind == 1:
        number = _fixed(work)
    elif kind == 2:
        number, buffer, count, position = _read_lengths(buffer, count, position, last, end, work, distances)
        if number < 0 or not has_end(work, number):
            return failed
    else:
        return failed
    large = int64(limit) - int64(out) > _LARGE
    far_bits = build(work, number, FAR, DISTANCE_ENTRIES, DISTANCE_BITS, False, True, distances)
    bits = build(work, 0, NEAR, LITERAL_ENTRIES, LITERAL_BITS if large else _FEW_BITS, large, False, literals)
    if bits == 0 or far_bits == 0:
        return failed
    return (
        out,
        buffer,
        count,
        position,
        uint64((1 << bits) - 1),
        uint64((1 << far_bits) - 1),
        _GOING,
        final,
    )


@inlined
def _step(
    out: Any,
    buffer: Any,
    count: int,
    position: Any,
    begin: Any,
    last: Any,
    end: Any,
    literals: Any,
    distances: Any,
    mask: Any,
    far_mask: Any,
) -> tuple[Any, Any, int, Any, int]:
    """Decode some literals of a block, and the match behind them or its end. Returns the new state, and how it goes."""
    buffer, count, position = _refill(buffer, count, position, last, end)
    entry = half_at(literals + (buffer & mask) * uint64(4))
    if not entry & uint64(SPECIAL):
        out, buffer, count = _emit(entry, out, buffer, count)
        entry = half_at(literals + (buffer & mask) * uint64(4))
        if not entry & uint64(SPECIAL):
            out, buffer, count = _emit(entry, out, buffer, count)
            entry = half_at(literals + (buffer & mask) * uint64(4))
            if not entry & uint64(SPECIAL):
                out, buffer, count = _emit(entry, out, buffer, count)
                entry = half_at(literals + (buffer & mask) * uint64(4))
                if not entry & uint64(SPECIAL):
                    out, buffer, count = _emit(entry, out, buffer, count)
                    return out, buffer, count, position, _GOING if count >= 0 else _FAILED
        if count < 0:
            return out, buffer, count, position, _FAILED
        buffer, count, position = _refill(buffer, count, position, last, end)
    if entry & uint64(SUBTABLE):
        if entry & uint64(END):
            return out, buffer, count, position, _FAILED
        taken = int64(entry) & 255
        buffer >>= uint64(taken)
        count -= taken
        entry = half_at(literals + _index(entry, buffer) * uint64(4))
        if not entry & uint64(SPECIAL):
            out, buffer, count = _emit(entry, out, buffer, count)
            return out, buffer, count, position, _GOING if count >= 0 else _FAILED
    taken = int64(entry) & 255
    if entry & uint64(END):
        failed = entry & uint64(SUBTABLE) or count < taken
        return out, buffer >> uint64(taken), count - taken, position, _FAILED if failed else _ENDED
    length = _value(entry, buffer)
    buffer >>= uint64(taken)
    count -= taken
    entry = half_at(distances + (buffer & far_mask) * uint64(4))
    if entry & uint64(SUBTABLE):
        if entry & uint64(END):
            return out, buffer, count, position, _FAILED
        taken = int64(entry) & 255
        buffer >>= uint64(taken)
        count -= taken
        entry = half_at(distances + _index(entry, buffer) * uint64(4))
        if entry & uint64(SUBTABLE):
            return out, buffer, count, position, _FAILED
    taken = int64(entry) & 255
    distance = _value(entry, buffer)
    buffer >>= uint64(taken)
    count -= taken
    if count < 0 or distance > int64(out) - int64(begin):
        return out, buffer, count, position, _FAILED
    _copy(out, distance, length)
    return out + uint64(length), buffer, count, position, _GOING


@inlined
def _ones(bits: Any) -> Any:
    """A number whose low bits are set."""
    return (uint64(1) << bits) - uint64(1)


@inlined
def _value(entry: Any, buffer: Any) -> Any:
    """The length or distance of an entry, with the extra bits behind its code."""
    code = entry >> uint64(8) & uint64(15)
    return int64((entry >> uint64(16)) + (buffer >> code & _ones((entry & uint64(255)) - code)))


@inlined
def _index(entry: Any, buffer: Any) -> Any:
    """Where the next bits are in the subtable of an entry."""
    return (entry >> uint64(16)) + (buffer & _ones(entry >> uint64(8) & uint64(15)))


@inlined
def _emit(entry: Any, out: Any, buffer: Any, count: int) -> tuple[Any, Any, int]:
    """Write the one or two literals of an entry."""
    store_pair(out, int64(entry >> uint64(16)))
    taken = entry & uint64(63)
    return out + (entry >> uint64(8) & uint64(3)), buffer >> taken, count - int64(taken)


@inlined
def _refill(buffer: Any, count: int, position: Any, last: Any, end: Any) -> tuple[Any, int, Any]:
    """Have 56 bits or more in the buffer, fewer at the end of the stream."""
    if position <= last:
        buffer |= word_at(position) << uint64(count)
        position += uint64((63 - count) >> 3)
        return buffer, count | 56, position
    while count < 56 and position < end:
        buffer |= byte_at(position) << uint64(count)
        position += uint64(1)
        count += 8
    return buffer, count, position


@inlined
def _copy(out: Any, distance: int, length: int) -> None:
    """Copy a match; up to 7 bytes more are written."""
    done = 0
    if distance < 8:
        near = distance
        while distance < 8:
            distance += near
        while done < distance:  # from here on, whole words repeat
            store_byte(out + uint64(done), byte_at(out + uint64(done) - uint64(near)))
            done += 1
    source = out - uint64(distance)
    while done < length:
        store_word(out + uint64(done), word_at(source + uint64(done)))
        done += 8


@compiled
def _fixed(work: Any) -> int:
    """Note the lengths of the codes of a block without codes of its own; how many they are, without distances."""
    number = LITERAL_ENTRIES.shape[0]
    forget_lengths(work)
    for symbol in range(number):
        length = 8 if symbol < 144 else 9 if symbol < 256 else 7 if symbol < 280 else 8
        note_length(work, symbol, NEAR, symbol, length)
    for distance in range(DISTANCE_ENTRIES.shape[0]):
        note_length(work, number + distance, FAR, distance, 5)
    return int(number)


@compiled
def _read_lengths(
    buffer: Any, count: int, position: Any, last: Any, end: Any, work: Any, table: Any
) -> tuple[int, Any, int, Any]:
    """Read the lengths of a block's codes to `work`, those of distances behind the others; `table` is scratch.

    Returns how many codes the others are, -1 if the stream is damaged, and the stream's state.
    """
    buffer, count, position = _refill(buffer, count, position, last, end)
    number = 257 + (int64(buffer) & 31)
    far = 1 + (int64(buffer >> uint64(5)) & 31)
    codes = 4 + (int64(buffer >> uint64(10)) & 15)
    buffer >>= uint64(14)
    count -= 14
    if number > 286 or far > DISTANCES:
        return -1, buffer, 0, position
    forget_lengths(work)
    for symbol in range(CODES):
        table[symbol] = 0
    for i in range(codes):
        if i == 14:
            buffer, count, position = _refill(buffer, count, position, last, end)
        table[_ORDER[i]] = int64(buffer) & 7
        buffer >>= uint64(3)
        count -= 3
    if count < 0:
        return -1, buffer, 0, position
    place = 0
    for symbol in range(CODES):
        place = note_length(work, place, NEAR, symbol, int64(table[symbol]))
    bits = build(work, 0, NEAR, CODE_ENTRIES, CODE_BITS, False, False, table)
    if bits == 0:
        return -1, buffer, 0, position
    mask = (1 << bits) - 1
    forget_lengths(work)
    done, place, previous = 0, 0, 0
    while done < number + far:
        if count < _LONGEST:
            buffer, count, position = _refill(buffer, count, position, last, end)
        entry = int64(table[int64(buffer) & mask])
        symbol, taken = entry >> 8, entry & 255
        buffer >>= uint64(taken)
        count -= taken
        if symbol < 16:
            place = _note(work, place, done, number, symbol)
            previous = symbol
            done += 1
            continue
        if symbol == 16:
            repeat, extra, value = 3 + (int64(buffer) & 3), 2, previous
            if done == 0:
                return -1, buffer, 0, position
        elif symbol == 17:
            repeat, extra, value = 3 + (int64(buffer) & 7), 3, 0
        else:
            repeat, extra, value = 11 + (int64(buffer) & 127), 7, 0
        previous = value
        buffer >>= uint64(extra)
        count -= extra
        if done + repeat > number + far or count < 0:
            return -1, buffer, 0, position
        if value:
            for i in range(repeat):
                place = _note(work, place, done + i, number, value)
        done += repeat
    if count < 0:
        return -1, buffer, 0, position
    coded = 0
    for length in range(1, MOST_BITS + 1):
        coded += int64(work[NEAR + length])
    return coded, buffer, count, position


@inlined
def _note(work: Any, place: int, number: int, near: int, length: int) -> int:
    """`note_length` of a code by its number: the first `near` are no distances."""
    if number < near:
        return note_length(work, place, NEAR, number, length)
    return note_length(work, place, FAR, number - near, length)
