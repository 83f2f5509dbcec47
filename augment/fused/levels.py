"""Levels of a pixel: looked up, blended, and made grey, as in `ops`."""

# mypy: allow-untyped-defs, allow-incomplete-defs

import triton.language as tl  # type: ignore[import-untyped]

from .constants import FIXED, kernel


@kernel
def mapped(tables, red, green, blue):
    """Look up levels in tables uint8 [3, 256]."""
    red = tl.load(tables + red).to(tl.int32)
    green = tl.load(tables + 256 + green).to(tl.int32)
    blue = tl.load(tables + 512 + blue).to(tl.int32)
    return red, green, blue


@kernel
def operation(row, column: tl.constexpr, COUNT: tl.constexpr):
    """The Op of a column and its magnitude float32, from an image's words."""
    return tl.load(row + (FIXED + column)), tl.load(row + (FIXED + COUNT + column)).to(tl.float32, bitcast=True)


@kernel
def luma(red, green, blue):
    """`ops.luma`."""
    return (red * 19595 + green * 38470 + blue * 7471 + 0x8000) >> 16


@kernel
def smooth(total, centre):
    """`ops.smooth` from the sum of nine levels and the one in the centre."""
    return thirteenth(total + 4 * centre + 6)  # of whole numbers, the same as (2 * (total + 4 * centre) + 13) // 26


@kernel
def thirteenth(number):
    """`number` // 13 for 0 to 13 * 256.

    Written as a division, LLVM computes it in packed 16-bit numbers, and ptxas 12.8 loses a constant that is added to
    two of them where only one is used.
    """
    return (number * 20165) >> 18


@kernel
def blend(degenerate, level, factor):
    """`ops.blend` for int32 levels."""
    product = factor * (level - degenerate).to(tl.float32)
    return tl.minimum(tl.maximum(degenerate.to(tl.float32) + product, 0.0), 255.0).to(tl.int32)


@kernel
def posterized(level, bits):
    dropped = (8 - bits).to(tl.int32)
    return (level >> dropped) << dropped


@kernel
def solarized(level, threshold):
    return tl.where(level.to(tl.float32) < threshold, level, 255 - level)


@kernel
def contrast_mean(counts, PIXELS: tl.constexpr):
    """The mean of L, which contrast blends with, from an image's statistics.

    Where a policy has no statistics, `counts` is a placeholder of smaller numbers, never read: they could not hold
    PIXELS, and Triton would refuse to compile.
    """
    total = tl.load(counts + 768).to(tl.int64)
    return ((2 * total + PIXELS) // (2 * PIXELS)).to(tl.int32)


@kernel
def clamped(position, SIDE: tl.constexpr):
    return tl.minimum(tl.maximum(position, 0), SIDE - 1)
