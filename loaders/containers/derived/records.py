"""`<split>.fidx`, the compact index of tars: a record of 32 bytes per sample, and notes as lines of text.

Texts have no width and height, and their own kind of stamp.
"""

import hashlib
import os
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Sequence, Set
from pathlib import Path
from typing import BinaryIO, get_args

import numpy as np
import numpy.typing as npt

from fastimg.loaders.containers.betons.dataset import MAX_CLASSES
from fastimg.loaders.containers.content import TEXT_EXTENSIONS, Content, singular
from fastimg.loaders.containers.extents import are_inside
from fastimg.loaders.containers.tars.grouping import (
    KeyDots,
    Member,
    Sample,
    apart_note,
    folder_of,
    has_extension,
    split_folders,
)
from fastimg.loaders.containers.tars.headers import BLOCK
from fastimg.loaders.containers.tars.shards import TarScan, index_path, parse_index, scan, scan_counting
from fastimg.loaders.errors import ImageError, ShardError
from fastimg.loaders.folders.formats import image_extensions, undecodable_extensions
from fastimg.loaders.folders.ignored import extension_of
from fastimg.loaders.wording import plural

from .kept import DerivedPlace

RECORD = np.dtype(
    [("offset", "<u8"), ("size", "<u8"), ("shard", "<u4"), ("label", "<i4"), ("width", "<u4"), ("height", "<u4")]
)

SUFFIX, MAGIC = ".fidx", b"FIMGIDX2"
_JPEG_BYTES = 32 * 1024  # read first from a JPEG; few have longer metadata
_LABEL_BYTES = 64
_MAX_SIDE = 2**31 - 1  # pixels; no format states more
_LABEL = re.compile(rb"-1|[0-9]{1,9}")
_KINDS: tuple[Content, ...] = get_args(Content)
_FOREIGN = 2  # how tars of other writers are read: what was derived in an earlier way is derived again


def records(
    shards: list[Path],
    fingerprint: str,
    place: DerivedPlace,
    checksums: list[str] | None,
    content: Content | None = None,
    present: Iterable[Path] = (),
    fits: Callable[[npt.NDArray[np.void]], bool] = lambda kept: True,
    dots: KeyDots | None = None,
) -> tuple[npt.NDArray[np.void], list[str], Content]:
    """Records [N] of `shards`, notes about how shards of other writers were read, and the content of the samples.

    `present` gives the shards once more, each while it can be read, where it may not be all the time. `fits` tells of
    records that were kept whether they can be those of the shards.

    `checksums`, of each shard and its index joined, are given for shards that fastimg wrote, whose indexes are trusted;
    other shards are scanned, with `dots` as `scan` takes it. `content` None is detected: text if there are .txt members
    and no images. Raises ShardError.
    """
    if not shards:
        return np.zeros(0, RECORD), [], content or "images"
    stamp = bytes.fromhex(fingerprint)
    if checksums is None:  # the notes also depend on the indexes
        states = [_index_state(shard) for shard in shards]
        stamp = hashlib.sha256(f"{fingerprint} {states} {_FOREIGN} {dots}".encode()).digest()
    file = place.file(SUFFIX, MAGIC)
    for kind in _KINDS if content is None else (content,):
        for kept in file.kept(_stamp(stamp, kind)):
            if (split := _split(*kept)) and fits(split[0]):
                return *split, kind
    notes: list[str] = []
    parts = []
    chosen: Counter[tuple[str, ...]] = Counter()
    seen: Counter[str] = Counter()
    folders: set[str] = set()
    apart = 0
    for number, shard in enumerate(present or shards):
        if checksums:
            samples = _own_samples(shard, checksums[number][64:])
        else:
            samples, more = _foreign_samples(shard, notes, dots)
            apart += more
        if content is None and samples:
            content = _content(samples, present or shards, dots)
        parts.append(_shard_records(number, shard, samples, content or "images", chosen, ours=bool(checksums)))
        if checksums is None:
            seen.update(m.ext.lower() for sample in samples for m in sample)
            folders.update(folder_of(sample[0].name) for sample in samples)
    made = np.concatenate(parts)
    content = content or "images"
    if checksums is None:
        notes += [apart_note(shards[0].parent, apart)] if apart else []
        notes += _choice_notes(shards[0].parent, chosen, content)
        if named := split_folders(folders):
            notes.append(
                f"{shards[0].parent}: its tars have the folders {', '.join(named)}, which are not taken as splits: the "
                "name of a tar is, so samples of several splits are in one; make a tar of each split"
            )
        if len(made) and (made["label"] < 0).all():
            notes.append(
                f"{shards[0].parent}: no labels, which are taken from .cls members: there are {', '.join(seen)}; "
                "convert to take others, or the folders in a tar, as labels"
            )
    body = made.tobytes() + "\n".join(notes).encode("utf-8", "surrogateescape")
    file.keep(_stamp(stamp, content), len(made), body)
    return made, notes, content


def are_of(
    kept: npt.NDArray[np.void], lengths: npt.NDArray[np.uint64], counts: Sequence[int] | None, classes: int
) -> bool:
    """Whether records [N] can be those of shards of these lengths, which hold `counts` samples if that is stated."""
    shards = kept["shard"]
    return (
        are_inside(shards, kept["offset"], kept["size"], lengths)
        and bool((kept["offset"] >= BLOCK).all())
        and bool((shards[1:] >= shards[:-1]).all())
        and (counts is None or np.bincount(shards, minlength=len(counts)).tolist() == list(counts))
        and bool(((kept["label"] >= -1) & (kept["label"] < classes)).all())
        and int(max(kept["width"].max(initial=0), kept["height"].max(initial=0))) <= _MAX_SIDE
        and bool(((kept["width"] == 0) == (kept["height"] == 0)).all())
    )


def own_records(number: int, shard: Path, index_sha256: str, content: Content) -> npt.NDArray[np.void]:
    """The records [n] of one shard that fastimg wrote, with its index beside it. Raises ShardError."""
    return _shard_records(number, shard, _own_samples(shard, index_sha256), content, Counter(), ours=True)


def fingerprint_of(checksums: Sequence[str]) -> str:
    """The fingerprint of a split by what tells each of its shards from others."""
    return hashlib.sha256(os.fsencode("\n".join(checksums))).hexdigest()


def keep_records(folder: Path, split: str, fingerprint: str, content: Content, made: npt.NDArray[np.void]) -> None:
    """Keep the records [N] of a split, whose shards need not be here, in `folder`."""
    file = DerivedPlace(folder=folder, split=split).file(SUFFIX, MAGIC)
    file.keep(_stamp(bytes.fromhex(fingerprint), content), len(made), made.tobytes())


def _stamp(stamp: bytes, content: Content) -> bytes:
    return stamp if content == "images" else hashlib.sha256(stamp + content.encode()).digest()


def _choice_notes(folder: Path, chosen: Counter[tuple[str, ...]], content: Content) -> Iterable[str]:
    """Say which of several images samples have: `chosen` counts the extensions, the chosen one first."""
    for (first, *others), count in chosen.most_common(5):
        kind = singular(content)
        yield (
            f"{folder}: {plural(count, 'sample')} with several {kind}s: .{first} is the {kind}, not "
            f"{', '.join(f'.{ext}' for ext in others)}; convert to choose another"
        )


def _content(samples: list[Sample], shards: Iterable[Path], dots: KeyDots | None) -> Content:
    """The content of other writers' shards; all shards are read only if the first sample has no image."""
    images = image_extensions()
    if _of(samples[0], images):
        return "images"
    texts = False
    for samples_of_shard in (scan(shard, dots) for shard in shards):
        if any(_of(sample, images) for sample in samples_of_shard):
            return "images"
        texts = texts or any(_of(sample, TEXT_EXTENSIONS) for sample in samples_of_shard)
    return "text" if texts else "images"


def _of(sample: Sequence[Member], extensions: Set[str]) -> list[Member]:
    """The members that have one of these extensions."""
    return [m for m in sample if has_extension(m.ext, extensions)]


def _split(content: bytearray, count: int) -> tuple[npt.NDArray[np.void], list[str]] | None:
    """The records and the notes of a kept index."""
    end = count * RECORD.itemsize
    if end > len(content):
        return None
    notes = content[end:].decode("utf-8", "surrogateescape")
    return np.frombuffer(content, RECORD, count), notes.split("\n") if notes else []


def _index_state(shard: Path) -> tuple[int, int] | None:
    try:
        status = index_path(shard).stat()
    except OSError:
        return None
    return status.st_size, status.st_mtime_ns


def _own_samples(shard: Path, index_sha256: str) -> list[Sample]:
    check_index(index_path(shard), index_sha256)
    return parse_index(index_path(shard), shard.stat().st_size)


def _foreign_samples(shard: Path, notes: list[str], dots: KeyDots | None) -> TarScan:
    """What a scan finds; adds to `notes` if there is an index that differs."""
    samples, apart = scan_counting(shard, dots)
    index = index_path(shard)
    if index.exists():
        try:
            stated = parse_index(index, shard.stat().st_size)
        except ShardError:
            stated = None
        if stated is None or not _fits(stated, samples):
            notes.append(f"{index} does not fit {shard.name}: the tar was scanned; delete the index, or make it again")
    return TarScan(samples, apart)


def _fits(stated: list[Sample], found: list[Sample]) -> bool:
    """Whether an index equals a scan; it may omit names (v1.1), and the order within a sample may differ."""
    if [len(sample) for sample in stated] != [len(sample) for sample in found]:
        return False
    pairs = (pair for s, f in zip(stated, found, strict=True) for pair in zip(sorted(s), sorted(f), strict=True))
    return all(s == f or (not s.name and s == f._replace(name="")) for s, f in pairs)


def _shard_records(
    number: int, shard: Path, samples: list[Sample], content: Content, chosen: Counter[tuple[str, ...]], ours: bool
) -> npt.NDArray[np.void]:
    """Records [n] of a shard. Counts in `chosen` what there was to choose the image, or text, from."""
    extensions = image_extensions() if content == "images" else TEXT_EXTENSIONS
    records = np.zeros(len(samples), RECORD)
    with shard.open("rb") as file:
        for record, sample in zip(records, samples, strict=True):
            name = sample[0].name or f"the sample at byte {sample[0].offset}"
            image = _main(f"{shard}: {name}", sample, extensions, content, chosen, ours)
            width, height = _size(file, image) if content == "images" else (0, 0)
            record["offset"], record["size"], record["shard"] = image.offset, image.size, number
            record["label"] = next((_label(f"{shard}: {name}", file, m) for m in sample if m.ext.lower() == "cls"), -1)
            record["width"], record["height"] = width, height
    return records


def _main(
    name: str, sample: Sample, extensions: Set[str], content: Content, chosen: Counter[tuple[str, ...]], ours: bool
) -> Member:
    """The member that is the sample's image or text: the first in our shards; in others `jpg`, not `depth.png`."""
    images = _of([member for member in sample if member.ext not in ("cls", "json")], extensions)
    if not ours:
        every = images
        images = [m for m in images if "." not in m.ext] or images
        if len(images) == 1 < len(every):
            chosen[(images[0].ext.lower(), *(m.ext.lower() for m in every if m is not images[0]))] += 1
    if not images or (len(images) > 1 and not ours):
        kind = singular(content)
        what = f"several {kind}s" if images else f"a sample without {'an' if kind == 'image' else 'a'} {kind}"
        found = ", ".join(m.ext for m in images or sample)
        undecodable = undecodable_extensions() if kind == "image" and not images else {}
        if reason := next((undecodable[ext] for m in sample if (ext := extension_of(f"x.{m.ext}")) in undecodable), ""):
            raise ShardError(f"{name}: {what} that can be decoded ({found}): {reason}")
        instead = ", or convert with image_member=EXT" if images and kind == "image" else ""
        raise ShardError(f"{name}: {what} ({found}); make the shard again with one in each sample{instead}")
    return images[0]


def _label(name: str, file: BinaryIO, member: Member) -> int:
    file.seek(member.offset)
    text = file.read(min(member.size, _LABEL_BYTES + 1)).strip()
    if member.size > _LABEL_BYTES or not _LABEL.fullmatch(text) or int(text) >= MAX_CLASSES:
        raise ShardError(
            f"{name}: the label {text[:20]!r} is not an integer class index; convert shards whose labels are names"
        )
    return int(text)


def _size(file: BinaryIO, image: Member) -> tuple[int, int]:
    """(width, height) of an image in a tar, (0, 0) if it has no valid header: the loader reports it."""
    from fastimg.loaders.decode import read_header  # here, because text datasets do not need the parser

    file.seek(image.offset)
    data = file.read(min(image.size, _JPEG_BYTES))
    try:
        if data[:2] == b"\xff\xd8":  # a JPEG's header comes before its pixels
            return read_header(data, sys.maxsize).size
    except ImageError:  # or its header is longer
        pass
    data += file.read(image.size - len(data))
    try:
        return read_header(data, sys.maxsize).size
    except ImageError:
        return 0, 0


def check_index(index: Path, sha256: str) -> None:
    """Raises ShardError unless an index has this checksum."""
    try:
        content = index.read_bytes()
    except OSError as error:
        raise ShardError(f"{index}: {error.strerror}; copy it again, or convert again with overwrite=True") from error
    if hashlib.sha256(content).hexdigest() != sha256:
        raise ShardError(f"{index}: cut short or altered; copy it again, or convert again with overwrite=True")
