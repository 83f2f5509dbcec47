"""A complete dataset takes the place of the one in its folder, so that at any moment one of the two can be read.

It was made in a folder within, under the names that it will have; the old dataset has the same names. dataset.json says
which files are the dataset's, and is replaced in one step:

    old shards get a second name, which the old dataset.json states from now on
    new shards take the first name
    the new dataset.json replaces the old one
    whatever it does not list is deleted

A process that is killed in between leaves names that are stated and there. Doing it again finishes it.
"""

import contextlib
import json
import os
import re
from collections.abc import Collection
from pathlib import Path

from fastimg.convert.journal import clear
from fastimg.convert.shards.base import Base, read_made
from fastimg.loaders.containers.atomic import replace_file, sync_folder
from fastimg.loaders.containers.description import read_description
from fastimg.loaders.containers.tars.shards import index_path
from fastimg.loaders.errors import DataError

_NUMBER = re.compile(r"[a-z]+-(\d+)\.")


def put_in_place(staged: Path, folder: Path) -> None:
    """Have the complete dataset in `staged`, a folder in `folder`, replace the one in `folder`. Raises OSError."""
    new = Base.of(read_made(staged))
    derived = new.files - new.shard_files - {"dataset.json"}
    described = (staged / "dataset.json").read_bytes()
    if not _is_there(folder, described) or any((staged / name).exists() for name in new.shard_files):
        _put_aside(folder, new.shard_files)
        for name in derived:  # of the old dataset: made anew by whoever reads it now
            (folder / name).unlink(missing_ok=True)
        _move(new.shard_files, staged, folder)
        sync_folder(folder)
        replace_file(folder / "dataset.json", described)
    _move(derived, staged, folder)
    clear(folder, keep=new.files)
    clear(staged, keep=["dataset.json"])
    (staged / "dataset.json").unlink()  # as the last: until then this goes on
    with contextlib.suppress(OSError):  # somebody has put another file there
        staged.rmdir()


def _is_there(folder: Path, described: bytes) -> bool:
    try:
        return (folder / "dataset.json").read_bytes() == described
    except FileNotFoundError:
        return False


def _move(names: Collection[str], source: Path, target: Path) -> None:
    """Move files, as far as they have not been moved already."""
    for name in sorted(names):
        with contextlib.suppress(FileNotFoundError):
            (source / name).replace(target / name)


def _put_aside(folder: Path, taken: Collection[str]) -> None:
    """Give the dataset in `folder` other names for its shards if some of its names will be `taken`."""
    try:
        old = read_description(folder)
    except DataError:  # none, or one that cannot be read
        return
    shards = [(split, shard) for split, stated in old["splits"].items() for shard in stated["shards"]]
    if not any(shard["name"] in taken for _, shard in shards):
        return
    numbers = (_NUMBER.match(name) for name in (*os.listdir(folder), *taken))
    free = 1 + max((int(number[1]) for number in numbers if number), default=0)
    for number, (split, shard) in enumerate(shards, free):
        before = folder / shard["name"]
        after = folder / f"{split}-{number:05d}{before.suffix}"
        for file, other in ((before, after), (index_path(before), index_path(after))):
            with contextlib.suppress(FileNotFoundError):  # a .beton has no index
                _name_also(file, other)
        shard["name"] = after.name
    sync_folder(folder)
    replace_file(folder / "dataset.json", (json.dumps(old, indent=1) + "\n").encode())


def _name_also(file: Path, other: Path) -> None:
    try:
        other.hardlink_to(file)
    except FileNotFoundError:
        raise
    except OSError:  # a file system without links, or somebody else's file: for a moment it has only the new name
        file.replace(other)
