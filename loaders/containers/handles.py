"""Open files of a dataset: each is opened and checked when it is first read, and stays open until all are closed."""

import errno
import os
import threading
import weakref
from collections.abc import Sequence
from pathlib import Path

from fastimg.loaders.errors import ShardError

from .watch import FileWatch


class Handles:
    """Descriptors of `paths`, for any thread. `remedy` is part of the message if a file cannot be opened.

    `close` closes them, and so does garbage collection; after `close` they are opened again when needed.
    """

    def __init__(self, paths: Sequence[Path], watch: FileWatch, remedy: str) -> None:
        self._paths = paths
        self._watch = watch
        self._remedy = remedy
        self._files: dict[int, int] = {}
        self._close = weakref.finalize(self, _close_all, self._files)
        self._lock = threading.Lock()

    def file(self, number: int) -> int:
        """The descriptor of file `number`. Raises ShardError if it is gone or was replaced."""
        file = self._files.get(number)
        if file is not None:
            return file
        with self._lock:
            if number not in self._files:
                try:
                    file = os.open(self._paths[number], os.O_RDONLY | os.O_CLOEXEC)
                except OSError as error:
                    remedy = "raise `ulimit -n`" if error.errno == errno.EMFILE else self._remedy
                    raise ShardError(f"{self._paths[number]}: {error.strerror}; {remedy}") from error
                try:
                    self._watch.opened(number, file)
                except BaseException:
                    os.close(file)
                    raise
                self._files[number] = file
            return self._files[number]

    def close(self) -> None:
        """Close all files."""
        with self._lock:
            _close_all(self._files)


def _close_all(files: dict[int, int]) -> None:
    while files:
        os.close(files.popitem()[1])
