"""Cutting a tiled JPEG without decoding it: a smaller JPEG of the tiles that a box touches.

    SOI | JFIF and Adobe segments, tables, SOF with the crop's size, DRI, SOS | tiles, RSTn renumbered | EOI

Everything runs in one compiled call without the GIL. Whatever is not as `tile` leaves it (no restarts, an interval that
does not divide the row, several scans, a marker out of turn) is given back whole: the decoder then judges it.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from .compiled import compiled, int64
from .huffman import skip

Box = tuple[int, int, int, int]  # x, y, width, height in stored pixels: before any EXIF orientation
Index = npt.NDArray[np.int64]

# What the header says, by place in an array.
_WIDTH, _HEIGHT, _MCU_WIDTH, _MCU_HEIGHT, _ACROSS, _ROWS, _PER_TILE, _TILES, _SOF, _BEGIN, _KEPT = range(11)
_MOST_KEPT = 64  # segments that a splice takes over


def splice(
    jpeg: bytes | bytearray | memoryview,
    box: Box,
    *,
    denominator: int = 1,
    index: Index | None = None,
    buffer: bytearray | None = None,
) -> tuple[memoryview, tuple[int, int]]:
    """The JPEG of the tiles that `box` touches, and the stored pixel (x, y) at its upper left.

    Decode it, at a DCT scale of 1/`denominator` (1, 2, 4, 8) if you like, and cut the box less the offset: the pixels
    are those of the whole image decoded and cut. The box is widened for that, since the upsampling of chroma looks
    past it. `index` is what `row_index` gives, where it is kept beside the data; without it the data is searched for
    markers from the front. A JPEG that is not tiled, or whose tiles are all touched, comes back itself at (0, 0).

    The result lies in `buffer` where one is given that has the bytes of `jpeg` and two more. Raises ValueError for a
    box that is not inside the image, and for another denominator.
    """
    if denominator not in (1, 2, 4, 8):
        raise ValueError(f"a DCT scale of 1/{denominator}: use 1, 2, 4 or 8")
    data = _view(jpeg)
    out = np.frombuffer(buffer, np.uint8) if buffer is not None else np.empty(data.size + 2, np.uint8)
    x, y, width, height = box
    size, left, top = _splice(
        data, _NO_INDEX if index is None else np.asarray(index, np.int64), x, y, width, height, denominator, out
    )
    if size < 0:
        raise ValueError(f"the box {box} is not inside the image")
    if size == 0:
        return memoryview(jpeg), (0, 0)
    return out.data[:size], (left, top)


def row_index(jpeg: bytes | bytearray | memoryview) -> Index | None:
    """Where each row of tiles begins [rows], from the start of the file, and where the last ends. None: not tiled."""
    data = _view(jpeg)
    layout = np.zeros(11, np.int64)
    if not _read(data, layout, np.zeros((_MOST_KEPT, 2), np.int64)):
        return None
    if layout[_ROWS] > data.size:
        return None
    index = np.zeros(layout[_ROWS] + 1, np.int64)
    return index if _index(data, layout, index) else None


_NO_INDEX = np.zeros(0, np.int64)


def _view(jpeg: bytes | bytearray | memoryview) -> npt.NDArray[np.uint8]:
    """Of one type for numba, whether it may be written to or not: one type is one compilation."""
    data = np.frombuffer(jpeg, np.uint8)
    data.flags.writeable = False
    return data


@compiled
def _read(data: Any, layout: Any, kept: Any) -> bool:
    """Fill `layout`, and `kept` with the (begin, end) of the segments that a splice needs. False: not tiled."""
    if data.size < 4 or data[0] != 0xFF or data[1] != 0xD8:
        return False
    at, interval, count, h_max, v_max, components = 2, 0, 0, 1, 1, 0
    while at + 4 <= data.size:
        if data[at] != 0xFF:
            return False
        marker = data[at + 1]
        if marker == 0xFF:
            at += 1
            continue
        end = at + 2 + (int64(data[at + 2]) << 8 | data[at + 3])
        if marker < 0xC0 or 0xD0 <= marker <= 0xD9 or end < at + 4 or end > data.size:
            return False
        body, size = at + 4, end - at - 4
        needed = marker == 0xDB or marker == 0xC4
        if marker == 0xE0:
            needed = size >= 5 and data[body] == 0x4A and data[body + 1] == 0x46  # JFIF
        elif marker == 0xEE:
            needed = size >= 12 and data[body] == 0x41 and data[body + 1] == 0x64  # Adobe: the colour transform
        elif marker == 0xDD:
            if size != 2:
                return False
            interval = int64(data[body]) << 8 | data[body + 1]
            needed = True
        elif marker == 0xC0 or marker == 0xC1:
            if components or size < 9 or size != 6 + 3 * int64(data[body + 5]) or data[body + 5] > 4:
                return False
            components = int64(data[body + 5])
            layout[_HEIGHT] = int64(data[body + 1]) << 8 | data[body + 2]
            layout[_WIDTH] = int64(data[body + 3]) << 8 | data[body + 4]
            for i in range(components):
                h_max = max(h_max, int64(data[body + 7 + 3 * i]) >> 4)
                v_max = max(v_max, int64(data[body + 7 + 3 * i]) & 15)
            layout[_SOF] = body
            needed = True
        elif 0xC2 <= marker <= 0xCF and marker != 0xC4:
            return False
        elif marker == 0xDA:
            if components == 0 or size != 4 + 2 * components or data[body] != components:
                return False
            needed = True
        if needed:
            if count == kept.shape[0]:
                return False
            kept[count, 0], kept[count, 1] = at, end
            count += 1
        at = end
        if marker == 0xDA:
            break
    else:
        return False
    width, height = layout[_WIDTH], layout[_HEIGHT]
    if components == 1:
        h_max, v_max = 1, 1
    if width == 0 or height == 0 or interval == 0 or h_max > 4 or v_max > 4:
        return False
    layout[_MCU_WIDTH], layout[_MCU_HEIGHT] = 8 * h_max, 8 * v_max
    layout[_ACROSS] = -(-width // (8 * h_max))
    layout[_ROWS] = -(-height // (8 * v_max))
    if layout[_ACROSS] % interval:
        return False
    layout[_PER_TILE], layout[_TILES] = interval, layout[_ACROSS] // interval
    layout[_BEGIN], layout[_KEPT] = at, count
    return True


@compiled
def _next_marker(data: Any, at: int) -> Any:
    """Where the marker stands that ends the tile at `at`; the end of the data where there is none."""
    size = data.size
    while True:
        at = skip(data, at)
        if at + 1 >= size:
            return size
        if data[at + 1]:
            return at
        at += 2


@compiled
def _copy(data: Any, begin: int, end: int, out: Any, at: int) -> int:
    """Append data[begin:end] to `out` at `at`: where it then ends, -1 where there is no room."""
    if at + end - begin > out.size:
        return -1
    source, target = data[begin:end], out[at : at + end - begin]  # views: the loop becomes a copy of whole vectors
    for i in range(end - begin):
        target[i] = source[i]
    return at + end - begin


@compiled
def _is_restart(data: Any, at: int, tile: int) -> bool:
    """Whether the restart marker stands at `at` that comes before tile number `tile`."""
    return at >= 0 and at + 2 <= data.size and data[at] == 255 and data[at + 1] == 0xD0 | (tile - 1) & 7


@compiled
def _index(data: Any, layout: Any, index: Any) -> bool:
    at, tiles = layout[_BEGIN], layout[_TILES]
    total = tiles * layout[_ROWS]
    for tile in range(total):
        if tile:
            if not _is_restart(data, at, tile):
                return False
            at += 2
        if tile % tiles == 0:
            index[tile // tiles] = at
        at = _next_marker(data, at)
    index[layout[_ROWS]] = at
    return at + 2 <= data.size and not 0xD0 <= data[at + 1] <= 0xD7


@compiled
def _splice(
    data: Any, index: Any, x: int, y: int, width: int, height: int, denominator: int, out: Any
) -> tuple[int, int, int]:
    """Write the splice: its size, 0 for the whole file, -1 for a box outside; the offsets."""
    layout, kept = np.zeros(11, np.int64), np.zeros((_MOST_KEPT, 2), np.int64)
    if not _read(data, layout, kept):
        return 0, 0, 0
    full_width, full_height, tiles = layout[_WIDTH], layout[_HEIGHT], layout[_TILES]
    if x < 0 or y < 0 or width < 1 or height < 1 or x + width > full_width or y + height > full_height:
        return -1, 0, 0
    margin = max(2, denominator)
    across, down = layout[_PER_TILE] * layout[_MCU_WIDTH], layout[_MCU_HEIGHT]
    left, right = max(0, x - margin) // across, -(-min(full_width, x + width + margin) // across)
    top, bottom = max(0, y - margin) // down, -(-min(full_height, y + height + margin) // down)
    # Components of two samples or fewer across are upsampled plainly: as few only where the whole has as few.
    while min(full_width, right * across) - left * across <= 4 * denominator and right - left < tiles:
        if left > 0:
            left -= 1
        else:
            right += 1
    if right - left == tiles and bottom - top == layout[_ROWS]:
        return 0, 0, 0
    if index.size and index.size != layout[_ROWS] + 1:
        return 0, 0, 0

    size = 2
    if out.size < 2:
        return 0, 0, 0
    out[0], out[1] = 0xFF, 0xD8
    for i in range(layout[_KEPT]):
        begin, end = kept[i, 0], kept[i, 1]
        if begin + 4 == layout[_SOF]:
            sof = size + 4
        size = _copy(data, begin, end, out, size)
        if size < 0:
            return 0, 0, 0
    crop_width = min(full_width, right * across) - left * across
    crop_height = min(full_height, bottom * down) - top * down
    out[sof + 1], out[sof + 2] = crop_height >> 8, crop_height & 255
    out[sof + 3], out[sof + 4] = crop_width >> 8, crop_width & 255

    at, written = layout[_BEGIN], 0
    for row in range(top if index.size else 0, bottom):
        if index.size:
            at = index[row]
            begins = _is_restart(data, at - 2, row * tiles) if row else at == layout[_BEGIN]
            if not begins or at > data.size:
                return 0, 0, 0
        wanted = row >= top
        for column in range(right if wanted and (index.size or row + 1 == bottom) else tiles):
            begin = at
            at = _next_marker(data, begin)
            if wanted and left <= column < right:
                size = _copy(data, begin, at, out, size)
                if size < 0 or size + 2 > out.size:
                    return 0, 0, 0
                out[size], out[size + 1] = 0xFF, 0xD0 | written & 7
                size += 2
                written += 1
            following = row * tiles + column + 1
            if following < tiles * layout[_ROWS]:
                if not _is_restart(data, at, following):
                    return 0, 0, 0
                at += 2
    if at + 2 > data.size:  # the last tile was cut short
        return 0, 0, 0
    out[size - 2], out[size - 1] = 0xFF, 0xD9
    return size, left * across, top * down
