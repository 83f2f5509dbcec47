"""Locks of files by `flock`, which the system takes from a process that dies."""

import fcntl
import os
from pathlib import Path


def try_lock(file: int, kind: int) -> bool:
    """Lock a file at once, as LOCK_SH or LOCK_EX says. Returns whether nobody else has it. Raises OSError."""
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def same_file(path: Path | str, file: int) -> bool:
    """Whether `path` is the open file still, and not renamed or deleted."""
    try:
        status = os.stat(path)
    except FileNotFoundError:
        return False
    return os.path.samestat(status, os.fstat(file))
