"""Which sample gets which number in which shard: a pure function of the source listing and the options."""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from fastimg.convert.sources.samples import Entries, Source
from fastimg.data.splits import shuffled, stratified_split
from fastimg.errors import UsageError
from fastimg.loaders.errors import DataError

_UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30}


@dataclass(frozen=True)
class Shard:
    """Which samples go into one shard: `entries[i]` is sample `start + i` of the split."""

    split: str
    number: int
    start: int
    entries: Entries

    @property
    def name(self) -> str:
        """Name of its file, without an extension."""
        return f"{self.split}-{self.number:05d}"


@dataclass(frozen=True)
class Begun:
    """How much of a split exists already when a dataset is appended to."""

    shards: int = 0
    samples: int = 0


def parse_size(text: str, flag: str = "--shard-size", example: str = "256MB") -> int:
    """Bytes of `256MB`, `1.5 GB`, `1GiB` or a plain number. Raises UsageError."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([A-Z]*)", text.strip().upper())
    size = float(match[1]) * _UNITS[match[2]] if match and match[2] in _UNITS else 0
    if not 1 <= size < 2**63:
        raise UsageError(f"{flag} {text}: give a number of bytes, or one with KB, MB or GB, as in {example}")
    return int(size)


def assign_shards(sizes: Iterable[int], shard_size: int) -> list[int]:
    """Where each shard starts. A shard is full when the next image would exceed `shard_size`."""
    starts = [0]
    filled = 0
    for index, size in enumerate(sizes):
        if filled and filled + size > shard_size:
            starts.append(index)
            filled = 0
        filled += size
    return starts


def plan_shards(
    source: Source,
    *,
    shard_size: int,
    val_fraction: float,
    shuffle: bool,
    seed: int,
    begun: Mapping[str, Begun] | None = None,
) -> list[Shard]:
    """Assign a split, number and shard to every sample, from the listing alone."""
    splits = dict(source.splits)
    if val_fraction > 0:
        if "val" in splits:
            raise UsageError(f"{source.src}: already has a validation split; leave out --val-fraction")
        if "train" not in splits:
            raise UsageError(f"{source.src}: has no training split to hold images out of; leave out --val-fraction")
        train = splits["train"]
        kept, held_out = stratified_split(train.labels, val_fraction, seed)
        if len(held_out) == 0:
            raise DataError(
                f"{source.src}: no class has two images, so --val-fraction cannot hold any out; leave it out"
            )
        splits |= {"train": train.select(kept), "val": train.select(held_out)}
    if shuffle and "train" in splits:
        splits["train"] = splits["train"].select(shuffled(len(splits["train"]), seed))
    plan = []
    for split, entries in sorted(splits.items()):
        existing = (begun or {}).get(split, Begun())
        starts = assign_shards(stored_sizes(entries.sizes), shard_size)
        for number, (start, end) in enumerate(zip(starts, [*starts[1:], len(entries)], strict=True)):
            plan.append(Shard(split, existing.shards + number, existing.samples + start, entries[start:end]))
    return plan


def apart(plan: list[Shard], taken: Collection[str]) -> list[Shard]:
    """The same shards, numbered after those of the files `taken` where they would have the names of some."""
    if not any(f"{shard.name}.tar" in taken for shard in plan):
        return plan
    numbers = (re.match(r"[a-z]+-(\d+)\.tar$", name) for name in taken)
    free = 1 + max(int(number[1]) for number in numbers if number)
    return [replace(shard, number=free + shard.number) for shard in plan]


def stored_sizes(sizes: npt.NDArray[np.int64]) -> Iterator[int]:
    """Bytes that images take up in a tar, with labels and notes: a header of 512 bytes each, and whole blocks."""
    for size in sizes.tolist():
        yield 512 + -(-max(size, 0) // 512) * 512 + 2 * 1024
