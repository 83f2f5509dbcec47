"""A source of images or texts -> shards, dataset.json and the compact index.

    read_source -> plan (splits, order, shards) -> threads: read, check, tile -> one writer, in order

The output depends only on the source and the options, not on threads, time, or interruptions. A sample's number is its
position in its split, and shard boundaries are computed from the sizes of the source images before any of them is read,
so a skipped image leaves a gap and moves nothing else.
"""

import contextlib
import os
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from fastimg.cluster.connection import joined
from fastimg.config.commands import Convert
from fastimg.convert.annotations.layouts import annotations_in, fetch_annotations
from fastimg.convert.hub.reference import as_begun, is_hub
from fastimg.convert.sources.columns import Columns
from fastimg.convert.sources.combined import Side, Written, onto, read_together
from fastimg.convert.sources.containers.tar_flags import as_begun as with_rules_of
from fastimg.convert.sources.containers.tar_flags import refuse_without_tars, tar_rules
from fastimg.convert.sources.containers.tars import TarReader
from fastimg.convert.sources.labels import FLAG, class_remarks
from fastimg.convert.sources.resolve import is_class_folder, read_source
from fastimg.convert.sources.samples import Source
from fastimg.convert.sources.tables import parse_delimiter
from fastimg.convert.stored.stand_ins import images_in, stand_ins
from fastimg.errors import UsageError, printable
from fastimg.loaders.containers.content import samples_of
from fastimg.loaders.errors import DataError
from fastimg.loaders.remote.mirrors import with_urls
from fastimg.loaders.remote.stores import url_of
from fastimg.system.terminal import say, telling_of_compilation
from fastimg.wording import with_flags

from .delivery.destination_url import staged
from .delivery.shard_delivery import staging_of
from .delivery.store_destination import StoreDestination
from .destination import admit, missing_folders, plain_error
from .jobs.in_folder import in_folder
from .jobs.job import ConversionJob
from .journal import REPLACES, held_in, journal_options, replacement_options
from .plan import apart, plan_shards
from .report import Report, report_on
from .request import Request, as_before, check_paths, read_request, refuse_image_flags, refuse_on_cluster
from .shards.base import Base, read_base, read_made
from .shards.cluster import listing
from .shards.writing import failure


def convert(config: Convert, console: Console) -> Report:
    """Convert what `config` names, with progress and messages on `console`.

    Raises UsageError, UserError and DataError, each a sentence; KeyboardInterrupt after printing how to continue.
    """
    try:
        with telling_of_compilation(console), _cluster(config) as ray:
            return _convert(config, ray, console)
    except OSError as error:  # before anything was written
        dst = (config.dst, *config.more)[-1]
        url = url_of(dst)
        folder = dst if url is None else staging_of(url, config.cache_dir)
        raise plain_error(folder, url, error, goes_on=config.resume) from error


@contextlib.contextmanager
def _cluster(config: Convert) -> Iterator[Any]:
    """The module `ray`, connected; None for a conversion on this machine."""
    if config.backend == "local":
        yield None
        return
    refuse_on_cluster(config)  # and then the cluster, before the source is read or a file deleted
    with joined("convert", config.address) as ray:
        yield ray


def _convert(config: Convert, ray: Any, console: Console) -> Report:
    began = time.perf_counter()
    check_paths(config)
    config, store = staged(config)
    base = None
    if config.append:
        base = store.base() if store else read_base(config.dst)
        asked, config = config.recompress, as_before(config, base)
        if config.recompress != asked:
            made = f"{base.folder}: was made with --recompress {config.recompress}; so is what is added"
            say(console, with_urls(made))
    request = read_request(config, base.container if base else None)
    replaced = None
    if store and not base:
        store.admit(config)
        replaced = store.replaced(config)
    elif not base:
        missing_folders(request.dst)
        admit(held_in(request.dst), request.dst, config)  # before the source is read
    tell = partial(say, console)
    with stand_ins(request.sources, config, tell) as sources:
        for source in sources:
            fetch_annotations(source, tell)
        flags = replace(request.flags, images=images_in(config.images, sources))
        request = with_rules_of(replace(request, sources=sources, flags=flags), base, tell)
        return _converted(request, base, replaced, ray, store, console, began)


def _converted(
    request: Request,
    base: Base | None,
    replaced: Base | None,
    ray: Any,
    store: StoreDestination | None,
    console: Console,
    began: float,
) -> Report:
    """The conversion of sources that are on this machine, or stand for others there.

    replaced: the dataset in a store that stays until the new one is complete.
    """
    config = request.flags
    source = _source(request, base, ray, console)
    try:
        if source.content == "text":
            refuse_image_flags(config)
        for remark in (*source.remarks, *class_remarks(source)):
            say(console, with_urls(with_flags(remark)))
        _check_apart(source, request.dst)
        _check_missing(source, config)
        if store and source.inputs:
            raise UsageError(
                f"{store.url}: images with texts beside them are converted into a folder alone; do that, and copy the "
                "folder to the store"
            )
        plan = plan_shards(
            source,
            shard_size=request.shard_size,
            val_fraction=config.val_fraction,
            shuffle=request.shuffles(source),
            seed=config.seed,
            begun=base.begun() if base else None,
        )
        if replaced:
            usual, plan = plan, apart(plan, replaced.shard_files)
            beton = request.treatment.container == "beton"
            if {f"{shard.split}.beton" if beton else f"{shard.name}.tar" for shard in usual} & replaced.shard_files:
                say(
                    console,
                    "note        the dataset that is there stays until the new one is complete, so the new shards get "
                    f"other names: {'numbered .beton files' if beton else f'tars from {plan[0].number:05d} on'}; "
                    "--delete-first keeps the usual names",
                )
        if request.shuffles(source):
            for reader in source.readers:
                if isinstance(reader, TarReader):
                    reader.check_shuffled()
        options = request.options(source) | ({"base": base.sha256} if base else {})
        options |= {REPLACES: replaced.sha256} if replaced else {}
        description, checked = in_folder(ConversionJob(request, source, plan, options, base, ray, store), console)
    finally:
        source.close()
    columns, uncounted = (tuple(map(with_urls, told)) for told in (source.columns, source.uncounted))
    return report_on(
        store.url if store else request.dst,
        description,
        base,
        replace(source, columns=columns, uncounted=uncounted),
        checked,
        time.perf_counter() - began,
    )


def _source(request: Request, base: Base | None, ray: Any, console: Console) -> Source:
    config = request.flags
    columns = Columns(
        config.path_column,
        config.label_column,
        config.split_column,
        config.text_column,
        config.no_header,
        parse_delimiter(config.delimiter) if config.delimiter is not None else None,
        config.labels_are_classes,
        frozenset(base.classes if base else ()),
        request.targets,
        config.label_delimiter,
        base.targets if base else (),
        request.fields,
        config.image_field,
        trains=base is None and len(request.sources) == 1,
    )
    rules = tar_rules(config, columns.known_classes)
    tars = refuse_without_tars(config, request.sources)
    if config.classes is not None and not tars and not any(map(is_class_folder, request.sources)):
        given = ", ".join(map(str, request.sources))
        raise UsageError(
            f"--classes {config.classes} has no effect: {given} is neither a folder of class folders nor a tar; leave "
            "it out"
        )
    layouts = {annotations_in(src) for src in request.sources} if config.images or config.masks else set()
    if config.images is not None and "COCO" not in layouts:
        raise UsageError(f"--images {config.images} has no effect: no source is COCO's annotations; leave it out")
    if config.masks is not None and not layouts & {"COCO", "YOLO"}:
        raise UsageError(
            f"--masks {config.masks} has no effect: no source has COCO's or YOLO's outlines of objects; leave it out"
        )
    masks = config.masks is not None
    sources = [_as_begun(src, request) for src in request.sources]
    asked = 1 if config.workers == "auto" else request.workers
    side = Side.of_base(base.classes, base.named, base.targets, base.fields.values()) if base else None
    with listing(ray, sources, asked, partial(say, console)) as mapped:

        def read(src: Path, as_written: Written) -> Source:
            asked_for = replace(columns, as_written=as_written)
            return read_source(src, asked_for, request.dst, config.classes, config.images, masks, mapped, rules)

        source = read_together(sources, read, side)
    if config.labels_are_classes and not source.from_table:
        source.close()
        raise UsageError(
            f"{FLAG} has no effect: {source.src} is neither a table of labels without names nor tars with "
            "--label-member; leave it out"
        )
    if base is None or side is None:
        _check_trained(source, None)
        return source
    if base.content != source.content:
        raise UsageError(
            f"{base.folder} holds {samples_of(base.content)} and {source.src} {samples_of(source.content)}: a "
            "dataset holds only one kind; convert them separately"
        )
    matched = onto(source, side)
    base.refuse_columns(matched.targets, matched.stored_fields)
    _check_trained(matched, base)
    return matched


def _check_trained(source: Source, base: Base | None) -> None:
    """Raise DataError unless there is a training split, with the classes of all others, here or in the `base`.

    Shards are taken as they are.
    """
    if source.stored:
        return
    train = source.splits.get("train")
    if train is None and (base is None or "train" not in base.description["splits"]):
        raise DataError(
            f"{source.src}: has {', '.join(sorted(source.splits))}, and no training split (train); add one, or add "
            "this to a dataset that has one, with --append"
        )
    known = np.arange(-1, len(base.classes) if base else 0)
    trained = known if train is None else np.concatenate((known, train.labels))
    for split, entries in source.splits.items():
        lacking = np.flatnonzero(~np.isin(entries.labels, trained))
        if len(lacking):
            entry = entries[int(lacking[0])]
            raise DataError(
                f"{printable(source.name(entry))}: the training split has no class "
                f"{printable(source.classes[entry.label])!r}, which {split} has; add it there, or leave this out"
            )


def _as_begun(src: Path, request: Request) -> Path:
    """A source as the conversion that is resumed began to read it: a dataset of the hub at its commit."""
    if not request.flags.resume or not is_hub(src):
        return src
    options = replacement_options(request.dst) or journal_options(request.dst)
    if options is None and (request.dst / "dataset.json").exists():
        made = read_made(request.dst)
        options = [made["options"], *made.get("appended", ())][-1]
    return as_begun(src, (options or {}).get("source"))


def _check_apart(source: Source, dst: Path) -> None:
    """Raise UsageError if a source file lies in the destination, where shards may be deleted or replaced."""
    for file in source.files:
        if os.path.realpath(dst) in (os.path.realpath(file.parent), os.path.dirname(os.path.realpath(file))):
            raise UsageError(
                f"{file}: is a source but lies in the destination {dst}, where it may be deleted; give another "
                "destination, or move it elsewhere first"
            )


def _check_missing(source: Source, config: Convert) -> None:
    """With --on-error fail, raise DataError for a sample that cannot be read, before anything is written."""
    if config.on_error == "fail":
        for entry in (entry for entries in source.splits.values() for entry in entries):
            if reason := source.problem(entry):
                raise failure(source, entry, reason)
