"""Runs of levels from rows that are read in words: as they lie there, mirrored, and moved."""

# mypy: allow-untyped-defs, allow-incomplete-defs

import triton.language as tl  # type: ignore[import-untyped]

from .constants import kernel
from .registers import at_byte, moved, picked, run_from


@kernel
def straight_run(levels, start, upside, valid, GROUP: tl.constexpr, HEIGHT: tl.constexpr, ROW: tl.constexpr):
    """The run from value `start` [THREADS], a multiple of GROUP, of an image that is upside down if `upside` < 0."""
    source = start
    if upside < 0:
        source += (HEIGHT - 1 - 2 * (start // ROW)) * ROW
    if GROUP == 8:
        low, high = words_at(levels + source, valid)
    else:
        low = word_at(levels + source, valid)
        high = low
    return low, high


@kernel
def mirrored_run(levels, start, phase, upside, valid, GROUP: tl.constexpr, HEIGHT: tl.constexpr, ROW: tl.constexpr):
    """The run from value `start` [THREADS], of channel `phase`, of the mirrored image.

    The first value's pixel lies `phase` - 3 bytes from `end`, a multiple of GROUP, and the others before it. So a
    thread needs no more than the bytes -12 to 1 from there, or -8 to 1 if GROUP is 4: three or four words, of which one
    that may lie outside of the row is not read, as no value needs it then. Moved by `phase` bytes, words lie the same
    way for all threads, and are put in the order of values for phase 0; moved once more, in that of any phase.
    """
    y = start // ROW
    end = (2 * y + 1) * ROW - start
    if upside < 0:
        end += (HEIGHT - 1 - 2 * y) * ROW
    after = word_at(levels + end, valid & (phase != 0))
    if GROUP == 8:
        before = word_at(levels + (end - 12), valid & (phase != 1))
        first, second = words_at(levels + (end - 8), valid)
    else:
        before = 0 * after  # never used
        first, second = word_at(levels + (end - 8), valid & (phase != 2)), word_at(levels + (end - 4), valid)
    # the bytes -12 to -9, -8 to -5 and -4 to -1 from the end of the first value's pixel
    far, mid, near = moved(before, first, phase), moved(first, second, phase), moved(second, after, phase)
    return turned(far, mid, near, phase, GROUP)


@kernel
def shifted_run(levels, start, matrix, valid, GROUP: tl.constexpr, HEIGHT: tl.constexpr, ROW: tl.constexpr):
    """The run from value `start` [THREADS] where a row is a row of the image, moved.

    That is so for translations and for shears along x, whose `matrix` has 65,536 first and 0 fourth. Levels from
    outside of the image are 0.
    """
    row, begin, inside = _shifted(levels, start, matrix, valid, HEIGHT, ROW)
    word = begin - (begin & 3)
    first, second = _within(row, word, inside, ROW), _within(row, word + 4, inside, ROW)
    low = at_byte(first, second, begin)
    high = low
    if GROUP == 8:
        high = at_byte(second, _within(row, word + 8, inside, ROW), begin)
    return low, high


@kernel
def shifted_mirrored_run(
    levels, start, phase, matrix, valid, GROUP: tl.constexpr, HEIGHT: tl.constexpr, ROW: tl.constexpr
):
    """The same, of channel `phase`, where rows are mirrored as well: `matrix` has -65,536 first."""
    row, place, inside = _shifted(levels, start, matrix, valid, HEIGHT, ROW)
    begin = place - 2 * (start % ROW) + phase - 9  # 12 bytes before the end of the first value's pixel
    word = begin - (begin & 3)
    first, second = 0 * begin, _within(row, word + 4, inside, ROW)
    if GROUP == 8:
        first = _within(row, word, inside, ROW)
    third, fourth = _within(row, word + 8, inside, ROW), _within(row, word + 12, inside, ROW)
    far, mid, near = at_byte(first, second, begin), at_byte(second, third, begin), at_byte(third, fourth, begin)
    return turned(far, mid, near, phase, GROUP)


@kernel
def _shifted(levels, start, matrix, valid, HEIGHT: tl.constexpr, ROW: tl.constexpr):
    """The row of the image, the place of value `start` after the shift, and whether the row is one of the image."""
    _, across, move, _, down, below = matrix
    y = start // ROW
    v = (down * y + below) >> 16
    return levels + v * ROW, start - y * ROW + 3 * ((across * y + move) >> 16), valid & (v >= 0) & (v < HEIGHT)


@kernel
def _within(row, word, inside, ROW: tl.constexpr):
    """A word of the row, 0 outside of it."""
    return word_at(row + word, inside & (word >= 0) & (word < ROW))


@kernel
def turned(far, mid, near, phase, GROUP: tl.constexpr):
    """The run of `mirrored_run` from the bytes -12 to -9, -8 to -5 and -4 to -1 from the end of its first pixel."""
    one = picked(near, mid, 1, 2, 3, 6)  # -3, -2, -1, -6: red, green, blue, red
    two = picked(picked(mid, near, 3, 4, 0, 0), far, 0, 1, 7, 2)  # -5, -4, -9, -8
    three = picked(mid, far, 1, 4, 0, 0)  # -7, -12
    return run_from(one, two, three, phase, GROUP)


@kernel
def word_at(address, mask):
    return tl.load(address.to(tl.pointer_type(tl.int32)), mask=mask, other=0)


@kernel
def words_at(address, mask):
    """Two words, read at once."""
    both = tl.load(address.to(tl.pointer_type(tl.int64)), mask=mask, other=0)
    return both.to(tl.int32), (both >> 32).to(tl.int32)
