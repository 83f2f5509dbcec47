"""A source of images or texts -> shards, dataset.json and the compact index.

    read_source -> plan (splits, order, shards) -> threads: read, check, tile -> one writer, in order

The output depends only on the source and the options, not on threads, time, or interruptions. A sample's number is its
position in its split, and shard boundaries are computed from the sizes of the source images before any of them is read,
so a skipped image leaves a gap and moves nothing else.
"""

import contextlib
import json
import logging
import os
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TextColumn,
    TimeRemainingColumn,
)
from rich.text import Text

from fastimg.cluster.connection import joined
from fastimg.cluster.head import ClusterLost
from fastimg.config.commands import Convert
from fastimg.convert.annotations.layouts import annotations_in, fetch_annotations
from fastimg.convert.hub.reference import as_begun, is_hub
from fastimg.convert.sources.columns import Columns
from fastimg.convert.sources.combined import Side, combine, onto
from fastimg.convert.sources.containers import TarReader
from fastimg.convert.sources.labels import FLAG, class_remarks
from fastimg.convert.sources.resolve import is_class_folder, read_source
from fastimg.convert.sources.samples import Source
from fastimg.convert.sources.tables import parse_delimiter
from fastimg.convert.stored.losses import SourceLostError
from fastimg.convert.stored.stand_ins import images_in, stand_ins
from fastimg.errors import UsageError
from fastimg.loaders.captions.captions import captions_of
from fastimg.loaders.containers.atomic import replace_file
from fastimg.loaders.containers.content import samples_of
from fastimg.loaders.containers.datasets import index_large, open_dataset
from fastimg.loaders.remote.mirrors import with_urls
from fastimg.system.terminal import say, telling_of_compilation
from fastimg.wording import with_flags

from .delivery.destination_url import staged
from .delivery.shard_delivery import NotDelivered
from .delivery.store_destination import StoreDestination
from .description import Base, describe, read_base, read_made
from .destination import FULL, admit, begin_journal, check_same, missing_folders, plain_error, undo
from .image_preparation import prepared_in_order
from .journal import DestinationState, Journal, clear, journal_options, locked
from .plan import Shard, plan_shards
from .report import Report, report_on
from .request import Request, as_before, check_paths, read_request, refuse_image_flags, refuse_on_cluster
from .shards.betons import prepared_on_nodes, requirements
from .shards.cluster import listing, shard_tasks
from .shards.exchange import Exchange, FolderExchange, StoreExchange
from .shards.writing import ShardWork, failure, write_shard
from .survey import Requirements, Schema, look_at, schema_of
from .writers import BetonStore, Store, TarStore


@dataclass(frozen=True)
class _Job:
    """A conversion that is ready to run."""

    request: Request
    source: Source
    plan: list[Shard]
    options: dict[str, Any]
    base: Base | None  # the dataset to append to
    ray: Any  # connected to a cluster, with --backend ray
    store: StoreDestination | None = None  # where the destination is a URL; then the folder is staged


def convert(config: Convert, console: Console) -> Report:
    """Convert what `config` names, with progress and messages on `console`.

    Raises UsageError, UserError and DataError, each a sentence; KeyboardInterrupt after printing how to continue.
    """
    try:
        with telling_of_compilation(console), _cluster(config) as ray:
            return _convert(config, ray, console)
    except OSError as error:
        raise plain_error((config.dst, *config.more)[-1], error) from error


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
    if store and not base:
        store.admit(config)
    elif not base:
        missing_folders(request.dst)
        admit(request.dst, config)  # before the source is read
    tell = partial(say, console)
    with stand_ins(request.sources, config, tell) as sources:
        for source in sources:
            fetch_annotations(source, tell)
        flags = replace(request.flags, images=images_in(config.images, sources))
        return _converted(replace(request, sources=sources, flags=flags), base, ray, store, console, began)


def _converted(
    request: Request, base: Base | None, ray: Any, store: StoreDestination | None, console: Console, began: float
) -> Report:
    """The conversion of sources that are on this machine, or stand for others there."""
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
        if request.shuffles(source):
            for reader in source.readers:
                if isinstance(reader, TarReader):
                    reader.check_shuffled()
        options = request.options(source) | ({"base": base.sha256} if base else {})
        description, checked = _in_folder(_Job(request, source, plan, options, base, ray, store), console)
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
    )
    if config.classes is not None and not any(map(is_class_folder, request.sources)):
        given = ", ".join(map(str, request.sources))
        raise UsageError(
            f"--classes {config.classes} has no effect: {given} is not a folder of class folders; leave it out"
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
    with listing(ray, sources, asked, partial(say, console)) as mapped:
        listed = (
            read_source(src, columns, request.dst, config.classes, config.images, masks, mapped) for src in sources
        )
        source = combine(list(listed))
    if config.labels_are_classes and not source.from_table:
        source.close()
        raise UsageError(f"{FLAG} has no effect: {source.src} is not a table of labels without names; leave it out")
    if not base:
        return source
    if base.content != source.content:
        raise UsageError(
            f"{base.folder} holds {samples_of(base.content)} and {source.src} {samples_of(source.content)}: a "
            "dataset holds only one kind; convert them separately"
        )
    matched = onto(source, Side.of_base(base.classes, base.named, base.targets, base.fields.values()))
    base.refuse_columns(matched.targets, matched.stored_fields)
    return matched


def _as_begun(src: Path, request: Request) -> Path:
    """A source as the conversion that is resumed began to read it: a dataset of the hub at its commit."""
    if not request.flags.resume or not is_hub(src):
        return src
    options = journal_options(request.dst)
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


def _in_folder(job: _Job, console: Console) -> tuple[dict[str, Any], int]:
    """Write the dataset unless it is complete already. Returns its description and how many images were read."""
    folder = job.request.dst
    config = job.request.flags
    made = missing_folders(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with locked(folder):
            state = _state(job)
            if state is DestinationState.DATASET and config.resume:
                return _already(folder, job, console), 0
            resumed = state is DestinationState.UNFINISHED and config.resume
            try:
                return _run(job, resumed, console)
            except Exception as error:
                full = isinstance(error, OSError) and error.errno in FULL
                kept = full or isinstance(error, ClusterLost | NotDelivered | SourceLostError)
                if not resumed and not (kept and journal_options(folder)):
                    if job.store:
                        job.store.close()  # uploads delete files, too
                    undo(folder, job.options, job.base)
                    if job.store:
                        job.store.undo()
                raise
            finally:
                if job.store:
                    job.store.close()
    except KeyboardInterrupt:
        if folder.is_dir() and journal_options(folder):
            where = job.store.url if job.store else folder
            say(console, f"{where}: interrupted; the same command with --resume continues from here")
        raise
    finally:
        for path in made:  # still empty: nothing was written, or everything was undone
            with contextlib.suppress(OSError):
                path.rmdir()


def _state(job: _Job) -> DestinationState:
    """What the destination holds. Raises UserError unless the conversion is allowed."""
    if job.store:
        return job.store.admit(job.request.flags, job.options)
    return admit(job.request.dst, job.request.flags, job.options, job.base)


def _begin_journal(job: _Job, resumed: bool) -> Journal:
    """The open journal, from which a store gets the shards."""
    store = job.store
    if store is None:
        return begin_journal(job.request.dst, job.options, job.base, resumed)
    if not resumed:
        store.clear()
    delivered = store.delivered() if resumed else ()
    journal = begin_journal(job.request.dst, job.options, None, resumed, delivered)
    store.begin(journal, job.source.content, _notes(job), delivered)
    return journal


def _notes(job: _Job) -> bool:
    """Whether targets or fields are derived from the notes of samples."""
    return bool(job.source.targets or job.source.stored_fields)


def _run(job: _Job, resumed: bool, console: Console) -> tuple[dict[str, Any], int]:
    """Write shards and dataset.json. Returns the description and how many images were read."""
    folder = job.request.dst
    journal = _begin_journal(job, resumed)
    todo = [shard for shard in job.plan if (shard.split, shard.number) not in journal.finished]
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), _Speed(), TimeRemainingColumn())
    write = _write_on_cluster if job.ray else _write_here
    with Progress(*columns, console=console, transient=True) as progress:
        schema = write(job, todo, journal, progress, console)
    description = describe(folder, job.source, job.plan, journal, job.options, schema, job.base)
    total = sum(len(shard.entries) for shard in todo)
    if job.store and description["container"] == "tar":
        job.store.finish(description)
        return description, total
    replace_file(folder / "dataset.json", (json.dumps(description, indent=1) + "\n").encode())
    _open_once(folder, _splits_here(job, description))
    if job.store:
        job.store.finish(description)
        return description, total
    _tidy(folder, description)
    journal.remove()
    return description, total


def _write_here(job: _Job, todo: list[Shard], journal: Journal, progress: Progress, console: Console) -> Schema | None:
    """Write shards one after the other, on threads of this process. Returns the schema of a .beton."""
    workers = job.request.workers
    logging.getLogger("PIL").addHandler(logging.NullHandler())  # else its messages are printed over the progress bar
    betons = _betons(job, console)
    with warnings.catch_warnings(), ThreadPoolExecutor(workers, "prepare") as pool:
        warnings.simplefilter("ignore")  # Pillow warns about images that it can decode
        schema = None
        if job.request.treatment.container == "beton":
            every = job.source.announced(entry for shard in job.plan for entry in shard.entries)
            with _headers_bar(job, progress) as seen:
                found = look_at(job.source, every, job.request.treatment, pool, workers * 2, seen)
                schema = _schema(job, found, betons)
        work = _work(job, workers)
        entries = job.source.announced(entry for shard in todo for entry in shard.entries)
        prepared = prepared_in_order(pool, work.prepare(), entries, workers, job.request.treatment.container)
        tick = partial(_samples_bar(job, todo, progress), 1)
        with _store(job, schema, journal, betons) as store:
            for shard in todo:
                journal.add(write_shard(work, shard, prepared, store, tick))
            _finish(job, store)
    return schema


def _write_on_cluster(
    job: _Job, todo: list[Shard], journal: Journal, progress: Progress, console: Console
) -> Schema | None:
    """Write shards on the nodes of a Ray cluster, a .beton here. Returns the schema of a .beton."""
    beton = job.request.treatment.container == "beton"
    if not todo and not beton:
        return None
    config = job.request.flags
    asked = None if config.workers == "auto" else job.request.workers
    sources = [*job.request.sources, *([config.images] if config.images else [])]
    exchange: Exchange = FolderExchange(job.request.dst)
    if job.store:
        exchange = StoreExchange(job.store, job.source.content, _notes(job))
    betons = _betons(job, console)
    shards = job.plan if beton else todo
    with shard_tasks(job.ray, sources, exchange, partial(_work, job), asked, shards, partial(say, console)) as tasks:
        if not beton:
            with contextlib.closing(tasks.write(todo, _samples_bar(job, todo, progress))) as written:
                for finished in written:
                    journal.add(finished)
            return None
        with _headers_bar(job, progress) as seen:
            schema = _schema(job, requirements(tasks, shards, seen), betons)
        made = prepared_on_nodes(tasks, todo, _samples_bar(job, todo, progress))
        with _store(job, schema, journal, betons) as store, contextlib.closing(made):
            for shard, samples in made:
                journal.add(write_shard(_work(job, 1), shard, samples, store, lambda: None))
            _finish(job, store)
    return schema


def _finish(job: _Job, store: Store) -> None:
    for split in sorted({shard.split for shard in job.plan}):
        store.finish(split)


def _work(job: _Job, workers: int) -> ShardWork:
    return ShardWork(job.source, job.request.treatment, job.request.flags.on_error, workers)


def _samples_bar(job: _Job, todo: list[Shard], progress: Progress) -> Callable[[int], None]:
    """A bar for the samples; what is returned counts them."""
    what = samples_of(job.source.content)
    total = sum(len(shard.entries) for shard in todo)
    return partial(progress.advance, progress.add_task(what, total=total, unit="img" if what == "images" else what))


@contextlib.contextmanager
def _headers_bar(job: _Job, progress: Progress) -> Iterator[Callable[[int], None]]:
    """A bar for the samples that are looked at."""
    task = progress.add_task("headers", total=sum(len(shard.entries) for shard in job.plan))
    yield partial(progress.advance, task)
    progress.remove_task(task)


def _betons(job: _Job, console: Console) -> Mapping[str, Path]:
    """The .beton files that samples are added to, by split: all, or of an object store those that this needs."""
    if job.base is None or job.base.container == "tar":
        return {}
    if job.store is None:
        return job.base.betons
    return job.store.bring_betons({shard.split for shard in job.plan}, _notes(job), partial(say, console))


def _schema(job: _Job, found: Iterable[Requirements], betons: Mapping[str, Path]) -> Schema:
    """The fields of a .beton."""
    schema = schema_of(job.source, found)
    if job.source.stored_fields:
        schema = schema.with_fields(job.source.stored_fields, job.base.field_names if job.base else {})
    if job.source.targets:
        schema = schema.with_targets(job.source.targets, job.base.target_fields if job.base else {})
    return job.base.accept(schema, betons.values()) if job.base else schema


def _store(job: _Job, schema: Schema | None, journal: Journal, betons: Mapping[str, Path]) -> Store:
    folder = job.request.dst
    if schema is None:
        return TarStore(folder)
    samples: Counter[str] = Counter()
    for shard in job.plan:
        samples[shard.split] += len(shard.entries)
    return BetonStore(folder, schema, samples, journal, betons)


def _splits_here(job: _Job, description: dict[str, Any]) -> list[str]:
    """The splits whose files are in the folder: where an append goes to a store, others stay there."""
    splits: dict[str, Any] = description["splits"]
    if job.store is None:
        return list(splits)
    folder = job.request.dst
    return [split for split, stated in splits.items() if all((folder / s["name"]).exists() for s in stated["shards"])]


def _open_once(folder: Path, splits: Iterable[str]) -> None:
    """Open splits: this writes their compact indexes, and shows that they can be opened."""
    for split in splits:
        index_large(folder, split)
        with contextlib.closing(open_dataset(folder, split)) as dataset:
            captions_of(folder, dataset)


def _already(folder: Path, job: _Job, console: Console) -> dict[str, Any]:
    """The description of a dataset that an earlier run completed; its journal may still exist."""
    if job.store:
        described = job.store.description()
        job.store.tidy(described)
        say(console, f"{job.store.url}: already complete; nothing to do")
        return described
    description = read_made(folder)
    if not job.base:
        check_same(folder, description.get("options", {}), job.options)
    _open_once(folder, description["splits"])
    if journal_options(folder) is not None:  # otherwise nothing can be left over
        _tidy(folder, description)
        (folder / "convert.json").unlink()
    say(console, f"{folder}: already complete; nothing to do")
    return description


def _tidy(folder: Path, description: dict[str, Any]) -> None:
    """Delete the files that an append has replaced."""
    clear(folder, keep=Base.of(description).files | {"convert.json"})


class _Speed(ProgressColumn):
    def render(self, task: Task) -> Text:
        return Text(f"{task.speed or 0:,.0f} {task.fields.get('unit', 'img')}/s")
