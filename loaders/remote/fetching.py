"""Whole files of a remote folder: several ranges at once, and a checksum of everything before it is used."""

import hashlib
import os
import threading
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait

from fastimg.loaders.errors import ShardError
from fastimg.loaders.runtime.stopping import cancelled_by, check
from fastimg.loaders.wording import plural

from . import etags
from .shard_cache import WantedFile
from .stores import RemoteFolder

STREAMS = 4  # ranges of one file at once
RANGE = 8 << 20  # bytes
_RANGES = 16  # of all files together that are in memory, at most
_CHUNK = 1 << 20
_POLL = 0.1  # seconds between two looks at whether the shard is still needed
_TIMES = 5  # a file whose checksum differs is fetched, unless the same comes twice


class Fetching:
    """Fetches files of a remote folder into open descriptors, for any thread."""

    def __init__(self, remote: RemoteFolder) -> None:
        self.remote = remote
        self._alike: dict[tuple[str, str], set[str]] = {}  # SHA-256s of what came of a file and tag
        self._in_memory = threading.BoundedSemaphore(_RANGES)

    def fetch(self, wanted: WantedFile, file: int, strict: bool = False) -> None:
        """Write the file from the store to `file`, and verify it. Raises DataError, and ShardError if it is another.

        If `strict`, what no checksum is stated of must arrive twice alike, by TLS as well.
        """
        if wanted.tag:
            self._fetch_tagged(wanted, file, strict)
            return
        self._verified(wanted.name, wanted.sha256, lambda: self._sum_of_copy(wanted, file))

    def _verified(self, name: str, sha256: str, fetch: Callable[[], str]) -> None:
        """Fetch a file, whose checksum `fetch` returns, until it is the stated one.

        What comes twice alike was replaced, and is not damage on the way: ShardError, as after _TIMES times.
        """
        seen: list[str] = []
        while len(seen) < _TIMES and len(set(seen)) == len(seen):
            found = fetch()
            if found == sha256:
                return
            seen.append(found)
        raise ShardError(
            f"{self.remote.address(name)}: fetched {plural(len(seen), 'time')}, and its checksum is {seen[-1]} where "
            f"dataset.json says {sha256}: it was replaced or damaged; upload it again, with dataset.json"
        )

    def _sum_of_copy(self, wanted: WantedFile, file: int) -> str:
        if wanted.size <= RANGE:  # what was received is summed before it leaves the processor's cache
            return hashlib.sha256(self._copy_range(wanted, file, 0)).hexdigest()
        self._copy(wanted, file)
        return _digest(file, wanted.size, "sha256")

    def _fetch_tagged(self, wanted: WantedFile, file: int, strict: bool) -> None:
        """A file without a stated checksum: every range is bound to its tag, which is often a checksum of the content.

        What its tag does not vouch for must arrive twice alike: where the tag looks like a checksum and is not, as of
        encrypted objects, where the network is not TLS, and always if `strict`.
        """
        believed = self.remote.guarded and not strict and not etags.may_be_checksum(wanted.tag)
        known = wanted.name, wanted.tag
        for _ in range(_TIMES):
            self._copy(wanted, file)
            if believed or etags.agrees(wanted.tag, wanted.size, etags.reader(file)):
                return
            found = _digest(file, wanted.size, "sha256")
            seen = self._alike.setdefault(known, set())
            if found in seen:
                seen &= {found}  # the next time it need come only once
                return
            seen.add(found)
        raise ShardError(
            f"{self.remote.address(wanted.name)}: fetched {plural(_TIMES, 'time')}, with another content each time; "
            "check the network"
        )

    def _copy(self, wanted: WantedFile, file: int) -> None:
        starts = range(0, wanted.size, RANGE)
        if len(starts) <= 1:
            self._copy_range(wanted, file, 0)
            return
        # Threads of this file alone: none is left when it is there, or writes to the descriptor once it is closed.
        pool = ThreadPoolExecutor(min(STREAMS, len(starts)), "fastimg-fetch")
        over = threading.Event()

        def copy(start: int) -> None:
            with cancelled_by(over.is_set):
                self._copy_range(wanted, file, start)

        try:
            waiting = {pool.submit(copy, start) for start in starts}
            while waiting:
                check()
                done, waiting = wait(waiting, _POLL, FIRST_COMPLETED)
                for each in done:
                    each.result()
        finally:
            over.set()
            pool.shutdown(wait=True, cancel_futures=True)

    def _copy_range(self, wanted: WantedFile, file: int, start: int) -> memoryview:
        """Fetch and write the range that begins at `start`, and return it."""
        if not wanted.size:
            return memoryview(b"")
        with self._in_memory:
            view = self.remote.read_range(wanted.name, start, min(start + RANGE, wanted.size), wanted.tag)
            at = 0
            while at < len(view):
                at += os.pwrite(file, view[at:], start + at)
            return view


def _digest(file: int, size: int, kind: str) -> str:
    digest = hashlib.new(kind, usedforsecurity=False)
    at = 0
    while at < size and (block := os.pread(file, min(_CHUNK, size - at), at)):
        digest.update(block)
        at += len(block)
    return digest.hexdigest()
