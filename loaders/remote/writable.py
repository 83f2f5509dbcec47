"""A folder in an object store that is written to: each file appears whole, and is verified once it is there.

A part of an upload that fails in any way that may pass is sent again, up to RETRIES times, before the whole is tried
again as any request is (see stores). Files of more than PART bytes are sent in parts, STREAMS of them at a time.
"""

import hashlib
import os
import re
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from fastimg.loaders.errors import DataError

from .stores import DeniedError, NotThereError, RemoteFolder, StoredObject
from .urls import parsed

if TYPE_CHECKING:
    from obstore import PutMode

RETRIES = 4
PART = 8 << 20  # bytes
STREAMS = 4  # parts of one file at once
_MOST_PARTS = 9_000  # S3 takes 10,000
_TIMES = 2  # a file that arrived as another one is sent again once
_CHECKSUM = re.compile(r'"?([0-9a-f]{32}(?:-\d+)?)"?')  # an ETag that may be an MD5, or that of the parts' MD5s


class ChangedError(DataError):
    """Somebody else has written the file."""


class WritableFolder(RemoteFolder):
    """The files directly below a URL, to be written. Any thread may write.

    Raises DataError as RemoteFolder does, and for http and https, which are only read. The folder of a file URL is
    made.
    """

    retries = RETRIES

    def __init__(self, url: str, options: Mapping[str, str] | None = None) -> None:
        place = parsed(url)
        if place.scheme in ("http", "https"):
            raise DataError(f"{place}: a web server is only read; give a URL of s3://, gs://, az:// or file://")
        if place.scheme == "file":
            try:
                os.makedirs(place.path, exist_ok=True)
            except OSError as error:
                raise DataError(f"{url}: {error.strerror}; check the URL") from error
        super().__init__(url, options)

    def send(self, name: str, file: Path) -> StoredObject:
        """Upload a file, and verify its size and its content.

        Where the store's ETag is not the checksum of the file, as of Azure's or with keys of one's own, the file is
        read back. Raises DataError, and NotThereError if there is no such bucket.
        """
        size = file.stat().st_size
        part = max(PART, -(-size // _MOST_PARTS))
        for _ in range(_TIMES):
            self._tried(name, lambda: self._store.put(name, file, chunk_size=part, max_concurrency=STREAMS))
            found = self.look(name)
            if found.size == size and self._holds(found, file, part):
                return found
        raise DataError(
            f"{self.address(name)}: uploaded {_TIMES} times, and what is there differs from {file} ({found.size} bytes "
            f"of {size}); check the store and the network"
        )

    def put(self, name: str, content: bytes) -> None:
        """Write a small file, which is read back. Raises DataError."""
        for _ in range(_TIMES):
            self._tried(name, lambda: self._store.put(name, content, use_multipart=False))
            if self.read_once(name) == content:
                return
        raise DataError(f"{self.address(name)}: written {_TIMES} times, and what is read differs; check the store")

    def tag(self, name: str) -> str | None:
        """What tells the content of a file from others; None if there is none. Raises DataError."""
        try:
            return self.look(name).tag
        except DeniedError:
            raise
        except NotThereError:
            return None

    def replace(self, name: str, content: bytes, before: str | None) -> str | None:
        """Write a small file in place of that with the tag `before`, None: of none; return its tag, as `tag` does.

        Where the store does not know conditional writes, as a file URL, two writers at the same moment are not kept
        apart. Raises ChangedError if it has another tag by now, and DataError.
        """
        for _ in range(_TIMES):
            if self.tag(name) != before:
                break
            written = self._tried(name, partial(self._put_if, name, content, before))
            now = self.tag(name)
            if now is not None and self.read(name) == content:  # also where the answer to an attempt was lost
                return now
            if written is None or now != written:
                break
            before = now  # it was damaged on the way
        raise ChangedError(f"{self.address(name)}: was written by somebody else meanwhile")

    def _put_if(self, name: str, content: bytes, before: str | None) -> str | None:
        """The tag of what was written; None where it was not."""
        from obstore import exceptions

        mode: PutMode | None = "create"
        if before is not None:
            mode = {"e_tag": before}
            if self.url.startswith("gs:"):  # whose condition is the generation of an object, not its ETag
                found = self._store.head(name)
                if found["e_tag"] != before:
                    return None
                mode = None if found["version"] is None else {"e_tag": before, "version": found["version"]}
        try:
            return self._store.put(name, content, use_multipart=False, mode=mode)["e_tag"]
        except (exceptions.AlreadyExistsError, exceptions.PreconditionError):
            return None
        except (exceptions.NotSupportedError, NotImplementedError, exceptions.GenericError) as error:
            if isinstance(error, exceptions.GenericError) and "501 Not Implemented" not in str(error):
                raise
            return self._store.put(name, content, use_multipart=False)["e_tag"]

    def delete(self, names: Iterable[str]) -> None:
        """Delete files; those that are not there are no error. Raises DataError, and DeniedError if it is refused."""
        wanted = list(names)
        groups = [[name] for name in wanted] if self.url.startswith("file:") else [wanted] * bool(wanted)
        for group in groups:
            try:
                self._tried(group[0], partial(self._store.delete, group))
            except DeniedError:
                raise
            except NotThereError:
                continue

    def _holds(self, found: StoredObject, file: Path, part: int) -> bool:
        stated = _CHECKSUM.fullmatch(found.tag)
        with file.open("rb") as content:
            if stated is not None and _etag(content, found.size, part) == stated[1]:
                return True
            content.seek(0)
            return hashlib.file_digest(content, "sha256").hexdigest() == self._read_back(found)

    def _read_back(self, found: StoredObject) -> str:
        """The checksum of what is there: STREAMS ranges of it are on their way at once."""
        digest = hashlib.sha256()
        starts = range(0, found.size, PART)
        with ThreadPoolExecutor(STREAMS, "fastimg-read-back") as pool:
            try:
                for first in range(0, len(starts), STREAMS):
                    for part in pool.map(partial(self._part, found), starts[first : first + STREAMS]):
                        digest.update(part)
            except BaseException:
                pool.shutdown(cancel_futures=True)
                raise
        return digest.hexdigest()

    def _part(self, found: StoredObject, start: int) -> memoryview:
        return self.read_range(found.name, start, min(start + PART, found.size), found.tag if found.strong else "")


def _etag(content: BinaryIO, size: int, part: int) -> str:
    """What S3 makes of a file that was sent whole, or in parts of `part` bytes."""
    if size <= part:
        return hashlib.md5(content.read(), usedforsecurity=False).hexdigest()
    sums = [
        hashlib.md5(content.read(part), usedforsecurity=False).digest()  # a part is in memory at a time
        for _ in range(0, size, part)
    ]
    return f"{hashlib.md5(b''.join(sums), usedforsecurity=False).hexdigest()}-{len(sums)}"
