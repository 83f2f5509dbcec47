"""Open files of a dataset, and the detection of files that change after their index was read.

A file is opened and checked when it is first read, and stays open until all are closed. A new file that fits the index
would go unnoticed otherwise.

A path is checked again every few reads of its file, which takes 2 us. Size, modification time, change time and inode
are compared, so a file that was replaced, written to, truncated or removed is detected even if the reader still has the
old one open, because a resumed run would read the new one. Links and permissions alter the change time, too: where
nothing else differs, the content decides.
"""

import errno
import os
import threading
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from fastimg.loaders.errors import ShardError
from fastimg.loaders.runtime.scratch import Encoded

from .identities import StatedContent, identity_of, identity_of_file
from .quick_sums import sum_of_file
from .readahead import ask_all, pieces

EVERY = 16  # reads between two checks


def fill(file: int, view: memoryview, offset: int) -> None:
    """Fill `view` from `offset` on. Raises EOFError if the file ends too early, and OSError."""
    while view.nbytes:
        got = os.preadv(file, [view], offset)
        if got == 0:
            raise EOFError(f"it ends before byte {offset + view.nbytes}")
        view = view[got:]
        offset = offset + got


class FileParts(NamedTuple):
    """Parts of numbered files, [k] each."""

    numbers: list[int]
    offsets: npt.NDArray[np.int64]
    sizes: npt.NDArray[np.int64]  # bytes


class ShardFiles(Protocol):
    """The numbered files of a dataset, on this machine or elsewhere. Every method may be called from any thread."""

    @property
    def lengths(self) -> npt.NDArray[np.uint64]:
        """The bytes of each file."""

    def fill(self, number: int, view: memoryview, offset: int) -> None:
        """Fill `view` from `offset` of file `number`. Raises ShardError if it has changed, and DataError."""

    def fill_group(self, parts: FileParts, encoded: Encoded) -> npt.NDArray[np.bool_]:
        """Fill the buffers of `encoded` with parts [k] as `fill` does, at once; which ones are filled, [k].

        Nothing is waited for. What kept one from being filled, `fill` tells, or mends. Raises ShardError if a file has
        changed.
        """

    def peek(self, number: int, size: int, offset: int) -> bytes:
        """At most `size` bytes, which nothing was verified of: for names and comparisons. Raises OSError, DataError."""

    def look(self, number: int) -> None:
        """Raises ShardError if file `number` has changed."""

    def ahead(
        self, numbers: npt.NDArray[np.int64], offsets: npt.NDArray[np.int64], sizes: npt.NDArray[np.int64]
    ) -> None:
        """These extents [N] are read next: begin to fetch them."""

    def present(self) -> Iterable[Path]:
        """The files in turn, each of which stays where it is until the next one is asked for."""

    def close(self) -> None:
        """Close all files. Reading opens them again."""


class FileState(NamedTuple):
    """What tells two files of the same name apart."""

    size: int
    written: int  # modification time in nanoseconds
    inode: int
    changed: int  # also by links and permissions; unlike `written`, nobody sets it

    @classmethod
    def of(cls, status: os.stat_result) -> "FileState":
        """The state in the result of `os.stat`."""
        return cls(status.st_size, status.st_mtime_ns, status.st_ino, status.st_ctime_ns)


class FileWatch:
    """Compares `paths` with their earlier states, by default the current ones. Raises ShardError for a missing path.

    `stated` tells what the content of each must be; what it leaves open is what the file had when it was opened.
    """

    def __init__(
        self,
        paths: Sequence[Path],
        states: Sequence[FileState] | None = None,
        stated: Sequence[StatedContent] | None = None,
    ) -> None:
        self._paths = paths
        self._reads = 0
        self._states = [_state(path) for path in paths] if states is None else list(states)
        self._stated = [StatedContent()] * len(paths) if stated is None else list(stated)
        self._comparing = threading.Lock()

    def __reduce__(self) -> tuple[object, ...]:
        """Raises TypeError: what other processes need is the path."""
        raise TypeError("an open dataset cannot be pickled, as its files are open; give the path, as to a Loader")

    def opened(self, number: int, file: int) -> None:
        """Check file `number` after it was opened as `file`. Raises ShardError if it has changed, or is another one."""
        self._compare(number, os.fstat(file))
        stated = self._stated[number]
        try:
            identity = identity_of(file)
        except OSError as error:
            raise ShardError(f"{self._paths[number]}: cannot be read ({error.strerror}); copy it again") from error
        if stated.identity not in ("", identity):
            raise ShardError(
                f"{self._paths[number]}: another content than dataset.json states, though of the same size: it was "
                "exchanged for another shard, or altered; copy it again, or convert again with overwrite=True"
            )
        self._stated[number] = stated._replace(identity=identity)

    @property
    def lengths(self) -> npt.NDArray[np.uint64]:
        """The bytes of each file."""
        return np.array([state.size for state in self._states], np.uint64)

    def read(self, number: int) -> None:
        """Check file `number` on every few calls. Raises ShardError if it has changed."""
        self._reads += 1  # threads may lose a count, which does no harm
        if self._reads % EVERY == 0:
            self.look(number)

    def read_group(self, numbers: Sequence[int]) -> None:
        """`read` for each of several: of a group of up to EVERY, one file is checked at most."""
        following = EVERY - self._reads % EVERY  # the read after which it is time
        self._reads += len(numbers)
        if following <= len(numbers):
            self.look(numbers[following - 1])

    def look(self, number: int) -> None:
        """Check file `number`. Raises ShardError if it has changed."""
        try:
            status = os.stat(self._paths[number])
        except OSError as error:
            raise ShardError(
                f"{self._paths[number]}: disappeared while it was in use ({error.strerror}); "
                "bring it back and use resume=True"
            ) from error
        self._compare(number, status)

    def _compare(self, number: int, status: os.stat_result) -> None:
        then = self._states[number]
        now = FileState.of(status)
        if now == then or (now._replace(changed=then.changed) == then and self._same_content(number, now)):
            return
        how = "shrank" if now.size < then.size else "was altered" if now.inode == then.inode else "was replaced"
        raise ShardError(
            f"{self._paths[number]}: {how} while it was in use; copy it again and use resume=True, or start again "
            f"with the new file ({then.size} bytes then, {now.size} now)"
        )

    def _same_content(self, number: int, now: FileState) -> bool:
        """Whether a file has its content still, though its change time differs: all of it where that is stated."""
        with self._comparing:  # one thread reads it
            if self._states[number] == now:
                return True
            path, stated = self._paths[number], self._stated[number]
            try:
                same = sum_of_file(path) == stated.quick if stated.quick else identity_of_file(path) == stated.identity
            except OSError:
                return False
            if same:
                self._states[number] = now
            return same


def _state(path: Path) -> FileState:
    try:
        return FileState.of(path.stat())
    except OSError as error:
        raise ShardError(f"{path}: {error.strerror}; copy it again, or convert again") from error


class Handles:
    """Descriptors of `paths`, for any thread. `remedy` is part of the message if a file cannot be opened.

    `close` closes them, and so does garbage collection; after `close` they are opened again when needed. `opened` are
    those that are open already, by number.
    """

    def __init__(
        self, paths: Sequence[Path], watch: FileWatch, remedy: str, opened: Mapping[int, int] = MappingProxyType({})
    ) -> None:
        self._paths = paths
        self._watch = watch
        self._remedy = remedy
        self._files = dict(opened)
        self._close = weakref.finalize(self, _close_all, self._files)
        self._lock = threading.Lock()

    def file(self, number: int) -> int:
        """The descriptor of file `number`. Raises ShardError if it is gone or was replaced."""
        file = self._files.get(number)
        if file is not None:
            return file
        with self._lock:
            if number not in self._files:
                file = _open(self._paths[number], self._remedy)
                try:
                    self._watch.opened(number, file)
                except BaseException:
                    os.close(file)
                    raise
                self._files[number] = file
            return self._files[number]

    def close(self) -> None:
        """Close all files."""
        with self._lock:
            _close_all(self._files)


class WatchedFiles:
    """ShardFiles on this machine, watched from now on: before their indexes are read. `stated`: see FileWatch."""

    def __init__(self, paths: Sequence[Path], remedy: str, stated: Sequence[StatedContent] | None = None) -> None:
        self._paths = paths
        self._watch = FileWatch(paths, stated=stated)
        self._handles = Handles(paths, self._watch, remedy)
        self._remedy = remedy

    @property
    def lengths(self) -> npt.NDArray[np.uint64]:
        """See ShardFiles."""
        return self._watch.lengths

    def fill(self, number: int, view: memoryview, offset: int) -> None:
        """See ShardFiles."""
        try:
            fill(self._handles.file(number), view, offset)
        except (OSError, EOFError) as error:
            self._watch.look(number)  # its error may be more precise
            raise ShardError(
                f"{self._paths[number]}: cannot be read ({error}); copy it again and use resume=True"
            ) from error
        self._watch.read(number)

    def fill_group(self, parts: FileParts, encoded: Encoded) -> npt.NDArray[np.bool_]:
        """See ShardFiles."""
        from fastimg.loaders.runtime.file_reads import fill_parts  # numba, which opening a dataset does not need

        files = {number: self._handles.file(number) for number in set(parts.numbers)}
        filled = fill_parts([files[number] for number in parts.numbers], encoded, parts.sizes, parts.offsets)
        self._watch.read_group(parts.numbers)
        return filled

    def peek(self, number: int, size: int, offset: int) -> bytes:
        """See ShardFiles."""
        return os.pread(self._handles.file(number), size, offset)

    def look(self, number: int) -> None:
        """See ShardFiles."""
        self._watch.look(number)

    def ahead(
        self, numbers: npt.NDArray[np.int64], offsets: npt.NDArray[np.int64], sizes: npt.NDArray[np.int64]
    ) -> None:
        """See ShardFiles: the system is asked to read them."""
        wanted = pieces(numbers, offsets, sizes)
        distinct, which = np.unique(wanted.files, return_inverse=True)
        files = np.array([self._handles.file(number) for number in distinct.tolist()], np.int64)
        ask_all(wanted._replace(files=files[which]))

    def present(self) -> Iterable[Path]:
        """See ShardFiles: each is checked first, so that nothing is derived of another one."""
        return _Checked(self._paths, self._watch, self._remedy)

    def close(self) -> None:
        """See ShardFiles."""
        self._handles.close()


class _Checked:
    """Paths in turn, each opened once to see that it is the file that it should be."""

    def __init__(self, paths: Sequence[Path], watch: FileWatch, remedy: str) -> None:
        self._paths, self._watch, self._remedy = paths, watch, remedy

    def __iter__(self) -> Iterator[Path]:
        for number, path in enumerate(self._paths):
            file = _open(path, self._remedy)
            try:
                self._watch.opened(number, file)
            finally:
                os.close(file)
            yield path


def _open(path: Path, remedy: str) -> int:
    """A descriptor. Raises ShardError, which ends with a remedy."""
    try:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        remedy = "raise `ulimit -n`" if error.errno == errno.EMFILE else remedy
        raise ShardError(f"{path}: {error.strerror}; {remedy}") from error


def _close_all(files: dict[int, int]) -> None:
    while files:
        os.close(files.popitem()[1])
