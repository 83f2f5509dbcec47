"""A conversion into a folder, which may be staged for an object store: begun, gone on with, completed or undone."""

import contextlib
import json
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from fastimg.cluster.head import ClusterLost
from fastimg.convert.delivery.shard_delivery import NotDelivered
from fastimg.convert.description import describe, with_digests
from fastimg.convert.destination import (
    FULL,
    admit,
    begin_journal,
    check_same,
    differing,
    missing_folders,
    plain_error,
    undo,
)
from fastimg.convert.journal import (
    STAGED,
    DestinationState,
    Journal,
    clear,
    held_in,
    journal_options,
    lasting,
    locked,
    replacement_options,
)
from fastimg.convert.shards.base import Base, read_made
from fastimg.convert.stored.losses import SourceLostError
from fastimg.errors import UserError
from fastimg.loaders.captions.captions import captions_of
from fastimg.loaders.containers.atomic import replace_file
from fastimg.loaders.containers.datasets import index_large, open_dataset
from fastimg.loaders.containers.description import read_description
from fastimg.loaders.remote.cache.sizes import in_words
from fastimg.system.terminal import say

from .job import ConversionJob, takes_notes
from .replacement import put_in_place
from .shard_passes import SampleSpeed, write_here, write_on_cluster


def in_folder(job: ConversionJob, console: Console) -> tuple[dict[str, Any], int]:
    """Write the dataset unless it is complete already. Returns its description and how many images were read."""
    folder = job.request.dst
    staged = folder / STAGED
    made = missing_folders(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with locked(folder):
            state = _state(job)
            if state is DestinationState.DATASET and _is_complete(job):
                return _already(folder, job, console), 0
            goes_on = _goes_on(job, state)
            if staged.is_dir() and not goes_on:
                clear(staged)
            if _stays_meanwhile(job, state, goes_on):
                return _replacing(job, goes_on, console)
            return _made(job, goes_on, console)
    except KeyboardInterrupt:
        if folder.is_dir() and (replacement_options(folder) or journal_options(folder)):
            where = job.store.url if job.store else folder
            say(console, f"{where}: interrupted; the same command with --resume continues from here")
        raise
    except OSError as error:
        raise _plain_error(job, error) from error
    finally:
        for path in (staged, *made):  # still empty: nothing was written, or everything was undone
            with contextlib.suppress(OSError):
                path.rmdir()


def _made(job: ConversionJob, resumed: bool, console: Console) -> tuple[dict[str, Any], int]:
    """Write the dataset into its folder. Returns its description and how many images were read."""
    try:
        with contextlib.nullcontext() if resumed else _undoing(job):
            journal = _begin_journal(job, resumed)
            description, total = _write_shards(job, journal, console)
        _complete(job, journal, description)  # an error leaves everything: --resume makes what is missing
        return description, total
    finally:
        if job.store:
            job.store.close()


def _replacing(job: ConversionJob, goes_on: bool, console: Console) -> tuple[dict[str, Any], int]:
    """Write the dataset beside the one in its folder, which it then replaces. Returns the same as `_made`."""
    folder = job.request.dst
    staged = folder / STAGED
    staged.mkdir(exist_ok=True)
    begun = held_in(staged).state if goes_on else DestinationState.EMPTY
    if job.request.flags.delete_first:
        clear(folder)
    elif begun is DestinationState.EMPTY:
        _tell_of_space(job, console)
    if begun is DestinationState.DATASET:  # only not in place
        description, total = read_made(staged), 0
    else:
        inside = replace(job, request=replace(job.request, dst=staged))
        try:
            description, total = _made(inside, begun is DestinationState.UNFINISHED, console)
        except Exception:
            if (folder / "dataset.json").exists():
                say(console, f"{folder}: the dataset that is there stays as it was")
            raise
    put_in_place(staged, folder)
    return description, total


def _goes_on(job: ConversionJob, state: DestinationState) -> bool:
    """Whether this continues what another run has begun."""
    begun = [DestinationState.UNFINISHED, DestinationState.REPLACING]
    return job.request.flags.resume and state in (begun if job.base is None else [DestinationState.APPENDING])


def _stays_meanwhile(job: ConversionJob, state: DestinationState, goes_on: bool) -> bool:
    """Whether a dataset stays where it is until what replaces it is complete."""
    if job.store is not None or job.base is not None:
        return False
    if state is DestinationState.REPLACING and goes_on:
        return True
    kept = (DestinationState.DATASET, DestinationState.APPENDING, DestinationState.REPLACING)
    return state in kept and not job.request.flags.delete_first


def _tell_of_space(job: ConversionJob, console: Console) -> None:
    """Say so if the disk may not hold the new dataset beside the old one."""
    needed = sum(int(np.maximum(shard.entries.sizes, 0).sum()) for shard in job.plan)
    free = shutil.disk_usage(job.request.dst).free
    if needed > free:
        say(
            console,
            f"note        the dataset that is there stays until the new one is complete; the source has "
            f"{in_words(needed)}, the disk {in_words(free)} left. If that is too little, add --delete-first",
        )


def _is_complete(job: ConversionJob) -> bool:
    """Whether --resume finds that an earlier run has made this dataset, or that there is another."""
    flags = job.request.flags
    if not flags.resume or not flags.overwrite:
        return flags.resume
    made = job.store.description() if job.store else read_description(job.request.dst)
    return not differing(made.get("options", {}), lasting(job.options))


def _plain_error(job: ConversionJob, error: OSError) -> UserError:
    """An error of the file system as a sentence."""
    folder = job.request.dst
    if job.store:
        return plain_error(job.store.staging, job.store.url, error, journal_options(folder) == job.options)
    if (begun := replacement_options(folder)) is None:
        return plain_error(folder, None, error, journal_options(folder) == job.options)
    return plain_error(folder, None, error, begun == job.options, replaces=(folder / "dataset.json").exists())


@contextlib.contextmanager
def _undoing(job: ConversionJob) -> Iterator[None]:
    """Delete what the block has written if it fails, unless --resume can go on from there."""
    folder = job.request.dst
    try:
        yield
    except Exception as error:
        full = isinstance(error, OSError) and error.errno in FULL
        kept = full or isinstance(error, ClusterLost | NotDelivered | SourceLostError)
        if not (kept and journal_options(folder)):
            if job.store:
                job.store.close()  # uploads delete files, too
            undo(folder, job.options, job.base)
            if job.store:
                job.store.undo()
        raise


def _state(job: ConversionJob) -> DestinationState:
    """What the destination holds. Raises UserError unless the conversion is allowed."""
    if job.store:
        return job.store.admit(job.request.flags, job.options)
    folder = job.request.dst
    return admit(held_in(folder), folder, job.request.flags, job.options, job.base)


def _begin_journal(job: ConversionJob, resumed: bool) -> Journal:
    """The open journal, from which a store gets the shards."""
    store = job.store
    if store is None:
        return begin_journal(job.request.dst, job.options, job.base, resumed)
    if not resumed:
        store.clear()
    delivered = store.delivered() if resumed else ()
    journal = begin_journal(job.request.dst, job.options, None, resumed, delivered)
    store.begin(journal, job.source.content, takes_notes(job), delivered)
    return journal


def _write_shards(job: ConversionJob, journal: Journal, console: Console) -> tuple[dict[str, Any], int]:
    """Write all shards. Returns what dataset.json will be, and how many images were read."""
    todo = [shard for shard in job.plan if (shard.split, shard.number) not in journal.finished]
    bar = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        SampleSpeed(),
        TimeRemainingColumn(),
    )
    write = write_on_cluster if job.ray else write_here
    with Progress(*bar, console=console, transient=True, disable=not console.is_terminal) as progress:
        schema = write(job, todo, journal, progress, console)
    description = describe(job.request.dst, job.source, job.plan, journal, job.options, schema, job.base)
    return description, sum(len(shard.entries) for shard in todo)


def _complete(job: ConversionJob, journal: Journal, description: dict[str, Any]) -> None:
    """Write dataset.json and what is derived of the shards, and delete the journal."""
    folder = job.request.dst
    if not job.store or description["container"] == "beton":
        _write(folder, description)
        _open_once(folder, _splits_here(job, description))
        description = with_digests(folder, description)
        _write(folder, description)
    if job.store:
        job.store.finish(description)
        return
    _tidy(folder, description)
    journal.remove()


def _write(folder: Path, description: dict[str, Any]) -> None:
    replace_file(folder / "dataset.json", (json.dumps(description, indent=1) + "\n").encode())


def _splits_here(job: ConversionJob, description: dict[str, Any]) -> list[str]:
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


def _already(folder: Path, job: ConversionJob, console: Console) -> dict[str, Any]:
    """The description of a dataset that an earlier run completed; its journal may still exist."""
    where = job.store.url if job.store else folder
    description = job.store.description() if job.store else read_made(folder)
    if not job.base:
        check_same(where, description.get("options", {}), lasting(job.options))
    if job.store:
        job.store.tidy(description)
    else:
        _open_once(folder, description["splits"])
        if journal_options(folder) is not None:  # otherwise nothing can be left over
            written: dict[str, Any] = json.loads((folder / "dataset.json").read_bytes())
            _write(folder, with_digests(folder, written))
            _tidy(folder, description)
            (folder / "convert.json").unlink()
    say(console, f"{where}: already complete; nothing to do")
    return description


def _tidy(folder: Path, description: dict[str, Any]) -> None:
    """Delete the files that an append has replaced."""
    clear(folder, keep=Base.of(description).files | {"convert.json"})
