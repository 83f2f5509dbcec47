"""The filters of a PNG's rows, undone in place (PNG, 3rd edition, 9.2).

Rows are undone eight or four at a time, each a pixel behind the one above it, whose result it takes from a register:

    row 0      x
    row 1    x - 1
    row 2  x - 2

All filters are that of Paeth with some neighbours taken to be 0, but for the average.
"""

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types

from fastimg.loaders.jpeg.decoding.memory import byte_at, bytes_at
from fastimg.loaders.jpeg.decoding.vectors import I8, I16, I32, I64, cgutils, intrinsic, shuffle, vector
from fastimg.loaders.runtime.compiled import compiled, inlined, int64, uint64

NONE, SUB, UP, AVERAGE, PAETH = range(5)

_EIGHT, _FOUR = 8, 4  # rows that are undone at once
_LANES = 4  # of a row: the bytes of a pixel, and what follows them
_MOST = _EIGHT * _LANES


def _call(builder: Any, name: str, a: Any, b: Any) -> Any:
    pixels = a.type
    kind = ir.FunctionType(pixels, [pixels, pixels])
    return builder.call(cgutils.get_or_insert_function(builder.module, kind, f"llvm.{name}.v{pixels.count}i8"), [a, b])


def _load_word(builder: Any, place: Any) -> Any:
    return builder.load(builder.inttoptr(place, I32.as_pointer()), align=1)


def _paeth(b: Any, left: Any, above: Any, corner: Any) -> Any:
    """What the Paeth filter expects, found in 8 bits.

    left + above - corner is nearest to the smaller of both where it lies below them, or nearly, and to the larger one
    where it lies above them; otherwise to the corner.
    """
    low, high = _call(b, "umin", left, above), _call(b, "umax", left, above)
    over, under = _call(b, "usub.sat", high, corner), _call(b, "usub.sat", corner, low)
    guess = b.select(b.icmp_unsigned("<=", _call(b, "uadd.sat", over, over), under), low, corner)
    return b.select(b.icmp_unsigned("<=", _call(b, "uadd.sat", under, under), over), high, guess)


def _average(b: Any, left: Any, above: Any) -> Any:
    count = left.type.count
    wide = ir.VectorType(I16, count)
    total = b.add(b.zext(left, wide), b.zext(above, wide))
    return b.trunc(b.lshr(total, vector(I16, 1, count)), left.type)


def _undo_pixels(rows: int) -> Any:
    """A function that undoes pixels of so many rows: its arguments are (address, above, pitch, step, count, masks).

    It undoes `count` pixels of each row, from `address` on in the first, a pixel earlier in each one below. `above` is
    the address of the pixel above the first one. Their neighbours at the left are undone already. `masks` is the
    address of uint8 [5, 4 * rows], for each lane: where neighbours at the left, above, and at the corner count, where
    their average does instead, and the bytes of a pixel. Bytes behind a pixel are written as they are.
    """
    lanes = rows * _LANES
    pixels_type, words_type = ir.VectorType(I8, lanes), ir.VectorType(I32, rows)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        b = builder
        address, above, pitch, step, count, masks = arguments
        by_left, by_above, by_corner, averaged, used = (
            b.load(b.inttoptr(b.add(masks, ir.Constant(I64, lanes * i)), pixels_type.as_pointer()), align=1)
            for i in range(5)
        )
        averaged = b.icmp_signed("!=", averaged, vector(I8, 0, lanes))
        behind = b.sub(pitch, step)  # from a pixel to that of the next row

        def places(begin: Any) -> list[Any]:
            found = [begin]
            for _ in range(rows - 1):
                found.append(b.add(found[-1], behind))
            return found

        def pixels(begin: Any) -> Any:
            words = ir.Constant(words_type, ir.Undefined)
            for row, place in enumerate(places(begin)):
                words = b.insert_element(words, _load_word(b, place), ir.Constant(I32, row))
            return b.bitcast(words, pixels_type)

        def lowered(place: Any, above: Any) -> Any:
            """The pixel at an address, and below it these of all rows but the last."""
            first = b.insert_element(ir.Constant(words_type, ir.Undefined), _load_word(b, place), ir.Constant(I32, 0))
            words = shuffle(b, first, b.bitcast(above, words_type), [0, *range(rows, 2 * rows - 1)])
            return b.bitcast(words, pixels_type)

        left = pixels(b.sub(address, step))
        corner = lowered(b.sub(above, step), pixels(b.sub(b.sub(address, step), step)))
        following = pixels(address)
        before, loop, after = b.block, b.append_basic_block(), b.append_basic_block()
        b.cbranch(b.icmp_signed(">", count, ir.Constant(I64, 0)), loop, after)
        b.position_at_end(loop)
        at, i = b.phi(I64), b.phi(I64)
        lefts, corners, pixel = b.phi(pixels_type), b.phi(pixels_type), b.phi(pixels_type)
        next_pixel = pixels(b.add(b.add(address, at), step))  # loaded before bytes beside it are stored
        aboves = lowered(b.add(above, at), lefts)
        guess = _paeth(b, b.and_(lefts, by_left), b.and_(aboves, by_above), b.and_(corners, by_corner))
        guess = b.select(averaged, _average(b, lefts, aboves), guess)
        undone = b.add(pixel, b.and_(guess, used))
        words = b.bitcast(undone, words_type)
        for row, place in enumerate(places(b.add(address, at))):
            word = b.extract_element(words, ir.Constant(I32, row))
            b.store(word, b.inttoptr(place, I32.as_pointer()), align=1)
        next_at, next_i = b.add(at, step), b.add(i, ir.Constant(I64, 1))
        for phi, start, value in (
            (at, ir.Constant(I64, 0), next_at),
            (i, ir.Constant(I64, 0), next_i),
            (lefts, left, undone),
            (corners, corner, aboves),
            (pixel, following, next_pixel),
        ):
            phi.add_incoming(start, before)
            phi.add_incoming(value, loop)
        b.cbranch(b.icmp_signed("<", next_i, count), loop, after)
        b.position_at_end(after)
        return context.get_dummy_value()

    def undo(_: Any, address: Any, above: Any, pitch: Any, step: Any, count: Any, masks: Any) -> Any:
        return types.none(*[types.int64] * 6), generate

    return intrinsic(undo)


_undo_eight, _undo_four = _undo_pixels(_EIGHT), _undo_pixels(_FOUR)


@compiled
def undo_filters(address: int, height: int, length: int, step: int, first: int) -> bool:
    """Undo the filters of `height` rows, each a filter's number and `length` bytes; a pixel takes `step` of them.

    The rows before `first` are only undone as far as later ones refer to them. Up to 8 bytes behind the last row are
    read, and may be written as they are. False for a filter that there is not.
    """
    pitch = length + 1
    for y in range(height):
        if byte_at(address + y * pitch) > uint64(PAETH):
            return False
    y = first
    while y > 0 and byte_at(address + y * pitch) > uint64(SUB):
        y -= 1
    masks = np.zeros(5 * _MOST, np.uint8)
    width = length // step
    if y == 0:
        _undo_part(address + 1, 0, length, pitch, step, int64(byte_at(address)), False)
        y = 1
    while y < height:
        row = address + y * pitch + 1
        rows = _EIGHT if width >= 4 * _EIGHT and y + _EIGHT <= height else _FOUR
        if step <= _LANES and width >= 4 * rows and y + rows <= height and _are_serial(row - 1, pitch, rows):
            for i in range(rows):
                kind = int64(byte_at(row + i * pitch - 1))
                _set_masks(masks, i, rows, kind, step)
                _undo_part(row + i * pitch, 0, (rows - i) * step, pitch, step, kind, True)
            begin, known = row + rows * step, int64(masks.ctypes.data)
            if rows == _EIGHT:
                _undo_eight(begin, begin - pitch, pitch, step, width - rows, known)
            else:
                _undo_four(begin, begin - pitch, pitch, step, width - rows, known)
            for i in range(1, rows):
                kind = int64(byte_at(row + i * pitch - 1))
                _undo_part(row + i * pitch, length - i * step, length, pitch, step, kind, True)
            y += rows
        else:
            _undo_part(row, 0, length, pitch, step, int64(byte_at(row - 1)), True)
            y += 1
    return True


@compiled
def _are_serial(row: int, pitch: int, rows: int) -> bool:
    """Whether one of some rows has a filter that takes pixels one after the other."""
    serial = False
    for i in range(rows):
        kind = int64(byte_at(row + i * pitch))
        serial = serial or kind in (SUB, AVERAGE, PAETH)
    return serial


@compiled
def _set_masks(masks: Any, row: int, rows: int, kind: int, step: int) -> None:
    lanes = _LANES * rows
    for i in range(_LANES):
        lane = _LANES * row + i
        masks[lane] = 0xFF * (kind == SUB or kind >= AVERAGE)
        masks[lanes + lane] = 0xFF * (kind >= UP)
        masks[2 * lanes + lane] = 0xFF * (kind == PAETH)
        masks[3 * lanes + lane] = 0xFF * (kind == AVERAGE)
        masks[4 * lanes + lane] = 0xFF * (i < step)


@compiled
def _undo_part(row: int, begin: int, end: int, pitch: int, step: int, kind: int, below: bool) -> None:
    """Undo the filter of bytes [begin, end) of a row; `below`: whether there is one above it."""
    if kind == NONE or (kind == UP and not below):
        return
    data = bytes_at(row, end)
    if kind == UP:
        above = bytes_at(row - pitch, end)
        for x in range(begin, end):
            data[x] += above[x]
        return
    first = max(begin, min(step, end))  # whose neighbours at the left are in the row
    if not below:
        for x in range(first, end):
            data[x] += data[x - step] >> 1 if kind == AVERAGE else data[x - step]
        return
    if kind == SUB:
        for x in range(first, end):
            data[x] += data[x - step]
        return
    above = bytes_at(row - pitch, end)
    if kind == AVERAGE:
        for x in range(begin, first):
            data[x] += above[x] >> 1
        for x in range(first, end):
            data[x] += (int64(data[x - step]) + int64(above[x])) >> 1
        return
    for x in range(begin, first):
        data[x] += above[x]
    for x in range(first, end):
        data[x] += _expected(int64(data[x - step]), int64(above[x]), int64(above[x - step]))


@inlined
def _expected(left: int, above: int, corner: int) -> int:
    """What the Paeth filter expects: see `_paeth`."""
    low, high = min(left, above), max(left, above)
    far = 3 * corner - left - above
    guess = low if high <= far else corner
    return high if far <= low else guess


@compiled
def filter_first(rows: Any, pixels: Any, first: int, length: int, step: int) -> None:
    """Give a row a filter that needs none above it: its left neighbours, or none, by the smaller sum of differences.

    `rows` and `pixels` are rows with their filters' numbers, filtered and as they are.
    """
    begin = first * (length + 1) + 1
    plain, by_left = 0, 0
    for x in range(begin, begin + length):
        left = int64(pixels[x - step]) if x >= begin + step else 0
        difference = (int64(pixels[x]) - left) & 255
        by_left += min(difference, 256 - difference)
        plain += min(int64(pixels[x]), 256 - int64(pixels[x]))
    kind = SUB if by_left < plain else NONE
    rows[begin - 1] = kind
    for x in range(begin, begin + length):
        left = int64(pixels[x - step]) if kind == SUB and x >= begin + step else 0
        rows[x] = (int64(pixels[x]) - left) & 255
