"""Deflate streams -> bytes (RFC 1950, 1951), as far as they are needed, from memory to memory.

What is odd is refused: another decoder has the last word.
"""

from typing import Any

import numpy as np

from fastimg.loaders.jpeg.decoding.memory import byte_at, copy_bytes, store_byte, store_pair, store_word, word_at
from fastimg.loaders.runtime.compiled import compiled, inlined, int64, uint64

from .huffman import DISTANCE_BITS, END, LITERAL_BITS, SPECIAL, SUBTABLE, WORK, build

SLACK = 320  # bytes behind what is wanted that may be written: a match and some literals
DAMAGED = -1

_ORDER = np.array([16, 17, 18, 0, 8, 7, 9, 6, 10, 5, 11, 4, 12, 3, 13, 2, 14, 1, 15], np.int64)
_LARGE = 1 << 13  # bytes that are still wanted, for which tables are made larger


@compiled
def inflate(source: int, nbytes: int, to: int, wanted: int, tables: Any) -> tuple[int, int, bool]:
    """Inflate a deflate stream at `source` to `wanted` bytes or a few more at `to`, where SLACK more may be written.

    `tables` uint32 [2, SIZE] is scratch. Returns the bytes that are written, DAMAGED if the stream is, the bytes of the
    stream that are read, and whether it has ended.
    """
    position, end = uint64(source), uint64(source + nbytes)
    last = uint64(max(source + nbytes - 8, 0))  # up to which 8 bytes can be read
    out, begin, limit = uint64(to), uint64(to), uint64(to + wanted)
    buffer, count = uint64(0), 0
    literals, distances = tables[0], tables[1]
    lengths, work = np.zeros(320, np.uint8), np.empty(WORK, np.int64)
    final = False
    failed = (DAMAGED, 0, False)
    while out < limit and not final:
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
            out += uint64(taken)
            position, buffer, count = uint64(at + taken), uint64(0), 0
            final = final and taken == size
            continue
        large = int64(limit) - int64(out) > _LARGE
        if kind == 1:
            _fixed(lengths)
            number, far = 288, 32
        elif kind == 2:
            number, far, buffer, count, position = _read_lengths(buffer, count, position, last, end, lengths, distances)
            if number == 0 or lengths[256] == 0:
                return failed
        else:
            return failed
        far_bits = build(lengths[number:], far, DISTANCE_BITS, False, False, work, distances)
        bits = build(lengths, number, LITERAL_BITS if large else 10, True, large, work, literals)
        if bits == 0 or far_bits == 0:
            return failed
        mask, far_mask = uint64((1 << bits) - 1), uint64((1 << far_bits) - 1)
        ended = False
        while out < limit:
            if position <= last:
                buffer |= word_at(position) << uint64(count)
                position += uint64((63 - count) >> 3)
                count |= 56
            else:
                buffer, count, position = _refill(buffer, count, position, last, end)
            entry = uint64(literals[buffer & mask])
            if not entry & uint64(SPECIAL):
                out, buffer, count = _emit(entry, out, buffer, count)
                entry = uint64(literals[buffer & mask])
                if not entry & uint64(SPECIAL):
                    out, buffer, count = _emit(entry, out, buffer, count)
                    entry = uint64(literals[buffer & mask])
                    if not entry & uint64(SPECIAL):
                        out, buffer, count = _emit(entry, out, buffer, count)
                        entry = uint64(literals[buffer & mask])
                        if not entry & uint64(SPECIAL):
                            out, buffer, count = _emit(entry, out, buffer, count)
                            if count < 0:
                                return failed
                            continue
                if count < 0:
                    return failed
                if position <= last:
                    buffer |= word_at(position) << uint64(count)
                    position += uint64((63 - count) >> 3)
                    count |= 56
                else:
                    buffer, count, position = _refill(buffer, count, position, last, end)
            if entry & uint64(SUBTABLE):
                if entry & uint64(END):
                    return failed
                taken = int64(entry) & 255
                buffer >>= uint64(taken)
                count -= taken
                entry = uint64(literals[_index(entry, buffer)])
                if not entry & uint64(SPECIAL):
                    out, buffer, count = _emit(entry, out, buffer, count)
                    if count < 0:
                        return failed
                    continue
            taken = int64(entry) & 255
            if entry & uint64(END):
                if entry & uint64(SUBTABLE):
                    return failed
                buffer >>= uint64(taken)
                count -= taken
                ended = True
                break
            length = _value(entry, buffer)
            buffer >>= uint64(taken)
            count -= taken
            entry = uint64(distances[buffer & far_mask])
            if entry & uint64(SUBTABLE):
                if entry & uint64(END):
                    return failed
                taken = int64(entry) & 255
                buffer >>= uint64(taken)
                count -= taken
                entry = uint64(distances[_index(entry, buffer)])
                if entry & uint64(SUBTABLE):
                    return failed
            taken = int64(entry) & 255
            distance = _value(entry, buffer)
            buffer >>= uint64(taken)
            count -= taken
            if count < 0 or distance > int64(out) - int64(begin):
                return failed
            _copy(out, distance, length)
            out += uint64(length)
        if not ended:
            final = False
        if count < 0:
            return failed
    return int64(out) - int64(begin), int64(position) - (count >> 3) - source, final


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
def _fixed(lengths: Any) -> None:
    """The lengths of the codes of a block without codes of its own: of 288 symbols, and of 30 distances behind them."""
    for symbol in range(288):
        lengths[symbol] = 8 if symbol < 144 else 9 if symbol < 256 else 7 if symbol < 280 else 8
    for distance in range(32):
        lengths[288 + distance] = 5


@compiled
def _read_lengths(
    buffer: Any, count: int, position: Any, last: Any, end: Any, lengths: Any, table: Any
) -> tuple[int, int, Any, int, Any]:
    """Read the lengths of a block's codes, those of distances behind the others; `table` is scratch.

    Returns the numbers of symbols and distances, the first 0 if the stream is damaged, and the stream's state.
    """
    buffer, count, position = _refill(buffer, count, position, last, end)
    number = 257 + (int64(buffer) & 31)
    far = 1 + (int64(buffer >> uint64(5)) & 31)
    codes = 4 + (int64(buffer >> uint64(10)) & 15)
    buffer >>= uint64(14)
    count -= 14
    if number > 286 or far > 30:
        return 0, 0, buffer, 0, position
    lengths[:19] = 0
    for i in range(codes):
        if i == 14:
            buffer, count, position = _refill(buffer, count, position, last, end)
        lengths[_ORDER[i]] = int64(buffer) & 7
        buffer >>= uint64(3)
        count -= 3
    if count < 0:
        return 0, 0, buffer, 0, position
    bits = _build_plain(lengths, table)
    if bits == 0:
        return 0, 0, buffer, 0, position
    lengths[:] = 0
    done, previous = 0, 0
    while done < number + far:
        buffer, count, position = _refill(buffer, count, position, last, end)
        entry = int64(table[int64(buffer) & 127])
        symbol, taken = entry >> 8, entry & 255
        buffer >>= uint64(taken)
        count -= taken
        if symbol < 16:
            lengths[done] = symbol
            previous = symbol
            done += 1
            continue
        if symbol == 16:
            repeat, extra, value = 3 + (int64(buffer) & 3), 2, previous
            if done == 0:
                return 0, 0, buffer, 0, position
        elif symbol == 17:
            repeat, extra, value = 3 + (int64(buffer) & 7), 3, 0
        else:
            repeat, extra, value = 11 + (int64(buffer) & 127), 7, 0
        previous = value
        buffer >>= uint64(extra)
        count -= extra
        if done + repeat > number + far or count < 0:
            return 0, 0, buffer, 0, position
        for _ in range(repeat):
            lengths[done] = value
            done += 1
    if count < 0:
        return 0, 0, buffer, 0, position
    return number, far, buffer, count, position


@compiled
def _build_plain(lengths: Any, table: Any) -> int:
    """Fill a table of 128 entries, symbol << 8 | bits, of the code for lengths [19]; 0 if it is incomplete."""
    code, left = 0, 128
    for length in range(1, 8):
        for symbol in range(19):
            if lengths[symbol] != length:
                continue
            left -= 128 >> length
            if left < 0:
                return 0
            place = code
            while place < 128:
                table[place] = symbol << 8 | length
                place += 1 << length
            step = 1 << (length - 1)
            while code & step:
                step >>= 1
            code = (code & (step - 1)) + step if step else 0
    return 7 if left == 0 else 0
