"""Threads that fill the rows of slots.

    fill(slot, job, draws) -> queue of chunks -> [thread: take, fill rows, settle] -> wait(slot, job)

Only a thread itself records what it works on, and threads receive no signals: wherever the consumer is interrupted,
`cancel` knows which threads to wait for. A thread that dies ends the run with its error, and the pool with it. A forked
process has no threads: the pool is not usable there, and nothing waits for it.
"""

import os
import queue
import threading
import time
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from fastimg.loaders.containers.datasets import Dataset
from fastimg.loaders.runtime.scratch import GROUP, Scratch
from fastimg.loaders.runtime.times import Tally

from .decoder import Cancelled, Decoder, SampleReader
from .epochs import Faults
from .errors import DataError, ImageError, WorkerError
from .ring import Slot


class Job:
    """One iteration and its decoder. Once it is cancelled, its rows are dropped."""

    __slots__ = ("blanks", "cancelled", "decoder", "failure")

    def __init__(self, decoder: Decoder) -> None:
        self.decoder = decoder
        self.blanks = {field.name: field.blank for field in decoder.fields}
        self.cancelled = False
        self.failure: BaseException | None = None

    def check(self) -> None:
        """Raises RuntimeError if it is cancelled."""
        if self.cancelled:
            raise RuntimeError("this iteration is over: the loader was closed, or iterated again")

    def is_cancelled(self) -> bool:
        """Whether its rows are dropped."""
        return self.cancelled


class _Chunk(NamedTuple):
    slot: Slot
    job: Job
    start: int
    stop: int
    draws: npt.NDArray[np.float64]  # [rows of the chunk, k]


class Pool:
    """It has no reference to the Loader, so that an unused loader can be garbage-collected."""

    def __init__(
        self,
        dataset: Dataset,
        faults: Faults,
        workers: int,
        on_full: Callable[[Slot], None],
        tally: Tally,
    ) -> None:
        self._dataset = dataset
        self._faults = faults
        self._on_full = on_full
        self._tally = tally
        self._queue: queue.SimpleQueue[_Chunk | None] = queue.SimpleQueue()
        # An RLock is entered in C: a signal arrives before or inside the block, never in between as with a Condition.
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._job: Job | None = None  # the newest
        self._busy: dict[int, Job] = {}  # number of a thread -> what it works on
        self._scratch: Scratch | None = None  # of the consumer
        self._died = False  # a thread did; no more chunks are taken
        self._loss: WorkerError | None = None  # why, until it is raised
        self._process = os.getpid()
        self._threads = [
            threading.Thread(target=self._work, args=(i,), name=f"fastimg-loader-{i}", daemon=True)
            for i in range(workers)
        ]
        try:
            for thread in self._threads:
                thread.start()
        except BaseException:  # no more threads available, or an interrupt
            self.stop()
            raise

    @property
    def usable(self) -> bool:
        """Whether its threads are alive."""
        return not self._died and self._process == os.getpid()

    def begin(self, decoder: Decoder) -> Job:
        """Begin an iteration. One in progress is cancelled: both would fill the same slots."""
        if self._job is not None:
            self.cancel(self._job)
        self._job = job = Job(decoder)
        return job

    def fill(self, slot: Slot, job: Job, draws: npt.NDArray[np.float64]) -> None:
        """Fill the first `len(draws)` rows of `slot`, whose ids, targets and weights are already set."""
        self._check_process()
        rows = len(draws)
        if rows and job.decoder.in_memory(self._dataset):
            self._fill_here(_Chunk(slot, job, 0, rows, draws))
            return
        size = max(rows // (4 * len(self._threads)), min(GROUP, -(-rows // len(self._threads))), 1)
        chunks = [_Chunk(slot, job, i, min(i + size, rows), draws[i : i + size]) for i in range(0, rows, size)]
        with self._lock:
            job.check()
            slot.pending = len(chunks)
            for chunk in chunks:
                self._queue.put(chunk)
            if not chunks:  # all of it is padding
                self._on_full(slot)

    def _fill_here(self, chunk: _Chunk) -> None:
        """Fill rows on the consumer's thread: switching to another thread would cost more than it saves."""
        chunk.job.check()
        self._scratch = self._scratch or Scratch()
        chunk.job.failure = self._try_rows(0, chunk, self._scratch)
        if chunk.job.failure is None:
            self._on_full(chunk.slot)

    def wait(self, slot: Slot, job: Job) -> None:
        """Return when `slot` is full. Raises what a worker raised."""
        self._check_process()
        try:
            with self._lock:
                while slot.pending and job.failure is None and not job.cancelled and not self._died:
                    self._changed.wait()
                failure = job.failure or self._loss
                job.failure = self._loss = None
        except RuntimeError as error:  # an interrupt just after Condition.wait released the lock
            if isinstance(error.__context__, KeyboardInterrupt):
                raise error.__context__ from None
            raise
        job.check()
        try:
            if failure is not None:
                raise failure
        finally:
            del failure  # its traceback holds this frame

    def cancel(self, job: Job) -> bool:
        """Drop the rest of `job`; return, once no thread touches its slots, whether it was the newest."""
        if self._process != os.getpid():
            return False
        with self._lock:
            job.cancelled = True
            self._changed.notify_all()
            while job in self._busy.values():
                self._changed.wait()
            return job is self._job

    def stop(self) -> None:
        """End the threads."""
        if self._process != os.getpid():  # the threads and the lock belong to another process
            return
        with self._lock:
            if self._job is not None:
                self._job.cancelled = True
            self._changed.notify_all()
            for _ in self._threads:
                self._queue.put(None)
        for thread in self._threads:
            if thread.ident is not None and thread is not threading.current_thread():
                thread.join()

    def _check_process(self) -> None:
        if self._process != os.getpid():
            raise RuntimeError("this iteration began before the process was forked; iterate again")

    def _work(self, number: int) -> None:
        try:
            scratch = Scratch()
            while (chunk := self._queue.get()) is not None:
                if self._take(number, chunk.job):
                    self._settle(number, chunk, self._try_rows(number, chunk, scratch))
                del chunk  # a waiting thread keeps nothing of the last iteration alive
        except BaseException as error:  # noqa: BLE001 - not the fault of a sample: raised in the consumer
            self._lose(number, error)

    def _take(self, number: int, job: Job) -> bool:
        with self._lock:
            if not job.cancelled:
                self._busy[number] = job
            return not job.cancelled

    def _settle(self, number: int, chunk: _Chunk, failure: BaseException | None) -> None:
        slot = chunk.slot
        job = chunk.job
        with self._lock:
            slot.pending -= 1
            if failure is not None and job.failure is None:
                job.failure = failure
            if slot.pending == 0 and job.failure is None and not job.cancelled:
                self._on_full(slot)
            del self._busy[number]
            if failure is not None or slot.pending == 0 or job.cancelled:
                self._changed.notify_all()

    def _lose(self, number: int, error: BaseException) -> None:
        """This thread ends: notify the waiters."""
        loss = WorkerError(f"a loader thread died: {error!r}")
        loss.__cause__ = error
        with self._lock:
            self._busy.pop(number, None)
            self._died = True
            self._loss = loss
            self._changed.notify_all()

    def _try_rows(self, number: int, chunk: _Chunk, scratch: Scratch) -> BaseException | None:
        began = time.perf_counter()
        try:
            self._fill_rows(number, chunk, scratch)
        except BaseException as error:  # noqa: BLE001 - every error is handed to the consumer
            return error
        finally:
            self._tally.busy[number] += time.perf_counter() - began
        return None

    def _fill_rows(self, number: int, chunk: _Chunk, scratch: Scratch) -> None:
        slot = chunk.slot
        job = chunk.job
        rows = {name: slot.arrays[name][chunk.start : chunk.stop] for name in job.blanks}
        ids = slot.arrays["ids"][chunk.start : chunk.stop].tolist()
        reader = SampleReader(self._dataset, job.is_cancelled)
        try:
            failures = job.decoder.fill(reader, ids, chunk.draws, rows, scratch)
        except Cancelled:
            return
        finally:
            self._tally.read[number] += reader.seconds
        for place, error in failures:
            self._blame(chunk, place, ids[place], error)

    def _blame(self, chunk: _Chunk, place: int, index: int, error: Exception) -> None:
        """A sample that cannot be decoded gets weight 0; any other error ends the run."""
        if isinstance(error, ImageError):
            self._faults.add(index, str(error), error)
            row = chunk.start + place
            chunk.slot.arrays["weight"][row] = 0
            for name, blank in chunk.job.blanks.items():
                chunk.slot.arrays[name][row] = blank
            return
        if isinstance(error, DataError):
            raise error
        raise WorkerError(f"a loader thread failed on {self._dataset.sample_name(index)}: {error!r}") from error
