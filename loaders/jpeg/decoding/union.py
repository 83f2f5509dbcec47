"""Several crops of each tiled JPEG -> their pixels: the tiles around all of them are decoded once.

    frame: the header -> region: each crop's samples, and what all of them need -> columns: the RGB columns of these
        -> filters: each crop's window of its own resized picture

Each crop has the bits that `crops` gives it alone. With DCT scaling that takes one decoding for each scale.
"""

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from fastimg.loaders.crop import CropRule
from fastimg.loaders.runtime.compiled import compiled
from fastimg.loaders.runtime.scratch import GROUP, Scratch

from .columns import DONE, OTHER, decode_columns, size_of_columns, size_of_passes
from .crops import is_mirrored, peek
from .filters import resize_columns
from .frame import JPEG_HEADER, view_of
from .memory import bytes_at
from .region import REGION, WINDOW, find_region, hold_luma
from .vectors import WIDE

_SIDES = 8  # samples across a decoded block, by DCT scaling: 8 or fewer

_IMAGE = np.dtype([("address", np.int64), ("nbytes", np.int64), ("status", np.int64)])  # status 0 while it waits

_CROP = np.dtype(
    [
        *WINDOW,
        # The output: its address, its size, and the filter.
        ("out", np.int64),
        ("across", np.int64),
        ("down", np.int64),
        ("bicubic", np.int64),
    ]
)

Outs = Sequence[npt.NDArray[np.uint8]]  # of each crop: [k, H, W, C], C 1 or 3 in all of them, each row contiguous
Taken = Literal["queued", "alone", "other"]


class UnionQueue:
    """Up to GROUP tiled JPEGs, several crops of each, decoded in one call. It belongs to one thread."""

    def __init__(self) -> None:
        self._headers = np.zeros(GROUP, JPEG_HEADER)
        self._images = np.zeros(GROUP, _IMAGE)
        self._places = [self._headers[i : i + 1] for i in range(GROUP)]
        self._crops = np.zeros((GROUP, 0), _CROP)
        self._regions = np.zeros(0, REGION)
        self._unions = np.zeros(_SIDES, REGION)
        self._queued: list[tuple[int, bytes | memoryview]] = []  # row, encoded JPEG
        self._channels = 3
        self._targets: list[tuple[CropRule, int, int, int, int]] = []  # crop, address, bytes of a row, width, height

    def begin(self, crops: Sequence[CropRule], outs: Outs) -> None:
        """Forget what is queued; images are cut by `crops` into rows of `outs` from now on."""
        self._queued.clear()
        if self._crops.shape[1] != len(crops):
            self._crops = np.zeros((GROUP, len(crops)), _CROP)
            self._regions = np.zeros(len(crops), REGION)
        self._channels = outs[0].shape[3]
        self._targets = [
            (crop, out.__array_interface__["data"][0], out.strides[0], out.shape[2], out.shape[1])
            for crop, out in zip(crops, outs, strict=True)
        ]

    def add(self, data: bytes | memoryview, draws: Sequence[Sequence[float]], max_pixels: int, row: int) -> Taken:
        """Queue the crops of a tiled JPEG for a row of the outputs; `data` must not change until `run`.

        Returns "other" for an image that this decoder does not decode, and "alone" if that is so of some crops only.
        """
        if data[:2] != b"\xff\xd8":  # before anything is compiled
            return "other"
        view = view_of(data)
        number = len(self._queued)
        width, height, address, tiled = peek(view, self._places[number])
        if not tiled or width * height > max_pixels:
            return "other"
        jobs = self._crops[number]
        for k, (crop, begin, stride, across, down) in enumerate(self._targets):
            window = crop.window(width, height, draws[k])
            box, size, at = window
            if size[0] * size[1] > max_pixels or is_mirrored(window, crop):
                return "alone"
            out = begin + row * stride
            jobs[k] = (*box, *size, *at, out, across, down, crop.interpolation == "bicubic")
        self._images[number] = (address, view.size, 0)
        self._queued.append((row, data))
        return "queued"

    def run(self, scaling: int, scratch: Scratch) -> list[tuple[int, bytes | memoryview]]:
        """Decode the queue; return (row, data) of those that could not be decoded."""
        if not self._queued:
            return []
        images = self._images[: len(self._queued)]
        while needed := _crop_images(
            self._headers, images, self._crops, self._regions, self._unions, self._channels, scaling, scratch.work(0)
        ):
            scratch.work(needed)
        statuses = images["status"].tolist()
        undecoded = [queued for queued, status in zip(self._queued, statuses, strict=True) if status == OTHER]
        self._queued.clear()
        return undecoded


@compiled
def _crop_images(
    headers: Any, images: Any, crops: Any, regions: Any, unions: Any, channels: int, scaling: int, scratch: Any
) -> int:
    """Decode all images. Returns 0 when they are done, otherwise the bytes of scratch that the next one needs."""
    for i in range(images.shape[0]):
        image = images[i]
        if image.status:
            continue
        header = headers[i : i + 1]
        sides = _find_unions(header, crops[i], scaling, regions, unions)
        if sides == 0:
            image.status = OTHER  # the other decoder reports an invalid crop
            continue
        data = bytes_at(image.address, image.nbytes)
        for number in range(sides):
            status = _crop_union(data, header, crops[i], regions, unions[number : number + 1], channels, scratch)
            if status > 0:
                return int(status)
            if status == OTHER:
                break
        image.status = status
    return 0


@compiled
def _find_unions(headers: Any, crops: Any, scaling: int, regions: Any, unions: Any) -> int:
    """Fill the region of each crop, and a union of those of each scale. Returns the number of unions.

    Each region then refers to its union's columns. Returns 0 if a crop is not inside the picture.
    """
    sides = 0
    for k in range(crops.shape[0]):
        crop = crops[k]
        region = regions[k]
        box = (crop.x, crop.y, crop.width, crop.height)
        size = (crop.resized_width, crop.resized_height)
        at = (crop.at_x, crop.at_y)
        window = (crop.across, crop.down)
        if not find_region(headers, box, size, at, window, crop.bicubic != 0, scaling, regions[k : k + 1]):
            return 0
        number = 0
        while number < sides and unions[number].side != region.side:
            number += 1
        if number == sides:
            unions[number] = region
            sides += 1
            continue
        union = unions[number]
        right, bottom = max(union.x + union.width, region.x + region.width), union.y + union.height
        bottom = max(bottom, region.y + region.height)
        union.x, union.y = min(union.x, region.x), min(union.y, region.y)
        union.width, union.height = right - union.x, bottom - union.y
        union.left, union.right = min(union.left, region.left), max(union.right, region.right)
        union.top, union.bottom = min(union.top, region.top), max(union.bottom, region.bottom)
    for number in range(sides):
        union = unions[number]
        union.stride = -(-union.height // WIDE) * WIDE
        for k in range(crops.shape[0]):
            region = regions[k]
            if region.side == union.side:
                region.held_x, region.held_y, region.held_stride = union.x, union.y, union.stride
    return sides


@compiled
def _crop_union(data: Any, headers: Any, crops: Any, regions: Any, unions: Any, channels: int, scratch: Any) -> int:
    """Decode the tiles of the crops of one scale, and write each of these. Returns as `decode_columns` does."""
    unions[0].planes = channels
    passes = 0
    for k in range(crops.shape[0]):
        regions[k].planes = channels
        passes = max(passes, size_of_passes(regions[k : k + 1], crops[k].across))
    status = decode_columns(data, headers, unions, passes, scratch)
    if status != DONE:
        return int(status)
    work = scratch[size_of_columns(unions) :]
    for k in range(crops.shape[0]):
        crop = crops[k]
        if regions[k].side == unions[0].side:
            if channels == 1:
                hold_luma(regions[k : k + 1], unions)
            out = bytes_at(crop.out, channels * crop.across * crop.down).reshape((crop.down, crop.across, channels))
            resize_columns(scratch, regions[k : k + 1], crop.bicubic != 0, work, out)
    return DONE
