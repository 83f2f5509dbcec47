"""The samples that loaders are compared on: a seeded choice of DATA's decodable samples, as files, too."""

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
from rich.console import Console
from rich.progress import track

from fastimg.errors import UserError
from fastimg.loaders import Dataset, FilesDataset, ImageError
from fastimg.loaders.decode import decode, is_tiled, read_header
from fastimg.loaders.runtime.cpus import available_cpus
from fastimg.loaders.runtime.in_order import in_order, working_threads
from fastimg.loaders.runtime.scratch import Scratch
from fastimg.wording import plural

from .data import SourceData, Sources


@dataclass(frozen=True, kw_only=True)
class Samples:
    """Distinct samples of DATA, and those that were left out."""

    files: tuple[Path, ...]
    original: SourceData | None  # None: DATA is these files
    left_out: dict[str, str]  # sample -> why it cannot be decoded
    tiled: int  # number of tiled JPEGs among the samples

    def sources(self, folder: Path, count: int, parts: int) -> Sources:
        """The first `count` samples, repeated if there are fewer."""
        again = [i % len(self.files) for i in range(count)]
        original = self.original
        if original is not None:
            original = replace(original, ids=tuple(original.ids[i] for i in again))
        return Sources(folder=folder, files=tuple(self.files[i] for i in again), original=original, parts=parts)


def choose(dataset: Dataset, source: Path, split: str, most: int, seed: int, folder: Path, console: Console) -> Samples:
    """Choose up to `most` samples at random. Samples that are not separate files are written, unchanged, to `folder`.

    Raises UserError if none can be decoded, DataError for damaged shards, and OSError if files cannot be written.
    """
    look = _Look(dataset, folder)
    order = np.random.default_rng(seed).permutation(len(dataset)).tolist()
    threads = available_cpus()
    ids: list[int] = []
    chosen: list[_Seen] = []
    left_out: dict[str, str] = {}
    with working_threads(threads, "fastimg-samples") as pool:
        steps = track(
            in_order(pool, look, iter(order), 2 * threads),
            "reading samples" if look.own else "copying samples",
            min(most, len(order)),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        for index, seen in zip(order, steps, strict=False):
            if isinstance(seen, str):
                left_out[dataset.sample_name(index)] = seen
                continue
            ids.append(index)
            chosen.append(seen)
            if len(chosen) == most:
                break
    if not chosen:
        reason = next((f"; {name}: {why}" for name, why in left_out.items()), "")
        raise UserError(
            f"{source}: none of its {plural(len(order), 'sample')} is an image that can be decoded{reason}; "
            "give a folder of images, or shards"
        )
    original = None
    if look.own is None:
        original = SourceData(path=source.absolute(), split=split, fingerprint=dataset.fingerprint, ids=tuple(ids))
    return Samples(
        files=tuple(seen.file for seen in chosen),
        original=original,
        left_out=left_out,
        tiled=sum(seen.tiled for seen in chosen),
    )


class _Seen(NamedTuple):
    file: Path
    tiled: bool


class _Look:
    """Decodes a whole sample, as every other loader does, and writes it if it is not a separate file."""

    def __init__(self, dataset: Dataset, folder: Path) -> None:
        self._dataset = dataset
        self._folder = folder
        self.own: Sequence[Path] | None = dataset.files() if isinstance(dataset, FilesDataset) else None
        folder.mkdir(parents=True)

    def __call__(self, index: int) -> "_Seen | str":
        """The sample's file, or why it cannot be decoded."""
        try:
            data = self._dataset.read(index, Scratch())
            header = read_header(data)
            decode(data, header)
        except ImageError as error:
            return str(error)
        if self.own is not None:
            return _Seen(Path(os.path.abspath(self.own[index])), is_tiled(data, header))
        file = self._folder / f"{index:09d}.{header.extension}"
        file.write_bytes(data)
        return _Seen(file, is_tiled(data, header))
