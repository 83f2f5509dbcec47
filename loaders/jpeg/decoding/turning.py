"""Columns of a picture as it is stored -> columns of the upright picture, by its EXIF orientation.

In: the columns of a region. Out: the same samples, turned, and the region that describes them. What follows does not
know that they were turned.
"""

from typing import Any

from fastimg.loaders.jpeg.exif import compiled_turn_of
from fastimg.loaders.runtime.compiled import compiled, inlined, uint64

from .columns import aligned, size_of_passes, upright_stride
from .filters import resize_columns
from .memory import bits_at, copy_wide, store_word
from .vectors import LANES, WIDE, transpose

_LINE = 64  # bytes of a line of the CPU's cache


@inlined
def size_of_turned(regions: Any) -> int:
    """The bytes that the turned columns of a region take: 0 if it is upright."""
    region = regions[0]
    if region.orientation == 1:
        return 0
    columns = region.height if compiled_turn_of(region.orientation)[0] else region.width
    return aligned(region.planes * columns * upright_stride(regions) + WIDE)


@inlined
def size_of_resize(regions: Any, across: int) -> int:
    """The bytes that `resize_upright` takes for a window `across` pixels wide."""
    return int(size_of_turned(regions) + size_of_passes(regions, across))


@compiled
def resize_upright(columns: Any, regions: Any, bicubic: bool, work: Any, out: Any) -> None:
    """Resize a region's columns, turned upright, and write the window to `out` [H, W, C]. The region becomes upright.

    `work` is uint8 [size_of_resize].
    """
    size = size_of_turned(regions)
    if size == 0:
        resize_columns(columns, regions, bicubic, work, out)
    else:
        turn_columns(columns, regions, work[:size])
        turn_region(regions, regions)
        resize_columns(work[:size], regions, bicubic, work[size:], out)


@compiled
def turn_columns(columns: Any, regions: Any, out: Any) -> None:
    """Write the columns that a region holds to `out`, as those of the upright picture."""
    region = regions[0]
    transposed, flip_x, flip_y = compiled_turn_of(region.orientation)
    channels, across, down = region.planes, region.width, region.height
    step = channels * region.held_stride  # from a stored column to the next of its channel
    stride = upright_stride(regions)
    turned_step = channels * stride
    for c in range(channels):
        begin = (channels * (region.x - region.held_x) + c) * region.held_stride + region.y - region.held_y
        if not transposed:
            for x in range(across):
                at, to = begin + x * step, (across - 1 - x if flip_x else x) * turned_step + c * stride
                source, target = uint64(columns.ctypes.data + at), uint64(out.ctypes.data + to)
                if not flip_y:
                    for y in range(0, down, WIDE):
                        copy_wide(source + uint64(y), target + uint64(y))
                elif down >= LANES:
                    for y in range(0, down, LANES):
                        top = min(y, down - LANES)  # the last bytes overlap those before them
                        store_word(target + uint64(top), bits_at(source + uint64(down - LANES - top)))
                else:
                    for y in range(down):
                        out[to + y] = columns[at + down - 1 - y]
            continue
        # The stored row y is the upright column y, or the last but y; its samples x are that column's, or from below.
        first = (down - 1) * turned_step + c * stride if flip_x else c * stride
        along = -turned_step if flip_x else turned_step
        last = begin + (across - 1) * step
        if across < LANES or down < LANES:
            for x in range(across):
                at = last - x * step if flip_y else begin + x * step
                for y in range(down):
                    out[first + y * along + x] = columns[at + y]
            continue
        for line in range(0, down, _LINE):
            for x in range(0, across, LANES):
                left = min(x, across - LANES)  # the last squares overlap those before them
                at, through = (last - left * step, -step) if flip_y else (begin + left * step, step)
                for y in range(line, min(line + _LINE, down), LANES):
                    top = min(y, down - LANES)
                    transpose(columns, at + top, through, out, first + top * along + left, along)


@compiled
def turn_region(regions: Any, unions: Any) -> None:
    """Make a region upright, and let it refer to the turned columns of `unions[0]`, which may be the region itself."""
    region, union = regions[0], unions[0]
    held_x, held_y, _, _ = _upright_box(union)
    region.held_stride = upright_stride(unions)
    region.stride = upright_stride(regions)
    region.x, region.y, region.width, region.height = _upright_box(region)
    region.held_x, region.held_y = held_x, held_y
    region.orientation = 1


@compiled
def _upright_box(region: Any) -> tuple[int, int, int, int]:
    """Where the samples of a region lie in the upright picture: x, y, width, height."""
    x, y, width, height = region.x, region.y, region.width, region.height
    transposed, flip_x, flip_y = compiled_turn_of(region.orientation)
    right, below = region.picture_width - x - width, region.picture_height - y - height
    if transposed:
        x, y, width, height, right, below = y, x, height, width, below, right
    return right if flip_x else x, below if flip_y else y, width, height
