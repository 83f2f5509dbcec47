"""The kernel that makes look-up tables, composed up to the next operation that needs more than a level."""

# mypy: allow-untyped-defs, allow-incomplete-defs

import triton.language as tl  # type: ignore[import-untyped]

from .constants import (
    AUTOCONTRAST,
    BRIGHTNESS,
    COLOR,
    CONTRAST,
    COUNTS,
    ENTRIES,
    EQUALIZE,
    HUE,
    INVERT,
    POSTERIZE,
    SHARPNESS,
    SOLARIZE,
    SOLARIZE_ADD,
    TABLE,
    kernel,
)
from .levels import blend, contrast_mean, operation, posterized, solarized


@kernel
def _tables(
    final,
    luts,
    counts,
    words,
    table,
    START: tl.constexpr,
    STOP: tl.constexpr,
    COUNTED: tl.constexpr,
    ADDS: tl.constexpr,
    ENDING: tl.constexpr,
    WORDS: tl.constexpr,
    COUNT: tl.constexpr,
    HEIGHT: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """Look-up tables for columns START to STOP of one image: luts [B, COUNT + 1, 768] and final [B, 771].

    `luts` before a column, and after the last: the look-ups composed since the last colour, sharpness or the warp.
    `final`, where a table ends the pass: the same after the last column, normalised. If COUNTED, counts [B, 770]
    holds the statistics for column START. ADDS: columns may hold INVERT, SOLARIZE_ADD or HUE.
    """
    b = tl.program_id(0)
    row, luts, final = words + b * WORDS, luts + b * ((COUNT + 1) * 768), final + b * ENTRIES
    channel = tl.arange(0, 4)[:, None]
    level = tl.arange(0, 256)[None, :]
    entry = channel * 256 + level
    real = entry < 768
    lut = level + 0 * channel
    if START > 0:
        lut = tl.load(luts + START * 768 + entry, mask=real, other=0).to(tl.int32)
    for column in tl.static_range(START, STOP):
        op, magnitude = operation(row, column, COUNT)
        if op == BRIGHTNESS:
            lut = blend(0 * lut, lut, magnitude)
        elif op == POSTERIZE:
            lut = posterized(lut, magnitude)
        elif op == SOLARIZE:
            lut = solarized(lut, magnitude)
        elif (op == COLOR) | (op == SHARPNESS):
            lut = level + 0 * channel
        if ADDS:
            if op == INVERT:
                lut = 255 - lut
            elif op == SOLARIZE_ADD:
                lut = tl.where(lut < 128, tl.minimum(lut + magnitude.to(tl.int32), 255), lut)
            elif op == HUE:
                lut = level + 0 * channel
        if COUNTED and column == START:
            if op == CONTRAST:
                lut = blend(contrast_mean(counts + b * COUNTS, HEIGHT * WIDTH) + 0 * lut, lut, magnitude)
            elif op == AUTOCONTRAST:
                bounds = counts + b * COUNTS + channel * 256
                low = 255 - tl.load(bounds, mask=channel < 3, other=0).to(tl.int32)
                high = tl.load(bounds + 1, mask=channel < 3, other=0).to(tl.int32)
                lut = _autocontrast(low, high, lut)
            elif op == EQUALIZE:
                lut = _equalize(tl.load(counts + b * COUNTS + entry, mask=real, other=0).to(tl.int32), level, lut)
        tl.store(luts + (column + 1) * 768 + entry, lut.to(tl.uint8), mask=real)
    if STOP == COUNT and ENDING == TABLE:
        tl.store(final + entry, tl.load(table + channel * 256 + lut, mask=real, other=0), mask=real)
        erased = 768 + tl.arange(0, 4)
        tl.store(final + erased, tl.load(table + erased, mask=erased < ENTRIES, other=0), mask=erased < ENTRIES)


@kernel
def _autocontrast(low, high, lut):
    """`ops.lookup` for levels lut [4, 256] and the channels' bounds [4, 1], in float64."""
    span = tl.maximum(high - low, 1).to(tl.float64)
    scale = tl.full(span.shape, 255.0, tl.float64) / span
    offset = (0 - low).to(tl.float64) * scale
    product = lut.to(tl.float64) * scale
    stretched = tl.minimum(tl.maximum(product + offset, 0.0), 255.0).to(tl.int32)
    return tl.where(high <= low, lut, stretched)


@kernel
def _equalize(histogram, level, lut):
    """`ops.lookup` for levels lut [4, 256]; counts of 8,192 x 8,192 pixels fit 32 bits."""
    below = tl.cumsum(histogram, axis=1) - histogram
    total = tl.sum(histogram, axis=1)[:, None]
    top = tl.max(tl.where(histogram > 0, level, 0), axis=1)[:, None]
    lightest = tl.sum(tl.where(level == top, histogram, 0), axis=1)[:, None]
    step = (total - lightest) // 255
    spread = (step // 2 + tl.gather(below, lut, 1)) // tl.maximum(step, 1)
    return tl.where(step == 0, lut, tl.minimum(spread, 255))
