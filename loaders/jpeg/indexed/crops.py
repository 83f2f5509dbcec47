"""Some bytes of a tiled JPEG, and where its blocks are in them -> the pixels that a model gets, in one compiled call.

    spans: the region's blocks -> sparse: their samples, or baseline -> colour: RGB columns -> filters: the window

The pixels are those of `decoding.crops.crop_tiled` for the whole file, bit for bit.
"""

from typing import Any

import numpy as np

from fastimg.loaders.jpeg.decoding.baseline import SCRATCH, decode_collected
from fastimg.loaders.jpeg.decoding.colour import to_columns
from fastimg.loaders.jpeg.decoding.columns import DONE, MAX_DECODED, OTHER, aligned, size_of_columns, size_of_passes
from fastimg.loaders.jpeg.decoding.entropy.symbols import PAD
from fastimg.loaders.jpeg.decoding.filters import resize_columns
from fastimg.loaders.jpeg.decoding.vectors import WIDE
from fastimg.loaders.runtime.compiled import compiled

from .sparse import collect_known, decode_sparse


@compiled
def crop_known(
    data: Any, headers: Any, regions: Any, positions: Any, places: Any, bicubic: bool, scratch: Any, out: Any
) -> int:
    """Decode a region by what `locate` and `join` found, and write its window to `out` [H, W, 3].

    `data` is the header and the ranges that were read, and PAD bytes that do not count. Returns DONE; OTHER if the data
    is damaged or too much; or the size that `scratch` must have.
    """
    region = regions[0]
    if region.width * region.height > MAX_DECODED:
        return OTHER
    columns = size_of_columns(regions)
    planes = aligned(3 * positions.shape[0] * region.tile_width * region.tile_height + 2 * WIDE)
    tables = 8 * SCRATCH
    bounds = tables + aligned(8 * (positions.shape[0] + 1))
    bits = bounds + aligned(data.size + PAD)
    sums = aligned(2 * (2 * region.stride + 2 * (region.width // 2 + 3) * (region.stride + 4) + 2 * WIDE))
    needed = columns + max(planes + max(bits, sums), size_of_passes(regions, out.shape[1]))
    if scratch.size < needed:
        return int(needed)
    samples = scratch[columns : columns + planes]
    work = scratch[columns + planes :]
    if region.low or region.side == 1:
        decoded = decode_sparse(data, headers, regions, positions, places, work[:tables].view(np.int64), samples)
    else:
        clean, ends = work[bounds:bits], work[tables:bounds].view(np.int64)
        collect_known(data, positions, places, region.right - region.left, clean, ends)
        decoded = decode_collected(data, headers, regions, clean, ends, work[:tables].view(np.int64), samples)
    if not decoded:
        return OTHER
    to_columns(samples, headers, regions, work[:sums].view(np.uint16), scratch[:columns])
    resize_columns(scratch, regions, bicubic, scratch[columns:], out)
    return DONE
