"""How the nodes of a cluster and the process that converts hand each other files: by a shared folder, or by a store."""

import contextlib
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple, Protocol

from fastimg.cluster.shared_places import ATTEMPTS
from fastimg.convert.delivery.node_delivery import DeliveredShard, NodeDelivery
from fastimg.convert.delivery.store_destination import StoreDestination
from fastimg.convert.delivery.temporary_objects import HandedFile
from fastimg.convert.journal import Finished
from fastimg.convert.plan import Shard
from fastimg.convert.sources.samples import Source
from fastimg.loaders.containers.content import Content
from fastimg.loaders.containers.tars.shards import move_shard
from fastimg.loaders.errors import DataError

from .spools import Placed, share_spools, upload_spools

Say = Callable[[str], object]


class NodeShard(NamedTuple):
    """A shard that a task has written, and the folder in which it lies."""

    finished: Finished
    folder: Path


class Exchange(Protocol):
    """What is exchanged, from a conversion's side, while `open` lasts; then nothing of it is left."""

    @property
    def place(self) -> Path | NodeDelivery:
        """Where each task makes a folder of its own: in a shared folder, or on its node, which uploads."""

    def open(self) -> AbstractContextManager[None]:
        """Begin, and clear up at the end."""

    def share(self, source: Source, shards: Sequence[Shard], say: Say) -> Placed:
        """Let the nodes read what this process has read of a source into temporary files, for these shards."""

    def take_shard(self, made: NodeShard | DeliveredShard) -> None:
        """Bring a tar to the destination."""

    def take_samples(self, made: Path | HandedFile) -> Path:
        """Bring the prepared samples of a shard here. Any thread may."""


class FolderExchange:
    """By the folder of the destination, which all nodes share."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.place = folder.resolve() / ATTEMPTS

    @contextlib.contextmanager
    def open(self) -> Iterator[None]:
        """See Exchange."""
        self.place.mkdir(exist_ok=True)
        try:
            yield
        finally:
            shutil.rmtree(self.place, ignore_errors=True)

    def share(self, source: Source, shards: Sequence[Shard], say: Say) -> Placed:
        """See Exchange."""
        share_spools(source, self.place, say)
        return lambda shard: replace(shard, entries=shard.entries.compact())

    def take_shard(self, made: NodeShard | DeliveredShard) -> None:
        """See Exchange."""
        assert isinstance(made, NodeShard)
        if made.finished.name:
            move_shard(made.folder / made.finished.name, self._folder)
        shutil.rmtree(made.folder, ignore_errors=True)

    def take_samples(self, made: Path | HandedFile) -> Path:
        """See Exchange."""
        assert isinstance(made, Path)
        return made


class StoreExchange:
    """By the store of the destination."""

    def __init__(self, store: StoreDestination, content: Content, notes: bool) -> None:
        self._store = store
        self._objects = store.temporary()
        self.place = store.for_nodes(content, notes)

    @contextlib.contextmanager
    def open(self) -> Iterator[None]:
        """See Exchange. Objects that cannot be deleted are an error, unless there is another one."""
        self._objects.clear()  # of a conversion that was killed
        try:
            yield
        except BaseException:
            with contextlib.suppress(DataError, OSError):
                self._objects.clear()
            raise
        self._objects.clear()

    def share(self, source: Source, shards: Sequence[Shard], say: Say) -> Placed:
        """See Exchange."""
        return upload_spools(source, shards, self._objects, say)

    def take_shard(self, made: NodeShard | DeliveredShard) -> None:
        """See Exchange."""
        assert isinstance(made, DeliveredShard)
        self._store.take(made)

    def take_samples(self, made: Path | HandedFile) -> Path:
        """See Exchange."""
        assert isinstance(made, HandedFile)
        return self._objects.take(made)
