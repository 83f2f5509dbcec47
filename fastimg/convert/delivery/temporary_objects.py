"""What the nodes of a cluster and the machine that converts hand each other by way of the store, while it lasts.

Its names are those of `journal.is_temporary`: what a killed conversion leaves is deleted by the one that goes on, or
begins anew.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from fastimg.convert.journal import is_temporary
from fastimg.convert.stored.spools import SpoolObject, block_sums
from fastimg.loaders.containers.quick_sums import sum_of_file
from fastimg.loaders.errors import DataError, ShardError
from fastimg.loaders.remote.cache.wanted_files import WantedFile
from fastimg.loaders.remote.fetching import Fetching
from fastimg.loaders.remote.stores import StoredObject
from fastimg.loaders.remote.writable import WritableFolder

from .shard_delivery import delivering


class HandedFile(NamedTuple):
    """A file that is in the store for a while, and its quick sum."""

    stored: StoredObject
    xxh3: str


def hand_over(file: Path, store: WritableFolder) -> HandedFile:
    """Upload a file under its name, and verify what arrived. Raises DataError."""
    return HandedFile(store.send(file.name, file), sum_of_file(file))


class TemporaryObjects:
    """Objects at `url`, beside the dataset that is made there. `folder`: where they are put on this machine.

    Any thread may use it. Raises NotDelivered, whose sentence ends with `remedy`.
    """

    def __init__(self, url: str, options: Mapping[str, str], folder: Path, remedy: str) -> None:
        self.folder = folder
        self._url = url
        self._options = dict(options)
        self._remedy = remedy

    def add_spool(self, file: Path) -> SpoolObject:
        """Upload the records of a source."""
        with delivering(self._remedy):
            return SpoolObject(self._url, self._options, self._store().send(file.name, file), block_sums(file))

    def take(self, handed: HandedFile) -> Path:
        """Fetch a file that a node has uploaded, and delete it there."""
        name, size, _ = handed.stored
        path = self.folder / name
        with delivering(self._remedy):
            store = self._store()
            wanted = WantedFile(name, size, "", quick=handed.xxh3)
            with path.open("w+b", buffering=0) as file:
                try:
                    Fetching(store).fetch(wanted, file.fileno())
                except ShardError as error:
                    raise DataError(f"{store.address(name)}: arrives damaged, or was replaced") from error
            store.delete([name])
        return path

    def clear(self) -> None:
        """Delete all that are there, and what of them is here."""
        for path in self.folder.iterdir():
            if is_temporary(path.name):
                path.unlink()
        with delivering(self._remedy):
            store = self._store()
            store.delete([each.name for each in store.contents() if is_temporary(each.name)])

    def _store(self) -> WritableFolder:
        return WritableFolder(self._url, self._options)
