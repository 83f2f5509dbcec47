"""Image or text files as a source: a folder with one subfolder per class."""

import os
import stat
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

from fastimg.convert.stored.files import AnnouncedFiles, announced_files
from fastimg.loaders.errors import ImageError
from fastimg.loaders.folders.folder import SPLIT_FOLDERS, Level, Mapped, list_folder
from fastimg.loaders.remote.trees import is_outside, leads_out

from .samples import NO_LABEL, Entries, Original, SamplePart, Source, SourceEntry, note

_STATED = 1024  # files whose sizes are asked for at a time
_PATIENCE = 0.05  # seconds of listing after which threads may be worth while
_THREADS = 32  # which wait for a file system
_FOLDERS = 4096  # that are remembered
_MAX_BYTES = 8**11  # a ustar member's size has 11 octal digits


class FilesReader:
    """Reads files below `root`. `listed` is the manifest that lists them, or None for a class folder.

    `labelled`: a row of the manifest without a label is a problem.
    """

    def __init__(self, root: Path, listed: Path | None = None, labelled: bool = True) -> None:
        self._root = root
        self._listed = listed
        self._labelled = labelled
        self._stored = announced_files(root)  # None: the files are here

    @property
    def fetches(self) -> bool:
        """See FetchingReader."""
        return self._stored is not None

    def announce(self, entry: SourceEntry) -> int:
        """See FetchingReader."""
        if self._stored is None or self.problem(entry) is not None:
            return 0
        self._stored.announce(entry.path)
        return entry.size

    def read(self, entry: SourceEntry) -> Original:
        """See SourceReader."""
        data = self._content(entry) if self._stored is None else self._stored.read(entry.path)
        if len(data) != entry.size:
            raise ImageError("changed after the source was listed")
        suffix = os.path.splitext(entry.path)[1][1:].lower()
        return Original(data, suffix, note(entry.path, entry.extra), {})

    def _content(self, entry: SourceEntry) -> bytes:
        handle = os.open(os.path.join(self._root, entry.path), os.O_RDONLY | os.O_CLOEXEC)
        try:
            data = os.read(handle, entry.size + 1)
            while 0 < len(data) < entry.size and (more := os.read(handle, entry.size + 1 - len(data))):
                data += more  # short reads: files above 2 GiB, or network file systems
        finally:
            os.close(handle)
        return data

    def name(self, entry: SourceEntry) -> str:
        """Its file, with the row if a manifest lists it."""
        return f"{self._listed}: row {entry.row}: {entry.path}" if self._listed else str(self._root / entry.path)

    def problem(self, entry: SourceEntry) -> str | None:
        """See SourceReader."""
        if self._listed and self._labelled and entry.label < 0:
            return NO_LABEL
        if entry.size >= _MAX_BYTES:
            return "8 GiB or more, which is too large for a tar shard"
        if entry.size >= 0:
            return None
        if is_outside(self._root, entry.path):
            return "no such file"
        try:
            regular = stat.S_ISREG(os.stat(self._root / entry.path).st_mode)
        except OSError as error:
            return "no such file" if isinstance(error, FileNotFoundError) else (error.strerror or str(error))
        return "appeared after the source was listed" if regular else "not a file"

    def parts(self, entry: SourceEntry) -> Iterable[SamplePart]:
        """See SourceReader."""
        yield file_part(self._root, self._stored, entry.path, entry.size)

    def close(self) -> None:
        """See SourceReader."""
        if self._stored is not None:
            self._stored.close()


def file_part(root: Path, stored: AnnouncedFiles | None, path: str, size: int) -> SamplePart:
    """A file below `root`, or of those `stored` elsewhere."""

    def read(start: int, stop: int) -> bytes:
        if stored is not None:
            return stored.read(path)[:size] if stop - start == size else stored.read_range(path, start, stop)
        with open(root / path, "rb") as file:
            file.seek(start)
            return file.read(stop - start)

    return SamplePart(size, read)


def waiting_mapped(function: Callable[[Any], Any], items: Iterable[Any]) -> Iterator[Any]:
    """As `map`; on threads as soon as most of the time is waiting, as it is for a file system in a network."""
    waiting = iter(items)
    cpu, wall = time.thread_time(), time.perf_counter()
    for item in waiting:
        yield function(item)
        passed = time.perf_counter() - wall
        if passed > _PATIENCE and passed > 4 * (time.thread_time() - cpu):
            break
    with ThreadPoolExecutor(_THREADS, "listing") as pool:
        yield from pool.map(function, waiting)


def read_folder(
    src: Path,
    classes: Level | None = None,
    mapped: Mapped = waiting_mapped,
    arrays: bool = False,
    trains: bool = True,
) -> Source:
    """List a class folder; see `list_folder` for the other arguments. Raises DataError."""
    listing = list_folder(src, classes, mapped, arrays, trains)
    splits: dict[str, Entries] = {}
    for split, files in listing.files.items():
        parts = [files[start : start + _STATED] for start in range(0, len(files), _STATED)]
        sizes = mapped(partial(_sizes, src), [[path for path, _ in part] for part in parts])
        splits[split] = Entries(
            SourceEntry(path, label, size)
            for part, known in zip(parts, sizes, strict=True)
            for (path, label), size in zip(part, known, strict=True)
        )
    return Source(
        src,
        "folder",
        listing.classes,
        splits,
        (FilesReader(src),),
        listing.ignored,
        remarks=listing.notes,
        content=listing.content,
    )


def _sizes(root: Path, paths: list[str]) -> list[int]:
    above = os.path.join(root, "")
    return [file_size(above + path) for path in paths]


class WrittenPaths:
    """How the paths of files are kept: without `..`, and relative to `root`, where that leads to the same file.

    Behind a symbolic link `..` leads elsewhere than it reads. Folders are compared, and not files, of which a manifest
    may name millions.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self._bases = dict.fromkeys((os.path.abspath(root), os.path.realpath(root)))
        self._plain_folder = lru_cache(_FOLDERS)(self._without_dots)
        self._folder_below = lru_cache(_FOLDERS)(self._relative)

    def plain(self, path: str) -> str:
        """A path without `..`, or as it is."""
        return self._kept(path, self._plain_folder) if os.pardir in path else os.path.normpath(path)

    def below(self, path: str) -> str:
        """A path relative to `root`, from which a relative one starts, or as it is."""
        return self._kept(path, self._folder_below) if os.path.isabs(path) else self.plain(path)

    def _kept(self, path: str, find: Callable[[str], str | None]) -> str:
        if is_outside(self.root, path):
            return path
        folder, name = os.path.split(path)
        if name in ("", os.curdir, os.pardir):
            folder, name = path, ""
        found = find(folder)
        return path if found is None else os.path.normpath(os.path.join(found, name))

    def _without_dots(self, folder: str) -> str | None:
        plain = os.path.normpath(folder)
        return plain if self._same(folder, plain) else None

    def _relative(self, folder: str) -> str | None:
        relative = (os.path.relpath(folder, base) for base in self._bases)
        return next((other for other in relative if self._same(folder, other)), None)

    def _same(self, folder: str, other: str) -> bool:
        """Whether both lead to the same folder, or to none."""
        first, second = self.root / folder, self.root / other
        try:
            return os.path.samefile(first, second)
        except (OSError, ValueError):
            return not (os.path.exists(first) or os.path.exists(second))


def split_folders(folder: Path) -> list[Path]:
    """The folders in `folder` that are named as splits, sorted; none if it is no folder."""
    if not folder.is_dir():
        return []
    return sorted(path for path in folder.iterdir() if path.is_dir() and path.name.lower() in SPLIT_FOLDERS)


def file_size(file: Path | str) -> int:
    """Size of a regular file in bytes, or -1 for anything else."""
    try:
        status = os.stat(file)
    except (OSError, ValueError):  # ValueError: a null byte in a manifest's path
        return -1
    return status.st_size if stat.S_ISREG(status.st_mode) else -1


def size_below(root: Path, path: str) -> int:
    """`file_size` of a path that a file names, from `root` on; -1 if it leads out of a store.

    Raises DataError if it is an absolute one that does.
    """
    return -1 if leads_out(root, path) else file_size(root / path)
