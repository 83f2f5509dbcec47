"""Uploads a folder, as that of a run, behind the work that goes on in it, as it is at some moments.

What is uploaded is linked, or copied, into a hidden folder of the folder, so that nothing waits for the network, and
nothing is deleted meanwhile. Of several states that wait, the newest is uploaded. Files go under their checksums; then
the manifest names them, and those that it no longer names are deleted.
"""

import contextlib
import hashlib
import os
import shutil
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from pathlib import Path

from fastimg.errors import UserError
from fastimg.loaders.errors import DataError
from fastimg.loaders.remote.writable import ChangedError, WritableFolder

from .manifests import MANIFEST, OBJECTS, Kind, Manifest

_FOLDER = ".uploading"
_LINKS = ("last", "best")
Say = Callable[[str], object]


class FolderUploads(ABC):
    """The uploads of `directory` to a URL. `note` and `finish` are called by one thread at a time.

    A subclass says what is uploaded, and how it is called. Raises DataError for a URL that cannot be written to.
    """

    kind: Kind
    moment: str  # at which it is tried again
    again: str  # what uploads it after all
    other: str  # the flag by which two that write to the same are told apart

    def __init__(self, url: str, directory: Path, options: Mapping[str, str], warn: Say) -> None:
        self.url = url
        self.directory = directory
        self._warn = warn
        self._store = WritableFolder(url, options)
        self._objects = WritableFolder(f"{url}/{OBJECTS}", options)
        self._contents()  # raises where there is no bucket
        self.tag = self._store.tag(MANIFEST)  # of the manifest that this process has found, or written
        self._sums: dict[tuple[int, int, int], str] = {}  # SHA-256s of files that do not change
        shutil.rmtree(directory / _FOLDER, ignore_errors=True)
        self._turn = threading.Condition()
        self._pending: Path | None = None  # a folder of links that waits
        self._number = 0
        self._closing = False
        self._error: Exception | None = None  # of the last upload
        self._unlinked: OSError | None = None  # why the last state does not wait to be uploaded
        self._thread = threading.Thread(target=self._work, name="fastimg-run-upload", daemon=True)
        self._thread.start()

    @abstractmethod
    def collect(self, folder: Path) -> None:
        """Link or copy into an empty folder what is to be uploaded. Raises OSError."""

    @abstractmethod
    def step(self, links: Mapping[str, str]) -> int:
        """What the manifest states as its step."""

    def uploaded(self) -> None:  # noqa: B027 - most have nothing to do then
        """The manifest with `tag` is in the store."""

    def note(self) -> None:
        """Upload what is there now, when the uploads under way are done. Does not wait for the network."""
        self._unlinked = None
        self._number += 1
        snapshot = self.directory / _FOLDER / str(self._number)
        try:
            snapshot.mkdir(parents=True)
            self.collect(snapshot)
        except OSError as error:  # a full disk, or a folder that was deleted
            self._unlinked = error
            shutil.rmtree(snapshot, ignore_errors=True)
            return
        with self._turn:
            if self._pending is not None:
                shutil.rmtree(self._pending, ignore_errors=True)
            self._pending = snapshot
            self._turn.notify()

    def finish(self, say: Say) -> None:
        """Upload what is there now, and wait. Raises UserError if it could not be uploaded."""
        self.note()
        say(f"uploading   {self.directory.name} to {self.url}")
        self.close()
        error = self._error or self._unlinked
        if error is not None:
            raise UserError(
                f"{self.url}: the end of the {self.kind} could not be uploaded: {error}; the {self.kind} is in "
                f"{self.directory}, and {self.again}"
            )
        say(f"uploaded    {self.url}")

    def close(self) -> None:
        """Upload what waits, and end the thread."""
        with self._turn:
            self._closing = True
            self._turn.notify()
        self._thread.join()
        shutil.rmtree(self.directory / _FOLDER, ignore_errors=True)

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
                    self._warn(f"{self.url}: not uploaded ({error}); it is tried again {self.moment}")
            finally:
                shutil.rmtree(snapshot, ignore_errors=True)

    def _upload(self, snapshot: Path) -> None:
        """Upload what is new, then the manifest. Raises DataError, also where another process has written one."""
        if self._store.tag(MANIFEST) != self.tag:
            raise self._other_writer()
        there = self._contents()
        files: dict[str, tuple[int, str]] = {}
        paths = sorted(snapshot.rglob("*"))
        links = {str(path.relative_to(snapshot)): os.readlink(path) for path in paths if path.is_symlink()}
        for file in paths:
            name = str(file.relative_to(snapshot))
            if not file.is_file() or any(name == link or name.startswith(f"{link}/") for link in links):
                continue
            size, sha256 = self._sum_of(file)
            files[name] = size, sha256
            if there.get(sha256) != size:
                self._objects.send(sha256, file)
                there[sha256] = size
        needed = {sha256 for _, sha256 in files.values()}
        if needed - self._contents().keys():
            raise self._other_writer()
        manifest = Manifest(self.step(links), files, links, self.kind)
        try:
            self.tag = self._store.replace(MANIFEST, manifest.to_json(), self.tag)
        except ChangedError as error:
            raise self._other_writer() from error
        self.uploaded()
        with contextlib.suppress(DataError):  # they are deleted with the next ones
            self._objects.delete(sorted(there.keys() - needed))

    def _sum_of(self, file: Path) -> tuple[int, str]:
        """The size and the SHA-256 of a file; of one that is linked from checkpoint to checkpoint, computed once."""
        status = file.stat()
        key = status.st_ino, status.st_size, status.st_mtime_ns
        sha256 = self._sums.get(key)
        if sha256 is None:
            with file.open("rb") as content:
                sha256 = hashlib.file_digest(content, "sha256").hexdigest()
            if status.st_nlink > 1:
                self._sums[key] = sha256
        return status.st_size, sha256

    def _contents(self) -> dict[str, int]:
        """The sizes of the objects in the store, by name."""
        return {each.name: each.size for each in self._objects.contents()}

    def _other_writer(self) -> DataError:
        return DataError(
            f"another process has written to this {self.kind} meanwhile; end one of the two, or give one another "
            f"{self.other}; what is there is whole"
        )


class RunUploads(FolderUploads):
    """The uploads of one run's directory, behind its training: what `last` and `best` point at, the log, the settings.

    `note` is called when a checkpoint is on disk.
    """

    kind = "run"
    moment = "with the next checkpoint"
    again = "the same command with --resume auto uploads it"
    other = "--name"

    def collect(self, folder: Path) -> None:
        """Links to the files of checkpoints, which never change, and copies of all others."""
        collect_run(self.directory, folder)

    def step(self, links: Mapping[str, str]) -> int:
        """That of the last checkpoint."""
        return int(links["last"].rpartition("/")[2].partition("-")[0]) if "last" in links else 0


def collect_run(run: Path, folder: Path) -> None:
    """Copy the files of a run into a folder, and link what `last` and `best` point at. Raises OSError."""
    for file in run.iterdir():
        if file.is_file() and not file.name.startswith("."):
            shutil.copyfile(file, folder / file.name)
    for link in _LINKS:
        if not (run / link).exists():
            continue
        target = os.readlink(run / link)
        (folder / link).symlink_to(target)
        for file in (run / target).rglob("*"):
            linked = folder / target / file.relative_to(run / target)
            if file.is_file() and not linked.exists():
                linked.parent.mkdir(parents=True, exist_ok=True)
                os.link(file, linked)
