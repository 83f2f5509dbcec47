"""Datasets: what the loader reads from, and how a path becomes one.

A dataset directory contains `<split>.beton`, or `<split>-00000.tar` with its index `<split>-00000.idx`; `dataset.json`
with classes, splits, counts, sizes and checksums of every shard, and the options that made it; and `<split>.fidx`,
which is derived (derived/), as is `<split>.fcol` where dataset.json declares targets, `<split>.ffld` where it states
fields, and `<split>.ftil` where there are large photographs. Tars without a dataset.json come from other writers: they
are scanned, and an index next to them is only compared.
"""

import contextlib
import difflib
from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any, Protocol, TypeVar, get_args

import numpy as np
import numpy.typing as npt

from fastimg.loaders.errors import DataError, ShardError
from fastimg.loaders.folders.archives import archive_hint
from fastimg.loaders.folders.folder import Level, is_class_folder
from fastimg.loaders.folders.stored_files import list_files, open_listed
from fastimg.loaders.remote.fetched_files import FetchedFiles
from fastimg.loaders.remote.mirrors import Mirror, mirror_at, open_mirror, wanted_indexes, wanted_shards
from fastimg.loaders.remote.stores import url_of
from fastimg.loaders.runtime.scratch import Scratch
from fastimg.loaders.wording import plural

from .betons.dataset import BetonDataset
from .content import Content
from .derived.block_index import MOST_AT_OPENING, block_index, has_large
from .derived.field_columns import field_columns, fields_of_beton, fields_of_tars
from .derived.kept import DerivedPlace
from .derived.photographs import Photographs
from .derived.target_columns import columns_of_beton, columns_of_tars, target_columns
from .description import DERIVED, declared_targets, read_description, stated_contents, stated_fields
from .fields import FieldColumn, SplitFields, StoredField
from .foreign import foreign_betons, foreign_shards, is_beton
from .targets import TargetColumn, first_class
from .tars.dataset import TarDataset
from .tars.grouping import KeyDots
from .tars.shards import index_path

_T = TypeVar("_T")


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


def open_dataset(
    path: str | Path,
    split: str = "train",
    classes: Level | None = None,
    *,
    evaluates: bool = False,
    cache_dir: str | PathLike[str] | None = None,
    cache_limit: int | str | None = None,
    storage_options: Mapping[str, str] | None = None,
    key_dots: KeyDots | None = None,
) -> Dataset:
    """Open one split of shards, of a folder of .beton files or of a plain class folder; or a lone .beton, as `train`.

    `classes` says which folders name the classes of a class folder; see `folder.list_folder`. One that a model is
    evaluated on (`evaluates`) may have empty class folders, and no training split.
    `path` may be the URL of a folder that `fastimg convert` has written, of tars, or of a class folder: s3, gs, az,
    http, https or file. Tars are named by braces, as in s3://bucket/train-{0000..0099}.tar, or are all those of a
    folder; of a class folder, groups of files are what is called shards here. Shards are kept in
    `cache_dir`, as far as `cache_limit` allows (bytes, or "200GB"; with 0 samples are read one by one, and nothing is
    kept), and `storage_options` are obstore's.
    `key_dots`: in tars of other writers, the dot of a name that a sample's key ends at. It is the first one, as in
    WebDataset, but names such as cat.17.jpg are refused unless you say "first" or "last".
    Raises DataError naming what is missing, cut short or altered, and ValueError for `classes` with anything but a
    class folder, for `key_dots` with anything but tars of other writers, and for a cache without a URL.
    """
    path = _local(path, cache_dir, cache_limit, storage_options)
    if classes is not None and not is_plain_folder(path):
        raise ValueError(f"{path}: its classes are not named by folders; leave out classes={classes!r}")
    if key_dots not in (None, *get_args(KeyDots)):
        raise ValueError(f"key_dots={key_dots!r}: give 'first' or 'last'")
    if key_dots is not None and (is_beton(path) or (path / "dataset.json").exists() or not foreign_shards(path)):
        raise ValueError(f"{path}: holds no tars of other writers; leave out key_dots={key_dots!r}")
    if is_beton(path):
        return BetonDataset(_pick(path, {"train": path}, split))
    refuse_no_folder(path)
    if (path / "dataset.json").exists():
        return _open_converted(path, split, MOST_AT_OPENING)
    _refuse_unfinished(path)  # otherwise its finished shards would be read as another writer's
    if shards := foreign_shards(path):
        refuse_class_folder(path, [tar for tars in shards.values() for tar in tars])
        return _open_foreign(path, _pick(path, shards, split), split, key_dots)
    if betons := foreign_betons(path):
        refuse_class_folder(path, list(betons.values()))
        return BetonDataset(_pick(path, betons, split))
    listing = list_files(path, classes, evaluates)
    return open_listed(path, listing, split, _pick(path, listing.files, split))


def _local(
    path: str | Path,
    cache_dir: str | PathLike[str] | None = None,
    cache_limit: int | str | None = None,
    storage_options: Mapping[str, str] | None = None,
) -> Path:
    """The path of data on this machine; of a URL the folder that mirrors it."""
    url = url_of(path)
    if url is not None:
        return open_mirror(url, cache_dir, cache_limit, storage_options).folder
    given = {"cache_dir": cache_dir, "cache_limit": cache_limit, "storage_options": storage_options}
    if names := [name for name, value in given.items() if value is not None]:
        raise ValueError(f"{path}: it is on this machine; leave out {', '.join(names)}, which are for URLs")
    return Path(path)


def list_splits(path: str | Path, classes: Level | None = None, evaluates: bool = False) -> dict[str, int]:
    """Split names and their numbers of samples; -1 if counting would require opening the split. See `open_dataset`."""
    path = _local(path)
    if is_beton(path):
        return {"train": -1}
    refuse_no_folder(path)
    if (path / "dataset.json").exists():
        return {name: split["samples"] for name, split in read_description(path)["splits"].items()}
    _refuse_unfinished(path)
    if others := foreign_shards(path) or foreign_betons(path):
        return dict.fromkeys(others, -1)
    return {name: len(files) for name, files in list_files(path, classes, evaluates).files.items()}


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
    if hint := archive_hint(path):
        raise DataError(f"{path}: no folder; {hint}")
    if path.exists():
        raise DataError(f"{path}: a file, not a folder; convert a manifest or a tar to shards first")
    raise DataError(f"{path}: no such folder; check the path, and give a folder of shards or of images")


def _refuse_unfinished(path: Path) -> None:
    if unfinished(path):
        raise DataError(f"{path}: a conversion that did not finish; run the same conversion again with resume=True")


def _pick(path: Path, splits: Mapping[str, _T], split: str) -> _T:
    if split not in splits:
        near = difflib.get_close_matches(split, splits, 1, 0.5)
        meant = f"; did you mean {near[0]}?" if near else ""
        raise DataError(f"{path}: no split {split!r} in it; it has {', '.join(splits)}{meant}")
    return splits[split]


def index_large(path: Path, split: str) -> None:
    """Index the large photographs of a split of shards, however many there are: opening it does that for a few alone.

    Does nothing for data without a dataset.json. Raises DataError as `open_dataset` does.
    """
    if (path / "dataset.json").exists():
        _open_converted(path, split, None).close()


def large_photographs(dataset: Dataset) -> str:
    """What is kept of a dataset's large photographs, in words; empty if nothing is."""
    blocks = getattr(dataset, "blocks", None)
    return "" if blocks is None else str(blocks.describe())


def derive_again(path: Path, split: str, folder: Path, large: bool) -> None:
    """Write into `folder` what is derived of a split of shards, whatever is kept beside them.

    Of large photographs only if `large`. Raises DataError as `open_dataset` does.
    """
    place = DerivedPlace(folder=folder, split=split)
    if (path / "dataset.json").exists():
        _open_converted(path, split, None if large else 0, place).close()
    else:
        _open_foreign(path, _pick(path, foreign_shards(path), split), split, anew=place).close()


def _open_converted(path: Path, split: str, most: int | None, anew: DerivedPlace | None = None) -> Dataset:
    """`anew`: where what is derived is kept, instead of beside the shards."""
    description = read_description(path)
    stated = _pick(path, description["splits"], split)
    shards = stated["shards"]
    place = anew or DerivedPlace(folder=path, split=split, digests=stated.get(DERIVED, {}))
    classes = tuple(description["classes"])
    mirror = mirror_at(path)
    if mirror is not None and anew is None:
        mirror.fetch_derived(split, description)
    if description["container"] == "beton":
        (shard,) = shards
        lease = None if mirror is None else mirror.lease(wanted_shards(shards)[0])
        _check_size(path / shard["name"], shard["bytes"])
        (content,) = stated_contents(shards)
        if mirror is not None:  # verified when it arrived; the cache marks its use, which alters its change time
            content = content._replace(quick="")
        beton = BetonDataset(path / shard["name"], classes, shard["sha256"], content)
        beton.lease = lease
        _check_count(path / shard["name"], len(beton), shard["samples"])
        if beton.content != description["content"]:
            beton.close()
            raise ShardError(
                f"{path / shard['name']}: holds {beton.content} where dataset.json says {description['content']}; copy "
                "both again"
            )
        with contextlib.ExitStack() as stack:
            stack.callback(beton.close)
            _declare(place, beton, description)
            _index_blocks(place, beton, most)
            stack.pop_all()
        return beton
    tars = [path / shard["name"] for shard in shards]
    if mirror is None:  # what is fetched is verified when it arrives
        for tar, shard in zip(tars, shards, strict=True):
            _check_size(tar, shard["bytes"])
            _check_size(index_path(tar), shard["index_bytes"])
    dataset = TarDataset(
        f"{path if mirror is None else mirror.url} ({split})",
        tars,
        classes,
        place=place,
        checksums=[shard["sha256"] + shard["index_sha256"] for shard in shards],
        content=description["content"],
        fetched=None if mirror is None else FetchedFiles(mirror, wanted_shards(shards), wanted_indexes(shards)),
        contents=stated_contents(shards),
        counts=[shard["samples"] for shard in shards],
    )
    counts = np.bincount(dataset.records["shard"], minlength=len(shards)).tolist()
    for tar, shard, count in zip(tars, shards, counts, strict=True):
        if count != shard["samples"]:  # to name the index of each of hundreds of shards would take a while
            _check_count(index_path(tar), count, shard["samples"])
    _declare(place, dataset, description)
    if mirror is None:
        _index_blocks(place, dataset, most)
    elif anew is None:
        _fetch_blocks(mirror, place, dataset)
    return dataset


def _open_foreign(
    path: Path, tars: list[Path], split: str, dots: KeyDots | None = None, anew: DerivedPlace | None = None
) -> TarDataset:
    mirror = mirror_at(path)
    place = anew or DerivedPlace(folder=tars[0].parent, split=split)
    if mirror is None:
        return TarDataset(f"{path} ({split})", tars, classes=None, place=place, dots=dots)
    wanted = mirror.wanted_tars(tars)
    fetched = FetchedFiles(mirror, wanted, ())
    stated = [each.sha256 for each in wanted]
    name = f"{mirror.url} ({split})"
    return TarDataset(name, tars, classes=None, place=place, stated=stated, fetched=fetched, dots=dots)


def _declare(place: DerivedPlace, dataset: TarDataset | BetonDataset, description: Mapping[str, Any]) -> None:
    """Give a dataset the columns of the targets that its description declares, if any."""
    targets = declared_targets(description)
    own = first_class(targets)
    others = [target for target in targets if target is not own]
    fields = {each["name"]: each.get("field", "") for each in description.get("targets", ())}
    columns: dict[str, TargetColumn] = {}
    if own is not None:
        columns[own.name] = TargetColumn.of_classes(dataset.labels, dataset.classes, own.name)

    def derive() -> list[TargetColumn]:
        if isinstance(dataset, BetonDataset):
            return columns_of_beton(dataset.reader, others, [fields[target.name] for target in others])
        return columns_of_tars(dataset.shard_files.present(), others)

    if others:
        kept = target_columns(place, others, len(dataset), dataset.fingerprint, derive)
        columns |= {column.target.name: column for column in kept}
    dataset.declared = tuple(columns[target.name] for target in targets)
    if stated := stated_fields(description):
        _attach_fields(place, dataset, description, list(stated.values()))
    dataset.notes = list(dict.fromkeys([*dataset.notes, *place.notes]))


def _index_blocks(place: DerivedPlace, dataset: TarDataset | BetonDataset, most: int | None) -> None:
    """Give a dataset of images the index of its large ones, if it has any."""
    if dataset.content == "images":
        notes = list(dataset.notes)
        dataset.blocks = block_index(place, _photographs(dataset), notes, most)
        dataset.notes = notes


def _photographs(dataset: TarDataset | BetonDataset) -> Photographs:
    return Photographs(
        pixels=dataset.pixels(), sizes=dataset.sizes(), fingerprint=dataset.fingerprint, read=dataset.read
    )


def _fetch_blocks(mirror: Mirror, place: DerivedPlace, dataset: TarDataset) -> None:
    """Give a dataset the index of its large images that is in the store; to make it, every shard would be fetched."""
    if dataset.content != "images" or not has_large(dataset.pixels()) or mirror.cache.limit == 0:
        return
    notes = [*dataset.notes, *mirror.fetch_photographs(place.split)]
    known = len(notes)
    dataset.blocks = block_index(place, _photographs(dataset), notes, most=0)
    del notes[known:]  # how it could be made
    dataset.notes = notes


def _attach_fields(
    place: DerivedPlace,
    dataset: TarDataset | BetonDataset,
    description: Mapping[str, Any],
    fields: Sequence[StoredField],
) -> None:
    """Give a dataset the fields that its description states."""
    names = [stated.get("field", "") for stated in description["fields"]]

    def derive() -> list[FieldColumn]:
        if isinstance(dataset, BetonDataset):
            return fields_of_beton(dataset.reader, fields, names)
        return fields_of_tars(dataset.shard_files.present(), fields)

    if isinstance(dataset, BetonDataset):
        lengths = np.array([dataset.reader.status.st_size], np.uint64)
    else:
        lengths = dataset.shard_files.lengths
    columns = field_columns(place, fields, len(dataset), dataset.fingerprint, lengths, derive)
    by_name = {column.schema.name: column for column in columns}
    dataset.stored = SplitFields(by_name, dataset.fetch, isinstance(dataset, BetonDataset), dataset.fetch_group)


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
