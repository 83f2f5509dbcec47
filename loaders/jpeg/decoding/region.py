"""The part of a JPEG that a window depends on: its tiles, and where the resize begins in them, as a record.

Without tiles, each MCU is one.
"""

from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from fastimg.loaders.jpeg.exif import compiled_turn_of
from fastimg.loaders.runtime.compiled import compiled, inlined

from .filters import reach
from .frame import is_decodable
from .vectors import WIDE

# None; libjpeg-turbo's at 1/2, 1/4 and 1/8; the same with 1/4 and 1/8 by low frequencies alone; libjpeg-turbo's at each
# eighth.
Scaling: TypeAlias = bool | Literal["low", "eighths"]

LOW, EIGHTHS = 2, 3  # in compiled code, where 1 is libjpeg-turbo's at 1/2, 1/4 and 1/8, and 0 none
_MARGIN = 2  # pixels that the upsampling of chroma looks past a box

# Of a job: the window of its crop: the box, its size after the resize, and where the output begins in it.
WINDOW = [(name, np.int64) for name in ("x", "y", "width", "height", "resized_width", "resized_height", "at_x", "at_y")]

# In samples of the decoded picture, which may be scaled. Of a picture that EXIF turns, tiles and samples are those of
# the stored one, and the rest is of the upright one.
REGION = np.dtype(
    [
        ("side", np.int64),  # samples across a decoded block of luma: 8, or fewer by DCT scaling
        ("low", np.int64),  # whether it is 2 or 1, and so many rows and columns of coefficients count, of chroma, too
        ("orientation", np.int64),  # of EXIF; 1 where the columns that are resized are upright
        ("picture_width", np.int64),
        ("picture_height", np.int64),
        ("tile_width", np.int64),
        ("tile_height", np.int64),
        ("h", np.int64),  # samples of luma for one of chroma, across and down
        ("v", np.int64),
        ("planes", np.int64),  # 3 for all components, 1 for luma alone
        # The tiles: columns [left, right) of rows [top, bottom).
        ("left", np.int64),
        ("right", np.int64),
        ("top", np.int64),
        ("bottom", np.int64),
        # The samples that the window depends on, and the bytes from one column to the next, in whole vectors.
        ("x", np.int64),
        ("y", np.int64),
        ("width", np.int64),
        ("height", np.int64),
        ("stride", np.int64),
        # The columns that it is resized from, which may be those of a larger region: their first sample, their stride.
        ("held_x", np.int64),
        ("held_y", np.int64),
        ("held_stride", np.int64),
        # The box that is resized, relative to `origin`. When scaled, it may begin or end within a sample.
        ("origin_x", np.int64),
        ("origin_y", np.int64),
        ("start_x", np.float64),
        ("start_y", np.float64),
        ("extent_x", np.float64),
        ("extent_y", np.float64),
        # Its size after the resize, and where the window begins in it.
        ("resized_width", np.int64),
        ("resized_height", np.int64),
        ("at_x", np.int64),
        ("at_y", np.int64),
    ]
)


def scaling_of(scaling: Scaling) -> int:
    """The scaling as compiled code takes it."""
    return {"low": LOW, "eighths": EIGHTHS}[scaling] if isinstance(scaling, str) else int(scaling)


def new_region() -> npt.NDArray[np.void]:
    """A record for `find_region` to fill."""
    return np.zeros(1, REGION)


@compiled
def find_region(
    headers: Any, box: Any, size: Any, at: Any, window: Any, bicubic: bool, scaling: int, regions: Any
) -> bool:
    """Fill `regions[0]` for `box` (x, y, width, height) resized to `size`, and `window` of it from `at` on.

    `size`, `at` and `window` are (across, down), in pixels.

    With `scaling` a box of at least twice the size is decoded at 1/2, 1/4 or 1/8; the latter two by low frequencies if
    it is LOW. With EIGHTHS it is decoded at the smallest eighth at which it is as large as `size`. Untiled and turned
    pictures are not scaled. Returns False for a box or window that is not inside the upright picture, and for a picture
    that is too narrow to cut.
    """
    header = headers[0]
    region = regions[0]
    transposed, flip_x, flip_y = compiled_turn_of(header.orientation)
    width, height = (header.height, header.width) if transposed else (header.width, header.height)
    if box[0] < 0 or box[2] < 1 or box[0] + box[2] > width or at[0] < 0 or at[0] + window[0] > size[0]:
        return False
    if box[1] < 0 or box[3] < 1 or box[1] + box[3] > height or at[1] < 0 or at[1] + window[1] > size[1]:
        return False
    per_tile = header.interval if is_decodable(headers) else 0
    mode = int(scaling) if per_tile and header.orientation == 1 else 0
    side = _side(box, size, mode, header.h[0] == header.v[0])
    low = mode == LOW and side <= 2
    region.side = side
    region.low = low
    region.orientation = header.orientation
    region.picture_width, region.picture_height = -(-header.width * side // 8), -(-header.height * side // 8)
    region.tile_width = max(per_tile, 1) * (header.mcu_width * side // 8)
    region.tile_height = header.mcu_height * side // 8
    # libjpeg-turbo's scaling makes chroma of 4:2:0 as large as luma, and leaves that of 4:2:2 to the upsampling.
    region.h, region.v = (1, 1) if side < 8 and not low and header.v[0] == 2 else (header.h[0], header.v[0])
    region.planes = 3
    region.resized_width, region.resized_height = size[0], size[1]
    region.at_x, region.at_y = at[0], at[1]
    region.origin_x, region.start_x, region.extent_x, region.x, region.width = _span(
        box[0], box[2], size[0], at[0], window[0], bicubic, side, -(-width * side // 8)
    )
    region.origin_y, region.start_y, region.extent_y, region.y, region.height = _span(
        box[1], box[3], size[1], at[1], window[1], bicubic, side, -(-height * side // 8)
    )
    if flip_x:
        region.x = width - region.x - region.width
    if flip_y:
        region.y = height - region.y - region.height
    if transposed:
        region.x, region.y, region.width, region.height = region.y, region.x, region.height, region.width
    region.stride = -(-region.height // WIDE) * WIDE
    region.held_x, region.held_y, region.held_stride = region.x, region.y, region.stride
    region.left, region.right, region.top, region.bottom = tiles_around(
        (region.x, region.y, region.width, region.height),
        (region.picture_width, region.picture_height),
        (region.tile_width, region.tile_height),
    )
    return bool(is_wide_enough(region.left, region.right, region.picture_width, region.tile_width))


@compiled
def region_of_pixels(picture: Any, box: Any, size: Any, at: Any, out: Any, bicubic: bool, regions: Any) -> None:
    """Fill `regions[0]` for columns that hold exactly what the window `out` [H, W, C] depends on.

    `picture` is (width, height); `box`, `size` and `at` are as in `find_region`, and inside the picture.
    """
    region = regions[0]
    region.orientation = 1
    region.planes = out.shape[2]
    region.resized_width, region.resized_height = size[0], size[1]
    region.at_x, region.at_y = at[0], at[1]
    region.origin_x, region.start_x, region.extent_x, region.x, region.width = _span(
        box[0], box[2], size[0], at[0], out.shape[1], bicubic, 8, picture[0]
    )
    region.origin_y, region.start_y, region.extent_y, region.y, region.height = _span(
        box[1], box[3], size[1], at[1], out.shape[0], bicubic, 8, picture[1]
    )
    region.stride = -(-region.height // WIDE) * WIDE
    region.held_x, region.held_y, region.held_stride = region.x, region.y, region.stride
    # One tile that is as large as the columns, by which the bytes of a plane are counted.
    region.left, region.right, region.top, region.bottom = 0, 1, 0, 1
    region.tile_width, region.tile_height = region.width, region.stride


@inlined
def _side(box: Any, size: Any, mode: int, square: bool) -> int:
    """The samples across a decoded block of luma; `square` is whether chroma has the same shape as luma."""
    side = 8
    if mode == EIGHTHS:
        while side > 1 and box[2] * (side - 1) >= 8 * size[0] and box[3] * (side - 1) >= 8 * size[1]:
            side -= 1
        return side
    while mode and side > 1 and box[2] * side >= 16 * size[0] and box[3] * side >= 16 * size[1]:
        side //= 2
    # Without EIGHTHS pictures in 4:2:2 are scaled by low frequencies only: the pixels of recorded runs must not change.
    return side if square or (mode == LOW and side <= 2) else 8


@compiled
def hold_luma(regions: Any, unions: Any) -> None:
    """Make a region refer to the columns of the plane of luma that the tiles of `unions[0]` were decoded to."""
    region = regions[0]
    union = unions[0]
    region.held_x, region.held_y = union.left * union.tile_width, union.top * union.tile_height
    region.held_stride = (union.bottom - union.top) * union.tile_height


@compiled
def _span(
    begin: int, length: int, size: int, at: int, window: int, bicubic: bool, side: int, picture: int
) -> tuple[int, float, float, int, int]:
    """Along one axis: the box's origin, start and extent, the first sample and the number of samples."""
    # Relative to the box itself if samples are whole, which gives the same numbers as torch.
    origin = begin if side == 8 else 0
    start = begin * side / 8 - origin
    extent = length * side / 8
    first, last = reach(start, extent, size, bicubic, at, at + window)
    place = min(origin + first, picture - 1)
    return origin, start, extent, place, min(last - first, picture - place)


@compiled
def tiles_around(box: Any, picture: Any, tile: Any) -> tuple[int, int, int, int]:
    """The tiles that pixels of `box` (x, y, width, height) depend on: columns [left, right) of rows [top, bottom).

    `picture` and `tile` are (width, height).
    """
    left = max(0, box[0] - _MARGIN) // tile[0]
    right = -(-min(picture[0], box[0] + box[2] + _MARGIN) // tile[0])
    top = max(0, box[1] - _MARGIN) // tile[1]
    bottom = -(-min(picture[1], box[1] + box[3] + _MARGIN) // tile[1])
    tiles = -(-picture[0] // tile[0])
    while not is_wide_enough(left, right, picture[0], tile[0]) and right - left < tiles:
        if right < tiles:
            right += 1
        else:
            left -= 1
    return left, right, top, bottom


@compiled
def is_wide_enough(left: int, right: int, picture_width: int, tile_width: int) -> bool:
    """Whether more than two samples of chroma are left across: libjpeg upsamples narrower chroma without its filter."""
    return min(picture_width, right * tile_width) - left * tile_width > 4
