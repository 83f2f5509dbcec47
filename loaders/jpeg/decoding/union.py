"""Several crops of each JPEG -> their pixels: the tiles around all of them are decoded once.

    frame: the header -> region: each crop's samples, and what all of them need -> columns: the RGB columns of these
        -> filters: each crop's window of its own resized picture

Each crop has the bits that `crops` gives it alone. With DCT scaling that takes one decoding for each scale.
"""

from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from fastimg.loaders.crop import CropRule
from fastimg.loaders.jpeg.windows import compiled_rules, find_window
from fastimg.loaders.runtime import compiled as machine_code
from fastimg.loaders.runtime.compiled import compiled, held, may_call
from fastimg.loaders.runtime.scratch import MOST, Encoded, Scratch, address_of

from .colour import to_columns
from .columns import (
    DONE,
    MAX_DECODED,
    OTHER,
    decode_columns,
    size_of_columns,
    size_of_passes,
    size_of_planes,
    size_of_sums,
)
from .crops import KINDS, is_mirrored, look, may_compile, may_peek, peek
from .entropy.scan import STREAM
from .filters import resize_columns
from .frame import JPEG_HEADER, SCANS, TILED, UNTILED, view_of
from .memory import bytes_at
from .region import REGION, WINDOW, find_region, hold_luma
from .scans import MAX_SCANS_BYTES, decode_progressive, decode_scan, size_of_scan, size_of_scans
from .turning import size_of_turned, turn_columns, turn_region
from .vectors import WIDE

_SIDES = 8  # samples across a decoded block, by DCT scaling: 8 or fewer

# `kind` is that of `frame.kind_of`; `status` is 0 while it waits.
_IMAGE = np.dtype([("address", np.int64), ("nbytes", np.int64), ("kind", np.int64), ("status", np.int64)])

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
    """Up to MOST JPEGs, several crops of each, decoded in one call. It belongs to one thread."""

    def __init__(self) -> None:
        self._headers = np.zeros(MOST, JPEG_HEADER)
        self._images = np.zeros(MOST, _IMAGE)
        self._places = [self._headers[i : i + 1] for i in range(MOST)]
        self._crops = np.zeros((MOST, 0), _CROP)
        self._regions = np.zeros(0, REGION)
        self._unions = np.zeros(_SIDES, REGION)
        self._streams = np.zeros(1, STREAM)
        self._kinds = 0  # what is queued: bit n for kind n
        self._queued: dict[int, tuple[int, bytes | memoryview]] = {}  # row, encoded JPEG, by their number
        self._group: Encoded | None = None  # others, at their places
        self._count = 0  # of images
        self._channels = 3
        self._rules: Sequence[CropRule] = ()
        self._known: tuple[npt.NDArray[np.float64], npt.NDArray[np.int64]] | None = None  # what `plan_views` takes
        self._targets = np.zeros((0, 5), np.int64)  # of `targets_of`

    def begin(self, crops: Sequence[CropRule], outs: Outs) -> None:
        """Forget what is queued; images are cut by `crops` into rows of `outs` from now on."""
        self._forget()
        if self._crops.shape[1] != len(crops):
            self._crops = np.zeros((MOST, len(crops)), _CROP)
            self._regions = np.zeros(len(crops), REGION)
        self._channels = outs[0].shape[3]
        if self._rules is not crops:
            self._rules, self._known = crops, compiled_rules(crops)
        self._targets = targets_of(crops, outs)

    def _forget(self) -> None:
        self._queued.clear()
        self._group = None
        self._count = 0
        self._kinds = 0

    def add_group(
        self, encoded: Encoded, draws: npt.NDArray[np.float64], max_pixels: int, patient: bool = True
    ) -> list[tuple[int, Taken]] | None:
        """Queue the crops of a group, which must not change until `run`, for the rows of the same places.

        `draws` [k, d] are the numbers of all crops, one crop's after the other's. Returns the places that are left, and
        what `add` would return of them; None, and queues nothing, if a crop's rule is not known here.
        """
        if self._known is None or not may_call(plan_views):
            return None
        kinds = sum(_may_decode(kind, patient) << kind for kind in KINDS)
        numbers = np.ascontiguousarray(draws, np.float64)
        known = *self._known, self._targets
        self._kinds, count, others = plan_views(
            self._headers, self._images, self._crops, encoded.spans, numbers, *known, max_pixels, kinds
        )
        for kind in KINDS if others else ():
            if others >> kind & 1:
                machine_code.miss(_decoder_of(kind))
        self._group = encoded
        self._count = len(encoded.spans)
        if not count:
            return []
        images = self._images[: self._count]
        left = np.flatnonzero(images["status"] == DONE)
        kinds_left = images["kind"][left]
        return [
            (place, "alone" if kind else "other")
            for place, kind in zip(left.tolist(), kinds_left.tolist(), strict=True)
        ]

    def add(
        self,
        data: bytes | memoryview,
        draws: Sequence[Sequence[float]],
        max_pixels: int,
        row: int,
        patient: bool = True,
    ) -> Taken:
        """Queue the crops of a JPEG for a row of the outputs; `data` must not change until `run`.

        After `add_group` the row is one of the group's. Returns "other" for an image that this decoder does not decode,
        and "alone" if that is so of some crops only. What it is to be `patient` is said in `CropQueue.add`.
        """
        if data[:2] != b"\xff\xd8":  # before anything is compiled
            return "other"
        if not may_peek(data):
            return "other"
        view = view_of(data)
        number = len(self._queued) if self._group is None else row
        width, height, address, kind = peek(view, self._places[number])
        if kind == 0 or width * height > max_pixels:
            return "other"
        if not _may_decode(kind, patient):
            machine_code.miss(_decoder_of(kind))
            return "other"
        jobs = self._crops[number]
        for k, (crop, (begin, stride, *shape)) in enumerate(zip(self._rules, self._targets.tolist(), strict=True)):
            window = crop.window(width, height, draws[k])
            box, size, at = window
            if size[0] * size[1] > max_pixels or is_mirrored(window, crop):
                return "alone"
            jobs[k] = (*box, *size, *at, begin + row * stride, *shape)
        self._images[number] = (address, view.size, kind, 0)
        self._queued[number] = row, data
        self._count = max(self._count, number + 1)
        self._kinds |= 1 << kind
        return "queued"

    def run(self, scaling: int, scratch: Scratch) -> list[tuple[int, bytes | memoryview]]:
        """Decode the queue; return (row, data) of those that could not be decoded."""
        if not self._kinds:
            return []
        images = self._images[: self._count]
        known = self._headers, images, self._crops, self._regions, self._unions
        try:
            if self._kinds & 1 << TILED:
                while needed := _crop_images(*known, self._channels, scaling, scratch.work(0)):
                    scratch.work(needed)
            if self._kinds & 1 << UNTILED:
                while needed := _crop_untiled(*known, self._streams, self._channels, scratch.work(0)):
                    scratch.work(needed)
            if self._kinds & 1 << SCANS:
                while needed := _crop_progressive(*known, self._channels, scratch.work(0)):
                    scratch.work(needed)
        except MemoryError:  # of one of them; those that wait are decoded one by one, which names it
            images["status"][images["status"] == 0] = OTHER
        statuses = images["status"].tolist()
        undecoded = [self._job(number) for number, status in enumerate(statuses) if status == OTHER]
        self._forget()
        return undecoded

    def _job(self, number: int) -> tuple[int, bytes | memoryview]:
        """The row and the data of a JPEG."""
        if number in self._queued:
            return self._queued[number]
        data = None if self._group is None else self._group[number]
        assert data is not None
        return number, data


def targets_of(crops: Sequence[CropRule], outs: Outs) -> npt.NDArray[np.int64]:
    """Where the crops go [n, 5]: the address of each one's outputs, the bytes of a row, width, height, and whether its
    filter is bicubic.
    """
    found = [
        (address_of(out), out.strides[0], out.shape[2], out.shape[1], crop.interpolation == "bicubic")
        for crop, out in zip(crops, outs, strict=True)
    ]
    return np.array(found, np.int64)


@held
def plan_views(
    headers: Any,
    images: Any,
    crops: Any,
    spans: Any,
    draws: Any,
    rules: Any,
    begins: Any,
    targets: Any,
    max_pixels: int,
    kinds: int,
) -> tuple[int, int, int]:
    """Fill images [k] and their crops [k, n] for JPEGs at `spans` [k, 2], as `crops.plan` does for one rule.

    Returns the kinds among them, as bits, how many places are left, whose images are done, and the other kinds than
    `kinds` among these, as bits. Left are those that this decoder does not decode, of the kind 0, and those of which
    some crops have to be made alone.
    """
    found, left, others = 0, 0, 0
    for i in range(spans.shape[0]):
        image = images[i]
        image.address, image.nbytes, image.status, image.kind = spans[i, 0], spans[i, 1], DONE, 0
        kind, width, height = look(spans[i, 0], spans[i, 1], headers[i : i + 1], max_pixels, kinds)
        if kind <= 0:
            left += 1
            if kind < 0:
                others |= 1 << -kind
            continue
        whole = True
        for k in range(rules.shape[0]):
            job = crops[i, k]
            if not find_window(width, height, draws[i][begins[k] :], rules[k], crops[i, k : k + 1], max_pixels):
                whole = False
                break
            job.out = targets[k, 0] + i * targets[k, 1]
            job.across, job.down, job.bicubic = targets[k, 2], targets[k, 3], targets[k, 4]
        image.kind = kind
        if whole:
            image.status = 0
            found |= 1 << kind
        else:
            left += 1
    return found, left, others


def is_ready(kind: int) -> bool:
    """Whether JPEGs of this kind can be decoded without compiling their decoder first."""
    return machine_code.is_ready(_decoder_of(kind))


def _may_decode(kind: int, patient: bool) -> bool:
    return is_ready(kind) or may_compile(kind, patient)


def _decoder_of(kind: int) -> Callable[..., Any]:
    """The compiled function that decodes JPEGs of a kind."""
    decoders: dict[int, Callable[..., Any]] = {TILED: _crop_images, UNTILED: _crop_untiled, SCANS: _crop_progressive}
    return decoders[kind]


@compiled
def _crop_images(
    headers: Any, images: Any, crops: Any, regions: Any, unions: Any, channels: int, scaling: int, scratch: Any
) -> int:
    """Decode the tiled images. Returns 0 when they are done, or the bytes of scratch that the next one needs."""
    for i in range(images.shape[0]):
        image = images[i]
        if image.status or image.kind != TILED:
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
def _crop_untiled(
    headers: Any, images: Any, crops: Any, regions: Any, unions: Any, streams: Any, channels: int, scratch: Any
) -> int:
    """Decode the untiled images. Returns 0 when they are done, or the bytes of scratch that the next one needs."""
    for i in range(images.shape[0]):
        image = images[i]
        if image.status or image.kind != UNTILED:
            continue
        header, union = headers[i : i + 1], unions[:1]
        image.status = OTHER
        if not _find_union(header, crops[i], regions, unions):
            continue
        columns, samples, passes = _lay_out_union(crops[i], regions, union, channels)
        needed = samples + max(size_of_scan(header, union, image.nbytes), passes)
        if scratch.size < needed:
            image.status = 0
            return int(needed)
        planes, work = scratch[columns:samples], scratch[samples:]
        if decode_scan(bytes_at(image.address, image.nbytes), header, union, work, streams, planes):
            _crop_planes(header, crops[i], regions, union, channels, scratch, columns, samples)
            image.status = DONE
    return 0


@compiled
def _crop_progressive(
    headers: Any, images: Any, crops: Any, regions: Any, unions: Any, channels: int, scratch: Any
) -> int:
    """Decode the progressive images. Returns 0 when they are done, or the bytes of scratch that the next one needs."""
    for i in range(images.shape[0]):
        image = images[i]
        if image.status or image.kind != SCANS:
            continue
        header, union = headers[i : i + 1], unions[:1]
        image.status = OTHER
        if not _find_union(header, crops[i], regions, unions):
            continue
        columns, samples, passes = _lay_out_union(crops[i], regions, union, channels)
        scans = size_of_scans(header, union, image.nbytes)
        if scans > MAX_SCANS_BYTES:
            continue
        needed = samples + max(scans, passes)
        if scratch.size < needed:
            image.status = 0
            return int(needed)
        planes, work = scratch[columns:samples], scratch[samples:]
        if decode_progressive(bytes_at(image.address, image.nbytes), header, union, work, planes):
            _crop_planes(header, crops[i], regions, union, channels, scratch, columns, samples)
            image.status = DONE
    return 0


@compiled
def _find_union(headers: Any, crops: Any, regions: Any, unions: Any) -> bool:
    """Fill the regions and the union of an image without tiles. False if this decoder leaves it to others."""
    if _find_unions(headers, crops, 0, regions, unions) == 0:
        return False
    return bool(unions[0].width * unions[0].height <= MAX_DECODED)


@compiled
def _lay_out_union(crops: Any, regions: Any, unions: Any, channels: int) -> tuple[int, int, int]:
    """Where the columns and the planes of a union end in scratch, and what their colours and resizes take behind."""
    passes = _note_planes(crops, regions, unions, channels)
    columns = size_of_columns(unions) if channels == 3 else 0
    return columns, columns + size_of_planes(unions), max(size_of_sums(unions), passes)


@compiled
def _crop_planes(
    headers: Any, crops: Any, regions: Any, unions: Any, channels: int, scratch: Any, columns: int, samples: int
) -> None:
    """Write each crop from the planes of a union, scratch[columns:samples]."""
    work = scratch[samples:]
    if channels == 3:
        sums = work[: size_of_sums(unions)].view(np.uint16)
        to_columns(scratch[columns:samples], headers, unions, sums, scratch[:columns])
    _resize_crops(scratch, crops, regions, unions, channels, work)


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
        union.held_x, union.held_y, union.held_stride = union.x, union.y, union.stride
        for k in range(crops.shape[0]):
            region = regions[k]
            if region.side == union.side:
                region.held_x, region.held_y, region.held_stride = union.x, union.y, union.stride
    return sides


@compiled
def _crop_union(data: Any, headers: Any, crops: Any, regions: Any, unions: Any, channels: int, scratch: Any) -> int:
    """Decode the tiles of the crops of one scale, and write each of these. Returns as `decode_columns` does."""
    passes = _note_planes(crops, regions, unions, channels)
    status = decode_columns(data, headers, unions, passes, scratch)
    if status != DONE:
        return int(status)
    _resize_crops(scratch, crops, regions, unions, channels, scratch[size_of_columns(unions) :])
    return DONE


@compiled
def _note_planes(crops: Any, regions: Any, unions: Any, channels: int) -> int:
    """Write into the records how many planes are wanted; return the bytes of work that resizing the crops takes."""
    unions[0].planes = channels
    passes = 0
    for k in range(crops.shape[0]):
        regions[k].planes = channels
        passes = max(passes, size_of_passes(regions[k : k + 1], crops[k].across))
    return int(passes + size_of_turned(unions))


@compiled
def _resize_crops(columns: Any, crops: Any, regions: Any, unions: Any, channels: int, work: Any) -> None:
    """Write each crop of the union's scale, from the columns of the union."""
    turned = size_of_turned(unions)
    if turned:
        if channels == 1:
            hold_luma(unions, unions)
        turn_columns(columns, unions, work[:turned])
        columns, work = work[:turned], work[turned:]
    for k in range(crops.shape[0]):
        crop = crops[k]
        if regions[k].side == unions[0].side:
            if turned:
                turn_region(regions[k : k + 1], unions)
            elif channels == 1:
                hold_luma(regions[k : k + 1], unions)
            out = bytes_at(crop.out, channels * crop.across * crop.down).reshape((crop.down, crop.across, channels))
            resize_columns(columns, regions[k : k + 1], crop.bicubic != 0, work, out)
