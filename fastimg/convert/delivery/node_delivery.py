"""A shard, or its samples, made on a node of a cluster, goes from there to the store."""

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from fastimg.convert.journal import Finished
from fastimg.loaders.containers.content import Content
from fastimg.loaders.containers.tars.shards import index_path
from fastimg.loaders.errors import DataError
from fastimg.loaders.remote.writable import WritableFolder

from .shard_delivery import DeliveredFile, NotDelivered, ShardFacts, deliver, staging_of
from .temporary_objects import HandedFile, hand_over


class DeliveredShard(NamedTuple):
    """A shard that is in the store. facts: what derived files need of it, by the names of ShardFacts."""

    finished: Finished
    files: list[DeliveredFile]
    facts: dict[str, bytes]


@dataclass(frozen=True, kw_only=True)
class NodeDelivery:
    """What a node needs to upload its shards.

    cache_dir: the folder of each node in which shards are made; None for its user's cache. word: stands for this
    conversion. notes: whether targets or fields are derived from them. remedy: how the error of an upload ends.
    """

    url: str
    options: Mapping[str, str]
    cache_dir: Path | None
    word: str
    content: Content
    notes: bool
    remedy: str

    @contextlib.contextmanager
    def folder(self, shard: str) -> Iterator[Path]:
        """A folder of this node for a shard. What tasks that are gone have left there is deleted.

        Those of other conversions that run here now have their folders locked.
        """
        every = staging_of(self.url, self.cache_dir) / "nodes"
        every.mkdir(parents=True, exist_ok=True)
        for earlier in every.iterdir():
            _sweep(earlier)
        folder, lock = _locked_folder(every, f"{self.word}-{shard}-")
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)
            os.close(lock)

    def deliver(self, folder: Path, finished: Finished) -> DeliveredShard:
        """Upload the files of a shard, and verify them. Raises NotDelivered."""
        if not finished.name:
            return DeliveredShard(finished, [], {})
        tar = folder / finished.name
        kept = folder / "facts"
        ShardFacts(kept).keep(tar, finished.index_sha256, self.content, self.notes)
        try:
            store = WritableFolder(self.url, self.options)
            files = [deliver(file, store) for file in (index_path(tar), tar)]
        except DataError as error:
            raise NotDelivered(f"{error}; {self.remedy}") from error
        return DeliveredShard(finished, files, {file.name: file.read_bytes() for file in kept.iterdir()})

    def hand_over(self, file: Path) -> HandedFile:
        """Upload what the machine that converts takes from the store again. Raises NotDelivered."""
        try:
            return hand_over(file, WritableFolder(self.url, self.options))
        except DataError as error:
            raise NotDelivered(f"{error}; {self.remedy}") from error


def _locked_folder(every: Path, prefix: str) -> tuple[Path, int]:
    """A new folder, and its descriptor, by which it is locked."""
    while True:
        folder = Path(tempfile.mkdtemp(prefix=prefix, dir=every))
        with contextlib.suppress(FileNotFoundError):  # another task took it for a left one
            lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            fcntl.flock(lock, fcntl.LOCK_EX)
            if folder.exists():
                return folder, lock
            os.close(lock)


def _sweep(folder: Path) -> None:
    """Delete the folder of a task, unless one that lives has it locked."""
    with contextlib.suppress(OSError):
        lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)
        finally:
            os.close(lock)
