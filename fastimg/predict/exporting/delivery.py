"""An exported file for an object store: written into a folder here, then uploaded, behind what belongs to it."""

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from fastimg.errors import UsageError
from fastimg.loaders.remote.stores import DeniedError, NotThereError
from fastimg.loaders.remote.writable import WritableFolder
from fastimg.loaders.runtime.cache import cache_folder
from fastimg.predict.result_places import new_staging


class FileDelivery:
    """The file at `url`, and `file`, where it is made: in a folder that is deleted when the block ends.

    The folder is in `cache_dir`, else in the user's cache. Raises UsageError for a URL without the file's suffix,
    UserError for a file that is there already and for a cache that cannot be written, and DataError.
    """

    def __init__(
        self, url: str, suffix: str, overwrite: bool, cache_dir: Path | None, options: Mapping[str, str]
    ) -> None:
        folder, _, name = url.rpartition("/")
        if not name.endswith(suffix) or folder.endswith(("/", ":")):
            raise UsageError(f"--output {url}: give a URL that ends in a name with {suffix}, as in {url}/model{suffix}")
        self.url = url
        self._store = WritableFolder(folder, options)
        self.replaces = self._has(name)
        if self.replaces and not overwrite:
            raise UsageError(f"--output {url}: exists already; add --overwrite, or give another file")
        self.file = new_staging(cache_dir or cache_folder(), "export") / name

    def deliver(self, beside: Sequence[str]) -> list[str]:
        """Upload the files beside it, then the file. Returns the URLs of those beside it. Raises DataError."""
        for name in (*beside, self.file.name):
            self._store.send(name, self.file.with_name(name))
        return [self._store.address(name) for name in beside]

    def _has(self, name: str) -> bool:
        try:
            self._store.look(name)
        except DeniedError:
            raise
        except NotThereError:
            return False
        return True

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        shutil.rmtree(self.file.parent, ignore_errors=True)
