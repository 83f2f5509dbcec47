"""A search over values of flags: Optuna draws them, trials show what they are worth."""

import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Protocol

from fastimg.config.training import HF_PREFIX
from fastimg.data.elsewhere import setting_of
from fastimg.errors import UsageError
from fastimg.system.progress import duration, spent
from fastimg.train.tasks.score import lower_is_better, shown
from fastimg.wording import plural

from .leaderboard import TOP, Contender, KeptModels, Leaderboard, firsts, ordered, reasons, write
from .messages import TrialJob
from .parameters import trial_config
from .places.folder import RUNS, run_name
from .pool import Say, TrialPool
from .records import TrialRecord
from .request import SearchRequest, as_yaml, pruner_of
from .speed import prediction_speed
from .staged.drawing import LABELLED
from .staged.encoders import DataFacts, facts, text_reader
from .study import SearchStudy, StudyPlan

STAGE = "trials"
_KINDS = 3  # of models whose speed is measured for the table
_SECONDS = 0.5  # of such a measurement


class LiveLine(Protocol):
    """A line that says how far the search is."""

    def __call__(self, text: str) -> None:
        """Show it."""
        ...


def search_parameters(asked: SearchRequest, pool: TrialPool, say: Say, progress: LiveLine, began: float) -> Leaderboard:
    """Search the values of flags. Writes the leaderboard, and FOLDER/best, also where it is interrupted.

    The time counts from `began`, by the monotonic clock, and what earlier parts of the search took counts, too.

    Raises UsageError where the time was too short for one trial, or all trials were refused.
    """
    data = facts(asked.data, asked.shared, asked.asked.seed)
    shared = {**asked.shared, **data.settings, "data": setting_of(asked.data)}
    metric = pool.probe({**shared, "output": str(asked.folder / RUNS), "name": "probe"})
    if not asked.asked.param and metric not in LABELLED:
        asked = replace(asked, parameters=tuple(each for each in asked.parameters if each.name != "smoothing"))
    study = SearchStudy(asked.folder, asked.asked.storage, _plan(asked, metric))
    interrupted = study.recover()
    if "speed" in asked.objectives:
        pool.speed_split = data.val_split
    say(_announced(asked, study, data, metric, interrupted))
    names = [name for parameter in asked.parameters for name in (parameter.name, *map(str, parameter.choices))]
    archs = [name for name in (asked.shared.get("arch"), *names) if name is not None and name.startswith(HF_PREFIX)]
    _, words = text_reader(data, asked.shared, chosen=True, archs=archs)
    if words and "text_arch" not in names:
        say(f"texts       {words}")
    search = _ParamSearch(asked, study, data, metric, began)
    if asked.seconds is not None:
        pool.deadline = began + asked.seconds - study.seconds
        if study.seconds >= asked.seconds:
            took = spent(study.seconds)
            say(
                f"time        --max-time {asked.asked.max_time} is used up: {took} were searched before; give more to "
                "go on"
            )
    try:
        for record in pool.run(search.jobs(), study.report):
            search.ended(record, say, progress)
    except BaseException:
        search.pause()
        raise
    board = search.finished(say)
    if board.winner is None:
        raise UsageError(_nothing(asked, search.records))
    return board


class _ParamSearch:
    """One search: its jobs, and what they came to."""

    def __init__(self, asked: SearchRequest, study: SearchStudy, data: DataFacts, metric: str, began: float) -> None:
        self._asked = asked
        self._study = study
        self._data = data
        self._metric = metric
        self._began = began
        self._before = study.seconds
        self._models = KeptModels(asked.folder)
        self.records = study.records

    def jobs(self) -> Iterator[TrialJob]:
        """Trials, as long as some are wanted: those that were interrupted first."""
        asked, study = self._asked, self._study
        while study.waiting or (not study.exhausted and (asked.trials is None or study.begun < asked.trials)):
            draw = study.ask()
            places = {
                "data": setting_of(asked.data),
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
        self._study.spend(self._seconds())
        self.records = [*(other for other in self.records if other.number != record.number), record]
        if self._asked.asked.keep == "best":
            rows = self._models.rows(self.records, self._metric)
            self._models.free(self.records, {row.run for row in firsts(rows, _KINDS)} | self._front())
        if self._best() is record:
            words = "  ".join(f"{name} {_short(value)}" for name, value in record.parameters.items())
            say(f"best        trial {record.number}: {shown(self._metric, record.values[0])}  {words}")
        best = self._best()
        most = "" if self._asked.trials is None else f" of {self._asked.trials}"
        reached = "" if best is None else f", best {shown(self._metric, best.values[0])}"
        progress(f"trial {len(self.records)}{most}{reached}, {duration(self._seconds())}")

    def pause(self) -> None:
        """The search is interrupted: write what is known, without measuring anything."""
        self._study.spend(self._seconds())
        if self.records:
            write(self._board({}), self._asked.folder)

    def finished(self, say: Say) -> Leaderboard:
        """Write the leaderboard, with the speeds of the first kinds of models, and keep the checkpoints of the best."""
        rows = self._models.rows(self.records, self._metric)
        measured = {str(record.run): record.values[1] for record in self.records if len(record.values) > 1}
        speeds = {row.kind: measured.get(row.run) or self._speed(row) for row in firsts(rows, _KINDS)}
        board = self._board(speeds)
        if self.records:
            write(board, self._asked.folder)
        if self._asked.asked.keep == "best" and board.winner is not None:
            self._models.free(self.records, {board.winner.run} | self._front(), speeds)
            board = self._models.marked(board)
            write(board, self._asked.folder)
        if self._study.exhausted and self._asked.asked.algorithm != "grid":
            say(f"tried       all of the {plural(self._study.combinations, 'combination')} that there are")
        if self._models.bytes:
            say(f"deleted     {self._models.told()}")
        return board

    def _board(self, speeds: Mapping[tuple[str, int], float | None]) -> Leaderboard:
        rows = self._models.rows(self.records, self._metric)
        top = [replace(row, images_per_second=speeds.get(row.kind, row.images_per_second)) for row in rows[:TOP]]
        rows = [*ordered(top, self._metric), *rows[TOP:]]
        return Leaderboard(metric=self._metric, rows=rows, pruned=reasons(self.records), records=self.records)

    def _front(self) -> set[str]:
        """The runs that no other one exceeds in all of several objectives: each may be the one that is wanted."""
        sign = -1.0 if lower_is_better(self._metric) else 1.0
        points = {
            str(record.run): (sign * record.values[0], record.values[1])
            for record in self.records
            if record.state == "complete" and len(record.values) > 1
        }
        return {
            run
            for run, (value, speed) in points.items()
            if not any(other != (value, speed) and other[0] >= value and other[1] >= speed for other in points.values())
        }

    def _seconds(self) -> float:
        """How long has been searched, with what earlier parts of the search took."""
        return self._before + time.monotonic() - self._began

    def _speed(self, row: Contender) -> float | None:
        """Samples per second at prediction; where its checkpoint was deleted, as it was measured then."""
        if row.freed:
            return row.images_per_second
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
        sampler=asked.asked.algorithm,
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
        f"search      {', '.join(map(str, asked.parameters))}; {asked.asked.algorithm}, "
        f"{' or '.join(ends) or plural(study.combinations, 'combination')}{early}; each trains on "
        f"{plural(data.train, noun)} and is compared by {metric} on {data.val:,}: {data.validation}"
    )
    ended = sum(not record.cut for record in study.records)
    if not ended and not interrupted:
        return words
    resumed = f" and resumes {plural(interrupted, 'trial')}" if interrupted else ""
    return f"{words}; goes on after {plural(ended, 'trial')}{resumed}"


def _nothing(asked: SearchRequest, records: list[TrialRecord]) -> str:
    """Why there is no winner."""
    counted = reasons(records)
    if all(record.cut for record in records):
        return f"--max-time {asked.asked.max_time}: too short for one trial; give more, or fewer --epochs behind `--`"
    reason, count = next(iter(counted.items()))
    return f"search: no trial ended well; {count} of {plural(len(records), 'trial')}: {reason}"


def _short(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)
