"""`<split>.ftil`: where the blocks of large tiled JPEGs are, so that a crop reads and decodes what it needs of them.

It begins as `.fidx` does, with FIMGTIL1. Then follows ENTRY for each sample, offset 0 where it has no index, and from
each `offset` on what `packing` describes. Only the entries are kept in memory, 24 bytes a sample.
"""

import hashlib
import os
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO

import numpy as np
import numpy.typing as npt

from fastimg.loaders.containers.watch import fill
from fastimg.loaders.runtime.cpus import available_cpus
from fastimg.loaders.runtime.scratch import Scratch
from fastimg.loaders.wording import plural

from .kept import DerivedFile

# Of an image that has an index. On one core a crop to 224 at low frequencies takes 1.66 ms with it and 1.95 without at
# 2 megapixels, 1.26 and 1.17 at 1 (benchmarks/large_stages.py).
MIN_PIXELS = 2_000_000
ENTRY = np.dtype([("offset", "<u8"), ("size", "<u8"), ("rows", "<u4"), ("begin", "<u4")])

MOST_AT_OPENING = 5_000_000_000  # pixels that are indexed by the way, which takes some ten seconds

_ROW = np.dtype([("data", "<u4"), ("lengths", "<u4"), ("check", "<u4")])
_AHEAD = 4  # photographs for each processor that are in memory while the index is made


class BlockIndex:
    """The index of a split; methods may be called from any thread."""

    def __init__(self, path: Path, file: int, entries: npt.NDArray[np.void], doubt: Callable[[int], None]) -> None:
        self._path = path
        self._file = file
        self._entries = entries
        self._doubt = doubt
        self._doubted: set[int] = set()
        self._lock = threading.Lock()
        weakref.finalize(self, os.close, file)

    def entry(self, index: int) -> tuple[int, int, int, int] | None:
        """Of a sample: its place in the index, its bytes, its rows of tiles, and where its first tile begins."""
        entry: tuple[int, int, int, int] = self._entries[index].item()
        return entry if entry[0] and index not in self._doubted else None

    def read(
        self, entry: tuple[int, int, int, int], top: int, bottom: int
    ) -> tuple[npt.NDArray[np.void], npt.NDArray[np.uint8]] | None:
        """Rows [top, bottom] and the lengths of those in between; None if they cannot be read."""
        offset, _, count, _ = entry
        rows = np.empty(bottom + 1 - top, _ROW)
        try:
            fill(self._file, rows.view(np.uint8).data, offset + top * _ROW.itemsize)
            first, last = int(rows[0]["lengths"]), int(rows[-1]["lengths"])
            if not first <= last <= os.fstat(self._file).st_size:
                return None
            lengths = np.empty(last - first, np.uint8)
            fill(self._file, lengths.data, offset + (count + 1) * _ROW.itemsize + first)
        except (OSError, EOFError):
            return None
        return rows, lengths

    def doubt(self, index: int) -> None:
        """The index does not fit a sample, which is read whole from now on; the first one is told of."""
        with self._lock:
            first = not self._doubted
            self._doubted.add(index)
        if first:
            self._doubt(index)


def block_index(
    folder: Path,
    split: str,
    pixels: npt.NDArray[np.int64],
    fingerprint: str,
    read: Callable[[int, Scratch], memoryview],
    notes: list[str],
    most: int | None = None,
) -> BlockIndex | None:
    """The index of a split's large JPEGs: the one that is kept, or a new one, which is kept from now on.

    `pixels` [N] of each sample. None if there are none of MIN_PIXELS, or if it cannot be kept, or has to be made of
    more than `most` pixels; `notes` say which.
    """
    large = np.flatnonzero(pixels >= MIN_PIXELS)
    if not large.size:
        return None
    file = DerivedFile(folder, f"{split}.ftil", b"FIMGTIL1")
    stamp = hashlib.sha256(f"blocks {fingerprint} {MIN_PIXELS}".encode()).digest()
    found = file.kept_open(stamp, len(pixels) * ENTRY.itemsize)
    if found is None and most is not None and (amount := int(pixels[large].sum())) > most:
        notes.append(
            f"{folder}: {plural(len(large), 'large photograph')} of {amount / 1e9:,.1f} gigapixels in all are read "
            "whole, as long as they have no index; it is made once, by verifying the data"
        )
        return None
    if found is None:
        entries = np.zeros(len(pixels), ENTRY)

        def write(out: IO[bytes]) -> bytes:
            for index, size, packed in _packed(large, read):
                entries[index] = out.tell(), size, packed[1].size - 1, packed[0]
                out.write(packed[1].tobytes())
                out.write(packed[2].tobytes())
            return entries.tobytes()

        try:
            file.keep_large(stamp, len(pixels), entries.nbytes, write)
        except OSError as error:
            notes.append(
                f"{folder}: its large photographs are read whole: no index can be kept there ({error.strerror})"
            )
            return None
        found = file.kept_open(stamp, entries.nbytes)
    if found is None:
        return None
    path, handle, content = found
    entries = np.frombuffer(content, ENTRY)
    if not entries["offset"].any():  # no image is tiled
        os.close(handle)
        return None

    def tell(index: int) -> None:
        notes.append(f"{path}: does not fit sample {index}, which is read whole; delete it, and it is made again")

    return BlockIndex(path, handle, entries, tell)


Packed = tuple[int, npt.NDArray[np.void], npt.NDArray[np.uint8]]


def _packed(
    ids: npt.NDArray[np.int64], read: Callable[[int, Scratch], memoryview]
) -> Iterator[tuple[int, int, Packed]]:
    """(sample, bytes, index) of the samples that can be indexed, in order."""
    from fastimg.loaders.jpeg.indexed.packing import pack_index  # it compiles

    def pack(index: int) -> tuple[int, int, Packed | None]:
        data = read(index, Scratch())
        return index, len(data), pack_index(data) if bytes(data[:2]) == b"\xff\xd8" else None

    count = available_cpus()
    with ThreadPoolExecutor(count) as pool:
        for start in range(0, len(ids), _AHEAD * count):
            some: Sequence[int] = ids[start : start + _AHEAD * count].tolist()
            for index, size, packed in pool.map(pack, some):
                if packed is not None:
                    yield index, size, packed
