"""Which file a path that leads to none probably means: one that differs in case, Unicode form, extension or folder."""

import os
import unicodedata
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from fastimg.convert.sources.columns import PATH_COLUMNS, SEPARATED, TEXT_COLUMNS, Columns, lower
from fastimg.convert.sources.tables import first_records, own_delimiter, readable
from fastimg.loaders.errors import DataError
from fastimg.loaders.folders.formats import image_extensions
from fastimg.loaders.remote.trees import is_outside

_FOLDERS = 64  # whose names are kept
_SUBFOLDERS = 20  # of the root, in which files are looked for that are not where their path says


def refuse_ids(src: Path, columns: Columns) -> None:
    """Raise DataError for a table without a column of paths or texts, one of whose columns has the names of images."""
    if columns.path is not None or columns.text is not None or columns.no_header or src.suffix.lower() not in SEPARATED:
        return
    with readable(src):
        records = first_records(src, columns.delimiter or own_delimiter(src), 3)
    if len(records) < 2 or len(set(map(len, records))) > 1:
        return
    names, first = records[0], [dict(zip(records[0], record, strict=True)) for record in records[1:]]
    if lower(names) & {*PATH_COLUMNS, *TEXT_COLUMNS}:
        return
    if any(os.path.splitext(name)[1].lower() in image_extensions() for name in names):  # a row: there is no header
        return
    near = NearFiles(src.parent)
    for name in names:
        values = [row[name] for row in first]
        meant = [near.meant(value) for value in values]
        if meant == values:
            raise DataError(
                f"{src}: no path column ({', '.join(PATH_COLUMNS)}), but {name!r} holds paths of images, such as "
                f"{values[0]!r}; name it with --path-column, and the column of labels with --label-column"
            )
        if all(meant):
            raise DataError(
                f"{src}: no path column ({', '.join(PATH_COLUMNS)}), but {name!r} names images: {first[0][name]!r} is "
                f"{meant[0]!r}; write that, with folder and extension, into a column `path`, and name the column of "
                "labels with --label-column"
            )


class _Names(NamedTuple):
    """The names in a folder, by how they are compared."""

    files: dict[str, str]
    stems: dict[str, str]  # of images, by the name without its extension
    folders: dict[str, str]


class NearFiles:
    """Finds what paths below `root` probably mean."""

    def __init__(self, root: Path) -> None:
        self._root = str(root)
        self._names = lru_cache(_FOLDERS)(_names_in)

    def meant(self, path: str) -> str | None:
        """The path, from the root on or absolute as `path` is, of a file that is almost called so; None without one."""
        *folders, name = path.strip().replace("\\", "/").split("/")
        if not name or is_outside(Path(self._root), "/".join([*folders, ""])):
            return None
        here = os.sep if path.startswith("/") else ""
        for folder in filter(None, folders):
            if folder in (os.curdir, os.pardir) or os.path.isdir(os.path.join(self._root, here, folder)):
                here = os.path.join(here, folder)
            elif found := self._names(os.path.join(self._root, here)).folders.get(_key(folder)):
                here = os.path.join(here, found)
            else:
                return self._elsewhere(name)
        return self._inside(here, name) or self._elsewhere(name)

    def _inside(self, folder: str, name: str) -> str | None:
        names = self._names(os.path.join(self._root, folder))
        stem = os.path.splitext(name)[0] if os.path.splitext(name)[1].lower() in image_extensions() else name
        found = names.files.get(_key(name)) or names.stems.get(_key(stem))
        return os.path.join(folder, found) if found else None

    def _elsewhere(self, name: str) -> str | None:
        """A file in the root, or in one of its folders."""
        folders = ["", *sorted(self._names(self._root).folders.values())[:_SUBFOLDERS]]
        return next((found for folder in folders if (found := self._inside(folder, name))), None)


def _names_in(folder: str) -> _Names:
    names = _Names({}, {}, {})
    try:
        with os.scandir(folder) as entries:
            listed = sorted((entry.name, entry.is_dir()) for entry in entries)
    except OSError:
        return names
    for name, is_folder in listed:
        (names.folders if is_folder else names.files).setdefault(_key(name), name)
        stem, extension = os.path.splitext(name)
        if not is_folder and extension.lower() in image_extensions():
            names.stems.setdefault(_key(stem), name)
    return names


def _key(name: str) -> str:
    return unicodedata.normalize("NFC", name).casefold()
