"""A finished shard file goes to the destination: the one place where this is done."""

import contextlib
import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from fastimg.loaders.containers.atomic import replace_file
from fastimg.loaders.containers.content import Content
from fastimg.loaders.containers.derived.notes import notes_of_tars
from fastimg.loaders.containers.derived.records import own_records
from fastimg.loaders.containers.tars.grouping import Sample
from fastimg.loaders.containers.tars.shards import index_path, parse_index
from fastimg.loaders.errors import DataError
from fastimg.loaders.remote.stores import StoredObject
from fastimg.loaders.remote.writable import WritableFolder
from fastimg.loaders.runtime.cache import cache_folder

from .photograph_facts import derive_photographs, keep_photographs


class NotDelivered(DataError):
    """The store does not take what was made; it stays, for another attempt."""


@contextlib.contextmanager
def delivering(remedy: str) -> Iterator[None]:
    """Turn what the store refuses into NotDelivered, whose sentence ends with `remedy`."""
    try:
        yield
    except DataError as error:
        raise NotDelivered(f"{error}; {remedy}") from error


class DeliveredFile(NamedTuple):
    """A file that is in the store, as the store described it when it was verified."""

    name: str
    size: int
    tag: str

    def is_(self, there: StoredObject | None) -> bool:
        """Whether what the store lists now is still that."""
        return there is not None and (there.size, there.tag) == (self.size, self.tag)


def deliver(file: Path, store: WritableFolder) -> DeliveredFile:
    """Upload a finished file under its name, and verify what arrived. Raises DataError."""
    found = store.send(file.name, file)
    return DeliveredFile(file.name, found.size, found.tag)


def staging_of(url: str, cache_dir: Path | None) -> Path:
    """The folder of this machine in which a conversion to `url` makes its files."""
    key = hashlib.sha256(url.encode()).hexdigest()[:16]
    name = re.sub(r"[^A-Za-z0-9_-]+", "-", url.rpartition("/")[2]).strip("-") or "data"
    return (cache_dir or cache_folder()).absolute() / "staging" / f"{name}-{key}"


class ShardFacts:
    """What the derived files of a split need of its tars, kept in `folder` while the tars are in the store alone."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def keep(self, tar: Path, index_sha256: str, content: Content, notes: bool) -> None:
        """Keep the records of a finished tar, its index, and, if they are needed, the notes of its samples."""
        self._folder.mkdir(parents=True, exist_ok=True)
        rows = own_records(0, tar, index_sha256, content)
        if notes:
            lines = (json.dumps(each) for each in notes_of_tars([tar]))
            replace_file(self._folder / f"{tar.name}.notes", "".join(f"{line}\n" for line in lines).encode())
        if content == "images":
            keep_photographs(self._folder, tar, rows)
        replace_file(self._folder / index_path(tar).name, index_path(tar).read_bytes())
        replace_file(self._folder / f"{tar.name}.records", rows.tobytes())

    def keep_records(self, names: list[str], records: npt.NDArray[np.void]) -> None:
        """Keep the records [N] of tars that are in the store, in the order of their names."""
        self._folder.mkdir(parents=True, exist_ok=True)
        for number, name in enumerate(names):
            replace_file(self._folder / f"{name}.records", records[records["shard"] == number].tobytes())

    def take(self, files: Mapping[str, bytes]) -> None:
        """Keep what `keep` has written in another folder: the files by name, the last one as the last."""
        self._folder.mkdir(parents=True, exist_ok=True)
        for name in sorted(files, key=lambda name: name.endswith(".records")):
            replace_file(self._folder / name, files[name])

    def has(self, name: str) -> bool:
        """Whether the facts of a tar were kept."""
        return (self._folder / f"{name}.records").exists()

    def records(self, names: list[str], dtype: np.dtype[np.void]) -> npt.NDArray[np.void]:
        """The records [N] of the tars of a split, in order."""
        parts = []
        for number, name in enumerate(names):
            rows = np.fromfile(self._folder / f"{name}.records", dtype)
            rows["shard"] = number
            parts.append(rows)
        return np.concatenate(parts) if parts else np.zeros(0, dtype)

    def derive_photographs(
        self, folder: Path, split: str, names: list[str], records: npt.NDArray[np.void], fingerprint: str
    ) -> None:
        """Write what is derived of the large photographs of a split with these tars and records into `folder`."""
        derive_photographs(self._folder, folder, split, names, records, fingerprint)

    def samples(self, shards: list[dict[str, Any]]) -> Iterator[list[Sample]]:
        """The samples of each tar, by the indexes."""
        for shard in shards:
            yield parse_index(self._folder / index_path(Path(shard["name"])).name, shard["bytes"])

    def notes(self, names: list[str]) -> Iterator[tuple[str, dict[str, Any]]]:
        """The name and the note of each sample."""
        for name in names:
            with (self._folder / f"{name}.notes").open(encoding="utf-8") as lines:
                for line in lines:
                    sample, note = json.loads(line)
                    yield sample, note
