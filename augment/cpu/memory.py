"""Loads and stores at addresses. Nothing is checked here, and who passes an address keeps its memory alive."""

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils as untyped_cgutils
from numba.extending import intrinsic as untyped_intrinsic

cgutils: Any = untyped_cgutils

LINE = 64  # bytes of a cache line
LANES = LINE // 4  # values of float32 in one

_BYTE, _WORD = ir.IntType(8), ir.IntType(32)
_BYTES, _WORDS = ir.VectorType(_BYTE, LANES), ir.VectorType(_WORD, LANES)
_FLOATS, _DOUBLES = ir.VectorType(ir.FloatType(), LANES), ir.VectorType(ir.DoubleType(), LANES)


def intrinsic(function: Callable[..., Any]) -> Any:
    """numba's, of any type: a call leaves out the first argument."""
    return untyped_intrinsic(function)


@intrinsic
def copy_pixel(_: Any, source: Any, target: Any) -> Any:
    """Copy 4 bytes: a pixel's three, and one that follows."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        source, target = (builder.inttoptr(address, _WORD.as_pointer()) for address in arguments)
        builder.store(builder.load(source, align=1), target, align=1)
        return context.get_dummy_value()

    return types.none(types.uint64, types.uint64), generate


@intrinsic
def copy_bytes(_: Any, source: Any, target: Any, size: Any) -> Any:
    """Copy bytes from an address to another; the two parts do not overlap."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        kind = ir.IntType(8).as_pointer()
        source, target = (builder.inttoptr(address, kind) for address in arguments[:2])
        cgutils.raw_memcpy(builder, target, source, arguments[2], 1)
        return context.get_dummy_value()

    return types.none(types.uint64, types.uint64, types.intp), generate


def _line_values(streamed: bool) -> Any:
    def line_values(_: Any, levels: Any, scales: Any, biases: Any, target: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            b = builder
            kinds = (_BYTES, _DOUBLES, _DOUBLES, _FLOATS)
            levels, scales, biases, target = (
                b.inttoptr(address, kind.as_pointer()) for address, kind in zip(arguments, kinds, strict=True)
            )
            exact = b.sitofp(b.zext(b.load(levels, align=1), _WORDS), _DOUBLES)
            values = b.fadd(b.fmul(exact, b.load(scales, align=8)), b.load(biases, align=8))
            stored = b.store(b.fptrunc(values, _FLOATS), target, align=LINE if streamed else 4)
            if streamed:
                stored.set_metadata("nontemporal", b.module.add_metadata([ir.Constant(_WORD, 1)]))
            return context.get_dummy_value()

        return types.none(*[types.uint64] * 4), generate

    return intrinsic(line_values)


# Of LANES levels at an address, float32(level * scale + bias), computed in float64, to another address.
store_line = _line_values(streamed=False)
# The same to an address that is a multiple of LINE, past the processor's caches: what they do not hold is not read
# before it is written. `finish_streams` has to follow.
stream_line = _line_values(streamed=True)


@intrinsic
def finish_streams(_: Any) -> Any:
    """Have other threads see what was streamed, as they see other stores."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        builder.fence("seq_cst")
        return context.get_dummy_value()

    return types.none(), generate
