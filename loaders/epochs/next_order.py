"""The order of an epoch, made when it begins, or by a thread while a validation runs."""

import contextlib
import threading
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from fastimg.loaders.containers.datasets import Dataset
from fastimg.loaders.containers.readahead import WholeBlocks
from fastimg.loaders.order import BLOCK, Slices, by_length, epoch_order, repeats_of

from .config import LoaderConfig


def shard_starts(dataset: Dataset, indices: npt.NDArray[np.int64] | None) -> npt.NDArray[np.int64]:
    """The place among the samples that are read of each shard's first one."""
    shards: npt.NDArray[np.int64] | None = getattr(dataset, "shard_numbers", None)
    if shards is None:
        raise ValueError(f"{dataset.name}: block='shard' is for tar shards; give a number of samples")
    chosen = shards if indices is None else shards[indices]
    return np.flatnonzero(np.diff(chosen, prepend=-1)).astype(np.int64)


class EpochOrder(NamedTuple):
    """The order of an epoch, and what is read ahead by it."""

    order: npt.NDArray[np.int64]  # a permutation of range(n), or n draws
    blocks: WholeBlocks | None  # None: the samples of each batch
    again: npt.NDArray[np.int64] | None = None  # [n], how often a sample came before; None: none comes again


def make_order(
    config: LoaderConfig,
    slices: Slices,
    epoch: int,
    lengths: npt.NDArray[np.int64] | None,
    together: int,
    starts: npt.NDArray[np.int64] | None = None,
) -> EpochOrder:
    """The order of an epoch from where `slices` begin: a pure function.

    `lengths` are those of texts; `starts` the first samples of shards, where blocks are shards.
    """
    c = config
    block = BLOCK if c.block == "shard" else c.block
    block_or_starts = block if starts is None else starts
    if c.sampling is None:
        order = epoch_order(slices.n, c.seed, epoch, c.order, block_or_starts, c.window)
    else:
        order = c.sampling.order(c.seed, epoch)
    if lengths is not None and c.order != "sequential":
        order = by_length(order, lengths, together, c.order, c.seed, epoch)
    ahead = c.order == "quasi-random" or (starts is not None and c.order == "sequential")
    blocks = WholeBlocks(order, slices, block_or_starts) if ahead else None
    return EpochOrder(order, blocks, None if c.sampling is None else repeats_of(order))


class OrderAhead:
    """The order of an epoch, computed by a thread while the consumer does something else."""

    def __init__(self, epoch: int, make: Callable[[], EpochOrder]) -> None:
        self.epoch = epoch
        self._make = make
        self._made: EpochOrder | None = None
        self._thread = threading.Thread(target=self._work, name="fastimg-order")
        with contextlib.suppress(RuntimeError):  # no more threads available: `take` computes it
            self._thread.start()

    def take(self) -> EpochOrder:
        """The order. If the thread failed, or belongs to the process that this one was forked from, computed here."""
        if self._thread.ident is not None:
            self._thread.join()
        return self._make() if self._made is None else self._made

    def _work(self) -> None:
        with contextlib.suppress(Exception):  # `take` meets the same error again, where it can be reported
            self._made = self._make()
