"""Embeddings computed on the nodes of a Ray cluster: a task makes some shards of the cache, each of whole batches.

A task writes each into a folder of its own below `ATTEMPTS` in the cache; the process that embeds moves it to its place
as soon as it is whole. Of data in an object store nothing but the store is shared: there the files come back as results
of the task. With as many threads, the bytes are those of one machine, whose batches are the same.
"""

import pickle
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from fastimg.cluster.connection import node_name
from fastimg.cluster.tasks import ClusterTasks
from fastimg.data.datasets import DatasetPart
from fastimg.data.digests import Elsewhere, digests_of
from fastimg.errors import UserError
from fastimg.loaders import Dataset
from fastimg.loaders.errors import not_written

from .cache import Encoding
from .store import CacheShard, ShardPlan, key_of, write_cache_shard

_Opened = TypeVar("_Opened")


class OpenedEncoding(NamedTuple):
    """Samples, and what makes embeddings of them, on a node."""

    part: DatasetPart
    encoding: Encoding


@dataclass(frozen=True, kw_only=True)
class NodeEncoding:
    """What the tasks of a split have in common.

    key: of the cache, which a node's encoder must have, too. attempts: the folder in which each makes one of its own;
    None where nodes share none.
    """

    opener: Callable[[], OpenedEncoding]  # a partial of a module's function, of values that can be compared
    key: str
    attempts: Path | None


class NodeRows(NamedTuple):
    """One shard to write on a node: its number, its samples [N], and their digests [N]."""

    number: int
    ids: npt.NDArray[np.int64]
    digests: npt.NDArray[np.void]


class NodeArrays(NamedTuple):
    """A shard that a task has written, and the folder in which it is; or, if that is None, its files by name."""

    shard: CacheShard
    folder: Path | None
    files: dict[str, bytes]


@dataclass(frozen=True)
class EncodingNodes:
    """The nodes of a cluster.

    attempts: a folder in the cache for shards that are on their way. shared: whether the nodes see it. On one of them,
    `open_split(name)` opens a split and its encoder, see `NodeEncoding`, and `open_samples(name)` the split alone.
    """

    tasks: ClusterTasks
    attempts: Path
    shared: bool
    open_split: Callable[[str], OpenedEncoding]
    open_samples: Callable[[str], Dataset]

    def digests(self, split: str) -> Elsewhere:
        """What reads digests on the nodes."""
        reading = partial(_digests_on_node, partial(self.open_samples, split))
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
        attempts = self.attempts if self.shared else None
        common = NodeEncoding(opener=partial(self.open_split, split), key=key, attempts=attempts)
        rows = [NodeRows(each.number, ids[each.ids], digests[each.ids]) for each in plan]
        encoded = self.tasks.results(
            _encode_on_node,
            common,
            rows,
            lambda each: f"{each.number:05d}.tar",
            total=len(rows),
            size=lambda each: len(each.ids),
            tick=tick,
        )
        for _, made in encoded:
            folder = self._arrived(made)
            yield made.shard, folder
            shutil.rmtree(folder, ignore_errors=True)

    def _arrived(self, made: NodeArrays) -> Path:
        """The folder in which a shard is. Raises UserError where it cannot be written."""
        if made.folder is not None:
            return made.folder
        try:
            folder = Path(tempfile.mkdtemp(dir=self.attempts))
            for name, content in made.files.items():
                (folder / name).write_bytes(content)
        except OSError as error:
            raise UserError(f"{self.attempts}: {not_written(error, 'give another --cache-dir')}") from error
        return folder


def _encode_on_node(common: NodeEncoding, part: list[NodeRows]) -> Iterator[NodeArrays]:
    """The task."""
    opened = _opened(common.opener, _encodings)
    if key_of(opened.encoding.about()) != common.key:
        raise UserError(
            f"{node_name()}: its weights, precision or version of a library are not those of the machine that embeds; "
            "install the same on all nodes, and give weights as a file that all see"
        )
    samples = replace(opened.part, indices=np.concatenate([each.ids for each in part]))
    with opened.encoding.rows(samples, lambda count: None) as rows:
        for each in part:
            folder = Path(tempfile.mkdtemp(prefix=f"fastimg-{each.number:05d}-", dir=common.attempts))
            taken = False
            try:
                shard = write_cache_shard(folder, each.number, each.digests, list(islice(rows, len(each.ids))))
                taken = common.attempts is not None  # whoever gets the folder deletes it
                files = {} if taken else {file.name: file.read_bytes() for file in sorted(folder.iterdir())}
            finally:
                if not taken:
                    shutil.rmtree(folder, ignore_errors=True)
            yield NodeArrays(shard, folder if taken else None, files)


_encodings: dict[bytes, OpenedEncoding] = {}  # of this process: the last one
_samples: dict[bytes, Dataset] = {}


def _opened(opener: Callable[[], _Opened], held: dict[bytes, _Opened]) -> _Opened:
    name = pickle.dumps(opener)
    if name not in held:
        held.clear()
        held[name] = opener()
    return held[name]


def _digests_on_node(opener: Callable[[], Dataset], ids: npt.NDArray[np.int64]) -> bytes:
    return digests_of(_opened(opener, _samples), ids)
