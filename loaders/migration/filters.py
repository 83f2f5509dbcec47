"""timm's interpolation="random": each image is resized by the bilinear or the bicubic filter, whichever it draws."""

import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
import numpy.typing as npt

from fastimg.loaders.batch import Field
from fastimg.loaders.crop import CropRule, Interpolation, RandomResizedCrop, Size, Window, sized
from fastimg.loaders.decoder import Decoder, Failure, Row, Rows, SampleReader
from fastimg.loaders.decoders.images import ImageDecoder
from fastimg.loaders.errors import ImageError
from fastimg.loaders.random import uniforms
from fastimg.loaders.runtime.scratch import Scratch

from .crops import KeepRatio


@dataclass(frozen=True, kw_only=True)
class EitherFilter:
    """The windows of `crop`, and one more number, which chooses the filter. See `CropRule`."""

    crop: RandomResizedCrop | KeepRatio

    @property
    def size(self) -> Size:
        """See `CropRule`."""
        return self.crop.size

    @property
    def interpolation(self) -> Interpolation:
        """Where nothing is drawn: `EitherDecoder` draws it."""
        return self.crop.interpolation

    @property
    def draws(self) -> int:
        """See `CropRule`."""
        return self.crop.draws + 1

    def window(self, width: int, height: int, draws: Sequence[float]) -> Window:
        """See `CropRule`."""
        return self.crop.window(width, height, draws)


@dataclass(frozen=True)
class EitherDecoder(Decoder):
    """An `ImageDecoder` for each of the two filters; each decodes the samples that have drawn its own."""

    crop: EitherFilter

    @functools.cached_property
    def _each(self) -> tuple[ImageDecoder, ImageDecoder]:
        crop = self.crop.crop
        bilinear, bicubic = replace(crop, interpolation="bilinear"), replace(crop, interpolation="bicubic")
        return ImageDecoder(bilinear), ImageDecoder(bicubic)

    @property
    def fields(self) -> tuple[Field, ...]:
        """Only `inputs`."""
        return self._each[0].fields

    def sized(self, size: Size) -> Self:
        """See `Decoder`."""
        crop = sized(self.crop.crop, size)
        assert isinstance(crop, RandomResizedCrop)
        return replace(self, crop=EitherFilter(crop=crop))

    def draw(self, seed: int, epoch: int, ids: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
        """The numbers that choose the crops, as `ImageDecoder` draws them, and the filters."""
        return uniforms(seed, epoch, ids, ImageDecoder._STAGE, self.crop.draws)

    def fill(
        self, reader: SampleReader, ids: Sequence[int], draws: npt.NDArray[np.float64], rows: Rows, scratch: Scratch
    ) -> list[Failure]:
        """See `Decoder`."""
        inputs = rows["inputs"]
        failures: list[Failure] = []
        cubic = draws[:, -1] < 0.5
        for decoder, chosen in zip(self._each, (~cubic, cubic), strict=True):
            places = np.flatnonzero(chosen).tolist()
            if not places:
                continue
            made = np.empty((len(places), *inputs.shape[1:]), inputs.dtype)
            numbers = np.ascontiguousarray(draws[places, :-1])
            failed = decoder.fill(reader, [ids[place] for place in places], numbers, {"inputs": made}, scratch)
            inputs[places] = made
            failures += [(places[place], error) for place, error in failed]
            if any(not isinstance(error, ImageError) for _, error in failed):
                break
        return failures

    def fill_row(self, data: memoryview, draws: Sequence[float], row: Row, scratch: Scratch) -> None:
        """See `Decoder`."""
        self._each[draws[-1] < 0.5].fill_row(data, draws[:-1], row, scratch)

    def describe(self) -> str:
        """See `Decoder`."""
        return self._each[0].describe()


def decoder_of(crop: CropRule) -> Decoder:
    """The decoder of a transform's crop."""
    return EitherDecoder(crop) if isinstance(crop, EitherFilter) else ImageDecoder(crop)
