"""Folders of the cache that stand for datasets in an object store.

A mirror has dataset.json and what is derived from the shards; a shard is there while it is needed. Its name depends on
the URL and on dataset.json's checksum, so that a dataset that was converted again has another one. Of tars of other
writers, without a dataset.json, it depends on their names, sizes and tags; and so of a folder of files that nobody has
converted, which are fetched in groups (plain/groups).
"""

import contextlib
import hashlib
import os
import re
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from os import PathLike
from pathlib import Path
from typing import Any

from fastimg.loaders.containers.atomic import replace_file
from fastimg.loaders.containers.description import stated_contents
from fastimg.loaders.containers.identities import identity_of_places, places_of
from fastimg.loaders.errors import DataError, ShardError, UnavailableError
from fastimg.loaders.runtime.cache import cache_folder
from fastimg.loaders.wording import plural

from .cache.held_shards import HeldShard
from .cache.shard_cache import TOUCH, ShardCache, not_cached
from .cache.sizes import in_words, parse_size
from .cache.wanted_files import WantedFile
from .fetching import Fetching
from .listing import named_tars, stored_tars
from .plain.groups import REQUESTS, GroupedFiles
from .stores import RANGE_ATTEMPTS, DeniedError, NotThereError, RemoteFolder, StoredObject
from .trees import named_by_urls
from .urls import parsed

_DESCRIPTION = "dataset.json"
_TIMES = 4  # part of a shard is fetched again, unless it comes twice alike
_PHOTOGRAPHS = 0.25  # of the cache's limit: what is kept of large photographs may take, beside it
_open: dict[Path, "Mirror"] = {}  # of this process, by folder


class Mirror:
    """A dataset at `url`, and its folder in the cache. Raises DataError if there is none.

    tars: those of other writers, where there is no dataset.json or the URL names tars; None otherwise.
    grouped: the files of a folder that has neither a dataset.json nor tars; None otherwise.
    """

    def __init__(self, url: str, cache: ShardCache, options: Mapping[str, str] | None = None) -> None:
        self.url = url
        self.cache = cache
        self.tell: Callable[[str], None] = lambda words: None  # is told when all shards are read, and how far that is
        self.options = dict(options or {})
        folder, pattern = named_tars(url)
        self._remote = RemoteFolder(folder, options)
        self._fetching = Fetching(self._remote)
        self._tags: dict[str, str] = {}  # of shards that are read by ranges
        self._first_uses: dict[str, threading.Lock] = {}  # of these: the first thread asks for the tag
        content = self._description() if pattern is None else None
        self.tars = stored_tars(self._remote, pattern) if content is None else None
        self.grouped: GroupedFiles | None = None
        if self.tars == []:
            self.tars, self.grouped = None, self._listed(folder)
        stated = content
        if stated is None:
            stated = repr(self.tars).encode() if self.grouped is None else self.grouped.listed.encode()
        key = hashlib.sha256(url.encode() + hashlib.sha256(stated).digest()).hexdigest()[:16]
        name = re.sub(r"[^A-Za-z0-9_-]+", "-", parsed(url).name).strip("-") or "data"
        self.folder = cache.root / f"{name}-{key}"
        if content is not None:
            self._keep(_DESCRIPTION, content)
        else:
            with self.cache.alone():
                self.cache.mark(self.folder)

    def _listed(self, folder: str) -> GroupedFiles:
        """The files of a folder that has neither a dataset.json nor tars."""
        try:
            return GroupedFiles(folder, self.options, self.cache.root / "listings")
        except DeniedError:
            raise
        except NotThereError as error:
            raise DataError(
                f"{self.address(_DESCRIPTION)}: not found, nor any other file; the folder must be one that `fastimg "
                "convert` has written, or hold tars, images or texts"
            ) from error

    def _description(self) -> bytes | None:
        """What dataset.json says now. Each process asks for it: to ask whether it has changed is a request as well."""
        try:
            return self._remote.read(_DESCRIPTION)
        except DeniedError:
            raise
        except NotThereError:
            return None

    def about(self) -> str:
        """Where its samples come from, and by which way, in words."""
        if self.cache.limit == 0:
            return f"samples come from {self.url} one by one, and nothing is kept: the cache may hold 0 bytes"
        if self.grouped is not None:
            return (
                f"files come from {self.url} one by one, {REQUESTS} at a time, into {self.cache.root}, at most "
                f"{in_words(self.cache.limit)} of them"
            )
        return f"shards come from {self.url} into {self.cache.root}, at most {in_words(self.cache.limit)} of them"

    def ask(self) -> None:
        """One request, for the size of a file that is there, or for names. Raises DataError."""
        if self.grouped is not None:
            self._remote.contents()
        else:
            self._remote.look(_DESCRIPTION if self.tars is None else self.tars[0].name)

    def wanted_tars(self, paths: Sequence[Path]) -> list[WantedFile]:
        """Tars of other writers as the store describes them."""
        stored: dict[str, StoredObject] = {each.name: each for each in self.tars or ()}
        chosen = [stored[path.name] for path in paths]
        return [_as_stored(each) for each in chosen]

    def address(self, name: str) -> str:
        """The URL of a file."""
        return self._remote.address(name)

    def fetch_derived(self, split: str, description: Mapping[str, Any]) -> None:
        """Fetch what was derived from a split, if it is in the store: otherwise all shards are read for it."""
        stated = {".fidx": description["container"] == "tar"}
        stated |= {".fcol": bool(description.get("targets")), ".ffld": bool(description.get("fields"))}
        for name in (f"{split}{suffix}" for suffix in stated if stated[suffix]):
            if not (self.folder / name).exists():
                try:
                    self._bring_beside(self._remote.look(name))
                except NotThereError:
                    continue

    def fetch_photographs(self, split: str) -> list[str]:
        """Fetch what is kept of a split's large photographs, if it is in the store, and small beside the cache.

        Returns sentences for the user. Raises DataError.
        """
        found = []
        for name in (f"{split}.ftil", f"{split}.fdci"):
            try:
                found += [] if (self.folder / name).exists() else [self._remote.look(name)]
            except DeniedError:
                raise
            except NotThereError:
                continue
        size = sum(each.size for each in found)
        if size > self.cache.limit * _PHOTOGRAPHS:
            return [
                f"{self.url}: its large photographs are read whole: what is kept of them ({in_words(size)}) takes more "
                f"than a quarter of the cache ({in_words(self.cache.limit)})"
            ]
        try:
            for each in found:
                self._bring_beside(each)
        except ShardError as error:
            return [f"{self.url}: its large photographs are read whole: {error}"]
        return []

    def _bring_beside(self, stored: StoredObject) -> None:
        """Have a file beside the shards, where it stays; once for all processes of the machine. Raises DataError.

        dataset.json states no checksum of it, so its ETag must be one, or it must arrive twice alike.
        """
        wanted = _as_stored(stored)
        self.cache.bring(
            self.folder / wanted.name,
            wanted,
            lambda file: self._fetching.fetch(wanted, file, strict=True),
            bounded=False,
        )

    def open(self, wanted: WantedFile, locked: bool = True) -> int:
        """A descriptor of a shard that is locked until it is closed, if `locked`. Raises DataError."""
        path = self.folder / wanted.name
        return self.cache.open(path, wanted, lambda file: self._fetch(wanted, file), locked)

    def _fetch(self, wanted: WantedFile, file: int) -> None:
        if self.grouped is None:
            self._fetching.fetch(wanted, file)
        else:
            self.grouped.fetch(wanted, file)

    def use(self, shard: HeldShard, wanted: WantedFile, awaited: bool = False) -> None:
        """Count an open shard as used now: from time to time, and always if it was `awaited` until now."""
        if (now := time.monotonic()) - shard.used >= TOUCH or awaited:
            self.cache.count_use(shard.file, wanted)
            shard.used = now

    def expect(self, wanted: WantedFile, seconds: float) -> None:
        """Count a shard that is here as used so much later: it was asked for, and nobody has read it yet."""
        with contextlib.suppress(OSError):  # deleted meanwhile: the reader will fetch it
            file = os.open(self.folder / wanted.name, os.O_RDONLY | os.O_CLOEXEC)
            try:
                self.cache.count_use(file, wanted, later=seconds)
            finally:
                os.close(file)

    def bring(self, wanted: WantedFile) -> None:
        """Have a shard in the cache. Raises DataError."""
        self.cache.bring(self.folder / wanted.name, wanted, lambda file: self._fetch(wanted, file))

    def renew(self, wanted: WantedFile, index: WantedFile | None) -> "Lease":
        """Have a shard and its index anew from the store, by their SHA-256, whatever the cache holds.

        Raises DataError.
        """
        self.cache.forget(self.folder / wanted.name)
        wanted = wanted._replace(quick="")
        if index is not None:
            self.cache.forget(self.folder / index.name)
            self.bring_index(index)
        return self.lease(wanted)

    def lease(self, wanted: WantedFile) -> "Lease":
        """Have a file in the cache, and keep it there. Raises DataError."""
        return Lease(self.open(wanted))

    def has(self, wanted: WantedFile) -> bool:
        """Whether a shard is in the cache."""
        return self.cache.has(self.folder / wanted.name, wanted)

    def read_part(self, wanted: WantedFile, size: int, offset: int) -> bytes:
        """At most `size` bytes of a shard, from the store, without a checksum; of a group, files that begin there.

        Raises DataError.
        """
        stop = min(offset + size, wanted.size)
        if self.grouped is not None:
            return self.grouped.read(wanted, offset, stop)
        return bytes(self._remote.read_range(wanted.name, offset, stop, wanted.tag)) if stop > offset else b""

    def read_alike(self, wanted: WantedFile, size: int, offset: int) -> bytes:
        """What `read_part` reads, as it is there: by TLS, or twice alike. Raises DataError."""
        found = self.read_part(wanted, size, offset)
        if self._remote.guarded:
            return found
        for _ in range(_TIMES):
            before, found = found, self.read_part(wanted, size, offset)
            if found == before:
                return found
        raise UnavailableError(
            f"{self.address(wanted.name)}: a part of it was fetched {plural(_TIMES + 1, 'time')}, with another content "
            "each time; check the network"
        )

    def read_bound(self, wanted: WantedFile, view: memoryview, offset: int) -> None:
        """Fill `view` from the store: without a checksum, but bound to the tag that the shard had at its first use.

        Then a few places of it show that it is the one that dataset.json states. A file of a group is read whole, as it
        was listed. Raises DataError.
        """
        began = time.perf_counter()
        if self.grouped is not None:
            view[:] = self.grouped.read(wanted, offset, offset + 1)
            self.cache.count_range(len(view), time.perf_counter() - began)
            return
        if wanted.name not in self._tags:
            with self._first_uses.setdefault(wanted.name, threading.Lock()):
                if wanted.name not in self._tags:
                    self._tags[wanted.name] = self._tag_of(wanted)
        stop = offset + len(view)
        view[:] = self._remote.read_range(wanted.name, offset, stop, self._tags[wanted.name])
        self.cache.count_range(len(view), time.perf_counter() - began)

    def _tag_of(self, wanted: WantedFile) -> str:
        """The tag of a shard that is not fetched. Raises DataError, also if it is another one than is stated."""
        found = self._remote.look(wanted.name, RANGE_ATTEMPTS)
        if found.size != wanted.size or wanted.tag not in ("", found.tag):
            raise ShardError(
                f"{self.address(wanted.name)}: {found.size} bytes where {wanted.size} are stated: it was replaced; "
                "upload it again, with dataset.json"
            )
        # What differs is asked for again: it may have been damaged on the way.
        if wanted.identity and wanted.identity not in (self._identity(wanted, found.tag) for _ in range(2)):
            raise ShardError(
                f"{self.address(wanted.name)}: another content than dataset.json states, though of the same size: it "
                "was exchanged for another shard, or altered; upload it again, with dataset.json"
            )
        return found.tag

    def _identity(self, wanted: WantedFile, tag: str) -> str:
        """The identity of a shard in the store, whose places are requested side by side. Raises DataError."""
        places = places_of(wanted.size)
        with ThreadPoolExecutor(len(places), "fastimg-identity") as pool:
            found = pool.map(lambda place: self._remote.read_range(wanted.name, place[0], place[1], tag), places)
            return identity_of_places(wanted.size, found)

    def bring_index(self, wanted: WantedFile) -> None:
        """Have the index of a shard, which stays. Raises DataError."""
        self.cache.bring(
            self.folder / wanted.name, wanted, lambda file: self._fetching.fetch(wanted, file), bounded=False
        )

    def _keep(self, name: str, content: bytes) -> None:
        path = self.folder / name
        try:
            if path.exists() and path.read_bytes() == content:
                return
            with self.cache.alone():
                self.cache.mark(self.folder)
                replace_file(path, content)
        except OSError as error:
            raise UnavailableError(f"{path}: {not_cached(error)}") from error


def open_mirror(
    url: str,
    cache_dir: str | PathLike[str] | None = None,
    cache_limit: int | str | None = None,
    options: Mapping[str, str] | None = None,
) -> Mirror:
    """The mirror of the dataset at a URL, which this process finds by its folder from now on; see `mirror_at`.

    cache_dir: None is the folder `shards` in the user's cache. cache_limit: bytes, or as in "200GB"; None: see
    ShardCache. Raises DataError, and ValueError for a limit that is not a size.
    """
    limit = parse_size(cache_limit) if isinstance(cache_limit, str) else cache_limit
    root = cache_folder() / "shards" if cache_dir is None else Path(cache_dir)
    mirror = Mirror(url, ShardCache(root.absolute(), limit), options)
    _open[mirror.folder] = mirror
    return mirror


def mirror_at(folder: Path) -> Mirror | None:
    """The mirror that this process has opened at a folder."""
    return _open.get(folder)


def with_urls(sentence: str) -> str:
    """A sentence in which datasets are called by their URLs, not by the folders of the cache."""
    for folder, mirror in list(_open.items()):  # another thread may open one
        url = mirror.url.replace("\\", r"\\")  # as what stands in place of a match
        sentence = re.sub(rf"{re.escape(str(folder))}(?![\w/-])", url, sentence)
    return named_by_urls(sentence)


def _as_stored(each: StoredObject) -> WantedFile:
    """A file without a stated checksum, as the store describes it."""
    return WantedFile(each.name, each.size, hashlib.sha256(repr(each).encode()).hexdigest(), each.tag)


def wanted_shards(shards: Sequence[Mapping[str, Any]]) -> list[WantedFile]:
    """The shards of a split as dataset.json states them."""
    return [
        WantedFile(shard["name"], shard["bytes"], shard["sha256"], quick=content.quick, identity=content.identity)
        for shard, content in zip(shards, stated_contents(shards), strict=True)
    ]


def wanted_indexes(shards: Sequence[Mapping[str, Any]]) -> list[WantedFile]:
    """The indexes of tar shards."""
    return [
        WantedFile(Path(shard["name"]).with_suffix(".idx").name, shard["index_bytes"], shard["index_sha256"])
        for shard in shards
    ]


class Lease:
    """Keeps a file in the cache until it is closed, or collected; in forked processes, which may read it, too."""

    def __init__(self, file: int) -> None:
        self.close = weakref.finalize(self, os.close, file)
