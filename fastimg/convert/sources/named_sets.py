"""Datasets known by name, from torchvision and scikit-learn, as encoded images with labels.

torchvision keeps its files in fastimg/torchvision of the user's cache directory and downloads only what is missing. If
it reads an image from a file, the bytes of that file are used; otherwise the pixels are encoded as PNG.
"""

import contextlib
import errno
import inspect
import io
import operator
import pickle
import warnings
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from PIL import Image

from fastimg.data import digits
from fastimg.errors import UsageError, nearest, reason_of
from fastimg.loaders.errors import DataError
from fastimg.loaders.opening import open_image
from fastimg.loaders.runtime.cache import cache_folder
from fastimg.wording import shortened


class SetSample(NamedTuple):
    """One image of a dataset."""

    key: str
    image: bytes
    label: int  # class index, or -1 without a label


class SetSplit(NamedTuple):
    """One split of a dataset. Consume `samples`, once, before asking for the next split."""

    split: str
    classes: tuple[str, ...] | None  # names, or None if there are none
    samples: Iterator[SetSample]
    remark: str = ""  # for the user


_GIVEN = {"EMNIST": {"split": "balanced"}}  # the one of its six with equally many images per class
_SPLITS = (  # (split, its name in torchvision); the first name that a class accepts is used
    *(("train", "train"), ("train", "train-standard"), ("train", "trainval")),
    *(("val", "val"), ("val", "valid"), ("val", "validation"), ("test", "test")),
)


def _faults() -> tuple[type[Exception], ...]:
    """What torchvision's classes raise if a download or a file is bad. OSError includes URLError."""
    import http.client
    import lzma
    import tarfile
    import zipfile

    return (
        *(OSError, RuntimeError, ValueError, LookupError, TypeError, AttributeError, EOFError, ImportError),
        *(http.client.HTTPException, zipfile.BadZipFile, tarfile.TarError, lzma.LZMAError, zlib.error),
        *(pickle.UnpicklingError, SyntaxError),
    )


def open_set(text: str) -> Iterator[SetSplit]:
    """Open `torchvision:NAME` or `sklearn:digits` and yield its splits. Raises UsageError, DataError."""
    scheme, _, name = text.partition(":")
    return SETS[scheme](text, name)


def _sklearn(text: str, name: str) -> Iterator[SetSplit]:
    if name != digits.NAME:
        raise UsageError(f"{text}: scikit-learn has no such set of images; use sklearn:{digits.NAME}")
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    grays = np.round(images.reshape(-1, 8, 8) * (255 / 16)).astype(np.uint8)  # as digits.py stores them
    samples = (
        SetSample(f"{name}/{number:04d}", _png(Image.fromarray(gray)), int(label))
        for number, (gray, label) in enumerate(zip(grays, labels, strict=True))
    )
    yield SetSplit("train", tuple(map(str, range(10))), samples)


def _torchvision(text: str, name: str) -> Iterator[SetSplit]:
    from torchvision import datasets

    folders = (datasets.VisionDataset, datasets.DatasetFolder, datasets.ImageFolder)
    known = {name: kind for name in datasets.__all__ if _is_set(kind := getattr(datasets, name), folders)}
    if name not in known:
        remedy = nearest(name, known) or "; torchvision's documentation lists those for classification"
        raise UsageError(f"{text}: torchvision has no such set{remedy}")
    kind = known[name]
    parameters = _parameters(kind)
    given = dict(_GIVEN.get(name, {}))
    required = [parameter.name for parameter in parameters.values() if parameter.default is parameter.empty]
    missing = [parameter for parameter in required if parameter not in ("root", *given)]
    if missing:
        raise DataError(
            f"{text}: torchvision.datasets.{name} requires {', '.join(missing)}, which cannot be given here; "
            "write its images into a folder with one subfolder per class, and convert that folder"
        )
    root = cache_folder() / "torchvision"
    arguments: dict[str, Any] = {"root": root, "loader": _file_content} | given
    arguments = {name: value for name, value in arguments.items() if name in parameters}
    choices: list[tuple[str, dict[str, Any]]] = [("train", {})]
    if "train" in parameters:
        choices = [("train", {"train": True}), ("test", {"train": False})]
    elif "split" in parameters and "split" not in given:
        choices = [(split, {"split": split_name}) for split, split_name in _SPLITS]
    opened: set[str] = set()
    for split, choice in choices:
        if split in opened:
            continue
        dataset = _make(text, kind, arguments | choice, "download" in parameters, root)
        if dataset is not None:
            remark = (
                ""
                if opened
                else ", ".join(f"{name}={value!r} of torchvision's choices" for name, value in given.items())
            )
            opened.add(split)
            yield SetSplit(split, _classes(dataset), _samples(text, split, dataset, root), remark)
    if not opened:
        known_splits = ", ".join(split_name for _, split_name in _SPLITS)
        raise DataError(f"{text}: has none of the known splits ({known_splits})")


def _is_set(kind: Any, folders: tuple[type, ...]) -> bool:
    return isinstance(kind, type) and issubclass(kind, folders[0]) and kind not in folders


def _parameters(kind: type) -> dict[str, inspect.Parameter]:
    """Parameters of the constructor, including those of base classes that receive its **kwargs."""
    parameters: dict[str, inspect.Parameter] = {}
    for owner in kind.__mro__:
        if "__init__" not in vars(owner):
            continue
        own = inspect.signature(vars(owner)["__init__"]).parameters
        for parameter in list(own.values())[1:]:
            if parameter.kind not in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL):
                parameters.setdefault(parameter.name, parameter)
        if all(parameter.kind is not parameter.VAR_KEYWORD for parameter in own.values()):
            break
    return parameters


def _make(text: str, kind: Callable[..., Any], arguments: dict[str, Any], downloads: bool, root: Path) -> Any:
    """Open the dataset, downloading it if it is missing. None if it has no such split."""
    attempts: list[dict[str, Any]] = [{"download": False}, {"download": True}] if downloads else [{}]
    if "root" in arguments:
        _make_folder(text, root)
    for attempt in attempts:
        try:
            with _quiet():
                return kind(**arguments, **attempt)
        except _faults() as error:
            if isinstance(error, ValueError) and str(error).startswith("Unknown value"):  # of its verify_str_arg
                return None
            if attempt is attempts[-1] or isinstance(error, ImportError):
                raise _failure(text, error, root) from error
    return None


def _make_folder(text: str, root: Path) -> None:
    try:
        root.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DataError(
            f"{text}: {root}: {error.strerror or error}; set another cache directory with XDG_CACHE_HOME"
        ) from error


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Silence the output and warnings of torchvision: standard output is for results."""
    with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _failure(text: str, error: BaseException, root: Path) -> DataError:
    """Describe an error of torchvision in one sentence."""
    if isinstance(error, ImportError):
        package = (error.name or str(error)).partition(".")[0]
        return DataError(f"{text}: needs {package}, which is not installed; run `pip install {package}`")
    message = " ".join((getattr(error, "strerror", None) or str(error) or type(error).__name__).split())
    reason = reason_of(error) if "weights_only" in message else shortened(message, 300).rstrip(".")
    remedy = f"check the network connection, or put its files into {root} yourself"
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        remedy = f"free some space in {root}, or set another cache directory with XDG_CACHE_HOME"
    elif "pip install" in reason:
        remedy = "do that, then run this again"
    return DataError(f"{text}: torchvision cannot load it ({reason}); {remedy}")


def _classes(dataset: Any) -> tuple[str, ...] | None:
    """Class names of a dataset, or None. torchvision has strings, or tuples of synonyms."""
    for attribute in ("classes", "categories"):
        given = getattr(dataset, attribute, None)
        if isinstance(given, list | tuple) and given:
            names = [", ".join(map(str, name)) if isinstance(name, list | tuple) else str(name) for name in given]
            if len(set(names)) == len(names):
                return tuple(names)
    return None


def _samples(text: str, split: str, dataset: Any, root: Path) -> Iterator[SetSample]:
    for index in range(len(dataset)):
        key = f"{split}/{index:06d}"
        try:
            with _quiet():
                item = dataset[index]
                image = _encoded(item[0], dataset, index) if isinstance(item, tuple) and len(item) == 2 else None
        except _faults() as error:
            raise _failure(f"{text}: {key}", error, root) from error
        label = _label(item[1]) if image is not None else None
        if image is None or label is None:
            raise DataError(
                f"{text}: {key} is not a pair of an image and a class index; only datasets for classification can be "
                "converted"
            )
        yield SetSample(key, image, label)


def _label(target: Any) -> int | None:
    """The class index; -1 for a target of None, as in unlabeled test sets; None for anything else."""
    if target is None:
        return -1
    try:
        return max(operator.index(target), -1)
    except TypeError:
        return None


def _encoded(image: Any, dataset: Any, index: int) -> bytes | None:
    """The file that the image was read from, else a PNG of its pixels. None if it is not an image."""
    if isinstance(image, bytes):
        return image
    if isinstance(image, str | Path):
        return _file_content(image)
    if not isinstance(image, Image.Image):
        return None
    with image:
        if image.format and (file := getattr(image, "filename", "")):  # opened from a file and unchanged
            return _file_content(file)
        file = _file_of(image, dataset, index)
        return _file_content(file) if file else _png(image)


def _file_of(image: Image.Image, dataset: Any, index: int) -> str | None:
    """The image's file from the dataset's list of files (OxfordIIITPet), if the pixels are the same."""
    files = getattr(dataset, "_images", None)
    if not isinstance(files, list) or not isinstance(files[index], str | Path):
        return None
    with open_image(Path(files[index])) as stored:
        same = stored.size == image.size and stored.convert(image.mode).tobytes() == image.tobytes()
    return str(files[index]) if same else None


def _file_content(file: str | Path) -> bytes:
    return Path(file).read_bytes()


def _png(image: Image.Image) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, "PNG")
    return buffer.getvalue()


SETS: dict[str, Callable[[str, str], Iterator[SetSplit]]] = {"torchvision": _torchvision, "sklearn": _sklearn}
