"""What the files of a cache must be, and how one that was verified is known again: by its modification time.

That time is a function of the file's checksum, and of the start of the system: what was never flushed to the disk may
be lost with it. Whoever writes to a verified file changes its time.
"""

import contextlib
import fcntl
import functools
import hashlib
import os
import time
from pathlib import Path
from typing import NamedTuple

from fastimg.loaders.containers.quick_sums import sum_of_file
from fastimg.loaders.runtime.file_locks import same_file, try_lock, unlock


class WantedFile(NamedTuple):
    """A file as dataset.json states it; of other writers as the store does: `tag`, and `sha256` of what it states.

    `quick` is its quick sum, by which it is verified if it is stated, or else by `sha256`; `identity` that of a few
    places of it, if it is stated, by which a shard is known that is not read as a whole.
    """

    name: str
    size: int
    sha256: str
    tag: str = ""
    quick: str = ""
    identity: str = ""


def stamp(wanted: WantedFile) -> int:
    """The modification time of a verified file, in nanoseconds: even seconds, which every file system can keep."""
    return _stamp_of(wanted.sha256 if flushed(wanted) else wanted.sha256 + _start_of_system())


@functools.lru_cache(maxsize=4096)
def _stamp_of(content: str) -> int:
    return (int(hashlib.sha256(content.encode()).hexdigest()[:7], 16) & ~1) * 1_000_000_000


@functools.cache
def _start_of_system() -> str:
    """Another text after each start of the system; "" where it does not say."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""


def flushed(wanted: WantedFile) -> bool:
    """Whether a file must be on the disk before it is called whole: nothing else can say later that it is."""
    return wanted.tag != "" or not _start_of_system()


def verified(status: os.stat_result, wanted: WantedFile) -> bool:
    """Whether a file is the one that was verified."""
    return status.st_size == wanted.size and status.st_mtime_ns == stamp(wanted)


def mark_used(file: int, wanted: WantedFile, later: float = 0.0) -> None:
    """Count a verified file, which is open, as used now, or so many seconds later."""
    with contextlib.suppress(OSError):  # of another user: its uses are not counted
        os.utime(file, ns=(time.time_ns() + int(later * 1e9), stamp(wanted)))


def verified_again(path: Path, wanted: WantedFile) -> bool:
    """Whether a file that was verified before the system was started again is whole still; it is verified now."""
    if flushed(wanted):
        return False
    with contextlib.suppress(OSError), path.open("rb") as file:  # not there, or of another user
        try:
            if not try_lock(file.fileno(), fcntl.LOCK_SH) or not same_file(path, file.fileno()):
                return False
            if os.fstat(file.fileno()).st_size != wanted.size or not _has_sum(path, wanted):
                return False
            os.utime(file.fileno(), ns=(time.time_ns(), stamp(wanted)))
            return True
        finally:
            unlock(file.fileno())
    return False


def _has_sum(path: Path, wanted: WantedFile) -> bool:
    if wanted.quick:
        return sum_of_file(path) == wanted.quick
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest() == wanted.sha256
