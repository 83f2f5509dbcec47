"""dataset.json: what a conversion writes into it, and what an append reads from it."""

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import msgspec

from fastimg import __version__
from fastimg.convert.annotations.facts import joined, with_facts
from fastimg.convert.recompression.facts import StatedRecompression, joined_recompressions
from fastimg.convert.sources.containers.betons import ORIGINAL
from fastimg.convert.sources.samples import Source
from fastimg.errors import UserError, printable
from fastimg.loaders.containers.betons.files import BetonFile
from fastimg.loaders.containers.betons.kinds import BetonField
from fastimg.loaders.containers.content import Content, singular
from fastimg.loaders.containers.derived.notes import notes_of_tars
from fastimg.loaders.containers.description import (
    FORMAT,
    FORMAT_VERSION,
    QUICK_SUM,
    SHARD_KEYS,
    declared_targets,
    read_description,
    stated_fields,
)
from fastimg.loaders.containers.fields import StoredField
from fastimg.loaders.containers.quick_sums import both_sums_of_file
from fastimg.loaders.containers.targets import Target, first_class
from fastimg.loaders.containers.tars.shards import index_path
from fastimg.loaders.errors import DataError
from fastimg.loaders.folders.ignored import Ignored
from fastimg.loaders.remote.mirrors import mirror_at, wanted_indexes, wanted_shards
from fastimg.loaders.remote.present_shards import PresentShards
from fastimg.wording import plural

from .journal import SPLIT, Finished, Journal
from .pairs import stored_counts
from .plan import Begun, Shard
from .survey import Schema

_TAR_SCHEMA = {
    "image": {"kind": "bytes", "member": "the extension of the image's own format"},
    "cls": {"kind": "scalar", "dtype": "int64", "encoding": "ascii"},
    "json": {"kind": "text", "encoding": "json"},
}
_TEXT_SCHEMA = {"txt": {"kind": "text", "encoding": "utf-8"}, "cls": _TAR_SCHEMA["cls"], "json": _TAR_SCHEMA["json"]}


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
    description = read_description(folder)
    try:
        msgspec.convert(description, _Made)
    except (msgspec.ValidationError, UnicodeEncodeError) as error:  # UnicodeEncodeError: half a surrogate pair
        raise DataError(
            f"{folder / 'dataset.json'}: not in the form that this version of fastimg writes ({error}); convert "
            "again with --overwrite"
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
    def files(self) -> set[str]:
        """Names of all its files."""
        names = {"dataset.json"}
        for split, content in self.description["splits"].items():
            shards = [str(shard["name"]) for shard in content["shards"]]
            names |= {*shards, f"{split}.fidx", f"{split}.fcol", f"{split}.ffld", f"{split}.ftil", f"{split}.fdci"}
            if self.container == "tar":
                names |= {index_path(Path(shard)).name for shard in shards}
        return names

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
        """Whether samples with this listing have been added already."""
        made = [self.description["options"], *self.description.get("appended", ())]
        return any(other["listing"] == options["listing"] for other in made)

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
    return Base(folder, read_made(folder), hashlib.sha256(file.read_bytes()).hexdigest())


def describe(
    folder: Path,
    source: Source,
    plan: list[Shard],
    journal: Journal,
    options: dict[str, Any],
    schema: Schema | None,
    base: Base | None,
) -> dict[str, Any]:
    """dataset.json for the shards in the journal. Raises DataError if too few samples are left to train on."""
    old: dict[str, Any] = base.description if base else {"splits": {}, "skipped": [], "outcomes": {}}
    inputs = source.inputs or (base.inputs if base else ())
    splits: dict[str, Any] = dict(old["splits"])
    outcomes = Counter(old["outcomes"])
    skipped = list(old["skipped"])
    for split in sorted({shard.split for shard in plan}):
        shards = [journal.finished[shard.split, shard.number] for shard in plan if shard.split == split]
        counts: Counter[int] = Counter()
        left_out = []
        for shard in shards:
            counts.update(shard.class_counts)
            outcomes.update(shard.outcomes)
            left_out += [{"split": split, "path": path, "reason": reason} for path, reason in shard.skipped]
        skipped += left_out
        if not base:
            _check_counts(source, split, counts, left_out)
        before = splits.get(split, {"samples": 0, "class_counts": [], "source_bytes": 0, "shards": []})
        lacking = _missing(source, before, shards)
        for label, count in enumerate(before["class_counts"]):
            counts[label] += count
        total = before["samples"] + sum(shard.samples for shard in shards)
        splits[split] = {
            "samples": total,
            "class_counts": [counts[label] for label in range(len(source.classes))],
            "source_bytes": before["source_bytes"] + sum(shard.source_bytes for shard in shards),
            **lacking,
            **_missing_fields(source, before, shards),
            "shards": _files(folder, total, before["shards"], shards),
        }
    for split, content in splits.items():  # splits that nothing was added to
        if source.targets:
            splits[split] = content = content | _missing(source, content, [])
        if source.stored_fields:
            splits[split] = content = content | _missing_fields(source, content, [])
        content["class_counts"] += [0] * (len(source.classes) - len(content["class_counts"]))
        if inputs:
            content["missing_inputs"] = stored_counts(folder, content["shards"])
    described = {
        "format": FORMAT,
        "version": FORMAT_VERSION,
        "fastimg": __version__,
        "container": "beton" if schema else "tar",
        **({} if source.content == "images" else {"content": source.content}),
        **({"inputs": list(inputs)} if inputs else {}),
        "schema": _schema(source, schema, old.get("schema", {})),
        "classes": list(source.classes),
        **_targets(source, schema),
        **_fields(source, schema, base, journal, splits),
        "named": source.named,
        "splits": dict(sorted(splits.items())),
        "skipped": skipped,
        "ignored": ignored_of(old).joined(source.ignored).to_json(),
        "outcomes": dict(sorted(outcomes.items())),
        **_recompressed(plan, journal, options, old),
        "options": old.get("options", options),
    }
    return described | ({"appended": [*old.get("appended", ()), options]} if base else {})


def _targets(source: Source, schema: Schema | None) -> dict[str, Any]:
    """The targets that the source declares, with their fields in a .beton."""
    if not source.targets:
        return {}
    fields = schema.target_fields if schema else {}
    stated = (target.to_json() for target in source.targets)
    return {"targets": [each | ({"field": fields[each["name"]]} if fields else {}) for each in stated]}


def _missing(source: Source, before: dict[str, Any], shards: list[Finished]) -> dict[str, Any]:
    """How many samples of a split lack each target, and all of them; before the first append with targets, by class."""
    if not source.targets:
        return {}
    own = first_class(source.targets)
    unlabelled = before["samples"] - sum(before["class_counts"])
    old = before.get("missing", {own.name: unlabelled} if own else {})
    missing = Counter({target.name: old.get(target.name, before["samples"]) for target in source.targets})
    for shard in shards:
        missing.update(shard.missing)
    bare = before.get("without_targets", unlabelled) + sum(shard.without_targets for shard in shards)
    return {"missing": dict(missing), "without_targets": bare}


def _missing_fields(source: Source, before: dict[str, Any], shards: list[Finished]) -> dict[str, Any]:
    """How many samples of a split lack each field."""
    if not source.stored_fields:
        return {}
    old = before.get("missing_fields", {})
    missing = Counter({field.name: old.get(field.name, before["samples"]) for field in source.stored_fields})
    for shard in shards:
        missing.update({name: facts.missing for name, facts in shard.fields.items()})
    return {"missing_fields": dict(missing)}


def _fields(
    source: Source, schema: Schema | None, base: Base | None, journal: Journal, splits: dict[str, Any]
) -> dict[str, Any]:
    """The schemas of the fields, as all samples have them, with their fields in a .beton."""
    if not source.stored_fields:
        return {}
    names = schema.field_names if schema else {}
    before = base.fields if base else {}
    stated = []
    for field in source.stored_fields:
        facts = joined(shard.fields[field.name] for shard in journal.finished.values())
        facts.missing = sum(split["missing_fields"][field.name] for split in splits.values())
        each = with_facts(field, facts, before.get(field.name)).to_json()
        stated.append(each | ({"field": names[field.name]} if schema else {}))
    return {"fields": stated}


def _recompressed(plan: list[Shard], journal: Journal, options: dict[str, Any], old: dict[str, Any]) -> dict[str, Any]:
    """What --recompress changed, with what it had changed before; nothing without the flag."""
    if "recompress" not in options:
        return {}
    before = [msgspec.convert(old["recompressed"], StatedRecompression)] if "recompressed" in old else []
    added = (journal.finished[shard.split, shard.number].recompressed for shard in plan)
    facts = joined_recompressions([*before, *added])
    return {"recompressed": {"to": options["recompress"], **asdict(facts)}}


def _check_counts(source: Source, split: str, counts: Counter[int], skipped: list[dict[str, str]]) -> None:
    first = skipped[0] if skipped else None
    example = f" ({first['path']}: {first['reason']}); repair or remove them" if first else ""
    what = singular(source.content)
    done = "decoded" if source.content == "images" else "stored"
    if not counts:
        raise DataError(f"{source.src}: no {what} of the split {split} can be {done}{example}")
    if split == "train" and not source.stored:
        for label, name in enumerate(source.classes):
            if not counts[label]:
                raise DataError(f"{source.src}: no training {what} of class {printable(name)!r} can be {done}{example}")


def _files(folder: Path, samples: int, before: list[dict[str, Any]], shards: list[Finished]) -> list[dict[str, Any]]:
    """The shards of a split. A .beton is a single file that includes everything from before."""
    if any(shard.part for shard in shards):
        file = folder / shards[0].name
        sha256, quick = both_sums_of_file(file)
        entry = {"name": file.name, "samples": samples, "bytes": file.stat().st_size, "sha256": sha256}
        return [entry | {QUICK_SUM: quick}]
    return before + [_entry(shard) for shard in shards if shard.samples]


def _entry(shard: Finished) -> dict[str, Any]:
    """A tar of a split; without the quick sum if an older version wrote it, before a resume."""
    entry = {key: getattr(shard, key) for key in SHARD_KEYS}
    return entry | ({QUICK_SUM: shard.xxh3} if shard.xxh3 else {})


def _schema(source: Source, schema: Schema | None, old: dict[str, Any]) -> dict[str, Any]:
    """The fields of every sample, by their names in the container."""
    if schema is None:
        first = _TAR_SCHEMA if source.content == "images" else _TEXT_SCHEMA
        return {**first, **old, **{ext: {"kind": "bytes", "member": ext} for ext in source.fields}}
    return {name: _field(field) for name, field in schema.fields.items()}


def _field(field: BetonField) -> dict[str, Any]:
    array = {"dtype": field.dtype.str, "shape": list(field.shape)} if field.dtype is not None else {}
    return {"kind": field.kind, **array}
