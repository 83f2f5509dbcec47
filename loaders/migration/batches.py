"""The batches of a loader as tuples or dicts, with what a script asks torch's DataLoader for."""

import logging
import math
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, NoReturn, Self

import torch
from torch.utils.data import SequentialSampler

from fastimg.loaders.arguments import refuse_index
from fastimg.loaders.crop import Size
from fastimg.loaders.errors import DataError
from fastimg.loaders.wording import plural

from .accelerate_state import reading
from .finish import Finish, Finishes
from .steps import augmentation

if TYPE_CHECKING:
    from fastimg.loaders.batch import Batch
    from fastimg.loaders.loader import Loader

_log = logging.getLogger("fastimg.loaders")

# Where little is augmented, code that is not in the machine's cache is not compiled. Policies are taken to be applied
# for so many epochs, and without compiled code to take so long for each value of an image, on one core of a shared
# server.
_EPOCHS = 3
_SECONDS_A_VALUE = 4e-8


class Sampler:
    """What `loader.sampler` is: a length, and an epoch to be told."""

    def __init__(self, batches: "Batches", length: Callable[[], int]) -> None:
        self._batches = batches
        self._length = length

    def __len__(self) -> int:
        return self._length()

    @property
    def batch_size(self) -> int:
        """That of the loader."""
        return self._batches.batch_size

    @property
    def drop_last(self) -> bool:
        """That of the loader."""
        return self._batches.drop_last

    @property
    def sampler(self) -> "Sampler":
        """That of the loader."""
        return self._batches.sampler

    def set_epoch(self, epoch: int) -> None:
        """Tell the loader."""
        self._batches.set_epoch(epoch)

    def __iter__(self) -> Any:
        raise TypeError("the loader's sampler does not list indices: each epoch's order is the loader's own")


class InOrder(Sampler, SequentialSampler):
    """The sampler of a loader that does not shuffle, as frameworks recognise it."""


class BatchSampler(Sampler):
    """What `loader.batch_sampler` is: in place of each batch's indices it has none, of which `loader.collate_fn` makes
    the batch. So a DataLoader that is made of both, as `skip_first_batches` of accelerate does, has the loader's own
    batches, and those that are not asked for are not read."""

    def __iter__(self) -> Iterator[list[int]]:
        return self._batches.turns()


class _Reading:
    """The loader that is read, by one iteration at a time: if one begins while another is held, it gets a loader of its
    own, which is the one from then on."""

    def __init__(self, loader: "Loader") -> None:
        self.loader = loader
        self._busy: Loader | None = None

    def begin(self) -> "Loader":
        """The loader of an iteration that begins now."""
        if self._busy is not None:
            self.loader = self.loader.another()
        self._busy = self.loader
        return self.loader

    def end(self, loader: "Loader") -> None:
        """The iteration that `begin` gave this loader is over, or nobody holds it any more."""
        if self._busy is loader:
            self._busy = None


class Batches:
    """The batches of a `Loader` as a script takes them: augmented, normalised, without padding, valid for as long as
    they are held.

    Each `for images, targets in batches` is one epoch of `len(batches)` batches. `set_epoch`, `state_dict` and
    `load_state_dict` are the loader's; `close`, or the end of a `with` block, closes it. Attributes are those of
    torch's DataLoader. Of several iterations at once each is an epoch of its own, in its own order, and has threads and
    memory of its own; a state is that of the one that was begun last.

    Where an Accelerator of accelerate is in use, all ranks have equally many rows: see `Slices`.

    Iterating raises DataError for a batch of which no image could be decoded, or with accelerate any could not, where
    several ranks need it.
    """

    # What scripts and frameworks read of a DataLoader about its processes, which there are none of; the threads are
    # `Loader.workers`.
    pin_memory = False
    persistent_workers = False
    prefetch_factor = worker_init_fn = multiprocessing_context = generator = None
    num_workers = timeout = 0

    def __init__(
        self,
        loader: "Loader",
        finish: Finishes,
        *,
        names: tuple[str, str] | None = None,
        then: Callable[[Any, torch.Tensor], tuple[Any, Any]] | None = None,
    ) -> None:
        if then is not None and not callable(then):
            raise TypeError(f"then={then!r}: give a function of images and targets, which returns both")
        self._reading = _Reading(loader)  # which `dicts` has, too
        self._finish = finish
        self._names = names
        self._then = then
        self._begun = False  # whether compiled code was used
        self._plain_seconds = 0.0  # of augmentation without it
        self._turn = 0  # of `turns`
        self._read: Iterator[Any] | None = None  # by `collate_fn`

    @property
    def _loader(self) -> "Loader":
        return self._reading.loader

    def _augments_plainly(self) -> bool:
        """Whether an iteration that begins now does without compiled code, as little is augmented by it."""
        loader = self._loader
        policies = self._finish.applied
        if not policies or loader.device.type != "cpu":
            return False
        values = loader.slot_bytes / loader.batch_size * self._samples / loader.config.world_size
        ahead = _EPOCHS * _SECONDS_A_VALUE * values * len(policies)
        return max(ahead, self._plain_seconds) < augmentation().seconds_to_compile(policies)

    def _finishing(self, plainly: bool) -> AbstractContextManager[None]:
        if plainly:
            return augmentation().compiling_nothing()
        if self._begun or self._loader.device.type != "cpu" or "numba" not in sys.modules:  # which texts do not need
            return nullcontext()
        from fastimg.loaders.runtime.compiled import saying_what_is_compiled

        self._begun = True
        return saying_what_is_compiled("the augmentation", _log.warning)

    def __len__(self) -> int:
        return len(self._loader)

    def __repr__(self) -> str:
        config = self._loader.config
        order = "in order" if config.order == "sequential" else "shuffled"
        return f"{type(self).__name__}({plural(self._samples, 'sample')}, batches of {config.batch_size}, {order})"

    def __iter__(self) -> Iterator[Any]:
        loader = self._reading.begin()
        state = None
        try:
            state = reading()
            loader.give_equal_rows(state is not None)
            plainly = self._augments_plainly()
            for batch in loader:
                if not batch.samples and loader.config.world_size == 1:
                    continue
                if batch.samples < len(batch) and batch.samples < self._needed(batch, state is not None):
                    raise DataError(
                        f"{loader.dataset.name}: images of a batch could not be decoded, and all ranks need "
                        f"{'equally many rows' if batch.samples else 'equally many batches'}; remove the images that "
                        "`unreadable` names"
                    )
                began = time.perf_counter()
                with self._finishing(plainly):
                    images, targets = self._finish(batch, loader.config.seed, loader.epoch)
                self._plain_seconds += time.perf_counter() - began if plainly else 0.0
                if self._then is not None:
                    images, targets = _pair(self._then(images, targets))
                if state is not None:
                    state.end_of_dataloader, state.remainder = loader.at_end, loader.remainder
                yield self._named(images, targets)
        finally:
            self._reading.end(loader)
            if state is not None:
                state.end()

    def _needed(self, batch: "Batch", gathered: bool) -> int:
        """The number of samples that a batch has to have, for ranks to have equally many batches or rows."""
        loader = self._loader
        world_size = loader.config.world_size
        if gathered and world_size > 1:
            left = loader.remainder if loader.at_end else 0
            return -(-left // world_size) or len(batch)
        return int(loader.unreadable.keys() >= set(batch.ids.tolist()))  # else it is one of padding

    def _named(self, images: Any, targets: Any) -> Any:
        return (images, targets) if self._names is None else dict(zip(self._names, (images, targets), strict=True))

    def dicts(self, images: str = "pixel_values", targets: str = "labels") -> Self:
        """The same batches as dicts of images and targets by these names, which are those of transformers."""
        named = object.__new__(type(self))
        named.__dict__ |= self.__dict__ | {"_names": (images, targets)}
        return named

    @property
    def collate_fn(self) -> Callable[[Sequence[Any]], Any]:
        """Makes the next batch of the nothing that `batch_sampler` lists: see there."""
        return self._next_of

    def turns(self) -> Iterator[list[int]]:
        """An epoch of `batch_sampler`. Those that are taken before `collate_fn` is called for the first time count as
        read, in whichever way that was."""
        self._read = None
        for turn in range(len(self)):
            self._turn = turn
            yield []
        self._read = None

    def _next_of(self, samples: Sequence[Any]) -> Any:
        if samples:
            raise TypeError("collate_fn is for the batches of this loader, not for samples of its dataset")
        if self._read is None:
            if self._turn:
                self._loader.begin_at(self._turn)
            self._read = iter(self)
        return next(self._read)

    def __getitem__(self, index: object) -> NoReturn:
        refuse_index(self, index)

    @property
    def batch_size(self) -> int:
        """The number of samples of a batch, per rank."""
        return self._loader.config.batch_size

    @property
    def drop_last(self) -> bool:
        """Whether a last batch that is not full is left out."""
        return self._loader.config.drop_last is True

    @property
    def dataset(self) -> Any:
        """What is read."""
        return self._loader.dataset

    @property
    def sampler(self) -> Sampler:
        """Its length is the number of samples that each rank reads, rounded up; it has `set_epoch`."""
        kind = InOrder if self._loader.config.order == "sequential" else Sampler
        return kind(self, lambda: -(-self._samples // self._loader.config.world_size))

    @property
    def batch_sampler(self) -> BatchSampler:
        """Its length is the number of batches; it has `set_epoch`."""
        return BatchSampler(self, self.__len__)

    @property
    def unreadable(self) -> Mapping[Any, str]:
        """Id -> reason, for every image that was left out so far."""
        return self._loader.unreadable

    @property
    def epoch(self) -> int:
        """The epoch that is being read, or the last one that was."""
        return self._loader.epoch

    def set_epoch(self, epoch: int) -> None:
        """Begin the next iteration with this epoch's order, crops and augmentation, as a DistributedSampler's.

        By default epochs count up from 0. A position within this epoch that a state has given is kept.
        """
        self._loader.set_epoch(epoch)

    def set_size(self, size: Size) -> None:
        """Change the size of images from the next iteration on: see `Loader.set_size`."""
        self._loader.set_size(size)

    def state_dict(self) -> dict[str, int | str]:
        """The position after the last batch, for any batch size and number of threads or processes."""
        return self._loader.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue in the next iteration where `state` was taken.

        Raises ValueError for another seed or order, and DataError for other files.
        """
        self._loader.load_state_dict(state)

    def compile(self) -> None:
        """See `Loader.compile`; what applies policies is compiled in the next iteration, too."""
        self._loader.compile()
        self._plain_seconds = math.inf

    def close(self) -> None:
        """Stop the threads. Iterating starts new ones, unless the loader has opened its data itself."""
        self._loader.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def _samples(self) -> int:
        indices = self._loader.indices
        return len(self._loader.dataset) if indices is None else len(indices)


def _pair(returned: Any) -> tuple[Any, Any]:
    """What a function that is given as `then` has returned: images and targets. Raises TypeError for anything else."""
    if not isinstance(returned, tuple | list) or len(returned) != 2:
        what = f"{len(returned)} values" if isinstance(returned, tuple | list) else type(returned).__name__
        raise TypeError(
            f"then= has returned {what}; return two, the images and the targets, of which `dicts()` makes a dict"
        )
    return returned[0], returned[1]


def batches_of(
    loader: "Loader",
    policy: Any,
    names: tuple[str, str] | None,
    *,
    num_classes: int | None,
    smoothing: float,
    dtype: torch.dtype,
    then: Callable[[Any, torch.Tensor], tuple[Any, Any]] | None,
) -> Batches:
    """See `Loader.tuples`."""
    if policy is not None and not hasattr(policy, "mixes"):
        raise TypeError(f"policy is of type {type(policy).__name__}; give a Policy of fastimg.augment, or None")
    if smoothing and num_classes is None:
        raise ValueError(f"smoothing={smoothing} needs num_classes, as it changes targets of one number for each class")
    if policy is not None and policy.mixes:
        if num_classes is None:
            num_classes = len(loader.dataset.classes) or None
        if num_classes is None:
            raise ValueError(f"{loader.dataset.name} names no classes, so mixup and cutmix need num_classes")
        if loader.has_views:
            raise ValueError(
                "a policy that mixes images changes their targets, and views share theirs: leave mixup and cutmix out"
            )
    finish = Finish(last=policy, dtype=dtype, num_classes=num_classes, smoothing=smoothing)
    return Batches(loader, finish, names=names, then=then)
