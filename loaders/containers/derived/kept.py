"""Derived files: a stamp of what each was derived from, a checksum, and what was derived.

They are made again if they are missing, stale or damaged, or if what they hold cannot be of their shards, and are kept
in the user's cache if the data is read-only. dataset.json states digests of those that a conversion has made.
"""

import contextlib
import fcntl
import hashlib
import json
import os
import struct
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Protocol, TypeVar

from fastimg.loaders.containers.atomic import give_usual_mode, replace_file, sync_folder
from fastimg.loaders.runtime.cache import cache_folder

_NEW = 60  # seconds

HEAD = struct.Struct("<8s32sQI")  # of a file: magic, stamp (sha256), samples, checksum of what follows


class StatedSchema(Protocol):
    """The schema of a column: a target or a field."""

    def to_json(self) -> dict[str, Any]:
        """As dataset.json states it."""


_Schema = TypeVar("_Schema", bound=StatedSchema)
_Column = TypeVar("_Column")


@dataclass(frozen=True, kw_only=True)
class DerivedPlace:
    """Where the files that are derived of a split are kept: in the folder of its shards, which may be read-only.

    digests: of what files hold, as dataset.json states them, by how a file begins; none if an older version wrote it.
    notes: sentences on files that were not used, for the owner of the data.
    """

    folder: Path
    split: str
    digests: Mapping[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def file(self, suffix: str, magic: bytes) -> "DerivedFile":
        """The file with this suffix."""
        return DerivedFile(self, suffix, magic)


class DerivedFile:
    """One derived file of a split: beside the shards, or in the user's cache if they are read-only."""

    def __init__(self, place: DerivedPlace, suffix: str, magic: bytes) -> None:
        name = f"{place.split}{suffix}"
        key = hashlib.sha256(os.fsencode(place.folder.resolve())).hexdigest()[:16]
        self.paths = place.folder / name, cache_folder() / key / name
        self._magic = magic
        self._digest = place.digests.get(magic.decode(), "")
        self._notes = place.notes

    def kept(self, stamp: bytes) -> Iterator[tuple[bytearray, int]]:
        """What was kept under this stamp, and of how many samples; first what is beside the shards."""
        for path in self.paths:
            try:
                with path.open("rb") as file:
                    magic, found, count, checksum = HEAD.unpack(file.read(HEAD.size))
                    if magic != self._magic or found != stamp:
                        continue
                    content = bytearray(file.read())
            except (OSError, struct.error):
                continue
            if self._is_whole(path, content, checksum):
                yield content, count

    def _is_whole(self, path: Path, content: bytes | bytearray, checksum: int) -> bool:
        """Whether this is what was derived: by the digest that dataset.json states, otherwise by the checksum."""
        if not self._digest:
            return zlib.crc32(content) == checksum
        if hashlib.sha256(content).hexdigest() == self._digest:
            return True
        if zlib.crc32(content) == checksum:
            self._notes.append(
                f"{path}: holds something else than dataset.json states: it was not used, and is made again"
            )
        return False

    def keep(self, stamp: bytes, count: int, body: bytes) -> None:
        """Write what was derived; if data and home are read-only, it is derived again next time."""
        for path in self.paths:
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                replace_file(path, HEAD.pack(self._magic, stamp, count, zlib.crc32(body)) + body)
                return
            except OSError:
                continue

    def kept_open(self, stamp: bytes, size: int) -> tuple[Path, int, bytes] | None:
        """The path, a descriptor and the first `size` bytes of what `keep_large` kept under this stamp, or None."""
        path = self.paths[0]
        try:
            file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return None
        try:
            magic, found, _, checksum = HEAD.unpack(os.pread(file, HEAD.size, 0))
            content = os.pread(file, size, HEAD.size)
            fits = magic == self._magic and found == stamp and len(content) == size
            if fits and self._is_whole(path, content, checksum):
                return path, file, content
        except (OSError, struct.error):
            pass
        os.close(file)
        return None

    def keep_large(self, stamp: bytes, count: int, size: int, write: Callable[[IO[bytes]], bytes]) -> None:
        """Keep beside the shards what is too large for memory; only its first `size` bytes have a checksum.

        `write` writes what follows these, and returns them. Raises OSError if it cannot be kept.
        """
        path = self.paths[0]
        _remove_leftovers(path)
        with tempfile.NamedTemporaryFile(
            dir=path.parent, prefix=f".{path.name}.", suffix=".part", delete=False
        ) as file:
            try:
                with contextlib.suppress(OSError):  # where files cannot be locked, nobody removes any
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                file.write(bytes(HEAD.size + size))
                content = write(file)
                file.seek(0)
                file.write(HEAD.pack(self._magic, stamp, count, zlib.crc32(content)) + content)
                file.flush()
                os.fsync(file.fileno())
                give_usual_mode(Path(file.name))
                os.replace(file.name, path)
            except BaseException:
                os.unlink(file.name)
                raise
        sync_folder(path.parent)


def _remove_leftovers(path: Path) -> None:
    """Remove what processes that were killed left of `path`: they lock what they write as long as they live.

    One that has just begun may not have locked its file yet, so new ones stay.
    """
    for part in path.parent.glob(f".{path.name}.*.part"):
        with contextlib.suppress(OSError), part.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if time.time() - os.fstat(file.fileno()).st_mtime > _NEW:
                part.unlink()


def kept_columns(
    file: DerivedFile,
    schemas: Sequence[_Schema],
    count: int,
    fingerprint: str,
    derive: Callable[[], list[_Column]],
    pack: Callable[[_Column], bytes],
    unpack: Callable[[_Schema, memoryview, int], tuple[_Column, memoryview]],
) -> list[_Column]:
    """A column for each schema, of `count` samples: kept ones, or those of `derive`, which are kept from now on.

    `unpack` gives a column and the bytes after it, and raises ValueError for bytes that are not one of these samples.
    """
    stated = json.dumps([schema.to_json() for schema in schemas])
    stamp = hashlib.sha256(f"{fingerprint} {stated}".encode("utf-8", "surrogatepass")).digest()
    for content, found in file.kept(stamp):
        if found == count and (columns := _unpacked(content, schemas, count, unpack)) is not None:
            return columns
    columns = derive()
    file.keep(stamp, count, b"".join(map(pack, columns)))
    return columns


def _unpacked(
    content: bytearray,
    schemas: Sequence[_Schema],
    count: int,
    unpack: Callable[[_Schema, memoryview, int], tuple[_Column, memoryview]],
) -> list[_Column] | None:
    """The columns; None if the content is not theirs."""
    columns = []
    rest = memoryview(content)
    try:
        for schema in schemas:
            column, rest = unpack(schema, rest, count)
            columns.append(column)
    except ValueError:
        return None
    return columns if not len(rest) else None
