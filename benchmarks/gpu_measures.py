"""Speed: the loader, training from files, augmentation, and what overlaps."""

import importlib.util
import json
import tempfile
import time
from collections.abc import Collection, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import measure
import numpy as np
import numpy.typing as npt
from bench import Bench
from gpu_clocks import clocks
from gpu_plan import Variant
from gpu_steps import config_of
from images import dataset, untiled_beside
from torch.profiler import ProfilerActivity, profile

from fastimg.bench.rig import Rig, build, loader_rate, real_rate, with_loader
from fastimg.loaders import Loader


def loader(bench: Bench) -> None:
    """The trainer's loader by number of threads, interleaved; then training from files compared with synthetic data."""
    items = {"threads": partial(_by_threads, bench)}
    for arch in bench.sizes.real_archs:
        items[f"real/synthetic {arch}"] = partial(_real_over_synthetic, bench, arch)
    bench.each(items, seconds=60)


def _by_threads(bench: Bench) -> None:
    sizes = bench.sizes
    first = _real_rig(bench, sizes.real_archs[-1], sizes.loader_batches, threads=sizes.threads[0])
    rigs = {("files", sizes.threads[0]): first}
    for threads in sizes.threads[1:]:
        rigs["files", threads] = with_loader(first, first.loader.dataset, _indices(first), workers=str(threads))
    if untiled_beside(bench.folder).is_dir():
        untiled = dataset(untiled_beside(bench.folder), len(_indices(first)))
        for threads in sizes.threads:
            rigs["untiled files", threads] = with_loader(first, untiled, _indices(first), workers=str(threads))
    names = {f"{source}, {threads}": (source, threads) for source, threads in rigs}
    try:
        speeds = measure.interleaved(
            {name: partial(loader_rate, rigs[key]) for name, key in names.items()}, sizes.repeats
        )
    finally:
        for rig in rigs.values():
            rig.close()
    rows = []
    for name, speed in speeds.items():
        source, threads = names[name]
        each = round(speed.median / threads, 1)
        rows.append({"source": source, "threads": threads, "images_per_second": speed, "per_thread": each})
    bench.report(f"the loader alone, to the device, batch {sizes.batch}, {sizes.crop} px", rows)


def _real_over_synthetic(bench: Bench, arch: str) -> None:
    sizes = bench.sizes
    real = _real_rig(bench, arch, 2 * sizes.loader_batches)
    synthetic = with_loader(real, real.loader.dataset, _indices(real), loader="synthetic", decode="auto")
    warm = real.loader.config.prefetch + 2
    try:
        speeds = measure.interleaved(
            {
                "synthetic": lambda: real_rate(synthetic, 2, seconds=sizes.seconds),
                "real": lambda: real_rate(real, warm, seconds=sizes.seconds),
            },
            sizes.repeats,
        )
    finally:
        real.close()
        synthetic.close()
    row = {
        "arch": arch,
        "synthetic_images_per_second": speeds["synthetic"],
        "real_images_per_second": speeds["real"],
        "real_over_synthetic": round(speeds["real"].median / speeds["synthetic"].median, 4),
        "threads": real.loader.workers,
        "precision": real.run.setup.precision.reason,
        # Shares of the steps in which the GPU had nothing left to do: it waits for the host.
        "drained_synthetic": synthetic.drained,
        "drained_real": real.drained,
        **clocks(bench.device),
    }
    bench.report(f"images per second, batch {sizes.batch}, {sizes.crop} px", [row])


def _real_rig(bench: Bench, arch: str, batches: int, threads: int | None = None, **changes: Any) -> Rig:
    """The trainer's run over `batches` batches of the section's images, which repeat."""
    count = batches * bench.sizes.batch
    variant = Variant(arch, "bf16", None, bench.sizes.batch)
    workers = "auto" if threads is None else str(threads)
    config = config_of(bench, variant, loader="auto", workers=workers, amp_dtype="auto", **changes)
    return build(config, dataset(bench.folder, count), np.arange(count), bench.ranks)


def _indices(rig: Rig) -> npt.NDArray[np.int64]:
    indices = rig.loader.indices
    assert indices is not None
    return indices


def epoch_rate(loader: Loader) -> float:
    """Images per second of one epoch."""
    began = time.perf_counter()
    count = sum(batch.samples for batch in loader)
    measure.synchronise(loader.device)
    return count / (time.perf_counter() - began)


def dali(bench: Bench) -> None:
    """DALI's loader compared with fastimg's, to the device. DALI may crash, so this section has its own process."""
    bench.need_cuda()
    sizes = bench.sizes
    ours = _real_rig(bench, sizes.real_archs[-1], sizes.loader_batches)
    theirs = with_loader(ours, ours.loader.dataset, _indices(ours), loader="dali")
    speeds = measure.interleaved(
        {"fastimg": partial(loader_rate, ours), "DALI": partial(loader_rate, theirs)}, sizes.repeats
    )
    rigs = {"fastimg": ours, "DALI": theirs}
    rows = [
        {"loader": name, "images_per_second": speeds[name], "how": rig.loader.describe()} for name, rig in rigs.items()
    ]
    for rig in rigs.values():
        rig.close()
    bench.report(f"loaders alone, to the device, batch {sizes.batch}", rows)


def cifar(bench: Bench) -> None:
    """The recipe for small images that stay on the device: benchmarks/cifar.py without airbench's script."""
    import cifar as recipe  # loads the modules that the command line needs

    quick = ["--width", "8", "--epochs", "1", "--batch-size", "128"]
    size = ["--repeat", "8"] if bench.device.type == "cuda" else quick
    with tempfile.TemporaryDirectory(prefix="fastimg-cifar-") as folder:
        out = Path(folder) / "cifar.jsonl"
        rows = recipe.main(["--device", bench.device.type, "--runs", "1", *size, "--out", str(out)])
    bench.report("cifar-fast on scikit-learn's digits, seconds from whitening to the last evaluation", rows)


def overlap(bench: Bench) -> None:
    """Loader and step together, compared with the slower of them; on a GPU, the overlap of copies and augmentation."""
    sizes = bench.sizes
    arch = sizes.archs[0]
    together = _real_rig(bench, arch, 2 * sizes.loader_batches)
    alone = with_loader(together, together.loader.dataset, _indices(together)[: sizes.loader_batches * sizes.batch])
    synthetic = with_loader(together, together.loader.dataset, _indices(together), loader="synthetic", decode="auto")
    warm = together.loader.config.prefetch + 2
    per_batch = measure.interleaved(
        {
            "step": lambda: sizes.batch / real_rate(synthetic, 2, seconds=sizes.seconds),
            "loader": lambda: sizes.batch / loader_rate(alone),
            "both": lambda: sizes.batch / real_rate(together, warm, seconds=sizes.seconds),
        },
        sizes.repeats,
    )
    alone.close()
    synthetic.close()
    bound = max(per_batch["step"].median, per_batch["loader"].median)
    rows: list[dict[str, Any]] = [{"what": name, "seconds_per_batch": spread} for name, spread in per_batch.items()]
    rows[-1]["ratio_to_slower"] = round(per_batch["both"].median / bound, 3)
    bench.report(f"{arch}, batch {sizes.batch}, {together.loader.workers} threads", rows)
    try:
        bench.each({"trace": partial(_trace, bench, together, warm)}, seconds=30)
    finally:
        together.close()


def _trace(bench: Bench, rig: Rig, warm: int) -> None:
    bench.need_cuda()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "trace.json"
        with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiler:
            real_rate(rig, warm, seconds=0.5)
        profiler.export_chrome_trace(str(file))
        events = json.loads(file.read_text())["traceEvents"]
    least = rig.loader.slot_bytes // 2
    parts = {
        "copies": copies_under_compute(events, least),
        "augmentation": augmentation_under_compute(events, augmentation_kernels()),
    }
    rows = [{"what": what, **row, "ok": row["count"] > 0} for what, row in parts.items()]
    bench.report("copies of whole batches, and augmentation, in a trace of half a second", rows)


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
