"""`<split>.fdci`: large tiled JPEGs at 1/8 of their size, so that crops at 1/8 decode nothing.

It begins as `.fidx` does, with FIMGDCI2. Then follows ENTRY for each sample, offset 0 where it has none, and from each
`offset` on what `jpeg/indexed/dc_images` describes. In memory are only the entries and their ends, 32 bytes a sample.
The digest of the entries is in dataset.json; an entry has the sum of its sums, and these those of the planes.
"""

import os
import threading
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from fastimg.loaders.containers.readahead import ask_all, pieces
from fastimg.loaders.containers.watch import fill
from fastimg.loaders.errors import ShardError
from fastimg.loaders.wording import plural

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

# Of a photograph that is kept at 1/8. Of 4.3 megapixels in 4:3 the whole picture, to 224, is the first such crop.
MIN_PIXELS = 4_000_000
ENTRY = np.dtype([("offset", "<u8"), ("planes", "<u4"), ("tiles", "<u4"), ("sum", "<u8")])
SUFFIX, MAGIC = ".fdci", b"FIMGDCI2"
Entry = tuple[int, int, int, int]

_SUM = np.dtype("<u8")


class DcImages:
    """The images at 1/8 of a split; methods may be called from any thread."""

    def __init__(self, kept: SectionsFile, doubt: Callable[[int], None]) -> None:
        self._size = os.fstat(kept.file).st_size
        self._handles = kept.handles()
        self._entries = kept.entries
        offsets = np.sort(kept.entries["offset"])
        self._ends = np.append(offsets[offsets > 0], np.uint64(self._size))
        self._doubt = doubt
        self._doubted: set[int] = set()
        self._lock = threading.Lock()

    def describe(self) -> str:
        """What is kept, in words."""
        return f"{plural(len(self._ends) - 1, 'image')} at 1/8 of {self._size / 1e6:,.1f} MB"

    def entry(self, index: int) -> Entry | None:
        """Of a sample: its place in the file, its planes, its tiles across, their sum; None where it has no image."""
        entry: Entry = self._entries[index].item()
        return entry if entry[0] and index not in self._doubted else None

    def read(
        self,
        entry: Entry,
        planes: Sequence[int],
        extents: Sequence[tuple[int, int]],
        sizes: Sequence[int],
        view: memoryview,
    ) -> npt.NDArray[np.uint64] | None:
        """Read parts of some planes into `view`, one behind the other; None if they cannot be read, or are others.

        Of plane `planes[i]` the bytes `extents[i]` (begin, end); `sizes` are those of all whole planes. Returns the
        sums of all columns of tiles [planes, tiles].
        """
        offset, count, tiles, expected = entry
        sums = np.empty((count, tiles), _SUM)
        at = 0
        try:
            file = self._handles.file(0)
            content = sums.reshape(-1).view(np.uint8).data
            fill(file, content, offset)
            if sum_of_sums(content) != expected:
                return None
            for number, (begin, end) in zip(planes, extents, strict=True):
                place = offset + sums.nbytes + sum(sizes[:number])
                fill(file, view[at : at + end - begin], place + begin)
                at += end - begin
        except (OSError, EOFError, ShardError):
            return None
        return sums

    def ask(self, index: int, finer: bool) -> bool:
        """Ask the system to read a sample's image, with its finer chroma or without; False where there is none."""
        entry = self.entry(index)
        if entry is None:
            return False
        try:
            file = self._handles.file(0)
        except ShardError:
            return False
        begin = entry[0]
        behind = int(self._ends[np.searchsorted(self._ends, begin, "right")])
        size = behind - begin
        size = size if finer or entry[1] < 5 else size * 3 // 7
        ask_all(pieces(np.array([file]), np.array([begin]), np.array([size])))
        return True

    def doubt(self, index: int) -> None:
        """The image does not fit a sample, which is decoded from now on; the first one is told of."""
        with self._lock:
            first = not self._doubted
            self._doubted.add(index)
        if first:
            self._doubt(index)

    def close(self) -> None:
        """Close the file. Reading opens it again."""
        self._handles.close()


def dc_images(place: DerivedPlace, images: Photographs, notes: list[str], most: int | None = None) -> DcImages | None:
    """The images at 1/8 of a split's large JPEGs: those that are kept, or new ones, which are kept from now on.

    None if there are no JPEGs of MIN_PIXELS, or if they cannot be kept, or have to be made of more than `most` pixels;
    `notes` say which.
    """
    kept = large_sections(_kind(), place, images, notes, most)
    if kept is None:
        return None

    def tell(index: int) -> None:
        notes.append(f"{kept.path}: does not fit sample {index}, which is decoded; delete it, and it is made again")

    return DcImages(kept, tell)


def keep_dc_images(
    folder: Path, split: str, fingerprint: str, count: int, sections: Iterable[tuple[int, Section]]
) -> None:
    """Keep the images of a split of `count` samples of which some are large: (sample, what `pack_eighths` gives).

    Raises OSError.
    """
    keep_sections(_kind(), folder, split, fingerprint, count, sections)


def _kind() -> SectionsKind:
    return SectionsKind(
        suffix=SUFFIX,
        magic=MAGIC,
        purpose="dc images",
        dtype=ENTRY,
        min_pixels=MIN_PIXELS,
        pack=pack_eighths,
        fits=_fit,
        too_many="of {photographs} no images at 1/8 are kept: crops at 1/8 are decoded, as long as there are none; "
        "they are made once, by verifying the data",
        not_kept="crops of its large photographs at 1/8 are decoded: no images at 1/8 can be kept there",
    )


def _fit(entries: npt.NDArray[np.void], length: int, images: Photographs) -> bool:
    """Whether entries [N] can be those of these images, in a file of this length."""
    there = entries[entries["offset"] > 0]
    if not np.isin(there["planes"], (1, 3, 5)).all() or (there["tiles"] == 0).any():
        return False
    return are_sections(
        entries["offset"], _SUM.itemsize * entries["planes"].astype(np.uint64) * entries["tiles"], length
    )


def sum_of_sums(content: bytes | memoryview) -> int:
    """The sum of a photograph's sums, 64 bits."""
    import xxhash  # here, because few datasets have large photographs

    return xxhash.xxh3_64_intdigest(content)


def pack_eighths(data: memoryview) -> Section | None:
    """The section of a large JPEG; None if it is not tiled."""
    from fastimg.loaders.jpeg.indexed.dc_images import pack_dc_images  # it compiles

    packed = pack_dc_images(data)
    if packed is None:
        return None
    planes, tiles, content = packed
    return (planes, tiles, sum_of_sums(memoryview(content)[: _SUM.itemsize * planes * tiles])), content
