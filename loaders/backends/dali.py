"""NVIDIA DALI (extra `dali`): its decoders and resize, on the CPU, or on a GPU with its hardware engine.

    fastimg's order -> a thread reads the bytes -> external_source -> decoders.image(_random_crop) -> resize -> Batch

DALI draws the boxes of random crops itself, from its own seed: they differ from the native loader's, and a resumed run
draws different ones. fastimg decodes the kinds of images that DALI would decode differently, as their headers tell. It
also decodes any batch in which DALI finds damage, to name the image.
"""

from collections import deque
from collections.abc import Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from nvidia.dali import Pipeline, fn, types

from fastimg.loaders.containers.datasets import Dataset
from fastimg.loaders.crop import CenterCrop, CropRule, RandomResizedCrop, shape_of
from fastimg.loaders.decode import MAX_PIXELS, Pixels, read_header
from fastimg.loaders.decoders.images import ImageDecoder
from fastimg.loaders.epochs.config import LoaderConfig
from fastimg.loaders.epochs.plan import EpochPlan, Rows
from fastimg.loaders.errors import ImageError
from fastimg.loaders.random import keyed
from fastimg.loaders.runtime.scratch import Scratch
from fastimg.loaders.wording import plural

from .adapter import DecodedBatch, LoaderAdapter

_HARDWARE_LOAD = 0.65  # share of a batch for the hardware engine, on GPUs that have one; DALI's default
_FORMATS = frozenset({"jpeg", "png", "bmp", "ppm"})  # for which DALI gives the same pixels as fastimg
_FILTERS = {"bilinear": types.INTERP_LINEAR, "bicubic": types.INTERP_CUBIC}


@dataclass(frozen=True)
class _Read:
    """The encoded images of a batch, and the results for those that DALI does not decode."""

    rows: Rows
    draws: list[list[float]]  # for boxes that fastimg draws
    encoded: dict[int, npt.NDArray[np.uint8]] = field(default_factory=dict)  # row -> bytes for DALI
    sizes: dict[int, tuple[int, int]] = field(default_factory=dict)  # row -> width, height of the upright image
    others: dict[int, Pixels] = field(default_factory=dict)  # row -> pixels decoded by fastimg
    failed: dict[int, str] = field(default_factory=dict)
    rerouted: dict[int, str] = field(default_factory=dict)


class DaliLoader(LoaderAdapter):
    """A DALI pipeline that gets its images in fastimg's order."""

    def __init__(
        self,
        dataset: Dataset,
        crop: CropRule,
        config: LoaderConfig,
        device: torch.device,
        indices: npt.NDArray[np.int64] | None = None,
        max_pixels: int = MAX_PIXELS,
    ) -> None:
        super().__init__(dataset, crop, config, device, indices)
        if not isinstance(crop, RandomResizedCrop | CenterCrop):
            raise ValueError(f"{crop}: DALI supports only RandomResizedCrop and CenterCrop")
        self._images = ImageDecoder(crop, max_pixels)  # of this iteration
        self._refused: dict[int, str] = {}  # id -> why DALI is not given it again
        self._pipe: Any = None  # for one output size
        self._feed: _Feed | None = None

    def describe(self) -> str:
        """See `BatchSource`."""
        boxes = ", crop boxes drawn by DALI" if isinstance(self.crop, RandomResizedCrop) else ""
        where = "mixed decoding on the GPU" if self.device.type == "cuda" else "decoding on the CPU"
        return f"dali, {where}, {plural(self.workers, 'thread')}{boxes}"

    def close(self) -> None:
        """End the pipeline and the current iteration. Iterating again starts new ones."""
        super().close()
        self._pipe = None

    def _decode(self, plan: EpochPlan) -> Generator[DecodedBatch, None, None]:
        if self._images.crop != self.crop:
            self._images = replace(self._images, crop=self.crop)
            self._pipe = None
        with ThreadPoolExecutor(1, "fastimg-loader-dali") as reader:
            self._feed = feed = _Feed(reader, self, plan)
            if self._pipe is None:
                self._pipe = self._build(plan.epoch)
            try:
                for _ in range(plan.steps):
                    if not feed.scheduled:
                        self._pipe.schedule_run()  # sync point: waits for the first images to be read
                    read = feed.scheduled.popleft()
                    images = None
                    if read.encoded:
                        try:
                            images = self._outputs()
                        except RuntimeError as error:  # the pipeline found damage and cannot continue
                            read = self._decode_refused(read, f"DALI refused its batch: {_gist(error)}")
                            feed.restart()
                            self._pipe = self._build(plan.epoch)
                    yield DecodedBatch(self._whole(read, images), read.failed, read.rerouted)
                    if images is not None:
                        del images
                        self._pipe.release_outputs()
                        self._pipe.schedule_run()
                self._drain()
            except GeneratorExit:
                feed.stop()
                self._drain()
                raise
            except BaseException:
                feed.stop()
                self._pipe = None  # its state is unknown
                raise

    def _outputs(self) -> torch.Tensor:
        """The output of the oldest scheduled batch: [n, H, W, 3], valid until the next call."""
        if self.device.type == "cpu":
            (images,) = self._pipe.share_outputs()
        else:  # sync point: the consumer's stream waits, and DALI's memory is released in its order
            (images,) = self._pipe.share_outputs(cuda_stream=torch.cuda.current_stream(self.device))
        return torch.utils.dlpack.from_dlpack(images.as_tensor())

    def _whole(self, read: _Read, images: torch.Tensor | None) -> torch.Tensor:
        """All rows of the batch [B, H, W, 3]: DALI's, fastimg's, and zeros. Nothing waits for the device."""
        count = len(read.rows.ids)
        if images is not None and len(images) == count:
            return images
        whole = torch.zeros((count, *shape_of(self.crop), 3), dtype=torch.uint8, device=self.device)
        if images is not None:
            whole[self._moved(torch.tensor(list(read.encoded)))] = images
        if read.others:
            pixels = torch.from_numpy(np.stack(list(read.others.values())))
            whole[self._moved(torch.tensor(list(read.others)))] = self._moved(pixels)
        return whole

    def _drain(self) -> None:
        """Leave the pipeline as if nothing had been scheduled."""
        try:
            while True:
                self._pipe.share_outputs()
                self._pipe.release_outputs()
        except StopIteration:
            self._pipe.schedule_run()  # learns from the feed that there is no more data; only then it can be reset
            self._pipe.reset()
        except RuntimeError:  # damage in a batch that is not needed any more
            self._pipe = None

    def _build(self, epoch: int) -> Any:
        c = self.config
        crop = self.crop
        cuda = self.device.type == "cuda"
        device, load = ("mixed", {"hw_decoder_load": _HARDWARE_LOAD}) if cuda else ("cpu", {})
        pipe = Pipeline(
            batch_size=c.batch_size,
            num_threads=self.workers,
            device_id=self.device.index if cuda else None,
            seed=(c.seed * 1_000_003 + epoch * 4099 + c.rank) & 0x7FFFFFFF,
            prefetch_queue_depth=self.slots,
            exec_dynamic=True,  # outputs live as long as they are referenced
        )
        kernel = {"interp_type": _FILTERS[crop.interpolation], "antialias": True}
        with pipe:
            if isinstance(crop, RandomResizedCrop):
                data = fn.external_source(source=self._take, ndim=1, dtype=types.UINT8)
                images = fn.decoders.image_random_crop(
                    data,
                    device=device,
                    output_type=types.RGB,
                    random_area=list(crop.scale),
                    random_aspect_ratio=list(crop.ratio),
                    num_attempts=10,
                    **load,
                )
                images = fn.resize(images, size=list(shape_of(crop)), **kernel)
            else:  # uses the exact window: DALI's resize_shorter and crop round differently, which shifts images
                kinds = [types.UINT8, types.FLOAT, types.INT32]
                data, size, at = fn.external_source(source=self._take_windows, num_outputs=3, ndim=1, dtype=kinds)
                images = fn.decoders.image(data, device=device, output_type=types.RGB, **load)
                images = fn.resize(images, size=size, **kernel)
                images = fn.slice(images, at, list(shape_of(crop)), axis_names="HW", normalized_anchor=False)
            pipe.set_outputs(images)
        pipe.build()
        return pipe

    def _take(self) -> list[npt.NDArray[np.uint8]]:
        assert self._feed is not None
        return list(self._feed.take().encoded.values())

    def _take_windows(self) -> tuple[list[npt.NDArray[Any]], ...]:
        """Encoded images, their sizes after the resize (height, width), and where the output begins (y, x)."""
        assert self._feed is not None
        read = self._feed.take()
        windows = [self.crop.window(*read.sizes[row], ()) for row in read.encoded]
        sizes = [np.array(window.size[::-1], np.float32) for window in windows]
        return list(read.encoded.values()), sizes, [np.array(window.at[::-1], np.int32) for window in windows]

    def _read(self, plan: EpochPlan, step: int) -> _Read:
        """Read a batch, and decode the images that DALI must not get. Runs in the reader's thread."""
        rows = plan.rows(step)
        for ids in plan.prefetch_ids(step, rows):
            self.dataset.will_need(ids)
        keys = keyed(rows.ids, plan.repeats(step))
        read = _Read(rows, self._images.draw(self.config.seed, plan.crop_epoch, keys).tolist())
        scratch = Scratch()
        for row, index in enumerate(rows.ids[: rows.decoded].tolist()):
            try:
                data = self.dataset.read(index, scratch)
                header = read_header(data, self._images.max_pixels)
                if index in self._refused:
                    self._fill(read, row, data, self._refused[index], scratch)
                elif header.turbo or (header.format in _FORMATS and header.format != "jpeg"):
                    read.encoded[row], read.sizes[row] = np.frombuffer(data, np.uint8).copy(), header.size
                else:
                    self._fill(read, row, data, f"DALI is not given this kind of {header.format}", scratch)
            except ImageError as error:
                read.failed[row] = str(error)
        return read

    def _decode_refused(self, read: _Read, reason: str) -> _Read:
        """Decode a batch that DALI refused: damaged images fail by name, and the others are used.

        DALI is not given the damaged images again; if there are none, it is not given any image of this batch again.
        """
        encoded = read.encoded
        read = replace(read, encoded={})
        scratch = Scratch()
        for row, data in encoded.items():
            try:
                self._fill(read, row, memoryview(data.data), reason, scratch)
            except ImageError as error:
                read.failed[row] = str(error)
        guilty = read.failed or encoded
        self._refused.update({int(read.rows.ids[row]): reason for row in guilty})
        return read

    def _fill(self, read: _Read, row: int, data: memoryview, reason: str, scratch: Scratch) -> None:
        pixels = np.empty((*shape_of(self.crop), 3), np.uint8)
        self._images.fill_row(data, read.draws[row], {"inputs": pixels}, scratch)
        read.others[row], read.rerouted[row] = pixels, reason


def _gist(error: RuntimeError) -> str:
    """DALI's error message, without its source locations."""
    lines = [line.strip() for line in str(error).splitlines() if "rror" in line and "[/" not in line]
    return lines[-1].rstrip(",") if lines else type(error).__name__


class _Feed:
    """Passes batches from the reader's thread to DALI: reads a few ahead, and keeps those that DALI has scheduled."""

    def __init__(self, reader: ThreadPoolExecutor, loader: DaliLoader, plan: EpochPlan) -> None:
        self.scheduled: deque[_Read] = deque()
        self._again: deque[_Read] = deque()
        self._ahead: deque[Future[_Read]] = deque()
        self._work: Iterator[Future[_Read]] = (reader.submit(loader._read, plan, step) for step in range(plan.steps))
        for _ in range(loader.slots):
            self._submit()

    def take(self) -> _Read:
        """The next batch with images for DALI. Raises StopIteration at the end, and errors of reading."""
        while True:
            if self._again:
                read = self._again.popleft()
            elif self._ahead:
                read = self._ahead.popleft().result()
                self._submit()
            else:
                raise StopIteration
            self.scheduled.append(read)
            if read.encoded:
                return read

    def restart(self) -> None:
        """Give the scheduled batches again, to a new pipeline."""
        self._again.extendleft(reversed(self.scheduled))
        self.scheduled.clear()

    def stop(self) -> None:
        """Give no more batches."""
        self._work = iter(())
        for future in self._ahead:
            future.cancel()
        self._ahead.clear()
        self._again.clear()

    def _submit(self) -> None:
        future = next(self._work, None)
        if future is not None:
            self._ahead.append(future)
