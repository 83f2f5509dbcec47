"""Results of a command that are given as a URL: written into a folder here, and uploaded once they are whole."""

import shutil
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from fastimg.data.elsewhere import Caching
from fastimg.errors import UsageError, UserError
from fastimg.loaders.errors import DataError, not_written
from fastimg.loaders.remote.stores import url_of
from fastimg.loaders.remote.writable import WritableFolder
from fastimg.loaders.runtime.cache import cache_folder


@dataclass(frozen=True)
class ResultPlace:
    """Where a command writes its results: `path`, as its flag says, or in place of a URL a path here; None for None."""

    path: Path | None
    url: str | None = None  # of the folder in the store to which the files beside `path`, or in it, go

    def address(self, file: Path) -> str:
        """What users call a file that was written there."""
        return str(file) if self.url is None else f"{self.url}/{file.name}"


def renewed_words(files: Iterable[Path]) -> str:
    """What to tell of results that are there before they are written anew; empty where none of them are."""
    there = [file for file in files if file.exists()]
    return f"renewed     {', '.join(file.name for file in there)} in {there[0].parent}" if there else ""


@contextmanager
def result_place(
    flag: str, given: Path | None, config: Caching, first: str | None = None, overwrite: bool = True
) -> Iterator[ResultPlace]:
    """The place of results in the block. At its end, unless it raises, what is there is uploaded, `given` last.

    first: one of the files in the folder that `given` is; None where it is a file. A store that refuses says so before
    the block. Raises UsageError for a URL without a name, and unless `overwrite` for one that has something already,
    UserError where the upload fails, and DataError.
    """
    url = None if given is None else url_of(given)
    if url is None:
        yield ResultPlace(given)
        return
    folder, name = (url, first) if first is not None else (url.rpartition("/")[0], url.rpartition("/")[2])
    if folder.endswith(("/", ":")):
        raise UsageError(f"{flag} {url}: names no file; give a URL that ends in one, as in {url}/NAME")
    store = WritableFolder(folder, dict(option.split("=", 1) for option in config.storage_option))
    if store.tag(name) is not None and not overwrite:
        what = "exists already" if first is None else f"{first} exists already there"
        kind = "file" if first is None else "folder"
        raise UsageError(f"{flag} {url}: {what}; add --overwrite, or give another {kind}")
    here = new_staging(config.cache_dir or cache_folder())
    try:
        yield ResultPlace(here if first is not None else here / name, folder)
    except BaseException as error:
        shutil.rmtree(here, ignore_errors=True)
        if isinstance(error, UserError | DataError):
            error.args = (str(error).replace(str(here), folder), *error.args[1:])
        raise
    try:
        for file in sorted(here.iterdir(), key=lambda file: (file.name == name, file.name)):
            store.send(file.name, file)
    except DataError as error:
        raise UserError(f"{error}; {flag} was written to {here}: copy it from there, or run the same again") from error
    shutil.rmtree(here, ignore_errors=True)


def new_staging(root: Path, kind: str = "results") -> Path:
    """A new, empty folder for files on their way to a store. Raises UserError where it cannot be made."""
    staging = root.absolute() / "staging"
    try:
        staging.mkdir(parents=True, exist_ok=True)
        return Path(tempfile.mkdtemp(prefix=f"{kind}-", dir=staging))
    except OSError as error:
        raise UserError(f"{staging}: {not_written(error, 'give another folder with --cache-dir')}") from error
