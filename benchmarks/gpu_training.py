"""What a GPU gets from the loader: decoding and loading alone, then training from data against synthetic batches."""

import os
import time
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import gil
import measure
from bench import Bench
from gpu_clocks import clocks
from gpu_graphs import replays
from gpu_loaders import by_threads, decoding_alone, indices_of, plain, real_rig, repeated, warm_steps
from gpu_plan import Variant
from gpu_steps import fastest_measured, synthetic_rig
from gpu_traces import keep_trace

from fastimg.bench.rig import Rig, loader_rate, real_rate, with_loader
from fastimg.loaders import open_dataset
from fastimg.train.wrapping import compile_ahead

_EPOCH = 1_281_167  # training images of ImageNet


def training(bench: Bench) -> None:
    """Decoding alone, the loader by threads, then each model from files and shards; of the last one a trace is kept."""
    items = {"decoding": partial(decoding_alone, bench), "threads": partial(by_threads, bench)}
    for arch in bench.sizes.real_archs:
        items[f"real/synthetic {arch}"] = partial(_from_data, bench, arch)
    bench.each(items, seconds=110)


@dataclass
class _Windows:
    """What was seen beside the rates of a rig, in each of its windows."""

    rig: Rig
    warm: int  # steps that are not timed
    sampler: gil.Sampler | None
    cores: list[float] = field(default_factory=list)  # that this process kept busy
    locked: list[float] = field(default_factory=list)  # share of the time
    drained: list[float] = field(default_factory=list)  # share of the steps in which the GPU had nothing left to do
    replayed: list[float] = field(default_factory=list)  # CUDA graphs

    def rate(self, seconds: float) -> float:
        """Images per second of one window, in the middle of an epoch. What is seen includes its untimed steps."""
        found: list[float] = []
        before, began = os.times(), time.perf_counter()

        def work() -> None:
            found.append(real_rate(self.rig, self.warm, seconds=seconds))

        replayed = replays()
        if self.sampler is None:
            work()
        else:
            self.locked.append(self.sampler.share(work)[0])
        self.replayed.append(replays() - replayed)
        after, passed = os.times(), time.perf_counter() - began
        self.cores.append((after.user + after.system - before.user - before.system) / passed)
        if self.rig.drained is not None:
            self.drained.append(self.rig.drained)
        return found[0]

    def fields(self) -> dict[str, Any]:
        """Medians, for a row."""
        seen = {"busy_cores": self.cores, "lock_held": self.locked, "drained": self.drained, "replays": self.replayed}
        return {name: round(measure.Spread.of(values).median, 3) for name, values in seen.items() if values}


def _from_data(bench: Bench, arch: str) -> None:
    """Training from files and shards, eager and at its fastest, in turn with the fastest step on synthetic batches."""
    sizes = bench.sizes
    ways = {"eager": plain(bench, arch), "best": fastest_measured(bench, arch)}
    sampler = _sampler(bench)
    windows: dict[tuple[str, str], _Windows] = {}
    try:
        for way, variant in ways.items():
            _open(bench, way, variant, sampler, windows)
        names = {f"{source}, {way}": (source, way) for source, way in windows}
        calls = {name: partial(windows[key].rate, sizes.window) for name, key in names.items()}
        speeds = measure.interleaved(calls, sizes.repeats)
        synthetic = speeds["synthetic, best"].median
        rows: list[dict[str, Any]] = []
        for name, (source, way) in names.items():
            own = windows[source, way]
            row: dict[str, Any] = {"arch": arch, "source": source, "way": way, "settings": ways[way].text()}
            row["images_per_second"] = speeds[name]
            if source != "synthetic":
                row["real_over_synthetic"] = round(speeds[name].median / synthetic, 4)
                row["minutes_of_16_epochs"] = round(16 * _EPOCH / speeds[name].median / 60, 1)
            row |= {**own.fields(), "threads": own.rig.loader.workers, "precision": own.rig.run.setup.precision.reason}
            rows.append(row)
        rows[0] |= clocks(bench.device)
        bench.report(f"training, batch {sizes.batch}, {sizes.crop} px, epochs of {sizes.epoch_batches} batches", rows)
        if arch == sizes.real_archs[-1]:
            keep_trace(bench, windows["files", "best"].rig, arch)
    finally:
        for own in windows.values():
            own.rig.close()


def _open(
    bench: Bench,
    way: str,
    variant: Variant,
    sampler: gil.Sampler | None,
    windows: dict[tuple[str, str], _Windows],
) -> None:
    """Add the rigs of a way to train: synthetic batches, files, and shards where there are any."""
    count = bench.sizes.epoch_batches * bench.sizes.batch
    files = real_rig(bench, variant, "files", bench.sizes.epoch_batches)
    rigs = {"files": files}
    if bench.shards.is_dir():
        shards = open_dataset(bench.shards)
        rigs["shards"] = with_loader(files, shards, repeated(shards, count))
    if way == "best":
        rigs["synthetic"] = synthetic_rig(bench, variant)
    for source, rig in rigs.items():
        compile_ahead(rig.run, lambda words: None)
        windows[source, way] = _Windows(rig, warm_steps(rig), sampler)


def _sampler(bench: Bench) -> gil.Sampler | None:
    """What samples the interpreter's lock; None where that is not possible, which is said."""
    try:
        return gil.Sampler()
    except RuntimeError as error:
        bench.console.print(f"{bench.section}: the lock's share is not measured: {error}")
        return None


def overlap(bench: Bench) -> None:
    """Loader and step together, compared with the slower of them."""
    sizes = bench.sizes
    arch = sizes.archs[0]
    together = real_rig(bench, plain(bench, arch), "files", 2 * sizes.loader_batches)
    alone = with_loader(together, together.loader.dataset, indices_of(together)[: sizes.loader_batches * sizes.batch])
    synthetic = with_loader(together, together.loader.dataset, indices_of(together), loader="synthetic", decode="auto")
    warm = warm_steps(together)
    per_batch = measure.interleaved(
        {
            "step": lambda: sizes.batch / real_rate(synthetic, 2, seconds=sizes.seconds),
            "loader": lambda: sizes.batch / loader_rate(alone),
            "both": lambda: sizes.batch / real_rate(together, warm, seconds=sizes.seconds),
        },
        sizes.repeats,
    )
    for rig in (alone, synthetic, together):
        rig.close()
    bound = max(per_batch["step"].median, per_batch["loader"].median)
    rows: list[dict[str, Any]] = [{"what": name, "seconds_per_batch": spread} for name, spread in per_batch.items()]
    rows[-1]["ratio_to_slower"] = round(per_batch["both"].median / bound, 3)
    bench.report(f"{arch}, batch {sizes.batch}, {together.loader.workers} threads", rows)
