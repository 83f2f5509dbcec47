"""What a script gives as its data -> the samples that are read.

torchvision's datasets of files, CIFAR's arrays, timm's ImageDataset, Hugging Face's Dataset, Subsets and
ConcatDatasets of these, and folders. Datasets are known by their names and attributes: torchvision is not imported,
which would take seconds.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from fastimg.loaders.containers.datasets import Dataset
from fastimg.loaders.decode import read_header
from fastimg.loaders.errors import DataError
from fastimg.loaders.folders.folder import FilesDataset
from fastimg.loaders.folders.walk import relative
from fastimg.loaders.runtime.scratch import Scratch

from .arrow import ArrowImages, arrow_images, is_hugging_face
from .pixels import PixelsDataset

Ids = npt.NDArray[np.int64]
Pairs = list[tuple[str, int]]  # of a path and a class

# torchvision's, in its order
EXTENSIONS = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")

# torchvision's class whose `__getitem__` reads a file and its label -> the attributes that it reads them from: one with
# pairs, or one with the files and one with the labels
_FILES = {
    "DatasetFolder": ("samples",),
    **dict.fromkeys(("GTSRB", "Imagenette", "RenderedSST2", "StanfordCars"), ("_samples",)),
    **dict.fromkeys(("DTD", "FGVCAircraft", "Flowers102", "Food101", "SUN397"), ("_image_files", "_labels")),
    "OxfordIIITPet": ("_images", "_labels"),
    "Places365": ("imgs",),
}
_ARRAYS = {"CIFAR10": ("data", "targets")}  # CIFAR100 has its `__getitem__`
_LOADERS = {("torchvision.datasets.folder", name) for name in ("default_loader", "pil_loader")}  # that make RGB
_OWN_CODE = (
    "which would not be called; give {instead}, and apply the rest to the batches that come, or decode with a Loader "
    "and a Decoder of your own"
)


@dataclass(frozen=True)
class FolderData:
    """What `loader.dataset` is where a script has given a folder: the attributes of an ImageFolder."""

    root: str
    classes: list[str]
    samples: Pairs
    transform: Any
    target_transform: None = None

    @property
    def class_to_idx(self) -> dict[str, int]:
        """The number of each class."""
        return {name: number for number, name in enumerate(self.classes)}

    @property
    def targets(self) -> list[int]:
        """The class of each sample."""
        return [target for _, target in self.samples]

    @property
    def imgs(self) -> Pairs:
        """`samples`, by their other name."""
        return self.samples

    def __len__(self) -> int:
        return len(self.samples)


class _Watched(NamedTuple):
    """An attribute that the samples were read from, as it was then."""

    owner: Any
    name: str
    value: Any
    held: list[Any] | None  # what it held then, if it is a list

    @property
    def same(self) -> bool:
        now = getattr(self.owner, self.name, None)
        return now is self.value and (self.held is None or now == self.held)


@dataclass(frozen=True)
class ScriptData:
    """The samples of a script's data, and what they were read from."""

    data: Any  # as it was given; a FolderData for a path
    dataset: Dataset
    indices: Ids | None  # of the samples that are read; None: all
    classes: list[Any]
    files: Pairs | None  # of all samples of the dataset; None: they are no files
    parts: tuple[Any, ...]  # the datasets in `data` that have a transform
    watched: tuple[_Watched, ...]

    @property
    def samples(self) -> Pairs:
        """The path, or the name, and the class of each sample of the data."""
        ids = range(len(self.dataset)) if self.indices is None else self.indices.tolist()
        if self.files is not None:
            return [self.files[index] for index in ids]
        labels = self.dataset.labels.tolist()
        return [(self.dataset.sample_name(index), labels[index]) for index in ids]

    @property
    def targets(self) -> list[int]:
        """The class of each sample of the data."""
        labels = self.dataset.labels
        targets: list[int] = (labels if self.indices is None else labels[self.indices]).tolist()
        return targets

    def transforms(self) -> list[Any]:
        """The transform that each part has now."""
        return [part.transform for part in self.parts]

    def first_size(self) -> tuple[int, int]:
        """(height, width) of the first image that is read. Raises ImageError if it cannot be decoded."""
        first = 0 if self.indices is None else int(self.indices[0])
        header = read_header(self.dataset.read(first, Scratch()))
        return header.size[1], header.size[0]

    def check_unchanged(self) -> None:
        """Raises RuntimeError where another list of samples, or of indices, is in its place: it would not be read."""
        for watched in self.watched:
            if not watched.same:
                raise RuntimeError(
                    f"ImageFolderLoader: {watched.name} of the {type(watched.owner).__name__} was changed after the "
                    "loader was made, which reads what it was then; make a new loader"
                )


def source_of(data: Any, transform: Any = None) -> ScriptData:
    """The samples of a dataset or a folder.

    Raises TypeError for data whose own code would not be called, and for others that it does not know; DataError for a
    folder without classes or images.
    """
    if isinstance(data, str | os.PathLike):
        root = Path(data).expanduser()
        classes, samples = list_samples(root)
        folder = FolderData(str(root), classes, samples, transform)
        return ScriptData(folder, _files([root], samples, classes), None, list(classes), samples, (folder,), ())
    watched: list[_Watched] = []
    parts: list[Any] = []
    ids = _walk(data, parts, watched)
    whole = len(parts) == 1 and data is getattr(parts[0], "owner", parts[0])
    if transform is not None and any(part.transform is not None for part in parts):
        kind = type(getattr(parts[0], "owner", parts[0])).__name__
        raise TypeError(f"ImageFolderLoader: the {kind} has a transform; leave out this one")
    named = [_classes_of(part) for part in parts]
    classes = named[0] if all(names == named[0] for names in named) else []
    kinds = {ArrowImages: _of_arrow, PixelsDataset: _of_arrays, FilesDataset: _of_files}
    made = {_kind(part) for part in parts}
    if len(made) > 1:
        raise TypeError("ImageFolderLoader: files and arrays are in one ConcatDataset; make a loader for each")
    return kinds[made.pop()](data, parts, watched, None if whole else ids, classes)


def _kind(part: Any) -> type[Dataset]:
    """What reads one of the datasets."""
    if isinstance(part, ArrowImages):
        return ArrowImages
    return PixelsDataset if _base(part) in _ARRAYS else FilesDataset


def _repeats(ids: Ids | None) -> bool:
    """Whether a sample comes several times: each place is then a sample with crops of its own."""
    return ids is not None and len(np.unique(ids)) < len(ids)


def _of_files(data: Any, parts: list[Any], watched: list[_Watched], ids: Ids | None, classes: list[Any]) -> ScriptData:
    samples = [pair for part in parts for pair in _pairs(part)]
    if ids is not None and _repeats(ids):
        samples, ids = [samples[index] for index in ids.tolist()], None
    dataset = _files([_root_of(part) for part in parts], samples, classes)
    return ScriptData(data, dataset, ids, classes, samples, tuple(parts), tuple(watched))


def _of_arrays(data: Any, parts: list[Any], watched: list[_Watched], ids: Ids | None, classes: list[Any]) -> ScriptData:
    pixels = np.concatenate([part.data for part in parts]) if len(parts) > 1 else parts[0].data
    labels = [int(target) for part in parts for target in part.targets]
    if ids is not None and _repeats(ids):
        pixels, labels, ids = pixels[ids], [labels[index] for index in ids.tolist()], None
    dataset = PixelsDataset(type(parts[0]).__name__, pixels, _names(classes), labels)
    return ScriptData(data, dataset, ids, classes, None, tuple(parts), tuple(watched))


def _of_arrow(data: Any, parts: list[Any], watched: list[_Watched], ids: Ids | None, classes: list[Any]) -> ScriptData:
    dataset: ArrowImages = parts[0].followed_by(parts[1:]) if len(parts) > 1 else parts[0]
    if ids is not None and _repeats(ids):
        dataset, ids = dataset.taken(ids), None
    return ScriptData(data, dataset, ids, classes, None, tuple(parts), tuple(watched))


def _walk(data: Any, parts: list[Any], watched: list[_Watched]) -> Ids:
    """The ids of the samples of `data`. `parts` gets the datasets in it, whose samples follow one another."""
    if hasattr(data, "dataset") and hasattr(data, "indices"):
        _check_own_code(data, "torch.utils.data.", "a plain Subset")
        inner = _walk(data.dataset, parts, watched)
        watched += [_watch(data, name) for name in ("dataset", "indices")]
        places = np.asarray(data.indices, np.int64).reshape(-1)
        if len(places) and not -len(inner) <= places.min() <= places.max() < len(inner):
            raise ValueError(f"ImageFolderLoader: the Subset has indices beyond its dataset of {len(inner)}")
        return inner[places]
    if isinstance(getattr(data, "datasets", None), Sequence):
        if any(kind.__name__ in ("StackDataset", "ChainDataset") for kind in type(data).__mro__):
            raise TypeError(f"ImageFolderLoader: does not read a {type(data).__name__}; give a ConcatDataset")
        _check_own_code(data, "torch.utils.data.", "a plain ConcatDataset")
        watched.append(_watch(data, "datasets"))
        return np.concatenate([_walk(each, parts, watched) for each in data.datasets])
    if is_hugging_face(data):
        part = arrow_images(data)
        _check_own_code(data, "datasets.", "a plain Dataset")
        watched += [_watch(data, name) for name in ("data", "_indices")]
        start = sum(map(len, parts))
        parts.append(part)
        return start + np.arange(len(part), dtype=np.int64)
    if _is_timms(data):
        _check_timms(data)
        watched += [_watch(data.reader, "samples"), _watch(data, "reader"), _watch(data, "target_transform")]
    else:
        names = _check_part(data)
        watched += [_watch(data, name) for name in (*names, "target_transform", "loader")]
    start = sum(map(len, parts))
    parts.append(data)
    return start + np.arange(len(data), dtype=np.int64)


def _check_part(data: Any) -> tuple[str, ...]:
    """The attributes that hold the samples of one of torchvision's datasets. Raises TypeError for any other."""
    kind = type(data).__name__
    base = _base(data)
    if base is None:
        raise TypeError(f"ImageFolderLoader: give an ImageFolder or a folder, not {kind}")
    names = (_FILES | _ARRAYS).get(base)
    if names is None:
        known = ", ".join(sorted((_FILES | _ARRAYS).keys() - {"DatasetFolder"}))
        raise TypeError(f"ImageFolderLoader: does not read {kind}; it reads folders, an ImageFolder, {known}")
    _check_own_code(data, "torchvision.datasets.", "the dataset that it is derived from")
    if any(not hasattr(data, name) for name in names):
        raise TypeError(f"ImageFolderLoader: {kind} has no {' and '.join(names)}, as torchvision's has; give a folder")
    if getattr(data, "target_transform", None) is not None:
        raise TypeError("ImageFolderLoader: leave out target_transform, and apply it to the batches' targets")
    joint = getattr(data, "transforms", None)
    if joint is not None and type(joint).__name__ != "StandardTransform":
        raise TypeError("ImageFolderLoader: leave out transforms, and give the images' own as transform")
    if list(getattr(data, "_target_types", ["category"])) != ["category"]:
        raise TypeError(f'ImageFolderLoader: the targets of {kind} have to be classes; give target_types="category"')
    loader = getattr(data, "loader", None)
    if loader is not None and _name(loader) not in _LOADERS:
        raise TypeError("ImageFolderLoader: decodes files itself, as RGB; leave the dataset's own loader out")
    return names


def _is_timms(data: Any) -> bool:
    return any(each.__module__ == "timm.data.dataset" for each in type(data).__mro__)


def _check_timms(data: Any) -> None:
    """Raises TypeError for a dataset of timm's that is none of files in folders, or says itself what a sample is."""
    kind, reader = type(data).__name__, type(getattr(data, "reader", None)).__name__
    if kind == "AugMixDataset":
        raise TypeError(
            "timm's AugMixDataset, of several versions of each image, is not read; leave num_aug_splits out"
        )
    if kind == "IterableImageDataset" or reader != "ReaderImageFolder":
        raise TypeError(
            f"timm's {kind} with a {reader} is not read: unpack the data into class folders, whose root create_dataset "
            "takes, or write it as shards (fastimg.convert)"
        )
    _check_own_code(data, "timm.data.dataset", "timm's ImageDataset")
    if data.target_transform is not None:
        raise TypeError("leave target_transform out of timm's ImageDataset, and apply it to the batches' targets")
    if data.load_bytes or data.additional_features is not None:
        raise TypeError("leave load_bytes and additional_features out of timm's ImageDataset: files are read as images")
    if data.input_img_mode != "RGB":
        raise TypeError(f'timm\'s ImageDataset has input_img_mode={data.input_img_mode!r}; give "RGB"')


def _classes_of(part: Any) -> list[Any]:
    """The names of classes by number; those of timm's class map may be several for a number, or none."""
    if not _is_timms(part):
        return list(getattr(part, "classes", ()))
    named: dict[int, list[str]] = {}
    for name, number in part.reader.class_to_idx.items():
        named.setdefault(int(number), []).append(str(name))
    return [", ".join(named.get(number, [str(number)])) for number in range(max(named) + 1)]


def _root_of(part: Any) -> Path:
    return Path(part.reader.root if _is_timms(part) else part.root)


def _check_own_code(data: Any, library: str, instead: str) -> None:
    """Raises TypeError for a dataset that says itself what a sample is, or how many there are."""
    for method in ("__getitem__", "__getitems__", "__len__"):
        if hasattr(data, method) and not _owner(data, method).__module__.startswith(library):
            raise TypeError(
                f"ImageFolderLoader: {type(data).__name__} has a {method} of its own, "
                + _OWN_CODE.format(instead=instead)
            )


def _owner(data: Any, method: str) -> type:
    """The class that defines a method of an object."""
    return next((each for each in type(data).__mro__ if method in vars(each)), type(data))


def _base(data: Any) -> str | None:
    """The name of torchvision's class that says what a sample of `data` is, unless one derived from it does."""
    classes = (each for each in type(data).__mro__ if each.__module__.startswith("torchvision.datasets."))
    return next((each.__name__ for each in classes if "__getitem__" in vars(each)), None)


def _name(function: Any) -> tuple[str, str]:
    return getattr(function, "__module__", ""), getattr(function, "__name__", "")


def _watch(owner: Any, name: str) -> _Watched:
    value = getattr(owner, name, None)
    return _Watched(owner, name, value, value.copy() if isinstance(value, list) else None)


def _pairs(part: Any) -> Pairs:
    """(path, class) of each sample of a dataset of files."""
    if _is_timms(part):
        return [(os.fspath(path), int(target)) for path, target in part.reader.samples]
    names = _FILES[_base(part) or ""]
    if len(names) == 1:
        return [(os.fspath(path), int(target)) for path, target in getattr(part, names[0])]
    files, labels = (getattr(part, name) for name in names)
    return [(os.fspath(path), int(target)) for path, target in zip(files, labels, strict=True)]


def _files(roots: list[Path], samples: Pairs, classes: Sequence[Any]) -> FilesDataset:
    root = roots[0] if len(roots) == 1 else Path(os.path.commonpath([root.absolute() for root in roots]))
    paths = [relative(path if len(roots) == 1 else os.path.abspath(path), root) for path, _ in samples]
    return FilesDataset(root, paths, _names(classes), [target for _, target in samples])


def _names(classes: Sequence[Any]) -> tuple[str, ...]:
    """Classes as texts: those of torchvision's ImageNet are tuples of synonyms."""
    return tuple(", ".join(name) if isinstance(name, tuple) else str(name) for name in classes)


def list_samples(root: Path) -> tuple[list[str], Pairs]:
    """The classes of a folder, and (path, class) of every image, as torchvision's ImageFolder has them.

    Hidden folders are classes, too. Raises DataError for a folder without classes, and for a class without images.
    """
    try:
        classes = sorted(entry.name for entry in os.scandir(root) if entry.is_dir())
    except OSError as error:
        raise DataError(f"{root}: {error.strerror}; check the path") from None
    if not classes:
        raise DataError(f"{root}: has no class folders; put the images of each class into a subfolder named after it")
    samples = []
    for number, name in enumerate(classes):
        folders = sorted(os.walk(os.path.join(root, name), followlinks=True))
        files = [os.path.join(folder, file) for folder, _, files in folders for file in sorted(files)]
        images = [(file, number) for file in files if file.lower().endswith(EXTENSIONS)]
        if not images:
            raise DataError(f"{root / name}: the class has no images ({', '.join(EXTENSIONS)}); remove the folder")
        samples += images
    return classes, samples
