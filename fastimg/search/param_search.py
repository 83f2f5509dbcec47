"""A search over values of flags: Optuna draws them, trials show what they are worth."""

import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Protocol

from fastimg.errors import UsageError
from fastimg.system.progress import duration
from fastimg.train.tasks.score import lower_is_better, shown
from fastimg.wording import plural

from .folder import RUNS, run_name
from .leaderboard import TOP, Contender, Leaderboard, contenders, described, ordered, reasons, write
from .messages import TIME_OVER, TrialJob
from .parameters import trial_config
from .pool import Say, TrialPool
from .records import TrialRecord
from .request import SearchRequest, as_yaml, pruner_of
from .speed import prediction_speed
from .staged.encoders import DataFacts, facts
from .study import SearchStudy, StudyPlan

STAGE = "trials"
_KINDS = 3  # of models whose speed is measured for the table
_SECONDS = 0.5  # of such a measurement


class LiveLine(Protocol):
    """A line that says how far the search is."""

    def __call__(self, text: str) -> None:
        """Show it."""
        ...


def search_parameters(asked: SearchRequest, pool: TrialPool, say: Say, progress: LiveLine) -> Leaderboard:
    """Search the values of flags. Writes the leaderboard, and FOLDER/best, also where it is interrupted.

    Raises UsageError where the time was too short for one trial, or all trials were refused.
    """
    data = facts(asked.data, asked.shared, asked.asked.seed)
    shared = {**asked.shared, **data.settings, "data": str(asked.data.resolve())}
    metric = pool.probe({**shared, "output": str(asked.folder / RUNS), "name": "probe"})
    study = SearchStudy(asked.folder, asked.asked.storage, _plan(asked, metric))
    interrupted = study.recover()
    if "speed" in asked.objectives:
        pool.speed_split = data.val_split
    say(_announced(asked, study, data, metric, interrupted))
    search = _ParamSearch(asked, study, data, metric)
    try:
        for record in pool.run(search.jobs(), study.report):
            search.ended(record, say, progress)
    except BaseException:
        if search.records:
            write(search.board(speeds=False), asked.folder)
        raise
    board = search.board()
    if search.records:
        write(board, asked.folder)
    if board.winner is None:
        raise UsageError(_nothing(asked, search.records))
    return board


class _ParamSearch:
    """One search: its jobs, and what they came to."""

    def __init__(self, asked: SearchRequest, study: SearchStudy, data: DataFacts, metric: str) -> None:
        self._asked = asked
        self._study = study
        self._data = data
        self._metric = metric
        self._began = time.monotonic()
        self.records = study.records

    def jobs(self) -> Iterator[TrialJob]:
        """Trials, as long as some are wanted: those that were interrupted first."""
        asked, study = self._asked, self._study
        while study.waiting or (not study.exhausted and (asked.trials is None or study.begun < asked.trials)):
            draw = study.ask()
            places = {
                "data": str(asked.data.resolve()),
                "output": str(asked.folder.resolve() / RUNS),
                "name": run_name(draw.number),
                "resume": "auto",
            }
            own = as_yaml(trial_config(draw.parameters, asked.base))
            yield TrialJob(
                number=draw.number,
                stage=STAGE,
                parameters=draw.parameters,
                settings={**own, **self._data.settings, **places},
            )

    def ended(self, record: TrialRecord, say: Say, progress: LiveLine) -> None:
        """A trial has ended: tell the study, and the user where it is the best so far."""
        self._study.tell(record)
        self.records = [*self.records, record]
        if self._best() is record:
            words = "  ".join(f"{name} {_short(value)}" for name, value in record.parameters.items())
            say(f"best        trial {record.number}: {shown(self._metric, record.values[0])}  {words}")
        best = self._best()
        most = "" if self._asked.trials is None else f" of {self._asked.trials}"
        reached = "" if best is None else f", best {shown(self._metric, best.values[0])}"
        progress(f"trial {len(self.records)}{most}{reached}, {duration(time.monotonic() - self._began)}")

    def board(self, speeds: bool = True) -> Leaderboard:
        """The leaderboard of all trials that have ended; with `speeds` of the first kinds of models, at prediction."""
        folder = self._asked.folder
        rows = [row for row in contenders(self.records, self._metric) if (folder / row.run / "best").exists()]
        rows = ordered(rows, self._metric)
        top = [described(row, folder) for row in rows[:TOP]]
        measured: dict[tuple[str, int], float] = {}
        for row in top if speeds else ():
            if row.kind not in measured and len(measured) < _KINDS:
                measured[row.kind] = self._speed(row)
        top = [replace(row, images_per_second=measured.get(row.kind)) for row in top]
        rows = [*ordered(top, self._metric), *rows[TOP:]]
        return Leaderboard(metric=self._metric, rows=rows, pruned=reasons(self.records), records=self.records)

    def _speed(self, row: Contender) -> float:
        run = self._asked.folder / row.run
        device = self._asked.asked.device
        speed = prediction_speed(run, self._asked.data, self._data.val_split, device, _SECONDS)
        return round(speed, 1)

    def _best(self) -> TrialRecord | None:
        complete = [record for record in self.records if record.state == "complete"]
        sign = -1.0 if lower_is_better(self._metric) else 1.0

        def place(record: TrialRecord) -> tuple[float, float]:
            return sign * record.values[0], -record.metrics.get("loss", 0.0)

        return max(complete, key=place, default=None)


def _plan(asked: SearchRequest, metric: str) -> StudyPlan:
    return StudyPlan(
        parameters=asked.parameters,
        sampler=asked.asked.sampler,
        pruner=pruner_of(asked),
        largest=(not lower_is_better(metric), True)[: len(asked.objectives)],
        seed=asked.asked.seed,
    )


def _announced(asked: SearchRequest, study: SearchStudy, data: DataFacts, metric: str, interrupted: int) -> str:
    """What will be done, and why, in a line."""
    ends = [plural(asked.trials, "trial")] if asked.trials is not None else []
    ends += [duration(asked.seconds)] if asked.seconds is not None else []
    noun = "text" if data.content == "text" else "image"
    pruner = pruner_of(asked)
    early = "" if pruner == "none" else f"; {pruner} ends trials that are not promising"
    words = (
        f"search      {', '.join(map(str, asked.parameters))}; {asked.asked.sampler}, "
        f"{' or '.join(ends) or plural(study.combinations, 'combination')}{early}; each trains on "
        f"{plural(data.train, noun)} and is compared by {metric} on {data.val:,}: {data.validation}"
    )
    ended = len(study.records)
    if not ended and not interrupted:
        return words
    return f"{words}; goes on after {plural(ended, 'trial')}, {interrupted} of those that ran go on"


def _nothing(asked: SearchRequest, records: list[TrialRecord]) -> str:
    """Why there is no winner."""
    counted = reasons(records)
    if not counted or all(reason.startswith(TIME_OVER) for reason in counted):
        return f"--time {asked.asked.time}: too short for one trial; give more, or fewer --epochs behind `--`"
    reason, count = next(iter(counted.items()))
    return f"search: no trial ended well; {count} of {plural(len(records), 'trial')}: {reason}"


def _short(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)
