"""The decoder protocol: encoded samples in, rows of a batch out.

SampleReader.read(id) -> encoded bytes -> Decoder.fill(chunk) -> rows, and the failures among them
"""

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ParamSpec, Self, TypeVar

import numpy as np
import numpy.typing as npt
import torch

from fastimg.loaders.containers.datasets import Dataset
from fastimg.loaders.containers.derived.block_index import BlockIndex
from fastimg.loaders.containers.stored_pixels import StoredPixels
from fastimg.loaders.runtime.scratch import Encoded, Scratch
from fastimg.loaders.runtime.stopping import Cancelled

from .batch import Field
from .crop import Size
from .errors import ImageError, first_line
from .ring import Ring, SlotLayout

Rows = Mapping[str, npt.NDArray[Any]]  # by field: [k, *shape], the rows of k samples
Row = Mapping[str, npt.NDArray[Any]]  # by field: [*shape], the row of one sample; writable even where shape is ()
Failure = tuple[int, Exception]  # the place in the chunk, and why its row is not filled

DrawCrops = Callable[[npt.NDArray[np.int64]], npt.NDArray[np.float64]]  # ids [k] -> the numbers of their crops [k, d]

P = ParamSpec("P")
T = TypeVar("T")


class SampleReader:
    """The dataset as a decoder sees it: reading is timed, and stops when the iteration is cancelled."""

    def __init__(self, dataset: Dataset, is_cancelled: Callable[[], bool] = lambda: False) -> None:
        self.dataset = dataset
        self.seconds = 0.0  # spent reading
        self.reads = 0  # samples that were read one by one
        self.nbytes = 0  # of these
        self.grouped = 0  # samples that were asked for in groups
        self.grouped_bytes = 0  # of these
        self._is_cancelled = is_cancelled

    @property
    def blocks(self) -> BlockIndex | None:
        """The index of the dataset's large photographs, by which crops read parts of them; None: all are read whole."""
        found: BlockIndex | None = getattr(self.dataset, "blocks", None)
        return found

    def read(self, index: int, scratch: Scratch) -> memoryview:
        """The encoded sample, valid until `scratch` is used again. Raises Cancelled and what `Dataset.read` raises."""
        if self._is_cancelled():
            raise Cancelled
        began = time.perf_counter()
        data = self.dataset.read(index, scratch)
        self.seconds += time.perf_counter() - began
        self.reads += 1
        self.nbytes += len(data)
        return data

    def read_group(self, ids: Sequence[int], scratch: Scratch, filled: npt.NDArray[np.bool_] | None = None) -> Encoded:
        """The encoded samples `ids` [k], k <= MOST, valid until `scratch` holds another group; see `Encoded`.

        Those that are `filled` [k] already are not read. Others that it does not have, `read` reads. Raises Cancelled,
        and DataError if the data has changed.
        """
        read = getattr(self.dataset, "read_group", None)
        if read is None:
            return scratch.group(len(ids))
        places = None if filled is None or not filled.any() else np.flatnonzero(~filled).tolist()
        wanted = ids if places is None else [ids[place] for place in places]
        encoded = scratch.group(len(wanted))
        try:
            self.timed(read, wanted, encoded)
            self.grouped += len(wanted)
            self.grouped_bytes += encoded.total
        except MemoryError:  # of one of them; each is then read by itself, which names it
            encoded.begin(len(wanted))
        if places is not None:
            encoded.spread(places, len(ids))
        return encoded

    def stored_pixels(self, ids: Sequence[int]) -> StoredPixels | None:
        """Where the pixels of the samples `ids` [k] lie; None if all are encoded.

        Raises DataError if the data has changed.
        """
        find = getattr(self.dataset, "stored_pixels", None)
        found: StoredPixels | None = None if find is None else find(ids)
        return found

    def timed(self, read: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """What `read(...)` returns, for datasets that read several samples at once. Raises Cancelled."""
        if self._is_cancelled():
            raise Cancelled
        began = time.perf_counter()
        result = read(*args, **kwargs)
        self.seconds += time.perf_counter() - began
        return result


class Decoder(ABC):
    """Fills the rows of a batch. One instance is shared by all worker threads, so it keeps no state between samples.

    A subclass names its `fields` and decodes one sample in `fill_row`; everything else has a default. A batch has a
    tensor for each field: `batch.inputs`, and the others as `batch.fields[name]`, [B, *shape] on the loader's device,
    all moved there in the same copy. For example, to get the box of each crop:

        class Boxes(ImageDecoder):
            @property
            def fields(self):
                return *super().fields, Field("box", (4,), np.dtype(np.int64), blank=-1)

            def fill_row(self, data, draws, row, scratch):
                super().fill_row(data, draws, row, scratch)
                row["box"][:] = self.crop.window(*read_header(data).size, draws).box  # x, y, width, height

        for batch in Loader("D", Boxes(RandomResizedCrop(size=224)), batch_size=256):
            batch.fields["box"]  # int64 [256, 4]; -1 in rows without a sample
    """

    @property
    @abstractmethod
    def fields(self) -> tuple[Field, ...]:
        """The fields that it fills, `inputs` among them; `targets`, `ids` and `weight` are filled by the loader."""

    @property
    def view_fields(self) -> Mapping[str, str]:
        """Of a decoder of several views of an image: each view's name, and the `apart` field that holds it."""
        return {}

    @property
    def scales_tiled(self) -> bool:
        """Whether tiled JPEGs are decoded at a fraction of their size, which only the compiled decoder does."""
        return False

    @abstractmethod
    def fill_row(self, data: memoryview, draws: Sequence[float], row: Row, scratch: Scratch) -> None:
        """Decode one sample into `row`. Raises ImageError if it cannot be decoded."""

    def fill(
        self, reader: SampleReader, ids: Sequence[int], draws: npt.NDArray[np.float64], rows: Rows, scratch: Scratch
    ) -> list[Failure]:
        """Read and decode the samples `ids` [k], with `draws` [k, d], into `rows`; return those that failed.

        A sample that fails with ImageError gets weight 0; any other error ends the iteration, so it may stop there.
        By default samples are decoded one by one; override this to decode several in one call.
        """
        failures: list[Failure] = []
        for place, (index, numbers) in enumerate(zip(ids, draws.tolist(), strict=True)):
            row = {name: array[place, ...] for name, array in rows.items()}
            error = attempt(self._read_row, reader, index, numbers, row, scratch)
            if error is not None:
                failures.append((place, error))
                if not isinstance(error, ImageError):
                    break
        return failures

    def _read_row(self, reader: SampleReader, index: int, draws: Sequence[float], row: Row, scratch: Scratch) -> None:
        self.fill_row(reader.read(index, scratch), draws, row, scratch)

    def draw(self, seed: int, epoch: int, ids: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
        """The random numbers of a batch [B, d]: a pure function of its arguments. By default none are drawn.

        A sample that comes again within an epoch, as with a `sampling`, has another number than its id then.
        """
        return np.zeros((len(ids), 0))

    def read_ahead(self, dataset: Dataset, ids: npt.NDArray[np.int64], draw: DrawCrops | None) -> None:
        """Have the samples `ids` [k] read ahead, as far as this decodes them: by default whole.

        `draw` gives the numbers that `fill` will get with them; None where they are not known yet.
        """
        dataset.will_need(ids)

    def in_memory(self, dataset: Dataset) -> bool:
        """Whether `fill` only copies from memory; the consumer's own thread calls it then."""
        return False

    def cuts_pixels(self, dataset: Dataset) -> bool:
        """Whether `fill` cuts most samples out of stored pixels, in calls of compiled code for all that it is given."""
        return False

    @property
    def takes_turns(self) -> bool:
        """Whether threads take turns with samples of a few KB that are read one by one: see `runtime.turns`."""
        return False

    def sized(self, size: Size) -> Self:
        """The same decoder for smaller or larger pictures of the same boxes: `size` is a side in pixels or (height,
        width).

        Raises TypeError if it has only one size, and what `crop.sized` raises.
        """
        raise TypeError(f"{type(self).__name__} has one size; give a decoder with a method `sized`")

    def present(self, inputs: torch.Tensor, rows: Rows) -> torch.Tensor:
        """The view of `inputs` [B, ...] that the batch shows; `rows` are in host memory.

        By default images: [B, H, W, C] are shown as [B, C, H, W].
        """
        return inputs.permute(0, 3, 1, 2)

    def ring(self, layout: SlotLayout, device: torch.device) -> Ring | None:
        """The ring that finishes the batches of this decoder; None: slots are copied to the device as they are."""
        return None

    def describe(self) -> str:
        """What is decoded where, in words."""
        return f"samples decoded by {type(self).__name__}"


def attempt(call: Callable[P, object], *args: P.args, **kwargs: P.kwargs) -> Exception | None:
    """The exception that `call(...)` raises, if any.

    A lack of memory is an error of the image that asks for so much. Errors of images have no traceback: its frames
    refer to the image's pixels, and to the caller's list of errors, so that both would wait for the garbage collector.
    """
    try:
        call(*args, **kwargs)
    except MemoryError as error:
        return ImageError(first_line(error))
    except ImageError as error:
        return _without_traceback(error)
    except Exception as error:  # noqa: BLE001 - the pool tells them apart
        return error
    return None


def _without_traceback(error: ImageError) -> ImageError:
    """The error, without its own traceback and those of what it was raised from."""
    chain: list[BaseException | None] = [error]
    while chain:
        raised = chain.pop()
        if raised is not None and raised.__traceback__ is not None:
            raised.__traceback__ = None
            chain += [raised.__cause__, raised.__context__]
    return error
