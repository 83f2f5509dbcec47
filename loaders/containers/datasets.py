"""Datasets: what the loader reads from, and how a path becomes one.

A dataset directory contains `<split>.beton`, or `<split>-00000.tar` with its index `<split>-00000.idx`; `dataset.json`
with classes, splits, counts, sizes and checksums of every shard, and the options that made it; and `<split>.fidx`,
which is derived (compact_index.py), as is `<split>.fcol` where dataset.json declares targets, and `<split>.ffld` where
it states fields. Tars without a dataset.json come from other writers: they are scanned, and an index next to them is
only compared.
"""

import contextlib
import difflib
import hashlib
import json
import os
import re
import stat
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar, get_args

import numpy as np
import numpy.typing as npt

from fastimg.loaders.errors import DataError, ShardError
from fastimg.loaders.folders.folder import SPLIT_FOLDERS, FilesDataset, Level, is_class_folder, list_folder
from fastimg.loaders.runtime.scratch import Scratch
from fastimg.loaders.wording import plural

from . import compact_index as compact
from .beton_dataset import BetonDataset
from .content import Content
from .fields import FieldColumn, SplitFields, StoredField, WithFields, check_fields
from .readahead import ask, pieces
from .tar import index_path, split_name
from .targets import Target, TargetColumn, first_class
from .ustar import BLOCK, stated_size
from .watch import FileWatch, Handles, fill

_T = TypeVar("_T")

FORMAT = "fastimg dataset"
FORMAT_VERSION = 1
SHARD_KEYS = ("name", "samples", "bytes", "sha256", "index_bytes", "index_sha256")  # of a tar in dataset.json
_BETON_KEYS = SHARD_KEYS[:4]

_NOTE_BYTES = 1 << 20  # of a sample's JSON, read for its path
_SHA256 = re.compile("[0-9a-f]{64}")


class Dataset(Protocol):
    """Random access to labelled, encoded samples. Every method may be called from any thread."""

    name: str
    content: Content  # what `read` gives: encoded images, or texts in UTF-8
    classes: tuple[str, ...]
    labels: npt.NDArray[np.int64]  # [N], -1: unknown
    notes: Sequence[str]  # sentences for the owner of the data, for example about an index that does not fit

    def __len__(self) -> int: ...

    def read(self, index: int, scratch: Scratch) -> memoryview:
        """The encoded sample, in `scratch` until the next call with it. Raises DataError."""

    def will_need(self, indices: npt.NDArray[np.int64]) -> None:
        """Ask the system to fetch these samples, which are read next."""

    def sample_name(self, index: int) -> str:
        """The name of the sample in messages."""

    def sample_key(self, index: int) -> str:
        """The path or key that the sample had in its source, if that was kept; otherwise its name here."""

    def files(self) -> Sequence[Path]:
        """The files that hold the samples."""

    @property
    def targets(self) -> tuple[TargetColumn, ...]:
        """The targets of all samples, in the order in which they were declared.

        `labels` and `classes` are those of the first class target. Data that declares no targets has one, the class,
        whose name is `targets.LABEL`.
        """

    @property
    def fields(self) -> Mapping[str, StoredField]:
        """The schemas of what samples have beside their image and targets, by name; empty if there is nothing."""

    def read_field(self, name: str, index: int) -> npt.NDArray[Any] | bytes | None:
        """The value of a sample, or None where it is missing.

        An array: without dimensions for a number, [k, *shape] for ragged items; or bytes: an encoded image as it is
        stored, or the bytes themselves. Raises DataError, also for a field that the data does not have.
        """

    @property
    def fingerprint(self) -> str:
        """Changes when the samples, their order or their labels do."""

    def close(self) -> None:
        """Close all files."""


def open_dataset(path: str | Path, split: str = "train", classes: Level | None = None) -> Dataset:
    """Open one split of shards, of a folder of .beton files or of a plain class folder; or a lone .beton, as `train`.

    `classes` says which folders name the classes of a class folder; see `folder.list_folder`.
    Raises DataError naming what is missing, cut short or altered, and ValueError for `classes` with anything but a
    class folder.
    """
    path = Path(path)
    if classes is not None and not is_plain_folder(path):
        raise ValueError(f"{path}: its classes are not named by folders; leave out classes={classes!r}")
    if is_beton(path):
        return BetonDataset(_pick(path, {"train": path}, split))
    refuse_no_folder(path)
    if (path / "dataset.json").exists():
        return _open_converted(path, split)
    _refuse_unfinished(path)  # otherwise its finished shards would be read as another writer's
    if shards := foreign_shards(path):
        refuse_class_folder(path, [tar for tars in shards.values() for tar in tars])
        return TarDataset(f"{path} ({split})", _pick(path, shards, split), classes=None, cache_name=split)
    if betons := foreign_betons(path):
        refuse_class_folder(path, list(betons.values()))
        return BetonDataset(_pick(path, betons, split))
    listing = list_folder(path, classes)
    files = _pick(path, listing.files, split)
    names = [name for name, _ in files]
    labels = [label for _, label in files]
    return FilesDataset(path, names, listing.classes, labels, listing.content, listing.all_notes())


def list_splits(path: str | Path, classes: Level | None = None) -> dict[str, int]:
    """Split names and their numbers of samples; -1 if counting would require opening the split."""
    path = Path(path)
    if is_beton(path):
        return {"train": -1}
    refuse_no_folder(path)
    if (path / "dataset.json").exists():
        return {name: split["samples"] for name, split in read_description(path)["splits"].items()}
    _refuse_unfinished(path)
    if others := foreign_shards(path) or foreign_betons(path):
        return dict.fromkeys(others, -1)
    return {name: len(files) for name, files in list_folder(path, classes).files.items()}


def is_plain_folder(path: Path) -> bool:
    """Whether a path is a folder of image or text files, not of shards."""
    known = (path / "dataset.json").exists() or is_beton(path) or foreign_shards(path) or foreign_betons(path)
    return not known


def refuse_class_folder(path: Path, shards: list[Path]) -> None:
    """Refuse a class folder that also holds shards: neither is silently ignored. Raises DataError."""
    if is_class_folder(path):
        raise DataError(
            f"{path}: holds both subfolders of images and shards ({shards[0].name}); move one of them away, or give "
            "the shard itself"
        )


def unfinished(path: Path) -> bool:
    """Whether `path` holds a conversion that was interrupted: its journal is there and dataset.json is not."""
    return (path / "convert.json").exists() and not (path / "dataset.json").exists()


def refuse_no_folder(path: Path) -> None:
    """Raises DataError if a path is neither a folder nor a .beton file."""
    if path.is_dir() or is_beton(path):
        return
    if path.exists():
        raise DataError(f"{path}: a file, not a folder; convert a manifest or a tar to shards first")
    raise DataError(f"{path}: no such folder; check the path, and give a folder of shards or of images")


def _refuse_unfinished(path: Path) -> None:
    if unfinished(path):
        raise DataError(f"{path}: a conversion that did not finish; run the same conversion again with resume=True")


def read_description(path: Path) -> dict[str, Any]:
    """The content of dataset.json. Raises ShardError if it is invalid."""
    file = path / "dataset.json"
    try:
        description: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        if description["format"] != FORMAT:
            raise KeyError("format")
        if description["version"] > FORMAT_VERSION:
            raise ShardError(f"{file}: written by a newer fastimg; update this one")
        if not all(type(name) is str for name in [*description["splits"], *description["classes"]]):
            raise TypeError("classes")
        if description.setdefault("content", "images") not in get_args(Content):
            raise ValueError(f"content {description['content']!r}")
        declared_targets(description)
        stated_fields(description)
        for name, split in description["splits"].items():
            if not _is_plain(name):
                raise ValueError(f"split {name!r}")
            _check_entries(description["container"], split["samples"], split["shards"])
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise ShardError(f"{file}: not a dataset description ({error!r}); convert again") from error
    return description


def _check_entries(container: Any, samples: Any, shards: Any) -> None:
    """Raises LookupError, TypeError or ValueError for an invalid description of a split."""
    keys = {"tar": SHARD_KEYS, "beton": _BETON_KEYS}[container]
    counts = [samples] + [shard[key] for shard in shards for key in keys if key in ("samples", "bytes", "index_bytes")]
    if not all(type(count) is int for count in counts) or samples != sum(shard["samples"] for shard in shards):
        raise ValueError(f"samples: {samples!r}")
    if container == "beton" and len(shards) != 1:
        raise ValueError(f"{len(shards)} files of one split")
    for shard in shards:
        if not _is_plain(shard["name"]) or not all(
            _SHA256.fullmatch(shard[key]) for key in keys if key.endswith("sha256")
        ):
            raise ValueError(f"shard {shard['name']!r}")


def _is_plain(name: str) -> bool:
    """Whether a name is that of a file directly in a folder, so that nothing outside is read or written."""
    return b"\0" not in os.fsencode(name) and os.path.basename(name) == name and name not in ("", ".", "..")


def foreign_shards(path: Path) -> dict[str, list[Path]]:
    """Tars of other writers, by split: the name before the shard number."""
    named: dict[str, list[Path]] = {}
    for tar in sorted(path.glob("*.tar")):
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


def _pick(path: Path, splits: Mapping[str, _T], split: str) -> _T:
    if split not in splits:
        near = difflib.get_close_matches(split, splits, 1, 0.5)
        meant = f"; did you mean {near[0]}?" if near else ""
        raise DataError(f"{path}: no split {split!r} in it; it has {', '.join(splits)}{meant}")
    return splits[split]


def _open_converted(path: Path, split: str) -> "Dataset":
    description = read_description(path)
    shards = _pick(path, description["splits"], split)["shards"]
    classes = tuple(description["classes"])
    if description["container"] == "beton":
        (shard,) = shards
        _check_size(path / shard["name"], shard["bytes"])
        beton = BetonDataset(path / shard["name"], classes, checksum=shard["sha256"])
        _check_count(path / shard["name"], len(beton), shard["samples"])
        if beton.content != description["content"]:
            beton.close()
            raise ShardError(
                f"{path / shard['name']}: holds {beton.content} where dataset.json says {description['content']}; copy "
                "both again"
            )
        with contextlib.ExitStack() as stack:
            stack.callback(beton.close)
            _declare(path, split, beton, description)
            stack.pop_all()
        return beton
    for shard in shards:
        tar = path / shard["name"]
        _check_size(tar, shard["bytes"])
        _check_size(index_path(tar), shard["index_bytes"])
    dataset = TarDataset(
        f"{path} ({split})",
        [path / shard["name"] for shard in shards],
        classes,
        cache_name=split,
        checksums=[shard["sha256"] + shard["index_sha256"] for shard in shards],
        content=description["content"],
    )
    counts = np.bincount(dataset.records["shard"], minlength=len(shards)).tolist()
    for shard, count in zip(shards, counts, strict=True):
        _check_count(index_path(path / shard["name"]), count, shard["samples"])
    _declare(path, split, dataset, description)
    return dataset


def _declare(path: Path, split: str, dataset: "TarDataset | BetonDataset", description: Mapping[str, Any]) -> None:
    """Give a dataset the columns of the targets that its description declares, if any."""
    targets = declared_targets(description)
    own = first_class(targets)
    others = [target for target in targets if target is not own]
    fields = {stated["name"]: stated.get("field", "") for stated in description.get("targets", ())}
    columns: dict[str, TargetColumn] = {}
    if own is not None:
        columns[own.name] = TargetColumn.of_classes(dataset.labels, dataset.classes, own.name)

    def derive() -> list[TargetColumn]:
        if isinstance(dataset, BetonDataset):
            return compact.columns_of_beton(dataset.reader, others, [fields[target.name] for target in others])
        return compact.columns_of_tars(dataset.files(), others)

    if others:
        kept = compact.target_columns(path, split, others, len(dataset), dataset.fingerprint, derive)
        columns |= {column.target.name: column for column in kept}
    dataset.declared = tuple(columns[target.name] for target in targets)
    if fields := stated_fields(description):
        _attach_fields(path, split, dataset, description, list(fields.values()))


def _attach_fields(
    path: Path,
    split: str,
    dataset: "TarDataset | BetonDataset",
    description: Mapping[str, Any],
    fields: Sequence[StoredField],
) -> None:
    """Give a dataset the fields that its description states."""
    names = [stated.get("field", "") for stated in description["fields"]]

    def derive() -> list[FieldColumn]:
        if isinstance(dataset, BetonDataset):
            return compact.fields_of_beton(dataset.reader, fields, names)
        return compact.fields_of_tars(dataset.files(), fields)

    columns = compact.field_columns(path, split, fields, len(dataset), dataset.fingerprint, derive)
    by_name = {column.schema.name: column for column in columns}
    dataset.stored = SplitFields(by_name, dataset.fetch, of_beton=isinstance(dataset, BetonDataset))


def stated_fields(description: Mapping[str, Any]) -> dict[str, StoredField]:
    """The fields that a dataset.json states, by name.

    Raises LookupError, TypeError or ValueError if they are not valid.
    """
    stated = [StoredField.of_json(each) for each in description.get("fields", ())]
    fields = {each.name: each for each in stated}
    if len(fields) < len(stated):
        raise ValueError("two fields of one name")
    check_fields(fields)
    return fields


def declared_targets(description: Mapping[str, Any]) -> tuple[Target, ...]:
    """The targets that a dataset.json declares; none where it has only a class.

    Raises LookupError, TypeError or ValueError if they are not valid.
    """
    targets = tuple(Target.of_json(stated) for stated in description.get("targets", ()))
    if not targets:
        return ()
    if len({target.name for target in targets}) < len(targets):
        raise ValueError("two targets of one name")
    own = first_class(targets)
    if list(own.classes if own else ()) != list(description["classes"]):
        raise ValueError("classes are not those of the first class target")
    return targets


def _check_size(file: Path, size: int) -> None:
    try:
        actual = file.stat().st_size
    except OSError:
        actual = None
    if actual != size:
        state = "missing" if actual is None else f"{actual} bytes where dataset.json says {size}: cut short or altered"
        raise ShardError(f"{file}: {state}; copy it again, or convert again with overwrite=True")


def _check_count(file: Path, found: int, stated: int) -> None:
    if found != stated:
        raise ShardError(
            f"{file}: {plural(found, 'sample')} where dataset.json says {stated}: "
            "cut short or altered; copy it again, or convert again with overwrite=True"
        )


class TarDataset(WithFields):
    """Samples of tar shards, read by preadv: if a shard shrinks, that is a short read and an error, never a SIGBUS."""

    declared: tuple[TargetColumn, ...] = ()  # of a dataset.json that declares targets

    def __init__(
        self,
        name: str,
        shards: list[Path],
        classes: tuple[str, ...] | None,
        cache_name: str,
        checksums: list[str] | None = None,
        content: Content | None = None,
    ) -> None:
        self.name = name
        self._shards = shards
        self.fingerprint = _fingerprint(shards, checksums)
        self._watch = FileWatch(shards)  # before their indexes are read
        self._handles = Handles(shards, self._watch, "copy it again, or convert again")
        self.notes: Sequence[str]
        self.records, self.notes, self.content = compact.records(
            shards, self.fingerprint, cache_name, checksums, content
        )
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
    def targets(self) -> tuple[TargetColumn, ...]:
        """See Dataset."""
        return self.declared or (TargetColumn.of_classes(self.labels, self.classes),)

    def read(self, index: int, scratch: Scratch) -> memoryview:
        """The bytes of an image or a text. Raises ShardError if the tar has changed or does not fit its index."""
        offset, size, shard, *_ = self.records[index].item()
        return self._member_data(shard, offset, size, scratch.encoded(BLOCK + size))

    def fetch(self, shard: int, offset: int, size: int) -> bytes:
        """The bytes of any member. Raises ShardError as `read` does."""
        return bytes(self._member_data(shard, offset, size, memoryview(bytearray(BLOCK + size))))

    def _member_data(self, shard: int, offset: int, size: int, view: memoryview) -> memoryview:
        """The part of `view`, which has room for the header too, that holds the member's data."""
        try:
            fill(self._handles.file(shard), view, offset - BLOCK)
        except (OSError, EOFError) as error:
            self._watch.look(shard)  # its error may be more precise
            raise ShardError(
                f"{self._shards[shard]}: cannot be read ({error}); copy it again and use resume=True"
            ) from error
        self._watch.read(shard)
        if stated_size(view[:BLOCK]) != size:
            self._watch.look(shard)
            raise ShardError(
                f"{self._shards[shard]}: byte {offset} does not hold a member of {size} bytes: the shard was altered "
                "while it was in use, or its index belongs to another one; copy both again"
            )
        return view[BLOCK:]

    def will_need(self, indices: npt.NDArray[np.int64]) -> None:
        """Ask the system to read these samples ahead."""
        chosen = self.records[indices]
        shards, offsets, sizes = (chosen[name].astype(np.int64) for name in ("shard", "offset", "size"))
        for shard, offset, size in pieces(shards, offsets - BLOCK, sizes + BLOCK):
            ask(self._handles.file(shard), offset, size)

    def sample_name(self, index: int) -> str:
        """`train-00000.tar: 000000017.jpg (cats/a.jpg)`, with the original path if it was kept.

        If the tar cannot be read any more, the position in it.
        """
        shard = self._shards[self.records[index]["shard"]]
        try:
            member, note = self._member(index)
        except (OSError, ShardError):
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
        file = self._handles.file(shard)
        name = os.pread(file, 100, at - BLOCK).split(b"\0")[0].decode("utf-8", "replace")
        for _ in range(4):  # the members after it that have the same stem
            at += size + -size % BLOCK + BLOCK
            header = os.pread(file, BLOCK, at - BLOCK)
            member = header[:100].split(b"\0")[0].decode("utf-8", "replace")
            size = stated_size(header) if len(header) == BLOCK else -1
            if not 0 <= size <= _NOTE_BYTES or split_name(member)[0] != split_name(name)[0]:
                break
            if member.endswith(".json"):
                try:
                    note = json.loads(os.pread(file, size, at))
                except (ValueError, RecursionError):
                    break
                return name, note if isinstance(note, dict) else {}
        return name, {}

    def files(self) -> Sequence[Path]:
        """The shards."""
        return self._shards

    def close(self) -> None:
        """Close the shards. Reading opens them again."""
        self._handles.close()


def _fingerprint(shards: list[Path], checksums: list[str] | None) -> str:
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
    return hashlib.sha256(os.fsencode("\n".join(checksums))).hexdigest()
