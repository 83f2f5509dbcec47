"""How long `bench` measures: the budgets of --quick and --full, the plan that it prints first, and what it took.

What is expected follows from the budgets and a first look: a few decoded images, and one training step.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from rich.console import Console

from fastimg.system.disks import FILE
from fastimg.system.progress import telling

Clock = Callable[[], float]

_COLD_DISK = 400e6  # bytes per second; what is expected of a disk that nobody has measured yet
_MEMORY = 3e9  # bytes per second that are copied, when memory is touched for the first time
_OTHER_LOADERS = 2.0  # times the native loader's work; more on tiled JPEGs
_PEER_SECONDS = 8.0  # to start another loader's process, and to compare its pixels
_TRIALS = 2  # changes that are tried, usually
_FEWEST = 2  # repeats that show a spread
_CONVERTED = 512  # images, for a trial
_TUNED = 14  # settings that are tuned, usually


@dataclass(frozen=True, kw_only=True)
class Budget:
    """How long single measurements take; what counts is the median of several."""

    flag: str
    epoch: float  # seconds of the loader's work, which gives the number of images a repeat
    training: float  # seconds of training steps, at least
    stage: float  # seconds of a stage on the device
    calls: int  # of a stage on the device, at least
    steps: int  # of training, at least
    nbytes: int  # copied, or read in one go, to know what memory and the disk allow
    step: float | None  # seconds of a step, at most: where no batch is asked for it is made smaller. None: any


QUICK = Budget(flag="--quick", epoch=0.5, training=1.0, stage=0.2, calls=1, steps=1, nbytes=96 << 20, step=0.4)
FULL = Budget(flag="--full", epoch=1.0, training=2.0, stage=1 / 3, calls=3, steps=2, nbytes=FILE, step=None)


@dataclass(frozen=True, kw_only=True)
class Probe:
    """What is known before measuring."""

    images: int  # a repeat
    mean_bytes: float  # of an image
    dataset_bytes: int
    batch_size: int
    decoding: float  # images per second of a core, read and decoded
    threads: int
    cores: int
    step: float  # seconds
    gpu: bool
    native: bool  # whether the loader is

    def decoded(self, threads: int) -> float:
        """Seconds in which threads read and decode the images of a repeat."""
        return self.images / (self.decoding * max(1, min(threads, self.cores)))

    def loaded(self, threads: int) -> float:
        """Seconds in which the loader returns the images of a repeat."""
        return self.decoded(threads) * (1 if self.native else _OTHER_LOADERS)

    def data(self) -> float:
        """Seconds in which the loader makes a batch."""
        return self.loaded(self.threads) * self.batch_size / self.images

    def real_step(self) -> float:
        """Seconds of a step with its data: a CPU's cores do both."""
        return max(self.step, self.data()) if self.gpu else self.step + self.data() * self.threads / self.cores

    def warm(self) -> int:
        """Steps that use up what was read ahead, if the loader is not much faster than the step."""
        return 1 if self.step > 2 * self.data() else 4


@dataclass(kw_only=True)
class Work:
    """What is asked for, as far as it takes time."""

    repeats: int
    stages: tuple[str, ...]
    archs: tuple[str, ...]
    advice: bool = False
    threads: tuple[int, ...] = ()
    loaders: int = 0  # those installed
    tune: bool = False

    def expected(self, budget: Budget, probe: Probe) -> dict[str, float]:
        """The parts of the measurement in their order, and the seconds that each is expected to take."""
        n = self.repeats
        real = _steps(budget, probe.real_step(), probe.warm())
        parts = self._stages(budget, probe)
        parts["the loader alone"] = (1 + 2 * n) * probe.loaded(probe.threads)
        if not probe.gpu and probe.threads < probe.cores:
            parts["the loader on all cores"] = (1 + n) * probe.loaded(probe.cores)
        for arch in self.archs:
            parts[f"training {arch}"] = n * (_steps(budget, probe.step, 0) + real)
        if self.advice:
            parts["what would be faster"] = len(self.archs) * _TRIALS * (4 * real + _CONVERTED / probe.decoding)
        if self.threads:
            parts["numbers of threads"] = (1 + n) * sum(map(probe.loaded, self.threads))
        if self.loaders:
            each = (1 + n) * _OTHER_LOADERS * sum(map(probe.decoded, self.threads or (probe.threads,)))
            parts["loaders"] = self.loaders * (_PEER_SECONDS + each)
        if self.tune:
            parts["tuning"] = _TUNED * 2 * real
        return parts

    def _stages(self, budget: Budget, probe: Probe) -> dict[str, float]:
        n, parts = self.repeats, dict[str, float]()
        copies = 5 * budget.nbytes / _MEMORY
        if "network" in self.stages:
            parts["the network"] = n * budget.training
        if "read" in self.stages:
            files = min(probe.dataset_bytes, budget.nbytes) + min(probe.dataset_bytes, probe.images * probe.mean_bytes)
            parts["reading"] = n * files / _COLD_DISK + copies
        if {"splice", "decode", "resize"} & set(self.stages):
            parts["decoding"] = n * (probe.decoded(1) / 4 + probe.decoded(probe.threads))
        if "copy" in self.stages and probe.gpu:
            parts["copying"] = n * (2 * budget.stage + copies)
        if "augment" in self.stages:
            parts["augmentation"] = (n + 1) * budget.stage + copies
        if "step" in self.stages:
            warm = 0 if budget.calls == 1 and probe.step > budget.stage else probe.step
            parts["the step"] = n * (warm + max(budget.calls * probe.step, budget.stage))
        return parts


def _steps(budget: Budget, step: float, warm: int) -> float:
    """Seconds of one measurement of training."""
    return warm * step + max(budget.steps * step, budget.training + step / 2)


@dataclass(kw_only=True)
class Timetable:
    """The parts of a measurement: what each is expected to take, and, once it is over, what it took."""

    expected: Mapping[str, float]
    progress: Console
    clock: Clock = time.perf_counter
    took: dict[str, float] = field(default_factory=dict)
    _began: float = 0.0

    @contextmanager
    def measuring(self, part: str) -> Iterator[None]:
        """Say what is measured, and for how long; note how long it took."""
        number = list(self.expected).index(part) + 1
        began = self._began = self.clock()
        with telling(self.progress, f"[{number}/{len(self.expected)}] {part}: {about(self.expected[part])}"):
            yield
        self.took[part] = self.took.get(part, 0.0) + self.clock() - began

    def is_late(self, part: str) -> bool:
        """Whether the part that is being measured has taken half as long again as expected."""
        return self.clock() - self._began > 1.5 * self.expected[part]

    def text(self) -> str:
        """The plan as one line."""
        parts = ", ".join(f"{part} {short(seconds)}" for part, seconds in self.expected.items())
        return f"{about(sum(self.expected.values()))}: {parts}"

    def outcome(self) -> str:
        """What all that was measured took, and what was expected of it."""
        expected = sum(self.expected[part] for part in self.took)
        return f"{short(sum(self.took.values()))}, where {short(expected)} were expected"

    def records(self) -> list[dict[str, Any]]:
        """The plan for JSON; a part that was left out took null."""
        return [
            {
                "part": part,
                "expected_seconds": round(seconds, 2),
                "seconds": None if part not in self.took else round(self.took[part], 2),
            }
            for part, seconds in self.expected.items()
        ]


@dataclass(frozen=True, kw_only=True)
class Effort:
    """How much is measured: repeats of single measurements, their budget, and the plan that they follow."""

    repeats: int
    budget: Budget
    timetable: Timetable
    advice: bool  # whether what would be faster is tried
    hurries: bool = False  # whether two repeats are enough for a part that takes much longer than planned

    def rounds(self, part: str) -> Iterator[int]:
        """The numbers of the repeats of a part that is being measured."""
        for number in range(self.repeats):
            if number >= _FEWEST and self.hurries and self.timetable.is_late(part):
                return
            yield number


def about(seconds: float) -> str:
    """`about 12 s`."""
    return f"about {short(seconds)}"


def short(seconds: float) -> str:
    """`12 s`, or `4 min` from two minutes on; `0.4 s` below one."""
    if seconds < 0.95:
        return f"{max(seconds, 0.1):.1f} s"
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"
