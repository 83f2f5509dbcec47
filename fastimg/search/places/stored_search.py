"""The folder of a search in an object store: it is in the cache of this machine, and uploaded behind the search.

<URL>/manifest.json, objects/     the folder, as of a run (train/checkpoints/manifests)
<URL>/best/                       its best run, as `train` uploads one, at the end
"""

import contextlib
import os
import shutil
import sqlite3
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from fastimg.errors import UsageError, UserError
from fastimg.loaders.containers.atomic import replace_file
from fastimg.train.checkpoints.run_uploads import FolderUploads, RunUploads, collect_run
from fastimg.train.checkpoints.stored_runs import fetch_exactly, manifest_of, staged_runs

from .folder import BOARD, FREED, LOCK, RUNS, STUDY

PERIOD = 60.0  # seconds between two uploads, at least
_BEST = "best"
_FETCHING = ".fetching"  # is there until all has been fetched
_SEEN = ".uploaded"  # the tag of the manifest that this machine has written, or fetched
Say = Callable[[str], object]


class SearchStore(NamedTuple):
    """Where the folder of a search goes, the cache of this machine, and the options of the store."""

    url: str
    cache_dir: Path | None
    options: Mapping[str, str]


def folder_here(store: SearchStore) -> Path:
    """Where the folder of a search at a URL is on this machine. Raises UsageError for a URL that names none."""
    output, _, name = store.url.rpartition("/")
    if output.endswith(("/", ":")):
        raise UsageError(f"--output {store.url}: names no folder; give a URL that ends in one, as in {store.url}/NAME")
    return staged_runs(output, store.cache_dir) / name


@contextmanager
def stored_search(store: SearchStore, folder: Path, say: Say) -> Iterator[None]:
    """In the block `folder` is the one in the store, to which it is uploaded every minute, and at the end.

    Raises UserError if the end could not be uploaded, and DataError.
    """
    uploads = SearchUploads(store, folder, say)
    try:
        uploads.bring()
        uploads.begin()
    except BaseException:
        uploads.close()
        raise
    try:
        yield
    except UsageError:  # refused
        uploads.stop()
        raise
    except BaseException:
        try:
            uploads.end()
        except UserError as error:  # beside what ends the search
            say(str(error))
        raise
    uploads.end()
    best = folder / _BEST
    if best.exists():
        _BestUploads(f"{store.url}/{_BEST}", best.resolve(), store.options, say).finish(say)


class _BestUploads(RunUploads):
    """The upload of the best run."""

    again = "the same command uploads it"


class SearchUploads(FolderUploads):
    """The uploads of a search's folder, by a thread."""

    kind = "search"
    moment = f"in {PERIOD:.0f} seconds"
    again = "the same command uploads it"
    other = "--output"

    def __init__(self, store: SearchStore, folder: Path, warn: Say) -> None:
        super().__init__(store.url, folder, store.options, warn)
        self._place = store

    def bring(self) -> None:
        """Have the folder as it is in the store, unless it is this machine that has uploaded it. Raises DataError."""
        manifest = manifest_of(self.url, self._place.options, "search")
        seen = self.directory / _SEEN
        if manifest is None or (seen.exists() and seen.read_text(encoding="utf-8") == self.tag):
            return
        self._set_aside()
        self._warn(f"fetching    the search at {self.url} into {self.directory}")
        (self.directory / _FETCHING).touch()
        fetch_exactly(self.url, self._place.options, self._place.cache_dir, manifest)
        self.uploaded()
        (self.directory / _FETCHING).unlink()

    def _set_aside(self) -> None:
        """Empty the folder. What was not uploaded is not deleted: another machine has gone on with an earlier state."""
        parent = self.directory.parent
        aside = Path(tempfile.mkdtemp(prefix=f"{self.directory.name}-before-", dir=parent))
        for path in self.directory.iterdir():
            if path.name != LOCK:
                path.rename(aside / path.name)
        if (aside / RUNS).exists() and not (aside / _FETCHING).exists():
            self._warn(f"the search went on elsewhere: what was in {self.directory} is in {aside} now")
        else:  # nothing, or what an interrupted fetch has left
            shutil.rmtree(aside)

    def begin(self) -> None:
        """Upload from now on."""
        self._over = threading.Event()
        self._timer = threading.Thread(target=self._repeat, name="fastimg-search-upload", daemon=True)
        self._timer.start()

    def end(self) -> None:
        """Upload what is there, and stop. Raises UserError if it could not be uploaded."""
        if (self.directory / RUNS).exists() or (self.directory / BOARD).exists():
            self._over.set()
            self._timer.join()
            self.finish(self._warn)
        else:  # nothing was tried
            self.stop()

    def stop(self) -> None:
        """Upload nothing more than what waits."""
        self._over.set()
        self._timer.join()
        self.close()

    def collect(self, folder: Path) -> None:
        """As a kill would leave it: the study is older than the runs, and what says which were deleted is newer."""
        for file in self.directory.iterdir():
            if file.is_file() and not file.name.startswith((".", f"{STUDY}-")) and file.name not in (LOCK, FREED):
                _copy(file, folder / file.name)
        best = self.directory / _BEST
        with contextlib.suppress(FileNotFoundError):
            (folder / _BEST).symlink_to(os.readlink(best))
        for run in self.directory.glob(f"{RUNS}/*"):
            (folder / RUNS / run.name).mkdir(parents=True)
            with contextlib.suppress(FileNotFoundError):  # a trial has written another checkpoint meanwhile
                collect_run(run, folder / RUNS / run.name)
        with contextlib.suppress(FileNotFoundError):
            shutil.copyfile(self.directory / FREED, folder / FREED)

    def step(self, links: Mapping[str, str]) -> int:
        """The number of its runs."""
        return len(list(self.directory.glob(f"{RUNS}/*")))

    def uploaded(self) -> None:
        """Remember that this machine has what is in the store."""
        replace_file(self.directory / _SEEN, (self.tag or "").encode())

    def _repeat(self) -> None:
        before: object = None
        while not self._over.wait(PERIOD):
            if (self.directory / RUNS).exists() and (now := self._state()) != before:
                before = now
                self.note()

    def _state(self) -> list[tuple[str, int]]:
        """What differs when there is something to upload."""
        found = []
        for pattern in ("*", f"{RUNS}/*", f"{RUNS}/*/*"):
            for path in sorted(self.directory.glob(pattern)):
                with contextlib.suppress(OSError):
                    found.append((str(path), path.lstat().st_mtime_ns))
        return found


def _copy(file: Path, target: Path) -> None:
    """A copy of a file, of a study as it is between two of its writes."""
    if file.name != STUDY:
        with contextlib.suppress(FileNotFoundError):  # replaced meanwhile, as a part of it was
            shutil.copyfile(file, target)
        return
    try:
        with (
            contextlib.closing(sqlite3.connect(f"{file.resolve().as_uri()}?mode=ro", uri=True)) as source,
            contextlib.closing(sqlite3.connect(target)) as copy,
        ):
            source.backup(copy)
    except sqlite3.Error as error:
        raise OSError(f"{file}: {error}") from error
