"""The order of an epoch: a pure function of (n, seed, epoch), sliced over ranks batch by batch."""

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from .counter import hashes

Order = Literal["random", "sequential"]

_STAGE = 0x0D


def epoch_order(n: int, seed: int, epoch: int, policy: Order) -> npt.NDArray[np.int64]:
    """A permutation of range(n), the same on every rank and for every version of NumPy."""
    positions = np.arange(n, dtype=np.int64)
    if policy == "sequential":
        return positions
    return np.argsort(hashes(seed, epoch, positions, _STAGE), kind="stable").astype(np.int64)


@dataclass(frozen=True)
class Slices:
    """How ranks share an epoch of `n` samples from position `start`: every sample once, equal steps for all.

    The tail is padded: padding wraps round to the first samples and has weight 0.
    """

    n: int
    start: int
    batch_size: int  # per rank
    rank: int
    world_size: int

    @property
    def global_batch(self) -> int:
        """Samples per step over all ranks."""
        return self.batch_size * self.world_size

    @property
    def steps(self) -> int:
        """Batches that are left."""
        return -(-(self.n - self.start) // self.global_batch)

    def positions(self, step: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]:
        """(positions in the epoch's order [B], weights [B]) of this rank's batch `step`, counted from `start`."""
        first = self.start + step * self.global_batch + self.rank * self.batch_size
        positions = np.arange(first, first + self.batch_size, dtype=np.int64)
        return positions % self.n, (positions < self.n).astype(np.float32)
