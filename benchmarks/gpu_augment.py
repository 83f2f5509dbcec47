"""Augmentation's time on the device and on the host, compared with a copy of the same size and with other libraries."""

import importlib
import importlib.util
import io
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import measure
import numpy as np
import torch
from bench import MADE, Bench
from gpu_clocks import clocks
from images import list_images, photograph
from PIL import Image
from torch.profiler import ProfilerActivity, profile

from fastimg.augment import Plan, Policy, apply, backends, draw
from fastimg.augment.ops import BINS
from fastimg.augment.ops import TRIVIAL as trivial_operations

FLIPS = Policy(hflip=0.5)
TRIVIAL = Policy(hflip=0.5, trivial=True)
_CALLS = 20  # behind one sleep
_CYCLES = 40_000_000  # cycles of a sleep: 20 ms at 2 GHz


def augment(bench: Bench) -> None:
    """Augmentation, then the ceiling of nvJPEG's hardware: both use the device alone."""
    from gpu_nvjpeg import ceiling

    bench.each({"augmentation": partial(_augment, bench), "nvJPEG": partial(ceiling, bench)}, seconds=120)


def _augment(bench: Bench) -> None:
    """Augmentation, uint8 -> bf16: its time on the device and on the host, and the time of a copy of the same size.

    Calls are enqueued while the device sleeps, so that the host is ahead of it. The time between events is then the
    device's, independent of Python's overhead.
    """
    sizes = bench.sizes
    device = bench.device
    dtype = torch.bfloat16
    images, origin = natural(bench, sizes.augment_batch)
    ids = torch.arange(sizes.augment_batch)
    plans = {policy: draw(policy, ids, 0, 0) for policy in (FLIPS, TRIVIAL)}
    moved = images.numel() * 3  # one byte read, two written
    a, b = (torch.ones(moved // 2, dtype=torch.uint8, device=device) for _ in range(2))
    calls: dict[str, Callable[[], object]] = {
        _FLOOR: lambda: a.copy_(b),
        "TrivialAugment, flip, normalise": lambda: apply(plans[TRIVIAL], images, TRIVIAL, dtype),
        _BY_TRITON: counted_by_triton(lambda: apply(plans[TRIVIAL], images, TRIVIAL, dtype)),
        "flip, normalise": lambda: apply(plans[FLIPS], images, FLIPS, dtype),
        "normalise": lambda: apply(None, images, FLIPS, dtype),
    }
    found: dict[str, list[Enqueued]] = {name: [] for name in calls}
    for number in range(2 + max(1, 5 * (sizes.repeats - 1))):
        for name, call in calls.items():
            timed = enqueued(call, device)
            if number >= min(2, sizes.repeats - 1):  # kernels are compiled
                found[name].append(timed)
    floor = measure.Spread.of([timed.milliseconds for timed in found[_FLOOR]]).median
    rows: list[dict[str, Any]] = []
    for name, times in found.items():
        spread = measure.Spread.of([timed.milliseconds for timed in times])
        host = measure.Spread.of([timed.host_microseconds for timed in times])
        row = {"what": name, "milliseconds": spread, "ratio_to_floor": round(spread.median / floor, 2)}
        rows.append({**row, "host_microseconds": host, "host_ahead": all(timed.host_ahead for timed in times)})
    rows = [{**row, "images": "" if row["what"] == _FLOOR else origin} for row in rows]
    rows[1]["by"] = backends.named(device)
    rows[0] |= clocks(device)
    bench.report(f"{sizes.augment_batch}x3x{sizes.crop}x{sizes.crop} uint8 -> bf16, {moved / 1e6:.0f} MB", rows)
    policies = {"TrivialAugment, flip": TRIVIAL, "flip": FLIPS}
    drawing = {name: partial(_draw_microseconds, policy, ids) for name, policy in policies.items()}
    drawn = measure.interleaved(drawing, max(1, 3 * (sizes.repeats - 1)))
    bench.report("drawing the plan on the host", [{"what": n, "host_microseconds": s} for n, s in drawn.items()])


_FLOOR = "floor: a copy of the same number of bytes"
_BY_TRITON = "TrivialAugment, flip, normalise; statistics by Triton"


def counted_by_triton(call: Callable[[], object]) -> Callable[[], object]:
    """The call with the statistics pass in Triton, whatever would count otherwise."""
    if not importlib.util.find_spec("triton"):
        return call
    launches = importlib.import_module("fastimg.augment.fused.launches")
    counting = importlib.import_module("fastimg.augment.fused.counting")
    other = counting.LevelCounter(missing="for comparison")

    def called() -> object:
        kept, launches.counter_of = launches.counter_of, lambda device: other
        try:
            return call()
        finally:
            launches.counter_of = kept

    return called


def _draw_microseconds(policy: Policy, ids: torch.Tensor) -> float:
    began = time.perf_counter()
    draw(policy, ids, 0, 1)
    return 1e6 * (time.perf_counter() - began)


@dataclass(frozen=True)
class Enqueued:
    """The time of a call. `host_ahead`: all calls were enqueued before the device began (always true on a CPU)."""

    milliseconds: float  # on the device
    host_microseconds: float
    host_ahead: bool


def enqueued(call: Callable[[], object], device: torch.device, calls: int = _CALLS) -> Enqueued:
    """The device's and the host's time for a call: the mean over `calls` calls enqueued while the device sleeps.

    The sleep is extended, up to 16 times, until the host is ahead. With a call that synchronises, it never is.
    """
    if device.type != "cuda":
        seconds = measure.seconds(call, device)
        return Enqueued(1000 * seconds, 1e6 * seconds, host_ahead=True)
    cycles = _CYCLES
    while True:
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize(device)
        torch.cuda._sleep(cycles)
        start.record()
        began = time.perf_counter()
        for _ in range(calls):
            call()
        host = time.perf_counter() - began
        ahead = not start.query()
        end.record()
        end.synchronize()
        if ahead or cycles >= 16 * _CYCLES:
            return Enqueued(start.elapsed_time(end) / calls, 1e6 * host / calls, ahead)
        cycles *= 4


def natural(bench: Bench, count: int) -> tuple[torch.Tensor, str]:
    """uint8 images [count, 3, S, S], channels-last, on the device, and a description of their source.

    Random crops of scikit-learn's two photographs, or of the images of --data. Pixel statistics cost more where
    neighbours are similar, as in a sky, so noise is not representative.
    """
    size = bench.sizes.crop
    if bench.data_name == MADE:
        try:
            from sklearn.datasets import load_sample_images

            photographs = [Image.fromarray(pixels) for pixels in load_sample_images().images]
        except (ImportError, OSError):  # not installed, or without its images
            photographs = []
        origin = "random crops of scikit-learn's two photographs"
    else:
        names = list_images(bench.folder)[:64]
        photographs = [Image.open(bench.folder / name).convert("RGB") for name in names]
        origin = "random crops of up to 64 images of --data"
    if not photographs:
        photographs = [Image.open(io.BytesIO(photograph(seed))).convert("RGB") for seed in range(16)]
        origin = MADE
    rng = np.random.default_rng(0)
    pixels = np.empty((count, size, size, 3), np.uint8)
    for number in range(count):
        image = photographs[number % len(photographs)]
        side = min(image.size) * rng.uniform(0.3, 1.0)
        left, top = (rng.uniform(0, extent - side) for extent in image.size)
        cut = image.resize((size, size), Image.Resampling.BILINEAR, (left, top, left + side, top + side))
        pixels[number] = np.asarray(cut)
    return torch.from_numpy(pixels).permute(0, 3, 1, 2).to(bench.device), origin


def operations(bench: Bench) -> None:
    """TrivialAugment's operations, each drawn by all images of a batch, and the kernels of a mixed batch one by one."""
    count, device, dtype = bench.sizes.augment_batch, bench.device, torch.bfloat16
    images, origin = natural(bench, count)
    plans = {name: _of_one_operation(number, count) for number, name in enumerate(trivial_operations)}
    calls = {name: partial(apply, plan, images, TRIVIAL, dtype) for name, plan in plans.items()}
    found: dict[str, list[float]] = {name: [] for name in calls}
    for number in range(2 + max(1, 2 * (bench.sizes.repeats - 1))):
        for name, call in calls.items():
            timed = enqueued(call, device)
            if number >= min(2, bench.sizes.repeats - 1):  # kernels are compiled
                found[name].append(timed.milliseconds)
    rows: list[dict[str, Any]] = [{"what": n, "milliseconds": measure.Spread.of(t)} for n, t in found.items()]
    rows[0] |= {"images": origin, **clocks(device)}
    bench.report(f"an operation for all of {count} images of {bench.sizes.crop} pixels, uint8 -> bf16", rows)
    if device.type != "cuda":
        return
    plan = draw(TRIVIAL, torch.arange(count), 0, 0)
    with profile(activities=[ProfilerActivity.CUDA]) as trace:
        for _ in range(_CALLS):
            apply(plan, images, TRIVIAL, dtype)
        torch.cuda.synchronize(device)
    kernels: dict[str, list[float]] = {}
    for event in trace.events() or []:
        if event.device_time_total > 0:  # not a call of the host's
            kernels.setdefault(event.name, []).append(event.device_time_total / 1000)
    rows = [{"kernel": n, "milliseconds": measure.Spread.of(t)} for n, t in kernels.items() if len(t) >= _CALLS]
    bench.report("TrivialAugment's kernels and copies in a trace", rows)


def _of_one_operation(number: int, count: int) -> Plan:
    """A plan of TrivialAugment and flips in which `count` images drew operation `number`, in all of its strengths."""
    plan = draw(TRIVIAL, torch.arange(2 * len(trivial_operations) * count), 0, 0)
    rows = torch.nonzero(plan.trivial // (2 * BINS) == number)[:count, 0]
    if len(rows) < count:
        raise RuntimeError(f"operation {number} was drawn by {len(rows)} images, fewer than {count}")
    taken = {field: getattr(plan, field)[rows] for field in ("hflip", "vflip", "angle", "trivial", "ops", "magnitudes")}
    return replace(plan, **taken)


def augment_peers(bench: Bench) -> None:
    """Augmentation compared with torchvision and Kornia, where installed, called as their users do: host and device."""
    sizes = bench.sizes
    dtype = torch.bfloat16
    images, origin = natural(bench, sizes.augment_batch)
    plans = {policy: draw(policy, torch.arange(sizes.augment_batch), 0, 0) for policy in (FLIPS, TRIVIAL)}
    calls: dict[str, Callable[[], object]] = {
        "fastimg: TrivialAugment, flip per image, normalise": lambda: apply(plans[TRIVIAL], images, TRIVIAL, dtype),
        "fastimg: flip per image, normalise": lambda: apply(plans[FLIPS], images, FLIPS, dtype),
        "torchvision v2: flip of all, normalise": lambda: _torchvision(images, FLIPS, dtype),
        "torchvision v2: TrivialAugment, flip per image, normalise": _torchvision_trivial(images, TRIVIAL, dtype),
    }
    if importlib.util.find_spec("kornia"):
        calls["kornia: TrivialAugment, flip per image, normalise"] = _kornia(TRIVIAL, images, dtype)
        calls["kornia: flip per image, normalise"] = _kornia(FLIPS, images, dtype)
    variants = {name: lambda call=call: 1000 * measure.wall_seconds(call, bench.device) for name, call in calls.items()}
    times = measure.interleaved(variants, sizes.repeats)
    rows: list[dict[str, Any]] = [{"what": name, "milliseconds": spread} for name, spread in times.items()]
    if not importlib.util.find_spec("kornia"):
        rows.append({"what": "kornia: not installed"})
    bench.report(f"{sizes.augment_batch}x3x{sizes.crop}x{sizes.crop} uint8 -> bf16, by the clock, {origin}", rows)


def _torchvision(images: torch.Tensor, policy: Policy, dtype: torch.dtype) -> torch.Tensor:
    from torchvision.transforms.v2 import functional as tv

    scaled = tv.to_dtype(tv.horizontal_flip(images), dtype, scale=True)
    return tv.normalize(scaled, list(policy.mean), list(policy.std), inplace=True)


def _torchvision_trivial(images: torch.Tensor, policy: Policy, dtype: torch.dtype) -> Callable[[], object]:
    from torchvision.transforms import v2

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
