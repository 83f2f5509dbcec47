"""Samples of tars.

The image is the first member with an image extension; a plain `jpg` goes before `depth.png`. In tars without images,
`txt` holds the text. `cls` is the label, `json` the note, and every other member a field. The names in a tar serve only
as keys; no file is ever written under them.
"""

import contextlib
import json
import os
import re
from array import array
from collections.abc import Iterator, Set
from functools import partial
from pathlib import Path

from fastimg.convert.sources.samples import Original, SamplePart, SourceEntry, note
from fastimg.convert.stored.shards import StoredShards, open_shard
from fastimg.errors import printable
from fastimg.loaders.containers.content import TEXT_EXTENSIONS, Content
from fastimg.loaders.containers.tars.shards import Sample, index_path, parse_index, scan, split_name
from fastimg.loaders.errors import ImageError, ShardError
from fastimg.loaders.folders.formats import image_extensions, undecodable_extensions
from fastimg.loaders.folders.ignored import extension_of

_EXTENSION = re.compile(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*")
_LABEL_BYTES = 256


class TarReader:
    """Reads samples from tars. Keeps 24 bytes per member and 16 per sample in arrays."""

    def __init__(self, ours: bool, content: Content = "images", stored: StoredShards | None = None) -> None:
        self._ours = ours  # written by fastimg: notes stay unchanged
        self._stored = stored  # None: the tars are here
        self._content = content
        self._tars: list[Path] = []
        self._first = array("q", [0])  # index of each sample's first member, then the number of members
        self._tar = array("q")  # index of each sample's tar
        # Of each member:
        self._offsets = array("q")
        self._sizes = array("q")
        self._kinds = array("q")  # index into `_extensions`
        self._extensions: list[str] = []
        self._numbers: dict[str, int] = {}  # inverse of `_extensions`
        self._main = image_extensions() if content == "images" else TEXT_EXTENSIONS
        self._has_main = False  # whether any sample has an image, or a text
        self.fields: set[str] = set()  # of any sample

    def add(self, tar: Path) -> Iterator[tuple[SourceEntry, str]]:
        """Add a tar. Yields its samples and the content of their .cls members."""
        lease = None if self._stored is None else self._stored.lease(tar)
        samples = parse_index(index_path(tar), tar.stat().st_size) if self._ours else scan(tar)
        self._tars.append(tar)
        with self._opened(tar) as file:
            for sample in samples:
                yield self._add(sample), self._label(tar, file, sample)
        if lease is not None:
            lease.close()

    @contextlib.contextmanager
    def _opened(self, tar: Path) -> Iterator[int]:
        file = open_shard(tar, self._stored)
        try:
            yield file
        finally:
            os.close(file)

    @property
    def fetches(self) -> bool:
        """See FetchingReader."""
        return self._stored is not None

    def announce(self, entry: SourceEntry) -> int:
        """See FetchingReader: the tar is fetched, and the one behind it."""
        if self._stored is not None:
            self._stored.announce(self._tars[self._tar[entry.place]])
        return max(entry.size, 0)

    def check_shuffled(self) -> None:
        """Raise DataError if reading in another order would fetch the tars again and again."""
        if self._stored is not None:
            self._stored.check_shuffled()

    def read(self, entry: SourceEntry) -> Original:
        """See SourceReader."""
        image = suffix = text = None
        fields: dict[str, bytes] = {}
        members = self._members(entry)
        chosen = self._image([ext for ext, _, _ in members])
        tar = self._tars[self._tar[entry.place]]
        with self._opened(tar) as file:
            for position, (ext, offset, size) in enumerate(members):
                data = os.pread(file, size, offset)
                if len(data) != size:
                    raise ShardError(f"{tar}: shrank while it was being read; copy it again, then use --resume")
                if position == chosen:
                    image, suffix = data, ext
                elif ext.lower() == "json":
                    text = data
                elif ext.lower() != "cls":
                    fields[ext] = data
        assert image is not None and suffix is not None
        known = text if text is not None and self._ours else _note(entry.path, text)
        return Original(image, suffix, known, fields)

    def name(self, entry: SourceEntry) -> str:
        """The tar and the sample's key in it."""
        return f"{self._tars[self._tar[entry.place]]}: {entry.path}"

    def problem(self, entry: SourceEntry) -> str | None:
        """See SourceReader."""
        if entry.size < 0:
            return "a sample without a text" if self._content == "text" else self._without_image(entry)
        for ext, _, _ in self._members(entry):
            if not _EXTENSION.fullmatch(ext):
                return f"its member .{ext} has an extension with characters other than A-Z a-z 0-9 _ -; rename it"
        return None

    def parts(self, entry: SourceEntry) -> Iterator[SamplePart]:
        """See SourceReader."""
        tar = self._tars[self._tar[entry.place]]
        for ext, offset, size in self._members(entry):
            if ext.lower() != "cls":
                yield SamplePart(size, partial(self._bytes, tar, offset))

    def _bytes(self, tar: Path, offset: int, start: int, stop: int) -> bytes:
        """Bytes of a member that begins at `offset`."""
        if self._stored is not None:
            return self._stored.peek(tar, offset + start, stop - start)
        with self._opened(tar) as file:
            return os.pread(file, stop - start, offset + start)

    def close(self) -> None:
        """See SourceReader."""
        if self._stored is not None:
            self._stored.close()

    def _without_image(self, entry: SourceEntry) -> str:
        undecodable = undecodable_extensions()
        reasons = (undecodable.get(extension_of(f"x.{ext}")) for ext, _, _ in self._members(entry))
        reason = next(filter(None, reasons), None)
        return f"a sample without an image that can be decoded: {reason}" if reason else "a sample without an image"

    @property
    def holds_only_texts(self) -> bool:
        """Whether the samples added so far have texts and no images."""
        return not self._has_main and any(_has_extension(ext, TEXT_EXTENSIONS) for ext in self._extensions)

    def _add(self, sample: Sample) -> SourceEntry:
        place = len(self._tar)
        image = self._image([member.ext for member in sample])
        self._tar.append(len(self._tars) - 1)
        for position, member in enumerate(sample):
            if member.ext not in self._numbers:
                self._numbers[member.ext] = len(self._extensions)
                self._extensions.append(member.ext)
            self._offsets.append(member.offset)
            self._sizes.append(member.size)
            self._kinds.append(self._numbers[member.ext])
            if position != image and member.ext.lower() not in ("cls", "json"):
                self.fields.add(member.ext)
        self._first.append(len(self._offsets))
        self._has_main = self._has_main or image is not None
        size = -1 if image is None else sample[image].size
        return SourceEntry(split_name(sample[0].name)[0], -1, size, place=place)

    def _members(self, entry: SourceEntry) -> list[tuple[str, int, int]]:
        span = slice(self._first[entry.place], self._first[entry.place + 1])
        extensions = [self._extensions[number] for number in self._kinds[span]]
        return list(zip(extensions, self._offsets[span], self._sizes[span], strict=True))

    def _label(self, tar: Path, file: int, sample: Sample) -> str:
        for member in sample:
            if member.ext.lower() == "cls":
                if member.size > _LABEL_BYTES:
                    raise ShardError(
                        f"{tar}: {printable(member.name)}: too long for a label ({member.size} bytes); correct it"
                    )
                return os.pread(file, member.size, member.offset).decode("utf-8", "backslashreplace").strip()
        return ""

    def _image(self, extensions: list[str]) -> int | None:
        """Index of the member that is the image or text: the first, but in tars of others `jpg` before `depth.png`."""
        images = [position for position, ext in enumerate(extensions) if _has_extension(ext, self._main)]
        if not self._ours:
            images = [position for position in images if "." not in extensions[position]] or images
        return images[0] if images else None


def _has_extension(ext: str, extensions: Set[str]) -> bool:
    return "." + ext.lower().rpartition(".")[2] in extensions


def _note(key: str, text: bytes | None) -> bytes:
    """Make the note of a sample that another writer stored under `key`; `text` is its .json, if it has one."""
    if text is None:
        return note(key)
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ImageError(f"its .json is not valid JSON ({error})") from error
    if not isinstance(value, dict):
        return json.dumps({"path": key, "json": value}).encode()
    return json.dumps(({"__key__": key} if "path" in value else {"path": key}) | value).encode()
