"""A run's directory: config.yaml, metrics.jsonl, curves.png, and the checkpoints with their links."""

import contextlib
import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fastimg.config.commands import Train
from fastimg.config.intent import named_run
from fastimg.config.yaml_file import dump, load, read
from fastimg.errors import UsageError, UserError
from fastimg.loaders.containers.atomic import replace_file
from fastimg.loaders.errors import not_written
from fastimg.wording import plural

from . import format as checkpoint
from . import log_records
from .results_table import ResultsTable

CONFIG = "config.yaml"
METRICS = "metrics.jsonl"
RESULTS = "results.csv"
CURVES = "curves.png"
RANGE_TEST = "lr_find.png"  # of --lr find
TRACE = "trace.json.gz"  # of --trace
TRACKED = ("trackers.json", "samples.png", "augmented.png")  # files that runs with --log have
_TRACKED_FOLDERS = ("tensorboard", "wandb")


def choose(output: Path, base: str, name: str | None, resume: str | None, from_file: bool = False) -> tuple[Path, bool]:
    """(run directory, whether to resume it). Raises UsageError if the name is taken, UserError if there is no run.

    With the `resume` of "last" there has to be one, and with "auto" it may be a new one.
    A name `from_file` belongs to the run that the file describes, which may exist: a number is added to it, as to the
    `base` of a run without a name.
    """
    if (run := named_run(resume)) is not None:
        if not (run / CONFIG).exists():
            raise UserError(f"--resume {resume}: not a run directory (it has no {CONFIG}); give one, or auto")
        return run, True
    run, resuming = _new_or_newest(output, base, name, resume, from_file)
    if resume is not None and resume != "auto" and not resuming:
        sought = output / (name or base)
        raise UserError(
            f"--resume: there is no run {sought} to continue; with --resume auto a new run begins where there is none"
        )
    return run, resuming


def _new_or_newest(output: Path, base: str, name: str | None, resume: str | None, from_file: bool) -> tuple[Path, bool]:
    """A new run's directory, or with `resume` that of the newest run which there is of this name or base."""
    if name is not None and from_file:
        if resume is None and not (output / name / CONFIG).exists():
            return output / name, False
        base = name
    elif name is not None:
        run = output / name
        if (run / CONFIG).exists() and resume is None:
            raise UsageError(
                f"{run}: a run of that name already exists; use --resume auto to continue it, or choose another --name"
            )
        return run, (run / CONFIG).exists()
    there = list(output.iterdir()) if output.is_dir() else []  # no glob: a name may hold brackets
    taken = [run for run in there if _numbered(run.name, base) and (run / CONFIG).exists()]
    if resume is not None and taken:
        return max(taken, key=lambda run: (run / CONFIG).stat().st_mtime_ns), True
    number = max((_numbered(run.name, base) for run in taken), default=0) + 1
    return output / (base if number == 1 else f"{base}-{number}"), False


def refuse_another_place(config: Train) -> None:
    """Raises UsageError for a --name or --output that the run of --resume does not have: it stays where it is."""
    run = named_run(config.resume)
    if run is None or not (run / CONFIG).exists():
        return
    before = load(run / CONFIG, Train)
    refused = "has no effect with --resume {run}, which goes on in that directory; leave it out"
    if config.name not in (None, before.name, run.name):
        raise UsageError(f"--name {config.name} {refused.format(run=run)}")
    if config.output != before.output and config.output.resolve() != run.resolve().parent:
        raise UsageError(f"--output {config.output} {refused.format(run=run)}")


def named_by_file(config: Train) -> bool:
    """Whether the run's name comes from the file that --config gives, which may be an earlier run's."""
    if config.name is None or config.config is None:
        return False
    return bool(read(config.config, Train, config.storage_option).get("name") == config.name)


def _numbered(name: str, base: str) -> int:
    """1 for `base`, 2 for `base-2`, ...; 0 for another run's name."""
    if name == base:
        return 1
    suffix = name.removeprefix(f"{base}-")
    return int(suffix) if suffix != name and suffix.isdigit() else 0


def begin(run: Path, config: Train) -> list[Path]:
    """Create the directory and write the effective configuration. Returns the folders it created, innermost first.

    Raises UserError if that is not possible.
    """
    made = [folder for folder in (run, *run.parents) if not folder.exists()]
    try:
        run.mkdir(parents=True, exist_ok=True)
        replace_file(run / CONFIG, dump(config).encode())
    except OSError as error:
        withdraw(run, made)
        raise UserError(f"{run}: {not_written(error, 'give another --output or --name')}") from error
    return made


def going_on(run: Path) -> str:
    """What to do once a run that failed can be written again."""
    if (run / "last").is_symlink():
        return f"continue from the last checkpoint with --resume {run}"
    return "start again: no checkpoint was saved before"


def withdraw(run: Path, made: list[Path]) -> None:
    """Delete what `begin` and the log wrote, unless a checkpoint was saved: there would be nothing to resume."""
    if (run / "last").exists():
        return
    for name in (CONFIG, METRICS, CURVES, RESULTS, RANGE_TEST, TRACE, *TRACKED):
        with contextlib.suppress(OSError):
            (run / name).unlink()
    for name in ("checkpoints", *_TRACKED_FOLDERS):
        shutil.rmtree(run / name, ignore_errors=True)
    for folder in made:
        with contextlib.suppress(OSError):
            folder.rmdir()


def forget(run: Path) -> int:
    """Delete the checkpoints of a run; its log and its settings stay. Returns the bytes that they took."""
    for link in ("best", "last"):
        (run / link).unlink(missing_ok=True)
    folder = run / "checkpoints"
    freed = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
    with contextlib.suppress(FileNotFoundError):
        shutil.rmtree(folder)
    return freed


def batch_of_before(run: Path, config: Train, world_size: int) -> tuple[int, int]:
    """(batch size, accumulated batches) for `world_size` ranks that resume a run which may have had more or fewer.

    A step keeps its number of images, in as few accumulated batches as possible, none larger than the batch size asked
    for. With as many ranks as at first, or without a checkpoint, it is what was asked for; `auto` and none are the
    run's batch.
    Raises UsageError if the ranks cannot share a step evenly.
    """
    before = load(run / CONFIG, Train)
    assert isinstance(before.batch_size, int)  # `begin` was given what it became
    asked = config.batch_size if isinstance(config.batch_size, int) else before.batch_size
    if not (run / "last").exists():
        return asked, config.grad_accum_steps
    total: int = checkpoint.load_training((run / "last").resolve())["global_batch"]
    ranks_at_first = total // (before.batch_size * before.grad_accum_steps)
    if world_size == ranks_at_first or world_size * asked * config.grad_accum_steps == total:
        return asked, config.grad_accum_steps
    if total % world_size:
        even = [ranks for ranks in range(1, total + 1) if total % ranks == 0]
        near = [max(ranks for ranks in even if ranks < world_size), *(ranks for ranks in even if ranks > world_size)]
        raise UsageError(
            f"--resume: {run} trained with {plural(total, 'image')} per optimiser step over all ranks, which "
            f"{plural(world_size, 'rank')} "
            f"cannot share evenly; start {' or '.join(map(str, near[:2]))} of them"
        )
    share = total // world_size
    accumulated = next(n for n in range(-(-share // asked), share + 1) if share % n == 0)
    return share // accumulated, accumulated


def scaled_before(run: Path) -> bool | None:
    """Whether the gradients of a run were scaled, which fp16 needs; None before its first checkpoint."""
    if not (run / "last").exists():
        return None
    return bool(checkpoint.load_training((run / "last").resolve())["scaler"])


def last_checkpoint(run: Path, global_batch: int) -> tuple[Path, dict[str, Any]] | None:
    """The checkpoint to resume from, None if the run was killed before its first.

    Raises UsageError if a step would have another number of images than the run's steps had.
    """
    if not (run / "last").exists():
        return None
    training = checkpoint.load_training((run / "last").resolve())
    if training["global_batch"] != global_batch:
        raise UsageError(
            f"--resume: {run} trained with {plural(training['global_batch'], 'image')} per optimiser step over "
            "all ranks, "
            f"this would be {global_batch}; choose --batch-size and --grad-accum-steps to match"
        )
    return (run / "last").resolve(), training


Value = float | str | Sequence[float]  # of a record
Say = Callable[[str], None]
Listener = Callable[[str, Sequence[Mapping[str, Value]]], None]  # of kinds and records


class Log:
    """metrics.jsonl: one record per line, in order of steps. Records after `step` are removed: they will come again.

    So are damaged ones, which `warn` is told. A `listener` gets what is written, and results.csv a line an epoch.
    """

    def __init__(self, run: Path, step: int, listener: Listener | None = None, warn: Say | None = None) -> None:
        self._path = run / METRICS
        self._listener = listener
        try:
            kept = [record for record in read_log(run, warn) if record["step"] <= step]
            replace_file(self._path, "".join(json.dumps(record) + "\n" for record in kept).encode())
            self._table = ResultsTable(run / RESULTS, kept)
        except OSError as error:
            raise UserError(
                f"{self._path}: {error.strerror or error}; see to it that it can be read and written, or move it away"
            ) from error

    def add(self, kind: str, **values: Value) -> None:
        """Append a record."""
        self.add_all(kind, [values])

    def add_all(self, kind: str, records: Sequence[Mapping[str, Value]]) -> None:
        """Append records of one kind. Raises UserError."""
        try:
            with self._path.open("a", encoding="utf-8") as file:
                file.writelines(json.dumps({"kind": kind, **values}) + "\n" for values in records)
            self._table.add(kind, records)
        except OSError as error:
            raise UserError(
                f"{self._path}: cannot be written: {not_written(error, 'see to it that it can be')}, then "
                f"{going_on(self._path.parent)}"
            ) from error
        if self._listener is not None:
            self._listener(kind, records)


def train_records(run: Path) -> list[dict[str, Any]]:
    """The records of progress lines."""
    return [record for record in read_log(run) if record["kind"] == "train"]


def read_log(run: Path, warn: Say | None = None) -> list[dict[str, Any]]:
    """The records of a run, without a last line that a kill cut off, and without damaged ones, which `warn` is told."""
    records, faults = log_records.read(run / METRICS)
    if faults and warn is not None:
        warn(log_records.words(run / METRICS, faults))
    return records
