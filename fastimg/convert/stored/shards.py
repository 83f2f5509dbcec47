"""Shards of a source in an object store: each is in the cache while it is read, and the next one is on its way."""

import os
import threading
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fastimg.loaders.containers.description import read_description
from fastimg.loaders.errors import DataError
from fastimg.loaders.remote.cache.sizes import in_words
from fastimg.loaders.remote.cache.wanted_files import WantedFile
from fastimg.loaders.remote.fetched_files import FetchedFiles
from fastimg.loaders.remote.mirrors import Lease, Mirror, mirror_at, open_mirror, wanted_indexes, wanted_shards

from .losses import losing


class StoredShards:
    """Shards by their paths in the cache. Any thread may read; another process opens the mirror anew."""

    def __init__(self, mirror: Mirror, shards: Sequence[WantedFile], options: Mapping[str, str]) -> None:
        self._mirror = mirror
        self._shards = shards
        self._options = dict(options)
        self._numbers = {shard.name: number for number, shard in enumerate(shards)}
        self._files = FetchedFiles(mirror, shards, ())
        self._lock = threading.Lock()
        self._newest = -1

    def __reduce__(self) -> tuple[object, ...]:
        cache = self._mirror.cache
        return _reopened, (self._mirror.url, cache.root, cache.limit, self._options, self._shards)

    def open(self, path: Path) -> int:
        """A descriptor of a shard, which stays in the cache until it is closed. Raises DataError."""
        with losing():
            return self._mirror.open(self._shards[self._numbers[path.name]])

    def peek(self, path: Path, offset: int, size: int) -> bytes:
        """Bytes of a shard, which is not fetched for a few of them. Raises DataError."""
        with losing():
            return self._files.peek(self._numbers[path.name], size, offset)

    def lease(self, path: Path) -> Lease:
        """Keep a shard in the cache. Raises DataError."""
        return self._mirror.lease(self._shards[self._numbers[path.name]])

    def announce(self, path: Path) -> None:
        """Begin to fetch a shard, and the one behind it."""
        number = self._numbers[path.name]
        with self._lock:
            if number == self._newest:
                return
            self._newest = number
        nothing = np.zeros(2, np.int64)
        following = np.minimum([number, number + 1], len(self._shards) - 1)
        self._files.ahead(following, nothing, nothing)

    def check_shuffled(self) -> None:
        """Raise DataError if the cache does not hold all shards, which any order but their own would fetch again."""
        limit = self._mirror.cache.limit
        if self._files.size > limit:
            raise DataError(
                f"{self._mirror.url}: its shards are {in_words(self._files.size)}, and the cache may hold "
                f"{in_words(limit)}: shuffled, they would be fetched again and again; give a larger cache_limit=, or "
                "--no-shuffle"
            )

    def close(self) -> None:
        """Fetch nothing more ahead."""
        self._files.close()


def stored_shards(src: Path, paths: Iterable[Path]) -> StoredShards | None:
    """What opens the shards of a source, if its folder mirrors a URL; None if they are here. Raises DataError."""
    mirror = mirror_at(src)
    if mirror is None:
        return None
    if mirror.tars is not None:
        return StoredShards(mirror, mirror.wanted_tars(list(paths)), mirror.options)
    description = read_description(src)
    return StoredShards(mirror, wanted_shards(_shards(description)), mirror.options)


def bring_indexes(src: Path, description: Mapping[str, Any]) -> None:
    """Have the indexes of a converted dataset's tars, if its folder mirrors a URL. Raises DataError."""
    mirror = mirror_at(src)
    if mirror is not None and description["container"] == "tar":
        for index in wanted_indexes(_shards(description)):
            mirror.bring_index(index)


def leased(src: Path, file: Path) -> Lease | None:
    """Have a shard of a converted dataset in the cache, if its folder mirrors a URL. Raises DataError."""
    stored = stored_shards(src, ())
    return None if stored is None else stored.lease(file)


def _shards(description: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [shard for split in description["splits"].values() for shard in split["shards"]]


def _reopened(
    url: str, root: Path, limit: int, options: Mapping[str, str], shards: Sequence[WantedFile]
) -> StoredShards:
    return StoredShards(open_mirror(url, root, limit, options), shards, options)


def open_shard(path: Path, stored: StoredShards | None) -> int:
    """A descriptor of a shard, here or in the cache, for the caller to close. Raises OSError and DataError."""
    return os.open(path, os.O_RDONLY | os.O_CLOEXEC) if stored is None else stored.open(path)
