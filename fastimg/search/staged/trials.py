"""What the stages share: the journal through which trials run, the time that is left, and the best model so far."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from fastimg.data.elsewhere import setting_of
from fastimg.errors import UsageError
from fastimg.search.leaderboard import KeptModels, firsts
from fastimg.search.places.folder import RUNS
from fastimg.search.pool import Job
from fastimg.search.records import TrialRecord
from fastimg.train.tasks.score import lower_is_better, shown

from .encoders import DataFacts
from .journal import TrialJournal
from .rungs import StageName

if TYPE_CHECKING:
    import optuna

Say = Callable[[str], None]
# Settings of Train that the stages choose: a rung is a number of epochs at a rate that does not depend on it.
CHOSEN = (
    *("freeze", "freeze_epochs", "cache_embeddings", "epochs", "duration", "max_time", "patience", "progressive"),
    *("sched", "warmup", "warmup_epochs", "warmup_fraction", "warmup_lr", "min_lr"),
    *("decay", "decay_epochs", "decay_rate"),
)
RESERVE = 0.04  # of the time: for the leaderboard, which measures how fast models predict


@dataclass(frozen=True, kw_only=True)
class StagedSearch:
    """What is asked of a search by stages.

    folder: where everything is written. seconds: how long it may take. shared: settings of Train that all trials
    have, with YAML's values. archs, weights: the encoders to compare; none of them: those at hand. gpu: whether trials
    run on one. storage: of the studies, instead of a file in the folder. keep: which checkpoints stay.
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
    storage: "str | optuna.storages.BaseStorage | None" = None
    keep: Literal["best", "all"] = "best"


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
        self.models = KeptModels(asked.folder)
        self.kept: dict[str, int] = {}  # by the encoder: embeddings that were there before the first trial
        self.in_play: set[str] = set()  # runs that may be made longer, or that others may start from
        self._seen: list[TrialRecord] = []

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
        if "lr" in own:  # is for the batch of the trials already, whatever --batch-size and --lr-scale say
            own["lr_scale"] = "none"
        return {
            **self.asked.shared,
            **self.data.settings,
            **own,
            "data": setting_of(self.asked.data),
            "output": str(self.asked.folder.resolve() / RUNS),
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
            self._seen.append(record)
            if record.stage == "fine-tuning" and record.run is not None:
                self.in_play.add(str(record.run))
            self.free()
            yield record

    def free(self) -> None:
        """Delete the checkpoints of runs that can neither win any more nor be gone on with.

        What is read from the journal is freed when its trial comes again, so that nothing is that a later one needs.
        """
        if self.asked.keep == "all":
            return
        rows = self.models.rows(self.journal.records, self.metric)
        self.models.free(self._seen, self._with_origins({row.run for row in firsts(rows)} | self._resumable()))

    def settle(self, winner: str, speeds: Mapping[tuple[str, int], float | None]) -> None:
        """The search has ended with this run as the best model; what more time would go on with stays, too."""
        if self.asked.keep == "best":
            self.models.free(self.journal.records, self._with_origins({winner} | self._resumable()), speeds)

    def prepared(self, jobs: Iterable[Job]) -> list[Job]:
        """Jobs that can run: what they start from is trained again where its checkpoints were deleted.

        That is so in a search which was given more time, and now thinks better of a model.
        """
        return [job for job in jobs if self.journal.knows(job) or self._ready(job.settings)]

    def _ready(self, settings: Mapping[str, Any]) -> bool:
        """Whether a trial has what it starts from. A run that is made longer starts anew: the result is the same."""
        if "name" in settings:
            self.models.again(f"{RUNS}/{settings['name']}")
        origin = self._origin(settings)
        return origin is None or origin in self.models or self._train_again(origin)

    def _train_again(self, run: str) -> bool:
        """Whether a run whose checkpoints were deleted has them again."""
        record = next(each for each in reversed(self.journal.records) if str(each.run) == run)
        name = Path(run).name
        self.say(f"again       trial {record.number}, whose checkpoints were deleted")
        settings = self.settings({**record.settings, "name": name, "resume": "auto"})
        job = Job(number=record.number, stage=record.stage, parameters=record.parameters, settings=settings)
        if not self._ready({key: value for key, value in settings.items() if key != "name"}):
            return False
        again = self.journal.again(job)
        if again is None or again.state != "complete":
            return False
        self.models.again(run)
        return True

    def _resumable(self) -> set[str]:
        """The runs that the search may go on with: the best classifier of each encoder, and arms on their way up."""
        heads: dict[str, TrialRecord] = {}
        for record in self.journal.records:
            if record.stage == "heads" and record.values:
                name = record.parameters["encoder"]
                heads[name] = max((heads.get(name, record), record), key=self.place)
        return {str(record.run) for record in heads.values()} | self.in_play

    def _with_origins(self, runs: Iterable[str]) -> set[str]:
        """Runs, and those whose weights they start from."""
        settings = {str(record.run): record.settings for record in self.journal.records}
        found: set[str] = set()
        left = list(runs)
        while left:
            run = left.pop()
            if run not in found:
                found.add(run)
                origin = self._origin(settings.get(run, {}))
                left += [] if origin is None else [origin]
        return found

    def _origin(self, settings: Mapping[str, Any]) -> str | None:
        """The run of this search whose weights a trial starts from."""
        weights = Path(str(settings.get("weights", "")))
        return f"{RUNS}/{weights.name}" if weights.parent == self.asked.folder.resolve() / RUNS else None

    def run_of(self, record: TrialRecord) -> str:
        """The directory of its run, in full."""
        assert record.run is not None
        return str(self.asked.folder.resolve() / record.run)


def _never(_number: int, _epoch: int, _value: float) -> bool:
    """Whether a trial is to stop after an epoch: rungs end by their number of epochs, and all trials by the clock."""
    return False


def _short(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)
