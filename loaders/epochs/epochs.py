"""What all backends share: the samples of an epoch, their order, the current position, and what was skipped.

    Epochs.begin() -> EpochPlan: rows(step) -> ids, weights    a backend turns them into a Batch, then passed(step)

A backend is a subclass of `Epochs` that decodes; the rest of the application sees it as a `BatchSource`.
"""

import hashlib
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import get_worker_info

from fastimg.loaders.containers.arrays import Views
from fastimg.loaders.containers.datasets import Dataset
from fastimg.loaders.containers.readahead import AHEAD
from fastimg.loaders.crop import whole
from fastimg.loaders.errors import DataError
from fastimg.loaders.order import Slices
from fastimg.loaders.preparation import Preparation
from fastimg.loaders.remote.fetched_files import fetched_files
from fastimg.loaders.runtime.times import LoaderTimes, Waits
from fastimg.loaders.wording import plural

from .config import LoaderConfig, Padding, slots_for
from .faults import Faults
from .next_order import OrderAhead, make_order, shard_starts
from .plan import EpochPlan, crop_epoch_of
from .position import position_in
from .surroundings import EXPLICIT, Follows, ranks_here, say_repeated, seed_here

_PREPARED = 1 << 15  # samples; the order of fewer takes a few milliseconds


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
        follows: Follows = EXPLICIT,
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
        self._starts = shard_starts(dataset, self._indices) if config.block == "shard" else None
        self._epoch = -1
        self._next_order: OrderAhead | None = None
        self._position = self._n
        self._resume: tuple[int, int] | None = None
        self._follows = follows
        self._equal_rows = False
        self._began_at = 0  # the iteration, in the epoch
        self._own = object()  # stands for this loader, also when it is gone
        self._check_ranks()

    def __len__(self) -> int:
        if self._free_to_move:
            self._follow()
        return self._slices(0).steps

    @property
    def epoch(self) -> int:
        """The epoch that is being read, or the last one that was."""
        return max(self._epoch, 0)

    @property
    def at_end(self) -> bool:
        """Whether the batch that was handed out last is the last one of its epoch."""
        return self._position == self._n

    @property
    def remainder(self) -> int:
        """The number of samples in this iteration's last batch, of all ranks together; 0: it is full."""
        return self._slices(self._began_at).remainder

    @property
    def share(self) -> int:
        """The number of an epoch's samples that this process reads, without padding."""
        slices = self._slices(0)
        return len(slices.span(0, slices.steps))

    def give_equal_rows(self, equal: bool) -> None:
        """Whether, from the next iteration on, ranks have equally many samples of each batch: see `Slices`."""
        if equal != self._equal_rows:
            self._equal_rows = equal
            self._next_order = None

    def begin_at(self, step: int) -> None:
        """Begin the next iteration after so many batches of its epoch."""
        if self._free_to_move:
            self._follow()
        epoch, _ = self._resume or (self._epoch + 1, 0)
        self._resume = (epoch, min(self._n, step * self.config.batch_size * self.config.world_size))

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
        if self._resume is None or self._resume[0] != number:  # else it may be in the middle, of a state
            self._resume = (number, 0)

    def prepare(self, preparation: Preparation) -> None:
        """See `BatchSource`. Here nothing is made: batches have no slots."""

    def state_dict(self) -> dict[str, int | str]:
        """The exact position after the last batch that was handed out, valid for any number of ranks and workers."""
        if self._epoch < 0:
            self._follow()
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
        epoch, position = position_in(state)
        if self._free_to_move:
            self._follow()
        if state["samples"] != self._n or state["fingerprint"] != self._fingerprint():
            before = state["samples"]
            now = plural(self._n, "sample")
            difference = f"{now} now, {before:,} then" if before != self._n else f"{now}, but different ones"
            raise DataError(
                f"{self.dataset.name}: not the data that the run began with ({difference}); restore it, or start a "
                "new run"
            )
        if state["seed"] != self.config.seed and not self._follows.seed:
            raise ValueError(f"the state was made with seed {state['seed']}, but the loader has {self.config.seed}")
        if state["order"] != self._order():
            raise ValueError(f"the state was made with order {state['order']}, but the loader has {self._order()}")
        if self._follows.seed:  # from now on it is the state's, in every process
            self._set(replace(self.config, seed=state["seed"]))
            self._follows = self._follows._replace(seed=False)
        self._resume = (epoch + 1, 0) if position == self._n else (epoch, position)

    def begin(self) -> EpochPlan:
        """Plan the next epoch, or the rest of one.

        Raises RuntimeError if the process has other ranks than those that have read before, and in a worker process of
        a DataLoader.
        """
        if get_worker_info() is not None:
            raise RuntimeError(
                f"{self.dataset.name}: the loader is iterated in a worker process of a DataLoader, where every worker "
                "would read all samples, and every epoch in the order of the first; iterate the loader itself, which "
                "decodes in threads, or give that DataLoader num_workers=0"
            )
        self._follow()
        epoch, start = self._resume or (self._epoch + 1, 0)
        if self._follows.seed and self.config.order != "sequential":
            say_repeated(self.dataset.name, epoch, self.config.seed, (self._order(), self._n, *self._ends()), self._own)
        self._resume = None
        self._epoch = epoch
        slices = self._slices(start)
        self._began_at = start
        self._position = start if slices.steps else self._n
        if isinstance(self.dataset, Views):
            self.dataset.set_epoch(epoch)
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
        self._position = plan.slices.end(step) if step + 1 < plan.steps else self._n
        if step + 1 == plan.steps and self._n >= _PREPARED and self.config.order in ("random", "quasi-random"):
            epoch = plan.epoch + 1
            # No reference to this loader, which an unused one could not be collected with.
            make = partial(make_order, self.config, self._slices(0), epoch, self._lengths, self._together, self._starts)
            self._next_order = OrderAhead(epoch, make)

    @property
    def _free_to_move(self) -> bool:
        """Whether other ranks may go on from here: nothing was read, or the same place was stated to all of them."""
        return self._epoch < 0 or self._resume is not None

    def _follow(self) -> None:
        """Take from the process, as it is now, what the arguments have left open."""
        before = self.config
        ranks = ranks_here() if self._follows.ranks else (before.rank, before.world_size)
        moved = ranks != (before.rank, before.world_size)
        if moved and not self._free_to_move:
            raise RuntimeError(
                f"{self.dataset.name}: the loader has read as rank {before.rank} of {before.world_size}, but this "
                f"process is now rank {ranks[0]} of {ranks[1]}: create the loader after init_process_group, call "
                "set_epoch on every rank, or give rank and world_size"
            )
        seed = seed_here(ranks[1]) if self._follows.seed and (moved or self._epoch < 0) else before.seed
        if moved or seed != before.seed:
            self._set(replace(before, rank=ranks[0], world_size=ranks[1], seed=seed))

    def _set(self, config: LoaderConfig) -> None:
        """Other ranks, or another seed."""
        before, self.config = self.config, config
        self._next_order = None
        try:
            self._check_ranks()
        except BaseException:
            self.config = before
            raise

    def _check_ranks(self) -> None:
        """Raises DataError for fewer samples than ranks, and for an order that re-reads what is fetched."""
        config = self.config
        if not self._n:
            raise DataError(f"{self.dataset.name}: 0 samples to read; give others, or other indices")
        if self._n < (1 if self._padding == "zeros" else config.world_size):
            raise DataError(
                f"{self.dataset.name}: {plural(self._n, 'sample')} for {plural(config.world_size, 'rank')}; "
                "every rank needs at least one; start fewer ranks"
            )
        if (files := fetched_files(self.dataset)) is not None:
            ahead = (self.slots + AHEAD) * config.batch_size * config.world_size
            of = getattr(self.dataset, "shard_numbers", None)
            ids = self._indices
            read = None if ids is None or of is None else np.flatnonzero(np.bincount(of[ids]))
            files.check_order(config.order, self._starts is not None, config.window, self._n, ahead, read)

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

    def _ends(self) -> tuple[str, str]:
        """The names of the first and the last sample: with their number, what tells data apart at no cost."""
        first, last = (0, self._n - 1) if self._indices is None else (int(self._indices[0]), int(self._indices[-1]))
        return self.dataset.sample_name(first), self.dataset.sample_name(last)

    def _fingerprint(self) -> str:
        fingerprint = self.dataset.fingerprint
        if self._indices is None:
            return fingerprint
        return hashlib.sha256(fingerprint.encode() + self._indices.tobytes()).hexdigest()

    def _slices(self, start: int) -> Slices:
        c = self.config
        equal, even = self._equal_rows, self._follows.even
        return Slices(self._n, start, c.batch_size, c.rank, c.world_size, c.drop_last, equal, even)
