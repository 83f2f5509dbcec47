"""Planes of a JPEG -> RGB columns: upsampling of chroma and conversion, with libjpeg-turbo's bits.

This is libjpeg's fancy upsampling (jdsample.c: a triangle filter) and its fixed-point colour conversion (jdcolor.c,
BT.601). Everything is stored in columns, as in `baseline`, and a whole column is processed at a time.
"""

from typing import Any

from fastimg.loaders.runtime.compiled import compiled

from .vectors import WIDE, to_rgb, upsampled, upsampled_sums


@compiled
def to_columns(planes: Any, headers: Any, regions: Any, work: Any, out: Any) -> None:
    """Make the RGB columns that a region's window depends on.

    Column 3 * x + channel begins at `out[(3 * x + channel) * stride]`, and `height` of its bytes count. `work` uint16
    [2 * stride + 2 * (width // 2 + 3) * (stride + 4) + WIDE] is scratch.
    """
    region = regions[0]
    h = region.h
    v = region.v
    height = region.stride
    across = (region.right - region.left) * region.tile_width
    stride = (region.bottom - region.top) * region.tile_height
    x0, y0 = region.x - region.left * region.tile_width, region.y - region.top * region.tile_height
    columns = region.width
    rows = region.height
    if headers[0].components == 1:
        for x in range(columns):
            at = (x0 + x) * stride + y0
            for c in range(3):
                to = (3 * x + c) * height
                for y in range(rows):
                    out[to + y] = planes[at + y]
        return
    chroma_stride = stride // v
    plane = across * stride
    size = (across // h) * chroma_stride
    repeats = region.side == 1 and not region.low  # libjpeg-turbo does not filter at 1/8
    # The real size of chroma in these tiles; beyond it is padding, which is not read.
    wide = -(-min(across, region.picture_width - region.left * region.tile_width) // h)
    high = -(-min(stride, region.picture_height - region.top * region.tile_height) // v)
    if v == 1:  # columns of chroma are not upsampled vertically
        for x in range(columns):
            i = (x0 + x) // h
            odd = (x0 + x) % 2
            side = min(i + 1, wide - 1) if odd else max(i - 1, 0)
            side = i if repeats else side
            luma = (x0 + x) * stride + y0
            to = 3 * x * height
            if h == 1:
                blue = plane + i * stride + y0
                for y in range(0, rows, WIDE):
                    to_rgb(planes, luma + y, planes, blue + y, blue + size + y, out, to + y, height)
                continue
            for c in range(2):
                this = plane + c * size + i * stride + y0
                that = plane + c * size + side * stride + y0
                for y in range(0, rows, WIDE):
                    upsampled(planes, this + y, that + y, 1 + odd, 2, work, c * height + y)
            for y in range(0, rows, WIDE):
                to_rgb(planes, luma + y, work, y, height + y, out, to + y, height)
        return
    first, last = max(x0 // 2 - 1, 0), min((x0 + columns - 1) // 2 + 1, wide - 1)
    row = y0 // 2
    end_row = (y0 + rows - 1) // 2 + 1
    span = 2 * (end_row - row)
    skipped = y0 - 2 * row
    part = (last - first + 1) * span
    for c in range(2):
        for i in range(first, last + 1):
            source = plane + c * size + i * chroma_stride
            to = 2 * height + c * part + (i - first) * span - 2 * row
            for r in range(row, end_row, WIDE // 2):
                upsampled_sums(planes, source + r, work, to + 2 * r)
            if row == 0:
                work[to] = 4 * planes[source]
            if end_row == high:
                work[to + 2 * high - 1] = 4 * planes[source + high - 1]
    for x in range(columns):
        i = (x0 + x) // 2
        odd = (x0 + x) % 2
        side = min(i + 1, wide - 1) if odd else max(i - 1, 0)
        luma = (x0 + x) * stride + y0
        to = 3 * x * height
        for c in range(2):
            begin = 2 * height + c * part + skipped
            this = begin + (i - first) * span
            that = begin + (side - first) * span
            for y in range(0, rows, WIDE):
                upsampled(work, this + y, that + y, 8 - odd, 4, work, c * height + y)
        for y in range(0, rows, WIDE):
            to_rgb(planes, luma + y, work, y, height + y, out, to + y, height)
