"""Levels of an image in cache: look-up tables and what they need, colour and sharpness, compiled."""

from typing import Any

from .compiled import compiled, float32, float64, int32, position, uint8

# The values of ops.Op.
BRIGHTNESS, COLOR, CONTRAST, SHARPNESS, POSTERIZE, SOLARIZE, AUTOCONTRAST, EQUALIZE, INVERT, ADD, HUE = range(1, 12)


# Rows are parts of flat arrays here: an array made for each of them counts references, which takes as long as pixels.


@compiled
def color(current: Any, factor: float, line: Any, changed: Any) -> None:
    """`ops.Op.COLOR`. `line` int16 [W * 3] holds the grey levels of a row."""
    height, width, _ = current.shape
    taken, put = current.ravel(), changed.ravel()
    size = 3 * width
    for y in range(height):
        row = position(y * size)
        for x in range(width):
            pixel = row + position(3 * x)
            gray = _luma(taken[pixel], taken[pixel + position(1)], taken[pixel + position(2)])
            line[3 * x] = line[3 * x + 1] = line[3 * x + 2] = gray
        for entry in range(size):
            put[row + position(entry)] = _blend(line[entry], taken[row + position(entry)], factor)


@compiled
def sharpen(current: Any, factor: float, line: Any, changed: Any) -> None:
    """`ops.Op.SHARPNESS`. The outermost pixels are unchanged. `line` int16 [W * 3] holds sums over three rows."""
    height, width, _ = current.shape
    taken, put = current.ravel(), changed.ravel()
    size = 3 * width
    for y in range(height):
        row = position(y * size)
        if y == 0 or y == height - 1 or width < 3:
            for entry in range(size):
                put[row + position(entry)] = taken[row + position(entry)]
            continue
        above, below = row - position(size), row + position(size)
        for entry in range(size):
            at = position(entry)
            line[at] = int32(taken[above + at]) + int32(taken[row + at]) + int32(taken[below + at])
        for entry in range(3):
            put[row + position(entry)] = taken[row + position(entry)]
            put[below - position(1 + entry)] = taken[below - position(1 + entry)]
        for entry in range(3, size - 3):
            at = position(entry)
            level = taken[row + at]
            sides = int32(line[at - position(3)]) + int32(line[at]) + int32(line[at + position(3)])
            put[row + at] = _blend(_smooth(sides + 4 * int32(level)), level, factor)


@compiled
def _smooth(total: int) -> Any:
    """(2 * total + 13) // 26 for totals up to 13 * 255."""
    return int32(int32(int32(2 * total + 13) * 20165) >> 19)


@compiled
def mean_luma(current: Any, lut: Any, mapped: bool) -> Any:
    """`ops.mean_level` of an image [H, W, 3] after the look-up tables lut [768]."""
    height, width, _ = current.shape
    taken = current.ravel()
    total = 0
    for y in range(height):
        row = position(3 * y * width)
        line = int32(0)
        if mapped:
            for x in range(width):
                pixel = row + position(3 * x)
                red, green, blue = taken[pixel], taken[pixel + position(1)], taken[pixel + position(2)]
                line += _luma(lut[red], lut[256 + green], lut[512 + blue])
        else:
            for x in range(width):
                pixel = row + position(3 * x)
                line += _luma(taken[pixel], taken[pixel + position(1)], taken[pixel + position(2)])
        total += line
    pixels = height * width
    return (2 * total + pixels) // (2 * pixels)


@compiled
def find_ends(current: Any, line: Any, counts: Any) -> None:
    """Count the least and the greatest level of each channel, in counts[0] [768], and nothing between them.

    `line` int16 [W * 6] holds the two of each place in a row.
    """
    height, width, _ = current.shape
    taken = current.ravel()
    size = 3 * width
    least, most = line[:size], line[size : 2 * size]
    for entry in range(size):
        least[entry] = most[entry] = taken[entry]
    for y in range(1, height):
        row = position(y * size)
        for entry in range(size):
            level = taken[row + position(entry)]
            least[entry] = min(least[entry], level)
            most[entry] = max(most[entry], level)
    counts[0] = 0
    for entry in range(size):
        channel = 256 * (entry % 3)
        counts[0, channel + least[entry]] = counts[0, channel + most[entry]] = 1


@compiled
def count(current: Any, counts: Any) -> None:
    """Histograms of the three channels, in counts[0] [768]. Two sets avoid stalls, as neighbours are often equal."""
    height, width, _ = current.shape
    counts[:] = 0
    for y in range(height):
        for x in range(width):
            chosen = counts[x & 1]
            chosen[current[y, x, 0]] += 1
            chosen[256 + current[y, x, 1]] += 1
            chosen[512 + current[y, x, 2]] += 1
    for entry in range(768):
        counts[0, entry] += counts[1, entry]


@compiled
def point_table(op: int, magnitude: float, step: Any) -> None:
    """`ops.lookup` for operations without statistics."""
    for level in range(256):
        if op == BRIGHTNESS:
            value = _blend(0, level, magnitude)
        elif op == POSTERIZE:
            dropped = 8 - int32(magnitude)
            value = uint8((level >> dropped) << dropped)
        elif op == INVERT:
            value = uint8(255 - level)
        elif op == ADD:
            value = uint8(min(level + int32(magnitude), 255) if level < 128 else level)
        else:
            value = uint8(level if level < magnitude else 255 - level)
        step[level] = step[256 + level] = step[512 + level] = value


@compiled
def contrast_table(mean: int, magnitude: float, step: Any) -> None:
    for level in range(256):
        step[level] = step[256 + level] = step[512 + level] = _blend(mean, level, magnitude)


@compiled
def statistics_tables(op: int, counts: Any, lut: Any, mapped: bool, step: Any) -> None:
    """`ops.lookup` from the histograms counts[0] [768]; levels go through lut [768] first."""
    if mapped:
        for entry in range(768):  # numba compiles an assignment of rows for two seconds
            counts[1, entry] = counts[0, entry]
            counts[0, entry] = 0
        for entry in range(768):
            counts[0, (entry & 768) + lut[entry]] += counts[1, entry]
    for channel in range(0, 768, 256):
        histogram, lines = counts[0, channel : channel + 256], step[channel : channel + 256]
        low, high, total = 255, 0, 0
        for level in range(256):
            if histogram[level]:
                low, high = min(low, level), level
                total += histogram[level]
        if op == AUTOCONTRAST:
            scale = float64(255.0) / float64(max(high - low, 1))
            offset = -low * scale
            for level in range(256):
                value = float64(level * scale) + offset
                lines[level] = level if high <= low else int(min(max(value, 0.0), 255.0))
        else:
            spread = (total - histogram[high]) // 255
            below = spread // 2
            for level in range(256):
                lines[level] = level if spread == 0 else min(below // spread, 255)
                below += histogram[level]


@compiled
def _blend(degenerate: int, level: int, factor: float) -> Any:
    """`ops.blend`."""
    value = float32(degenerate) + float32(factor * float32(int32(level) - int32(degenerate)))
    return uint8(int32(min(max(value, float32(0)), float32(255))))


@compiled
def _luma(red: int, green: int, blue: int) -> Any:
    """`ops.luma`."""
    return int32(int32(int32(red) * 19595) + int32(int32(green) * 38470) + int32(int32(blue) * 7471) + 0x8000) >> 16
