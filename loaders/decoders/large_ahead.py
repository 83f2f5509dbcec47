"""Which parts of large photographs the system is asked to read ahead: those that their crops will read.

Without their headers it is known only about: a few rows too many do no harm, and what is not asked for is read later.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from fastimg.loaders.containers.derived.block_index import BlockIndex, Entry
from fastimg.loaders.crop import CropRule
from fastimg.loaders.decoder import DrawCrops
from fastimg.loaders.jpeg.decoding.region import LOW

from .large import SHARE

_MARGIN = 16  # pixels that upsampling looks past a box at 1/8


def will_need_parts(
    dataset: Any, ids: npt.NDArray[np.int64], draw: DrawCrops, crop: CropRule, scaling: int
) -> npt.NDArray[np.bool_]:
    """Have what the crops of `ids` [k] read of indexed photographs read ahead, and what they read of the index.

    `draw` gives the numbers of the crops. Returns which samples [k] are read whole, of which nothing was asked for.
    """
    blocks: BlockIndex = dataset.blocks
    whole = np.ones(len(ids), np.bool_)
    places = blocks.places(ids)
    if not places:
        return whole
    parts: list[tuple[int, int, int]] = []  # sample, begin, end
    for place, index, numbers in zip(places, ids[places].tolist(), draw(ids)[places].tolist(), strict=True):
        entry = blocks.entry(index)
        found = None if entry is None else _part(dataset, blocks, entry, index, crop, numbers, scaling)
        if entry is None or found is None:
            continue
        whole[place] = False
        parts.append((index, 0, entry[3]))  # its header
        if found[1] > found[0]:
            parts.append((index, *found))
    if parts:
        dataset.will_need_parts(*np.array(parts, np.int64).T)
    return whole


def _part(
    dataset: Any,
    blocks: BlockIndex,
    entry: Entry,
    index: int,
    crop: CropRule,
    draws: Sequence[float],
    scaling: int,
) -> tuple[int, int] | None:
    """The bytes (begin, end) that a crop reads of a photograph behind its header; None if that is read whole."""
    width, height = dataset.size_of(index)
    (_, y, across, down), size, _ = crop.window(width, height, draws)
    scale = min(across / size[0], down / size[1]) if scaling else 1.0
    if scale >= 8 and blocks.dc_images is not None and blocks.dc_images.ask(index, finer=scaling != LOW):
        return 0, 0
    rows = entry[2]
    mcu = 16 if -(-height // 16) == rows else 8
    top, bottom = max(0, (y - _MARGIN) // mcu), min(rows, -(-(y + down + _MARGIN) // mcu))
    sparse = scale >= 8 or (scaling == LOW and scale >= 4)
    if not sparse and bottom - top > SHARE * rows:
        return None
    return blocks.ask(entry, top, bottom)
