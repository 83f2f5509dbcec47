"""What is deleted from a cache to make room: files that nobody has locked, the least recently used first."""

import contextlib
import fcntl
import os
from pathlib import Path

from .file_locks import same_file, try_lock

MARK = "has-remote-copy"
SHARDS = (".tar", ".beton")  # what is deleted to make room
BESIDE = (".idx", ".fidx", ".fcol", ".ffld", ".ftil", ".fdci", ".json")  # what stays while the dataset is open


def delete_unused(shard: tuple[str, int]) -> int:
    """Delete a file that nobody has locked. Returns how many bytes became free."""
    path, size = shard
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return 0
    try:
        if not try_lock(file, fcntl.LOCK_EX) or not same_file(path, file):
            return 0
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
        return size
    finally:
        os.close(file)


def delete_oldest(idle: list[tuple[str, int]], others: list[tuple[int, Path]]) -> int:
    """Delete a shard, or what lies beside those of a folder, whichever was used first. Returns the bytes set free."""
    if others and idle:
        with contextlib.suppress(FileNotFoundError):
            if os.stat(idle[-1][0]).st_atime_ns < others[-1][0]:
                return delete_unused(idle.pop())
    return _delete_beside(others.pop()[1]) if others else delete_unused(idle.pop())


def _delete_beside(folder: Path) -> int:
    """Delete what lies beside the shards of a folder that nobody has open. Returns how many bytes became free.

    The mark goes with the last shard.
    """
    free = 0
    with contextlib.suppress(OSError):
        mark = os.open(folder / MARK, os.O_RDONLY | os.O_CLOEXEC)
        try:
            if not try_lock(mark, fcntl.LOCK_EX) or not same_file(folder / MARK, mark):
                return 0
            names = os.listdir(folder)
            for name in names:
                if name.endswith((*BESIDE, ".part")):
                    size = (folder / name).stat().st_size
                    (folder / name).unlink()
                    free += size
            if not any(name.endswith(SHARDS) for name in names):
                (folder / MARK).unlink()
                folder.rmdir()  # fails where there is something else
        finally:
            os.close(mark)
    return free
