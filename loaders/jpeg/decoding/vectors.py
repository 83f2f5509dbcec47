"""Straight-line vector code in LLVM's vector types, for loops that numba does not vectorise by itself.

LLVM compiles it for the current machine (AVX2, AVX-512, NEON), with the same bits on each.
"""

from collections.abc import Callable, Sequence
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils as untyped_cgutils
from numba.extending import intrinsic as untyped_intrinsic

cgutils: Any = untyped_cgutils


def intrinsic(function: Callable[..., Any]) -> Any:
    """numba's, of any type: a call leaves out the first argument."""
    return untyped_intrinsic(function)


I8 = ir.IntType(8)
I16 = ir.IntType(16)
I32 = ir.IntType(32)
I64 = ir.IntType(64)
LANES = 8  # of a block
PAIRED = 2 * LANES  # of two blocks, int16: 256 bits
WIDE = 32  # samples of a column or a row that are processed at once; arrays have room for as many after their data


def blocks_at_once(context: Any) -> int:
    """The blocks that a vector of int16 holds a row of."""
    return 4 if has_avx512(context) else 2


def vector(kind: ir.Type, value: int, lanes: int = LANES) -> ir.Constant:
    """A constant, the same in all lanes."""
    return ir.Constant(ir.VectorType(kind, lanes), [value] * lanes)


def clamp(builder: Any, value: Any, low: int, high: int) -> Any:
    """Signed numbers, limited to [low, high]."""
    least, most = (vector(value.type.element, limit, value.type.count) for limit in (low, high))
    value = builder.select(builder.icmp_signed("<", value, least), least, value)
    return builder.select(builder.icmp_signed(">", value, most), most, value)


def shuffle(builder: Any, a: Any, b: Any, order: Sequence[int]) -> Any:
    """The lanes of `a` and `b` that `order` names."""
    return builder.shuffle_vector(a, b, ir.Constant(ir.VectorType(I32, len(order)), list(order)))


def interleaved(builder: Any, a: Any, b: Any, lanes: int = LANES) -> tuple[Any, Any]:
    """a0 b0 a1 b1 ... of the lower halves, and of the upper ones, within each `lanes` lanes: one instruction each."""
    count = a.type.count
    half = lanes // 2
    lower, upper = (
        [block + first + i + side for block in range(0, count, lanes) for i in range(half) for side in (0, count)]
        for first in (0, half)
    )
    return shuffle(builder, a, b, lower), shuffle(builder, a, b, upper)


def transposed(builder: Any, rows: list[Any]) -> list[Any]:
    """Eight vectors of eight, or of several blocks of eight, each transposed; or sixteen of sixteen."""
    count = len(rows)
    half = count // 2
    for _ in range(count.bit_length() - 1):  # each time a number's place, row and column as bits, is rotated by one
        rows = [vector for i in range(half) for vector in interleaved(builder, rows[i], rows[i + half], count)]
    return rows


def _features(context: Any) -> list[str]:
    """What the CPU has that numba compiles for, in LLVM's words."""
    names: list[str] = context.codegen().magic_tuple()[2].split(",")
    return names


def has_avx2(context: Any) -> bool:
    """Whether numba compiles for a CPU with AVX2."""
    return "+avx2" in _features(context)


def has_avx512(context: Any) -> bool:
    """Whether it is one with AVX-512 as since Ice Lake and Zen 4, whose clock does not suffer from 512 bits."""
    return {"+avx512bw", "+avx512vbmi2"} <= set(_features(context))


_MULTIPLY = {256: "avx2.pmadd.wd", 512: "avx512.pmaddw.d.512"}
_PACK = {
    (256, 32): "avx2.packssdw",
    (256, 16): "avx2.packsswb",
    (512, 32): "avx512.packssdw.512",
    (512, 16): "avx512.packsswb.512",
}


def _x86(builder: Any, name: str, kind: ir.Type, a: Any, b: Any) -> Any:
    function = ir.FunctionType(kind, [a.type, b.type])
    return builder.call(cgutils.get_or_insert_function(builder.module, function, f"llvm.x86.{name}"), [a, b])


# The next two are what AVX2's and AVX-512's instructions do, and elsewhere as many as LLVM makes of it. Products of two
# vectors that were interleaved are the first halves of all blocks, and the second halves; `packed` puts such halves
# together.
def products(builder: Any, native: bool, pairs: Any, factors: Any) -> Any:
    """a0 * f0 + a1 * f1, a2 * f2 + a3 * f3, ... in 32 bits, of two vectors of int16."""
    count = pairs.type.count
    if native:
        return _x86(builder, _MULTIPLY[16 * count], ir.VectorType(I32, count // 2), pairs, factors)
    wide = ir.VectorType(I32, count)
    each = builder.mul(builder.sext(pairs, wide), builder.sext(factors, wide))
    even, odd = (shuffle(builder, each, each, range(side, count, 2)) for side in (0, 1))
    return builder.add(even, odd)


def packed(builder: Any, native: bool, lower: Any, upper: Any) -> Any:
    """Two vectors as one of numbers of half as many bits, saturated, within each 128 bits."""
    count, bits = lower.type.count, lower.type.element.width
    kind = ir.VectorType(ir.IntType(bits // 2), 2 * count)
    if native:
        return _x86(builder, _PACK[count * bits, bits], kind, lower, upper)
    most = (1 << (bits // 2 - 1)) - 1
    lower, upper = (clamp(builder, half, -most - 1, most) for half in (lower, upper))
    block = 128 // bits
    order = [side + first + i for first in range(0, count, block) for side in (0, count) for i in range(block)]
    return builder.trunc(shuffle(builder, lower, upper, order), kind)


def pointer(builder: Any, context: Any, kind: Any, array: Any, at: Any) -> Any:
    """The address of an array's element."""
    data = context.make_array(kind)(context, builder, array).data
    return builder.gep(data, [at])


def load(builder: Any, context: Any, kind: Any, array: Any, at: Any, lanes: int) -> Any:
    """`lanes` samples of an array, uint8 or less than 32768, as int16."""
    narrow = ir.VectorType(context.get_data_type(kind.dtype), lanes)
    place = pointer(builder, context, kind, array, at)
    value = builder.load(builder.bitcast(place, narrow.as_pointer()), align=1)
    return value if narrow.element == I16 else builder.zext(value, ir.VectorType(I16, lanes))


def store(builder: Any, context: Any, kind: Any, array: Any, at: Any, value: Any) -> None:
    """Store int16 as an array's type, without a clamp."""
    narrow = ir.VectorType(context.get_data_type(kind.dtype), value.type.count)
    place = pointer(builder, context, kind, array, at)
    value = value if narrow.element == I16 else builder.trunc(value, narrow)
    builder.store(value, builder.bitcast(place, narrow.as_pointer()), align=1)


def halves(builder: Any, value: Any) -> list[Any]:
    """WIDE lanes as two vectors."""
    return [shuffle(builder, value, value, range(begin, begin + PAIRED)) for begin in (0, PAIRED)]


def splat(builder: Any, value: Any, lanes: int) -> Any:
    """A number in all lanes."""
    none = ir.Constant(ir.VectorType(value.type, lanes), ir.Undefined)
    one = builder.insert_element(none, value, ir.Constant(I32, 0))
    return shuffle(builder, one, one, [0] * lanes)


def gather(builder: Any, context: Any, begin: Any, places: Any) -> Any:
    """Eight numbers of 64 bits, at `places` behind an address."""
    b = builder
    if has_avx512(context):
        lanes = ir.VectorType(ir.IntType(1), LANES)
        kinds = [places.type, I8.as_pointer(), places.type, lanes, I32]
        name = "llvm.x86.avx512.mask.gather.qpq.512"
        function = cgutils.get_or_insert_function(b.module, ir.FunctionType(places.type, kinds), name)
        address = b.bitcast(begin, I8.as_pointer())
        return b.call(
            function, [ir.Constant(places.type, None), address, places, ir.Constant(lanes, [1] * LANES), I32(8)]
        )
    found = ir.Constant(places.type, ir.Undefined)
    for i in range(LANES):
        lane = ir.Constant(I32, i)
        found = b.insert_element(found, b.load(b.gep(begin, [b.extract_element(places, lane)])), lane)
    return found


@intrinsic
def transpose(_: Any, source: Any, at: Any, stride: Any, out: Any, to: Any, out_stride: Any) -> Any:
    """A square of 8 x 8 bytes: `out[to + j*out_stride + i] = source[at + i*stride + j]`."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        kinds = signature.args
        b = builder
        narrow = ir.VectorType(I8, LANES)
        begin = pointer(b, context, kinds[0], arguments[0], arguments[1])
        rows = []
        for i in range(LANES):
            place = b.gep(begin, [b.mul(arguments[2], ir.Constant(I64, i))])
            rows.append(b.load(b.bitcast(place, narrow.as_pointer()), align=1))
        target = pointer(b, context, kinds[3], arguments[3], arguments[4])
        for i, row in enumerate(transposed(b, rows)):
            place = b.gep(target, [b.mul(arguments[5], ir.Constant(I64, i))])
            b.store(row, b.bitcast(place, narrow.as_pointer()), align=1)
        return context.get_dummy_value()

    if not isinstance(source, types.Array) or not isinstance(out, types.Array):
        return None
    intp = types.intp
    return types.none(source, intp, intp, out, intp, intp), generate


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
            load(b, context, kinds[0], arguments[0], b.add(arguments[1], ir.Constant(I64, step)), lanes)
            for step in (0, -1, 1)
        )
        near = b.mul(near, vector(I16, 3, lanes))
        order = [i // 2 + lanes * (i % 2) for i in range(WIDE)]
        store(
            b,
            context,
            kinds[2],
            arguments[2],
            arguments[3],
            shuffle(b, b.add(near, above), b.add(near, below), order),
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
        near, far = (load(b, context, kinds[0], arguments[0], arguments[i], WIDE) for i in (1, 2))
        value = b.add(b.mul(near, vector(I16, 3, WIDE)), far)
        value = b.add(value, splat(b, b.trunc(arguments[3], I16), WIDE))
        value = b.lshr(value, splat(b, b.trunc(arguments[4], I16), WIDE))
        store(b, context, kinds[5], arguments[5], arguments[6], value)
        return context.get_dummy_value()

    intp = types.intp
    return types.none(source, intp, intp, intp, intp, out, intp), generate


@intrinsic
def to_rgb(_: Any, lumas: Any, at: Any, chroma: Any, blue: Any, red: Any, out: Any, to: Any, height: Any) -> Any:
    """YCbCr -> RGB (jdcolor.c), WIDE samples: lumas[at:], chroma[blue:] and chroma[red:] -> out[to + c * height:]."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        kinds = signature.args
        b = builder

        def high(value: Any, factor: int) -> Any:  # value * factor >> 16
            kind = ir.VectorType(I32, WIDE)
            product = b.mul(b.sext(value, kind), vector(I32, factor, WIDE))
            return b.trunc(b.ashr(product, vector(I32, 16, WIDE)), ir.VectorType(I16, WIDE))

        def rounded(value: Any, factor: int) -> Any:  # value * factor + 32768 >> 16
            doubled = high(b.add(value, value), factor)
            return b.ashr(b.add(doubled, vector(I16, 1, WIDE)), vector(I16, 1, WIDE))

        avx2 = has_avx2(context)
        luma = load(b, context, kinds[0], arguments[0], arguments[1], WIDE)
        cb, cr = (load(b, context, kinds[2], arguments[2], arguments[i], WIDE) for i in (3, 4))
        cb, cr = (b.sub(value, vector(I16, 128, WIDE)) for value in (cb, cr))
        factors = ir.Constant(ir.VectorType(I16, PAIRED), [-22554, 65536 - 46802] * LANES)
        greens = []
        for pair in zip(halves(b, cb), halves(b, cr), strict=True):
            sums = [products(b, avx2, part, factors) for part in interleaved(b, *pair)]
            sums = [b.ashr(b.add(part, vector(I32, 32768)), vector(I32, 16)) for part in sums]
            greens.append(packed(b, avx2, sums[0], sums[1]))
        green = b.sub(shuffle(b, greens[0], greens[1], range(WIDE)), cr)
        red = b.add(rounded(cr, 91881 - 65536), cr)
        blue = b.add(rounded(cb, 116130 - 131072), b.add(cb, cb))
        for channel, value in enumerate((red, green, blue)):
            value = clamp(b, b.add(luma, value), 0, 255)
            place = b.add(arguments[6], b.mul(arguments[7], ir.Constant(I64, channel)))
            store(b, context, kinds[5], arguments[5], place, value)
        return context.get_dummy_value()

    intp = types.intp
    return types.none(lumas, intp, chroma, intp, intp, out, intp, intp), generate


@intrinsic
def quotient(_: Any, a: Any, b: Any) -> Any:
    """Floats a / b. numba's own division checks b, so that loops of it are not vectorised."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.fdiv(*arguments)

    return types.float64(types.float64, types.float64), generate


_FEW = 4  # pairs of weights that stay in registers


def _pair_products(builder: Any, native: bool, near: Any, far: Any, pair: Any) -> list[Any]:
    """Sums of two products in 32 bits, of bytes of two rows and their weights, in the order that `_bytes_of` undoes.

    Words of both rows are interleaved, and even and odd bytes taken from them: fewer shuffles than for single bytes,
    but with 16 registers, as AVX2 has, no faster than interleaving bytes with zeros.
    """
    b = builder
    count = near.type.count // 2
    words = ir.VectorType(I16, count)
    if count < WIDE:
        none = vector(I8, 0, 2 * count)
        mixed = interleaved(b, near, far, 16)
        parts = [b.bitcast(part, words) for both in mixed for part in interleaved(b, both, none, 16)]
    else:
        mixed = interleaved(b, b.bitcast(near, words), b.bitcast(far, words))
        parts = [b.and_(both, vector(I16, 255, count)) for both in mixed]
        parts += [b.lshr(both, vector(I16, 8, count)) for both in mixed]
    return [products(b, native, part, pair) for part in parts]


def _bytes_of(builder: Any, native: bool, sums: list[Any]) -> Any:
    """Numbers less 128, as `_pair_products` orders them, as bytes 0 to 255."""
    b = builder
    value = packed(b, native, *(packed(b, native, sums[i], sums[i + 1]) for i in (0, 2)))
    count = value.type.count
    if count > WIDE:  # eight even bytes and eight odd ones
        order = [first + side + i for first in range(0, count, 16) for i in range(8) for side in (0, 8)]
        value = shuffle(b, value, value, order)
    return b.xor(value, vector(I8, -128, count))


@intrinsic
def weighted(
    _: Any,
    source: Any,
    at: Any,
    stride: Any,
    weights: Any,
    first: Any,
    taps: Any,
    precision: Any,
    out: Any,
    to: Any,
    times: Any,
) -> Any:
    """Sums out[to + i] = sum over j of source[at + j * stride + i] * weights[first + j], rounded and clamped.

    There are WIDE * `times` of them. `weights` are int16 with `precision` bits behind the point, `taps` of them, and a
    0 behind an odd number of them. Two rows are multiplied at once.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        kinds = signature.args
        b = builder
        native = has_avx2(context)
        begin, target = (pointer(b, context, kinds[i], arguments[i], arguments[i + 1]) for i in (0, 7))
        bits = b.trunc(arguments[6], I32)
        half = b.shl(ir.Constant(I32, 1), b.sub(bits, ir.Constant(I32, 1)))
        # Less 128, for numbers that saturate as signed ones.
        less = b.sub(half, b.shl(ir.Constant(I32, 128), bits))
        pairs = b.lshr(b.add(arguments[5], ir.Constant(I64, 1)), ir.Constant(I64, 1))
        nbytes = b.mul(arguments[9], ir.Constant(I64, WIDE))

        def row(number: Any) -> Any:  # the first one where there is none, for the weight 0
            inside = b.icmp_signed("<", number, arguments[5])
            return b.gep(begin, [b.select(inside, b.mul(number, arguments[2]), ir.Constant(I64, 0))])

        def summed(width: int, count: int) -> None:
            """Sums of `count` pairs, or of any number if it is 0, by vectors of `width` bytes: the last may overlap."""
            wide = ir.VectorType(I8, width).as_pointer()
            lanes = width // 4
            initial, shift = splat(b, less, lanes), splat(b, bits, lanes)

            def factors(number: Any) -> Any:
                weight = pointer(b, context, kinds[3], arguments[3], b.add(arguments[4], number))
                weight = b.load(b.bitcast(weight, I32.as_pointer()), align=2)
                return b.bitcast(splat(b, weight, lanes), ir.VectorType(I16, 2 * lanes))

            def added(totals: Any, rows: Any, skipped: Any, pair: Any) -> list[Any]:
                near, far = (b.load(b.bitcast(b.gep(place, [skipped]), wide), align=1) for place in rows)
                parts = _pair_products(b, native, near, far, pair)
                return [b.add(total, part) for total, part in zip(totals, parts, strict=True)]

            numbers = [ir.Constant(I64, number) for number in range(2 * count)]
            known, rows = [factors(number) for number in numbers[::2]], [row(number) for number in numbers]
            sums = [] if count else [cgutils.alloca_once(b, initial.type) for _ in range(4)]
            last = b.sub(nbytes, ir.Constant(I64, width))
            times = b.udiv(b.add(nbytes, ir.Constant(I64, width - 1)), ir.Constant(I64, width))
            with cgutils.for_range(b, times) as loop:
                skipped = b.mul(loop.index, ir.Constant(I64, width))
                skipped = b.select(b.icmp_signed("<", skipped, last), skipped, last)
                totals: list[Any] = [initial] * 4
                for i, pair in enumerate(known):
                    totals = added(totals, rows[2 * i : 2 * i + 2], skipped, pair)
                if not count:
                    for total in sums:
                        b.store(initial, total)
                    with cgutils.for_range(b, pairs) as over_pairs:
                        number = b.shl(over_pairs.index, ir.Constant(I64, 1))
                        two = [row(number), row(b.add(number, ir.Constant(I64, 1)))]
                        new = added([b.load(total) for total in sums], two, skipped, factors(number))
                        for value, total in zip(new, sums, strict=True):
                            b.store(value, total)
                    totals = [b.load(total) for total in sums]
                value = _bytes_of(b, native, [b.ashr(total, shift) for total in totals])
                b.store(value, b.bitcast(b.gep(target, [skipped]), wide), align=1)

        width = 2 * WIDE if has_avx512(context) else WIDE
        narrow = b.icmp_signed("<", nbytes, ir.Constant(I64, width))
        if width > WIDE:
            with b.if_then(narrow):
                summed(WIDE, 0)
        with b.if_then(b.not_(narrow)):
            for count in range(1, _FEW + 1):
                with b.if_then(b.icmp_signed("==" if count > 1 else "<=", pairs, ir.Constant(I64, count))):
                    summed(width, count)
            with b.if_then(b.icmp_signed(">", pairs, ir.Constant(I64, _FEW))):
                summed(width, 0)
        return context.get_dummy_value()

    intp = types.intp
    return types.none(source, intp, intp, weights, intp, intp, intp, out, intp, intp), generate
