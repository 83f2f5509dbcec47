"""Runs in an object store: what their manifest names, brought to this machine. Imports nothing that takes time.

See manifests for what is there.
"""

import contextlib
import fcntl
import hashlib
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from fastimg.errors import UsageError, UserError
from fastimg.loaders.containers.atomic import temporary
from fastimg.loaders.errors import DataError, not_written
from fastimg.loaders.remote.cache.wanted_files import WantedFile
from fastimg.loaders.remote.fetching import Fetching
from fastimg.loaders.remote.stores import NotThereError, RemoteFolder, shown, url_of
from fastimg.loaders.runtime.cache import cache_folder
from fastimg.loaders.runtime.file_locks import unlock
from fastimg.wording import plural

from .manifests import MANIFEST, OBJECTS, Kind, Manifest

_BLOCK = 8 << 20  # bytes of a request
_TIMES = 3  # a manifest that is replaced while its files are fetched is read again
_MEGABYTE = 1e6

Tell = Callable[[str], None]


def options_of(settings: Any) -> dict[str, str]:
    """The storage options of a command's settings, if it has any."""
    return dict(option.split("=", 1) for option in getattr(settings, "storage_option", None) or ())


def staged_runs(output: str, cache_dir: Path | None) -> Path:
    """The folder on this machine in which runs are written that go to the URL `output`."""
    return _root(cache_dir) / "runs" / _key(output)


def manifest_of(run: str, options: Mapping[str, str], kind: Kind = "run") -> Manifest | None:
    """The manifest of the run, or search, at a URL; None if there is none. Raises DataError and UserError."""
    if run.startswith("file:") and not Path(run.removeprefix("file://")).is_dir():
        return None
    try:
        return Manifest.of_json(RemoteFolder(run, options).read(MANIFEST), run, kind)
    except NotThereError as error:
        if "not found" in str(error):
            return None
        raise


def output_folder(output: Path, name: str | None, resume: str | None, settings: Any) -> Path:
    """Where the directory of a run is: of a URL the staging folder, which has the run where it is resumed.

    Raises UsageError if the name is taken, and DataError if the store cannot be read.
    """
    url = url_of(output)
    if url is None:
        return output
    run, options = f"{url}/{name}", options_of(settings)
    there = manifest_of(run, options)
    if there is not None and resume is None:
        raise UsageError(
            f"{run}: a run of that name already exists; use --resume auto to continue it, or choose another --name"
        )
    if there is not None:
        fetch_run(run, options, settings.cache_dir)
    return staged_runs(url, settings.cache_dir)


def resumed(given: Mapping[str, Any], tell: Tell | None = None) -> dict[str, Any]:
    """What `train` is given, with a URL to resume as its directory here, which is fetched, and as --output and --name.

    Raises UserError if there is no run, and DataError.
    """
    url = url_of(given.get("resume") or "")
    if url is None:
        return dict(given)
    options = dict(option.split("=", 1) for option in given.get("storage_option", ()))
    folder = fetch_run(url, options, given.get("cache_dir"), tell)
    output, _, name = url.rpartition("/")
    return {**given, "resume": str(folder), "output": Path(output), "name": name}


def fetch_run(run: str, options: Mapping[str, str], cache_dir: Path | None, tell: Tell | None = None) -> Path:
    """The directory of the run at a URL, in the folder of staged runs, to go on with it.

    Where the directory has a later checkpoint than the store, it stays as it is. `tell` gets a sentence before
    something is fetched. Raises UserError and DataError.
    """
    output, _, name = run.rpartition("/")
    folder = staged_runs(output, cache_dir) / name
    with _alone(folder):
        for manifest in _manifests(run, options):
            if step_here(folder) > manifest.step:
                return folder
            if _fetched(run, options, folder, manifest, list(manifest.files), tell):
                return folder
    raise _changing(run)


def fetch_exactly(run: str, options: Mapping[str, str], cache_dir: Path | None, manifest: Manifest | None) -> None:
    """Have the directory of the run at a URL in the folder of staged runs as a manifest says; without one, none.

    Raises UserError and DataError.
    """
    output, _, name = run.rpartition("/")
    folder = staged_runs(output, cache_dir) / name
    with _alone(folder):
        if manifest is None:
            shutil.rmtree(folder, ignore_errors=True)
            return
        if not _fetched(run, options, folder, manifest, list(manifest.files)):
            raise _changing(run)
        for link in {"last", "best"} - manifest.links.keys():
            (folder / link).unlink(missing_ok=True)


def fetch_model(run: Path, settings: Any, tell: Tell | None = None) -> Path:
    """A run's directory with its best model, else its last, for reading; a path on this machine is given back.

    `tell` gets a sentence before something is fetched. Raises UserError and DataError.
    """
    url = url_of(run)
    if url is None:
        return run
    options = options_of(settings)
    folder = _models(settings, url) / url.rpartition("/")[2]
    with _alone(folder):
        for manifest in _manifests(url, options):
            target = manifest.links.get("best") or manifest.links.get("last") or "-"
            of_model = [name for name in manifest.files if name.startswith(f"{target}/")]
            names = [name for name in of_model if name.count("/") == target.count("/") + 1 and _is_read(name)]
            if _fetched(url, options, folder, manifest, names, tell):
                return folder
    raise _changing(url)


def fetch_file(file: Path, settings: Any, tell: Tell | None = None) -> Path:
    """A file of weights at a URL, for reading. Another content in the store, by its size and tag, is another file here.

    `tell` gets a sentence before it is fetched. Raises UserError and DataError.
    """
    url = shown(file)
    folder, _, name = url.rpartition("/")
    remote = RemoteFolder(folder, options_of(settings))
    found = remote.look(name)
    path = _models(settings, f"{url} {found.size} {found.tag}") / name
    with _alone(path):
        if path.is_file() and path.stat().st_size == found.size:
            return path
        if tell is not None:
            tell(_fetching(url, 1, found.size, path.parent))
        part = temporary(path)
        try:
            with part.open("w+b") as opened:
                Fetching(remote).fetch(WantedFile(name, found.size, "", found.tag), opened.fileno())
                os.fsync(opened.fileno())
            part.replace(path)
        except OSError as error:
            raise UserError(f"{path}: {not_written(error, 'give another folder with --cache-dir')}") from error
        finally:
            part.unlink(missing_ok=True)
    return path


def _models(settings: Any, key: str) -> Path:
    return _root(getattr(settings, "cache_dir", None)) / "models" / _key(key)


def _is_read(name: str) -> bool:
    return not name.endswith("/training.pt")


def _changing(run: str) -> UserError:
    return UserError(f"{run}: files that its manifest names are gone each time that it is read; upload the run again")


def _manifests(run: str, options: Mapping[str, str]) -> Iterator[Manifest]:
    for _ in range(_TIMES):
        manifest = manifest_of(run, options)
        if manifest is None:
            raise UserError(
                f"{run}: no run there (it has no {MANIFEST}); give a run that fastimg has uploaded, or check the URL"
            )
        yield manifest


def _fetched(
    run: str,
    options: Mapping[str, str],
    folder: Path,
    manifest: Manifest,
    names: list[str],
    tell: Tell | None = None,
) -> bool:
    """Bring files of a run here, and point its links; False if an object is gone: there is another manifest by now."""
    objects = RemoteFolder(f"{run}/{OBJECTS}", options)
    missing = [name for name in names if not _is_here(folder / name, *manifest.files[name])]
    if missing and tell is not None:
        tell(_fetching(run, len(missing), sum(manifest.files[name][0] for name in missing), folder))
    for name in missing:
        size, sha256 = manifest.files[name]
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            _fetch(objects, sha256, size, path)
        except NotThereError as error:
            if "not found" in str(error):
                return False
            raise
    for link, target in manifest.links.items():
        path = folder / link
        if (path.parent / target).is_dir():
            part = path.with_name(f".{path.name}.part")
            part.unlink(missing_ok=True)
            part.symlink_to(target)
            part.replace(path)
    return True


def _fetching(url: str, files: int, size: int, folder: Path) -> str:
    return f"fetching    {plural(files, 'file')} of {url} ({size / _MEGABYTE:,.1f} MB) into {folder}"


def _is_here(path: Path, size: int, sha256: str) -> bool:
    return path.is_file() and path.stat().st_size == size and _sha256(path) == sha256


def _fetch(objects: RemoteFolder, sha256: str, size: int, path: Path) -> None:
    part = temporary(path)
    digest = hashlib.sha256()
    try:
        with part.open("wb") as file:
            for start in range(0, size, _BLOCK):
                block = objects.read_range(sha256, start, min(start + _BLOCK, size))
                digest.update(block)
                file.write(block)
        if digest.hexdigest() != sha256:
            raise DataError(
                f"{objects.address(sha256)}: its checksum is {digest.hexdigest()}, not its name: it was damaged on the "
                "way or in the store; try again, or upload the run again"
            )
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def step_here(run: Path) -> int:
    """The step of the last checkpoint of a run's directory; -1 without one."""
    try:
        return int(os.readlink(run / "last").rpartition("/")[2].partition("-")[0])
    except (OSError, ValueError):
        return -1


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """One process of the machine at a time brings a run here."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with (folder.parent / f".{folder.name}.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        try:
            yield
        finally:
            unlock(file.fileno())


def _root(cache_dir: Path | None) -> Path:
    return (cache_dir or cache_folder()).absolute()


def _key(url: str) -> str:
    return hashlib.sha256(url.encode()).hexdigest()[:16]
