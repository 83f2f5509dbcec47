"""The loader alone, the step on data that costs nothing, and both together; what limits them."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console

from fastimg.config.benchmarking import Bench
from fastimg.errors import printable
from fastimg.loaders.runtime.cpus import available_cpus
from fastimg.system import measurement as measuring
from fastimg.system.machine_load import Watch
from fastimg.system.measurement import Spread
from fastimg.system.memory import available
from fastimg.system.progress import Status, telling
from fastimg.wording import plural

from .advice import advise
from .dataset import Images
from .rig import Rig, loader_rate, real_rate, synthetic_rate, with_loader
from .stage_table import Stage, median_of
from .verdict import Advice, Measured, NoVerdict, Verdict, doubts, judge


@dataclass
class Trained:
    """What was measured with one model."""

    arch: str
    synthetic: Spread
    real: Spread
    augment: Spread | None
    verdict: Verdict | NoVerdict
    tried: list[Advice] = field(default_factory=list)

    def record(self) -> dict[str, Any]:
        """For json."""
        rates = {"synthetic": self.synthetic, "real": self.real}
        found: dict[str, Any] = {"arch": self.arch}
        for name, spread in rates.items():
            found |= spread.fields(f"{name}_images_per_second")
        found["real_over_synthetic"] = round(self.real.median / self.synthetic.median, 4)
        found["verdict"] = self.verdict.record()
        found["tried"] = [{"change": one.change, "factor": round(one.factor or 0.0, 4)} for one in self.tried]
        return found


def loader_alone(rig: Rig, repeats: int, progress: Console) -> tuple[Spread, dict[str, Any]]:
    """The loader's rate, and what the harness itself scatters: the same thing measured as two, in turn."""
    with telling(progress, "measuring the loader alone"):
        loader_rate(rig)  # threads start, memory is touched
        pairs = [(loader_rate(rig), loader_rate(rig)) for _ in range(repeats)]
    one, two = (median(pair[i] for pair in pairs) for i in range(2))
    noise = {"first": round(one, 1), "second": round(two, 1), "difference": round(abs(one / two - 1), 4), "n": repeats}
    return Spread.of([rate for pair in pairs for rate in pair]), noise


def measure_training(
    settings: Bench,
    images: Images,
    rig: Rig,
    count: int,
    stages: Sequence[Stage],
    alone: Spread,
    scratch: Path,
    progress: Console,
    watch: Watch,
) -> Trained:
    """End to end, beside what data that costs nothing would allow; the verdict, and what helps against it.

    There is none where the rates contradict each other: then nothing is tried either.
    """
    arch, slots = rig.run.setup.model.arch, rig.loader.config.prefetch
    synthetic, real = list[float](), list[float]()
    with telling(progress, f"measuring {arch}: on random pixels, and end to end"):
        for _ in range(settings.repeats):
            synthetic.append(synthetic_rate(rig))
            # What the slots hold already must be used up, unless the step is the slower by far.
            warm = slots + 1 if alone.median < 2 * synthetic[-1] else 1
            real.append(real_rate(rig, warm))
    shared = rig.device.type == "cpu"
    decode = alone.median
    if shared and rig.loader.workers < available_cpus():
        with telling(progress, "measuring the loader on all cores"):
            wide = with_loader(rig, images.dataset, images.epoch(count), workers=str(available_cpus()))
            loader_rate(wide)
            decode = median(loader_rate(wide) for _ in range(settings.repeats))
            wide.close()
    fits = images.nbytes < available()
    measured = Measured(
        storage=median_of(stages, "read, warm" if fits else "read, cold") or median_of(stages, "read, warm"),
        decode=decode,
        copy=median_of(stages, "copy"),
        augment=median_of(stages, "augment"),
        step=median_of(stages, "step"),
        synthetic=median(synthetic),
        real=median(real),
        shared=shared,
    )
    worth: list[Advice] = []
    tried: list[Advice] = []
    spreads = {
        "the loader alone": alone,
        "the training step": Spread.of(synthetic),
        "training end to end": Spread.of(real),
    }
    doubted = doubts(measured, {name: (one.low, one.high) for name, one in spreads.items()}, alone.median)
    if doubted:
        none = NoVerdict(share=measured.real / measured.synthetic, doubts=doubted, load=watch.load())
        return Trained(arch, Spread.of(synthetic), Spread.of(real), None, none)
    if not settings.no_advice:
        status = Status(progress)
        worth, tried = advise(images, rig, count, measured, scratch, warm, status)
        status.end()
    return Trained(arch, Spread.of(synthetic), Spread.of(real), None, judge(measured, worth), tried)


def measure_scaling(
    rig: Rig, images: Images, count: int, threads: Sequence[int], repeats: int, out: Console, progress: Console
) -> list[dict[str, Any]]:
    """The loader alone, by threads, interleaved."""
    rigs = {n: with_loader(rig, images.dataset, images.epoch(count), workers=str(n)) for n in threads}
    counts = [*map(str, threads[:-1]), plural(threads[-1], "thread")]
    with telling(progress, f"measuring the loader with {', '.join(counts)}"):
        speeds = measuring.interleaved({str(n): _rate_of(one) for n, one in rigs.items()}, repeats)
    for one in rigs.values():
        one.close()
    base = speeds[str(threads[0])].median / threads[0]
    rows, records = [], []
    for n in threads:
        speed = speeds[str(n)]
        scaling = speed.median / n / base
        rows.append(
            {
                "threads": n,
                **speed.columns("img/s"),
                "per thread": f"{speed.median / n:,.0f}",
                "of the first": f"{scaling:.2f}",
            }
        )
        records.append(
            {
                "threads": n,
                "images_per_second": round(speed.median, 1),
                "spread": [round(speed.low, 1), round(speed.high, 1)],
                "n": speed.n,
            }
        )
    measuring.show(out, "the loader alone, by threads", rows)
    return records


def _rate_of(rig: Rig) -> Any:
    return lambda: loader_rate(rig)


def show_training(out: Console, one: Trained) -> None:
    rows = [
        {"training": "synthetic: data on the device", **one.synthetic.columns("img/s")},
        {"training": "real: end to end", **one.real.columns("img/s")},
    ]
    measuring.show(out, one.arch, rows)
    out.print(f"real/synthetic  {one.real.median / one.synthetic.median:.2f}", highlight=False, style="bold")
    sentence = one.verdict.sentence()
    words = sentence if isinstance(one.verdict, NoVerdict) else f"verdict  {sentence}"
    out.print(printable(words), highlight=False, markup=False, soft_wrap=True)
    for trial in one.tried:
        if trial not in one.verdict.advice:
            words = f"tried without gain: {trial.change} ({trial.factor:.2f}x)"
            out.print(printable(words), highlight=False, markup=False, soft_wrap=True)
