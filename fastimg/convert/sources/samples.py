"""What every source provides: entries, listed before anything is read, and samples, read one by one."""

import contextlib
import hashlib
import json
from array import array
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Protocol, overload, runtime_checkable

import numpy as np
import numpy.typing as npt

from fastimg.loaders.containers.content import Content
from fastimg.loaders.containers.fields import StoredField
from fastimg.loaders.containers.targets import Target
from fastimg.loaders.decode import Pixels
from fastimg.loaders.folders.ignored import Ignored

Row = dict[str, Any]

ANNOUNCED = 64  # samples of a store that are on their way before they are read, at most
ANNOUNCED_BYTES = 64 << 20  # of them together, if there are several

_PROBES = 16  # samples, spread over a split, whose content tells a source from another with the same listing
_PROBED_BYTES = 1 << 20  # of a file, so many times: a larger one is not read as a whole
_PROBED_TIMES = 8
_AT_ONCE = 8  # probes, which may be requests to an object store

NO_LABEL = "the label is empty"  # reason for skipping a row of a manifest


class SourceEntry(NamedTuple):
    """One sample of a source, as listed."""

    path: str  # relative to the source's root, or the sample's key in its container
    label: int  # class index, or -1 without a label
    size: int  # of the image or text in bytes; -1 if there is nothing to read
    row: int = 0  # of the manifest, counted as in a spreadsheet: 1 is the header of a CSV. 0 without a manifest
    extra: Row | None = None  # the other columns
    place: int = 0  # where the reader finds it
    reader: int = 0  # which of the source's readers


class Original(NamedTuple):
    """A sample as read from its source."""

    image: bytes | Pixels  # encoded image, or text; pixels [H, W, 3] if a .beton has only those
    suffix: str  # the original file extension without its dot, such as jpg or left.jpg
    note: bytes  # a JSON object with the path or key, and any other metadata
    fields: dict[str, bytes]  # all other data, keyed by extension in a tar: txt, npy, meta.json


class SamplePart(NamedTuple):
    """A file, or a member of a file, that a sample is made of. `read(start, stop)` gives bytes of it as they are."""

    size: int
    read: Callable[[int, int], bytes]

    def digest(self) -> bytes:
        """SHA-256 of it; where it is large, of blocks spread over it. Raises OSError and DataError."""
        whole = self.size <= _PROBED_TIMES * _PROBED_BYTES
        block = self.size if whole else _PROBED_BYTES
        digest = hashlib.sha256()
        for start in np.linspace(0, self.size - block, 1 if whole else _PROBED_TIMES).astype(np.int64).tolist():
            digest.update(self.read(start, start + block))
        return digest.digest()


class SourceReader(Protocol):
    """Reads the samples of a source. Every method is thread-safe."""

    def read(self, entry: SourceEntry) -> Original:
        """Read a sample. Raises OSError or ImageError if this sample is bad, another DataError if the source is."""

    def name(self, entry: SourceEntry) -> str:
        """Name the sample in messages."""

    def problem(self, entry: SourceEntry) -> str | None:
        """Return why the listing already shows that the sample cannot be read, or None."""

    def parts(self, entry: SourceEntry) -> Iterable[SamplePart]:
        """What the sample is made of, as far as the listing does not tell what is in it."""

    def close(self) -> None:
        """Release open files."""


@runtime_checkable
class FetchingReader(SourceReader, Protocol):
    """A reader whose samples may be elsewhere. `fetches`: whether they are."""

    @property
    def fetches(self) -> bool:
        """Whether announcing a sample has any use."""

    def announce(self, entry: SourceEntry) -> int:
        """Begin to fetch a sample, which will be read once unless it has a problem. Returns its bytes."""


class WrappingReader:
    """A reader that changes what another one reads; here, all but `read` is the other one's."""

    def __init__(self, reader: SourceReader) -> None:
        self.reader = reader

    @property
    def fetches(self) -> bool:
        """See FetchingReader."""
        return isinstance(self.reader, FetchingReader) and self.reader.fetches

    def announce(self, entry: SourceEntry) -> int:
        """See FetchingReader."""
        if isinstance(self.reader, FetchingReader) and self.problem(entry) is None:
            return self.reader.announce(entry)
        return 0

    def name(self, entry: SourceEntry) -> str:
        """See SourceReader."""
        return self.reader.name(entry)

    def problem(self, entry: SourceEntry) -> str | None:
        """See SourceReader."""
        return self.reader.problem(entry)

    def parts(self, entry: SourceEntry) -> Iterable[SamplePart]:
        """See SourceReader."""
        return self.reader.parts(entry)

    def close(self) -> None:
        """See SourceReader."""
        self.reader.close()


def note(path: str, extra: Row | None = None) -> bytes:
    """Encode the JSON note of a sample that has only a path and, perhaps, other columns."""
    return json.dumps({"path": path} | (extra or {})).encode()


class _Columns:
    """Storage of entries: per entry 56 bytes, its path, and the other columns as JSON."""

    def __init__(self) -> None:
        self.numbers = array("q")  # label, size, row, place and reader of each entry
        self.text = bytearray()  # path and other columns of each entry
        self.ends = array("q", [0])  # where each path and each JSON ends in `text`


class Entries(Sequence[SourceEntry]):
    """A compact list of entries, about a hundred bytes each. Selections share its memory."""

    def __init__(self, entries: Iterable[SourceEntry] = ()) -> None:
        self._columns = _Columns()
        self._chosen: npt.NDArray[np.int64] | None = None
        for entry in entries:
            self.append(entry)

    def append(self, entry: SourceEntry) -> None:
        """Append an entry. Not for selections."""
        assert self._chosen is None
        path, label, size, row, extra, place, reader = entry
        columns = self._columns
        columns.numbers.extend((label, size, row, place, reader))
        columns.text += path.encode("utf-8", "surrogatepass")
        columns.ends.append(len(columns.text))
        if extra:
            columns.text += json.dumps(extra).encode()
        columns.ends.append(len(columns.text))

    def __len__(self) -> int:
        return len(self._columns.numbers) // 5 if self._chosen is None else len(self._chosen)

    @overload
    def __getitem__(self, index: int) -> SourceEntry: ...
    @overload
    def __getitem__(self, index: slice) -> "Entries": ...
    def __getitem__(self, index: int | slice) -> "SourceEntry | Entries":
        if isinstance(index, slice):
            return self.select(np.arange(len(self))[index])
        position = range(len(self))[index] if self._chosen is None else int(self._chosen[index])
        columns = self._columns
        label, size, row, place, reader = columns.numbers[5 * position : 5 * position + 5]
        begin, middle, end = columns.ends[2 * position : 2 * position + 3]
        path = columns.text[begin:middle].decode("utf-8", "surrogatepass")
        extra = json.loads(columns.text[middle:end]) if end > middle else None
        return SourceEntry(path, label, size, row, extra, place, reader)

    def __iter__(self) -> Iterator[SourceEntry]:
        return (self[i] for i in range(len(self)))

    def select(self, indices: npt.NDArray[np.int64]) -> "Entries":
        """Select the entries at `indices`, in that order."""
        other = Entries()
        other._columns = self._columns
        other._chosen = indices if self._chosen is None else self._chosen[indices]
        return other

    def compact(self) -> "Entries":
        """The same entries with memory of their own, without that of others."""
        if self._chosen is None:
            return self
        columns, other = self._columns, Entries()
        ends = np.frombuffer(columns.ends, np.int64)
        begins, middles, stops = ends[2 * self._chosen], ends[2 * self._chosen + 1], ends[2 * self._chosen + 2]
        for begin, stop in zip(begins.tolist(), stops.tolist(), strict=True):
            other._columns.text += columns.text[begin:stop]
        starts = np.cumsum(stops - begins) - (stops - begins)
        own = np.stack([starts + middles - begins, starts + stops - begins], axis=1)
        other._columns.ends.frombytes(own.astype(np.int64).tobytes())
        numbers = np.frombuffer(columns.numbers, np.int64).reshape(-1, 5)[self._chosen]
        other._columns.numbers.frombytes(numbers.tobytes())
        return other

    def sorted(self, key: Callable[[SourceEntry], Any]) -> "Entries":
        """Select all entries, sorted by `key`."""
        return self.select(np.array(sorted(range(len(self)), key=lambda i: key(self[i])), np.int64))

    @property
    def labels(self) -> npt.NDArray[np.int64]:
        """Labels [N], as a copy."""
        return self._number(0)

    @property
    def sizes(self) -> npt.NDArray[np.int64]:
        """Sizes in bytes [N], as a copy."""
        return self._number(1)

    def relabel(self, table: npt.NDArray[np.int64]) -> None:
        """Replace every label by `table[label]`, except -1. Not for selections."""
        assert self._chosen is None
        labels = np.frombuffer(self._columns.numbers, np.int64).reshape(-1, 5)[:, 0]
        known = labels >= 0
        labels[known] = table[labels[known]]

    @property
    def places(self) -> npt.NDArray[np.int64]:
        """Where the readers find them [N], as a copy."""
        return self._number(3)

    @property
    def readers(self) -> npt.NDArray[np.int64]:
        """The numbers of their readers [N], as a copy."""
        return self._number(4)

    def move(self, places: npt.NDArray[np.int64]) -> None:
        """Give every entry another place [N]. Not for selections."""
        assert self._chosen is None
        np.frombuffer(self._columns.numbers, np.int64).reshape(-1, 5)[:, 3] = places

    def _number(self, column: int) -> npt.NDArray[np.int64]:
        numbers = np.frombuffer(self._columns.numbers, np.int64).reshape(-1, 5)[:, column]
        return numbers.copy() if self._chosen is None else numbers[self._chosen]


@dataclass(frozen=True)
class Source:  # more than 12 fields: each kind of source sets only a few
    """Entries by split. All splits share the same classes."""

    src: Path  # as given
    kind: str
    classes: tuple[str, ...]
    splits: dict[str, Entries]
    readers: tuple[SourceReader, ...]
    ignored: Ignored = field(default_factory=Ignored)  # files under `src` that are neither samples nor shards
    uncounted: tuple[str, ...] = ()  # sentences about files that were not searched for
    named: bool = True  # False if the class names are only the numbers of the labels
    stored: bool = False  # already a dataset: keep its order; classes and splits may be empty
    fields: tuple[str, ...] = ()  # that samples may have besides image, label and note
    remarks: tuple[str, ...] = ()  # sentences for the user
    files: tuple[Path, ...] = ()  # the shards to read from
    content: Content = "images"
    columns: tuple[str, ...] = ()  # sentences about which columns of manifests are used
    from_table: bool = False  # the classes are the distinct values of a column
    inputs: tuple[str, ...] = ()  # image and text, if samples have both
    targets: tuple[Target, ...] = ()  # if they were declared; the first class has the classes above
    stored_fields: tuple[StoredField, ...] = ()  # the schemas of what samples have; their members are among `fields`
    previewed: str | None = None  # the stored field that images are previews of
    respelled: frozenset[str | None] = frozenset()  # targets, or None for labels, whose integers lost zeros

    def read(self, entry: SourceEntry) -> Original:
        """See SourceReader."""
        return self.readers[entry.reader].read(entry)

    def name(self, entry: SourceEntry) -> str:
        """See SourceReader."""
        return self.readers[entry.reader].name(entry)

    def problem(self, entry: SourceEntry) -> str | None:
        """See SourceReader."""
        return self.readers[entry.reader].problem(entry)

    def announced(self, entries: Iterable[SourceEntry]) -> Iterator[SourceEntry]:
        """The entries in order, each announced to its reader some places ahead of what is taken from here."""
        fetching = [
            reader if isinstance(reader, FetchingReader) and reader.fetches else None for reader in self.readers
        ]
        if not any(fetching):
            yield from entries
            return
        window: deque[tuple[SourceEntry, int]] = deque()
        size = 0
        for entry in entries:
            reader = fetching[entry.reader]
            window.append((entry, reader.announce(entry) if reader is not None else 0))
            size += window[-1][1]
            while len(window) >= ANNOUNCED or (size > ANNOUNCED_BYTES and window):
                first, its_size = window.popleft()
                size -= its_size
                yield first
        yield from (entry for entry, _ in window)

    def close(self) -> None:
        """See SourceReader."""
        for reader in self.readers:
            reader.close()

    def fingerprint(self) -> str:
        """SHA-256 of everything in the listing that determines the samples. Class names count, their numbers do not."""
        digest = hashlib.sha256(json.dumps(self.fields).encode())
        names = (*self.classes, None)  # label -1 gives None
        for split, entries in sorted(self.splits.items()):
            for entry in entries:
                content = (split, entry.path, names[entry.label], entry.size, entry.extra)
                digest.update(json.dumps(content).encode())
        return digest.hexdigest()

    def contents(self) -> str:
        """SHA-256 of some samples of each split, as the source holds them: sources may have the same listing.

        Raises DataError where an object store does not give one.
        """
        digest = hashlib.sha256()
        with ThreadPoolExecutor(_AT_ONCE, "fastimg-probe") as pool:
            for _, entries in sorted(self.splits.items()):
                indices = np.unique(np.linspace(0, len(entries) - 1, min(_PROBES, len(entries))).astype(np.int64))
                for found in pool.map(self._digest, [entries[index] for index in indices.tolist()]):
                    digest.update(found)
        return digest.hexdigest()

    def _digest(self, entry: SourceEntry) -> bytes:
        """Of a sample; one that is not there, or cannot be read, has that of no bytes."""
        digest = hashlib.sha256()
        with contextlib.suppress(OSError):
            for part in self.readers[entry.reader].parts(entry) if entry.size >= 0 else ():
                digest.update(part.digest())
        return digest.digest()
