"""Sources that are read front to back once: parquet files with images in them, and sets known by name.

Their images go, in order, into a temporary file that has no name; what is listed is read from there, in any order and
from any thread. In memory stay the listing and what is being read: some rows of a parquet file, one image of a set.

A record of the file is the image, the length of a head (uint32), the head, and the further fields. The head is json:
`extra`, the further columns, and `fields`, the size of each field.
"""

import contextlib
import json
import os
import struct
import tempfile
import zlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np

from fastimg.loaders.errors import DataError
from fastimg.loaders.folders.folder import SPLIT_FOLDERS
from fastimg.loaders.folders.formats import image_extensions
from fastimg.wording import agreeing, plural

from .columns import Columns
from .labels import Labels, number_classes
from .named_sets import SETS, open_set
from .samples import Entries, Original, Row, Source, SourceEntry, note

NAMED = tuple(SETS)

Tick = Callable[[int], None]  # hears how many more images were read

_PENDING = 1 << 20  # bytes written at once
_HEAD = struct.Struct("<I")


class Spool:
    """A temporary file without a name, which takes records in order and gives them back in any."""

    def __init__(self, folder: Path) -> None:
        """`folder` need not be there yet: then the file is in the nearest one above that is."""
        self._file = _nameless(next(path for path in (folder.absolute(), *folder.absolute().parents) if path.is_dir()))
        self._pending = bytearray()
        self._end = 0

    def add(self, image: bytes, extra: Row, fields: Mapping[str, bytes]) -> tuple[int, int]:
        """Where the record begins, and its crc32."""
        place, crc = self._end, 0
        head = json.dumps({"extra": extra, "fields": {name: len(data) for name, data in fields.items()}}).encode()
        for part in (image, _HEAD.pack(len(head)), head, *fields.values()):
            self._pending += part
            self._end += len(part)
            crc = zlib.crc32(part, crc)
            if len(self._pending) >= _PENDING:
                self.flush()
        return place, crc

    def flush(self) -> None:
        """Write what is pending. To be called before anything is read."""
        with memoryview(self._pending) as left:
            done = 0
            while done < len(left):
                done += os.write(self._file, left[done:])
        self._pending = bytearray()

    def read(self, place: int, size: int) -> bytes:
        """`size` bytes at `place`, from any thread."""
        data = os.pread(self._file, size, place)
        while 0 < len(data) < size and (more := os.pread(self._file, size - len(data), place + len(data))):
            data += more
        if len(data) != size:
            raise DataError("the temporary file of the source was cut short while it was read; run this again")
        return data

    def close(self) -> None:
        """Give the file back; any number of times."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


def _nameless(folder: Path) -> int:
    with contextlib.suppress(OSError, AttributeError):  # some file systems, and systems, know no O_TMPFILE
        return os.open(folder, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
    file, name = tempfile.mkstemp(prefix=".fastimg-", dir=folder)
    os.unlink(name)
    return file


class SpoolReader:
    """Reads what was spooled of one file or set, called `where`.

    An entry's `extra` holds the checksum of its record, so that a listing's fingerprint tells changed content; the
    further columns themselves are in the record.
    """

    def __init__(self, spool: Spool, where: str) -> None:
        self.fields: set[str] = set()  # that some sample has
        self._spool = spool
        self.where = where
        self._extensions = image_extensions()

    def add(self, entry: SourceEntry, image: bytes, extra: Row, fields: Mapping[str, bytes]) -> SourceEntry:
        """`entry` with its size and place, after its record is stored; nothing is stored of an empty image."""
        if not image:
            return entry._replace(size=-1)
        self.fields.update(fields)
        place, crc = self._spool.add(image, extra, fields)
        return entry._replace(size=len(image), place=place, extra={"crc32": crc})

    def read(self, entry: SourceEntry) -> Original:
        """See SourceReader."""
        image = self._spool.read(entry.place, entry.size)
        at = entry.place + entry.size + _HEAD.size
        (length,) = _HEAD.unpack(self._spool.read(at - _HEAD.size, _HEAD.size))
        head = json.loads(self._spool.read(at, length))
        at += length
        fields = {}
        for name, size in head["fields"].items():
            fields[name] = self._spool.read(at, size)
            at += size
        return Original(image, _suffix(entry.path, self._extensions), note(entry.path, head["extra"]), fields)

    def name(self, entry: SourceEntry) -> str:
        """The file, the row in it where there are rows, and the key."""
        return f"{self.where}: row {entry.row}: {entry.path}" if entry.row else f"{self.where}: {entry.path}"

    def problem(self, entry: SourceEntry) -> str | None:
        """See SourceReader."""
        return None if entry.size >= 0 else "the image is empty"

    def close(self) -> None:
        """See SourceReader."""
        self._spool.close()


def _suffix(path: str, extensions: frozenset[str]) -> str:
    """The extension of a path that has one of an image's, without its dot."""
    suffix = os.path.splitext(path)[1].lower()
    return suffix[1:] if suffix in extensions else ""


def read_named(text: str, spool: Path, tick: Tick | None = None) -> Source:
    """List `torchvision:NAME` or `sklearn:digits`, downloading it where it is not there.

    `spool` is the folder for a temporary file. Raises DataError, UsageError, and OSError where that folder is full.
    """
    with contextlib.ExitStack() as stack:
        file = stack.enter_context(contextlib.closing(Spool(spool)))
        reader = SpoolReader(file, text)
        classes: tuple[str, ...] | None = None
        splits: dict[str, Entries] = {}
        said = []
        for part in open_set(text):
            classes = classes or part.classes
            said += [f"{text}: {part.remark}"] if part.remark else []
            entries = splits[part.split] = Entries()
            for key, image, label in part.samples:
                entries.append(reader.add(SourceEntry(key, label, 0), image, {}, {}))
                if tick:
                    tick(1)
        file.flush()
        _check_filled(text, splits, ())
        top = max(int(entries.labels.max(initial=-1)) for entries in splits.values())
        named = classes is not None and top < len(classes)
        names = classes if classes is not None and named else tuple(map(str, range(top + 1)))
        source = _source(Path(text), text, names, splits, (reader,), named=named, said=said)
        stack.pop_all()
    return source


def read_parquets(
    src: Path, files: Mapping[str, list[Path]], columns: Columns, spool: Path, tick: Tick | None = None
) -> Source:
    """List parquet files with images, by split; a split column goes before the files' names.

    `spool` is the folder for a temporary file. Raises DataError, UsageError, and OSError where that folder is full.
    """
    from .image_parquets import LABELS, read_layout, read_rows, same_layout  # brings pyarrow

    first = next(path for paths in files.values() for path in paths)
    layout = read_layout(first, columns)
    for path in (path for paths in files.values() for path in paths):
        same_layout(path, read_layout(path, columns), first, layout)
    if layout.split is None:
        _check_splits(src, files)
    with contextlib.ExitStack() as stack:
        file = stack.enter_context(contextlib.closing(Spool(spool)))
        label_cells = (
            Labels(src, layout.label, columns) if layout.label is not None and layout.classes is None else None
        )
        readers: list[SpoolReader] = []
        splits: dict[str, Entries] = {}
        labels: dict[str, int] = {}  # numbers of labels that no schema names, in the order of their appearance
        for split, paths in sorted(files.items()):
            for path in paths:
                place = path.relative_to(src) if path != src else Path(src.name)
                reader = SpoolReader(file, str(path))
                for sample in read_rows(path, layout, label_cells):
                    key = sample.key or f"{place}/{sample.row - 1:06d}"
                    text = sample.label
                    label = labels.setdefault(text, len(labels)) if isinstance(text, str) else text
                    entry = SourceEntry(key, label, 0, sample.row, reader=len(readers))
                    entry = reader.add(entry, sample.image, sample.extra, sample.fields)
                    splits.setdefault(sample.split or split, Entries()).append(entry)
                    if tick:
                        tick(1)
                readers.append(reader)
        file.flush()
        _check_filled(src, splits, () if layout.split else files)
        said = list(label_cells.judged()) if label_cells else []
        classes, numbers = number_classes(list(labels)) if layout.classes is None else (layout.classes, None)
        if numbers is not None:
            for entries in splits.values():
                entries.relabel(numbers)
            _check_trained(splits, classes, readers)
        if layout.label is None:
            said = [f"{src}: no label column ({', '.join(LABELS)}); if it has one, name it with --label-column"]
        splits = dict(sorted(splits.items()))
        source = _source(src, "parquet", classes, splits, tuple(readers), named=layout.label is not None, said=said)
        source = replace(source, from_table=label_cells is not None)
        stack.pop_all()
    return source


def _check_splits(src: Path, files: Mapping[str, list[Path]]) -> None:
    known = sorted(set(SPLIT_FOLDERS.values()))
    if unknown := sorted(set(files) - set(known)):
        raise DataError(
            f"{src}: {', '.join(unknown)}: not among {', '.join(known)}; rename these files or move them away"
        )


def _check_filled(src: Path | str, splits: Mapping[str, Entries], expected: Iterable[str]) -> None:
    """Every split has rows, and one of them is train."""
    if not splits:
        raise DataError(f"{src}: no rows; give one row per image")
    if empty := sorted(set(expected) - set(splits)):
        raise DataError(f"{src}: no rows in the files of {', '.join(empty)}; remove these files")
    if "train" not in splits:
        raise DataError(f"{src}: no training split; it has {', '.join(sorted(splits))}")


def _check_trained(splits: Mapping[str, Entries], classes: tuple[str, ...], readers: list[SpoolReader]) -> None:
    """The training split has every class that another has."""
    trained = set(splits["train"].labels.tolist())
    for split, entries in splits.items():
        lacking = np.flatnonzero(~np.isin(entries.labels, list(trained)))
        if len(lacking):
            entry = entries[int(lacking[0])]
            raise DataError(
                f"{readers[entry.reader].name(entry)}: the training split has no class {classes[entry.label]!r}, which "
                f"{split} has; add it there or drop the row"
            )


def _source(
    src: Path,
    kind: str,
    classes: tuple[str, ...],
    splits: dict[str, Entries],
    readers: tuple[SpoolReader, ...],
    *,
    named: bool,
    said: list[str],
) -> Source:
    """The source; it counts as stored already where classes lack training images, or images lack labels."""
    lacks = []
    for split, entries in splits.items():
        if missing := int((entries.labels < 0).sum()):
            lacks.append(
                f"{src}: {missing:,} of {plural(len(entries), 'image')} of {split} {agreeing(missing, 'has')} no label"
            )
    trained = set(splits["train"].labels.tolist())
    if untrained := [name for label, name in enumerate(classes) if label not in trained]:
        shown = ", ".join(untrained[:5]) + (", ..." if len(untrained) > 5 else "")
        lacks.append(
            f"{src}: {len(untrained):,} of {plural(len(classes), 'class')} {agreeing(len(untrained), 'has')} no "
            f"training image ({shown})"
        )
    if lacks:
        lacks.append(f"{src}: the images keep their order, unless --shuffle is given")
    fields = tuple(sorted({field for reader in readers for field in reader.fields}))
    remarks = tuple(said + lacks)
    return Source(src, kind, classes, splits, readers, named=named, stored=bool(lacks), fields=fields, remarks=remarks)
