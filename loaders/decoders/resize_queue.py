"""Decoded pictures -> the rows of a batch, several in one compiled call, without the GIL.

    pixels [H, W, C] -> the columns that a window depends on -> jpeg.decoding.filters: the window of the resized picture

The result equals `resample`, bit for bit. That takes several calls of torch for each picture, and with many threads the
time in which they wait for the GIL adds up.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from fastimg.loaders.crop import CropRule, Window, reaches_out
from fastimg.loaders.jpeg.decoding.columns import size_of_columns, size_of_passes
from fastimg.loaders.jpeg.decoding.filters import resize_columns
from fastimg.loaders.jpeg.decoding.memory import bytes_at
from fastimg.loaders.jpeg.decoding.region import WINDOW, new_region
from fastimg.loaders.jpeg.decoding.vectors import transpose
from fastimg.loaders.runtime.compiled import compiled, may_call
from fastimg.loaders.runtime.scratch import MOST, Scratch, address_of

from .shown import region_of_job

_MOST = 1 << 22  # bytes: of pixels that are kept until they are resized, and of a box that is resized here

JOB = np.dtype(
    [
        ("address", np.int64),  # of the pixels
        ("nbytes", np.int64),
        ("pitch", np.int64),  # bytes from a row to the next
        ("row", np.int64),  # of the batch
        ("done", np.int64),
        ("picture_width", np.int64),
        ("picture_height", np.int64),
        *WINDOW,
    ]
)


class ResizeQueue:
    """Up to MOST pictures that are resized in one call. It belongs to one thread, which reuses it."""

    def __init__(self) -> None:
        self._jobs = np.zeros(MOST, JOB)
        self._region = new_region()
        self._queued: list[npt.NDArray[np.uint8]] = []
        self._nbytes = 0

    def __len__(self) -> int:
        return len(self._queued)

    @property
    def full(self) -> bool:
        """Whether it has to be run before another picture is added."""
        return len(self._queued) == MOST or self._nbytes > _MOST

    def clear(self) -> None:
        """Forget what is queued."""
        self._queued.clear()
        self._nbytes = 0

    def add(self, pixels: npt.NDArray[np.uint8], window: Window, out: tuple[int, int], row: int) -> bool:
        """Queue a window of `pixels` [H, W, C] for a row; False if it has to be resized in another way.

        `out` is (height, width) of the rows.

        `pixels` must not change until `run`.
        """
        height, width, channels = pixels.shape
        pitch, step, last = pixels.strides
        if step != channels or last != 1 or pitch < channels * width or not may_call(resize_rows):
            return False
        box, size, at = window
        if channels * box[2] * box[3] > _MOST or reaches_out(window, out[1], out[0]):
            return False
        nbytes = pitch * (height - 1) + channels * width
        self._jobs[len(self._queued)] = (address_of(pixels), nbytes, pitch, row, 0, width, height, *box, *size, *at)
        self._queued.append(pixels)
        self._nbytes += nbytes
        return True

    def run(self, crop: CropRule, scratch: Scratch, out: npt.NDArray[np.uint8]) -> None:
        """Resize the queue into rows of `out` [k, H, W, C]."""
        if not self._queued:
            return
        jobs = self._jobs[: len(self._queued)]
        bicubic = crop.interpolation == "bicubic"
        while needed := resize_rows(jobs, self._region, bicubic, scratch.work(0), out):
            scratch.work(needed)
        self.clear()


@compiled
def resize_rows(jobs: Any, regions: Any, bicubic: bool, scratch: Any, out: Any) -> int:
    """Resize all jobs. Returns 0 when they are done, otherwise the bytes of scratch that the next one needs."""
    region = regions[0]
    for i in range(jobs.shape[0]):
        job = jobs[i]
        if job.done:
            continue
        window = out[job.row]
        region_of_job(job.picture_width, job.picture_height, job, window, bicubic, regions)
        columns = size_of_columns(regions)
        needed = columns + size_of_passes(regions, window.shape[1])
        if scratch.size < needed:
            return int(needed)
        pixels = bytes_at(job.address, job.nbytes)
        begin = region.y * job.pitch + region.x * region.planes
        _to_columns(pixels, begin, job.pitch, region.planes * region.width, region.height, region.stride, scratch)
        resize_columns(scratch, regions, bicubic, scratch[columns:], window)
        job.done = 1
    return 0


@compiled
def _to_columns(pixels: Any, begin: int, pitch: int, width: int, height: int, stride: int, out: Any) -> None:
    """Transpose `height` rows of `width` bytes, `pitch` apart from `begin` on, to columns that are `stride` apart."""
    if width < 8 or height < 8:
        for x in range(width):
            for y in range(height):
                out[x * stride + y] = pixels[begin + y * pitch + x]
        return
    for group in range(0, width, 8):
        x = min(group, width - 8)  # the last squares overlap those before
        for square in range(0, height, 8):
            y = min(square, height - 8)
            transpose(pixels, begin + y * pitch + x, pitch, out, x * stride + y, stride)
