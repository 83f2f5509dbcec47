"""The checksums of PNG: CRC-32 of a chunk (PNG, 3rd edition, 5.5), and Adler-32 of all that is inflated (RFC 1950)."""

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types

from fastimg.loaders.jpeg.decoding.memory import byte_at, word_at
from fastimg.loaders.jpeg.decoding.vectors import I8, I16, I32, I64, cgutils, has_avx2, intrinsic, products, vector
from fastimg.loaders.runtime.compiled import compiled, inlined, int64, uint64

_POLYNOMIAL = 0xEDB88320
_STEP = 16  # bytes at a time
_FOLDED = 256  # bytes from which on folding pays
_BASE = 65521
_PART = 16  # bytes at a time
_MOST_PARTS = 1024  # whose weighted sums fit into 31 bits


def _tables() -> Any:
    """The remainders of a byte that is followed by 0 to 15 others, [16, 256]."""
    first = np.arange(256, dtype=np.uint64)
    for _ in range(8):
        first = np.where(first & 1, first >> 1 ^ _POLYNOMIAL, first >> 1).astype(np.uint64)
    tables = [first]
    for _ in range(_STEP - 1):
        tables.append(first[tables[-1] & 255] ^ tables[-1] >> 8)
    return np.array(tables).astype(np.uint32)


_TABLES = _tables()


def _power(exponent: int) -> int:
    """x^exponent modulo CRC-32's polynomial, the highest power in the lowest of 33 bits."""
    value = 1 << 31
    for _ in range(exponent):
        value = value >> 1 ^ (_POLYNOMIAL if value & 1 else 0)
    return value << 1


def _has_products(context: Any) -> bool:
    _, _, features = context.codegen().magic_tuple()
    return "+pclmul" in features.split(",")


@intrinsic
def _multiplies(_: Any) -> Any:
    """Whether the processor multiplies polynomials, known when this is compiled."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return ir.Constant(ir.IntType(1), _has_products(context))

    return types.boolean(), generate


@intrinsic
def _folded(_: Any, address: Any, blocks: Any) -> Any:
    """The 16 bytes that have the CRC-32 of `blocks` times 64 bytes at an address, if one begins with 0.

    The first 8 of them and the last 8, as uint64. Four parts of 16 bytes are moved by 64 bytes at a time: a part times
    x^512, modulo the polynomial, is added to the bytes there (V. Gopal and others, Fast CRC Computation for Generic
    Polynomials Using PCLMULQDQ Instruction, Intel, 2009).
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        b = builder
        address, blocks = arguments
        pair = ir.VectorType(I64, 2)
        if not _has_products(context):
            none = ir.Constant(I64, 0)
            return context.make_tuple(builder, signature.return_type, [none, none])
        kind = ir.FunctionType(pair, [pair, pair, I8])
        multiply = cgutils.get_or_insert_function(builder.module, kind, "llvm.x86.pclmulqdq")

        def load(place: Any) -> Any:
            return b.load(b.inttoptr(place, pair.as_pointer()), align=1)

        def moved(part: Any, bits: int) -> Any:
            by = ir.Constant(pair, [_power(bits + 32), _power(bits - 32)])
            low, high = (b.call(multiply, [part, by, ir.Constant(I8, both)]) for both in (0x00, 0x11))
            return b.xor(low, high)

        def next_to(place: Any, number: int) -> Any:
            return b.add(place, ir.Constant(I64, 16 * number))

        second = next_to(address, 4)
        parts = [load(next_to(address, number)) for number in range(4)]
        parts[0] = b.xor(parts[0], ir.Constant(pair, [0xFFFFFFFF, 0]))
        before, loop, after = b.block, b.append_basic_block(), b.append_basic_block()
        one = ir.Constant(I64, 1)
        b.cbranch(b.icmp_signed(">", blocks, one), loop, after)
        b.position_at_end(loop)
        done, at = b.phi(I64), b.phi(I64)
        now = [b.phi(pair) for _ in parts]
        following = [b.xor(moved(part, 512), load(next_to(at, number))) for number, part in enumerate(now)]
        next_done, next_at = b.add(done, one), b.add(at, ir.Constant(I64, 64))
        b.cbranch(b.icmp_signed("<", next_done, blocks), loop, after)
        for phi, first, later in (
            (done, one, next_done),
            (at, second, next_at),
            *zip(now, parts, following, strict=True),
        ):
            phi.add_incoming(first, before)
            phi.add_incoming(later, loop)
        b.position_at_end(after)
        last = [b.phi(pair) for _ in parts]
        for phi, first, later in zip(last, parts, following, strict=True):
            phi.add_incoming(first, before)
            phi.add_incoming(later, loop)
        total = last[0]
        for part in last[1:]:
            total = b.xor(moved(total, 128), part)
        words = [b.extract_element(total, ir.Constant(ir.IntType(32), number)) for number in range(2)]
        return context.make_tuple(builder, signature.return_type, words)

    pair: Any = types.UniTuple(types.uint64, 2)  # type: ignore[no-untyped-call]
    return pair(types.int64, types.int64), generate


@compiled
def crc32(address: int, size: int) -> int:
    """The CRC-32 of the bytes at an address."""
    value = uint64(0xFFFFFFFF)
    at, end = address, address + size
    low = uint64(255)
    if _multiplies() and size >= _FOLDED:
        one, two = _folded(at, size // 64)
        value = _of_words(one, two)
        at += size // 64 * 64
    while at + _STEP <= end:
        value = _of_words(word_at(at) ^ value, word_at(at + 8))
        at += _STEP
    while at < end:
        value = uint64(_TABLES[0, (value ^ byte_at(at)) & low]) ^ value >> uint64(8)
        at += 1
    return int(value ^ uint64(0xFFFFFFFF))


@inlined
def _of_words(one: Any, two: Any) -> Any:
    """The remainder of 16 bytes, whose first ones have the remainder before added."""
    low, value = uint64(255), uint64(0)
    for i in range(8):
        value ^= uint64(_TABLES[15 - i, one >> uint64(8 * i) & low])
        value ^= uint64(_TABLES[7 - i, two >> uint64(8 * i) & low])
    return value


@intrinsic
def _sums(_: Any, address: Any, parts: Any) -> Any:
    """Sums of `parts` times 16 bytes at an address, at most _MOST_PARTS: of the bytes, and of each with those before.

    The latter is the sum of the sums that there are behind each byte. Both are int64.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        b = builder
        address, parts = arguments
        avx2 = has_avx2(context)
        wide, sums = ir.VectorType(I16, _PART), ir.VectorType(I32, _PART // 2)
        ones = vector(I16, 1, _PART)
        weights = ir.Constant(wide, list(range(_PART, 0, -1)))
        none = vector(I32, 0, _PART // 2)
        before, loop, after = b.block, b.append_basic_block(), b.append_basic_block()
        b.cbranch(b.icmp_signed(">", parts, ir.Constant(I64, 0)), loop, after)
        b.position_at_end(loop)
        done, at = b.phi(I64), b.phi(I64)
        total, earlier, weighted = (b.phi(sums) for _ in range(3))
        loaded = b.load(b.inttoptr(at, ir.VectorType(I8, _PART).as_pointer()), align=1)
        values = b.zext(loaded, wide)
        following = [
            b.add(done, ir.Constant(I64, 1)),
            b.add(at, ir.Constant(I64, _PART)),
            b.add(total, products(b, avx2, values, ones)),
            b.add(earlier, total),
            b.add(weighted, products(b, avx2, values, weights)),
        ]
        b.cbranch(b.icmp_signed("<", following[0], parts), loop, after)
        b.position_at_end(after)
        results = [b.phi(sums) for _ in range(3)]
        for phi, first, later in zip(
            (done, at, total, earlier, weighted, *results),
            (ir.Constant(I64, 0), address, none, none, none, none, none, none),
            (*following, *following[2:]),
            strict=True,
        ):
            phi.add_incoming(first, before)
            phi.add_incoming(later, loop)

        def added(lanes: Any) -> Any:
            value = ir.Constant(I64, 0)
            for lane in range(_PART // 2):
                value = b.add(value, b.zext(b.extract_element(lanes, ir.Constant(I32, lane)), I64))
            return value

        total, earlier, weighted = (added(lanes) for lanes in results)
        behind = b.add(b.mul(earlier, ir.Constant(I64, _PART)), weighted)
        return context.make_tuple(builder, signature.return_type, [total, behind])

    pair: Any = types.UniTuple(types.int64, 2)  # type: ignore[no-untyped-call]
    return pair(types.int64, types.int64), generate


@compiled
def adler32(address: int, size: int) -> int:
    """The Adler-32 of the bytes at an address."""
    first, second, at, end = 1, 0, address, address + size
    while at + _PART <= end:
        parts = min((end - at) // _PART, _MOST_PARTS)
        total, behind = _sums(at, parts)
        second = (second + _PART * parts * first + behind) % _BASE
        first = (first + total) % _BASE
        at += _PART * parts
    while at < end:
        first += int64(byte_at(at))
        second += first
        at += 1
    return second % _BASE << 16 | first % _BASE
