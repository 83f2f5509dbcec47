"""Samples of tars.

The image is the member with an image extension; a plain `jpg` goes before `depth.png`, and of several the one whose
extension came first in the tars. In tars without images, `txt` holds the text. `cls` is the label, `json` the note, and
every other member a field. TarRules say otherwise for tars of other writers. The names in a tar serve only as keys; no
file is ever written under them.
"""

import contextlib
import json
import os
import re
from array import array
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np

from fastimg.convert.sources.samples import Original, SamplePart, SourceEntry, note
from fastimg.convert.stored.shards import StoredShards, open_shard
from fastimg.errors import printable
from fastimg.loaders.containers.content import TEXT_EXTENSIONS, Content
from fastimg.loaders.containers.tars.grouping import Sample, has_extension, split_name
from fastimg.loaders.containers.tars.shards import index_path, parse_index, scan_counting
from fastimg.loaders.errors import ImageError, ShardError
from fastimg.loaders.folders.formats import image_extensions, undecodable_extensions
from fastimg.loaders.folders.ignored import extension_of

from .tar_rules import JSON_BYTES, LABEL_BYTES, USUAL, TarRules, label_text

_EXTENSION = re.compile(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*")
_LOOKED_AT = 16  # notes, for the keys that they have


class TarReader:
    """Reads samples from tars. Keeps 24 bytes per member and 16 per sample in arrays."""

    def __init__(
        self,
        ours: bool,
        content: Content = "images",
        stored: StoredShards | None = None,
        rules: TarRules = USUAL,
    ) -> None:
        self.ours = ours  # written by fastimg: notes stay unchanged
        self._rules = rules
        self._stored = stored  # None: the tars are here
        self.content = content
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
        self.apart = 0  # samples whose members do not follow one another
        self.chosen: Counter[tuple[str, ...]] = Counter()  # the extensions of several images, the chosen one first
        self.json_keys: dict[str, dict[str, bool]] = {}  # by extension: keys of some, and whether they may be labels
        self._looked_at = 0

    def add(self, tar: Path) -> Iterator[tuple[SourceEntry, str]]:
        """Add a tar. Yields its samples and the content of their .cls members."""
        lease = None if self._stored is None else self._stored.lease(tar)
        if self.ours:
            samples = parse_index(index_path(tar), tar.stat().st_size)
        else:
            samples, apart = scan_counting(tar, self._rules.key_dots)
            self.apart += apart
        self._tars.append(tar)
        with self._opened(tar) as file:
            for sample in samples:
                if not self.ours and self._looked_at < _LOOKED_AT:
                    self._look_at_keys(file, sample)
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
                elif not self._is_label(ext):
                    fields[ext] = data
        assert image is not None and suffix is not None
        known = text if text is not None and self.ours else _note(entry.path, text)
        return Original(image, suffix, known, fields)

    def name(self, entry: SourceEntry) -> str:
        """The tar and the sample's key in it."""
        return f"{self._tars[self._tar[entry.place]]}: {entry.path}"

    def problem(self, entry: SourceEntry) -> str | None:
        """See SourceReader."""
        if entry.size < 0:
            return "a sample without a text" if self.content == "text" else self._without_image(entry)
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

    def _is_label(self, ext: str) -> bool:
        """Whether a member goes into the label as a whole, or gives way to the one that does."""
        rule = self._rules.label
        return ext.lower() == "cls" or (rule is not None and not rule.is_json and ext.lower() == rule.ext)

    def members_seen(self) -> dict[str, int]:
        """How many samples have a member of each extension."""
        counts = np.bincount(np.frombuffer(self._kinds, np.int64), minlength=len(self._extensions)).tolist()
        seen: Counter[str] = Counter()
        for ext, count in zip(self._extensions, counts, strict=True):
            seen[ext.lower()] += count
        return dict(seen.most_common())

    def _look_at_keys(self, file: int, sample: Sample) -> None:
        for member in sample:
            if has_extension(member.ext, {".json"}) and member.size <= JSON_BYTES:
                try:
                    value = json.loads(os.pread(file, member.size, member.offset))
                except (ValueError, RecursionError):
                    continue
                keys = self.json_keys.setdefault(member.ext.lower(), {})
                for key, each in value.items() if isinstance(value, dict) else ():
                    keys[key] = keys.get(key, True) and isinstance(each, str | int | None)
                self._looked_at += 1

    def _without_image(self, entry: SourceEntry) -> str:
        if self._rules.image is not None:
            return f"a sample without the member .{self._rules.image}"
        undecodable = undecodable_extensions()
        reasons = (undecodable.get(extension_of(f"x.{ext}")) for ext, _, _ in self._members(entry))
        reason = next(filter(None, reasons), None)
        return f"a sample without an image that can be decoded: {reason}" if reason else "a sample without an image"

    @property
    def holds_only_texts(self) -> bool:
        """Whether the samples added so far have texts and no images."""
        return not self._has_main and any(has_extension(ext, TEXT_EXTENSIONS) for ext in self._extensions)

    def _add(self, sample: Sample) -> SourceEntry:
        place = len(self._tar)
        for member in sample:
            if member.ext not in self._numbers:
                self._numbers[member.ext] = len(self._extensions)
                self._extensions.append(member.ext)
        extensions = [member.ext for member in sample]
        image = self._image(extensions)
        if image is not None and not self.ours and self._rules.image is None:
            self._count_choice(extensions, image)
        self._tar.append(len(self._tars) - 1)
        for position, member in enumerate(sample):
            self._offsets.append(member.offset)
            self._sizes.append(member.size)
            self._kinds.append(self._numbers[member.ext])
            if position != image and member.ext.lower() != "json" and not self._is_label(member.ext):
                self.fields.add(member.ext)
        self._first.append(len(self._offsets))
        self._has_main = self._has_main or image is not None
        size = -1 if image is None else sample[image].size
        key, _ = split_name(sample[0].name, self._rules.key_dots or "first")
        return SourceEntry(key, -1, size, place=place)

    def _count_choice(self, extensions: list[str], image: int) -> None:
        others = [ext.lower() for i, ext in enumerate(extensions) if i != image and has_extension(ext, self._main)]
        if others:
            self.chosen[(extensions[image].lower(), *sorted(others))] += 1

    def _members(self, entry: SourceEntry) -> list[tuple[str, int, int]]:
        span = slice(self._first[entry.place], self._first[entry.place + 1])
        extensions = [self._extensions[number] for number in self._kinds[span]]
        return list(zip(extensions, self._offsets[span], self._sizes[span], strict=True))

    def _label(self, tar: Path, file: int, sample: Sample) -> str:
        rule = self._rules.label
        if self._rules.classes is not None:
            return ""  # it is in the key
        for member in sample:
            if self._rules.holds_label(member.ext):
                if member.size > (JSON_BYTES if rule is not None and rule.is_json else LABEL_BYTES):
                    raise ShardError(
                        f"{tar}: {printable(member.name)}: too long for a label ({member.size} bytes); correct it"
                    )
                data = os.pread(file, member.size, member.offset)
                if rule is not None:
                    return rule.label(f"{tar}: {printable(member.name)}", data)
                return label_text(data)
        return ""

    def _image(self, extensions: list[str]) -> int | None:
        """Index of the member that is the image or text."""
        if self._rules.image is not None:
            return next((place for place, ext in enumerate(extensions) if self._rules.is_image(ext)), None)
        images = [position for position, ext in enumerate(extensions) if has_extension(ext, self._main)]
        if not self.ours:
            images = [position for position in images if "." not in extensions[position]] or images
            images.sort(key=lambda position: self._numbers[extensions[position]])  # the same in all samples
        return images[0] if images else None


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
