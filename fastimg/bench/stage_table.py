"""The stage table of `fastimg bench`: the speed of each stage on its own, and its ceiling on this machine.

Ceilings are measured, and the table says how: copies in memory, the files read sequentially, one thread that has the
machine to itself, a large copy to the device or in its memory.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from rich.console import Console

from fastimg.loaders import ImageDecoder
from fastimg.loaders.remote.fetched_files import fetched_files
from fastimg.system.disks import drop, memory_bandwidth, sequential_read
from fastimg.system.measurement import Spread
from fastimg.system.measurement import show as show_table
from fastimg.system.terminal import say
from fastimg.wording import agreeing, number, plural

from .budget import Effort
from .dataset import Images
from .rig import Rig, augment_rate, copy_rate, device_copy_rate, step_rate
from .stages import Costs, read_rate, take_apart

NAMES = ("network", "read", "splice", "decode", "resize", "copy", "augment", "step")
_CHECKED = 8  # number of files checked for having left the page cache
_ALONE = 4  # one thread alone gets a fraction 1 / _ALONE of the images


@dataclass(frozen=True, kw_only=True)
class Stage:
    """A row of the table. If the stage was not measured, `note` says why."""

    name: str
    rate: Spread | None = None  # images per second
    threads: int | None = None  # number of threads
    bytes_rate: float | None = None  # per second
    ceiling: float | None = None  # in images per second
    how: str = ""  # how the ceiling was measured
    note: str = ""
    above: str = "the two were measured one after the other"  # why the rate may be above its ceiling

    @property
    def share(self) -> float | None:
        """The rate as a share of its ceiling."""
        return None if self.rate is None or self.ceiling is None else self.rate.median / self.ceiling

    def record(self) -> dict[str, Any]:
        """The row for JSON."""
        record: dict[str, Any] = {"stage": self.name, "note": self.note}
        if self.rate is not None:
            record |= self.rate.fields("images_per_second")
            record["per_core"] = None if self.threads is None else round(self.rate.median / self.threads, 1)
            record["threads"] = self.threads
        if self.bytes_rate is not None:
            record["gigabytes_per_second"] = round(self.bytes_rate / 1e9, 4)
        if self.share is not None and self.ceiling is not None:
            record |= {"ceiling_images_per_second": round(self.ceiling, 1), "ceiling": self.how}
            record["ratio"] = round(self.share, 4)
        return record

    def row(self) -> dict[str, str]:
        """The columns of the printed table."""
        assert self.rate is not None
        return {
            "stage": self.name,
            "img/s": number(self.rate.median),
            "range": f"{number(self.rate.low)} - {number(self.rate.high)}",
            "per core": "" if self.threads is None else number(self.rate.median / self.threads),
            "GB/s": "" if self.bytes_rate is None else f"{self.bytes_rate / 1e9:.3g}",
            "ceiling": "" if self.ceiling is None else number(self.ceiling),
            "of ceiling": "" if self.share is None else f"{self.share:.2f}",
        }

    def words(self) -> str:
        """A line with what the table has no room for; empty if there is nothing to say."""
        parts = [f"ceiling: {self.how}"] if self.how else []
        if self.share is not None and round(self.share, 2) > 1:
            parts.append(f"{self.share:.2f} of it, since {self.above}")
        if self.note:
            parts.append(self.note)
        return f"{self.name}: {'; '.join(parts)}" if parts else ""


def show(stages: Sequence[Stage], threads: int, console: Console) -> None:
    """Print the table, with notes on how ceilings were measured and on what was not measured."""
    rows = [stage.row() for stage in stages if stage.rate is not None]
    if rows:
        show_table(console, f"stages alone, {plural(threads, 'thread')}", rows)
    for stage in stages:
        if stage.words():
            say(console, f"  {stage.words()}")


def measure(
    images: Images, decoder: ImageDecoder, rig: Rig, names: Sequence[str], count: int, threads: int, effort: Effort
) -> list[Stage]:
    """Measure these stages, each on its own."""
    ids = images.epoch(count)
    rows: list[Stage] = []
    measuring = effort.timetable.measuring
    if "network" in names:
        with measuring("the network"):
            rows.append(_network(images, effort))
    if "read" in names:
        with measuring("reading"):
            rows += _reading(images, ids, threads, rig.loader.config.batch_size, effort)
    if {"splice", "decode", "resize"} & set(names):
        with measuring("decoding"):
            rows += [row for row in _decoding(images, decoder, ids, threads, effort) if row.name in names]
    if "copy" in names and rig.device.type != "cuda":
        rows.append(Stage(name="copy", note="none: the CPU trains on the loader's buffer itself"))
    elif "copy" in names:
        with measuring("copying"):
            rows.append(_copy(rig, effort))
    if "augment" in names:
        with measuring("augmentation"):
            rows.append(_augment(rig, effort))
    if "step" in names:
        with measuring("the step"):
            found = Spread.of([step_rate(rig, effort.budget) for _ in effort.rounds("the step")])
        rows.append(Stage(name="step", rate=found, note=f"{rig.config.arch}: forward, backward, update"))
    return rows


def _network(images: Images, effort: Effort) -> Stage:
    """What the store gives, to as many streams as fetch shards; nothing is kept."""
    files = fetched_files(images.dataset)
    if files is None:
        return Stage(name="network", note="none: the data is on this machine")
    rates = [files.rate(effort.budget.training) for _ in effort.rounds("the network")]
    always = files.by_ranges or files.size > files.mirror.cache.limit
    return Stage(
        name="network",
        rate=Spread.of([rate / images.mean_bytes for rate in rates]),
        bytes_rate=median(rates),
        note="in every epoch" if always else "in the first epoch alone: the cache holds all of the data",
    )


def _reading(images: Images, ids: npt.NDArray[np.int64], threads: int, batch: int, effort: Effort) -> list[Stage]:
    dataset = images.dataset
    files = [file for file in dict.fromkeys(dataset.files()) if images.local or file.exists()]
    unique = np.unique(ids)  # a second read would come from memory
    cold: list[tuple[float, float]] = []
    lines: list[float] = []
    why = ""
    for repeat in effort.rounds("reading"):
        line = sequential_read(files, cold=True, limit=effort.budget.nbytes)
        why = line.why or _dropped(files)
        if why:
            break
        lines.append(line.bytes_per_second)
        cold.append(read_rate(dataset, np.random.default_rng(repeat).permutation(unique), threads, batch))
    rows = []
    if cold:
        rates, nbytes = ([rate[i] for rate in cold] for i in range(2))
        rows.append(
            Stage(
                name="read, cold",
                rate=Spread.of(rates),
                threads=threads,
                bytes_rate=median(nbytes),
                ceiling=median(lines) / images.mean_bytes,
                how="its files read sequentially, cold",
            )
        )
    else:
        rows.append(Stage(name="read, cold", note=f"not measured: {why}"))
    warm = [read_rate(dataset, ids, threads, batch) for _ in (-1, *effort.rounds("reading"))][1:]
    rates, nbytes = ([rate[i] for rate in warm] for i in range(2))
    ceiling = memory_bandwidth(effort.budget.nbytes) / images.mean_bytes
    how = "a copy in memory by one thread"
    row = Stage(name="read, warm", rate=Spread.of(rates), threads=threads, bytes_rate=median(nbytes), ceiling=ceiling)
    return [*rows, _with(row, how=how, **({"above": f"{threads} threads read"} if threads > 1 else {}))]


def _dropped(files: Sequence[Path]) -> str:
    """Drop files from the page cache. Returns why that did not work; empty if it did."""
    for place, path in enumerate(files):
        with path.open("rb", buffering=0) as handle:
            if why := drop(handle.fileno(), checked=place < _CHECKED):
                return why
    return ""


def _decoding(
    images: Images, decoder: ImageDecoder, ids: npt.NDArray[np.int64], threads: int, effort: Effort
) -> list[Stage]:
    together: list[Costs] = []
    alone: list[Costs] = []
    for _ in effort.rounds("decoding"):
        alone.append(take_apart(images.dataset, ids[: max(1, len(ids) // _ALONE)], decoder, 1))
        together.append(take_apart(images.dataset, ids, decoder, threads))
    last = together[-1]
    notes = {"splice": "" if last.tiled else "no tiled JPEGs: only headers and crop windows"}
    if last.failed:
        notes["decode"] = (
            f"{last.failed:,} of {len(ids):,} could not be decoded and {agreeing(last.failed, 'is')} left out"
        )
    rows = []
    for name in ("splice", "decode", "resize"):
        rates = [threads * costs.rate(name) for costs in together]
        ceiling = threads * median(costs.rate(name) for costs in alone)
        how = f"{threads} x a single thread"
        row = Stage(name=name, rate=Spread.of(rates), threads=threads, ceiling=ceiling, how=how)
        rows.append(_with(row, note=notes.get(name, "")))
    return rows


def _copy(rig: Rig, effort: Effort) -> Stage:
    rates = [copy_rate(rig, effort.budget) for _ in effort.rounds("copying")]
    slots = median(slot_bytes for _, slot_bytes, _ in rates)
    bus = median(bus_bytes for _, _, bus_bytes in rates)
    rate = Spread.of([images for images, _, _ in rates])
    return Stage(
        name="copy",
        rate=rate,
        bytes_rate=slots,
        ceiling=rate.median * bus / slots,
        how=f"{effort.budget.nbytes >> 20} MiB copied from pinned memory",
    )


def _augment(rig: Rig, effort: Effort) -> Stage:
    setup = rig.run.setup
    rate = Spread.of([augment_rate(rig, effort.budget) for _ in effort.rounds("augmentation")])
    itemsize = torch.empty(0, dtype=setup.precision.input_dtype).element_size()
    preprocessing = setup.input.preprocessing
    values = preprocessing.channels * preprocessing.train_size**2
    nbytes = values * (1 + itemsize)  # read as uint8, written in the model's type
    ceiling = device_copy_rate(rig.device, effort.budget) / nbytes
    return Stage(
        name="augment",
        rate=rate,
        bytes_rate=rate.median * nbytes,
        ceiling=ceiling,
        how="a copy of as many bytes on the device",
    )


def _with(row: Stage, **changes: Any) -> Stage:
    values: Mapping[str, Any] = {**vars(row), **changes}
    return Stage(**values)
