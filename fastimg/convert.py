"""A folder or a manifest of images -> tar shards with DALI's index, dataset.json and the compact index.

    read_source -> plan (splits, order, shards) -> threads: read, decode once as a check -> one writer, in order

What is written depends on the source and the options alone: not on the threads, the clock, or interruptions. A sample's
number is its place in the order of its split, and shards are cut by the sizes of the source files before any is read,
so an image that is skipped leaves a gap and moves nothing.
"""

import contextlib
import errno
import json
import logging
import os
import time
import warnings
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, Task, TimeRemainingColumn
from rich.text import Text

from fastimg import __version__
from fastimg.check import AHEAD, Check, Checked, in_order
from fastimg.config import Convert
from fastimg.conversion import Report, Skipped
from fastimg.errors import UsageError, UserError, printable
from fastimg.journal import Finished, Journal, State, clear, journal_options, locked, state_of
from fastimg.loaders.cpus import available_cpus
from fastimg.loaders.errors import DataError
from fastimg.loaders.shards import FORMAT, FORMAT_VERSION, SHARD_KEYS, open_dataset, read_description
from fastimg.loaders.tar import ShardWriter, replace_file
from fastimg.loaders.tiles import DEFAULT_TILE_PX
from fastimg.plan import Shard, parse_size, plan_shards
from fastimg.sources import Columns, Entry, Source, read_source

_FULL = (errno.ENOSPC, errno.EDQUOT)
_SCHEMA = {
    "image": {"kind": "bytes", "member": "the extension of the image's own format"},
    "cls": {"kind": "scalar", "dtype": "int64", "encoding": "ascii"},
    "json": {"kind": "text", "encoding": "json"},
}


def convert(config: Convert, console: Console) -> Report:
    """Convert `config.src` into `config.dst`, with progress and messages on `console`.

    Raises UsageError, UserError and DataError, each a sentence; KeyboardInterrupt after telling how to go on.
    """
    began = time.perf_counter()
    shard_size, workers = parse_size(config.shard_size), _workers(config.workers)
    _check_usage(config)
    source = read_source(config.src, Columns(config.path_column, config.label_column, config.split_column))
    _check_missing(source, config)
    plan = plan_shards(
        source,
        shard_size=shard_size,
        val_fraction=config.val_fraction,
        shuffle=config.shuffle,
        seed=config.seed,
    )
    options = _options(source, config, shard_size)
    folder, made = config.dst, _missing(config.dst)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with locked(folder):
            state = _admit(folder, config)
            if state is State.DATASET and config.resume:
                return _already(source, folder, options, console, began)
            resumed = state is State.UNFINISHED and config.resume
            try:
                description, checked = _run(source, plan, options, config, resumed, workers, console)
            except Exception as error:
                full = isinstance(error, OSError) and error.errno in _FULL
                if not resumed and not (full and journal_options(folder)):
                    _undo(folder, options)
                raise
    except KeyboardInterrupt:
        if folder.is_dir() and journal_options(folder):
            console.print(
                Text(f"{folder}: interrupted; the same command with --resume goes on from here"), soft_wrap=True
            )
        raise
    except OSError as error:
        raise _plain(folder, error) from error
    finally:
        for path in made:  # still empty: nothing was begun, or all of it was undone
            with contextlib.suppress(OSError):
                path.rmdir()
    return _report(source, folder, description, began, checked)


def _check_usage(config: Convert) -> None:
    if config.resume and config.overwrite:
        raise UsageError("--resume goes on with what is there, --overwrite deletes it; give one of them")
    if not 0 <= config.val_fraction < 1:
        raise UsageError(f"--val-fraction {config.val_fraction}: give a share of at least 0 and less than 1, as in 0.1")
    if config.seed < 0:
        raise UsageError(f"--seed {config.seed}: give 0 or more")
    if config.max_pixels < 1:
        raise UsageError(f"--max-pixels {config.max_pixels}: give 1 or more")
    src, dst = config.src.resolve(), config.dst.resolve()
    if dst == src or src in dst.parents:
        raise UsageError(f"{config.dst}: the destination lies in the source {config.src}; give a folder outside of it")


def _tile_px(text: str) -> int | None:
    """Width of a tile in pixels, None for none."""
    if text in ("off", "auto"):
        return {"off": None, "auto": DEFAULT_TILE_PX}[text]
    if not text.isascii() or not text.isdigit() or not 8 <= int(text) <= 65_535:
        raise UsageError(f"--tile {text}: give auto, off or a width of 8 to 65535 pixels")
    return int(text)


def _workers(text: str) -> int:
    if text == "auto":
        return available_cpus()
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise UsageError(f"--workers {text}: give auto or a number of threads, 1 or more")
    return int(text)


def _check_missing(source: Source, config: Convert) -> None:
    """Stop before anything is written where a listed file is missing and that is to fail."""
    if config.on_error == "fail":
        for entry in (entry for entries in source.splits.values() for entry in entries):
            if reason := source.problem(entry):
                raise _failure(source, entry, reason)


def _failure(source: Source, entry: Entry, reason: str) -> DataError:
    return DataError(
        f"{printable(source.name(entry))}: {reason}; repair or remove it, or leave it out with --on-error skip"
    )


def _options(source: Source, config: Convert, shard_size: int) -> dict[str, Any]:
    """Everything that determines the bytes."""
    return {
        "fastimg": __version__,
        "source": source.kind,
        "listing": source.fingerprint(),
        "shard_size": shard_size,
        "val_fraction": config.val_fraction,
        "shuffle": config.shuffle,
        "seed": config.seed,
        "max_pixels": config.max_pixels,
        "tile": _tile_px(config.tile) or 0,
        "on_error": config.on_error,
    }


def _missing(folder: Path) -> list[Path]:
    """The folders that have to be made for `folder`, innermost first."""
    if os.path.exists(folder) and not os.path.isdir(folder):
        raise UserError(f"{folder}: a file, where the dataset's folder is to be; give another destination")
    return [path for path in (folder, *folder.parents) if not os.path.exists(path)]


def _admit(folder: Path, config: Convert) -> State:
    """What is in the destination. Raises UserError unless the flags allow it."""
    state = state_of(folder)
    if state is State.OTHER:
        raise UserError(f"{folder}: not empty, and nothing that fastimg convert made; give a new or empty folder")
    if state is State.DATASET and not (config.resume or config.overwrite):
        raise UserError(f"{folder}: holds a dataset already; give another folder, or replace it with --overwrite")
    if state is State.UNFINISHED and not (config.resume or config.overwrite):
        raise UserError(
            f"{folder}: holds a conversion that did not finish; go on with --resume, or start again with --overwrite"
        )
    return state


def _journal(folder: Path, options: dict[str, Any], resumed: bool) -> Journal:
    if resumed:
        _check_same(folder, journal_options(folder) or {}, options)
        journal = Journal.go_on(folder)
    else:
        journal = Journal.start(folder, options)
    clear(folder, keep=journal.files() | {"convert.json"})
    return journal


def _check_same(folder: Path, there: dict[str, Any], here: dict[str, Any]) -> None:
    names = sorted(name for name in there.keys() | here.keys() if there.get(name) != here.get(name))
    if not names:
        return
    told = {
        "listing": "the source (its paths, labels or sizes)",
        "fastimg": "the version of fastimg",
        "source": "the kind of source",
    }
    what = ", ".join(
        told.get(name, f"--{name.replace('_', '-')} ({there.get(name)} there, {here.get(name)} here)") for name in names
    )
    raise UserError(f"{folder}: began with something else: {what}; give what it began with, or use --overwrite")


def _undo(folder: Path, options: dict[str, Any]) -> None:
    """Leave nothing behind of a conversion that this run began."""
    if journal_options(folder) == options:
        clear(folder)


def _plain(folder: Path, error: OSError) -> UserError:
    if error.errno in _FULL:
        goes_on = " go on with the same command and --resume" if journal_options(folder) else " convert again"
        return UserError(f"{folder}: no space left on the disk; free some, then{goes_on}")
    return UserError(f"{error.filename or folder}: {error.strerror or error}; check the path and its permissions")


def _run(
    source: Source,
    plan: list[Shard],
    options: dict[str, Any],
    config: Convert,
    resumed: bool,
    workers: int,
    console: Console,
) -> tuple[dict[str, Any], int]:
    """From the journal to dataset.json: what was written there, and how many images were read for it."""
    journal = _journal(config.dst, options, resumed)
    checked = _write(source, plan, journal, config, workers, console)
    description = _describe(source, plan, journal, options)
    replace_file(config.dst / "dataset.json", (json.dumps(description, indent=1) + "\n").encode())
    _open_once(config.dst, description)
    journal.remove()
    return description, checked


def _write(source: Source, plan: list[Shard], journal: Journal, config: Convert, workers: int, console: Console) -> int:
    """Write the shards that the journal does not have, in order; how many images were read for it."""
    todo = [shard for shard in plan if (shard.split, shard.number) not in journal.finished]
    entries = (entry for shard in todo for entry in shard.entries)
    total = sum(len(shard.entries) for shard in todo)
    columns = (BarColumn(), MofNCompleteColumn(), _Speed(), TimeRemainingColumn())
    logging.getLogger("PIL").addHandler(logging.NullHandler())  # or Python prints its remarks over the progress bar
    with (
        warnings.catch_warnings(),
        Progress(*columns, console=console, transient=True) as progress,
        ThreadPoolExecutor(workers, "check") as pool,
    ):
        warnings.simplefilter("ignore")  # what Pillow finds odd and yet decodes
        checks = in_order(pool, Check(source, config.max_pixels, _tile_px(config.tile)), entries, workers * AHEAD)
        results = _counted(checks, progress, total)
        for shard in todo:
            journal.add(_write_shard(source, shard, results, config))
    return total


def _counted(checks: Iterator[Checked | str], progress: Progress, total: int) -> Iterator[Checked | str]:
    task = progress.add_task("images", total=total)
    for checked in checks:
        yield checked
        progress.advance(task)


class _Empty(Exception):
    """No image of a shard is left."""


def _write_shard(source: Source, shard: Shard, checks: Iterator[Checked | str], config: Convert) -> Finished:
    counts: Counter[int] = Counter()
    tiling: Counter[str] = Counter()
    skipped, source_bytes = [], 0
    with contextlib.suppress(_Empty), ShardWriter(config.dst / shard.name) as writer:
        for number, (entry, checked) in enumerate(zip(shard.entries, checks, strict=False), shard.start):
            if isinstance(checked, str):
                if config.on_error == "fail":
                    raise _failure(source, entry, checked)
                skipped.append((printable(entry.path), printable(checked)))
                continue
            note = json.dumps({"path": entry.path} | (entry.extra or {}))
            writer.add(
                f"{number:09d}",
                {checked.extension: checked.data, "cls": str(entry.label).encode(), "json": note.encode()},
            )
            counts[entry.label] += 1
            source_bytes += checked.source_bytes
            if checked.tiling:
                tiling[checked.tiling] += 1
        if not writer.samples:
            raise _Empty
    return Finished(
        split=shard.split,
        number=shard.number,
        samples=len(writer.samples),
        name=shard.name,
        bytes=writer.bytes,
        sha256=writer.sha256,
        index_bytes=writer.index_bytes,
        index_sha256=writer.index_sha256,
        source_bytes=source_bytes,
        class_counts=dict(sorted(counts.items())),
        skipped=skipped,
        tiling=dict(sorted(tiling.items())),
    )


def _describe(source: Source, plan: list[Shard], journal: Journal, options: dict[str, Any]) -> dict[str, Any]:
    """dataset.json. Raises DataError where too little is left to train on."""
    splits: dict[str, Any] = {}
    tiling: Counter[str] = Counter()
    skipped = []
    for split in sorted({shard.split for shard in plan}):
        shards = [journal.finished[shard.split, shard.number] for shard in plan if shard.split == split]
        counts: Counter[int] = Counter()
        for shard in shards:
            counts.update(shard.class_counts)
            tiling.update(shard.tiling)
            skipped += [{"split": split, "path": path, "reason": reason} for path, reason in shard.skipped]
        if not counts:
            raise DataError(f"{source.src}: no image of the split {split} can be decoded{_example(skipped)}")
        if split == "train":
            for label, name in enumerate(source.classes):
                if not counts[label]:
                    raise DataError(
                        f"{source.src}: no training image of class {printable(name)!r} can be decoded"
                        f"{_example(skipped)}"
                    )
        splits[split] = {
            "samples": counts.total(),
            "class_counts": [counts[label] for label in range(len(source.classes))],
            "source_bytes": sum(shard.source_bytes for shard in shards),
            "shards": [{key: getattr(shard, key) for key in SHARD_KEYS} for shard in shards if shard.samples],
        }
    return {
        "format": FORMAT,
        "version": FORMAT_VERSION,
        "fastimg": __version__,
        "container": "tar",
        "schema": _SCHEMA,
        "classes": source.classes,
        "splits": splits,
        "skipped": skipped,
        "tiling": dict(sorted(tiling.items())),
        "options": options,
    }


def _example(skipped: list[dict[str, str]]) -> str:
    first = skipped[0] if skipped else None
    return f" ({first['path']}: {first['reason']}); repair or remove them" if first else ""


def _open_once(folder: Path, description: dict[str, Any]) -> None:
    """Open every split, which leaves its compact index behind and shows that it opens."""
    for split in description["splits"]:
        open_dataset(folder, split).close()


def _already(source: Source, folder: Path, options: dict[str, Any], console: Console, began: float) -> Report:
    """The report on a dataset that an earlier run finished, or nearly: the journal may still be there."""
    description = read_description(folder)
    _check_same(folder, description.get("options", {}), options)
    _open_once(folder, description)
    (folder / "convert.json").unlink(missing_ok=True)
    console.print(Text(f"{folder}: complete already; nothing to do"), soft_wrap=True)
    return _report(source, folder, description, began, 0)


def _report(source: Source, folder: Path, description: dict[str, Any], began: float, checked: int) -> Report:
    splits = description["splits"]
    seconds = time.perf_counter() - began
    return Report(
        dst=str(folder),
        images=sum(split["samples"] for split in splits.values()),
        classes=len(description["classes"]),
        splits={name: split["samples"] for name, split in splits.items()},
        bytes_in=sum(split["source_bytes"] for split in splits.values()),
        bytes_out=sum(s["bytes"] + s["index_bytes"] for split in splits.values() for s in split["shards"]),
        skipped=[Skipped(skipped["path"], skipped["reason"]) for skipped in description["skipped"]],
        tiling=description["tiling"],
        ignored=source.ignored,
        seconds=seconds,
        images_per_second=checked / seconds,
    )


class _Speed(ProgressColumn):
    def render(self, task: Task) -> Text:
        return Text(f"{task.speed or 0:,.0f} img/s")
