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


class DecodedBatch(NamedTuple):
    """One batch, as decoded by a library."""

    images: torch.Tensor  # uint8 [B, H, W, C], on the host or on the device; zeros in rows without an image
    failed: Mapping[int, str] = {}  # row -> reason
    rerouted: Mapping[int, str] = {}  # row -> why another decoder decoded it
    targets: torch.Tensor | None = None  # int64 [B] on the device, if they are there already
    weight: torch.Tensor | None = None  # float32 [B] on the device, if it is there already: 0 in rows that failed, too


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
        self._plan: EpochPlan | None = None
        self._decoded: Generator[DecodedBatch, None, None] | None = None

    @outside_inference_mode
    def __iter__(self) -> Generator[Batch, None, None]:
        self._end()
        self.crop = self._next
        plan = self._plan = self.begin()
        decoded = self._decoded = self._decode(plan)
        labels = self.dataset.labels
        try:
            for step in range(plan.steps):
                self.waits.begin()
                made = next(decoded)
                ids, weight, _ = plan.rows(step)
                for row, reason in made.failed.items():
                    self.faults.add(int(ids[row]), reason)
                    weight[row] = 0
                self.rerouted.update({int(ids[row]): reason for row, reason in made.rerouted.items()})
                batch = Batch(
                    inputs=self._moved(made.images).permute(0, 3, 1, 2),
                    targets=self._moved(torch.from_numpy(labels[ids])) if made.targets is None else made.targets,
                    ids=torch.from_numpy(ids),
                    weight=self._moved(torch.from_numpy(weight)) if made.weight is None else made.weight,
                    samples=int(weight.sum()),
                    repeats=host(plan.repeats(step)),
                )
                self.waits.end()  # on a GPU the copies count, as they are on the consumer's stream
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

    def _moved(self, tensor: torch.Tensor) -> torch.Tensor:
        """The tensor on the device, copied on the consumer's stream."""
        if tensor.device == self.device:
            return tensor
        if self.device.type == "cuda" and tensor.device.type == "cpu" and not tensor.is_pinned():
            tensor = tensor.pin_memory()
        return tensor.to(self.device, non_blocking=True)
