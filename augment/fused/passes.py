"""The kernel of the pass over the pixels, which takes an image as a run of values or pixel by pixel."""

# mypy: allow-untyped-defs, allow-incomplete-defs

import triton.language as tl  # type: ignore[import-untyped]

from .constants import ENTRIES, LOOKED, PIXELS, RUNS, SHARPNESS, SINGLE, STILL, TABLE, kernel
from .endings import ended
from .levels import mapped, operation
from .pixel import colored, eight, joined, sharpened


@kernel
def _pixels(
    out,
    images,
    s_n,
    s_c,
    s_h,
    s_w,
    words,
    luts,
    final,
    scale_red,
    scale_green,
    scale_blue,
    bias_red,
    bias_green,
    bias_blue,
    PATHS: tl.constexpr,
    ENDING: tl.constexpr,
    TYPE: tl.constexpr,
    SHARPENS: tl.constexpr,
    ERASES: tl.constexpr,
    THREADS: tl.constexpr,
    EACH: tl.constexpr,
    FILL: tl.constexpr,
    WARP: tl.constexpr,
    COLORS: tl.constexpr,
    MAPPED: tl.constexpr,
    WORDS: tl.constexpr,
    COUNT: tl.constexpr,
    HEIGHT: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """Compute EACH * THREADS pixels of one image in out [B, H, W, 3]; EACH is 8 or 16."""
    BLOCK: tl.constexpr = EACH * THREADS
    BLOCKS: tl.constexpr = (HEIGHT * WIDTH + BLOCK - 1) // BLOCK
    LOOKS: tl.constexpr = COUNT > 0 and ENDING != TABLE
    b = tl.program_id(0) // BLOCKS
    first = (tl.program_id(0) % BLOCKS) * BLOCK
    row, luts = words + b * WORDS, luts + b * ((COUNT + 1) * 768)
    if ENDING == TABLE and COUNT > 0:
        final += b * ENTRIES
    image = (images + b.to(tl.int64) * s_n, s_c, s_h, s_w, FILL)
    out += b.to(tl.int64) * (HEIGHT * WIDTH * 3)
    ending = (final, luts + COUNT * 768)
    line = (scale_red, scale_green, scale_blue, bias_red, bias_green, bias_blue)
    if PATHS == RUNS:
        drawn = RUNS + LOOKED
        if COUNT > 0:
            drawn = tl.load(row + (WORDS - 1))
        _run(out, image, row, ending, line, first, drawn, LOOKS, ENDING, TYPE, THREADS, EACH, WARP, HEIGHT, WIDTH)
    elif PATHS == RUNS + PIXELS:
        drawn = tl.load(row + (WORDS - 1))
        if drawn & RUNS:
            _run(out, image, row, ending, line, first, drawn, LOOKS, ENDING, TYPE, THREADS, EACH, WARP, HEIGHT, WIDTH)
        else:
            _each(
                *(out, image, row, luts, ending, line, first, drawn, LOOKS, ENDING, TYPE, SHARPENS, ERASES, THREADS),
                *(WARP, COLORS, MAPPED, COUNT, HEIGHT, WIDTH),
            )
    else:
        drawn = 0
        if COUNT > 0:
            drawn = tl.load(row + (WORDS - 1))
        _each(
            *(out, image, row, luts, ending, line, first, drawn, LOOKS, ENDING, TYPE, SHARPENS, ERASES, THREADS),
            *(WARP, COLORS, MAPPED, COUNT, HEIGHT, WIDTH),
        )


@kernel
def _run(
    out,
    image,
    row,
    ending,
    line,
    first,
    drawn,
    LOOKS: tl.constexpr,
    ENDING: tl.constexpr,
    TYPE: tl.constexpr,
    THREADS: tl.constexpr,
    EACH: tl.constexpr,
    WARP: tl.constexpr,
    HEIGHT: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """An image that is at most flipped and looked up: whole words in, whole words out."""
    mirrored = 0
    if WARP != STILL:
        mirrored = tl.load(row)
    if WARP != STILL and mirrored < 0:
        if LOOKS and (drawn & LOOKED) != 0:
            _mirrored(out, image, row, ending, line, first, True, ENDING, TYPE, THREADS, EACH, HEIGHT, WIDTH)
        else:
            _mirrored(out, image, row, ending, line, first, False, ENDING, TYPE, THREADS, EACH, HEIGHT, WIDTH)
    else:
        if LOOKS and (drawn & LOOKED) != 0:
            _values(out, image, row, ending, line, first, True, ENDING, TYPE, THREADS, EACH, WARP, HEIGHT, WIDTH)
        else:
            _values(out, image, row, ending, line, first, False, ENDING, TYPE, THREADS, EACH, WARP, HEIGHT, WIDTH)


@kernel
def _values(
    out,
    image,
    row,
    ending,
    line,
    first,
    LOOKS: tl.constexpr,
    ENDING: tl.constexpr,
    TYPE: tl.constexpr,
    THREADS: tl.constexpr,
    EACH: tl.constexpr,
    WARP: tl.constexpr,
    HEIGHT: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """Values in memory order: sweeps of GROUP consecutive ones a thread, none of which cross rows.

    The channel of a group's value j is (channel of the first + j) % 3, and only that of the first differs by thread: so
    three offsets, factors and so on serve all sweeps.
    """
    ROW: tl.constexpr = 3 * WIDTH
    GROUP: tl.constexpr = 4 if TYPE == SINGLE else 8
    thread = tl.arange(0, THREADS)[:, None]
    number = tl.arange(0, GROUP)[None, :]
    channel = (thread * GROUP) % 3  # in the first sweep, since blocks begin with red
    levels, _, _, _, _ = image
    red, green, blue, red_bias, green_bias, blue_bias = line
    scales = _by_channel(channel, red, green, blue)
    biases = _by_channel(channel, red_bias, green_bias, blue_bias)
    offsets = _by_channel(channel, 0, 256, 512)
    upside = 0
    if WARP != STILL:
        upside = tl.load(row + 4)
    for sweep in tl.static_range(3 * EACH // GROUP):
        turn = (number + (sweep * THREADS * GROUP) % 3) % 3  # known to the compiler for each register
        start = first * 3 + sweep * (THREADS * GROUP) + thread * GROUP
        valid = start < HEIGHT * ROW
        source = start + number
        if WARP != STILL and upside < 0:
            source += tl.multiple_of((HEIGHT - 1 - 2 * (start // ROW)) * ROW, [1, GROUP])
        level = tl.load(levels + source, mask=valid, other=0).to(tl.int32)
        offset = _turned(turn, offsets[0], offsets[1], offsets[2])
        scale = _turned(turn, scales[0], scales[1], scales[2])
        bias = _turned(turn, biases[0], biases[1], biases[2])
        value = ended(level, offset, scale, bias, ending, LOOKS, ENDING, TYPE)
        tl.store(out + (start + number), value, mask=valid)


@kernel
def _mirrored(
    out,
    image,
    row,
    ending,
    line,
    first,
    LOOKS: tl.constexpr,
    ENDING: tl.constexpr,
    TYPE: tl.constexpr,
    THREADS: tl.constexpr,
    EACH: tl.constexpr,
    HEIGHT: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """Mirrored images: 8 consecutive pixels a thread, read as three words of 8 bytes, written in reverse order."""
    levels, _, _, _, _ = image
    thread = tl.arange(0, THREADS)[:, None]
    number = tl.arange(0, 8)[None, :]
    upside = tl.load(row + 4)
    for part in tl.static_range(EACH // 8):
        pixel = first + part * (8 * THREADS) + thread * 8
        valid = pixel < HEIGHT * WIDTH
        y = pixel // WIDTH
        x = pixel - y * WIDTH
        y = tl.where(upside < 0, HEIGHT - 1 - y, y)
        source = levels + tl.multiple_of((y * WIDTH + (WIDTH - 8) - x) * 3, [1, 8]) + number
        r7, g7, b7, r6, g6, b6, r5, g5 = eight(tl.load(source, mask=valid, other=0), THREADS)
        b5, r4, g4, b4, r3, g3, b3, r2 = eight(tl.load(source + 8, mask=valid, other=0), THREADS)
        g2, b2, r1, g1, b1, r0, g0, b0 = eight(tl.load(source + 16, mask=valid, other=0), THREADS)
        start = out + pixel * 3 + number
        one = _triple(joined(r0, g0, b0, r1, g1, b1, r2, g2), 0, line, ending, LOOKS, ENDING, TYPE)
        tl.store(start, one, mask=valid)
        two = _triple(joined(b2, r3, g3, b3, r4, g4, b4, r5), 2, line, ending, LOOKS, ENDING, TYPE)
        tl.store(start + 8, two, mask=valid)
        three = _triple(joined(g5, b5, r6, g6, b6, r7, g7, b7), 1, line, ending, LOOKS, ENDING, TYPE)
        tl.store(start + 16, three, mask=valid)


@kernel
def _triple(level, begin: tl.constexpr, line, ending, LOOKS: tl.constexpr, ENDING: tl.constexpr, TYPE: tl.constexpr):
    """The bits of the result for levels [THREADS, 8] of consecutive channels, the first of which is `begin`."""
    red, green, blue, red_bias, green_bias, blue_bias = line
    turn = (tl.arange(0, 8)[None, :] + begin) % 3
    scale, bias = _turned(turn, red, green, blue), _turned(turn, red_bias, green_bias, blue_bias)
    return ended(level.to(tl.int32), turn * 256, scale, bias, ending, LOOKS, ENDING, TYPE)


@kernel
def _by_channel(channel, red, green, blue):
    """What belongs to a channel, the next one, and the one after it."""
    return (
        tl.where(channel == 0, red, tl.where(channel == 1, green, blue)),
        tl.where(channel == 0, green, tl.where(channel == 1, blue, red)),
        tl.where(channel == 0, blue, tl.where(channel == 1, red, green)),
    )


@kernel
def _turned(turn, first, second, third):
    return tl.where(turn == 0, first, tl.where(turn == 1, second, third))


@kernel
def _each(
    out,
    image,
    row,
    luts,
    ending,
    line,
    first,
    drawn,
    LOOKS: tl.constexpr,
    ENDING: tl.constexpr,
    TYPE: tl.constexpr,
    SHARPENS: tl.constexpr,
    ERASES: tl.constexpr,
    THREADS: tl.constexpr,
    WARP: tl.constexpr,
    COLORS: tl.constexpr,
    MAPPED: tl.constexpr,
    COUNT: tl.constexpr,
    HEIGHT: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """Pixel by pixel: 8 consecutive pixels a thread, for whatever an image drew and however it lies in memory."""
    thread = tl.arange(0, THREADS)[:, None]
    number = tl.arange(0, 8)[None, :]
    if WIDTH % 8 == 0:  # a thread's pixels lie in one row
        start = first + thread * 8
        y = start // WIDTH
        corner = (start - y * WIDTH, y, start < HEIGHT * WIDTH)
        x = corner[0] + number
        valid = corner[2] & (number >= 0)
        y = y + 0 * number
    else:
        corner = (0, 0, 0)  # never read
        start = first + thread * 8 + number
        y = start // WIDTH
        x = start - y * WIDTH
        valid = start < HEIGHT * WIDTH
    if SHARPENS:
        op, factor = operation(row, COUNT - 1, COUNT)
        if op == SHARPNESS:
            red, green, blue = sharpened(
                image, row, luts, x, y, valid, corner, factor, WARP, COLORS, MAPPED, COUNT, HEIGHT, WIDTH
            )
        else:
            red, green, blue = colored(image, row, luts, x, y, valid, COUNT, WARP, COLORS, MAPPED, COUNT, HEIGHT, WIDTH)
    else:
        red, green, blue = colored(image, row, luts, x, y, valid, COUNT, WARP, COLORS, MAPPED, COUNT, HEIGHT, WIDTH)
    if LOOKS and (drawn & LOOKED) != 0:
        red, green, blue = mapped(ending[1], red, green, blue)
    red_scale, green_scale, blue_scale, red_bias, green_bias, blue_bias = line
    red = ended(red, 0, red_scale, red_bias, ending, False, ENDING, TYPE)
    green = ended(green, 256, green_scale, green_bias, ending, False, ENDING, TYPE)
    blue = ended(blue, 512, blue_scale, blue_bias, ending, False, ENDING, TYPE)
    if ERASES:
        top, left, bottom, right = tl.load(row + 6), tl.load(row + 7), tl.load(row + 8), tl.load(row + 9)
        erased = (y >= top) & (y < bottom) & (x >= left) & (x < right)
        red = tl.where(erased, tl.load(ending[0] + 768), red)
        green = tl.where(erased, tl.load(ending[0] + 769), green)
        blue = tl.where(erased, tl.load(ending[0] + 770), blue)
    _interleaved(out, red, green, blue, first, THREADS, HEIGHT, WIDTH)


@kernel
def _interleaved(out, red, green, blue, first, THREADS: tl.constexpr, HEIGHT: tl.constexpr, WIDTH: tl.constexpr):
    """Store [THREADS, 8] of each channel as [THREADS, 24], in three pieces of 8 values: registers are only renamed."""
    r0, r1, r2, r3, r4, r5, r6, r7 = eight(red, THREADS)
    g0, g1, g2, g3, g4, g5, g6, g7 = eight(green, THREADS)
    b0, b1, b2, b3, b4, b5, b6, b7 = eight(blue, THREADS)
    number = tl.arange(0, 8)[None, :]
    start = first * 3 + tl.arange(0, THREADS)[:, None] * 24 + number
    total = HEIGHT * WIDTH * 3
    tl.store(out + start, joined(r0, g0, b0, r1, g1, b1, r2, g2), mask=start < total)
    tl.store(out + start + 8, joined(b2, r3, g3, b3, r4, g4, b4, r5), mask=start + 8 < total)
    tl.store(out + start + 16, joined(g5, b5, r6, g6, b6, r7, g7, b7), mask=start + 16 < total)
