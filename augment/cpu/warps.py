"""Images read through a look-up table: flipped, warped or as they are, compiled."""

from typing import Any

from .compiled import compiled, int64, position


@compiled
def copy(current: Any, moved: Any) -> None:
    taken, put = current.ravel(), moved.ravel()
    for entry in range(len(taken)):
        put[entry] = taken[entry]


@compiled
def is_straight(scale: int, across: int, shift: int, side: int) -> bool:
    """Whether an axis is unchanged or just mirrored."""
    return across == 0 and (
        (scale == 65536 and shift == 32768) or (scale == -65536 and shift == side * 65536 - 1 - 32768)
    )


@compiled
def emit(current: Any, mirrored: bool, upside_down: bool, joint: Any, target: Any) -> None:
    """Look up the levels of an image [H, W, 3] in a table [768]."""
    height, width, _ = current.shape
    red, green, blue = joint[:256], joint[256:512], joint[512:]
    for y in range(height):
        taken, put = current[height - 1 - y if upside_down else y], target[y]
        if mirrored:
            u = position(width)
            for x in range(width):
                u -= position(1)
                put[x, 0] = red[taken[u, 0]]
                put[x, 1] = green[taken[u, 1]]
                put[x, 2] = blue[taken[u, 2]]
        else:
            for x in range(width):
                put[x, 0] = red[taken[x, 0]]
                put[x, 1] = green[taken[x, 1]]
                put[x, 2] = blue[taken[x, 2]]


@compiled
def emit_warped(
    current: Any, a0: int, a1: int, a2: int, a3: int, a4: int, a5: int, fill: Any, joint: Any, target: Any
) -> None:
    """Warp an image [H, W, 3], with `fill` outside, and look up its levels in a table [768]."""
    height, width, _ = current.shape
    red, green, blue = joint[:256], joint[256:512], joint[512:]
    source = current.ravel()
    for y in range(height):
        column, line = int64(a2) + int64(a1) * y, int64(a5) + int64(a4) * y
        in_columns, in_rows = span(column, a0, width, width), span(line, a3, height, width)
        first = max(in_columns[0], in_rows[0])
        last = max(min(in_columns[1], in_rows[1]), first)
        column += int64(a0) * first
        line += int64(a3) * first
        put = target[y, first:last]
        for x in range(last - first):
            offset = position(3) * (position(line >> 16) * position(width) + position(column >> 16))
            column += a0
            line += a3
            put[x, 0] = red[source[offset]]
            put[x, 1] = green[source[offset + position(1)]]
            put[x, 2] = blue[source[offset + position(2)]]
        for put in (target[y, :first], target[y, last:]):
            for x in range(len(put)):
                put[x, 0] = red[fill[0]]
                put[x, 1] = green[fill[1]]
                put[x, 2] = blue[fill[2]]


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
