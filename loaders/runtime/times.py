"""Where a loader's time goes: seconds, counted while it runs, at a negligible cost.

Each thread reads the clock twice per sample and twice per chunk, and adds to its own counters. On a GPU, pairs of
events are recorded around every 17th copy and wait, and read once they are complete: they count for the 16 before them,
too. None of this blocks (`benchmarks/accounting.py` measures the cost).
"""

import time
from collections import deque
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch
import torch.autograd.profiler as profiler

_NOTHING = nullcontext()
_EVERY = 17  # no power of two: what comes back every 4 or 16 batches is met at each of its places in turn
_LONG = 0.001  # seconds: a host that waits longer has time to record events


def named(what: str) -> AbstractContextManager[object]:
    """A context whose time torch's profilers, and NVTX, show under the name `fastimg: WHAT`; free where none runs."""
    return profiler.record_function(f"fastimg: {what}") if profiler._is_profiler_enabled else _NOTHING


@dataclass(frozen=True)
class LoaderTimes:
    """Seconds since the loader was created. None for times that are not measured."""

    wait: float  # the consumer had no batch: on a CPU its thread waited, on a GPU its stream was idle (see `Waits`)
    copy: float | None  # copies to the device, from every 17th; they overlap with waiting and computing
    read: float | None  # in `Dataset.read`, summed over threads
    busy: float | None  # filling rows, reading included, summed over threads
    network: float | None = None  # of reading, waiting for shards of an object store, summed over threads
    fetched: int | None = None  # bytes that this process has fetched from it
    again: int | None = None  # of these, bytes of shards that it had fetched before


class Tally:
    """Seconds per thread, and last of the consumer. Each writes only its own entries, so no lock is needed."""

    def __init__(self, threads: int) -> None:
        self.read = [0.0] * (threads + 1)
        self.busy = [0.0] * (threads + 1)


class Spans:
    """Seconds between pairs of events on CUDA streams, from a sample of them. One thread begins, ends and settles them.

    The first span and then every 17th is timed, and counts for the spans since the one before, too: up to 16 are not
    counted yet. `every` is told to time each one for as long as spans differ much.
    """

    def __init__(self) -> None:
        self.seconds = 0.0  # of all settled spans, and of those that they stand for
        self.every = False
        self._number = 0  # of spans that have ended
        self._left_out = 0  # of them, since the one that was timed last
        self._under_way: deque[tuple[torch.cuda.Event, torch.cuda.Event, int]] = deque()
        self._began: torch.cuda.Event | None = None  # of the span that has begun, if it is timed
        self._open = False
        self._free: list[torch.cuda.Event] = []

    def begin(self, stream: torch.cuda.Stream) -> bool:
        """Begin a span on `stream`, and say whether it is timed. A span that is never ended does not count."""
        self._open = True
        if self._began is None and (self.every or self._number % _EVERY == 0):
            self._began = self._free.pop() if self._free else _event()
        if self._began is not None:
            self._began.record(stream)
        return self._began is not None

    def end(self, stream: torch.cuda.Stream, alone: bool = False) -> None:
        """End the span on `stream`. One that is `alone` stands for no other, and no other for it."""
        if not self._open:
            return
        self._open = False
        self._number += 1
        if self._began is None:
            self._left_out += not alone
            return
        ended = self._free.pop() if self._free else _event()
        ended.record(stream)
        count = 1 if alone else 1 + self._left_out
        self._left_out -= count - 1
        self._under_way.append((self._began, ended, count))
        self._began = None
        self.settle()

    def settle(self) -> None:
        """Add up the spans that the device has completed, without waiting for it."""
        while self._under_way and self._under_way[0][1].query():  # type: ignore[no-untyped-call]
            began, ended, count = self._under_way.popleft()
            self.seconds += count * began.elapsed_time(ended) / 1000
            self._free += (began, ended)


def _event(timing: bool = True) -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=timing)  # type: ignore[no-untyped-call]


class Backlog:
    """Whether a GPU still has work while the host launches more: if not, it waits for the host, kernel after kernel.

    Costs two calls of a few microseconds a step, and never waits.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._event = _event(timing=False) if device.type == "cuda" else None

    def mark(self) -> None:
        """The host has enqueued some work, and goes on to enqueue more."""
        if self._event is not None:
            self._event.record(torch.cuda.current_stream(self._device))

    def drained(self) -> bool | None:
        """Whether the device has done all that was enqueued before `mark`; None on a CPU."""
        return None if self._event is None else bool(self._event.query())  # type: ignore[no-untyped-call]


class Waits:
    """How long a consumer waits for batches; it calls `begin` and `end`.

    On a GPU the host runs ahead: while its thread waits for the next batch, the device may still be computing. There
    the wait is the time from the end of all earlier work on the stream until the batch is ready. While the host finds
    batches ready, it is measured for every 17th. A wait of the host's of a millisecond or more counts for itself only:
    by the stream's time from the second in a row on, by the host's where the stream's was not measured.
    """

    def __init__(self, device: torch.device) -> None:
        self.host = 0.0  # seconds that the host's thread waited
        self._device = device
        self._began = 0.0
        self._spans = Spans() if device.type == "cuda" else None
        self._timed = False
        self._by_host = 0.0  # seconds of long waits during which the stream was not timed
        self._named = named("wait for a batch")

    def begin(self) -> None:
        """The consumer has enqueued its work and requests a batch."""
        self._named = named("wait for a batch")
        self._named.__enter__()
        if self._spans is not None:
            self._timed = self._spans.begin(torch.cuda.current_stream(self._device))
        self._began = time.perf_counter()

    def end(self) -> None:
        """The batch is handed out; work that is enqueued from now on may read it."""
        waited = time.perf_counter() - self._began
        self.host += waited
        self._named.__exit__(None, None, None)
        if self._spans is not None:
            long = waited >= _LONG
            self._spans.end(torch.cuda.current_stream(self._device), alone=long)
            self._spans.every = long
            self._by_host += waited if long and not self._timed else 0.0

    @property
    def seconds(self) -> float:
        """Seconds without work because data was missing. On a GPU the last few batches may not be included yet."""
        if self._spans is None:
            return self.host
        self._spans.settle()
        return self._spans.seconds + self._by_host
