"""Writing files that appear under their name only when they are complete."""

import contextlib
import os
import stat
from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self


def temporary(path: Path) -> Path:
    """The path of a file until it is complete: a hidden name in the same folder."""
    return path.with_name(f".{path.name}.part")


@contextlib.contextmanager
def whole(path: Path) -> Iterator[BinaryIO]:
    """Open a temporary file, which is renamed to `path` when the block ends without an error."""
    part = temporary(path)
    try:
        with part.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def replace_file(path: Path, content: bytes | bytearray) -> None:
    """Write a file that appears complete or not at all."""
    with whole(path) as file:
        file.write(content)


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


class WholeFile(ABC):
    """A file that appears under its name only if its `with` block ends without an error."""

    path: Path
    _file: BinaryIO  # open at `temporary(path)`

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
            with contextlib.suppress(OSError):  # a full disk fails again on buffered data
                self._file.close()
