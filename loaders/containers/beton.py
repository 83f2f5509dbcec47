"""Writer and reader of FFCV's .beton container. The format is in beton_fields.py; tests/peers has ffcv check it."""

import contextlib
import hashlib
import itertools
import json
import os
import struct
import weakref
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from fastimg.loaders.errors import ShardError

from .atomic import WholeFile, sync_folder, temporary
from .beton_fields import (
    DESCRIPTOR,
    HEADER,
    METADATA,
    PAGE_SIZES,
    RAW,
    REGION,
    RGB,
    SCALARS,
    SPAN,
    VERSION,
    BetonField,
    describe,
    encode,
    parse_descriptor,
    pointers,
    sample_dtype,
)
from .readahead import ask
from .watch import fill

_CHUNK = 1 << 20  # bytes; divides every page
_CUSTOM_SIZES = (np.dtype("<u8"), SPAN, RGB, *map(np.dtype, ("<u4", "<u2", *(f"V{size}" for size in range(1, 65)))))
_AGAIN = "cut short or altered; copy or convert it again"


class BetonPart(NamedTuple):
    """A number of samples of an unfinished .beton that are on disk: what a writer has to know of them to go on."""

    samples: int
    metadata: bytes
    table: bytes
    end: int  # of their data, from the first page
    file_end: int  # in the unfinished file


class BetonWriter(WholeFile):
    """`with BetonWriter(path, {"image": BetonField("rgb"), "label": BetonField("int")}) as beton: beton.add({...})`.

    The file appears when the block ends without an error; before that, and after an error, nothing does. Its bytes
    follow from fields, page size and samples: `num_samples` is an expectation, and one that is wrong by a page of
    metadata costs moving the data in the end. Held in memory: the metadata and 24 bytes per region; 48 bytes a sample
    of image and label. With `keeps` an error leaves the unfinished file, for another writer that gets its `parts` (of
    the same fields, page size and `num_samples`). Afterwards `samples`, `bytes` and `sha256` (which reads the file) say
    what was written.
    """

    def __init__(
        self,
        path: Path,
        fields: Mapping[str, BetonField],
        num_samples: int = 0,
        page_size: int = 1 << 23,
        parts: Sequence[BetonPart] = (),
        keeps: bool = False,
    ) -> None:
        if page_size not in PAGE_SIZES:
            raise ValueError(f"page_size={page_size}: give a power of two, {PAGE_SIZES[0]} to {PAGE_SIZES[-1]}")
        if not fields:
            raise ValueError("a .beton has one field at least")
        self.path = path
        self.fields = dict(fields)
        self.page_size = page_size
        self.samples = self.bytes = 0
        self._descriptors = np.array([describe(name, field) for name, field in fields.items()], DESCRIPTOR)
        self._dtype = sample_dtype([METADATA[field.kind] for field in fields.values()])
        self._metadata = bytearray()  # pointers in it count from the first page
        self._table = bytearray()  # and so they do here
        self._start = self._first_page(num_samples)  # as expected
        self._end = 0  # of what is written, from the first page
        for part in parts:
            self._metadata += part.metadata
            self._table += part.table
            self.samples += part.samples
            self._end = part.end
        self._file = temporary(path).open("r+b" if parts else "w+b")
        self._file.truncate(self._start + self._end if parts else 0)
        self._file.seek(self._start + self._end)
        self._parted = self.samples, len(self._metadata), len(self._table)  # that parts have told of
        self._keeps = keeps

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None or not self._keeps:
            return super().__exit__(kind, error, trace)
        with contextlib.suppress(OSError):  # a full disk fails once more on what is still buffered
            self._file.close()
        return None

    def add(self, sample: Mapping[str, object]) -> None:
        """Append one sample, with a value for each field. Raises ValueError for what cannot be held; it is left out."""
        if sample.keys() != self.fields.keys():
            raise ValueError(f"a sample of {', '.join(sample)} where the fields are {', '.join(self.fields)}")
        record = np.zeros((), self._dtype)
        regions: list[tuple[npt.NDArray[Any], memoryview]] = []  # (where the pointer goes, what it points at)
        for at, (name, field) in zip(self._dtype.names or (), self.fields.items(), strict=True):
            try:
                record[at], region = encode(field, sample[name])
            except (TypeError, ValueError, OverflowError) as error:
                raise ValueError(f"{name}: {error}") from error
            if region is not None:
                regions.append((pointers(record[at]), region))
        total = sum(region.nbytes for _, region in regions)
        if total > self.page_size:
            needed = next((f"give page_size={size}" for size in PAGE_SIZES if size >= total), "no page is so large")
            raise ValueError(f"a sample of {total} bytes does not fit in a page of {self.page_size}: {needed}")
        room = self.page_size - self._end % self.page_size
        if total > room:  # all of it goes to the next page
            self._end += room
            self._file.seek(self._start + self._end)
        for pointer, region in regions:
            pointer[...] = self._end
            self._table += struct.pack("<3Q", self.samples, self._end, region.nbytes)
            self._file.write(region)
            self._end += region.nbytes
        self._metadata += record.tobytes()
        self.samples += 1

    def part(self) -> BetonPart:
        """Put what was added since the last part on disk. Another writer continues from this and the earlier parts."""
        self._file.flush()
        os.fsync(self._file.fileno())
        samples, metadata, table = self._parted
        part = BetonPart(
            samples=self.samples - samples,
            metadata=bytes(self._metadata[metadata:]),
            table=bytes(self._table[table:]),
            end=self._end,
            file_end=self._start + self._end,
        )
        self._parted = self.samples, len(self._metadata), len(self._table)
        return part

    @cached_property
    def sha256(self) -> str:
        """Of the published file."""
        with self.path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()

    def _head_size(self, samples: int) -> int:
        return HEADER.itemsize + self._descriptors.nbytes + samples * self._dtype.itemsize

    def _first_page(self, samples: int) -> int:
        return -(-self._head_size(samples) // self.page_size) * self.page_size

    def _publish(self) -> None:
        start = self._first_page(self.samples)
        self._file.flush()
        if self._end and start != self._start:
            self._move(start)
        end = start - -self._end // self.page_size * self.page_size if self._end else self._head_size(self.samples)
        metadata: npt.NDArray[Any] = np.frombuffer(self._metadata, self._dtype)
        table: npt.NDArray[Any] = np.frombuffer(self._table, REGION)
        for at, field in zip(self._dtype.names or (), self.fields.values(), strict=True):
            if field.kind not in SCALARS:
                pointers(metadata[at])[...] += np.uint64(start)
        table["ptr"] += np.uint64(start)
        header = np.array((VERSION, len(self.fields), self.page_size, self.samples, end), HEADER)
        self._file.truncate(start + self._end if self._end else 0)
        self._file.truncate(end)  # zeros
        self._file.seek(0)
        for part in (header, self._descriptors, metadata):
            self._file.write(part.tobytes())
        self._file.seek(end)
        self._file.write(table.tobytes())
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        self.bytes = end + table.nbytes
        temporary(self.path).replace(self.path)
        sync_folder(self.path.parent)

    def _move(self, start: int) -> None:
        """Move the pages to `start`, by chunks, in the order that writes over none unread."""
        offsets = range(0, self._end, _CHUNK)
        for at in offsets if start < self._start else reversed(offsets):
            self._file.seek(self._start + at)
            chunk = self._file.read(min(_CHUNK, self._end - at))
            self._file.seek(start + at)
            self._file.write(chunk)
        if start > self._start:
            self._file.seek(self._start)
            for _ in range(self._start, start, _CHUNK):
                self._file.write(bytes(_CHUNK))
        self._file.flush()


class BetonFile:
    """Random access to a .beton, by preadv, from any writer and from any thread.

    Opening checks every field, pointer and size against the file and raises ShardError, before anything is allocated
    that the file is too small to fill. Held: the metadata, and 8 bytes per image or array; while opening, 5 times the
    allocation table. `custom` names the fields that only their maker's code can read; they are passed over.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        if not path.is_file():
            raise ShardError(f"{path}: {'not a file' if path.exists() else 'no such file'}")
        try:
            self._file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise ShardError(f"{path}: {error.strerror}") from error
        self._close = weakref.finalize(self, os.close, self._file)
        self.status = os.fstat(self._file)
        try:
            self._open(self.status.st_size)
        except BaseException:
            self.close()
            raise

    def _open(self, file_size: int) -> None:
        header = self._records(HEADER, 1, 0, file_size, "header")[0]
        version, num_fields, self.page_size, self._samples, end = (int(header[name]) for name in HEADER.names or ())
        if version != VERSION or num_fields == 0 or self.page_size not in PAGE_SIZES:
            raise ShardError(f"{self.path}: not a .beton of version {VERSION}, or altered; copy or convert it again")
        if end > file_size or (file_size - end) % REGION.itemsize:
            raise ShardError(f"{self.path}: its allocation table is not where its header says: {_AGAIN}")
        descriptors = self._records(DESCRIPTOR, num_fields, HEADER.itemsize, end, "fields")
        try:
            self.fields = dict(parse_descriptor(descriptor) for descriptor in descriptors)
        except ValueError as error:
            raise ShardError(f"{self.path}: {error}: {_AGAIN}") from error
        if len(self.fields) < num_fields:
            raise ShardError(f"{self.path}: two fields have one name: {_AGAIN}")
        self.custom = tuple(name for name, field in self.fields.items() if field.kind == "custom")
        table = self._records(REGION, (file_size - end) // REGION.itemsize, end, file_size, "allocation table")
        table = table[table["size"] > 0]  # FFCV makes empty regions, and their pointers are the next one's too
        table = table[np.argsort(table["ptr"], kind="stable")]
        start = HEADER.itemsize + descriptors.nbytes
        if not self.custom:
            self._read_metadata(
                [METADATA[field.kind] for field in self.fields.values()], self._samples, start, end, table
            )
            return
        for layout in self._layouts():
            with contextlib.suppress(ShardError):
                for count in (min(self._samples, 64), self._samples):  # few are enough to refuse a wrong layout
                    self._read_metadata(layout, count, start, end, table)
                return
        raise ShardError(f"{self.path}: only the code that wrote {' and '.join(self.custom)} knows its size")

    def _layouts(self) -> list[list[np.dtype[Any]]]:
        """Records to try where custom fields are of an unknown size: the pointers beside them must fit."""
        pointing = any(field.kind not in (*SCALARS, "custom") for field in self.fields.values())
        if len(self.custom) > 2 or not pointing or not self._samples:
            return []
        choices = [
            _CUSTOM_SIZES if field.kind == "custom" else (METADATA[field.kind],) for field in self.fields.values()
        ]
        return [list(layout) for layout in itertools.product(*choices)]

    def _read_metadata(
        self, layout: list[np.dtype[Any]], count: int, start: int, end: int, table: npt.NDArray[Any]
    ) -> None:
        self.metadata = self._records(sample_dtype(layout), count, start, end, "metadata")
        self._check_table(table, start + self.metadata.nbytes, end)
        self._sizes = {name: self._check_field(name, table) for name in self.fields}

    def _check_table(self, table: npt.NDArray[Any], start: int, end: int) -> None:
        """The regions, sorted, must lie between metadata and table, and apart."""
        ptr = table["ptr"]
        size = table["size"]
        if (table["sample_id"] >= self._samples).any():
            raise ShardError(f"{self.path}: its allocation table has more samples than its header: {_AGAIN}")
        inside = (ptr >= start) & (ptr <= end) & (size <= end)  # so that their sum is less than 2^64
        if not inside.all() or (ptr + size > np.append(ptr[1:], np.uint64(end))[: len(ptr)]).any():
            raise ShardError(f"{self.path}: regions of its allocation table leave the data, or overlap: {_AGAIN}")

    def _check_field(self, name: str, table: npt.NDArray[Any]) -> npt.NDArray[np.uint64]:
        """Sizes of a field's regions [N], none for scalars. The table must give each sample its own."""
        field = self.fields[name]
        metadata = self.column(name)
        if field.kind in (*SCALARS, "custom"):
            return np.zeros(0, np.uint64)
        if not len(table):
            table = np.zeros(1, REGION)
        own = pointers(metadata)
        found = table[np.minimum(np.searchsorted(table["ptr"], own), len(table) - 1)]
        is_own = (found["ptr"] == own) & (found["sample_id"] == np.arange(len(metadata), dtype=np.uint64))
        available = np.where(is_own, found["size"], np.uint64(0))
        bad = np.zeros(len(metadata), np.bool_)
        if field.kind == "rgb":
            raw = metadata["width"].astype(np.uint64) * metadata["height"] * np.uint64(3)
            sizes = np.where(metadata["mode"] == RAW, raw, available)
            bad = (metadata["mode"] > RAW) | (sizes == 0)
        elif field.dtype is not None:
            sizes = np.full(len(metadata), min(field.nbytes, 2**63), np.uint64)
        else:
            sizes = metadata["size"]
        bad |= (sizes != available) & (sizes > 0)  # the pointer of an empty value means nothing
        if self.custom:  # an empty value, which may point anywhere, is no evidence
            bad |= available == 0
        if bad.any():
            index = int(bad.argmax())
            raise ShardError(f"{self.path}: {name} of sample {index} is not in the allocation table: {_AGAIN}")
        return sizes

    def __len__(self) -> int:
        return self._samples

    def column(self, name: str) -> npt.NDArray[Any]:
        """Metadata of a field [N]: of an int or float field, its values."""
        column: npt.NDArray[Any] = self.metadata[f"f{list(self.fields).index(name)}"]
        return column

    def extents(self, name: str) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint64]]:
        """(offset, size) [N] of a field that is not a scalar."""
        return pointers(self.column(name)), self._sizes[name]

    def sample(self, index: int) -> dict[str, Any]:
        """The values of one sample, custom fields left out. Raises ShardError."""
        return {name: self.value(name, index) for name, field in self.fields.items() if field.kind != "custom"}

    def value(self, name: str, index: int) -> Any:
        """One field of one sample, as beton_fields tells. Raises ShardError."""
        field = self.fields[name]
        record = self.column(name)[index]
        if field.kind in SCALARS:
            return record.item()
        data = self._region(name, index)
        if field.kind == "json":
            try:
                return json.loads(data.removesuffix(b"\0"))
            except (ValueError, RecursionError) as error:
                raise ShardError(f"{self.path}: {name} of sample {index} is not JSON ({error}): {_AGAIN}") from error
        if field.kind == "rgb" and record["mode"] == RAW:
            return np.frombuffer(data, np.uint8).reshape(int(record["height"]), int(record["width"]), 3)
        if field.dtype is not None:
            return np.frombuffer(data, field.dtype).reshape(field.shape)
        return bytes(data)

    def raw(self, name: str, index: int) -> bytes:
        """The stored bytes of a field that is not a scalar: JSON with its NUL, the elements of an array."""
        return bytes(self._region(name, index))

    def _region(self, name: str, index: int) -> bytearray:
        offsets, sizes = self.extents(name)
        data = bytearray(int(sizes[index]))
        self.fill(memoryview(data), int(offsets[index]))
        return data

    def fill(self, view: memoryview, offset: int) -> None:
        """Read into all of `view` from `offset` on. Raises ShardError where the file ends before."""
        try:
            fill(self._file, view, offset)
        except EOFError as error:
            raise ShardError(f"{self.path}: shrank while it was in use; copy it again") from error
        except OSError as error:
            raise ShardError(f"{self.path}: cannot be read ({error.strerror}); copy it again") from error

    def as_part(self) -> BetonPart:
        """All samples as a part for a writer that continues a copy of this file, which must be one of ours."""
        size = os.fstat(self._file).st_size
        end = int(self._records(HEADER, 1, 0, size, "header")[0]["table_ptr"])
        table = self._records(REGION, (size - end) // REGION.itemsize, end, size, "allocation table").copy()
        # By bytes: a copy of records leaves what lies between their fields to chance.
        metadata = np.frombuffer(bytearray(self.metadata.view(np.uint8)), self.metadata.dtype)
        head = HEADER.itemsize + len(self.fields) * DESCRIPTOR.itemsize + metadata.nbytes
        start = np.uint64(-(-head // self.page_size) * self.page_size)
        for at, field in zip(metadata.dtype.names or (), self.fields.values(), strict=True):
            if field.kind not in SCALARS:
                pointers(metadata[at])[...] -= start
        table["ptr"] -= start
        data_end = int((table["ptr"] + table["size"]).max(initial=0))
        return BetonPart(len(self), metadata.tobytes(), table.tobytes(), data_end, int(start) + data_end)

    def will_need(self, offset: int, size: int) -> None:
        """Ask the system to read this ahead."""
        ask(self._file, offset, size)

    def close(self) -> None:
        """Close the file."""
        self._close()
        self._file = -1  # the descriptor may belong to another file by now

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _records(self, dtype: np.dtype[Any], count: int, offset: int, end: int, what: str) -> npt.NDArray[Any]:
        """`count` records from `offset` on, which must end by `end`."""
        nbytes = count * dtype.itemsize
        if offset + nbytes > end:
            raise ShardError(f"{self.path}: {nbytes} bytes of {what} at byte {offset} do not fit in the file: {_AGAIN}")
        data = bytearray(nbytes)
        self.fill(memoryview(data), offset)
        return np.frombuffer(data, dtype)
