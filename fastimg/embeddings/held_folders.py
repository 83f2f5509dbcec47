"""Folders that one `fastimg embed` at a time writes to."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from fastimg.errors import UserError
from fastimg.loaders.runtime.file_locks import same_file, try_lock, unlock_and_close


def hold(folder: Path, name: str) -> int:
    """Make a folder, and keep others out of it until the handle is closed, or the process ends in whatever way.

    `name` is what users call the folder. Raises UserError where another process holds it, and OSError.
    """
    while True:
        folder.mkdir(parents=True, exist_ok=True)
        handle = os.open(folder, os.O_RDONLY)
        if not _locked(handle):
            os.close(handle)
            raise UserError(
                f"{name}: another embed is writing to it; wait until it ends, then run the same again, or give another "
                "folder"
            )
        if same_file(folder, handle):
            return handle
        os.close(handle)  # whoever held it has deleted it


@contextmanager
def held(folder: Path) -> Iterator[None]:
    """A folder that this process holds, as `hold` does, in the block."""
    handle = hold(folder, str(folder))
    try:
        yield
    finally:
        unlock_and_close(handle)


def _locked(handle: int) -> bool:
    """Whether nobody else has it; nobody has on a file system without locks."""
    with suppress(OSError):
        return try_lock(handle, fcntl.LOCK_EX)
    return True
