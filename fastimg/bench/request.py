"""What a user asks `bench` to measure: the flags, checked, with the choices that they leave open."""

from dataclasses import dataclass
from pathlib import Path

from fastimg.config.benchmarking import Bench
from fastimg.config.commands import Train
from fastimg.config.intent import BATCH
from fastimg.config.rule_tables.reading import BENCH
from fastimg.config.rules import refuse
from fastimg.config.training import HF_PREFIX
from fastimg.data.datasets import check_backend, chosen_backend
from fastimg.errors import UsageError, nearest
from fastimg.loaders.remote.stores import url_of
from fastimg.loaders.runtime.cpus import available_cpus
from fastimg.train.reporting.report import shown

from .budget import FULL, QUICK, Budget, Work
from .last_run import last_run
from .peers.comparison import names as loader_names
from .peers.pipelines import PEERS
from .plots import check_file
from .stage_table import NAMES

_ARCH = {"cuda": "resnet50", "cpu": "resnet18"}  # where nothing names one
_SIZE = 224
_REPEATS = 3


@dataclass(frozen=True, kw_only=True)
class BenchRequest:
    """What is measured, and for how long."""

    settings: Bench
    budget: Budget
    archs: tuple[str, ...]
    model_kwargs: tuple[str, ...]
    img_size: int
    batch_size: int
    repeats: int
    stages: tuple[str, ...]
    threads: tuple[int, ...]  # to compare
    loaders: tuple[str, ...]  # to compare
    origin: str  # where the model comes from, in words
    remarks: list[str]

    @property
    def may_shrink_batch(self) -> bool:
        """Whether a batch with a long step is made smaller."""
        return self.settings.batch_size is None and self.budget.step is not None

    def work(self) -> Work:
        """What of it takes time."""
        return Work(
            repeats=self.repeats,
            stages=self.stages,
            archs=self.archs,
            advice=self.settings.full and not self.settings.no_advice,
            threads=self.threads,
            loaders=sum(PEERS[name].installed() for name in self.loaders),
            tune=self.settings.tune,
        )


def check(settings: Bench) -> None:
    """Refuse what cannot be measured, whatever the machine. Raises UsageError."""
    refuse(settings, BENCH)
    check_backend(chosen_backend(settings.loader))
    for arch in (settings.arch or "").split(","):
        if arch.strip().startswith(HF_PREFIX):
            raise UsageError(
                f"--arch {arch.strip()}: reads texts, and bench measures images; give a model of timm's, say"
            )
    for name in _stages(settings):
        if name not in NAMES:
            near = nearest(name, NAMES) or ";"
            raise UsageError(f"--stages {name}: no such stage{near} choose from {', '.join(NAMES)}, or all, or none")
    compared = _loaders(settings), _threads(settings)
    if settings.output is not None and not any(compared):
        raise UsageError("--output has no effect without --loaders or --workers-curve; add one of them, or --full")
    if settings.output is not None:
        check_file(settings.output)
    if settings.scratch is not None and not settings.scratch.is_dir():
        raise UsageError(f"--scratch {settings.scratch}: no such folder; create it, or leave it out")


def understand(settings: Bench, device_type: str, runs: Path = Train.output) -> BenchRequest:
    """The request with its open choices made: the model of the newest of the `runs` where no flag names one."""
    archs, kwargs, size = [_ARCH[device_type]], tuple[str, ...](), settings.img_size or _SIZE
    origin, remarks = "the default, since there is no run yet", list[str]()
    if settings.arch is not None:
        archs = list(dict.fromkeys(arch.strip() for arch in settings.arch.split(",") if arch.strip()))
        origin = "--arch"
        if not archs:
            raise UsageError(f"--arch {settings.arch!r}: give the name of a model")
    else:
        last, remarks = last_run(runs)
        if last is not None:
            archs, kwargs = [last.arch], last.model_kwargs
            size = settings.img_size or last.img_size or _SIZE
            origin = f"the last run's, {shown(last.directory)}"
    return BenchRequest(
        settings=settings,
        budget=FULL if settings.full else QUICK,
        archs=tuple(archs),
        model_kwargs=kwargs,
        img_size=size,
        batch_size=settings.batch_size or BATCH[device_type],
        repeats=settings.repeats or _REPEATS,
        stages=_stages(settings),
        threads=_threads(settings),
        loaders=_loaders(settings),
        origin=origin,
        remarks=remarks,
    )


def _stages(settings: Bench) -> tuple[str, ...]:
    text = settings.stages
    if text == "all":
        return NAMES if url_of(settings.data) is not None else NAMES[1:]  # the network, of a URL alone
    if text == "none":
        return ()
    return tuple(name.strip() for name in text.split(",") if name.strip())


def _loaders(settings: Bench) -> tuple[str, ...]:
    """The loaders to compare."""
    by_default = "all" if settings.full and url_of(settings.data) is None else "none"  # others read no URL
    text = settings.loaders or by_default
    return () if text == "none" else loader_names(text)


def _threads(settings: Bench) -> tuple[int, ...]:
    """Parse `1,2,4` into numbers, without duplicates. With --full they are powers of two, and all cores."""
    if settings.workers_curve is None and settings.full:
        cores = available_cpus()
        return tuple(sorted({*(2**k for k in range(10) if 2**k < cores), cores}))
    text = settings.workers_curve
    counts = [] if text in (None, "none") else [count.strip() for count in str(text).split(",") if count.strip()]
    for count in counts:
        if not count.isdigit() or int(count) < 1:
            raise UsageError(f"--workers-curve {text}: {count} is not a number of threads; write 1,2,4 for example")
    return tuple(dict.fromkeys(int(count) for count in counts))
