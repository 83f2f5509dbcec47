"""dataset.json of a dataset that is there already: what is read of it, to add to it or to tell about it."""

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import msgspec

from fastimg.convert.journal import SPLIT, holds
from fastimg.convert.plan import Begun
from fastimg.convert.recompression.facts import StatedRecompression
from fastimg.convert.sources.containers.betons import ORIGINAL
from fastimg.convert.survey import Schema
from fastimg.errors import UserError
from fastimg.loaders.containers.betons.files import BetonFile
from fastimg.loaders.containers.content import Content
from fastimg.loaders.containers.derived.notes import notes_of_tars
from fastimg.loaders.containers.description import (
    declared_targets,
    read_description,
    stated_fields,
)
from fastimg.loaders.containers.fields import StoredField
from fastimg.loaders.containers.targets import Target, first_class
from fastimg.loaders.containers.tars.shards import index_path
from fastimg.loaders.errors import DataError
from fastimg.loaders.folders.ignored import Ignored
from fastimg.loaders.remote.mirrors import mirror_at, wanted_indexes, wanted_shards
from fastimg.loaders.remote.present_shards import PresentShards
from fastimg.wording import plural


class _Shard(msgspec.Struct):
    name: Annotated[str, msgspec.Meta(pattern=rf"^{SPLIT}(-\d{{5,18}})?\.(tar|beton)\Z")]


class _Split(msgspec.Struct):
    samples: int
    class_counts: list[int]
    source_bytes: int
    shards: list[_Shard]
    missing: dict[str, int] = {}
    without_targets: int = 0
    missing_fields: dict[str, int] = {}


class _Skipped(msgspec.Struct):
    split: str
    path: str
    reason: str


class _Ignored(msgspec.Struct):
    counts: dict[str, dict[str, int]]
    names: dict[str, list[str]]


class _Options(msgspec.Struct):
    listing: str
    contents: str | None = None
    recompress: str | None = None


class _Made(msgspec.Struct):
    """The parts of what `describe` writes that are read again; the loaders have checked the rest."""

    schema: dict[str, dict[str, Any]]
    splits: dict[Annotated[str, msgspec.Meta(pattern=rf"^{SPLIT}\Z")], _Split]
    skipped: list[_Skipped]
    outcomes: dict[str, int]
    options: _Options
    ignored: _Ignored | None = None  # absent if an older version wrote the file
    appended: list[_Options] = []
    recompressed: StatedRecompression | None = None


def read_made(folder: Path) -> dict[str, Any]:
    """The description of a converted dataset. Raises DataError if it is not one."""
    return as_made(read_description(folder), str(folder / "dataset.json"))


def as_made(description: dict[str, Any], name: str) -> dict[str, Any]:
    """A description that was read from the file `name`. Raises DataError if a conversion has not written it."""
    try:
        msgspec.convert(description, _Made)
    except (msgspec.ValidationError, UnicodeEncodeError) as error:  # UnicodeEncodeError: half a surrogate pair
        raise DataError(
            f"{name}: not in the form that this version of fastimg writes ({error}); convert again with --overwrite"
        ) from error
    return description


def stated_recompression(folder: Path) -> dict[str, Any] | None:
    """What --recompress changed, as dataset.json states it; None if the dataset was made without it.

    Raises DataError if it is not in that form.
    """
    stated = read_description(folder).get("recompressed") if (folder / "dataset.json").exists() else None
    if stated is None:
        return None
    try:
        return asdict(msgspec.convert(stated, StatedRecompression))
    except msgspec.ValidationError as error:
        raise DataError(f"{folder / 'dataset.json'}: recompressed: {error}; convert again with --overwrite") from error


@dataclass(frozen=True)
class Base:
    """The dataset that an append adds to."""

    folder: Path
    description: dict[str, Any]
    sha256: str  # of dataset.json

    @classmethod
    def of(cls, description: dict[str, Any]) -> "Base":
        """A base with only a description."""
        return cls(Path(), description, "")

    @property
    def container(self) -> str:
        """tar or beton."""
        return str(self.description["container"])

    @property
    def content(self) -> Content:
        """What kind of samples it has."""
        return "text" if self.description.get("content") == "text" else "images"

    @property
    def classes(self) -> list[str]:
        """Names of the classes."""
        return list(self.description["classes"])

    @property
    def targets(self) -> tuple[Target, ...]:
        """The targets that it declares; none if it has only classes."""
        return declared_targets(self.description)

    @property
    def fields(self) -> dict[str, StoredField]:
        """The fields that its samples have, by name."""
        return stated_fields(self.description)

    @property
    def field_names(self) -> dict[str, str]:
        """The fields of its .beton files by those of its samples that they hold."""
        return {stated["name"]: stated["field"] for stated in self.description.get("fields", ()) if "field" in stated}

    @property
    def target_fields(self) -> dict[str, str]:
        """The fields of its .beton files by the targets that they hold, if it declares any."""
        return {stated["name"]: stated["field"] for stated in self.description.get("targets", ()) if "field" in stated}

    @property
    def named(self) -> bool:
        """Whether the classes have names, not only numbers."""
        return bool(self.description.get("named", True))

    @property
    def shard_files(self) -> set[str]:
        """Names of its tars and their indexes, or of its .beton files."""
        names = {str(shard["name"]) for split in self.description["splits"].values() for shard in split["shards"]}
        return names | ({index_path(Path(name)).name for name in names} if self.container == "tar" else set())

    @property
    def files(self) -> set[str]:
        """Names of all its files."""
        derived = ("fidx", "fcol", "ffld", "ftil", "fdci")
        return {
            "dataset.json",
            *self.shard_files,
            *(f"{split}.{suffix}" for split in self.description["splits"] for suffix in derived),
        }

    @property
    def betons(self) -> dict[str, Path]:
        """The .beton file of each split."""
        return {
            split: self.folder / shard["name"]
            for split, content in self.description["splits"].items()
            for shard in content["shards"]
        }

    @property
    def inputs(self) -> tuple[str, ...]:
        """Image and text, if samples have both."""
        return tuple(self.description.get("inputs", ()))

    def begun(self) -> dict[str, Begun]:
        """Where the numbers of new shards and samples start. Parts of a rewritten .beton are counted from its end."""
        skipped = Counter(skipped["split"] for skipped in self.description["skipped"])
        begun = {}
        for split, content in self.description["splits"].items():
            names = [Path(shard["name"]).stem for shard in content["shards"] if self.container == "tar"]
            last = max((int(name.rpartition("-")[2]) for name in names), default=-1)
            begun[split] = Begun(last + 1, content["samples"] + skipped[split])
        return begun

    def holds(self, options: dict[str, Any]) -> bool:
        """Whether samples with this listing, and as far as is known with these contents, have been added already."""
        return holds(self.description, options)

    def refuse_columns(self, targets: tuple[Target, ...], fields: tuple[StoredField, ...] = ()) -> None:
        """Raise UserError if its samples already have columns, which are no targets, under the names of new targets.

        Samples that were stored before a target was declared lack it; their columns have not been checked. The same
        holds for fields that are numbers.
        """
        known = {target.name for target in self.targets} | self.fields.keys()
        own = first_class(targets)
        new = [target.name for target in targets if target.name not in known and target is not own]
        new += [field.name for field in fields if field.name not in known and not field.member]
        if not new or self.container != "tar":
            return
        for name, note in notes_of_tars(self._present()):
            if column := next((column for column in new if note.get(column) is not None), None):
                kind = "field" if any(field.name == column for field in fields) else "target"
                raise UserError(
                    f"{name}: has a column {column!r} that is no {kind} there; convert those samples again with "
                    f"--{kind} {column}, or rename the new column"
                )

    def _present(self) -> Iterator[Path]:
        """Its tars; those of an object store are here one after the other."""
        mirror = mirror_at(self.folder)
        for content in self.description["splits"].values():
            shards = content["shards"]
            if mirror is None:
                yield from (self.folder / shard["name"] for shard in shards)
            else:
                yield from PresentShards(mirror, wanted_shards(shards), wanted_indexes(shards))

    def accept(self, schema: Schema, betons: Iterable[Path]) -> Schema:
        """The schema of its .beton files, if the appended samples fit it. Raises UserError if they do not.

        betons: those of them that are here.
        """
        for file in betons:
            with BetonFile(file) as reader:
                fields, page_size = reader.fields, reader.page_size
            for name, field in schema.fields.items():
                if fields.get(name) != field:
                    found = fields.get(name, field)
                    if name in schema.target_fields.values() and found.kind == field.kind == "ndarray":
                        raise UserError(
                            f"{file}: its field {name} has a place for {plural(found.nbytes, 'label')}, and "
                            f"with the new samples there are {field.nbytes:,}; --merge both into a new dataset"
                        )
                    drop = "add --originals drop, or " if name == ORIGINAL else ""
                    raise UserError(
                        f"{file}: has no field {name} ({field.kind}), which the new samples need; {drop}--merge both "
                        "into a new dataset"
                    )
            if page_size < schema.page_size:
                raise UserError(
                    f"{file}: a new sample does not fit in its pages of {page_size} bytes; --merge "
                    "both into a new dataset"
                )
            return Schema.of(fields, page_size, schema)
        return schema


def ignored_of(description: Mapping[str, Any]) -> Ignored:
    """The unused files that a description lists; none if an older version wrote it."""
    return Ignored.of_json(description["ignored"]) if "ignored" in description else Ignored()


def read_base(folder: Path) -> Base:
    """The dataset to append to. Raises UserError if there is none."""
    file = folder / "dataset.json"
    if not file.exists():
        raise UserError(f"{folder}: no dataset to append to; leave out --append to make a new one")
    sha256 = hashlib.sha256(file.read_bytes()).hexdigest()  # first: whoever replaces the file now is noticed later
    return Base(folder, read_made(folder), sha256)
