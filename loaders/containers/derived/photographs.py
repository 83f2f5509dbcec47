"""Derived files with a section for each large photograph; of these only the entries are kept in memory."""

import hashlib
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import numpy as np
import numpy.typing as npt

from fastimg.loaders.containers.extents import are_inside
from fastimg.loaders.containers.watch import FileState, FileWatch, Handles
from fastimg.loaders.runtime.cpus import available_cpus
from fastimg.loaders.runtime.scratch import Scratch
from fastimg.loaders.wording import plural

from .kept import DerivedFile, DerivedPlace

Read = Callable[[int, Scratch], memoryview]
Section = tuple[tuple[int, ...], bytes]  # what the entry states behind its offset, and what is kept
Pack = Callable[[memoryview], Section | None]

_AHEAD = 4  # photographs for each processor that are in memory while sections are made


@dataclass(frozen=True, kw_only=True)
class Photographs:
    """What is known of the images of a split: pixels [N] and bytes [N] of each, and how they are read."""

    pixels: npt.NDArray[np.int64]
    sizes: npt.NDArray[np.uint64]
    fingerprint: str
    read: Read


@dataclass(frozen=True, kw_only=True)
class SectionsKind:
    """What is kept of photographs of at least `min_pixels`, and in which file of a split."""

    suffix: str  # of the file
    magic: bytes
    purpose: str  # in the file's stamp
    dtype: np.dtype[np.void]  # of an entry
    min_pixels: int
    pack: Pack
    fits: "Callable[[npt.NDArray[np.void], int, Photographs], bool]"  # whether entries can be those of a file so long
    too_many: str  # what is said of `{photographs}`, of which it would have to be made
    not_kept: str  # what is said where the file cannot be written


@dataclass(frozen=True)
class SectionsFile:
    """An open file: where it is, its descriptor, which the owner closes, and its entries [N]."""

    path: Path
    file: int
    entries: npt.NDArray[np.void]

    def handles(self) -> Handles:
        """What closes the descriptor, and opens the file again as long as it is the same."""
        watch = FileWatch([self.path], [FileState.of(os.fstat(self.file))])
        return Handles([self.path], watch, "delete it, and it is made again", {0: self.file})


def large_sections(
    kind: SectionsKind, place: DerivedPlace, images: Photographs, notes: list[str], most: int | None = None
) -> SectionsFile | None:
    """The sections of a split's large photographs: those that are kept, or new ones, which are kept from now on.

    None if no photograph has one, or if they cannot be kept, or have to be made of more than `most` pixels; `notes` say
    which of the two.
    """
    pixels = images.pixels
    large = np.flatnonzero(pixels >= kind.min_pixels)
    if not large.size:
        return None
    file, stamp = _kept_as(kind, place, images.fingerprint)
    found = _kept(file, stamp, kind.dtype, len(pixels))
    if found is not None and not kind.fits(found.entries, os.fstat(found.file).st_size, images):
        os.close(found.file)
        found = None
    if found is None and most is not None and (amount := int(pixels[large].sum())) > most:
        photographs = f"{plural(len(large), 'large photograph')} of {amount / 1e9:,.1f} gigapixels in all"
        notes.append(f"{place.folder}: {kind.too_many.format(photographs=photographs)}")
        return None
    if found is None:
        try:
            found = _keep(file, stamp, kind, len(pixels), _packed(large, images.read, kind.pack))
        except OSError as error:
            notes.append(f"{place.folder}: {kind.not_kept} ({error.strerror})")
            return None
    if found is not None and not found.entries["offset"].any():
        os.close(found.file)
        return None
    return found


def keep_sections(
    kind: SectionsKind, folder: Path, split: str, fingerprint: str, count: int, sections: Iterable[tuple[int, Section]]
) -> None:
    """Keep sections (sample, what `kind.pack` gives) of a split of `count` samples. Raises OSError."""
    file, stamp = _kept_as(kind, DerivedPlace(folder=folder, split=split), fingerprint)
    found = _keep(file, stamp, kind, count, sections)
    if found is not None:
        os.close(found.file)


def are_sections(offsets: npt.NDArray[np.uint64], sizes: npt.NDArray[np.uint64], length: int) -> bool:
    """Whether sections of these sizes [N] lie behind the entries in a file of this length; offset 0 where none is."""
    there = offsets > 0
    return are_inside(np.zeros(int(there.sum()), np.int64), offsets[there], sizes[there], np.array([length], np.uint64))


def _kept_as(kind: SectionsKind, place: DerivedPlace, fingerprint: str) -> tuple[DerivedFile, bytes]:
    stamp = hashlib.sha256(f"{kind.purpose} {fingerprint} {kind.min_pixels}".encode()).digest()
    return place.file(kind.suffix, kind.magic), stamp


def _kept(file: DerivedFile, stamp: bytes, dtype: np.dtype[np.void], count: int) -> SectionsFile | None:
    """What is kept of `count` samples under this stamp, if anything. Entries begin with the section's offset, or 0."""
    found = file.kept_open(stamp, count * dtype.itemsize)
    if found is None:
        return None
    path, handle, content = found
    return SectionsFile(path, handle, np.frombuffer(content, dtype))


def _keep(
    file: DerivedFile, stamp: bytes, kind: SectionsKind, count: int, sections: Iterable[tuple[int, Section]]
) -> SectionsFile | None:
    """Keep sections (sample, section), and open the file. Raises OSError if they cannot be kept."""
    entries = np.zeros(count, kind.dtype)

    def write(out: IO[bytes]) -> bytes:
        for index, (stated, content) in sections:
            entries[index] = (out.tell(), *stated)
            out.write(content)
        return entries.tobytes()

    file.keep_large(stamp, count, entries.nbytes, write)
    return _kept(file, stamp, kind.dtype, count)


def _packed(ids: npt.NDArray[np.int64], read: Read, pack: Pack) -> Iterator[tuple[int, Section]]:
    """(sample, section) of the photographs that have one, in order."""

    def packed(index: int) -> tuple[int, Section | None]:
        data = read(index, Scratch())
        return index, pack(data) if bytes(data[:2]) == b"\xff\xd8" else None

    count = available_cpus()
    with ThreadPoolExecutor(count) as pool:
        for start in range(0, len(ids), _AHEAD * count):
            some: Sequence[int] = ids[start : start + _AHEAD * count].tolist()
            for index, section in pool.map(packed, some):
                if section is not None:
                    yield index, section
