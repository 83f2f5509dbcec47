"""Decoders that leave work to the device: the resize of crops that the host decoded, or decoding and resize.

What is read, drawn and cut is what `ImageDecoder` reads, draws and cuts. `DeviceResize` gives its bits. `DeviceDecode`
does not: a GPU's JPEG decoder rounds otherwise, in the decoding and in the conversion to RGB.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
import numpy.typing as npt
import torch

from fastimg.loaders.batch import Field
from fastimg.loaders.crop import Size, Window, describe_size
from fastimg.loaders.decode import Header, decode, decode_box, read_header, stored_box, upright
from fastimg.loaders.decoder import Decoder, Row
from fastimg.loaders.decoders.images import ImageDecoder
from fastimg.loaders.errors import ImageError
from fastimg.loaders.jpeg.rewriting.splice import splice
from fastimg.loaders.resample import resample
from fastimg.loaders.ring import SlotLayout
from fastimg.loaders.runtime.cpus import available_cpus
from fastimg.loaders.runtime.scratch import Scratch

from .nvcodec import BatchDecoder, NvCodec
from .ragged import LEFT_ALONE, PLACE, fill_table, place, table_words
from .ragged_ring import Codec, Cut, RaggedRing

_PIXELS = 4  # room for a crop that the device resizes, in outputs: a larger one is resized on the host
_TAPS_OF_CROPS = 32  # room in its table, across and down together; strips need more of them
_TAPS_OF_JPEGS = 128  # 4000 x 3000 made 224 x 224 takes 63 of them bilinear, 126 bicubic


def _check(images: ImageDecoder) -> None:
    if images.dct_scaling:
        raise ValueError("the device resizes whole crops: leave dct_scaling out")
    if len(images.fields) > 1:
        raise ValueError("a decoder on the device fills only `inputs`; decode on the CPU for further fields")
    _side(images)


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
    if window.size[0] * window.size[1] > images.max_pixels:  # as ImageDecoder has it, whichever device resizes
        raise ImageError(f"{header.width} x {header.height} pixels are too long and thin to resize")
    return window


def _table_field(size: int, taps: int) -> Field:
    return Field("table", (table_words(size, taps),), np.dtype(np.int32))


_PLACE_FIELD = Field("place", (PLACE,), np.dtype(np.int64))
_CUT_FIELD = Field("cut", (), np.dtype(object), blank=None)


@dataclass(frozen=True)
class DeviceResize(Decoder):
    """As `ImageDecoder`, bit for bit; the host decodes and copies the crop, the device resizes it.

    Not a choice of the command line: the host's part, 618 us on one core (`ImageDecoder`: 432; 200 tiled
    photographs of 112 KB, crops to 224, median of 5), is libjpeg-turbo's decoding and a copy, while `ImageDecoder`
    decodes tiles into the resize. `benchmarks/gpu.py` measures it.

    A slot has room for four times the output's pixels in each row. A larger crop, and one of too many taps, is resized
    on the host.
    """

    images: ImageDecoder

    def __post_init__(self) -> None:
        _check(self.images)

    @property
    def fields(self) -> tuple[Field, ...]:
        """See `Decoder`."""
        size = _side(self.images)
        pixels = Field("pixels", (_PIXELS, size, size, 3), np.dtype(np.uint8))
        return pixels, _PLACE_FIELD, _table_field(size, _TAPS_OF_CROPS)

    def sized(self, size: Size) -> Self:
        """See `Decoder`."""
        return replace(self, images=self.images.sized(size))

    def draw(self, seed: int, epoch: int, ids: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
        """See `Decoder`."""
        return self.images.draw(seed, epoch, ids)

    def fill_row(self, data: memoryview, draws: Sequence[float], row: Row, scratch: Scratch) -> None:
        """See `Decoder`."""
        crop = self.images.crop
        side = _side(self.images)
        header = read_header(data, self.images.max_pixels)
        window = _window(self.images, header, draws)
        pixels, (x, y, width, height) = decode_box(data, header, window.box, scratch)
        space = row["pixels"].reshape(-1)
        small = width * height <= _PIXELS * side**2
        if small and fill_table(window, side, crop.interpolation, row["table"]):
            room = space[: width * height * 3].reshape(height, width, 3)
            np.copyto(room, pixels[y : y + height, x : x + width])
        else:
            width = height = side
            room = space[: width * height * 3].reshape(height, width, 3)
            resample(pixels, window._replace(box=(x, y, *window.box[2:])), crop.interpolation, room)
            same = Window((0, 0, width, height), (width, height), (0, 0))
            fitted = fill_table(same, side, crop.interpolation, row["table"])
            assert fitted
        row["place"][:] = place(0, (3, 3 * width, 1), (0, 0, width, height), 1)

    def describe(self) -> str:
        """See `Decoder`."""
        return "JPEGs decoded on the CPU, resized on the GPU"

    def ring(self, layout: SlotLayout, device: torch.device) -> RaggedRing:
        """See `Decoder`."""
        return RaggedRing(layout, device, None)


@dataclass(frozen=True)
class DeviceDecode(Decoder):
    """As `ImageDecoder`, but JPEGs are decoded and resized on the device, after the host has cut out their tiles.

    What libjpeg-turbo is not given on the CPU (PNG, CMYK, ...) and crops of too many taps are decoded by the workers.
    What the codec refuses is decoded by threads of the ring, and named in `Slot.rerouted`.
    """

    images: ImageDecoder
    codec: BatchDecoder

    def __post_init__(self) -> None:
        _check(self.images)

    @classmethod
    def on(cls, device: torch.device, images: ImageDecoder) -> "DeviceDecode":
        """With nvImageCodec on a GPU. Raises ModuleNotFoundError where that is not installed."""
        return cls(images, NvCodec(device, threads=available_cpus()))

    @property
    def fields(self) -> tuple[Field, ...]:
        """See `Decoder`."""
        return *self.images.fields, _PLACE_FIELD, _table_field(_side(self.images), _TAPS_OF_JPEGS), _CUT_FIELD

    def sized(self, size: Size) -> Self:
        """See `Decoder`."""
        return replace(self, images=self.images.sized(size))

    def draw(self, seed: int, epoch: int, ids: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
        """See `Decoder`."""
        return self.images.draw(seed, epoch, ids)

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
        """Make the row [S, S, 3] of what the codec refused. Raises ImageError."""
        x, y, width, height = cut.box
        stored = decode(cut.jpeg, replace(read_header(cut.jpeg), orientation=1))
        if stored.shape[0] < y + height or stored.shape[1] < x + width:
            raise ImageError("it has fewer pixels than its header says")
        pixels = upright(stored[y : y + height, x : x + width], cut.orientation)
        window = cut.window._replace(box=(0, 0, pixels.shape[1], pixels.shape[0]))
        resample(pixels, window, self.images.crop.interpolation, row)

    def describe(self) -> str:
        """See `Decoder`."""
        return "JPEGs decoded by nvImageCodec and resized on the GPU"

    def ring(self, layout: SlotLayout, device: torch.device) -> RaggedRing:
        """See `Decoder`."""
        return RaggedRing(layout, device, Codec(self.codec, self.on_host))
