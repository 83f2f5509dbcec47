"""The decoder that decodes and resizes JPEGs on the device.

It reads the same bytes, draws the same numbers and cuts the same boxes as `ImageDecoder`. The pixels differ slightly,
because a GPU's JPEG decoder rounds differently, both in decoding and in the conversion to RGB.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
import numpy.typing as npt
import torch

from fastimg.loaders.batch import Field
from fastimg.loaders.crop import RandomCrop, Size, Window, describe_size, fill_of
from fastimg.loaders.decode import Header, decode, read_header, stored_box, upright
from fastimg.loaders.decoder import Decoder, Failure, Row, Rows, SampleReader, attempt
from fastimg.loaders.decoders.images import ImageDecoder
from fastimg.loaders.errors import ImageError
from fastimg.loaders.jpeg.rewriting.splice import splice
from fastimg.loaders.resample import resample
from fastimg.loaders.ring import SlotLayout
from fastimg.loaders.runtime.cpus import available_cpus
from fastimg.loaders.runtime.scratch import Scratch

from .nvcodec import BatchDecoder, NvCodec
from .ragged import LEFT_ALONE, PLACE, fill_table, table_words
from .ragged_ring import Codec, Cut, RaggedRing
from .tile_cuts import TileCuts

_MAX_TAPS = 128  # across and down together; 4000 x 3000 to 224 x 224 takes 63 bilinear, 126 bicubic


def _side(images: ImageDecoder) -> int:
    """The side of the square output. Raises ValueError for a rectangle."""
    size = images.crop.size
    if not isinstance(size, int):
        raise ValueError(
            f"crop {describe_size(size)}: the GPU's resize makes only squares; give one side, or decode on the CPU"
        )
    return size


def _window(images: ImageDecoder, header: Header, draws: Sequence[float]) -> Window:
    window = images.crop.window(*header.size, draws)
    if window.size[0] * window.size[1] > images.max_pixels:  # the same limit as in ImageDecoder
        raise ImageError(f"{header.width} x {header.height} pixels are too long and thin to resize")
    return window


@dataclass(frozen=True)
class DeviceDecode(Decoder):
    """Like `ImageDecoder`, but JPEGs are decoded and resized on the device, after the host has cut out their tiles.

    The workers decode other formats (PNG, CMYK JPEGs, ...) and crops that need too many taps. Threads of the ring
    decode the JPEGs that the codec refuses, and name them in `Slot.rerouted`.
    """

    images: ImageDecoder
    codec: BatchDecoder
    threads: int | None = None  # for what the codec refuses; None: as many as there are cores

    def __post_init__(self) -> None:
        if self.images.dct_scaling:
            raise ValueError("the device resizes whole crops: leave dct_scaling out")
        if isinstance(self.images.crop, RandomCrop) or fill_of(self.images.crop) is not None:
            raise ValueError("the GPU's resize does not pad images at their edges; decode padded crops on the CPU")
        if len(self.images.fields) > 1:
            raise ValueError("a decoder on the device fills only `inputs`; decode on the CPU for further fields")
        _side(self.images)

    @classmethod
    def on(cls, device: torch.device, images: ImageDecoder, threads: int | None = None) -> "DeviceDecode":
        """A decoder that uses nvImageCodec on a GPU, with threads of its own beside the loader's.

        Raises ModuleNotFoundError if it is not installed.
        """
        threads = threads or available_cpus()
        return cls(images, NvCodec(device, threads=threads), threads)

    @property
    def fields(self) -> tuple[Field, ...]:
        """See `Decoder`."""
        return (
            *self.images.fields,
            Field("place", (PLACE,), np.dtype(np.int64)),
            Field("table", (table_words(_side(self.images), _MAX_TAPS),), np.dtype(np.int32)),
            Field("cut", (), np.dtype(object), blank=None),
        )

    def sized(self, size: Size) -> Self:
        """See `Decoder`."""
        return replace(self, images=self.images.sized(size))

    def draw(self, seed: int, epoch: int, ids: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
        """See `Decoder`."""
        return self.images.draw(seed, epoch, ids)

    def fill(
        self, reader: SampleReader, ids: Sequence[int], draws: npt.NDArray[np.float64], rows: Rows, scratch: Scratch
    ) -> list[Failure]:
        """See `Decoder`: groups of samples, of whose JPEGs one compiled call cuts out what the device gets."""
        failures: list[Failure] = []
        for group in scratch.groups(len(ids)):
            part = {name: array[group] for name, array in rows.items()}
            failed = self._fill_group(reader, ids[group], draws[group], part, scratch)
            failures += [(group.start + place, error) for place, error in failed]
            if any(not isinstance(error, ImageError) for _, error in failed):
                break
        return failures

    def _fill_group(
        self, reader: SampleReader, ids: Sequence[int], draws: npt.NDArray[np.float64], rows: Rows, scratch: Scratch
    ) -> list[Failure]:
        images, side, tables = self.images, _side(self.images), rows["table"]
        encoded = reader.read_group(ids, scratch)
        queue = scratch.own(TileCuts)
        cuts = queue.cut(encoded, images.crop, draws, images.max_pixels, side, tables, self.codec.parse)
        failures: list[Failure] = []
        for place, cut in enumerate(cuts):
            if cut is not None:
                rows["cut"][place] = cut
                continue
            row = {name: array[place, ...] for name, array in rows.items()}
            numbers = draws[place].tolist()
            error = attempt(self._fill_held, reader, ids[place], encoded[place], numbers, row, scratch)
            if error is not None:
                failures.append((place, error))
                if not isinstance(error, ImageError):
                    break
        return failures

    def _fill_held(
        self,
        reader: SampleReader,
        index: int,
        held: memoryview | None,
        draws: Sequence[float],
        row: Row,
        scratch: Scratch,
    ) -> None:
        self.fill_row(held or reader.read(index, scratch), draws, row, scratch)

    def fill_row(self, data: memoryview, draws: Sequence[float], row: Row, scratch: Scratch) -> None:
        """See `Decoder`."""
        crop = self.images.crop
        side = _side(self.images)
        header = read_header(data, self.images.max_pixels)
        if header.turbo:
            window = _window(self.images, header, draws)
            if fill_table(window, side, crop.interpolation, row["table"]):
                row["cut"][()] = self._cut(data, header, window, scratch)
                return
        self.images.fill_row(data, draws, row, scratch)
        row["table"][0] = LEFT_ALONE
        row["cut"][()] = None

    def _cut(self, data: memoryview, header: Header, window: Window, scratch: Scratch) -> Cut:
        box = x, y, width, height = stored_box(window.box, header)
        part = data
        if header.restarts and (width, height) != (header.width, header.height):
            part, (left, top) = splice(data, box, scratch.spliced(len(data) + 2))
            box = (x - left, y - top, width, height)
        jpeg = bytes(part)
        return Cut(jpeg, self.codec.parse(jpeg), box, header.orientation, window)

    def on_host(self, cut: Cut, row: npt.NDArray[np.uint8]) -> None:
        """Decode an image that the codec refused into `row` [S, S, 3]. Raises ImageError."""
        x, y, width, height = cut.box
        stored = decode(cut.jpeg, replace(read_header(cut.jpeg, self.images.max_pixels), orientation=1))
        if stored.shape[0] < y + height or stored.shape[1] < x + width:
            raise ImageError("the image has fewer pixels than its header says")
        pixels = upright(stored[y : y + height, x : x + width], cut.orientation)
        window = cut.window._replace(box=(0, 0, pixels.shape[1], pixels.shape[0]))
        resample(pixels, window, self.images.crop.interpolation, row)

    def describe(self) -> str:
        """See `Decoder`."""
        return "JPEGs decoded by nvImageCodec and resized on the GPU"

    def ring(self, layout: SlotLayout, device: torch.device) -> RaggedRing:
        """See `Decoder`."""
        return RaggedRing(layout, device, Codec(self.codec, self.on_host, self.threads or available_cpus()))
