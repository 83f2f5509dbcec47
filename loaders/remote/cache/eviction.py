"""What makes room in a cache: files that nobody has locked, the least recently used first.

They are deleted; and one becomes the file of the shard that needs the room, which is written over it. That takes less
than half of the processor time of a new file, whose pages and blocks the system has to find.
"""

import contextlib
import errno
import fcntl
import os
import stat
from collections.abc import Callable, Collection
from pathlib import Path

from fastimg.loaders.runtime.file_locks import same_file, try_lock, unlock_and_close

MARK = "has-remote-copy"
GROUPS = ".files"  # of files that nobody has converted; see plain/groups
SHARDS = (".tar", ".beton", GROUPS)  # what is deleted to make room
_PARTS = tuple(f"{suffix}.part" for suffix in SHARDS)  # see containers.atomic.temporary
BESIDE = (".idx", ".fidx", ".fcol", ".ffld", ".ftil", ".fdci", ".json")  # what stays while the dataset is open


def contents(root: Path, parts: Collection[str]) -> tuple[int, list[tuple[str, int]]]:
    """Bytes of everything in a cache, and its shards with their sizes, the one used last first.

    Unfinished files of processes that died are deleted; `parts` are those of this one. Every file is asked for each
    shard that is fetched, so no paths are taken apart here.
    """
    held = 0
    shards: list[tuple[int, str, int]] = []
    for folder in [entry for entry in os.scandir(root) if entry.is_dir(follow_symlinks=False)]:
        if not os.path.exists(os.path.join(folder.path, MARK)):
            continue
        for entry in os.scandir(folder.path):
            try:
                status = entry.stat(follow_symlinks=False)
            except FileNotFoundError:
                continue
            if not stat.S_ISREG(status.st_mode):
                continue
            held += status.st_size
            if not entry.name.startswith("."):
                if entry.name.endswith(SHARDS):
                    shards.append((status.st_atime_ns, entry.path, status.st_size))
            elif entry.name.endswith(_PARTS) and entry.path not in parts:
                held -= delete_unused((entry.path, status.st_size))
    return held, [(path, size) for _, path, size in sorted(shards, reverse=True)]


def unopened(root: Path, opened: Collection[Path]) -> list[tuple[int, Path]]:
    """Folders of a cache that are not among the `opened`, with the times when they were, the last one first."""
    found = []
    for mark in root.glob(f"*/{MARK}"):
        if mark.parent not in opened:
            with contextlib.suppress(FileNotFoundError):
                found.append((mark.stat().st_mtime_ns, mark.parent))
    return sorted(found, reverse=True)


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
        unlock_and_close(file)


def take_over(shard: tuple[str, int], part: Path, file: int, written: int) -> int:
    """Make a file that nobody has locked the unfinished file `part`, which is open as `file` from now on, and locked.

    Returns its bytes; 0 if it is in use, or cannot be written. Whoever has it open without a lock sees another
    modification time before the first byte is another one: the new content will have `written`, which the file must not
    have now. Raises FileNotFoundError if the name is another file's by now: then `part` is no more.
    """
    path, size = shard
    if path.endswith(".beton"):  # a .beton is mapped into memory, and its samples may outlive the lock
        return 0
    try:
        old = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError:  # it was deleted, or belongs to another user
        return 0
    taken = False
    try:
        status = os.fstat(old)
        # Another owner could not set the time at the end; a second name is somebody's copy.
        ours = status.st_uid == os.geteuid() and status.st_nlink == 1 and status.st_mtime_ns != written
        if not ours or not try_lock(old, fcntl.LOCK_EX) or not same_file(path, old):
            return 0
        os.utime(old)
        try:
            os.rename(path, part)
        except FileNotFoundError:
            raise
        except OSError:  # on another disk
            return 0
        if not same_file(part, old):
            part.unlink(missing_ok=True)
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        os.dup2(old, file, inheritable=False)
        taken = True
        return size
    finally:
        if taken:  # `file` has its lock
            os.close(old)
        else:
            unlock_and_close(old)


def free_oldest(
    idle: list[tuple[str, int]], others: list[tuple[int, Path]], take: Callable[[tuple[str, int]], int]
) -> int:
    """Free a shard, or what lies beside those of a folder, whichever was used first. Returns the bytes set free.

    A shard is deleted unless `take` has a use for it, and returns its bytes.
    """
    if others and idle:
        with contextlib.suppress(FileNotFoundError):
            if os.stat(idle[-1][0]).st_atime_ns < others[-1][0]:
                return _free(idle.pop(), take)
    return _delete_beside(others.pop()[1]) if others else _free(idle.pop(), take)


def _free(shard: tuple[str, int], take: Callable[[tuple[str, int]], int]) -> int:
    return take(shard) or delete_unused(shard)


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
            unlock_and_close(mark)
    return free
