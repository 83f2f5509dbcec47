"""What a DATA argument means, and the loaders that training, evaluation and prediction read it with."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol, get_args

import numpy as np
import numpy.typing as npt

from fastimg.config.flag_types import parse_workers
from fastimg.config.training import Augmenting
from fastimg.config.values.folds import Fold
from fastimg.errors import UsageError, UserError, printable
from fastimg.loaders import (
    CenterCrop,
    DataError,
    Dataset,
    FilesDataset,
    RandomCrop,
    RandomResizedCrop,
    list_splits,
    open_dataset,
)
from fastimg.loaders.backends.selection import MissingBackend, check_installed, open_source, reads
from fastimg.loaders.backends.settings import RGB_ONLY, Backend, Reading
from fastimg.loaders.containers.bands import BandsDataset
from fastimg.loaders.containers.content import singular
from fastimg.loaders.containers.datasets import is_plain_folder
from fastimg.loaders.crop import CropRule, Interpolation, least_pixels
from fastimg.loaders.decode import MAX_PIXELS
from fastimg.loaders.folders.bands import is_bands
from fastimg.loaders.folders.folder import Level
from fastimg.loaders.jpeg.decoding.region import Scaling
from fastimg.loaders.remote.listing import named_tars
from fastimg.loaders.remote.mirrors import mirror_at
from fastimg.loaders.remote.stores import url_of
from fastimg.wording import plural

from . import folds
from .splits import share_of_split, stratified_split

if TYPE_CHECKING:  # torch takes seconds to import: a flag is refused without it
    import torch

    from fastimg.loaders import BatchSource, LoaderConfig
    from fastimg.loaders.backends.resident import ResidentImages
    from fastimg.models.ranks import Ranks
    from fastimg.models.registry import Preprocessing


class TextSource(Protocol):
    """The texts beside the images of a split, by the ids of a batch."""

    def fields(self, ids: "torch.Tensor", device: "torch.device") -> "dict[str, torch.Tensor]":
        """What a batch of these samples has beside its images, on the device."""


@dataclass(frozen=True)
class DatasetPart:
    """A split as it is used: a dataset, or those samples of it that `indices` names."""

    dataset: Dataset
    indices: npt.NDArray[np.int64] | None
    origin: str  # in words
    held_out: float | None = None  # the share of the training split, for a validation part that was taken from it
    fold: Fold | None = None  # for a validation part that is one
    split: str | None = None  # the split, for one that is read whole
    held: "ResidentImages | None" = None  # its images, where they are kept on the device
    texts: "TextSource | None" = None  # beside its images, where the model reads them

    def __len__(self) -> int:
        return len(self.dataset) if self.indices is None else len(self.indices)


def filled_splits(path: Path, classes: Level | None = None, evaluates: bool = False) -> dict[str, int]:
    """The splits of `list_splits` that have samples: earlier versions could append one without."""
    return {name: count for name, count in list_splits(path, classes, evaluates).items() if count}


def open_filled(path: Path, split: str, classes: Level | None = None, evaluates: bool = False) -> Dataset:
    """Open a split to train on or to evaluate. Raises DataError if it has no samples."""
    dataset = open_dataset(path, split, classes, evaluates=evaluates)
    if len(dataset):
        return dataset
    dataset.close()
    raise DataError(f"{path}: the split {split!r} has no samples; name another split")


def open_parts(
    path: Path,
    train_split: str,
    val_split: str | None,
    val_fraction: float | None,
    seed: int,
    classes: Level | None = None,
    fold: Fold | None = None,
) -> tuple[DatasetPart, DatasetPart | None]:
    """The training and the validation part of DATA, all of whose samples have labels, unless it names its targets.

    Raises UsageError for flags that would have no effect, and UserError for samples without a label. A test split that
    nobody named and that has no labels is not read where `val_fraction` is given.
    """
    check_classes(path, classes)
    if fold is not None:
        return _open_fold(path, train_split, classes, fold)
    splits = filled_splits(path, classes)
    named = val_split is not None
    if val_split is None:
        val_split = next((name for name in ("val", "test") if name in splits and name != train_split), None)
    train = open_filled(path, train_split, classes)
    declared = names_targets(train)  # then a sample may lack some of them
    if not declared:
        check_labels(path, train_split, train, len(train.classes))
    if val_split is not None:
        val = open_filled(path, val_split, classes)
        unlabelled = bool((val.labels < 0).any()) and not names_targets(val)
        if val_fraction is not None and not (unlabelled and not named):
            raise UsageError(f"--val-fraction has no effect: {path} has a {val_split} split; leave it out")
        if val_fraction is not None:
            val.close()
            val_split = None
    if val_split is not None:
        if val.classes != train.classes[: len(val.classes)]:  # fewer where nobody named them and the last have none
            raise UserError(
                f"{path}: the {val_split} split has other classes than the {train_split} split; convert it again"
            )
        others = "name another split with --val-split"
        if not named:
            others += f", or hold some of {train_split} out with --val-fraction 0.1"
        if not declared:
            check_labels(path, val_split, val, len(train.classes), others)
        return DatasetPart(train, None, train_split), DatasetPart(val, None, f"the {val_split} split", split=val_split)
    fraction = 0.1 if val_fraction is None else val_fraction
    if fraction == 0.0:
        return DatasetPart(train, None, train_split), None
    kept, held_out = stratified_split(train.labels, fraction, seed)
    if len(held_out) == 0:
        raise UserError(f"{path}: too few samples to hold any out for validation; add images, or use --val-fraction 0")
    share = share_of_split(len(held_out), len(train), singular(train.content), train_split)
    origin = f"{share}, held out by seed {seed}"
    return DatasetPart(train, kept, train_split), DatasetPart(train, held_out, origin, held_out=fraction)


def names_targets(dataset: Dataset) -> bool:
    """Whether the data declares targets, which a sample may lack; otherwise it has a class, and needs it."""
    return dataset.targets[0].declared


def _open_fold(path: Path, split: str, classes: Level | None, fold: Fold) -> tuple[DatasetPart, DatasetPart]:
    """The split without a fold, and the fold."""
    dataset = open_filled(path, split, classes)
    if not names_targets(dataset):
        check_labels(path, split, dataset, len(dataset.classes))
    inside = folds.held_out(dataset, path, fold)
    kept, chosen = np.flatnonzero(~inside), np.flatnonzero(inside)
    origin = f"{fold}, {share_of_split(len(chosen), len(dataset), singular(dataset.content), split)}"
    part = DatasetPart(dataset, chosen, origin, held_out=len(chosen) / len(dataset), fold=fold)
    return DatasetPart(dataset, kept, split), part


def check_labels(
    path: Path, split: str, dataset: Dataset, classes: int, other: str = "name another split with --train-split"
) -> None:
    """Raises UserError unless every sample of a split has a label below `classes`: a model is never given another.

    Whichever loader reads it: on a GPU such a label would end the process with a device-side assert. The whole split is
    checked, since any sample of it may fill a batch. `other` is what to do instead of labelling.
    """
    wrong = np.flatnonzero((dataset.labels < 0) | (dataset.labels >= classes))
    if not len(wrong):
        return
    first = int(wrong[0])
    label = int(dataset.labels[first])
    name = printable(dataset.sample_name(first))
    what = "has no label" if label < 0 else f"has the label {label}, and there are {plural(classes, 'class')}"
    more = f" (and so it is with {len(wrong) - 1:,} more)"
    raise UserError(
        f"{path}: the sample {name} of the {split} split {what}{more if len(wrong) > 1 else ''}; convert it again with "
        f"labels, or {other}"
    )


def check_classes(path: Path, classes: Level | None) -> None:
    """Raises UsageError for --classes with data whose classes are not named by folders."""
    if classes is not None and not is_plain_folder(path):
        raise UsageError(f"--classes {classes} has no effect: {path} is not a folder of class folders; leave it out")


def worker_count(workers: str, ranks: "Ranks") -> int:
    """Loader threads: as given; with `auto` all cores of this process, or half of them if the CPU also trains."""
    return parse_workers(workers, ranks.cpus if ranks.device.type == "cuda" else max(1, ranks.cpus // 2))


def center_crop(preprocessing: "Preprocessing") -> CenterCrop:
    """What evaluation and prediction see of an image."""
    p = preprocessing
    return CenterCrop(size=p.val_size, resize=p.val_resize, interpolation=p.interpolation)


def train_crop(preprocessing: "Preprocessing", config: Augmenting) -> CropRule:
    """What training with augmentation sees of an image."""
    return random_crop(preprocessing.train_size, preprocessing.interpolation, config)


def random_crop(size: int, interpolation: Interpolation, config: Augmenting) -> CropRule:
    """The crop to `size` pixels that `config` asks for, with the usual scale and ratio where it has none."""
    if config.crop_padding is not None:
        return RandomCrop(size=size, padding=config.crop_padding, interpolation=interpolation)
    return RandomResizedCrop(
        size=size,
        interpolation=interpolation,
        scale=config.scale or RandomResizedCrop.scale,
        ratio=config.ratio or RandomResizedCrop.ratio,
    )


def chosen_backend(loader: str) -> Reading:
    """The loader that --loader names; auto is fastimg's own."""
    loaders: tuple[Reading, ...] = get_args(Reading)  # --resident is a flag of its own
    for name in loaders:
        if name == ("native" if loader == "auto" else loader):
            return name
    raise UsageError(f"--loader {loader}: give auto or {', '.join(loaders)}")


def check_backend(backend: Backend) -> None:
    """Raises UsageError where the library of a backend is not installed."""
    try:
        check_installed(backend)
    except MissingBackend as error:
        raise UsageError(f"--loader {backend}: {error}") from error


def check_readable(backend: Backend, data: Path, dataset: Dataset) -> None:
    """Raises UsageError where the loader does not read such data."""
    if not reads(backend, dataset):
        raise UsageError(
            f"--loader {backend}: FFCV reads only .beton files; {data} is not one; make one with `fastimg convert "
            f"{data} DST --format beton`, or choose another loader"
        )


def refuse_few_pixels(max_pixels: int | None, crop: CropRule, size_flag: str | None = None) -> None:
    """Raises UsageError for --max-pixels that no image could keep to, once it is resized for the crop.

    size_flag: what makes the crop smaller; None for that of a checkpoint.
    """
    least, why = least_pixels(crop)
    if max_pixels is not None and least > max_pixels:
        smaller = f", or a smaller {size_flag}" if size_flag else ""
        raise UsageError(f"--max-pixels {max_pixels}: no image could be read, as {why}; give {least} or more{smaller}")


def build_loader(
    part: DatasetPart,
    crop: CropRule,
    config: "LoaderConfig",
    max_pixels: int | None,
    device: "torch.device",
    backend: Backend = "native",
    decode: Literal["cpu", "gpu"] = "cpu",
    dct_scaling: Scaling = False,
    seen: "Preprocessing | None" = None,
) -> "BatchSource":
    """The loader of a part: of its images in memory, if they are kept there; of bands or 16 bits, where `seen` says so.

    Raises UsageError for a loader that does not make what is seen, and DataError for data without the bands.
    """
    if part.held is not None:
        from fastimg.loaders.backends.resident import ResidentLoader  # it imports torch

        return ResidentLoader(part.held, crop, config)
    channels, depth = (3, 8) if seen is None else (seen.channels, seen.depth)
    flag = "--decode gpu" if decode == "gpu" else f"--loader {backend}"
    most = MAX_PIXELS if max_pixels is None else max_pixels
    if seen is not None and seen.is_deep:
        if backend != "native" or decode == "gpu":
            what = "images of 16 bits" if depth == 16 else "bands"
            raise UsageError(f"{flag}: does not read {what}, which the model sees; leave it out")
        if seen.field is not None:
            return _bands_loader(part, crop, config, device, most, seen)
    if channels != 3 and (backend in RGB_ONLY or decode == "gpu"):
        raise UsageError(f"{flag}: makes only RGB images, and the model sees gray ones; leave it out")
    return open_source(
        backend, part.dataset, crop, config, device, part.indices, most, decode, dct_scaling, channels, depth
    )


def _bands_loader(
    part: DatasetPart,
    crop: CropRule,
    config: "LoaderConfig",
    device: "torch.device",
    max_pixels: int,
    seen: "Preprocessing",
) -> "BatchSource":
    """The loader of a field of a dataset, or of files of bands."""
    from fastimg.loaders import Loader  # it imports torch
    from fastimg.loaders.decoders.bands import BandsDecoder

    decoder = BandsDecoder(crop, seen.channels, seen.dtype, max_pixels)
    return Loader(banded(part.dataset, seen), decoder, config, device, part.indices)


def banded(dataset: Dataset, seen: "Preprocessing") -> Dataset:
    """The dataset as a model sees it: with the arrays of a field as content, where that is what it reads.

    Files of bands are what they are. Raises DataError for data without the field, or with another number of bands.
    """
    if seen.field is None or isinstance(dataset, BandsDataset):
        return dataset
    if isinstance(dataset, FilesDataset) and all(is_bands(file.name) for file in dataset.files()):
        return dataset
    made = BandsDataset(dataset, seen.field)
    if (made.schema.shape[0], made.schema.dtype) != (seen.channels, seen.dtype):
        raise DataError(
            f"{dataset.name}: the field {seen.field!r} has {plural(made.schema.shape[0], 'band')} of "
            f"{made.schema.dtype}, and the model reads {seen.channels} of {seen.dtype}; give other data"
        )
    return made


def display_name(path: Path) -> str:
    """A dataset's name in the name of a run."""
    mirror = mirror_at(path)
    url = url_of(path) if mirror is None else mirror.url
    if url is not None:
        return named_tars(url)[0].rpartition("/")[2] or "data"
    return os.path.basename(os.path.abspath(path)) or "data"
