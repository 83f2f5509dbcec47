"""A tiled JPEG at 1/8 of its size, from the means of its blocks: made once, kept, and cut without entropy decoding.

    sums uint64 [planes, tiles across] | planes uint8

The planes are those of `baseline.decode_tiles` for the whole picture, in columns: luma, Cb and Cr with a sample for
each block, and, of 4:2:0, Cb and Cr with 2 x 2 samples for each block, which libjpeg-turbo's scaling takes instead. So
the columns of neighbouring tiles follow each other in a plane. `sums` are those of a column of tiles' words of eight
bytes, the last one filled up with zeros: see `_sum`.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from fastimg.loaders.jpeg.decoding.baseline import SCRATCH, decode_tiles
from fastimg.loaders.jpeg.decoding.colour import to_columns
from fastimg.loaders.jpeg.decoding.columns import DONE, OTHER, aligned, size_of_columns, size_of_passes
from fastimg.loaders.jpeg.decoding.entropy.symbols import PAD
from fastimg.loaders.jpeg.decoding.filters import resize_columns
from fastimg.loaders.jpeg.decoding.frame import is_decodable, new_header, parse_header, view_of
from fastimg.loaders.jpeg.decoding.memory import byte_at, word_at
from fastimg.loaders.jpeg.decoding.region import LOW, find_region, new_region
from fastimg.loaders.jpeg.decoding.vectors import WIDE
from fastimg.loaders.runtime.compiled import compiled, uint64

from .rows import FACTOR

SLACK = 2 * WIDE  # bytes behind the planes that are read, and do not count
_SUM = np.dtype("<u8")


def pack_dc_images(jpeg: bytes | bytearray | memoryview) -> tuple[int, int, bytes] | None:
    """The numbers of planes and of tiles across, and what is kept; None if the compiled decoder cannot decode it."""
    headers = new_header()
    if not parse_header(view_of(jpeg), headers) or not is_decodable(headers) or headers["orientation"][0] != 1:
        return None
    data = np.frombuffer(jpeg, np.uint8)
    data = data if data.flags.writeable else data.copy()  # so that numba compiles for one type
    means = _decoded(data, headers, LOW)
    if means is None:
        return None
    tiles, planes = means
    if headers["v"][0][0] == 2:
        finer = _decoded(data, headers, 1)
        if finer is None:
            return None
        planes = [*planes, *finer[1][1:]]
    sums = np.empty((len(planes), tiles), _SUM)
    for plane, row in zip(planes, sums, strict=True):
        fill_sums(plane, plane.size // tiles, row)
    return len(planes), tiles, b"".join([sums.tobytes(), *(plane.tobytes() for plane in planes)])


def _decoded(
    data: npt.NDArray[np.uint8], headers: npt.NDArray[np.void], scaling: int
) -> tuple[int, list[npt.NDArray[np.uint8]]] | None:
    """The number of tiles across, and each component's plane, of the whole picture at 1/8."""
    regions = new_region()
    box = (0, 0, int(headers["width"][0]), int(headers["height"][0]))
    if not find_region(headers, box, (1, 1), (0, 0), (1, 1), False, scaling, regions) or regions["side"][0] != 1:
        return None
    sizes = [size for _, size in plane_extents(headers, regions)]
    tiles = int((regions["right"][0] - regions["left"][0]) * (regions["bottom"][0] - regions["top"][0]))
    samples = np.zeros(sum(sizes) + SLACK, np.uint8)
    regions["planes"] = 3
    clean, bounds = np.empty(data.size + PAD, np.uint8), np.empty(tiles + 1, np.int64)
    if not decode_tiles(data, headers, regions, clean, bounds, np.empty(SCRATCH, np.int64), samples):
        return None
    return int(regions["right"][0]), np.split(samples[: sum(sizes)], np.cumsum(sizes[:-1]))


def plane_extents(headers: npt.NDArray[np.void], regions: npt.NDArray[np.void]) -> list[tuple[int, int]]:
    """For each component of a region at 1/8: the bytes of a column of tiles, and those of the region's plane."""
    header, region = headers[0], regions[0]
    count = int(region["right"] - region["left"])
    luma = int(region["tile_width"] * (region["bottom"] - region["top"]) * region["tile_height"])
    chroma = luma // int(region["h"] * region["v"])
    return [(luma, luma * count)] + [(chroma, chroma * count)] * (int(header["components"]) - 1)


@compiled
def fill_sums(plane: Any, nbytes: int, sums: Any) -> None:
    """Fill `sums` with those of the `nbytes` of each column of tiles."""
    for tile in range(sums.size):
        sums[tile] = _sum(uint64(plane.ctypes.data) + uint64(tile) * uint64(nbytes), uint64(nbytes))


@compiled
def _sum(address: Any, nbytes: Any) -> Any:
    """The sum of words of eight bytes from an address on, the last one filled up with zeros; their order counts.

    Each word's upper half is mixed into the lower, since what changes in the uppermost bits alone cancels out in sums.
    Of the mixed words w_i of n the sum is that of w_i * (1 + 2 * FACTOR * (n - i)): odd factors, so no change of one
    word leaves it as it was.
    """
    total = sums = uint64(0)
    whole = nbytes & ~uint64(7)
    for at in range(uint64(0), whole, uint64(8)):
        word = word_at(address + at)
        total += word ^ (word >> uint64(32))
        sums += total
    word = uint64(0)
    for i in range(whole, nbytes):
        word |= byte_at(address + i) << (uint64(8) * (i & uint64(7)))
    total += word ^ (word >> uint64(32))
    return total + (sums * uint64(FACTOR) << uint64(1))


@compiled
def crop_planes(planes: Any, sums: Any, headers: Any, regions: Any, bicubic: bool, scratch: Any, out: Any) -> int:
    """Write a region's window, at 1/8, to `out` [H, W, 3] from the `planes` of its tiles, with SLACK bytes behind them.

    Returns DONE; OTHER if the planes' `sums` [planes, tiles across] are others; or the size that `scratch` must have.
    """
    region = regions[0]
    columns = size_of_columns(regions)
    chroma_stride = region.stride + 4
    upsampled = aligned(2 * (2 * region.stride + 2 * (region.width // 2 + 3) * chroma_stride + 2 * WIDE))
    needed = columns + max(upsampled, size_of_passes(regions, out.shape[1]))
    if scratch.size < needed:
        return int(needed)
    luma = region.tile_width * (region.bottom - region.top) * region.tile_height
    address = uint64(planes.ctypes.data)
    for c in range(sums.shape[0]):
        nbytes = uint64(luma // (region.h * region.v) if c else luma)
        for tile in range(sums.shape[1]):
            if _sum(address, nbytes) != sums[c, tile]:
                return OTHER
            address += nbytes
    to_columns(planes, headers, regions, scratch[columns : columns + upsampled].view(np.uint16), scratch[:columns])
    resize_columns(scratch, regions, bicubic, scratch[columns:], out)
    return DONE
