"""Turning hues on the CPU: `ops.turned_hue`, compiled."""

import math
from typing import Any

from .compiled import compiled, float32, float64, int32, uint8


@compiled
def turn_hue(current: Any, turn: int, changed: Any) -> None:
    """`ops.Op.HUE` of an image [H, W, 3]."""
    height, width, _ = current.shape
    for y in range(height):
        for x in range(width):
            red, green, blue = int32(current[y, x, 0]), int32(current[y, x, 1]), int32(current[y, x, 2])
            most, least = max(red, green, blue), min(red, green, blue)
            share = int32(0)
            if most != least:
                share = int32(float64(float32(most - least) / float32(most)) * float64(255.0))
            if share == 0:
                changed[y, x, 0] = changed[y, x, 1] = changed[y, x, 2] = most
                continue
            level = (_hue(red, green, blue, most, float32(most - least)) + turn) & 255
            position = float64(level) * float64(6.0) / float64(255.0)
            side = int32(math.floor(position))
            part = float32(position - float64(side))
            kept = float32(float64(share) / float64(255.0))
            p = _scaled(most, float64(kept))
            q = _scaled(most, float64(float32(kept * part)))
            t = _scaled(most, float64(kept) * (float64(1.0) - float64(part)))
            side %= 6
            changed[y, x, 0] = uint8(most if side in (0, 5) else q if side == 1 else t if side == 4 else p)
            changed[y, x, 1] = uint8(t if side == 0 else most if side in (1, 2) else q if side == 3 else p)
            changed[y, x, 2] = uint8(p if side in (0, 1) else t if side == 2 else most if side in (3, 4) else q)


@compiled
def _hue(red: int, green: int, blue: int, most: int, span: float) -> Any:
    """Pillow's H of a pixel that is not grey."""
    r, g, b = float32(most - red) / span, float32(most - green) / span, float32(most - blue) / span
    if red == most:
        sector = float32(b - g)
    elif green == most:
        sector = float32(float64(2.0) + float64(r) - float64(b))
    else:
        sector = float32(float64(4.0) + float64(g) - float64(r))
    whole = float64(sector) / float64(6.0) + float64(1.0)
    if whole >= float64(1.0):
        whole -= float64(1.0)
    return min(max(int32(float64(float32(whole)) * float64(255.0)), int32(0)), int32(255))


@compiled
def _scaled(most: int, kept: float) -> Any:
    """A level times 1 - kept, rounded."""
    level = int32(math.floor(float64(most) * (float64(1.0) - kept) + float64(0.5)))
    return min(max(level, int32(0)), int32(255))
