"""How a level becomes a value of the result: its bits in the result's type."""

# mypy: allow-untyped-defs, allow-incomplete-defs

import triton.language as tl  # type: ignore[import-untyped]

from .constants import BRAIN, HALF, INTERPRETED, LEVELS, SINGLE, TABLE, kernel


@kernel
def ended(level, offset, scale, bias, ending, LOOKS: tl.constexpr, ENDING: tl.constexpr, TYPE: tl.constexpr):
    """The bits of the result for levels of a channel: `offset` is 256 * channel."""
    final, lut = ending
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
    if INTERPRETED:  # it may round a product luts adding, and bfloat16 towards zero
        value = (level.to(tl.float64) * scale + bias).to(tl.float32)
        if TYPE == BRAIN:
            bits = value.to(tl.int32, bitcast=True)
            bits = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).to(tl.int16)
        elif TYPE == HALF:
            bits = value.to(tl.float16).to(tl.int16, bitcast=True)
        else:
            bits = value.to(tl.int32, bitcast=True)
    else:
        value = tl.fma(level, scale, bias)
        if TYPE == SINGLE:
            bits = value.to(tl.int32, bitcast=True)
        elif TYPE == BRAIN:
            bits = value.to(tl.bfloat16).to(tl.int16, bitcast=True)
        else:
            bits = value.to(tl.float16).to(tl.int16, bitcast=True)
    return bits
