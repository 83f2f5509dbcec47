"""The one scan of an untiled baseline JPEG -> coefficients, in compiled code (ITU T.81 annex F).

Its bits depend on all bits before them, so a scan is decoded from its beginning, down to the last row of MCUs that a
window depends on. Where it has restarts, whole intervals without wanted MCUs are left out. As in `tiles`, the CPU works
on one image while it waits for another one's look-ups.
"""

from typing import Any

import numpy as np

from fastimg.loaders.jpeg.decoding.frame import MAX_SCAN_BLOCKS
from fastimg.loaders.jpeg.decoding.memory import store_short, word_at
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
    _begin_interval(streams, i, number)


@inlined
def _begin_interval(streams: Any, i: int, number: int) -> None:
    stream = streams[i]
    bounds = uint64(stream.bounds + 8 * number)
    stream.number, stream.ahead = number, stream.interval
    stream.position = stream.begin + 8 * int64(word_at(bounds))
    stream.end = stream.begin + 8 * int64(word_at(bounds + uint64(8)))
    stream.previous[:] = 0


@compiled
def start_block(streams: Any, i: int) -> bool:
    """Decode the DC of a stream's current block. Returns False if it is damaged."""
    stream = streams[i]
    position = uint64(stream.position)
    table = uint64(stream.tables[stream.block])
    held = held_at(position)
    code = code_at(held, table)
    c = stream.component[stream.block]
    stream.previous[c] += value_of(held, code)
    store_short(uint64(stream.base), uint64(stream.previous[c]))
    stream.position = int64(position + (code & uint64(255)))
    stream.table = int64(table + uint64(8 * TABLE))
    stream.k = 0
    return bool((code >> uint64(24)) & uint64(255) == uint64(1))


@compiled
def _finish_block(streams: Any, i: int, position: Any, entry: Any, before: Any, k: Any) -> int:
    """Go from a block whose last entry led over coefficient `before` to `k` to the next. Returns 0, ROW or DAMAGED."""
    stream = streams[i]
    position = behind_block(position, entry, before, k, uint64(stream.end))
    if position == uint64(0):
        return DAMAGED
    stream.position = int64(position)
    wanted = stream.base != stream.spare
    stream.block += 1
    if stream.block < stream.blocks:
        if wanted:
            stream.base += 2 * STRIDE
    else:
        stream.block = 0
        stream.column += 1
        stream.ahead -= 1
        if stream.ahead == 0:
            if position + uint64(8) <= uint64(stream.end):  # more than padding is left
                return DAMAGED
            _begin_interval(streams, i, stream.number + 1)
        ended = wanted and stream.column == stream.right
        if stream.column == stream.across:
            stream.column = 0
            stream.row += 1
        if stream.row < stream.top or stream.column < stream.left or stream.column >= stream.right:
            stream.base = stream.spare
        elif stream.column == stream.left:
            stream.base = stream.out
        else:
            stream.base += 2 * STRIDE
        if ended:
            return ROW
    return 0 if start_block(streams, i) else DAMAGED


@compiled
def advance(streams: Any, natural: Any) -> None:
    """Decode two streams until one of them, or both, have another status than 0."""
    order = uint64(natural.ctypes.data)
    first, second = streams[0], streams[1]
    position, base, table, k = uint64(first.position), uint64(first.base), uint64(first.table), uint64(first.k)
    position2, base2, table2, k2 = uint64(second.position), uint64(second.base), uint64(second.table), uint64(second.k)
    while True:
        position, entry, before, k = two_entries(position, table, k, base, order)
        position2, entry2, before2, k2 = two_entries(position2, table2, k2, base2, order)
        if k >= uint64(63) or k2 >= uint64(63):
            if k >= uint64(63):
                first.status = _finish_block(streams, 0, position, entry, before, k)
                position, base, table = uint64(first.position), uint64(first.base), uint64(first.table)
                k = uint64(0)
            if k2 >= uint64(63):
                second.status = _finish_block(streams, 1, position2, entry2, before2, k2)
                position2, base2, table2 = uint64(second.position), uint64(second.base), uint64(second.table)
                k2 = uint64(0)
            if first.status or second.status:
                first.position, first.k = int64(position), int64(k)
                second.position, second.k = int64(position2), int64(k2)
                return


@compiled
def advance_alone(streams: Any, i: int, natural: Any) -> None:
    """Decode one stream until it has another status than 0."""
    order = uint64(natural.ctypes.data)
    stream = streams[i]
    position, base, table, k = uint64(stream.position), uint64(stream.base), uint64(stream.table), uint64(stream.k)
    while True:
        position, entry, before, k = two_entries(position, table, k, base, order)
        if k >= uint64(63):
            stream.status = _finish_block(streams, i, position, entry, before, k)
            if stream.status:
                return
            position, base, table, k = uint64(stream.position), uint64(stream.base), uint64(stream.table), uint64(0)
