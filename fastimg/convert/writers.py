"""Writes samples to the shards of a plan; each shard is added to the journal once it is on disk."""

import contextlib
import shutil
from collections import Counter
from collections.abc import Collection, Mapping
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

from fastimg.loaders.containers.atomic import temporary
from fastimg.loaders.containers.betons.files import BetonFile, BetonWriter
from fastimg.loaders.containers.tars.shards import ShardWriter
from fastimg.loaders.errors import ImageError

from .image_preparation import Prepared
from .journal import Journal
from .plan import Shard
from .survey import Schema


class Store(Protocol):
    """Writes shards one after the other. After an error, only what the journal knows is kept."""

    def begin(self, shard: Shard) -> None:
        """Start a shard."""

    def add(self, number: int, label: int, prepared: Prepared) -> None:
        """Add sample `number` of its split. Raises ImageError if the container cannot hold it."""

    def end(self) -> dict[str, Any]:
        """Finish the shard on disk. Returns the entries about files for its line in the journal."""

    def finish(self, split: str) -> None:
        """Finish a split after its last shard."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class _Empty(Exception):
    """A shard has no usable image."""


class TarStore:
    """One tar and one index for each shard."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._open = ExitStack()

    def begin(self, shard: Shard) -> None:
        """See Store."""
        self._writer = self._open.enter_context(ShardWriter(self._folder / f"{shard.name}.tar"))

    def add(self, number: int, label: int, prepared: Prepared) -> None:
        """See Store."""
        assert isinstance(prepared.image, bytes)
        members = {prepared.extension: prepared.image}
        if label >= 0:
            members["cls"] = str(label).encode()
        members["json"] = prepared.note
        taken = Counter(ext.lower() for ext in (*members, *prepared.fields))  # readers of tars ignore case
        if twice := [ext for ext, count in taken.items() if count > 1]:
            raise ImageError(f"it has two members .{', .'.join(twice)}")
        try:
            self._writer.add(f"{number:09d}", members | prepared.fields)
        except ValueError as error:
            raise ImageError(str(error)) from error

    def end(self) -> dict[str, Any]:
        """See Store."""
        writer = self._writer
        with contextlib.suppress(_Empty), self._open:
            if not writer.count:
                raise _Empty
        if not writer.count:
            return {}
        return {
            "name": writer.path.name,
            "bytes": writer.bytes,
            "sha256": writer.sha256,
            "xxh3": writer.xxh3,
            "identity": writer.identity,
            "index_bytes": writer.index_bytes,
            "index_sha256": writer.index_sha256,
        }

    def finish(self, split: str) -> None:
        """See Store."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open.__exit__(kind, error, trace)


class BetonStore:
    """One .beton per split, whose parts are the shards. Appending to a split writes a new file."""

    def __init__(
        self,
        folder: Path,
        schema: Schema,
        samples: Mapping[str, int],
        journal: Journal,
        bases: Mapping[str, Path],
        taken: Collection[str] = (),
    ) -> None:
        self._folder = folder
        self._schema = schema
        self._samples = samples  # of each split, if none is skipped
        self._journal = journal
        self._bases = bases
        self._taken = taken  # names that are in use elsewhere
        self._open = ExitStack()
        self._split = ""

    def begin(self, shard: Shard) -> None:
        """See Store."""
        if shard.split != self._split:
            if self._split:
                self.finish(self._split)
            self._begin(shard.split)

    def add(self, number: int, label: int, prepared: Prepared) -> None:
        """See Store."""
        try:
            self._writer.add(self._schema.sample(label, prepared))
        except ValueError as error:
            raise ImageError(str(error)) from error

    def end(self) -> dict[str, Any]:
        """See Store."""
        part = self._writer.part()
        return {"name": self._writer.path.name, "part": part, "bytes": part.file_end}

    def finish(self, split: str) -> None:
        """See Store."""
        if self._split != split:
            if self._path(split).exists():
                return
            self._begin(split)
        self._split = ""
        self._open.close()

    def _begin(self, split: str) -> None:
        path = self._path(split)
        parts = self._journal.parts(split)
        samples = self._samples[split]
        if split in self._bases:
            with BetonFile(self._bases[split]) as base:
                samples = len(base)
                if not parts:
                    shutil.copyfile(base.path, temporary(path))
                parts = [base.as_part(), *parts]
        self._split = split
        self._writer = self._open.enter_context(
            BetonWriter(path, self._schema.fields, samples, self._schema.page_size, parts, keeps=True)
        )

    def _path(self, split: str) -> Path:
        base = self._bases.get(split)
        number = 0 if base is None else int(base.stem[len(split) + 1 :] or "0") + 1
        while (name := f"{split}-{number:05d}.beton" if number else f"{split}.beton") in self._taken:
            number += 1
        return self._folder / name

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open.__exit__(kind, error, trace)
