"""Masks of a block's coefficients, in one instruction each: bit k of a number stands for coefficient k."""

from typing import Any

from llvmlite import binding as llvm
from llvmlite import ir
from numba import types

from fastimg.loaders.jpeg.decoding.vectors import I64, intrinsic
from fastimg.loaders.runtime.compiled import inlined, uint64

_SLOW = ("znver1", "znver2")  # CPUs that deposit bits one by one


def _deposits(context: Any) -> bool:
    """Whether numba compiles for a CPU that deposits bits fast: x86 with BMI2."""
    _, cpu, features = context.codegen().magic_tuple()
    return "+bmi2" in features.split(",") and (cpu or llvm.get_host_cpu_name()) not in _SLOW


@intrinsic
def lowest(_: Any, mask: Any) -> Any:
    """The number of the lowest bit that is set in a mask, which is not 0."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.cttz(arguments[0], ir.Constant(ir.IntType(1), 1))

    return types.uint64(types.uint64), generate


@intrinsic
def count(_: Any, mask: Any) -> Any:
    """The number of bits that are set in a mask."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.ctpop(arguments[0])

    return types.uint64(types.uint64), generate


@intrinsic
def _from_the_top(_: Any, value: Any) -> Any:
    """The bits of a number in the opposite order."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.bitreverse(arguments[0])

    return types.uint64(types.uint64), generate


@intrinsic
def _is_fast(_: Any) -> Any:
    """Whether `_deposited` may be called, a constant in compiled code."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return ir.Constant(ir.IntType(1), int(_deposits(context)))

    return types.boolean(), generate


@intrinsic
def _deposited(_: Any, value: Any, mask: Any) -> Any:
    """Bit i of a number goes where the mask's set bit number i is (PDEP)."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        if not _deposits(context):
            return arguments[0]
        kind = ir.FunctionType(I64, [I64, I64])
        name = "llvm.x86.bmi.pdep.64"
        function = builder.module.globals.get(name) or ir.Function(builder.module, kind, name)
        return builder.call(function, arguments)

    return types.uint64(types.uint64, types.uint64), generate


@inlined
def nth(mask: Any, n: Any) -> Any:
    """A mask of the set bit number `n` of a mask, counted from the lowest, 0; 0 if there are fewer."""
    if _is_fast():
        return _deposited(uint64(1) << n, mask)
    while n and mask:
        mask &= mask - uint64(1)
        n -= uint64(1)
    return mask & (uint64(0) - mask)


@inlined
def sent(held: Any, mask: Any) -> Any:
    """Those bits of a mask for which a 1 is sent: the first bit in `held` is for the lowest."""
    if _is_fast():
        return _deposited(_from_the_top(held), mask)
    chosen = uint64(0)
    while mask:
        bit = mask & (uint64(0) - mask)
        chosen |= bit if held >> uint64(63) else uint64(0)
        held = held << uint64(1)
        mask ^= bit
    return chosen
