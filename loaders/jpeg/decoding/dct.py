"""Inverse DCTs in LLVM's vector types: libjpeg-turbo's islow transform, four blocks at a time, and its reduced ones."""

from typing import Any

from llvmlite import ir
from numba import types

from fastimg.loaders.runtime.compiled import inlined, int64

from .vectors import (
    I8,
    I16,
    I32,
    I64,
    LANES,
    blocks_at_once,
    clamp,
    has_avx2,
    interleaved,
    intrinsic,
    packed,
    pointer,
    products,
    shuffle,
    transposed,
    vector,
)

# The constants of jidctint.c in 13 bits (Loeffler, Ligtenberg, Moschytz: Practical Fast 1-D DCT Algorithms, 1989).
_0_298, _0_390, _0_541, _0_765, _0_899, _1_175 = 2446, 3196, 4433, 6270, 7373, 9633
_1_501, _1_847, _1_961, _2_053, _2_562, _3_072 = 12299, 15137, 16069, 16819, 20995, 25172
# And those of jidctred.c, for blocks of which fewer samples are wanted.
_0_211, _0_509, _0_601, _0_720, _0_850, _1_061 = 1730, 4176, 4926, 5906, 6967, 8697
_1_272, _1_451, _2_172, _3_624 = 10426, 11893, 17799, 29692
_CONST_BITS, _PASS1_BITS = 13, 2
_WIDE = ir.VectorType(I32, LANES)
BLOCKS = 4  # that `inverse_dct` transforms: in one go, or two at a time

Halves = tuple[Any, Any]


def _products(builder: Any, native: bool, a: Any, b: Any, *factors: tuple[int, int]) -> list[Halves]:
    """For each pair of factors a * first + b * second."""
    lower, upper = interleaved(builder, a, b)
    pairs = [ir.Constant(lower.type, [*pair] * (lower.type.count // 2)) for pair in factors]
    return [(products(builder, native, lower, both), products(builder, native, upper, both)) for both in pairs]


def _inverse_dct(builder: Any, native: bool, values: list[Any], shift: int) -> list[Any]:
    """Eight 1-d transforms side by side of some blocks: values[frequency] -> [sample], descaled by `shift` bits.

    Sums of values wrap and samples saturate as in libjpeg-turbo's vector code (jidctint-avx2.asm).
    """
    b = builder
    count = values[0].type.count // 2  # of numbers of 32 bits
    wide = ir.VectorType(I32, count)

    def widened(value: Any) -> Halves:  # times 2 ** _CONST_BITS
        lower, upper = (b.bitcast(half, wide) for half in interleaved(b, ir.Constant(value.type, None), value))
        bits = vector(I32, 16 - _CONST_BITS, count)
        return b.ashr(lower, bits), b.ashr(upper, bits)

    def added(x: Halves, y: Halves) -> Halves:
        return b.add(x[0], y[0]), b.add(x[1], y[1])

    def less(x: Halves, y: Halves) -> Halves:
        return b.sub(x[0], y[0]), b.sub(x[1], y[1])

    even2, even3 = _products(b, native, values[2], values[6], (_0_541, _0_541 - _1_847), (_0_541 + _0_765, _0_541))
    half = vector(I32, 1 << (shift - 1), count)
    even0 = added(widened(b.add(values[0], values[4])), (half, half))
    even1 = added(widened(b.sub(values[0], values[4])), (half, half))
    z3, z4 = b.add(values[7], values[3]), b.add(values[5], values[1])
    odd3, odd4 = _products(b, native, z3, z4, (_1_175 - _1_961, _1_175), (_1_175, _1_175 - _0_390))
    t0, t3 = _products(b, native, values[7], values[1], (_0_298 - _0_899, -_0_899), (-_0_899, _1_501 - _0_899))
    t1, t2 = _products(b, native, values[5], values[3], (_2_053 - _2_562, -_2_562), (-_2_562, _3_072 - _2_562))
    pairs = (
        (added(even0, even3), added(t3, odd4)),
        (added(even1, even2), added(t2, odd3)),
        (less(even1, even2), added(t1, odd4)),
        (less(even0, even3), added(t0, odd3)),
    )
    down = vector(I32, shift, count)
    sums = [added(even, odd) for even, odd in pairs] + [less(even, odd) for even, odd in reversed(pairs)]
    return [packed(b, native, b.ashr(lower, down), b.ashr(upper, down)) for lower, upper in sums]


def _half_dct(builder: Any, values: list[Any], shift: int) -> list[Any]:
    """Eight 1-d transforms of half the length: the four samples of jidctred.c, whose frequency 4 counts for nothing."""
    b = builder

    def total(*terms: tuple[int, int]) -> Any:
        first, *others = (b.mul(x[i], vector(I32, factor)) for i, factor in terms)
        for other in others:
            first = b.add(first, other)
        return first

    x = [b.sext(value, _WIDE) for value in values]
    half = vector(I32, 1 << shift)
    down = vector(I32, shift + 1)
    dc = b.add(b.shl(x[0], vector(I32, _CONST_BITS + 1)), half)
    even = total((2, _1_847), (6, -_0_765))
    odd0 = total((7, -_0_211), (5, _1_451), (3, -_2_172), (1, _1_061))
    odd1 = total((7, -_0_509), (5, -_0_601), (3, _0_899), (1, _2_562))
    t0 = b.add(dc, even)
    t1 = b.sub(dc, even)
    sums = (b.add(t0, odd1), b.add(t1, odd0), b.sub(t1, odd0), b.sub(t0, odd1))
    return [b.ashr(value, down) for value in sums]


def _quarter_dct(builder: Any, values: list[Any], shift: int) -> list[Any]:
    """Of a quarter of the length: two samples, of frequency 0 and the odd ones."""
    b = builder
    x = [b.sext(value, _WIDE) for value in values]
    odd = b.mul(x[1], vector(I32, _3_624))
    for i, factor in ((3, -_1_272), (5, _0_850), (7, -_0_720)):
        odd = b.add(odd, b.mul(x[i], vector(I32, factor)))
    dc = b.add(b.shl(x[0], vector(I32, _CONST_BITS + 2)), vector(I32, 1 << (shift + 1)))
    down = vector(I32, shift + 2)
    return [b.ashr(b.add(dc, odd), down), b.ashr(b.sub(dc, odd), down)]


def _saturated(builder: Any, values: list[Any]) -> Any:
    """Whether some number of 16 bits is the largest or the smallest of all."""
    b = builder
    least = most = values[0]
    for value in values[1:]:
        least = b.select(b.icmp_signed("<", value, least), value, least)
        most = b.select(b.icmp_signed(">", value, most), value, most)
    count = least.type.count
    found = b.or_(
        b.icmp_signed("==", least, vector(I16, -32768, count)), b.icmp_signed("==", most, vector(I16, 32767, count))
    )
    lanes = ir.IntType(count)
    return b.icmp_unsigned("!=", b.bitcast(found, lanes), ir.Constant(lanes, 0))


def block_row(builder: Any, address: Any, number: int) -> Any:
    """Row `number` of a block [8, 8] int16."""
    place = builder.bitcast(
        builder.gep(address, [ir.Constant(I64, LANES * number)]), ir.VectorType(I16, LANES).as_pointer()
    )
    return builder.load(place, align=2)


def _side_by_side(builder: Any, rows: list[Any]) -> Any:
    """Rows of 2 or 4 blocks as one vector."""
    while len(rows) > 1:
        order = range(2 * rows[0].type.count)
        rows = [shuffle(builder, rows[i], rows[i + 1], order) for i in range(0, len(rows), 2)]
    return rows[0]


@intrinsic
def inverse_dct(_: Any, coefficients: Any, at: Any, quantiser: Any, row: Any, out: Any, to: Any, stride: Any) -> Any:
    """The samples of BLOCKS blocks, block i's 64 coefficients int16, in rows, at `coefficients[at[i]]`.

    They are multiplied by quantiser[row:row + 64] int16. Column c of block i goes to out[to[i] + c * stride:], uint8.
    The bits are libjpeg-turbo's islow DCT's. False where a number between its passes took 16 bits or more: no encoder
    makes such blocks, and libjpeg-turbo's samples of them depend on the machine.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        kinds = signature.args
        b = builder
        native = has_avx2(context)
        count = blocks_at_once(context)
        scale = pointer(b, context, kinds[2], arguments[2], arguments[3])
        factors = [_side_by_side(b, [block_row(b, scale, i)] * count) for i in range(LANES)]
        sound = ir.Constant(ir.IntType(1), 1)
        for first in range(0, BLOCKS, count):
            numbers = range(first, first + count)
            sources = [pointer(b, context, kinds[0], arguments[0], b.extract_value(arguments[1], n)) for n in numbers]
            targets = [pointer(b, context, kinds[4], arguments[4], b.extract_value(arguments[5], n)) for n in numbers]
            rows = [_side_by_side(b, [block_row(b, source, i) for source in sources]) for i in range(LANES)]
            rows = [b.mul(values, factor) for values, factor in zip(rows, factors, strict=True)]
            columns = _inverse_dct(b, native, rows, _CONST_BITS - _PASS1_BITS)
            passed = _inverse_dct(b, native, transposed(b, columns), _CONST_BITS + _PASS1_BITS + 3)
            for i in range(0, LANES, 2):
                pixels = packed(b, native, passed[i], passed[i + 1])
                pixels = b.xor(pixels, vector(I8, -128, pixels.type.count))  # plus 128
                words = b.bitcast(pixels, ir.VectorType(I64, 2 * count))
                for n in range(2 * count):
                    place = b.gep(targets[n // 2], [b.mul(arguments[6], ir.Constant(I64, i + n % 2))])
                    column = b.extract_element(words, ir.Constant(I32, n))
                    b.store(column, b.bitcast(place, I64.as_pointer()), align=1)
            sound = b.and_(sound, b.not_(_saturated(b, columns)))
        return sound

    arrays = (coefficients, quantiser, out)
    if not all(isinstance(array, types.Array) for array in arrays):
        return None
    intp: Any = types.intp
    tuples: Any = types.UniTuple
    places = tuples(intp, BLOCKS)
    return types.boolean(coefficients, places, quantiser, intp, out, places, intp), generate


def _reduced_dct(side: int) -> Any:
    """The inverse DCT of one block to `side` x `side` samples."""
    transform = {4: _half_dct, 2: _quarter_dct}[side]

    def inverse(_: Any, coefficients: Any, at: Any, quantiser: Any, row: Any, out: Any, to: Any, stride: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            kinds = signature.args
            b = builder
            narrow = ir.VectorType(I8, side)
            source = pointer(b, context, kinds[0], arguments[0], arguments[1])
            scale = pointer(b, context, kinds[2], arguments[2], arguments[3])
            rows = [b.mul(block_row(b, source, i), block_row(b, scale, i)) for i in range(LANES)]
            passed = transform(b, rows, _CONST_BITS - _PASS1_BITS)
            columns = [b.trunc(clamp(b, value, -32768, 32767), ir.VectorType(I16, LANES)) for value in passed]
            rows = transposed(b, columns + [vector(I16, 0)] * (LANES - side))
            passed = transform(b, rows, _CONST_BITS + _PASS1_BITS + 3)
            target = pointer(b, context, kinds[4], arguments[4], arguments[5])
            for i, value in enumerate(passed):
                pixels = b.add(clamp(b, value, -128, 127), vector(I32, 128))
                pixels = b.trunc(shuffle(b, pixels, pixels, range(side)), narrow)
                place = b.gep(target, [b.mul(arguments[6], ir.Constant(I64, i))])
                b.store(pixels, b.bitcast(place, narrow.as_pointer()), align=1)
            return b.not_(_saturated(b, columns))

        arrays = (coefficients, quantiser, out)
        if not all(isinstance(array, types.Array) for array in arrays):
            return None
        return types.boolean(coefficients, types.intp, quantiser, types.intp, out, types.intp, types.intp), generate

    return intrinsic(inverse)


# inverse_dct4(coefficients, at, quantiser, row, out, to, stride): one block's samples, fewer of them, as `inverse_dct`;
# the bits are those of libjpeg-turbo's scaled decoding.
inverse_dct4, inverse_dct2 = (_reduced_dct(side) for side in (4, 2))


@inlined
def low_dct2(values: Any, at: int, quantisers: Any, row: int, out: Any, to: int, stride: int) -> None:
    """Two by two samples of a block's four lowest coefficients alone, laid out as by `inverse_dct`.

    IJG's libjpeg scales by such truncation since version 7. `inverse_dct2` takes coefficients of all frequencies.
    """
    wide, tall, both = int64(values[at + 1]), int64(values[at + LANES]), int64(values[at + LANES + 1])
    low_samples(int64(values[at]), wide, tall, both, quantisers, row, out, to, stride)


@inlined
def low_samples(
    mean: int, wide: int, tall: int, both: int, quantisers: Any, row: int, out: Any, to: int, stride: int
) -> None:
    """What `low_dct2` does, of the coefficients [0, 0], [0, 1], [1, 0] and [1, 1]."""
    mean = mean * quantisers[row] + 4
    wide, tall = wide * quantisers[row + 1], tall * quantisers[row + LANES]
    both = both * quantisers[row + LANES + 1]
    out[to] = min(max(((mean + wide + tall + both) >> 3) + 128, 0), 255)
    out[to + 1] = min(max(((mean + wide - tall - both) >> 3) + 128, 0), 255)
    out[to + stride] = min(max(((mean - wide + tall - both) >> 3) + 128, 0), 255)
    out[to + stride + 1] = min(max(((mean - wide - tall + both) >> 3) + 128, 0), 255)
