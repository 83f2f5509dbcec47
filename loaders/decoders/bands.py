"""The decoder of bands: an array [C, H, W] -> window of the crop -> resize in floating point -> row."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from fastimg.loaders.batch import Field
from fastimg.loaders.containers.bands import TYPES, BandsDataset, StoredBands
from fastimg.loaders.crop import CropRule, Size, fill_of, shape_of, sized
from fastimg.loaders.decode import MAX_PIXELS
from fastimg.loaders.decoder import Decoder, Failure, Row, Rows, SampleReader, attempt
from fastimg.loaders.errors import ImageError
from fastimg.loaders.folders.bands import read_bands
from fastimg.loaders.resample import resample_deep
from fastimg.loaders.runtime.scratch import Scratch

from .bands_queue import BandsQueue, can_cut
from .images import ImageDecoder, pixel_limit

_AT_ONCE = 1 << 21  # bytes of crops: the arrays that they are cut from should stay in the processor's cache


@dataclass(frozen=True)
class BandsDecoder(Decoder):
    """Bands [C, H, W] -> `inputs` [H, W, C] of their own type: cropped and resized, with the draws of images.

    It reads a `BandsDataset`, or .npy and TIFF files. Crops that have to be resized are resized in float32 by torch's
    antialiased kernels, as torchvision's v2 resizes floats, and rounded where the type is one of whole numbers; a box
    that keeps its size keeps its values. Beyond the image there are zeros where the crop fills.

    bands: C. dtype: uint8, uint16 or float32; ValueError for others, and as ImageDecoder for max_pixels.
    """

    crop: CropRule
    bands: int
    dtype: str
    max_pixels: int = MAX_PIXELS

    def __post_init__(self) -> None:
        if self.dtype not in TYPES:
            raise ValueError(f"dtype={self.dtype!r}: give one of {', '.join(TYPES)}")
        object.__setattr__(self, "max_pixels", pixel_limit(self.max_pixels))

    @property
    def fields(self) -> tuple[Field, ...]:
        """Only `inputs`."""
        return (Field("inputs", (*shape_of(self.crop), self.bands), np.dtype(self.dtype)),)

    def sized(self, size: Size) -> Self:
        """See `Decoder`."""
        return replace(self, crop=sized(self.crop, size))

    def draw(self, seed: int, epoch: int, ids: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
        """See `Decoder`: the numbers that an image draws."""
        return ImageDecoder(self.crop).draw(seed, epoch, ids)

    def fill(
        self, reader: SampleReader, ids: Sequence[int], draws: npt.NDArray[np.float64], rows: Rows, scratch: Scratch
    ) -> list[Failure]:
        """See `Decoder`: groups of arrays, of which most are cut in one call."""
        if type(self).fill_row is not BandsDecoder.fill_row or not can_cut(self.crop):
            return super().fill(reader, ids, draws, rows, scratch)
        failures: list[Failure] = []
        out = rows["inputs"]
        limit = max(1, _AT_ONCE * len(ids) // max(1, out.nbytes))
        for group in scratch.groups(len(ids), limit):
            failed = self._fill_group(reader, ids[group], draws[group], out[group], scratch)
            failures += [(group.start + place, error) for place, error in failed]
            if any(not isinstance(error, ImageError) for _, error in failed):
                break
        return failures

    def _fill_group(
        self,
        reader: SampleReader,
        ids: Sequence[int],
        draws: npt.NDArray[np.float64],
        out: npt.NDArray[Any],
        scratch: Scratch,
    ) -> list[Failure]:
        """Fill `out` [k, H, W, C], k <= MOST; what the compiled code leaves is cut one by one."""
        dataset = reader.dataset
        stored = dataset.arrays if isinstance(dataset, BandsDataset) else StoredBands()
        encoded = reader.read_group(ids, scratch)
        filled = scratch.own(BandsQueue).cut(encoded, stored, self.crop, draws, self.max_pixels, scratch, out)
        failures: list[Failure] = []
        for place in np.flatnonzero(~filled).tolist():
            held = None if isinstance(dataset, BandsDataset) else encoded[place]
            numbers, row = draws[place].tolist(), {"inputs": out[place]}
            if held is None:
                error = attempt(self._read_row, reader, ids[place], numbers, row, scratch)
            else:
                error = attempt(self.fill_row, held, numbers, row, scratch)
            if error is not None:
                failures.append((place, error))
                if not isinstance(error, ImageError):
                    break
        return failures

    def fill_row(self, data: memoryview, draws: Sequence[float], row: Row, scratch: Scratch) -> None:
        """See `Decoder`: the content of an .npy or TIFF file."""
        name = ".npy" if bytes(data[:6]) == b"\x93NUMPY" else ".tif"
        self._cut(read_bands(bytes(data), name, self.max_pixels), draws, row["inputs"])

    def _read_row(self, reader: SampleReader, index: int, draws: Sequence[float], row: Row, scratch: Scratch) -> None:
        if isinstance(reader.dataset, BandsDataset):  # without packing it
            self._cut(reader.timed(reader.dataset.read_array, index), draws, row["inputs"])
        else:
            super()._read_row(reader, index, draws, row, scratch)

    def _cut(self, array: npt.NDArray[Any], draws: Sequence[float], out: npt.NDArray[Any]) -> None:
        self._check(array)
        high, wide = array.shape[1:]
        window = self.crop.window(wide, high, draws)
        if window.size[0] * window.size[1] > self.max_pixels:
            raise ImageError(f"{wide} x {high} pixels are too long and thin to resize")
        resample_deep(array.transpose(1, 2, 0), window, self.crop.interpolation, out, fill_of(self.crop) and 0)

    def _check(self, array: npt.NDArray[Any]) -> None:
        """Raises ImageError for bands that the model does not read."""
        count, high, wide = array.shape
        if count != self.bands:
            raise ImageError(f"it has {count} bands, and the model reads {self.bands}")
        if array.dtype.name != self.dtype:
            raise ImageError(f"its bands are {array.dtype.name}, and the model reads {self.dtype}")
        if wide * high > self.max_pixels:
            raise ImageError(f"{wide} x {high} pixels are more than max_pixels={self.max_pixels}")
        if self.dtype == "float32":
            finite = np.isfinite(array)
            if not finite.all():
                band = int(np.flatnonzero(~finite.reshape(count, -1).all(axis=1))[0])
                wrong = f"{int((~finite).sum()):,} of its {array.size:,} values"
                raise ImageError(f"{wrong} are NaN or infinite, the first of them in band {band}, counted from 0")

    def describe(self) -> str:
        """See `Decoder`."""
        return f"arrays of {self.bands} bands of {self.dtype}, cut on the CPU"
