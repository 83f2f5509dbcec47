"""What is derived from shards to open them quickly: the compact index of tars, 32 bytes per sample, and their targets.

`<split>.fidx` contains a head, a record per sample, and notes as lines of text. It has a stamp of what it was derived
from, is made again if it is missing, stale or damaged, and is kept in the user's cache if the data is read-only. Texts
have no width and height, and their own kind of stamp. `<split>.fcol` has the same head, and the columns of the targets
that dataset.json declares, except for the class in .cls: so the notes of a tar are parsed once. `<split>.ffld` says the
same of fields: numbers, and where each other value is.
"""

import hashlib
import json
import os
import re
import struct
import sys
import zlib
from collections.abc import Callable, Iterator, Sequence, Set
from pathlib import Path
from typing import Any, BinaryIO, get_args

import numpy as np
import numpy.typing as npt

from fastimg.loaders.errors import ImageError, ShardError
from fastimg.loaders.folders.formats import image_extensions, undecodable_extensions
from fastimg.loaders.folders.ignored import extension_of
from fastimg.loaders.runtime.cache import cache_folder

from .atomic import replace_file
from .beton import BetonFile
from .beton_dataset import MAX_CLASSES
from .beton_fields import ABSENT_LABELS, BETON_KINDS, BetonField, beton_field
from .content import TEXT_EXTENSIONS, Content, singular
from .fields import ABSENT, POSITION, FieldColumn, StoredField
from .tar import Member, Sample, index_path, parse_index, scan
from .targets import Target, TargetColumn, TargetValues, packed, unpacked

RECORD = np.dtype(
    [("offset", "<u8"), ("size", "<u8"), ("shard", "<u4"), ("label", "<i4"), ("width", "<u4"), ("height", "<u4")]
)

_MAGIC = b"FIMGIDX2"
_TARGETS_MAGIC = b"FIMGCOL1"
_FIELDS_MAGIC = b"FIMGFLD1"
_HEAD = struct.Struct("<8s32sQI")  # magic, stamp (sha256), records, checksum of what follows
_JPEG_BYTES = 32 * 1024  # read first from a JPEG; few have longer metadata
_LABEL_BYTES = 64
_U1 = np.dtype(np.uint8)
_LABEL = re.compile(rb"-1|[0-9]{1,9}")
_KINDS: tuple[Content, ...] = get_args(Content)


def records(
    shards: list[Path],
    fingerprint: str,
    cache_name: str,
    checksums: list[str] | None,
    content: Content | None = None,
) -> tuple[npt.NDArray[np.void], list[str], Content]:
    """Records [N] of `shards`, notes about indexes that do not fit their shards, and the content of the samples.

    `checksums`, of each shard and its index joined, are given for shards that fastimg wrote, whose indexes are trusted;
    other shards are scanned. `content` None is detected: text if there are .txt members and no images. Raises
    ShardError.
    """
    if not shards:
        return np.zeros(0, RECORD), [], content or "images"
    stamp = bytes.fromhex(fingerprint)
    if checksums is None:  # the notes also depend on the indexes
        stamp = hashlib.sha256(f"{fingerprint} {[_index_state(shard) for shard in shards]}".encode()).digest()
    places = _places(shards[0].parent, f"{cache_name}.fidx")
    for path in places:
        for kind in _KINDS if content is None else (content,):
            if (kept := _read_kept(path, _MAGIC, _stamp(stamp, kind))) is not None and (split := _split(*kept)):
                return *split, kind
    notes: list[str] = []
    parts = []
    for number, shard in enumerate(shards):
        samples = _own_samples(shard, checksums[number][64:]) if checksums else _foreign_samples(shard, notes)
        if content is None and samples:
            content = _content(samples, shards)
        parts.append(_shard_records(number, shard, samples, content or "images", ours=bool(checksums)))
    made = np.concatenate(parts)
    content = content or "images"
    body = made.tobytes() + "\n".join(notes).encode("utf-8", "surrogateescape")
    _keep(places, _HEAD.pack(_MAGIC, _stamp(stamp, content), len(made), zlib.crc32(body)) + body)
    return made, notes, content


def target_columns(
    folder: Path,
    cache_name: str,
    targets: Sequence[Target],
    count: int,
    fingerprint: str,
    derive: Callable[[], list[TargetColumn]],
) -> list[TargetColumn]:
    """The columns of `targets` for the `count` samples of a split in `folder`: kept ones, or those of `derive`.

    Raises ShardError if a sample states something that is not a value of its target.
    """
    stated = json.dumps([target.to_json() for target in targets])
    stamp = hashlib.sha256(f"{fingerprint} {stated}".encode("utf-8", "surrogatepass")).digest()
    places = _places(folder, f"{cache_name}.fcol")
    for path in places:
        kept = _read_kept(path, _TARGETS_MAGIC, stamp)
        if kept is not None and (columns := _columns(*kept, targets, count)) is not None:
            return columns
    columns = derive()
    body = b"".join(map(packed, columns))
    _keep(places, _HEAD.pack(_TARGETS_MAGIC, stamp, count, zlib.crc32(body)) + body)
    return columns


def _columns(content: bytearray, found: int, targets: Sequence[Target], count: int) -> list[TargetColumn] | None:
    columns = []
    rest = memoryview(content)
    try:
        for target in targets:
            column, rest = unpacked(target, rest, count)
            columns.append(column)
    except ValueError:
        return None
    return columns if found == count and not len(rest) else None


def field_columns(
    folder: Path,
    cache_name: str,
    fields: Sequence[StoredField],
    count: int,
    fingerprint: str,
    derive: Callable[[], list[FieldColumn]],
) -> list[FieldColumn]:
    """The columns of `fields` for the `count` samples of a split in `folder`: kept ones, or those of `derive`.

    Raises ShardError if a sample states something that is not a value of its field.
    """
    stated = json.dumps([field.to_json() for field in fields])
    stamp = hashlib.sha256(f"{fingerprint} {stated}".encode("utf-8", "surrogatepass")).digest()
    places = _places(folder, f"{cache_name}.ffld")
    for path in places:
        kept = _read_kept(path, _FIELDS_MAGIC, stamp)
        if kept is not None and kept[1] == count and (columns := _field_columns(kept[0], fields, count)) is not None:
            return columns
    columns = derive()
    body = b"".join(column.packed() for column in columns)
    _keep(places, _HEAD.pack(_FIELDS_MAGIC, stamp, count, zlib.crc32(body)) + body)
    return columns


def _field_columns(content: bytearray, fields: Sequence[StoredField], count: int) -> list[FieldColumn] | None:
    columns = []
    rest = memoryview(content)
    try:
        for field in fields:
            column, rest = FieldColumn.unpacked(field, rest, count)
            columns.append(column)
    except ValueError:
        return None
    return columns if not len(rest) else None


def fields_of_tars(shards: Sequence[Path], fields: Sequence[StoredField]) -> list[FieldColumn]:
    """The columns of `fields` from the indexes of our shards and, for numbers, their notes. Raises ShardError."""
    placed = [field for field in fields if field.member]
    found: dict[str, list[tuple[int, int, int]]] = {field.name: [] for field in placed}
    for number, shard in enumerate(shards):
        for sample in parse_index(index_path(shard), shard.stat().st_size):
            members = {member.ext: (member.offset, member.size, number) for member in sample}
            for field in placed:
                found[field.name].append(members.get(field.member, (0, 0, 0)))
    numbers = [field for field in fields if not field.member]
    columns = _number_columns(notes_of_tars(shards), numbers) if numbers else {}
    for field in placed:
        positions = np.array(found[field.name], POSITION)
        columns[field.name] = FieldColumn(schema=field, present=positions["offset"] > 0, positions=positions)
    return [columns[field.name] for field in fields]


def _number_columns(
    notes: Iterator[tuple[str, dict[str, Any]]], fields: Sequence[StoredField]
) -> dict[str, FieldColumn]:
    """The numbers that notes state under the names of fields. Raises ShardError."""
    values: dict[str, list[int | float]] = {field.name: [] for field in fields}
    present: dict[str, list[bool]] = {field.name: [] for field in fields}
    for name, note in notes:
        for field in fields:
            value = note.get(field.name)
            if value is not None and (isinstance(value, bool) or not isinstance(value, int | float)):
                raise ShardError(f"{name}: field {field.name!r}: {value!r} is not a number; convert again")
            values[field.name].append(0 if value is None else value)
            present[field.name].append(value is not None)
    return {
        field.name: FieldColumn(
            schema=field,
            present=np.array(present[field.name], np.bool_),
            numbers=np.array(values[field.name], np.dtype(field.dtype).newbyteorder("<")),
        )
        for field in fields
    }


def fields_of_beton(reader: BetonFile, fields: Sequence[StoredField], names: Sequence[str]) -> list[FieldColumn]:
    """The columns of `fields` from the fields `names` of a .beton and its notes. Raises ShardError."""
    notes = list(_notes_of_beton(reader)) if any(field.optional or not field.member for field in fields) else []
    columns = _number_columns(iter(notes), [field for field in fields if not field.member])
    for field, name in zip(fields, names, strict=True):
        found = reader.fields.get(name)
        fits = found is not None and found.kind == beton_field(field).kind
        if not fits or (found is not None and found.dtype is not None and found.shape != field.shape):
            raise ShardError(f"{reader.path}: no field {name} for the field {field.name!r}; convert again")
        if field.member:
            positions = np.zeros(len(reader), POSITION)
            positions["offset"], positions["size"] = reader.extents(name)
            lacking = [field.member in (note.get(ABSENT) or ()) for _, note in notes] if field.optional else None
            present = np.ones(len(reader), np.bool_) if lacking is None else ~np.array(lacking, np.bool_)
            columns[field.name] = FieldColumn(schema=field, present=present, positions=positions)
    return [columns[field.name] for field in fields]


def _notes_of_beton(reader: BetonFile) -> Iterator[tuple[str, dict[str, Any]]]:
    for index in range(len(reader)):
        note = reader.value("json", index)
        yield f"{reader.path}: sample {index}", note if isinstance(note, dict) else {}


def columns_of_tars(shards: Sequence[Path], targets: Sequence[Target]) -> list[TargetColumn]:
    """The columns of `targets` from the notes in our shards. Raises ShardError."""
    values = [TargetValues(target) for target in targets]
    for name, note in notes_of_tars(shards):
        for each in values:
            try:
                each.add(note.get(each.target.name))
            except ValueError as error:
                raise ShardError(f"{name}: target {each.target.name!r}: {error}; convert again") from error
    return [each.column() for each in values]


def notes_of_tars(shards: Sequence[Path]) -> Iterator[tuple[str, dict[str, Any]]]:
    """The name and the note of every sample of our shards. Raises ShardError for a note that is not a JSON object."""
    for shard in shards:
        with shard.open("rb") as file:
            for sample in parse_index(index_path(shard), os.fstat(file.fileno()).st_size):
                member = next((member for member in sample if member.ext == "json"), None)
                text = b"{}" if member is None else os.pread(file.fileno(), member.size, member.offset)
                try:
                    note = json.loads(text)
                    if not isinstance(note, dict):
                        raise ValueError("it is not an object")
                except (ValueError, RecursionError) as error:
                    raise ShardError(
                        f"{shard}: {sample[0].name}: its .json cannot be read ({error}); convert again"
                    ) from error
                yield f"{shard}: {sample[0].name}", note


def columns_of_beton(reader: BetonFile, targets: Sequence[Target], fields: Sequence[str]) -> list[TargetColumn]:
    """The columns of `targets` from their `fields` in a .beton. Raises ShardError."""
    columns = []
    for target, name in zip(targets, fields, strict=True):
        several = target.kind == "multilabel"
        expected = BetonField(BETON_KINDS[target.kind], *((_U1, (len(target.classes),)) if several else ()))
        if reader.fields.get(name) != expected:
            raise ShardError(
                f"{reader.path}: no field {name} ({expected.kind}) for the target {target.name!r}; convert again"
            )
        if several:
            columns.append(_labels_of_beton(reader, target, name))
            continue
        column = reader.column(name).copy()
        if target.kind == "number":
            columns.append(TargetColumn.of_numbers(column, target.name))
            continue
        if len(column) and not -1 <= column.min() <= column.max() < len(target.classes):
            raise ShardError(f"{reader.path}: {name} has numbers that are not among its classes; convert again")
        columns.append(TargetColumn.of_classes(column.astype(np.int64), target.classes, target.name))
    return columns


def _labels_of_beton(reader: BetonFile, target: Target, name: str) -> TargetColumn:
    rows: list[npt.NDArray[np.int64] | None] = []
    for index in range(len(reader)):
        row = reader.value(name, index)
        if not ((row <= 1).all() or (row == ABSENT_LABELS).all()):
            raise ShardError(f"{reader.path}: {name} of sample {index} is not of zeros and ones; convert again")
        rows.append(None if row[0] == ABSENT_LABELS else np.flatnonzero(row))
    return TargetColumn.of_labels(rows, target.classes, target.name)


def _places(folder: Path, name: str) -> tuple[Path, Path]:
    """Where a derived file is kept: beside the shards, or in the user's cache if they are read-only."""
    key = hashlib.sha256(os.fsencode(folder.resolve())).hexdigest()[:16]
    return folder / name, cache_folder() / key / name


def _keep(places: Sequence[Path], content: bytes) -> None:
    for path in places:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            replace_file(path, content)
            return
        except OSError:  # if data and home are read-only, it is derived again next time
            continue


def _stamp(stamp: bytes, content: Content) -> bytes:
    return stamp if content == "images" else hashlib.sha256(stamp + content.encode()).digest()


def _content(samples: list[Sample], shards: list[Path]) -> Content:
    """The content of other writers' shards; all shards are read only if the first sample has no image."""
    images = image_extensions()
    if _of(samples[0], images):
        return "images"
    texts = False
    for samples_of_shard in map(scan, shards):
        if any(_of(sample, images) for sample in samples_of_shard):
            return "images"
        texts = texts or any(_of(sample, TEXT_EXTENSIONS) for sample in samples_of_shard)
    return "text" if texts else "images"


def _of(sample: Sequence[Member], extensions: Set[str]) -> list[Member]:
    """The members that have one of these extensions."""
    return [m for m in sample if "." + m.ext.lower().rpartition(".")[2] in extensions]


def _read_kept(path: Path, magic: bytes, stamp: bytes) -> tuple[bytearray, int] | None:
    """What follows the head of a derived file, and the number of samples; None if it does not fit or is damaged."""
    try:
        with path.open("rb") as file:
            found, stamped, count, checksum = _HEAD.unpack(file.read(_HEAD.size))
            if found != magic or stamped != stamp:
                return None
            content = bytearray(file.read())
    except (OSError, struct.error):
        return None
    return (content, count) if zlib.crc32(content) == checksum else None


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


def _foreign_samples(shard: Path, notes: list[str]) -> list[Sample]:
    """The samples found by a scan; adds to `notes` if there is an index that differs."""
    samples = scan(shard)
    index = index_path(shard)
    if index.exists():
        try:
            stated = parse_index(index, shard.stat().st_size)
        except ShardError:
            stated = None
        if stated is None or not _fits(stated, samples):
            notes.append(f"{index} does not fit {shard.name}: the tar was scanned; delete the index, or make it again")
    return samples


def _fits(stated: list[Sample], found: list[Sample]) -> bool:
    """Whether an index equals a scan; it may omit names (v1.1), and the order within a sample may differ."""
    if [len(sample) for sample in stated] != [len(sample) for sample in found]:
        return False
    pairs = (pair for s, f in zip(stated, found, strict=True) for pair in zip(sorted(s), sorted(f), strict=True))
    return all(s == f or (not s.name and s == f._replace(name="")) for s, f in pairs)


def _shard_records(
    number: int, shard: Path, samples: list[Sample], content: Content, ours: bool
) -> npt.NDArray[np.void]:
    extensions = image_extensions() if content == "images" else TEXT_EXTENSIONS
    records = np.zeros(len(samples), RECORD)
    with shard.open("rb") as file:
        for record, sample in zip(records, samples, strict=True):
            name = sample[0].name or f"the sample at byte {sample[0].offset}"
            image = _main(f"{shard}: {name}", sample, extensions, content, ours)
            width, height = _size(file, image) if content == "images" else (0, 0)
            record["offset"], record["size"], record["shard"] = image.offset, image.size, number
            record["label"] = next((_label(f"{shard}: {name}", file, m) for m in sample if m.ext.lower() == "cls"), -1)
            record["width"], record["height"] = width, height
    return records


def _main(name: str, sample: Sample, extensions: Set[str], content: Content, ours: bool) -> Member:
    """The member that is the sample's image or text: the first in our shards; in others `jpg`, not `depth.png`."""
    images = _of([member for member in sample if member.ext not in ("cls", "json")], extensions)
    if not ours:
        images = [m for m in images if "." not in m.ext] or images
    if not images or (len(images) > 1 and not ours):
        kind = singular(content)
        what = f"several {kind}s" if images else f"a sample without {'an' if kind == 'image' else 'a'} {kind}"
        found = ", ".join(m.ext for m in images or sample)
        undecodable = undecodable_extensions() if kind == "image" and not images else {}
        if reason := next((undecodable[ext] for m in sample if (ext := extension_of(f"x.{m.ext}")) in undecodable), ""):
            raise ShardError(f"{name}: {what} that can be decoded ({found}): {reason}")
        raise ShardError(f"{name}: {what} ({found}); make the shard again with one in each sample")
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
