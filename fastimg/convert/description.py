"""dataset.json: what a conversion writes into it."""

from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Any

import msgspec

from fastimg import __version__
from fastimg.convert.annotations.facts import joined, with_facts
from fastimg.convert.recompression.facts import StatedRecompression, joined_recompressions
from fastimg.convert.sources.samples import Source
from fastimg.errors import printable
from fastimg.loaders.containers.betons.kinds import BetonField
from fastimg.loaders.containers.content import singular
from fastimg.loaders.containers.derived.digests import digests_of
from fastimg.loaders.containers.description import (
    DERIVED,
    FORMAT,
    FORMAT_VERSION,
    IDENTITY,
    QUICK_SUM,
    SHARD_KEYS,
    previewed_field,
)
from fastimg.loaders.containers.identities import identity_of_file
from fastimg.loaders.containers.quick_sums import both_sums_of_file
from fastimg.loaders.containers.targets import first_class
from fastimg.loaders.errors import DataError
from fastimg.wording import plural

from .journal import Finished, Journal, lasting
from .pairs import stored_counts
from .plan import Shard
from .shards.base import Base, ignored_of
from .survey import Schema

_TAR_SCHEMA = {
    "image": {"kind": "bytes", "member": "the extension of the image's own format"},
    "cls": {"kind": "scalar", "dtype": "int64", "encoding": "ascii"},
    "json": {"kind": "text", "encoding": "json"},
}
_TEXT_SCHEMA = {"txt": {"kind": "text", "encoding": "utf-8"}, "cls": _TAR_SCHEMA["cls"], "json": _TAR_SCHEMA["json"]}


def describe(
    folder: Path,
    source: Source,
    plan: list[Shard],
    journal: Journal,
    options: dict[str, Any],
    schema: Schema | None,
    base: Base | None,
) -> dict[str, Any]:
    """dataset.json for the shards in the journal. Raises DataError if too few samples are left to train on, or to
    append.
    """
    if base:
        _check_added(source, [journal.finished[shard.split, shard.number] for shard in plan])
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
        before = splits.get(split, {"samples": 0, "class_counts": [], "source_bytes": 0, "shards": []})
        if not before["samples"]:
            _check_counts(source, split, counts, left_out)
        if not base and split == "train" and not source.stored:
            _check_classes(source, counts, left_out)
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
        "options": old.get("options", lasting(options)),
    }
    return described | ({"appended": [*old.get("appended", ()), options]} if base else {})


def with_digests(folder: Path, description: dict[str, Any]) -> dict[str, Any]:
    """The description with the digests of the derived files that are in `folder`; of others those that it states."""
    splits = {}
    for split, content in description["splits"].items():
        digests = content.get(DERIVED, {}) | digests_of(folder, split)
        splits[split] = content | ({DERIVED: digests} if digests else {})
    return description | {"splits": splits}


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
    previewed = source.previewed or (previewed_field(base.description) if base else None)
    return {"fields": stated, **({"previewed": previewed} if previewed else {})}


def _recompressed(plan: list[Shard], journal: Journal, options: dict[str, Any], old: dict[str, Any]) -> dict[str, Any]:
    """What --recompress changed, with what it had changed before; nothing without the flag."""
    if "recompress" not in options:
        return {}
    before = [msgspec.convert(old["recompressed"], StatedRecompression)] if "recompressed" in old else []
    added = (journal.finished[shard.split, shard.number].recompressed for shard in plan)
    facts = joined_recompressions([*before, *added])
    return {"recompressed": {"to": options["recompress"], **asdict(facts)}}


def _check_added(source: Source, shards: list[Finished]) -> None:
    """Raise DataError if an append adds nothing."""
    if any(shard.samples for shard in shards):
        return
    skipped = [each for shard in shards for each in shard.skipped]
    reasons = Counter(reason for _, reason in skipped).most_common()
    what = plural(len(skipped), singular(source.content), "was")
    counted = ", ".join(f"{count:,} {reason}" for reason, count in reasons[:5]) + (", ..." if reasons[5:] else "")
    raise DataError(
        f"{source.src}: nothing was added: {what} left out ({counted}), such as {printable(skipped[0][0])}; repair "
        "or replace them"
    )


def _check_counts(source: Source, split: str, counts: Counter[int], skipped: list[dict[str, str]]) -> None:
    """Raise DataError if a split would have no samples."""
    if not counts:
        what, done = _done(source)
        raise DataError(f"{source.src}: no {what} of the split {split} can be {done}{_example(skipped)}")


def _check_classes(source: Source, counts: Counter[int], skipped: list[dict[str, str]]) -> None:
    """Raise DataError if the training split would lack a class."""
    for label, name in enumerate(source.classes):
        if not counts[label]:
            what, done = _done(source)
            its = {entry.path for entry in source.splits["train"] if entry.label == label}
            example = _example([each for each in skipped if each["path"] in its])
            raise DataError(f"{source.src}: no training {what} of class {printable(name)!r} can be {done}{example}")


def _done(source: Source) -> tuple[str, str]:
    """What a sample is called, and what is done with one."""
    return singular(source.content), "decoded" if source.content == "images" else "stored"


def _example(skipped: list[dict[str, str]]) -> str:
    return f" ({skipped[0]['path']}: {skipped[0]['reason']}); repair or remove them" if skipped else ""


def _files(folder: Path, samples: int, before: list[dict[str, Any]], shards: list[Finished]) -> list[dict[str, Any]]:
    """The shards of a split. A .beton is a single file that includes everything from before."""
    if any(shard.part for shard in shards):
        file = folder / shards[0].name
        sha256, quick = both_sums_of_file(file)
        entry = {"name": file.name, "samples": samples, "bytes": file.stat().st_size, "sha256": sha256}
        return [entry | {QUICK_SUM: quick, IDENTITY: identity_of_file(file)}]
    return before + [_entry(shard) for shard in shards if shard.samples]


def _entry(shard: Finished) -> dict[str, Any]:
    """A tar of a split; without the quick sum or the identity if an older version wrote it, before a resume."""
    entry = {key: getattr(shard, key) for key in SHARD_KEYS}
    return entry | {key: getattr(shard, key) for key in (QUICK_SUM, IDENTITY) if getattr(shard, key)}


def _schema(source: Source, schema: Schema | None, old: dict[str, Any]) -> dict[str, Any]:
    """The fields of every sample, by their names in the container."""
    if schema is None:
        first = _TAR_SCHEMA if source.content == "images" else _TEXT_SCHEMA
        return {**first, **old, **{ext: {"kind": "bytes", "member": ext} for ext in source.fields}}
    return {name: _field(field) for name, field in schema.fields.items()}


def _field(field: BetonField) -> dict[str, Any]:
    array = {"dtype": field.dtype.str, "shape": list(field.shape)} if field.dtype is not None else {}
    return {"kind": field.kind, **array}
