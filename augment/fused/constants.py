"""What all kernels share: constants, options, and how a kernel is declared."""

# mypy: allow-untyped-defs, allow-incomplete-defs

from collections.abc import Callable
from typing import Any

import triton  # type: ignore[import-untyped]
import triton.language as tl  # type: ignore[import-untyped]

from fastimg.augment.ops import Op
from fastimg.augment.plan import Sized

is_interpreted = bool(triton.knobs.runtime.interpret)
# Threads of a program, with 8 pixels each; and pixels of a statistics program, which ends with 768 atomic additions.
THREADS, COUNTED_BLOCK = (512, 4096) if is_interpreted else (128, 2048)
BOX_BLOCK = 4096 if is_interpreted else 1024  # values of a program that blurs
MIXED_BLOCK = 4096 if is_interpreted else 2048  # values of a program that mixes
OPTIONS = {"num_warps": 8, "enable_fp_fusion": False}
PIXEL_OPTIONS = {"num_warps": 4, "enable_fp_fusion": False}


def kernel(function: Callable[..., Any]) -> Any:
    """Compiled by Triton, or interpreted. Typed as Any, since Triton has no types."""
    return triton.jit(function)


# Constants for the kernels. The statistics of an image are int64 [770]: a histogram for each channel (for autocontrast
# 255 - the least level and the greatest instead, in its first two entries), the sum of L, and one value of padding. A
# normalisation table has 771 entries: 3 * 256, and three for erased pixels.
COUNTS, ENTRIES = tl.constexpr(770), tl.constexpr(771)
FIXED = tl.constexpr(Sized.FIXED)
STILL, FLIPPED, WARPED = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2)
# How a level becomes a value: by a table, by a line (scale * level + bias, as in `lines`), or not at all.
TABLE, LINE, LEVELS = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2)
# An image's last word is the sum of RUNS if its rows are rows of the result and at most looked up, with SHIFTED if they
# are not only flipped; or SHARP if it is at most flipped and then sharpened; and LOOKED if a look-up follows its last
# colour. A kernel contains the paths RUNS, SHIFTED, SHARP, and PIXELS, which any image may take.
RUNS, LOOKED, SHARP, PIXELS, SHIFTED = (
    tl.constexpr(1),
    tl.constexpr(2),
    tl.constexpr(4),
    tl.constexpr(8),
    tl.constexpr(16),
)
SINGLE, BRAIN, HALF, BYTE = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2), tl.constexpr(3)  # types of the result
INTERPRETED = tl.constexpr(is_interpreted)
BRIGHTNESS, COLOR, CONTRAST = (
    tl.constexpr(int(Op.BRIGHTNESS)),
    tl.constexpr(int(Op.COLOR)),
    tl.constexpr(int(Op.CONTRAST)),
)
SHARPNESS, POSTERIZE, SOLARIZE = (
    tl.constexpr(int(Op.SHARPNESS)),
    tl.constexpr(int(Op.POSTERIZE)),
    tl.constexpr(int(Op.SOLARIZE)),
)
AUTOCONTRAST, EQUALIZE = tl.constexpr(int(Op.AUTOCONTRAST)), tl.constexpr(int(Op.EQUALIZE))
INVERT, SOLARIZE_ADD, HUE = tl.constexpr(int(Op.INVERT)), tl.constexpr(int(Op.SOLARIZE_ADD)), tl.constexpr(int(Op.HUE))
