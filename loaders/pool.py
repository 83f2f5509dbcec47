"""A pool of threads that fill the rows of slots.

    fill(slot, job, draws, ahead) -> batches -> [thread: take a chunk, read ahead, fill rows, settle] -> wait(slot, job)

The consumer wakes one thread, and each thread that takes a chunk wakes another one if there is more to do: the consumer
goes on sooner, and threads do not wait for Python's lock all at once while it launches a step.

What a batch consists of is worked out by the thread that was woken, too: `make` has it call what calls `fill`.

A consumer that would wait for tiny rows fills some itself: to sleep and to be woken takes as long as to copy them.

Each thread records what it is working on, and Python delivers signals only to the main thread: wherever the consumer
is interrupted, `cancel` knows which threads to wait for. If a thread dies, the consumer gets its error and the pool is
no longer usable. A forked process has no threads: the pool is not usable there, and nothing waits for it.
"""

import math
import os
import queue
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from fastimg.loaders.containers.datasets import Dataset
from fastimg.loaders.remote.fetched_files import fetched_files
from fastimg.loaders.runtime.compiling_nothing import compiling_nothing
from fastimg.loaders.runtime.scratch import GROUP, MOST, SMALL, Scratch
from fastimg.loaders.runtime.stopping import Cancelled, cancelled_by
from fastimg.loaders.runtime.times import Tally, named
from fastimg.loaders.runtime.turns import Turns

from .decoder import Decoder, DrawCrops, SampleReader
from .epochs.faults import Faults
from .errors import OVER, DataError, ImageError, WorkerError
from .ring import UNMADE, Slot

_LEAST = 1 << 19  # bytes of the rows of a chunk where they are only copied or resized
_NO_DRAWS = np.empty((0, 0))
_TINY = 1 << 12  # bytes of such a row, of which the consumer fills some instead of waiting: 36 x 36 pixels


class Job:
    """One iteration and its decoder. Once it is cancelled, its remaining rows are dropped.

    `ahead`: samples to be read ahead. Asking for them takes a system call each, so a thread does it, before its next
    chunk: at once if a thread is idle, and otherwise while the batches before are still being filled. `draw` gives the
    numbers of their crops, where these are known. `unmade`: what calls `fill`, of the batches that are to be made.
    """

    __slots__ = (
        "ahead",
        "batches",
        "blanks",
        "cancelled",
        "decoder",
        "draw",
        "failure",
        "group",
        "least",
        "loading",
        "making",
        "tiny",
        "turns",
        "unmade",
    )

    def __init__(
        self,
        decoder: Decoder,
        draw: DrawCrops | None,
        batches: int,
        least: int = 1,
        turns: bool = False,
        tiny: bool = False,
    ) -> None:
        self.batches = batches  # that are filled side by side, while the consumer has another one
        self.turns = Turns(turns)
        self.tiny = tiny  # whether the consumer fills rows, too, while it has no batch
        self.least = least  # rows of a chunk, of batches that have more
        self.group = GROUP  # samples that a thread makes in one call: MOST, if those that were read last are small
        self.draw = draw
        self.ahead: deque[npt.NDArray[np.int64]] = deque()
        self.unmade: deque[tuple[Slot, Callable[[], None]]] = deque()
        self.making = threading.Lock()  # of the thread that makes batches: they are made in order
        self.decoder = decoder
        self.blanks = {field.name: field.blank for field in decoder.fields}
        self.cancelled = False
        self.failure: BaseException | None = None
        self.loading = False  # whether threads load machine code from the cache, which delays what they fill

    def check(self) -> None:
        """Raise RuntimeError if the job is cancelled."""
        if self.cancelled:
            raise RuntimeError(OVER)

    def is_cancelled(self) -> bool:
        """Whether the job is cancelled."""
        return self.cancelled


class _Chunk(NamedTuple):
    slot: Slot
    job: Job
    start: int
    stop: int
    draws: npt.NDArray[np.float64]  # [rows of the chunk, k]

    @property
    def is_empty(self) -> bool:
        """Whether it has no rows, and is there so that a thread makes batches."""
        return self.start == self.stop


class _Rows:
    """The rows of a batch that no thread has taken yet."""

    __slots__ = ("_draws", "_size", "_slot", "_start", "job")

    def __init__(self, slot: Slot, job: Job, draws: npt.NDArray[np.float64], size: int) -> None:
        self.job = job
        self._slot = slot
        self._draws = draws  # [rows, k]
        self._size = size  # rows of a chunk
        self._start = 0

    def __bool__(self) -> bool:
        return self._start < len(self._draws)

    def take(self) -> _Chunk:
        """The next chunk."""
        start, stop = self._start, min(self._start + self._size, len(self._draws))
        self._start = stop
        return _Chunk(self._slot, self.job, start, stop, self._draws[start:stop])


class Pool:
    """The threads. A pool holds no reference to its Loader, so that an unused loader can be garbage-collected."""

    _finalizing = staticmethod(sys.is_finalizing)  # bound here: by then, modules may have lost their names

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
        self._batches: deque[_Rows] = deque()  # of the newest job, each with rows that are left
        self._wakes: queue.SimpleQueue[bool] = queue.SimpleQueue()  # True for a thread to take a chunk, False to end
        # An RLock is entered in C: a signal arrives before or inside the `with` block. Entering a Condition runs Python
        # code, where a signal could arrive in between.
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._job: Job | None = None  # the newest
        self._busy: dict[threading.Thread, Job] = {}  # what threads are working on, the consumer's among them
        self._scratch: Scratch | None = None  # the consumer's
        self._died = False  # whether a thread has died; then no more chunks are taken
        self._death: WorkerError | None = None  # its error, until it is raised
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

    @property
    def in_use(self) -> bool:
        """Whether an iteration is in progress; in a forked process, whether one was when it was forked."""
        return self._job is not None and not self._job.cancelled

    def begin(self, decoder: Decoder, draw: DrawCrops | None = None, batches: int = 1) -> Job:
        """Begin an iteration. One in progress is cancelled: both would fill the same slots.

        `draw` gives the numbers of any samples' crops, where they are known. `batches` are filled side by side.
        """
        if self._job is not None:
            self.cancel(self._job)
        nbytes = sum(field.dtype.itemsize * math.prod(field.shape) for field in decoder.fields)
        turns = decoder.takes_turns and len(self._threads) > 1 and fetched_files(self._dataset) is None
        cuts = decoder.cuts_pixels(self._dataset)
        job = Job(decoder, draw, batches, _LEAST // nbytes if cuts else 1, turns, cuts and nbytes <= _TINY)
        self._job = job
        return job

    def make(self, slot: Slot, job: Job, fill: Callable[[], None]) -> None:
        """Have a thread call `fill`, which calls `Pool.fill` for `slot`: before its next chunk, or at once if it idles.

        Rows that only come from memory are filled here, and now.
        """
        self._check_process()
        if job.decoder.in_memory(self._dataset):
            fill()
            return
        with self._lock:
            job.check()
            slot.pending = UNMADE
            job.unmade.append((slot, fill))
            if len(job.unmade) == 1:  # otherwise a thread has been woken
                self._wakes.put(True)

    def fill(
        self,
        slot: Slot,
        job: Job,
        draws: npt.NDArray[np.float64],
        ahead: Iterable[npt.NDArray[np.int64]] = (),
    ) -> None:
        """Fill the first `len(draws)` rows of `slot`, whose ids, targets and weights are already set.

        The samples `ahead` are requested from the system first, the most urgent ones before the others.
        """
        self._check_process()
        rows = len(draws)
        job.ahead.extend(ahead)
        if rows and job.decoder.in_memory(self._dataset):
            self._fill_here(_Chunk(slot, job, 0, rows, draws))
            return
        size = self._rows_of_chunk(rows, job)
        with self._lock:
            job.check()
            slot.pending = -(-rows // size)
            if not rows:  # the whole batch is padding
                self._on_full(slot)
                self._changed.notify_all()
                return
            self._hand_out(_Rows(slot, job, draws, size))

    def _rows_of_chunk(self, rows: int, job: Job) -> int:
        """How many of a batch's rows a thread fills at a time: fewer where threads would be left without any.

        Batches are filled side by side, so there need not be a chunk of each for every thread, but two of all.
        """
        threads = len(self._threads)
        share = max(-(-rows // threads), job.batches * rows // (2 * threads))
        size = max(rows // (4 * threads), min(job.group, share), 1)
        if job.least > size:
            return max(1, -(-rows // max(1, rows // job.least)))
        return -(-rows // -(-rows // size)) if rows else size  # all alike

    def _hand_out(self, rows: _Rows) -> None:
        """Have threads take rows, behind those that are left of the batches before. The lock is held."""
        self._batches.append(rows)
        if len(self._batches) == 1:  # otherwise a thread has been woken
            self._wakes.put(True)

    def _fill_here(self, chunk: _Chunk) -> None:
        """Fill rows on the consumer's thread: switching to another thread would cost more than it saves."""
        chunk.job.check()
        self._scratch = self._scratch or Scratch()
        failure = self._try_rows(len(self._threads), chunk, self._scratch)
        try:
            if failure is not None:
                raise failure
        finally:
            del failure  # its traceback refers to this frame
        chunk.slot.pending = 0
        self._on_full(chunk.slot)

    def wait(self, slot: Slot, job: Job) -> None:
        """Wait until `slot` is full. Raises the error of a worker that failed."""
        self._check_process()
        while job.tiny and self._fill_instead(slot, job):
            pass
        try:
            with self._lock:
                while slot.pending and job.failure is None and not job.cancelled and not self._died:
                    self._changed.wait()
                failure = job.failure or self._death
                job.failure = None
                self._death = None
        except RuntimeError as error:  # an interrupt just after Condition.wait released the lock
            if isinstance(error.__context__, KeyboardInterrupt):
                raise error.__context__ from None
            raise
        job.check()
        try:
            if failure is not None:
                raise failure
        finally:
            del failure  # its traceback refers to this frame

    def _fill_instead(self, slot: Slot, job: Job) -> bool:
        """Fill the next chunk on the consumer's thread, if `slot` is not full yet. Whether there was one."""
        thread = threading.current_thread()
        self._scratch = self._scratch or Scratch()
        try:
            with self._lock:
                if not slot.pending or job.failure is not None or job.cancelled or self._died:
                    return False
                chunk = self._take(thread, wakes=False)  # a thread that was woken for this one takes the next
            if chunk is None:
                return False
            if chunk.is_empty:
                with job.making:  # while another thread makes batches: this one takes their rows, and need not look
                    pass
            self._fill_chunk(len(self._threads), thread, chunk, self._scratch)
            return True
        finally:
            if self._busy.pop(thread, None) is not None:  # after an interrupt
                with self._lock:
                    self._changed.notify_all()

    def cancel(self, job: Job) -> bool:
        """Drop the rest of `job`, and wait until no other thread uses its slots. Returns whether it is the newest job.

        One of the pool's own threads may call this: the garbage collector closes an abandoned iteration, or ends the
        pool, in whichever thread it runs.
        """
        if self._finalizing() or self._process != os.getpid():
            return False
        with self._lock:
            job.cancelled = True
            job.unmade.clear()  # which refers to the loader, as an error's traceback may
            job.failure = None
            if job is self._job:
                self._batches.clear()
            self._changed.notify_all()
            while self._has_elsewhere(job):
                self._changed.wait()
            return job is self._job

    def _has_elsewhere(self, job: Job) -> bool:
        """Whether a thread other than the one that asks works on `job`."""
        mine = threading.current_thread()
        return any(busy is job and thread is not mine for thread, busy in list(self._busy.items()))

    def stop(self) -> None:
        """End the threads."""
        if self._process != os.getpid():  # the threads and the lock belong to another process
            return
        with self._lock:
            if self._job is not None:
                self._job.cancelled = True
            self._batches.clear()
            self._changed.notify_all()
            for _ in self._threads:
                self._wakes.put(False)
        if threading.current_thread() in self._threads:  # which may hold what the others wait for
            return
        for thread in self._threads:
            if thread.ident is not None:
                thread.join()
        with self._lock:
            while self._job is not None and self._has_elsewhere(self._job):  # a consumer that fills rows
                self._changed.wait()

    def _check_process(self) -> None:
        if self._process != os.getpid():
            raise RuntimeError("this iteration began before the process was forked; create the loader in this process")

    def _work(self, number: int) -> None:
        try:
            scratch = Scratch()
            thread = self._threads[number]
            while self._wakes.get():
                chunk = self._take(thread)
                if chunk is not None:
                    self._fill_chunk(number, thread, chunk, scratch)
                del chunk  # or a waiting thread would keep the last iteration
        except BaseException as error:  # noqa: BLE001 - not caused by a sample: raised in the consumer
            self._die(self._threads[number], error)

    def _take(self, thread: threading.Thread, wakes: bool = True) -> _Chunk | None:
        """The next chunk of the first batch that has one, if any. For what is left, another thread is woken."""
        with self._lock:
            if not self._batches:
                return self._take_making(thread)
            if self._batches[0].job.cancelled:
                return None
            rows = self._batches[0]
            chunk = rows.take()
            if not rows:
                self._batches.popleft()
            if self._batches and wakes:
                self._wakes.put(True)
            self._busy[thread] = rows.job
            return chunk

    def _take_making(self, thread: threading.Thread) -> _Chunk | None:
        """A chunk without rows, if batches are to be made. The lock is held."""
        job = self._job
        if job is None or job.cancelled:
            return None
        try:
            slot, _ = job.unmade[0]
        except IndexError:  # there are none, or another thread was faster
            return None
        self._busy[thread] = job
        return _Chunk(slot, job, 0, 0, _NO_DRAWS)

    def _fill_chunk(self, number: int, thread: threading.Thread, chunk: _Chunk, scratch: Scratch) -> None:
        """Fill the rows of a chunk that was taken."""
        with compiling_nothing(chunk.job.decoder.scales_tiled, chunk.job.loading):
            failure = self._try_rows(number, chunk, scratch)
        self._settle(thread, chunk, failure)
        del failure  # its traceback, which gets the consumer's frames, refers to this one

    def _settle(self, thread: threading.Thread, chunk: _Chunk, failure: BaseException | None) -> None:
        slot = chunk.slot
        job = chunk.job
        with self._lock:
            slot.pending -= not chunk.is_empty
            if failure is not None and job.failure is None and not job.cancelled:
                job.failure = failure
            if slot.pending == 0 and not chunk.is_empty and job.failure is None and not job.cancelled:
                self._on_full(slot)
            del self._busy[thread]
            if failure is not None or slot.pending == 0 or job.cancelled:
                self._changed.notify_all()

    def _die(self, thread: threading.Thread, error: BaseException) -> None:
        """Record that this thread ends, and notify the waiters."""
        death = WorkerError(f"a loader thread died: {error!r}")
        death.__cause__ = error
        with self._lock:
            self._busy.pop(thread, None)
            self._died = True
            self._death = death
            self._changed.notify_all()

    def _try_rows(self, number: int, chunk: _Chunk, scratch: Scratch) -> BaseException | None:
        began = time.perf_counter()
        try:
            with named("fill rows"):
                self._fill_rows(number, chunk, scratch)
        except BaseException as error:  # noqa: BLE001 - every error is passed on to the consumer
            return error
        finally:
            self._tally.busy[number] += time.perf_counter() - began
        return None

    def _make_batches(self, job: Job) -> None:
        """Make the batches that are to be made, unless another thread is at it, which then makes these, too."""
        while job.unmade and not job.cancelled and job.making.acquire(blocking=False):
            try:
                if job.unmade:
                    _, fill = job.unmade.popleft()
                    fill()
            finally:
                job.making.release()

    def _read_ahead(self, job: Job) -> None:
        while job.ahead and not job.cancelled:
            try:
                ids = job.ahead.popleft()
            except IndexError:  # another thread was faster
                return
            job.decoder.read_ahead(self._dataset, ids, job.draw)

    def _fill_rows(self, number: int, chunk: _Chunk, scratch: Scratch) -> None:
        slot = chunk.slot
        job = chunk.job
        self._make_batches(job)
        if chunk.is_empty:
            return
        self._read_ahead(job)
        rows = {name: slot.arrays[name][chunk.start : chunk.stop] for name in job.blanks}
        ids = slot.arrays["ids"][chunk.start : chunk.stop].tolist()
        reader = SampleReader(self._dataset, job.is_cancelled)
        try:
            with job.turns.turn(job.is_cancelled) as in_turn, cancelled_by(job.is_cancelled):
                failures = job.decoder.fill(reader, ids, chunk.draws, rows, scratch)
        except Cancelled:
            return
        finally:
            self._tally.read[number] += reader.seconds
        job.turns.count(reader.reads, reader.nbytes, reader.seconds, in_turn)
        if reader.grouped:
            job.group = MOST if 0 < reader.grouped_bytes < reader.grouped * SMALL else GROUP
        for place, error in failures:
            self._blame(chunk, place, ids[place], error)

    def _blame(self, chunk: _Chunk, place: int, index: int, error: Exception) -> None:
        """Give a sample that cannot be decoded the weight 0; raise any other error."""
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
