"""Files in an object store, each an image or a text, in groups that the cache fetches, keeps and gives up as shards.

A group is files that follow each other in their split, up to GROUP bytes or MOST files, one behind the other in one
file of the cache. Each is fetched by a request of its own, REQUESTS at once, and is what was listed: with the size and
the tag that it had then. A group that is in the cache was verified; after a start of the system it is fetched again.
"""

import hashlib
import os
import threading
from bisect import bisect_right
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from fastimg.loaders.errors import DataError
from fastimg.loaders.remote.cache.eviction import GROUPS
from fastimg.loaders.remote.cache.wanted_files import WantedFile
from fastimg.loaders.remote.stores import StoredObject
from fastimg.loaders.remote.trees import StoredTree
from fastimg.loaders.runtime.side_by_side import side_by_side
from fastimg.loaders.wording import plural

GROUP = 8 << 20  # bytes; a larger file is a group
MOST = 512  # files
REQUESTS = 32  # of all groups together, at once
MOST_LISTED = 1_000_000


class GroupedFile(NamedTuple):
    """A file of a group, and where it begins there."""

    stored: StoredObject
    offset: int


class Grouping(NamedTuple):
    """Files as groups; `places` [N, 3] are of each file its group, where it begins there, and its bytes."""

    groups: list[WantedFile]
    places: npt.NDArray[np.int64]


class GroupedFiles:
    """The files below a URL, listed once, and a tree of empty files, `root`, that shows them. Any thread may read.

    Raises DataError where nothing is there, or more than MOST_LISTED files are.
    """

    def __init__(self, url: str, options: dict[str, str], place: Path) -> None:
        self.url = url
        self._listed: dict[str, StoredObject] = {}
        self._tree = StoredTree(url, options, place, self._add)
        self.root = self._tree.root
        self._members: dict[str, list[GroupedFile]] = {}  # by what tells a group from others
        self._at_once = threading.BoundedSemaphore(REQUESTS)
        lines = (f"{each.size} {each.tag} {name}\n" for name, each in sorted(self._listed.items()))
        self.listed = hashlib.sha256("".join(lines).encode("utf-8", "surrogateescape")).hexdigest()

    @property
    def count(self) -> int:
        """Number of files, of any kind."""
        return self._tree.count

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return self._tree.size

    def _add(self, name: str, size: int, tag: str) -> None:
        self._listed[name] = StoredObject(name, size, tag)
        if len(self._listed) > MOST_LISTED:
            raise DataError(
                f"{self.url}: more than {plural(MOST_LISTED, 'file')}, and no dataset.json: so many are not read one "
                "by one; check the URL, or convert them"
            )

    def stored(self, path: str) -> StoredObject:
        """A file as it was listed."""
        return self._listed[path]

    def grouped(self, name: str, paths: Sequence[str]) -> Grouping:
        """Files in groups that are called after `name`."""
        groups: list[list[GroupedFile]] = []
        places = np.zeros((len(paths), 3), np.int64)
        end = 0
        for number, path in enumerate(paths):
            stored = self.stored(path)
            if not groups or len(groups[-1]) == MOST or end + stored.size > GROUP:
                groups.append([])
                end = 0
            groups[-1].append(GroupedFile(stored, end))
            places[number] = len(groups) - 1, end, stored.size
            end += stored.size
        wanted = []
        for number, members in enumerate(groups):
            last = members[-1]
            stated = hashlib.sha256(repr(members).encode("utf-8", "surrogateescape")).hexdigest()
            wanted.append(WantedFile(f"{name}-{number:05d}{GROUPS}", last.offset + last.stored.size, stated))
            self._members[stated] = members
        return Grouping(wanted, places)

    def fetch(self, group: WantedFile, file: int) -> None:
        """Write a group to `file`. Raises DataError, and ShardError if one of its files is another by now."""
        members = self._members[group.sha256]

        def bring(member: GroupedFile) -> None:
            content, at = memoryview(self.content(member.stored)), member.offset
            while content:
                written = os.pwrite(file, content, at)
                content, at = content[written:], at + written

        side_by_side(bring, members, min(REQUESTS, len(members)), "fastimg-files")

    def content(self, stored: StoredObject) -> bytes:
        """A file as it was listed. Raises DataError, and ShardError if it is another by now."""
        with self._at_once:
            return self._tree.files.content_of(stored)

    def read(self, group: WantedFile, start: int, stop: int) -> bytes:
        """The files of a group that begin between two positions, whole, from the store. Raises as `content` does."""
        members = self._members[group.sha256]
        first = bisect_right(members, start - 1, key=lambda member: member.offset)
        found = []
        for member in members[first:]:
            if member.offset >= stop:
                break
            if member.stored.size:
                found.append(self.content(member.stored))
        return b"".join(found)
