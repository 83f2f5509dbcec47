"""DATA that is not on this machine, but in an object store."""

from pathlib import Path
from typing import Protocol

from fastimg.loaders.remote.mirrors import open_mirror
from fastimg.loaders.remote.stores import url_of


class Caching(Protocol):
    """A command's settings for data in an object store."""

    @property
    def cache_dir(self) -> Path | None: ...
    @property
    def cache_limit(self) -> str | None: ...
    @property
    def storage_option(self) -> tuple[str, ...]: ...


def local_folder(data: Path, config: Caching) -> Path:
    """The folder that DATA is read from: of a URL the one that mirrors it, in which shards are while they are needed.

    Raises DataError.
    """
    url = url_of(data)
    if url is None:
        return data
    options = dict(option.split("=", 1) for option in config.storage_option)
    return open_mirror(url, config.cache_dir, config.cache_limit, options).folder
