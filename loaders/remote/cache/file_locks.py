"""Locks that a cache waits for."""

import fcntl
import os
import time
from collections.abc import Callable
from pathlib import Path

from fastimg.loaders.errors import UnavailableError
from fastimg.loaders.runtime.file_locks import same_file, try_lock

ROOM = 30.0  # seconds: for so long others may keep everything in the cache in use
_POLL = 0.02  # seconds between two looks at a lock


def lock_soon(file: int, kind: int, wanted: Callable[[], bool] = lambda: True) -> bool:
    """Lock a file that others lock for moments only, as long as it is `wanted`: who has fetched it, or deletes it."""
    deadline = time.monotonic() + ROOM
    while not try_lock(file, kind):
        if time.monotonic() > deadline or not wanted():
            return False
        time.sleep(_POLL)
    return True


def locked_mark(mark: Path) -> int:
    """The mark of a folder, locked so that nobody deletes what lies beside its shards. Raises OSError and DataError."""
    while True:
        mark.parent.mkdir(parents=True, exist_ok=True)
        file = os.open(mark, os.O_RDONLY | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            if not lock_soon(file, fcntl.LOCK_SH):
                raise UnavailableError(
                    f"{mark}: another process has held it for {ROOM:.0f} s; end it, or give another folder with "
                    "cache_dir="
                )
            if same_file(mark, file):
                return file
        except BaseException:
            os.close(file)
            raise
        os.close(file)  # it was deleted meanwhile
