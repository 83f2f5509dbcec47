"""What training, evaluation and benchmarks know about a loader, whatever its backend."""

from collections.abc import Iterator
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from fastimg.loaders.batch import Batch
from fastimg.loaders.containers.datasets import Dataset
from fastimg.loaders.crop import Size
from fastimg.loaders.preparation import Preparation
from fastimg.loaders.runtime.times import LoaderTimes

from .config import LoaderConfig


class BatchSource(Protocol):
    """What training, evaluation and benchmarks know about a loader, whatever its backend."""

    dataset: Dataset
    config: LoaderConfig
    slots: int  # batches in host memory, including the one in use
    workers: int  # threads or processes
    slot_bytes: int  # size of one batch in host memory

    def __iter__(self) -> Iterator[Batch]:
        """Iterate over one epoch, or over the rest of it."""

    def __len__(self) -> int:
        """Number of batches in a whole epoch."""

    @property
    def epoch(self) -> int:
        """The epoch that is being read, or the last one that was."""

    @property
    def indices(self) -> npt.NDArray[np.int64] | None:
        """The samples of the dataset that are read; None: all of them."""

    @property
    def wait_seconds(self) -> float:
        """Seconds that the consumer's thread has spent waiting for data."""

    def spent(self) -> LoaderTimes:
        """Where the time has gone since the loader was created. Called by the consumer; does not block."""

    @property
    def unreadable(self) -> dict[int, str]:
        """Id -> reason, for every sample skipped so far."""

    @property
    def rerouted(self) -> dict[int, str]:
        """Id -> reason, for every sample so far that a decoder other than the chosen one has decoded."""

    def set_epoch(self, epoch: int) -> None:
        """Start the next iteration at the beginning of epoch `epoch`, 0 or more.

        Raises ValueError for a negative one, TypeError for what is no whole number.
        """

    def set_size(self, size: Size) -> None:
        """Change the size of images from the next iteration on: a side in pixels, or (height, width).

        A `Loader` takes any size; of other backends it can be at most the one that the loader was created with. Memory
        and workers are kept where images are not larger than before, and `state_dict` does not contain the size. Raises
        ValueError for an invalid size, and TypeError if the decoder has only one size.
        """

    def prepare(self, preparation: Preparation) -> None:
        """Have threads make what the preparation has for each batch, which is a `PreparedBatch` then.

        Called before the first iteration. A loader without threads of its own, or without slots, makes nothing.
        """

    def state_dict(self) -> dict[str, int | str]:
        """The position after the last batch that was handed out."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from the position in `state`.

        Raises ValueError for what no loader's `state_dict` has returned, or with another seed or order; DataError if
        the data differs.
        """

    def describe(self) -> str:
        """A phrase that names the decoder and the number of workers."""

    def close(self) -> None:
        """Stop the workers and the iteration in progress."""
