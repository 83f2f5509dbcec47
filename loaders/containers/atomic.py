"""Writing files that appear under their name only when they are complete."""

import contextlib
import errno
import fcntl
import os
import stat
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self

from fastimg.loaders.runtime.file_locks import same_file, try_lock, unlock, unlock_and_close

_PATIENCE = 60.0  # seconds that another writer of the same file may take
_POLL = 0.005
_EARLY = 32 << 20  # bytes after which a file is synced while more is written


def temporary(path: Path) -> Path:
    """The path of a file until it is complete: a hidden name in the same folder."""
    return path.with_name(f".{path.name}.part")


@contextlib.contextmanager
def whole(path: Path) -> Iterator[BinaryIO]:
    """Open a temporary file, which is renamed to `path` when the block ends without an error.

    Another process or thread that writes the same file is waited for. Raises OSError.
    """
    part = temporary(path)
    with _alone(part) as file:
        try:
            yield file
            file.flush()
            os.fsync(file.fileno())
            part.replace(path)
        except BaseException:
            part.unlink(missing_ok=True)
            raise
        finally:
            unlock(file.fileno())
    sync_folder(path.parent)


def _alone(part: Path) -> BinaryIO:
    """A temporary file, empty, which nobody else has: two at once would mix their contents. Raises OSError."""
    deadline = time.monotonic() + _PATIENCE
    while True:
        file = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            if _locked(file) and same_file(part, file):  # or it has its name by now, or was deleted
                os.ftruncate(file, 0)
                return os.fdopen(file, "wb")
        except BaseException:
            unlock_and_close(file)
            raise
        unlock_and_close(file)
        if time.monotonic() > deadline:
            raise OSError(errno.EBUSY, "another process is writing it", str(part))
        time.sleep(_POLL)


def _locked(file: int) -> bool:
    try:
        return try_lock(file, fcntl.LOCK_EX)
    except OSError:  # a file system without locks
        return True


def replace_file(path: Path, content: bytes | bytearray) -> None:
    """Write a file that appears complete or not at all."""
    with whole(path) as file:
        file.write(content)


def replace_output(path: Path, content: bytes) -> None:
    """Write a file that a user named: as a whole, behind a link where it is one, with the mode that it has.

    What is no regular file, such as a pipe, or lies where no other file can be made, is written as it is.
    """
    target = path.resolve()
    there = target.exists()
    if there and not (target.is_file() and os.access(target.parent, os.W_OK) and not target.is_mount()):
        target.write_bytes(content)
        return
    with whole(target) as file:
        file.write(content)
        if there:
            os.fchmod(file.fileno(), stat.S_IMODE(target.stat().st_mode))


def give_usual_mode(path: Path) -> None:
    """Give a file the mode of any new file in its folder; some libraries create files that only their owner can read.

    The mode is found by creating a file, because the umask can only be read by setting it, and a folder may have a
    default access list.
    """
    probe = path.with_name(f".{path.name}.mode")
    probe.unlink(missing_ok=True)
    try:
        with probe.open("xb") as file:
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
        path.chmod(mode)
    finally:
        probe.unlink(missing_ok=True)


def sync_folder(folder: Path) -> None:
    """Make renames in `folder` survive a power cut."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


class EarlySync:
    """Puts what has been written to an open file on disk while more is written, so that its last fsync waits little."""

    def __init__(self, file: int) -> None:
        self._file = file
        self._begun = 0  # bytes that the file had when the last fsync began
        self._pool = ThreadPoolExecutor(1, "fastimg-sync")  # starts its thread with the first one
        self._running: Future[None] | None = None

    def reached(self, size: int) -> None:
        """Begin an fsync if enough has been written since the last one, which has ended. Raises its OSError."""
        if size - self._begun < _EARLY or (self._running is not None and not self._running.done()):
            return
        if self._running is not None:
            self._running.result()
        self._begun = size
        self._running = self._pool.submit(os.fsync, self._file)

    def close(self) -> None:
        """Wait for the fsync that runs; to be called before the file is closed.

        Raises its OSError, since the system tells of an error only once.
        """
        self._pool.shutdown()
        running, self._running = self._running, None
        if running is not None:
            running.result()


class WholeFile(ABC):
    """A file that appears under its name only if its `with` block ends without an error."""

    path: Path
    _file: BinaryIO  # open at `temporary(path)`
    _early: EarlySync  # of it

    @abstractmethod
    def _publish(self) -> None:
        """Finish the temporary file and rename it."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                self._publish()
        finally:  # already gone if there was no error
            temporary(self.path).unlink(missing_ok=True)
            self._close()

    def _close(self) -> None:
        """Close the file after an error."""
        with contextlib.suppress(OSError):
            self._early.close()
        with contextlib.suppress(OSError):  # a full disk fails again on buffered data
            self._file.close()
