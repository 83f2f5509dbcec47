"""Crops of large tiled JPEGs from the bytes that they need, by the index that is kept beside the shards.

entry -> header -> window of the crop -> the region's blocks (index) -> its bytes, in few reads -> row
                                      -> at 1/8: its columns of the image that is kept at 1/8 -> row
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from fastimg.loaders.containers.derived.block_index import BlockIndex, Entry
from fastimg.loaders.containers.derived.dc_images import DcImages
from fastimg.loaders.crop import CenterCrop, CropRule
from fastimg.loaders.decode import MAX_PIXELS, Pixels
from fastimg.loaders.decoder import SampleReader
from fastimg.loaders.jpeg.decoding.columns import DONE, MAX_DECODED, OTHER
from fastimg.loaders.jpeg.decoding.crops import is_mirrored, peek
from fastimg.loaders.jpeg.decoding.entropy.symbols import PAD
from fastimg.loaders.jpeg.decoding.frame import TILED, mcu_blocks, new_header, view_of
from fastimg.loaders.jpeg.decoding.region import LOW, find_region, new_region
from fastimg.loaders.jpeg.indexed.crops import crop_known
from fastimg.loaders.jpeg.indexed.dc_images import SLACK, crop_planes, plane_extents
from fastimg.loaders.jpeg.indexed.spans import join, locate
from fastimg.loaders.jpeg.indexed.sparse import are_marked
from fastimg.loaders.runtime.compiled import is_kept, may_call_all
from fastimg.loaders.runtime.scratch import Scratch

GAP = 16384  # bytes between ranges that are read with them rather than skipped
SHARE = 0.5  # of the rows of tiles: with more of them, reading all is as fast, unless blocks are decoded in part

_KERNELS: tuple[Any, ...] = (crop_known, crop_planes, locate, join, are_marked)


def will_compile_large(dataset: Any) -> bool:
    """Whether crops of this dataset's large photographs, if it has any, first compile what is not in the cache yet."""
    return getattr(dataset, "blocks", None) is not None and not all(is_kept(kernel) for kernel in _KERNELS)


def compile_large(dataset: Any) -> None:
    """Compile what `will_compile_large` asks for, by crops of the first photograph that has an index.

    Raises DataError if it cannot be read.
    """
    blocks: BlockIndex = dataset.blocks
    index = blocks.first
    side = min(dataset.size_of(index))
    for size in (side // 16, side // 5):  # at 1/8, at 1/4
        crop = CenterCrop(size=size, resize=size)
        out = np.empty((size, size, 3), np.uint8)
        PartialReads().crop(SampleReader(dataset), index, crop, (), MAX_PIXELS, LOW, Scratch(), out)


class PartialReads:
    """Decodes crops by an index. It belongs to one thread, which reuses it."""

    def __init__(self) -> None:
        self._header = new_header()
        self._region = new_region()
        self._positions = np.empty(0, np.uint32)

    def crop(
        self,
        reader: SampleReader,
        index: int,
        crop: CropRule,
        draws: Sequence[float],
        max_pixels: int,
        scaling: int,
        scratch: Scratch,
        out: Pixels,
    ) -> bool:
        """Decode the crop of a sample to `out`; False if it has no index, or this cannot decode it.

        Where its index does not fit, that is noted, and the result is False, too.
        """
        dataset: Any = reader.dataset
        blocks = reader.blocks
        entry = blocks.entry(index) if blocks is not None else None
        if blocks is None or entry is None or not may_call_all(*_KERNELS, peek, find_region):
            return False
        header, region = self._header, self._region
        begin = entry[3]
        start = view_of(reader.timed(dataset.read_start, index, begin, scratch))
        width, height, _, kind = peek(start, header)
        if kind != TILED or int(header["offset"][0]) != begin:
            blocks.doubt(index)
            return False
        if width * height > max_pixels or header["orientation"][0] != 1:
            return False
        window = crop.window(width, height, draws)
        box, size, at = window
        bicubic = crop.interpolation == "bicubic"
        if size[0] * size[1] > max_pixels or is_mirrored(window, crop):
            return False
        if not find_region(header, box, size, at, (out.shape[1], out.shape[0]), bicubic, scaling, region):
            return False
        if int(region["width"][0]) * int(region["height"][0]) > MAX_DECODED:
            return False
        if (
            region["side"][0] == 1
            and blocks.dc_images is not None
            and self._crop_dc_image(reader, blocks.dc_images, index, bicubic, scratch, out)
        ):
            return True
        sparse = region["low"][0] or region["side"][0] == 1
        if not sparse and int(region["bottom"][0] - region["top"][0]) > SHARE * entry[2]:
            return False
        located = self._locate(reader, blocks, entry)
        if located is None:
            blocks.doubt(index)
            return False
        positions, places, ranges = located
        nbytes = int((ranges[:, 1] - ranges[:, 0]).sum())
        data = np.frombuffer(scratch.spliced(begin + nbytes + PAD), np.uint8, begin + nbytes + PAD)
        data[:begin] = start[:begin]
        reader.timed(dataset.read_ranges, index, ranges.tolist(), data.data[begin : begin + nbytes])
        data = view_of(data.data)
        if not are_marked(data[: begin + nbytes], header, region, positions, places):
            blocks.doubt(index)
            return False
        status = OTHER
        while (status := crop_known(data, header, region, positions, places, bicubic, scratch.work(0), out)) > 0:
            scratch.work(status)
        return status == DONE

    def _crop_dc_image(
        self, reader: SampleReader, images: DcImages, index: int, bicubic: bool, scratch: Scratch, out: Pixels
    ) -> bool:
        """Cut the region out of the image that is kept at 1/8; False if there is none, or it does not fit."""
        entry = images.entry(index)
        if entry is None:
            return False
        header = self._header
        region = self._region.copy()  # whole columns, from the picture's top to its bottom
        region["top"], region["bottom"] = 0, -(-region["picture_height"] // region["tile_height"])
        _, count, tiles, _ = entry
        left, right = int(region["left"][0]), int(region["right"][0])
        if tiles != -(-int(region["picture_width"][0]) // int(region["tile_width"][0])):
            images.doubt(index)
            return False
        extents = plane_extents(header, region)
        finer = not region["low"][0] and header["v"][0][0] == 2  # of libjpeg-turbo's scaling, behind the means
        planes = (0, 3, 4) if finer else tuple(range(len(extents)))
        luma, means = extents[0][0], extents[0][0] // int(header["h"][0][0] * header["v"][0][0])
        sizes = [nbytes * tiles for nbytes in (luma, means, means, luma, luma)][:count]
        room = sum(size for _, size in extents) + SLACK
        data = np.frombuffer(scratch.spliced(room), np.uint8, room)
        ranges = [(left * nbytes, right * nbytes) for nbytes, _ in extents]
        sums = reader.timed(images.read, entry, planes, ranges, sizes, data.data) if planes[-1] < count else None
        status = OTHER
        if sums is not None:
            sums = np.ascontiguousarray(sums[list(planes), left:right])
            while (status := crop_planes(data, sums, header, region, bicubic, scratch.work(0), out)) > 0:
                scratch.work(status)
        if status != DONE:
            images.doubt(index)
        return status == DONE

    def _locate(
        self, reader: SampleReader, blocks: BlockIndex, entry: Entry
    ) -> tuple[npt.NDArray[np.uint32], npt.NDArray[np.int64], npt.NDArray[np.int64]] | None:
        """The positions of the region's blocks, the places of its rows in the buffer, and the ranges to read.

        None if the index does not fit.
        """
        header, region = self._header, self._region
        left, right, top, bottom = (int(region[name][0]) for name in ("left", "right", "top", "bottom"))
        down = bottom - top
        count = int(mcu_blocks(header) * header["interval"][0]) + 1
        tiles = (right - left) * down
        found = reader.timed(blocks.read, entry, top, bottom) if bottom <= entry[2] else None
        if found is None:
            return None
        if self._positions.size < tiles * count:
            self._positions = np.empty(tiles * count, np.uint32)
        positions = self._positions[: tiles * count].reshape(tiles, count)
        spans, ranges, places = np.empty((down, 2), np.int64), np.empty((down, 2), np.int64), np.empty(down, np.int64)
        rows, lengths = found
        if not locate(header, region, rows, lengths, positions, spans) or spans[:, 1].max() > entry[1]:
            return None
        return positions, places, ranges[: join(spans, GAP, entry[3], places, ranges)]
