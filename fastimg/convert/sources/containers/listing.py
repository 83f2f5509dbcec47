"""Datasets, tars and .beton files, listed: which samples there are, with which labels, targets and fields."""

from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from fastimg.convert.sources.labels import class_names, naming_remarks, whole_numbers
from fastimg.convert.sources.samples import Entries, Source, SourceEntry
from fastimg.convert.stored.shards import bring_indexes, leased, stored_shards
from fastimg.errors import printable
from fastimg.loaders.containers.betons.dataset import MAX_CLASSES, BetonDataset
from fastimg.loaders.containers.content import Content
from fastimg.loaders.containers.datasets import open_dataset
from fastimg.loaders.containers.derived.records import check_index
from fastimg.loaders.containers.description import (
    declared_targets,
    previewed_field,
    read_description,
    stated_fields,
)
from fastimg.loaders.containers.fields import StoredField
from fastimg.loaders.containers.tars.shards import index_path
from fastimg.loaders.errors import DataError, ShardError
from fastimg.loaders.folders.folder import SPLIT_FOLDERS
from fastimg.wording import agreeing, plural

from .betons import BetonSourceReader
from .foreign_tars import foreign_remarks, labelled_by_folders
from .tar_rules import USUAL, TarRules
from .tars import TarReader


def read_dataset(src: Path) -> Source:
    """List a dataset that `fastimg convert` wrote, and check it against its description."""
    description = read_description(src)
    splits = description["splits"]
    bring_indexes(src, description)
    for split, content in splits.items():
        open_dataset(src, split).close()
        for shard in (
            content["shards"] if description["container"] == "tar" else ()
        ):  # opening may use an index rebuilt from the shard
            check_index(index_path(src / shard["name"]), shard["index_sha256"])
    named = bool(description.get("named", True))
    files = {split: [src / shard["name"] for shard in splits[split]["shards"]] for split in splits}
    targets = declared_targets(description)
    stored = stated_fields(description)
    if description["container"] == "beton":
        fields = [stated["field"] for stated in description.get("targets", ())]
        of_samples = {stated["field"]: stored[stated["name"]] for stated in description.get("fields", ())}
        betons = {split: file for split, (file,) in files.items()}
        source = read_betons(src, betons, description["classes"], named, fields, of_samples)
    else:
        source = read_tars(src, files, description["classes"], named, description["content"])
    if stored:
        members = {field.member for field in stored.values() if field.member}
        source = replace(
            source,
            stored_fields=tuple(stored.values()),
            fields=tuple(sorted({*source.fields, *members})),
            previewed=previewed_field(description),
        )
    source = replace(source, inputs=tuple(description.get("inputs", ())))
    if not targets:
        return source
    return replace(source, targets=targets, remarks=())  # those are about missing labels, which targets may lack


def read_tars(
    src: Path,
    files: Mapping[str, list[Path]],
    classes: list[str] | None = None,
    named: bool = True,
    content: Content = "images",
    rules: TarRules = USUAL,
) -> Source:
    """List tars by split.

    With `classes`, fastimg wrote the tars and their indexes are used; without, the tars are scanned, and read by the
    `rules`. Scanned tars hold texts if there are .txt members and no images.
    """
    _check_splits(src, files)
    shards = stored_shards(src, [tar for tars in files.values() for tar in tars])
    reader = TarReader(ours=classes is not None, content=content, stored=shards, rules=rules)
    splits: dict[str, Entries] = {}
    texts: dict[str, list[str]] = {}
    for split, tars in files.items():
        splits[split], texts[split] = Entries(), []
        for tar in tars:
            for entry, text in reader.add(tar):
                splits[split].append(entry._replace(label=len(texts[split]) if text else -1))
                texts[split] += [text] if text else []
    if classes is None and content == "images" and reader.holds_only_texts:
        return read_tars(src, files, None, named, "text", rules)
    remarks: list[str] = []
    from_table = False
    if classes is None:
        if rules.classes is not None:
            splits, texts = labelled_by_folders(src, splits, rules.classes)
        remarks, from_table = foreign_remarks(src, reader, rules, splits, texts)
        names, numbers, more = _classes(src, texts, as_written=rules.classes is not None)
        remarks += more
        named = names is not None
        top = max((label for labels in numbers.values() for label in labels), default=-1)
        classes = names if names is not None else [str(label) for label in range(top + 1)]
    else:
        numbers = {split: [int(text) for text in labels] for split, labels in texts.items()}
    source = "none in a .cls" if rules.label is None else f"nothing in {rules.label}"
    source = "in no folder" if rules.classes is not None else source
    for split, entries in splits.items():
        entries.relabel(np.array(numbers[split], np.int64))
        sound = entries.sizes >= 0  # the others are skipped
        missing = int((sound & (entries.labels < 0)).sum())
        if missing and (any(numbers.values()) or reader.ours):
            remarks.append(
                f"{src}: {missing:,} of {plural(int(sound.sum()), 'sample')} of {split} {agreeing(missing, 'has')} "
                f"no label ({source})"
            )
    return Source(
        src,
        "tar",
        tuple(classes),
        splits,
        (reader,),
        named=named,
        stored=True,
        fields=tuple(sorted(reader.fields)),
        remarks=tuple(remarks),
        files=tuple(tar for tars in files.values() for tar in tars),
        content=content,
        from_table=from_table,
    )


def read_betons(
    src: Path,
    files: Mapping[str, Path],
    classes: list[str] | None = None,
    named: bool = True,
    target_fields: Collection[str] = (),
    stored: Mapping[str, StoredField] | None = None,
) -> Source:
    """List .beton files, one for each split. `target_fields` hold what the notes of samples state, too.

    `stored` are the samples' fields by the fields of the file that hold them.
    """
    _check_splits(src, files)
    readers: list[BetonSourceReader] = []
    splits: dict[str, Entries] = {}
    remarks: list[str] = []
    for split, file in files.items():
        lease = leased(src, file)
        reader = BetonSourceReader(BetonDataset(file, classes), target_fields, stored)
        dataset = reader.dataset
        dataset.lease = lease
        sizes = reader.sizes()
        splits[split] = Entries(
            SourceEntry(f"{split}/{i:09d}", label, size, place=i, reader=len(readers))
            for i, (label, size) in enumerate(zip(dataset.labels.tolist(), sizes, strict=True))
        )
        readers.append(reader)
        remarks += reader.remarks
        if missing := int((dataset.labels < 0).sum()):
            remarks.append(
                f"{file}: {missing:,} of {plural(len(dataset), 'sample')} {agreeing(missing, 'has')} no label"
            )
    contents = {reader.dataset.content for reader in readers}
    if len(contents) > 1:
        raise DataError(f"{src}: some of its .beton files hold images and some texts; convert them separately")
    if classes is None:
        named = False
        classes = [str(label) for label in range(max(len(reader.dataset.classes) for reader in readers))]
    fields = tuple(sorted({ext for reader in readers for ext in reader.fields}))
    return Source(
        src,
        "beton",
        tuple(classes),
        splits,
        tuple(readers),
        named=named,
        stored=True,
        fields=fields,
        remarks=tuple(remarks),
        files=tuple(files.values()),
        content=contents.pop(),
    )


def _check_splits(src: Path, files: Mapping[str, Any]) -> None:
    known = sorted(set(SPLIT_FOLDERS.values()))
    unknown = [split for split in files if split not in known]
    if unknown:
        raise DataError(
            f"{src}: {', '.join(map(printable, unknown))}: not among the known splits ({', '.join(known)}); "
            "rename the files, or convert them separately"
        )


def _classes(
    src: Path, texts: Mapping[str, list[str]], as_written: bool
) -> tuple[list[str] | None, dict[str, list[int]], list[str]]:
    """Class names and labels from what states them, and remarks.

    There are no names if all are class indices, unless they are `as_written`.
    """
    distinct = {text for split in texts.values() for text in split}
    numbers = {} if as_written else whole_numbers(distinct)
    remarks = [f"{src}: labels {remark}" for remark in naming_remarks(distinct, as_written)]
    if numbers or not distinct:
        least, most = min(numbers.values(), default=0), max(numbers.values(), default=0)
        if not -1 <= least <= most < MAX_CLASSES:
            raise ShardError(f"{src}: labels from {least} to {most} are not valid class indices; correct them")
        return None, {split: [numbers[text] for text in split_texts] for split, split_texts in texts.items()}, remarks
    named = class_names(distinct, as_written)
    names = sorted(set(named.values()))
    index = {name: label for label, name in enumerate(names)}
    return names, {split: [index[named[text]] for text in split_texts] for split, split_texts in texts.items()}, remarks
