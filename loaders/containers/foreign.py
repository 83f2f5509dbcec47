"""Shards of other writers in a folder without a dataset.json: which files make which split."""

from collections.abc import Iterable
from pathlib import Path

from fastimg.loaders.errors import DataError
from fastimg.loaders.folders.folder import SPLIT_FOLDERS
from fastimg.loaders.remote.mirrors import mirror_at


def foreign_shards(path: Path) -> dict[str, list[Path]]:
    """Tars of other writers, by split: the name before the shard number. Of an object store they need not be here."""
    named: dict[str, list[Path]] = {}
    mirror = mirror_at(path)
    elsewhere = None if mirror is None else mirror.tars
    for tar in sorted(path.glob("*.tar") if elsewhere is None else [path / each.name for each in elsewhere]):
        if not tar.name.startswith("."):
            named.setdefault(tar.stem.rstrip("0123456789").rstrip("-_.") or "train", []).append(tar)
    shards = {split: named[name] for name, split in split_names(path, named).items()}
    if len(shards) == 1 and "train" not in shards:
        return {"train": next(iter(shards.values()))}
    return shards


def is_beton(path: Path) -> bool:
    """Whether a path is a .beton file, by its name."""
    return path.suffix == ".beton" and path.is_file()


def foreign_betons(path: Path) -> dict[str, Path]:
    """The .beton files of a folder, by split, which is their name."""
    named = {file.stem: file for file in sorted(path.glob("*.beton"))}
    return {split: named[name] for name, split in split_names(path, named).items()}


def split_names(path: Path, names: Iterable[str]) -> dict[str, str]:
    """The split of each name in a folder of shards; an unusual name is a split of its own.

    Raises DataError if two names mean the same split.
    """
    splits: dict[str, str] = {}
    for name in names:
        split = SPLIT_FOLDERS.get(name.lower(), name)
        if other := next((other for other, known in splits.items() if known == split), None):
            raise DataError(
                f"{path}: {other} and {name} are both names of the split {split}; rename one, or move it away"
            )
        splits[name] = split
    return splits
