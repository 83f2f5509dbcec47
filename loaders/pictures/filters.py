"""The filters of a PNG's rows, undone in place (PNG, 3rd edition, 9.2).

Rows are undone four, eight or sixteen at a time, each a pixel behind the one above it, whose result it takes from a
register:

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

_SIXTEEN, _EIGHT, _FOUR = 16, 8, 4  # rows that are undone at once
_LANES = 4  # of a row: the bytes of a pixel, and what follows them; a pixel of one byte has one


def _call(builder: Any, name: str, a: Any, b: Any) -> Any:
    pixels = a.type
    kind = ir.FunctionType(pixels, [pixels, pixels])
    return builder.call(cgutils.get_or_insert_function(builder.module, kind, f"llvm.{name}.v{pixels.count}i8"), [a, b])


def _guess(b: Any, left: Any, above: Any, corner: Any, averaged: Any, average: Any) -> Any:
    """What the Paeth filter expects, found in 8 bits; where it is `averaged`, the average: there the corner is 0.

    left + above - corner is nearest to the smaller of both where it lies below them, or nearly, and to the larger one
    where it lies above them, as it does where the corner is 0; otherwise to the corner.
    """
    low, high = _call(b, "umin", left, above), _call(b, "umax", left, above)
    over, under = _call(b, "usub.sat", high, corner), _call(b, "usub.sat", corner, low)
    guess = b.select(b.icmp_unsigned("<=", _call(b, "uadd.sat", over, over), under), low, corner)
    larger = b.select(averaged, average, high)
    return b.select(b.icmp_unsigned("<=", _call(b, "uadd.sat", under, under), over), larger, guess)


def _average(b: Any, left: Any, above: Any) -> Any:
    count = left.type.count
    wide = ir.VectorType(I16, count)
    total = b.add(b.zext(left, wide), b.zext(above, wide))
    return b.trunc(b.lshr(total, vector(I16, 1, count)), left.type)


def _undo_pixels(rows: int, lanes: int) -> Any:
    """A function that undoes so many rows: its arguments are (address, above, pitch, step, width, masks).

    `address` is that of the first row's pixels, `above` of those above it, and `width` their number, at least that of
    the rows. `masks` is the address of bytes [5, rows, lanes]: where neighbours at the left, above, and at the corner
    count, where the average of the first two does instead, and the bytes of a pixel. What is behind a pixel in its
    lanes is written as it is, behind the last row, too; twice as many bytes as a pixel's lanes are read there.

    Pixels of one byte have one lane: a load of what was stored just before, but not by one store, waits for memory.
    """
    count_all = rows * lanes
    word_type = ir.IntType(8 * lanes)
    pixels_type, words_type = ir.VectorType(I8, count_all), ir.VectorType(word_type, rows)
    row_of = ir.Constant(pixels_type, [lane // lanes for lane in range(count_all)])

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        b = builder
        address, above, pitch, step, width, masks = arguments
        by_left, by_above, by_corner, averaged, used = (
            b.load(b.inttoptr(b.add(masks, ir.Constant(I64, count_all * i)), pixels_type.as_pointer()), align=1)
            for i in range(5)
        )
        averaged = b.icmp_signed("!=", averaged, vector(I8, 0, count_all))
        behind = b.sub(pitch, step)  # from a pixel to that of the next row

        def places(begin: Any) -> list[Any]:
            found = [begin]
            for _ in range(rows - 1):
                found.append(b.add(found[-1], behind))
            return found

        def load_word(place: Any) -> Any:
            return b.load(b.inttoptr(place, word_type.as_pointer()), align=1)

        def pixels(begin: Any) -> Any:
            words = ir.Constant(words_type, ir.Undefined)
            for row, place in enumerate(places(begin)):
                words = b.insert_element(words, load_word(place), ir.Constant(I32, row))
            return b.bitcast(words, pixels_type)

        def lowered(place: Any, above: Any) -> Any:
            """The pixel at an address, and below it these of all rows but the last."""
            none = ir.Constant(words_type, ir.Undefined)
            first = b.insert_element(none, load_word(place), ir.Constant(I32, rows - 1))
            words = shuffle(b, first, b.bitcast(above, words_type), list(range(rows - 1, 2 * rows - 1)))
            return b.bitcast(words, pixels_type)

        def rows_where(order: str, number: Any) -> Any:
            """A mask of the rows whose number compares so with another one."""
            first = b.insert_element(ir.Constant(pixels_type, ir.Undefined), b.trunc(number, I8), ir.Constant(I32, 0))
            numbers = shuffle(b, first, first, [0] * count_all)
            return b.sext(b.icmp_signed(order, row_of, numbers), pixels_type)

        def undo(state: list[Any], begin: Any, end: Any, begins: bool, ends: bool) -> list[Any]:
            """Go from a pixel of the first row to another one: with those below that have one, if not all have."""
            before, loop, after = b.block, b.append_basic_block(), b.append_basic_block()
            b.cbranch(b.icmp_signed("<", begin, end), loop, after)
            b.position_at_end(loop)
            phis = [b.phi(value.type) for value in (begin, *state)]
            i, at, lefts, corners, pixel = phis
            next_pixel = pixels(b.add(at, step))  # loaded before bytes beside it are stored
            aboves = lowered(b.add(above, b.sub(at, address)), lefts)
            beside, across, written = lefts, corners, used
            if begins:  # nothing is at the left of a row's first pixel
                beside, across = (b.and_(each, rows_where("<", i)) for each in (lefts, corners))
                written = b.and_(written, rows_where("<=", i))
            if ends:
                written = b.and_(written, rows_where(">", b.sub(i, width)))
            neighbours = b.and_(beside, by_left), b.and_(aboves, by_above), b.and_(across, by_corner)
            guess = _guess(b, *neighbours, averaged, _average(b, beside, aboves))
            if lanes > 1 or begins or ends:
                guess = b.and_(guess, written)
            undone = b.add(pixel, guess)
            words = b.bitcast(undone, words_type)
            for row, place in enumerate(places(at)):
                b.store(
                    b.extract_element(words, ir.Constant(I32, row)), b.inttoptr(place, word_type.as_pointer()), align=1
                )
            next_i = b.add(i, ir.Constant(I64, 1))
            following = [next_i, b.add(at, step), undone, aboves, next_pixel]
            b.cbranch(b.icmp_signed("<", next_i, end), loop, after)
            b.position_at_end(after)
            results = [b.phi(value.type) for value in following]
            for start, value, *both in zip((begin, *state), following, phis, results, strict=True):
                for phi in both:
                    phi.add_incoming(start, before)
                    phi.add_incoming(value, loop)
            return results[1:]

        none, count = vector(I8, 0, count_all), ir.Constant(I64, rows)
        state = undo([address, none, none, pixels(address)], ir.Constant(I64, 0), count, True, False)
        state = undo(state, count, width, False, False)
        undo(state, width, b.add(width, ir.Constant(I64, rows - 1)), False, True)
        return context.get_dummy_value()

    def undo_pixels(_: Any, address: Any, above: Any, pitch: Any, step: Any, width: Any, masks: Any) -> Any:
        return types.none(*[types.int64] * 6), generate

    return intrinsic(undo_pixels)


_undo_eight, _undo_four = _undo_pixels(_EIGHT, _LANES), _undo_pixels(_FOUR, _LANES)
_undo_sixteen_bytes, _undo_eight_bytes, _undo_four_bytes = (_undo_pixels(rows, 1) for rows in (_SIXTEEN, _EIGHT, _FOUR))


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
    masks = np.empty(5 * _LANES * _EIGHT, np.uint8)
    width = length // step
    while y < height:
        rows = _rows_at_once(step, width, height - y, height)
        if rows and _are_serial(address + y * pitch, pitch, min(rows, height - y), y > 0):
            begin = min(y, height - rows)  # rows that are undone already stay as they are
            row = address + begin * pitch + 1
            known = int64(masks.ctypes.data)
            _set_masks(masks, row, pitch, rows, y - begin, step, begin > 0)
            above = row - pitch if begin else row  # does not count there
            if step == 1 and rows == _SIXTEEN:
                _undo_sixteen_bytes(row, above, pitch, step, width, known)
            elif step == 1 and rows == _EIGHT:
                _undo_eight_bytes(row, above, pitch, step, width, known)
            elif step == 1:
                _undo_four_bytes(row, above, pitch, step, width, known)
            elif rows == _EIGHT:
                _undo_eight(row, above, pitch, step, width, known)
            else:
                _undo_four(row, above, pitch, step, width, known)
            y = begin + rows
        else:
            row = address + y * pitch + 1
            _undo_part(row, 0, length, pitch, step, int64(byte_at(row - 1)), y > 0)
            y += 1
    return True


@inlined
def _rows_at_once(step: int, width: int, left: int, height: int) -> int:
    """How many of `height` rows are undone at once, of which more than half are left; 0 where it is done one by one."""
    for rows in (_SIXTEEN, _EIGHT, _FOUR):
        fits = width >= rows if step == 1 else width >= 2 * rows and rows < _SIXTEEN and step <= _LANES
        if fits and 2 * left > rows and height >= rows:
            return rows
    return 0


@compiled
def _are_serial(row: int, pitch: int, rows: int, below: bool) -> bool:
    """Whether some rows are better undone at once: one of them has a filter that takes pixels one after the other.

    The first one must not be that of the average if there is no row above it.
    """
    serial = False
    for i in range(rows):
        kind = int64(byte_at(row + i * pitch))
        serial = serial or kind in (SUB, AVERAGE, PAETH)
    return serial and (below or byte_at(row) != uint64(AVERAGE))


@compiled
def _set_masks(masks: Any, row: int, pitch: int, rows: int, done: int, step: int, below: bool) -> None:
    """Fill the masks of rows that begin at an address: see `_undo_pixels`.

    The first ones, so many as are `done`, stay as they are. `below`: whether there is a row above them.
    """
    lanes = 1 if step == 1 else _LANES
    for i in range(rows):
        kind, under = int64(byte_at(row + i * pitch - 1)) if i >= done else NONE, below or i > 0
        for lane in range(lanes):
            at, apart = i * lanes + lane, rows * lanes
            masks[at] = 255 * (kind == SUB or kind >= AVERAGE)
            masks[apart + at] = 255 * (kind >= UP and under)
            masks[2 * apart + at] = 255 * (kind == PAETH and under)
            masks[3 * apart + at] = 255 * (kind == AVERAGE)
            masks[4 * apart + at] = 255 * (lane < step)


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
