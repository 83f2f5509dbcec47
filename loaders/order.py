"""The order of an epoch: a pure function of (n, seed, epoch), divided among ranks batch by batch.

`random` is a permutation of all samples. `quasi-random` is for data that does not fit in memory: blocks of `block`
consecutive samples are put in a random sequence, and each sample then moves by up to half of `window` in either
direction. An epoch thus reads the data block by block, in a steady stream, and at most window / block + 1 blocks are in
use at any time. With a page cache of one and a half windows, almost everything is read only once
(benchmarks/order.py). A window of twice the data or more is the same as `random`.
"""

import hashlib
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
import numpy.typing as npt

from .random import hashes, uniforms

Order = Literal["random", "quasi-random", "sequential", "length"]
DropLast = bool | Literal["uneven"]

BLOCK = 32  # samples; 3.5 MB if each takes 110 KB
WINDOW = 32768  # samples; 3.6 GB if each takes 110 KB

_SAMPLES = 0x0D  # stages of the counter
_BLOCKS = 0x0E
_BATCHES = 0x0F
_START = 0x10
_DRAWN = 0x11
_TOGETHER = 64  # number of batches whose samples are sorted by length together
_CHUNK = 1 << 16  # keys computed at a time: their temporaries stay in the processor's cache
_MAX_SAMPLES = 1 << 31  # exclusive: two sample numbers fit in a key


class Blocks:
    """How range(n) is divided into blocks of samples that are stored, and read, together.

    `block`: how many samples each has, or the first sample of each (int64, ascending, from 0).
    """

    def __init__(self, n: int, block: "int | npt.NDArray[np.int64]") -> None:
        self._size = block if isinstance(block, int) else 0
        self.starts = np.arange(0, n, block) if isinstance(block, int) else block
        self.ends = np.append(self.starts[1:], n)
        self.mean = block if isinstance(block, int) else max(1, -(-n // max(len(block), 1)))  # samples

    def __len__(self) -> int:
        return len(self.starts)

    def of(self, samples: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """The blocks of samples."""
        return samples // self._size if self._size else self.starts.searchsorted(samples, side="right") - 1

    def laid_out(self, sequence: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Where each of a sequence of all blocks begins; of blocks of one size, a shorter one counts as the others."""
        if self._size:
            return self.starts
        sizes = (self.ends - self.starts)[sequence]
        return np.cumsum(sizes) - sizes

    def samples(self, blocks: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """The samples of blocks, block by block."""
        sizes = self.ends[blocks] - self.starts[blocks]
        first = np.repeat(self.starts[blocks] - (np.cumsum(sizes) - sizes), sizes)
        return first + np.arange(len(first))


def epoch_order(
    n: int, seed: int, epoch: int, policy: Order, block: int | npt.NDArray[np.int64] = BLOCK, window: int = WINDOW
) -> npt.NDArray[np.int64]:
    """A permutation of range(n) [n], the same on every rank and for every version of NumPy.

    `block` is that of `Blocks`. Needs no memory besides its own 8 bytes per sample. Raises ValueError for 2^31 samples
    or more.
    """
    if policy in ("sequential", "length"):
        return np.arange(n, dtype=np.int64)
    if n >= _MAX_SAMPLES:
        raise ValueError(f"{n} samples: an order must have fewer than {_MAX_SAMPLES}")
    # The low bits of a key are the sample's number, so no two keys are equal and sorting them gives the order.
    bits = np.uint64(n.bit_length())
    blocks = Blocks(n, block) if policy == "quasi-random" else None
    places = None if blocks is None else _block_places(blocks, seed, epoch)
    keys = np.empty(n, np.uint64)
    for start in range(0, n, _CHUNK):
        ids = np.arange(start, min(start + _CHUNK, n), dtype=np.int64)
        key = hashes(seed, epoch, ids, _SAMPLES)
        if blocks is None or places is None:
            key >>= bits
        else:
            key = _moved(places[blocks.of(ids)], key, n, window)
        keys[start : start + len(ids)] = (key << bits) | ids.astype(np.uint64)
    keys.sort()
    keys &= (np.uint64(1) << bits) - np.uint64(1)
    return keys.view(np.int64)


@dataclass(frozen=True, eq=False)
class Sampling:
    """How often each of n samples is drawn, in place of once: an epoch has n draws, with repetition.

    weights: float64 [n], of the samples that are read, in their order: relative to each other, 0 for never.
    """

    weights: npt.NDArray[np.float64]

    def __post_init__(self) -> None:
        good = self.weights.ndim == 1 and bool(np.isfinite(self.weights).all()) and bool((self.weights >= 0).all())
        if not good or not self.weights.any():
            raise ValueError("Sampling: weights must be finite numbers of 0 or more [n], at least one of them above 0")
        with np.errstate(over="ignore"):
            if not np.isfinite(self.weights.sum()):
                raise ValueError("Sampling: the sum of the weights is infinite; divide them by the largest")

    @property
    def digest(self) -> str:
        """Of the weights: an epoch can be continued only with the same ones."""
        return hashlib.sha256(np.ascontiguousarray(self.weights, "<f8").tobytes()).hexdigest()[:16]

    def order(self, seed: int, epoch: int) -> npt.NDArray[np.int64]:
        """The samples of an epoch [n], at random: a pure function of the weights, the seed and the epoch.

        A sample of the share p of all weights is drawn n p times, rounded down or up at random so that n p is the mean
        (systematic sampling, Madow 1949), and so is every group of samples of one weight.
        """
        n = len(self.weights)
        mixed = epoch_order(n, seed, epoch, "random")
        mixed = mixed[np.argsort(self.weights[mixed], kind="stable")]  # at random among those of one weight
        ends = np.cumsum(self.weights[mixed])
        start = uniforms(seed, epoch, np.zeros(1, np.int64), _START, 1)[0, 0]
        places = (np.arange(n) + start) * (ends[-1] / n)
        drawn = mixed[np.minimum(np.searchsorted(ends, places, side="right"), n - 1)]
        keys = hashes(seed, epoch, np.arange(n, dtype=np.int64), _DRAWN)
        shuffled: npt.NDArray[np.int64] = drawn[np.argsort(keys, kind="stable")]
        return shuffled


def repeats_of(order: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """How often the sample at each place of an epoch came before in it [n]."""
    places = np.argsort(order, kind="stable")
    ordered = order[places]
    each = np.arange(len(order), dtype=np.int64)
    first = np.maximum.accumulate(np.where(np.diff(ordered, prepend=-1) != 0, each, 0))
    repeats = np.empty_like(each)
    repeats[places] = each - first
    return repeats


def by_length(
    order: npt.NDArray[np.int64],
    lengths: npt.NDArray[np.int64],
    batch: int,
    policy: Order,
    seed: int,
    epoch: int,
) -> npt.NDArray[np.int64]:
    """`order`, rearranged so that the samples of a batch of `batch` have similar lengths and need little padding.

    `lengths` [n] are those of range(n). With "length" all samples are sorted, longest first. Otherwise they are sorted
    within every 64 batches, and the batches are then shuffled; an incomplete last batch stays last.
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


def _block_places(blocks: Blocks, seed: int, epoch: int) -> npt.NDArray[np.int64]:
    """Where in the epoch each block would begin if no sample moved [blocks]."""
    places = np.empty(len(blocks), np.int64)
    sequence = np.argsort(hashes(seed, epoch, np.arange(len(blocks)), _BLOCKS), kind="stable")
    places[sequence] = blocks.laid_out(sequence)
    return places


def _moved(place: npt.NDArray[np.int64], random: npt.NDArray[np.uint64], n: int, window: int) -> npt.NDArray[np.uint64]:
    """Places moved by up to half a window within the epoch, in fixed point with as many bits as fit in a key."""
    low = np.maximum(place - window // 2, 0)
    span = (np.minimum(place + -(-window // 2), n) - low).astype(np.uint64)
    fraction = np.uint64(min(32, 64 - 2 * n.bit_length()))
    return (low.astype(np.uint64) << fraction) + (span * (random >> np.uint64(32)) >> (np.uint64(32) - fraction))


@dataclass(frozen=True)
class Slices:
    """How ranks share an epoch of `n` samples from position `start`: each sample once, equally many steps for all.

    The samples of a step are a run of positions, which the ranks have parts of, of a batch each: together they have the
    rows of one process with their global batch. Rows beyond a rank's part hold other samples, of weight 0. With
    `drop_last` a step that is not full is left out; with "uneven", only the last samples, fewer than there are ranks,
    that cannot be divided evenly.

    With `even` or "uneven", ranks take turns, as with a DistributedSampler: each has every `world_size`th position.
    With `even`, the step before leaves a last one with fewer samples than ranks as many as there are: so no rank has a
    batch of padding alone, unless fewer samples than ranks are left altogether, or batches have one row.

    With `equal`, all ranks have equally many samples in every step: the last one fills up the last ranks' parts with
    the epoch's first samples, as few as possible.
    """

    n: int
    start: int
    batch_size: int  # per rank
    rank: int
    world_size: int
    drop_last: DropLast = False
    equal: bool = False
    even: bool = False

    @cached_property
    def global_batch(self) -> int:
        """Number of samples of a full step over all ranks."""
        return self.batch_size * self.world_size

    @cached_property
    def stop(self) -> int:
        """The position after the last that is read, unless a step is left out."""
        return self.n - (self.n - self.start) % self.world_size if self.drop_last == "uneven" else self.n

    @cached_property
    def steps(self) -> int:
        """Number of batches that are left."""
        left = self.stop - self.start
        return left // self.global_batch if self._drops_step else -(-left // self.global_batch)

    @property
    def remainder(self) -> int:
        """Number of samples of the last step over all ranks; 0: it is full."""
        return 0 if self._drops_step else (self.stop - self.start) % self.global_batch

    def end(self, step: int) -> int:
        """The position after batch `step` of all ranks, counted from `start`: where an epoch is continued."""
        return self._begin(step + 1)

    def positions(self, step: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]:
        """Positions in the epoch's order [B] and weights [B] of this rank's batch `step`, counted from `start`."""
        begin, end = self._begin(step), self._begin(step + 1)
        if self.equal:
            share = -(-(end - begin) // self.world_size)
            rows = np.arange(self.batch_size, dtype=np.int64)
            return (begin + self.rank * share + rows) % self.n, (rows < share).astype(np.float32)
        if not self.even and self.drop_last != "uneven":
            first = begin + self.rank * self.batch_size
            positions = np.arange(first, first + self.batch_size, dtype=np.int64)
            if first + self.batch_size <= end:
                return positions, np.ones(self.batch_size, np.float32)
            return positions % self.n, (positions < end).astype(np.float32)
        turns = self._turns(self.rank, begin, end)
        real = len(turns)
        rows = np.arange(self.batch_size, dtype=np.int64)
        positions = turns.start + self.world_size * rows
        if real < self.batch_size:  # the ranks' padding is a run of positions behind the step's
            before = sum(len(self._turns(rank, begin, end)) for rank in range(self.rank))
            positions[real:] = end + self.rank * self.batch_size - before - real + rows[real:]
        return positions % self.n, (rows < real).astype(np.float32)

    def span(self, first: int, stop: int) -> npt.NDArray[np.int64]:
        """Positions of this rank's batches from `first` up to, not including, `stop`: ascending, without padding."""
        bounds = self.start + np.arange(first, stop + 1, dtype=np.int64) * self.global_batch
        bounds = np.minimum(bounds, self.stop)
        if first <= self.steps - 1 <= stop:
            bounds[self.steps - 1 - first] = self._begin(self.steps - 1)
        if self.equal:
            share = -(-np.diff(bounds) // self.world_size)
            begins = np.minimum(bounds[:-1] + self.rank * share, bounds[1:])
            sizes = np.minimum(begins + share, bounds[1:]) - begins
            return np.repeat(begins - (np.cumsum(sizes) - sizes), sizes) + np.arange(sizes.sum(), dtype=np.int64)
        if not self.even and self.drop_last != "uneven":
            begins = np.minimum(bounds[:-1] + self.rank * self.batch_size, bounds[1:])
            sizes = np.minimum(begins + self.batch_size, bounds[1:]) - begins
            return np.repeat(begins - (np.cumsum(sizes) - sizes), sizes) + np.arange(sizes.sum(), dtype=np.int64)
        begins = bounds[:-1] + (self.rank - bounds[:-1]) % self.world_size
        sizes = np.maximum(0, -(-(bounds[1:] - begins) // self.world_size))
        rows = np.arange(sizes.sum(), dtype=np.int64) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        positions: npt.NDArray[np.int64] = np.repeat(begins, sizes) + self.world_size * rows
        return positions

    def _turns(self, rank: int, begin: int, end: int) -> range:
        """The positions of a rank, of those from `begin` up to `end`, where ranks take turns."""
        return range(begin + (rank - begin) % self.world_size, end, self.world_size)

    def _begin(self, step: int) -> int:
        """The position of the first sample of batch `step` of all ranks; of the one after the last, where that ends."""
        begin = min(self.start + step * self.global_batch, self.stop)
        lends = self.even and self.batch_size > 1 and not (self._drops_step or self.equal)
        if lends and 0 < step == self.steps - 1:
            return min(begin, self.stop - self.world_size)
        return begin

    @property
    def _drops_step(self) -> bool:
        return self.drop_last is True
