"""Files that appear under their name when they are complete, or not at all."""

import contextlib
import os
import stat
from abc import ABC, abstractmethod
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self


def temporary(path: Path) -> Path:
    """Where a file is written before it is complete: same folder, a hidden name."""
    return path.with_name(f".{path.name}.part")


def replace_file(path: Path, content: bytes | bytearray) -> None:
    """Write a whole file so that it appears complete or not at all."""
    part = temporary(path)
    try:
        with part.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def give_usual_mode(path: Path) -> None:
    """Let a file have the mode of any new file in its folder: some libraries make theirs for their owner alone.

    The umask, or the folder's default access list, is asked by making a file: to read the umask is to set it.
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
    """A file that appears under its name when its `with` block ends without an error, and else not at all."""

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
        finally:  # gone already where all went well
            temporary(self.path).unlink(missing_ok=True)
            with contextlib.suppress(OSError):  # a full disk fails once more on what is still buffered
                self._file.close()
