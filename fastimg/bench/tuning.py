"""`fastimg bench --tune`: the numbers of threads and slots, the stream and the batch size that train fastest here.

Settings are tuned one after the other, from the best so far, end to end: with the real loader and whole steps. A larger
value must be faster by more than the noise; otherwise the smaller one is kept.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console

from fastimg.config.intent import architecture
from fastimg.loaders.backends import nvcodec
from fastimg.loaders.epochs.config import slots_for
from fastimg.loaders.runtime.cpus import available_cpus
from fastimg.system.measurement import show as show_table
from fastimg.system.memory import ran_out, release
from fastimg.system.terminal import say
from fastimg.train.choices.machine_profile import Profile, device_name, now

from .dataset import Images
from .rig import Rig, real_rate, with_loader

GAIN = 1.03  # a larger value must be faster by this factor
_ROUNDS = 2
SLOTS = (2, 3, 6)
BATCHES = (16, 32, 64, 128, 256, 512)


@dataclass
class Tuned:
    """What was tried, and the best settings. `other` names what would help but changes pixels: not kept."""

    profile: Profile
    tried: list[dict[str, Any]] = field(default_factory=list)
    other: str = ""

    def record(self) -> dict[str, Any]:
        """The result for JSON."""
        return {"best": self.profile.record(), "tried": self.tried, "other": self.other}


def candidates(cores: int) -> list[int]:
    """Numbers of threads to try: powers of two, half, all, and one more than the cores."""
    powers = [2**k for k in range(10) if 2**k <= cores]
    return sorted({*powers, max(1, cores // 2), cores, cores + 1})


def tune(rig: Rig, images: Images, count: int, progress: Console) -> Tuned:
    """Try them all. The dataset is read over and over, from memory where it fits there."""
    config, device = rig.config, rig.device
    best: dict[str, Any] = {"loader": "native", "decode": "cpu", "on_error": "skip"}
    best |= {"workers": config.workers, "prefetch": slots_for(device.type), "batch_size": rig.run.setup.batch_size}
    best |= {"augment_stream": "own"}
    tried: list[dict[str, Any]] = []

    def rates(name: str, values: Sequence[Any]) -> dict[Any, float]:
        rounds: dict[Any, list[float]] = {value: [] for value in values}
        for _ in range(_ROUNDS):
            for value in values:
                progress.print(f"tuning: {name} {value}", highlight=False, markup=False)
                rounds[value].append(_rate(rig, images, count, {**best, name: value}))
        medians = {value: median(rates) for value, rates in rounds.items()}
        tried.extend({"setting": name, "value": v, "images_per_second": round(r, 1)} for v, r in medians.items())
        return medians

    best["workers"] = smallest_of_the_best(rates("workers", [str(n) for n in candidates(available_cpus())]))
    best["prefetch"] = smallest_of_the_best(rates("prefetch", SLOTS))
    if device.type == "cuda":
        best["augment_stream"] = smallest_of_the_best(rates("augment_stream", ("own", "step")))
    most = max(16, len(images.dataset) // 5)
    by_batch = rates("batch_size", [size for size in BATCHES if size <= most] or [16])
    best["batch_size"] = smallest_of_the_best(by_batch)
    other = ""
    if device.type == "cuda" and nvcodec.installed():
        by_decode = rates("decode", ("cpu", "gpu"))
        if by_decode["gpu"] > GAIN * by_decode["cpu"]:
            gain = by_decode["gpu"] / by_decode["cpu"]
            other = f"--decode gpu is {gain:.2f}x as fast, but changes pixels slightly: to use it, pass it to `train`"
    profile = Profile(
        device=device_name(device),
        workers=int(best["workers"]),
        prefetch=best["prefetch"],
        augment_stream=best["augment_stream"],
        batch_size=best["batch_size"],
        arch=architecture(config),
        size=rig.run.setup.input.preprocessing.train_size,
        amp=config.amp,
        images_per_second=round(max(by_batch.values()), 1),
        made=now(),
    )
    return Tuned(profile, tried, other)


def smallest_of_the_best(rates: dict[Any, float]) -> Any:
    """The first value that is about as fast as the fastest; a rate of 0 means out of memory."""
    fastest = max(rates.values())
    return next(value for value, rate in rates.items() if rate * GAIN >= fastest)


def _rate(rig: Rig, images: Images, count: int, settings: dict[str, Any]) -> float:
    """Images per second end to end with these settings; 0 if memory runs out."""
    batch = settings["batch_size"]
    whole = max(4, count // batch) * batch
    try:
        tried = with_loader(rig, images.dataset, images.epoch(whole), **settings)
        try:
            return real_rate(tried, settings["prefetch"] + 1)
        finally:
            tried.close()
    except Exception as error:
        if not ran_out(error):
            raise
        release(rig.device)
        return 0.0


def show(tuned: Tuned, file: Path, console: Console) -> None:
    """What was tried, the fastest settings as flags and as lines of YAML, and how `train` takes them from the file."""
    rows = [{**row, "value": str(row["value"])} for row in tuned.tried]
    show_table(console, "tuning, end to end", rows)
    best = settings(tuned.profile)
    model = f"{tuned.profile.arch} at {tuned.profile.size} pixels"
    lines = [
        f"fastest, with the batch of {model}, as flags:",
        "  " + " ".join(f"--{name.replace('_', '-')} {value}" for name, value in best.items()),
        "in the YAML file of --config:",
        *(f"  {name}: {value}" for name, value in best.items()),
        f"written to {file}: `fastimg train DATA --profile` takes these settings where no flag sets them, "
        "the batch with --batch-size auto",
        *([tuned.other] if tuned.other else []),
    ]
    for line in lines:
        say(console, line)


def settings(profile: Profile) -> dict[str, Any]:
    """The fields of Train that a profile sets."""
    stream = () if profile.device == "cpu" else ("augment_stream",)
    return {name: getattr(profile, name) for name in ("workers", "prefetch", *stream, "batch_size")}
