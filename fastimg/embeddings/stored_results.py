"""Embeddings that go to an object store: written into a folder here, then uploaded, their description last."""

import hashlib
import shutil
from collections.abc import Collection, Mapping
from pathlib import Path

from fastimg.errors import UserError
from fastimg.loaders.errors import DataError, not_written
from fastimg.loaders.remote.writable import WritableFolder
from fastimg.loaders.runtime.cache import cache_folder
from fastimg.loaders.runtime.file_locks import unlock_and_close

from .held_folders import hold


class StoredResults:
    """A folder in the store, and `folder` here, which shows it: files of `read` with their contents, others empty.

    What is written here replaces what is there, and what is deleted here is deleted there. Until `close` no other
    process writes to the same URL with this cache. Raises DataError, and UserError where another one does, or where
    the cache cannot be written.
    """

    def __init__(
        self, url: str, cache_dir: Path | None, options: Mapping[str, str], rank: int, read: Collection[str]
    ) -> None:
        self.url = url
        self._store = WritableFolder(url, options)
        key = hashlib.sha256(url.encode()).hexdigest()[:16]
        self.folder = (cache_dir or cache_folder()).absolute() / "staging" / f"embeddings-{key}-{rank}"
        try:
            self._lock = hold(self.folder, url)
        except OSError as error:
            raise UserError(
                f"{self.folder.parent}: {not_written(error, 'give another folder with --cache-dir')}"
            ) from error
        self._there: dict[str, tuple[int, int, int]] = {}  # the file here that stands for one there
        try:
            for left in self.folder.iterdir():  # of a command that was killed
                shutil.rmtree(left) if left.is_dir() else left.unlink()
            for each in self._store.contents():
                file = self.folder / each.name
                file.write_bytes(self._store.read(each.name) if each.name in read else b"")
                self._there[each.name] = _state(file)
        except BaseException:
            self.close()
            raise

    def begin(self, mark: str) -> None:
        """Show in the store, by the file `mark`, that something is being replaced there."""
        self._store.put(mark, (self.folder / mark).read_bytes())

    def finish(self, mark: str, last: str) -> None:
        """Upload what is new, then write `last`, and delete what is gone, with `mark`. Raises UserError.

        What is there stays readable until then, unless a file that is new has the name of one of its own.
        """
        here = {file.name: file for file in sorted(self.folder.iterdir())}
        new = [name for name, file in here.items() if name != last and self._there.get(name) != _state(file)]
        try:
            if last in self._there and any(name in self._there for name in new):
                self._store.delete([last])
            for name in new:
                self._store.send(name, here[name])
            self._store.put(last, here[last].read_bytes())
            self._store.delete([*sorted(self._there.keys() - here.keys() - {mark}), mark])
        except DataError as error:
            raise UserError(
                f"{error}; run the same again: what was computed is kept, and is not computed anew"
            ) from error

    def close(self) -> None:
        """Delete the folder here, and let others have it."""
        shutil.rmtree(self.folder, ignore_errors=True)
        unlock_and_close(self._lock)


def _state(file: Path) -> tuple[int, int, int]:
    """What differs of a file that was written anew."""
    status = file.stat()
    return status.st_ino, status.st_size, status.st_mtime_ns
