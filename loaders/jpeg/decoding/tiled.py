"""Tiled JPEGs -> the pixels that a model gets, several in one compiled call, without the GIL.

    frame: the header -> region: the touched tiles -> columns: those of RGB or luma
        -> filters: the window of the resized picture

The result equals decoding the whole picture, cutting out the box, resizing it and cutting out the window, bit for bit.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from fastimg.loaders.crop import CropRule, Window, reaches_out, shape_of
from fastimg.loaders.runtime.compiled import compiled, held, is_kept
from fastimg.loaders.runtime.scratch import GROUP, Scratch

from .columns import DONE, OTHER, decode_columns, size_of_columns, size_of_passes
from .filters import resize_columns
from .frame import JPEG_HEADER, is_decodable, new_header, parse_header, view_of
from .memory import bytes_at
from .region import WINDOW, find_region, hold_luma, new_region

_JOB = np.dtype(
    [
        ("address", np.int64),  # of the encoded bytes
        ("nbytes", np.int64),
        ("row", np.int64),  # of the batch
        ("status", np.int64),  # 0 while it waits
        *WINDOW,
    ]
)


class TileQueue:
    """Up to GROUP tiled JPEGs that are decoded in one call. It belongs to one thread, which reuses it."""

    def __init__(self) -> None:
        self._headers = np.zeros(GROUP, JPEG_HEADER)
        self._jobs = np.zeros(GROUP, _JOB)
        self._places = [self._headers[i : i + 1] for i in range(GROUP)]
        self._region = new_region()
        self._queued: list[bytes | memoryview] = []  # the encoded JPEGs

    def add(self, data: bytes | memoryview, crop: CropRule, draws: Sequence[float], max_pixels: int, row: int) -> bool:
        """Queue the crop of a tiled JPEG for a row; False if this decoder cannot decode it.

        `data` must not change until `run`.
        """
        if data[:2] != b"\xff\xd8":  # before anything is compiled
            return False
        view = view_of(data)
        number = len(self._queued)
        width, height, address = peek(view, self._places[number])
        if width == 0 or width * height > max_pixels:
            return False
        window = crop.window(width, height, draws)
        box, size, at = window
        if size[0] * size[1] > max_pixels or is_mirrored(window, crop):
            return False
        self._jobs[number] = (address, view.size, row, 0, *box, *size, *at)
        self._queued.append(data)
        return True

    def clear(self) -> None:
        """Forget what is queued."""
        self._queued.clear()

    def run(
        self, crop: CropRule, scaling: int, scratch: Scratch, out: npt.NDArray[np.uint8]
    ) -> list[tuple[int, bytes | memoryview]]:
        """Decode the queue into rows of `out` [k, H, W, C]; return (row, data) of those that could not be decoded.

        C is 3 for RGB, and 1 for luma.
        """
        if not self._queued:
            return []
        jobs = self._jobs[: len(self._queued)]
        bicubic = crop.interpolation == "bicubic"
        while needed := _crop_rows(self._headers, jobs, self._region, bicubic, scaling, scratch.work(0), out):
            scratch.work(needed)
        queued = zip(jobs["row"].tolist(), jobs["status"].tolist(), self._queued, strict=True)
        undecoded = [(row, data) for row, status, data in queued if status == OTHER]
        self._queued.clear()
        return undecoded


def is_mirrored(window: Window, crop: CropRule) -> bool:
    """Whether some pixels of the crop are mirrored, which the compiled decoder does not do."""
    if window.at == (0, 0):  # what most crops are
        return False
    tall, wide = shape_of(crop)
    return reaches_out(window, wide, tall)


def will_compile(data: bytes | memoryview) -> bool:
    """Whether decoding this image would first compile the decoder, because it is not in the machine's cache yet."""
    return not is_kept(_crop_rows) and peek(view_of(data), new_header())[0] > 0


@held
def peek(data: Any, headers: Any) -> tuple[int, int, int]:
    """Fill the header; return width, height and the data's address, or zeros if it is not tiled or not upright."""
    if not parse_header(data, headers) or not is_decodable(headers) or headers[0].orientation != 1:
        return 0, 0, 0
    return headers[0].width, headers[0].height, data.ctypes.data


@compiled
def _crop_rows(headers: Any, jobs: Any, regions: Any, bicubic: bool, scaling: int, scratch: Any, out: Any) -> int:
    """Decode all jobs. Returns 0 when they are done, otherwise the bytes of scratch that the next one needs."""
    for i in range(jobs.shape[0]):
        job = jobs[i]
        if job.status:
            continue
        window = out[job.row]
        box = (job.x, job.y, job.width, job.height)
        size = (job.resized_width, job.resized_height)
        header = headers[i : i + 1]
        at = (job.at_x, job.at_y)
        if not find_region(header, box, size, at, (window.shape[1], window.shape[0]), bicubic, scaling, regions):
            job.status = OTHER  # the other decoder reports an invalid crop
            continue
        status = crop_tiled(bytes_at(job.address, job.nbytes), header, regions, bicubic, scratch, window)
        if status > 0:
            return int(status)
        job.status = status
    return 0


@compiled
def crop_tiled(data: Any, headers: Any, regions: Any, bicubic: bool, scratch: Any, out: Any) -> int:
    """Decode the region of a JPEG that `find_region` filled, and write its window to `out` [H, W, C].

    C is 3 for RGB, and 1 for luma.

    Returns as `decode_columns` does.
    """
    regions[0].planes = out.shape[2]
    status = decode_columns(data, headers, regions, size_of_passes(regions, out.shape[1]), scratch)
    if status == DONE:
        if regions[0].planes == 1:
            hold_luma(regions, regions)
        resize_columns(scratch, regions, bicubic, scratch[size_of_columns(regions) :], out)
    return int(status)
