"""Straight-line vector code in LLVM's vector types, for loops that numba does not vectorise by itself.

LLVM compiles it for the current machine (AVX2, AVX-512, NEON), with the same bits on each.
"""

import importlib
from collections.abc import Callable, Sequence
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils as untyped_cgutils
from numba.extending import intrinsic as untyped_intrinsic

from fastimg.loaders.runtime.compiled import stamp_of

cgutils: Any = untyped_cgutils


_STAMP = stamp_of(__file__)


def intrinsic(function: Callable[..., Any]) -> Any:
    """numba's, of any type: a call leaves out the first argument."""
    made: Any = untyped_intrinsic(function)
    made.made_from = _STAMP
    return made


_I8 = ir.IntType(8)
_I16 = ir.IntType(16)
_I32 = ir.IntType(32)
_I64 = ir.IntType(64)
_LANES = 8  # of a block
WIDE = 32  # samples of a column or a row that are processed at once; arrays have room for as many after their data

# The constants of jidctint.c in 13 bits (Loeffler, Ligtenberg, Moschytz: Practical Fast 1-D DCT Algorithms, 1989).
_0_298, _0_390, _0_541, _0_765, _0_899, _1_175 = 2446, 3196, 4433, 6270, 7373, 9633
_1_501, _1_847, _1_961, _2_053, _2_562, _3_072 = 12299, 15137, 16069, 16819, 20995, 25172
# And those of jidctred.c, for blocks of which fewer samples are wanted.
_0_211, _0_509, _0_601, _0_720, _0_850, _1_061 = 1730, 4176, 4926, 5906, 6967, 8697
_1_272, _1_451, _2_172, _3_624 = 10426, 11893, 17799, 29692
_CONST_BITS, _PASS1_BITS = 13, 2


def _vector(kind: ir.Type, value: int, lanes: int = _LANES) -> ir.Constant:
    return ir.Constant(ir.VectorType(kind, lanes), [value] * lanes)


def _clamp(builder: Any, value: Any, low: int, high: int) -> Any:
    lanes = value.type.count
    least = _vector(_I32, low, lanes)
    most = _vector(_I32, high, lanes)
    value = builder.select(builder.icmp_signed("<", value, least), least, value)
    return builder.select(builder.icmp_signed(">", value, most), most, value)


def _shuffle(builder: Any, a: Any, b: Any, order: Sequence[int]) -> Any:
    return builder.shuffle_vector(a, b, ir.Constant(ir.VectorType(_I32, len(order)), list(order)))


def _transposed(builder: Any, rows: list[Any]) -> list[Any]:
    """Of eight vectors of eight."""
    for step in (4, 2, 1):  # swap the off-diagonal squares of side 4, then 2, then 1
        swapped = list(rows)
        for i in range(_LANES):
            if not i & step:
                low = [lane if not lane & step else lane - step + _LANES for lane in range(_LANES)]
                high = [lane + step if not lane & step else lane + _LANES for lane in range(_LANES)]
                swapped[i] = _shuffle(builder, rows[i], rows[i + step], low)
                swapped[i + step] = _shuffle(builder, rows[i], rows[i + step], high)
        rows = swapped
    return rows


def _inverse_dct(builder: Any, values: list[Any], shift: int) -> list[Any]:
    """Eight 1-d transforms side by side, values[frequency] of 16 bits -> [sample] of 32, descaled by `shift` bits."""
    b = builder
    wide = ir.VectorType(_I32, _LANES)

    def times(value: Any, factor: int) -> Any:
        return b.mul(value, _vector(_I32, factor))

    def sum16(x: Any, y: Any) -> Any:  # wraps as libjpeg-turbo's vector code does
        return b.sext(b.add(x, y), wide)

    x = [b.sext(value, wide) for value in values]
    z1 = times(sum16(values[2], values[6]), _0_541)
    even2 = b.sub(z1, times(x[6], _1_847))
    even3 = b.add(z1, times(x[2], _0_765))
    bits = _vector(_I32, _CONST_BITS)
    even0 = b.shl(sum16(values[0], values[4]), bits)
    even1 = b.shl(b.sext(b.sub(values[0], values[4]), wide), bits)
    t10 = b.add(even0, even3)
    t13 = b.sub(even0, even3)
    t11 = b.add(even1, even2)
    t12 = b.sub(even1, even2)

    z3 = sum16(values[7], values[3])
    z4 = sum16(values[5], values[1])
    z5 = times(b.add(z3, z4), _1_175)
    z3 = b.sub(z5, times(z3, _1_961))
    z4 = b.sub(z5, times(z4, _0_390))
    z1 = times(b.add(x[7], x[1]), -_0_899)
    z2 = times(b.add(x[5], x[3]), -_2_562)
    t0 = b.add(b.add(times(x[7], _0_298), z1), z3)
    t1 = b.add(b.add(times(x[5], _2_053), z2), z4)
    t2 = b.add(b.add(times(x[3], _3_072), z2), z3)
    t3 = b.add(b.add(times(x[1], _1_501), z1), z4)

    half = _vector(_I32, 1 << (shift - 1))
    down = _vector(_I32, shift)
    t10, t11, t12, t13 = (b.add(t, half) for t in (t10, t11, t12, t13))
    pairs = ((t10, t3), (t11, t2), (t12, t1), (t13, t0))
    return [b.ashr(b.add(even, odd), down) for even, odd in pairs] + [
        b.ashr(b.sub(even, odd), down) for even, odd in reversed(pairs)
    ]


def _half_dct(builder: Any, values: list[Any], shift: int) -> list[Any]:
    """Eight 1-d transforms of half the length: the four samples of jidctred.c, whose frequency 4 counts for nothing."""
    b = builder
    wide = ir.VectorType(_I32, _LANES)

    def total(*terms: tuple[int, int]) -> Any:
        first, *others = (b.mul(x[i], _vector(_I32, factor)) for i, factor in terms)
        for other in others:
            first = b.add(first, other)
        return first

    x = [b.sext(value, wide) for value in values]
    half = _vector(_I32, 1 << shift)
    down = _vector(_I32, shift + 1)
    dc = b.add(b.shl(x[0], _vector(_I32, _CONST_BITS + 1)), half)
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
    wide = ir.VectorType(_I32, _LANES)
    x = [b.sext(value, wide) for value in values]
    odd = b.mul(x[1], _vector(_I32, _3_624))
    for i, factor in ((3, -_1_272), (5, _0_850), (7, -_0_720)):
        odd = b.add(odd, b.mul(x[i], _vector(_I32, factor)))
    dc = b.add(b.shl(x[0], _vector(_I32, _CONST_BITS + 2)), _vector(_I32, 1 << (shift + 1)))
    down = _vector(_I32, shift + 2)
    return [b.ashr(b.add(dc, odd), down), b.ashr(b.sub(dc, odd), down)]


def _pointer(builder: Any, context: Any, kind: Any, array: Any, at: Any) -> Any:
    data = context.make_array(kind)(context, builder, array).data
    return builder.gep(data, [at])


def _load(builder: Any, context: Any, kind: Any, array: Any, at: Any, lanes: int) -> Any:
    """`lanes` elements of an array, as numbers of 32 bits."""
    element = context.get_data_type(kind.dtype)
    place = _pointer(builder, context, kind, array, at)
    value = builder.load(builder.bitcast(place, ir.VectorType(element, lanes).as_pointer()), align=1)
    return value if element == _I32 else builder.zext(value, ir.VectorType(_I32, lanes))


def _store(builder: Any, context: Any, kind: Any, array: Any, at: Any, value: Any) -> None:
    narrow = ir.VectorType(context.get_data_type(kind.dtype), value.type.count)
    place = _pointer(builder, context, kind, array, at)
    builder.store(builder.trunc(value, narrow), builder.bitcast(place, narrow.as_pointer()), align=1)


def _splat(builder: Any, value: Any, lanes: int) -> Any:
    one = builder.insert_element(ir.Constant(ir.VectorType(_I32, lanes), ir.Undefined), value, ir.Constant(_I32, 0))
    return _shuffle(builder, one, one, [0] * lanes)


def _inverse_dct_of(side: int) -> Any:
    """The inverse DCT to `side` x `side` samples a block."""
    transform = {8: _inverse_dct, 4: _half_dct, 2: _quarter_dct}[side]

    def inverse(_: Any, coefficients: Any, at: Any, quantiser: Any, row: Any, out: Any, to: Any, stride: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            kinds = signature.args
            b = builder
            short = ir.VectorType(_I16, _LANES)
            narrow = ir.VectorType(_I8, side)
            source = b.bitcast(_pointer(b, context, kinds[0], arguments[0], arguments[1]), short.as_pointer())
            scale = b.bitcast(_pointer(b, context, kinds[2], arguments[2], arguments[3]), short.as_pointer())
            rows = []
            for i in range(_LANES):
                index = [ir.Constant(_I64, i)]
                value = b.load(b.gep(source, index), align=2)
                rows.append(b.mul(value, b.load(b.gep(scale, index), align=2)))
            passed = transform(b, rows, _CONST_BITS - _PASS1_BITS)
            columns = [b.trunc(_clamp(b, value, -32768, 32767), short) for value in passed]
            least = most = columns[0]
            for column in columns[1:]:
                least = b.select(b.icmp_signed("<", column, least), column, least)
                most = b.select(b.icmp_signed(">", column, most), column, most)
            clamped = b.or_(
                b.icmp_signed("==", least, _vector(_I16, -32768)), b.icmp_signed("==", most, _vector(_I16, 32767))
            )
            columns += [_vector(_I16, 0)] * (_LANES - side)
            passed = transform(b, _transposed(b, columns), _CONST_BITS + _PASS1_BITS + 3)
            target = _pointer(b, context, kinds[4], arguments[4], arguments[5])
            for i, value in enumerate(passed):
                pixels = b.add(_clamp(b, value, -128, 127), _vector(_I32, 128))
                pixels = b.trunc(_shuffle(b, pixels, pixels, range(side)), narrow)
                place = b.gep(target, [b.mul(arguments[6], ir.Constant(_I64, i))])
                b.store(pixels, b.bitcast(place, narrow.as_pointer()), align=1)
            lanes = ir.IntType(_LANES)
            return b.icmp_unsigned("==", b.bitcast(clamped, lanes), ir.Constant(lanes, 0))

        arrays = (coefficients, quantiser, out)
        places = (at, row, to, stride)
        if not all(isinstance(a, types.Array) for a in arrays) or not all(isinstance(p, types.Integer) for p in places):
            return None
        return types.boolean(coefficients, types.intp, quantiser, types.intp, out, types.intp, types.intp), generate

    return intrinsic(inverse)


# inverse_dct(coefficients, at, quantiser, row, out, to, stride): a block's samples, coefficients[at:at + 64] int16, in
# rows, times quantiser[row:row + 64] int16. Column c goes to out[to + c * stride:], uint8. The bits are libjpeg-turbo's
# islow DCT's, and for fewer samples (a side of 4 or 2) those of its scaled decoding. False where a number between its
# passes took 16 bits or more: no encoder makes such blocks, and libjpeg-turbo's samples of them depend on the machine.
inverse_dct, inverse_dct4, inverse_dct2 = (_inverse_dct_of(side) for side in (8, 4, 2))


@intrinsic
def transpose(_: Any, source: Any, at: Any, stride: Any, out: Any, to: Any, out_stride: Any) -> Any:
    """A square of 8 x 8 bytes: `out[to + j*out_stride + i] = source[at + i*stride + j]`."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        kinds = signature.args
        b = builder
        narrow = ir.VectorType(_I8, _LANES)
        begin = _pointer(b, context, kinds[0], arguments[0], arguments[1])
        rows = []
        for i in range(_LANES):
            place = b.gep(begin, [b.mul(arguments[2], ir.Constant(_I64, i))])
            rows.append(b.load(b.bitcast(place, narrow.as_pointer()), align=1))
        target = _pointer(b, context, kinds[3], arguments[3], arguments[4])
        for i, row in enumerate(_transposed(b, rows)):
            place = b.gep(target, [b.mul(arguments[5], ir.Constant(_I64, i))])
            b.store(row, b.bitcast(place, narrow.as_pointer()), align=1)
        return context.get_dummy_value()

    if not isinstance(source, types.Array) or not isinstance(out, types.Array):
        return None
    intp = types.intp
    return types.none(source, intp, intp, out, intp, intp), generate


@intrinsic
def bytes_at(_: Any, address: Any, size: Any) -> Any:
    """The `size` bytes at an address as an array uint8 [size]. Who calls keeps them alive."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        arrays: Any = importlib.import_module("numba.np.arrayobj")  # only compilation needs it
        b = builder
        made = context.make_array(signature.return_type)(context, builder)
        one = context.get_constant(types.intp, 1)
        data = b.inttoptr(arguments[0], _I8.as_pointer())
        arrays.populate_array(made, data, [arguments[1]], [one], one, None)
        return made._getvalue()

    return types.Array(types.uint8, 1, "C")(types.intp, types.intp), generate


@intrinsic
def upsampled_sums(_: Any, source: Any, at: Any, out: Any, to: Any) -> Any:
    """Rows between rows, for WIDE / 2 samples s from `source[at]` on: 3 s[i] + s[i - 1] to `out[to + 2 i]`, and
    3 s[i] + s[i + 1] behind it.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        kinds = signature.args
        b = builder
        lanes = WIDE // 2
        near, above, below = (
            _load(b, context, kinds[0], arguments[0], b.add(arguments[1], ir.Constant(_I64, step)), lanes)
            for step in (0, -1, 1)
        )
        near = b.mul(near, _vector(_I32, 3, lanes))
        order = [i // 2 + lanes * (i % 2) for i in range(WIDE)]
        _store(
            b,
            context,
            kinds[2],
            arguments[2],
            arguments[3],
            _shuffle(b, b.add(near, above), b.add(near, below), order),
        )
        return context.get_dummy_value()

    if not isinstance(source, types.Array) or not isinstance(out, types.Array):
        return None
    return types.none(source, types.intp, out, types.intp), generate


@intrinsic
def upsampled(_: Any, source: Any, this: Any, that: Any, half: Any, shift: Any, out: Any, to: Any) -> Any:
    """Columns between columns: out[to + i] = (3 source[this + i] + source[that + i] + half) >> shift, WIDE of them."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        kinds = signature.args
        b = builder
        near, far = (_load(b, context, kinds[0], arguments[0], arguments[i], WIDE) for i in (1, 2))
        value = b.add(b.mul(near, _vector(_I32, 3, WIDE)), far)
        value = b.add(value, _splat(b, b.trunc(arguments[3], _I32), WIDE))
        value = b.lshr(value, _splat(b, b.trunc(arguments[4], _I32), WIDE))
        _store(b, context, kinds[5], arguments[5], arguments[6], value)
        return context.get_dummy_value()

    intp = types.intp
    return types.none(source, intp, intp, intp, intp, out, intp), generate


@intrinsic
def to_rgb(_: Any, lumas: Any, at: Any, chroma: Any, blue: Any, red: Any, out: Any, to: Any, height: Any) -> Any:
    """YCbCr -> RGB (jdcolor.c), WIDE samples: lumas[at:], chroma[blue:] and chroma[red:] -> out[to + c * height:]."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        kinds = signature.args
        b = builder

        def times(value: Any, factor: int) -> Any:
            return b.mul(value, _vector(_I32, factor, WIDE))

        luma = _load(b, context, kinds[0], arguments[0], arguments[1], WIDE)
        cb, cr = (_load(b, context, kinds[2], arguments[2], arguments[i], WIDE) for i in (3, 4))
        cb, cr = (b.sub(value, _vector(_I32, 128, WIDE)) for value in (cb, cr))
        sums = (times(cr, 91881), b.sub(times(cb, -22554), times(cr, 46802)), times(cb, 116130))
        for channel, value in enumerate(sums):
            value = b.ashr(b.add(value, _vector(_I32, 32768, WIDE)), _vector(_I32, 16, WIDE))
            value = _clamp(b, b.add(luma, value), 0, 255)
            place = b.add(arguments[6], b.mul(arguments[7], ir.Constant(_I64, channel)))
            _store(b, context, kinds[5], arguments[5], place, value)
        return context.get_dummy_value()

    intp = types.intp
    return types.none(lumas, intp, chroma, intp, intp, out, intp, intp), generate


@intrinsic
def weighted(
    _: Any, source: Any, at: Any, stride: Any, weights: Any, first: Any, taps: Any, precision: Any, out: Any, to: Any
) -> Any:
    """WIDE sums out[to + i] = sum over j of source[at + j * stride + i] * weights[first + j], rounded and clamped.

    `weights` are int32 with `precision` bits behind the point, `taps` of them.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        kinds = signature.args
        b = builder
        bits = b.trunc(arguments[6], _I32)
        half = b.shl(ir.Constant(_I32, 1), b.sub(bits, ir.Constant(_I32, 1)))
        total = cgutils.alloca_once_value(b, _splat(b, half, WIDE))
        place = cgutils.alloca_once_value(b, arguments[1])
        with cgutils.for_range(b, arguments[5]) as loop:
            here = b.load(place)
            weight = b.load(_pointer(b, context, kinds[3], arguments[3], b.add(arguments[4], loop.index)))
            values = _load(b, context, kinds[0], arguments[0], here, WIDE)
            b.store(b.add(b.load(total), b.mul(values, _splat(b, weight, WIDE))), total)
            b.store(b.add(here, arguments[2]), place)
        value = _clamp(b, b.ashr(b.load(total), _splat(b, bits, WIDE)), 0, 255)
        _store(b, context, kinds[7], arguments[7], arguments[8], value)
        return context.get_dummy_value()

    intp = types.intp
    return types.none(source, intp, intp, weights, intp, intp, intp, out, intp), generate
