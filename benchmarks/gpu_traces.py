"""Traces of training steps: one is kept as a file, and copies and augmentation under other kernels are counted."""

import gzip
import importlib
import itertools
import json
import tempfile
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

import measure
from bench import Bench
from gpu_loaders import warm_steps
from torch.profiler import ProfilerActivity, profile

from fastimg.bench.rig import Rig
from fastimg.train.augment_stream import AugmentStream
from fastimg.train.choices.batch_size import batches
from fastimg.train.step import optimiser_step

_MOST = 10 << 20  # bytes of a trace's file
_STEPS = (8, 4, 2, 1)  # in a trace: as many as fit


def keep_trace(bench: Bench, rig: Rig, name: str) -> None:
    """Write a trace of a few steps beside the records, compressed; on a GPU also report what overlaps."""
    file = bench.out.with_name(f"{bench.out.stem}-{name}.trace.json.gz")
    on_cuda = bench.device.type == "cuda"
    for steps in _STEPS:
        text = _traced(rig, steps)
        packed = gzip.compress(text, mtime=0)
        if len(packed) <= _MOST:
            break
    else:
        raise RuntimeError(f"a trace of one step takes {len(packed):,} bytes")
    file.write_bytes(packed)
    found: dict[str, Any] = {"what": "trace", "file": file.name, "steps": steps, "kib": len(packed) >> 10}
    rows = [found]
    if on_cuda:
        events = json.loads(text)["traceEvents"]
        parts = {
            "copies": copies_under_compute(events, rig.loader.slot_bytes // 2),
            "augmentation": augmentation_under_compute(events, augmentation_kernels()),
        }
        rows += [{"what": what, **row, "ok": row["count"] > 0} for what, row in parts.items()]
    bench.report(f"copies of whole batches, and augmentation, in a trace of {name}", rows)


def _traced(rig: Rig, steps: int) -> bytes:
    """The trace of so many steps after others that use up what was read ahead, as Chrome's JSON."""
    source = batches(rig.loader)
    stream = AugmentStream(rig.device, rig.config.augment_stream)
    try:
        for _ in range(warm_steps(rig)):
            optimiser_step(rig.run, source, rig.config.grad_accum_steps, stream)
        measure.synchronise(rig.device)
        activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if rig.device.type == "cuda" else [])]
        with profile(activities=activities) as profiler:
            for _ in itertools.repeat(None, steps):
                optimiser_step(rig.run, source, rig.config.grad_accum_steps, stream)
            measure.synchronise(rig.device)
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "trace.json"
            profiler.export_chrome_trace(str(file))
            return file.read_bytes()
    finally:
        source.close()  # type: ignore[attr-defined]  # a generator; closing it ends the iteration over the loader


def augmentation_kernels() -> frozenset[str]:
    """The names of the kernels that augmentation launches on a GPU."""
    from triton import JITFunction

    modules = [importlib.import_module(f"fastimg.augment.fused.{name}") for name in ("launches", "blurs")]
    return frozenset(name for one in modules for name, value in vars(one).items() if isinstance(value, JITFunction))


_Span = tuple[float, float, Any]  # of a trace, in microseconds: start, end, stream


def copies_under_compute(events: Iterable[Mapping[str, Any]], least: int) -> dict[str, Any]:
    """The copies to the device of `least` bytes or more in a profiler's trace, and how far kernels overlap them."""
    copies = []
    kernels = []
    for event in events:
        if event.get("cat") == "kernel":
            kernels.append(_span(event))
        elif event.get("cat") == "gpu_memcpy" and "HtoD" in event["name"] and event["args"].get("bytes", 0) >= least:
            copies.append(_span(event))
    return _beside(copies, kernels)


def augmentation_under_compute(events: Iterable[Mapping[str, Any]], names: Collection[str]) -> dict[str, Any]:
    """Augmentation's kernels (those in `names`) in a profiler's trace, and how far other kernels overlap them."""
    kernels = [event for event in events if event.get("cat") == "kernel"]
    ours = [_span(event) for event in kernels if event["name"] in names]
    return _beside(ours, [_span(event) for event in kernels if event["name"] not in names])


def _span(event: Mapping[str, Any]) -> _Span:
    return float(event["ts"]), float(event["ts"]) + float(event["dur"]), event.get("args", {}).get("stream")


def _beside(spans: list[_Span], kernels: list[_Span]) -> dict[str, Any]:
    """How much of `spans` is covered by kernels of other streams."""
    kernels = sorted(kernels, key=lambda span: span[0])
    total = covered = 0.0
    for start, end, stream in spans:
        total += end - start
        at = start
        for other_start, other_end, other in kernels:
            if other != stream and other_end > at and other_start < end:
                covered += min(other_end, end) - max(other_start, at)
                at = min(other_end, end)
    return {
        "count": len(spans),
        "milliseconds": round(total / 1000, 3),
        "share_under_compute": round(covered / total, 3) if total else None,
        "streams": len({stream for _, _, stream in spans}),
        "shared_with_compute": bool({s for _, _, s in spans} & {s for _, _, s in kernels}),
    }
