"""Vector code for floats of 32 bits: weighted sums in a given order of roundings, squares turned, numbers rounded.

What is at the addresses is not checked.
"""

from typing import Any

from llvmlite import ir
from numba import types

from .jpeg.decoding.vectors import I8, I16, I32, I64, LANES, cgutils, intrinsic, splat, transposed

FLOATS = 16  # numbers that `weighted_floats` and `narrow_floats` take at once

F32 = ir.FloatType()
_MANY = ir.VectorType(F32, FLOATS)


def _fuses(context: Any) -> bool:
    """Whether numba compiles for a CPU that multiplies and adds with one rounding."""
    triple, _, features = context.codegen().magic_tuple()
    return not triple.startswith(("x86", "i686")) or "+fma" in features.split(",")


def _fused(builder: Any, context: Any, a: Any, b: Any, c: Any) -> Any:
    """a * b + c with one rounding; with two where the CPU has no instruction for it, whose torch has none, either."""
    if not _fuses(context):
        return builder.fadd(builder.fmul(a, b), c)
    name = f"v{a.type.count}f32" if isinstance(a.type, ir.VectorType) else "f32"
    kind = ir.FunctionType(a.type, [a.type] * 3)
    return builder.call(cgutils.get_or_insert_function(builder.module, kind, f"llvm.fma.{name}"), [a, b, c])


@intrinsic
def fused(_: Any, a: Any, b: Any, c: Any) -> Any:
    """Floats a * b + c, rounded once."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return _fused(builder, context, *arguments)

    return types.float32(*[types.float32] * 3), generate


def _place(builder: Any, address: Any, kind: Any) -> Any:
    return builder.inttoptr(address, kind.as_pointer())


@intrinsic
def weighted_floats(_: Any, source: Any, stride: Any, weights: Any, taps: Any, plain: Any, to: Any, times: Any) -> Any:
    """Sums to[i] = sum over j of source[i + j * stride] * weights[j], for FLOATS * `times` floats at addresses.

    They are added in order. Of the products behind the first one, `plain` are rounded before they are added, and the
    others with the sum. `stride` is in bytes.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        source, stride, weights, taps, plain, to, times = arguments
        b = builder
        total = cgutils.alloca_once(b, _MANY)

        def weight(number: Any) -> Any:
            place = b.add(weights, b.mul(number, ir.Constant(I64, 4)))
            return splat(b, b.load(_place(b, place, F32), align=4), FLOATS)

        with cgutils.for_range(b, times) as over:
            skipped = b.mul(over.index, ir.Constant(I64, 4 * FLOATS))
            begin = b.add(source, skipped)

            def values(number: Any, begin: Any = begin) -> Any:
                return b.load(_place(b, b.add(begin, b.mul(number, stride)), _MANY), align=4)

            first = ir.Constant(I64, 0)
            b.store(b.fmul(values(first), weight(first)), total)
            with cgutils.for_range(b, plain) as loop:
                number = b.add(loop.index, ir.Constant(I64, 1))
                b.store(b.fadd(b.load(total), b.fmul(values(number), weight(number))), total)
            behind = b.add(plain, ir.Constant(I64, 1))
            with cgutils.for_range(b, b.sub(taps, behind)) as loop:
                number = b.add(loop.index, behind)
                b.store(_fused(b, context, values(number), weight(number), b.load(total)), total)
            b.store(b.load(total), _place(b, b.add(to, skipped), _MANY), align=4)
        return context.get_dummy_value()

    return types.none(*[types.int64] * 7), generate


def _turned(kind: Any, side: int) -> Any:
    """A function that turns squares of `side` x `side` numbers of a type into floats."""

    @intrinsic
    def turn(_: Any, source: Any, pitch: Any, to: Any, stride: Any) -> Any:
        """Numbers [y, x] at an address -> floats [x, y] at another; `pitch` and `stride` are bytes between rows."""

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            source, pitch, to, stride = arguments
            b = builder
            narrow, wide = ir.VectorType(kind, side), ir.VectorType(F32, side)
            rows = []
            for i in range(side):
                place = b.add(source, b.mul(pitch, ir.Constant(I64, i)))
                row = b.load(_place(b, place, narrow), align=1)
                rows.append(row if kind == F32 else b.uitofp(b.zext(row, ir.VectorType(I32, side)), wide))
            for i, row in enumerate(transposed(b, rows)):
                b.store(row, _place(b, b.add(to, b.mul(stride, ir.Constant(I64, i))), wide), align=4)
            return context.get_dummy_value()

        return types.none(*[types.int64] * 4), generate

    return turn


turn_bytes, turn_shorts, turn_floats = _turned(I8, LANES), _turned(I16, LANES), _turned(F32, LANES)
turn_many = _turned(F32, FLOATS)


def _narrowed(kind: Any) -> Any:
    """A function that rounds floats to whole numbers of a type, whose limits they are held to."""

    @intrinsic
    def narrow(_: Any, address: Any, times: Any) -> Any:
        """Round FLOATS * `times` floats at an address to the nearest numbers, ties to even ones, in their place."""

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            address, times = arguments
            b = builder
            rounding = ir.FunctionType(_MANY, [_MANY])
            rint = cgutils.get_or_insert_function(b.module, rounding, f"llvm.rint.v{FLOATS}f32")
            least, most = (ir.Constant(_MANY, [float(limit)] * FLOATS) for limit in (0, 2**kind.width - 1))
            with cgutils.for_range(b, times) as loop:
                place = b.add(address, b.mul(loop.index, ir.Constant(I64, 4 * FLOATS)))
                value = b.call(rint, [b.load(_place(b, place, _MANY), align=4)])
                value = b.select(b.fcmp_ordered(">", value, least), value, least)  # least of what is no number, too
                value = b.select(b.fcmp_ordered("<", value, most), value, most)
                value = b.trunc(b.fptoui(value, ir.VectorType(I32, FLOATS)), ir.VectorType(kind, FLOATS))
                to = b.add(address, b.mul(loop.index, ir.Constant(I64, kind.width // 8 * FLOATS)))
                b.store(value, _place(b, to, value.type), align=1)
            return context.get_dummy_value()

        return types.none(types.int64, types.int64), generate

    return narrow


narrow_to_bytes, narrow_to_shorts = _narrowed(I8), _narrowed(I16)


@intrinsic
def clear_floats(_: Any, address: Any) -> Any:
    """Store FLOATS zeros at an address."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        builder.store(ir.Constant(_MANY, [0.0] * FLOATS), _place(builder, arguments[0], _MANY), align=4)
        return context.get_dummy_value()

    return types.none(types.int64), generate


@intrinsic
def float_at(_: Any, address: Any) -> Any:
    """The float at an address."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.load(_place(builder, arguments[0], F32), align=1)

    return types.float32(types.int64), generate


@intrinsic
def store_float(_: Any, address: Any, value: Any) -> Any:
    """Store a float at an address."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        builder.store(arguments[1], _place(builder, arguments[0], F32), align=1)
        return context.get_dummy_value()

    return types.none(types.int64, types.float32), generate
