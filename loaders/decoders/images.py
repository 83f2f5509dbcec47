"""The decoder of images: header -> window of the crop -> decode -> resize -> row.

Samples are read, JPEGs, PNG, WebP, BMP, PPM and TIFF files decoded, and other pictures resized up to MOST at a time, in
compiled calls without the GIL. Stored pixels are read and cut in one for all samples (`pixel_cuts`).
"""

import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from fastimg.loaders.batch import Field
from fastimg.loaders.containers.datasets import Dataset
from fastimg.loaders.crop import CropRule, Interpolation, Size, Window, fill_of, shape_of, sized, whole
from fastimg.loaders.decode import (
    MAX_PIXELS,
    Header,
    Pixels,
    as_deep,
    check_channels,
    check_depth,
    decode_box,
    decode_deep,
    deep_part,
    in_gray,
    read_header,
)
from fastimg.loaders.decoder import Decoder, DrawCrops, Failure, Row, Rows, SampleReader, attempt
from fastimg.loaders.errors import ImageError
from fastimg.loaders.float_resize import make_ready
from fastimg.loaders.jpeg.decoding.crops import CropQueue
from fastimg.loaders.jpeg.decoding.region import Scaling, scaling_of
from fastimg.loaders.random import uniforms
from fastimg.loaders.resample import paste, resample, resample_deep
from fastimg.loaders.runtime.scratch import Scratch

from . import deep_queue
from .deep_queue import DeepQueue
from .large import PartialReads
from .large_ahead import will_need_parts
from .picture_queue import PictureQueue
from .pixel_cuts import PixelCuts, has_compiled_windows
from .resize_queue import ResizeQueue


def check_scaling(dct_scaling: object) -> None:
    """Raises ValueError for a `dct_scaling` that there is not."""
    if dct_scaling not in (False, True, "low", "eighths"):
        raise ValueError(f'dct_scaling={dct_scaling!r}: give True, False, "low" or "eighths"')


def pixel_limit(max_pixels: object) -> int:
    """`max_pixels` as an int. Raises ValueError for less than 1, TypeError for what is no whole number."""
    limit = whole(max_pixels, "max_pixels")
    if limit < 1:
        raise ValueError(f"max_pixels={limit}: give the largest number of pixels (width x height), 1 or more")
    return limit


@dataclass(frozen=True)
class ImageDecoder(Decoder):
    """Encoded image -> `inputs` [H, W, C] uint8, or uint16 with `depth` 16: decoded, upright, cropped, resized.

    `channels` is 3 for RGB, 1 for gray. Raises ValueError for other numbers, other depths and scalings, and for fewer
    `max_pixels` than 1; TypeError for `max_pixels` that is no whole number.

    JPEGs, PNG, WebP, BMP, PPM and uncompressed TIFF files are decoded several in one compiled call, except by
    subclasses with a `fill_row` of their own: those decode every sample in `fill_row`. In a loader's threads nothing is
    compiled (`compiling_ahead`): what is not ready there is left to libjpeg-turbo, Pillow and torch, which give the
    same pixels.
    """

    crop: CropRule
    max_pixels: int = MAX_PIXELS
    dct_scaling: Scaling = False  # a tiled JPEG's crop of at least twice the size is decoded at 1/2, 1/4 or 1/8;
    # "low": at 1/4 and 1/8 by low frequencies alone; "eighths": at the smallest eighth as large as what is wanted
    compiled: bool = True  # by our own decoders, not those of libjpeg-turbo and Pillow: the same bits
    channels: int = 3
    depth: int = 8  # bits of a channel

    _STAGE = 0x0C

    def __post_init__(self) -> None:
        check_channels(self.channels)
        check_depth(self.depth)
        object.__setattr__(self, "max_pixels", pixel_limit(self.max_pixels))
        check_scaling(self.dct_scaling)
        if self.depth == 16 and self.dct_scaling:
            raise ValueError("dct_scaling is for JPEGs, which have 8 bits; leave it out, or depth=16")

    @property
    def fields(self) -> tuple[Field, ...]:
        """Only `inputs`."""
        return (Field("inputs", (*shape_of(self.crop), self.channels), np.dtype(f"uint{self.depth}")),)

    @property
    def scales_tiled(self) -> bool:
        """See `Decoder`."""
        return self.compiled and bool(self.dct_scaling)

    def sized(self, size: Size) -> Self:
        """See `Decoder`."""
        return replace(self, crop=sized(self.crop, size))

    def draw(self, seed: int, epoch: int, ids: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
        """The numbers that choose the crops."""
        return uniforms(seed, epoch, ids, self._STAGE, self.crop.draws)

    def cuts_pixels(self, dataset: Dataset) -> bool:
        """See `Decoder`."""
        stores = bool(getattr(dataset, "stores_pixels", False)) and type(self).fill_row is ImageDecoder.fill_row
        return stores and self._queues and has_compiled_windows(self.crop)

    @property
    def takes_turns(self) -> bool:
        """See `Decoder`."""
        return type(self).fill_row is ImageDecoder.fill_row

    def read_ahead(self, dataset: Dataset, ids: npt.NDArray[np.int64], draw: DrawCrops | None) -> None:
        """See `Decoder`: of large photographs with an index, what their crops read."""
        large = getattr(dataset, "blocks", None) is not None and self._reads_parts
        if not large or draw is None or type(self).fill_row is not ImageDecoder.fill_row:
            dataset.will_need(ids)
            return
        whole = will_need_parts(dataset, ids, draw, self.crop, scaling_of(self.dct_scaling))
        dataset.will_need(ids if whole.all() else ids[whole])

    def fill(
        self, reader: SampleReader, ids: Sequence[int], draws: npt.NDArray[np.float64], rows: Rows, scratch: Scratch
    ) -> list[Failure]:
        """See `Decoder`: groups of samples, whose JPEGs are decoded in one call."""
        if self.depth == 16:
            make_ready()
        if not self.compiled or type(self).fill_row is not ImageDecoder.fill_row:
            return super().fill(reader, ids, draws, rows, scratch)
        if self.depth == 16:
            return self._fill_deep(reader, ids, draws, rows, scratch)
        out = rows["inputs"]
        cut = None
        if self._queues:
            cut = scratch.own(PixelCuts).cut(reader, ids, self.crop, draws, self.max_pixels, scratch, out)
            if cut is not None and cut.all():
                return []
        failures: list[Failure] = []
        for group in scratch.groups(len(ids)):
            filled = None if cut is None else cut[group]
            failed = self._fill_group(reader, ids[group], draws[group], out[group], filled, scratch)
            failures += [(group.start + place, error) for place, error in failed]
            if any(not isinstance(error, ImageError) for _, error in failed):
                break
        return failures

    def fill_row(self, data: memoryview, draws: Sequence[float], row: Row, scratch: Scratch) -> None:
        """See `Decoder`."""
        out = row["inputs"]
        queue = scratch.own(CropQueue)
        queue.clear()
        if self._queues and queue.add(data, self.crop, draws, self.max_pixels, 0, patient=False):
            damaged = queue.run(self.crop, scaling_of(self.dct_scaling), scratch, out[None])
            if not damaged:
                return
        pictures = scratch.own(PictureQueue)
        taken = self._queues and pictures.add(data, self.crop, draws, self.max_pixels)
        if taken and not pictures.run(self.crop, scratch, out[None]):
            return
        self._decode(data, draws, out, scratch)

    def _fill_deep(
        self, reader: SampleReader, ids: Sequence[int], draws: npt.NDArray[np.float64], rows: Rows, scratch: Scratch
    ) -> list[Failure]:
        """Fill rows of 16 bits: groups of files, of which most are cut in one call, and others one by one."""
        if fill_of(self.crop) is not None or not deep_queue.can_cut(self.crop):
            return super().fill(reader, ids, draws, rows, scratch)
        failures: list[Failure] = []
        queue, inputs = scratch.own(DeepQueue), rows["inputs"]
        for group in scratch.groups(len(ids)):
            encoded, out = reader.read_group(ids[group], scratch), inputs[group]
            filled = queue.cut(encoded, self.crop, draws[group], self.max_pixels, scratch, out)
            for place in np.flatnonzero(~filled).tolist():
                held, index, numbers = encoded[place], ids[group][place], draws[group][place].tolist()
                row = {"inputs": out[place]}
                if held is None:
                    error = attempt(self._read_row, reader, index, numbers, row, scratch)
                else:
                    error = attempt(self.fill_row, held, numbers, row, scratch)
                if error is not None:
                    failures.append((group.start + place, error))
                    if not isinstance(error, ImageError):
                        return failures
        return failures

    def _fill_group(
        self,
        reader: SampleReader,
        ids: Sequence[int],
        draws: npt.NDArray[np.float64],
        out: Pixels,
        filled: npt.NDArray[np.bool_] | None,
        scratch: Scratch,
    ) -> list[Failure]:
        """Fill `out` [k, H, W, C], k <= MOST, but what is `filled`: JPEGs are decoded at the end, and others resized.

        For the JPEGs that the compiled decoder takes, Python does nothing by itself: with many threads each microsecond
        that it needs for an image is one in which no other thread has its lock, the one that trains included. Only
        large photographs of which a crop reads parts come first, one by one.
        """
        failures: list[Failure] = []
        large = reader.blocks.places(ids) if reader.blocks is not None and self._reads_parts else []
        if large:
            filled = np.zeros(len(ids), np.bool_) if filled is None else filled.copy()
            failures = self._fill_from_parts(reader, ids, draws, out, large, filled, scratch)
            if any(not isinstance(error, ImageError) for _, error in failures):
                return failures
        if filled is not None and filled.all():
            return failures
        queue = scratch.own(CropQueue)
        queue.clear()
        decoded = scratch.own(ResizeQueue)
        decoded.clear()
        encoded = reader.read_group(ids, scratch, filled)
        left = queue.add_group(encoded, self.crop, draws, self.max_pixels) if self._queues else None
        places: Sequence[int] = range(len(ids)) if left is None else left
        if filled is not None:
            places = [place for place in places if not filled[place]]
        pngs = scratch.own(PictureQueue)
        pngs.clear()
        if self._queues and places:
            places = pngs.add_group(encoded, places, self.crop, draws, self.max_pixels)
        for place in places:
            held, numbers = encoded[place], draws[place].tolist()
            may_take = queue if held is None or left is None else None
            error = attempt(self._queue_or_decode, reader, ids[place], held, numbers, place, out, may_take, scratch)
            if error is not None:
                failures.append((place, error))
                if not isinstance(error, ImageError):
                    return failures
        undecoded = queue.run(self.crop, scaling_of(self.dct_scaling), scratch, out)
        undecoded += pngs.run(self.crop, scratch, out)
        for place, data in undecoded:  # the damaged ones
            error = attempt(self._decode, data, draws[place].tolist(), out[place], scratch)
            if error is not None:
                failures.append((place, error))
        decoded.run(self.crop, scratch, out)
        return failures

    def _fill_from_parts(
        self,
        reader: SampleReader,
        ids: Sequence[int],
        draws: npt.NDArray[np.float64],
        out: Pixels,
        places: Sequence[int],
        filled: npt.NDArray[np.bool_],
        scratch: Scratch,
    ) -> list[Failure]:
        """Fill those of `places` whose crops read parts of a photograph, and note them, and those that fail."""
        parts = scratch.own(PartialReads)
        scaling = scaling_of(self.dct_scaling)

        def fill(place: int) -> None:
            known = self.crop, draws[place].tolist(), self.max_pixels, scaling
            filled[place] = parts.crop(reader, ids[place], *known, scratch, out[place])

        failures: list[Failure] = []
        for place in places:
            error = None if filled[place] else attempt(fill, place)
            if error is not None:
                filled[place] = True
                failures.append((place, error))
                if not isinstance(error, ImageError):
                    break
        return failures

    def _queue_or_decode(
        self,
        reader: SampleReader,
        index: int,
        held: memoryview | None,
        draws: Sequence[float],
        place: int,
        out: Pixels,
        queue: CropQueue | None,
        scratch: Scratch,
    ) -> None:
        """Read and decode a sample, or queue it; with `queue` None it is known that this one does not take it."""
        data = held or reader.read(index, scratch.other(place))  # queued samples must stay in memory
        taken = queue is not None and self._queues and queue.add(data, self.crop, draws, self.max_pixels, place)
        if not taken:
            self._decode_to_queue(data, draws, place, out, scratch)

    def _decode_to_queue(
        self, data: memoryview, draws: Sequence[float], place: int, out: Pixels, scratch: Scratch
    ) -> None:
        """`_decode`, but what can wait for its resize until the end of the group does."""
        if not self._queues:
            self._decode(data, draws, out[place], scratch)
            return
        queue = scratch.own(ResizeQueue)
        header, window = self._header_and_window(data, draws)
        pixels, box = decode_box(data, header, window.box, scratch.other(len(queue)), self.channels)
        if not queue.add(pixels, window._replace(box=box), out.shape[1:3], place):
            resample(pixels, window._replace(box=box), self.crop.interpolation, out[place])
        elif queue.full:
            queue.run(self.crop, scratch, out)

    def _header_and_window(self, data: bytes | memoryview, draws: Sequence[float]) -> tuple[Header, Window]:
        header = read_header(data, self.max_pixels)
        window = self.crop.window(*header.size, draws)
        if window.size[0] * window.size[1] > self.max_pixels:  # a strip of 1 x 30000, its short side made 256
            raise ImageError(f"{header.width} x {header.height} pixels are too long and thin to resize")
        return header, window

    def _decode(self, data: bytes | memoryview, draws: Sequence[float], out: Pixels, scratch: Scratch) -> None:
        """Decode what the compiled decoder does not take, by libjpeg-turbo or Pillow."""
        header, window = self._header_and_window(data, draws)
        fill = fill_of(self.crop)
        if self.depth == 16:
            self._decode_deep(data, header, window, out, scratch)
            return
        if fill is not None and self.compiled and self._decode_tiles(data, window, fill, out, scratch):
            return
        pixels, box = decode_box(data, header, window.box, scratch, self.channels)
        resample(pixels, window._replace(box=box), self.crop.interpolation, out, fill)

    def _decode_deep(
        self, data: bytes | memoryview, header: Header, window: Window, out: npt.NDArray[Any], scratch: Scratch
    ) -> None:
        """Decode to 16 bits; those of an image that has 8 are scaled."""
        deep = decode_deep(data, header)
        if deep is not None:
            pixels, box = deep_part(deep, window.box, self.channels)
        else:
            pixels, box = as_deep(decode_box(data, header, window.box, scratch, self.channels))
        fill = fill_of(self.crop)
        beyond = None if fill is None else 257 * fill
        resample_deep(pixels, window._replace(box=box), self.crop.interpolation, out, beyond)

    @functools.cached_property
    def _queues(self) -> bool:
        """Whether JPEGs go straight into rows: of 8 bits, of a crop that fills nothing beyond the image."""
        return self.compiled and self.depth == 8 and fill_of(self.crop) is None

    @property
    def _reads_parts(self) -> bool:
        """Whether crops of photographs with an index read parts of them."""
        return self._queues and self.channels == 3

    def _decode_tiles(self, data: bytes | memoryview, window: Window, fill: int, out: Pixels, scratch: Scratch) -> bool:
        """Decode a JPEG, without its padding, into a canvas of `fill`; False if it is none, or damaged."""
        queue = scratch.own(_lone_queue)  # a group's may be in use
        queue.clear()
        plain = _PlainCrop(window._replace(at=(0, 0)), self.crop.interpolation)
        if not queue.add(data, plain, (), self.max_pixels, 0, patient=False):
            return False
        width, height = window.size
        nbytes = width * height * self.channels
        resized = np.frombuffer(scratch.pixels(nbytes), np.uint8, nbytes).reshape(1, height, width, self.channels)
        if queue.run(plain, scaling_of(self.dct_scaling), scratch, resized):
            return False
        paste(resized[0], window, fill, out)
        return True

    def describe(self) -> str:
        """See `Decoder`."""
        scaling = ", tiled ones DCT-scaled where crops are large" if self.dct_scaling else ""
        deep = " with 16 bits" if self.depth == 16 else ""
        return f"{'images' if deep else 'JPEGs'} decoded on the CPU{in_gray(self.channels)}{deep}{scaling}"


@dataclass(frozen=True)
class _PlainCrop:
    """The crop of one image whose window is known, and which takes all of what is resized."""

    known: Window
    interpolation: Interpolation
    draws: int = 0

    @property
    def size(self) -> Size:
        return self.known.size[::-1]

    def window(self, width: int, height: int, draws: Sequence[float]) -> Window:
        return self.known


def _lone_queue() -> CropQueue:
    return CropQueue()
