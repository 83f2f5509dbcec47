"""What the stages share: the journal through which trials run, the time that is left, and the best model so far."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fastimg.errors import UsageError
from fastimg.search.pool import Job
from fastimg.search.records import TrialRecord
from fastimg.train.tasks.score import lower_is_better, shown

from .encoders import DataFacts
from .journal import TrialJournal
from .rungs import StageName

Say = Callable[[str], None]
# Settings of Train that the stages choose: a rung is a number of epochs at a rate that does not depend on it.
CHOSEN = (
    *("freeze", "freeze_epochs", "cache_embeddings", "epochs", "duration", "max_time", "patience", "progressive"),
    *("sched", "warmup", "warmup_epochs", "warmup_fraction", "decay", "decay_epochs", "decay_rate", "min_lr"),
)
RESERVE = 0.04  # of the time: for the leaderboard, which measures how fast models predict


@dataclass(frozen=True, kw_only=True)
class StagedSearch:
    """What is asked of a search by stages.

    folder: where everything is written. seconds: how long it may take. shared: settings of Train that all trials
    have, with YAML's values. archs, weights: the encoders to compare; none of them: those at hand. gpu: whether trials
    run on one.
    """

    data: Path
    folder: Path
    seconds: float
    shared: Mapping[str, Any] = field(default_factory=dict)
    metric: str | None = None
    archs: tuple[str, ...] = ()
    weights: tuple[Path, ...] = ()
    device: str = "auto"
    gpu: bool = False
    seed: int = 0


class Trials:
    """Trials of one search: made, run and compared."""

    def __init__(self, asked: StagedSearch, data: DataFacts, journal: TrialJournal, say: Say) -> None:
        for name in CHOSEN:
            if name in asked.shared:
                flag = f"--{name.replace('_', '-')}"
                raise UsageError(f"search: {flag} is what the stages choose; leave it out, or search with --param")
        self.asked = asked
        self.data = data
        self.journal = journal
        self.say = say
        self.metric = asked.metric or ""  # the stages know it: see `compared_by`
        self.best: TrialRecord | None = None

    @property
    def end(self) -> float:
        """When the last trial ends, by the journal's clock."""
        return self.asked.seconds * (1 - RESERVE)

    def compared_by(self, metric: str) -> None:
        """The metric of trials, as it was found out."""
        self.metric = metric

    def left(self) -> float:
        """Seconds until then."""
        return self.end - self.journal.now()

    def height(self, record: TrialRecord) -> float:
        """Its first objective, turned so that more is better; the lowest of all where it has none."""
        if not record.values or math.isnan(record.values[0]):
            return -math.inf
        return -record.values[0] if lower_is_better(self.metric) else record.values[0]

    def place(self, record: TrialRecord) -> tuple[float, float]:
        """What trials of a stage are compared by: the objective, then the loss."""
        return self.height(record), -record.metrics.get("loss", math.inf)

    def job(self, stage: StageName, drawn: Mapping[str, Any], settings: Mapping[str, Any]) -> Job:
        """A trial; the journal gives it its number and its directory."""
        return Job(number=0, stage=stage, parameters=drawn, settings=self.settings(settings))

    def settings(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        """Of a trial: its own, and those of all trials. None leaves a flag at its default."""
        own = {name: value for name, value in settings.items() if value is not None}
        return {
            **self.asked.shared,
            **self.data.settings,
            **own,
            "data": str(self.asked.data.resolve()),
            "output": str(self.asked.folder.resolve() / "runs"),
            "seed": self.asked.seed,
            **({} if self.asked.metric is None else {"metric": self.asked.metric}),
        }

    def run(self, jobs: Iterable[Job], until: float) -> Iterator[TrialRecord]:
        """The records of trials as they end.

        Jobs are for the time until `until`. One that takes longer than was thought has half of what comes after it.
        """
        self.journal.until = (until + max(until, self.end)) / 2
        for record in self.journal.run(jobs, _never):
            if self.height(record) > -math.inf and (self.best is None or self.place(record) > self.place(self.best)):
                self.best = record
                words = "  ".join(f"{name} {_short(value)}" for name, value in record.parameters.items())
                best = shown(self.metric, record.values[0])
                self.say(f"best        trial {record.number}: {best}  {words.removeprefix('encoder ')}")
            yield record

    def run_of(self, record: TrialRecord) -> str:
        """The directory of its run, in full."""
        assert record.run is not None
        return str(self.asked.folder.resolve() / record.run)


def _never(_number: int, _epoch: int, _value: float) -> bool:
    """Whether a trial is to stop after an epoch: rungs end by their number of epochs, and all trials by the clock."""
    return False


def _short(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)
