"""What DATA may mean where it is left out: datasets in a folder and one level below. Looks, and opens nothing."""

import itertools
import os
from collections.abc import Collection, Iterator
from functools import cache
from pathlib import Path

from fastimg.loaders.containers.content import TEXT_EXTENSIONS
from fastimg.loaders.folders.folder import SPLIT_FOLDERS
from fastimg.loaders.folders.formats import image_extensions, undecodable_extensions
from fastimg.loaders.folders.ignored import extension_of, hidden_reason

_ENTRIES = 1000  # of a folder that are looked at: a home directory, or one of a million files, takes a moment
_FOLDERS = 100  # of them
_TARS = (".tar",)


def candidates(here: Path) -> dict[Path, str]:
    """Folders that may be meant by DATA, and what each one is, in words; `here` is one of them or is above them."""
    if what := _kind(here):
        return {here: what}
    return {folder: what for folder in subfolders(here) if (what := _kind(folder))}


def subfolders(folder: Path) -> list[Path]:
    """The first visible folders in a folder, sorted by name; none where it cannot be read."""
    return [Path(entry.path) for entry in _entries(folder) if entry.is_dir()][:_FOLDERS]


def _kind(folder: Path) -> str:
    """What a folder is, if training can be meant to read it; else nothing."""
    names = {entry.name for entry in _entries(folder) if entry.is_file()}
    if "dataset.json" in names:
        return "a dataset"
    if "convert.json" in names:
        return "an unfinished conversion"
    if any(name.endswith(".beton") for name in names):
        return "a dataset of .beton files"
    if _holds_classes(folder):
        return "class folders"
    if _filled(folder, _TARS):
        return "tars"
    return "images without class folders" if _filled(folder, _images()) else ""


def _holds_classes(folder: Path) -> bool:
    """Whether there are class folders, and most are, in a folder or in that of its training split."""
    inside = subfolders(folder)
    splits = [each for each in inside if SPLIT_FOLDERS.get(each.name.lower()) == "train"]
    return any(
        sum(_filled(each, kind) for each in level) > max(1, len(level) / 2)
        for level in (inside, *map(subfolders, splits))
        for kind in (_images(), TEXT_EXTENSIONS)
    )


def _filled(folder: Path, extensions: Collection[str]) -> bool:
    """Whether most files of a folder are of this kind: a picture beside pages, or a list beside code, is no sample."""
    files = [entry.name for entry in _entries(folder) if entry.is_file()]
    return 2 * sum(extension_of(name) in extensions for name in files) > len(files)


@cache
def _images() -> Collection[str]:
    return frozenset([*image_extensions(), *undecodable_extensions()])


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as found:
            return sorted(_visible(found), key=lambda entry: entry.name)
    except OSError:  # not ours to read
        return []


def _visible(found: Iterator[os.DirEntry[str]]) -> Iterator[os.DirEntry[str]]:
    return (entry for entry in itertools.islice(found, _ENTRIES) if not hidden_reason(entry.name))
