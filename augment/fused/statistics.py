"""The kernel that counts levels, for operations that depend on the whole image: for any image, in Triton.

`statistics.cu` gives the same numbers for images that are counted as they lie in memory.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs

import triton.language as tl  # type: ignore[import-untyped]

from .constants import AUTOCONTRAST, CONTRAST, COUNTS, FIXED, kernel
from .levels import luma, mapped, operation
from .pixel import colored, last_operation, matrix_of


@kernel
def _statistics(
    counts,
    images,
    s_n,
    s_c,
    s_h,
    s_w,
    words,
    luts,
    COLUMN: tl.constexpr,
    LIST: tl.constexpr,
    BLOCK: tl.constexpr,
    FILL: tl.constexpr,
    WARP: tl.constexpr,
    COLORS: tl.constexpr,
    MAPPED: tl.constexpr,
    WORDS: tl.constexpr,
    COUNT: tl.constexpr,
    HEIGHT: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """Add a block of pixels to the statistics that the image's column COLUMN needs: counts int64 [B, 770]."""
    BLOCKS: tl.constexpr = (HEIGHT * WIDTH + BLOCK - 1) // BLOCK
    FLAT: tl.constexpr = False  # images may lie in memory in any way
    b = tl.load(words + (tl.program_id(0) // BLOCKS) * WORDS + (FIXED + 2 * COUNT + LIST))
    row, luts, counts = words + b * WORDS, luts + b * ((COUNT + 1) * 768), counts + b * COUNTS
    image = (images + b.to(tl.int64) * s_n, s_c, s_h, s_w, FILL)
    pixel = (tl.program_id(0) % BLOCKS) * BLOCK + tl.arange(0, BLOCK)
    valid = pixel < HEIGHT * WIDTH
    y = pixel // WIDTH
    x = pixel - y * WIDTH
    matrix, last = matrix_of(row, WARP), last_operation(row, COUNT)
    red, green, blue = colored(
        (image, matrix, row, luts, last), x, y, valid, COLUMN, FLAT, WARP, COLORS, MAPPED, COUNT, HEIGHT, WIDTH
    )
    if (MAPPED >> COLUMN) & 1:
        red, green, blue = mapped(luts + COLUMN * 768, red, green, blue)
    op, _ = operation(row, COLUMN, COUNT)
    if op == CONTRAST:
        gray = tl.where(valid, luma(red, green, blue), 0)
        tl.atomic_add(counts + 768, tl.sum(gray, axis=0).to(tl.int64))
    elif op == AUTOCONTRAST:
        _bounds(counts, red, valid)
        _bounds(counts + 256, green, valid)
        _bounds(counts + 512, blue, valid)
    else:
        _count(counts, red, valid)
        _count(counts + 256, green, valid)
        _count(counts + 512, blue, valid)


@kernel
def _count(counts, level, valid):
    histogram = tl.histogram(level, 256, mask=valid)
    tl.atomic_add(counts + tl.arange(0, 256), histogram.to(tl.int64), mask=histogram > 0)


@kernel
def _bounds(counts, level, valid):
    """255 - the least level and the greatest, so that counts begin with zeros."""
    tl.atomic_max(counts, tl.max(tl.where(valid, 255 - level, 0), axis=0).to(tl.int64))
    tl.atomic_max(counts + 1, tl.max(tl.where(valid, level, 0), axis=0).to(tl.int64))
