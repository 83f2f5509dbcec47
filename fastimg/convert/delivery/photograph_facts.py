"""Sections of large photographs, made while their tar is here, for the files that are derived of whole splits."""

import json
import struct
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

import numpy as np
import numpy.typing as npt

from fastimg.loaders.containers.atomic import temporary
from fastimg.loaders.containers.derived import block_index, dc_images
from fastimg.loaders.containers.derived.photographs import Section

_HEAD = struct.Struct("<I")
_Pack = Callable[[memoryview], Section | None]


def keep_photographs(folder: Path, tar: Path, rows: npt.NDArray[np.void]) -> None:
    """Keep the sections of the large photographs of a tar with these records [n] in `folder`."""
    with tar.open("rb") as file:
        for suffix, large, pack in _kinds(rows):
            path = folder / f"{tar.name}.{suffix}"
            with temporary(path).open("wb") as out:
                for row in large.tolist():
                    _add(out, row, _section(file, rows[row], pack))
            temporary(path).replace(path)


def _kinds(records: npt.NDArray[np.void]) -> Iterator[tuple[str, npt.NDArray[np.int64], _Pack]]:
    """The suffixes of derived files with the photographs that have a place in them, and what makes it."""
    pixels = records["width"].astype(np.int64) * records["height"]
    for suffix, least, pack in (
        ("ftil", block_index.MIN_PIXELS, block_index.pack_blocks),
        ("fdci", dc_images.MIN_PIXELS, dc_images.pack_eighths),
    ):
        if (large := np.flatnonzero(pixels >= least)).size:
            yield suffix, large, pack


def _section(file: BinaryIO, row: np.void, pack: _Pack) -> Section | None:
    file.seek(int(row["offset"]))
    data = file.read(int(row["size"]))
    return pack(memoryview(data)) if data[:2] == b"\xff\xd8" else None


def _add(out: BinaryIO, row: int, section: Section | None) -> None:
    if section is not None:
        stated, content = section
        head = json.dumps([row, [int(number) for number in stated], len(content)]).encode()
        out.write(_HEAD.pack(len(head)) + head + content)


def derive_photographs(
    facts: Path, folder: Path, split: str, names: Sequence[str], records: npt.NDArray[np.void], fingerprint: str
) -> None:
    """Write the derived files of a split into `folder`, if it has large photographs, of what was kept of its tars."""
    starts = np.searchsorted(records["shard"], np.arange(len(names))).tolist()
    keepers = {"ftil": block_index.keep_blocks, "fdci": dc_images.keep_dc_images}
    for suffix, _, _ in _kinds(records):
        sections = _sections([facts / f"{name}.{suffix}" for name in names], starts)
        keepers[suffix](folder, split, fingerprint, len(records), sections)


def _sections(files: Sequence[Path], starts: Sequence[int]) -> Iterator[tuple[int, Section]]:
    for path, start in zip(files, starts, strict=True):
        if not path.exists():  # without large photographs
            continue
        with path.open("rb") as file:
            while size := file.read(_HEAD.size):
                row, stated, length = json.loads(file.read(*_HEAD.unpack(size)))
                yield start + row, (tuple(stated), file.read(length))
