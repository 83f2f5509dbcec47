"""Turning hues: `ops.turned_hue`."""

# mypy: allow-untyped-defs, allow-incomplete-defs

import triton.language as tl  # type: ignore[import-untyped]

from .constants import kernel


@kernel
def turned_hue(red, green, blue, turn):
    """Red, green and blue, int32, with the hue of Pillow's HSV turned. Divisions are rounded as in IEEE 754."""
    most = tl.maximum(red, tl.maximum(green, blue))
    least = tl.minimum(red, tl.minimum(green, blue))
    span = tl.maximum(most - least, 1).to(tl.float32)
    r = tl.div_rn((most - red).to(tl.float32), span)
    g = tl.div_rn((most - green).to(tl.float32), span)
    b = tl.div_rn((most - blue).to(tl.float32), span)
    yellow = (r.to(tl.float64) + 2.0 - b.to(tl.float64)).to(tl.float32)
    cyan = (g.to(tl.float64) + 4.0 - r.to(tl.float64)).to(tl.float32)
    sector = tl.where(red == most, b - g, tl.where(green == most, yellow, cyan))
    whole = sector.to(tl.float64) / 6.0 + 1.0
    hue = tl.where(whole >= 1.0, whole - 1.0, whole).to(tl.float32)
    level = tl.minimum(tl.maximum((hue.to(tl.float64) * 255.0).to(tl.int32), 0), 255)
    level = (tl.where(most == least, 0, level) + turn) & 255
    saturation = tl.div_rn(span, tl.maximum(most, 1).to(tl.float32))
    strength = tl.where(most == least, 0, (saturation.to(tl.float64) * 255.0).to(tl.int32))
    share = (strength.to(tl.float64) / 255.0).to(tl.float32)
    position = level.to(tl.float64) * 6.0 / 255.0
    side = position.to(tl.int32)
    part = (position - side.to(tl.float64)).to(tl.float32)
    p = _scaled(most, share.to(tl.float64))
    q = _scaled(most, (share * part).to(tl.float64))
    t = _scaled(most, share.to(tl.float64) * (1.0 - part.to(tl.float64)))
    side = side % 6
    gray = strength == 0
    first, second, third = (side == 0) | (side == 5), (side == 1) | (side == 2), (side == 3) | (side == 4)
    new_red = tl.where(first, most, tl.where(side == 1, q, tl.where(side == 4, t, p)))
    new_green = tl.where(second, most, tl.where(side == 0, t, tl.where(side == 3, q, p)))
    new_blue = tl.where(third, most, tl.where(side == 2, t, tl.where(side == 5, q, p)))
    return tl.where(gray, most, new_red), tl.where(gray, most, new_green), tl.where(gray, most, new_blue)


@kernel
def _scaled(most, kept):
    """A level times 1 - kept, rounded."""
    level = most.to(tl.float64) * (1.0 - kept)
    return tl.minimum(tl.maximum((level + 0.5).to(tl.int32), 0), 255)
