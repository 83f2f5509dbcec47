"""Inverse DCTs of 8 x 8 coefficients to fewer or more samples: libjpeg-turbo's at 3/8, 5/8, 6/8 and 7/8.

libjpeg-turbo computes them in C (jidctint.c), by sums of products whose factors have 13 bits, rounded once at the end
of each pass. A transform is then a matrix of integers, and one function multiplies by that of any size.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
from llvmlite import ir
from numba import types

from fastimg.loaders.runtime.compiled import compiled

from .dct import block_row
from .entropy.symbols import STRIDE
from .vectors import (
    I8,
    I16,
    I32,
    I64,
    LANES,
    PAIRED,
    cgutils,
    has_avx2,
    interleaved,
    intrinsic,
    packed,
    pointer,
    products,
    shuffle,
    splat,
    transposed,
    vector,
)

SIDES = (3, 5, 6, 7, 10, 12, 14)  # samples across a block; above 8 for chroma of 4:2:0, which has half of luma's blocks
_MOST = max(SIDES)
_FACTOR_BITS, _PASS_BITS = 13, 2  # of a factor, and of a number between the passes, behind the point
_NORM_BITS = 3  # a factor of 8, by which both passes together are too large

# By how much the factors of (sample, frequency) differ from rounded cosines: jidctint.c has sums of rounded constants.
_ROUNDINGS = {
    3: {(1, 2): -1},
    5: {(0, 1): 1, (0, 2): -1, (1, 4): 1, (2, 2): 1, (2, 4): -1},
    6: {(1, 4): -1},
    7: {},
    10: {(0, 2): 1, (0, 3): -1, (1, 7): 1, (2, 4): -1, (3, 3): 1, (4, 2): -1, (4, 7): 1},
    12: {(0, 1): 1, (0, 5): 1, (2, 1): 1, (2, 5): 1, (4, 3): -1, (4, 5): 1, (5, 1): 1},
    14: {(0, 1): 1, (1, 6): 1, (2, 5): 1, (3, 4): -1, (5, 3): 1, (5, 6): -1},
}


def _scaled_factors() -> npt.NDArray[np.int16]:
    """For each side and sample the factors of frequencies 0, 2, 4 and 6, and of 1, 3, 5 and 7.

    Those of the first half of the samples: the other half has the same ones, the odd frequencies' negated.
    """
    factors = np.zeros((_MOST + 1, _MOST // 2, LANES), np.int16)
    for side in SIDES:
        sample, frequency = np.mgrid[: (side + 1) // 2, : min(side, LANES)]
        cosines = np.cos((2 * sample + 1) * frequency * np.pi / (2 * side)) * np.where(frequency, np.sqrt(2), 1)
        whole = np.zeros((len(sample), LANES), np.int16)
        whole[:, : sample.shape[1]] = np.rint(cosines * (1 << _FACTOR_BITS))
        for place, difference in _ROUNDINGS[side].items():
            whole[place] += difference
        factors[side, : len(sample)] = whole[:, [0, 2, 4, 6, 1, 3, 5, 7]]
    return factors


FACTORS = _scaled_factors()
FACTORS_OF_SIDE = FACTORS[0].size
_FLAT = FACTORS.reshape(-1)


def _transform(
    builder: Any,
    avx2: bool,
    values: list[Any],
    factors: Any,
    side: Any,
    shift: int,
    keep: Callable[[Any, Any, Any, Any], None],
) -> None:
    """Transforms of two blocks side by side, values[frequency] -> samples, descaled by `shift` bits.

    Samples are made from both ends on: keep(i, j, value, other) stores samples i and j = side - 1 - i. In the middle
    of an odd number both are the same.
    """
    b = builder
    pairs = [interleaved(b, values[i], values[i + 2]) for i in (0, 4, 1, 5)]
    half, down = vector(I32, 1 << (shift - 1)), vector(I32, shift)
    one = ir.Constant(I64, 1)
    with cgutils.for_range(b, b.lshr(b.add(side, one), one)) as loop:
        row = b.gep(factors, [b.mul(loop.index, ir.Constant(I64, LANES))])
        known = []
        for i in range(0, LANES, 2):
            place = b.bitcast(b.gep(row, [ir.Constant(I64, i)]), I32.as_pointer())
            known.append(b.bitcast(splat(b, b.load(place, align=2), LANES), ir.VectorType(I16, PAIRED)))
        sums, differences = [], []
        for part in range(2):
            terms = [products(b, avx2, pair[part], factor) for pair, factor in zip(pairs, known, strict=True)]
            even, odd = b.add(b.add(terms[0], terms[1]), half), b.add(terms[2], terms[3])
            sums.append(b.ashr(b.add(even, odd), down))
            differences.append(b.ashr(b.sub(even, odd), down))
        last = b.sub(b.sub(side, one), loop.index)
        keep(loop.index, last, packed(b, avx2, *sums), packed(b, avx2, *differences))


def _excess(builder: Any, value: Any) -> Any:
    """In each lane of 16 bits 0 if its number has at most 15 bits, otherwise -1."""
    count = value.type.count
    return builder.ashr(builder.xor(value, builder.add(value, value)), vector(I16, 15, count))


def _product(builder: Any, value: Any, factor: Any) -> tuple[Any, Any]:
    """value * factor in lanes of 16 bits, and in each lane 0 if it has at most 15 bits."""
    b = builder
    wide = ir.VectorType(I32, PAIRED)
    product = b.mul(b.sext(value, wide), b.sext(factor, wide))
    low = b.trunc(product, value.type)
    high = b.trunc(b.lshr(product, vector(I32, 16, PAIRED)), value.type)
    return low, b.or_(b.xor(high, b.ashr(low, vector(I16, 15, PAIRED))), _excess(b, low))


def _store_first(builder: Any, word: Any, count: Any, place: Any) -> None:
    """Store the first `count` bytes of a word, 2 to 8 of them: the first ones, and the last, which may overlap."""
    b = builder
    with b.if_else(b.icmp_signed(">=", count, ir.Constant(I64, 4))) as branches:
        for branch, kind in zip(branches, (I32, I16), strict=True):
            with branch:
                behind = b.sub(count, ir.Constant(I64, kind.width // 8))
                last = b.lshr(word, b.shl(behind, ir.Constant(I64, 3)))
                for part, at in ((word, ir.Constant(I64, 0)), (last, behind)):
                    b.store(b.trunc(part, kind), b.bitcast(b.gep(place, [at]), kind.as_pointer()), align=1)


def _store_pixels(
    builder: Any, avx2: bool, columns: tuple[Any, Any], values: tuple[Any, Any], targets: list[Any], count: Any
) -> None:
    """Store `count` rows of two columns of samples of two blocks; `columns` are their places from `targets` on."""
    b = builder
    beyond = vector(I16, 6, PAIRED)  # ten bits count, as in libjpeg's table of limits
    first, second = (b.ashr(b.shl(value, beyond), beyond) for value in values)
    pixels = b.xor(packed(b, avx2, first, second), vector(I8, -128, 2 * PAIRED))  # plus 128
    words = b.bitcast(pixels, ir.VectorType(I64, 4))
    for n in range(4):
        place = b.gep(targets[n // 2], [columns[n % 2]])
        _store_first(b, b.extract_element(words, ir.Constant(I32, n)), count, place)


def _scaled(
    builder: Any, avx2: bool, sources: list[Any], table: Any, side: Any, targets: list[Any], stride: Any
) -> Any:
    """Transform two blocks; `sources` are the addresses of their coefficients and of the quantiser."""
    b = builder
    eight = ir.Constant(I64, LANES)
    excess = cgutils.alloca_once_value(b, vector(I16, 0, PAIRED))
    passed = cgutils.alloca_once(b, ir.VectorType(I16, PAIRED), size=2 * LANES)  # rows; the first `side` are used
    rows = []
    for i in range(LANES):
        first, second, quantiser = (block_row(b, source, i) for source in sources)
        both = shuffle(b, first, second, range(PAIRED))
        value, more = _product(b, both, shuffle(b, quantiser, quantiser, [*range(LANES)] * 2))
        rows.append(value)
        b.store(b.or_(b.load(excess), more), excess)

    def keep(i: Any, j: Any, value: Any, other: Any) -> None:
        b.store(value, b.gep(passed, [i]))
        b.store(other, b.gep(passed, [j]))
        b.store(b.or_(b.load(excess), b.or_(_excess(b, value), _excess(b, other))), excess)

    _transform(b, avx2, rows, table, side, _FACTOR_BITS - _PASS_BITS, keep)
    with cgutils.for_range(b, b.lshr(b.add(side, ir.Constant(I64, LANES - 1)), ir.Constant(I64, 3))) as groups:
        begin = b.mul(groups.index, eight)
        left = b.sub(side, begin)
        count = b.select(b.icmp_signed("<", left, eight), left, eight)
        # Of rows behind the last one anything may be loaded, and what is made of it is not stored.
        lines = [b.load(b.gep(passed, [b.add(begin, ir.Constant(I64, i))])) for i in range(LANES)]

        def store(i: Any, j: Any, value: Any, other: Any) -> None:
            columns = b.add(b.mul(stride, i), begin), b.add(b.mul(stride, j), begin)
            _store_pixels(b, avx2, columns, (value, other), targets, count)

        _transform(b, avx2, transposed(b, lines), table, side, _FACTOR_BITS + _PASS_BITS + _NORM_BITS, store)
    whole = ir.IntType(16 * PAIRED)
    return b.icmp_unsigned("==", b.bitcast(b.load(excess), whole), ir.Constant(whole, 0))


@intrinsic
def inverse_dct_scaled(
    _: Any,
    coefficients: Any,
    at: Any,
    at2: Any,
    quantiser: Any,
    row: Any,
    factors: Any,
    begin: Any,
    side: Any,
    out: Any,
    to: Any,
    to2: Any,
    stride: Any,
) -> Any:
    """`side` x `side` samples of each of two blocks, laid out as by `dct.inverse_dct`; `side` is one of SIDES.

    `factors[begin:]` are the side's. The quantiser must be 0 for frequencies that the side does not have. False where a
    number takes more than 15 bits after it was multiplied, or between the passes: no encoder makes such blocks.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        kinds = signature.args

        def address(array: int, index: int) -> Any:
            return pointer(builder, context, kinds[array], arguments[array], arguments[index])

        sources, targets = [address(0, 1), address(0, 2), address(3, 4)], [address(8, 9), address(8, 10)]
        return _scaled(builder, has_avx2(context), sources, address(5, 6), arguments[7], targets, arguments[11])

    arrays = (coefficients, quantiser, factors, out)
    if not all(isinstance(array, types.Array) for array in arrays):
        return None
    intp = types.intp
    kinds = (coefficients, intp, intp, quantiser, intp, factors, intp, intp, out, intp, intp, intp)
    return types.boolean(*kinds), generate


@compiled
def drop_high(quantisers: Any, sides: Any) -> None:
    """Make quantisers [4, 64] of the three components 0 for the frequencies that their sides do not have."""
    for c in range(3):
        for i in range(64):
            if i >> 3 >= sides[c] or i & 7 >= sides[c]:
                quantisers[64 * c + i] = 0


@compiled
def transform_scaled(
    values: Any, at: int, at2: int, quantisers: Any, places: Any, sides: Any, strides: Any, to: Any, to2: Any, out: Any
) -> bool:
    """Transform the blocks of two tiles, whose coefficients begin at `values[at]` and `values[at2]`.

    Block b, of component `places[b, 0]`, goes to `places[b, 1]` samples behind `to[c]` and `to2[c]`, which are -1 for
    components that are not wanted. Returns as `inverse_dct_scaled` does.
    """
    fits = True
    for block in range(places.shape[0]):
        c, place = places[block, 0], places[block, 1]
        if to[c] >= 0:
            first, second = at + block * STRIDE, at2 + block * STRIDE
            begin = sides[c] * FACTORS_OF_SIDE
            fits &= inverse_dct_scaled(
                values,
                first,
                second,
                quantisers,
                64 * c,
                _FLAT,
                begin,
                sides[c],
                out,
                place + to[c],
                place + to2[c],
                strides[c],
            )
    return fits
