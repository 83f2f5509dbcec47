"""Ctrl-C and SIGTERM as a request to stop: the step ends, a checkpoint is written, and the run stops. A second Ctrl-C
stops it at once, except that a checkpoint that is being written is completed. SIGHUP, of a terminal that was closed, is
the same request as SIGTERM, unless whoever started the process had it ignored, as nohup does."""

import math
import os
import signal
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Self

STOPPING = (signal.SIGINT, signal.SIGTERM)  # weakest first
SAVE = 1  # a rank's request for a checkpoint: weaker than any signal to stop, each of which saves too
TIME_UP = 99  # a request to stop because the time is up; it wins over a signal in the same step
_REQUESTS = (SAVE, *STOPPING, TIME_UP)


class Interrupt:
    """`with Interrupt() as interrupt: ... if interrupt.signal: ...`

    With `listens` false, signals do what they did before: in a library, and in threads, which cannot set handlers.
    """

    def __init__(self, listens: bool = True) -> None:
        self.signal = 0  # number of the signal, once it has arrived
        self._listens = listens

    def __enter__(self) -> Self:
        self._terminals = _terminals()
        self._before = {number: signal.signal(number, self._note) for number in _heard() if self._listens}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.signal == signal.SIGINT == number:
            raise KeyboardInterrupt
        if number == signal.SIGHUP:
            _silence(self._terminals)
        self.signal = signal.SIGTERM if number == signal.SIGHUP else number


def _heard() -> Iterator[int]:
    """The signals that ask a process to stop."""
    yield from STOPPING
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        yield signal.SIGHUP


def _terminals() -> list[int]:
    """Which of standard output and standard error are terminals."""
    return [descriptor for descriptor in (1, 2) if os.isatty(descriptor)]


def _silence(terminals: Iterable[int]) -> None:
    """Let what is written to terminals that are gone go nowhere: writing to them fails, and there is more to do."""
    gone = [descriptor for descriptor in terminals if not os.isatty(descriptor)]
    if gone:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        for descriptor in gone:
            os.dup2(nowhere, descriptor)
        os.close(nowhere)


@contextmanager
def sigterm_exits() -> Iterator[None]:
    """Let SIGTERM and SIGHUP end the block as Ctrl-C does, so that what it has opened is closed; a second is ignored.

    In a thread, which cannot set handlers, nothing changes.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    terminals = _terminals()

    def stop(number: int, frame: FrameType | None) -> None:
        for each in before:
            signal.signal(each, signal.SIG_IGN)
        _silence(terminals)
        raise SystemExit(128 + number)

    before = {number: signal.signal(number, stop) for number in _heard() if number != signal.SIGINT}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class TimeLimit:
    """A time after which a run stops, by this process's clock; it starts here. None: never."""

    def __init__(self, seconds: float | None) -> None:
        self._end = math.inf if seconds is None else time.monotonic() + seconds

    def over(self) -> bool:
        """Whether the time is up."""
        return time.monotonic() >= self._end


def votes(request: int) -> list[float]:
    """What a rank adds to a sum over all ranks: one number per possible request, 1 for its own, if it has one.

    A request is SAVE, a signal of STOPPING that the rank heard, or TIME_UP; 0 is none. The sum counts the ranks that
    have each request, so `strongest` can take the maximum. It travels with sums that the ranks exchange anyway and
    needs no collective of its own.
    """
    return [float(request == number) for number in _REQUESTS]


def strongest(counts: Sequence[float]) -> int:
    """The strongest request of any rank, from the sum of all ranks' `votes`; 0 if none has one."""
    return max((int(number) for number, count in zip(_REQUESTS, counts, strict=True) if count), default=0)
