"""The kernel of the pass over the pixels: values in the order of memory, however their levels are found."""

# mypy: allow-untyped-defs, allow-incomplete-defs

import triton.language as tl  # type: ignore[import-untyped]

from .constants import (
    BRIGHTNESS,
    CONTRAST,
    COUNTS,
    ENTRIES,
    LINE,
    LOOKED,
    POSTERIZE,
    RUNS,
    SHARP,
    SHIFTED,
    SINGLE,
    SOLARIZE,
    STILL,
    TABLE,
    WARPED,
    kernel,
)
from .endings import by_channel_of, ended_run, store_pixels
from .levels import blend, contrast_mean, posterized, solarized
from .pixel import last_operation, matrix_of, pixels_from
from .registers import levels_of
from .rows import mirrored_run, shifted_mirrored_run, shifted_run, straight_run
from .sharpening import sharpened_run

BY_TABLE, NOTHING = tl.constexpr(-1), tl.constexpr(-2)  # how levels are looked up, beside the operations that do it


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
    counts,
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
    FLAT: tl.constexpr = (RUNS & PATHS) != 0
    b = tl.program_id(0) // BLOCKS
    block = tl.program_id(0) % BLOCKS
    row, luts = words + b * WORDS, luts + b * ((COUNT + 1) * 768)
    if ENDING == TABLE and COUNT > 0:
        final += b * ENTRIES
    image = (images + b.to(tl.int64) * s_n, s_c, s_h, s_w, FILL)
    out += b.to(tl.int64) * (HEIGHT * WIDTH * 3)
    ending = (final, luts + COUNT * 768, counts + b * COUNTS)
    line = (scale_red, scale_green, scale_blue, bias_red, bias_green, bias_blue)
    # Whatever the image drew, its words are asked for before anything depends on one of them.
    drawn = RUNS + LOOKED
    if WORDS > 0 and (PATHS != RUNS or COUNT > 0):
        drawn = tl.load(row + (WORDS - 1))
    matrix, last = matrix_of(row, WARP), last_operation(row, COUNT)
    if PATHS == RUNS:
        _run(
            *(out, image, matrix, last, ending, line, block, drawn, PATHS, LOOKS, ENDING, TYPE, THREADS, EACH, WARP),
            *(COUNT, HEIGHT, WIDTH),
        )
    else:
        if (RUNS & PATHS) != 0 and (drawn & RUNS) != 0:
            _run(
                *(out, image, matrix, last, ending, line, block, drawn, PATHS, LOOKS, ENDING, TYPE, THREADS, EACH),
                *(WARP, COUNT, HEIGHT, WIDTH),
            )
        elif (SHARP & PATHS) != 0 and (drawn & SHARP) != 0:
            _sharp(out, image, matrix, last, ending, line, block, ENDING, TYPE, THREADS, EACH, HEIGHT, WIDTH)
        else:
            _each(
                *(out, image, matrix, last, row, luts, ending, line, block, drawn, LOOKS, ENDING, TYPE),
                *(SHARPENS, ERASES, THREADS),
                *(EACH, FLAT, WARP, COLORS, MAPPED, COUNT, HEIGHT, WIDTH),
            )


@kernel
def _run(
    out,
    image,
    matrix,
    last,
    ending,
    line,
    block,
    drawn,
    PATHS: tl.constexpr,
    LOOKS: tl.constexpr,
    ENDING: tl.constexpr,
    TYPE: tl.constexpr,
    THREADS: tl.constexpr,
    EACH: tl.constexpr,
    WARP: tl.constexpr,
    COUNT: tl.constexpr,
    HEIGHT: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """An image whose rows are at most moved and looked up: words in, whole words out, three runs a thread at a time.

    Runs do not cross rows. The channel of a run's value j is (channel of the first + j) % 3, and only that of the first
    differs by thread: so three scales, biases and offsets serve all runs.
    """
    GROUP: tl.constexpr = 4 if TYPE == SINGLE else 8
    start = tl.arange(0, THREADS) * GROUP
    first = block * (3 * EACH * THREADS) + start
    phase = start % 3  # of every third run: blocks begin with red
    by_channel = by_channel_of(phase, line)
    if PATHS == RUNS:
        for part in tl.static_range(EACH // GROUP):
            next_ = block * (3 * EACH * THREADS) + part * (3 * GROUP * THREADS) + start
            runs = _runs(image[0], next_, phase, matrix, drawn, PATHS, THREADS, GROUP, WARP, HEIGHT, WIDTH)
            _looked(
                *(out, runs, last, drawn, next_, by_channel, ending, LOOKS, ENDING, TYPE, THREADS, GROUP, COUNT),
                HEIGHT * WIDTH,
            )
    else:  # a loop, since all of it twice takes twice as long to compile
        for _ in range(EACH // GROUP):
            runs = _runs(image[0], first, phase, matrix, drawn, PATHS, THREADS, GROUP, WARP, HEIGHT, WIDTH)
            _looked(
                *(out, runs, last, drawn, first, by_channel, ending, LOOKS, ENDING, TYPE, THREADS, GROUP, COUNT),
                HEIGHT * WIDTH,
            )
            first += 3 * GROUP * THREADS


@kernel
def _runs(
    levels,
    first,
    phase,
    matrix,
    drawn,
    PATHS: tl.constexpr,
    THREADS: tl.constexpr,
    GROUP: tl.constexpr,
    WARP: tl.constexpr,
    HEIGHT: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """The words of a thread's three runs, of which value `first` is the first of the first; see `rows`."""
    ROW: tl.constexpr = 3 * WIDTH
    STEP: tl.constexpr = THREADS * GROUP
    mirrored, upside = matrix[0], matrix[4]
    second, third = first + STEP, first + 2 * STEP
    v1, v2, v3 = first < HEIGHT * ROW, second < HEIGHT * ROW, third < HEIGHT * ROW
    if (SHIFTED & PATHS) != 0 and (drawn & SHIFTED) != 0 and mirrored < 0:
        w0, w1 = shifted_mirrored_run(levels, first, phase, matrix, v1, GROUP, HEIGHT, ROW)
        w2, w3 = shifted_mirrored_run(levels, second, (phase + STEP % 3) % 3, matrix, v2, GROUP, HEIGHT, ROW)
        w4, w5 = shifted_mirrored_run(levels, third, (phase + 2 * STEP % 3) % 3, matrix, v3, GROUP, HEIGHT, ROW)
    elif (SHIFTED & PATHS) != 0 and (drawn & SHIFTED) != 0:
        w0, w1 = shifted_run(levels, first, matrix, v1, GROUP, HEIGHT, ROW)
        w2, w3 = shifted_run(levels, second, matrix, v2, GROUP, HEIGHT, ROW)
        w4, w5 = shifted_run(levels, third, matrix, v3, GROUP, HEIGHT, ROW)
    elif WARP != STILL and mirrored < 0:
        w0, w1 = mirrored_run(levels, first, phase, upside, v1, GROUP, HEIGHT, ROW)
        w2, w3 = mirrored_run(levels, second, (phase + STEP % 3) % 3, upside, v2, GROUP, HEIGHT, ROW)
        w4, w5 = mirrored_run(levels, third, (phase + 2 * STEP % 3) % 3, upside, v3, GROUP, HEIGHT, ROW)
    else:
        w0, w1 = straight_run(levels, first, upside, v1, GROUP, HEIGHT, ROW)
        w2, w3 = straight_run(levels, second, upside, v2, GROUP, HEIGHT, ROW)
        w4, w5 = straight_run(levels, third, upside, v3, GROUP, HEIGHT, ROW)
    return w0, w1, w2, w3, w4, w5


@kernel
def _looked(
    out,
    runs,
    last,
    drawn,
    first,
    by_channel,
    ending,
    LOOKS: tl.constexpr,
    ENDING: tl.constexpr,
    TYPE: tl.constexpr,
    THREADS: tl.constexpr,
    GROUP: tl.constexpr,
    COUNT: tl.constexpr,
    PIXELS: tl.constexpr,
):
    """Choose how three runs are looked up: what one operation alone does to a level is computed, if that is short."""
    given = (out, runs, first, by_channel, ending)
    if not LOOKS or (drawn & LOOKED) == 0:
        _three(given, 0, 0.0, NOTHING, ENDING, TYPE, THREADS, GROUP, 3 * PIXELS)
    elif COUNT == 1:
        op, magnitude = last
        if (op == BRIGHTNESS) | (op == CONTRAST):
            gray = 0
            if op == CONTRAST:
                gray = contrast_mean(ending[2], PIXELS)
            _three(given, gray, magnitude, BRIGHTNESS, ENDING, TYPE, THREADS, GROUP, 3 * PIXELS)
        elif op == POSTERIZE:
            _three(given, 0, magnitude, POSTERIZE, ENDING, TYPE, THREADS, GROUP, 3 * PIXELS)
        elif op == SOLARIZE:
            _three(given, 0, magnitude, SOLARIZE, ENDING, TYPE, THREADS, GROUP, 3 * PIXELS)
        else:
            _three(given, 0, magnitude, BY_TABLE, ENDING, TYPE, THREADS, GROUP, 3 * PIXELS)
    else:
        _three(given, 0, 0.0, BY_TABLE, ENDING, TYPE, THREADS, GROUP, 3 * PIXELS)


@kernel
def _three(
    given,
    gray,
    magnitude,
    HOW: tl.constexpr,
    ENDING: tl.constexpr,
    TYPE: tl.constexpr,
    THREADS: tl.constexpr,
    GROUP: tl.constexpr,
    TOTAL: tl.constexpr,
):
    """Look up three runs of a thread, by a table or by what one operation does to a level, and store their values."""
    out, runs, first, by_channel, ending = given
    STEP: tl.constexpr = THREADS * GROUP
    for number in tl.static_range(3):
        level = levels_of(runs[2 * number], runs[2 * number + 1], THREADS, GROUP)
        if HOW == BRIGHTNESS:
            level = blend(gray, level, magnitude)
        elif HOW == POSTERIZE:
            level = posterized(level, magnitude)
        elif HOW == SOLARIZE:
            level = solarized(level, magnitude)
        value = ended_run(level, (number * STEP) % 3, by_channel, ending, HOW == BY_TABLE, ENDING, TYPE, GROUP)
        place = first + number * STEP
        tl.store(out + (place[:, None] + tl.arange(0, GROUP)[None, :]), value, mask=(place < TOTAL)[:, None])


@kernel
def _sharp(
    out,
    image,
    matrix,
    last,
    ending,
    line,
    block,
    ENDING: tl.constexpr,
    TYPE: tl.constexpr,
    THREADS: tl.constexpr,
    EACH: tl.constexpr,
    HEIGHT: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """An image that is at most flipped, and sharpened: whole words in, whole words out, one run a thread at a time."""
    SWEEPS: tl.constexpr = 3 * EACH // 8
    mirrored, upside, factor = matrix[0], matrix[4], last[1]
    start = (block * (SWEEPS * THREADS) + tl.arange(0, THREADS)) * 8
    scales, biases, offsets = by_channel_of(start % 3, line)
    s0, s1, s2 = scales
    b0, b1, b2 = biases
    o0, o1, o2 = offsets
    for _ in range(SWEEPS):
        phase, valid = start % 3, start < HEIGHT * WIDTH * 3
        level = sharpened_run(image[0], start, phase, mirrored, upside, valid, factor, THREADS, HEIGHT, WIDTH)
        if ENDING != LINE:
            level = level.to(tl.int32)
        by_channel = ((s0, s1, s2), (b0, b1, b2), (o0, o1, o2))
        value = ended_run(level, 0, by_channel, ending, False, ENDING, TYPE, 8)
        tl.store(out + (start[:, None] + tl.arange(0, 8)[None, :]), value, mask=valid[:, None])
        start += 8 * THREADS
        if 8 * THREADS % 3 == 1:
            s0, s1, s2, b0, b1, b2, o0, o1, o2 = s1, s2, s0, b1, b2, b0, o1, o2, o0
        else:
            s0, s1, s2, b0, b1, b2, o0, o1, o2 = s2, s0, s1, b2, b0, b1, o2, o0, o1


@kernel
def _each(
    out,
    image,
    matrix,
    last,
    row,
    luts,
    ending,
    line,
    block,
    drawn,
    LOOKS: tl.constexpr,
    ENDING: tl.constexpr,
    TYPE: tl.constexpr,
    SHARPENS: tl.constexpr,
    ERASES: tl.constexpr,
    THREADS: tl.constexpr,
    EACH: tl.constexpr,
    FLAT: tl.constexpr,
    WARP: tl.constexpr,
    COLORS: tl.constexpr,
    MAPPED: tl.constexpr,
    COUNT: tl.constexpr,
    HEIGHT: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """Whatever an image drew and however it lies in memory: one run of GROUP values a thread at a time.

    It comes from 4 pixels, or 2 where GROUP is 4, of which a neighbouring thread computes some as well: that takes less
    time than to write values that lie apart. Where rows of the result are not rows of the image, a warp makes 8 rows of
    4 runs: its pixels lie close together then.
    """
    TOTAL: tl.constexpr = HEIGHT * WIDTH * 3
    GROUP: tl.constexpr = 4 if TYPE == SINGLE else 8
    WIDE: tl.constexpr = 3 * WIDTH // GROUP  # runs in a row
    ACROSS: tl.constexpr = (WIDE + 3) // 4
    TILES: tl.constexpr = ACROSS * ((HEIGHT + 7) // 8)
    BLOCKS: tl.constexpr = (HEIGHT * WIDTH + EACH * THREADS - 1) // (EACH * THREADS)
    TILED: tl.constexpr = WARP == WARPED and 3 * WIDTH % GROUP == 0
    RUNS_EACH: tl.constexpr = 3 * EACH // GROUP  # of a thread, in the order of memory
    TILES_EACH: tl.constexpr = (TILES * 32 + BLOCKS * THREADS - 1) // (BLOCKS * THREADS) if TILED else 0
    turned = matrix[3]
    box = (0, 0, 0, 0)
    if ERASES:
        box = (tl.load(row + 6), tl.load(row + 7), tl.load(row + 8), tl.load(row + 9))
    thread = tl.arange(0, THREADS)
    for sweep in range(max(RUNS_EACH, TILES_EACH)):
        run = (block * RUNS_EACH + sweep) * THREADS + thread
        if TILES_EACH > RUNS_EACH and sweep >= RUNS_EACH:
            run += TOTAL  # behind the end: only tiles need this sweep
        if 3 * WIDTH % GROUP == 0:
            if TILED and turned != 0:
                tile = (sweep * BLOCKS + block) * (THREADS // 32) + thread // 32
                across = (tile % ACROSS) * 4 + thread % 4
                y = (tile // ACROSS) * 8 + thread % 32 // 4
                y = tl.where(across < WIDE, y, HEIGHT)
                run = tl.where(y < HEIGHT, y * WIDE + across, TOTAL)
            else:
                y = run // WIDE
                across = run - y * WIDE
            x = across * GROUP // 3
            phase = across * GROUP - x * 3
        else:
            first = run * GROUP // 3
            phase = run * GROUP - first * 3
            y = first // WIDTH
            x = first - y * WIDTH
        pixels = pixels_from(
            *((image, matrix, row, luts, last), x, y, phase, SHARPENS, THREADS, GROUP),
            *(FLAT, WARP, COLORS, MAPPED, COUNT, HEIGHT, WIDTH),
        )
        store_pixels(
            *(out, pixels, run, phase, (x, y), box, line, ending, drawn & LOOKED, LOOKS, ERASES, ENDING, TYPE, THREADS),
            *(GROUP, WIDTH, TOTAL),
        )
