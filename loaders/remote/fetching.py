"""Whole files of a remote folder: several ranges at once, and a checksum of everything before it is used."""

import hashlib
import os
import threading
from concurrent.futures import ThreadPoolExecutor

from fastimg.loaders.errors import ShardError

from .shard_cache import WantedFile
from .stores import RemoteFolder

STREAMS = 4  # ranges of one file at once
RANGE = 8 << 20  # bytes
_RANGES = 16  # of all files together that are in memory, at most
_CHUNK = 1 << 20
_TIMES = 2  # a file whose checksum differs is fetched again once


class Fetching:
    """Fetches files of a remote folder into open descriptors, for any thread."""

    def __init__(self, remote: RemoteFolder) -> None:
        self.remote = remote
        self._in_memory = threading.BoundedSemaphore(_RANGES)

    def fetch(self, wanted: WantedFile, file: int) -> None:
        """Write the file from the store to `file`, and verify it. Raises DataError, and ShardError if it is another."""
        found = ""
        for _ in range(_TIMES):
            self._copy(wanted, file)
            found = _sha256(file, wanted.size)
            if found == wanted.sha256:
                return
        raise ShardError(
            f"{self.remote.address(wanted.name)}: fetched {_TIMES} times, and its checksum is {found} where "
            f"dataset.json says {wanted.sha256}: it was replaced or damaged; upload it again, with dataset.json"
        )

    def whole(self, name: str, sha256: str) -> bytes:
        """A small file, verified. Raises as `fetch` does."""
        found = ""
        for _ in range(_TIMES):
            content = self.remote.read(name)
            found = hashlib.sha256(content).hexdigest()
            if found == sha256:
                return content
        raise ShardError(
            f"{self.remote.address(name)}: fetched {_TIMES} times, and its checksum is {found} where "
            f"dataset.json says {sha256}: it was replaced or damaged; upload it again, with dataset.json"
        )

    def _copy(self, wanted: WantedFile, file: int) -> None:
        starts = range(0, wanted.size, RANGE)
        if len(starts) == 1:
            self._copy_range(wanted, file, 0)
            return
        # Threads of this file alone: none is left when it is there, or writes to the descriptor once it is closed.
        pool = ThreadPoolExecutor(min(STREAMS, len(starts)), "fastimg-fetch")
        try:
            for each in [pool.submit(self._copy_range, wanted, file, start) for start in starts]:
                each.result()
        finally:
            pool.shutdown(wait=True, cancel_futures=True)

    def _copy_range(self, wanted: WantedFile, file: int, start: int) -> None:
        with self._in_memory:
            view = self.remote.read_range(wanted.name, start, min(start + RANGE, wanted.size))
            while len(view):
                written = os.pwrite(file, view, start)
                start, view = start + written, view[written:]


def _sha256(file: int, size: int) -> str:
    digest = hashlib.sha256()
    at = 0
    while at < size and (block := os.pread(file, min(_CHUNK, size - at), at)):
        digest.update(block)
        at += len(block)
    return digest.hexdigest()
