"""Arrays that were made of samples, kept by the samples' content, so that nothing is made twice.

FOLDER/about.json      what the arrays are: everything beside the content that they depend on; its hash names the folder
FOLDER/00000.tar .idx  1,024 arrays, `<digest of the content>.npy`: tars as any other, complete or not there
FOLDER/shards.jsonl    a line for each shard that is on disk, with its checksums, and why samples have no array

A shard counts once its line is written. Whoever opens the cache compares all checksums; what does not hold is taken out
and made again. One process writes at a time, others wait for it; reading needs no lock.
"""

import contextlib
import fcntl
import hashlib
import json
import os
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from fastimg.errors import UserError
from fastimg.loaders.containers.arrays import PLACE, ArrayDataset, npy_bytes
from fastimg.loaders.containers.atomic import replace_file, sync_folder
from fastimg.loaders.containers.datasets import Dataset
from fastimg.loaders.containers.tar import ShardWriter, index_path, parse_index, split_name
from fastimg.loaders.errors import ImageError
from fastimg.loaders.runtime.scratch import Scratch
from fastimg.models.ranks import Ranks
from fastimg.wording import plural

from .digests import BYTES, DIGEST, NONE

SHARD = 1024  # arrays
_ABOUT, _JOURNAL, _LOCK = "about.json", "shards.jsonl", ".lock"

Made = npt.NDArray[Any] | str  # what became of a sample: its array, or why there is none


class Shard(msgspec.Struct, frozen=True, kw_only=True):
    """A shard that is on disk; without samples there is no file."""

    number: int
    samples: int
    bytes: int = 0
    sha256: str = ""
    index_sha256: str = ""
    failed: dict[str, str] = {}  # digest -> reason


def key_of(about: Mapping[str, Any]) -> str:
    """What names a cache: a hash of everything that its arrays depend on."""
    return hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()[:32]


class ArrayCache:
    """The cache of one kind of arrays, below `root`. `say` hears sentences for a person."""

    def __init__(self, root: Path, about: Mapping[str, Any], say: Callable[[str], None]) -> None:
        self.key = key_of(about)
        self.folder = root / self.key
        self._about, self._say = dict(about), say
        self._shards: list[Path] = []
        self._keys = np.empty(0, DIGEST)  # sorted
        self._places = np.empty(0, PLACE)
        self._reasons: dict[bytes, str] = {}
        self._numbers: set[int] = set()
        self._sound: list[Shard] = []  # whose files hold what was written
        self._told: set[tuple[int, str]] = set()

    def load(self) -> None:
        """Take stock. Shards whose bytes are not those that were written are told of, and count no more."""
        keys: list[bytes] = []
        places: list[tuple[int, int, int]] = []
        self._shards, self._reasons, self._numbers = [], {}, set()
        self._sound = []
        for shard in self._lines():
            if fault := self._fault(shard):
                if (shard.number, fault) not in self._told:
                    self._say(f"{self._path(shard.number)}: {fault}; {plural(shard.samples, 'array', 'is')} made again")
                self._told.add((shard.number, fault))
                continue
            self._numbers.add(shard.number)
            self._sound.append(shard)
            self._reasons |= _reasons(shard)
            if not shard.samples:
                continue
            for (member,) in parse_index(index_path(self._path(shard.number)), shard.bytes):
                keys.append(bytes.fromhex(split_name(member.name)[0]))
                places.append((len(self._shards), member.size, member.offset))
            self._shards.append(self._path(shard.number))
        found = np.frombuffer(b"".join(keys), DIGEST) if keys else np.empty(0, DIGEST)
        order = np.argsort(found, kind="stable")
        self._keys, self._places = found[order], np.array(places, PLACE)[order] if places else np.empty(0, PLACE)

    def places(self, digests: npt.NDArray[np.void]) -> npt.NDArray[np.void]:
        """Where the array of each digest [N] lies, [N] of PLACE; shard -1 where there is none."""
        found = np.zeros(len(digests), PLACE)
        found["shard"] = -1
        if len(self._keys):
            at = np.minimum(np.searchsorted(self._keys, digests), len(self._keys) - 1)
            there = self._keys[at] == digests
            found[there] = self._places[at[there]]
        return found

    def missing(self, digests: npt.NDArray[np.void]) -> npt.NDArray[np.int64]:
        """The first sample of each content that has no array, and of which none knows that it cannot have one."""
        open_ = np.flatnonzero(self.places(digests)["shard"] < 0)
        if not len(open_):
            return open_
        _, first = np.unique(digests[open_], return_index=True)
        known = {*self._reasons, NONE}
        return np.array([i for i in open_[np.sort(first)].tolist() if digests[i].tobytes() not in known], np.int64)

    def dataset(
        self, source: Dataset, digests: npt.NDArray[np.void], lengths: npt.NDArray[np.int64] | None = None
    ) -> ArrayDataset:
        """`source` with its arrays."""
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
        """Make what is missing, with all ranks, and take stock of it. Returns how many samples that were.

        `make` gives what becomes of samples, in their order; a rank asks it once, for whole shards. `arrange` puts the
        samples of a shard in order. The bytes depend on what is missing, not on ranks, and interruptions change none.
        Raises UserError where they cannot be written, and what `make` raises.
        """
        self.load()
        if ranks.agree(not len(self.missing(digests))):  # a cache that is complete need not be writable
            return 0
        with self._locked(ranks):
            with ranks.first_goes_first():
                self.load()
                if ranks.first:  # a line that was cut short would swallow the next
                    with self._writing():
                        self._rewrite()
            todo = self.missing(digests)
            if not len(todo):
                return 0
            numbers = (number for number in range(len(self._numbers) + len(todo)) if number not in self._numbers)
            plan = [
                (number, arrange(todo[start : start + SHARD]))
                for number, start in zip(numbers, range(0, len(todo), SHARD), strict=False)
            ]
            mine = plan[ranks.rank :: ranks.world_size]
            made = make(np.concatenate([ids for _, ids in mine]) if mine else todo[:0])
            try:
                for turn in range(-(-len(plan) // ranks.world_size)):
                    line = ""
                    if turn < len(mine):
                        line = msgspec.json.encode(self._write(*mine[turn], digests, made)).decode()
                    lines = [text for text in ranks.gather(line) if text]
                    if ranks.first:
                        with self._writing():
                            self._append(lines)
            finally:
                made.close()  # what it has open
            ranks.barrier()
            self.load()
            return len(todo)

    def _write(
        self, number: int, ids: npt.NDArray[np.int64], digests: npt.NDArray[np.void], made: Iterator[Made]
    ) -> Shard:
        kept: dict[str, bytes] = {}
        failed: dict[str, str] = {}
        for index in ids.tolist():
            array, digest = next(made), digests[index].tobytes().hex()
            if isinstance(array, str):
                failed[digest] = array
            else:
                kept[digest] = npy_bytes(array)
        if not kept:
            return Shard(number=number, samples=0, failed=failed)
        with self._writing(), ShardWriter(self._path(number)) as writer:
            for digest, data in kept.items():
                writer.add(digest, {"npy": data})
        return Shard(
            number=number,
            samples=writer.count,
            bytes=writer.bytes,
            sha256=writer.sha256,
            index_sha256=writer.index_sha256,
            failed=failed,
        )

    def _rewrite(self) -> None:
        """A journal of what is there."""
        lines = [msgspec.json.encode(shard) + b"\n" for shard in self._sound]
        replace_file(self.folder / _JOURNAL, b"".join(lines))

    def _append(self, lines: Iterable[str]) -> None:
        with (self.folder / _JOURNAL).open("ab") as file:
            file.write("".join(f"{line}\n" for line in lines).encode())
            file.flush()
            os.fsync(file.fileno())

    def _lines(self) -> list[Shard]:
        """The shards that the journal knows; a line that is cut short or damaged is none, a number's last counts."""
        try:
            lines = (self.folder / _JOURNAL).read_bytes().splitlines(keepends=True)
        except FileNotFoundError:
            return []
        shards: dict[int, Shard] = {}
        for line in lines:
            with contextlib.suppress(ValueError):  # msgspec's own errors, text that is not utf-8, digests that are none
                if line.endswith(b"\n"):
                    shard = msgspec.json.decode(line, type=Shard)
                    if shard.number >= 0 and all(len(digest) == BYTES for digest in _reasons(shard)):
                        shards[shard.number] = shard
        return [shards[number] for number in sorted(shards)]

    def _fault(self, shard: Shard) -> str | None:
        """What is wrong with a shard's files."""
        if not shard.samples:
            return None
        path = self._path(shard.number)
        for file, stated in ((path, shard.sha256), (index_path(path), shard.index_sha256)):
            try:
                with file.open("rb") as handle:
                    found = hashlib.file_digest(handle, "sha256").hexdigest()
            except OSError as error:
                return f"cannot be read ({error.strerror})"
            if found != stated:
                return "is not what was written (its checksum differs)"
        return None

    def _path(self, number: int) -> Path:
        return self.folder / f"{number:05d}.tar"

    @contextlib.contextmanager
    def _locked(self, ranks: Ranks) -> Iterator[None]:
        """Only this run writes; the lock ends with the process, however it ends."""
        handle = self._lock() if ranks.first else None
        try:
            yield
        finally:
            if handle is not None:
                os.close(handle)

    def _lock(self) -> int:
        with self._writing():
            self.folder.mkdir(parents=True, exist_ok=True)
            if not (self.folder / _ABOUT).exists():
                replace_file(self.folder / _ABOUT, (json.dumps(self._about, indent=1) + "\n").encode())
                sync_folder(self.folder.parent)
            handle = os.open(self.folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._say(f"{self.folder}: another process is writing this cache; waiting for it")
            fcntl.flock(handle, fcntl.LOCK_EX)
        except OSError:  # a file system without locks
            pass
        return handle

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        """A disk that is full or must not be written to becomes a sentence."""
        try:
            yield
        except OSError as error:
            raise UserError(
                f"{self.folder}: cannot be written ({error.strerror or error}); make room, or give another place with "
                "--cache-dir"
            ) from error


def _unreadable(source: Dataset, index: int) -> str:
    """Why the content of a sample is not known."""
    try:
        source.read(index, Scratch())
    except ImageError as error:
        return str(error)
    return "it could not be read a moment ago"


def _reasons(shard: Shard) -> dict[bytes, str]:
    """Why samples have no array, by digest. Raises ValueError for a digest that is none."""
    return {bytes.fromhex(digest): reason for digest, reason in shard.failed.items()}
