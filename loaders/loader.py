"""The loader: one global order, threads that fill rows of preallocated slots, one copy per batch.

    order -> this rank's ids of a batch -> chunks of rows -> [worker: read, decode, crop, resize] -> slot -> Batch

A worker that fails ends the run with its own error; a consumer that stops early leaves nothing running behind.
"""

import hashlib
import queue
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from .batch import Batch
from .cpus import available_cpus
from .errors import DataError, ImageError, WorkerError
from .order import Order, Slices, epoch_order
from .ring import CudaRing, HostRing, Layout, Slot
from .sample import LABEL_FIELDS, Decoder
from .scratch import Scratch
from .shards import Dataset


@dataclass(frozen=True, kw_only=True)
class LoaderConfig:
    """How a dataset is read. The pixels of a sample depend on `seed`, the epoch and its id alone."""

    batch_size: int  # per rank
    order: Order = "random"
    seed: int = 0
    workers: int | None = None  # threads; None: one per core that this process may use
    prefetch: int = 3  # slots: batches in host memory, the one in use included
    on_error: Literal["skip", "fail"] = "skip"  # an undecodable sample: weight 0 and counted, or an error
    rank: int = 0
    world_size: int = 1

    def __post_init__(self) -> None:
        if self.batch_size < 1 or self.prefetch < 2 or (self.workers is not None and self.workers < 1):
            raise ValueError("batch_size and workers must be 1 or more, prefetch 2 or more")


class Loader:
    """Iterate over a dataset: each `for batch in loader` is one epoch of `len(loader)` batches.

    `indices` restricts it to a part of the dataset. Raises DataError for data that cannot be used, WorkerError for a
    fault in the loader itself. `state_dict()` after a batch, given to `load_state_dict` of a loader over the same data
    with any number of workers or ranks, goes on with the sample after it.
    """

    def __init__(
        self,
        dataset: Dataset,
        decoder: Decoder,
        config: LoaderConfig,
        device: torch.device | str = "cpu",
        indices: npt.NDArray[np.int64] | None = None,
    ) -> None:
        self.dataset = dataset
        self.config = config
        self.device = torch.device(device)
        self.workers = config.workers or available_cpus()
        self.unreadable: dict[int, str] = {}  # id -> reason, of all epochs so far
        self.wait_seconds = 0.0  # time that the consumer has waited for data
        self._indices = np.arange(len(dataset), dtype=np.int64) if indices is None else indices
        self._whole = indices is None
        if len(self._indices) < (config.world_size if config.order == "random" else 1):
            raise DataError(
                f"{dataset.name}: {len(self._indices)} samples for {config.world_size} ranks; "
                "every rank needs at least one: start fewer"
            )
        self._decoder = decoder
        layout = Layout((*decoder.fields, *LABEL_FIELDS), config.batch_size)
        if self.device.type not in ("cpu", "cuda"):
            raise ValueError(f"device {self.device}: the loader feeds cpu and cuda")
        on_cuda = self.device.type == "cuda"
        self._ring = CudaRing(layout, self.device) if on_cuda else HostRing(layout)
        self._slots = [Slot(layout, pinned=on_cuda) for _ in range(config.prefetch)]
        self.slot_bytes = layout.nbytes
        self._pool: _Pool | None = None
        self._stop: Callable[[], object] = lambda: None
        self._epoch, self._position = -1, len(self._indices)
        self._resume: tuple[int, int] | None = None

    def __len__(self) -> int:
        return self._slices(0).steps

    @property
    def epoch(self) -> int:
        """The epoch that is being read, or was read last."""
        return max(self._epoch, 0)

    def set_epoch(self, epoch: int) -> None:
        """The next iteration is epoch `epoch`, from its start. Without it epochs count up from 0."""
        self._resume = (epoch, 0)

    def state_dict(self) -> dict[str, int | str]:
        """Where the batch handed out last ends: small, exact, and good for any number of ranks and workers."""
        epoch, position = self._resume or (self._epoch, self._position)
        return {
            "epoch": epoch,
            "position": position,
            "samples": len(self._indices),
            "seed": self.config.seed,
            "fingerprint": self._fingerprint(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where `state` ended. Raises DataError where it belongs to other data, ValueError for another seed."""
        if state["samples"] != len(self._indices) or state["fingerprint"] != self._fingerprint():
            raise DataError(
                f"{self.dataset.name}: not the data that the run began with ({len(self._indices)} samples, then "
                f"{state['samples']}); restore it, or start a new run"
            )
        if state["seed"] != self.config.seed:
            raise ValueError(f"the state was made with seed {state['seed']}, the loader has {self.config.seed}")
        done = state["position"] >= len(self._indices)
        self._resume = (state["epoch"] + 1, 0) if done else (state["epoch"], state["position"])

    def __iter__(self) -> Iterator[Batch]:
        epoch, start = self._resume or (self._epoch + 1, 0)
        self._resume = None
        self._epoch, self._position = epoch, start
        order = self._indices[epoch_order(len(self._indices), self.config.seed, epoch, self.config.order)]
        slices = self._slices(start)
        pool = self._pool = self._pool or self._start()
        job = pool.begin()
        try:
            for step in range(min(len(self._slots), slices.steps)):
                self._dispatch(pool, job, step, slices, order)
            for step in range(slices.steps):
                slot = self._slots[step % len(self._slots)]
                began = time.perf_counter()
                pool.wait(slot, job)
                self.wait_seconds += time.perf_counter() - began
                samples = int(slot.arrays["weight"].sum())
                tensors = self._ring.hand_over(slot)
                self._position = min(start + (step + 1) * slices.global_batch, slices.n)
                yield Batch(
                    inputs=tensors["inputs"].permute(0, 3, 1, 2),
                    targets=tensors["targets"],
                    ids=torch.from_numpy(slot.arrays["ids"].copy()),
                    weight=tensors["weight"],
                    samples=samples,
                )
                job.check()  # before this writes to slots that are another iteration's by now
                self._ring.reclaim()
                if step + len(self._slots) < slices.steps:
                    self._dispatch(pool, job, step + len(self._slots), slices, order)
        finally:
            pool.cancel(job)

    def close(self) -> None:
        """Stop the threads, and the iteration that is under way. Iterating again starts new ones."""
        self._pool = None
        self._stop()

    def _fingerprint(self) -> str:
        own = self.dataset.fingerprint
        return own if self._whole else hashlib.sha256(own.encode() + self._indices.tobytes()).hexdigest()

    def _slices(self, start: int) -> Slices:
        c = self.config
        return Slices(len(self._indices), start, c.batch_size, c.rank, c.world_size)

    def _start(self) -> "_Pool":
        pool = _Pool(self.dataset, self._decoder, self.config.on_error, self.unreadable, self.workers)
        self._stop = weakref.finalize(self, pool.stop)
        return pool

    def _dispatch(self, pool: "_Pool", job: "_Job", step: int, slices: Slices, order: npt.NDArray[np.int64]) -> None:
        slot = self._slots[step % len(self._slots)]
        positions, weight = slices.positions(step)
        ids = order[positions]
        slot.arrays["ids"][:] = ids
        slot.arrays["targets"][:] = self.dataset.labels[ids]
        slot.arrays["weight"][:] = weight
        self.dataset.will_need(ids)
        draws = self._decoder.draw(self.config.seed, self._epoch, ids)
        if self.config.order == "sequential":  # an evaluation has no use for padding's pixels
            draws = draws[: int(weight.sum())]
            for field in self._decoder.fields:
                slot.arrays[field.name][len(draws) :] = 0
        pool.fill(slot, job, draws)


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
        self, dataset: Dataset, decoder: Decoder, on_error: str, unreadable: dict[int, str], workers: int
    ) -> None:
        self._dataset, self._decoder, self._on_error, self._unreadable = dataset, decoder, on_error, unreadable
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

    def cancel(self, job: _Job) -> None:
        """Drop what is left of `job` and return when no thread touches its slots."""
        with self._changed:
            job.cancelled = True
            self._changed.notify_all()
            while job.outstanding:
                self._changed.wait()

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
                if failure is not None or chunk.slot.pending == 0 or chunk.job.cancelled:
                    self._changed.notify_all()
            del chunk, failure

    def _fill_rows(self, chunk: _Chunk, scratch: Scratch) -> None:
        arrays = chunk.slot.arrays
        fields = [field.name for field in self._decoder.fields]
        for row, draws in zip(range(chunk.start, chunk.stop), chunk.draws.tolist(), strict=True):
            if chunk.job.cancelled:
                return
            index = int(arrays["ids"][row])
            view = {name: arrays[name][row] for name in fields}
            try:
                self._decoder.fill(self._dataset.read(index, scratch), draws, view, scratch)
            except ImageError as error:
                name = self._dataset.sample_name(index)
                if self._on_error == "fail":
                    raise DataError(f"{name}: {error}; repair or remove it, or use --on-error skip") from error
                self._unreadable[index] = str(error)
                arrays["weight"][row] = 0
                for array in view.values():
                    array[...] = 0
            except DataError:
                raise
            except Exception as error:
                raise WorkerError(f"a loader thread failed on {self._dataset.sample_name(index)}: {error!r}") from error
