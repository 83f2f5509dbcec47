"""The fields that decoders fill, and the batch that the loader hands out."""

import gc
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from .epochs.surroundings import gathers
from .random import keyed
from .wording import plural


class Field(NamedTuple):
    """A field of a batch. `shape` leaves out the batch dimension; rows without a sample hold `blank`.

    The dtype is bool, uint8, uint16, int8, int16, int32, int64, float16, float32 or float64. A field of dtype object
    stays on the host, and only a decoder with its own ring can use it.

    apart: of shape (n, ...), and stored as [n, B, ...]: each of the n lies together. It is shown as [B, n, ...].
    """

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    blank: int | None = 0
    apart: bool = False


@dataclass(frozen=True, kw_only=True)
class FieldSelection:
    """The fields that a loader reads, and what becomes of those that a crop shows only in part.

    names: the fields, as the dataset names them.
    min_visibility: boxes of which less than this share of their area is left are dropped, and what belongs to them.
    ignore: the value of a mask's pixels where the crop shows no pixel of the image, and of a mask that is missing.

    Raises ValueError for names that occur twice, and for a share that is none.
    """

    names: Sequence[str]
    min_visibility: float = 0.0
    ignore: int = 255

    def __post_init__(self) -> None:
        names = (self.names,) if isinstance(self.names, str) else tuple(self.names)
        object.__setattr__(self, "names", names)
        if len(set(names)) < len(names):
            raise ValueError(f"fields {', '.join(names)}: name each field once")
        if not 0.0 <= self.min_visibility <= 1.0:
            raise ValueError(f"min_visibility={self.min_visibility}: give a share of a box's area, 0 to 1")


# The fields that every batch has in addition to the decoder's.
LABEL_FIELDS = (
    Field("targets", (), np.dtype(np.int64)),
    Field("ids", (), np.dtype(np.int64)),
    Field("weight", (), np.dtype(np.float32)),
)


@dataclass(slots=True, repr=False, eq=False)  # not frozen: Lightning copies a dataclass and sets the copy's fields
class Batch:
    """One batch on the device, valid until the next one is requested: the loader reuses its memory. `Loader(copy=True)`
    gives each batch memory of its own. `ids`, and on the host `targets` and `weight`, stay valid anyway.

    `keys` are what random numbers are drawn for, in place of ids: with a `sampling` a sample may come several times in
    an epoch, each time with a crop and augmentation of its own. `weight` is 1 for a real sample, 0 for padding and for
    a sample that could not be decoded (its pixels are zeros). `fields` holds, by name, what a decoder fills in addition
    to `inputs`: the fields that a `Loader(fields=...)` reads, and those of a custom decoder. With
    `Loader(views=)`, `views` lists the crops of each image, and `inputs` is the first.

    `images, targets = batch` gives both of the rows of weight 1, and for `images` the list of views if there are any.
    """

    inputs: torch.Tensor  # uint8 (or uint16) [B, C, H, W], channels-last; int32 tokens [B, L]; or arrays [B, ...]
    targets: torch.Tensor  # int64 [B], -1 where the dataset has no label
    ids: torch.Tensor  # int64 [B], indices in the dataset; always on the host, where augmentation is planned
    weight: torch.Tensor  # float32 [B]
    samples: int  # number of rows with weight 1, known on the host without asking the device
    ready: torch.cuda.Event | None = None  # recorded when the batch is complete, for streams other than the consumer's
    fields: Mapping[str, torch.Tensor] = field(default_factory=dict)  # [B, *shape] each, on the device
    repeats: torch.Tensor | None = None  # int64 [B], how often a sample came before in this epoch; None: none does
    by_view: Mapping[str, torch.Tensor] = field(default_factory=dict)  # uint8 [n, B, C, H, W] of each View, by name

    def __repr__(self) -> str:
        """One line: how many samples, and what each tensor is, without its values."""
        parts = [f"{self.samples} of {plural(len(self.ids), 'sample')}"]
        tensors = {"inputs": self.inputs, "targets": self.targets, **self.fields}
        tensors |= {f"views {name}": crops for name, crops in self.by_view.items()}
        for name, tensor in tensors.items():
            parts.append(f"{name} {str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}")
        return f"Batch({', '.join(parts)}, {self.inputs.device})"

    def __len__(self) -> int:
        """The number of rows, those of weight 0 included."""
        return len(self.ids)

    def __iter__(self) -> Iterator[Any]:
        images: list[torch.Tensor] = self.views or [self.inputs]
        targets = self.targets
        if self.samples < len(self.ids):  # a loop that does not know of weights would count padding as samples
            if gathers():
                raise RuntimeError(
                    "a Batch with rows of weight 0 is taken apart, and accelerate gathers equally many rows of all "
                    "ranks: iterate over loader.tuples(), or use batch.inputs, batch.targets and batch.weight"
                )
            kept = self.weight > 0
            images, targets = [view[kept] for view in images], targets[kept]
        return iter((images if self.by_view else images[0], targets))

    def to(self, device: torch.device | str | int, non_blocking: bool = False) -> "Batch":
        """The batch with its tensors on a device; `ids` stay on the host. Frameworks move batches by this method."""
        batch = self._mapped(lambda tensor: tensor.to(device, non_blocking=non_blocking))
        return batch if batch.inputs.device == self.inputs.device else replace(batch, ready=None)

    def pin_memory(self) -> "Batch":
        """The batch in pinned host memory of its own. Raises RuntimeError without a GPU."""
        return self._mapped(torch.Tensor.pin_memory)

    def _mapped(self, change: Callable[[torch.Tensor], torch.Tensor]) -> "Batch":
        by_view = {name: change(tensor) for name, tensor in self.by_view.items()}
        return replace(
            self,
            inputs=next(iter(by_view.values()))[0] if by_view else change(self.inputs),
            targets=change(self.targets),
            weight=change(self.weight),
            fields={name: change(tensor) for name, tensor in self.fields.items()},
            by_view=by_view,
        )

    @property
    def keys(self) -> torch.Tensor:
        """int64 [B] on the host: `ids`, and other numbers for samples that come again in this epoch."""
        repeats = None if self.repeats is None else self.repeats.numpy()
        return self.ids if repeats is None else torch.from_numpy(keyed(self.ids.numpy(), repeats))

    @property
    def views(self) -> list[torch.Tensor]:
        """uint8 [B, C, H, W] of each crop, in the order of the loader's views: the n of the first, then the next's."""
        return [crop for crops in self.by_view.values() for crop in crops]

    def views_of(self, name: str) -> torch.Tensor:
        """uint8 [n * B, C, H, W]: the crops of one View, as `torch.cat` would give them, but without a copy.

        Raises KeyError, with the names that there are, for another name.
        """
        if name not in self.by_view:
            raise KeyError(f"no view is called {name!r}; there are {', '.join(self.by_view) or 'none'}")
        return self.by_view[name].flatten(0, 1)

    @property
    def counts(self) -> dict[str, torch.Tensor]:
        """int32 [B] each: how many items of a field are real, such as boxes; the rest is padding."""
        counts = {name: self.fields.get(f"{name}_count") for name in self.fields}
        return {name: count for name, count in counts.items() if count is not None}

    @property
    def boxes_of_crop(self) -> torch.Tensor:
        """float32 [B, 4]: the crop's own box in the upright image, xyxy in its pixels, of a `Loader(fields=...)`.

        It reaches beyond the image where the crop is padded; it is zeros in rows without a sample.
        """
        if "crop_box" not in self.fields:
            raise ValueError("boxes_of_crop is for a Loader with fields; fields=[] is enough")
        return self.fields["crop_box"]


def host(array: npt.NDArray[np.int64] | None) -> torch.Tensor | None:
    """An array as a tensor on the host, if there is one."""
    return None if array is None else torch.from_numpy(array)


def copied(batch: Batch) -> Batch:
    """The same batch in memory of its own, copied on the consumer's stream."""
    own = batch._mapped(torch.clone)
    if batch.ready is None:
        return own
    ready = torch.cuda.Event()  # type: ignore[no-untyped-call]
    ready.record(torch.cuda.current_stream(own.inputs.device))
    return replace(own, ready=ready)


class HeldBatches:
    """The batches of one iteration, and the tensors of batches, that the consumer still holds; memory is reused."""

    def __init__(self) -> None:
        self._handed_out: dict[str, list[weakref.ref[torch.Tensor]]] = {}

    def add(self, batch: Batch) -> None:
        """Called for each batch before it is handed out. Its tensors are objects of their own."""
        tensors = {"inputs": batch.inputs, "targets": batch.targets, "weight": batch.weight}
        for name, tensor in (*tensors.items(), *batch.fields.items(), *batch.by_view.items()):
            held = [ref for ref in self._handed_out.get(name, ()) if ref() is not None]
            self._handed_out[name] = [*held, weakref.ref(tensor)]

    def refuse_overwritten(self) -> None:
        """Raise RuntimeError if what is held lies in the same memory, as in `list(loader)`.

        Called when the next batch is requested. A loop holds the last batch, which is as it should be, and may have
        kept one more, such as the first: so two are never refused.
        """
        if not self._overwritten():
            return
        gc.collect()  # what only a cycle holds, nobody reads
        if held := self._overwritten():
            name, count = held
            raise RuntimeError(
                f"{name} of {plural(count, 'batch')} of a Loader are held, but it has reused their memory, so that "
                "some show the samples of others: a batch is valid until the next one is requested; use copy=True to "
                "keep batches, or clone() to keep a tensor"
            )

    def _overwritten(self) -> tuple[str, int] | None:
        """The name and number of tensors that are held, if some lie in the same memory."""
        for name, refs in self._handed_out.items():
            held = [tensor for ref in refs if (tensor := ref()) is not None]
            if 2 < len(held) > len({tensor.data_ptr() for tensor in held}):
                return name, len(held)
        return None
