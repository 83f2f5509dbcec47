"""The records of a source that one machine has read from front to back, as an object that many machines read."""

import threading
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from fastimg.convert.hub.ranges import BLOCK_BYTES, RangeFile
from fastimg.loaders.errors import DataError
from fastimg.loaders.remote.stores import RemoteFolder, StoredObject

from .losses import losing

_TIMES = 3  # a block that arrives as another one is fetched again


def block_sums(file: Path) -> list[int]:
    """The CRC-32 of each block of a file, by which its copies are verified. Raises OSError."""
    with file.open("rb") as content:
        return [zlib.crc32(block) for block in iter(lambda: content.read(BLOCK_BYTES), b"")]


@dataclass(frozen=True)
class SpoolObject:
    """Where a spool is, and the sums of its blocks."""

    url: str  # of the folder
    options: Mapping[str, str]
    stored: StoredObject
    sums: list[int]


class StoredSpool:
    """Reads records of an object from any thread. Blocks that follow one another are fetched ahead.

    Pickled, it is opened anew.
    """

    def __init__(self, source: SpoolObject) -> None:
        self._source = source
        self._lock = threading.Lock()
        self._file: RangeFile | None = None

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self._source,)

    def read(self, place: int, size: int) -> bytes:
        """Read `size` bytes at `place`. Raises SourceLostError."""
        with losing(), self._lock:
            if self._file is None:
                folder = RemoteFolder(self._source.url, self._source.options)
                self._file = RangeFile(self._source.stored.size, lambda start, stop: self._fetched(folder, start, stop))
            self._file.seek(place)
            return self._file.read(size)

    def _fetched(self, folder: RemoteFolder, start: int, stop: int) -> bytes:
        """A block, as it was uploaded."""
        name, _, tag = self._source.stored
        for _ in range(_TIMES):
            block = bytes(folder.read_range(name, start, stop, tag))
            if zlib.crc32(block) == self._source.sums[start // BLOCK_BYTES]:
                return block
        raise DataError(f"{folder.address(name)}: fetched {_TIMES} times, and was damaged each time; check the network")

    def close(self) -> None:
        """End the threads. May be called repeatedly."""
        with self._lock:
            if self._file is not None:
                self._file.close()
            self._file = None
