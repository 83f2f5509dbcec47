"""How levels become values of the result, in bits of its type, and how those of four pixels are stored."""

# mypy: allow-untyped-defs, allow-incomplete-defs

import triton.language as tl  # type: ignore[import-untyped]

from .constants import BRAIN, BYTE, HALF, INTERPRETED, LEVELS, LINE, SINGLE, TABLE, kernel
from .levels import mapped
from .registers import four_of, in_four, levels_of, moved, run_from


@kernel
def ended(level, offset, scale, bias, ending, LOOKS: tl.constexpr, ENDING: tl.constexpr, TYPE: tl.constexpr):
    """The bits of the result for levels of a channel: `offset` is 256 * channel."""
    final, lut, _ = ending
    if ENDING == TABLE:
        bits = tl.load(final + (offset + level))
    else:
        if LOOKS:
            level = tl.load(lut + (offset + level)).to(tl.int32)
        bits = level.to(tl.uint8) if ENDING == LEVELS else _rounded(level.to(tl.float32), scale, bias, TYPE)
    return bits


@kernel
def _rounded(level, scale, bias, TYPE: tl.constexpr):
    """The bits of level * scale + bias in TYPE: rounded once to float32, then to the nearest of TYPE, ties to even."""
    if INTERPRETED:
        value = level.to(tl.float64) * scale + bias  # its `fma` may round the product before adding
        value = value.to(tl.float32)
    else:
        value = tl.fma(level, scale, bias)
    return bits_of(value, TYPE)


@kernel
def bits_of(value, TYPE: tl.constexpr):
    """float32 in the bits of TYPE: rounded to the nearest, ties to even."""
    if TYPE == SINGLE:
        bits = value.to(tl.int32, bitcast=True)
    elif TYPE == HALF:
        bits = value.to(tl.float16).to(tl.int16, bitcast=True)
    elif INTERPRETED:  # it may round to bfloat16 towards zero
        whole = value.to(tl.int32, bitcast=True)
        bits = ((whole + 0x7FFF + ((whole >> 16) & 1)) >> 16).to(tl.int16)
    else:
        bits = value.to(tl.bfloat16).to(tl.int16, bitcast=True)
    return bits


@kernel
def ended_run(
    level,
    begin,
    by_channel,
    ending,
    LOOKS: tl.constexpr,
    ENDING: tl.constexpr,
    TYPE: tl.constexpr,
    GROUP: tl.constexpr,
):
    """The bits of the result for levels [THREADS, GROUP].

    `by_channel` is `by_channel_of` a channel, and the first level is of the one `begin` channels after it.
    """
    turn = (tl.arange(0, GROUP)[None, :] + begin) % 3  # known to the compiler for each register
    scales, biases, offsets = by_channel
    scale, bias, offset = _turned(turn, scales), _turned(turn, biases), _turned(turn, offsets)
    return ended(level, offset, scale, bias, ending, LOOKS, ENDING, TYPE)


@kernel
def by_channel_of(channel, line):
    """Scales, biases and offsets [THREADS, 1] in a table of a channel, the next one, and the one after it."""
    red, green, blue, red_bias, green_bias, blue_bias = line
    channel = channel[:, None]
    return (
        _following(channel, red, green, blue),
        _following(channel, red_bias, green_bias, blue_bias),
        _following(channel, 0, 256, 512),
    )


@kernel
def _following(channel, red, green, blue):
    return (
        tl.where(channel == 0, red, tl.where(channel == 1, green, blue)),
        tl.where(channel == 0, green, tl.where(channel == 1, blue, red)),
        tl.where(channel == 0, blue, tl.where(channel == 1, red, green)),
    )


@kernel
def _turned(number, values):
    """What belongs to the channel that is `number` % 3 after the first, of `_following`."""
    first, second, third = values
    turn = number % 3
    return tl.where(turn == 0, first, tl.where(turn == 1, second, third))


@kernel
def store_pixels(
    out,
    pixels,
    run,
    phase,
    place,
    box,
    line,
    ending,
    looked,
    LOOKS: tl.constexpr,
    ERASES: tl.constexpr,
    ENDING: tl.constexpr,
    TYPE: tl.constexpr,
    THREADS: tl.constexpr,
    GROUP: tl.constexpr,
    WIDTH: tl.constexpr,
    TOTAL: tl.constexpr,
):
    """Store run number `run` [THREADS] of GROUP values, from channel `phase` of the first of four pixels.

    `pixels` are their levels of red, green and blue, [THREADS, 4] each. All twelve values, or six if GROUP is 4, are
    computed, and only then moved by `phase`: so the compiler knows the channel of each. The first pixel's `place`
    is (x, y); pixels within `box`, unless it is empty, get the values behind the table's levels.
    """
    red, green, blue = pixels
    if LOOKS and looked != 0:
        red, green, blue = mapped(ending[1], red, green, blue)
    r0, r1, r2, r3 = four_of(red, THREADS)
    g0, g1, g2, g3 = four_of(green, THREADS)
    b0, b1, b2, b3 = four_of(blue, THREADS)
    if ENDING == LINE and TYPE != SINGLE and not ERASES:
        w0, w1 = _rounded_pair(r0, g0, 0, line, TYPE), _rounded_pair(b0, r1, 2, line, TYPE)
        w2, w3 = _rounded_pair(g1, b1, 1, line, TYPE), _rounded_pair(r2, g2, 0, line, TYPE)
        values = _moved_words(w0, w1, w2, w3, _rounded_pair(b2, r3, 2, line, TYPE), phase, THREADS)
    else:
        one = _four_ended(in_four(r0, g0, b0, r1, THREADS), 0, line, ending, ENDING, TYPE)
        two = _four_ended(in_four(g1, b1, r2, g2, THREADS), 1, line, ending, ENDING, TYPE)
        three = _four_ended(in_four(b2, r3, g3, b3, THREADS), 2, line, ending, ENDING, TYPE)
        if ERASES and box[2] > 0:
            e0, e1, e2, e3 = four_of(_erased(place, box, WIDTH), THREADS)
            one = tl.where(in_four(e0, e0, e0, e1, THREADS), _colours(ending[0], 0), one)
            two = tl.where(in_four(e1, e1, e2, e2, THREADS), _colours(ending[0], 1), two)
            three = tl.where(in_four(e2, e3, e3, e3, THREADS), _colours(ending[0], 2), three)
        values = _moved_values(one.to(tl.int32), two.to(tl.int32), three.to(tl.int32), phase, TYPE, THREADS, GROUP)
    if TOTAL % GROUP == 0:
        WORDS: tl.constexpr = 2 if TYPE == BYTE else 4
        place = (run * WORDS)[:, None] + tl.arange(0, WORDS)[None, :]
        tl.store(out.to(tl.pointer_type(tl.int32)) + place, values, mask=(run < TOTAL // GROUP)[:, None])
    else:
        place = (run * GROUP)[:, None] + tl.arange(0, GROUP)[None, :]
        if TYPE == BYTE:
            low, high = tl.split(values)
            values = levels_of(low, high, THREADS, GROUP)
        elif TYPE != SINGLE:
            values = tl.reshape(tl.join(values & 0xFFFF, values >> 16), [THREADS, GROUP])
        tl.store(out + place, values.to(out.dtype.element_ty), mask=place < TOTAL)


@kernel
def _moved_values(one, two, three, phase, TYPE: tl.constexpr, THREADS: tl.constexpr, GROUP: tl.constexpr):
    """A run's words, from `phase` behind the first of twelve values; float32 are a word each."""
    v0, v1, v2, v3 = four_of(one, THREADS)
    v4, v5, v6, v7 = four_of(two, THREADS)
    v8, v9, v10, v11 = four_of(three, THREADS)
    if TYPE == BYTE:
        low, high = run_from(_bytes(v0, v1, v2, v3), _bytes(v4, v5, v6, v7), _bytes(v8, v9, v10, v11), phase, GROUP)
        values = tl.join(low, high)
    elif TYPE == SINGLE:
        values = in_four(
            _chosen(v0, v1, v2, phase),
            _chosen(v1, v2, v3, phase),
            _chosen(v2, v3, v4, phase),
            _chosen(v3, v4, v5, phase),
            THREADS,
        )
    else:
        w0, w1, w2, w3, w4 = _pair(v0, v1), _pair(v2, v3), _pair(v4, v5), _pair(v6, v7), _pair(v8, v9)
        values = _moved_words(w0, w1, w2, w3, w4, phase, THREADS)
    return values


@kernel
def _moved_words(w0, w1, w2, w3, w4, phase, THREADS: tl.constexpr):
    """Four words of two values, from `phase` values behind the first of five words."""
    return in_four(
        moved(w0, w1, 2 * phase),
        moved(w1, w2, 2 * phase),
        moved(w2, w3, 2 * phase),
        moved(w3, w4, 2 * phase),
        THREADS,
    )


@kernel
def _rounded_pair(first, second, channel: tl.constexpr, line, TYPE: tl.constexpr):
    """Two levels of consecutive channels as a word of two values: what `_rounded` gives, in one instruction less."""
    red, green, blue, red_bias, green_bias, blue_bias = line
    after = (channel + 1) % 3
    scale, bias = _by(channel, red, green, blue), _by(channel, red_bias, green_bias, blue_bias)
    next_scale, next_bias = _by(after, red, green, blue), _by(after, red_bias, green_bias, blue_bias)
    if INTERPRETED:
        low = _rounded(first, scale, bias, TYPE).to(tl.int32)
        word = _pair(low, _rounded(second, next_scale, next_bias, TYPE).to(tl.int32))
    else:
        low = tl.fma(first.to(tl.float32), scale, bias)
        high = tl.fma(second.to(tl.float32), next_scale, next_bias)
        word = tl.inline_asm_elementwise(
            "cvt.rn.bf16x2.f32 $0, $2, $1;" if TYPE == BRAIN else "cvt.rn.f16x2.f32 $0, $2, $1;",
            "=r,f,f",
            [low, high],
            dtype=tl.int32,
            is_pure=True,
            pack=1,
        )
    return word


@kernel
def _four_ended(levels, begin: tl.constexpr, line, ending, ENDING: tl.constexpr, TYPE: tl.constexpr):
    """Values of levels [THREADS, 4] of consecutive channels, the first of which is `begin`."""
    red, green, blue, red_bias, green_bias, blue_bias = line
    channel = (tl.arange(0, 4)[None, :] + begin) % 3
    scale, bias = _by(channel, red, green, blue), _by(channel, red_bias, green_bias, blue_bias)
    return ended(levels, 256 * channel, scale, bias, ending, False, ENDING, TYPE)


@kernel
def _by(channel, red, green, blue):
    return tl.where(channel == 0, red, tl.where(channel == 1, green, blue))


@kernel
def _erased(place, box, WIDTH: tl.constexpr):
    """Whether four pixels [THREADS, 4] lie within a box."""
    x, y = place
    top, left, bottom, right = box
    u = x[:, None] + tl.arange(0, 4)[None, :]
    v = y[:, None] + u // WIDTH
    u %= WIDTH
    return (v >= top) & (v < bottom) & (u >= left) & (u < right)


@kernel
def _colours(final, begin: tl.constexpr):
    return tl.load(final + (768 + (tl.arange(0, 4)[None, :] + begin) % 3))


@kernel
def _bytes(v0, v1, v2, v3):
    return (v0 & 0xFF) | ((v1 & 0xFF) << 8) | ((v2 & 0xFF) << 16) | (v3 << 24)


@kernel
def _pair(low, high):
    return (low & 0xFFFF) | (high << 16)


@kernel
def _chosen(first, second, third, phase):
    return tl.where(phase == 0, first, tl.where(phase == 1, second, third))
