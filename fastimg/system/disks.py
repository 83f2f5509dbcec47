"""Measures how fast files are read and memory is copied. Does not import torch.

A read is cold if the file was dropped from the system's page cache and a non-blocking read found none of it there.
The device's own caches, and those of a virtual machine's host, are not emptied.
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
SCATTERED = 128  # random reads
SCATTERED_PIECE = 128 << 10  # bytes of each random read: about one image
FILE = 256 << 20  # bytes of the temporary file
_MIN_FILE = 16 << 20  # bytes; smaller files are not worth measuring on
_CHECKED = 8  # files that are checked to be out of the page cache
_MAX_ENTRIES = 10_000  # entries of a folder to look at when searching for a large file
_PAGE = 4096
_NO_DISK = ("tmpfs", "ramfs")
_SECONDS = 10.0  # limit for writing and for each kind of reading: enough to recognise a slow disk

Clock = Callable[[], float]


@dataclass(frozen=True)
class DiskReading:
    """The result of one measurement: consecutive reads by one thread."""

    bytes: int
    reads: int
    seconds: float
    cold: bool  # read from the disk; otherwise from memory where it was cached
    why: str = ""  # why the read is not cold

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
    """The disk that holds a folder. `cold` and `scattered` are None if the page cache could not be emptied (`why`)."""

    folder: str
    filesystem: str | None
    free: int  # bytes
    measured_on: str
    cold: DiskReading | None
    scattered: DiskReading | None  # random reads, also cold
    warm: DiskReading
    why: str = ""


def measure_disk(folder: Path, size: int = FILE, clock: Clock = time.perf_counter) -> Disk:
    """Read a temporary file of `size` bytes in `folder`, or a smaller one if there is too little space.

    The file has no name, so it is gone however this function ends. If the folder is not writable, its largest file is
    read instead. Raises UserError if there is none, OSError if reading fails.
    """
    free = shutil.disk_usage(folder).free
    with contextlib.ExitStack() as stack:
        file, size, name = _file(folder, size, free, stack, clock)
        buffer = memoryview(bytearray(PIECE))
        cold = None
        scattered = None
        kind = filesystem(folder)
        why = f"{kind} is in memory and has no disk" if kind in _NO_DISK else drop(file)
        if not why:
            cold = _reading(_in_order(file, buffer, size), True, clock)
            why = drop(file)
        if not why:
            os.posix_fadvise(file, 0, 0, os.POSIX_FADV_RANDOM)  # no read-ahead
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
    """Read files one after the other in pieces of 8 MiB, up to `limit` bytes and about `most_seconds`.

    With `cold`, each file is dropped from the page cache first; the result is cold if the files that were checked (the
    first eight) had all left it. Without `cold`, each file is read once beforehand, so the measured read comes from
    memory. The time to open files does not count. Raises OSError.
    """
    buffer = memoryview(bytearray(PIECE))
    total = 0
    reads = 0
    seconds = 0.0
    why = "" if cold else "it was not asked for"
    for number, path in enumerate(files):
        with path.open("rb", buffering=0) as handle:
            file = handle.fileno()
            if cold:
                why = why or drop(file, checked=number < _CHECKED)
            else:
                _reading(_in_order(file, buffer, limit - total), False, clock, most_seconds - seconds)
            reading = _reading(_in_order(file, buffer, limit - total), cold, clock, most_seconds - seconds)
        total += reading.bytes
        reads += reading.reads
        seconds += reading.seconds
        if total >= limit or seconds >= most_seconds:
            break
    why = why if reads else "nothing was read"
    return DiskReading(total, reads, seconds, not why, why)


def memory_bandwidth(nbytes: int = FILE, threads: int = 1, repeats: int = 3, clock: Clock = time.perf_counter) -> float:
    """Bytes per second that numpy copies, the median of `repeats`: each byte is read once and written once.

    Each copy is of `nbytes` bytes, split evenly between `threads`. `nbytes` should exceed the processor's caches; twice
    as much memory is allocated. Raises MemoryError.
    """
    import numpy as np  # imported here so that `doctor` works without it

    source = np.ones(nbytes, np.uint8)
    target = np.empty(nbytes, np.uint8)
    parts = list(zip(np.array_split(target, threads), np.array_split(source, threads), strict=True))
    taken = []
    with ThreadPoolExecutor(threads, "copy") as pool:
        for _ in range(1 + repeats):  # the first copy only touches the memory
            began = clock()
            for done in [pool.submit(np.copyto, into, part) for into, part in parts]:
                done.result()
            taken.append(clock() - began)
    return nbytes / statistics.median(taken[1:])


def drop(file: int, checked: bool = True) -> str:
    """Drop an open file from the page cache. Returns why it is still cached; empty if it is not, or without `checked`.

    The check reads three pages without waiting for the disk and without read-ahead.
    """
    if not (hasattr(os, "posix_fadvise") and hasattr(os, "RWF_NOWAIT")):
        return "this system has no call that drops files from memory"
    with contextlib.suppress(OSError):  # a read-only file system has nothing to write back
        os.fsync(file)  # pages that are not on the disk yet cannot be dropped
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
    """The type of the file system that holds a folder, such as ext4, nfs4 or tmpfs. None if it cannot be determined."""
    try:
        lines = (root / "proc/self/mountinfo").read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError:
        return None
    resolved = folder.resolve()
    kind = None
    longest = -1
    for line in lines:
        before, _, after = line.partition(" - ")
        mount = Path(before.split()[4].replace("\\040", " "))
        if resolved.is_relative_to(mount) and len(mount.parts) >= longest:  # a later mount hides an earlier one
            longest = len(mount.parts)
            kind = after.split()[0]
    return kind


def _file(folder: Path, size: int, free: int, stack: contextlib.ExitStack, clock: Clock) -> tuple[int, int, str]:
    """A file to measure on, how many of its bytes to read, and a description. Raises UserError if there is none."""
    try:
        file, size = _temporary(folder, min(size, free // 2), stack, clock)
    except OSError as error:
        reason = f"no temporary file can be written to {folder} ({error.strerror or error})"
    else:
        return file, size, f"a temporary file of {size >> 20} MiB"
    path = _largest(folder)
    if path is None:
        raise UserError(f"{reason}, and it holds no file of at least {_MIN_FILE >> 20} MiB to read instead")
    file = stack.enter_context(path.open("rb", buffering=0)).fileno()
    return file, min(size, os.fstat(file).st_size), f"{path.name}: {reason}"


def _temporary(folder: Path, size: int, stack: contextlib.ExitStack, clock: Clock) -> tuple[int, int]:
    """An unnamed file of incompressible bytes, written to the disk; and its size, in whole pieces.

    At most `size` bytes, and no more than can be written in ten seconds. Raises OSError.
    """
    if size < _MIN_FILE:
        raise OSError(f"less than {2 * _MIN_FILE >> 20} MiB are free")
    with contextlib.ExitStack() as attempt:
        file = attempt.enter_context(tempfile.TemporaryFile(dir=folder, buffering=0)).fileno()
        began = clock()
        written = 0
        while written + PIECE <= size and (written < _MIN_FILE or clock() - began < _SECONDS):
            left = memoryview(os.urandom(PIECE))
            while left:
                left = left[os.pwrite(file, left, written + PIECE - len(left)) :]
            os.fsync(file)
            written += PIECE
        stack.push(attempt.pop_all())
    return file, written


def _largest(folder: Path) -> Path | None:
    """The largest file in a folder or its direct subfolders that is big enough to measure on."""
    largest = None
    largest_size = _MIN_FILE - 1
    for path in itertools.islice(_files(folder), _MAX_ENTRIES):
        with contextlib.suppress(OSError):
            if os.access(path, os.R_OK) and (size := path.stat().st_size) > largest_size:
                largest = path
                largest_size = size
    return largest


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
                return (
                    "the system keeps the file in memory: other programs use it, or its file system has its own cache"
                )
        except BlockingIOError:  # it would have to wait for the disk: not cached
            continue
        except OSError as error:
            return f"the file system does not say what is in memory ({error.strerror})"
    return ""


def _in_order(file: int, buffer: memoryview, limit: int) -> Iterator[int]:
    """Read a file from its beginning, up to `limit` bytes. Yields the size of each read."""
    offset = 0
    while offset < limit:
        nbytes = os.preadv(file, [buffer[: min(PIECE, limit - offset)]], offset)
        if not nbytes:
            return
        offset += nbytes
        yield nbytes


def _at_random(file: int, buffer: memoryview, size: int) -> Iterator[int]:
    """Read pieces of a file of `size` bytes in random order, each at most once. Yields the size of each read."""
    places = range(size // SCATTERED_PIECE)
    for place in random.Random(0).sample(places, min(SCATTERED, len(places))):
        yield os.preadv(file, [buffer[:SCATTERED_PIECE]], place * SCATTERED_PIECE)


def _reading(reads: Iterator[int], cold: bool, clock: Clock, most_seconds: float = _SECONDS) -> DiskReading:
    """Time reads, until they are done or `most_seconds` have passed."""
    total = 0
    count = 0
    began = now = clock()
    for nbytes in reads:
        total += nbytes
        count += 1
        now = clock()
        if now - began >= most_seconds:
            break
    return DiskReading(total, count, now - began, cold)
