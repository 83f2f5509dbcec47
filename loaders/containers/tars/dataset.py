"""Tar shards as a dataset of labelled images or texts."""

import json
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fastimg.loaders.containers.betons.dataset import MAX_CLASSES
from fastimg.loaders.containers.content import Content
from fastimg.loaders.containers.derived.block_index import BlockIndex
from fastimg.loaders.containers.derived.kept import DerivedPlace
from fastimg.loaders.containers.derived.records import are_of, fingerprint_of, records
from fastimg.loaders.containers.fields import WithFields
from fastimg.loaders.containers.identities import StatedContent
from fastimg.loaders.containers.readahead import Asked
from fastimg.loaders.containers.targets import TargetColumn
from fastimg.loaders.containers.watch import FileParts, ShardFiles, WatchedFiles
from fastimg.loaders.errors import DataError, ShardError
from fastimg.loaders.runtime.scratch import Encoded, Scratch
from fastimg.loaders.wording import plural

from .grouping import KeyDots, split_name
from .headers import BLOCK, stated_size, states_size

_NOTE_BYTES = 1 << 20  # of a sample's JSON, read for its path


class TarDataset(WithFields):
    """Samples of tar shards, read by preadv: if a shard shrinks, that is a short read and an error, never a SIGBUS."""

    declared: tuple[TargetColumn, ...] = ()  # of a dataset.json that declares targets
    blocks: BlockIndex | None = None  # of large tiled JPEGs

    def __init__(
        self,
        name: str,
        shards: list[Path],
        classes: tuple[str, ...] | None,
        place: DerivedPlace,
        checksums: list[str] | None = None,
        content: Content | None = None,
        fetched: ShardFiles | None = None,
        stated: list[str] | None = None,
        contents: Sequence[StatedContent] | None = None,
        counts: Sequence[int] | None = None,
        dots: KeyDots | None = None,
    ) -> None:
        """`fetched` reads shards that are elsewhere, and come to these paths.

        `stated`: of each shard of another writer that is elsewhere, what tells it from others of its name.
        `contents`, `counts`: what is stated of each shard's content, and of its samples. `dots`: which dot of a name in
        another writer's shards its extension begins at.
        """
        self.name = name
        self._shards = shards
        self.contents = contents
        self._dots: KeyDots = dots or "first"
        self.fingerprint = _fingerprint(shards, checksums or stated, dots)
        self.shard_files: ShardFiles = fetched or WatchedFiles(shards, "copy it again, or convert again", contents)
        most, lengths = MAX_CLASSES if classes is None else len(classes), self.shard_files.lengths
        self.records, notes, self.content = records(
            shards,
            self.fingerprint,
            place,
            checksums,
            content,
            self.shard_files.present(),
            lambda kept: are_of(kept, lengths, counts, most),
            dots,
        )
        self.notes: Sequence[str] = [*place.notes, *notes]
        self._asked = Asked(len(self.records), int(lengths.sum())) if fetched is None else None
        self.labels = self.records["label"].astype(np.int64)
        if classes is None:
            classes = tuple(str(i) for i in range(int(self.labels.max(initial=-1)) + 1))
        if self.labels.max(initial=-1) >= len(classes):
            raise ShardError(
                f"{name}: label {self.labels.max()} is not among its {plural(len(classes), 'class')}; convert again"
            )
        self.classes = classes

    def __len__(self) -> int:
        return len(self.records)

    @property
    def shard_numbers(self) -> npt.NDArray[np.int64]:
        """The number of each sample's shard [N], ascending."""
        return self.records["shard"].astype(np.int64)

    @property
    def targets(self) -> tuple[TargetColumn, ...]:
        """See Dataset."""
        return self.declared or (TargetColumn.of_classes(self.labels, self.classes),)

    def read(self, index: int, scratch: Scratch) -> memoryview:
        """The bytes of an image or a text. Raises ShardError if the tar has changed or does not fit its index."""
        offset, size, shard, *_ = self.records[index].item()
        return self._member_data(shard, offset, size, scratch.encoded(BLOCK + size))

    def read_group(self, indices: Sequence[int], encoded: Encoded) -> None:
        """Read several samples into `encoded`, but those that have to be read by `read`.

        Raises ShardError as `read` does.
        """
        self.fetch_group(self.records[list(indices)], encoded)

    def fetch_group(self, members: npt.NDArray[np.void], encoded: Encoded) -> None:
        """Read several members of any kind into `encoded`, each of a shard, an offset and a size, as `fetch` does."""
        from fastimg.loaders.runtime.compiled import may_call  # numba, which opening a dataset does not need

        from .member_sizes import are_stated

        if not may_call(are_stated):
            return
        sizes, offsets = members["size"].astype(np.int64), members["offset"].astype(np.int64)
        parts = FileParts(members["shard"].tolist(), offsets - BLOCK, sizes + BLOCK)
        filled = self.shard_files.fill_group(parts, encoded)
        encoded.take(sizes, filled, behind=BLOCK)
        if not are_stated(encoded.rooms, sizes, filled):
            for place in np.flatnonzero(filled).tolist():  # in other ways to write a size
                header = encoded.buffer(place)[:BLOCK]
                if not states_size(header, int(sizes[place])):
                    encoded.drop(place)

    def glance(self, index: int) -> bytes:
        """What `read` gives, for comparing: of a shard that is elsewhere only this, without the shard's checksum.

        Raises OSError and DataError.
        """
        offset, size, shard, *_ = self.records[index].item()
        return self.shard_files.peek(shard, size, offset)

    def pixels(self) -> npt.NDArray[np.int64]:
        """Pixels [N] of each image."""
        pixels: npt.NDArray[np.int64] = self.records["width"].astype(np.int64) * self.records["height"]
        return pixels

    def sizes(self) -> npt.NDArray[np.uint64]:
        """Bytes [N] of each image."""
        sizes: npt.NDArray[np.uint64] = self.records["size"]
        return sizes

    def read_start(self, index: int, nbytes: int, scratch: Scratch) -> memoryview:
        """The first bytes of an image. Raises ShardError as `read` does."""
        offset, size, shard, *_ = self.records[index].item()
        return self._member_data(shard, offset, size, scratch.encoded(BLOCK + min(nbytes, size)))

    def read_ranges(self, index: int, ranges: Sequence[Sequence[int]], view: memoryview) -> None:
        """Fill `view` with some bytes of an image, each range (begin, end) behind the one before. Raises ShardError.

        Nothing is checked of what the bytes are.
        """
        offset, _, shard, *_ = self.records[index].item()
        at = 0
        for begin, end in ranges:
            self.shard_files.fill(shard, view[at : at + end - begin], offset + begin)
            at += end - begin

    def fetch(self, shard: int, offset: int, size: int) -> bytes:
        """The bytes of any member. Raises ShardError as `read` does."""
        return bytes(self._member_data(shard, offset, size, memoryview(bytearray(BLOCK + size))))

    def _member_data(self, shard: int, offset: int, size: int, view: memoryview) -> memoryview:
        """The part of `view`, which has room for the header too, that holds the member's data."""
        self.shard_files.fill(shard, view, offset - BLOCK)
        if not states_size(view, size):
            self.shard_files.look(shard)
            raise ShardError(
                f"{self._shards[shard]}: byte {offset} does not hold a member of {size} bytes: the shard was altered "
                "while it was in use, or its index belongs to another one; copy both again"
            )
        return view[BLOCK:]

    def will_need(self, indices: npt.NDArray[np.int64]) -> None:
        """See Dataset: of shards on this machine, what `Asked` says."""
        if self._asked is not None:
            indices = self._asked.before(indices)
            if not len(indices):
                return
        chosen = self.records[indices]
        shards, offsets, sizes = (chosen[name].astype(np.int64) for name in ("shard", "offset", "size"))
        self.shard_files.ahead(shards, offsets - BLOCK, sizes + BLOCK)

    def size_of(self, index: int) -> tuple[int, int]:
        """Width and height of an image, in pixels."""
        record = self.records[index]
        return int(record["width"]), int(record["height"])

    def will_need_parts(
        self, indices: npt.NDArray[np.int64], begins: npt.NDArray[np.int64], ends: npt.NDArray[np.int64]
    ) -> None:
        """Have the bytes [begin, end) of images [N] read ahead; those from 0 on with the tar header before them."""
        chosen = self.records[indices]
        shards, offsets = (chosen[name].astype(np.int64) for name in ("shard", "offset"))
        headers = np.where(begins == 0, BLOCK, 0)
        self.shard_files.ahead(shards, offsets + begins - headers, ends - begins + headers)

    def sample_name(self, index: int) -> str:
        """`train-00000.tar: 000000017.jpg (cats/a.jpg)`, with the original path if it was kept.

        If the tar cannot be read any more, the position in it.
        """
        shard = self._shards[self.records[index]["shard"]]
        try:
            member, note = self._member(index)
        except (OSError, DataError):
            return f"{shard}: byte {self.records[index]['offset']}"
        path = str(note.get("path", ""))
        return f"{shard}: {member}" + (f" ({path})" if path else "")

    def sample_key(self, index: int) -> str:
        """See Dataset."""
        member, note = self._member(index)
        return str(note.get("path", "")) or member

    def note(self, index: int) -> dict[str, Any]:
        """The sample's JSON; empty if it has none."""
        return self._member(index)[1]

    def _member(self, index: int) -> tuple[str, dict[str, Any]]:
        """The name of the sample's member, and its JSON."""
        shard, at, size = (int(self.records[index][name]) for name in ("shard", "offset", "size"))
        peek = self.shard_files.peek
        name = peek(shard, 100, at - BLOCK).split(b"\0")[0].decode("utf-8", "replace")
        for _ in range(4):  # the members after it that have the same stem
            at += size + -size % BLOCK + BLOCK
            header = peek(shard, BLOCK, at - BLOCK)
            member = header[:100].split(b"\0")[0].decode("utf-8", "replace")
            size = stated_size(header) if len(header) == BLOCK else -1
            if not 0 <= size <= _NOTE_BYTES or self._key(member) != self._key(name):
                break
            if member.endswith(".json"):
                try:
                    note = json.loads(peek(shard, size, at))
                except (ValueError, RecursionError):
                    break
                return name, note if isinstance(note, dict) else {}
        return name, {}

    def _key(self, member: str) -> str:
        return split_name(member, self._dots)[0]

    def files(self) -> Sequence[Path]:
        """The shards."""
        return self._shards

    def close(self) -> None:
        """Close the shards, and what is kept of large images. Reading opens them again."""
        self.shard_files.close()
        if self.blocks is not None:
            self.blocks.close()


def _fingerprint(shards: list[Path], checksums: list[str] | None, dots: KeyDots | None) -> str:
    if checksums is None:
        checksums = []
        for shard in shards:
            try:
                status = shard.stat()
            except OSError as error:
                raise ShardError(f"{shard}: {error.strerror}; copy it again, or take it away") from error
            if not stat.S_ISREG(status.st_mode):
                raise ShardError(f"{shard}: not a file; rename it, or take it away")
            checksums.append(f"{shard.name} {status.st_size} {status.st_mtime_ns}")
    return fingerprint_of([*checksums, dots] if dots == "last" else checksums)
