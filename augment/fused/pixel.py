"""Pixels one by one: warped, coloured and sharpened, from any memory layout."""

# mypy: allow-untyped-defs, allow-incomplete-defs

import triton.language as tl  # type: ignore[import-untyped]

from .constants import COLOR, FLIPPED, HUE, STILL, kernel
from .hues import turned_hue
from .levels import blend, clamped, luma, mapped, operation, smooth


@kernel
def sharpened(
    image,
    row,
    luts,
    x,
    y,
    valid,
    corner,
    factor,
    WARP: tl.constexpr,
    COLORS: tl.constexpr,
    MAPPED: tl.constexpr,
    COUNT: tl.constexpr,
    HEIGHT: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """SHARPNESS as the last column: recomputes each pixel's neighbours. The outermost pixels are unchanged."""
    pair, blue, here = x * 0, x * 0, x * 0  # sums of nine pixels, red and green in one number; and the pixel itself
    if WIDTH % 8 == 0:  # a thread's pixels lie in one row: sums of three pixels in each column, then of three columns
        first, above, inside = corner
        pair_before, blue_before, pair_after, blue_after = 0 * first, 0 * first, 0 * first, 0 * first
        for number in range(3):
            r, g, b = _near(
                image,
                row,
                luts,
                x,
                clamped(y + (number - 1), HEIGHT),
                valid,
                WARP,
                COLORS,
                MAPPED,
                COUNT,
                HEIGHT,
                WIDTH,
            )
            pair, blue = pair + (r + (g << 16)), blue + b
            if number == 1:
                here = r + (g << 8) + (b << 16)
        for number in range(3):
            v = clamped(above + (number - 1), HEIGHT)
            u = clamped(first - 1, WIDTH)
            r, g, b = _near(image, row, luts, u, v, inside, WARP, COLORS, MAPPED, COUNT, HEIGHT, WIDTH)
            pair_before, blue_before = pair_before + (r + (g << 16)), blue_before + b
            u = clamped(first + 8, WIDTH)
            r, g, b = _near(image, row, luts, u, v, inside, WARP, COLORS, MAPPED, COUNT, HEIGHT, WIDTH)
            pair_after, blue_after = pair_after + (r + (g << 16)), blue_after + b
        pair = _neighbours(pair_before, pair, pair_after)
        blue = _neighbours(blue_before, blue, blue_after)
    else:
        for number in range(9):
            u, v = clamped(x + (number % 3 - 1), WIDTH), clamped(y + (number // 3 - 1), HEIGHT)
            r, g, b = _near(image, row, luts, u, v, valid, WARP, COLORS, MAPPED, COUNT, HEIGHT, WIDTH)
            pair, blue = pair + (r + (g << 16)), blue + b
            if number == 4:
                here = r + (g << 8) + (b << 16)
    red, green = pair & 0xFFFF, pair >> 16
    red_here, green_here, blue_here = here & 0xFF, (here >> 8) & 0xFF, here >> 16
    inner = (x > 0) & (x < WIDTH - 1) & (y > 0) & (y < HEIGHT - 1)
    return (
        blend(tl.where(inner, smooth(red, red_here), red_here), red_here, factor),
        blend(tl.where(inner, smooth(green, green_here), green_here), green_here, factor),
        blend(tl.where(inner, smooth(blue, blue_here), blue_here), blue_here, factor),
    )


@kernel
def _near(
    image,
    row,
    luts,
    x,
    y,
    valid,
    WARP: tl.constexpr,
    COLORS: tl.constexpr,
    MAPPED: tl.constexpr,
    COUNT: tl.constexpr,
    HEIGHT: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """Red, green and blue before the last column."""
    LAST: tl.constexpr = COUNT - 1
    red, green, blue = colored(image, row, luts, x, y, valid, LAST, WARP, COLORS, MAPPED, COUNT, HEIGHT, WIDTH)
    if (MAPPED >> LAST) & 1:
        red, green, blue = mapped(luts + LAST * 768, red, green, blue)
    return red, green, blue


@kernel
def _neighbours(before, values, after):
    """Sums of three neighbours along rows of [THREADS, 8], between those of the column before and the one after."""
    v0, v1, v2, v3, v4, v5, v6, v7 = eight(values, values.shape[0])
    first, last = tl.reshape(before, [values.shape[0]]), tl.reshape(after, [values.shape[0]])
    return joined(
        *(first + v0 + v1, v0 + v1 + v2, v1 + v2 + v3, v2 + v3 + v4),
        *(v3 + v4 + v5, v4 + v5 + v6, v5 + v6 + v7, v6 + v7 + last),
    )


@kernel
def eight(values, THREADS: tl.constexpr):
    """The columns of [THREADS, 8]."""
    even, odd = tl.split(tl.reshape(values, [THREADS, 2, 2, 2]))
    v04, v26 = tl.split(even)
    v15, v37 = tl.split(odd)
    v0, v4 = tl.split(v04)
    v2, v6 = tl.split(v26)
    v1, v5 = tl.split(v15)
    v3, v7 = tl.split(v37)
    return v0, v1, v2, v3, v4, v5, v6, v7


@kernel
def joined(v0, v1, v2, v3, v4, v5, v6, v7):
    """The reverse of `eight`."""
    even = tl.join(tl.join(v0, v4), tl.join(v2, v6))
    odd = tl.join(tl.join(v1, v5), tl.join(v3, v7))
    return tl.reshape(tl.join(even, odd), [v0.shape[0], 8])


@kernel
def colored(
    image,
    row,
    luts,
    x,
    y,
    valid,
    END: tl.constexpr,
    WARP: tl.constexpr,
    COLORS: tl.constexpr,
    MAPPED: tl.constexpr,
    COUNT: tl.constexpr,
    HEIGHT: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """Red, green and blue after the warp and the colours luts column END; look-ups since then are still pending."""
    red, green, blue = _warped(image, row, x, y, valid, WARP, HEIGHT, WIDTH)
    for column in tl.static_range(END):
        if (COLORS >> column) & 1:
            op, factor = operation(row, column, COUNT)
            if op == COLOR:
                if (MAPPED >> column) & 1:
                    red, green, blue = mapped(luts + column * 768, red, green, blue)
                gray = luma(red, green, blue)
                red, green, blue = blend(gray, red, factor), blend(gray, green, factor), blend(gray, blue, factor)
        if (COLORS >> (8 + column)) & 1:
            op, turn = operation(row, column, COUNT)
            if op == HUE:
                if (MAPPED >> column) & 1:
                    red, green, blue = mapped(luts + column * 768, red, green, blue)
                red, green, blue = turned_hue(red, green, blue, turn.to(tl.int32))
    return red, green, blue


@kernel
def _warped(image, row, x, y, valid, WARP: tl.constexpr, HEIGHT: tl.constexpr, WIDTH: tl.constexpr):
    """Red, green and blue of the warped image at (x, y), FILL outside: `reference.warp`."""
    levels, s_c, s_h, s_w, FILL = image
    if WARP == STILL:
        u, v = x, y
    elif WARP == FLIPPED:
        u = tl.where(tl.load(row) < 0, WIDTH - 1 - x, x)
        v = tl.where(tl.load(row + 4) < 0, HEIGHT - 1 - y, y)
    else:
        u = (tl.load(row) * x + tl.load(row + 1) * y + tl.load(row + 2)) >> 16
        v = (tl.load(row + 3) * x + tl.load(row + 4) * y + tl.load(row + 5)) >> 16
        valid = valid & (u >= 0) & (u < WIDTH) & (v >= 0) & (v < HEIGHT)
    pixel = levels + (v * s_h + u * s_w)
    red = tl.load(pixel, mask=valid, other=(FILL >> 0) & 255).to(tl.int32)
    green = tl.load(pixel + s_c, mask=valid, other=(FILL >> 8) & 255).to(tl.int32)
    blue = tl.load(pixel + 2 * s_c, mask=valid, other=(FILL >> 16) & 255).to(tl.int32)
    return red, green, blue
