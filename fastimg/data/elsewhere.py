"""DATA that is not on this machine, but in an object store: the one place where commands open it."""

import hashlib
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol, TypeVar

from fastimg.loaders.containers.datasets import Dataset
from fastimg.loaders.remote.fetched_files import fetched_files
from fastimg.loaders.remote.mirrors import mirror_at, open_mirror
from fastimg.loaders.remote.stores import shown, url_of
from fastimg.system.rank_failures import first_rank


class Caching(Protocol):
    """A command's settings for data in an object store."""

    @property
    def cache_dir(self) -> Path | None: ...
    @property
    def cache_limit(self) -> str | None: ...
    @property
    def storage_option(self) -> tuple[str, ...]: ...


_Settings = TypeVar("_Settings", bound=Caching)


def local_folder(data: Path, config: Caching, tell: Callable[[str], None] | None = None) -> Path:
    """The folder that DATA is read from: of a URL the one that mirrors it, in which shards are while they are needed.

    `tell` gets a sentence before all shards are fetched to know what is in them, and more meanwhile. Raises DataError.
    """
    url = url_of(data)
    if url is None:
        return data
    options = dict(option.split("=", 1) for option in config.storage_option)
    mirror = open_mirror(url, config.cache_dir, config.cache_limit, options)
    if tell is not None and first_rank():
        mirror.tell = tell
    return mirror.folder


def with_local_data(config: _Settings, tell: Callable[[str], None] | None = None) -> _Settings:
    """The settings of a command, with the folder of `local_folder` as their DATA. Raises DataError."""
    settings: Any = config
    if url_of(settings.data) is None:
        return config
    changed: _Settings = replace(settings, data=local_folder(settings.data, config, tell))
    return changed


def setting_of(data: Path) -> str:
    """DATA as a setting that another process opens: the URL, of a folder that mirrors one, or the absolute path."""
    mirror = mirror_at(data)
    return str(data.resolve()) if mirror is None else mirror.url


def sources(datasets: Iterable[Dataset]) -> list[str]:
    """Where datasets in an object store come from, and by which way, in words; nothing of those on this machine."""
    found = (fetched_files(dataset) for dataset in datasets)
    return list(dict.fromkeys(files.about() for files in found if files is not None))


def description_of(data: Path) -> str:
    """What differs where another dataset.json, or other tars at a URL, were opened; empty for any other data."""
    mirror = mirror_at(data)
    if mirror is not None:
        return mirror.folder.name
    description = data / "dataset.json"
    return hashlib.sha256(description.read_bytes()).hexdigest() if description.is_file() else ""


def as_given(data: Path) -> str:
    """DATA as it was given: the URL, of a folder that mirrors one."""
    mirror = mirror_at(data)
    return shown(data) if mirror is None else mirror.url
