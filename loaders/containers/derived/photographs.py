"""Derived files with a section for each large photograph; of these only the entries are kept in memory."""

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import numpy as np
import numpy.typing as npt

from fastimg.loaders.runtime.cpus import available_cpus
from fastimg.loaders.runtime.scratch import Scratch

from .kept import DerivedFile

Read = Callable[[int, Scratch], memoryview]
Section = tuple[tuple[int, ...], bytes]  # what the entry states behind its offset, and what is kept
Pack = Callable[[memoryview], Section | None]

_AHEAD = 4  # photographs for each processor that are in memory while sections are made


@dataclass(frozen=True)
class SectionsFile:
    """An open file: where it is, its descriptor, which the owner closes, and its entries [N]."""

    path: Path
    file: int
    entries: npt.NDArray[np.void]


def kept_sections(file: DerivedFile, stamp: bytes, dtype: np.dtype[np.void], count: int) -> SectionsFile | None:
    """What is kept of `count` samples under this stamp, if anything. Entries begin with the section's offset, or 0."""
    found = file.kept_open(stamp, count * dtype.itemsize)
    if found is None:
        return None
    path, handle, content = found
    return SectionsFile(path, handle, np.frombuffer(content, dtype))


def keep_sections(
    file: DerivedFile,
    stamp: bytes,
    dtype: np.dtype[np.void],
    count: int,
    ids: npt.NDArray[np.int64],
    read: Read,
    pack: Pack,
) -> SectionsFile | None:
    """Make a section of each of the photographs `ids`, keep them, and open the file. Raises OSError if it cannot be."""
    entries = np.zeros(count, dtype)

    def write(out: IO[bytes]) -> bytes:
        for index, (stated, content) in _packed(ids, read, pack):
            entries[index] = (out.tell(), *stated)
            out.write(content)
        return entries.tobytes()

    file.keep_large(stamp, count, entries.nbytes, write)
    return kept_sections(file, stamp, dtype, count)


def opened(found: SectionsFile | None) -> SectionsFile | None:
    """The file, unless no photograph has a section: it is closed then."""
    if found is not None and not found.entries["offset"].any():
        os.close(found.file)
        return None
    return found


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
