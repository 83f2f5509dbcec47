"""What every source gives: entries that are listed before anything is read, and samples that are read one by one."""

import hashlib
import json
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Protocol, overload

import numpy as np
import numpy.typing as npt

from fastimg.loaders.containers.content import Content
from fastimg.loaders.decode import Pixels
from fastimg.loaders.folders.ignored import Ignored

Row = dict[str, Any]

NO_LABEL = "the label is empty"  # why a row of a manifest is left out


class SourceEntry(NamedTuple):
    """One sample of a source, as its listing knows it."""

    path: str  # relative to the source's root, or the sample's key in its container
    label: int  # -1: none
    size: int  # bytes of the image or text; -1: there is nothing to read
    row: int = 0  # of the manifest, as a spreadsheet counts: 1 is the header of a csv. 0: no manifest
    extra: Row | None = None  # further columns
    place: int = 0  # where the reader finds it
    reader: int = 0  # which of the source's readers


class Original(NamedTuple):
    """A sample as it was read."""

    image: bytes | Pixels  # encoded; or pixels [H, W, 3], where a .beton holds nothing else; or the bytes of a text
    suffix: str  # the file extension it had, without its dot; what stands before its last dot is kept
    note: bytes  # json: an object with its path or key, and whatever else is known of it
    fields: dict[str, bytes]  # everything else, by its extension in a tar: txt, npy, meta.json


class SourceReader(Protocol):
    """Reads the samples of a source. Every method may be called from any thread."""

    def read(self, entry: SourceEntry) -> Original:
        """Raises OSError and ImageError for what is wrong with this sample, another DataError for the whole source."""

    def name(self, entry: SourceEntry) -> str:
        """What a person calls the sample."""

    def problem(self, entry: SourceEntry) -> str | None:
        """Why it cannot be read, as far as the listing knows; None where it can."""

    def close(self) -> None:
        """Give back what is held open."""


def note(path: str, extra: Row | None = None) -> bytes:
    """The json that goes with a sample of which nothing but its path and further columns is known."""
    return json.dumps({"path": path} | (extra or {})).encode()


class _Columns:
    """The memory of entries: 36 bytes, the path and the further columns as json, for each."""

    def __init__(self) -> None:
        self.numbers = array("q")  # label, size, row, place and reader of each
        self.text = bytearray()  # paths and further columns
        self.ends = array("q", [0])  # of both, in `text`


class Entries(Sequence[SourceEntry]):
    """A list of entries that takes about a hundred bytes for each, and selections of it that share its memory."""

    def __init__(self, entries: Iterable[SourceEntry] = ()) -> None:
        self._columns = _Columns()
        self._chosen: npt.NDArray[np.int64] | None = None
        for entry in entries:
            self.append(entry)

    def append(self, entry: SourceEntry) -> None:
        """Add one at the end; not to a selection."""
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
        at = range(len(self))[index] if self._chosen is None else int(self._chosen[index])
        columns = self._columns
        label, size, row, place, reader = columns.numbers[5 * at : 5 * at + 5]
        begin, middle, end = columns.ends[2 * at : 2 * at + 3]
        path = columns.text[begin:middle].decode("utf-8", "surrogatepass")
        extra = json.loads(columns.text[middle:end]) if end > middle else None
        return SourceEntry(path, label, size, row, extra, place, reader)

    def __iter__(self) -> Iterator[SourceEntry]:
        return (self[i] for i in range(len(self)))

    def select(self, indices: npt.NDArray[np.int64]) -> "Entries":
        """Those at `indices`, in their order."""
        other = Entries()
        other._columns = self._columns
        other._chosen = indices if self._chosen is None else self._chosen[indices]
        return other

    def sorted(self, key: Callable[[SourceEntry], Any]) -> "Entries":
        """In the order of `key`."""
        return self.select(np.array(sorted(range(len(self)), key=lambda i: key(self[i])), np.int64))

    @property
    def labels(self) -> npt.NDArray[np.int64]:
        """[N], a copy."""
        return self._number(0)

    @property
    def sizes(self) -> npt.NDArray[np.int64]:
        """[N], a copy."""
        return self._number(1)

    def relabel(self, table: npt.NDArray[np.int64]) -> None:
        """Put `table[label]` in place of every label that is one; not in a selection."""
        assert self._chosen is None
        labels = np.frombuffer(self._columns.numbers, np.int64).reshape(-1, 5)[:, 0]
        known = labels >= 0
        labels[known] = table[labels[known]]

    def _number(self, column: int) -> npt.NDArray[np.int64]:
        numbers = np.frombuffer(self._columns.numbers, np.int64).reshape(-1, 5)[:, column]
        return numbers.copy() if self._chosen is None else numbers[self._chosen]


@dataclass(frozen=True)
class Source:  # more than 12 fields: every kind of source sets only what it differs in
    """Entries by split; classes are the same in every split."""

    src: Path  # as it was given
    kind: str
    classes: tuple[str, ...]
    splits: dict[str, Entries]
    readers: tuple[SourceReader, ...]
    ignored: Ignored = field(default_factory=Ignored)  # files under `src` that are neither samples nor shards
    uncounted: tuple[str, ...] = ()  # sentences on files that could lie beside those that are read
    named: bool = True  # the classes have names; False: labels are numbers, and so are the classes' names
    stored: bool = False  # it is a dataset already: its order is kept, and classes and splits may lack samples
    fields: tuple[str, ...] = ()  # that samples may have beside image, label and note
    remarks: tuple[str, ...] = ()  # what a person should hear of it
    files: tuple[Path, ...] = ()  # shards that samples are read from
    content: Content = "images"
    columns: tuple[str, ...] = ()  # sentences on which columns of manifests are used
    from_table: bool = False  # its classes are the values of a column, to which nobody gave names

    def read(self, entry: SourceEntry) -> Original:
        """See SourceReader."""
        return self.readers[entry.reader].read(entry)

    def name(self, entry: SourceEntry) -> str:
        """See SourceReader."""
        return self.readers[entry.reader].name(entry)

    def problem(self, entry: SourceEntry) -> str | None:
        """See SourceReader."""
        return self.readers[entry.reader].problem(entry)

    def close(self) -> None:
        """See SourceReader."""
        for reader in self.readers:
            reader.close()

    def fingerprint(self) -> str:
        """sha256 of everything in the listing that the samples are made of, whatever the numbers of their classes."""
        digest = hashlib.sha256(json.dumps(self.fields).encode())
        names = (*self.classes, None)  # -1: none
        for split, entries in sorted(self.splits.items()):
            for e in entries:
                digest.update(json.dumps((split, e.path, names[e.label], e.size, e.extra)).encode())
        return digest.hexdigest()
