"""The journal that a conversion keeps in its folder while it runs, so that it can be recognised, resumed and undone.

`convert.json` is written before anything else and removed once `dataset.json` exists. It is a file of JSON lines:
first the options with a fingerprint of the source, then one line per finished shard, each on disk before the next shard
begins. A last line that a crash cut short is dropped, and its shard is written again.
"""

import contextlib
import fcntl
import hashlib
import json
import os
import re
import shutil
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any, NamedTuple

from fastimg.cluster.shared_places import ATTEMPTS
from fastimg.convert.annotations.facts import FieldFacts
from fastimg.convert.recompression.facts import RecompressionFacts
from fastimg.data.derived import CACHE
from fastimg.errors import UserError
from fastimg.loaders.containers.atomic import replace_file, sync_folder, temporary
from fastimg.loaders.containers.betons.files import BetonPart
from fastimg.loaders.containers.description import FORMAT, read_description
from fastimg.loaders.containers.tars.shards import index_path
from fastimg.loaders.errors import DataError
from fastimg.loaders.runtime.file_locks import unlock_and_close

JOURNAL_FORMAT = "fastimg conversion"
STAGED = ".replacement"  # the folder in a destination in which what replaces its dataset is made
REPLACES = "replaces"  # among the options, in a store: the sum of the dataset.json that is there until the end
CONTENTS = "contents"  # among the options: digest of some samples; earlier versions have stated none

SPLIT = "(?:train|val|test)"
_DERIVED = "fidx|fcol|ffld|ftil|fdci"
_NAMES = rf"(?:{SPLIT}(?:-\d{{5,}}\.(?:tar|idx|beton)|\.(?:{_DERIVED}|beton))|dataset\.json|convert\.json)"
_TEMPORARY = re.compile(rf"source-\d+\.spool|{SPLIT}-\d{{5,}}-[0-9a-f]{{16}}\.prepared")
_MADE = re.compile(rf"{_NAMES}|\.{_NAMES}\.(?:part|moving)|{_TEMPORARY.pattern}")


class DestinationState(Enum):
    """What a destination holds before a conversion."""

    EMPTY = "empty"
    DATASET = "a finished dataset"
    UNFINISHED = "an unfinished conversion"
    APPENDING = "a finished dataset, to which an append has not finished"
    REPLACING = "a dataset whose replacement has not finished"
    OTHER = "something else"


class Held(NamedTuple):
    """The state of a destination, with the names of its files and the options in its journal."""

    state: DestinationState
    names: Collection[str]
    begun: dict[str, Any] | None  # None without a journal
    sha256: str  # of dataset.json; empty without one


@dataclass(frozen=True, kw_only=True)
class Finished:  # more than 12 fields: a line of the journal, which is flat
    """A shard that is on disk, or one without any usable image (`samples` is 0, no file)."""

    split: str
    number: int
    samples: int
    name: str = ""
    bytes: int = 0  # of a .beton: up to the end of this part
    sha256: str = ""
    xxh3: str = ""  # the quick sum; older versions did not write it
    identity: str = ""  # older versions did not write it
    index_bytes: int = 0
    index_sha256: str = ""
    part: BetonPart | None = None  # of a .beton
    source_bytes: int = 0
    class_counts: dict[int, int] = field(default_factory=dict)  # by label, -1 for none
    skipped: list[tuple[str, str]] = field(default_factory=list)  # (path, reason)
    outcomes: dict[str, int] = field(default_factory=dict)  # images by what became of them
    missing: dict[str, int] = field(default_factory=dict)  # samples without a value, by target
    without_targets: int = 0  # samples that have none of the targets
    fields: dict[str, FieldFacts] = field(default_factory=dict)  # what its samples have of each field
    recompressed: RecompressionFacts = field(default_factory=RecompressionFacts)  # what --recompress changed

    def on_disk(self, folder: Path) -> bool:
        """Whether its files are unchanged since they were written, by their sizes and the index's checksum."""
        if not self.name:
            return not self.samples
        if not _MADE.fullmatch(self.name):
            return False
        file = folder / self.name
        try:
            if self.part:
                if not 0 <= self.part.end <= self.part.file_end == self.bytes:
                    return False
                return file.exists() or temporary(file).stat().st_size >= self.bytes
            index = index_path(file).read_bytes()
            return file.stat().st_size == self.bytes and hashlib.sha256(index).hexdigest() == self.index_sha256
        except OSError:
            return False


class Journal:
    """The open journal of a running conversion."""

    def __init__(self, folder: Path, finished: list[Finished]) -> None:
        self.finished = {(shard.split, shard.number): shard for shard in finished}
        self._folder = folder
        self.listener: Callable[[Finished], None] = lambda shard: None  # told of each shard that is added

    @classmethod
    def start(cls, folder: Path, options: dict[str, Any]) -> "Journal":
        """A journal without shards; replaces an existing one."""
        replace_file(folder / "convert.json", _line({"format": JOURNAL_FORMAT, "options": options}))
        return cls(folder, [])

    @classmethod
    def go_on(cls, folder: Path, delivered: Collection[str] = ()) -> "Journal":
        """The journal in `folder`, with those of its shards that are unchanged on disk, or were `delivered`."""
        import msgspec

        head, *lines = _whole_lines(folder / "convert.json")
        shards = []
        for line in lines:
            with contextlib.suppress(ValueError, RecursionError):  # ValueError: msgspec's
                shards.append(msgspec.json.decode(line, type=Finished))
        shards = [shard for shard in shards if shard.name in delivered or shard.on_disk(folder)]
        parts = _parts_in_a_row(shards)
        shards = [shard for shard in shards if not shard.part or 0 <= shard.number < parts[shard.split]]
        replace_file(folder / "convert.json", head + b"".join(map(_line, shards)))
        return cls(folder, shards)

    def add(self, shard: Finished) -> None:
        """Remember a finished shard."""
        with (self._folder / "convert.json").open("ab") as file:
            file.write(_line(shard))
            file.flush()
            os.fsync(file.fileno())
        self.finished[shard.split, shard.number] = shard
        self.listener(shard)

    def files(self) -> set[str]:
        """Names of the files that finished shards have."""
        names: set[str] = set()
        for shard in self.finished.values():
            if shard.part:
                names |= {shard.name, temporary(Path(shard.name)).name}
            elif shard.name:
                names |= {shard.name, index_path(Path(shard.name)).name}
        return names

    def parts(self, split: str) -> list[BetonPart]:
        """The parts of a split's .beton that are on disk, in order."""
        return [
            shard.part for (name, _), shard in sorted(self.finished.items()) if name == split and shard.part is not None
        ]

    def remove(self) -> None:
        """Delete the journal: the conversion is complete."""
        (self._folder / "convert.json").unlink()
        sync_folder(self._folder)


def _parts_in_a_row(shards: list[Finished]) -> Counter[str]:
    """How many parts of each split exist, counted from the first up to the first missing one."""
    existing = {(shard.split, shard.number) for shard in shards}
    parts = Counter[str]()
    for split in {shard.split for shard in shards}:
        while (split, parts[split]) in existing:
            parts[split] += 1
    return parts


def held_in(folder: Path) -> Held:
    """What `folder` holds."""

    def read(name: str) -> bytes:
        try:
            return (folder / name).read_bytes()
        except OSError:
            return b""

    names = {entry.name for entry in os.scandir(folder)} if folder.exists() else set()
    held = held_by(names - {".convert.json.part", ATTEMPTS, CACHE, STAGED}, read)
    if (begun := replacement_options(folder)) is None:
        return held
    return held._replace(state=DestinationState.REPLACING, begun=begun)


def held_by(names: Collection[str], read: Callable[[str], bytes]) -> Held:
    """What a destination with files of these names holds. A journal that was not written completely does not count."""
    begun = conversion_of(read("convert.json")) if "convert.json" in names else None
    sha256 = ""
    if "dataset.json" in names:
        described = read("dataset.json")
        sha256 = hashlib.sha256(described).hexdigest()
        state = _state_of(described, sha256, begun)
    elif begun is not None:
        state = DestinationState.UNFINISHED
    else:
        state = DestinationState.OTHER if names else DestinationState.EMPTY
    return Held(state, names, begun, sha256)


def _state_of(described: bytes, sha256: str, begun: dict[str, Any] | None) -> DestinationState:
    """The state of a destination by its dataset.json."""
    try:
        description = json.loads(described)
        if description["format"] != FORMAT:
            return DestinationState.OTHER
    except (ValueError, KeyError, TypeError, RecursionError):
        return DestinationState.OTHER
    try:
        if begun is not None and begun.get(REPLACES) == sha256:
            return DestinationState.REPLACING
        if begun is not None and "base" in begun and not holds(description, begun):
            return DestinationState.APPENDING
    except (LookupError, TypeError):  # who reads the rest of such a description refuses it
        pass
    return DestinationState.DATASET


def holds(description: dict[str, Any], options: dict[str, Any]) -> bool:
    """Whether the samples of a conversion with these options have been put into the dataset that is described.

    They are by their listing, and by their contents where both conversions state them.
    """
    made = [description["options"], *description.get("appended", ())]
    same = [other for other in made if other["listing"] == options["listing"]]
    contents = options.get(CONTENTS)
    return any(contents is None or other.get(CONTENTS, contents) == contents for other in same)


def lasting(options: dict[str, Any]) -> dict[str, Any]:
    """The options that determine the output: those that dataset.json states."""
    return {name: value for name, value in options.items() if name != REPLACES}


def journal_options(folder: Path) -> dict[str, Any] | None:
    """The options in the journal of `folder`; None if it has no valid journal."""
    try:
        return conversion_of((folder / "convert.json").read_bytes())
    except OSError:
        return None


def replacement_options(folder: Path) -> dict[str, Any] | None:
    """The options of a conversion that makes, or has made, what replaces the dataset in `folder`; None without one."""
    staged = folder / STAGED
    if (options := journal_options(staged)) is not None:
        return options
    try:
        made: dict[str, Any] = read_description(staged)["options"]
    except (DataError, KeyError):
        return None
    return made


def conversion_of(journal: bytes) -> dict[str, Any] | None:
    """The options in the first line of a journal; None if it is not one."""
    line, end, _ = journal.partition(b"\n")
    try:
        head = json.loads(line)
        options = head["options"]
        return options if end and head["format"] == JOURNAL_FORMAT and isinstance(options, dict) else None
    except (ValueError, LookupError, TypeError, RecursionError):
        return None


def is_made(name: str) -> bool:
    """Whether a file has a name that a conversion gives."""
    return _MADE.fullmatch(name) is not None


def is_temporary(name: str) -> bool:
    """Whether an object has a name of those that a conversion on a cluster has in a store while it lasts."""
    return _TEMPORARY.fullmatch(name) is not None


def is_shard(name: str) -> bool:
    """Whether a file has a name that a conversion gives to a shard."""
    return is_made(name) and name.endswith((".tar", ".beton"))


def clear(folder: Path, keep: Collection[str] = ()) -> None:
    """Delete only the files that a conversion writes: dataset.json first, the journal last."""
    names = [name for name in os.listdir(folder) if _MADE.fullmatch(name) and name not in keep]
    for name in sorted(names, key=lambda name: (name != "dataset.json", name == "convert.json", name)):
        if not (folder / name).is_dir():
            (folder / name).unlink()
    shutil.rmtree(folder / ATTEMPTS, ignore_errors=True)
    sync_folder(folder)


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Keep other conversions out of `folder`. The lock is released however the process ends."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(
                f"{folder}: another conversion is writing to it; wait until it ends, or stop it first"
            ) from None
        except OSError:  # a file system without locks
            pass
        yield
    finally:
        unlock_and_close(handle)


def _line(content: Any) -> bytes:
    import msgspec

    return msgspec.json.encode(content) + b"\n"


def _whole_lines(path: Path) -> list[bytes]:
    return [line for line in path.read_bytes().splitlines(keepends=True) if line.endswith(b"\n")]
