"""Speed: the loader, the copy, both alongside a training step, augmentation, and training from real files."""

import importlib.util
import io
import json
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import redirect_stdout
from dataclasses import replace
from pathlib import Path
from typing import Any

import measure
import torch
from bench import MODES, Bench
from step import Stepper
from torch.profiler import ProfilerActivity, profile
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional as tv

from fastimg import cli
from fastimg.augment import Policy, apply, draw
from fastimg.loaders import Loader
from fastimg.loaders.backends import nvcodec


def loader(bench: Bench) -> None:
    """Images per second by number of threads, destination (host or device) and decoder, all interleaved."""
    sizes = bench.sizes
    cpu = torch.device("cpu")
    variants = {}
    loaders = []
    for threads in sizes.threads:
        batches = max(4, -(-threads * sizes.images_per_thread // sizes.batch))
        count = batches * sizes.batch  # whole ones: padding is decoded and does not count
        for device, mode in [(d, m) for d in dict.fromkeys((cpu, bench.device)) for m in bench.modes(d)]:
            loaders.append(bench.loader(count, sizes.batch, device, threads, mode))
            variants[f"{threads} {device.type} {mode}"] = _epoch_speed(loaders[-1])
    speeds = measure.interleaved(variants, sizes.repeats)
    for one in loaders:
        one.close()
    rows = []
    for name, speed in speeds.items():
        threads, to, mode = name.split()
        row = {"threads": int(threads), "to": to, "by": MODES[mode]}  # type: ignore[index]
        rows.append({**row, "images_per_second": speed, "per_thread": round(speed.median / int(threads), 1)})
    bench.report(f"RandomResizedCrop {sizes.crop}, batch {sizes.batch}", rows)


def _epoch_speed(loader: Loader) -> Callable[[], float]:
    def run() -> float:
        began = time.perf_counter()
        count = sum(batch.samples for batch in loader)
        measure.synchronise(loader.device)
        return count / (time.perf_counter() - began)

    return run


def overlap(bench: Bench) -> None:
    """Loader and step together against the slower of them; on a GPU, how much of copies and augmentation was hidden."""
    sizes = bench.sizes
    stepper = Stepper(sizes.archs[0], bench.device, size=sizes.crop)
    images, targets = bench.random_batch(sizes.batch)
    count = (sizes.warm_steps + sizes.steps) * sizes.batch
    alone, together = (bench.loader(count, sizes.batch, bench.device) for _ in range(2))
    per_batch = measure.interleaved(
        {
            "step": lambda: sizes.batch / _synthetic_speed(bench, stepper, images, targets),
            "loader": lambda: sizes.batch / _real_speed(bench, None, alone),
            "both": lambda: sizes.batch / _real_speed(bench, stepper, together),
        },
        sizes.repeats,
    )
    bound = max(per_batch["step"].median, per_batch["loader"].median)
    rows = [{"what": name, "seconds_per_batch": spread} for name, spread in per_batch.items()]
    rows[-1]["ratio_to_slower"] = round(per_batch["both"].median / bound, 3)  # type: ignore[assignment]
    alone.close()
    bench.report(f"{sizes.archs[0]}, batch {sizes.batch}, {together.workers} threads", rows)
    if bench.device.type != "cuda":
        together.close()
        bench.console.print(f"{bench.section}: the trace of what ran under compute is skipped: needs CUDA")
        bench.keep({"title": "trace", "skipped": "needs CUDA"})
        return
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder) / "trace.json"
        with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiler:
            _real_speed(bench, stepper, together, steps=10)
        profiler.export_chrome_trace(str(trace))
        events = json.loads(trace.read_text())["traceEvents"]
    together.close()
    rows = [copies_under_compute(events, least=together.slot_bytes // 2), augmentation_under_compute(events)]
    rows = [
        {"what": what, **row, "ok": row["count"] > 0}
        for what, row in zip(("copies", "augmentation"), rows, strict=True)
    ]
    bench.report("copies of whole batches, and augmentation, in a trace of 10 steps", rows)


_Span = tuple[float, float, Any]  # of a trace, in microseconds: begin, end, stream
_AUGMENTATION = frozenset({"_tables", "_statistics", "_pixels"})  # kernels of augment.fused


def copies_under_compute(events: Iterable[Mapping[str, Any]], least: int) -> dict[str, Any]:
    """Of a profiler's trace: the copies to the device of `least` bytes or more, and how far kernels ran beside them."""
    copies = []
    kernels = []
    for event in events:
        if event.get("cat") == "kernel":
            kernels.append(_span(event))
        elif event.get("cat") == "gpu_memcpy" and "HtoD" in event["name"] and event["args"].get("bytes", 0) >= least:
            copies.append(_span(event))
    return _beside(copies, kernels)


def augmentation_under_compute(events: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Of a profiler's trace: augmentation's kernels, and how far others ran beside them."""
    kernels = [event for event in events if event.get("cat") == "kernel"]
    ours = [_span(event) for event in kernels if event["name"] in _AUGMENTATION]
    return _beside(ours, [_span(event) for event in kernels if event["name"] not in _AUGMENTATION])


def _span(event: Mapping[str, Any]) -> _Span:
    return float(event["ts"]), float(event["ts"]) + float(event["dur"]), event.get("args", {}).get("stream")


def _beside(spans: list[_Span], kernels: list[_Span]) -> dict[str, Any]:
    """How far `spans` are covered by kernels of other streams."""
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


def augment(bench: Bench) -> None:
    """Augmentation, uint8 -> bf16, against a copy of as many bytes, and against other libraries."""
    sizes = bench.sizes
    device = bench.device
    dtype = torch.bfloat16
    images, _ = bench.random_batch(sizes.augment_batch)
    flips = Policy(hflip=0.5)
    trivial = Policy(hflip=0.5, trivial=True)
    ids = torch.arange(sizes.augment_batch)
    flip_plan = draw(flips, ids, 0, 0)
    trivial_plan = draw(trivial, ids, 0, 0)
    moved = images.numel() * 3  # a byte read, two written
    a, b = (torch.zeros(moved // 2, dtype=torch.uint8, device=device) for _ in range(2))
    calls: dict[str, Callable[[], object]] = {
        "floor: a copy of as many bytes": lambda: a.copy_(b),
        "fastimg: TrivialAugment, flip per image, normalise": lambda: apply(trivial_plan, images, trivial, dtype),
        "fastimg: flip per image, normalise": lambda: apply(flip_plan, images, flips, dtype),
        "fastimg: normalise": lambda: apply(None, images, flips, dtype),
        "torchvision v2: TrivialAugment, flip per image, normalise": _torchvision_trivial(images, trivial, dtype),
        "torchvision v2: flip of all, normalise": lambda: _torchvision(images, flips, dtype),
    }
    if importlib.util.find_spec("kornia"):
        calls["kornia: TrivialAugment, flip per image, normalise"] = _kornia(trivial, images, dtype)
        calls["kornia: flip per image, normalise"] = _kornia(flips, images, dtype)
    variants = {name: lambda call=call: 1000 * measure.seconds(call, device) for name, call in calls.items()}
    times = measure.interleaved(variants, max(3, 3 * sizes.repeats), warmups=2)
    floor = next(iter(times.values())).median
    rows: list[dict[str, Any]] = [
        {"what": name, "milliseconds": spread, "ratio_to_floor": round(spread.median / floor, 2)}
        for name, spread in times.items()
    ]
    if not importlib.util.find_spec("kornia"):
        rows.append({"what": "kornia: not installed"})
    bench.report(f"{sizes.augment_batch}x3x{sizes.crop}x{sizes.crop} uint8 -> bf16, {moved / 1e6:.0f} MB", rows)


def augment_share(bench: Bench) -> None:
    """The share of TrivialAugment, flip and normalisation in a training step of the first model."""
    arch = bench.sizes.archs[0]
    stepper = Stepper(arch, bench.device, size=bench.sizes.crop)
    stepper.policy = replace(stepper.policy, trivial=True)
    images, targets = bench.random_batch(bench.sizes.batch)
    plan = draw(stepper.policy, torch.arange(len(images)), 0, 0)
    calls: dict[str, Callable[[], object]] = {
        "step": lambda: stepper(images, targets, plan),
        "augmentation": lambda: apply(plan, images, stepper.policy, stepper.precision.input_dtype),
    }
    variants = {name: lambda call=call: 1000 * measure.seconds(call, bench.device) for name, call in calls.items()}
    times = measure.interleaved(variants, max(3, 3 * bench.sizes.repeats), warmups=2)
    share = round(times["augmentation"].median / times["step"].median, 4)
    rows = [{"what": name, "milliseconds": spread} for name, spread in times.items()]
    bench.report(f"{arch}, batch {len(images)}: augmentation's share of a step", [*rows, {"what": f"share {share}"}])


def _torchvision(images: torch.Tensor, policy: Policy, dtype: torch.dtype) -> torch.Tensor:
    scaled = tv.to_dtype(tv.horizontal_flip(images), dtype, scale=True)
    return tv.normalize(scaled, list(policy.mean), list(policy.std), inplace=True)


def _torchvision_trivial(images: torch.Tensor, policy: Policy, dtype: torch.dtype) -> Callable[[], object]:
    chain = v2.Compose(
        [
            v2.TrivialAugmentWide(),
            v2.RandomHorizontalFlip(0.5),
            v2.ToDtype(dtype, scale=True),
            v2.Normalize(list(policy.mean), list(policy.std)),
        ]
    )
    return lambda: torch.stack([chain(image) for image in images])


def _kornia(policy: Policy, images: torch.Tensor, dtype: torch.dtype) -> Callable[[], object]:
    import kornia.augmentation as K

    mean, std = torch.tensor(policy.mean), torch.tensor(policy.std)
    first = [K.auto.TrivialAugment()] if policy.trivial else []
    chain = K.AugmentationSequential(*first, K.RandomHorizontalFlip(p=0.5), K.Normalize(mean, std)).to(images.device)
    return lambda: chain(images.float() / 255).to(dtype)


def train(bench: Bench) -> None:
    """`fastimg bench`: every stage, training on data on the device and from files, and the verdict."""
    sizes = bench.sizes
    flags = [str(bench.folder), "--device", bench.device.type, "--arch", ",".join(sizes.archs), "--json"]
    flags += ["-b", str(sizes.batch), "--img-size", str(sizes.crop), "--repeats", str(sizes.repeats)]
    flags += ["--images", str(sizes.images), "--stages", "all", "--no-advice"]
    ways = ["cpu", "gpu"] if bench.device.type == "cuda" and nvcodec.installed() else ["cpu"]
    for decode in ways:
        said = io.StringIO()
        with redirect_stdout(said):
            code = cli.run(["bench", *flags, "--decode", decode])
        if code:
            raise RuntimeError(f"fastimg bench --decode {decode}: exit code {code}; what it said stands above")
        found = json.loads(said.getvalue())
        shown = ("stage", "images_per_second", "gigabytes_per_second", "ceiling_images_per_second", "ratio", "note")
        rows = [{key: row[key] for key in shown if key in row} for row in found["stages"]]
        bench.report(f"stages alone, {found['threads']} threads, decoded by {decode}", rows)
        rows = []
        for one in found["training"]:
            row = {key: one[key] for key in ("arch", "synthetic_images_per_second", "real_images_per_second")}
            verdict = {"real/synthetic": one["real_over_synthetic"], "verdict": one["verdict"]["sentence"]}
            rows.append({**row, "decode": decode, **verdict})
        bench.report(f"images per second, batch {sizes.batch}, {sizes.crop} px, {found['precision']}", rows)


def _synthetic_speed(bench: Bench, stepper: Stepper, images: torch.Tensor, targets: torch.Tensor) -> float:
    ids = torch.arange(len(images))

    def steps(count: int) -> None:
        for step in range(count):
            stepper(images, targets, draw(stepper.policy, ids, 0, step))

    steps(bench.sizes.warm_steps)
    seconds = measure.wall_seconds(lambda: steps(bench.sizes.steps), bench.device)
    return bench.sizes.steps * len(images) / seconds


def _real_speed(bench: Bench, stepper: Stepper | None, loader: Loader, steps: int | None = None) -> float:
    """Images per second in the steady state, once batches read ahead are used up; without a step, of reading alone."""
    warm = bench.sizes.warm_steps
    steps = steps or bench.sizes.steps
    count = 0
    began = 0.0
    for number, batch in enumerate(loader, start=1):
        if stepper is not None:
            stepper.beside(batch, draw(stepper.policy, batch.ids, 0, loader.epoch))
        if number > warm:
            count += batch.samples
        elif number == warm:
            measure.synchronise(bench.device)
            began = time.perf_counter()
        if number == warm + steps:
            break
    measure.synchronise(bench.device)
    return count / (time.perf_counter() - began)


MEASURES = {
    "loader": loader,
    "overlap": overlap,
    "augment": augment,
    "augment-share": augment_share,
    "train": train,
}
