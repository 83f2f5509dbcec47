"""What the trials of a search came to: the models in order, with what they cost and in what they differ."""

import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Column, Table

from fastimg import notebook
from fastimg.config.training import HF_PREFIX
from fastimg.errors import printable
from fastimg.loaders.containers.atomic import replace_file
from fastimg.system.progress import spent
from fastimg.system.terminal import print_table
from fastimg.train.checkpoints.format import MODEL, read_card
from fastimg.train.checkpoints.run_directory import forget
from fastimg.train.tasks.score import lower_is_better, shown
from fastimg.wording import plural

from .places.folder import BOARD, FREED, RUNS, add_line, damaged_line, run_name, whole_lines
from .records import TrialRecord

TOP = 10  # rows that are shown
# Settings that say where a trial was written, on what it ran, and what its columns say.
_PLACES = frozenset(
    {
        *("data", "output", "name", "resume", "max_time", "device", "cache_dir", "arch", "img_size", "weights"),
        *("train_crop_size", "val_crop_size", "metric", "seed", "workers", "fold"),
    }
)


@dataclass(frozen=True, kw_only=True)
class Contender:
    """A model that a search trained: a run, with all trials that went on with it.

    More than 12 fields: they are the columns of the table.

    value: the best that it reached. seconds: of training, over all its trials. size: the side of its images, in pixels;
        0 of texts. megabytes: of its weights. images_per_second: at prediction, None where it was not measured.
    settings: those in which trials may differ. freed: whether its checkpoints were deleted.
    """

    trial: int
    stage: str
    run: str
    value: float
    loss: float
    seconds: float
    epochs: int
    arch: str = ""
    size: int = 0
    megabytes: float = 0.0
    images_per_second: float | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    freed: bool = False

    @property
    def kind(self) -> tuple[str, int]:
        """What its speed depends on."""
        return self.arch, self.size


@dataclass(frozen=True, kw_only=True)
class Leaderboard:
    """The models in order, best first; the trials that ended early, and why; and all trials, for pictures."""

    metric: str
    rows: list[Contender]
    pruned: dict[str, int] = field(default_factory=dict)  # reason -> trials
    records: Sequence[TrialRecord] = ()
    folder: str = ""  # of the search, below which the runs are

    @property
    def winner(self) -> Contender | None:
        """The best model; None where no trial has ended well."""
        return self.rows[0] if self.rows else None

    def _repr_html_(self) -> str:
        rows = self.rows[:TOP]
        cells = (
            (
                rank,
                short(row.arch),
                row.size or "",
                shown(self.metric, row.value),
                spent(row.seconds),
                "" if row.images_per_second is None else f"{row.images_per_second:,.0f}",
                f"{row.megabytes:.1f}",
                "  ".join(f"{name} {_short(value)}" for name, value in differing.items()),
                row.run,
            )
            for rank, (row, differing) in enumerate(zip(rows, differences(rows) if rows else [], strict=True), 1)
        )
        head = ("#", "arch", "px", self.metric, "trained", "img/s", "MB", "differs in", "run")
        return notebook.page(
            notebook.facts({"search": self.folder, "ended early": sum(self.pruned.values()) or None}),
            notebook.table(head, cells, len(self.rows)),
            *map(notebook.picture, sorted(Path(self.folder).glob("*.png")) if self.folder else ()),
        )

    def as_json(self) -> dict[str, Any]:
        """For `--json` and the file."""
        rows = [{"rank": rank, **asdict(row)} for rank, row in enumerate(self.rows, 1)]
        return {"metric": self.metric, "trials": rows, "pruned": self.pruned}


def contenders(records: Iterable[TrialRecord], metric: str) -> list[Contender]:
    """A row for each run that has a value, in no order. The trials of one run are one model: the last settings hold."""
    runs: dict[str, list[TrialRecord]] = {}
    for record in records:
        if record.run is not None and record.values:
            runs.setdefault(str(record.run), []).append(record)
    return [_contender(run, trials, metric) for run, trials in runs.items()]


def _contender(run: str, trials: Sequence[TrialRecord], metric: str) -> Contender:
    last = trials[-1]
    pick: Callable[[Iterable[float]], float] = min if lower_is_better(metric) else max
    best = pick(trial.values[0] for trial in trials)
    settings = {name: value for name, value in last.settings.items() if name not in _PLACES}
    return Contender(
        trial=last.number,
        stage=last.stage,
        run=run,
        value=best,
        loss=min(trial.metrics.get("loss", float("inf")) for trial in trials if trial.values[0] == best),
        seconds=sum(trial.seconds for trial in trials),
        epochs=last.epochs,
        arch=str(last.settings.get("arch") or ""),
        settings=settings,
    )


def model_of(run: Path) -> dict[str, Any] | None:
    """What the best checkpoint of a run says: architecture, size of images, size of weights; None without one."""
    file = run / "best" / MODEL
    if not file.exists():
        return None
    card = read_card(file)
    size = 0 if card.text is not None else card.preprocessing.val_size
    return {"arch": card.arch, "size": size, "megabytes": round(file.stat().st_size / 1e6, 2)}


class KeptModels:
    """The models of a search: which runs have checkpoints, and what those were that have none any more.

    A file of the folder has a line for each run whose checkpoints are deleted, written before they are: where a search
    is killed meanwhile, the rest is deleted when it goes on.
    """

    def __init__(self, folder: Path) -> None:
        self.bytes = 0  # deleted so far
        self.runs = 0
        self._folder = folder
        self._models: dict[str, dict[str, Any] | None] = {}
        self._freed: dict[str, dict[str, Any] | None] = {}
        for number, line in enumerate(whole_lines(folder / FREED), start=1):
            if not isinstance(line.get("run"), str):
                raise damaged_line(folder / FREED, number)
            if "model" in line:
                self._freed[line["run"]] = line["model"]
            else:
                self._freed.pop(line["run"], None)
        for run in self._freed:
            self._delete(run)

    def __contains__(self, run: str) -> bool:
        """Whether its checkpoints were not deleted."""
        return run not in self._freed

    def rows(self, records: Iterable[TrialRecord], metric: str) -> list[Contender]:
        """The models that trials made, best first."""
        found = []
        for row in contenders(records, metric):
            model = self._model(row.run)
            if model is not None:
                found.append(replace(row, **model, freed=row.run in self._freed))
        return ordered(found, metric)

    def free(
        self,
        records: Iterable[TrialRecord],
        keep: Collection[str],
        speeds: Mapping[tuple[str, int], float | None] | None = None,
    ) -> None:
        """Delete the checkpoints of the runs of these trials, but for those to keep, and for those that may go on."""
        runs: dict[str, bool] = {}
        for record in records:
            runs[_run_of(record)] = runs.get(_run_of(record), False) or record.cut
        for run, may_go_on in runs.items():
            if may_go_on or run in keep or run in self._freed or not (self._folder / run).exists():
                continue
            model = self._model(run)
            speed = None if model is None else (speeds or {}).get((model["arch"], model["size"]))
            if model is not None and speed is not None:
                model = {**model, "images_per_second": speed}
            add_line(self._folder / FREED, {"run": run, "model": model})
            self._freed[run] = model
            self._delete(run)

    def again(self, run: str) -> None:
        """It is trained, or has been trained, again."""
        if run in self._freed:
            add_line(self._folder / FREED, {"run": run, "again": True})
            del self._freed[run]

    def marked(self, board: Leaderboard) -> Leaderboard:
        """The same leaderboard, whose rows say which checkpoints are deleted by now."""
        return replace(board, rows=[replace(row, freed=row.run in self._freed) for row in board.rows])

    def told(self) -> str:
        """What was deleted, in a line; empty where nothing was."""
        if not self.bytes:
            return ""
        unit, size = ("GB", 1e9) if self.bytes >= 1e9 else ("MB", 1e6)
        took = f"{self.bytes / size:,.1f} {unit}"
        models = plural(self.runs, "other model")
        return f"the checkpoints of {models}, {took}; --keep all would have kept them"

    def _model(self, run: str) -> dict[str, Any] | None:
        if run in self._freed:
            return self._freed[run]
        if self._models.get(run) is None:
            self._models[run] = model_of(self._folder / run)
        return self._models[run]

    def _delete(self, run: str) -> None:
        nbytes = forget(self._folder / run)
        self.bytes += nbytes
        self.runs += bool(nbytes)


def _run_of(record: TrialRecord) -> str:
    """The directory of a trial's run, also where its process died before it could tell."""
    return str(record.run or Path(RUNS) / run_name(record.number))


def firsts(rows: Sequence[Contender], kinds: int = TOP) -> list[Contender]:
    """The best model of each kind among the ten that are shown: those whose speed is measured."""
    found: dict[tuple[str, int], Contender] = {}
    for row in rows[:TOP]:
        found.setdefault(row.kind, row)
    return list(found.values())[:kinds]


def ordered(rows: Iterable[Contender], metric: str) -> list[Contender]:
    """Best first. Of equal values those with a checkpoint come first, then the faster, then that of the lower loss."""
    sign = 1.0 if lower_is_better(metric) else -1.0
    return sorted(
        rows, key=lambda row: (sign * row.value, row.freed, -(row.images_per_second or 0.0), row.loss, row.trial)
    )


def differences(rows: Sequence[Contender]) -> list[dict[str, Any]]:
    """For each row the settings in which not all rows agree."""
    names = sorted({name for row in rows for name in row.settings})
    differing = [name for name in names if any(row.settings.get(name) != rows[0].settings.get(name) for row in rows)]
    return [{name: row.settings[name] for name in differing if name in row.settings} for row in rows]


def reasons(records: Iterable[TrialRecord]) -> dict[str, int]:
    """Why trials ended early, and how many for each reason, the most frequent first."""
    counts: dict[str, int] = {}
    for record in records:
        if record.state == "pruned":
            reason = record.reason or "not promising"
            counts[reason] = counts.get(reason, 0) + 1
    return dict(sorted(counts.items(), key=lambda each: -each[1]))


def write(board: Leaderboard, folder: Path) -> None:
    """Write the file, and point FOLDER/best at the winner's run."""
    replace_file(folder / BOARD, (json.dumps(board.as_json(), indent=1) + "\n").encode())
    if board.winner is None:
        return
    link = folder / ".best.new"
    link.unlink(missing_ok=True)
    link.symlink_to(board.winner.run)
    link.replace(folder / "best")


def short(arch: str) -> str:
    """An architecture as lines and tables have room for it: of a text encoder's folder, the end of its path."""
    folder = Path(arch.removeprefix(HF_PREFIX))
    if arch.startswith(HF_PREFIX) and folder.is_absolute():
        return f"{HF_PREFIX}{Path(*folder.parts[-2:])}"
    return arch


def print_board(board: Leaderboard, console: Console) -> None:
    """At most ten rows, best first."""
    rows = board.rows[:TOP]
    if not rows:
        return
    numbers = ("px", board.metric, "trained", "img/s" if any(row.size for row in rows) else "texts/s", "MB")
    columns = [Column(name, justify="right", no_wrap=True) for name in numbers]
    table = Table(
        Column("#", justify="right"), "arch", *columns, "stage", Column("differs in", overflow="fold"), "run", box=None
    )
    for rank, (row, differing) in enumerate(zip(rows, differences(rows), strict=True), 1):
        speed = "" if row.images_per_second is None else f"{row.images_per_second:,.0f}"
        table.add_row(
            str(rank),
            printable(short(row.arch)),
            str(row.size or ""),
            shown(board.metric, row.value),
            spent(row.seconds),
            speed,
            f"{row.megabytes:.1f}",
            row.stage,
            "  ".join(f"{name} {_short(value)}" for name, value in differing.items()),
            row.run,
        )
    print_table(console, table)


def _short(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)
