"""Embeddings computed on the nodes of a Ray cluster: a task makes some shards of the cache, each of whole batches.

A task writes into a folder of its own below `ATTEMPTS` in the cache; the process that embeds moves its shards to their
places. With as many threads, the bytes are those of one machine, whose batches are the same.
"""

import pickle
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from fastimg.cluster.connection import node_name
from fastimg.cluster.tasks import ClusterTasks, TaskCount
from fastimg.data.datasets import DatasetPart
from fastimg.data.digests import Elsewhere, digests_of
from fastimg.errors import UserError
from fastimg.loaders import Dataset, open_dataset

from .cache import Encoding
from .store import CacheShard, ShardPlan, key_of, write_cache_shard

_MOST = 8  # shards of a task


class OpenedEncoding(NamedTuple):
    """Samples, and what makes embeddings of them, on a node."""

    part: DatasetPart
    encoding: Encoding


@dataclass(frozen=True, kw_only=True)
class NodeEncoding:
    """What the tasks of a split have in common.

    key: of the cache, which a node's encoder must have, too. attempts: the folder in which each makes one of its own.
    """

    opener: Callable[[], OpenedEncoding]  # a partial of a module's function, of values that can be compared
    key: str
    attempts: Path


class NodeRows(NamedTuple):
    """One shard to write on a node: its number, its samples [N], and their digests [N]."""

    number: int
    ids: npt.NDArray[np.int64]
    digests: npt.NDArray[np.void]


class NodeArrays(NamedTuple):
    """Shards that a task has written, and the folder in which they are."""

    shards: list[CacheShard]
    folder: Path


@dataclass(frozen=True)
class EncodingNodes:
    """The nodes of a cluster. `open_split(name)` opens a split and its encoder on one of them; see `NodeEncoding`."""

    tasks: ClusterTasks
    attempts: Path
    open_split: Callable[[str], OpenedEncoding]
    data: Path
    classes: Any  # of a folder of class folders: top or leaf

    def digests(self, split: str) -> Elsewhere:
        """What reads digests on the nodes."""
        reading = partial(_digests_on_node, self.data, split, self.classes)
        return partial(self.tasks.mapped, reading, what=f"the digests of {split}")

    def write(
        self,
        key: str,
        split: str,
        ids: npt.NDArray[np.int64],
        digests: npt.NDArray[np.void],
        tick: Callable[[int], object],
        plan: list[ShardPlan],
    ) -> Iterator[tuple[CacheShard, Path]]:
        """The shards of a plan, of the samples `ids` of a split, in any order."""
        common = NodeEncoding(opener=partial(self.open_split, split), key=key, attempts=self.attempts)
        rows = [NodeRows(each.number, ids[each.ids], digests[each.ids]) for each in plan]
        size = max(1, min(_MOST, len(rows) // (4 * self.tasks.slots)))
        items = [rows[start : start + size] for start in range(0, len(rows), size)]
        for _, made in self.tasks.results(
            _encode_on_node, common, items, lambda part: f"{part[0].number:05d}.tar", tick
        ):
            for shard in made.shards:
                yield shard, made.folder
            shutil.rmtree(made.folder, ignore_errors=True)


def _name(item: list[NodeRows]) -> str:
    return f"{item[0].number:05d}.tar"


def _encode_on_node(common: NodeEncoding, item: list[NodeRows]) -> Iterator[int | NodeArrays]:
    """The task: its progress, then the shards."""
    opened = _opened(common.opener)
    if key_of(opened.encoding.about()) != common.key:
        raise UserError(
            f"{node_name()}: its weights, precision or version of a library are not those of the machine that embeds; "
            "install the same on all nodes, and give weights as a file that all see"
        )
    folder = Path(tempfile.mkdtemp(prefix=f"{item[0].number:05d}-", dir=common.attempts))
    count = TaskCount()
    made = []
    part = replace(opened.part, indices=np.concatenate([each.ids for each in item]))
    with opened.encoding.rows(part, count.add) as rows:
        for each in item:
            made.append(write_cache_shard(folder, each.number, each.digests, list(islice(rows, len(each.ids)))))
            yield count.take()
    yield NodeArrays(made, folder)


_held: dict[bytes, OpenedEncoding] = {}  # of this process: the last one


def _opened(opener: Callable[[], OpenedEncoding]) -> OpenedEncoding:
    name = pickle.dumps(opener)
    if name not in _held:
        _held.clear()
        _held[name] = opener()
    return _held[name]


def _digests_on_node(data: Path, split: str, classes: Any, ids: npt.NDArray[np.int64]) -> bytes:
    return digests_of(_dataset(data, split, classes), ids)


@lru_cache(maxsize=4)
def _dataset(data: Path, split: str, classes: Any) -> Dataset:
    return open_dataset(data, split, classes)
