"""Images that are decoded once and stay on the device: crops are cut there, and nothing is read again.

    ResidentImages   headers -> sizes -> load: the pool decodes all images into one buffer, which goes to the device
    ResidentLoader   ids, draws -> cut, or resized, on the device -> Batch; a thread makes a resize's tables ahead

What no random number decides is done before an image is kept: a centre crop is kept as it is cut, a padded crop's image
as it is resized, any other image whole. Batches are the native loader's, bit for bit (without DCT scaling).
"""

import time
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from fastimg.loaders.batch import Field
from fastimg.loaders.containers.datasets import Dataset
from fastimg.loaders.crop import CenterCrop, CropRule, RandomCrop, Size, Window, describe_size, fill_of, pair, shape_of
from fastimg.loaders.decode import MAX_PIXELS, Pixels, read_header
from fastimg.loaders.decoder import Decoder, Failure, Row, Rows, SampleReader, attempt
from fastimg.loaders.decoders.images import ImageDecoder
from fastimg.loaders.decoders.sizes import SizeReader
from fastimg.loaders.epochs.config import LoaderConfig
from fastimg.loaders.epochs.plan import EpochPlan
from fastimg.loaders.errors import DataError, ImageError
from fastimg.loaders.jpeg.decoding.filters import taps as most_taps
from fastimg.loaders.loader import Loader
from fastimg.loaders.random import keyed
from fastimg.loaders.resample import resample
from fastimg.loaders.runtime.in_order import in_order
from fastimg.loaders.runtime.scratch import Scratch
from fastimg.loaders.wording import plural

from .adapter import DecodedBatch, LoaderAdapter
from .cuts import cut, cut_rows, cut_shifted, shift_table, shifts_of

_BATCH = 256  # images that the pool decodes at a time
_STRETCH = 8  # batches whose numbers are drawn, and go to the device, together
_IN_FLIGHT = 2  # batches: the one that is wanted, and the next one, whose tables are made meanwhile

Places = npt.NDArray[np.int64]


class ResidentImages:
    """The images of a dataset, or those that `indices` names, for one crop on one device.

    Creating it reads the headers, unless all images are kept in one size; `nbytes` is then known. `load` decodes, and
    does nothing the second time. It takes the same number of bytes on the host meanwhile. An image that cannot be
    decoded is left black, and named in `unreadable`; with `on_error` "fail" it ends the reading with a DataError.
    """

    def __init__(
        self,
        dataset: Dataset,
        crop: CropRule,
        device: torch.device | str = "cpu",
        indices: npt.NDArray[np.int64] | None = None,
        max_pixels: int = MAX_PIXELS,
        workers: int | None = None,
        on_error: Literal["skip", "fail"] = "skip",
    ) -> None:
        if fill_of(crop) is not None:
            raise ValueError(f"{crop}: images that are kept on a device are not padded; use the native loader")
        self.dataset = dataset
        self.crop = crop
        self.device = torch.device(device)
        self.indices = indices
        self.max_pixels = max_pixels
        self.unreadable: dict[int, str] = {}  # id -> reason
        self.seconds = 0.0  # that reading and decoding have taken
        self.pixels: torch.Tensor | None = None  # uint8 [pixels of all images, 3]
        self._workers = workers
        self._on_error = on_error
        self._number = np.arange(len(dataset))  # id -> number of the image in here
        if indices is not None:
            self._number[indices] = np.arange(len(indices))
        self.sizes = self._read_sizes()  # int64 [n, 2], width and height; zeros for an image that cannot be decoded
        ends = self.sizes.prod(axis=1).cumsum()
        self.first = ends - self.sizes.prod(axis=1)  # int64 [n], the first pixel of each image
        self.nbytes = 3 * int(self.sizes.prod(axis=1).sum())

    def __len__(self) -> int:
        return len(self.sizes)

    def numbers(self, ids: npt.NDArray[np.int64]) -> Places:
        """The places of samples in `sizes` and `first`."""
        return self._number[ids]

    def load(self) -> torch.Tensor:
        """The pixels of all images on the device [pixels, 3], decoded by the pool if they are not there yet."""
        if self.pixels is None:
            began = time.perf_counter()
            buffer = np.zeros((max(1, self.nbytes // 3), 3), np.uint8)  # one pixel where none can be decoded
            readable = np.flatnonzero(self.sizes[:, 0])
            for _ in self._read(_Keeping(self, buffer), readable):
                pass
            for index in self.unreadable:  # one that was found to be damaged may be half decoded
                number = int(self._number[index])
                self.image(buffer, number)[:] = 0
                self.sizes[number] = 0
            self.pixels = torch.from_numpy(buffer).to(self.device)
            self.seconds += time.perf_counter() - began
        return self.pixels

    def image(self, pixels: Pixels, number: int) -> Pixels:
        """The view [height, width, 3] of one image in the `pixels` of all."""
        width, height = self.sizes[number].tolist()
        first = int(self.first[number])
        return pixels[first : first + width * height].reshape(height, width, 3)

    def describe(self) -> str:
        """How many images take how much memory where."""
        return f"resident, {plural(len(self), 'image')}, {self.nbytes / 2**20:,.1f} MiB on {self.device.type}"

    def _read_sizes(self) -> Places:
        count = len(self.dataset) if self.indices is None else len(self.indices)
        if not self.crop.draws:
            tall, wide = shape_of(self.crop)
            return np.tile(np.array([wide, tall]), (count, 1))
        began = time.perf_counter()
        batches = self._read(_Measuring(self.crop, self.max_pixels), np.arange(count))
        sizes = np.concatenate(list(batches))
        self.seconds += time.perf_counter() - began
        return sizes

    def _read(self, decoder: Decoder, numbers: Places) -> Generator[npt.NDArray[Any], None, None]:
        """What `decoder` makes of the images at `numbers`, in their order, batch by batch."""
        if not len(numbers):
            return
        ids = numbers if self.indices is None else self.indices[numbers]
        config = LoaderConfig(
            batch_size=min(_BATCH, len(ids)), order="sequential", workers=self._workers, on_error=self._on_error
        )
        with Loader(self.dataset, decoder, config, indices=ids) as loader:
            left = len(ids)
            for batch in loader:
                yield batch.inputs[:left].numpy().copy()
                left -= len(batch.ids)
            self.unreadable.update(loader.unreadable)


class ResidentLoader(LoaderAdapter):
    """Batches that are cut out of `images` on their device. It reads nothing.

    Where a GPU resizes, a thread makes what the next batch's kernel takes, while the current batch is in use.
    `crop` is the one that the images were kept for. Raises ValueError for another one.
    """

    def __init__(self, images: ResidentImages, crop: CropRule, config: LoaderConfig) -> None:
        if crop != images.crop:
            raise ValueError(f"{crop}: the images were kept for {images.crop}; keep them for this crop")
        super().__init__(images.dataset, crop, config, images.device, images.indices, workers=1)
        self.workers = self.slot_bytes = 0  # nothing is decoded, nor kept, on the host
        self._images = images
        self._resizes = bool(crop.draws) and not isinstance(crop, RandomCrop)
        self._compiled = self.device.type == "cpu"
        self._margin = crop.padding if isinstance(crop, RandomCrop) else 0
        self._size = (0, 0)  # width and height of all images, where `_table` has the places of their crops
        self._table: torch.Tensor | None = None
        self._out = torch.empty(0, dtype=torch.uint8)  # of the last batch, on a CPU
        if self._resizes and self.device.type == "cuda" and not isinstance(crop.size, int):
            raise ValueError(f"crop {describe_size(crop.size)}: the GPU's resize makes only squares; give one side")

    def describe(self) -> str:
        """See `BatchSource`."""
        return self._images.describe()

    def set_size(self, size: Size) -> None:
        """See `BatchSource`. Raises TypeError where images were resized before they were kept."""
        if not self._resizes and pair(size) != shape_of(self.crop):
            raise TypeError(f"the images are kept for crops of {describe_size(self.crop.size)}, which cannot change")
        super().set_size(size)

    def _decode(self, plan: EpochPlan) -> Generator[DecodedBatch, None, None]:
        pixels = self._images.load()
        if not (self._compiled or self._resizes) and self._table is None:
            self._table = self._shift_table()
        if self._resizes and not self._compiled:
            yield from self._resized_ahead(plan)
            return
        make = self._resized if self._resizes else self._cut
        for part in self._parts(plan):
            yield self._batch(part, make(pixels, part))

    def _resized_ahead(self, plan: EpochPlan) -> Generator[DecodedBatch, None, None]:
        """The batches of a GPU's resize."""
        ahead = ThreadPoolExecutor(1, "fastimg-loader-resident")
        try:
            for part, jobs in in_order(ahead, self._with_jobs, self._parts(plan), most=_IN_FLIGHT):
                yield self._batch(part, resize_on_device(jobs, self._blank()))
        finally:  # without waiting: the garbage collector may end an abandoned iteration in that thread itself
            ahead.shutdown(wait=False, cancel_futures=True)

    def _with_jobs(self, part: "_Part") -> tuple["_Part", "ResizeJobs | None"]:
        return part, resize_jobs(self._images, part.stretch.numbers[part.some], self._windows(part), self.crop)

    def _parts(self, plan: EpochPlan) -> Iterator["_Part"]:
        """What is known of each batch, in order; drawn for some of them together."""
        size = self.config.batch_size
        for start in range(0, plan.steps, _STRETCH):
            stretch = self._drawn(plan, range(start, min(start + _STRETCH, plan.steps)))
            for number, decoded in enumerate(stretch.decoded):
                first = number * size
                yield _Part(stretch, some=slice(first, first + decoded), rows=slice(first, first + size))

    def _batch(self, part: "_Part", images: torch.Tensor) -> DecodedBatch:
        stretch = part.stretch
        unreadable = self._images.unreadable
        failed = {}
        if unreadable:
            known = enumerate(stretch.ids[part.some].tolist())
            failed = {row: unreadable[index] for row, index in known if index in unreadable}
        return DecodedBatch(images, failed, targets=stretch.targets[part.rows], weight=stretch.weight[part.rows])

    def _shift_table(self) -> torch.Tensor | None:
        """A table for images that can all be read and have one size; None for others."""
        sizes = self._images.sizes
        if not len(sizes) or not sizes[0].all() or (sizes != sizes[0]).any():
            return None
        self._size = (int(sizes[0, 0]), int(sizes[0, 1]))
        table = shift_table(self._size, shape_of(self.crop), self._margin)
        return None if table is None else self._moved(torch.from_numpy(table))

    def _drawn(self, plan: EpochPlan, steps: range) -> "_Stretch":
        """What the batches of some steps need; targets, weights and jobs go to the device together."""
        rows = [plan.rows(step) for step in steps]
        repeats = [array for step in steps if (array := plan.repeats(step)) is not None]
        ids = np.concatenate([each.ids for each in rows])
        weight = np.concatenate([each.weight for each in rows])
        if unreadable := list(self._images.unreadable):
            weight[np.isin(ids, unreadable)] = 0
        keys = keyed(ids, np.concatenate(repeats) if repeats else None)
        draws = ImageDecoder(self.crop).draw(self.config.seed, plan.crop_epoch, keys)
        numbers = self._images.numbers(ids)
        jobs: Places | None = None
        if not self._resizes:
            jobs = jobs_of(self._images, numbers, draws)
            jobs = jobs if self._table is None else shifts_of(jobs, self._size, shape_of(self.crop)[1], self._margin)
        return _Stretch(
            decoded=[each.decoded for each in rows],
            ids=ids,
            numbers=numbers,
            draws=draws,
            targets=self._moved(torch.from_numpy(self.dataset.labels[ids])),
            weight=self._moved(torch.from_numpy(weight)),
            jobs=None if jobs is None else self._moved(torch.from_numpy(jobs)),
        )

    def _cut(self, pixels: torch.Tensor, part: "_Part") -> torch.Tensor:
        jobs, rows = part.stretch.jobs, part.some
        assert jobs is not None
        shape = shape_of(self.crop)
        if self._compiled:
            out = self._blank()
            cut_rows(pixels.numpy(), jobs[rows].numpy(), out.numpy())
            return out
        if self._table is None:
            images = cut(pixels, jobs[rows], shape)
        else:
            images = cut_shifted(pixels, self._table, jobs[:, rows], shape)
        if len(images) == self.config.batch_size:
            return images
        out = self._blank()
        out[: len(images)] = images
        return out

    def _windows(self, part: "_Part") -> list[Window | None]:
        """The crops of a batch's images; None for those that cannot be decoded."""
        sizes = self._images.sizes[part.stretch.numbers[part.some]].tolist()
        return [
            self.crop.window(width, height, chances) if width else None
            for (width, height), chances in zip(sizes, part.stretch.draws[part.some].tolist(), strict=True)
        ]

    def _resized(self, pixels: torch.Tensor, part: "_Part") -> torch.Tensor:
        """On a CPU."""
        out = self._blank()
        host = pixels.numpy()
        made = out.numpy()
        numbers = part.stretch.numbers[part.some].tolist()
        for row, (number, window) in enumerate(zip(numbers, self._windows(part), strict=True)):
            if window is not None:
                resample(self._images.image(host, number), window, self.crop.interpolation, made[row])
        return out

    def _blank(self) -> torch.Tensor:
        """Zeros [B, H, W, 3]: on a CPU in the memory of the last batch, on a GPU in memory that is not in use."""
        shape = (self.config.batch_size, *shape_of(self.crop), 3)
        if self.device.type != "cpu":
            return torch.zeros(shape, dtype=torch.uint8, device=self.device)
        if self._out.shape != shape:
            self._out = torch.empty(shape, dtype=torch.uint8)
        return self._out.zero_()


@dataclass(frozen=True, kw_only=True, eq=False)
class _Stretch:
    """What is known of some batches before the first of them: N rows, batch after batch."""

    decoded: list[int]  # how many rows of each batch, the first ones, have an image
    ids: Places  # [N]
    numbers: Places  # [N], as `ResidentImages.numbers`
    draws: npt.NDArray[np.float64]  # [N, draws]
    targets: torch.Tensor  # int64 [N], on the device
    weight: torch.Tensor  # float32 [N], on the device
    jobs: torch.Tensor | None  # of `jobs_of` [N, 5] or `shifts_of` [2, N], on the device; None for crops that resize


class _Part(NamedTuple):
    """One batch of a stretch."""

    stretch: _Stretch
    some: slice  # its rows that have an image
    rows: slice  # and all of its rows


@dataclass(frozen=True)
class _Measuring(Decoder):
    """`inputs` [2]: the width and height in which an image is kept."""

    crop: CropRule
    max_pixels: int

    @property
    def fields(self) -> tuple[Field, ...]:
        return (Field("inputs", (2,), np.dtype(np.int64)),)

    def fill_row(self, data: memoryview, draws: Sequence[float], row: Row, scratch: Scratch) -> None:
        size = read_header(data, self.max_pixels).size
        row["inputs"][:] = _kept_size(self.crop, size, self.max_pixels)

    def fill(
        self, reader: SampleReader, ids: Sequence[int], draws: npt.NDArray[np.float64], rows: Rows, scratch: Scratch
    ) -> list[Failure]:
        sizes = SizeReader(reader, self.max_pixels)
        sizes.stored_pixels(ids)
        for group in scratch.groups(len(ids)):
            if any(index not in sizes.of for index in ids[group]):
                sizes.read_group(ids[group], scratch)
        failures = []
        for place, index in enumerate(ids):
            error = attempt(self._measure, sizes, index, rows["inputs"][place], scratch)
            if error is not None:
                failures.append((place, error))
                if not isinstance(error, ImageError):
                    break
        return failures

    def _measure(self, sizes: SizeReader, index: int, out: npt.NDArray[Any], scratch: Scratch) -> None:
        if index not in sizes.of:
            sizes.read(index, scratch)
        out[:] = _kept_size(self.crop, sizes.of[index], self.max_pixels)

    def present(self, inputs: torch.Tensor, rows: Rows) -> torch.Tensor:
        return inputs


@dataclass(frozen=True)
class _Keeping(Decoder):
    """Writes each image to its place in the buffer. `inputs` says nothing."""

    images: ResidentImages
    buffer: Pixels

    @property
    def fields(self) -> tuple[Field, ...]:
        return (Field("inputs", (), np.dtype(np.uint8)),)

    def fill_row(self, data: memoryview, draws: Sequence[float], row: Row, scratch: Scratch) -> None:
        raise TypeError("the place of an image is known by its id; call `fill`")

    def fill(
        self, reader: SampleReader, ids: Sequence[int], draws: npt.NDArray[np.float64], rows: Rows, scratch: Scratch
    ) -> list[Failure]:
        """See `Decoder`. Images of one size that follow each other lie side by side, as the rows of a batch do."""
        images = self.images
        numbers = images.numbers(np.asarray(ids))
        kept, first_of = images.sizes[numbers], images.first[numbers]
        alike = (kept[1:] == kept[:-1]).all(axis=1) & (first_of[1:] == first_of[:-1] + kept[:-1].prod(axis=1))
        failures: list[Failure] = []
        for begin, end in pairwise([0, *(np.flatnonzero(~alike) + 1).tolist(), len(ids)]):
            width, height = kept[begin].tolist()
            first, count = int(first_of[begin]), end - begin
            out = self.buffer[first : first + count * width * height].reshape(count, height, width, 3)
            failed = self._fill_alike(reader, ids[begin:end], out, scratch)
            failures += [(begin + place, error) for place, error in failed]
            if any(not isinstance(error, ImageError) for _, error in failed):
                break
        return failures

    def _fill_alike(self, reader: SampleReader, ids: Sequence[int], out: Pixels, scratch: Scratch) -> list[Failure]:
        """Fill `out` [k, H, W, 3] with images that are kept in this size."""
        crop, most = self.images.crop, self.images.max_pixels
        nothing = np.zeros((len(ids), 0))
        if not crop.draws:
            return ImageDecoder(crop, most).fill(reader, ids, nothing, {"inputs": out}, scratch)
        size = out.shape[1:3]
        whole = CenterCrop(size=size, resize=size, interpolation=crop.interpolation)
        sizes = SizeReader(reader, most)
        failures = ImageDecoder(whole, most).fill(sizes, ids, nothing, {"inputs": out}, scratch)
        failed = {place for place, _ in failures}
        for place, index in enumerate(ids):
            if place not in failed and _kept_size(crop, sizes.of[index], most) != size[::-1]:
                changed = f"{self.images.dataset.name}: an image changed while it was read; start again"
                return [*failures, (place, DataError(changed))]
        return failures

    def present(self, inputs: torch.Tensor, rows: Rows) -> torch.Tensor:
        return inputs


def _kept_size(crop: CropRule, size: tuple[int, int], max_pixels: int) -> tuple[int, int]:
    """Width and height in which an image is kept for a random crop: resized if the crop begins with that."""
    kept = crop.resized(*size) if isinstance(crop, RandomCrop) else size
    if kept[0] * kept[1] > max_pixels:
        raise ImageError(f"{size[0]} x {size[1]} pixels are too long and thin to resize")
    return kept


def jobs_of(images: ResidentImages, numbers: Places, draws: npt.NDArray[np.float64]) -> Places:
    """What `cut` takes for the images at `numbers` [B]: int64 [B, 5].

    The first pixel, the width and the height of the image, and where the output begins in it, x and y. An image that
    cannot be decoded has a width of 0.
    """
    crop = images.crop
    jobs = np.zeros((len(numbers), 5), np.int64)
    jobs[:, 0] = images.first[numbers]
    jobs[:, 1:3] = images.sizes[numbers]
    if isinstance(crop, RandomCrop):  # as in RandomCrop.window
        tall, wide = pair(crop.size)
        spans = jobs[:, 1:3] + 2 * crop.padding - (wide, tall) + 1
        jobs[:, 3:5] = (draws * spans).astype(np.int64) - crop.padding
    return jobs


class ResizeJobs(NamedTuple):
    """What the resize kernel takes for B images, in host memory, pinned for a GPU."""

    places: torch.Tensor  # int64 [B, 4]
    tables: torch.Tensor  # int32 [B, words]


def resize_jobs(
    images: ResidentImages, numbers: Places, windows: Sequence[Window | None], crop: CropRule
) -> ResizeJobs | None:
    """What `resize_on_device` takes for windows of the loaded images at `numbers` [B]. None without any window.

    Raises ModuleNotFoundError without Triton.
    """
    from . import ragged  # it needs Triton

    assert images.pixels is not None
    size = shape_of(crop)[0]
    rows = np.array([(*w.box, *w.size, *w.at) if w is not None else (0,) * 8 for w in windows], np.int64).reshape(-1, 8)
    x, y, wide, tall = rows[:, :4].T
    if not wide.any():
        return None
    cubic = crop.interpolation == "bicubic"
    taps = most_taps(float(wide.max()), size, cubic) + most_taps(float(tall.max()), size, cubic)
    pinned = images.device.type == "cuda"
    tables = torch.empty((len(rows), ragged.table_words(size, taps)), dtype=torch.int32, pin_memory=pinned)
    places = torch.empty((len(rows), ragged.PLACE), dtype=torch.int64, pin_memory=pinned)
    fits = ragged.fill_tables(rows, size, crop.interpolation, tables.numpy())
    assert fits, (windows, taps)
    across = images.sizes[numbers, 0]
    begins = images.pixels.data_ptr() + 3 * (images.first[numbers] + y * across + x)
    upright = np.stack([begins, np.full_like(begins, 3), 3 * across, np.ones_like(begins)], axis=1)  # `ragged.place`
    places.numpy()[:] = np.where(wide[:, None] > 0, upright, 0)
    return ResizeJobs(places, tables)


def resize_on_device(jobs: ResizeJobs | None, out: torch.Tensor) -> torch.Tensor:
    """Resize images into the first rows of `out` [B, S, S, 3], where there is a window; returns it. One kernel."""
    if jobs is not None:
        from . import ragged

        places, tables = (tensor.to(out.device, non_blocking=True) for tensor in jobs)
        ragged.resize(places, tables, out[: len(places)])
    return out
