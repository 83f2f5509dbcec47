"""A cache of arrays computed from samples, keyed by the samples' content, so that nothing is computed twice.

FOLDER/about.json      everything that the arrays depend on, except the content; its hash names the folder
FOLDER/00000.tar .idx  1,024 arrays, `<digest of the content>.npy`: ordinary tars, either complete or absent
FOLDER/shards.jsonl    a line for each shard on disk, with its checksums and the reasons why samples have no array

A shard counts once its line is written. Opening the cache compares all checksums; damaged shards are removed and
computed again. One process writes at a time, and others wait for it; reading needs no lock.
"""

import contextlib
import fcntl
import hashlib
import json
import os
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from fastimg.data.digests import BYTES, DIGEST, NONE
from fastimg.errors import UserError
from fastimg.loaders.containers.arrays import PLACE, ArrayDataset
from fastimg.loaders.containers.atomic import replace_file, sync_folder
from fastimg.loaders.containers.datasets import Dataset
from fastimg.loaders.containers.npy import npy_bytes
from fastimg.loaders.containers.tars.grouping import split_name
from fastimg.loaders.containers.tars.shards import ShardWriter, index_path, move_shard, parse_index
from fastimg.loaders.errors import ImageError, not_written
from fastimg.loaders.runtime.file_locks import unlock_and_close
from fastimg.loaders.runtime.scratch import Scratch
from fastimg.models.ranks import Ranks
from fastimg.wording import plural

SHARD = 1024  # arrays
_ABOUT = "about.json"
_JOURNAL = "shards.jsonl"
_LOCK = ".lock"

Made = npt.NDArray[Any] | str  # a sample's array, or the reason why there is none


@dataclass(frozen=True, kw_only=True)
class CacheShard:
    """A shard on disk; a shard without samples has no file."""

    number: int
    samples: int
    bytes: int = 0
    sha256: str = ""
    index_sha256: str = ""
    failed: dict[str, str] = field(default_factory=dict)  # digest -> reason


class ShardPlan(NamedTuple):
    """A shard to write: its number, and its samples [N], as indices into the digests."""

    number: int
    ids: npt.NDArray[np.int64]


def write_cache_shard(folder: Path, number: int, digests: npt.NDArray[np.void], made: Sequence[Made]) -> CacheShard:
    """Write a shard of these arrays, one for each digest [N]. Raises OSError."""
    arrays: dict[str, bytes] = {}
    failed: dict[str, str] = {}
    for digest, array in zip((each.tobytes().hex() for each in digests), made, strict=True):
        if isinstance(array, str):
            failed[digest] = array
        else:
            arrays[digest] = npy_bytes(array)
    if not arrays:
        return CacheShard(number=number, samples=0, failed=failed)
    with ShardWriter(folder / f"{number:05d}.tar") as writer:
        for digest, data in arrays.items():
            writer.add(digest, {"npy": data})
    return CacheShard(
        number=number,
        samples=writer.count,
        bytes=writer.bytes,
        sha256=writer.sha256,
        index_sha256=writer.index_sha256,
        failed=failed,
    )


def key_of(about: Mapping[str, Any]) -> str:
    """The name of a cache: a hash of everything that its arrays depend on."""
    return hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()[:32]


class ArrayCache:
    """The cache of one kind of arrays, below `root`. `say` prints a message."""

    def __init__(self, root: Path, about: Mapping[str, Any], say: Callable[[str], None]) -> None:
        self.key = key_of(about)
        self.folder = root / self.key
        self._about = dict(about)
        self._say = say
        self._shards: list[Path] = []
        self._keys = np.empty(0, DIGEST)  # sorted
        self._places = np.empty(0, PLACE)
        self._reasons: dict[bytes, str] = {}
        self._numbers: set[int] = set()
        self._intact: list[CacheShard] = []  # their checksums are right
        self._reported: set[tuple[int, str]] = set()

    def load(self) -> None:
        """Read the journal and the indexes. Damaged shards are reported and ignored."""
        keys: list[bytes] = []
        places: list[tuple[int, int, int]] = []
        self._shards = []
        self._reasons = {}
        self._numbers = set()
        self._intact = []
        for shard in self._lines():
            if fault := self._fault(shard):
                if (shard.number, fault) not in self._reported:
                    arrays = plural(shard.samples, "array", "is")
                    self._say(f"{self._path(shard.number)}: {fault}; {arrays} computed again")
                self._reported.add((shard.number, fault))
                continue
            self._numbers.add(shard.number)
            self._intact.append(shard)
            self._reasons |= _reasons(shard)
            if not shard.samples:
                continue
            for (member,) in parse_index(index_path(self._path(shard.number)), shard.bytes):
                keys.append(bytes.fromhex(split_name(member.name)[0]))
                places.append((len(self._shards), member.size, member.offset))
            self._shards.append(self._path(shard.number))
        digests = np.frombuffer(b"".join(keys), DIGEST) if keys else np.empty(0, DIGEST)
        order = np.argsort(digests, kind="stable")
        self._keys = digests[order]
        self._places = np.array(places, PLACE)[order] if places else np.empty(0, PLACE)

    def places(self, digests: npt.NDArray[np.void]) -> npt.NDArray[np.void]:
        """Where the array of each digest [N] is stored, [N] of PLACE; shard -1 if there is none."""
        places = np.zeros(len(digests), PLACE)
        places["shard"] = -1
        if len(self._keys):
            nearest = np.minimum(np.searchsorted(self._keys, digests), len(self._keys) - 1)
            cached = self._keys[nearest] == digests
            places[cached] = self._places[nearest[cached]]
        return places

    def missing(self, digests: npt.NDArray[np.void]) -> npt.NDArray[np.int64]:
        """The indices of samples without an array, one for each content; contents known to have none are left out."""
        absent = np.flatnonzero(self.places(digests)["shard"] < 0)
        if not len(absent):
            return absent
        _, first = np.unique(digests[absent], return_index=True)
        failed = {*self._reasons, NONE}
        return np.array([i for i in absent[np.sort(first)].tolist() if digests[i].tobytes() not in failed], np.int64)

    def dataset(
        self, source: Dataset, digests: npt.NDArray[np.void], lengths: npt.NDArray[np.int64] | None = None
    ) -> ArrayDataset:
        """`source`, with the cached arrays as content."""
        places = self.places(digests)
        reasons: dict[int, str] = {}
        for index in np.flatnonzero(places["shard"] < 0).tolist():
            digest = digests[index].tobytes()
            if digest in self._reasons:
                reasons[index] = self._reasons[digest]
            elif digest == NONE:
                reasons[index] = _unreadable(source, index)
        return ArrayDataset(source, self._shards, places, self.key, reasons, lengths)

    def fill(
        self,
        digests: npt.NDArray[np.void],
        ranks: Ranks,
        make: Callable[[npt.NDArray[np.int64]], Generator[Made, None, None]],
        arrange: Callable[[npt.NDArray[np.int64]], npt.NDArray[np.int64]] = lambda ids: ids,
    ) -> int:
        """Compute the missing arrays, on all ranks, and load them. Returns how many: not those that cannot be read.

        `make` yields the arrays of samples in order; each rank calls it once, for whole shards. `arrange` orders the
        samples of a shard. The bytes depend only on what is missing, not on ranks or interruptions. Raises UserError if
        shards cannot be written, and whatever `make` raises.
        """
        import msgspec

        self.load()
        if ranks.agree(not len(self.missing(digests))):  # a complete cache need not be writable
            return 0
        with self._locked(ranks):
            plan = self._plan(digests, ranks, arrange)
            if not plan:
                return 0
            failed = len(self._reasons)
            mine = plan[ranks.rank :: ranks.world_size]
            made = make(np.concatenate([ids for _, ids in mine] or [np.empty(0, np.int64)]))
            try:
                for turn in range(-(-len(plan) // ranks.world_size)):
                    line = ""
                    if turn < len(mine):
                        number, ids = mine[turn]
                        arrays = list(islice(made, len(ids)))
                        with self._writing():
                            shard = write_cache_shard(self.folder, number, digests[ids], arrays)
                        line = msgspec.json.encode(shard).decode()
                    lines = [text for text in ranks.gather(line) if text]
                    if ranks.first:
                        with self._writing():
                            self._append(lines)
            finally:
                made.close()  # closes the loader it reads from
            ranks.barrier()
            self.load()
            if len(self.missing(digests)):
                raise UserError(
                    f"{self.folder}: does not have what other ranks have written: their machines see another folder; "
                    "give --cache-dir a folder that all of them share"
                )
            return sum(len(ids) for _, ids in plan) - (len(self._reasons) - failed)

    def fill_elsewhere(
        self,
        digests: npt.NDArray[np.void],
        ranks: Ranks,
        write: Callable[[list[ShardPlan]], Iterator[tuple[CacheShard, Path]]],
        arrange: Callable[[npt.NDArray[np.int64]], npt.NDArray[np.int64]],
    ) -> int:
        """As `fill`, by one process; `write` has shards written elsewhere, and yields each with the folder it is in.

        The folders are in the cache's file system: the shards are moved from there.
        """
        import msgspec

        self.load()
        if not len(self.missing(digests)):
            return 0
        with self._locked(ranks):
            plan = self._plan(digests, ranks, arrange)
            failed = len(self._reasons)
            for shard, folder in write(plan):
                with self._writing():
                    if shard.samples:
                        move_shard(folder / self._path(shard.number).name, self.folder)
                    self._append([msgspec.json.encode(shard).decode()])
            self.load()
            with self._writing():
                self._rewrite()  # in the order of their numbers
            return sum(len(ids) for _, ids in plan) - (len(self._reasons) - failed)

    def _plan(
        self,
        digests: npt.NDArray[np.void],
        ranks: Ranks,
        arrange: Callable[[npt.NDArray[np.int64]], npt.NDArray[np.int64]],
    ) -> list[ShardPlan]:
        """The shards to write; none if nothing is missing."""
        with ranks.first_goes_first():
            self.load()
            if ranks.first:  # a truncated line would swallow the next one
                with self._writing():
                    self._rewrite()
        todo = self.missing(digests)
        numbers = (number for number in range(len(self._numbers) + len(todo)) if number not in self._numbers)
        return [
            ShardPlan(number, arrange(todo[start : start + SHARD]))
            for number, start in zip(numbers, range(0, len(todo), SHARD), strict=False)
        ]

    def _rewrite(self) -> None:
        """Write a new journal, of the intact shards."""
        import msgspec

        lines = [msgspec.json.encode(shard) + b"\n" for shard in self._intact]
        replace_file(self.folder / _JOURNAL, b"".join(lines))

    def _append(self, lines: Iterable[str]) -> None:
        with (self.folder / _JOURNAL).open("ab") as file:
            file.write("".join(f"{line}\n" for line in lines).encode())
            file.flush()
            os.fsync(file.fileno())

    def _lines(self) -> list[CacheShard]:
        """The shards in the journal. Truncated or damaged lines are ignored; the last line for a number counts."""
        import msgspec

        try:
            lines = (self.folder / _JOURNAL).read_bytes().splitlines(keepends=True)
        except FileNotFoundError:
            return []
        shards: dict[int, CacheShard] = {}
        for line in lines:
            with contextlib.suppress(ValueError):  # msgspec's errors, invalid UTF-8, malformed digests
                if line.endswith(b"\n"):
                    shard = msgspec.json.decode(line, type=CacheShard)
                    if shard.number >= 0 and all(len(digest) == BYTES for digest in _reasons(shard)):
                        shards[shard.number] = shard
        return [shards[number] for number in sorted(shards)]

    def _fault(self, shard: CacheShard) -> str | None:
        """What is wrong with a shard's files, None if nothing is."""
        if not shard.samples:
            return None
        path = self._path(shard.number)
        for file, stated in ((path, shard.sha256), (index_path(path), shard.index_sha256)):
            try:
                with file.open("rb") as handle:
                    checksum = hashlib.file_digest(handle, "sha256").hexdigest()
            except OSError as error:
                return f"cannot be read ({error.strerror})"
            if checksum != stated:
                return "has changed since it was written (its checksum differs)"
        return None

    def _path(self, number: int) -> Path:
        return self.folder / f"{number:05d}.tar"

    @contextlib.contextmanager
    def _locked(self, ranks: Ranks) -> Iterator[None]:
        """Let no other run write; the lock is released when the process ends, in whatever way."""
        handle = self._lock() if ranks.first else None
        try:
            yield
        finally:
            if handle is not None:
                unlock_and_close(handle)

    def _lock(self) -> int:
        with self._writing():
            self.folder.mkdir(parents=True, exist_ok=True)
            handle = os.open(self.folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._say(f"{self.folder}: another process is writing this cache; waiting for it")
            fcntl.flock(handle, fcntl.LOCK_EX)
        except OSError:  # a file system without locks
            pass
        try:
            with self._writing():
                if not (self.folder / _ABOUT).exists():
                    replace_file(self.folder / _ABOUT, (json.dumps(self._about, indent=1) + "\n").encode())
                    sync_folder(self.folder.parent)
        except BaseException:
            os.close(handle)
            raise
        return handle

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        """Turn OSError, such as from a full or read-only disk, into UserError."""
        try:
            yield
        except FileNotFoundError as error:
            raise UserError(
                f"{self.folder}: is not there, or this rank does not see it; give --cache-dir a folder that stays, and "
                "that all ranks share"
            ) from error
        except OSError as error:
            raise UserError(
                f"{self.folder}: cannot be written: {not_written(error, 'choose another folder with --cache-dir')}"
            ) from error


def _unreadable(source: Dataset, index: int) -> str:
    """Why a sample's content could not be read."""
    try:
        source.read(index, Scratch())
    except ImageError as error:
        return str(error)
    return "it could not be read a moment ago"


def _reasons(shard: CacheShard) -> dict[bytes, str]:
    """Why samples have no array, by digest. Raises ValueError for malformed digests."""
    return {bytes.fromhex(digest): reason for digest, reason in shard.failed.items()}
