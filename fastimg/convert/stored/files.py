"""Contents of a tree's files, fetched by threads in the order in which they are announced."""

import errno
import os
import posixpath
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from fastimg.loaders.remote.stores import DeniedError, NotThereError
from fastimg.loaders.remote.trees import StoredFiles, tree_of

from .losses import losing

REQUESTS = 32  # files that are fetched at once


class AnnouncedFiles:
    """Reads files of a store by their paths from a folder of it on; those that were announced are fetched before.

    `below`: the folder, from the URL on.

    Any thread may read. What is announced is in memory until it is read. Another process opens the store anew.
    """

    def __init__(self, files: StoredFiles, below: str = "") -> None:
        self._files = files
        self._below = below
        self._lock = threading.Lock()
        self._coming: dict[str, deque[Future[bytes]]] = {}
        self._pool: ThreadPoolExecutor | None = None

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self._files, self._below)

    def announce(self, path: str) -> None:
        """Begin to fetch a file, which will be read once."""
        with self._lock:
            if self._pool is None:
                self._pool = ThreadPoolExecutor(REQUESTS, "fastimg-source")
            self._coming.setdefault(path, deque()).append(self._pool.submit(self._fetch, path))

    def read(self, path: str) -> bytes:
        """The whole file. Raises FileNotFoundError if it is gone, and SourceLostError."""
        with self._lock:
            coming = self._coming.get(path)
            future = coming.popleft() if coming else None
            if coming is not None and not coming:
                del self._coming[path]
        return self._fetch(path) if future is None else future.result()

    def read_range(self, path: str, start: int, stop: int) -> bytes:
        """The bytes of a file from `start` to before `stop`. Raises as `read` does."""
        return self._found(path, lambda name: bytes(self._files.read_range(name, start, stop)))

    def _fetch(self, path: str) -> bytes:
        return self._found(path, self._files.content)

    def _found(self, path: str, read: Callable[[str], bytes]) -> bytes:
        """What `read` gives for the name of a file, from the URL on."""
        name = posixpath.normpath(posixpath.join(self._below, path))
        if name.startswith(("../", "/")):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), self._files.address(name))
        with losing():
            try:
                return read(name)
            except DeniedError:
                raise
            except NotThereError as error:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), self._files.address(name)) from error

    def drop(self, path: str) -> None:
        """Forget what was announced of a file that is not read after all."""
        with self._lock:
            if coming := self._coming.get(path):
                coming.popleft().cancel()
                if not coming:
                    del self._coming[path]

    def close(self) -> None:
        """End the threads; what was announced is dropped."""
        with self._lock:
            if self._pool is not None:
                self._pool.shutdown(cancel_futures=True)
            self._pool = None
            self._coming = {}


def announced_files(root: Path) -> AnnouncedFiles | None:
    """What reads the files below a folder that belongs to a tree; None if they are here."""
    tree = tree_of(root)
    return None if tree is None else AnnouncedFiles(tree.files, root.relative_to(tree.root).as_posix())
