"""Reading and writing tar shards and their indexes in DALI's format.

A shard is a plain ustar archive whose members come in runs of one stem: `000000017.jpg`, `000000017.cls`,
`000000017.json`. Its index (DALI's readers.webdataset, v1.2) is text: `v1.2 <samples>`, then a line per sample with
`<ext> <offset> <size> <filename>` per member, joined by spaces; `offset` is where the member's data starts. v1.1 is the
same without `<filename>`. Tars of other writers are scanned; headers.py reads their headers.
"""

import hashlib
import os
import posixpath
import re
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from fastimg.loaders.containers.atomic import EarlySync, WholeFile, replace_file, sync_folder, temporary
from fastimg.loaders.containers.identities import identity_of_file
from fastimg.loaders.containers.quick_sums import QuickSum
from fastimg.loaders.errors import ShardError
from fastimg.loaders.wording import plural

from .grouping import KeyDots, Member, Sample, grouped, split_name
from .headers import BLOCK, FILE, FOLDER, HARD_LINK, SYMLINK, VOLUME, TarMember, entries, member_header

_NUMBER = re.compile("[0-9]{1,18}")
_TOGETHER = 1 << 20  # bytes that are written and hashed in one call each: every call waits for the GIL afterwards


class ShardWriter(WholeFile):
    """Writes one shard and its index: `with ShardWriter(path) as shard: shard.add("000000017", {"jpg": data})`.

    Both files appear under their names when the block ends without an error, the tar last; otherwise neither does.
    Afterwards `count`, `bytes`, `sha256`, `xxh3` (the quick sum), `identity`, `index_bytes` and `index_sha256` describe
    what was written. The text of the index is kept in memory, and up to a megabyte of samples, or one that is larger.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.count = 0  # samples
        self.bytes = self.index_bytes = 0
        self.sha256 = self.xxh3 = self.identity = self.index_sha256 = ""
        self._hash = hashlib.sha256()
        self._quick = QuickSum()
        self._index = bytearray()
        self._pieces: list[bytes] = []  # that are not written yet
        self._written = 0  # bytes
        self._file = temporary(path).open("wb")
        self._early = EarlySync(self._file.fileno())

    def add(self, stem: str, fields: Mapping[str, bytes]) -> None:
        """Append one sample, its members in the order given."""
        members: list[Member] = []
        pieces: list[bytes] = []
        end = self.bytes
        for ext, data in fields.items():
            name = f"{stem}.{ext}"
            if name.split() != [name]:
                raise ValueError(f"{name!r}: the index format does not allow names with spaces")
            padding = bytes(-len(data) % BLOCK)
            pieces += (member_header(name, len(data)), data, padding)
            members.append(Member(ext, end + BLOCK, len(data), name))
            end += BLOCK + len(data) + len(padding)
        self._index += _index_line(tuple(members)).encode()
        self.count += 1
        self._append(pieces)

    def _append(self, pieces: list[bytes]) -> None:
        self._pieces += pieces
        self.bytes += sum(map(len, pieces))
        if self.bytes - self._written >= _TOGETHER:
            self._write()

    def _write(self) -> None:
        data = b"".join(self._pieces)
        self._pieces.clear()
        self._file.write(data)
        self._hash.update(data)
        self._quick.update(data)
        self._written = self.bytes
        self._early.reached(self._written)

    def _publish(self) -> None:
        self._append([bytes(2 * BLOCK)])
        self._write()
        self._file.flush()
        self._early.close()
        os.fsync(self._file.fileno())
        self._file.close()
        self.identity = identity_of_file(temporary(self.path))
        self.sha256 = self._hash.hexdigest()
        self.xxh3 = self._quick.hexdigest()
        self._index[:0] = _index_head(self.count).encode()
        self.index_bytes = len(self._index)
        self.index_sha256 = hashlib.sha256(self._index).hexdigest()
        replace_file(index_path(self.path), self._index)
        temporary(self.path).replace(self.path)
        sync_folder(self.path.parent)


def index_path(shard: Path) -> Path:
    """The path of a shard's index."""
    return shard.with_suffix(".idx")


def move_shard(shard: Path, folder: Path) -> None:
    """Give a shard and its index a place in another folder of the same file system; the tar appears last."""
    for file in (index_path(shard), shard):
        file.replace(folder / file.name)
    sync_folder(folder)


def _index_head(count: int) -> str:
    return f"v1.2 {count}\n"


def _index_line(sample: Sample) -> str:
    return " ".join(f"{m.ext} {m.offset} {m.size} {m.name}" for m in sample) + "\n"


def parse_index(path: Path, tar_size: int) -> list[Sample]:
    """Samples of a DALI v1.1 or v1.2 index. Raises ShardError unless every member fits in a tar of `tar_size` bytes."""
    try:
        lines = path.read_text(encoding="utf-8").removesuffix("\n").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise ShardError(f"{path}: the index cannot be read ({error}); delete it to have the shard scanned") from error
    version, _, count = lines[0].partition(" ")
    width = {"v1.1": 3, "v1.2": 4}.get(version)
    if width is None or not _NUMBER.fullmatch(count):
        raise ShardError(f"{path}: not a DALI index of version 1.1 or 1.2; delete it to have the shard scanned")
    if len(lines) - 1 != int(count):
        raise ShardError(
            f"{path}: cut short: {plural(int(count), 'sample')} announced, {len(lines) - 1} found; convert again, or "
            "delete it"
        )
    samples = []
    for number, line in enumerate(lines[1:], start=2):
        words = line.split(" ")
        try:
            numbers = words[1::width] + words[2::width]
            names = words[3::4] if width == 4 else ()
            if len(words) % width or not all(map(_NUMBER.fullmatch, numbers)) or not all(names):
                raise ValueError
            sample = tuple(
                Member(words[i], int(words[i + 1]), int(words[i + 2]), words[i + 3] if width == 4 else "")
                for i in range(0, len(words), width)
            )
            if any(m.offset % BLOCK or m.offset < BLOCK or m.offset + m.size > tar_size for m in sample):
                raise ValueError
        except ValueError:
            raise ShardError(
                f"{path}: line {number} does not fit the shard beside it: one of them was cut short or altered; "
                "convert again, or delete the index to have the shard scanned"
            ) from None
        samples.append(sample)
    return samples


class TarScan(NamedTuple):
    """What is in a tar of another writer. `apart`: how many samples have members that do not follow one another."""

    samples: list[Sample]
    apart: int


def scan(path: Path, dots: KeyDots | None = None) -> list[Sample]:
    """The samples of `scan_counting`."""
    return scan_counting(path, dots).samples


def scan_counting(path: Path, dots: KeyDots | None = None) -> TarScan:
    """Samples of a tar of any writer, by reading its headers. A hard link is read as the member that it links to.

    Folders, hidden files, and links or devices without an extension are skipped, as in DALI and webdataset. Members of
    one key are a sample wherever they are in the tar. See `grouped` for `dots`. Raises ShardError for anything else
    that is not plain data, for two members of a sample with the same extension, for names that hardly are keys, and for
    a tar that is damaged, cut short, or followed by another.
    """
    runs: list[tuple[str, Sample]] = []
    members: list[Member] = []
    extensions: set[str] = set()  # of them
    stem = ""
    places: dict[str, tuple[int, int]] | None = None  # (offset, size) by name, once there is a hard link
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # do not wait for a pipe, which is an error
    except OSError as error:
        raise ShardError(f"{path}: {error.strerror}; check the path and its permissions") from error
    try:
        for entry in entries(file):
            this, ext = split_name(entry.name, dots or "first")
            if entry.kind in (FOLDER, VOLUME) or not this or this.endswith("/"):
                continue
            offset = entry.offset
            size = entry.size
            if entry.kind == HARD_LINK:
                if places is None:
                    known = [*(run for _, run in runs), members]
                    places = {posixpath.normpath(m.name): m[1:3] for run in known for m in run}
                if (place := places.get(posixpath.normpath(entry.link))) is None:
                    raise ShardError(f"{path}: {_unusable(entry)}")
                offset, size = place
            elif entry.kind != FILE or entry.sparse:
                if ext or entry.sparse:
                    raise ShardError(f"{path}: {_unusable(entry)}")
                continue
            if this != stem:
                if members:
                    runs.append((stem, tuple(members)))
                stem, members, extensions = this, [], set()
            if ext.lower() in extensions:
                raise ShardError(f"{path}: {entry.name}: the second .{ext} of one sample; keep one of them")
            members.append(Member(ext, offset, size, entry.name))
            extensions.add(ext.lower())
            if places is not None:
                places[posixpath.normpath(entry.name)] = offset, size
    except (ValueError, OSError) as error:
        raise ShardError(f"{path}: not a complete tar: {error}; copy or make it again") from error
    finally:
        os.close(file)
    if members:
        runs.append((stem, tuple(members)))
    return TarScan(*grouped(path, runs, dots))


def _unusable(entry: TarMember) -> str:
    """Why a member is not usable, and the remedy."""
    if entry.kind == HARD_LINK:
        return f"{entry.name}: a hard link to {entry.link}, which is not before it in the tar; make the tar again"
    if entry.kind == SYMLINK:
        return f"{entry.name}: a symbolic link to {entry.link}; make the tar again with `tar --dereference`"
    if entry.sparse:
        return f"{entry.name}: a sparse file; make the tar again without `tar --sparse`"
    return f"{entry.name}: neither a file nor a link (type {entry.kind!r}); take it out of the tar"
