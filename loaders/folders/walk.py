"""Files below a folder: images or texts by extension, and why each other file is ignored."""

import os
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path

from fastimg.loaders.containers.content import TEXT_EXTENSIONS, Content
from fastimg.loaders.errors import DataError

from .bands import BANDS
from .formats import image_extensions, undecodable_extensions
from .ignored import NOT_A_FILE, NOT_A_TEXT, NOT_AN_ARRAY, NOT_AN_IMAGE, Ignored, extension_of, hidden_reason


def find_images(folder: Path, undecodable: bool = False) -> tuple[list[str], Ignored]:
    """Image files below `folder`, sorted, and the ignored files. Follows links but not loops, and skips pipes.

    With `undecodable`, includes images of known formats that cannot be decoded here.
    """
    return find(folder, None, Kinds("images"), undecodable)


def find_texts(folder: Path) -> tuple[list[str], Ignored]:
    """The .txt files below `folder`, sorted, and the ignored files."""
    return find(folder, None, Kinds("text"))


class Kinds:
    """Which file extensions are used, and why the others are not. With `arrays` they are those of bands."""

    def __init__(self, content: Content, arrays: bool = False) -> None:
        images = content == "images" and not arrays
        self._images = images
        self._used = BANDS if arrays else image_extensions() if images else TEXT_EXTENSIONS
        self._otherwise = NOT_AN_ARRAY if arrays else NOT_AN_IMAGE if images else NOT_A_TEXT

    def reason(self, path: str) -> str:
        """Why a file is not used; empty if it is used."""
        extension = extension_of(path)
        return "" if extension in self._used else self._undecodable.get(extension, self._otherwise)

    @cached_property
    def _undecodable(self) -> dict[str, str]:
        return undecodable_extensions() if self._images else {}

    def is_undecodable(self, path: str) -> bool:
        """Whether a file is an image that cannot be decoded here."""
        return extension_of(path) in self._undecodable


def find(folder: Path, base: Path | None, kinds: Kinds, undecodable: bool = False) -> tuple[list[str], Ignored]:
    """The used files below `folder`, sorted, and the ignored ones; relative to `base` if it is given."""
    used: list[str] = []
    ignored = Ignored()
    for path, why in walk(folder):
        reason = why or kinds.reason(path)
        name = path if base is None else relative(path, base)
        if not reason or (undecodable and not why and kinds.is_undecodable(path)):
            used.append(name)
        else:
            ignored.add(name, reason)
    return sorted(used), ignored


def relative(path: str, base: Path) -> str:
    """Like os.path.relpath, but faster if the path begins with the base."""
    prefix = os.path.join(base, "")
    return path[len(prefix) :] if path.startswith(prefix) else os.path.relpath(path, base)


def walk(folder: Path, below: bool = True) -> Iterator[tuple[str, str]]:
    """Every file under `folder`, in any order, with the reason if it is ignored: hidden, or not a regular file.

    Links are followed, except hidden ones and those to a folder that has been visited. With `below` false, visible
    subfolders are not entered.
    """
    seen: set[str] = set()
    visible = [str(folder)]
    hidden: list[tuple[str, str]] = []  # folder, reason
    while visible or hidden:  # hidden folders come last, because a visible link may lead to them
        current, inherited = (visible.pop(), "") if visible else hidden.pop()
        real = os.path.realpath(current)
        if real in seen:
            continue
        seen.add(real)
        for entry in _scan_if_allowed(current) if inherited else scan(current):
            reason = inherited or hidden_reason(entry.name)
            if entry.is_dir():
                if not reason and below:
                    visible.append(entry.path)
                elif reason and not entry.is_symlink():
                    hidden.append((entry.path, reason))
            elif reason:
                yield entry.path, reason
            elif entry.is_file() or not os.path.exists(entry.path):  # a broken link is reported when it is read
                yield entry.path, ""
            else:
                yield entry.path, NOT_A_FILE


def _scan_if_allowed(folder: str) -> list[os.DirEntry[str]]:
    """The entries of a folder whose files are only counted; none if it cannot be read."""
    try:
        return scan(folder)
    except DataError:
        return []


def scan(folder: str | Path) -> list[os.DirEntry[str]]:
    """The entries of a folder. Raises DataError if it cannot be read."""
    try:
        with os.scandir(folder) as entries:
            return list(entries)
    except OSError as error:
        raise DataError(f"{folder}: {error.strerror or error}; check the path and its permissions") from error
