"""A folder of images or of texts, one subfolder per class, with or without train/ val/ test/ above them."""

import errno
import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import Image

from .content import TEXT_EXTENSIONS, Content
from .errors import DataError, ImageError
from .scratch import Scratch

_NOT_THE_FILES = frozenset({errno.EMFILE, errno.ENFILE})  # too many open files

SPLIT_FOLDERS = {"train": "train", "val": "val", "valid": "val", "validation": "val", "test": "test"}


@dataclass(frozen=True)
class Listing:
    """What a folder holds. `files[split]` is sorted by path and holds (path relative to the root, class index)."""

    root: Path
    classes: tuple[str, ...]
    files: dict[str, list[tuple[str, int]]]
    ignored: int  # files whose names are not those of images, of texts in a folder of texts
    content: Content = "images"


def image_extensions() -> frozenset[str]:
    """Extensions of the formats that Pillow reads, with their dots, in lower case."""
    Image.init()
    return frozenset(ext for ext, name in Image.registered_extensions().items() if name in Image.OPEN)


def list_folder(root: Path) -> Listing:
    """Read the layout of a class folder. Classes are subfolder names in sorted order, the same in every split.

    An unsplit folder is one split, `train`. It is one of texts where there are .txt files in classes and no image in
    any. Raises DataError for no classes, an empty class, or a class that only some other split has.
    """
    splits = _split_folders(root)
    try:
        return _list(root, splits, "images")
    except DataError:
        if not _holds_text_alone(splits):
            raise
    return _list(root, splits, "text")


def _holds_text_alone(splits: dict[str, Path]) -> bool:
    """Whether class folders have texts and not one image."""
    folders = [folder / name for folder in splits.values() for name in _subfolders(folder)]
    if any(find_images(folder)[0] for folder in folders):
        return False
    return any(find_texts(folder)[0] for folder in folders)


def _split_folders(root: Path) -> dict[str, Path]:
    folders = _subfolders(root)
    splits: dict[str, Path] = {}
    for name in folders:
        split = SPLIT_FOLDERS.get(name.lower())
        if split is None:
            continue
        if split in splits:
            raise DataError(f"{root}: {splits[split].name}/ and {name}/ are the same split; keep one of them")
        splits[split] = root / name
    if "train" not in splits:
        if splits and len(splits) == len(folders):
            raise DataError(
                f"{root}: has {', '.join(sorted(folders))} but no train/; add it, or name one of them as the source"
            )
        splits = {"train": root}
    elif len(splits) < len(folders):
        extra = sorted(set(folders) - {path.name for path in splits.values()})
        raise DataError(f"{root}: {', '.join(extra)}/ stands beside train/ and is no split; move it away")
    return splits


def _list(root: Path, splits: dict[str, Path], content: Content) -> Listing:
    find, what = (find_images, "images") if content == "images" else (find_texts, ".txt files")
    classes = tuple(_subfolders(splits["train"]))
    if not classes:
        raise DataError(
            f"{splits['train']}: no class folders in it; put the images (or .txt files) of each class into a subfolder "
            "of its name"
        )
    files: dict[str, list[tuple[str, int]]] = {}
    ignored = 0
    for split, folder in sorted(splits.items()):
        files[split] = []
        for name in _subfolders(folder):
            if name not in classes:
                raise DataError(
                    f"{folder / name}: the training split has no class {name!r}; add it there or remove the folder"
                )
            found, other = find(folder / name)
            if not found and split == "train":
                raise DataError(
                    f"{folder / name}: the class is empty ({other} other files); add {what} or remove the folder"
                )
            ignored += other
            files[split] += [(os.path.relpath(path, root), classes.index(name)) for path in found]
        if not files[split]:
            raise DataError(f"{folder}: the split is empty; add {what} or remove the folder")
    return Listing(root, classes, files, ignored, content)


def is_class_folder(folder: Path) -> bool:
    """Whether it has several subfolders of image files; other kinds of data in it are then something else."""
    try:
        listing = list_folder(folder)
        return listing.content == "images" and len(listing.classes) > 1
    except (DataError, OSError):
        return False


def _subfolders(folder: Path) -> list[str]:
    try:
        return sorted(entry.name for entry in os.scandir(folder) if entry.is_dir() and not entry.name.startswith("."))
    except OSError as error:
        raise DataError(f"{folder}: {error.strerror or error}; check the path and its permissions") from error


def find_images(folder: Path) -> tuple[list[str], int]:
    """Image files below `folder`, sorted, and how many others there are. Follows links, not loops; takes no pipe."""
    return _find(folder, image_extensions())


def find_texts(folder: Path) -> tuple[list[str], int]:
    """The same of .txt files."""
    return _find(folder, TEXT_EXTENSIONS)


def _find(folder: Path, extensions: frozenset[str]) -> tuple[list[str], int]:
    found: list[str] = []
    other, seen, todo = 0, set(), [str(folder)]
    while todo:
        here = todo.pop()
        real = os.path.realpath(here)
        if real in seen:
            continue
        seen.add(real)
        for entry in os.scandir(here):
            if entry.is_dir():
                if not entry.name.startswith("."):
                    todo.append(entry.path)
            elif entry.name.startswith(".") or _extension(entry.name) not in extensions:
                other += 1
            elif entry.is_file() or not os.path.exists(entry.path):  # a link to nothing is named when it is read
                found.append(entry.path)
            else:
                other += 1
    return sorted(found), other


def _extension(name: str) -> str:
    return os.path.splitext(name)[1].lower()


class FilesDataset:
    """Image files, or text files, by path. Sample i is `paths[i]` with label `labels[i]`, -1 where there is none."""

    notes: Sequence[str] = ()

    def __init__(
        self,
        root: Path,
        paths: Sequence[str],
        classes: tuple[str, ...] = (),
        labels: Sequence[int] | None = None,
        content: Content = "images",
    ) -> None:
        self.name = str(root)
        self.content = content
        self.classes = classes
        self.labels: npt.NDArray[np.int64] = np.full(len(paths), -1) if labels is None else np.asarray(labels, np.int64)
        self._root = root
        self._paths = list(paths)

    def __len__(self) -> int:
        return len(self._paths)

    def read(self, index: int, scratch: Scratch) -> memoryview:
        """The file's bytes, whatever is in it by now.

        Raises ImageError where it cannot be read, DataError where it is not this file's fault alone.
        """
        try:
            with open(self._root / self._paths[index], "rb", buffering=0) as file:
                size = os.fstat(file.fileno()).st_size
                view = scratch.encoded(size)
                if file.readinto(view) != size:
                    raise ImageError("the file shrank while it was read")
                return view
        except OSError as error:
            if error.errno in _NOT_THE_FILES:
                raise DataError(f"{self.sample_name(index)}: {error.strerror}; raise `ulimit -n`") from error
            if not os.path.exists(self._root):  # False for a mount that went stale, too
                raise DataError(f"{self._root}: disappeared while it was in use; bring it back and --resume") from error
            raise ImageError(error.strerror or str(error)) from error

    def will_need(self, indices: npt.NDArray[np.int64]) -> None:
        """Nothing is read ahead: opening a file twice costs more than it saves."""

    def sample_name(self, index: int) -> str:
        """The file's path."""
        return str(self._root / self._paths[index])

    @cached_property
    def fingerprint(self) -> str:
        """Changes when a path or a label does."""
        lines = (f"{label} {path}\n" for path, label in zip(self._paths, self.labels.tolist(), strict=True))
        return hashlib.sha256("".join(lines).encode("utf-8", "surrogateescape")).hexdigest()

    def sample_key(self, index: int) -> str:
        """The file's path in the folder."""
        return self._paths[index]

    def files(self) -> Sequence[Path]:
        """One for each sample."""
        return [self._root / path for path in self._paths]

    def close(self) -> None:
        """Nothing is held open."""
