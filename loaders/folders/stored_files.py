"""Files of a folder in an object store as a dataset: what a folder here is, read in groups by way of the cache."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from fastimg.loaders.containers.content import Content
from fastimg.loaders.containers.watch import FileParts
from fastimg.loaders.errors import DataError
from fastimg.loaders.remote.fetched_files import FetchedFiles
from fastimg.loaders.remote.mirrors import Mirror, mirror_at, with_urls
from fastimg.loaders.remote.plain.groups import GroupedFiles
from fastimg.loaders.runtime.scratch import Encoded, Scratch

from .folder import FilesDataset, Level, Listing, list_folder
from .walk import find_images, find_texts, relative


class StoredFilesDataset(FilesDataset):
    """The files of `listed`, below the URL of `mirror`, in groups that are called after `name`.

    None of its paths exists: they are in the folder of the cache, whose name tells the listing.
    """

    def __init__(self, mirror: Mirror, grouped: GroupedFiles, name: str, listed: FilesDataset) -> None:
        super().__init__(mirror.folder, listed.paths, listed.classes, listed.labels, listed.content, listed.notes)
        self.name = f"{mirror.url} ({name})"
        self._mirror = mirror
        self._grouped = grouped
        self._groups, self._places = grouped.grouped(name, self.paths)
        self.shard_files = FetchedFiles(mirror, self._groups, ())

    @property
    def shard_numbers(self) -> npt.NDArray[np.int64]:
        """The number of each sample's group [N], ascending."""
        return self._places[:, 0]

    def read(self, index: int, scratch: Scratch) -> memoryview:
        """The file as it was listed. Raises DataError where it cannot be had, and ShardError where it is another."""
        group, offset, size = self._places[index].tolist()
        view = scratch.encoded(size)
        if size:
            self.shard_files.fill(group, view, offset)
        return view

    def read_group(self, indices: Sequence[int], encoded: Encoded) -> None:
        """See FilesDataset: what is in groups that are here."""
        groups, offsets, sizes = self._places[list(indices)].T.copy()
        filled = self.shard_files.fill_group(FileParts(groups.tolist(), offsets, sizes), encoded)
        encoded.take(sizes, filled)

    def glance(self, index: int) -> bytes:
        """What `read` gives: of a group that is not here, only this file is fetched. Raises DataError."""
        wanted = self._groups[self._places[index, 0]]
        if not self.shard_files.by_ranges and self._mirror.has(wanted):
            return bytes(self.read(index, Scratch()))
        return self._grouped.content(self._grouped.stored(self.paths[index]))

    def will_need(self, indices: npt.NDArray[np.int64]) -> None:
        """Have the groups of these samples fetched, or read ahead."""
        groups, offsets, sizes = self._places[indices].T
        self.shard_files.ahead(groups, offsets, sizes)

    def sample_name(self, index: int) -> str:
        """The file's URL."""
        return self._mirror.address(self.paths[index])

    def close(self) -> None:
        """End what is fetched ahead. Reading begins it again."""
        self.shard_files.close()


def folder_of(path: Path) -> Path:
    """The folder that shows the names of files: the path itself; of files in an object store a tree of empty ones."""
    grouped = _grouped_at(path)
    return path if grouped is None else grouped.root


def list_files(path: Path, classes: Level | None, evaluates: bool = False) -> Listing:
    """The layout of a class folder, here or in an object store; see `list_folder`.

    `evaluates`: nothing is trained on it, so there may be no training split, and empty class folders.
    """
    try:
        return list_folder(folder_of(path), classes, trains=not evaluates, empty=evaluates)
    except DataError as error:
        raise DataError(with_urls(str(error))) from error


def open_listed(path: Path, listing: Listing, split: str, files: Sequence[tuple[str, int]]) -> FilesDataset:
    """The files of a split as `list_files` has found them."""
    names, labels = [name for name, _ in files], [label for _, label in files]
    notes = [with_urls(note) for note in listing.all_notes()]
    dataset = FilesDataset(path, names, listing.classes, labels, listing.content, notes)
    mirror, grouped = mirror_at(path), _grouped_at(path)
    return dataset if mirror is None or grouped is None else StoredFilesDataset(mirror, grouped, split, dataset)


def open_unlabelled(path: Path, content: Content) -> StoredFilesDataset | None:
    """All images, or texts, below a URL that nobody has converted, whatever their folders; None for any other data.

    Raises DataError if there are none.
    """
    mirror, grouped = mirror_at(path), _grouped_at(path)
    if mirror is None or grouped is None:
        return None
    found, ignored = find_images(grouped.root) if content == "images" else find_texts(grouped.root)
    if not found:
        what = "images" if content == "images" else ".txt files"
        summary = f" (other files: {ignored.summary()})" if ignored.total else ""
        raise DataError(f"{mirror.url}: no {what} in this folder{summary}; check the URL")
    names = [relative(name, grouped.root) for name in found]
    listed = FilesDataset(path, names, content=content, notes=ignored.note(mirror.url, len(names)))
    return StoredFilesDataset(mirror, grouped, "files", listed)


def _grouped_at(path: Path) -> GroupedFiles | None:
    mirror = mirror_at(path)
    return None if mirror is None else mirror.grouped
