"""The cache of a node that reads its part of an order, shard by shard, without shards: for benchmarks/simulate.py."""

from collections import OrderedDict
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

NEVER = 1 << 62


class Reads(NamedTuple):
    """What a node reads in an epoch: pairs [N] of a step and a shard, by steps; and where each shard comes first."""

    steps: npt.NDArray[np.int64]
    shards: npt.NDArray[np.int64]
    first: npt.NDArray[np.int64]  # place in the order, by shard; NEVER if this node reads none of it


class NodeReads:
    """Collects what some of `nodes` read, from parts of an order that come in turn. `batch`: samples of a node's."""

    def __init__(self, seen: Sequence[int], nodes: int, batch: int, size: int, shards: int) -> None:
        self._nodes, self._batch, self._size, self._shards = nodes, batch, size, shards
        self._pairs: dict[int, list[npt.NDArray[np.int64]]] = {node: [] for node in seen}
        self._first = {node: np.full(shards, -1, np.int64) for node in seen}

    def note(self, ids: npt.NDArray[np.int64], place: int) -> None:
        """The samples `ids` [N] are at the places from `place` on."""
        end = place + len(ids)
        for node in self._pairs:
            turn = place // self._batch
            turn += (node - turn) % self._nodes  # the node's first batch that does not end before `place`
            while turn * self._batch < end:
                begin = max(turn * self._batch, place)
                of = ids[begin - place : (turn + 1) * self._batch - place] // self._size
                shards, at = np.unique(of, return_index=True)
                self._pairs[node].append(turn // self._nodes * self._shards + shards)
                first = self._first[node]
                first[shards] = np.where(first[shards] < 0, begin + at, first[shards])
                turn += self._nodes

    def of(self, node: int) -> Reads:
        """What a node has read, when all parts were noted."""
        pairs = np.unique(np.concatenate(self._pairs[node]))
        first = self._first[node]
        return Reads(pairs // self._shards, pairs % self._shards, np.where(first < 0, NEVER, first))


class Fetched(NamedTuple):
    """What an epoch with a cache fetches: shards, and how many of them it had fetched before."""

    shards: int
    again: int


def with_cache(reads: Reads, room: int, world_batch: int, slots: int, ahead: int, awaits: bool = True) -> Fetched:
    """An epoch of a node whose cache has room for so many shards.

    While a step of `world_batch` places is read, the shards are asked for that begin before the end of `slots` steps
    from its beginning on, and within `ahead` places more. The one used longest ago is given up; with `awaits`, as in
    the loader, one that was asked for and not read yet counts as just used.
    """
    cache = _Cache(room, len(reads.first))
    coming = np.argsort(reads.first, kind="stable")
    begins = reads.first[coming]
    asked = 0
    starts = np.flatnonzero(np.diff(reads.steps, prepend=-1))
    for begin, stop in zip(starts.tolist(), [*starts[1:].tolist(), len(reads.steps)], strict=True):
        soon = int(begins.searchsorted((int(reads.steps[begin]) + slots) * world_batch + ahead))
        for shard in coming[asked:soon].tolist():
            cache.use(shard, awaited=awaits)
        asked = max(asked, soon)
        for shard in reads.shards[begin:stop].tolist():
            cache.use(shard)
    return Fetched(cache.fetched, cache.again)


class _Cache:
    """Numbers of shards, in the order of their last use: those that nobody has read yet apart."""

    def __init__(self, room: int, shards: int) -> None:
        self.fetched = self.again = 0
        self._room = room
        self._used: OrderedDict[int, None] = OrderedDict()
        self._awaited: OrderedDict[int, None] = OrderedDict()
        self._begun = np.zeros(shards, np.bool_)

    def use(self, shard: int, awaited: bool = False) -> None:
        here = shard in self._used or shard in self._awaited
        self._used.pop(shard, None)
        self._awaited.pop(shard, None)
        if not here:
            if len(self._used) + len(self._awaited) >= self._room:
                (self._used or self._awaited).popitem(last=False)
            self.fetched += 1
            self.again += bool(self._begun[shard])
            self._begun[shard] = True
        (self._awaited if awaited else self._used)[shard] = None


def least_room(reads: Reads, world_batch: int, slots: int, ahead: int, most: int, awaits: bool = True) -> int:
    """The smallest cache, in shards, that fetches none twice; `most` if there is none smaller."""
    low, high = 1, most
    while low < high:
        middle = (low + high) // 2
        if with_cache(reads, middle, world_batch, slots, ahead, awaits).again:
            low = middle + 1
        else:
            high = middle
    return low
