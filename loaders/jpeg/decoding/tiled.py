"""Tiled JPEGs' bytes -> the pixels that a model sees, in one compiled call for several, without the GIL.

    frame: the header -> region: the touched tiles -> baseline: their samples -> colour: RGB columns
        -> filters: the window of the resized picture

The bits are those of decoding the whole picture, cutting out the box, resizing it and cutting out the window.
"""

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from fastimg.loaders.crop import Crop
from fastimg.loaders.runtime.compiled import compiled, held, inlined, is_kept

from .baseline import SCRATCH, decode_tiles
from .colour import to_columns
from .entropy import PAD
from .filters import resize_columns
from .frame import JPEG_HEADER, is_decodable, new_header, parse_header, view_of
from .region import find_region, new_region
from .vectors import WIDE, bytes_at

_MOST_PIXELS = 1 << 24  # that are held at once, 100 MB: the window of a larger picture goes the other way

DONE, OTHER = -1, -2  # what crop_tiled returns, or the bytes of scratch that it needs

GROUP = 8  # pictures that are decoded in one call: Python runs for all of them at once, while its code is in the cache

_JOB = np.dtype(
    [
        ("address", np.int64),  # of the encoded bytes
        ("nbytes", np.int64),
        ("row", np.int64),  # of the batch
        ("status", np.int64),  # 0 while it waits
        # A crop's window: the box, its size after the resize, and where the output begins in it.
        ("x", np.int64),
        ("y", np.int64),
        ("width", np.int64),
        ("height", np.int64),
        ("resized_width", np.int64),
        ("resized_height", np.int64),
        ("at_x", np.int64),
        ("at_y", np.int64),
    ]
)


class DecodeGroup:
    """Tiled JPEGs that wait to be decoded together. One belongs to one thread, and is used again."""

    def __init__(self) -> None:
        self._headers, self._jobs = np.zeros(GROUP, JPEG_HEADER), np.zeros(GROUP, _JOB)
        self._places = [self._headers[i : i + 1] for i in range(GROUP)]
        self._region = new_region()
        self._kept: list[npt.NDArray[np.uint8]] = []

    def add(self, data: bytes | memoryview, crop: Crop, draws: Sequence[float], max_pixels: int, row: int) -> bool:
        """Note `crop`'s window of a tiled JPEG for a row of the batch; False where it is for others to decode.

        `data` must stay as it is until `run`.
        """
        if data[:2] != b"\xff\xd8":  # before anything is compiled for it
            return False
        view, number = view_of(data), len(self._kept)
        width, height, address = _peek(view, self._places[number])
        if width == 0 or width * height > max_pixels:
            return False
        box, size, at = crop.window(width, height, draws)
        if size[0] * size[1] > max_pixels:
            return False
        self._jobs[number] = (address, view.size, row, 0, *box, *size, *at)
        self._kept.append(view)
        return True

    def clear(self) -> None:
        """Forget what was noted."""
        self._kept.clear()

    def run(self, crop: Crop, scaling: bool, scratch: "Work", out: npt.NDArray[np.uint8]) -> list[int]:
        """Write what was noted to rows of `out` [B, H, W, 3]: the rows that are for others, being damaged."""
        jobs, bicubic = self._jobs[: len(self._kept)], crop.interpolation == "bicubic"
        while needed := _crop_rows(self._headers, jobs, self._region, bicubic, scaling, scratch.work(0), out):
            scratch.work(needed)
        self._kept.clear()
        return [
            row for row, status in zip(jobs["row"].tolist(), jobs["status"].tolist(), strict=True) if status == OTHER
        ]


def will_compile(data: bytes | memoryview) -> bool:
    """Whether decoding this image would first compile the decoder, since nobody has done that on this machine."""
    return not is_kept(_crop_rows) and _peek(view_of(data), new_header())[0] > 0


class Work(Protocol):
    """Where memory comes from."""

    def work(self, nbytes: int) -> npt.NDArray[np.uint8]:
        """Room for at least `nbytes`."""


@held
def _peek(data: Any, headers: Any) -> tuple[int, int, int]:
    """Fill the header: width, height and where the data is; zeros for what is not tiled, or not upright."""
    if not parse_header(data, headers) or not is_decodable(headers) or headers[0].orientation != 1:
        return 0, 0, 0
    return headers[0].width, headers[0].height, data.ctypes.data


@compiled
def _crop_rows(headers: Any, jobs: Any, regions: Any, bicubic: bool, scaling: bool, scratch: Any, out: Any) -> int:
    """0 when all are done, else the bytes of scratch that the next one needs."""
    for i in range(jobs.shape[0]):
        job = jobs[i]
        if job.status:
            continue
        window = out[job.row]
        box, size = (job.x, job.y, job.width, job.height), (job.resized_width, job.resized_height)
        header, at = headers[i : i + 1], (job.at_x, job.at_y)
        if not find_region(header, box, size, at, (window.shape[1], window.shape[0]), bicubic, scaling, regions):
            job.status = OTHER  # a crop that is wrong is for the other way to name
            continue
        status = crop_tiled(bytes_at(job.address, job.nbytes), header, regions, bicubic, scratch, window)
        if status > 0:
            return int(status)
        job.status = status
    return 0


@inlined
def _aligned(nbytes: int) -> int:
    return (nbytes + 63) // 64 * 64


@compiled
def crop_tiled(data: Any, headers: Any, regions: Any, bicubic: bool, scratch: Any, out: Any) -> int:
    """Decode the region of a JPEG that `find_region` filled, and write its window to `out` [H, W, 3].

    Returns DONE, OTHER where the data is damaged or not as `tile` leaves it, else the bytes that `scratch` must have.
    """
    region = regions[0]
    if region.width * region.height > _MOST_PIXELS:
        return OTHER
    tiles = (region.right - region.left) * (region.bottom - region.top)
    stride, row = region.stride, -(-3 * out.shape[1] // 8) * 8
    planes = _aligned(3 * tiles * region.tile_width * region.tile_height + 2 * WIDE)
    columns = _aligned(3 * region.width * stride + WIDE)
    bits = _aligned(data.size + PAD)
    bounds = _aligned(8 * (tiles + 1))
    sums = _aligned(2 * (2 * stride + 2 * (region.width // 2 + 3) * (stride + 4) + 2 * WIDE))
    passes = _aligned(stride * (row + 8) + WIDE)
    tables = 8 * SCRATCH
    # Bits, bounds and tables are done with when the columns are made: they share their place with what follows.
    needed = planes + columns + max(tables + bits + bounds, sums, passes)
    if scratch.size < needed:
        return int(needed)
    work = scratch[planes + columns :]
    samples = scratch[:planes]
    if not decode_tiles(
        data,
        headers,
        regions,
        work[tables + bounds : tables + bounds + bits],
        work[tables : tables + bounds].view(np.int64),
        work[:tables].view(np.int64),
        samples,
    ):
        return OTHER
    rgb = scratch[planes : planes + columns]
    to_columns(samples, headers, regions, work[:sums].view(np.uint16), rgb)
    resize_columns(rgb, regions, bicubic, work, out)
    return DONE
