"""Files that must not change after their index was read: a swap that fits the index would go unnoticed.

A name is looked up again with every so many reads of the file, 2 us each. What counts is size, time of the last write
and inode: a file that was replaced, written to, cut short or taken away is found out, also where the reader still
holds the old one, since a resumed run would read the new one.
"""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from fastimg.loaders.errors import ShardError

EVERY = 16  # reads between two looks


def fill(file: int, view: memoryview, offset: int) -> None:
    """Read into all of `view` from `offset` on. Raises EOFError where the file ends before, OSError."""
    while view.nbytes:
        got = os.preadv(file, [view], offset)
        if got == 0:
            raise EOFError(f"it ends before byte {offset + view.nbytes}")
        view = view[got:]
        offset = offset + got


class FileState(NamedTuple):
    """What tells two files of one name apart."""

    size: int
    written: int  # nanoseconds
    inode: int

    @classmethod
    def of(cls, status: os.stat_result) -> "FileState":
        """Of what `stat` says."""
        return cls(status.st_size, status.st_mtime_ns, status.st_ino)


class FileWatch:
    """`paths` and their states, those of now where none are given. Raises ShardError for a path that is missing."""

    def __init__(self, paths: Sequence[Path], states: Sequence[FileState] | None = None) -> None:
        self._paths = paths
        self._reads = 0
        self._states = [_state(path) for path in paths] if states is None else states

    def opened(self, number: int, file: int) -> None:
        """File `number` was opened as descriptor `file`. Raises ShardError where it is another one by now."""
        self._compare(number, os.fstat(file))

    def read(self, number: int) -> None:
        """File `number` was read. Raises ShardError, now and then, where it is not what it was."""
        self._reads += 1  # threads may lose one to each other: no harm
        if self._reads % EVERY == 0:
            self.look(number)

    def look(self, number: int) -> None:
        """Raises ShardError where file `number` is not what it was."""
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
