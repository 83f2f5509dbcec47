"""Uploads a run behind its training: after each checkpoint what `last` and `best` point at, the log and the settings.

A checkpoint's files are linked into a hidden folder of the run when it is on disk, so that nothing waits for the
network, and nothing is deleted meanwhile. Of several that wait, the newest is uploaded. Files go under their checksums;
then the manifest names them, and those that it no longer names are deleted.
"""

import contextlib
import hashlib
import os
import shutil
import threading
from collections.abc import Callable, Mapping
from pathlib import Path

from fastimg.errors import UserError
from fastimg.loaders.errors import DataError
from fastimg.loaders.remote.writable import ChangedError, WritableFolder

from .stored_runs import MANIFEST, OBJECTS, RunManifest

_FOLDER = ".uploading"
_LINKS = ("last", "best")
Say = Callable[[str], object]


class RunUploads:
    """The uploads of one run's `directory` to its `url`. `note` and `finish` are called by one thread at a time.

    Raises DataError for a URL that cannot be written to.
    """

    def __init__(self, url: str, directory: Path, options: Mapping[str, str], warn: Say) -> None:
        self.url = url
        self._directory = directory
        self._warn = warn
        self._store = WritableFolder(url, options)
        self._objects = WritableFolder(f"{url}/{OBJECTS}", options)
        self._contents()  # raises where there is no bucket
        self._tag = self._store.tag(MANIFEST)  # of the manifest that this process has found, or written
        shutil.rmtree(directory / _FOLDER, ignore_errors=True)
        self._turn = threading.Condition()
        self._pending: Path | None = None  # a folder of links that waits
        self._number = 0
        self._closing = False
        self._error: Exception | None = None  # of the last upload
        self._unlinked: OSError | None = None  # why the last checkpoint does not wait to be uploaded
        self._thread = threading.Thread(target=self._work, name="fastimg-run-upload", daemon=True)
        self._thread.start()

    def note(self) -> None:
        """A checkpoint is on disk: it is uploaded when those under way are there. Does not wait for the network."""
        self._unlinked = None
        try:
            snapshot = self._snapshot()
        except OSError as error:  # a full disk, or a run that was deleted
            self._unlinked = error
            return
        with self._turn:
            if self._pending is not None:
                shutil.rmtree(self._pending, ignore_errors=True)
            self._pending = snapshot
            self._turn.notify()

    def finish(self, say: Say) -> None:
        """Upload the run as it is now, and wait. Raises UserError if it could not be uploaded."""
        self.note()
        say(f"uploading   {self._directory.name} to {self.url}")
        self.close()
        error = self._error or self._unlinked
        if error is not None:
            raise UserError(
                f"{self.url}: the end of the run could not be uploaded: {error}; the run is in "
                f"{self._directory}, and the same command with --resume auto uploads it"
            )
        say(f"uploaded    {self.url}")

    def close(self) -> None:
        """Upload what waits, and end the thread."""
        with self._turn:
            self._closing = True
            self._turn.notify()
        self._thread.join()
        shutil.rmtree(self._directory / _FOLDER, ignore_errors=True)

    def _snapshot(self) -> Path:
        """A folder of links to the files of checkpoints, which never change, and copies of all others."""
        self._number += 1
        folder = self._directory / _FOLDER / str(self._number)
        folder.mkdir(parents=True)
        for file in self._directory.iterdir():
            if file.is_file() and not file.name.startswith("."):
                shutil.copyfile(file, folder / file.name)
        for link in _LINKS:
            if not (self._directory / link).exists():
                continue
            target = os.readlink(self._directory / link)
            (folder / link).symlink_to(target)
            for file in (self._directory / target).rglob("*"):
                linked = folder / target / file.relative_to(self._directory / target)
                if file.is_file() and not linked.exists():
                    linked.parent.mkdir(parents=True, exist_ok=True)
                    os.link(file, linked)
        return folder

    def _work(self) -> None:
        while True:
            with self._turn:
                while self._pending is None and not self._closing:
                    self._turn.wait()
                snapshot, self._pending = self._pending, None
            if snapshot is None:
                return
            try:
                self._upload(snapshot)
                self._error = None
            except (DataError, OSError) as error:
                self._error = error
                if not self._closing:
                    self._warn(f"{self.url}: not uploaded ({error}); it is tried again with the next checkpoint")
            finally:
                shutil.rmtree(snapshot, ignore_errors=True)

    def _upload(self, snapshot: Path) -> None:
        """Upload what is new, then the manifest. Raises DataError, also where another process has written one."""
        if self._store.tag(MANIFEST) != self._tag:
            raise _other_writer()
        there = self._contents()
        files: dict[str, tuple[int, str]] = {}
        links = {link: os.readlink(snapshot / link) for link in _LINKS if (snapshot / link).is_symlink()}
        for file in sorted(snapshot.rglob("*")):
            name = str(file.relative_to(snapshot))
            if not file.is_file() or file.is_symlink() or name.partition("/")[0] in _LINKS:
                continue
            with file.open("rb") as content:
                sha256 = hashlib.file_digest(content, "sha256").hexdigest()
            size = file.stat().st_size
            files[name] = size, sha256
            if there.get(sha256) != size:
                self._objects.send(sha256, file)
                there[sha256] = size
        step = int(links["last"].rpartition("/")[2].partition("-")[0]) if "last" in links else 0
        needed = {sha256 for _, sha256 in files.values()}
        if needed - self._contents().keys():
            raise _other_writer()
        try:
            self._tag = self._store.replace(MANIFEST, RunManifest(step, files, links).to_json(), self._tag)
        except ChangedError as error:
            raise _other_writer() from error
        with contextlib.suppress(DataError):  # they are deleted with the next ones
            self._objects.delete(sorted(there.keys() - needed))

    def _contents(self) -> dict[str, int]:
        """The sizes of the objects in the store, by name."""
        return {each.name: each.size for each in self._objects.contents()}


def _other_writer() -> DataError:
    return DataError(
        "another process has written to this run meanwhile; end one of the two, or give one another --name; what is "
        "there is whole"
    )
