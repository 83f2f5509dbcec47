"""Processes that stay, and run one trial after the other."""

import contextlib
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection, wait
from types import TracebackType
from typing import Any, Self

from fastimg.errors import UsageError, UserError
from fastimg.system.progress import duration
from fastimg.wording import plural

from .hosts.process import GRACE, TrialHosts, TrialProcess
from .messages import (
    TIME_OVER,
    Arrived,
    Ended,
    HostFault,
    Message,
    Reported,
    TrialJob,
    TrialProbe,
    TrialProbed,
    TrialVerdict,
    TrialWork,
)
from .records import TrialRecord

Job = TrialJob

Report = Callable[[int, int, float], bool]  # (number, epoch, value) -> whether to stop this trial
Runner = Callable[[Iterable[TrialJob], Report], Iterator[TrialRecord]]  # records in the order in which trials end
Say = Callable[[str], None]
_LOSSES = 3  # of processes with the same trial, until it is taken for the cause
_OTHERS = 5.0  # seconds in which the other processes arrive, when the first one has


@dataclass(eq=False, kw_only=True)
class _Process:
    """A process, and the trial that it runs."""

    place: int
    process: TrialProcess
    job: TrialJob | None = None
    began: float = 0.0
    asked_to_end: float | None = None
    awaits: bool = False  # a verdict
    node: str = ""

    @property
    def connection(self) -> Connection:
        return self.process.connection

    def send(self, message: Message) -> None:
        """Send a message; a process that is gone is noticed where its answer is awaited."""
        with contextlib.suppress(OSError):
            self.connection.send(message)


class TrialPool:
    """`with TrialPool(hosts, metric, say) as pool: for record in pool.run(jobs, report): ...`

    metric: of the first objective; None for the one that `probe` finds. deadline: when running trials are asked to end,
    by the monotonic clock. speed_split: of the data, where speed is the second objective.
    """

    def __init__(self, hosts: TrialHosts, metric: str | None, say: Say) -> None:
        self.metric = metric
        self.deadline: float | None = None
        self.speed_split: str | None = None
        self._hosts = hosts
        self._say = say
        self._processes: list[_Process] = []
        self._again: list[TrialJob] = []  # trials whose process was lost
        self._lost: Counter[int] = Counter()  # by trial
        self._missing_since = 0.0  # when the last process was seen, by the monotonic clock

    def __enter__(self) -> Self:
        self._missing_since = time.monotonic()
        with contextlib.ExitStack() as stack:
            stack.push(self.__exit__)
            for place in range(self._hosts.count):
                self._processes.append(_Process(place=place, process=self._hosts.start(place)))
            self._gather()
            stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the processes. Trials that run save a checkpoint first, from which they may go on."""
        for each in self._processes:
            if each.job is None:
                each.connection.close()
                continue
            each.process.terminate()
            if each.awaits:  # what judges was interrupted
                each.send(TrialVerdict(stop=True))
        try:
            self._drain(time.monotonic() + self._hosts.grace)
        finally:
            for each in self._processes:
                each.connection.close()
                each.process.kill()
            self._processes = []

    def _gather(self) -> None:
        """Wait until a process has arrived, and for a moment for the others; tell where they are."""
        end: float | None = None  # for the others
        while not all(each.process.arrived for each in self._processes):
            now = time.monotonic()
            if end is None and any(each.process.arrived for each in self._processes):
                end = now + _OTHERS
            if end is not None and now >= end:
                break
            self._hear((end or now + self._hosts.wait) - now, _unasked)
        words = self._hosts.told([each.node for each in self._processes if each.process.arrived])
        if words:
            self._say(words)

    def probe(self, settings: Mapping[str, Any]) -> str:
        """The metric by which trials with these settings are compared; it is the pool's from here on.

        Raises UsageError and UserError where no trial could be run.
        """
        first = next(each for each in self._processes if each.process.arrived)
        first.send(TrialProbe(settings=settings))
        try:
            while not first.connection.poll(self._hosts.look):
                self._hosts.check()
            answer = first.connection.recv()
        except (EOFError, ConnectionResetError):
            raise UserError(f"search: {first.process.ended().reason} while it opened the data") from None
        assert isinstance(answer, TrialProbed)
        if answer.fault is not None:
            if answer.exit_code is None:
                raise RuntimeError(f"in a process of the search:\n{answer.fault}")
            raise (UsageError if answer.exit_code == UsageError.exit_code else UserError)(answer.fault)
        assert answer.metric is not None
        self.metric = answer.metric
        return answer.metric

    def run(self, jobs: Iterable[TrialJob], report: Report) -> Iterator[TrialRecord]:
        """Run jobs, and give their records as they end.

        A job is asked for when a process is free and the records before it have been taken: it may be drawn from them.
        After the deadline no job is asked for.
        """
        assert self.metric is not None, "probe first"
        waiting = iter(jobs)
        more = True
        while True:
            for each in self._processes:
                if each.process.arrived and each.job is None and not self._over():
                    job = self._again.pop(0) if self._again else next(waiting, None) if more else None
                    more = more and job is not None
                    if job is not None:
                        self._send(each, job)
            if all(each.job is None for each in self._processes) and (self._over() or not (more or self._again)):
                yield from (self._unfinished(job) for job in self._taken_back())
                return
            yield from self._hear(self._patience(), report)

    def _send(self, each: _Process, job: TrialJob) -> None:
        assert self.metric is not None
        each.job, each.awaits = job, False
        each.began = time.monotonic()
        each.asked_to_end = None
        settings = {**job.settings, "device": self._hosts.device}
        each.send(TrialWork(job=replace(job, settings=settings), metric=self.metric, speed_split=self.speed_split))

    def _hear(self, seconds: float | None, report: Report) -> list[TrialRecord]:
        """Wait for something to happen, answer reports, and return the records of trials that have ended."""
        records: list[TrialRecord] = []
        self._hosts.check()
        if self._hosts.look is not None:
            seconds = self._hosts.look if seconds is None else min(seconds, self._hosts.look)
        by_connection = {each.connection: each for each in self._processes}
        for connection in wait(list(by_connection), seconds):
            assert isinstance(connection, Connection)
            each = by_connection[connection]
            try:
                message = connection.recv()
            except (EOFError, ConnectionError):
                records += self._buried(each)
                continue
            match message:
                case Arrived():
                    each.process.arrived, each.node = True, message.node
                case HostFault():
                    raise UserError(message.words)
                case Reported():
                    assert each.job is not None
                    each.awaits = True
                    each.send(TrialVerdict(stop=report(each.job.number, message.epoch, message.value)))
                    each.awaits = False
                case Ended():
                    each.job = None
                    records.append(message.record)
        self._end_overdue()
        self._refuse_to_wait()
        return records

    def _buried(self, each: _Process) -> list[TrialRecord]:
        """A process has died, and is replaced. Returns the record of its trial, unless that is queued again."""
        job, end = each.job, each.process.ended()
        each.connection.close()
        each.process, each.job, node = self._hosts.start(each.place), None, each.node
        if job is None:
            if node:
                self._say(f"{end.reason}; another one is started")
            return []
        self._lost[job.number] += end.lost
        if each.asked_to_end is not None:
            reason = f"{TIME_OVER}, and its process ended before it could tell more"
        elif end.lost and self._lost[job.number] < _LOSSES:
            self._say(f"trial {job.number}: {end.reason}; it is queued again, and goes on from its last checkpoint")
            self._again.append(job)
            return []
        else:
            reason = f"{end.reason}, {plural(_LOSSES, 'time')}" if end.lost else end.reason
            self._say(f"trial {job.number}: {reason}; another process goes on with the next trial")
        return [_pruned(job, reason, time.monotonic() - each.began)]

    def _taken_back(self) -> list[TrialJob]:
        """Trials that were queued again, and for which no time is left."""
        jobs, self._again = self._again, []
        return jobs

    def _unfinished(self, job: TrialJob) -> TrialRecord:
        return _pruned(job, f"{TIME_OVER} before the trial could go on in another process", 0.0)

    def _refuse_to_wait(self) -> None:
        """Raises UserError where no process has been there for too long."""
        now = time.monotonic()
        if any(each.process.arrived for each in self._processes):
            self._missing_since = now
        elif now >= self._missing_since + self._hosts.wait:
            raise UserError(
                f"search: no process could be started for {duration(self._hosts.wait)}; the same command goes on when "
                "there is room"
            )

    def _over(self) -> bool:
        return self.deadline is not None and time.monotonic() >= self.deadline

    def _patience(self) -> float | None:
        """Seconds until something has to be ended; None where nothing has to."""
        busy = [each for each in self._processes if each.job is not None]
        ends = [each.asked_to_end + GRACE for each in busy if each.asked_to_end is not None]
        if self.deadline is not None and (any(each.asked_to_end is None for each in busy) or not busy):
            ends.append(self.deadline)
        if not any(each.process.arrived for each in self._processes):
            ends.append(self._missing_since + self._hosts.wait)
        return max(0.0, min(ends) - time.monotonic()) if ends else None

    def _end_overdue(self) -> None:
        """After the deadline: ask for an end, then insist on it."""
        now = time.monotonic()
        for each in self._processes:
            if each.job is None:
                continue
            if each.asked_to_end is None and self._over():
                each.asked_to_end = now
                each.process.terminate()
            elif each.asked_to_end is not None and now >= each.asked_to_end + GRACE:
                each.process.kill()

    def _drain(self, end: float) -> None:
        """Read what processes that are ending still report, until each has ended its trial or the time is over."""
        left = {each.connection: each for each in self._processes if each.job is not None}
        while left and time.monotonic() < end:
            for connection in wait(list(left), max(0.0, end - time.monotonic())):
                assert isinstance(connection, Connection)
                try:
                    message = connection.recv()
                    if isinstance(message, Reported):
                        connection.send(TrialVerdict(stop=True))
                    else:
                        del left[connection]
                except (EOFError, ConnectionError):
                    del left[connection]


def _pruned(job: TrialJob, reason: str, seconds: float) -> TrialRecord:
    """The record of a trial that could not tell how it ended."""
    return TrialRecord(
        number=job.number,
        stage=job.stage,
        state="pruned",
        reason=reason,
        parameters=job.parameters,
        settings=job.settings,
        seconds=seconds,
    )


def _unasked(number: int, _epoch: int, _value: float) -> bool:
    raise AssertionError(f"trial {number} reports before it was begun")
