"""Rows of an image on their way to the result: where their pixels are read, and what their levels become, compiled."""

from typing import Any

from .compiled import compiled, inlined, int64, position
from .memory import LANES, copy_bytes, copy_pixel, store_line, stream_line

# A thread's memory for a row of an image of W pixels, and how its levels become values of float32: levels uint8
# [3 W + 4]; scales and biases float64 [3 W], of which a value is level * scale + bias; whether there is such a line, or
# a table is looked up; whether the result is written past the caches. A plain tuple: machine code that is kept on disk
# names the classes of its arguments.
RowScratch = tuple[Any, Any, Any, bool, bool]


@compiled
def copy(current: Any, moved: Any) -> None:
    taken, put = current.ravel(), moved.ravel()
    for entry in range(len(taken)):
        put[entry] = taken[entry]


@compiled
def look_up(current: Any, lut: Any, changed: Any) -> None:
    """Look up the levels of an image [H, W, 3] in a table [768]."""
    height, width, _ = current.shape
    red, green, blue = lut[:256], lut[256:512], lut[512:]
    for y in range(height):
        taken, put = current[y], changed[y]
        for x in range(width):
            put[x, 0] = red[taken[x, 0]]
            put[x, 1] = green[taken[x, 1]]
            put[x, 2] = blue[taken[x, 2]]


@compiled
def is_straight(scale: int, across: int, shift: int, side: int) -> bool:
    """Whether an axis is unchanged or just mirrored."""
    return across == 0 and (
        (scale == 65536 and shift == 32768) or (scale == -65536 and shift == side * 65536 - 1 - 32768)
    )


@compiled
def span(start: int, step: int, side: int, count: int) -> tuple[int, int]:
    """(first, last + 1) of the x in range(count) for which 0 <= (start + step * x) >> 16 < side."""
    end = side * 65536
    if step == 0:
        return (0, count) if 0 <= start < end else (0, 0)
    if step < 0:  # the same, from the other end
        start, step = end - 1 - start, -step
    first = max(-(start // step), 0)
    last = min((end - 1 - start) // step + 1, count)
    return (first, last) if first < last else (0, 0)


@inlined
def _mirror_row(source: Any, width: int, levels: Any) -> None:
    """Put the pixels of a row at an address, and not those of a batch's last one, to another from the last on."""
    source += position(3) * position(width)
    for _ in range(width):
        source -= position(3)
        copy_pixel(source, levels)
        levels += position(3)


@inlined
def _warp_row(
    current: Any, source: Any, y: int, a0: int, a1: int, a2: int, a3: int, a4: int, a5: int, fill: Any, levels: Any
) -> None:
    """Put row `y` of a warped image [H, W, 3], which begins at `source`, into `levels` [3 W + 4], `fill` outside."""
    height, width, _ = current.shape
    column, line = int64(a2) + int64(a1) * y, int64(a5) + int64(a4) * y
    in_columns, in_rows = span(column, a0, width, width), span(line, a3, height, width)
    first = max(in_columns[0], in_rows[0])
    last = max(min(in_columns[1], in_rows[1]), first)
    column += int64(a0) * first
    line += int64(a3) * first
    target = position(levels.ctypes.data) + position(3) * position(first)
    if a0 == 65536 and a3 == 0:  # a translation or a shear: pixels of a row stay neighbours
        place = position(line >> 16) * position(width) + position(column >> 16)
        copy_bytes(source + position(3) * place, target, 3 * (last - first))
    elif a0 == -65536 and a3 == 0:
        taken = source + position(3) * (position(line >> 16) * position(width) + position(column >> 16))
        for _ in range(first, last):
            copy_pixel(taken, target)
            taken -= position(3)
            target += position(3)
    else:
        for _ in range(first, last):
            copy_pixel(source + position(3) * (position(line >> 16) * position(width) + position(column >> 16)), target)
            column += a0
            line += a3
            target += position(3)
    for x in range(first):
        levels[3 * x], levels[3 * x + 1], levels[3 * x + 2] = fill[0], fill[1], fill[2]
    for x in range(last, width):
        levels[3 * x], levels[3 * x + 1], levels[3 * x + 2] = fill[0], fill[1], fill[2]


@inlined
def _store_row(source: Any, scales: Any, biases: Any, count: int, streams: bool, target: Any) -> None:
    """Turn `count` levels at an address, LANES or more, into values at another. All are addresses."""
    if streams:
        for entry in range(0, count, LANES):
            at = position(entry)
            stream_line(source + at, scales + position(8) * at, biases + position(8) * at, target + position(4) * at)
        return
    for entry in range(0, count + 1 - LANES, LANES):
        at = position(entry)
        store_line(source + at, scales + position(8) * at, biases + position(8) * at, target + position(4) * at)
    at = position(count - LANES)  # some of these again, unless LANES divides the count
    store_line(source + at, scales + position(8) * at, biases + position(8) * at, target + position(4) * at)


# The two functions below work at addresses row by row: every array that is made of another one counts references, which
# takes as long as some pixels, and has the processor wait for all that it streams.


@compiled
def emit(current: Any, mirrored: bool, upside_down: bool, look: Any, mapped: bool, row: Any, target: Any) -> None:
    """Turn the levels of an image [H, W, 3] into the values of a table [768]; `mapped`: into others than the line's.

    A mirrored image is in scratch memory, since the byte behind it is read.
    """
    levels, scales, biases, lined, streams = row
    height, width, _ = current.shape
    red, green, blue = look[:256], look[256:512], look[512:]
    source, put, room = position(current.ctypes.data), position(target.ctypes.data), position(levels.ctypes.data)
    scale, bias = position(scales.ctypes.data), position(biases.ctypes.data)
    size = position(3) * position(width)
    for y in range(height):
        line = height - 1 - y if upside_down else y
        if lined and not mapped:
            taken = source + position(line) * size
            if mirrored:
                _mirror_row(taken, width, room)
                taken = room
            _store_row(taken, scale, bias, 3 * width, streams, put + position(4) * position(y) * size)
        elif mirrored:
            u = position(width)
            for x in range(width):
                u -= position(1)
                target[y, x, 0] = red[current[line, u, 0]]
                target[y, x, 1] = green[current[line, u, 1]]
                target[y, x, 2] = blue[current[line, u, 2]]
        else:
            for x in range(width):
                target[y, x, 0] = red[current[line, x, 0]]
                target[y, x, 1] = green[current[line, x, 1]]
                target[y, x, 2] = blue[current[line, x, 2]]


@compiled
def emit_warped(
    current: Any,
    a0: int,
    a1: int,
    a2: int,
    a3: int,
    a4: int,
    a5: int,
    fill: Any,
    look: Any,
    mapped: bool,
    row: Any,
    target: Any,
) -> None:
    """Warp an image [H, W, 3], with `fill` outside, and turn its levels into values as `emit` does.

    The image is in scratch memory, since the byte behind it is read.
    """
    levels, scales, biases, lined, streams = row
    height, width, _ = current.shape
    red, green, blue = look[:256], look[256:512], look[512:]
    source, put, room = position(current.ctypes.data), position(target.ctypes.data), position(levels.ctypes.data)
    scale, bias = position(scales.ctypes.data), position(biases.ctypes.data)
    size = position(3) * position(width)
    for y in range(height):
        _warp_row(current, source, y, a0, a1, a2, a3, a4, a5, fill, levels)
        if lined and not mapped:
            _store_row(room, scale, bias, 3 * width, streams, put + position(4) * position(y) * size)
        else:
            for x in range(width):
                entry = position(3) * position(x)
                target[y, x, 0] = red[levels[entry]]
                target[y, x, 1] = green[levels[entry + position(1)]]
                target[y, x, 2] = blue[levels[entry + position(2)]]


@compiled
def warp_levels(
    current: Any, a0: int, a1: int, a2: int, a3: int, a4: int, a5: int, fill: Any, levels: Any, moved: Any
) -> None:
    """Warp an image [H, W, 3] in scratch memory, with `fill` outside, to levels."""
    height, width, _ = current.shape
    source, target, room = position(current.ctypes.data), position(moved.ctypes.data), position(levels.ctypes.data)
    for y in range(height):
        _warp_row(current, source, y, a0, a1, a2, a3, a4, a5, fill, levels)
        copy_bytes(room, target + position(3) * position(width) * position(y), 3 * width)
