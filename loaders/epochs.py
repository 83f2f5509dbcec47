"""What all backends share: the samples of an epoch, their order, the current position, and what was skipped.

    Epochs.begin() -> EpochPlan: rows(step) -> ids, weights    a backend turns them into a Batch, then passed(step)

A backend is a subclass of `Epochs` that decodes; the rest of the application sees it as a `BatchSource`.
"""

import contextlib
import hashlib
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, NamedTuple, Protocol, get_args

import numpy as np
import numpy.typing as npt
import torch

from fastimg.loaders.containers.arrays import Views
from fastimg.loaders.containers.datasets import Dataset
from fastimg.loaders.containers.readahead import AHEAD, WholeBlocks
from fastimg.loaders.remote.fetched_files import fetched_files
from fastimg.loaders.runtime.times import LoaderTimes, Waits

from .batch import Batch
from .crop import Size, whole
from .errors import DataError
from .order import BLOCK, WINDOW, Order, Sampling, Slices, by_length, epoch_order, repeats_of
from .wording import plural

Padding = Literal[
    "samples", "zeros"
]  # in training, batch norms should see real samples; an evaluation does not need them

_WHOLE = (  # settings of LoaderConfig
    *("batch_size", "block", "window", "together", "seed", "crop_epochs"),
    *("workers", "prefetch", "rank", "world_size"),
)
_MAY_BE_NONE = ("together", "crop_epochs", "workers", "prefetch", "padding")
_CHOICES: dict[str, tuple[str, ...]] = {
    "order": get_args(Order),
    "padding": get_args(Padding),
    "on_error": ("skip", "fail"),
}


@dataclass(frozen=True, kw_only=True)
class LoaderConfig:  # more than 12 fields: everything that a user may set
    """How a dataset is read. The pixels of a sample depend only on `seed`, the epoch and its id.

    NumPy's integers, and integer tensors without dimensions, become ints. Raises TypeError for a number that is not
    whole, and a `sampling` that is no Sampling; ValueError for a value that cannot be.
    """

    batch_size: int  # per rank
    order: Order = "random"
    block: int | Literal["shard"] = BLOCK  # quasi-random: samples that are stored, and read, together
    window: int = WINDOW  # quasi-random: samples that batches are drawn from
    sampling: Sampling | None = None  # random: how often each sample is drawn; None: once
    together: int | None = None  # number of consecutive texts of similar length; None: one batch over all ranks
    padding: Padding | None = None  # what fills rows beyond the data; None: zeros if the order is sequential
    seed: int = 0
    crop_epochs: int | None = None  # epochs with crops of their own, which later ones show again; None: all of them
    workers: int | None = None  # threads; None: one for each core available to this process
    prefetch: int | None = None  # slots: batches in host memory, including the one in use; None: `slots_for` the device
    on_error: Literal["skip", "fail"] = "skip"  # an undecodable sample: weight 0 and counted, or an error
    rank: int = 0
    world_size: int = 1

    def __post_init__(self) -> None:
        for name in _WHOLE:
            value = getattr(self, name)
            if not (value is None and name in _MAY_BE_NONE) and not (name == "block" and value == "shard"):
                object.__setattr__(self, name, whole(value, name))
        for name, choices in _CHOICES.items():
            value = getattr(self, name)
            if value not in choices and not (value is None and name in _MAY_BE_NONE):
                raise ValueError(f"{name}={value!r}: give {', '.join(choices[:-1])} or {choices[-1]}")
        few = self.prefetch is not None and self.prefetch < 2
        if self.batch_size < 1 or few or (self.workers is not None and self.workers < 1):
            raise ValueError("batch_size and workers must be 1 or more, prefetch 2 or more")
        if self.crop_epochs is not None and self.crop_epochs < 1:
            raise ValueError("crop_epochs must be 1 or more")
        if self.together is not None and self.together < 1:
            raise ValueError(f"together={self.together}: give a number of texts, 1 or more")
        if self.world_size < 1:
            raise ValueError(f"world_size={self.world_size}: give the number of processes, 1 or more")
        if not 0 <= self.rank < self.world_size:
            last = self.world_size - 1
            raise ValueError(f"rank={self.rank}: with world_size={self.world_size}, ranks are numbered 0 to {last}")
        if self.block != "shard" and not 1 <= self.block <= self.window:
            raise ValueError("block must be 1 or more, and window no smaller")
        if self.sampling is not None and not isinstance(self.sampling, Sampling):
            raise TypeError(f"sampling is of type {type(self.sampling).__name__}; give a Sampling of weights, or None")
        if self.sampling is not None and self.order != "random":
            raise ValueError(f"order {self.order!r} takes every sample once; leave sampling out, or the order")


def slots_for(device_type: str) -> int:
    """The number of slots, if none is given: on a GPU more, since a small model takes a batch in a few milliseconds."""
    return 6 if device_type == "cuda" else 3


def crop_epoch_of(epoch: int, crop_epochs: int | None) -> int:
    """The epoch whose crops an epoch shows: with `crop_epochs`, one of the first ones in turn, otherwise its own."""
    return epoch if crop_epochs is None else epoch % crop_epochs


class BatchSource(Protocol):
    """What training, evaluation and benchmarks know about a loader, whatever its backend."""

    dataset: Dataset
    config: LoaderConfig
    slots: int  # batches in host memory, including the one in use
    workers: int  # threads or processes
    slot_bytes: int  # size of one batch in host memory

    def __iter__(self) -> Iterator[Batch]:
        """Iterate over one epoch, or over the rest of it."""

    def __len__(self) -> int:
        """Number of batches in a whole epoch."""

    @property
    def epoch(self) -> int:
        """The epoch that is being read, or the last one that was."""

    @property
    def indices(self) -> npt.NDArray[np.int64] | None:
        """The samples of the dataset that are read; None: all of them."""

    @property
    def wait_seconds(self) -> float:
        """Seconds that the consumer's thread has spent waiting for data."""

    def spent(self) -> LoaderTimes:
        """Where the time has gone since the loader was created. Called by the consumer; does not block."""

    @property
    def unreadable(self) -> dict[int, str]:
        """Id -> reason, for every sample skipped so far."""

    @property
    def rerouted(self) -> dict[int, str]:
        """Id -> reason, for every sample so far that a decoder other than the chosen one has decoded."""

    def set_epoch(self, epoch: int) -> None:
        """Start the next iteration at the beginning of epoch `epoch`, 0 or more.

        Raises ValueError for a negative one, TypeError for what is no whole number.
        """

    def set_size(self, size: Size) -> None:
        """Change the size of images from the next iteration on: a side in pixels, or (height, width).

        The size can be at most the one that the loader was created with. Memory and workers are kept, and
        `state_dict` does not contain the size. Raises ValueError for an invalid size, and TypeError if the decoder has
        only one size.
        """

    def state_dict(self) -> dict[str, int | str]:
        """The position after the last batch that was handed out."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from the position in `state`.

        Raises ValueError for what no loader's `state_dict` has returned, or with another seed or order; DataError if
        the data differs.
        """

    def describe(self) -> str:
        """A phrase that names the decoder and the number of workers."""

    def close(self) -> None:
        """Stop the workers and the iteration in progress."""


class Rows(NamedTuple):
    """The samples of one batch."""

    ids: npt.NDArray[np.int64]  # [B]
    weight: npt.NDArray[np.float32]  # [B], 0 for padding
    decoded: int  # number of leading rows that are decoded; the pixels of the others are zeros


@dataclass(frozen=True, slots=True)
class EpochPlan:
    """The plan of one iteration over an epoch, or over the rest of it."""

    epoch: int
    crop_epoch: int  # the epoch whose crops are drawn
    order: npt.NDArray[np.int64]  # the epoch's permutation of range(n), or its n draws
    indices: npt.NDArray[np.int64] | None  # the samples of the dataset that are read; None: all of them
    slices: Slices
    padding: Padding
    blocks: WholeBlocks | None  # what is read ahead; None: the samples of each batch
    again: npt.NDArray[np.int64] | None = None  # [n], how often a sample came before; None: none comes again

    @property
    def steps(self) -> int:
        """Number of batches in this iteration."""
        return self.slices.steps

    def rows(self, step: int) -> Rows:
        """The samples of batch `step`, counted from where the plan begins."""
        positions, weight = self.slices.positions(step)
        places = self.order[positions]
        ids = places if self.indices is None else self.indices[places]
        return Rows(ids, weight, int(weight.sum()) if self.padding == "zeros" else len(ids))

    def repeats(self, step: int) -> npt.NDArray[np.int64] | None:
        """How often each sample of batch `step` came before in this epoch [B]; None where none comes again."""
        return None if self.again is None else self.again[self.slices.positions(step)[0]]

    def prefetch_ids(self, step: int) -> Iterator[npt.NDArray[np.int64]]:
        """Samples to fetch while batch `step` is being filled, most urgent first. Called for each step in turn."""
        if self.blocks is None:
            ids, _, decoded = self.rows(step)
            yield ids[:decoded]
            return
        for places in self.blocks.before(step):
            yield places if self.indices is None else self.indices[places]


class Faults:
    """Samples that cannot be decoded: recorded and skipped, or raised as an error. Shared by all threads."""

    def __init__(self, dataset: Dataset, on_error: Literal["skip", "fail"]) -> None:
        self.unreadable: dict[int, str] = {}  # id -> reason
        self.rerouted: dict[int, str] = {}  # id -> reason, if a decoder other than the chosen one took over
        self._dataset = dataset
        self._on_error = on_error

    def add(self, index: int, reason: str, cause: Exception | None = None) -> None:
        """Record a skipped sample. Raises DataError with its name if `on_error` is "fail"."""
        if self._on_error == "fail":
            name = self._dataset.sample_name(index)
            raise DataError(f"{name}: {reason}; repair or remove it, or use on_error=skip") from cause
        self.unreadable[index] = reason


_STATE = ("epoch", "position", "samples", "seed", "order", "fingerprint")  # what a state has
_PREPARED = 1 << 15  # samples; the order of fewer takes a few milliseconds


def _shard_starts(dataset: Dataset, indices: npt.NDArray[np.int64] | None) -> npt.NDArray[np.int64]:
    """The place among the samples that are read of each shard's first one."""
    shards: npt.NDArray[np.int64] | None = getattr(dataset, "shard_numbers", None)
    if shards is None:
        raise ValueError(f"{dataset.name}: block='shard' is for tar shards; give a number of samples")
    chosen = shards if indices is None else shards[indices]
    return np.flatnonzero(np.diff(chosen, prepend=-1)).astype(np.int64)


class EpochOrder(NamedTuple):
    """The order of an epoch, and what is read ahead by it."""

    order: npt.NDArray[np.int64]  # a permutation of range(n), or n draws
    blocks: WholeBlocks | None  # None: the samples of each batch
    again: npt.NDArray[np.int64] | None = None  # [n], how often a sample came before; None: none comes again


def make_order(
    config: LoaderConfig,
    slices: Slices,
    epoch: int,
    lengths: npt.NDArray[np.int64] | None,
    together: int,
    starts: npt.NDArray[np.int64] | None = None,
) -> EpochOrder:
    """The order of an epoch from where `slices` begin: a pure function.

    `lengths` are those of texts; `starts` the first samples of shards, where blocks are shards.
    """
    c = config
    block = BLOCK if c.block == "shard" else c.block
    block_or_starts = block if starts is None else starts
    if c.sampling is None:
        order = epoch_order(slices.n, c.seed, epoch, c.order, block_or_starts, c.window)
    else:
        order = c.sampling.order(c.seed, epoch)
    if lengths is not None and c.order != "sequential":
        order = by_length(order, lengths, together, c.order, c.seed, epoch)
    ahead = c.order == "quasi-random" or (starts is not None and c.order == "sequential")
    blocks = WholeBlocks(order, slices, block_or_starts) if ahead else None
    return EpochOrder(order, blocks, None if c.sampling is None else repeats_of(order))


class OrderAhead:
    """The order of an epoch, computed by a thread while the consumer does something else."""

    def __init__(self, epoch: int, make: Callable[[], EpochOrder]) -> None:
        self.epoch = epoch
        self._make = make
        self._made: EpochOrder | None = None
        self._thread = threading.Thread(target=self._work, name="fastimg-order")
        with contextlib.suppress(RuntimeError):  # no more threads available: `take` computes it
            self._thread.start()

    def take(self) -> EpochOrder:
        """The order. If the thread failed, or belongs to the process that this one was forked from, computed here."""
        if self._thread.ident is not None:
            self._thread.join()
        return self._make() if self._made is None else self._made

    def _work(self) -> None:
        with contextlib.suppress(Exception):  # `take` meets the same error again, where it can be reported
            self._made = self._make()


def _sample_ids(indices: npt.ArrayLike, dataset: Dataset) -> npt.NDArray[np.int64]:
    """The ids of the samples that are read [n]. Raises ValueError for what are none."""
    given = indices.detach().cpu().numpy() if isinstance(indices, torch.Tensor) else np.asarray(indices)
    if given.ndim == 1 and not len(given):
        return np.empty(0, np.int64)
    if given.dtype == np.bool_:
        raise ValueError("indices is a mask of bools; use np.flatnonzero(mask)")
    if given.ndim != 1 or given.dtype.kind not in "iu":
        kind = f"{given.dtype} of shape {list(given.shape)}"
        raise ValueError(f"indices is {kind}; give the ids of samples, whole numbers [n]")
    count = len(dataset)
    if given.min() < 0 or given.max() >= count:
        place = int(np.argmax((given < 0) | (given >= count)))
        raise ValueError(
            f"indices[{place}] is {given[place]}, but the {plural(count, 'sample')} of {dataset.name} are numbered "
            f"0 to {count - 1}; leave it out"
        )
    return given.astype(np.int64)  # a copy: whoever gave them may change them


def _position_in(state: object) -> tuple[int, int]:
    """(epoch, position) of a state. Raises ValueError for what no `state_dict` has returned."""
    advice = "give what state_dict() has returned"
    if not isinstance(state, Mapping):
        raise ValueError(f"not a state of a Loader, but of type {type(state).__name__}; {advice}")
    if missing := [name for name in _STATE if name not in state]:
        raise ValueError(f"not a state of a Loader, as it lacks {', '.join(missing)}; {advice}")
    try:
        epoch, position, samples = (whole(state[name], name) for name in ("epoch", "position", "samples"))
    except TypeError as error:
        raise ValueError(f"not a state of a Loader ({error}); {advice}") from None
    if not 0 <= position <= samples or epoch < (-1 if position == samples else 0):  # -1: no epoch has begun
        place = f"position={position} of {plural(samples, 'sample')} in epoch={epoch}"
        raise ValueError(f"not a state of a Loader ({place}); {advice}")
    return epoch, position


class Epochs:
    """A dataset, or the samples of it that `indices` selects, read epoch by epoch.

    A `state_dict()` taken after a batch can be given to `load_state_dict` of a loader over the same data, with any
    backend and any number of workers or ranks: it continues with the next sample. A quasi-random order follows the
    blocks of the dataset as it is stored, whatever the order of `indices`. During an epoch it takes 8 bytes per sample
    (quasi-random: 9), plus `indices`; between two epochs of many samples twice as much, since a thread computes the
    next order from when the last batch is handed out. Raises DataError for data that cannot be used, and ValueError for
    `indices` that are not numbers of its samples.
    """

    def __init__(
        self,
        dataset: Dataset,
        config: LoaderConfig,
        indices: npt.ArrayLike | None,
        workers: int,
        device: torch.device,
    ) -> None:
        ids = None if indices is None else _sample_ids(indices, dataset)
        self.dataset = dataset
        self.config = config
        self.slots = config.prefetch or slots_for(device.type)
        self.workers = workers
        if device.type == "cuda" and device.index is None:  # as in `tensor.device`
            device = torch.device("cuda", torch.cuda.current_device())
        self.device = device
        self.waits = Waits(device)
        self.faults = Faults(dataset, config.on_error)
        self._indices = np.sort(ids) if ids is not None and config.order == "quasi-random" else ids
        self._n = len(dataset) if ids is None else len(ids)
        lengths: npt.NDArray[np.int64] | None = getattr(dataset, "lengths", None)
        self._lengths = lengths if lengths is None or self._indices is None else lengths[self._indices]
        if config.sampling is not None and len(config.sampling.weights) != self._n:
            weights = len(config.sampling.weights)
            raise ValueError(f"sampling has {plural(weights, 'weight')} for {plural(self._n, 'sample')}")
        if config.order == "length" and lengths is None:
            raise ValueError("order length is only for texts stored as tokens")
        evaluates = config.order in ("sequential", "length")
        self._padding: Padding = config.padding or ("zeros" if evaluates else "samples")
        if self._n < (1 if self._padding == "zeros" else config.world_size):
            raise DataError(
                f"{dataset.name}: {plural(self._n, 'sample')} for {plural(config.world_size, 'rank')}; "
                "every rank needs at least one; start fewer ranks"
            )
        self._starts = _shard_starts(dataset, self._indices) if config.block == "shard" else None
        if (files := fetched_files(dataset)) is not None:
            ahead = (self.slots + AHEAD) * config.batch_size * config.world_size
            of = getattr(dataset, "shard_numbers", None)
            read = None if ids is None or of is None else np.flatnonzero(np.bincount(of[ids]))
            files.check_order(config.order, self._starts is not None, config.window, self._n, ahead, read)
        self._epoch = -1
        self._next_order: OrderAhead | None = None
        self._position = self._n
        self._resume: tuple[int, int] | None = None

    def __len__(self) -> int:
        return self._slices(0).steps

    @property
    def epoch(self) -> int:
        """The epoch that is being read, or the last one that was."""
        return max(self._epoch, 0)

    @property
    def indices(self) -> npt.NDArray[np.int64] | None:
        """The samples of the dataset that are read; None: all of them."""
        return self._indices

    @property
    def wait_seconds(self) -> float:
        """Seconds that the consumer's thread has spent waiting for data."""
        return self.waits.host

    def spent(self) -> LoaderTimes:
        """See `BatchSource`. Copies and threads of other libraries are not measured."""
        return LoaderTimes(self.waits.seconds, None if self.device.type == "cuda" else 0.0, None, None)

    @property
    def unreadable(self) -> dict[int, str]:
        """Id -> reason, for every sample skipped so far."""
        return self.faults.unreadable

    @property
    def rerouted(self) -> dict[int, str]:
        """Id -> reason, for every sample so far that a decoder other than the chosen one has decoded."""
        return self.faults.rerouted

    def set_epoch(self, epoch: int) -> None:
        """See `BatchSource`. By default epochs count up from 0."""
        number = whole(epoch, "epoch")
        if number < 0:
            raise ValueError(f"epoch={number}: epochs are numbered from 0")
        self._resume = (number, 0)

    def state_dict(self) -> dict[str, int | str]:
        """The exact position after the last batch that was handed out, valid for any number of ranks and workers."""
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
        """See `BatchSource`."""
        epoch, position = _position_in(state)
        if state["samples"] != self._n or state["fingerprint"] != self._fingerprint():
            before = state["samples"]
            now = plural(self._n, "sample")
            difference = f"{now} now, {before:,} then" if before != self._n else f"{now}, but different ones"
            raise DataError(
                f"{self.dataset.name}: not the data that the run began with ({difference}); restore it, or start a "
                "new run"
            )
        if state["seed"] != self.config.seed:
            raise ValueError(f"the state was made with seed {state['seed']}, but the loader has {self.config.seed}")
        if state["order"] != self._order():
            raise ValueError(f"the state was made with order {state['order']}, but the loader has {self._order()}")
        self._resume = (epoch + 1, 0) if position == self._n else (epoch, position)

    def begin(self) -> EpochPlan:
        """Plan the next epoch, or the rest of one."""
        epoch, start = self._resume or (self._epoch + 1, 0)
        self._resume = None
        self._epoch = epoch
        self._position = start
        if isinstance(self.dataset, Views):
            self.dataset.set_epoch(epoch)
        slices = self._slices(start)
        ahead = self._next_order
        self._next_order = None
        if ahead is not None and (ahead.epoch, 0) == (epoch, start):
            made = ahead.take()
        else:
            made = make_order(self.config, slices, epoch, self._lengths, self._together, self._starts)
        shown = crop_epoch_of(epoch, self.config.crop_epochs)
        return EpochPlan(epoch, shown, made.order, self._indices, slices, self._padding, made.blocks, made.again)

    def passed(self, plan: EpochPlan, step: int) -> None:
        """Record that batch `step` is being handed out: a state taken from now on continues after it.

        After the last one, a validation may follow: a thread computes the next epoch's order meanwhile.
        """
        self._position = min(plan.slices.start + (step + 1) * plan.slices.global_batch, self._n)
        if step + 1 == plan.steps and self._n >= _PREPARED and self.config.order in ("random", "quasi-random"):
            epoch = plan.epoch + 1
            # No reference to this loader, which an unused one could not be collected with.
            make = partial(make_order, self.config, self._slices(0), epoch, self._lengths, self._together, self._starts)
            self._next_order = OrderAhead(epoch, make)

    def _order(self) -> str:
        """Everything but the data and the seed that the order of an epoch depends on."""
        c = self.config
        blocks = "a shard" if c.block == "shard" else c.block
        order = f"quasi-random, blocks of {blocks}, window {c.window}" if c.order == "quasi-random" else c.order
        order += "" if c.sampling is None else f", drawn by weights {c.sampling.digest}"
        together = self._lengths is not None and c.order in ("random", "quasi-random")
        return f"{order}, by length in runs of {self._together}" if together else order

    @property
    def _together(self) -> int:
        return self.config.together or self.config.batch_size * self.config.world_size

    def _fingerprint(self) -> str:
        fingerprint = self.dataset.fingerprint
        if self._indices is None:
            return fingerprint
        return hashlib.sha256(fingerprint.encode() + self._indices.tobytes()).hexdigest()

    def _slices(self, start: int) -> Slices:
        c = self.config
        return Slices(self._n, start, c.batch_size, c.rank, c.world_size)
