"""Reads every sample of a dataset once, for sizes, formats, content hashes, and samples that cannot be read.

Memory is bounded: 40 bytes per sample, twice that while duplicates are searched, and a bounded number of names.
"""

import hashlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from rich.console import Console
from rich.markup import escape
from rich.progress import track

from fastimg.convert.text_preparation import text_fault
from fastimg.errors import printable
from fastimg.loaders import DataError, Dataset
from fastimg.loaders.containers.betons.dataset import BetonDataset
from fastimg.loaders.decode import decode, is_tiled, read_header
from fastimg.loaders.runtime.in_order import in_order, working_threads
from fastimg.loaders.runtime.scratch import Scratch
from fastimg.system.terminal import telling_of_compilation

NAMED = 1000  # unreadable images and groups of copies that are listed by name
MEMBERS = 10  # names listed for each group of copies
_CHUNK = 32  # samples that a thread processes at a time
_AHEAD = 4  # chunks per thread that may be started ahead of the consumer

# One record per sample: `hashed` if its bytes could be read, `readable` if its image could.
RECORD = np.dtype(
    [
        *(("digest", "<u8", 2), ("bytes", "<i8"), ("width", "<i4"), ("height", "<i4")),
        *(("hashed", "?"), ("readable", "?"), ("tiled", "?")),
    ],
    align=True,
)


TEXT_RECORD = np.dtype(
    [
        *(("digest", "<u8", 2), ("bytes", "<i8"), ("characters", "<i8"), ("words", "<i8")),
        *(("hashed", "?"), ("readable", "?")),
    ],
    align=True,
)


@dataclass(frozen=True)
class SplitFacts:
    """What is known about the samples of one split."""

    split: str
    dataset: Dataset
    records: npt.NDArray[np.void]  # RECORD [N], or TEXT_RECORD
    formats: Counter[str] = field(default_factory=Counter)
    unreadable: list[tuple[str, str]] = field(default_factory=list)  # (name, reason) of the first NAMED

    def counts(self) -> list[int]:
        """Number of samples per class."""
        labels = self.dataset.labels
        counts: list[int] = np.bincount(labels[labels >= 0], minlength=len(self.dataset.classes)).tolist()
        return counts


class _Seen(NamedTuple):
    records: npt.NDArray[np.void]
    formats: list[str]
    faults: list[tuple[int, str]]


def gather(split: str, dataset: Dataset, workers: int, max_pixels: int, decoded: bool, err: Console) -> SplitFacts:
    """Read every sample of a split once, in chunks on `workers` threads; with `decoded`, decode images too."""
    texts = dataset.content == "text"
    facts = SplitFacts(split, dataset, np.zeros(len(dataset), TEXT_RECORD if texts else RECORD))
    chunks = [range(at, min(at + _CHUNK, len(dataset))) for at in range(0, len(dataset), _CHUNK)]

    def look(chunk: range) -> _Seen:
        return _look_at_texts(dataset, chunk) if texts else _look(dataset, chunk, max_pixels, decoded)

    with telling_of_compilation(err), working_threads(workers, "inspect") as pool:
        seen: Iterator[_Seen] = in_order(pool, look, iter(chunks), workers * _AHEAD)
        quiet = not err.is_terminal
        for chunk, result in zip(
            chunks,
            track(seen, escape(f"reading {split}"), len(chunks), console=err, transient=True, disable=quiet),
            strict=True,
        ):
            facts.records[chunk.start : chunk.stop] = result.records
            facts.formats.update(result.formats)
            for index, reason in result.faults[: max(0, NAMED - len(facts.unreadable))]:
                facts.unreadable.append((printable(dataset.sample_name(index)), printable(reason)))
    return facts


def _read(dataset: Dataset, index: int, scratch: Scratch, record: Any) -> memoryview:
    """A sample's bytes, whose digest and length the record then has. Raises DataError."""
    data = dataset.read(index, scratch)
    record["digest"] = np.frombuffer(hashlib.blake2b(data, digest_size=16).digest(), "<u8")
    record["bytes"] = len(data)
    record["hashed"] = True
    return data


def _look(dataset: Dataset, chunk: range, max_pixels: int, decoded: bool) -> _Seen:
    scratch = Scratch()
    records = np.zeros(len(chunk), RECORD)
    seen = _Seen(records, [], [])
    for row, index in enumerate(chunk):
        record = records[row]
        try:
            data = _read(dataset, index, scratch, record)
            header = read_header(data, max_pixels)
            if decoded:
                decode(data, header, scratch)
            record["width"], record["height"] = header.size
            record["readable"] = True
            record["tiled"] = is_tiled(data, header)
            seen.formats.append(
                "raw pixels" if isinstance(dataset, BetonDataset) and header.format == "ppm" else header.format
            )
        except DataError as error:
            seen.faults.append((index, str(error)))
    return seen


def _look_at_texts(dataset: Dataset, chunk: range) -> _Seen:
    scratch = Scratch()
    records = np.zeros(len(chunk), TEXT_RECORD)
    seen = _Seen(records, [], [])
    for row, index in enumerate(chunk):
        record = records[row]
        try:
            data = _read(dataset, index, scratch, record)
            if fault := text_fault(data):
                raise DataError(fault)
            text = str(data, "utf-8")
            record["characters"] = len(text)
            record["words"] = len(text.split())
            record["readable"] = True
        except DataError as error:
            seen.faults.append((index, str(error)))
    return seen


class Copies(NamedTuple):
    """Samples with the same bytes."""

    images: int
    names: list[tuple[str, str]]  # (split, name) of the first MEMBERS
    classes: list[str]  # distinct classes of those


@dataclass(frozen=True)
class Duplicates:
    """Samples whose bytes occur more than once in any split."""

    within: int  # samples with an earlier copy in their own split
    leaked: int  # samples of a later split that also occur in an earlier one
    across: list[Copies]  # the first NAMED groups that span several splits
    same: list[Copies]  # the first NAMED groups within one split
    conflicting: int  # groups with more than one class


def duplicates(splits: list[SplitFacts]) -> Duplicates:
    """Exact duplicates by the hash of the bytes, within and across splits."""
    part = np.concatenate([np.full(len(f.records), number) for number, f in enumerate(splits)])
    index = np.concatenate([np.arange(len(f.records)) for f in splits])
    digest = np.concatenate([f.records["digest"] for f in splits])
    hashed = np.concatenate([f.records["hashed"] for f in splits])
    part, index, digest = part[hashed], index[hashed], digest[hashed]
    order = np.lexsort((index, part, digest[:, 1], digest[:, 0]))
    part, index, digest = part[order], index[order], digest[order]
    follows = np.zeros(len(part), np.bool_)  # whether it has the same content as its predecessor
    follows[1:] = (digest[1:] == digest[:-1]).all(axis=1)
    starts = np.flatnonzero(~follows & np.append(follows[1:], False))
    ends = np.append(np.flatnonzero(~follows), len(part))
    within = 0
    leaked = 0
    conflicting = 0
    across: list[Copies] = []
    same: list[Copies] = []
    for start, end in zip(starts.tolist(), ends[np.searchsorted(ends, starts, "right")].tolist(), strict=True):
        parts = part[start:end]
        kinds = len(np.unique(parts))
        within += end - start - kinds
        leaked += int((parts != parts[0]).sum())
        labels = {
            int(splits[p].dataset.labels[i]) for p, i in zip(parts.tolist(), index[start:end].tolist(), strict=True)
        }
        conflicting += len(labels) > 1
        group = across if kinds > 1 else same
        if len(group) < NAMED:
            group.append(_copies(splits, parts.tolist(), index[start:end].tolist()))
    return Duplicates(within, leaked, across, same, conflicting)


def _copies(splits: list[SplitFacts], parts: list[int], indices: list[int]) -> Copies:
    names = []
    classes = []
    for part, index in list(zip(parts, indices, strict=True))[:MEMBERS]:
        dataset = splits[part].dataset
        names.append((splits[part].split, printable(dataset.sample_name(index))))
        label = int(dataset.labels[index])
        classes.append(printable(dataset.classes[label]) if 0 <= label < len(dataset.classes) else "no label")
    return Copies(len(parts), names, list(dict.fromkeys(classes)))


def several(facts: SplitFacts, count: int, seed: int) -> npt.NDArray[np.int64]:
    """Draw up to `count` readable samples by `seed`: one of each class, then a second of each, and so on."""
    usable = np.flatnonzero(facts.records["readable"])
    drawn = np.random.default_rng(seed).permutation(usable)
    labels = facts.dataset.labels[drawn]
    by_class = np.argsort(labels, kind="stable")
    position = np.arange(len(drawn))
    first = np.searchsorted(labels[by_class], labels[by_class])
    turn = np.empty(len(drawn), np.int64)
    turn[by_class] = position - first  # how many samples of its class come before it
    chosen: npt.NDArray[np.int64] = drawn[np.lexsort((position, turn))][:count]
    return chosen
