"""The one scan of an untiled baseline JPEG -> coefficients, in compiled code (ITU T.81 annex F).

Its bits depend on all bits before them, so a scan is decoded from its beginning, down to the last row of MCUs that a
window depends on. Where it has restarts, whole intervals without wanted MCUs are left out. As in `tiles`, the CPU works
on one image while it waits for another one's look-ups.
"""

from typing import Any

import numpy as np

from fastimg.loaders.jpeg.decoding.frame import MAX_SCAN_BLOCKS
from fastimg.loaders.jpeg.decoding.memory import store_short, store_word, word_at
from fastimg.loaders.runtime.compiled import compiled, inlined, int64, uint64

from .lookups import TABLE, code_at, value_of
from .stuffing import copy_to_marker
from .symbols import PAD, STRIDE, behind_block, held_at, two_entries

# A scan that is being decoded. `position`, `end` and `begin` are bits from address 0; `base`, `table`, `tables`, `out`,
# `spare` and `bounds` are addresses of bytes.
STREAM = np.dtype(
    [
        ("image", np.int64),  # its number among those that are decoded; -1 for none
        ("position", np.int64),  # of the current block's first bit behind its DC
        ("end", np.int64),  # of the last bit before the next restart, or of the scan
        ("begin", np.int64),  # of the first bit of the scan
        ("bounds", np.int64),  # of the bytes of the scan, int64, at which its intervals begin, and the last one ends
        ("interval", np.int64),  # MCUs from one restart to the next; 0 for none
        ("number", np.int64),  # of the current interval
        ("ahead", np.int64),  # MCUs that are left in it
        ("base", np.int64),  # of the current block's coefficients
        ("table", np.int64),  # of AC of the current block
        ("block", np.int64),  # of its MCU
        ("blocks", np.int64),
        ("column", np.int64),  # of MCUs
        ("row", np.int64),
        ("across", np.int64),  # MCUs of a row
        # The MCUs whose coefficients are wanted: columns [left, right) of rows from `top` on.
        ("left", np.int64),
        ("right", np.int64),
        ("top", np.int64),
        ("out", np.int64),  # of the coefficients of a row's wanted MCUs
        ("spare", np.int64),  # of a block to which all others are decoded
        ("tables", np.int64, MAX_SCAN_BLOCKS),  # of DC, followed by AC, of each block of an MCU
        ("component", np.int64, MAX_SCAN_BLOCKS),
        ("previous", np.int64, 3),  # DC of each component
        ("k", np.int64),  # the last coefficient of the block that is decoded
        ("status", np.int64),  # 0 while it is decoded; ROW: the wanted part of a row is there; DAMAGED
    ]
)

ROW, DAMAGED = 1, 2

# The blocks of a scan are gone through by the address of its stream: numba counts references to an array, and to a
# field that is one, with the bus locked, whenever either is passed or named.
_SIZE = STREAM.itemsize
_FIELDS: Any = STREAM.fields
(_POSITION, _END, _BEGIN, _BOUNDS, _INTERVAL, _NUMBER, _AHEAD, _BASE, _TABLE) = (
    _FIELDS[name][1] for name in ("position", "end", "begin", "bounds", "interval", "number", "ahead", "base", "table")
)
(_BLOCK, _BLOCKS, _COLUMN, _ROW, _ACROSS, _LEFT, _RIGHT, _TOP, _OUT, _SPARE) = (
    _FIELDS[name][1] for name in ("block", "blocks", "column", "row", "across", "left", "right", "top", "out", "spare")
)
(_TABLES, _COMPONENT, _PREVIOUS, _K, _STATUS) = (
    _FIELDS[name][1] for name in ("tables", "component", "previous", "k", "status")
)


@compiled
def collect_scan(data: Any, at: int, clean: Any, bounds: Any) -> tuple[int, int]:
    """Copy the bits of a scan that begins at `at` to `clean`, without stuffing.

    Returns their bytes, and where the marker behind them begins; 0 for no bytes, or other restarts than there must be.
    Interval i, from one restart to the next, is then in clean[bounds[i]:bounds[i + 1]], and `bounds` is one longer than
    that.
    """
    begin, n = uint64(at), uint64(0)
    intervals, number = bounds.size - 2, 0
    bounds[0] = 0
    while True:
        begin, n = copy_to_marker(data, begin, clean, n)
        if begin == uint64(data.size):
            return 0, 0
        marker = int64(data[begin + uint64(1)])
        begin += uint64(2)
        number += 1
        bounds[number] = int64(n)
        if number == intervals:
            break
        if marker != 0xD0 + (number - 1) % 8:
            return 0, 0
    bounds[number + 1] = int64(n)
    clean[int64(n) : int64(n) + PAD] = 0
    return int64(n), int64(begin) - 2


@compiled
def seek(streams: Any, i: int, mcu: int) -> None:
    """Go to the interval of the MCU of this number, from whose beginning a stream is then decoded; never backwards."""
    stream = streams[i]
    if stream.interval == 0 or mcu // stream.interval <= stream.number:
        return
    number = mcu // stream.interval
    stream.row, stream.column = number * stream.interval // stream.across, number * stream.interval % stream.across
    stream.base = stream.spare
    if stream.column == stream.left and stream.row >= stream.top:
        stream.base = stream.out
    _begin_interval(uint64(streams.ctypes.data + i * _SIZE), number)


@inlined
def _get(stream: Any, field: int) -> Any:
    """A number of the stream at an address."""
    return int64(word_at(stream + uint64(field)))


@inlined
def _set(stream: Any, field: int, value: Any) -> None:
    """Set a number of the stream at an address."""
    store_word(stream + uint64(field), uint64(value))


@inlined
def _begin_interval(stream: Any, number: int) -> None:
    bounds = uint64(_get(stream, _BOUNDS) + 8 * number)
    begin = _get(stream, _BEGIN)
    _set(stream, _NUMBER, number)
    _set(stream, _AHEAD, _get(stream, _INTERVAL))
    _set(stream, _POSITION, begin + 8 * int64(word_at(bounds)))
    _set(stream, _END, begin + 8 * int64(word_at(bounds + uint64(8))))
    for component in range(3):
        _set(stream, _PREVIOUS + 8 * component, 0)


@compiled
def start_block(streams: Any, i: int) -> bool:
    """Decode the DC of a stream's current block. Returns False if it is damaged."""
    return bool(_start_block(uint64(streams.ctypes.data + i * _SIZE)))


@inlined
def _start_block(stream: Any) -> Any:
    position = word_at(stream + uint64(_POSITION))
    block = 8 * _get(stream, _BLOCK)
    table = uint64(_get(stream, _TABLES + block))
    held = held_at(position)
    code = code_at(held, table)
    previous = _PREVIOUS + 8 * _get(stream, _COMPONENT + block)
    value = _get(stream, previous) + value_of(held, code)
    _set(stream, previous, value)
    store_short(uint64(_get(stream, _BASE)), uint64(value))
    _set(stream, _POSITION, position + (code & uint64(255)))
    _set(stream, _TABLE, table + uint64(8 * TABLE))
    _set(stream, _K, 0)
    return (code >> uint64(24)) & uint64(255) == uint64(1)


@compiled
def _finish_block(stream: Any, position: Any, entry: Any, before: Any, k: Any) -> int:
    """Go from a block whose last entry led over coefficient `before` to `k` to the next. Returns 0, ROW or DAMAGED."""
    end = _get(stream, _END)
    position = behind_block(position, entry, before, k, uint64(end))
    if position == uint64(0):
        return DAMAGED
    _set(stream, _POSITION, position)
    base = _get(stream, _BASE)
    wanted = base != _get(stream, _SPARE)
    block = _get(stream, _BLOCK) + 1
    if block < _get(stream, _BLOCKS):
        _set(stream, _BLOCK, block)
        if wanted:
            _set(stream, _BASE, base + 2 * STRIDE)
    else:
        _set(stream, _BLOCK, 0)
        column, ahead = _get(stream, _COLUMN) + 1, _get(stream, _AHEAD) - 1
        _set(stream, _AHEAD, ahead)
        if ahead == 0:
            if position + uint64(8) <= uint64(end):  # more than padding is left
                return DAMAGED
            _begin_interval(stream, _get(stream, _NUMBER) + 1)
        ended = wanted and column == _get(stream, _RIGHT)
        row = _get(stream, _ROW)
        if column == _get(stream, _ACROSS):
            column = 0
            row += 1
            _set(stream, _ROW, row)
        _set(stream, _COLUMN, column)
        left = _get(stream, _LEFT)
        if row < _get(stream, _TOP) or column < left or column >= _get(stream, _RIGHT):
            _set(stream, _BASE, _get(stream, _SPARE))
        elif column == left:
            _set(stream, _BASE, _get(stream, _OUT))
        else:
            _set(stream, _BASE, base + 2 * STRIDE)
        if ended:
            return ROW
    return 0 if _start_block(stream) else DAMAGED


@inlined
def _state(stream: Any) -> Any:
    """The position, base, table and coefficient at which a stream goes on."""
    return (
        word_at(stream + uint64(_POSITION)),
        word_at(stream + uint64(_BASE)),
        word_at(stream + uint64(_TABLE)),
        word_at(stream + uint64(_K)),
    )


@compiled
def advance(streams: Any, natural: Any) -> None:
    """Decode two streams until one of them, or both, have another status than 0."""
    order = uint64(natural.ctypes.data)
    first, second = uint64(streams.ctypes.data), uint64(streams.ctypes.data + _SIZE)
    position, base, table, k = _state(first)
    position2, base2, table2, k2 = _state(second)
    while True:
        position, entry, before, k = two_entries(position, table, k, base, order)
        position2, entry2, before2, k2 = two_entries(position2, table2, k2, base2, order)
        if k >= uint64(63) or k2 >= uint64(63):
            status = status2 = 0
            if k >= uint64(63):
                status = _finish_block(first, position, entry, before, k)
                position, base, table, k = _state(first)
            if k2 >= uint64(63):
                status2 = _finish_block(second, position2, entry2, before2, k2)
                position2, base2, table2, k2 = _state(second)
            if status or status2:
                for stream, reached, last, ended in ((first, position, k, status), (second, position2, k2, status2)):
                    _set(stream, _POSITION, reached)
                    _set(stream, _K, last)
                    _set(stream, _STATUS, ended)
                return


@compiled
def advance_alone(streams: Any, i: int, natural: Any) -> None:
    """Decode one stream until it has another status than 0."""
    order = uint64(natural.ctypes.data)
    stream = uint64(streams.ctypes.data + i * _SIZE)
    position, base, table, k = _state(stream)
    while True:
        position, entry, before, k = two_entries(position, table, k, base, order)
        if k >= uint64(63):
            status = _finish_block(stream, position, entry, before, k)
            if status:
                _set(stream, _STATUS, status)
                return
            position, base, table, k = _state(stream)
