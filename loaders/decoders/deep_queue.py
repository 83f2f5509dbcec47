"""PNG, PGM and TIFF files of 16 bits -> rows of uint16, all of a group in one compiled call, without the GIL.

    pictures.png, ppm, tiff: the header -> jpeg.windows: the window of the crop -> of PNG, pictures.png_rows: all rows
        -> pictures.deep: the pixels of the box, RGB or gray
        -> what keeps its size is copied | float_resize: the window of the resized box

The result equals `decode_deep`, `deep_part` and `resample_deep`, bit for bit. Other files and windows are left to them,
and what is wrong with a file is told by them: they decode a PNG whole, so that damage anywhere has to be seen here.
"""

import importlib.util
from typing import Any

import numpy as np
import numpy.typing as npt

from fastimg.loaders.crop import CropRule
from fastimg.loaders.float_resize import MOST, UNKNOWN, may_resize, order_of_sums, resize_floats, size_of_floats
from fastimg.loaders.jpeg.decoding.memory import copy_bytes, view_at
from fastimg.loaders.jpeg.windows import compiled_rule, is_inside, is_small, place_window
from fastimg.loaders.pictures.deep import fill_deep_rows, parse_deep
from fastimg.loaders.pictures.huffman import new_tables
from fastimg.loaders.pictures.png_rows import DAMAGED, decode_rows, size_of_rows
from fastimg.loaders.pictures.record import DEFLATED, LOW_FIRST, RGB, STORED, new_picture
from fastimg.loaders.runtime.compiled import compiled, int64, may_call
from fastimg.loaders.runtime.scratch import Encoded, Scratch

from .resize_queue import JOB

_WAITS, _DONE, _OTHER = 0, 1, 2
_ALIGN = 64  # bytes


class DeepQueue:
    """Decodes crops of images of 16 bits. It belongs to one thread, which reuses it."""

    def __init__(self) -> None:
        self._picture = new_picture()
        self._jobs = np.zeros(1, JOB)
        self._tables = new_tables()
        # Without machine code tifffile reads TIFFs of colours: where it is missing, they are refused with it, too.
        self._takes_colours = importlib.util.find_spec("tifffile") is not None

    def cut(
        self,
        encoded: Encoded,
        crop: CropRule,
        draws: npt.NDArray[np.float64],
        max_pixels: int,
        scratch: Scratch,
        out: npt.NDArray[np.uint16],
    ) -> npt.NDArray[np.bool_]:
        """Fill rows of `out` [k, H, W, C] with crops of samples in memory [k]; which rows are filled [k]."""
        rule = compiled_rule(crop)
        assert rule is not None
        status = np.where(encoded.spans[:, 1] > 0, _WAITS, _OTHER)
        numbers = np.ascontiguousarray(draws, np.float64)
        how = crop.interpolation == "bicubic", order_of_sums(), self._takes_colours
        state = self._picture, self._jobs, self._tables, status
        try:
            while needed := _cut(encoded.spans, max_pixels, numbers, rule, how, *state, scratch.work(0), out):
                scratch.work(needed)
        except MemoryError:  # of one of them; those that wait are decoded one by one, which names it
            pass
        filled: npt.NDArray[np.bool_] = status == _DONE
        return filled


def can_cut(crop: CropRule) -> bool:
    """Whether `DeepQueue` cuts windows of a crop, and has its machine code."""
    cuts, resizes = may_call(_cut), may_resize()  # both are asked: what is missed is compiled together
    return compiled_rule(crop) is not None and cuts and resizes


@compiled
def _cut(
    spans: Any,
    max_pixels: int,
    draws: Any,
    rule: Any,
    how: Any,
    pictures: Any,
    jobs: Any,
    tables: Any,
    status: Any,
    scratch: Any,
    out: Any,
) -> int:
    """Cut what waits. Returns 0 when all is done, otherwise the bytes of scratch that the next one needs.

    `how`: whether the filter is bicubic, the order of sums, and whether TIFFs of colours are taken.
    """
    bicubic, order, takes_colours = how
    tall, wide, channels = out.shape[1], out.shape[2], out.shape[3]
    job, picture = jobs[0], pictures[0]
    for i in range(spans.shape[0]):
        if status[i] != _WAITS:
            continue
        status[i] = _OTHER
        address, nbytes = spans[i, 0], spans[i, 1]
        if not parse_deep(view_at(address, nbytes), pictures) or picture.width * picture.height > max_pixels:
            continue
        if picture.format == STORED and (picture.colour & ~LOW_FIRST) == RGB and not takes_colours:
            continue
        place_window(picture.width, picture.height, draws[i], rule, jobs)
        if not is_small(jobs, max_pixels) or not is_inside(jobs, wide, tall):
            continue
        kept = job.resized_width == job.width and job.resized_height == job.height
        if not kept and (order == UNKNOWN or job.resized_width == 1):  # torch's width of 1 depends on the layout
            continue
        top, bottom, packed = job.y, job.y + job.height, 2 * channels * job.width
        rows = size_of_rows(picture, 0, picture.height) if picture.format == DEFLATED else 0
        pixels = job.height * packed
        rest = 0 if kept else size_of_floats(job, wide, tall, channels, bicubic)
        if (picture.format == DEFLATED and rows == 0) or rest > MOST:
            continue
        needed = rows + pixels + rest + 2 * _ALIGN
        if needed > MOST:
            continue
        if scratch.size < needed:
            status[i] = _WAITS
            return int(needed)
        first, pitch = address + picture.first, picture.pitch
        if picture.format == DEFLATED:
            first, pitch = decode_rows(address, picture, 0, picture.height, tables, scratch), picture.length + 1
            if first == DAMAGED:
                continue
        begin = _aligned(int64(scratch.ctypes.data) + rows)
        fill_deep_rows(picture, first, pitch, (top, bottom), (job.x, job.width), channels, begin)
        to = int64(out[i].ctypes.data)
        if kept:
            for y in range(tall):
                source = begin + (job.at_y + y) * packed + 2 * channels * job.at_x
                copy_bytes(source, to + 2 * y * wide * channels, 2 * wide * channels)
        else:
            room = _aligned(begin + pixels)
            resize_floats(begin, (2, packed, 0), job, (tall, wide, channels), bicubic, order, room, to)
        status[i] = _DONE
    return 0


@compiled
def _aligned(address: int) -> int:
    """The first address from there on that begins a line of the processor's cache."""
    return (address + _ALIGN - 1) // _ALIGN * _ALIGN
