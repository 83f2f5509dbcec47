"""A file of the hub, read by ranges of bytes over HTTP, several blocks ahead. Nothing is stored on a disk."""

import io
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from fastimg.loaders.errors import DataError
from fastimg.system.hub import asking_hub

BLOCK_BYTES = 4 << 20
AHEAD = 4  # blocks that are requested while one is read
_KEPT = 8  # blocks in memory, at most; a row group's columns are read in turn
_RETRIES = 4

Fetch = Callable[[int, int], bytes]  # the bytes from a position up to another one


@dataclass(frozen=True)
class HubFile:
    """A parquet file of a repository at a commit. `name` is shown to users."""

    name: str
    path: str  # in the repository
    url: str
    size: int

    def __str__(self) -> str:
        return self.name

    def open(self) -> "RangeFile":
        """The file, to be read from any position. Errors of the hub are sentences."""
        return RangeFile(self.size, self._fetch)

    def _fetch(self, start: int, end: int) -> bytes:
        """Bytes `start` to `end`. A request that fails in a way that may pass, or is cut, is tried again."""
        from huggingface_hub.utils import build_hf_headers, hf_raise_for_status, http_backoff

        headers = {**build_hf_headers(), "Range": f"bytes={start}-{end - 1}", "Accept-Encoding": "identity"}
        with asking_hub(self.name):
            response = http_backoff("GET", self.url, headers=headers, max_retries=_RETRIES, base_wait_time=_pause())
            hf_raise_for_status(response)
        content: bytes = response.content
        total = response.headers.get("Content-Range", "").rpartition("/")[2]
        if response.status_code != 206 or len(content) != end - start or total != str(self.size):
            raise DataError(
                f"{self.name}: the server sent {len(content):,} bytes of {total or 'unknown'} where {end - start:,} of "
                f"{self.size:,} were asked for; run this again, or name another revision"
            )
        return content


PAUSE = 1.0  # seconds before a request is tried again, then twice as long each time


def _pause() -> float:
    return PAUSE


class BlockFile(io.RawIOBase):
    """A file of `size` bytes that is read by blocks. Not for several threads at once, as any file."""

    def __init__(self, size: int, block_bytes: int) -> None:
        self._size = size
        self._block_bytes = block_bytes
        self._position = 0

    def readable(self) -> bool:
        """It is."""
        return True

    def seekable(self) -> bool:
        """It is."""
        return True

    def size(self) -> int:
        """Bytes of the whole file."""
        return self._size

    def tell(self) -> int:
        """The position."""
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Set the position."""
        self._position = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}[whence]
        return self._position

    def readinto(self, buffer: Any) -> int:
        """Read up to the end of a block."""
        with memoryview(buffer).cast("B") as view:
            if self._position >= self._size or not len(view):
                return 0
            number, offset = divmod(self._position, self._block_bytes)
            piece = self._block(number)[offset : offset + len(view)]
            view[: len(piece)] = piece
            self._position += len(piece)
            return len(piece)

    def _block(self, number: int) -> bytes:
        raise NotImplementedError


class RangeFile(BlockFile):
    """A file of `size` bytes that `fetch` reads. Blocks that follow one another are fetched ahead by threads.

    Memory holds at most _KEPT blocks of BLOCK_BYTES.
    """

    def __init__(self, size: int, fetch: Fetch) -> None:
        super().__init__(size, BLOCK_BYTES)
        self._fetch = fetch
        self._last = -1  # the block that was read last
        self._blocks: dict[int, Future[bytes]] = {}  # in the order of their use
        self._pool = ThreadPoolExecutor(AHEAD, "hub")
        self._lock = threading.Lock()
        self._waits = True  # until the threads have ended, when it is closed

    def readinto(self, buffer: Any) -> int:
        """Read up to the end of a block."""
        with self._lock:
            return super().readinto(buffer)

    def read(self, size: int | None = -1) -> bytes:
        """Read `size` bytes, fewer only at the end of the file."""
        wanted = max(self._size - self._position, 0)
        if size is not None and size >= 0:
            wanted = min(wanted, size)
        buffer = bytearray(wanted)
        done = 0
        with memoryview(buffer) as view:
            while done < wanted and (count := self.readinto(view[done:])):
                done += count
        return bytes(buffer[:done])

    def close(self) -> None:
        """Drop what was fetched."""
        if not self.closed:
            self._pool.shutdown(wait=self._waits, cancel_futures=True)
            self._blocks.clear()
        super().close()

    def __del__(self) -> None:
        # The garbage collector may run inside a thread that starts, and holds the lock that joining threads needs
        # (CPython 3.11 and 3.12): waiting there would never end.
        self._waits = False
        super().__del__()

    def _block(self, number: int) -> bytes:
        follows = number in (self._last, self._last + 1) and self._last >= 0
        for wanted in range(number, number + 1 + (AHEAD if follows else 0)):
            if wanted * BLOCK_BYTES < self._size and wanted not in self._blocks:
                start = wanted * BLOCK_BYTES
                end = min(start + BLOCK_BYTES, self._size)
                self._blocks[wanted] = self._pool.submit(self._fetch, start, end)
        self._last = number
        future = self._blocks[number] = self._blocks.pop(number)  # used last
        while len(self._blocks) > _KEPT:
            self._blocks.pop(next(iter(self._blocks))).cancel()
        try:
            return future.result()
        except BaseException:
            self._blocks.pop(number, None)
            raise
