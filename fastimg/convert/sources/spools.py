"""What is read once from front to back, in an unnamed temporary file: images, the other columns and fields.

A record of the file is the image, the length of its head (uint32), the head, and the fields. The head is a JSON object
with `extra`, the other columns, and `fields`, the size of each field.
"""

import contextlib
import json
import os
import struct
import tempfile
import zlib
from array import array
from collections.abc import Mapping, Set
from pathlib import Path

import numpy as np
import numpy.typing as npt

from fastimg.convert.stored.spools import StoredSpool
from fastimg.loaders.errors import DataError
from fastimg.loaders.folders.formats import image_extensions

from .samples import Original, Row, SourceEntry, note

_PENDING_BYTES = 1 << 20  # written at once
_COPIED_BYTES = 64 << 20  # copied at once
_HEAD = struct.Struct("<I")


class Spool:
    """An unnamed temporary file. Records are appended in order and read in any order.

    Pickled, it is the file that `share` has named, which other machines open.
    """

    def __init__(self, folder: Path) -> None:
        """If `folder` does not exist, the nearest existing parent holds the file."""
        self._file = _nameless(next(path for path in (folder.absolute(), *folder.absolute().parents) if path.is_dir()))
        self._pending = bytearray()
        self._starts = array("q")
        self._end = 0
        self._shared: Path | None = None

    def __getstate__(self) -> Path:
        assert self._shared is not None, "share it first"
        return self._shared

    def __setstate__(self, shared: Path) -> None:
        self._file = os.open(shared, os.O_RDONLY | os.O_CLOEXEC)
        self._shared = shared
        self._pending = bytearray()
        self._starts = array("q")
        self._end = os.fstat(self._file).st_size

    def add(self, image: bytes, extra: Row, fields: Mapping[str, bytes]) -> tuple[int, int]:
        """Append a record. Returns its offset and its CRC-32."""
        place = self._end
        self._starts.append(place)
        crc = 0
        head = json.dumps({"extra": extra, "fields": {name: len(data) for name, data in fields.items()}}).encode()
        for part in (image, _HEAD.pack(len(head)), head, *fields.values()):
            self._pending += part
            self._end += len(part)
            crc = zlib.crc32(part, crc)
            if len(self._pending) >= _PENDING_BYTES:
                self.flush()
        return place, crc

    def flush(self) -> None:
        """Write pending records. Call this before reading."""
        with memoryview(self._pending) as left:
            done = 0
            while done < len(left):
                done += os.write(self._file, left[done:])
        self._pending = bytearray()

    def extents(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Where the records begin [N], and their sizes [N], in the order in which this process has added them."""
        starts = np.array(self._starts, np.int64)
        return starts, np.diff(starts, append=self._end)

    def share(self, path: Path) -> bool:
        """Give the file this name, so that other machines can open it. Returns whether it had to be copied.

        Raises OSError if it has to be, and the disk is full.
        """
        self._shared = path
        path.unlink(missing_ok=True)  # of a conversion that was killed
        os.fsync(self._file)  # else other machines may not see all of it
        if _linked(self._file, path):
            return False
        with open(path, "xb") as copy:
            done = 0
            while sent := os.sendfile(copy.fileno(), self._file, done, _COPIED_BYTES):
                done += sent
            os.fsync(copy.fileno())
        return True

    def read(self, place: int, size: int) -> bytes:
        """Read `size` bytes at `place`. Thread-safe."""
        data = os.pread(self._file, size, place)
        while 0 < len(data) < size and (more := os.pread(self._file, size - len(data), place + len(data))):
            data += more
        if len(data) != size:
            raise DataError("the temporary file of the source was truncated while it was being read; run this again")
        return data

    def close(self) -> None:
        """Close the file, which frees its space. May be called repeatedly."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


def _nameless(folder: Path) -> int:
    with contextlib.suppress(OSError, AttributeError):  # O_TMPFILE is missing on some file systems and platforms
        return os.open(folder, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
    file, name = tempfile.mkstemp(prefix=".fastimg-", dir=folder)
    os.unlink(name)
    return file


def _linked(file: int, path: Path) -> bool:
    """Whether an unnamed file could be given a name: one that was named and deleted cannot, nor on another disk."""
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.link(f"/proc/self/fd/{file}", path.name, dst_dir_fd=folder, follow_symlinks=True)
    except OSError:
        return False
    finally:
        os.close(folder)
    return True


class SpoolReader:
    """Reads the spooled samples of one file or named dataset. `where` is its name in messages.

    The `extra` of an entry holds the checksum of its record, so that the fingerprint of the listing depends on the
    content. The other columns themselves are in the record.
    """

    def __init__(self, spool: Spool, where: str) -> None:
        self.fields: set[str] = set()  # of any sample
        self.spool: Spool | StoredSpool = spool
        self.where = where
        self._extensions = image_extensions()

    def add(
        self, entry: SourceEntry, image: bytes, extra: Row, fields: Mapping[str, bytes], fault: str = ""
    ) -> SourceEntry:
        """Store the record of `entry` and return it with its size and place.

        An empty image is not stored, and neither is a sample with a `fault`, which is its problem.
        """
        if fault:
            return entry._replace(size=-1, extra={"fault": fault})
        if not image:
            return entry._replace(size=-1)
        self.fields.update(fields)
        assert isinstance(self.spool, Spool)
        place, crc = self.spool.add(image, extra, fields)
        return entry._replace(size=len(image), place=place, extra={"crc32": crc})

    def read(self, entry: SourceEntry) -> Original:
        """See SourceReader."""
        image = self.spool.read(entry.place, entry.size)
        offset = entry.place + entry.size
        (length,) = _HEAD.unpack(self.spool.read(offset, _HEAD.size))
        offset += _HEAD.size
        head = json.loads(self.spool.read(offset, length))
        offset += length
        fields = {}
        for name, size in head["fields"].items():
            fields[name] = self.spool.read(offset, size)
            offset += size
        return Original(image, _suffix(entry.path, self._extensions), note(entry.path, head["extra"]), fields)

    def name(self, entry: SourceEntry) -> str:
        """The file, the row if there are rows, and the key."""
        return f"{self.where}: row {entry.row}: {entry.path}" if entry.row else f"{self.where}: {entry.path}"

    def problem(self, entry: SourceEntry) -> str | None:
        """See SourceReader."""
        return None if entry.size >= 0 else (entry.extra or {}).get("fault", "the image is empty")

    def parts(self, entry: SourceEntry) -> tuple[()]:
        """See SourceReader: the listing has a checksum."""
        return ()

    def close(self) -> None:
        """See SourceReader."""
        self.spool.close()


def _suffix(path: str, extensions: Set[str]) -> str:
    """The extension of a path without its dot if it is an image extension, else empty."""
    suffix = os.path.splitext(path)[1].lower()
    return suffix[1:] if suffix in extensions else ""
