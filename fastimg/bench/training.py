"""The loader alone, the step on synthetic data, and both together; and what limits them."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console

from fastimg.config.benchmarking import Bench
from fastimg.loaders.runtime.cpus import available_cpus
from fastimg.system import measurement as measuring
from fastimg.system.machine_load import LoadWatch
from fastimg.system.measurement import Spread
from fastimg.system.memory import available
from fastimg.system.progress import Status, telling
from fastimg.system.terminal import say
from fastimg.wording import plural

from .advice import advise
from .dataset import Images
from .rig import Rig, loader_rate, real_rate, synthetic_rate, with_loader
from .stage_table import Stage, median_of
from .verdict import Advice, Measured, NoVerdict, Verdict, doubts, judge


@dataclass
class Trained:
    """The measurements with one model."""

    arch: str
    synthetic: Spread
    real: Spread
    augment: Spread | None
    verdict: Verdict | NoVerdict
    tried: list[Advice] = field(default_factory=list)

    def record(self) -> dict[str, Any]:
        """The measurements for JSON."""
        rates = {"synthetic": self.synthetic, "real": self.real}
        record: dict[str, Any] = {"arch": self.arch}
        for name, spread in rates.items():
            record |= spread.fields(f"{name}_images_per_second")
        record["real_over_synthetic"] = round(self.real.median / self.synthetic.median, 4)
        record["verdict"] = self.verdict.record()
        record["tried"] = [{"change": item.change, "factor": round(item.factor or 0.0, 4)} for item in self.tried]
        return record


def loader_alone(rig: Rig, repeats: int, progress: Console) -> tuple[Spread, dict[str, Any]]:
    """The loader's rate, and the noise of the measurement: the loader is measured as if it were two, in turn."""
    with telling(progress, "measuring the loader alone"):
        loader_rate(rig)  # starts threads and touches memory
        pairs = [(loader_rate(rig), loader_rate(rig)) for _ in range(repeats)]
    first, second = (median(pair[i] for pair in pairs) for i in range(2))
    difference = round(abs(first / second - 1), 4)
    noise = {"first": round(first, 1), "second": round(second, 1), "difference": difference, "n": repeats}
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
    watch: LoadWatch,
) -> Trained:
    """Measure training end to end and on synthetic data; judge what limits it, and try what would help.

    If the rates contradict each other there is no verdict, and nothing is tried.
    """
    arch, slots = rig.run.setup.model.arch, rig.loader.slots
    synthetic, real = list[float](), list[float]()
    with telling(progress, f"measuring {arch}: on random pixels, and end to end"):
        for _ in range(settings.repeats):
            synthetic.append(synthetic_rate(rig))
            # Batches in the slots must be used up first, unless the step is much slower than the loader.
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
    advice: list[Advice] = []
    tried: list[Advice] = []
    spreads = {
        "the loader alone": alone,
        "the training step": Spread.of(synthetic),
        "training end to end": Spread.of(real),
    }
    ranges = {name: (spread.low, spread.high) for name, spread in spreads.items()}
    contradictions = doubts(measured, ranges, alone.median)
    if contradictions:
        none = NoVerdict(share=measured.real / measured.synthetic, doubts=contradictions, load=watch.load())
        return Trained(arch, Spread.of(synthetic), Spread.of(real), None, none)
    if not settings.no_advice:
        status = Status(progress)
        advice, tried = advise(images, rig, count, measured, scratch, warm, status)
        status.end()
    return Trained(arch, Spread.of(synthetic), Spread.of(real), None, judge(measured, advice), tried)


def measure_scaling(
    rig: Rig, images: Images, count: int, threads: Sequence[int], repeats: int, out: Console, progress: Console
) -> list[dict[str, Any]]:
    """Measure the loader alone for several numbers of threads, interleaved."""
    rigs = {n: with_loader(rig, images.dataset, images.epoch(count), workers=str(n)) for n in threads}
    counts = [*map(str, threads[:-1]), plural(threads[-1], "thread")]
    with telling(progress, f"measuring the loader with {', '.join(counts)}"):
        speeds = measuring.interleaved({str(n): _rate_of(threads_rig) for n, threads_rig in rigs.items()}, repeats)
    for threads_rig in rigs.values():
        threads_rig.close()
    base = speeds[str(threads[0])].median / threads[0]
    rows: list[dict[str, Any]] = []
    records: list[dict[str, Any]] = []
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


def show_training(out: Console, result: Trained) -> None:
    """Print a table of rates, the verdict, and what was tried without gain."""
    rows = [
        {"training": "synthetic: data on the device", **result.synthetic.columns("img/s")},
        {"training": "real: end to end", **result.real.columns("img/s")},
    ]
    measuring.show(out, result.arch, rows)
    out.print(f"real/synthetic  {result.real.median / result.synthetic.median:.2f}", highlight=False, style="bold")
    sentence = result.verdict.sentence()
    line = sentence if isinstance(result.verdict, NoVerdict) else f"verdict  {sentence}"
    say(out, line)
    for trial in result.tried:
        if trial not in result.verdict.advice:
            line = f"tried without gain: {trial.change} ({trial.factor:.2f}x)"
            say(out, line)
