"""The loader alone, the step on synthetic data, and both together; and what limits them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console

from fastimg.loaders.runtime.cpus import available_cpus
from fastimg.system import measurement as measuring
from fastimg.system.machine_load import LoadWatch
from fastimg.system.measurement import Spread
from fastimg.system.progress import Status
from fastimg.system.terminal import say
from fastimg.wording import number

from .advice import advise, suggest
from .budget import Budget, Effort
from .dataset import Images
from .rig import Rig, loader_rate, real_rate, synthetic_rate, with_loader
from .verdict import Advice, Measured, NoVerdict, Verdict, allowed, doubts, judge, widest

_WORDS = {"alone": "the loader alone", "synthetic": "the training step", "real": "training end to end"}


@dataclass(kw_only=True)
class Trained:
    """The measurements with one model."""

    arch: str
    synthetic: Spread
    real: Spread
    share: Spread  # real / synthetic, of repeats that were measured one after the other
    verdict: Verdict | NoVerdict
    tried: list[Advice] = field(default_factory=list)
    remark: str | None = None  # on repeats that differ much

    def record(self) -> dict[str, Any]:
        """The measurements for JSON."""
        rates = {"synthetic": self.synthetic, "real": self.real}
        record: dict[str, Any] = {"arch": self.arch}
        for name, spread in rates.items():
            record |= spread.fields(f"{name}_images_per_second")
        record["real_over_synthetic"] = round(self.verdict.share, 4)
        record["real_over_synthetic_spread"] = [round(self.share.low, 4), round(self.share.high, 4)]
        record["verdict"] = self.verdict.record()
        record["tried"] = [{"change": item.change, "factor": round(item.factor or 0.0, 4)} for item in self.tried]
        return record


def loader_alone(rig: Rig, effort: Effort) -> tuple[Spread, dict[str, Any]]:
    """The loader's rate, and the noise of the measurement: the loader is measured as if it were two, in turn."""
    with effort.timetable.measuring("the loader alone"):
        loader_rate(rig)  # starts threads and touches memory
        pairs = [(loader_rate(rig), loader_rate(rig)) for _ in effort.rounds("the loader alone")]
    first, second = (median(pair[i] for pair in pairs) for i in range(2))
    difference = round(abs(first / second - 1), 4)
    noise = {"first": round(first, 1), "second": round(second, 1), "difference": difference, "n": len(pairs)}
    return Spread.of([rate for pair in pairs for rate in pair]), noise


def loader_on_all_cores(rig: Rig, images: Images, count: int, effort: Effort) -> Spread | None:
    """The loader's rate with a thread for each core of a CPU that trains; None where it has them anyway."""
    if rig.device.type != "cpu" or rig.loader.workers >= available_cpus():
        return None
    with effort.timetable.measuring("the loader on all cores"):
        wide = with_loader(rig, images.dataset, images.epoch(count), workers=str(available_cpus()))
        loader_rate(wide)
        found = Spread.of([loader_rate(wide) for _ in effort.rounds("the loader on all cores")])
        wide.close()
    return found


def measure_training(
    images: Images,
    rig: Rig,
    count: int,
    parts: Mapping[str, Spread],
    scratch: Path,
    effort: Effort,
    watch: LoadWatch,
) -> Trained:
    """Measure training end to end and on synthetic data; judge what limits it, and try what would help.

    `parts` are the rates of the stages and of the loader, as fields of `Measured`, and "alone": the loader as it is in
    training. If the rates contradict each other there is no verdict, and nothing is tried.
    """
    arch, slots = rig.run.setup.model.arch, rig.loader.slots
    synthetic, real = list[float](), list[float]()
    drained = list[float]()
    part = f"training {arch}"
    warm = 1
    with effort.timetable.measuring(part):
        for _ in effort.rounds(part):
            synthetic.append(synthetic_rate(rig, effort.budget))
            drained += [] if rig.drained is None else [rig.drained]
            # Batches in the slots must be used up first, unless the step is much slower than the loader.
            warm = slots + 1 if parts["alone"].median < 2 * synthetic[-1] else 1
            real.append(_real_rate(rig, warm, effort.budget))
    spreads = {**parts, "synthetic": Spread.of(synthetic), "real": Spread.of(real)}
    share = Spread.of([one / other for one, other in zip(real, synthetic, strict=True)])
    rates = {name: spread.median for name, spread in spreads.items()}
    measured = Measured(
        network=rates.get("network"),
        storage=rates.get("storage"),
        decode=rates["decode"],
        copy=rates.get("copy"),
        augment=rates.get("augment"),
        step=rates.get("step"),
        synthetic=rates["synthetic"],
        real=rates["real"],
        shared=rig.device.type == "cpu",
        drained=median(drained) if drained else None,
    )
    trained = partial(Trained, arch=arch, synthetic=spreads["synthetic"], real=spreads["real"], share=share)
    ranges = {name: (spread.low, spread.high) for name, spread in spreads.items()}
    contradictions = doubts(measured, ranges, rates["alone"])
    if contradictions:
        none = NoVerdict(share=measured.real / measured.synthetic, doubts=contradictions, load=watch.load())
        return trained(verdict=none)
    tried: list[Advice] = []
    if effort.advice:
        with effort.timetable.measuring("what would be faster"):
            status = Status(effort.timetable.progress)
            rate = partial(_real_rate, warm=warm, budget=effort.budget)
            advice, tried = advise(images, rig, count, measured, scratch, rate, status)
            status.end()
    else:
        advice = suggest(images, rig, count, measured, scratch)
    kinds = allowed(measured, ranges, (share.low, share.high))
    verdict = judge(measured, advice, kinds)
    remark = None
    if (name := widest({name: ranges[name] for name in _WORDS})) is not None and not verdict.possible:
        low, high = ranges[name]
        remark = f"{_WORDS[name]} ran at {number(low)} to {number(high)} img/s; the verdict is the same for all of them"
    return trained(verdict=verdict, tried=tried, remark=remark)


def _real_rate(rig: Rig, warm: int, budget: Budget) -> float:
    return real_rate(rig, warm, seconds=budget.training, steps=budget.steps)


def measure_scaling(
    rig: Rig, images: Images, count: int, threads: Sequence[int], effort: Effort, out: Console
) -> list[dict[str, Any]]:
    """Measure the loader alone for several numbers of threads, interleaved."""
    rigs = {n: with_loader(rig, images.dataset, images.epoch(count), workers=str(n)) for n in threads}
    with effort.timetable.measuring("numbers of threads"):
        rates = {str(n): partial(loader_rate, threads_rig) for n, threads_rig in rigs.items()}
        speeds = measuring.interleaved(rates, effort.repeats)
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
                **speed.rates("img/s"),
                "per thread": number(speed.median / n),
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


def show_training(out: Console, result: Trained) -> None:
    """Print a table of rates, and what was tried without gain."""
    rows = [
        {"training": "synthetic: data on the device", **result.synthetic.rates("img/s")},
        {"training": "real: end to end", **result.real.rates("img/s")},
    ]
    measuring.show(out, result.arch, rows)
    share = f"{result.verdict.share:.2f} ({result.share.low:.2f} - {result.share.high:.2f}, n={result.share.n})"
    say(out, f"real/synthetic  {share}", style="bold")
    if result.remark is not None:
        say(out, f"spread    {result.remark}")
    for trial in result.tried:
        if trial not in result.verdict.advice:
            line = f"tried without gain: {trial.change} ({trial.factor:.2f}x)"
            say(out, line)


def show_verdict(out: Console, result: Trained, named: bool) -> None:
    """Print the verdict; `named` says of which model."""
    of = f"{result.arch}: " if named else ""
    before = "" if isinstance(result.verdict, NoVerdict) else "verdict   "
    say(out, f"{before}{of}{result.verdict.sentence()}", style="bold")
