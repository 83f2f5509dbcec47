"""A .beton as a dataset of labelled images or texts."""

import contextlib
import hashlib
import threading
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fastimg.loaders.containers.content import TEXT_FIELDS, Content
from fastimg.loaders.containers.derived.block_index import BlockIndex
from fastimg.loaders.containers.fields import WithFields
from fastimg.loaders.containers.identities import StatedContent
from fastimg.loaders.containers.readahead import SMALL_FILES, Asked
from fastimg.loaders.containers.stored_pixels import PIXELS, StoredPixels
from fastimg.loaders.containers.targets import TargetColumn
from fastimg.loaders.containers.watch import FileState, FileWatch
from fastimg.loaders.errors import DataError, ShardError
from fastimg.loaders.remote.mirrors import Lease
from fastimg.loaders.runtime.scratch import Encoded, Scratch
from fastimg.loaders.wording import plural

from .files import BetonFile
from .kinds import RAW

MAX_CLASSES = 1 << 20  # in a file without class names: a larger label is not a class index
_reading_whole = threading.Lock()
# Usual names of the fields to train on, in case there are several of a kind.
USUAL = {"rgb": ("image", "img", "x"), "int": ("label", "target", "cls", "y")}


class BetonDataset(WithFields):
    """Images of the rgb field with labels of the int field, which are class indices or -1 (unknown).

    If there are several fields of a kind, the one with a usual name is used. A raw image is read as a PPM, which has a
    line with its size before its pixels, and which every decoder can read. Without an rgb field this is a dataset of
    texts, in the bytes field that is called txt or text. Raises ShardError, or DataError if no field can be chosen.
    """

    notes: Sequence[str] = ()
    content: Content
    declared: tuple[TargetColumn, ...] = ()  # of a dataset.json that declares targets
    lease: Lease | None = None  # of a file that was fetched: keeps it in the cache
    blocks: BlockIndex | None = None  # of large tiled JPEGs

    _cut = 0  # samples whose pixels were asked for
    _in_memory: tuple[npt.NDArray[np.uint8], npt.NDArray[np.void]] | None = None  # the file, and PIXELS [N]

    def __init__(
        self,
        path: Path,
        classes: Sequence[str] | None = None,
        checksum: str | None = None,
        stated: StatedContent | None = None,
    ) -> None:
        self.name = str(path)
        self.reader = reader = BetonFile(path)
        self._watch = FileWatch([path], [FileState.of(reader.status)], [stated or StatedContent()])
        try:
            self._watch.opened(0, reader.descriptor)
            image = _choose(reader, "rgb")
            self.content = "text" if image is None else "images"
            image = _text_field(reader) if image is None else image
            label = _choose(reader, "int")
            self.image_field = image
            self.label_field = label
            self._offsets, self._sizes = reader.extents(image)
            column = reader.column(image)
            if self.content == "images":
                self._raw = column["mode"] == RAW
                self._widths = column["width"]
                self._heights = column["height"]
            else:
                self._raw = np.zeros(len(reader), np.bool_)
            self.labels = np.full(len(reader), -1, np.int64)
            if label is not None:
                self.labels[:] = reader.column(label)
            top = int(self.labels.max(initial=-1))
            if self.labels.min(initial=0) < -1 or top >= (MAX_CLASSES if classes is None else len(classes)):
                among = (
                    "are not class indices"
                    if classes is None
                    else f"are not all among its {plural(len(classes), 'class')}"
                )
                raise ShardError(f"{path}: the numbers in {label}, up to {top}, {among}; convert it again")
            self.classes = tuple(map(str, range(top + 1)) if classes is None else classes)
            stat = path.stat()
            stamp = checksum or f"{path.name} {stat.st_size} {stat.st_mtime_ns}"
            self.fingerprint = hashlib.sha256(stamp.encode()).hexdigest()
        except BaseException:
            reader.close()
            raise

    def __len__(self) -> int:
        return len(self.reader)

    @property
    def targets(self) -> tuple[TargetColumn, ...]:
        """See Dataset."""
        return self.declared or (TargetColumn.of_classes(self.labels, self.classes),)

    def read(self, index: int, scratch: Scratch) -> memoryview:
        """The bytes of a JPEG, a PPM or a text. Raises ShardError if the file has changed."""
        head = b"P6 %d %d 255\n" % (self._widths[index], self._heights[index]) if self._raw[index] else b""
        view = scratch.encoded(len(head) + int(self._sizes[index]))
        view[: len(head)] = head
        try:
            self.reader.fill(view[len(head) :], int(self._offsets[index]))
        except ShardError:
            self._watch.look(0)  # its error may be more precise
            raise
        self._watch.read(0)
        return view

    def read_group(self, indices: Sequence[int], encoded: Encoded) -> None:
        """Read several samples into `encoded`, but those that have to be read by `read`.

        Raises ShardError as `read` does.
        """
        places = list(indices)
        sizes = np.where(self._raw[places], 0, self._sizes[places]).astype(np.int64)
        filled = self.reader.fill_group(encoded, sizes, self._offsets[places].astype(np.int64))
        self._watch.read_group([0] * len(places))
        encoded.take(sizes, filled)

    def fetch_group(self, regions: npt.NDArray[np.void], encoded: Encoded) -> None:
        """Read several regions into `encoded`, each of an offset and a size, as `fetch` does."""
        sizes = regions["size"].astype(np.int64)
        filled = self.reader.fill_group(encoded, sizes, regions["offset"].astype(np.int64))
        self._watch.read_group([0] * len(regions))
        encoded.take(sizes, filled)

    @cached_property
    def stores_pixels(self) -> bool:
        """Whether most images are stored as pixels."""
        return 2 * int(self._raw.sum()) > len(self)

    def stored_pixels(self, ids: Sequence[int]) -> StoredPixels | None:
        """Where the pixels of raw images lie, of width 0 for others; None if there are none.

        Raises ShardError if the file has changed.
        """
        if not self._has_raw:
            return None
        self._watch.read_group([0] * len(ids))
        chosen = np.asarray(ids, np.int64)
        if self._keeps_pixels:
            with _reading_whole:
                self._cut += len(ids)
                if self._in_memory is None and self._cut > len(self):
                    self._in_memory = self._read_whole()
            if self._in_memory is not None:
                return StoredPixels(self._in_memory[1], chosen)
        return StoredPixels(self._pixels_of(chosen), np.arange(len(chosen)))

    @cached_property
    def _keeps_pixels(self) -> bool:
        """Whether the file is kept in memory from the second epoch on: of up to 256 MiB, and mostly raw pixels."""
        return self.stores_pixels and self.reader.status.st_size <= SMALL_FILES

    def _read_whole(self) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.void]]:
        """The file, and where its raw pixels lie in memory. Raises ShardError."""
        content = np.empty(self.reader.status.st_size, np.uint8)
        self.reader.fill(content.data, 0)
        found = self._pixels_of(np.arange(len(self)))
        found["address"] = content.ctypes.data + found["offset"]
        ends = found["offset"] + found["pitch"] * found["height"]
        found["width"][(found["offset"] < 0) | (ends > len(content))] = 0  # `read` tells what is wrong with them
        return content, found

    def _pixels_of(self, chosen: npt.NDArray[np.int64]) -> npt.NDArray[np.void]:
        found = np.zeros(len(chosen), PIXELS)
        found["file"], found["offset"] = self.reader.descriptor, self._offsets[chosen]
        found["width"], found["height"] = self._widths[chosen] * self._raw[chosen], self._heights[chosen]
        found["channels"] = 3
        found["pitch"] = 3 * found["width"]
        return found

    @cached_property
    def _asked(self) -> Asked:
        return Asked(len(self), self.reader.status.st_size)

    @cached_property
    def _has_raw(self) -> bool:
        return bool(self._raw.any())

    def pixels(self) -> npt.NDArray[np.int64]:
        """Pixels [N] of each JPEG, 0 of raw images."""
        return np.where(self._raw, 0, self._widths.astype(np.int64) * self._heights)

    def sizes(self) -> npt.NDArray[np.uint64]:
        """Bytes [N] of each image."""
        return self._sizes

    def read_start(self, index: int, nbytes: int, scratch: Scratch) -> memoryview:
        """The first bytes of a JPEG. Raises ShardError as `read` does."""
        size = min(nbytes, int(self._sizes[index]))
        view = scratch.encoded(size)
        self.read_ranges(index, [(0, size)], view)
        return view

    def read_ranges(self, index: int, ranges: Sequence[Sequence[int]], view: memoryview) -> None:
        """Fill `view` with some bytes of a JPEG, each range (begin, end) behind the one before. Raises ShardError."""
        offset = int(self._offsets[index])
        at = 0
        try:
            for begin, end in ranges:
                self.reader.fill(view[at : at + end - begin], offset + begin)
                at += end - begin
        except ShardError:
            self._watch.look(0)
            raise
        self._watch.read(0)

    def fetch(self, _shard: int, offset: int, size: int) -> bytes:
        """The bytes of a region. Raises ShardError as `read` does."""
        data = bytearray(size)
        try:
            self.reader.fill(memoryview(data), offset)
        except ShardError:
            self._watch.look(0)
            raise
        self._watch.read(0)
        return bytes(data)

    def size_of(self, index: int) -> tuple[int, int]:
        """Width and height of an image, in pixels."""
        return int(self._widths[index]), int(self._heights[index])

    def will_need(self, indices: npt.NDArray[np.int64]) -> None:
        """Ask the system to read these samples ahead: see `Asked`."""
        indices = self._asked.before(indices)
        if len(indices):
            self.will_need_parts(indices, np.zeros(len(indices), np.int64), self._sizes[indices].astype(np.int64))

    def will_need_parts(
        self, indices: npt.NDArray[np.int64], begins: npt.NDArray[np.int64], ends: npt.NDArray[np.int64]
    ) -> None:
        """Ask the system to read the bytes [begin, end) of samples [N] ahead."""
        offsets = self._offsets[indices].astype(np.int64)
        self.reader.will_need(offsets + begins, ends - begins)

    def sample_name(self, index: int) -> str:
        """`train.beton: sample 17 (cats/a.jpg)`, with the original path if a json field has it."""
        path = self._path(index)
        return f"{self.name}: sample {index}" + (f" ({path})" if path else "")

    def sample_key(self, index: int) -> str:
        """See Dataset."""
        return self._path(index) or str(index)

    def note(self, index: int) -> dict[str, Any]:
        """What the json fields say of the sample; empty if there are none."""
        found: dict[str, Any] = {}
        for name, field in self.reader.fields.items():
            if field.kind == "json":
                with contextlib.suppress(ShardError):
                    note = self.reader.value(name, index)
                    found = {**note, **found} if isinstance(note, dict) else found
        return found

    def _path(self, index: int) -> str:
        """The original path from a json field; empty if there is none."""
        return str(self.note(index).get("path", ""))

    def files(self) -> Sequence[Path]:
        """The file."""
        return [self.reader.path]

    def close(self) -> None:
        """Close the file, and what is kept of large images."""
        self.reader.close()
        if self.blocks is not None:
            self.blocks.close()
        if self.lease is not None:
            self.lease.close()


def _text_field(reader: BetonFile) -> str:
    names = [name for name, field in reader.fields.items() if field.kind == "bytes" and name.lower() in TEXT_FIELDS]
    if len(names) != 1:
        what = (
            f"{', '.join(names)} are both texts; rename one"
            if names
            else (
                f"none of its fields ({', '.join(reader.fields)}) holds images, and none of bytes is called "
                f"{' or '.join(TEXT_FIELDS)}"
            )
        )
        raise DataError(f"{reader.path}: {what}")
    return names[0]


def _choose(reader: BetonFile, kind: str) -> str | None:
    """The field of a kind, if any. Raises DataError if there are several candidates."""
    names = [name for name, field in reader.fields.items() if field.kind == kind]
    if len(names) > 1:
        usual = [name for name in names if name.lower() in USUAL[kind]]
        if len(usual) != 1:
            raise DataError(
                f"{reader.path}: {', '.join(names)} are all {kind} fields; name the one to train on {USUAL[kind][0]}"
            )
        return usual[0]
    return names[0] if names else None
