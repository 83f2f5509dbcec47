"""What a script has of FFCV's Loader, from this package's loader."""

import contextlib
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from os import PathLike
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from fastimg.loaders.containers.betons.dataset import BetonDataset
from fastimg.loaders.containers.datasets import open_dataset
from fastimg.loaders.crop import Size
from fastimg.loaders.decoders.images import ImageDecoder
from fastimg.loaders.epochs.surroundings import ranks_here
from fastimg.loaders.errors import DataError
from fastimg.loaders.loader import Loader
from fastimg.loaders.order import Order
from fastimg.loaders.wording import plural

from .batches import Batches
from .pipelines import Pipelines

_ORDERS: dict[str, Order] = {"RANDOM": "random", "QUASI_RANDOM": "quasi-random", "SEQUENTIAL": "sequential"}
_NO_ARGUMENTS = ("self", "__class__")


class FFCVLoader(Batches):
    """The batches of a script that has FFCV's Loader, with two lines changed.

        from fastimg.loaders import FFCVLoader as Loader  # was: from ffcv.loader import Loader, OrderOption
        from ffcv.loader import OrderOption

        decoder = RandomResizedCropRGBImageDecoder((160, 160))
        image = [decoder, RandomHorizontalFlip(), ToTensor(), ToDevice(device), ToTorchImage(), NormalizeImage(...)]
        label = [IntDecoder(), ToTensor(), Squeeze(), ToDevice(device)]
        loader = Loader("train.beton", 256, 8, order=OrderOption.RANDOM, pipelines={"image": image, "label": label})
        for images, targets in loader:
            ...

    Fields come in the order of the file, each as its pipeline says. What a batch is, the pipelines' operations say, as
    FFCV's objects: the images' type and normalisation (to the bit), layout and device. `decoder.output_size` may be set
    before each epoch, to any size. Batches stay valid.

    fname: a .beton file with one field of images, and one of whole numbers or none. Others are given the pipeline None.
    num_workers: number of threads; less than 1: one for each core available to this process.
    order: OrderOption.RANDOM, QUASI_RANDOM (which takes `distributed`, too) or SEQUENTIAL; not a TraversalOrder.
    distributed: whether this process reads its share: the ranks are torch.distributed's or torchrun's. If not, every
        process reads everything, with a warning where there are several.
    seed: None: torch's initial seed, which `torch.manual_seed` sets, or 0 with several processes.
    pipelines: of each field: a list of operations, or None for a field that is left out. Images may be decoded by
        RandomResizedCropRGBImageDecoder, CenterCropRGBImageDecoder and SimpleRGBImageDecoder, and changed by
        RandomHorizontalFlip, RandomTranslate, Cutout, RandomBrightness, RandomContrast, RandomSaturation,
        NormalizeImage, Convert, View, and modules of torch, as they are or in a ModuleWrapper, after ToTorchImage.
    drop_last: leave out a last batch that is not full over all processes.
    batches_ahead: number of batches that are prepared while one is in use.
    os_cache, recompile: have no effect: files are read through the system's cache, and nothing is compiled anew.

    It differs from FFCV in that images are resized antialiased (FFCV averages areas), that no process reads a sample
    twice so that all have equally many, and that flips, crops and colours depend on the seed, the epoch and the sample
    alone. A module is called once per batch, as by FFCV, and draws from torch's generator.

    Raises ValueError for an operation that it does not know, which is named, TypeError for arguments that it cannot
    take, and DataError for files that are no .beton of images. Iterating raises DataError for an image that cannot be
    decoded, and RuntimeError if an operation other than the decoder's `output_size` was changed.
    """

    def __init__(
        self,
        fname: str | PathLike[str],
        batch_size: int,
        num_workers: int = -1,
        os_cache: bool = True,
        order: Any = "SEQUENTIAL",
        distributed: bool = False,
        seed: int | None = None,
        indices: npt.ArrayLike | None = None,
        pipelines: Mapping[str, Sequence[Any] | None] = MappingProxyType({}),
        custom_fields: Mapping[str, Any] = MappingProxyType({}),
        drop_last: bool = True,
        batches_ahead: int = 3,
        recompile: bool = False,
    ) -> None:
        self._arguments = {name: value for name, value in locals().items() if name not in _NO_ARGUMENTS}
        self._arguments |= {"pipelines": dict(pipelines), "custom_fields": dict(custom_fields)}
        if custom_fields:
            raise TypeError(
                f"FFCVLoader: does not read custom fields ({', '.join(custom_fields)}); give them the pipeline None"
            )
        name = getattr(order, "name", order)
        if name not in _ORDERS:
            raise TypeError(
                f"FFCVLoader: cannot take order={order!r}; give OrderOption.RANDOM, QUASI_RANDOM or SEQUENTIAL, or "
                "indices in their order with SEQUENTIAL"
            )
        processes = ranks_here()[1]
        if processes > 1 and not distributed:
            warnings.warn(
                f"FFCVLoader: each of {plural(processes, 'process')} reads all samples; give "
                "distributed=True for a share",
                stacklevel=2,
            )
        self._fields = _fields(fname, pipelines)
        self._pipelines = self._fields.pipelines()
        loader = Loader(
            fname,
            ImageDecoder(self._pipelines.crop),
            device=self._pipelines.device,
            indices=indices,
            batch_size=batch_size,
            order=_ORDERS[name],
            padding="samples",
            drop_last=drop_last,
            seed=seed,
            workers=None if num_workers < 1 else num_workers,
            prefetch=max(2, batches_ahead + 1),
            on_error="fail",
            rank=None if distributed else 0,
            world_size=None if distributed else 1,
        )
        super().__init__(loader, self._pipelines.finish)

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        now = self._fields.pipelines()
        if now.crop.size != self._pipelines.crop.size:
            self.set_size(now.crop.size)
            self._pipelines = replace(self._pipelines, crop=now.crop)
        if now != self._pipelines:
            raise RuntimeError(
                "FFCVLoader: an operation was changed after the loader was made, in more than the decoder's "
                "output_size; make a new loader"
            )
        for images, labels in super().__iter__():
            if self._fields.label is None:
                yield (images,)
            else:
                yield (images, labels) if self._fields.image_first else (labels, images)

    def __reduce__(self) -> tuple[Any, ...]:
        """Its arguments and its position: for processes that are spawned, and for copies."""
        return _made_again, (type(self), self._arguments, self.state_dict(), self._loader.size)

    @property
    def indices(self) -> npt.NDArray[np.int64]:
        """The samples of the file that are read."""
        given = self._loader.indices
        return np.arange(len(self._loader.dataset)) if given is None else given


class _Fields(NamedTuple):
    """The operations of the fields that are read."""

    image: list[Any]
    label: list[Any] | None
    image_first: bool
    size: tuple[int, int] | None  # (height, width) of all images, if they have one

    def pipelines(self) -> Pipelines:
        """What the operations do, as they are now. Raises ValueError."""
        return Pipelines.of(self.image, self.label, self.size)


def _fields(fname: str | PathLike[str], pipelines: Mapping[str, Sequence[Any] | None]) -> _Fields:
    """Raises DataError, ValueError and TypeError as `FFCVLoader` does."""
    with contextlib.closing(open_dataset(str(fname))) as dataset:
        if not isinstance(dataset, BetonDataset) or dataset.content != "images":
            raise DataError(f"{fname}: is no .beton file of images; give one, or read it with a Loader")
        fields = dataset.reader.fields
        if unknown := [name for name, given in pipelines.items() if given is not None and name not in fields]:
            raise ValueError(f"{fname}: has no field {unknown[0]!r}; its fields are {', '.join(fields)}")
        operations = {name: pipelines.get(name, ()) for name in fields}
        read = [name for name, given in operations.items() if given is not None]
        for name in read:
            if name not in (dataset.image_field, dataset.label_field):
                raise TypeError(
                    f"FFCVLoader: reads images and one class each; give the field {name!r} ({fields[name].kind}) the "
                    "pipeline None, or read it with Loader(fields=...)"
                )
            if not isinstance(operations[name], Sequence):
                kind = type(operations[name]).__name__
                raise TypeError(f"FFCVLoader: the pipeline of {name!r} is a {kind}; give a list of operations")
        if dataset.image_field not in read:
            raise TypeError(f"FFCVLoader: reads images; leave out the pipeline None of {dataset.image_field!r}")
        column = dataset.reader.column(dataset.image_field)
        first = column[:1]
        same = len(first) and all((column[side] == first[side]).all() for side in ("height", "width"))
        labels = None if dataset.label_field not in read else operations[dataset.label_field or ""]
        return _Fields(
            list(operations[dataset.image_field] or ()),
            None if labels is None else list(labels),
            read[0] == dataset.image_field,
            (int(first["height"][0]), int(first["width"][0])) if same else None,
        )


def _made_again(kind: type[FFCVLoader], given: dict[str, Any], state: dict[str, Any], size: Size | None) -> FFCVLoader:
    """A loader that was pickled. What it warned of has been said where it was made."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        loader = kind(**given)
    if size is not None:
        loader.set_size(size)
    loader.load_state_dict(state)
    return loader
