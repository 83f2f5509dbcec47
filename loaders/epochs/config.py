"""How a dataset is read: the settings that all backends share."""

from dataclasses import dataclass
from typing import Literal, get_args

from fastimg.loaders.crop import whole
from fastimg.loaders.order import BLOCK, WINDOW, DropLast, Order, Sampling

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
    drop_last: DropLast = False  # leave out a last batch that is not full, or only what ranks cannot share evenly
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
        if self.drop_last != "uneven":
            if self.drop_last not in (False, True):
                raise ValueError(f'drop_last={self.drop_last!r}: give True, False or "uneven"')
            object.__setattr__(self, "drop_last", bool(self.drop_last))
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
