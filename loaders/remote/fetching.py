"""Whole files of a remote folder: several ranges at once, and a checksum of everything before it is used."""

import hashlib
import os
import threading
from collections.abc import Callable
from typing import Protocol, TypeVar

from fastimg.loaders.containers.quick_sums import QuickSum, sum_of
from fastimg.loaders.errors import ShardError
from fastimg.loaders.runtime.side_by_side import side_by_side
from fastimg.loaders.wording import plural

from .cache.wanted_files import WantedFile
from .client import etags
from .stores import RemoteFolder

STREAMS = 4  # ranges of one file at once
RANGE = 8 << 20  # bytes; a multiple of BLOCK, so that each range is summed by itself
_RANGES = 16  # of all files together at once
_ALIGNED = 1 << 16  # bytes
_CHUNK = 1 << 20
_TIMES = 5  # a file whose checksum differs is fetched, unless the same comes twice


class _Sum(Protocol):
    def update(self, data: memoryview, /) -> None: ...


class _NoSum:
    def update(self, data: memoryview, /) -> None: ...


_S = TypeVar("_S", bound=_Sum)


class Fetching:
    """Fetches files of a remote folder into open descriptors, for any thread."""

    def __init__(self, remote: RemoteFolder) -> None:
        self.remote = remote
        self._alike: dict[tuple[str, str], set[str]] = {}  # SHA-256s of what came of a file and tag
        self._at_once = threading.BoundedSemaphore(_RANGES)

    def fetch(self, wanted: WantedFile, file: int, strict: bool = False) -> None:
        """Write the file from the store to `file`, and verify it. Raises DataError, and ShardError if it is another.

        If `strict`, what no checksum is stated of must arrive twice alike, by TLS as well.
        """
        if wanted.tag:
            self._fetch_tagged(wanted, file, strict)
            return
        if wanted.quick:
            self._verified(wanted.name, wanted.quick, lambda: self._quick_sum_of_copy(wanted, file))
        else:
            self._verified(wanted.name, wanted.sha256, lambda: self._sha256_of_copy(wanted, file))

    def _verified(self, name: str, stated: str, fetch: Callable[[], str]) -> None:
        """Fetch a file, whose checksum `fetch` returns, until it is the stated one.

        What comes twice alike was replaced, and is not damage on the way: ShardError, as after _TIMES times.
        """
        seen: list[str] = []
        while len(seen) < _TIMES and len(set(seen)) == len(seen):
            found = fetch()
            if found == stated:
                return
            seen.append(found)
        raise ShardError(
            f"{self.remote.address(name)}: fetched {plural(len(seen), 'time')}, and its checksum is {seen[-1]} where "
            f"dataset.json says {stated}: it was replaced or damaged; upload it again, with dataset.json"
        )

    def _quick_sum_of_copy(self, wanted: WantedFile, file: int) -> str:
        """Each range is summed by itself, piece by piece, before they leave the processor's cache."""
        return sum_of(digest for each in self._copy(wanted, file, QuickSum) for digest in each.digests())

    def _sha256_of_copy(self, wanted: WantedFile, file: int) -> str:
        if 0 < wanted.size <= RANGE:
            (found,) = self._copy(wanted, file, hashlib.sha256)
            return found.hexdigest()
        self._copy(wanted, file, _NoSum)
        return _digest(file, wanted.size, "sha256")

    def _fetch_tagged(self, wanted: WantedFile, file: int, strict: bool) -> None:
        """A file without a stated checksum: every range is bound to its tag, which is often a checksum of the content.

        What its tag does not vouch for must arrive twice alike: where the tag looks like a checksum and is not, as of
        encrypted objects, where the network is not TLS, and always if `strict`.
        """
        believed = self.remote.guarded and not strict and not etags.may_be_checksum(wanted.tag)
        known = wanted.name, wanted.tag
        for _ in range(_TIMES):
            self._copy(wanted, file, _NoSum)
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

    def _copy(self, wanted: WantedFile, file: int, new: Callable[[], _S]) -> list[_S]:
        """Fetch and write the file, by ranges. Returns a sum of each, in order, which `new` makes."""
        starts = range(0, wanted.size, RANGE)
        if len(starts) <= 1:
            return [self._copy_range(wanted, file, 0, new)]
        # Threads of this file alone: none is left when it is there, or writes to the descriptor once it is closed.
        return side_by_side(
            lambda start: self._copy_range(wanted, file, start, new), starts, min(STREAMS, len(starts)), "fastimg-fetch"
        )

    def _copy_range(self, wanted: WantedFile, file: int, start: int, new: Callable[[], _S]) -> _S:
        """Fetch and write the range that begins at `start`, and return its sum."""
        found = new()
        if not wanted.size:
            return found

        def begin() -> Callable[[memoryview], None]:
            nonlocal found
            found = new()
            writer = _AlignedWriter(file, start, stop)

            def take(piece: memoryview) -> None:
                found.update(piece)
                writer.write(piece)

            return take

        stop = min(start + RANGE, wanted.size)
        with self._at_once:
            self.remote.receive(wanted.name, start, stop, wanted.tag, begin)
        return found


class _AlignedWriter:
    """Writes the bytes of a file from `at` to before `stop`, in pieces of any size, up to multiples of _ALIGNED.

    Of an aligned piece the system makes large pages, and it reads nothing of a file that is written over.
    """

    def __init__(self, file: int, at: int, stop: int) -> None:
        self._file = file
        self._at = at
        self._stop = stop
        self._rest = bytearray()  # what was given and not yet written

    def write(self, piece: memoryview) -> None:
        """Take the next bytes. Raises OSError."""
        end = self._at + len(self._rest) + piece.nbytes
        until = end if end >= self._stop else end - end % _ALIGNED
        if until <= self._at:
            self._rest += piece
            return
        used = until - self._at - len(self._rest)
        parts = [memoryview(self._rest), piece[:used]]
        while self._at < until:
            written = os.pwritev(self._file, parts, self._at)
            self._at += written
            parts = _after(parts, written)
        self._rest = bytearray(piece[used:])


def _after(parts: list[memoryview], count: int) -> list[memoryview]:
    """What is left of `parts` without their first `count` bytes."""
    left = []
    for part in parts:
        left.append(part[count:])
        count -= min(count, part.nbytes)
    return left


def _digest(file: int, size: int, kind: str) -> str:
    digest = hashlib.new(kind, usedforsecurity=False)
    at = 0
    while at < size and (block := os.pread(file, min(_CHUNK, size - at), at)):
        digest.update(block)
        at += len(block)
    return digest.hexdigest()
