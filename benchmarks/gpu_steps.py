"""The trainer's own step on synthetic data: eager, compiled and as CUDA graphs, by models, types and batch sizes."""

import itertools
import resource
import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import measure
import numpy as np
import torch
from bench import Bench
from gpu_clocks import clocks
from gpu_graphs import graphs_setting, has_graphs, replaying
from gpu_plan import Variant, fastest, more, variant
from gpu_summary import read

from fastimg.bench.rig import Rig, build
from fastimg.config.commands import Train
from fastimg.loaders import FilesDataset
from fastimg.system.memory import ran_out, release
from fastimg.train.augment_stream import AugmentStream
from fastimg.train.choices.batch_size import batches
from fastimg.train.step import optimiser_step
from fastimg.train.wrapping import compile_ahead

_WARM = 5  # warm-up steps: cuDNN chooses algorithms, the allocator gets memory, clocks rise
_MOST = 100  # timed steps
_CLASSES = 1000
# Keys of the environment that a row of the grid repeats next to its numbers.
_BESIDE = ("gpu", "torch", "triton", "cuda", "cudnn", "cores", "cpu", "commit")
_LIMIT = 120.0  # time limit in seconds for one variant, including compilation
# Minimum seconds left for a variant to start.
_LEAST = {None: 4.0, "default": 25.0, "reduce-overhead": 25.0, "max-autotune-no-cudagraphs": 60.0}


def steps(bench: Bench) -> None:
    """Run the rows asked for, or those that may be the fastest of each model, in their order until the time is over."""
    rows = [variant(row) for row in bench.rows]
    _measure(bench, rows or fastest(bench.sizes.real_archs, bench.sizes.batch, bench.device.type))


def more_steps(bench: Bench) -> None:
    """The rows that neither these results nor those that are kept contain for this GPU and torch."""
    variants = more(bench.sizes.archs, bench.sizes.step_batches, bench.device.type)
    done = measured([*read(measure.RESULTS / "gpu.jsonl"), *read(bench.out)], bench.environment)
    _measure(bench, [variant for variant in variants if variant not in done])


def measured(records: Iterable[dict[str, Any]], environment: dict[str, Any]) -> set[Variant]:
    """The variants with a rate in the records, of the same GPU and torch, beside which nothing else ran."""
    found = set()
    for record in records:
        same = all(record.get(key) == environment.get(key) for key in ("gpu", "torch")) and "note" not in record
        if record.get("section") == "steps" and "images_per_second" in record and same:
            how = record["compile"], record["batch"], record.get("cuda_graphs", False)
            found.add(Variant(record["arch"], record["dtype"], *how))
    return found


def fastest_measured(bench: Bench, arch: str) -> Variant:
    """The variant of a model with the highest rate in this run; if none was measured, one that is likely to have it."""
    rows = [r for r in read(bench.out, bench.run) if r["section"] == "steps" and r.get("arch") == arch]
    rates = {r["images_per_second"]: r for r in rows if "images_per_second" in r and r["batch"] == bench.sizes.batch}
    if rates:
        best = rates[max(rates)]
        return Variant(arch, best["dtype"], best["compile"], best["batch"], best["cuda_graphs"])
    if bench.device.type != "cuda":
        return Variant(arch, "float32", None, bench.sizes.batch)
    return Variant(arch, "bf16", "default", bench.sizes.batch, has_graphs())


def _measure(bench: Bench, variants: Sequence[Variant]) -> None:
    by_name = {one.text(): one for one in variants}
    beside = {key: bench.environment.get(key) for key in _BESIDE}
    bench.each(
        {name: partial(_variant, bench, variant) for name, variant in by_name.items()},
        seconds=_LIMIT,
        least=lambda name: _LEAST[by_name[name].compile] if bench.device.type == "cuda" else 1.0,
        fields=lambda name: {**by_name[name].fields(), **beside},
    )


def _variant(bench: Bench, variant: Variant) -> None:
    """Measure and record one variant. Running out of memory is a result; other errors are raised."""
    record: dict[str, Any] = variant.fields()
    _forget(bench.device)
    try:
        record |= _rate(bench, variant)
    except Exception as error:
        if not ran_out(error):
            raise
        record["error"] = "out of memory"
    finally:
        _forget(bench.device)
    beside = {key: bench.environment.get(key) for key in _BESIDE}
    bench.keep({**record, **beside, **clocks(bench.device)})
    said = record.get("error") or f"{record['images_per_second']:,.0f} img/s, {record['ms']:.4g} ms"
    bench.console.print(f"steps: {variant.text()}: {said}  ({bench.left():.0f} s left)")


def _forget(device: torch.device) -> None:
    """Free memory, compiled code and CUDA graphs of one variant before the next."""
    torch.compiler.reset()
    release(device)
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)


def _rate(bench: Bench, variant: Variant) -> dict[str, Any]:
    rig = synthetic_rig(bench, variant)
    try:
        began = time.perf_counter()
        compile_ahead(rig.run, lambda words: None)
        compiled = time.perf_counter() - began
        with replaying(variant.cuda_graphs):
            times, seconds = step_times(rig, bench.sizes.seconds)
    finally:
        rig.close()
    spread = measure.Spread.of(times)
    on_cuda = bench.device.type == "cuda"
    peak = torch.cuda.max_memory_allocated(bench.device) if on_cuda else _resident()
    return {
        "images_per_second": float(f"{1000 * variant.batch / spread.median:.5g}"),
        **spread.fields("ms"),
        "images_per_second_by_clock": float(f"{len(times) * variant.batch / seconds:.5g}"),
        "memory_mib": round(peak / 2**20),
        **({"compile_seconds": round(compiled, 1)} if variant.compile else {}),
        "size": bench.sizes.crop,
    }


def config_of(bench: Bench, variant: Variant, **changes: Any) -> Train:
    """The trainer's settings for a variant."""
    config = Train(
        arch=variant.arch,
        batch_size=variant.batch,
        img_size=bench.sizes.crop,
        loader="synthetic",
        workers="1",
        amp=variant.dtype != "float32",
        amp_dtype="auto" if variant.dtype == "float32" else variant.dtype,
        compile=variant.compile,
        **graphs_setting(variant.cuda_graphs, bench.device),
        device=bench.device.type,
        lr=1e-4,  # small, so that the weights stay finite; their values do not matter
        val_fraction=0.0,
    )
    return replace(config, **changes)


def synthetic_rig(bench: Bench, variant: Variant) -> Rig:
    """The trainer's run on random pixels that are already on the device."""
    samples = variant.batch * bench.sizes.epoch_batches
    names = tuple(f"class {number}" for number in range(_CLASSES))
    labels = (np.arange(samples) % _CLASSES).tolist()
    nothing = FilesDataset(Path("synthetic"), [""] * samples, names, labels)  # is not read
    return build(config_of(bench, variant), nothing, np.arange(samples), bench.ranks)


def step_times(rig: Rig, least: float) -> tuple[list[float], float]:
    """(milliseconds of each step, wall seconds of all), after warm-up steps; lasts at least `least` seconds.

    On a GPU, times are between events recorded after each step; if the host is slower than the device, they are the
    host's.
    """
    run = rig.run
    device = rig.device
    source = batches(rig.loader)
    stream = AugmentStream(device, rig.config.augment_stream)

    def step() -> None:
        optimiser_step(run, source, rig.config.grad_accum_steps, stream)

    for _ in range(_WARM if device.type == "cuda" else 1):
        step()
    measure.synchronise(device)
    began = time.perf_counter()
    step()
    step()
    measure.synchronise(device)
    each = (time.perf_counter() - began) / 2
    count = int(min(_MOST, max(10 if device.type == "cuda" else 2, least / max(each, 1e-6))))
    if device.type != "cuda":
        times = [1000 * measure.seconds(step, device) for _ in range(count)]
        return times, sum(times) / 1000
    events = [torch.cuda.Event(enable_timing=True) for _ in range(count + 1)]
    began = time.perf_counter()
    events[0].record()
    for event in events[1:]:
        step()
        event.record()
    events[-1].synchronize()
    seconds = time.perf_counter() - began
    return [a.elapsed_time(b) for a, b in itertools.pairwise(events)], seconds


def _resident() -> int:
    """The peak memory of this process in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
