"""Where the time of training goes: waiting for data, copying it, computing; and what the loader's threads do.

    begin() ... add(samples) per batch ... read() -> TrainingTime per progress line; overall(records) -> the whole run
    read_between() -> what was fetched by a validation

Always on: it only sums the seconds that the loader counts (`BatchSource.spent`), and reads the clock once per line.
"""

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from fastimg.loaders.runtime.times import LoaderTimes

SETTLED = 2.0  # seconds: a verdict on less may be chance
BATCHES = 5  # likewise
STARTS = 3  # epochs after the first whose start was seen: a verdict on fewer may be chance
LONG = 20.0  # seconds of these epochs: a shorter run gains nothing by knowing why it started slowly
_FILLING = 2  # batches at the start of an epoch, when the loader has nothing ready yet


@dataclass(frozen=True)
class TrainingTime:
    """A stretch of training, in seconds. None: the loader does not measure it.

    Waiting and computing add up to the total. Copies to a GPU run in parallel to both, on their own stream. Computing
    is everything but waiting: augmentation, the step, arrays read from memory, a checkpoint in the middle of an epoch.
    """

    seconds: float = 0.0
    samples: int = 0
    wait: float = 0.0
    copy: float | None = 0.0
    read: float | None = 0.0  # summed over the loader's threads
    busy: float | None = 0.0  # summed over the loader's threads
    threads: float = 0.0  # seconds x threads
    batches: int = 0
    network: float | None = None  # of reading, waiting for an object store, summed over threads; None: none is read
    fetched: int | None = None  # bytes from the store, by this process, since the record before
    again: int | None = None  # of these, bytes of shards that were deleted before they were done with
    drained: int | None = None  # batches in whose backward pass the GPU caught up with the host; None on a CPU

    def __add__(self, other: "TrainingTime") -> "TrainingTime":
        return TrainingTime(
            self.seconds + other.seconds,
            self.samples + other.samples,
            self.wait + other.wait,
            _sum(self.copy, other.copy),
            _sum(self.read, other.read),
            _sum(self.busy, other.busy),
            self.threads + other.threads,
            self.batches + other.batches,
            other.network if self.network is None else self.network + (other.network or 0.0),
            other.fetched if self.fetched is None else self.fetched + (other.fetched or 0),
            other.again if self.again is None else self.again + (other.again or 0),
            other.drained if self.drained is None else self.drained + (other.drained or 0),
        )

    @property
    def speed(self) -> float:
        """Samples per second."""
        return self.samples / max(self.seconds, 1e-9)

    @property
    def wait_share(self) -> float:
        """Share of the time without a batch to compute on."""
        return _share(self.wait, self.seconds)

    @property
    def copy_share(self) -> float | None:
        """Share of the time with a copy to the device under way."""
        return None if self.copy is None else _share(self.copy, self.seconds)

    @property
    def compute_share(self) -> float:
        """Share of the time that is not waiting."""
        return 1.0 - self.wait_share

    @property
    def busy_share(self) -> float | None:
        """Share of the loader threads' time in which they worked."""
        return None if self.busy is None else _share(self.busy, self.threads)

    @property
    def read_share(self) -> float | None:
        """Share of the loader threads' time in which they read."""
        return None if self.read is None else _share(self.read, self.threads)

    @property
    def network_share(self) -> float | None:
        """Share of the loader threads' time in which they waited for an object store."""
        return None if self.network is None else _share(self.network, self.threads)

    @property
    def drained_share(self) -> float | None:
        """Share of the batches in whose backward pass the GPU had nothing left to do: it waited for the host."""
        return None if self.drained is None else _share(self.drained, self.batches)

    def record(self) -> dict[str, float]:
        """For metrics.jsonl: its length and the shares that are known."""
        values = {
            "seconds": self.seconds,
            "wait_share": self.wait_share,
            "copy_share": self.copy_share,
            "compute_share": self.compute_share,
            "loader_busy_share": self.busy_share,
            "loader_read_share": self.read_share,
            "loader_network_share": self.network_share,
            "drained_share": self.drained_share,
        }
        return {name: round(value, 4) for name, value in values.items() if value is not None} | self.counts()

    def counts(self) -> dict[str, int]:
        """For metrics.jsonl: what was fetched from an object store; empty where nothing is read from one."""
        counts = {"fetched_bytes": self.fetched, "fetched_again_bytes": self.again}
        return {name: value for name, value in counts.items() if value is not None}


def overall(records: Iterable[Mapping[str, Any]]) -> TrainingTime:
    """The sum of "train" records of a run's metrics.jsonl, including those from before a --resume.

    It counts one thread and no samples. Of "epoch" records it has what was fetched.
    """
    total = TrainingTime()
    for record in records:
        fetched, again = record.get("fetched_bytes"), record.get("fetched_again_bytes")
        if "seconds" not in record:  # of a validation, or an older version wrote it
            total += TrainingTime(fetched=fetched, again=again)
            continue
        seconds = record["seconds"]
        wait = record["wait_share"]
        copy, busy, read = (
            record[name] * seconds if name in record else None
            for name in ("copy_share", "loader_busy_share", "loader_read_share")
        )
        network = record["loader_network_share"] * seconds if "loader_network_share" in record else None
        total += TrainingTime(seconds, 0, wait * seconds, copy, read, busy, seconds, 0, network, fetched, again)
    return total


class _Mark(NamedTuple):
    at: float
    samples: int
    batches: int
    spent: LoaderTimes
    drained: int | None


class Account:
    """Counts a training run, window by window. `spent` and `workers` are the loader's.

    `steady` leaves out the first batches of each epoch, which no loader has ready. `starting` has those of all epochs
    but the first, in which code is compiled and files are read for the first time; `starts` counts these epochs.
    """

    def __init__(
        self, spent: Callable[[], LoaderTimes], workers: int, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self.steady = self.starting = TrainingTime()
        self.starts = self._epochs = 0
        self._spent = spent
        self._workers = workers
        self._clock = clock
        self._samples = self._batches = self._filling = 0
        self._drained: int | None = None
        self._last = self._since = self._mark()  # where the window started, and where its steady part did
        self._unseen = TrainingTime()  # steady time that `evidence` has not returned yet
        self._told: LoaderTimes | None = None  # what the last record has counted of bytes: none are discarded

    def begin(self) -> None:
        """An epoch starts or continues here. Discards the time since the last window."""
        self._filling = _FILLING
        self._epochs += 1
        self.skip()

    def skip(self) -> None:
        """Discard the time since the last window, and start a new one."""
        self._last = self._since = self._mark()

    def add(self, samples: int, drained: bool | None = None) -> None:
        """Count a batch that was trained on. `drained`: see `Backlog`."""
        self._samples += samples
        if drained is not None:
            self._drained = (self._drained or 0) + drained
        self._batches += 1
        if self._filling:
            self._filling -= 1
            now = self._mark()
            if self._epochs > 1:
                self.starting += self._between(self._since, now)
                self.starts += self._filling == _FILLING - 1
            self._since = now

    def read(self) -> TrainingTime:
        """The time since the last window."""
        now = self._mark()
        window = self._between(self._last, now)
        if not self._filling:
            steady = self._between(self._since, now)
            self.steady = self.steady + steady
            self._unseen = self._unseen + steady
        self._last = self._since = now
        told = self._tell(now.spent)
        return replace(window, fetched=told.fetched, again=told.again)

    def peek(self) -> TrainingTime:
        """The steady time since the last window, which goes on: for what is shown between two lines."""
        return self._between(self._since, self._mark())

    def read_between(self) -> TrainingTime:
        """The bytes since the last window, and no time: of a validation, which is no training."""
        return self._tell(self._spent())

    def _tell(self, spent: LoaderTimes) -> TrainingTime:
        told, self._told = self._told or LoaderTimes(0.0, None, None, None), spent
        return TrainingTime(fetched=_more(spent.fetched, told.fetched), again=_more(spent.again, told.again))

    def evidence(self) -> TrainingTime | None:
        """The steady time since the last call, once it is long enough to judge by; None until then."""
        if not settled(self._unseen):
            return None
        unseen = self._unseen
        self._unseen = TrainingTime()
        return unseen

    def _mark(self) -> _Mark:
        return _Mark(self._clock(), self._samples, self._batches, self._spent(), self._drained)

    def _between(self, before: _Mark, now: _Mark) -> TrainingTime:
        seconds = now.at - before.at
        then = before.spent
        spent = now.spent
        return TrainingTime(
            seconds,
            now.samples - before.samples,
            spent.wait - then.wait,
            _difference(spent.copy, then.copy),
            _difference(spent.read, then.read),
            _difference(spent.busy, then.busy),
            seconds * self._workers,
            now.batches - before.batches,
            _difference(spent.network, then.network),
            drained=_more(now.drained, before.drained),
        )


def settled(window: TrainingTime) -> bool:
    """Whether a window of steady time is long enough to judge by."""
    return window.seconds >= SETTLED and window.batches >= BATCHES


def _share(part: float, whole: float) -> float:
    return min(1.0, part / max(whole, 1e-9))


def _sum(one: float | None, other: float | None) -> float | None:
    return None if one is None or other is None else one + other


def _difference(now: float | None, then: float | None) -> float | None:
    return None if now is None or then is None else now - then


def _more(now: int | None, then: int | None) -> int | None:
    return None if now is None else now - (then or 0)
