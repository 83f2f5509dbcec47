"""What a search has done, line by line: an interrupted one reads it, and goes on where it was.

A search by stages is a function of its records and its clock. Started anew, it asks for the same trials; those that
have ended are read here, at the time at which they ended, and the first one that is not here runs.
"""

import hashlib
import itertools
import json
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from fastimg.search.places.folder import JOURNAL, add_line, damaged_line, run_name, whole_lines
from fastimg.search.pool import Job, Report, Runner
from fastimg.search.records import TrialRecord

_OF_A_START = ("output", "name", "resume")  # settings that do not tell one trial from another


class TrialJournal:
    """The journal of a folder. `run` is a Runner over another one, `now` its clock, in seconds of searching.

    until: when running trials are to end, by that clock; `limit` is told in how many seconds that is.
    """

    def __init__(
        self,
        folder: Path,
        runner: Runner,
        clock: Callable[[], float] = time.monotonic,
        limit: Callable[[float], None] = lambda _: None,
        began: float | None = None,
    ) -> None:
        self.until = math.inf
        self.listener: Callable[[TrialRecord], None] = lambda _: None  # hears of each trial that has ended
        self._limit = limit
        self._path = folder / JOURNAL
        self._runner = runner
        self._clock = clock
        self._since = clock() if began is None else began
        self._spent = 0.0  # seconds of the earlier searches, as far as they have been read again
        self._cut = 0.0  # when the clock last ended a trial
        self._ended: dict[str, tuple[float, TrialRecord]] = {}
        self._paused: dict[str, TrialRecord] = {}  # that the clock ended in an earlier search
        self._numbers: dict[str, int] = {}
        self._facts: dict[str, tuple[float, Any]] = {}
        for number, line in enumerate(whole_lines(self._path), start=1):
            try:
                self._take(line)
            except (KeyError, TypeError, ValueError, AttributeError) as error:
                raise damaged_line(self._path, number) from error
        self._replayed = not (self._ended or self._facts or self._cut)

    def _take(self, line: Mapping[str, Any]) -> None:
        """Take a line of an earlier search."""
        match line["kind"]:
            case "begun":
                self._numbers[line["key"]] = line["number"]
            case "ended":
                self._ended[line["key"]] = (line["at"], _record(line["record"]))
            case "cut":
                self._cut = line["at"]
                if "record" in line:
                    self._paused[line["key"]] = _record(line["record"])
            case "fact":
                self._facts[line["name"]] = (line["at"], line["value"])

    @property
    def records(self) -> list[TrialRecord]:
        """Of all trials that have ended, in the order in which they did; then of those that the clock has ended."""
        paused = [record for key, record in self._paused.items() if key not in self._ended]
        return [*(record for _, record in self._ended.values()), *paused]

    def now(self) -> float:
        """Seconds of searching so far: those of earlier searches, and those since this one goes on where they ended."""
        return self._spent + (self._clock() - self._since if self._replayed else 0.0)

    @property
    def ended(self) -> bool:
        """Whether a trial has ended, so that what is asked for has to be the same again."""
        return bool(self._ended)

    def fact(self, name: str, measure: Callable[[], Any], anew: bool = False) -> Any:
        """What was measured once, as JSON has it; or `anew`, whatever was measured before."""
        if name in self._facts and not anew:
            at, value = self._facts[name]
            self._read(at)
            return value
        self._begin()
        value = measure()
        self._add({"kind": "fact", "name": name, "value": value})
        self._facts[name] = (self.now(), value)
        return value

    def known(self, name: str) -> Any:
        """What was measured, also in an earlier search; None where nothing was. No time passes."""
        return self._facts.get(name, (0.0, None))[1]

    def run(self, jobs: Iterable[Job], report: Report) -> Iterator[TrialRecord]:
        """The records of jobs, as a Runner gives them; those that are known come without being run.

        A job is asked for after the records of the known ones before it have been taken: it may be drawn from them.
        """
        self._limit(self.until - self.now())
        asked = iter(jobs)
        known: list[TrialRecord] = []
        keys: dict[int, str] = {}
        for job in asked:
            found = self._known(job)
            if found is None:
                break
            yield found
        else:
            return

        def unknown() -> Iterator[Job]:
            for each in itertools.chain([job], asked):
                found = self._known(each)
                if found is not None:
                    known.append(found)
                    continue
                begun = self._begun(each)
                keys[begun.number] = key_of(each)
                yield begun

        for record in self._runner(unknown(), report):
            yield from _taken(known)
            key = keys[record.number]
            # A search that is given more time goes on with a trial that the clock ended.
            self._add({"kind": "cut" if record.cut else "ended", "key": key, "record": _plain(record)})
            self._ended[key] = (self.now(), record)
            self.listener(record)
            yield record
        yield from _taken(known)

    def knows(self, job: Job) -> bool:
        """Whether a job has ended before."""
        return key_of(job) in self._ended

    def again(self, job: Job) -> TrialRecord | None:
        """Run a job that has ended before, and whose checkpoints are gone; None where there is no time for it."""
        self._begin()
        self._limit(self.until - self.now())
        return next(iter(list(self._runner([job], lambda *_: False))), None)

    def _known(self, job: Job) -> TrialRecord | None:
        """The record of a job that has ended before."""
        found = self._ended.get(key_of(job))
        if found is None:
            return None
        self._read(found[0])
        return found[1]

    def _begun(self, job: Job) -> Job:
        """A job that is about to run, with its number; in a directory of that number, unless it makes a run longer."""
        self._begin()
        self._limit(self.until - self.now())
        key = key_of(job)
        number = self._numbers.get(key) or max(self._numbers.values(), default=0) + 1
        self._numbers[key] = number
        self._add({"kind": "begun", "key": key, "number": number})
        settings = {"name": run_name(number), **job.settings, "resume": "auto"}  # it may have been interrupted
        return replace(job, number=number, settings=settings)

    def _read(self, at: float) -> None:
        """Something that is known has been read: it is the time at which it was written, or later."""
        if not self._replayed:
            self._spent = max(self._spent, at)

    def _begin(self) -> None:
        """From here on time passes: all that was known has been read."""
        if self._replayed:
            return
        ends = [at for known in (self._ended, self._facts) for at, _ in known.values()]
        self._spent = max([self._spent, self._cut, *ends])
        self._since = self._clock()
        self._replayed = True

    def _add(self, line: Mapping[str, Any]) -> None:
        add_line(self._path, {**line, "at": round(self.now(), 3)})


def key_of(job: Job) -> str:
    """What tells a trial from others: its stage, its settings, and which run it makes longer, if it does."""
    settings = {name: value for name, value in job.settings.items() if name not in _OF_A_START}
    text = json.dumps([job.stage, settings, job.settings.get("name")], sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _taken(records: list[TrialRecord]) -> Iterator[TrialRecord]:
    while records:
        yield records.pop(0)


def _plain(record: TrialRecord) -> dict[str, Any]:
    """As JSON has it."""
    run = None if record.run is None else str(record.run)
    reported = {str(epoch): value for epoch, value in record.reported.items()}
    return {**vars(record), "run": run, "reported": reported, "values": list(record.values)}


def _record(plain: Mapping[str, Any]) -> TrialRecord:
    """The inverse of `_plain`."""
    reported = {int(epoch): value for epoch, value in plain["reported"].items()}
    run = None if plain["run"] is None else Path(plain["run"])
    return TrialRecord(**{**plain, "values": tuple(plain["values"]), "reported": reported, "run": run})
