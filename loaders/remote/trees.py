"""A folder of files in an object store, listed once: here it is a tree of empty files with their names and sizes.

What lists folders lists it as any other; contents come from the store. A tree takes no room but that of its names, and
is deleted when it is closed, or when the next one is opened beside it.
"""

import contextlib
import fcntl
import os
import shutil
import tempfile
import weakref
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from fastimg.loaders.errors import DataError
from fastimg.loaders.runtime.side_by_side import side_by_side

from .cache.wanted_files import WantedFile
from .client.key_ranges import Add, list_names
from .fetching import Fetching
from .stores import NotThereError, RemoteFolder

_SMALL = 8 << 20  # bytes of a file that is fetched by one request
_LOCK = ".lock"
_open: dict[Path, "StoredTree"] = {}  # of this process, by folder


class StoredFiles(RemoteFolder):
    """All files below a URL, by their paths from there. Any thread may read; another process opens it anew."""

    retries = 4  # of obstore's own: a listing has a request for each thousand names

    def __init__(self, url: str, options: Mapping[str, str] | None = None) -> None:
        super().__init__(url, options)
        self._options = dict(options or {})

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.url, self._options)

    def content(self, name: str) -> bytes:
        """A whole file. Where its ETag may be a checksum, it is compared: what differs must arrive twice alike.

        So must what has no such ETag, unless TLS verifies it. Raises NotThereError and DataError.
        """
        return self._verified(name, strict=False)

    def list_all(self, add: Add) -> None:
        """Call `add` with the path, size and tag of each file, in any order; of some again after a failure.

        Raises DataError.
        """

        self._tried("", lambda: list_names(self._store, self.url, add))


class StoredTree:
    """The files below a URL, and the folder `root` that shows them. `count` and `size` (bytes) are of all files.

    `each` is called with the path, size and tag of each file that is shown.
    Raises NotThereError where nothing is there, and DataError where names cannot be those of files.
    """

    def __init__(self, url: str, options: Mapping[str, str] | None, place: Path, each: Add = lambda *_: None) -> None:
        self.url = url
        self._each = each
        self.files = StoredFiles(url, options)
        self.count = self.size = 0
        place.mkdir(parents=True, exist_ok=True)
        _sweep(place)
        self._home = Path(tempfile.mkdtemp(prefix="tree-", dir=place))
        self._lock = os.open(self._home / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        self.close = weakref.finalize(self, _remove, self._home, self._lock)
        self.root = self._home / "files"
        self.root.mkdir()
        self._whole: set[Path] = set()
        try:
            self.files.list_all(self._add)
        except BaseException:
            self.close()
            raise
        if not self.count:
            self.close()
            raise NotThereError(f"{url}: no files there; check the URL")
        _open[self.root] = self

    def _add(self, name: str, size: int, tag: str) -> None:
        path = self.root / name
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        except (FileExistsError, NotADirectoryError) as error:
            if path.is_file() or (path.is_dir() and size == 0):  # listed before; or the mark of a folder
                return
            if not self._makes_way(path):
                raise DataError(
                    f"{self.files.address(name)}: is a file and a folder at once; rename one of them"
                ) from error
            self._add(name, size, tag)
            return
        except (OSError, ValueError) as error:
            raise DataError(f"{self.files.address(name)}: cannot be the name of a file ({error})") from error
        try:
            os.truncate(file, size)
        finally:
            os.close(file)
        self.count += 1
        self.size += size
        self._each(name, size, tag)

    def _makes_way(self, path: Path) -> bool:
        """Delete an empty file, the mark of a folder, in the way of a file below it."""
        mark = next((above for above in path.parents if above.is_file()), None)
        if mark is None or mark.stat().st_size:
            return False
        mark.unlink()
        self.count -= 1
        return True

    def name_of(self, path: Path) -> str:
        """The path of a file from the URL on."""
        return path.relative_to(self.root).as_posix()

    def holds(self, path: Path) -> bool:
        """Whether the content of a file is in the store alone."""
        return path not in self._whole

    def fetch(self, path: Path) -> None:
        """Have a file here as it is in the store. Raises NotThereError and DataError."""
        name = self.name_of(path)
        found = self.files.look(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            Fetching(self.files).fetch(WantedFile(name, found.size, "", found.tag), file)
        finally:
            os.close(file)
        self._whole.add(path)

    def fetch_all(self, paths: Sequence[Path], requests: int) -> None:
        """Have files here as they are in the store, so many at a time. Raises NotThereError and DataError."""
        side_by_side(self._bring, paths, requests, "fastimg-tree")

    def _bring(self, path: Path) -> None:
        if path.stat().st_size > _SMALL:
            self.fetch(path)
        elif path.stat().st_size:
            path.write_bytes(self.files.content(self.name_of(path)))
        self._whole.add(path)

    def reader(self, path: Path) -> Callable[[int, int], bytes]:
        """What reads the bytes of a file from a position to before another, as it is now: later ones are refused.

        Raises NotThereError and DataError.
        """
        name = self.name_of(path)
        found = self.files.look(name)
        return lambda start, stop: bytes(self.files.read_range(name, start, stop, found.tag))


def tree_of(path: Path) -> StoredTree | None:
    """The tree of this process that a file or folder belongs to."""
    opened = list(_open.items()) if _open else ()  # another thread may open one
    return next((tree for root, tree in opened if path.is_relative_to(root)), None)


def is_outside(folder: Path, path: str) -> bool:
    """Whether a path from a folder of a tree on leads to files of this machine; never from any other folder."""
    tree = tree_of(folder)
    return tree is not None and not Path(os.path.normpath(folder / path)).is_relative_to(tree.root)


def leads_out(folder: Path, path: str) -> bool:
    """`is_outside`. Raises DataError if the path is absolute, too, of which no other one can be meant."""
    tree = tree_of(folder)
    if tree is None or not is_outside(folder, path):
        return False
    if os.path.isabs(path):
        raise DataError(
            f"{tree.url}: {path[:100]!r}, which is named there, is a path of this machine; name files of the store, by "
            "their paths from there on"
        )
    return True


def named_by_urls(sentence: str) -> str:
    """A sentence in which files of trees are called by their URLs."""
    for root, tree in list(_open.items()):
        sentence = sentence.replace(str(root), tree.url)
    return sentence


def _remove(home: Path, lock: int) -> None:
    _open.pop(home / "files", None)
    shutil.rmtree(home, ignore_errors=True)
    with contextlib.suppress(OSError):
        os.close(lock)


def _sweep(place: Path) -> None:
    """Delete the trees of processes that are gone."""
    for lock in place.glob(f"tree-*/{_LOCK}"):
        with contextlib.suppress(OSError):
            file = os.open(lock, os.O_RDWR | os.O_CLOEXEC)
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(lock.parent, ignore_errors=True)
            finally:
                os.close(file)
