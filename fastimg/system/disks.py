"""How fast files are read and memory is copied here. Nothing here imports torch.

Cold means: the file was dropped from the system's page cache, and a read that may not wait for the disk found none of
it there. The device's own caches, and those of a host below a virtual machine, stay as they are.
"""

import contextlib
import itertools
import os
import random
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from fastimg.errors import UserError

PIECE = 8 << 20  # bytes of a sequential read
SCATTERED, SCATTERED_PIECE = 128, 128 << 10  # random reads, and bytes of each: about an image
FILE = 256 << 20  # bytes of the temporary file
_LEAST = 16 << 20  # bytes of a file that is worth measuring on
_CHECKED = 8  # files of which it is checked that they are out of the page cache
_LOOKED_AT = 10_000  # entries of a folder, at most, when a large file is sought
_PAGE = 4096
_NO_DISK = ("tmpfs", "ramfs")
_SECONDS = 10.0  # of writing, and of each kind of reading, at most: a slow disk is known by then

Clock = Callable[[], float]


@dataclass(frozen=True)
class DiskReading:
    """What was read in one go: by one thread, one read after the other."""

    bytes: int
    reads: int
    seconds: float
    cold: bool  # from the disk; else from memory, as far as it was there
    why: str = ""  # it is not cold

    @property
    def bytes_per_second(self) -> float:
        """0 where nothing was read."""
        return self.bytes / self.seconds if self.seconds else 0.0

    @property
    def reads_per_second(self) -> float:
        """0 where nothing was read."""
        return self.reads / self.seconds if self.seconds else 0.0


@dataclass(frozen=True, kw_only=True)
class Disk:
    """The disk below a folder. Without `cold` and `scattered` the page cache could not be emptied: `why`."""

    folder: str
    filesystem: str | None
    free: int  # bytes
    measured_on: str
    cold: DiskReading | None
    scattered: DiskReading | None  # cold as well
    warm: DiskReading
    why: str = ""


def measure_disk(folder: Path, size: int = FILE, clock: Clock = time.perf_counter) -> Disk:
    """Read a temporary file of `size` bytes, or less where there is no room, in a folder.

    The file has no name: it is gone when this ends in any way. In a folder that takes no file, the largest one in it
    is read. Raises UserError where there is none, OSError where reading fails.
    """
    free = shutil.disk_usage(folder).free
    with contextlib.ExitStack() as stack:
        file, size, name = _file(folder, size, free, stack, clock)
        buffer = memoryview(bytearray(PIECE))
        cold = scattered = None
        kind = filesystem(folder)
        why = f"{kind} is memory, without a disk" if kind in _NO_DISK else drop(file)
        if not why:
            cold = _reading(_in_order(file, buffer, size), True, clock)
            why = drop(file)
        if not why:
            os.posix_fadvise(file, 0, 0, os.POSIX_FADV_RANDOM)  # what is not asked for is not read
            scattered = _reading(_at_random(file, buffer, size), True, clock)
            os.posix_fadvise(file, 0, 0, os.POSIX_FADV_NORMAL)
        _reading(_in_order(file, buffer, size), False, clock)
        warm = _reading(_in_order(file, buffer, size), False, clock)
    return Disk(
        folder=str(folder.resolve()),
        filesystem=kind,
        free=free,
        measured_on=name,
        cold=cold,
        scattered=scattered,
        warm=warm,
        why=why,
    )


def sequential_read(
    files: Sequence[Path],
    cold: bool,
    limit: int = FILE,
    most_seconds: float = _SECONDS,
    clock: Clock = time.perf_counter,
) -> DiskReading:
    """Read files one after the other in pieces of 8 MiB, `limit` bytes and about `most_seconds` at most.

    With `cold` each is dropped from the page cache first; the result is cold where all that was checked (the first
    eight files) had gone. Without, each is read once before, so what counts comes from memory. Opening a file is not
    counted. Raises OSError.
    """
    buffer = memoryview(bytearray(PIECE))
    total, reads, seconds, why = 0, 0, 0.0, "" if cold else "it was not asked for"
    for number, path in enumerate(files):
        with path.open("rb", buffering=0) as handle:
            file = handle.fileno()
            if cold:
                why = why or drop(file, checked=number < _CHECKED)
            else:
                _reading(_in_order(file, buffer, limit - total), False, clock, most_seconds - seconds)
            found = _reading(_in_order(file, buffer, limit - total), cold, clock, most_seconds - seconds)
        total, reads, seconds = total + found.bytes, reads + found.reads, seconds + found.seconds
        if total >= limit or seconds >= most_seconds:
            break
    why = why if reads else "nothing was read"
    return DiskReading(total, reads, seconds, not why, why)


def memory_bandwidth(nbytes: int = FILE, threads: int = 1, repeats: int = 3, clock: Clock = time.perf_counter) -> float:
    """Bytes copied in a second by numpy, the median of `repeats`: each is read once and written once.

    `nbytes` are copied at a time, in equal parts by so many threads: more than a processor's caches hold, and twice as
    much memory is taken. Raises MemoryError.
    """
    import numpy as np  # here, so that `doctor` works where it is missing

    source, target = np.ones(nbytes, np.uint8), np.empty(nbytes, np.uint8)
    parts = list(zip(np.array_split(target, threads), np.array_split(source, threads), strict=True))
    taken = []
    with ThreadPoolExecutor(threads, "copy") as pool:
        for _ in range(1 + repeats):  # the first touches the memory
            began = clock()
            for done in [pool.submit(np.copyto, into, part) for into, part in parts]:
                done.result()
            taken.append(clock() - began)
    return nbytes / statistics.median(taken[1:])


def drop(file: int, checked: bool = True) -> str:
    """Drop an open file from the page cache. Returns why it is not out of it; empty where it is, or is not `checked`.

    The check asks for three pages without waiting for the disk; nothing is read ahead of them.
    """
    if not (hasattr(os, "posix_fadvise") and hasattr(os, "RWF_NOWAIT")):
        return "this system has no call that drops files from memory"
    with contextlib.suppress(OSError):  # of a file system that is not to be written: nothing waits to be
        os.fsync(file)  # pages that are not on the disk yet stay
    os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
    if not checked:
        return ""
    os.posix_fadvise(file, 0, 0, os.POSIX_FADV_RANDOM)
    try:
        return _in_memory(file)
    finally:
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_NORMAL)
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)


def filesystem(folder: Path, root: Path = Path("/")) -> str | None:
    """The kind of file system that a folder is on, as ext4, nfs4 or tmpfs. None where the system does not say."""
    try:
        lines = (root / "proc/self/mountinfo").read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError:
        return None
    resolved, found, longest = folder.resolve(), None, -1
    for line in lines:
        before, _, after = line.partition(" - ")
        mount = Path(before.split()[4].replace("\\040", " "))
        if resolved.is_relative_to(mount) and len(mount.parts) >= longest:  # a later mount covers an earlier one
            longest, found = len(mount.parts), after.split()[0]
    return found


def _file(folder: Path, size: int, free: int, stack: contextlib.ExitStack, clock: Clock) -> tuple[int, int, str]:
    """A file to measure on, how many bytes of it count, and what it is. Raises UserError where there is none."""
    try:
        file, size = _temporary(folder, min(size, free // 2), stack, clock)
    except OSError as error:
        reason = f"{folder} takes no temporary file ({error.strerror or error})"
    else:
        return file, size, f"a temporary file of {size >> 20} MiB"
    path = _largest(folder)
    if path is None:
        raise UserError(f"{reason} and holds no file of {_LEAST >> 20} MiB or more to read instead")
    file = stack.enter_context(path.open("rb", buffering=0)).fileno()
    return file, min(size, os.fstat(file).st_size), f"{path.name}: {reason}"


def _temporary(folder: Path, size: int, stack: contextlib.ExitStack, clock: Clock) -> tuple[int, int]:
    """A file without a name, on the disk, of bytes that nothing makes smaller; and its size, in whole pieces.

    `size` at most, and what is written in ten seconds. Raises OSError.
    """
    if size < _LEAST:
        raise OSError(f"less than {2 * _LEAST >> 20} MiB are free")
    with contextlib.ExitStack() as attempt:
        file = attempt.enter_context(tempfile.TemporaryFile(dir=folder, buffering=0)).fileno()
        began, at = clock(), 0
        while at + PIECE <= size and (at < _LEAST or clock() - began < _SECONDS):
            left = memoryview(os.urandom(PIECE))
            while left:
                left = left[os.pwrite(file, left, at + PIECE - len(left)) :]
            os.fsync(file)
            at += PIECE
        stack.push(attempt.pop_all())
    return file, at


def _largest(folder: Path) -> Path | None:
    """The largest file in a folder or one of its own folders that is worth measuring on."""
    best, most = None, _LEAST - 1
    for path in itertools.islice(_files(folder), _LOOKED_AT):
        with contextlib.suppress(OSError):
            if os.access(path, os.R_OK) and (size := path.stat().st_size) > most:
                best, most = path, size
    return best


def _files(folder: Path, deeper: bool = True) -> Iterator[Path]:
    folders = []
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_file():
                yield Path(entry.path)
            elif entry.is_dir(follow_symlinks=False):
                folders.append(Path(entry.path))
    for inner in folders if deeper else ():
        yield from _files(inner, deeper=False)


def _in_memory(file: int) -> str:
    size = os.fstat(file).st_size
    page = bytearray(_PAGE)
    for spot in {0, size // 2 // _PAGE * _PAGE, max(0, size - 1) // _PAGE * _PAGE}:
        try:
            if os.preadv(file, [page], spot, os.RWF_NOWAIT):
                return "the system keeps the file in memory: others use it, or its file system has a cache of its own"
        except BlockingIOError:  # it would have to wait for the disk
            continue
        except OSError as error:
            return f"the file system does not say what is in memory ({error.strerror})"
    return ""


def _in_order(file: int, buffer: memoryview, limit: int) -> Iterator[int]:
    """Read a file from its beginning, `limit` bytes at most: the bytes of each read."""
    at = 0
    while at < limit:
        got = os.preadv(file, [buffer[: min(PIECE, limit - at)]], at)
        if not got:
            return
        at += got
        yield got


def _at_random(file: int, buffer: memoryview, size: int) -> Iterator[int]:
    """Read pieces of a file of `size` bytes, none twice: the bytes of each."""
    places = range(size // SCATTERED_PIECE)
    for place in random.Random(0).sample(places, min(SCATTERED, len(places))):
        yield os.preadv(file, [buffer[:SCATTERED_PIECE]], place * SCATTERED_PIECE)


def _reading(reads: Iterator[int], cold: bool, clock: Clock, most_seconds: float = _SECONDS) -> DiskReading:
    """Let reads happen, and time them: it ends with the first that comes after `most_seconds`."""
    total = count = 0
    began = now = clock()
    for got in reads:
        total, count, now = total + got, count + 1, clock()
        if now - began >= most_seconds:
            break
    return DiskReading(total, count, now - began, cold)
