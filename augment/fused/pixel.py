"""Pixels one by one: warped, coloured and sharpened, from any memory layout."""

# mypy: allow-untyped-defs, allow-incomplete-defs

import triton.language as tl  # type: ignore[import-untyped]

from .constants import COLOR, FLIPPED, HUE, SHARPNESS, WARPED, kernel
from .hues import turned_hue
from .levels import blend, clamped, luma, mapped, operation
from .registers import at_byte, in_four, packed, unpacked
from .rows import word_at
from .sharpening import sharpened_pixel


@kernel
def pixels_from(
    source,
    x,
    y,
    phase,
    SHARPENS: tl.constexpr,
    THREADS: tl.constexpr,
    GROUP: tl.constexpr,
    FLAT: tl.constexpr,
    WARP: tl.constexpr,
    COLORS: tl.constexpr,
    MAPPED: tl.constexpr,
    COUNT: tl.constexpr,
    HEIGHT: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """Red, green and blue [THREADS, 4] of four pixels from (x, y) [THREADS].

    `source` is the image, its `matrix_of`, its words, its tables and its `last_operation`. Look-ups since the last
    colour are pending. The last pixel is wanted only where the phase is 2; if GROUP is 4, two are.
    """
    image, matrix, row, luts, last = source
    if SHARPENS:
        op, factor = last
        if op == SHARPNESS:
            red, green, blue = _sharpened(
                source, x, y, factor, THREADS, GROUP, FLAT, WARP, COLORS, MAPPED, COUNT, HEIGHT, WIDTH
            )
        else:
            red, green, blue = unpacked(_four(image, matrix, x, y, phase, THREADS, GROUP, FLAT, WARP, HEIGHT, WIDTH))
            red, green, blue = colors(row, luts, last, red, green, blue, COUNT, COLORS, MAPPED, COUNT)
    else:
        red, green, blue = unpacked(_four(image, matrix, x, y, phase, THREADS, GROUP, FLAT, WARP, HEIGHT, WIDTH))
        red, green, blue = colors(row, luts, last, red, green, blue, COUNT, COLORS, MAPPED, COUNT)
    return red, green, blue


@kernel
def _four(
    image,
    matrix,
    x,
    y,
    phase,
    THREADS: tl.constexpr,
    GROUP: tl.constexpr,
    FLAT: tl.constexpr,
    WARP: tl.constexpr,
    HEIGHT: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """Four warped pixels [THREADS, 4]."""
    if 3 * WIDTH % GROUP == 0:  # they lie in one row, but for a fourth one that is not wanted
        inside = y < HEIGHT
        u, v = warped(matrix, x, y, WARP, HEIGHT, WIDTH)
        du, dv = step(matrix, WARP)
        p0 = sampled(image, u, v, inside, FLAT, WARP, HEIGHT, WIDTH)
        p1 = sampled(image, u + du, v + dv, inside, FLAT, WARP, HEIGHT, WIDTH)
        p2, p3 = p1, p1
        if GROUP == 8:
            p2 = sampled(image, u + 2 * du, v + 2 * dv, inside, FLAT, WARP, HEIGHT, WIDTH)
            p3 = sampled(image, u + 3 * du, v + 3 * dv, inside & (phase == 2), FLAT, WARP, HEIGHT, WIDTH)
    else:
        p0 = _one(image, matrix, x, y, FLAT, WARP, HEIGHT, WIDTH)
        p1 = _one(image, matrix, x + 1, y, FLAT, WARP, HEIGHT, WIDTH)
        p2 = _one(image, matrix, x + 2, y, FLAT, WARP, HEIGHT, WIDTH)
        p3 = _one(image, matrix, x + 3, y, FLAT, WARP, HEIGHT, WIDTH)
    return in_four(p0, p1, p2, p3, THREADS)


@kernel
def _one(image, matrix, x, y, FLAT: tl.constexpr, WARP: tl.constexpr, HEIGHT: tl.constexpr, WIDTH: tl.constexpr):
    """A warped pixel, which may be in one of the next rows."""
    y += x // WIDTH
    u, v = warped(matrix, x % WIDTH, y, WARP, HEIGHT, WIDTH)
    return sampled(image, u, v, y < HEIGHT, FLAT, WARP, HEIGHT, WIDTH)


@kernel
def _sharpened(
    source,
    x,
    y,
    factor,
    THREADS: tl.constexpr,
    GROUP: tl.constexpr,
    FLAT: tl.constexpr,
    WARP: tl.constexpr,
    COLORS: tl.constexpr,
    MAPPED: tl.constexpr,
    COUNT: tl.constexpr,
    HEIGHT: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """Red, green and blue [THREADS, 4] after SHARPNESS in the last column: recomputes pixels' neighbours."""
    inside = y < HEIGHT
    if 3 * WIDTH % GROUP == 0:  # a thread's pixels lie in one row: sums of three pixels in each of six columns
        c0, c1, c2, c3, c4, c5 = 0 * x, 0 * x, 0 * x, 0 * x, 0 * x, 0 * x
        h0, h1, h2, h3 = 0 * x, 0 * x, 0 * x, 0 * x
        for number in range(3):
            v = clamped(y + (number - 1), HEIGHT)
            before = _near(source, x - 1, v, inside, FLAT, WARP, COLORS, MAPPED, COUNT, HEIGHT, WIDTH)
            p0 = _near(source, x, v, inside, FLAT, WARP, COLORS, MAPPED, COUNT, HEIGHT, WIDTH)
            p1 = _near(source, x + 1, v, inside, FLAT, WARP, COLORS, MAPPED, COUNT, HEIGHT, WIDTH)
            after = _near(source, x + 2, v, inside, FLAT, WARP, COLORS, MAPPED, COUNT, HEIGHT, WIDTH)
            c0, c1, c2, c3 = c0 + _apart(before), c1 + _apart(p0), c2 + _apart(p1), c3 + _apart(after)
            h0, h1 = tl.where(number == 1, p0, h0), tl.where(number == 1, p1, h1)
            if GROUP == 8:
                p3 = _near(source, x + 3, v, inside, FLAT, WARP, COLORS, MAPPED, COUNT, HEIGHT, WIDTH)
                h2, h3 = tl.where(number == 1, after, h2), tl.where(number == 1, p3, h3)
                after = _near(source, x + 4, v, inside, FLAT, WARP, COLORS, MAPPED, COUNT, HEIGHT, WIDTH)
                c4, c5 = c4 + _apart(p3), c5 + _apart(after)
        before, middle = in_four(c0, c1, c2, c3, THREADS), in_four(c1, c2, c3, c4, THREADS)
        after = in_four(c2, c3, c4, c5, THREADS)
        red = (before & 1023) + (middle & 1023) + (after & 1023)
        green = ((before >> 10) & 1023) + ((middle >> 10) & 1023) + ((after >> 10) & 1023)
        blue = (before >> 20) + (middle >> 20) + (after >> 20)
        here = in_four(h0, h1, h2, h3, THREADS)
        x, y = x[:, None] + tl.arange(0, 4)[None, :], y[:, None]
    else:
        x = x[:, None] + tl.arange(0, 4)[None, :]
        y = y[:, None] + x // WIDTH
        x, inside = x % WIDTH, y < HEIGHT
        red, green, blue, here = 0 * x, 0 * x, 0 * x, 0 * x
        for number in range(9):
            u, v = x + (number % 3 - 1), clamped(y + (number // 3 - 1), HEIGHT)
            near = _near(source, u, v, inside, FLAT, WARP, COLORS, MAPPED, COUNT, HEIGHT, WIDTH)
            r, g, b = unpacked(near)
            red, green, blue, here = red + r, green + g, blue + b, tl.where(number == 4, near, here)
    inner = (x > 0) & (x < WIDTH - 1) & (y > 0) & (y < HEIGHT - 1)
    return sharpened_pixel(red, green, blue, here, inner, factor)


@kernel
def _apart(pixel):
    """A pixel's levels with 10 bits each, so that three pixels can be added."""
    return (pixel & 0xFF) | ((pixel << 2) & 0x3FC00) | ((pixel << 4) & 0xFF00000)


@kernel
def _near(
    source,
    x,
    y,
    valid,
    FLAT: tl.constexpr,
    WARP: tl.constexpr,
    COLORS: tl.constexpr,
    MAPPED: tl.constexpr,
    COUNT: tl.constexpr,
    HEIGHT: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """The nearest pixel of the row, before the last column."""
    LAST: tl.constexpr = COUNT - 1
    luts = source[3]
    x = clamped(x, WIDTH)
    red, green, blue = colored(source, x, y, valid, LAST, FLAT, WARP, COLORS, MAPPED, COUNT, HEIGHT, WIDTH)
    if (MAPPED >> LAST) & 1:
        red, green, blue = mapped(luts + LAST * 768, red, green, blue)
    return packed(red, green, blue)


@kernel
def colored(
    source,
    x,
    y,
    valid,
    END: tl.constexpr,
    FLAT: tl.constexpr,
    WARP: tl.constexpr,
    COLORS: tl.constexpr,
    MAPPED: tl.constexpr,
    COUNT: tl.constexpr,
    HEIGHT: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """Red, green and blue after the warp and the colours up to column END; look-ups since then are still pending."""
    image, matrix, row, luts, last = source
    u, v = warped(matrix, x, y, WARP, HEIGHT, WIDTH)
    red, green, blue = unpacked(sampled(image, u, v, valid, FLAT, WARP, HEIGHT, WIDTH))
    return colors(row, luts, last, red, green, blue, END, COLORS, MAPPED, COUNT)


@kernel
def colors(
    row,
    luts,
    last,
    red,
    green,
    blue,
    END: tl.constexpr,
    COLORS: tl.constexpr,
    MAPPED: tl.constexpr,
    COUNT: tl.constexpr,
):
    """Red, green and blue after the colours up to column END."""
    for column in tl.static_range(END):
        if (COLORS >> column) & 1:
            op, factor = _operation(row, last, column, COUNT)
            if op == COLOR:
                if (MAPPED >> column) & 1:
                    red, green, blue = mapped(luts + column * 768, red, green, blue)
                gray = luma(red, green, blue)
                red, green, blue = blend(gray, red, factor), blend(gray, green, factor), blend(gray, blue, factor)
        if (COLORS >> (8 + column)) & 1:
            op, turn = _operation(row, last, column, COUNT)
            if op == HUE:
                if (MAPPED >> column) & 1:
                    red, green, blue = mapped(luts + column * 768, red, green, blue)
                red, green, blue = turned_hue(red, green, blue, turn.to(tl.int32))
    return red, green, blue


@kernel
def _operation(row, last, column: tl.constexpr, COUNT: tl.constexpr):
    op, factor = last
    if column < COUNT - 1:
        op, factor = operation(row, column, COUNT)
    return op, factor


@kernel
def last_operation(row, COUNT: tl.constexpr):
    """The `operation` of the last column, which is loaded once."""
    op, factor = 0, 0.0
    if COUNT > 0:
        op, factor = operation(row, COUNT - 1, COUNT)
    return op, factor


@kernel
def matrix_of(row, WARP: tl.constexpr):
    """What `warped` needs of an image's words."""
    matrix = (0, 0, 0, 0, 0, 0)
    if WARP == FLIPPED:
        matrix = (tl.load(row), 0, 0, 0, tl.load(row + 4), 0)
    elif WARP == WARPED:
        matrix = (
            tl.load(row),
            tl.load(row + 1),
            tl.load(row + 2),
            tl.load(row + 3),
            tl.load(row + 4),
            tl.load(row + 5),
        )
    return matrix


@kernel
def warped(matrix, x, y, WARP: tl.constexpr, HEIGHT: tl.constexpr, WIDTH: tl.constexpr):
    """Where in the image the pixel at (x, y) of the result lies: in 65,536ths if images are WARPED, else in pixels."""
    a, b, c, d, e, f = matrix
    u, v = x, y
    if WARP == FLIPPED:
        if a < 0:
            u = WIDTH - 1 - x
        if e < 0:
            v = HEIGHT - 1 - y
    elif WARP == WARPED:
        u, v = a * x + b * y + c, d * x + e * y + f
    return u, v


@kernel
def step(matrix, WARP: tl.constexpr):
    """How far `warped` goes for the next pixel of a row."""
    a, _, _, d, _, _ = matrix
    du, dv = 1, 0
    if WARP == FLIPPED:
        du = tl.where(a < 0, -1, 1)
    elif WARP == WARPED:
        du, dv = a, d
    return du, dv


@kernel
def sampled(image, u, v, valid, FLAT: tl.constexpr, WARP: tl.constexpr, HEIGHT: tl.constexpr, WIDTH: tl.constexpr):
    """The pixel where `warped` says, FILL outside: `reference.warp`. What is not valid may be anything."""
    levels, s_c, s_h, s_w, FILL = image
    inside = valid
    if WARP == WARPED:
        u, v = u >> 16, v >> 16
        inside = valid & (u >= 0) & (u < WIDTH) & (v >= 0) & (v < HEIGHT)
    if FLAT:  # a pixel's three bytes lie in one word, or in two
        place = (v * WIDTH + u) * 3
        first = place & 3
        word = levels + (place - first)
        pixel = at_byte(word_at(word, inside), word_at(word + 4, inside & (first > 1)), first)
        if WARP == WARPED:
            pixel = tl.where(inside, pixel, FILL)
    else:
        address = levels + (v * s_h + u * s_w)
        red = tl.load(address, mask=inside, other=(FILL >> 0) & 255).to(tl.int32)
        green = tl.load(address + s_c, mask=inside, other=(FILL >> 8) & 255).to(tl.int32)
        blue = tl.load(address + 2 * s_c, mask=inside, other=(FILL >> 16) & 255).to(tl.int32)
        pixel = packed(red, green, blue)
    return pixel
