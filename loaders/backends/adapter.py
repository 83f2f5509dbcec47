"""The base of loaders that decode with another library: the order and ids are fastimg's, the pixels the library's."""

from abc import ABC, abstractmethod
from collections.abc import Generator, Mapping
from typing import NamedTuple, Self

import numpy as np
import numpy.typing as npt
import torch

from fastimg.loaders.batch import Batch, host
from fastimg.loaders.containers.datasets import Dataset
from fastimg.loaders.crop import CropRule, Size, shape_of, smaller
from fastimg.loaders.epochs.config import LoaderConfig
from fastimg.loaders.epochs.epochs import Epochs
from fastimg.loaders.epochs.plan import EpochPlan
from fastimg.loaders.errors import OVER
from fastimg.loaders.runtime.cpus import available_cpus
from fastimg.loaders.runtime.inference_mode import outside_inference_mode


class SideCopies:
    """Copies to a GPU on a stream of their own: they need not wait for the step that the consumer has enqueued."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def begin(self) -> None:
        """Let copies from now on wait for what the consumer has enqueued."""
        self._stream.wait_stream(self._consumer)

    def copied(self, tensor: torch.Tensor) -> torch.Tensor:
        """A copy on the device, which the consumer's stream may read after `finish`."""
        with torch.cuda.stream(self._stream):
            copied = _pinned(tensor).to(self._device, non_blocking=True)
        copied.record_stream(self._consumer)  # its memory is reused only after the consumer's work
        return copied

    def finish(self) -> torch.cuda.Event:
        """Let the consumer's stream wait for all copies so far. Returns the event that it waits for."""
        ready = torch.cuda.Event()  # type: ignore[no-untyped-call]
        ready.record(self._stream)
        self._consumer.wait_event(ready)  # sync point: the step waits for its data
        return ready

    @property
    def _consumer(self) -> torch.cuda.Stream:
        return torch.cuda.current_stream(self._device)


class DecodedBatch(NamedTuple):
    """One batch, as decoded by a library."""

    images: torch.Tensor  # uint8 [B, H, W, C], on the host or on the device; zeros in rows without an image
    failed: Mapping[int, str] = {}  # row -> reason
    rerouted: Mapping[int, str] = {}  # row -> why another decoder decoded it
    targets: torch.Tensor | None = None  # int64 [B] on the device, if they are there already
    weight: torch.Tensor | None = None  # float32 [B] on the device, if it is there already: 0 in rows that failed, too
    complete: bool = False  # images on the device are so for every stream, not only the consumer's: nothing writes them


class LoaderAdapter(Epochs, ABC):
    """A loader whose `_decode` uses another library. Batches, order, padding and state are as in the native loader.

    It must be used and closed by one thread.
    """

    def __init__(
        self,
        dataset: Dataset,
        crop: CropRule,
        config: LoaderConfig,
        device: torch.device,
        indices: npt.NDArray[np.int64] | None,
        workers: int | None = None,
        channels: int = 3,
    ) -> None:
        super().__init__(dataset, config, indices, workers or config.workers or available_cpus(), device)
        self.crop = crop  # of this iteration
        self._largest = crop  # that memory is allocated for
        self._next = crop  # of the next iteration
        height, width = shape_of(crop)
        self.slot_bytes = config.batch_size * (channels * height * width + 20)  # pixels, target, id, weight
        self._channels = channels
        self._copies = SideCopies(self.device) if device.type == "cuda" else None
        self._plan: EpochPlan | None = None
        self._decoded: Generator[DecodedBatch, None, None] | None = None

    @outside_inference_mode
    def __iter__(self) -> Generator[Batch, None, None]:
        self._end()
        self.crop = self._next
        plan = self._plan = self.begin()
        decoded = self._decoded = self._decode(plan)
        labels = self.dataset.labels
        if self._copies is not None:
            self._copies.begin()
        try:
            for step in range(plan.steps):
                self.waits.begin()
                made = next(decoded)
                ids, weight, _ = plan.rows(step)
                for row, reason in made.failed.items():
                    self.faults.add(int(ids[row]), reason)
                    weight[row] = 0
                self.rerouted.update({int(ids[row]): reason for row, reason in made.rerouted.items()})
                batch = self._handed_over(made, ids, labels[ids], weight, plan.repeats(step))
                self.waits.end()  # on a GPU the copies count, as the consumer's stream waits for them
                self.passed(plan, step)
                yield batch
                if self._plan is not plan:
                    raise RuntimeError(OVER)
        finally:
            decoded.close()

    def set_size(self, size: Size) -> None:
        """See `BatchSource`."""
        self._next = smaller(self._largest, size)

    @abstractmethod
    def describe(self) -> str:
        """See `BatchSource`."""

    def close(self) -> None:
        """End the iteration in progress. Iterating again starts a new one."""
        self._end()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @abstractmethod
    def _decode(self, plan: EpochPlan) -> Generator[DecodedBatch, None, None]:
        """Yield every batch of the plan, each valid until the next. Once closed, another plan can be decoded."""

    def _end(self) -> None:
        self._plan = None
        if self._decoded is not None:
            self._decoded.close()
            self._decoded = None

    def _handed_over(
        self,
        made: DecodedBatch,
        ids: npt.NDArray[np.int64],
        labels: npt.NDArray[np.int64],
        weight: npt.NDArray[np.float32],
        repeats: npt.NDArray[np.int64] | None,
    ) -> Batch:
        """The batch on the device. What is on the host is copied beside the consumer's stream, which waits for it."""
        inputs = self._beside(made.images)
        targets = self._beside(torch.from_numpy(labels) if made.targets is None else made.targets)
        weights = self._beside(torch.from_numpy(weight) if made.weight is None else made.weight)
        ready = None
        if self._copies is not None:
            copied = self._copies.finish()
            own = (made.images, made.targets, made.weight)
            by_library = any(tensor is not None and tensor.device == self.device for tensor in own)
            ready = None if by_library and not made.complete else copied  # else other streams must wait for the steps
        return Batch(
            inputs=inputs.permute(0, 3, 1, 2),
            targets=targets,
            ids=torch.from_numpy(ids),
            weight=weights,
            samples=int(weight.sum()),
            ready=ready,
            repeats=host(repeats),
        )

    def _beside(self, tensor: torch.Tensor) -> torch.Tensor:
        """The tensor on the device, copied beside the consumer's stream if it is not there yet."""
        if tensor.device == self.device:
            return tensor
        return tensor.to(self.device) if self._copies is None else self._copies.copied(tensor)

    def _moved(self, tensor: torch.Tensor) -> torch.Tensor:
        """The tensor on the device, copied on the consumer's stream, for what a library does there."""
        if tensor.device == self.device:
            return tensor
        return _pinned(tensor).to(self.device, non_blocking=True) if self.device.type == "cuda" else tensor


def _pinned(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor in memory from which a GPU copies while the host goes on."""
    return tensor.pin_memory() if tensor.device.type == "cpu" and not tensor.is_pinned() else tensor
