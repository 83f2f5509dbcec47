"""Runs of levels from rows that are read in words: as they lie there, mirrored, and sharpened."""

# mypy: allow-untyped-defs, allow-incomplete-defs

import triton.language as tl  # type: ignore[import-untyped]

from .constants import kernel
from .levels import blend, clamped, smooth
from .registers import four_of, in_four, moved, picked, run_from, unpacked


@kernel
def straight_run(levels, start, upside, valid, GROUP: tl.constexpr, HEIGHT: tl.constexpr, ROW: tl.constexpr):
    """The run from value `start` [THREADS], a multiple of GROUP, of an image that is upside down if `upside` < 0."""
    source = start
    if upside < 0:
        source += (HEIGHT - 1 - 2 * (start // ROW)) * ROW
    if GROUP == 8:
        both = long_at(levels + source, valid)
        low, high = both.to(tl.int32), (both >> 32).to(tl.int32)
    else:
        low = word_at(levels + source, valid)
        high = low
    return low, high


@kernel
def mirrored_run(levels, start, phase, upside, valid, GROUP: tl.constexpr, HEIGHT: tl.constexpr, ROW: tl.constexpr):
    """The run from value `start` [THREADS], of channel `phase`, of the mirrored image.

    The first value's pixel lies `phase` - 3 bytes from `end`, a multiple of GROUP, and the others before it. So a
    thread needs no more than the bytes -12 to 1 from there, or -8 to 1 if GROUP is 4: three or four words, of which one
    that may lie outside of the row is not read, as no value needs it then. Moved by `phase` bytes, words lie the same
    way for all threads, and are put in the order of values for phase 0; moved once more, in that of any phase.
    """
    y = start // ROW
    end = (2 * y + 1) * ROW - start
    if upside < 0:
        end += (HEIGHT - 1 - 2 * y) * ROW
    after = word_at(levels + end, valid & (phase != 0))
    if GROUP == 8:
        before = word_at(levels + (end - 12), valid & (phase != 1))
        middle = long_at(levels + (end - 8), valid)
        first, second = middle.to(tl.int32), (middle >> 32).to(tl.int32)
    else:
        before = 0 * after  # never used
        first, second = word_at(levels + (end - 8), valid & (phase != 2)), word_at(levels + (end - 4), valid)
    # the bytes -12 to -9, -8 to -5 and -4 to -1 from the end of the first value's pixel
    far, mid, near = moved(before, first, phase), moved(first, second, phase), moved(second, after, phase)
    one = picked(near, mid, 1, 2, 3, 6)  # -3, -2, -1, -6: red, green, blue, red
    two = picked(picked(mid, near, 3, 4, 0, 0), far, 0, 1, 7, 2)  # -5, -4, -9, -8
    three = picked(mid, far, 1, 4, 0, 0)  # -7, -12
    return run_from(one, two, three, phase, GROUP)


@kernel
def sharpened_row(
    levels,
    start,
    phase,
    mirrored,
    upside,
    valid,
    factor,
    THREADS: tl.constexpr,
    HEIGHT: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """Red, green and blue [THREADS, 4] of four pixels of the sharpened image, flipped, from that of value `start`.

    `phase` is the value's channel. With their neighbours they are 18 bytes of three rows, within three words of 8
    bytes. A word outside of the row is not read: only neighbours of outermost pixels, which stay as they are, or pixels
    of which no value is wanted lie there. Sums of levels have 16 bits, two in a register.
    """
    ROW: tl.constexpr = 3 * WIDTH
    y = start // ROW
    place = start - y * ROW
    v, u = y, place // 3
    begin, skipped = place - 8, 5 - phase
    if upside < 0:
        v = HEIGHT - 1 - y
    if mirrored < 0:
        u = WIDTH - 4 - u
        begin, skipped = ROW - 16 - place, 1 + phase
    bits = (8 * skipped).to(tl.uint64)
    e0, e1, e2, e3, e4 = 0 * start, 0 * start, 0 * start, 0 * start, 0 * start  # sums of even bytes, and of odd ones
    o0, o1, o2, o3, o4 = 0 * start, 0 * start, 0 * start, 0 * start, 0 * start
    h0, h1, h2, h3 = 0 * start, 0 * start, 0 * start, 0 * start
    for number in tl.static_range(3):
        near = levels + (clamped(v + (number - 1), HEIGHT) * ROW + begin)
        first = long_at(near, valid & (begin >= 0)).to(tl.uint64)
        second = long_at(near + 8, valid).to(tl.uint64)
        third = long_at(near + 16, valid & (begin + 16 < ROW)).to(tl.uint64)
        one, two = (first >> bits) | (second << (64 - bits)), (second >> bits) | (third << (64 - bits))
        w0, w1 = one.to(tl.int32), (one >> 32).to(tl.int32)
        w2, w3 = two.to(tl.int32), (two >> 32).to(tl.int32)
        w4 = (third >> bits).to(tl.int32)
        e0, e1, e2, e3, e4 = e0 + _even(w0), e1 + _even(w1), e2 + _even(w2), e3 + _even(w3), e4 + _even(w4)
        o0, o1, o2, o3, o4 = o0 + _odd(w0), o1 + _odd(w1), o2 + _odd(w2), o3 + _odd(w3), o4 + _odd(w4)
        if number == 1:
            h0, h1, h2, h3 = w0, w1, w2, w3
    # byte k of the four pixels gets the sum of the bytes k, k + 3 and k + 6 of the 18
    o12, o34, o56, o78 = _between(o0, o1), _between(o1, o2), _between(o2, o3), _between(o3, o4)
    t02, t46, t8a = e0 + o12 + _between(e1, e2), e1 + o34 + _between(e2, e3), e2 + o56 + _between(e3, e4)
    t13, t57, t9b = o0 + e1 + o34, o1 + e2 + o56, o2 + e3 + o78
    red = in_four(_low(t02), _high(t13), _high(t46), _low(t9b), THREADS)
    green = in_four(_low(t13), _low(t46), _high(t57), _high(t8a), THREADS)
    blue = in_four(_high(t02), _low(t57), _low(t8a), _high(t9b), THREADS)
    one, two, three = moved(h0, h1, 3 + 0 * phase), moved(h1, h2, 3 + 0 * phase), moved(h2, h3, 3 + 0 * phase)
    here = in_four(one, moved(one, two, 3 + 0 * phase), moved(two, three, 2 + 0 * phase), three >> 8, THREADS)
    u = u[:, None] + tl.arange(0, 4)[None, :]
    inner = (u > 0) & (u < WIDTH - 1) & ((v > 0) & (v < HEIGHT - 1))[:, None]
    red, green, blue = sharpened_pixel(red, green, blue, here, inner, factor)
    if mirrored < 0:
        red, green, blue = _reversed(red, THREADS), _reversed(green, THREADS), _reversed(blue, THREADS)
    return red, green, blue


@kernel
def sharpened_pixel(red, green, blue, here, inner, factor):
    """Levels for sums of nine levels, the pixel `here`, and whether it has eight neighbours."""
    red_here, green_here, blue_here = unpacked(here)
    return (
        blend(tl.where(inner, smooth(red, red_here), red_here), red_here, factor),
        blend(tl.where(inner, smooth(green, green_here), green_here), green_here, factor),
        blend(tl.where(inner, smooth(blue, blue_here), blue_here), blue_here, factor),
    )


@kernel
def _reversed(values, THREADS: tl.constexpr):
    v0, v1, v2, v3 = four_of(values, THREADS)
    return in_four(v3, v2, v1, v0, THREADS)


@kernel
def word_at(address, mask):
    return tl.load(address.to(tl.pointer_type(tl.int32)), mask=mask, other=0)


@kernel
def long_at(address, mask):
    return tl.load(address.to(tl.pointer_type(tl.int64)), mask=mask, other=0)


@kernel
def _even(word):
    return word & 0xFF00FF


@kernel
def _odd(word):
    return (word >> 8) & 0xFF00FF


@kernel
def _between(low, high):
    """The upper half of a number, and the lower one of the next."""
    return ((low >> 16) & 0xFFFF) | (high << 16)


@kernel
def _low(pair):
    return pair & 0xFFFF


@kernel
def _high(pair):
    return (pair >> 16) & 0xFFFF
