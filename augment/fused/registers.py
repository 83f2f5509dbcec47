"""Levels in a thread's registers, four a word: moved, packed, and arranged as tensors. None of this costs memory.

A pixel is a number of 24 bits, red in the lowest. A run is what a thread writes at once: 8 consecutive levels in two
words, or 4 in the first of them.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs

import triton.language as tl  # type: ignore[import-untyped]

from .constants import INTERPRETED, kernel


@kernel
def packed(red, green, blue):
    """A pixel of three levels."""
    return red | (green << 8) | (blue << 16)


@kernel
def unpacked(pixel):
    """The levels of a pixel, of which the highest 8 bits may be anything."""
    return pixel & 0xFF, (pixel >> 8) & 0xFF, (pixel >> 16) & 0xFF


@kernel
def moved(low, high, number):
    """The word that begins `number` bytes, 0 to 4, behind the first byte of `low`, which `high` follows."""
    if INTERPRETED:
        both = (high.to(tl.int64) << 32) | (low.to(tl.int64) & 0xFFFFFFFF)
        word = (both >> (8 * number).to(tl.int64)).to(tl.int32)
    else:  # LLVM makes five instructions of it
        word = tl.inline_asm_elementwise(
            "shf.r.clamp.b32 $0, $1, $2, $3;",
            "=r,r,r,r",
            [low, high, 8 * number],
            dtype=tl.int32,
            is_pure=True,
            pack=1,
        )
    return word


@kernel
def at_byte(low, high, address):
    """The word that begins at byte `address` % 4 of `low`, which `high` follows."""
    if INTERPRETED:
        word = moved(low, high, address & 3)
    else:
        word = tl.inline_asm_elementwise(
            "shf.r.wrap.b32 $0, $1, $2, $3;",
            "=r,r,r,r",
            [low, high, address << 3],  # of which 5 bits count
            dtype=tl.int32,
            is_pure=True,
            pack=1,
        )
    return word


@kernel
def picked(low, high, B0: tl.constexpr, B1: tl.constexpr, B2: tl.constexpr, B3: tl.constexpr):
    """The word of four bytes of `low`, which are numbers 0 to 3, and `high`, 4 to 7."""
    if INTERPRETED:
        both = (high.to(tl.int64) << 32) | (low.to(tl.int64) & 0xFFFFFFFF)
        word = _at(both, B0) | (_at(both, B1) << 8) | (_at(both, B2) << 16) | (_at(both, B3) << 24)
    else:
        word = tl.inline_asm_elementwise(
            "prmt.b32 $0, $1, $2, $3;",
            "=r,r,r,r",
            [low, high, B0 | B1 << 4 | B2 << 8 | B3 << 12],
            dtype=tl.int32,
            is_pure=True,
            pack=1,
        )
    return word


@kernel
def _at(both, NUMBER: tl.constexpr):
    return ((both >> (8 * NUMBER)) & 0xFF).to(tl.int32)


@kernel
def run_from(one, two, three, phase, GROUP: tl.constexpr):
    """The run that begins `phase` bytes behind the first of three words, of which it needs two if GROUP is 4."""
    low = moved(one, two, phase)
    high = low
    if GROUP == 8:
        high = moved(two, three, phase)
    return low, high


@kernel
def levels_of(low, high, THREADS: tl.constexpr, GROUP: tl.constexpr):
    """A run's levels, int32 [THREADS, GROUP]."""
    if GROUP == 8:
        levels = in_eight(
            *(_byte(low, 0), _byte(low, 1), _byte(low, 2), _byte(low, 3)),
            *(_byte(high, 0), _byte(high, 1), _byte(high, 2), _byte(high, 3)),
            THREADS,
        )
    else:
        levels = in_four(_byte(low, 0), _byte(low, 1), _byte(low, 2), _byte(low, 3), THREADS)
    return levels


@kernel
def _byte(word, NUMBER: tl.constexpr):
    return (word >> (8 * NUMBER)) & 0xFF


@kernel
def in_eight(v0, v1, v2, v3, v4, v5, v6, v7, THREADS: tl.constexpr):
    """Eight tensors [THREADS] as the columns of one, [THREADS, 8]."""
    even, odd = tl.join(tl.join(v0, v4), tl.join(v2, v6)), tl.join(tl.join(v1, v5), tl.join(v3, v7))
    return tl.reshape(tl.join(even, odd), [THREADS, 8])


@kernel
def in_four(v0, v1, v2, v3, THREADS: tl.constexpr):
    """Four tensors [THREADS] as the columns of one, [THREADS, 4]."""
    return tl.reshape(tl.join(tl.join(v0, v2), tl.join(v1, v3)), [THREADS, 4])


@kernel
def four_of(values, THREADS: tl.constexpr):
    """The reverse of `in_four`."""
    even, odd = tl.split(tl.reshape(values, [THREADS, 2, 2]))
    v0, v2 = tl.split(even)
    v1, v3 = tl.split(odd)
    return v0, v1, v2, v3
