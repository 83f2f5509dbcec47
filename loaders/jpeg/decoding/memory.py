"""Loads and stores at addresses, in one instruction each: for loops in which arrays would not stay in registers.

Nothing is checked here, and who passes an address keeps its memory alive.
"""

import importlib
from typing import Any

from llvmlite import ir
from numba import types

from .vectors import I8, I16, I32, I64, WIDE, cgutils, has_avx512, intrinsic, vector


def _array_at(readonly: bool) -> Any:
    kind = types.Array(types.uint8, 1, "C", readonly=readonly)

    def array_at(_: Any, address: Any, size: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            arrays: Any = importlib.import_module("numba.np.arrayobj")  # only compilation needs it
            b = builder
            made = context.make_array(signature.return_type)(context, builder)
            one = context.get_constant(types.intp, 1)
            data = b.inttoptr(arguments[0], I8.as_pointer())
            arrays.populate_array(made, data, [arguments[1]], [one], one, None)
            return made._getvalue()

        return kind(types.intp, types.intp), generate

    return intrinsic(array_at)


bytes_at = _array_at(readonly=False)  # the `size` bytes at an address as an array uint8 [size]
view_at = _array_at(readonly=True)  # the same, of the type that `frame.view_of` gives


def _load(kind: ir.IntType, swapped: bool = False) -> Any:
    def load(_: Any, address: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            value = builder.load(builder.inttoptr(arguments[0], kind.as_pointer()), align=1)
            if swapped:
                value = builder.bswap(value)
            return value if kind == I64 else builder.zext(value, I64)

        return types.uint64(types.uint64), generate

    return intrinsic(load)


# The number at an address, as uint64.
byte_at = _load(I8)
half_at = _load(I32)
word_at = _load(I64)
bits_at = _load(I64, swapped=True)  # 64 bits, the first one highest; on little-endian machines, like all of numba's


@intrinsic
def short_at(_: Any, address: Any) -> Any:
    """The signed number of 16 bits at an even address, as int64."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        value = builder.load(builder.inttoptr(arguments[0], I16.as_pointer()), align=2)
        return builder.sext(value, I64)

    return types.int64(types.uint64), generate


@intrinsic
def store_short(_: Any, address: Any, value: Any) -> Any:
    """Store the low 16 bits of a number at an even address."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        place = builder.inttoptr(arguments[0], I16.as_pointer())
        builder.store(builder.trunc(arguments[1], I16), place, align=2)
        return context.get_dummy_value()

    return types.none(types.uint64, types.uint64), generate


def _store(kind: ir.IntType) -> Any:
    def store(_: Any, address: Any, value: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            value = arguments[1] if kind == I64 else builder.trunc(arguments[1], kind)
            builder.store(value, builder.inttoptr(arguments[0], kind.as_pointer()), align=1)
            return context.get_dummy_value()

        return types.none(types.uint64, types.uint64), generate

    return intrinsic(store)


# Store the low bits of a number at any address, the lowest byte first: 8, 16 or all 64.
store_byte = _store(I8)
store_pair = _store(I16)
store_word = _store(I64)


@intrinsic
def copy_bytes(_: Any, source: Any, to: Any, size: Any) -> Any:
    """Copy bytes from an address to another; the two parts do not overlap."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        source, to = (builder.inttoptr(address, I8.as_pointer()) for address in arguments[:2])
        cgutils.raw_memcpy(builder, to, source, arguments[2], 1)
        return context.get_dummy_value()

    return types.none(types.intp, types.intp, types.intp), generate


@intrinsic
def fetch_line(_: Any, address: Any) -> Any:
    """Have the processor fetch the 64 bytes around an address, which are needed soon."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        kind = ir.IntType(32)
        known = ir.FunctionType(ir.VoidType(), [I8.as_pointer(), kind, kind, kind])
        fetch = cgutils.get_or_insert_function(builder.module, known, "llvm.prefetch.p0i8")
        place = builder.inttoptr(arguments[0], I8.as_pointer())
        builder.call(fetch, [place, kind(0), kind(3), kind(1)])
        return context.get_dummy_value()

    return types.none(types.intp), generate


@intrinsic
def copy_wide(_: Any, source: Any, to: Any) -> Any:
    """Copy WIDE bytes; return how many of them come before the first byte 255, WIDE if there is none."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        b = builder
        kind = ir.VectorType(I8, WIDE).as_pointer()
        value = b.load(b.inttoptr(arguments[0], kind), align=1)
        b.store(value, b.inttoptr(arguments[1], kind), align=1)
        found = b.bitcast(b.icmp_signed("==", value, vector(I8, -1, WIDE)), ir.IntType(WIDE))
        found = b.or_(b.zext(found, I64), ir.Constant(I64, 1 << WIDE))
        return b.cttz(found, ir.Constant(ir.IntType(1), 1))

    return types.uint64(types.uint64, types.uint64), generate


# Entropy-coded bytes, in which 255 is followed by a stuffed 0 or by a marker. As the last byte that is looked at may be
# 255, there must be one more.
def _at_once(context: Any) -> int:
    return 64 if has_avx512(context) else WIDE


@intrinsic
def bytes_at_once(_: Any) -> Any:
    """How many bytes the next two functions look at."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return ir.Constant(I64, _at_once(context))

    return types.uint64(), generate


def _mask(builder: Any, found: Any) -> Any:
    """A bit for each lane, in 64 bits."""
    return builder.zext(builder.bitcast(found, ir.IntType(found.type.count)), I64)


def _loaded(builder: Any, context: Any, address: Any, behind: int = 0) -> Any:
    kind = ir.VectorType(I8, _at_once(context))
    place = builder.inttoptr(builder.add(address, ir.Constant(I64, behind)), kind.as_pointer())
    return builder.load(place, align=1)


def _markers(builder: Any, context: Any, value: Any, address: Any) -> Any:
    """The lanes in which a marker begins."""
    b, lanes = builder, value.type.count
    following = _loaded(b, context, address, 1)
    full = b.icmp_signed("==", value, vector(I8, -1, lanes))
    return _mask(b, b.and_(full, b.icmp_signed("!=", following, vector(I8, 0, lanes))))


def _first(builder: Any, mask: Any, lanes: int) -> Any:
    """The first lane of a mask; their number if there is none."""
    b = builder
    mask = mask if lanes == 64 else b.or_(mask, ir.Constant(I64, 1 << lanes))
    return b.cttz(mask, ir.Constant(ir.IntType(1), 0))


@intrinsic
def before_marker(_: Any, source: Any) -> Any:
    """How many of `bytes_at_once` come before the first marker: all, if there is none."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        value = _loaded(builder, context, arguments[0])
        return _first(builder, _markers(builder, context, value, arguments[0]), value.type.count)

    return types.uint64(types.uint64), generate


@intrinsic
def copy_unstuffed(_: Any, source: Any, to: Any) -> Any:
    """Copy what of `bytes_at_once` comes before the first marker, or less, without stuffed bytes.

    Returns how many bytes were read and written. `bytes_at_once` are stored; those behind the written ones do not
    count. A first byte 0 behind a byte 255 is stuffed, whether that was read or not.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        b = builder
        source, to = arguments
        value = _loaded(b, context, source)
        lanes = value.type.count
        target = b.inttoptr(to, value.type.as_pointer())
        if lanes == 64:
            none = vector(I8, 0, lanes)
            before = _loaded(b, context, source, -1)
            stuffed = b.and_(b.icmp_signed("==", before, vector(I8, -1, lanes)), b.icmp_signed("==", value, none))
            markers = _markers(b, context, value, source)
            read = _first(b, markers, lanes)
            below = b.and_(b.sub(markers, ir.Constant(I64, 1)), b.not_(markers))  # the lanes before the first one
            kept = b.and_(below, b.not_(_mask(b, stuffed)))
            lane_bits = ir.VectorType(ir.IntType(1), lanes)
            function = ir.FunctionType(value.type, [value.type, value.type, lane_bits])
            compress = cgutils.get_or_insert_function(b.module, function, "llvm.x86.avx512.mask.compress.v64i8")
            b.store(b.call(compress, [value, none, b.bitcast(kept, lane_bits)]), target, align=1)
            written = b.ctpop(kept)
        else:  # up to the first 255, and this one if a 0 follows
            b.store(value, target, align=1)
            found = _first(b, _mask(b, b.icmp_signed("==", value, vector(I8, -1, lanes))), lanes)
            behind = b.load(b.inttoptr(b.add(b.add(source, found), ir.Constant(I64, 1)), I8.as_pointer()))
            whole = b.icmp_unsigned("==", found, ir.Constant(I64, lanes))
            stuffed = b.and_(b.not_(whole), b.icmp_unsigned("==", behind, ir.Constant(I8, 0)))
            written = b.add(found, b.zext(stuffed, I64))
            read = b.add(written, b.zext(stuffed, I64))
        return context.make_tuple(b, signature.return_type, [read, written])

    tuples: Any = types.UniTuple
    return tuples(types.uint64, 2)(types.uint64, types.uint64), generate
