"""PyTorch's DataLoader: processes that decode with Pillow and resize with torchvision, for any dataset.

The boxes are the native loader's. Pixels differ only where Pillow's libjpeg differs from the native one.
"""

import atexit
import contextlib
import dataclasses
import signal
import warnings
import weakref
from collections.abc import Generator, Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import DataLoader
from torch.utils.data import Dataset as TorchDataset
from torchvision.transforms import InterpolationMode
from torchvision.transforms.v2 import functional

from fastimg.loaders.containers.datasets import Dataset
from fastimg.loaders.crop import CropRule, Size, fill_of, reaches_out, shape_of
from fastimg.loaders.decode import MAX_PIXELS, decode, read_header
from fastimg.loaders.decoders.images import ImageDecoder
from fastimg.loaders.epochs.config import LoaderConfig
from fastimg.loaders.epochs.plan import EpochPlan
from fastimg.loaders.errors import DataError, ImageError, WorkerError
from fastimg.loaders.random import keyed
from fastimg.loaders.resample import mirrored
from fastimg.loaders.runtime.scratch import Scratch
from fastimg.loaders.wording import plural

from .adapter import DecodedBatch, LoaderAdapter

_AHEAD = 2  # batches that each process prepares at least; DataLoader's default
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_FILTERS = {"bilinear": InterpolationMode.BILINEAR, "bicubic": InterpolationMode.BICUBIC}


_alive: "weakref.WeakSet[TorchLoader]" = weakref.WeakSet()


@atexit.register
def _end_all() -> None:
    """End the processes of loaders that are still there when the interpreter ends, such as globals.

    Registered after torch's and multiprocessing's own functions, this runs before them: torch would no longer tell its
    workers to end, and multiprocessing sends each one SIGTERM, which they leave to the parent, and then waits for them.
    """
    for loader in list(_alive):
        loader._stop()


class _Request(NamedTuple):
    crop_epoch: int  # the epoch whose crops are drawn
    size: Size  # of the output
    ids: npt.NDArray[np.int64]  # [B]
    keys: npt.NDArray[np.int64]  # [B], what random numbers are drawn for
    decoded: int  # number of rows to decode, from the first


class _Answer(NamedTuple):
    images: torch.Tensor  # uint8 [B, H, W, C]
    failed: dict[int, str]  # row -> reason
    error: DataError | None  # ends the run


class TorchLoader(LoaderAdapter):
    """A DataLoader with persistent workers; each decodes whole batches."""

    def __init__(
        self,
        dataset: Dataset,
        crop: CropRule,
        config: LoaderConfig,
        device: torch.device,
        indices: npt.NDArray[np.int64] | None = None,
        max_pixels: int = MAX_PIXELS,
        channels: int = 3,
    ) -> None:
        if fill_of(crop) is not None:
            raise ValueError(f"{crop}: the torch loader does not pad; use the native one")
        super().__init__(dataset, crop, config, device, indices, channels=channels)
        self._ahead = max(_AHEAD, -(-self.slots // self.workers))
        self._rows = _Rows(dataset, ImageDecoder(crop, max_pixels, channels=channels), config.seed)
        self._requests = _Requests(dataset)
        self._torch: DataLoader[_Answer] | None = None
        _alive.add(self)

    def describe(self) -> str:
        """See `BatchSource`."""
        return (
            f"torch: DataLoader, {plural(self.workers, 'process')}, "
            f"{plural(self.workers * self._ahead, 'batch')} ahead, "
            "Pillow, torchvision's antialiased resize"
        )

    def close(self) -> None:
        """End the processes and the current iteration. Iterating again starts new ones."""
        super().close()
        self._stop()

    def _decode(self, plan: EpochPlan) -> Generator[DecodedBatch, None, None]:
        self._requests.plan = plan
        self._requests.size = self.crop.size
        try:
            for answer in self._start() if self._torch is None else self._torch:
                if answer.error is not None:
                    raise answer.error
                yield DecodedBatch(answer.images, answer.failed)
        except (DataError, GeneratorExit):
            raise
        except Exception as error:
            self._stop()  # the other processes cannot continue either
            raise WorkerError(f"a worker process of torch's DataLoader failed: {error}") from error

    def _stop(self) -> None:
        iterator = getattr(self._torch, "_iterator", None)
        self._torch = None
        if iterator is not None:  # not left to the garbage collector: an exception's traceback may refer to it
            with contextlib.suppress(RuntimeError):  # raised by torch if a process was ended by a signal
                iterator._shutdown_workers()
            for process in iterator._workers:  # torch sends only SIGTERM, which a hanging worker ignores
                process.kill()

    def _start(self) -> Iterator[_Answer]:
        self._torch = DataLoader(
            self._rows,
            batch_size=None,  # a worker makes whole batches; nothing is collated
            sampler=self._requests,
            num_workers=self.workers,
            prefetch_factor=self._ahead,
            persistent_workers=True,
            pin_memory=self.device.type == "cuda",
            collate_fn=_unchanged,
            worker_init_fn=_leave_signals_to_the_parent,
            multiprocessing_context="fork",  # shares open shards and their tables
        )
        with warnings.catch_warnings(), _signals_blocked():
            # Python 3.12 warns about threads; the children run no code that could wait for ours
            warnings.filterwarnings("ignore", "(?s).*use of fork", DeprecationWarning)
            return iter(self._torch)


class _Requests:
    """The batches of the current plan, for a DataLoader that outlives it."""

    plan: EpochPlan | None = None
    size: Size = 0

    def __init__(self, dataset: Dataset) -> None:
        self._dataset = dataset

    def __iter__(self) -> Iterator[_Request]:
        plan = self.plan
        assert plan is not None
        for step in range(plan.steps):
            ids, _, decoded = rows = plan.rows(step)
            for wanted in plan.prefetch_ids(step, rows):
                self._dataset.will_need(wanted)
            yield _Request(plan.crop_epoch, self.size, ids, keyed(ids, plan.repeats(step)), decoded)

    def __len__(self) -> int:
        return 0 if self.plan is None else self.plan.steps


class _Rows(TorchDataset[_Answer]):
    """The data of a worker process: how to decode a batch."""

    def __init__(self, dataset: Dataset, images: ImageDecoder, seed: int) -> None:
        self._dataset = dataset
        self._images = images
        self._seed = seed

    def __getitem__(self, request: _Request) -> _Answer:
        crop_epoch, size, ids, keys, decoded = request
        scratch = Scratch()
        decoder = self._images.sized(size)
        images = torch.zeros((len(ids), *shape_of(decoder.crop), decoder.channels), dtype=torch.uint8)
        failed: dict[int, str] = {}
        draws = decoder.draw(self._seed, crop_epoch, keys).tolist()
        for row, index in enumerate(ids[:decoded].tolist()):
            try:
                images[row] = _image(decoder, self._dataset.read(index, scratch), draws[row])
            except ImageError as error:
                failed[row] = str(error)
            except DataError as error:
                return _Answer(images, {}, error)
        return _Answer(images, failed, None)


def _image(images: ImageDecoder, data: memoryview, draws: list[float]) -> torch.Tensor:
    """[H, W, C]: upright RGB or gray from Pillow, the native loader's window, resized by torchvision."""
    header = dataclasses.replace(read_header(data, images.max_pixels), turbo=False)  # decode everything with Pillow
    window = images.crop.window(*header.size, draws)
    if window.size[0] * window.size[1] > images.max_pixels:
        raise ImageError(f"{header.width} x {header.height} pixels are too long and thin to resize")
    x, y, width, height = window.box
    pixels = decode(data, header, channels=images.channels)
    box = torch.from_numpy(pixels[y : y + height, x : x + width].copy()).permute(2, 0, 1)
    size = [window.size[1], window.size[0]]
    resized: torch.Tensor = functional.resize(box, size, _FILTERS[images.crop.interpolation], antialias=True)
    left, top = window.at
    tall, wide = shape_of(images.crop)
    if reaches_out(window, wide, tall):
        rows = torch.from_numpy(mirrored(top, tall, window.size[1]))
        columns = torch.from_numpy(mirrored(left, wide, window.size[0]))
        return resized[:, rows[:, None], columns].permute(1, 2, 0)
    return resized[:, top : top + tall, left : left + wide].permute(1, 2, 0)


def _unchanged(answer: Any) -> Any:
    return answer


@contextlib.contextmanager
def _signals_blocked() -> Generator[None, None, None]:
    """Block `_SIGNALS` in processes that are forked here, until they have set their handlers."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _leave_signals_to_the_parent(worker: int) -> None:
    """Ctrl-C, `timeout`, batch systems and closed terminals signal every process; the parent needs data to save.

    The second SIGTERM ends the process: when the parent exits, multiprocessing sends one and waits.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: signal.signal(signal.SIGTERM, signal.SIG_DFL))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
