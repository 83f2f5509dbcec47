"""All shards of a conversion, one after the other: on threads of this process, or on the nodes of a Ray cluster."""

import contextlib
import logging
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path

from rich.console import Console
from rich.progress import Progress, ProgressColumn, Task
from rich.text import Text

from fastimg.convert.image_preparation import prepared_in_order
from fastimg.convert.journal import Journal
from fastimg.convert.plan import Shard
from fastimg.convert.shards.betons import prepared_on_nodes, requirements
from fastimg.convert.shards.cluster import shard_tasks
from fastimg.convert.shards.exchange import Exchange, FolderExchange, StoreExchange
from fastimg.convert.shards.writing import ShardWork, write_shard
from fastimg.convert.survey import Requirements, Schema, look_at, schema_of
from fastimg.convert.writers import BetonStore, Store, TarStore
from fastimg.loaders.containers.content import samples_of
from fastimg.loaders.runtime.in_order import working_threads
from fastimg.system.terminal import say

from .job import ConversionJob, takes_notes


def write_here(
    job: ConversionJob, todo: list[Shard], journal: Journal, progress: Progress, console: Console
) -> Schema | None:
    """Write shards one after the other, on threads of this process. Returns the schema of a .beton."""
    workers = job.request.workers
    logging.getLogger("PIL").addHandler(logging.NullHandler())  # else its messages are printed over the progress bar
    betons = _betons(job, console)
    with warnings.catch_warnings(), working_threads(workers, "prepare") as pool:
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


def write_on_cluster(
    job: ConversionJob, todo: list[Shard], journal: Journal, progress: Progress, console: Console
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
        exchange = StoreExchange(job.store, job.source.content, takes_notes(job))
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


def _finish(job: ConversionJob, store: Store) -> None:
    for split in sorted({shard.split for shard in job.plan}):
        store.finish(split)


def _work(job: ConversionJob, workers: int) -> ShardWork:
    return ShardWork(job.source, job.request.treatment, job.request.flags.on_error, workers)


def _samples_bar(job: ConversionJob, todo: list[Shard], progress: Progress) -> Callable[[int], None]:
    """A bar for the samples; what is returned counts them."""
    what = samples_of(job.source.content)
    total = sum(len(shard.entries) for shard in todo)
    return partial(progress.advance, progress.add_task(what, total=total, unit="img" if what == "images" else what))


@contextlib.contextmanager
def _headers_bar(job: ConversionJob, progress: Progress) -> Iterator[Callable[[int], None]]:
    """A bar for the samples that are looked at."""
    task = progress.add_task("headers", total=sum(len(shard.entries) for shard in job.plan))
    yield partial(progress.advance, task)
    progress.remove_task(task)


def _betons(job: ConversionJob, console: Console) -> Mapping[str, Path]:
    """The .beton files that samples are added to, by split: all, or of an object store those that this needs."""
    if job.base is None or job.base.container == "tar":
        return {}
    if job.store is None:
        return job.base.betons
    return job.store.bring_betons({shard.split for shard in job.plan}, takes_notes(job), partial(say, console))


def _schema(job: ConversionJob, found: Iterable[Requirements], betons: Mapping[str, Path]) -> Schema:
    """The fields of a .beton."""
    schema = schema_of(job.source, found)
    if job.source.stored_fields:
        schema = schema.with_fields(job.source.stored_fields, job.base.field_names if job.base else {})
    if job.source.targets:
        schema = schema.with_targets(job.source.targets, job.base.target_fields if job.base else {})
    return job.base.accept(schema, betons.values()) if job.base else schema


def _store(job: ConversionJob, schema: Schema | None, journal: Journal, betons: Mapping[str, Path]) -> Store:
    folder = job.request.dst
    if schema is None:
        return TarStore(folder)
    samples: Counter[str] = Counter()
    for shard in job.plan:
        samples[shard.split] += len(shard.entries)
    taken = job.store.names_in_use if job.store else ()
    return BetonStore(folder, schema, samples, journal, betons, taken)


class SampleSpeed(ProgressColumn):
    """Samples per second."""

    def render(self, task: Task) -> Text:
        """As text."""
        return Text(f"{task.speed or 0:,.0f} {task.fields.get('unit', 'img')}/s")
