"""What a loader's threads make for each batch beside its rows: a value on the host, and words that travel with it.

The loader does not know what it is. The trainer has its augmentation drawn there.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch

from .batch import Batch

WORDS = "words of the preparation"  # a field of slots, int32; no field of a dataset has such a name


class Preparation(Protocol):
    """Called by the loader's threads. `shape` is that of a row of `inputs`: (height, width, channels) of an image."""

    def count_words(self, rows: int, shape: tuple[int, ...]) -> int:
        """How many int32 words travel with a batch of so many rows, at most."""

    def make(
        self, keys: npt.NDArray[np.int64], seed: int, epoch: int, shape: tuple[int, ...], words: npt.NDArray[np.int32]
    ) -> object:
        """Write the words [n] of the batch with these keys [B] (`Batch.keys`); return what it has on the host.

        `words` has at least `count_words` places, or none. A pure function of the other arguments.
        """


@dataclass(slots=True, repr=False, eq=False)
class PreparedBatch(Batch):
    """A batch with what its `Preparation` has made."""

    made: object = None
    words: torch.Tensor | None = None  # int32 [n], on the batch's device

    def _mapped(self, change: Callable[[torch.Tensor], torch.Tensor]) -> Batch:
        batch = Batch._mapped(self, change)
        if isinstance(batch, PreparedBatch) and batch.words is not None:
            batch.words = change(batch.words)
        return batch
