"""A bounded folder of verified shards, shared by all processes of a machine.

    root/.lock                        held while room is made
    root/<name>-<key>/has-remote-copy an empty file: without it, nothing in the folder is ever deleted; those that have
                                      opened the folder keep it locked, and otherwise what lies beside the shards is
                                      deleted, too, when room is needed: it can be had again
    root/<name>-<key>/<shard>         whole and verified; its modification time is a function of its checksum, and of
                                      the start of the system: what was never flushed to the disk may be lost with it
    root/<name>-<key>/.<shard>.part   being fetched, by the process that has it locked

Locks are those of `flock`, which the system takes from a process that dies. Who needs the file of a shard, and not only
its content, holds a shared lock on it, so it is not deleted. An open file keeps its content anyhow. Whoever writes to a
verified file changes its modification time: its checksum is computed again, and it is fetched again if that differs.
So is the checksum of every file when it is first used after the machine was started again, since waiting for the disk
with each shard would make the disk's speed that of the network. Only a file without a stated checksum is flushed.
"""

import contextlib
import errno
import fcntl
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from fastimg.loaders.containers.atomic import sync_folder, temporary
from fastimg.loaders.errors import DataError, UnavailableError, not_written
from fastimg.loaders.runtime.file_locks import same_file, try_lock, unlock_and_close
from fastimg.loaders.runtime.stopping import check

from .eviction import MARK, SHARDS, contents, free_oldest, take_over, unopened
from .file_locks import ROOM, lock_soon, locked_mark
from .held_shards import HeldShards
from .signs_of_life import signs_of_life
from .sizes import in_words
from .wanted_files import WantedFile, flushed, mark_used, stamp, verified, verified_again

STALLED = 120.0  # seconds: another process that fetches a file, and gives no sign of life for so long, hangs
_ROUNDS = 5
_POLL = 0.02  # seconds between two looks at a lock
TOUCH = 0.1  # seconds: uses of a file closer together are one
_SHARE = 0.5  # of the disk's free space: the default limit


def not_cached(error: OSError) -> str:
    """Why a file could not be written into the cache, and what to do."""
    remedy = "give another folder with cache_dir="
    words = not_written(error, remedy)
    return words if words.endswith(remedy) else f"{words}, or {remedy}"


class Spent(NamedTuple):
    """What was fetched, and what was waited for, since the cache was made."""

    files: int
    bytes: int
    again: int  # files that had been fetched before: deleted, to make room, before they were done with
    waited: float  # seconds, summed over threads: readers whose file was not there
    bytes_again: int = 0  # of `again`


class ShardCache:
    """Files below `root`, at most `limit` bytes of them. Any thread, any number of processes.

    `limit` None is what the folder holds and half of what its disk has free. Raises DataError if the folder cannot be
    written.
    """

    def __init__(self, root: Path, limit: int | None = None) -> None:
        self.root = root
        try:
            root.mkdir(parents=True, exist_ok=True)
            self._lock = root / ".lock"
            self._lock.touch()
            self.limit = _default_limit(root) if limit is None else limit
        except OSError as error:
            raise UnavailableError(f"{root}: {error.strerror}; give another folder with cache_dir=") from error
        self._fetched: set[Path] = set()
        self._parts: set[str] = set()  # unfinished files that threads of this cache have locked
        self._marking = threading.Lock()
        self._marks: dict[Path, int] = {}  # of folders in use, locked until this cache is collected
        self.close = weakref.finalize(self, _close_all, self._marks)
        self._holding: weakref.WeakSet[HeldShards] = weakref.WeakSet()
        self._counted = threading.Lock()
        self._spent = Spent(0, 0, 0, 0.0)

    @property
    def spent(self) -> Spent:
        """See Spent."""
        return self._spent

    def closes(self, held: HeldShards) -> None:
        """Close these open files of the cache where the disk is full: it has no room for what was deleted before."""
        with self._counted:
            self._holding.add(held)

    @property
    def free(self) -> int:
        """Bytes that the disk has free; 0 where the folder was deleted."""
        try:
            status = os.statvfs(self.root)
        except OSError:
            return 0
        return status.f_bavail * status.f_frsize

    def has(self, path: Path, wanted: WantedFile) -> bool:
        """Whether a file is there, and is what was verified."""
        try:
            return verified(os.stat(path), wanted)
        except OSError:
            return False

    def open(self, path: Path, wanted: WantedFile, fetch: Callable[[int], None], locked: bool = True) -> int:
        """A descriptor of the file at `path`, with a shared lock if `locked`, for the caller to close.

        If it is not there, `fetch(descriptor)` writes and verifies it, in one process and thread of the machine.
        Raises what `fetch` raises, and DataError if there is no room, or another process hangs.
        """
        file = self._present(path, wanted, locked)
        if file is not None:
            return file
        began = time.perf_counter()
        try:
            for _ in range(_ROUNDS):  # another process may delete it at once
                self.bring(path, wanted, fetch)
                file = self._present(path, wanted, locked)
                if file is not None:
                    return file
        finally:
            self._count(waited=time.perf_counter() - began)
        raise UnavailableError(
            f"{path}: gone or altered each of the {_ROUNDS} times that it was fetched; give a larger cache_limit=, or "
            "a folder that nobody else writes to"
        )

    def current(self, file: int, wanted: WantedFile) -> bool:
        """Whether an open file is what was verified, and was not deleted."""
        status = os.fstat(file)
        return status.st_nlink > 0 and verified(status, wanted)

    def count_use(self, file: int, wanted: WantedFile, later: float = 0.0) -> None:
        """Mark a file that is open without a lock as used now, or so many seconds later: others are deleted first."""
        if try_lock(file, fcntl.LOCK_SH):  # or somebody deletes it, or writes another shard over it
            try:
                if self.current(file, wanted):
                    mark_used(file, wanted, later)
            finally:
                fcntl.flock(file, fcntl.LOCK_UN)

    def forget(self, path: Path) -> None:
        """Delete a file, so that it is fetched again. Whoever reads it goes on reading what was there."""
        path.unlink(missing_ok=True)

    def count_range(self, size: int, seconds: float) -> None:
        """Count bytes that a reader has waited for, and that are not kept."""
        self._count(size=size, waited=seconds)

    def mark(self, folder: Path) -> None:
        """Make a folder of the cache, whose shards have a remote copy and may be deleted.

        What lies beside them stays as long as this cache, which keeps the mark locked. Raises OSError and DataError.
        """
        with self._marking:
            file = self._marks.get(folder)
            if file is None or not same_file(folder / MARK, file):
                self._marks[folder] = locked_mark(folder / MARK)
                if file is not None:
                    os.close(file)
            with contextlib.suppress(OSError):  # of another user
                os.utime(self._marks[folder])

    def bring(self, path: Path, wanted: WantedFile, fetch: Callable[[int], None], bounded: bool = True) -> None:
        """Have the file at `path`: see `open`. Unless `bounded`, nothing is deleted for it before the disk is full."""
        if bounded:
            self.check(path, wanted)
        for attempt in range(_ROUNDS):
            try:
                self._bring(path, wanted, fetch, bounded)
                return
            except OSError as error:
                if isinstance(error, FileNotFoundError | FileExistsError) and attempt + 1 < _ROUNDS:
                    continue  # the cache was deleted meanwhile; mkdir() says of a folder that vanishes that it exists
                raise UnavailableError(f"{path}: {not_cached(error)}") from error

    def check(self, path: Path, wanted: WantedFile) -> None:
        """Raises DataError for a file that is larger than the whole cache may be."""
        if wanted.size > self.limit:
            raise DataError(
                f"{path.name}: {in_words(wanted.size)}, and the cache {self.root} may hold {in_words(self.limit)}; "
                "give a larger cache_limit="
            )

    def _bring(self, path: Path, wanted: WantedFile, fetch: Callable[[int], None], bounded: bool) -> None:
        self.mark(path.parent)
        with self._fetching(path, wanted) as file:
            if file is None or verified_again(path, wanted):
                return
            self._make_room(path, wanted, file, bounded)
            with signs_of_life(file):
                fetch(file)
            os.utime(file, ns=(time.time_ns(), stamp(wanted)))
            if flushed(wanted):
                os.fsync(file)
            if not same_file(temporary(path), file):  # deleted meanwhile, and its name is another's by now
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
            temporary(path).replace(path)
        if flushed(wanted):
            sync_folder(path.parent)
        with self._counted:
            again = int(path in self._fetched)
            self._fetched.add(path)
        self._count(files=1, size=wanted.size, again=again, size_again=again * wanted.size)

    def _present(self, path: Path, wanted: WantedFile, locked: bool) -> int | None:
        """The file, open and locked if it shall be; None if it is not there, or is not what was verified."""
        try:
            file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        except OSError as error:
            remedy = "raise `ulimit -n`" if error.errno == errno.EMFILE else "give another folder with cache_dir="
            raise UnavailableError(f"{path}: {error.strerror}; {remedy}") from error
        try:
            good = self.current(file, wanted)
            if good and locked:
                good = lock_soon(file, fcntl.LOCK_SH, lambda: self.current(file, wanted)) and self.current(file, wanted)
                if good:
                    mark_used(file, wanted)
            elif good:
                self.count_use(file, wanted)
        except BaseException:
            unlock_and_close(file)
            raise
        if good:
            return file
        unlock_and_close(file)
        return None

    @contextlib.contextmanager
    def _fetching(self, path: Path, wanted: WantedFile) -> Iterator[int | None]:
        """The unfinished file, empty and locked; None if the file has arrived. It is deleted unless it is renamed."""
        part = temporary(path)
        file = self._locked_part(path, part, wanted)
        if file is None:
            yield None
            return
        try:
            self._parts.add(str(part))
            os.ftruncate(file, 0)
            yield file
        finally:
            self._parts.discard(str(part))
            try:
                if same_file(part, file):
                    part.unlink(missing_ok=True)
            finally:
                unlock_and_close(file)

    def _locked_part(self, path: Path, part: Path, wanted: WantedFile) -> int | None:
        seen: tuple[int, int, int] | None = None
        since = time.monotonic()
        while not self.has(path, wanted):
            check()
            file = os.open(part, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
            try:
                if try_lock(file, fcntl.LOCK_EX) and same_file(part, file):
                    if not self.has(path, wanted):
                        return file
                    part.unlink()  # it arrived before this part was made
                status = os.fstat(file)
            except BaseException:
                unlock_and_close(file)
                raise
            unlock_and_close(file)
            state = (status.st_ino, status.st_mtime_ns, status.st_blocks)
            if state != seen:
                seen, since = state, time.monotonic()
            if time.monotonic() - since > STALLED:
                raise UnavailableError(
                    f"{part}: another process has been fetching it, and has given no sign of life for {STALLED:.0f} s; "
                    "end that process, or give another folder with cache_dir="
                )
            time.sleep(_POLL)
        return None

    def _make_room(self, path: Path, wanted: WantedFile, file: int, bounded: bool) -> None:
        """Free what was not used for the longest time, until `file` has the room that it needs, and takes it.

        Unless `bounded`, nothing is freed before the disk is full.
        """
        deadline = time.monotonic() + ROOM
        taken = not path.name.endswith(SHARDS)

        def take(shard: tuple[str, int]) -> int:
            nonlocal taken
            size = 0 if taken else take_over(shard, temporary(path), file, stamp(wanted))
            taken = size > 0
            return size

        while True:
            check()
            with self.alone():
                held, idle = contents(self.root, self._parts)
                others: list[tuple[int, Path]] | None = None
                if bounded and held + wanted.size > self.limit:
                    others = unopened(self.root, self._marks)
                    while held + wanted.size > self.limit and (idle or others):
                        held -= free_oldest(idle, others, take)
                fits = not bounded or held + wanted.size <= self.limit
                while fits:
                    try:
                        _allocate(file, wanted.size)
                        return
                    except OSError as error:
                        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                            raise
                        os.ftruncate(file, 0)
                        others = unopened(self.root, self._marks) if others is None else others
                        if not idle and not others:
                            raise
                        held -= free_oldest(idle, others, lambda shard: 0)
                        self._close_held()  # or the disk keeps what was deleted
            os.ftruncate(file, 0)  # of a shard that was taken: it is not counted twice
            if time.monotonic() > deadline:
                raise UnavailableError(
                    f"{self.root}: no room for {path.name} ({in_words(wanted.size)}): the cache holds {in_words(held)} "
                    f"of {in_words(self.limit)}, and for {ROOM:.0f} s all of it was in use; give a larger cache_limit="
                )
            time.sleep(_POLL)

    def _close_held(self) -> None:
        with self._counted:
            for held in self._holding:
                held.close()

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Only one process at a time, while room is made or a small file is written: milliseconds. Raises DataError."""
        self.root.mkdir(parents=True, exist_ok=True)
        file = os.open(self._lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            if not lock_soon(file, fcntl.LOCK_EX):
                raise UnavailableError(
                    f"{self._lock}: another process has held it for {ROOM:.0f} s; end it, or give another folder "
                    "with cache_dir="
                )
            yield
        finally:
            unlock_and_close(file)

    def _count(self, files: int = 0, size: int = 0, again: int = 0, waited: float = 0.0, size_again: int = 0) -> None:
        with self._counted:
            s = self._spent
            self._spent = Spent(
                s.files + files, s.bytes + size, s.again + again, s.waited + waited, s.bytes_again + size_again
            )


def _default_limit(root: Path) -> int:
    """What the marked folders hold already, and half of what the disk has free."""
    held = 0
    for mark in root.glob(f"*/{MARK}"):
        with contextlib.suppress(FileNotFoundError):  # the folder is deleted meanwhile
            for file in mark.parent.iterdir():
                with contextlib.suppress(FileNotFoundError):  # another process deletes it, or gives it its name
                    held += file.stat().st_size
    free = os.statvfs(root)
    return held + int(free.f_bavail * free.f_frsize * _SHARE)


def _close_all(files: dict[Path, int]) -> None:
    while files:
        os.close(files.popitem()[1])


def _allocate(file: int, size: int) -> None:
    """Take the room on the disk now, so that a full disk shows before anything is fetched."""
    try:
        os.posix_fallocate(file, 0, max(size, 1))
    except OSError as error:
        if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL):
            raise
    os.ftruncate(file, size)
