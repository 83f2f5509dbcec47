"""Writer and reader of FFCV's .beton container.

kinds.py describes the format; tests/peers checks it against ffcv itself.
"""

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

from fastimg.loaders.containers.atomic import EarlySync, WholeFile, sync_folder, temporary
from fastimg.loaders.containers.readahead import ask_all, pieces
from fastimg.loaders.containers.watch import fill
from fastimg.loaders.errors import ShardError
from fastimg.loaders.runtime.scratch import Encoded

from .kinds import (
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

_CHUNK = 1 << 20  # bytes; divides every page size
_CUSTOM_SIZES = (np.dtype("<u8"), SPAN, RGB, *map(np.dtype, ("<u4", "<u2", *(f"V{size}" for size in range(1, 65)))))
_DAMAGED = "cut short or altered; copy or convert it again"


class BetonPart(NamedTuple):
    """Samples of an unfinished .beton that are already on disk: what another writer needs in order to continue."""

    samples: int
    metadata: bytes
    table: bytes
    end: int  # where their data ends, counted from the first page
    file_end: int  # where it ends in the unfinished file


class BetonWriter(WholeFile):
    """`with BetonWriter(path, {"image": BetonField("rgb"), "label": BetonField("int")}) as beton: beton.add({...})`.

    The file appears when the block ends without an error, and not before. Its bytes depend only on the fields, the page
    size and the samples. `num_samples` is only an estimate; if it is off by more than a page of metadata, all data is
    moved once at the end. The metadata and 24 bytes per region are kept in memory: 48 bytes per sample of image and
    label. With `keeps`, an error leaves the unfinished file behind, and another writer can continue it, given its
    `parts` and the same fields, page size and `num_samples`. While data is moved, the file has another name: after a
    kill, all samples have to be written again. Afterwards `samples`, `bytes` and `sha256` (which reads the file)
    describe what was written.
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
            raise ValueError(f"page_size={page_size}: give a power of two from {PAGE_SIZES[0]} to {PAGE_SIZES[-1]}")
        if not fields:
            raise ValueError("a .beton needs at least one field")
        self.path = path
        self.fields = dict(fields)
        self.page_size = page_size
        self.samples = 0
        self.bytes = 0
        self._descriptors = np.array([describe(name, field) for name, field in fields.items()], DESCRIPTOR)
        self._dtype = sample_dtype([METADATA[field.kind] for field in fields.values()])
        # Until the file is published, pointers in the metadata and the table count from the first page.
        self._metadata = bytearray()
        self._table = bytearray()
        self._start = self._first_page(num_samples)  # if the estimate is right
        self._end = 0  # where the data ends, counted from the first page
        for part in parts:
            self._metadata += part.metadata
            self._table += part.table
            self.samples += part.samples
            self._end = part.end
        self._file = temporary(path).open("r+b" if parts else "w+b")
        self._early = EarlySync(self._file.fileno())
        self._file.truncate(self._start + self._end if parts else 0)
        self._file.seek(self._start + self._end)
        self._parted = self.samples, len(self._metadata), len(self._table)  # what parts already describe
        self._keeps = keeps
        self._moving = path.with_name(f".{path.name}.moving")  # the file while its pages are moved

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None or not self._keeps:
            try:
                return super().__exit__(kind, error, trace)
            finally:
                self._moving.unlink(missing_ok=True)
        self._close()
        return None

    def add(self, sample: Mapping[str, object]) -> None:
        """Append one sample, with a value for each field. Raises ValueError if it cannot be stored."""
        if sample.keys() != self.fields.keys():
            raise ValueError(f"a sample has the fields {', '.join(sample)}; expected {', '.join(self.fields)}")
        record = np.zeros((), self._dtype)
        regions: list[tuple[npt.NDArray[Any], memoryview]] = []  # (where the pointer goes, what it points at)
        for column, (name, field) in zip(self._dtype.names or (), self.fields.items(), strict=True):
            try:
                record[column], region = encode(field, sample[name])
            except (TypeError, ValueError, OverflowError) as error:
                raise ValueError(f"{name}: {error}") from error
            if region is not None:
                regions.append((pointers(record[column]), region))
        total = sum(region.nbytes for _, region in regions)
        if total > self.page_size:
            needed = next((f"give page_size={size}" for size in PAGE_SIZES if size >= total), "no page is that large")
            raise ValueError(f"a sample of {total} bytes does not fit in a page of {self.page_size}: {needed}")
        room = self.page_size - self._end % self.page_size
        if total > room:  # the whole sample goes to the next page
            self._end += room
            self._file.seek(self._start + self._end)
        for pointer, region in regions:
            pointer[...] = self._end
            self._table += struct.pack("<3Q", self.samples, self._end, region.nbytes)
            self._file.write(region)
            self._end += region.nbytes
        self._metadata += record.tobytes()
        self.samples += 1
        self._early.reached(self._end)

    def part(self) -> BetonPart:
        """Flush what was added since the last part to disk; another writer can continue from all parts so far."""
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
        """The SHA-256 digest of the published file."""
        with self.path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()

    def _head_size(self, samples: int) -> int:
        return HEADER.itemsize + self._descriptors.nbytes + samples * self._dtype.itemsize

    def _first_page(self, samples: int) -> int:
        return -(-self._head_size(samples) // self.page_size) * self.page_size

    def _publish(self) -> None:
        start = self._first_page(self.samples)
        self._file.flush()
        complete = temporary(self.path)
        if self._end and start != self._start:
            # Until all pages are moved, parts no longer describe them: a file of this name is not continued.
            complete = complete.replace(self._moving)
            sync_folder(self.path.parent)
            self._move(start)
        end = start - -self._end // self.page_size * self.page_size if self._end else self._head_size(self.samples)
        metadata: npt.NDArray[Any] = np.frombuffer(self._metadata, self._dtype)
        table: npt.NDArray[Any] = np.frombuffer(self._table, REGION)
        for column, field in zip(self._dtype.names or (), self.fields.values(), strict=True):
            if field.kind not in SCALARS:
                pointers(metadata[column])[...] += np.uint64(start)
        table["ptr"] += np.uint64(start)
        header = np.array((VERSION, len(self.fields), self.page_size, self.samples, end), HEADER)
        self._file.truncate(start + self._end if self._end else 0)
        self._file.truncate(end)  # fills up with zeros
        self._file.seek(0)
        for part in (header, self._descriptors, metadata):
            self._file.write(part.tobytes())
        self._file.seek(end)
        self._file.write(table.tobytes())
        self._file.flush()
        self._early.close()
        os.fsync(self._file.fileno())
        self._file.close()
        self.bytes = end + table.nbytes
        complete.replace(self.path)
        sync_folder(self.path.parent)

    def _move(self, start: int) -> None:
        """Move the pages to `start` chunk by chunk, in the order that never overwrites unread data."""
        offsets = range(0, self._end, _CHUNK)
        for offset in offsets if start < self._start else reversed(offsets):
            self._file.seek(self._start + offset)
            chunk = self._file.read(min(_CHUNK, self._end - offset))
            self._file.seek(start + offset)
            self._file.write(chunk)
        if start > self._start:
            self._file.seek(self._start)
            for _ in range(self._start, start, _CHUNK):
                self._file.write(bytes(_CHUNK))
        self._file.flush()


class BetonFile:
    """Random access to a .beton of any writer, with preadv; safe to use from several threads.

    Opening checks every field, pointer and size against the file, and raises ShardError before it allocates more than
    the file could fill. The metadata and 8 bytes per image or array stay in memory; opening takes 5 times the size of
    the allocation table. `custom` names the fields that only the code that wrote them can read; they are ignored.
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
            raise ShardError(f"{self.path}: its allocation table is not where its header says it is: {_DAMAGED}")
        descriptors = self._records(DESCRIPTOR, num_fields, HEADER.itemsize, end, "fields")
        try:
            self.fields = dict(parse_descriptor(descriptor) for descriptor in descriptors)
        except ValueError as error:
            raise ShardError(f"{self.path}: {error}: {_DAMAGED}") from error
        if len(self.fields) < num_fields:
            raise ShardError(f"{self.path}: two fields have the same name: {_DAMAGED}")
        self.custom = tuple(name for name, field in self.fields.items() if field.kind == "custom")
        table = self._records(REGION, (file_size - end) // REGION.itemsize, end, file_size, "allocation table")
        table = table[table["size"] > 0]  # FFCV writes empty regions, which share the next region's pointer
        table = table[np.argsort(table["ptr"], kind="stable")]
        start = HEADER.itemsize + descriptors.nbytes
        if not self.custom:
            self._read_metadata(
                [METADATA[field.kind] for field in self.fields.values()], self._samples, start, end, table
            )
            return
        for layout in self._layouts():
            with contextlib.suppress(ShardError):
                for count in (
                    min(self._samples, 64),
                    self._samples,
                ):  # a few samples are enough to reject a wrong layout
                    self._read_metadata(layout, count, start, end, table)
                return
        raise ShardError(f"{self.path}: only the code that wrote {' and '.join(self.custom)} knows its size")

    def _layouts(self) -> list[list[np.dtype[Any]]]:
        """Layouts to try if custom fields have an unknown size: the right one has valid pointers beside them."""
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
        """The sorted regions must lie between the metadata and the table, and must not overlap."""
        ptr = table["ptr"]
        size = table["size"]
        if (table["sample_id"] >= self._samples).any():
            raise ShardError(f"{self.path}: its allocation table names more samples than its header: {_DAMAGED}")
        inside = (ptr >= start) & (ptr <= end) & (size <= end)  # so that their sum is less than 2^64
        if not inside.all() or (ptr + size > np.append(ptr[1:], np.uint64(end))[: len(ptr)]).any():
            raise ShardError(
                f"{self.path}: regions in its allocation table overlap or lie outside the data: {_DAMAGED}"
            )

    def _check_field(self, name: str, table: npt.NDArray[Any]) -> npt.NDArray[np.uint64]:
        """Sizes of a field's regions [N]; empty for scalars. The table must have a region for every sample."""
        field = self.fields[name]
        metadata = self.column(name)
        if field.kind in (*SCALARS, "custom"):
            return np.zeros(0, np.uint64)
        if not len(table):
            table = np.zeros(1, REGION)
        starts = pointers(metadata)
        regions = table[np.minimum(np.searchsorted(table["ptr"], starts), len(table) - 1)]
        matches = (regions["ptr"] == starts) & (regions["sample_id"] == np.arange(len(metadata), dtype=np.uint64))
        available = np.where(matches, regions["size"], np.uint64(0))
        bad = np.zeros(len(metadata), np.bool_)
        if field.kind == "rgb":
            raw = metadata["width"].astype(np.uint64) * metadata["height"] * np.uint64(3)
            sizes = np.where(metadata["mode"] == RAW, raw, available)
            bad = (metadata["mode"] > RAW) | (sizes == 0)
        elif field.dtype is not None:
            sizes = np.full(len(metadata), min(field.nbytes, 2**63), np.uint64)
        else:
            sizes = metadata["size"]
        bad |= (sizes != available) & (sizes > 0)  # the pointer of an empty value is meaningless
        if self.custom:  # an empty value may point anywhere, so it proves nothing about the layout
            bad |= available == 0
        if bad.any():
            index = int(bad.argmax())
            raise ShardError(f"{self.path}: {name} of sample {index} is not in the allocation table: {_DAMAGED}")
        return sizes

    def __len__(self) -> int:
        return self._samples

    @property
    def descriptor(self) -> int:
        """The open file."""
        return self._file

    def column(self, name: str) -> npt.NDArray[Any]:
        """Metadata of a field [N]; for an int or float field, its values."""
        column: npt.NDArray[Any] = self.metadata[f"f{list(self.fields).index(name)}"]
        return column

    def extents(self, name: str) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint64]]:
        """Offsets [N] and sizes [N] of a field that is not a scalar."""
        return pointers(self.column(name)), self._sizes[name]

    def sample(self, index: int) -> dict[str, Any]:
        """The values of one sample, without custom fields. Raises ShardError."""
        return {name: self.value(name, index) for name, field in self.fields.items() if field.kind != "custom"}

    def value(self, name: str, index: int) -> Any:
        """One field of one sample, as described in kinds.py. Raises ShardError."""
        field = self.fields[name]
        record = self.column(name)[index]
        if field.kind in SCALARS:
            return record.item()
        data = self._region(name, index)
        if field.kind == "json":
            try:
                return json.loads(data.removesuffix(b"\0"))
            except (ValueError, RecursionError) as error:
                raise ShardError(f"{self.path}: {name} of sample {index} is not JSON ({error}): {_DAMAGED}") from error
        if field.kind == "rgb" and record["mode"] == RAW:
            return np.frombuffer(data, np.uint8).reshape(int(record["height"]), int(record["width"]), 3)
        if field.dtype is not None:
            return np.frombuffer(data, field.dtype).reshape(field.shape)
        return bytes(data)

    def raw(self, name: str, index: int) -> bytes:
        """The stored bytes of a field that is not a scalar: JSON with its trailing NUL, or the elements of an array."""
        return bytes(self._region(name, index))

    def _region(self, name: str, index: int) -> bytearray:
        offsets, sizes = self.extents(name)
        data = bytearray(int(sizes[index]))
        self.fill(memoryview(data), int(offsets[index]))
        return data

    def fill(self, view: memoryview, offset: int) -> None:
        """Fill `view` with bytes from `offset` on. Raises ShardError if the file ends first."""
        try:
            fill(self._file, view, offset)
        except EOFError as error:
            raise ShardError(f"{self.path}: shrank while it was in use; copy it again") from error
        except OSError as error:
            raise ShardError(f"{self.path}: cannot be read ({error.strerror}); copy it again") from error

    def fill_group(
        self, encoded: Encoded, sizes: npt.NDArray[np.int64], offsets: npt.NDArray[np.int64]
    ) -> npt.NDArray[np.bool_]:
        """Fill several buffers as `fill` does, at once; which ones are filled. Of others `fill` tells why."""
        from fastimg.loaders.runtime.file_reads import fill_parts  # numba, which opening a dataset does not need

        return fill_parts([self._file] * len(sizes), encoded, sizes, offsets)

    def as_part(self) -> BetonPart:
        """All samples as one part, for a writer that continues a copy of this file. fastimg must have written it."""
        size = os.fstat(self._file).st_size
        end = int(self._records(HEADER, 1, 0, size, "header")[0]["table_ptr"])
        table = self._records(REGION, (size - end) // REGION.itemsize, end, size, "allocation table").copy()
        # Copied as bytes: a copy of the records would leave the padding between their fields undefined.
        metadata = np.frombuffer(bytearray(self.metadata.view(np.uint8)), self.metadata.dtype)
        head = HEADER.itemsize + len(self.fields) * DESCRIPTOR.itemsize + metadata.nbytes
        start = np.uint64(-(-head // self.page_size) * self.page_size)
        for column, field in zip(metadata.dtype.names or (), self.fields.values(), strict=True):
            if field.kind not in SCALARS:
                pointers(metadata[column])[...] -= start
        table["ptr"] -= start
        data_end = int((table["ptr"] + table["size"]).max(initial=0))
        return BetonPart(len(self), metadata.tobytes(), table.tobytes(), data_end, int(start) + data_end)

    def will_need(self, offsets: npt.NDArray[np.int64], sizes: npt.NDArray[np.int64]) -> None:
        """Ask the operating system to read these ranges [N] ahead."""
        ask_all(pieces(np.full(len(offsets), self._file), offsets, sizes))

    def close(self) -> None:
        """Close the file."""
        self._close()
        self._file = -1  # the descriptor may belong to another file by now

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _records(self, dtype: np.dtype[Any], count: int, offset: int, end: int, what: str) -> npt.NDArray[Any]:
        """`count` records from `offset` on; they must not extend beyond `end`."""
        nbytes = count * dtype.itemsize
        if offset + nbytes > end:
            raise ShardError(
                f"{self.path}: {nbytes} bytes of {what} at byte {offset} do not fit in the file: {_DAMAGED}"
            )
        data = bytearray(nbytes)
        self.fill(memoryview(data), offset)
        return np.frombuffer(data, dtype)
