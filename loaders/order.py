"""The order of an epoch: a pure function of (n, seed, epoch), sliced over ranks batch by batch.

`random` is a permutation of everything. `quasi-random` is for data that memory does not hold: runs of `block` samples
that lie together are laid out in a random sequence, and each sample moves from there by up to half of `window` to
either side. So an epoch reads the data block by block, in a steady stream, and no more than window / block + 1 blocks
are begun and not finished at any time. A page cache of one and a half windows is enough for everything to be read about
once (benchmarks/order.py). A window as large as twice the data is `random`.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from .random import hashes

Order = Literal["random", "quasi-random", "sequential", "length"]

BLOCK, WINDOW = 32, 32768  # samples; of 110 KB each: 3.5 MB, and 3.6 GB

_SAMPLES, _BLOCKS, _BATCHES = 0x0D, 0x0E, 0x0F  # stages of the counter
_TOGETHER = 64  # batches' worth of samples that are sorted by length together
_CHUNK = 1 << 16  # keys made at a time: their temporaries stay in the processor's cache
_MOST = 1 << 31  # samples: two of their numbers fit in a key


def epoch_order(
    n: int, seed: int, epoch: int, policy: Order, block: int = BLOCK, window: int = WINDOW
) -> npt.NDArray[np.int64]:
    """A permutation of range(n) [n], the same on every rank and for every version of NumPy.

    Made in the 8 bytes a sample that it takes. Raises ValueError for 2^31 samples or more.
    """
    if policy in ("sequential", "length"):
        return np.arange(n, dtype=np.int64)
    if n >= _MOST:
        raise ValueError(f"{n} samples: an order has fewer than {_MOST}")
    # Each sample's number stands below what it is sorted by, so no two keys are equal and sorting them is all.
    bits = np.uint64(n.bit_length())
    places = _block_places(n, seed, epoch, block) if policy == "quasi-random" else None
    keys = np.empty(n, np.uint64)
    for start in range(0, n, _CHUNK):
        ids = np.arange(start, min(start + _CHUNK, n), dtype=np.int64)
        key = hashes(seed, epoch, ids, _SAMPLES)
        if places is None:
            key >>= bits
        else:
            key = _moved(places[ids // block], key, n, window)
        keys[start : start + len(ids)] = (key << bits) | ids.astype(np.uint64)
    keys.sort()
    keys &= (np.uint64(1) << bits) - np.uint64(1)
    return keys.view(np.int64)


def by_length(
    order: npt.NDArray[np.int64],
    lengths: npt.NDArray[np.int64],
    batch: int,
    policy: Order,
    seed: int,
    epoch: int,
) -> npt.NDArray[np.int64]:
    """`order` rearranged so that the samples of a `batch` have about the same length: little is padded.

    `lengths` [n] are those of range(n). With "length" all are sorted, the longest first. Else samples are sorted within
    64 batches at a time, whose batches then come in random order; a last batch that is not full stays the last.
    """
    if policy == "length":
        return order[np.argsort(-lengths[order], kind="stable")]
    n = len(order)
    full = len(order) // batch * batch
    sorted_ = order.copy()
    for start in range(0, full, _TOGETHER * batch):
        part = order[start : min(start + _TOGETHER * batch, full)]
        sorted_[start : start + len(part)] = part[np.argsort(-lengths[part], kind="stable")]
    batches = np.argsort(hashes(seed, epoch, np.arange(full // batch), _BATCHES), kind="stable")
    return np.concatenate([sorted_[:full].reshape(-1, batch)[batches].reshape(-1), sorted_[full:n]])


def _block_places(n: int, seed: int, epoch: int, block: int) -> npt.NDArray[np.int64]:
    """Where in the epoch each block would begin if nothing moved [blocks]."""
    count = -(-n // block)
    places = np.empty(count, np.int64)
    sequence = np.argsort(hashes(seed, epoch, np.arange(count), _BLOCKS), kind="stable")
    places[sequence] = np.arange(0, n, block)
    return places


def _moved(place: npt.NDArray[np.int64], random: npt.NDArray[np.uint64], n: int, window: int) -> npt.NDArray[np.uint64]:
    """Places that are moved by up to half a window but not out of the epoch: fixed point, as fine as keys have room."""
    low = np.maximum(place - window // 2, 0)
    span = (np.minimum(place + -(-window // 2), n) - low).astype(np.uint64)
    fraction = np.uint64(min(32, 64 - 2 * n.bit_length()))
    return (low.astype(np.uint64) << fraction) + (span * (random >> np.uint64(32)) >> (np.uint64(32) - fraction))


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

    def span(self, first: int, stop: int) -> npt.NDArray[np.int64]:
        """Positions of this rank's batches `first` up to `stop`, ascending, without padding."""
        begin = self.start + self.rank * self.batch_size
        batches = np.arange(first, stop, dtype=np.int64)[:, None] * self.global_batch
        positions = (begin + batches + np.arange(self.batch_size, dtype=np.int64)).ravel()
        return positions[positions < self.n]
