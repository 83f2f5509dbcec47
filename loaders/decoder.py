"""What a batch is made of: named fields of fixed shape per sample, and the decoder that fills a row of them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol, Self, runtime_checkable

import numpy as np
import numpy.typing as npt
import torch

from fastimg.loaders.containers.datasets import Dataset
from fastimg.loaders.runtime.scratch import Scratch

from .crop import Crop, Size, shape_of, sized
from .decode import MAX_PIXELS, decode_box, read_header
from .errors import ImageError
from .random import uniforms
from .resample import resample

Row = Mapping[str, npt.NDArray[Any]]  # one sample's view of every field


class Field(NamedTuple):
    """A field of a batch: its shape per sample, without the batch's dimension. A row without a sample is `blank`.

    The type is bool, uint8, int8, int16, int32, int64, float16, float32 or float64.
    """

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    blank: int = 0


# What every batch has beside the decoder's fields.
LABEL_FIELDS = (
    Field("targets", (), np.dtype(np.int64)),
    Field("ids", (), np.dtype(np.int64)),
    Field("weight", (), np.dtype(np.float32)),
)


class Decoder(Protocol):
    """Turns an encoded sample into a row. It is shared by all worker threads and holds no state.

    A batch has a tensor for each of its fields: `batch.inputs`, and the others as `batch.fields[name]`, [B, *shape] on
    the loader's device, which they reach in the one copy that moves the batch. The box of each crop, for example:

        class Boxes(ImageDecoder):
            @property
            def fields(self):
                return *super().fields, Field("box", (4,), np.dtype(np.int64), blank=-1)

            def fill(self, data, draws, row, scratch):
                super().fill(data, draws, row, scratch)
                row["box"][:] = self.crop.window(*read_header(data).size, draws).box  # x, y, width, height

        for batch in Loader("D", Boxes(RandomResizedCrop(size=224)), batch_size=256):
            batch.fields["box"]  # int64 [256, 4]; -1 in rows that hold no sample

    A subclass of `ImageDecoder` with a `fill` of its own decodes tiled JPEGs one by one, not several in one call.
    """

    @property
    def fields(self) -> tuple[Field, ...]:
        """What it fills; the first is `inputs`. `targets`, `ids` and `weight` are taken: the loader fills those."""

    def draw(self, seed: int, epoch: int, ids: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
        """The random numbers of a batch [B, k], a pure function of its arguments."""

    def fill(self, data: memoryview, draws: Sequence[float], row: Row, scratch: Scratch) -> None:
        """Fill `row`. Raises ImageError where the sample cannot be decoded."""


@runtime_checkable
class SizedDecoder(Protocol):
    """A decoder that can make smaller pictures of the same boxes."""

    def sized(self, size: Size) -> Self:
        """For pictures of `size`, a side in pixels or (height, width).

        Its fields fit where this one's do. Raises what `crop.sized` raises.
        """


@runtime_checkable
class Presenter(Protocol):
    """A decoder whose batches are handed out in another shape than they are filled in, images apart."""

    def present(self, inputs: torch.Tensor, host: npt.NDArray[Any]) -> torch.Tensor:
        """What the batch shows of `inputs` [B, ...] on the device, a view; `host` is the same in host memory."""

    def describe(self) -> str:
        """What is read, in words."""


@runtime_checkable
class GroupDecoder(Decoder, Protocol):
    """A decoder that does several samples in one call, so that Python's share is paid for all of them at once."""

    def note(self, data: memoryview, draws: Sequence[float], row: int, scratch: Scratch) -> bool:
        """Whether the sample waits in `scratch` for `fill_noted`; `data` must stay as it is until then. Up to GROUP."""

    def fill_noted(self, rows: Row, scratch: Scratch) -> list[int]:
        """Fill the rows [B, ...] of what was noted: those that are for `fill`, after all."""


@runtime_checkable
class RowsDecoder(Decoder, Protocol):
    """A decoder that fills many rows straight from the dataset: where a sample is small, Python's share is most."""

    def at_once(self, dataset: Dataset) -> bool:
        """Whether the samples are in memory, so that filling rows is a copy: then the consumer's own thread does it."""

    def fill_rows(self, dataset: Dataset, ids: Sequence[int], rows: Row) -> list[int]:
        """Fill rows [k, ...] with the samples `ids`. Returns the places of those that are for `read` and `fill`."""


@dataclass(frozen=True)
class ImageDecoder:
    """Encoded image -> `inputs` [H, W, 3] uint8: decoded, upright, cropped, resized."""

    crop: Crop
    max_pixels: int = MAX_PIXELS
    dct_scaling: bool = False  # a tiled JPEG's crop of at least twice the size is decoded at 1/2, 1/4 or 1/8
    compiled: bool = True  # tiled JPEGs by our own decoder, not libjpeg-turbo's: the same bits

    _STAGE = 0x0C

    @property
    def fields(self) -> tuple[Field, ...]:
        """See `Decoder`."""
        return (Field("inputs", (*shape_of(self.crop), 3), np.dtype(np.uint8)),)

    def sized(self, size: Size) -> Self:
        """See `SizedDecoder`."""
        return replace(self, crop=sized(self.crop, size))

    def draw(self, seed: int, epoch: int, ids: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
        """See `Decoder`."""
        return uniforms(seed, epoch, ids, self._STAGE, self.crop.draws)

    def note(self, data: memoryview, draws: Sequence[float], row: int, scratch: Scratch) -> bool:
        """See `GroupDecoder`."""
        return self.compiled and scratch.group.add(data, self.crop, draws, self.max_pixels, row)

    def fill_noted(self, rows: Row, scratch: Scratch) -> list[int]:
        """See `GroupDecoder`."""
        return scratch.group.run(self.crop, self.dct_scaling, scratch, rows["inputs"])

    def fill(self, data: memoryview, draws: Sequence[float], row: Row, scratch: Scratch) -> None:
        """See `Decoder`."""
        out = row["inputs"]
        if self.note(data, draws, 0, scratch) and not self.fill_noted({"inputs": out[None]}, scratch):
            return
        header = read_header(data, self.max_pixels)
        window = self.crop.window(*header.size, draws)
        if window.size[0] * window.size[1] > self.max_pixels:  # a strip of 1 x 30000, its short side made 256
            raise ImageError(f"{header.width} x {header.height} pixels are too long and thin to resize")
        pixels, box = decode_box(data, header, window.box, scratch)
        resample(pixels, window._replace(box=box), self.crop.interpolation, out)
