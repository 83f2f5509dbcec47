"""Locks of files by `flock`, which the system takes from a process that dies.

A process that is forked meanwhile, as any thread of the program may do, shares the lock, which closing the file alone
then leaves to it. So what is locked for a while is unlocked before it is closed; what a process keeps for as long as
it needs it is only closed, because the forked one may need it, too.
"""

import contextlib
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


def unlock(file: int) -> None:
    """Give up the lock of a file, in forked processes, too."""
    with contextlib.suppress(OSError):  # a file system without locks
        fcntl.flock(file, fcntl.LOCK_UN)


def unlock_and_close(file: int) -> None:
    """Close a file that was perhaps locked; no forked process keeps the lock."""
    unlock(file)
    os.close(file)
