"""A folder of images or texts with one subfolder per class, optionally below train/, val/ and test/."""

import errno
import hashlib
import os
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from fastimg.loaders.containers.content import Content
from fastimg.loaders.containers.fields import WithFields
from fastimg.loaders.containers.targets import TargetColumn
from fastimg.loaders.errors import DataError, ImageError
from fastimg.loaders.runtime.scratch import Encoded, Scratch
from fastimg.loaders.wording import plural

from .archives import archive_hint
from .ignored import Ignored, hidden_reason
from .walk import Kinds, find, find_images, find_texts, relative, scan, walk

Mapped = Callable[[Callable[[Any], Any], Iterable[Any]], Iterable[Any]]  # as `map`
Level = Literal["top", "leaf"]  # which folder names a file's class: the topmost, or the one that contains it

_NOT_A_FILE_ERROR = frozenset({errno.EMFILE, errno.ENFILE})  # too many open files: no fault of the file being opened

# Usual names of split folders, in lower case -> the split.
SPLIT_FOLDERS = {
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("val", "valid", "validation", "dev"), "val"),
    **dict.fromkeys(("test", "testing", "eval"), "test"),
}
_SPLITS = tuple(dict.fromkeys(SPLIT_FOLDERS.values()))

_TABLES = (".csv", ".tsv", ".jsonl", ".parquet")  # that list images, in another layout
_LOOSE = "outside any class folder"
_LOOSE_ABOVE = "next to the split folders, not in a class folder"
_SHOWN = 6  # number of folder or class names in a sentence


@dataclass(frozen=True)
class Listing:
    """The contents of a folder. `files[split]` lists (path relative to the root, class index), sorted by path."""

    root: Path
    classes: tuple[str, ...]
    files: dict[str, list[tuple[str, int]]]
    ignored: Ignored  # every other file under the root
    content: Content = "images"
    notes: tuple[str, ...] = ()  # sentences on how folders were interpreted, if there is more than one way

    def all_notes(self) -> tuple[str, ...]:
        """The notes, and a sentence about ignored files."""
        return (*self.notes, *self.ignored.note(str(self.root), sum(map(len, self.files.values()))))


def list_folder(
    root: Path,
    classes: Level | None = None,
    mapped: Mapped = map,
    arrays: bool = False,
    trains: bool = True,
    empty: bool = False,
) -> Listing:
    """Read the layout of a class folder. Classes are folder names in sorted order, the same in every split.

    `classes` says which folder names a file's class: "top", the subfolder of the split, or "leaf", the folder that
    contains the file; folders of the same name are one class. None is "top" with a note if "leaf" would differ.
    `mapped` calls a function for each of several folders, as `map` does; with threads, or on several machines.
    `arrays`: list .npy and TIFF files in place of images and texts.
    `trains`: there has to be a training split, which has every class. Otherwise other splits may add some, or be alone.
    `empty`: class folders may be empty.
    Splits may also be inside the class folders, in all of them (`cat/train`). A folder without splits is one split,
    `train`. It is a dataset of texts if class folders contain .txt files and no images. Raises DataError if there are
    no classes, a class is empty, a class is missing in the training split, two folders are the same split, or there are
    splits further down, which would be mixed.
    """
    splits, notes = _split_folders(root, classes, trains)
    try:
        return _list(root, splits, "images", classes, notes, mapped, arrays, trains, empty)
    except DataError:
        if arrays or not _holds_only_texts(splits):
            raise
    return _list(root, splits, "text", classes, notes, mapped, trains=trains, empty=empty)


def _holds_only_texts(splits: dict[str, Path]) -> bool:
    """Whether the class folders contain texts and no images."""
    folders = [folder / name for folder in splits.values() for name in _subfolders(folder)]
    if any(find_images(folder)[0] for folder in folders):
        return False
    return any(find_texts(folder)[0] for folder in folders)


def _split_folders(root: Path, level: Level | None, trains: bool) -> tuple[dict[str, Path], list[str]]:
    """The folder of each split, and notes about folders with another name than their split."""
    folders = _subfolders(root)
    named: dict[str, list[str]] = {}
    for name in folders:
        if name.lower() in SPLIT_FOLDERS:
            named.setdefault(SPLIT_FOLDERS[name.lower()], []).append(name)
    in_splits = [name for names in named.values() for name in names]
    alone = bool(in_splits) and len(in_splits) == len(folders)
    if "train" not in named and (trains or not alone):
        if alone:
            raise DataError(
                f"{root}: has {', '.join(folders)} but no train/; add it, or give one of these folders as the source"
            )
        if level != "top" and (meant := _meant_as_splits(folders)):
            raise DataError(
                f"{root}: {_folders(folders)} look like splits, not classes; rename them to "
                f"{_folders(list(dict.fromkeys(meant.values())))}, or use classes=top if they are classes"
            )
        notes = [f"{root}: has no train/, so {_folders(in_splits)} and the other folders are read as classes"]
        return {"train": root}, notes if in_splits else []
    for split, names in named.items():
        if len(names) > 1:
            which = "both" if len(names) == 2 else "all"
            raise DataError(f"{root}: {_folders(names)} are {which} names of the split {split}; keep one of them")
    if len(in_splits) < len(folders):
        extra = sorted(set(folders) - set(in_splits))
        verb = "is not a split but is" if len(extra) == 1 else "are not splits but are"
        them = "it" if len(extra) == 1 else "them"
        raise DataError(f"{root}: {_folders(extra)} {verb} next to {_folders(in_splits)}; move {them} away")
    places = {split: _innermost_split(root / name, split) for split, (name,) in named.items()}
    relatives = {split: str(places[split].relative_to(root)) for split in _SPLITS if split in named}
    renamed = [f"{place}/ as {split}" for split, place in relatives.items() if place != split]
    notes = [f"{root}: folders are read as splits: {', '.join(renamed)}"] if renamed else []
    return places, notes


def _innermost_split(folder: Path, split: str) -> Path:
    """The folder of a split, which archives may hold in a folder of the same split: `test/test`, `test/test_set`."""
    while len(names := _subfolders(folder)) == 1 and split in _split_words(names[0]) and _subfolders(folder / names[0]):
        folder /= names[0]
    return folder


def _split_words(name: str) -> set[str]:
    """The splits that words of a name stand for: of `seg_train`, the training split."""
    return {SPLIT_FOLDERS[word] for word in re.split(r"[^a-z]+", name.lower()) if word in SPLIT_FOLDERS}


def _meant_as_splits(names: Sequence[str]) -> dict[str, str]:
    """The split of each name, if all have one in their words and training is among several; else none."""
    found = {name: next(iter(words)) for name in names if len(words := _split_words(name)) == 1}
    several = len(found) == len(names) and "train" in found.values() and len(set(found.values())) > 1
    return found if several else {}


def _splits_below(paths: Iterable[str], top: int) -> dict[str, list[str]]:
    """Folders that hold splits, and the names of these, on the first level from `top` on that has several splits."""
    levels: dict[int, dict[str, set[str]]] = {}
    for folder in {os.path.dirname(path) for path in paths}:
        parts = folder.split(os.sep)
        for depth in range(top, len(parts)):
            levels.setdefault(depth, {}).setdefault(os.sep.join(parts[:depth]), set()).add(parts[depth])
    for _, inside in sorted(levels.items()):
        exact = {above: {name for name in names if name.lower() in SPLIT_FOLDERS} for above, names in inside.items()}
        several = len({SPLIT_FOLDERS[name.lower()] for names in exact.values() for name in names}) > 1
        meant = {above: names for above, names in inside.items() if _meant_as_splits([*names])}
        if found := exact if several else meant:
            return {above: sorted(names) for above, names in sorted(found.items()) if names}
    return {}


def _holds_out(name: str) -> bool:
    """Whether a folder is named as a split that is not to be trained on."""
    return SPLIT_FOLDERS.get(name.lower(), "train") != "train"


def _refuse_splits_in_splits(splits: dict[str, Path], root: Path, listed: dict[str, list[tuple[str, str]]]) -> None:
    """Raise DataError for a split folder that has splits below it."""
    for split, folder in splits.items():
        for above, names in _splits_below((relative(str(root / path), folder) for path, _ in listed[split]), 0).items():
            raise DataError(
                f"{folder}: is read as the split {split}, but holds {_folders(names)}; give {folder / above}, or move "
                "them away"
            )


def _split_inside_classes(
    root: Path, pairs: list[tuple[str, str]], level: Level | None, trains: bool
) -> tuple[dict[str, list[tuple[str, str]]], list[str]]:
    """The files (path, class) of a folder without splits, by the splits that all of its class folders hold, and a note.

    Without splits below, all are `train`. Raises DataError where the splits are elsewhere below.
    """
    inside = _splits_below((path for path, _ in pairs), 1)
    folders = sorted({os.path.dirname(path) for path, _ in pairs})
    if not inside:
        lone = [folder for folder in folders if folder.count(os.sep) == 1 and _holds_out(os.path.basename(folder))]
        if len(lone) > 1 and level != "top":
            raise DataError(
                f"{root}: {_some([f'{folder}/' for folder in lone])} look like splits inside class folders, where "
                "there is no train/; move the other images into one, or use classes=top if they are no splits"
            )
        return {"train": pairs}, []
    names = sorted({name for below in inside.values() for name in below})
    of_splits = {os.path.join(above, name) for above, below in inside.items() for name in below}
    common = os.path.commonpath([*inside])
    if len(inside) == 1:
        raise DataError(f"{root}: the splits {_folders(names)} are in {common}/; give {root / common}")
    if any(os.path.dirname(folder) in of_splits for folder in folders):
        raise DataError(f"{root}: {_folders([*inside])} have splits of their own ({_folders(names)}); give one of them")
    if common:
        raise DataError(
            f"{root}: the class folders, with the splits {_folders(names)} in them, are in {common}/; give "
            f"{root / common}"
        )
    if beside := next((folder for folder in folders if folder not in of_splits), None):
        raise DataError(
            f"{root / beside}: its files are in none of {_folders(names)}, which are the splits in other class "
            "folders; move them into one of these"
        )
    if level == "leaf":
        raise DataError(
            f"{root}: {_folders(names)} in the class folders are splits, not classes; leave out classes=leaf"
        )
    split_of = {folder: SPLIT_FOLDERS.get(os.path.basename(folder).lower(), "") for folder in folders}
    by_split = {split: [pair for pair in pairs if split_of[os.path.dirname(pair[0])] == split] for split in _SPLITS}
    if trains and not by_split["train"]:
        raise DataError(f"{root}: its class folders hold {_folders(names)} but no train/; add it")
    trained = {name for _, name in by_split["train"]}
    if trains and (untrained := next((pair for pair in pairs if pair[1] not in trained), None)):
        raise _untrained(root / os.path.dirname(untrained[0]), untrained[1])
    note = f"{root}: the splits are in the class folders, which hold {_folders(names)}"
    return {split: files for split, files in by_split.items() if files}, [note]


def _list(
    root: Path,
    splits: dict[str, Path],
    content: Content,
    level: Level | None,
    notes: list[str],
    mapped: Mapped,
    arrays: bool = False,
    trains: bool = True,
    empty: bool = False,
) -> Listing:
    what = ".npy or TIFF files" if arrays else "images" if content == "images" else ".txt files"
    naming = ["train"] if trains else sorted(splits)  # the splits whose folders are the classes
    top = sorted({name for split in naming for name in _subfolders(splits[split])})
    _refuse_alike(root, sorted({name for folder in splits.values() for name in _subfolders(folder)}))
    if not top:
        folder = splits[naming[0]]
        if hint := archive_hint(folder):
            raise DataError(f"{folder}: has no class folders; {hint}")
        if tars := sorted(entry.name for entry in scan(folder) if entry.name.lower().endswith(".tar")):
            raise DataError(
                f"{folder}: has no class folders, but {tars[0]}; put the tars of all splits into one folder, named by "
                "their split, as in train-00000.tar and val-00000.tar, and give that"
            )
        tables = [file for each in dict.fromkeys((folder, root)) for file in _tables(each)]
        lists = f"; if {tables[0]} lists the images, convert that in place of the folder" if tables else ""
        raise DataError(
            f"{folder}: has no class folders; put the images (or .txt files) of each class into a subfolder named "
            f"after it{lists}"
        )
    kinds = Kinds(content, arrays)
    ignored = _loose(root, splits, kinds)
    listed: dict[str, list[tuple[str, str]]] = {}  # split -> (path, class) of each file
    trained: list[tuple[Path, list[str], Ignored]] = []  # class folders of the training split
    for split, folder in sorted(splits.items()):
        listed[split] = []
        names = _subfolders(folder)
        if level != "leaf" and (more := next((name for name in names if name not in top), None)):
            raise _untrained(folder / more, more)
        every = mapped(partial(find, base=root, kinds=kinds), [folder / name for name in names])
        for name, (paths, others) in zip(names, every, strict=True):
            trained += [(folder / name, paths, others)] if split == "train" else []
            ignored.update(others)
            listed[split] += [(path, name if level != "leaf" else _innermost(path)) for path in paths]
        if split != "train" and not listed[split]:
            raise DataError(
                f"{folder}: the split has no {what} in class folders; add them, or move the folder elsewhere"
            )
    if splits.get("train") == root:
        listed, inner = _split_inside_classes(root, listed["train"], level, trains)
        notes = [*notes, *inner]
    else:
        inner = []
        _refuse_splits_in_splits(splits, root, listed)
    for each, paths, others in () if empty and any(listed.values()) else trained:
        _refuse_empty(each, root, paths, others, level, what)
    classes = tuple(top) if level != "leaf" else tuple(sorted({name for split in naming for _, name in listed[split]}))
    if level == "leaf":
        _refuse_alike(root, sorted({name for pairs in listed.values() for _, name in pairs}))
    numbers = {name: number for number, name in enumerate(classes)}
    files: dict[str, list[tuple[str, int]]] = {}
    for split, pairs in listed.items():
        if untrained := next((pair for pair in pairs if pair[1] not in numbers), None):
            raise _untrained(root / os.path.dirname(untrained[0]), untrained[1])
        files[split] = [(path, numbers[name]) for path, name in pairs]
    metadata = [file for folder in dict.fromkeys((root, *splits.values())) for file in _tables(folder, ("metadata",))]
    if len(classes) == 1 and metadata:
        raise DataError(
            f"{root}: has only one class folder, {classes[0]}/, and {metadata[0]}; if that lists the images, convert "
            "that in place of the folder"
        )
    if metadata:
        notes = [*notes, f"{root}: the classes are the folders; {metadata[0]} is not read"]
    nesting = [] if inner else _nesting_notes(root, splits, listed, classes, level)
    return Listing(root, classes, files, ignored, content, (*notes, *nesting))


def _tables(folder: Path, stems: Sequence[str] = ()) -> list[Path]:
    """Tables in a folder that may list its images, sorted; with `stems`, those of these names."""
    tables = (folder / entry.name for entry in scan(folder) if entry.is_file() and not hidden_reason(entry.name))
    found = sorted(file for file in tables if file.suffix.lower() in _TABLES)
    return [file for file in found if not stems or file.stem.lower() in stems]


def _refuse_alike(root: Path, classes: Iterable[str]) -> None:
    """Raise DataError for two classes that look alike, as their accents are composed in one and not in the other."""
    seen: dict[str, str] = {}
    for name in classes:
        other = seen.setdefault(unicodedata.normalize("NFC", name), name)
        if other != name:
            raise DataError(
                f"{root}: two class folders are called {name!r}, in two Unicode forms ({other!a} and "
                f"{name!a}); give them the same name, or put their files into one"
            )


def _untrained(folder: Path, name: str) -> DataError:
    return DataError(f"{folder}: the training split has no class {name!r}; add it there or remove the folder")


def _refuse_empty(folder: Path, root: Path, paths: list[str], ignored: Ignored, level: Level | None, what: str) -> None:
    """Raise DataError if a class folder of the training split has no file to train on."""
    if level == "leaf" and paths:
        used = {os.path.dirname(path) for path in paths}
        for here, below, _ in os.walk(folder, followlinks=False):
            below[:] = sorted(name for name in below if not hidden_reason(name))
            if not below and os.path.relpath(here, root) not in used:
                raise DataError(f"{here}: the class is empty; add {what} or remove the folder")
    if not paths:
        others = f" (other files: {ignored.summary()})" if ignored.total else ""
        raise DataError(f"{folder}: the class is empty{others}; add {what} or remove the folder")


def _innermost(path: str) -> str:
    return os.path.basename(os.path.dirname(path))


def _nesting_notes(
    root: Path,
    splits: dict[str, Path],
    listed: dict[str, list[tuple[str, str]]],
    classes: tuple[str, ...],
    level: Level | None,
) -> list[str]:
    """Notes on nested folders: classes made of several folders, or the other level if none was chosen."""
    if level == "leaf":
        places: dict[str, set[str]] = {}
        for split, pairs in listed.items():
            above = 0 if splits[split] == root else len(str(splits[split].relative_to(root))) + 1
            for path, name in pairs:
                places.setdefault(name, set()).add(os.path.dirname(path[above:]))
        joined = [f"{name} ({', '.join(sorted(places[name])[:3])})" for name in classes if len(places[name]) > 1]
        return [f"{root}: folders of the same name are one class: {_some(joined)}"] if joined else []
    names = [(path, name) for pairs in listed.values() for path, name in pairs]
    deeper = sum(_innermost(path) != name for path, name in names)
    if level == "top" or not deeper:
        return []
    leaves = Counter(_innermost(path) for path, _ in names)
    return [
        f"{root}: the classes are the {len(classes)} folders at the top ({_some(classes)}), but {deeper:,} of "
        f"{plural(len(names), 'file')} are in folders below them; use classes=leaf to take the innermost folder as the "
        f"class, which gives {len(leaves)} ({_some(sorted(leaves))}), or classes=top to keep this without the note"
    ]


def _folders(names: Sequence[str]) -> str:
    """The names as `a/, b/ and c/`."""
    shown = [f"{name}/" for name in sorted(names)]
    return " and ".join([", ".join(shown[:-1]), shown[-1]]) if len(shown) > 1 else "".join(shown)


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:_SHOWN]) + (", ..." if len(names) > _SHOWN else "")


def is_class_folder(folder: Path) -> bool:
    """Whether a folder has several subfolders of images."""
    try:
        listing = list_folder(folder)
        return listing.content == "images" and len(listing.classes) > 1
    except (DataError, OSError):
        return False


def _subfolders(folder: Path) -> list[str]:
    return sorted(entry.name for entry in scan(folder) if entry.is_dir() and not hidden_reason(entry.name))


def _loose(root: Path, splits: dict[str, Path], kinds: Kinds) -> Ignored:
    """The files that are not inside any class folder."""
    ignored = Ignored()
    between = {above for folder in splits.values() for above in folder.parents if above.is_relative_to(root)}
    above = {} if root in splits.values() else dict.fromkeys(sorted(between), _LOOSE_ABOVE)
    for folder, place in {**above, **dict.fromkeys(splits.values(), _LOOSE)}.items():
        for path, why in walk(folder, below=False):
            of_its_kind = not kinds.reason(path) or kinds.is_undecodable(path)
            ignored.add(relative(path, root), why or (place if of_its_kind else kinds.reason(path)))
    return ignored


def _checked_labels(root: Path, labels: npt.ArrayLike, paths: int, classes: int) -> npt.NDArray[np.int64]:
    """The labels [N]. Raises ValueError; see FilesDataset."""
    given = np.asarray(labels)
    if given.ndim != 1 or len(given) != paths:
        count = plural(len(given), "label") if given.ndim == 1 else f"labels of shape {list(given.shape)}"
        raise ValueError(f"{root}: {count} for {plural(paths, 'path')}; give one label for each")
    if given.size and given.dtype.kind not in "iub":
        raise ValueError(f"{root}: labels of type {given.dtype}; give whole numbers, the places of classes")
    most = classes - 1 if classes else np.iinfo(np.int64).max
    if given.size and not -1 <= int(given.min()) <= int(given.max()) <= most:
        place = int(np.argmax((given < -1) | (given > most)))
        limits = f"0 to {most} for {plural(classes, 'class')}" if classes else "0 or more"
        raise ValueError(f"{root}: labels[{place}] is {given[place]}; give {limits}, or -1 for a file without a label")
    return given.astype(np.int64, copy=False)


class FilesDataset(WithFields):
    """Image or text files by path. Sample i is `paths[i]` with the label `labels[i]`, -1 if it has none.

    Raises ValueError unless there is one label, a whole number, for each path; where `classes` are given, each label is
    the place of one, or -1.
    """

    def __init__(
        self,
        root: Path,
        paths: Sequence[str],
        classes: tuple[str, ...] = (),
        labels: npt.ArrayLike | None = None,
        content: Content = "images",
        notes: Sequence[str] = (),
    ) -> None:
        self.name = str(root)
        self.content = content
        self.notes = notes
        self.classes = classes
        self.labels: npt.NDArray[np.int64] = (
            np.full(len(paths), -1) if labels is None else _checked_labels(root, labels, len(paths), len(classes))
        )
        self._root = root
        self._prefix = str(root)  # joined as text, for each file that is read
        self.paths = list(paths)

    def __len__(self) -> int:
        return len(self.paths)

    @property
    def targets(self) -> tuple[TargetColumn, ...]:
        """The class, which the folder names."""
        return (TargetColumn.of_classes(self.labels, self.classes),)

    def read(self, index: int, scratch: Scratch) -> memoryview:
        """The file's current bytes.

        Raises ImageError if it cannot be read, DataError if the cause is not this file.
        """
        try:
            with open(os.path.join(self._prefix, self.paths[index]), "rb", buffering=0) as file:
                size = os.fstat(file.fileno()).st_size
                view = scratch.encoded(size)
                if file.readinto(view) != size:
                    raise ImageError("the file shrank while it was read")
                return view
        except OSError as error:
            if error.errno in _NOT_A_FILE_ERROR:
                raise DataError(f"{self.sample_name(index)}: {error.strerror}; raise `ulimit -n`") from error
            if not os.path.exists(self._root):  # also false for a stale mount
                raise DataError(
                    f"{self._root}: disappeared while it was in use; bring it back and use resume=True"
                ) from error
            raise ImageError(error.strerror or str(error)) from error

    def read_group(self, indices: Sequence[int], encoded: Encoded) -> None:
        """Read several files into `encoded`, but those that have to be read by `read`."""
        if type(self).read is not _READ:  # a subclass reads in its own way
            return
        from fastimg.loaders.runtime.file_reads import read_files  # numba, which listing folders does not need

        read_files(self._prefix, [self.paths[index] for index in indices], encoded)

    def will_need(self, indices: npt.NDArray[np.int64]) -> None:
        """Does nothing: opening a file twice costs more than reading ahead saves."""

    def sample_name(self, index: int) -> str:
        """The file's path."""
        return str(self._root / self.paths[index])

    @cached_property
    def fingerprint(self) -> str:
        """Changes when a path or a label does."""
        lines = (f"{label} {path}\n" for path, label in zip(self.paths, self.labels.tolist(), strict=True))
        return hashlib.sha256("".join(lines).encode("utf-8", "surrogateescape")).hexdigest()

    def sample_key(self, index: int) -> str:
        """The file's path in the folder."""
        return self.paths[index]

    def files(self) -> Sequence[Path]:
        """The paths, one per sample."""
        return [self._root / path for path in self.paths]

    def close(self) -> None:
        """Does nothing: no file stays open."""


_READ = FilesDataset.read
