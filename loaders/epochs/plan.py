"""The plan of an epoch: the samples of each batch, and what is read ahead for it."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from fastimg.loaders.containers.readahead import WholeBlocks
from fastimg.loaders.order import Slices

from .config import Padding


def crop_epoch_of(epoch: int, crop_epochs: int | None) -> int:
    """The epoch whose crops an epoch shows: with `crop_epochs`, one of the first ones in turn, otherwise its own."""
    return epoch if crop_epochs is None else epoch % crop_epochs


class Rows(NamedTuple):
    """The samples of one batch."""

    ids: npt.NDArray[np.int64]  # [B]
    weight: npt.NDArray[np.float32]  # [B], 0 for padding
    decoded: int  # number of leading rows that are decoded; the pixels of the others are zeros


@dataclass(frozen=True, slots=True)
class EpochPlan:
    """The plan of one iteration over an epoch, or over the rest of it."""

    epoch: int
    crop_epoch: int  # the epoch whose crops are drawn
    order: npt.NDArray[np.int64]  # the epoch's permutation of range(n), or its n draws
    indices: npt.NDArray[np.int64] | None  # the samples of the dataset that are read; None: all of them
    slices: Slices
    padding: Padding
    blocks: WholeBlocks | None  # what is read ahead; None: the samples of each batch
    again: npt.NDArray[np.int64] | None = None  # [n], how often a sample came before; None: none comes again

    @property
    def steps(self) -> int:
        """Number of batches in this iteration."""
        return self.slices.steps

    def rows(self, step: int) -> Rows:
        """The samples of batch `step`, counted from where the plan begins."""
        positions, weight = self.slices.positions(step)
        places = self.order[positions]
        ids = places if self.indices is None else self.indices[places]
        real = int(np.count_nonzero(weight))
        if self.slices.even:
            real = max(real, 1)  # of padding alone, where ranks outnumber what is left, one is shown
        return Rows(ids, weight, real if self.padding == "zeros" else len(ids))

    def repeats(self, step: int) -> npt.NDArray[np.int64] | None:
        """How often each sample of batch `step` came before in this epoch [B]; None where none comes again."""
        return None if self.again is None else self.again[self.slices.positions(step)[0]]

    def prefetch_ids(self, step: int, rows: Rows) -> Iterator[npt.NDArray[np.int64]]:
        """Samples to fetch while batch `step` is being filled, most urgent first. Called for each step in turn.

        `rows` are those of this batch.
        """
        if self.blocks is None:
            yield rows.ids[: rows.decoded]
            return
        for places in self.blocks.before(step):
            yield places if self.indices is None else self.indices[places]
