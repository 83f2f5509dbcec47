"""Detects files that change after their index was read; a new file that fits the index would go unnoticed.

A path is checked again every few reads of its file, which takes 2 us. Size, modification time and inode are compared,
so a file that was replaced, written to, truncated or removed is detected even if the reader still has the old one open,
because a resumed run would read the new one.
"""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from fastimg.loaders.errors import ShardError

EVERY = 16  # reads between two checks


def fill(file: int, view: memoryview, offset: int) -> None:
    """Fill `view` from `offset` on. Raises EOFError if the file ends too early, and OSError."""
    while view.nbytes:
        got = os.preadv(file, [view], offset)
        if got == 0:
            raise EOFError(f"it ends before byte {offset + view.nbytes}")
        view = view[got:]
        offset = offset + got


class FileState(NamedTuple):
    """What tells two files of the same name apart."""

    size: int
    written: int  # modification time in nanoseconds
    inode: int

    @classmethod
    def of(cls, status: os.stat_result) -> "FileState":
        """The state in the result of `os.stat`."""
        return cls(status.st_size, status.st_mtime_ns, status.st_ino)


class FileWatch:
    """Compares `paths` with their earlier states, by default the current ones. Raises ShardError for a missing path."""

    def __init__(self, paths: Sequence[Path], states: Sequence[FileState] | None = None) -> None:
        self._paths = paths
        self._reads = 0
        self._states = [_state(path) for path in paths] if states is None else states

    def opened(self, number: int, file: int) -> None:
        """Check file `number` after it was opened as `file`. Raises ShardError if it has changed."""
        self._compare(number, os.fstat(file))

    def read(self, number: int) -> None:
        """Check file `number` on every few calls. Raises ShardError if it has changed."""
        self._reads += 1  # threads may lose a count, which does no harm
        if self._reads % EVERY == 0:
            self.look(number)

    def look(self, number: int) -> None:
        """Check file `number`. Raises ShardError if it has changed."""
        try:
            status = os.stat(self._paths[number])
        except OSError as error:
            raise ShardError(
                f"{self._paths[number]}: disappeared while it was in use ({error.strerror}); "
                "bring it back and use resume=True"
            ) from error
        self._compare(number, status)

    def _compare(self, number: int, status: os.stat_result) -> None:
        then = self._states[number]
        now = FileState.of(status)
        if now != then:
            how = "shrank" if now.size < then.size else "was altered" if now.inode == then.inode else "was replaced"
            raise ShardError(
                f"{self._paths[number]}: {how} while it was in use; copy it again and use resume=True, or start again "
                f"with the new file ({then.size} bytes then, {now.size} now)"
            )


def _state(path: Path) -> FileState:
    try:
        return FileState.of(path.stat())
    except OSError as error:
        raise ShardError(f"{path}: {error.strerror}; copy it again, or convert again") from error
