"""Shards of an object store that are read in turn, from the first to the last: the next ones are fetched meanwhile."""

import contextlib
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from fastimg.loaders.errors import DataError
from fastimg.loaders.runtime.file_locks import unlock_and_close
from fastimg.loaders.runtime.stopping import Cancelled, cancelled_by
from fastimg.loaders.wording import plural

from .cache.sizes import in_words
from .cache.wanted_files import WantedFile
from .mirrors import Mirror

_TOLD = 10.0  # seconds between two lines about shards that are all read
_AHEAD = 4  # shards that are fetched while one is read
_SHARE = 0.5  # of the cache's limit, and of what its disk has free: the shard that is read and those ahead of it


class PresentShards:
    """The shards of a split, each in the cache, with its index, until the next one is asked for.

    Meanwhile the next ones are fetched, as far as half of the cache, and of what its disk has free, holds them.
    """

    def __init__(self, mirror: Mirror, shards: Sequence[WantedFile], indexes: Sequence[WantedFile]) -> None:
        self._mirror = mirror
        self._shards = shards
        self._indexes = indexes

    def __iter__(self) -> Iterator[Path]:
        size, read, told = sum(shard.size for shard in self._shards), 0, time.monotonic()
        files = plural(len(self._shards), "file")
        self._mirror.tell(f"{self._mirror.url}: {files} ({in_words(size)}) are read once, to know what is in them")
        over = threading.Event()
        pool = ThreadPoolExecutor(_AHEAD, "fastimg-present")
        begun = 0  # shards that were fetched, or are being fetched
        try:
            for number, shard in enumerate(self._shards):
                if time.monotonic() - told >= _TOLD:
                    told = time.monotonic()
                    self._mirror.tell(f"{self._mirror.url}: {number} of {files} read ({in_words(read)})")
                read += shard.size
                begun = max(begun, number + 1)
                while begun < len(self._shards) and self._is_near(number, begun):
                    pool.submit(self._bring, begun, over)
                    begun += 1
                self._bring_index(number)
                file = self._mirror.open(shard)
                try:
                    yield self._mirror.folder / shard.name
                finally:
                    unlock_and_close(file)
        finally:
            over.set()
            pool.shutdown(cancel_futures=True)

    def _is_near(self, number: int, ahead: int) -> bool:
        """Whether shard `ahead` is fetched while `number` is read: not where the reader might lack the room for it."""
        if ahead - number > _AHEAD:
            return False
        size = sum(shard.size for shard in self._shards[number : ahead + 1])
        return size <= _SHARE * min(self._mirror.cache.limit, self._mirror.cache.free)

    def _bring(self, number: int, over: threading.Event) -> None:
        """Fetch a shard in the background. What fails is met again by the reader."""
        with contextlib.suppress(DataError, Cancelled), cancelled_by(over.is_set):
            self._bring_index(number)
            self._mirror.bring(self._shards[number])

    def _bring_index(self, number: int) -> None:
        if self._indexes:  # other writers have none
            self._mirror.bring_index(self._indexes[number])
