"""The native loader: threads that fill rows of preallocated slots, one copy per batch.

    Epochs -> this rank's ids of a batch -> chunks of rows -> [worker: read, decode, crop, resize] -> slot -> Batch

A worker that fails ends the run with its own error; a consumer that stops early leaves nothing running behind.
"""

import queue
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from .batch import Batch
from .cpus import available_cpus
from .epochs import Epochs, Faults, LoaderConfig, Reading
from .errors import DataError, ImageError, WorkerError
from .ring import CudaRing, HostRing, Layout, Ring, RingDecoder, Slot
from .sample import LABEL_FIELDS, Decoder, Row
from .scratch import Scratch
from .shards import Dataset


class Loader(Epochs):
    """Iterate over a dataset: each `for batch in loader` is one epoch of `len(loader)` batches.

    `indices` restricts it to a part of the dataset. Raises DataError for data that cannot be used, WorkerError for a
    fault in the loader itself. `state_dict()` after a batch, given to `load_state_dict` of a loader over the same data
    with any number of workers or ranks, goes on with the sample after it.
    """

    def __init__(
        self,
        dataset: Dataset,
        decoder: Decoder | RingDecoder,
        config: LoaderConfig,
        device: torch.device | str = "cpu",
        indices: npt.NDArray[np.int64] | None = None,
    ) -> None:
        super().__init__(dataset, config, indices, config.workers or available_cpus())
        self.device = torch.device(device)
        if self.device.type not in ("cpu", "cuda"):
            raise ValueError(f"device {self.device}: the loader feeds cpu and cuda")
        self._decoder = decoder
        layout = Layout((*decoder.fields, *LABEL_FIELDS), config.batch_size)
        self._ring = _ring(decoder, layout, self.device)
        pinned = self.device.type == "cuda"
        self._slots = [Slot(layout, pinned) for _ in range(config.prefetch)]
        self.slot_bytes = layout.nbytes
        self._pool: _Pool | None = None
        self._stop: Callable[[], object] = lambda: None

    def __iter__(self) -> Iterator[Batch]:
        reading = self.begin()
        pool = self._pool = self._pool or self._start()
        job = pool.begin()
        self._ring.release()  # the iteration before this one may have been left in the middle
        try:
            for step in range(min(len(self._slots), reading.steps)):
                self._dispatch(pool, job, reading, step)
            for step in range(reading.steps):
                slot = self._slots[step % len(self._slots)]
                began = time.perf_counter()
                pool.wait(slot, job)
                tensors = self._ring.hand_over(slot)
                self.wait_seconds += time.perf_counter() - began
                self._collect(slot)
                self.passed(reading, step)
                yield Batch(
                    inputs=tensors["inputs"].permute(0, 3, 1, 2),
                    targets=tensors["targets"],
                    ids=torch.from_numpy(slot.arrays["ids"].copy()),
                    weight=tensors["weight"],
                    samples=int(slot.arrays["weight"].sum()),
                )
                job.check()  # before this writes to slots that are another iteration's by now
                self._ring.reclaim()
                if step + len(self._slots) < reading.steps:
                    self._dispatch(pool, job, reading, step + len(self._slots))
        finally:
            if pool.cancel(job):  # else another iteration has the slots by now
                self._ring.release()

    def _collect(self, slot: Slot) -> None:
        """What the ring says about single rows."""
        ids = slot.arrays["ids"]
        for row, reason in slot.failed.items():
            self.faults.add(int(ids[row]), reason)
        for row, reason in slot.rerouted.items():
            self.rerouted[int(ids[row])] = reason

    def describe(self) -> str:
        """See `BatchSource`."""
        return f"native, {self.workers} threads"

    def close(self) -> None:
        """Stop the threads, and the iteration that is under way. Iterating again starts new ones."""
        self._pool = None
        self._stop()

    def _start(self) -> "_Pool":
        pool = _Pool(self.dataset, self._decoder, self.faults, self.workers, self._ring.begin)
        self._stop = weakref.finalize(self, _end, pool, self._ring)
        return pool

    def _dispatch(self, pool: "_Pool", job: "_Job", reading: Reading, step: int) -> None:
        slot = self._slots[step % len(self._slots)]
        ids, weight, decoded = reading.rows(step)
        slot.arrays["ids"][:] = ids
        slot.arrays["targets"][:] = self.dataset.labels[ids]
        slot.arrays["weight"][:] = weight
        slot.failed.clear()
        slot.rerouted.clear()
        slot.carried[decoded:] = [None] * (len(ids) - decoded)
        for field in self._decoder.fields:
            slot.arrays[field.name][decoded:] = 0
        for soon in reading.soon(step):
            self.dataset.will_need(soon)
        pool.fill(slot, job, self._decoder.draw(self.config.seed, reading.epoch, ids)[:decoded])


def _ring(decoder: Decoder | RingDecoder, layout: Layout, device: torch.device) -> Ring:
    """The decoder's own ring where it has one, else the one that copies slots as they are."""
    if isinstance(decoder, RingDecoder):
        return decoder.ring(layout, device)
    return CudaRing(layout, device) if device.type == "cuda" else HostRing(layout)


def _end(pool: "_Pool", ring: Ring) -> None:
    pool.stop()
    ring.release()


class _Job:
    """One iteration: its rows are dropped once it is cancelled."""

    __slots__ = ("cancelled", "failure", "outstanding")

    def __init__(self) -> None:
        self.cancelled = False
        self.failure: BaseException | None = None
        self.outstanding = 0

    def check(self) -> None:
        if self.cancelled:
            raise RuntimeError("this iteration is over: the loader was closed, or iterated anew")


class _Chunk(NamedTuple):
    slot: Slot
    job: _Job
    start: int
    stop: int
    draws: npt.NDArray[np.float64]  # [rows of the chunk, k]


class _Pool:
    """Threads that fill rows. It knows nothing of the Loader, so that a forgotten loader can be collected."""

    def __init__(
        self,
        dataset: Dataset,
        decoder: Decoder | RingDecoder,
        faults: Faults,
        workers: int,
        on_full: Callable[[Slot], None],
    ) -> None:
        self._dataset, self._faults, self._on_full = dataset, faults, on_full
        self._fields = [field.name for field in decoder.fields]
        self._fill: Callable[[memoryview, Sequence[float], Row, Scratch], object] = decoder.fill
        self._queue: queue.SimpleQueue[_Chunk | None] = queue.SimpleQueue()
        self._changed = threading.Condition()
        self._job = _Job()
        self._threads = [
            threading.Thread(target=self._work, name=f"fastimg-loader-{i}", daemon=True) for i in range(workers)
        ]
        for thread in self._threads:
            thread.start()

    def begin(self) -> _Job:
        """A new iteration. One that is still under way ends: both would fill the same slots."""
        self.cancel(self._job)
        self._job = _Job()
        return self._job

    def fill(self, slot: Slot, job: _Job, draws: npt.NDArray[np.float64]) -> None:
        """Fill the first `len(draws)` rows of `slot`, whose ids, targets and weights stand already."""
        rows = len(draws)
        size = max(1, rows // (4 * len(self._threads)))
        chunks = [_Chunk(slot, job, i, min(i + size, rows), draws[i : i + size]) for i in range(0, rows, size)]
        with self._changed:
            job.check()
            slot.pending = len(chunks)
            job.outstanding += len(chunks)
            for chunk in chunks:
                self._queue.put(chunk)
            if not chunks:  # all of it is padding
                self._on_full(slot)

    def wait(self, slot: Slot, job: _Job) -> None:
        """Return when `slot` is full. Raises what a worker raised."""
        with self._changed:
            while slot.pending and job.failure is None and not job.cancelled:
                self._changed.wait()
            failure, job.failure = job.failure, None
        job.check()
        try:
            if failure is not None:
                raise failure
        finally:
            del failure  # its traceback holds this frame

    def cancel(self, job: _Job) -> bool:
        """Drop what is left of `job` and return when no thread touches its slots. Whether it was the newest."""
        with self._changed:
            job.cancelled = True
            self._changed.notify_all()
            while job.outstanding:
                self._changed.wait()
            return job is self._job

    def stop(self) -> None:
        """End the threads."""
        with self._changed:
            self._job.cancelled = True
            self._changed.notify_all()
            for _ in self._threads:
                self._queue.put(None)
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join()

    def _work(self) -> None:
        scratch = Scratch()
        while (chunk := self._queue.get()) is not None:
            failure: BaseException | None = None
            try:
                if not chunk.job.cancelled:
                    self._fill_rows(chunk, scratch)
            except BaseException as error:  # noqa: BLE001 - handed to the consumer, whatever it is
                failure = error
            with self._changed:
                chunk.slot.pending -= 1
                chunk.job.outstanding -= 1
                if failure is not None and chunk.job.failure is None:
                    chunk.job.failure = failure
                if chunk.slot.pending == 0 and chunk.job.failure is None and not chunk.job.cancelled:
                    self._on_full(chunk.slot)
                if failure is not None or chunk.slot.pending == 0 or chunk.job.cancelled:
                    self._changed.notify_all()
            del chunk, failure

    def _fill_rows(self, chunk: _Chunk, scratch: Scratch) -> None:
        arrays, carried = chunk.slot.arrays, chunk.slot.carried
        for row, draws in zip(range(chunk.start, chunk.stop), chunk.draws.tolist(), strict=True):
            if chunk.job.cancelled:
                return
            index = int(arrays["ids"][row])
            view = {name: arrays[name][row] for name in self._fields}
            try:
                carried[row] = self._fill(self._dataset.read(index, scratch), draws, view, scratch)
            except ImageError as error:
                self._faults.add(index, str(error), error)
                carried[row] = None
                arrays["weight"][row] = 0
                for array in view.values():
                    array[...] = 0
            except DataError:
                raise
            except Exception as error:
                raise WorkerError(f"a loader thread failed on {self._dataset.sample_name(index)}: {error!r}") from error
