"""SHARPNESS: runs of levels from rows that are read in words, and pixels from sums of nine levels."""

# mypy: allow-untyped-defs, allow-incomplete-defs

import triton.language as tl  # type: ignore[import-untyped]

from .constants import INTERPRETED, kernel
from .levels import blend, smooth
from .registers import in_eight, moved, picked, unpacked
from .rows import turned, word_at, words_at


@kernel
def sharpened_run(
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
    """Levels float32 [THREADS, 8] of the sharpened image, flipped, from value `start` [THREADS] of channel `phase`.

    A level's neighbours are 3 bytes before and behind it, in three rows. Sums of levels have 16 bits, two in a
    register. Words outside of a row are not read: they are neighbours of outermost pixels, which are blended with a
    factor of 1.
    """
    ROW: tl.constexpr = 3 * WIDTH
    y = start // ROW
    place = start - y * ROW
    above, below, first = ROW * (y > 0).to(tl.int32), ROW * (y < HEIGHT - 1).to(tl.int32), start - place
    if upside < 0:
        above, below, first = below, above, (HEIGHT - 1 - y) * ROW
    if mirrored < 0:
        s0, s1, s2, s3, low, high = _mirrored_sums(levels + first, place, phase, above, below, valid, ROW)
    else:
        s0, s1, s2, s3, low, high = _straight_sums(levels + first, place, above, below, valid, ROW)
    factor = tl.where((above > 0) & (below > 0), factor, 1.0)
    factors = (tl.where(place != 0, factor, 1.0), factor, tl.where(place != ROW - 8, factor, 1.0))
    return _sharper(_floats_of_pairs(s0, s1, s2, s3, THREADS), _floats_of_bytes(low, high, THREADS), factors)


@kernel
def _straight_sums(row, place, above, below, valid, ROW: tl.constexpr):
    """What `_sharper` needs for a run from byte `place` of a row: sums of its eight levels, in pairs, and its words.

    The rows before and behind lie `above` and `below` bytes away.
    """
    # sums of even bytes of the words from place - 4, and of odd ones
    e0, e1, e2, e3 = 0 * place, 0 * place, 0 * place, 0 * place
    o0, o1, o2, o3 = 0 * place, 0 * place, 0 * place, 0 * place
    low, high = 0 * place, 0 * place
    for number in tl.static_range(3):
        near = _beside(row, place, above, below, number)
        before = word_at(near - 4, valid & (place > 0))
        one, two = words_at(near, valid)
        after = word_at(near + 8, valid & (place < ROW - 8))
        e0, e1, e2, e3 = e0 + _even(before), e1 + _even(one), e2 + _even(two), e3 + _even(after)
        o0, o1, o2, o3 = o0 + _odd(before), o1 + _odd(one), o2 + _odd(two), o3 + _odd(after)
        if number == 1:
            low, high = one, two
    n02 = o0 + e1 + _between(o1, o2) + _weighed(_even(low))
    n13 = _between(e0, e1) + o1 + e2 + _weighed(_odd(low))
    n46 = o1 + e2 + _between(o2, o3) + _weighed(_even(high))
    n57 = _between(e1, e2) + o2 + e3 + _weighed(_odd(high))
    return (
        picked(n02, n13, 0, 1, 4, 5),
        picked(n02, n13, 2, 3, 6, 7),
        picked(n46, n57, 0, 1, 4, 5),
        picked(n46, n57, 2, 3, 6, 7),
        low,
        high,
    )


@kernel
def _mirrored_sums(row, place, phase, above, below, valid, ROW: tl.constexpr):
    """The same from value `place`, of channel `phase`, of the mirrored row.

    They are made for the four pixels that the run takes from, in the order of the image, which are 18 bytes with their
    neighbours, within three words of 8; and then put in order, as in `mirrored_run`.
    """
    begin = ROW - 16 - place
    e0, e1, e2, e3, e4 = 0 * place, 0 * place, 0 * place, 0 * place, 0 * place
    o0, o1, o2, o3, o4 = 0 * place, 0 * place, 0 * place, 0 * place, 0 * place
    h0, h1, h2, h3 = 0 * place, 0 * place, 0 * place, 0 * place
    for number in tl.static_range(3):
        near = _beside(row, begin, above, below, number)
        a, b = words_at(near, valid & (begin >= 0))
        c, d = words_at(near + 8, valid)
        e, f = words_at(near + 16, valid & (begin < ROW - 16))
        w0, w1, w2 = moved(a, b, phase + 1), moved(b, c, phase + 1), moved(c, d, phase + 1)
        w3, w4 = moved(d, e, phase + 1), moved(e, f, phase + 1)
        e0, e1, e2, e3, e4 = e0 + _even(w0), e1 + _even(w1), e2 + _even(w2), e3 + _even(w3), e4 + _even(w4)
        o0, o1, o2, o3, o4 = o0 + _odd(w0), o1 + _odd(w1), o2 + _odd(w2), o3 + _odd(w3), o4 + _odd(w4)
        if number == 1:
            h0, h1, h2, h3 = w0, w1, w2, w3
    far, mid, near = picked(h0, h1, 3, 4, 5, 6), picked(h1, h2, 3, 4, 5, 6), picked(h2, h3, 3, 4, 5, 6)
    # byte k of the four pixels gets the sum of the bytes k, k + 3 and k + 6 of the 18
    o12, o34, o56, o78 = _between(o0, o1), _between(o1, o2), _between(o2, o3), _between(o3, o4)
    n02, n46 = e0 + o12 + _between(e1, e2) + _weighed(_even(far)), e1 + o34 + _between(e2, e3) + _weighed(_even(mid))
    n13, n57 = o0 + e1 + o34 + _weighed(_odd(far)), o1 + e2 + o56 + _weighed(_odd(mid))
    n8a, n9b = e2 + o56 + _between(e3, e4) + _weighed(_even(near)), o2 + e3 + o78 + _weighed(_odd(near))
    # 9, 10; 11, 6; 7, 8; 3, 4; 5, 0
    s0, s1, s2 = picked(n9b, n8a, 0, 1, 6, 7), picked(n9b, n46, 2, 3, 6, 7), picked(n57, n8a, 2, 3, 4, 5)
    s3, s4 = picked(n13, n46, 2, 3, 4, 5), picked(n57, n02, 0, 1, 4, 5)
    low, high = turned(far, mid, near, phase, 8)
    return (
        moved(s0, s1, 2 * phase),
        moved(s1, s2, 2 * phase),
        moved(s2, s3, 2 * phase),
        moved(s3, s4, 2 * phase),
        low,
        high,
    )


@kernel
def _beside(row, place, above, below, NUMBER: tl.constexpr):
    """Byte `place` of the row before, of the row itself, and of the row behind."""
    if NUMBER == 0:
        place -= above
    elif NUMBER == 2:
        place += below
    return row + place


@kernel
def _weighed(pair):
    """4 times each of two levels, and half of 13 to round."""
    return 4 * pair + 0x60006


@kernel
def _sharper(sums, here, factors):
    """`blend` of `thirteenth(sums)` and the levels `here`, [THREADS, 8]. All numbers are float32 that begin at 2^23.

    There, neighbours are whole numbers, and rounding towards zero is a division's or a conversion's. `factors` are
    those of the first three levels, of the next two, and of the last three.
    """
    smoothed = _towards_zero(sums, 5042 / 65536, 8388608.0 - 8388608.0 * 5042 / 65536)
    number = tl.arange(0, 8)[None, :]
    first, middle, last = factors
    factor = tl.where(number < 3, first[:, None], tl.where(number < 5, middle[:, None], last[:, None]))
    product = factor * (here - smoothed)
    blended = tl.minimum(tl.maximum((smoothed - 8388608.0) + product, 0.0), 255.0)
    return _towards_zero(blended, 1.0, 8388608.0) - 8388608.0


@kernel
def _towards_zero(value, scale: tl.constexpr, bias: tl.constexpr):
    """value * scale + bias, between 2^23 and 2^24, rounded once, towards zero."""
    if INTERPRETED:
        result = (value.to(tl.float64) * scale + bias).to(tl.int32).to(tl.float32)
    else:
        result = tl.inline_asm_elementwise(
            "fma.rz.f32 $0, $1, $2, $3;",
            "=f,f,f,f",
            [value, tl.full([], scale, tl.float32), tl.full([], bias, tl.float32)],
            dtype=tl.float32,
            is_pure=True,
            pack=1,
        )
    return result


@kernel
def _floats_of_pairs(s0, s1, s2, s3, THREADS: tl.constexpr):
    """2^23 and each of eight numbers of 16 bits, float32 [THREADS, 8]."""
    bits = in_eight(
        *(_half(s0, 0), _half(s0, 2), _half(s1, 0), _half(s1, 2)),
        *(_half(s2, 0), _half(s2, 2), _half(s3, 0), _half(s3, 2)),
        THREADS,
    )
    return bits.to(tl.float32, bitcast=True)


@kernel
def _floats_of_bytes(low, high, THREADS: tl.constexpr):
    """2^23 and each of a run's levels, float32 [THREADS, 8]."""
    bits = in_eight(
        *(_byte(low, 0), _byte(low, 1), _byte(low, 2), _byte(low, 3)),
        *(_byte(high, 0), _byte(high, 1), _byte(high, 2), _byte(high, 3)),
        THREADS,
    )
    return bits.to(tl.float32, bitcast=True)


@kernel
def _half(pair, BYTE: tl.constexpr):
    return picked(pair, 0 * pair + 0x4B000000, BYTE, BYTE + 1, 4, 7)


@kernel
def _byte(word, BYTE: tl.constexpr):
    return picked(word, 0 * word + 0x4B000000, BYTE, 4, 4, 7)


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
def _even(word):
    return word & 0xFF00FF


@kernel
def _odd(word):
    return picked(word, 0 * word, 1, 4, 3, 4)


@kernel
def _between(low, high):
    """The upper half of a number, and the lower one of the next."""
    return picked(low, high, 2, 3, 4, 5)
