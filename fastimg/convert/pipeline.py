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
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, Task, TextColumn, TimeRemainingColumn
from rich.text import Text

from fastimg.config.commands import Convert
from fastimg.convert.annotations.facts import FieldCounter
from fastimg.convert.hub.reference import as_begun, is_hub
from fastimg.convert.recompression.facts import RecompressionFacts
from fastimg.convert.sources.columns import Columns
from fastimg.convert.sources.combined import Side, combine, onto
from fastimg.convert.sources.labels import FLAG, class_remarks
from fastimg.convert.sources.resolve import annotations_in, is_class_folder, read_source
from fastimg.convert.sources.samples import Source, SourceEntry
from fastimg.convert.sources.tables import parse_delimiter
from fastimg.convert.sources.targets import StatedTargets
from fastimg.errors import UsageError, printable
from fastimg.loaders.captions.captions import captions_of
from fastimg.loaders.containers.atomic import replace_file
from fastimg.loaders.containers.content import samples_of
from fastimg.loaders.containers.datasets import index_large, open_dataset
from fastimg.loaders.errors import DataError, ImageError
from fastimg.system.terminal import say, telling_of_compilation
from fastimg.wording import with_flags

from .description import Base, describe, read_base, read_made
from .destination import FULL, admit, begin_journal, check_same, missing_folders, plain_error, undo
from .image_preparation import Prepare, Prepared, prepared_in_order
from .journal import DestinationState, Finished, Journal, clear, journal_options, locked
from .plan import Shard, plan_shards
from .report import Report, report_on
from .request import Request, as_before, check_paths, read_request, refuse_image_flags
from .survey import Schema, survey
from .text_preparation import PrepareText
from .writers import BetonStore, Store, TarStore


@dataclass(frozen=True)
class _Job:
    """A conversion that is ready to run."""

    request: Request
    source: Source
    plan: list[Shard]
    options: dict[str, Any]
    base: Base | None  # the dataset to append to

    @cached_property
    def stated(self) -> StatedTargets:
        """The targets that samples may lack."""
        return StatedTargets(self.source.targets)


def convert(config: Convert, console: Console) -> Report:
    """Convert what `config` names, with progress and messages on `console`.

    Raises UsageError, UserError and DataError, each a sentence; KeyboardInterrupt after printing how to continue.
    """
    try:
        with telling_of_compilation(console):
            return _convert(config, console)
    except OSError as error:
        raise plain_error((config.dst, *config.more)[-1], error) from error


def _convert(config: Convert, console: Console) -> Report:
    began = time.perf_counter()
    check_paths(config)
    base = read_base(config.dst) if config.append else None
    if base:
        asked, config = config.recompress, as_before(config, base)
        if config.recompress != asked:
            say(console, f"{config.dst}: was made with --recompress {config.recompress}; so is what is added")
    request = read_request(config, base.container if base else None)
    if not base:
        missing_folders(request.dst)
        admit(request.dst, config)  # before the source is read
    source = _source(request, base)
    try:
        if source.content == "text":
            refuse_image_flags(config)
        for remark in (*source.remarks, *class_remarks(source)):
            say(console, with_flags(remark))
        _check_apart(source, request.dst)
        _check_missing(source, config)
        plan = plan_shards(
            source,
            shard_size=request.shard_size,
            val_fraction=config.val_fraction,
            shuffle=request.shuffles(source),
            seed=config.seed,
            begun=base.begun() if base else None,
        )
        options = request.options(source) | ({"base": base.sha256} if base else {})
        description, checked = _in_folder(_Job(request, source, plan, options, base), console)
    finally:
        source.close()
    return report_on(request.dst, description, base, source, checked, time.perf_counter() - began)


def _source(request: Request, base: Base | None) -> Source:
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
    listed = (read_source(src, columns, request.dst, config.classes, config.images, masks) for src in sources)
    source = combine(list(listed))
    if config.labels_are_classes and not source.from_table:
        source.close()
        raise UsageError(f"{FLAG} has no effect: {source.src} is not a table of labels without names; leave it out")
    if not base:
        return source
    if base.content != source.content:
        raise UsageError(
            f"{config.dst} holds {samples_of(base.content)} and {source.src} {samples_of(source.content)}: a "
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
                raise _failure(source, entry, reason)


def _failure(source: Source, entry: SourceEntry, reason: str) -> DataError:
    return DataError(f"{printable(source.name(entry))}: {reason}; repair or remove it, or skip it with --on-error skip")


def _in_folder(job: _Job, console: Console) -> tuple[dict[str, Any], int]:
    """Write the dataset unless it is complete already. Returns its description and how many images were read."""
    folder = job.request.dst
    config = job.request.flags
    made = missing_folders(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with locked(folder):
            state = admit(folder, config, job.options, job.base)
            if state is DestinationState.DATASET and config.resume:
                return _already(folder, job, console), 0
            resumed = state is DestinationState.UNFINISHED and config.resume
            try:
                return _run(job, resumed, console)
            except Exception as error:
                full = isinstance(error, OSError) and error.errno in FULL
                if not resumed and not (full and journal_options(folder)):
                    undo(folder, job.options, job.base)
                raise
    except KeyboardInterrupt:
        if folder.is_dir() and journal_options(folder):
            say(console, f"{folder}: interrupted; the same command with --resume continues from here")
        raise
    finally:
        for path in made:  # still empty: nothing was written, or everything was undone
            with contextlib.suppress(OSError):
                path.rmdir()


def _run(job: _Job, resumed: bool, console: Console) -> tuple[dict[str, Any], int]:
    """Write shards and dataset.json. Returns the description and how many images were read."""
    folder = job.request.dst
    workers = job.request.workers
    journal = begin_journal(folder, job.options, job.base, resumed)
    todo = [shard for shard in job.plan if (shard.split, shard.number) not in journal.finished]
    total = sum(len(shard.entries) for shard in todo)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), _Speed(), TimeRemainingColumn())
    logging.getLogger("PIL").addHandler(logging.NullHandler())  # else its messages are printed over the progress bar
    with (
        warnings.catch_warnings(),
        Progress(*columns, console=console, transient=True) as progress,
        ThreadPoolExecutor(workers, "prepare") as pool,
    ):
        warnings.simplefilter("ignore")  # Pillow warns about images that it can decode
        schema = _schema(job, pool, progress)
        what = samples_of(job.source.content)
        prepare = Prepare(job.source, job.request.treatment) if what == "images" else PrepareText(job.source)
        entries = (entry for shard in todo for entry in shard.entries)
        container = job.request.treatment.container
        prepared = prepared_in_order(pool, prepare, entries, workers, container)
        task = progress.add_task(what, total=total, unit="img" if what == "images" else what)
        with _store(job, schema, journal) as store:
            for shard in todo:
                journal.add(_write_shard(job, shard, prepared, store, lambda: progress.advance(task)))
            for split in sorted({shard.split for shard in job.plan}):
                store.finish(split)
    description = describe(folder, job.source, job.plan, journal, job.options, schema, job.base)
    replace_file(folder / "dataset.json", (json.dumps(description, indent=1) + "\n").encode())
    _open_once(folder, description)
    _tidy(folder, description)
    journal.remove()
    return description, total


def _schema(job: _Job, pool: ThreadPoolExecutor, progress: Progress) -> Schema | None:
    """The fields of a .beton; None for tars, which need no schema."""
    treatment = job.request.treatment
    if treatment.container == "tar":
        return None
    entries = (entry for shard in job.plan for entry in shard.entries)
    task = progress.add_task("headers", total=sum(len(shard.entries) for shard in job.plan))
    schema = survey(
        job.source, entries, treatment, pool, job.request.workers * 2, lambda count: progress.advance(task, count)
    )
    if job.source.stored_fields:
        schema = schema.with_fields(job.source.stored_fields, job.base.field_names if job.base else {})
    if job.source.targets:
        schema = schema.with_targets(job.source.targets, job.base.target_fields if job.base else {})
    progress.remove_task(task)
    return job.base.accept(schema) if job.base else schema


def _store(job: _Job, schema: Schema | None, journal: Journal) -> Store:
    folder = job.request.dst
    if schema is None:
        return TarStore(folder)
    samples: Counter[str] = Counter()
    for shard in job.plan:
        samples[shard.split] += len(shard.entries)
    return BetonStore(folder, schema, samples, journal, job.base.betons if job.base else {})


def _write_shard(
    job: _Job, shard: Shard, prepared: Iterator[Prepared | str], store: Store, tick: Callable[[], object]
) -> Finished:
    counts: Counter[int] = Counter()
    outcomes: Counter[str] = Counter()
    missing: Counter[str] = Counter()  # by target
    fields = FieldCounter(job.source.stored_fields)
    recompressed = RecompressionFacts()
    bare = 0
    skipped = []
    source_bytes = 0
    store.begin(shard)
    for number, (entry, sample) in enumerate(zip(shard.entries, prepared, strict=False), shard.start):
        try:
            if isinstance(sample, str):
                raise ImageError(sample)
            lacking, without = _lacking(job, entry, sample.note)
            found = fields.look(sample.fields, sample.note)
            store.add(number, entry.label, sample)
        except ImageError as error:
            if job.request.flags.on_error == "fail":
                raise _failure(job.source, entry, str(error)) from error
            skipped.append((printable(entry.path), printable(str(error))))
        else:
            counts[entry.label] += 1
            missing.update(lacking)
            fields.add(found)
            bare += without
            outcomes[sample.outcome] += 1
            if sample.recompressed:
                recompressed.add(sample.recompressed, printable(entry.path))
            source_bytes += sample.source_bytes
        tick()
    return Finished(
        split=shard.split,
        number=shard.number,
        samples=counts.total(),
        source_bytes=source_bytes,
        class_counts=dict(sorted(counts.items())),
        skipped=skipped,
        outcomes=dict(sorted(outcomes.items())),
        missing=dict(sorted(missing.items())),
        without_targets=bare,
        fields=fields.facts,
        recompressed=recompressed,
        **store.end(),
    )


def _lacking(job: _Job, entry: SourceEntry, note: bytes) -> tuple[list[str], bool]:
    try:
        return job.stated.missing(entry.label, note)
    except ValueError as error:
        raise DataError(f"{printable(job.source.name(entry))}: {error}") from error


def _open_once(folder: Path, description: dict[str, Any]) -> None:
    """Open every split: this writes its compact index, and shows that it can be opened."""
    for split in description["splits"]:
        index_large(folder, split)
        with contextlib.closing(open_dataset(folder, split)) as dataset:
            captions_of(folder, dataset)


def _already(folder: Path, job: _Job, console: Console) -> dict[str, Any]:
    """The description of a dataset that an earlier run completed; its journal may still exist."""
    description = read_made(folder)
    if not job.base:
        check_same(folder, description.get("options", {}), job.options)
    _open_once(folder, description)
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
