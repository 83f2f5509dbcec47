"""What all backends share: the samples of an epoch, their order, the position in it, and what was skipped.

    Epochs.begin() -> EpochPlan: rows(step) -> ids, weights    a backend turns them into a Batch, then passed(step)

A backend is a subclass of `Epochs` that decodes; the rest of the application sees it as a `BatchSource`.
"""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import torch

from fastimg.loaders.containers.arrays import Views
from fastimg.loaders.containers.datasets import Dataset
from fastimg.loaders.containers.readahead import WholeBlocks
from fastimg.loaders.runtime.times import LoaderTimes, Waits

from .batch import Batch
from .crop import Size
from .errors import DataError
from .order import BLOCK, WINDOW, Order, Slices, by_length, epoch_order
from .wording import plural

Padding = Literal["samples", "zeros"]  # in training batch norms see real ones; an evaluation has no use for them


@dataclass(frozen=True, kw_only=True)
class LoaderConfig:
    """How a dataset is read. The pixels of a sample depend only on `seed`, the epoch and its id."""

    batch_size: int  # per rank
    order: Order = "random"
    block: int = BLOCK  # of quasi-random: samples that lie together and are read together
    window: int = WINDOW  # of quasi-random: samples that batches are drawn from
    together: int | None = None  # texts of about one length that follow each other; None: a batch over all ranks
    padding: Padding | None = None  # pixels of rows beyond the data; None: zeros where the order is sequential
    seed: int = 0
    workers: int | None = None  # threads; None: one per core that this process may use
    prefetch: int = 3  # slots: batches in host memory, the one in use included
    on_error: Literal["skip", "fail"] = "skip"  # an undecodable sample: weight 0 and counted, or an error
    rank: int = 0
    world_size: int = 1

    def __post_init__(self) -> None:
        if self.batch_size < 1 or self.prefetch < 2 or (self.workers is not None and self.workers < 1):
            raise ValueError("batch_size and workers must be 1 or more, prefetch 2 or more")
        if not 1 <= self.block <= self.window:
            raise ValueError("block must be 1 or more, and window no smaller")


class BatchSource(Protocol):
    """What training, evaluation and benchmarks know of a loader, independent of its backend."""

    dataset: Dataset
    config: LoaderConfig
    workers: int  # threads or processes
    slot_bytes: int  # of one batch in host memory

    def __iter__(self) -> Iterator[Batch]:
        """One epoch, or the rest of it."""

    def __len__(self) -> int:
        """Batches of a whole epoch."""

    @property
    def epoch(self) -> int:
        """The epoch that is being read, or was read last."""

    @property
    def indices(self) -> npt.NDArray[np.int64] | None:
        """The part of the dataset that is read; None: all of it."""

    @property
    def wait_seconds(self) -> float:
        """Seconds that the consumer's thread has waited for data."""

    def spent(self) -> LoaderTimes:
        """Where the time went since the loader was made. Called by the consumer; does not block."""

    @property
    def unreadable(self) -> dict[int, str]:
        """Id -> reason, of all samples that were skipped so far."""

    @property
    def rerouted(self) -> dict[int, str]:
        """Id -> reason, of all samples that were decoded by another decoder than the chosen one so far."""

    def set_epoch(self, epoch: int) -> None:
        """The next iteration is epoch `epoch`, from its start."""

    def set_size(self, size: Size) -> None:
        """From the next iteration on pictures have this size: a side in pixels, or (height, width).

        It is at most that which the loader was made with.
        Memory and workers stay; no state holds it. Raises ValueError for another size, TypeError where there is one.
        """

    def state_dict(self) -> dict[str, int | str]:
        """Where the batch handed out last ends."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue where `state` ended."""

    def describe(self) -> str:
        """What decodes, and with how many workers, in words."""

    def close(self) -> None:
        """Stop the threads and the iteration in progress."""


class Rows(NamedTuple):
    """The samples of one batch."""

    ids: npt.NDArray[np.int64]  # [B]
    weight: npt.NDArray[np.float32]  # [B], 0 for padding
    decoded: int  # the first so many rows are decoded; the others' pixels are zeros


@dataclass(frozen=True, slots=True)
class EpochPlan:
    """One iteration over an epoch, or over the rest of it."""

    epoch: int
    order: npt.NDArray[np.int64]  # the epoch's permutation of range(n)
    indices: npt.NDArray[np.int64] | None  # the part of the dataset that is read, None: all of it
    slices: Slices
    padding: Padding
    blocks: WholeBlocks | None  # what is read ahead, None: each batch

    @property
    def steps(self) -> int:
        """Batches that it has."""
        return self.slices.steps

    def rows(self, step: int) -> Rows:
        """What batch `step` holds, counted from where the plan begins."""
        positions, weight = self.slices.positions(step)
        places = self.order[positions]
        ids = places if self.indices is None else self.indices[places]
        return Rows(ids, weight, int(weight.sum()) if self.padding == "zeros" else len(ids))

    def prefetch_ids(self, step: int) -> Iterator[npt.NDArray[np.int64]]:
        """Samples to fetch while batch `step` is being filled, the most urgent first. Called for each step in turn."""
        if self.blocks is None:
            ids, _, decoded = self.rows(step)
            yield ids[:decoded]
            return
        for places in self.blocks.before(step):
            yield places if self.indices is None else self.indices[places]


class Faults:
    """Samples that cannot be decoded: skipped and recorded, or an error. Shared by all threads."""

    def __init__(self, dataset: Dataset, on_error: Literal["skip", "fail"]) -> None:
        self.unreadable: dict[int, str] = {}  # id -> reason
        self.rerouted: dict[int, str] = {}  # id -> reason, of samples that another decoder than the chosen one took on
        self._dataset = dataset
        self._on_error = on_error

    def add(self, index: int, reason: str, cause: Exception | None = None) -> None:
        """Record a skipped sample. Raises DataError with its name if none may be skipped."""
        if self._on_error == "fail":
            name = self._dataset.sample_name(index)
            raise DataError(f"{name}: {reason}; repair or remove it, or use on_error=skip") from cause
        self.unreadable[index] = reason


class Epochs:
    """A dataset, or the part of it that `indices` names, read epoch by epoch.

    `state_dict()` after a batch, given to `load_state_dict` of a loader over the same data with any backend and any
    number of workers or ranks, goes on with the sample after it. A quasi-random order goes by blocks of the dataset as
    it is stored, in any order of `indices`. Memory during an epoch: 8 bytes a sample, quasi-random 9, and `indices`.
    Raises DataError for data that cannot be used.
    """

    def __init__(
        self,
        dataset: Dataset,
        config: LoaderConfig,
        indices: npt.NDArray[np.int64] | None,
        workers: int,
        device: torch.device,
    ) -> None:
        self.dataset = dataset
        self.config = config
        self.workers = workers
        self.device = device
        self.waits = Waits(device)
        self.faults = Faults(dataset, config.on_error)
        self._indices = np.sort(indices) if indices is not None and config.order == "quasi-random" else indices
        self._n = len(dataset) if indices is None else len(indices)
        lengths: npt.NDArray[np.int64] | None = getattr(dataset, "lengths", None)
        self._lengths = lengths if lengths is None or self._indices is None else lengths[self._indices]
        if config.order == "length" and lengths is None:
            raise ValueError("order length is for texts that are tokens")
        evaluates = config.order in ("sequential", "length")
        self._padding: Padding = config.padding or ("zeros" if evaluates else "samples")
        if self._n < (1 if self._padding == "zeros" else config.world_size):
            raise DataError(
                f"{dataset.name}: {plural(self._n, 'sample')} for {plural(config.world_size, 'rank')}; "
                "every rank needs at least one; start fewer ranks"
            )
        self._epoch = -1
        self._position = self._n
        self._resume: tuple[int, int] | None = None

    def __len__(self) -> int:
        return self._slices(0).steps

    @property
    def epoch(self) -> int:
        """The epoch that is being read, or was read last."""
        return max(self._epoch, 0)

    @property
    def indices(self) -> npt.NDArray[np.int64] | None:
        """The part of the dataset that is read; None: all of it."""
        return self._indices

    @property
    def wait_seconds(self) -> float:
        """Seconds that the consumer's thread has waited for data."""
        return self.waits.host

    def spent(self) -> LoaderTimes:
        """See `BatchSource`. The copies and threads of other libraries are not measured."""
        return LoaderTimes(self.waits.seconds, None if self.device.type == "cuda" else 0.0, None, None)

    @property
    def unreadable(self) -> dict[int, str]:
        """Id -> reason, of all samples that were skipped so far."""
        return self.faults.unreadable

    @property
    def rerouted(self) -> dict[int, str]:
        """Id -> reason, of all samples that were decoded by another decoder than the chosen one so far."""
        return self.faults.rerouted

    def set_epoch(self, epoch: int) -> None:
        """The next iteration is epoch `epoch`, from its start. Without it epochs count up from 0."""
        self._resume = (epoch, 0)

    def state_dict(self) -> dict[str, int | str]:
        """Where the batch handed out last ends: small, exact, and good for any number of ranks and workers."""
        epoch, position = self._resume or (self._epoch, self._position)
        return {
            "epoch": epoch,
            "position": position,
            "samples": self._n,
            "seed": self.config.seed,
            "order": self._order(),
            "fingerprint": self._fingerprint(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue where `state` ended. Raises DataError for other data, ValueError for another order."""
        if state["samples"] != self._n or state["fingerprint"] != self._fingerprint():
            before = state["samples"]
            now = plural(self._n, "sample")
            counts = f"{now}, and had {before:,}" if before != self._n else f"{now}, but others"
            raise DataError(
                f"{self.dataset.name}: not the data that the run began with (it has {counts}); restore it, or start a "
                "new run"
            )
        if state["seed"] != self.config.seed:
            raise ValueError(f"the state was made with seed {state['seed']}, the loader has {self.config.seed}")
        if state["order"] != self._order():
            raise ValueError(f"the state was made with order {state['order']}, the loader has {self._order()}")
        done = state["position"] >= self._n
        self._resume = (state["epoch"] + 1, 0) if done else (state["epoch"], state["position"])

    def begin(self) -> EpochPlan:
        """The next epoch, or what is left of one."""
        epoch, start = self._resume or (self._epoch + 1, 0)
        self._resume = None
        self._epoch = epoch
        self._position = start
        if isinstance(self.dataset, Views):
            self.dataset.set_epoch(epoch)
        c = self.config
        slices = self._slices(start)
        order = epoch_order(self._n, c.seed, epoch, c.order, c.block, c.window)
        if self._lengths is not None and c.order != "sequential":
            order = by_length(order, self._lengths, self._together, c.order, c.seed, epoch)
        blocks = WholeBlocks(order, slices, c.block) if c.order == "quasi-random" else None
        return EpochPlan(epoch, order, self._indices, slices, self._padding, blocks)

    def passed(self, plan: EpochPlan, step: int) -> None:
        """Note that batch `step` of the plan is being handed out: a state made from now on continues after it."""
        self._position = min(plan.slices.start + (step + 1) * plan.slices.global_batch, self._n)

    def _order(self) -> str:
        """All that the order of an epoch depends on besides the data and the seed."""
        c = self.config
        order = f"quasi-random, blocks of {c.block}, window {c.window}" if c.order == "quasi-random" else c.order
        together = self._lengths is not None and c.order in ("random", "quasi-random")
        return f"{order}, by length in runs of {self._together}" if together else order

    @property
    def _together(self) -> int:
        return self.config.together or self.config.batch_size * self.config.world_size

    def _fingerprint(self) -> str:
        own = self.dataset.fingerprint
        return own if self._indices is None else hashlib.sha256(own.encode() + self._indices.tobytes()).hexdigest()

    def _slices(self, start: int) -> Slices:
        c = self.config
        return Slices(self._n, start, c.batch_size, c.rank, c.world_size)
