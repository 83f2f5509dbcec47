"""A region's tiles -> its columns, at the beginning of the memory in which they are then resized.

    baseline: samples of the tiles -> colour: RGB columns

Of luma alone, a region with one plane, the columns are the plane's own.
One crop's region (`crops`), and that of several crops (`union`), are decoded here; JPEGs without tiles by `scans`.
"""

from typing import Any

import numpy as np

from fastimg.loaders.jpeg.exif import compiled_turn_of
from fastimg.loaders.runtime.compiled import compiled, inlined

from .baseline import SCRATCH, decode_tiles
from .colour import to_columns
from .entropy.symbols import PAD
from .vectors import WIDE

MAX_DECODED = 1 << 24  # pixels in memory at once, 100 MB; libjpeg-turbo decodes larger crops

DONE, OTHER = -1, -2  # results of `decode_columns`, which otherwise returns the bytes of scratch that it needs


@inlined
def aligned(nbytes: int) -> int:
    return (nbytes + 63) // 64 * 64


@inlined
def size_of_planes(regions: Any) -> int:
    """The bytes that the samples of a region's tiles take."""
    region = regions[0]
    tiles = (region.right - region.left) * (region.bottom - region.top)
    return aligned(region.planes * tiles * region.tile_width * region.tile_height + 2 * WIDE)


@inlined
def size_of_columns(regions: Any) -> int:
    """The bytes that the columns of a region take."""
    if regions[0].planes == 1:
        return size_of_planes(regions)
    return aligned(3 * regions[0].width * regions[0].stride + WIDE)


@inlined
def upright_stride(regions: Any) -> int:
    """The bytes from one column of a region to the next, once it is upright."""
    region = regions[0]
    rows = region.width if compiled_turn_of(region.orientation)[0] else region.height
    return int(-(-rows // WIDE) * WIDE)


@inlined
def size_of_passes(regions: Any, across: int) -> int:
    """The bytes that `resize_columns` takes for a window `across` pixels wide, once the region is upright."""
    return aligned(upright_stride(regions) * (-(-regions[0].planes * across // 8) * 8 + 8) + WIDE)


@inlined
def size_of_sums(regions: Any) -> int:
    """The bytes that `to_columns` takes as work."""
    region = regions[0]
    return aligned(2 * (2 * region.stride + 2 * (region.width // 2 + 3) * (region.stride + 4) + 2 * WIDE))


@compiled
def decode_columns(data: Any, headers: Any, regions: Any, passes: int, scratch: Any) -> int:
    """Decode a region's tiles to columns of RGB or of luma, `scratch[:size_of_columns(regions)]`.

    Returns DONE; OTHER if the data is damaged or not as `tile` writes it; or the size that `scratch` must have. Behind
    the columns it then has at least `passes` bytes for what follows.
    """
    region = regions[0]
    if region.width * region.height > MAX_DECODED:
        return OTHER
    tiles = (region.right - region.left) * (region.bottom - region.top)
    columns = size_of_columns(regions)
    coloured = region.planes == 3
    planes = size_of_planes(regions) if coloured else 0
    tables = 8 * SCRATCH
    bounds = tables + aligned(8 * (tiles + 1))
    bits = bounds + aligned(data.size + PAD)
    sums = size_of_sums(regions)
    # Bits, bounds and tables are not needed once there are samples, nor these once there are columns.
    needed = columns + max(planes + max(bits, sums), passes)
    if scratch.size < needed:
        return int(needed)
    samples = scratch[columns : columns + planes] if coloured else scratch[:columns]
    work = scratch[columns + planes :]
    if not decode_tiles(
        data,
        headers,
        regions,
        work[bounds:bits],
        work[tables:bounds].view(np.int64),
        work[:tables].view(np.int64),
        samples,
    ):
        return OTHER
    if coloured:
        to_columns(samples, headers, regions, work[:sums].view(np.uint16), scratch[:columns])
    return DONE
