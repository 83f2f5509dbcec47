"""Processes that stay, one per device, and run one trial after the other."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from types import TracebackType
from typing import Any, Self

from fastimg.errors import UsageError, UserError

from .messages import TIME_OVER, Ended, Reported, TrialJob, TrialProbe, TrialProbed, TrialVerdict, TrialWork
from .records import TrialRecord

Job = TrialJob

Report = Callable[[int, int, float], bool]  # (number, epoch, value) -> whether to stop this trial
Runner = Callable[[Iterable[TrialJob], Report], Iterator[TrialRecord]]  # records in the order in which trials end
Say = Callable[[str], None]
_GRACE = 60.0  # seconds that a trial has for its last step and its checkpoint


@dataclass(eq=False, kw_only=True)
class _Process:
    """A process, and the trial that it runs."""

    place: int
    process: "subprocess.Popen[bytes]"
    connection: Connection
    job: TrialJob | None = None
    began: float = 0.0
    asked_to_end: float | None = None
    awaits: bool = False  # a verdict


class TrialPool:
    """`with TrialPool(devices, metric, say) as pool: for record in pool.run(jobs, report): ...`

    devices: one per process: cpu, or cuda:N, where N is what CUDA_VISIBLE_DEVICES names a GPU by. metric: of the first
    objective; None for the one that `probe` finds. deadline: when running trials are asked to end, by the monotonic
    clock. speed_split: of the data, where speed is the second objective. inherited: handles that the processes keep
    open, as the lock of the search's folder.
    """

    command: Sequence[str] = (sys.executable, "-m", "fastimg.search.worker")  # what starts a process

    def __init__(self, devices: Sequence[str], metric: str | None, say: Say, inherited: Sequence[int] = ()) -> None:
        self.metric = metric
        self.deadline: float | None = None
        self.speed_split: str | None = None
        self._devices = list(devices)
        self._say = say
        self._inherited = tuple(inherited)
        self._processes: list[_Process] = []

    def __enter__(self) -> Self:
        self._processes = [self._start(place) for place in range(len(self._devices))]
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
                with contextlib.suppress(OSError):
                    each.connection.send(TrialVerdict(stop=True))
        try:
            self._drain(time.monotonic() + _GRACE)
        finally:
            for each in self._processes:
                each.connection.close()
                each.process.kill()
                each.process.wait()
            self._processes = []

    def probe(self, settings: Mapping[str, Any]) -> str:
        """The metric by which trials with these settings are compared; it is the pool's from here on.

        Raises UsageError and UserError where no trial could be run.
        """
        first = self._processes[0]
        first.connection.send(TrialProbe(settings=settings))
        try:
            answer = first.connection.recv()
        except (EOFError, ConnectionResetError):
            raise UserError(f"search: {_death(first.process)} while it opened the data") from None
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
                if more and each.job is None and not self._over():
                    job = next(waiting, None)
                    more = job is not None
                    if job is not None:
                        self._send(each, job)
            busy = [each for each in self._processes if each.job is not None]
            if not busy:
                if more and not self._over():
                    continue
                return
            yield from self._ended(busy, report)

    def _send(self, each: _Process, job: TrialJob) -> None:
        assert self.metric is not None
        each.job, each.awaits = job, False
        each.began = time.monotonic()
        each.asked_to_end = None
        settings = {**job.settings, "device": "cpu" if self._devices[each.place] == "cpu" else "cuda"}
        each.connection.send(
            TrialWork(
                job=TrialJob(number=job.number, stage=job.stage, parameters=job.parameters, settings=settings),
                metric=self.metric,
                speed_split=self.speed_split,
            )
        )

    def _ended(self, busy: Sequence[_Process], report: Report) -> Iterator[TrialRecord]:
        """Wait for something to happen, answer reports, and give the records of trials that have ended."""
        by_connection = {each.connection: each for each in busy}
        for connection in wait(list(by_connection), self._patience(busy)):
            assert isinstance(connection, Connection)
            each = by_connection[connection]
            job = each.job
            assert job is not None
            try:
                message = connection.recv()
                if isinstance(message, Reported):
                    each.awaits = True
                    connection.send(TrialVerdict(stop=report(job.number, message.epoch, message.value)))
                    each.awaits = False
                    continue
            except (EOFError, ConnectionError):
                yield self._buried(each, job)
                continue
            assert isinstance(message, Ended)
            each.job = None
            yield message.record
        self._end_overdue(busy)

    def _buried(self, each: _Process, job: TrialJob) -> TrialRecord:
        """The record of a trial whose process has died, which is replaced."""
        reason = _death(each.process)
        if each.asked_to_end is not None:
            reason = f"{TIME_OVER}, and its process ended before it could tell more"
        else:
            self._say(f"trial {job.number}: {reason}; another process goes on with the next trial")
        each.connection.close()
        fresh = self._start(each.place)
        each.process, each.connection, each.job = fresh.process, fresh.connection, None
        return TrialRecord(
            number=job.number,
            stage=job.stage,
            state="pruned",
            reason=reason,
            parameters=job.parameters,
            settings=job.settings,
            seconds=time.monotonic() - each.began,
        )

    def _over(self) -> bool:
        return self.deadline is not None and time.monotonic() >= self.deadline

    def _patience(self, busy: Sequence[_Process]) -> float | None:
        """Seconds until something has to be ended; None where nothing has to."""
        ends = [each.asked_to_end + _GRACE for each in busy if each.asked_to_end is not None]
        if self.deadline is not None and any(each.asked_to_end is None for each in busy):
            ends.append(self.deadline)
        return max(0.0, min(ends) - time.monotonic()) if ends else None

    def _end_overdue(self, busy: Sequence[_Process]) -> None:
        """After the deadline: ask for an end, then insist on it."""
        now = time.monotonic()
        for each in busy:
            if each.job is None:
                continue
            if each.asked_to_end is None and self._over():
                each.asked_to_end = now
                each.process.terminate()
            elif each.asked_to_end is not None and now >= each.asked_to_end + _GRACE:
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

    def _start(self, place: int) -> _Process:
        """Start a process. It has a session of its own, so that Ctrl-C reaches the search alone."""
        ours, theirs = socket.socketpair()
        device = self._devices[place]
        environment = dict(os.environ)
        if device != "cpu":
            environment["CUDA_VISIBLE_DEVICES"] = device.removeprefix("cuda:")
        process = subprocess.Popen(
            [*self.command, str(theirs.fileno()), self._cores(place)],
            stdin=subprocess.DEVNULL,
            pass_fds=(theirs.fileno(), *self._inherited),
            start_new_session=True,
            env=environment,
        )
        theirs.close()
        return _Process(place=place, process=process, connection=Connection(ours.detach()))

    def _cores(self, place: int) -> str:
        """The cores of one of several processes on a CPU, an even share; empty for all of them."""
        count = self._devices.count("cpu")
        if count < 2 or not hasattr(os, "sched_getaffinity"):
            return ""
        every = sorted(os.sched_getaffinity(0))
        return ",".join(map(str, every[place::count] or every))


def _death(process: "subprocess.Popen[bytes]") -> str:
    """How a process ended."""
    code = process.wait()
    if code == -signal.SIGKILL:
        return "its process was killed, by the system where memory runs out"
    if code < 0:
        return f"its process was ended by {signal.Signals(-code).name}"
    return f"its process ended with exit code {code}"
