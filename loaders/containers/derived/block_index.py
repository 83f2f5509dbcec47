"""`<split>.ftil`: where the blocks of large tiled JPEGs are, so that a crop reads and decodes what it needs of them.

It begins as `.fidx` does, with FIMGTIL2. Then follows ENTRY for each sample, offset 0 where it has no index, and from
each `offset` on what `packing` describes. Only the entries are kept in memory, 32 bytes a sample. Their digest is in
dataset.json; an entry has the sum of its rows, and a row the check of its lengths. So whatever is used was compared.
"""

import os
import threading
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from fastimg.loaders.containers.readahead import ask
from fastimg.loaders.containers.watch import fill
from fastimg.loaders.errors import ShardError
from fastimg.loaders.wording import plural

from .dc_images import DcImages, dc_images
from .kept import DerivedPlace
from .photographs import (
    Photographs,
    Section,
    SectionsFile,
    SectionsKind,
    are_sections,
    keep_sections,
    large_sections,
)

# Of an image that has an index. On one core a crop to 224 at low frequencies takes 1.66 ms with it and 1.95 without at
# 2 megapixels, 1.26 and 1.17 at 1 (benchmarks/large_stages.py).
MIN_PIXELS = 2_000_000
ENTRY = np.dtype([("offset", "<u8"), ("size", "<u8"), ("rows", "<u4"), ("begin", "<u4"), ("sum", "<u8")])
SUFFIX, MAGIC = ".ftil", b"FIMGTIL2"
Entry = tuple[int, int, int, int, int]

MOST_AT_OPENING = 5_000_000_000  # pixels that are indexed by the way, which takes some ten seconds


class BlockIndex:
    """The index of a split; methods may be called from any thread."""

    dc_images: DcImages | None = None  # the same photographs at 1/8

    def __init__(self, kept: SectionsFile, doubt: Callable[[int], None]) -> None:
        from fastimg.loaders.jpeg.indexed.rows import ROW  # texts need nothing of JPEGs

        self._row = ROW
        self._size = os.fstat(kept.file).st_size
        self._handles = kept.handles()
        self._entries = kept.entries
        self._doubt = doubt
        self._doubted: set[int] = set()
        self._lock = threading.Lock()

    @property
    def first(self) -> int:
        """The first sample that has an index; there is one."""
        return int(np.flatnonzero(self._entries["offset"])[0])

    def describe(self) -> str:
        """What is kept, in words."""
        count = int(np.count_nonzero(self._entries["offset"]))
        images = "crops at 1/8 are decoded" if self.dc_images is None else self.dc_images.describe()
        return f"{plural(count, 'large photograph')}: an index of {self._size / 1e6:,.1f} MB, {images}"

    def places(self, ids: Sequence[int] | npt.NDArray[np.int64]) -> list[int]:
        """At which places of `ids` [k] are samples that have an index."""
        return np.flatnonzero(self._entries["offset"][ids]).tolist()

    def entry(self, index: int) -> Entry | None:
        """Of a sample: its place in the index, its bytes, its rows of tiles, where its first tile begins, their sum."""
        entry: Entry = self._entries[index].item()
        return entry if entry[0] and index not in self._doubted else None

    def read(self, entry: Entry, top: int, bottom: int) -> tuple[npt.NDArray[np.void], npt.NDArray[np.uint8]] | None:
        """Rows [top, bottom] and the lengths of those in between; None if they cannot be read, or are others."""
        offset, _, count, _, _ = entry
        try:
            file = self._handles.file(0)
            rows = self._rows(file, entry)
            if rows is None:
                return None
            rows = rows[top : bottom + 1]
            first, last = int(rows[0]["lengths"]), int(rows[-1]["lengths"])
            if not first <= last <= self._size:
                return None
            lengths = np.empty(last - first, np.uint8)
            fill(file, lengths.data, offset + (count + 1) * self._row.itemsize + first)
        except (OSError, EOFError, ShardError):
            return None
        return rows, lengths

    def _rows(self, file: int, entry: Entry) -> npt.NDArray[np.void] | None:
        """All rows of a sample; None if their sum is another. Raises OSError and EOFError."""
        rows = np.empty(entry[2] + 1, self._row)
        content = rows.view(np.uint8).data
        fill(file, content, entry[0])
        return rows if sum_of_rows(content) == entry[4] else None

    def ask(self, entry: Entry, top: int, bottom: int) -> tuple[int, int] | None:
        """Ask the system to read what `read` will; return the bytes (begin, end) of the photograph's rows.

        None if its rows, which are read at once, cannot be.
        """
        offset, size, count, begin, _ = entry
        try:
            file = self._handles.file(0)
            rows = self._rows(file, entry)
        except (OSError, EOFError, ShardError):
            return None
        if rows is None:
            return None
        (data, end), (first, last) = (rows[name][[top, bottom]].tolist() for name in ("data", "lengths"))
        ask(file, offset + (count + 1) * self._row.itemsize + first, max(last - first, 0))
        return (begin + data, begin + end) if data <= end <= size - begin else None

    def doubt(self, index: int) -> None:
        """The index does not fit a sample, which is read whole from now on; the first one is told of."""
        with self._lock:
            first = not self._doubted
            self._doubted.add(index)
        if first:
            self._doubt(index)

    def close(self) -> None:
        """Close the files. Reading opens them again."""
        self._handles.close()
        if self.dc_images is not None:
            self.dc_images.close()


def has_large(pixels: npt.NDArray[np.int64]) -> bool:
    """Whether any of the images with so many pixels [N] would have an index, if it is a tiled JPEG."""
    return bool((pixels >= MIN_PIXELS).any())


def block_index(
    place: DerivedPlace, images: Photographs, notes: list[str], most: int | None = None
) -> BlockIndex | None:
    """The index of a split's large JPEGs: the one that is kept, or a new one, which is kept from now on.

    None if there are none of MIN_PIXELS, or if it cannot be kept, or has to be made of more than `most` pixels; `notes`
    say which.
    """
    kept = large_sections(_kind(), place, images, notes, most)
    if kept is None:
        return None

    def tell(index: int) -> None:
        notes.append(f"{kept.path}: does not fit sample {index}, which is read whole; delete it, and it is made again")

    index = BlockIndex(kept, tell)
    index.dc_images = dc_images(place, images, notes, most)
    return index


def keep_blocks(
    folder: Path, split: str, fingerprint: str, count: int, sections: Iterable[tuple[int, Section]]
) -> None:
    """Keep the index of a split of `count` samples of which some are large: (sample, what `pack_blocks` gives).

    Raises OSError.
    """
    keep_sections(_kind(), folder, split, fingerprint, count, sections)


def _kind() -> SectionsKind:
    return SectionsKind(
        suffix=SUFFIX,
        magic=MAGIC,
        purpose="blocks",
        dtype=ENTRY,
        min_pixels=MIN_PIXELS,
        pack=pack_blocks,
        fits=_fit,
        too_many="{photographs} are read whole, as long as they have no index; it is made once, by verifying the data",
        not_kept="its large photographs are read whole: no index can be kept there",
    )


def _fit(entries: npt.NDArray[np.void], length: int, images: Photographs) -> bool:
    """Whether entries [N] can be those of these images, in a file of this length."""
    from fastimg.loaders.jpeg.indexed.rows import ROW

    rows = (entries["rows"].astype(np.uint64) + np.uint64(1)) * np.uint64(ROW.itemsize)
    there = entries[entries["offset"] > 0]
    return (
        are_sections(entries["offset"], rows, length)
        and bool((there["size"] == images.sizes[entries["offset"] > 0]).all())
        and bool((there["begin"] < there["size"]).all())
    )


def pack_blocks(data: memoryview) -> Section | None:
    """The section of a large JPEG; None if it is not tiled."""
    from fastimg.loaders.jpeg.indexed.packing import pack_index  # it compiles

    packed = pack_index(data)
    if packed is None:
        return None
    begin, rows, lengths = packed
    content = rows.tobytes()
    return (len(data), rows.size - 1, begin, sum_of_rows(content)), content + lengths.tobytes()


def sum_of_rows(content: bytes | memoryview) -> int:
    """The sum of a photograph's rows, 64 bits."""
    import xxhash  # here, because few datasets have large photographs

    return xxhash.xxh3_64_intdigest(content)
