"""FFCV (extra `ffcv`): its loader on a .beton from any writer, in fastimg's order.

FFCV draws the boxes of random crops itself, without a seed, resizes with OpenCV's INTER_AREA, and ignores EXIF
orientations. It does not report images that it cannot decode, so none can be skipped.
"""

import contextlib
import time
from collections.abc import Generator
from queue import Empty
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from ffcv.fields.rgb_image import CenterCropRGBImageDecoder, RandomResizedCropRGBImageDecoder
from ffcv.loader import Loader as Library
from ffcv.memory_managers import OSCacheManager
from ffcv.pipeline.compiler import Compiler
from ffcv.transforms import ToDevice, ToTensor
from ffcv.traversal_order.base import TraversalOrder
from numba import types

from fastimg.loaders.containers.betons.dataset import BetonDataset
from fastimg.loaders.crop import CenterCrop, CropRule, RandomResizedCrop, Size, describe_size, pair, smaller
from fastimg.loaders.epochs.config import LoaderConfig
from fastimg.loaders.epochs.plan import EpochPlan
from fastimg.loaders.errors import WorkerError
from fastimg.loaders.wording import plural

from .adapter import DecodedBatch, LoaderAdapter

_POLL = 0.0005  # seconds between two checks for the next batch, or for a thread that died


class FfcvLoader(LoaderAdapter):
    """FFCV's Loader in fastimg's order. Creating it compiles its pipeline, which takes seconds."""

    def __init__(
        self,
        dataset: BetonDataset,
        crop: CropRule,
        config: LoaderConfig,
        device: torch.device,
        indices: npt.NDArray[np.int64] | None = None,
    ) -> None:
        super().__init__(dataset, crop, config, device, indices)
        side = _side(crop)
        size = (side, side)
        if isinstance(crop, RandomResizedCrop):
            decoder = RandomResizedCropRGBImageDecoder(size, scale=crop.scale, ratio=crop.ratio)
        elif isinstance(crop, CenterCrop):
            decoder = CenterCropRGBImageDecoder(size, ratio=side / pair(crop.resize)[0])
        else:
            raise ValueError(f"{crop}: FFCV supports only RandomResizedCrop and CenterCrop")
        to_device = [ToDevice(device, non_blocking=True)] if device.type == "cuda" else []
        pipelines: dict[str, list[Any] | None] = dict.fromkeys(dataset.reader.fields)
        pipelines[dataset.image_field] = [decoder, ToTensor(), *to_device]
        self._decoder = decoder
        self._traversal = _Order(len(self) * config.batch_size)
        keep_numba_types()
        self._library = Library(
            str(dataset.reader.path),
            batch_size=config.batch_size,
            num_workers=self.workers,
            os_cache=True,
            order=self._traversal,
            drop_last=False,
            batches_ahead=self.slots,
            pipelines=pipelines,
        )

    def describe(self) -> str:
        """See `BatchSource`."""
        boxes = "crop boxes drawn by FFCV, " if isinstance(self.crop, RandomResizedCrop) else ""
        return f"ffcv, {plural(self.workers, 'thread')}, {boxes}resized with INTER_AREA"

    def set_size(self, size: Size) -> None:
        """See `BatchSource`. Raises ValueError also for a rectangle."""
        crop = smaller(self._largest, size)
        _side(crop)
        self._next = crop

    def _decode(self, plan: EpochPlan) -> Generator[DecodedBatch, None, None]:
        side = _side(self.crop)
        self._decoder.output_size = (side, side)  # FFCV allocates memory for each epoch
        rows = [plan.rows(step) for step in range(plan.steps)]
        self._traversal.ids = np.concatenate([ids[:decoded] for ids, _, decoded in rows]).astype(np.uint64)
        epoch = iter(self._library)
        try:
            for ids, _, decoded in rows:
                if decoded == len(ids):
                    yield DecodedBatch(_next(epoch))
                    continue
                images = torch.zeros((len(ids), side, side, 3), dtype=torch.uint8)
                images = images.to(self.device)  # the end of an evaluation, or a rank without samples there
                if decoded:
                    images[:decoded] = _next(epoch)
                yield DecodedBatch(images)
        finally:
            _end(epoch)


def _side(crop: CropRule) -> int:
    """The side of a crop's square output. Raises ValueError for a rectangle."""
    resize = pair(crop.resize) if isinstance(crop, CenterCrop) else (1, 1)
    if not isinstance(crop.size, int) or resize[0] != resize[1]:
        raise ValueError(
            f"crop {describe_size(crop.size)}: the ffcv loader makes only squares; give one side, or use the native, "
            "torch or dali loader for a rectangle"
        )
    return crop.size


class _Order(TraversalOrder):  # type: ignore[misc]
    """fastimg's order. FFCV expects a class that it calls with its loader; this is an instance that returns itself."""

    def __init__(self, count: int) -> None:
        self.ids = np.zeros(count, np.uint64)  # FFCV takes the number of batches from its first order

    def __call__(self, loader: object) -> "_Order":
        return self

    def sample_order(self, epoch: int) -> npt.NDArray[np.uint64]:
        """Ids of this rank, in the order of the current plan."""
        return self.ids


def keep_numba_types() -> None:
    """Stop FFCV from making numba's type `uint8[::1]` read-only in place, from now on and in the whole process.

    numba has one such object for everything: its hash would change while it is a key in the tables of compiled
    functions, and whatever is compiled next would fail or never end.
    """
    OSCacheManager.compile_reader = _compile_reader


def _compile_reader(manager: OSCacheManager) -> Any:
    """FFCV's `OSCacheManager.compile_reader`, with a type of its own for the file's bytes."""
    file = types.Array(types.uint8, 1, "C", readonly=True)
    table = types.uint64[::1]

    def read(address, memory):  # type: ignore[no-untyped-def]  # compiled by numba
        size = memory[2][np.searchsorted(memory[1], address)]
        return memory[0][address : address + size]

    return Compiler.compile(read, file(types.uint64, types.Tuple([file, table, table])))  # type: ignore[no-untyped-call]


def _next(epoch: Any) -> torch.Tensor:
    """The next batch. FFCV itself would wait forever for a thread that died."""
    while epoch.output_queue.empty():
        if not epoch.is_alive() and epoch.output_queue.empty():
            raise WorkerError("FFCV's thread died; its error is printed above")
        time.sleep(_POLL)
    (images,) = next(epoch)
    return images  # type: ignore[no-any-return]


def _end(epoch: Any) -> None:
    """Stop FFCV's thread, which may be waiting for room in its queue, and release its memory."""
    epoch.terminate_event.set()
    while epoch.is_alive():
        with contextlib.suppress(Empty):
            epoch.output_queue.get(timeout=0.01)
    epoch.close()
