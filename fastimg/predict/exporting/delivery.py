"""An exported file for an object store: written into a folder here, then uploaded, behind what belongs to it."""

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from fastimg.errors import UsageError, UserError
from fastimg.loaders.remote.stores import DeniedError, NotThereError
from fastimg.loaders.remote.writable import WritableFolder
from fastimg.loaders.runtime.cache import cache_folder


class FileDelivery:
    """The file at `url`, and `file`, where it is made: in a folder that is deleted when the block ends.

    Raises UsageError for a URL without the file's suffix, UserError for a file that is there already, and DataError.
    """

    def __init__(self, url: str, suffix: str, overwrite: bool, options: Mapping[str, str]) -> None:
        folder, _, name = url.rpartition("/")
        if not name.endswith(suffix) or folder.endswith(("/", ":")):
            raise UsageError(f"--output {url}: give a URL that ends in a name with {suffix}, as in {url}/model{suffix}")
        self.url = url
        self._store = WritableFolder(folder, options)
        if not overwrite and self._has(name):
            raise UserError(f"{url}: exists already; give another --output, or replace it with --overwrite")
        staging = cache_folder().absolute() / "staging"
        staging.mkdir(parents=True, exist_ok=True)
        self._folder = tempfile.TemporaryDirectory(prefix="export-", dir=staging)
        self.file = Path(self._folder.name) / name

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
        self._folder.cleanup()
