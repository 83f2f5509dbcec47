"""What the trials of a search came to: the models in order, with what they cost and in what they differ."""

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from rich.console import Console
from rich.table import Table

from fastimg import notebook
from fastimg.config.training import HF_PREFIX
from fastimg.errors import printable
from fastimg.loaders.containers.atomic import replace_file
from fastimg.system.progress import spent
from fastimg.system.terminal import is_wider, print_table, say
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
    settings: those in which trials may differ. parameters: those that the search has drawn. freed: whether its
        checkpoints were deleted. ended: how its last trial ended, if that was early.
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
    parameters: Mapping[str, Any] = field(default_factory=dict)
    freed: bool = False
    ended: Literal["", "pruned", "out of time"] = ""

    @property
    def kind(self) -> tuple[str, int]:
        """What its speed depends on."""
        return self.arch, self.size


@dataclass(frozen=True, kw_only=True)
class Leaderboard:
    """The models in order, best first; the trials that ended early, and why; and all trials, for pictures.

    kept_embeddings: by encoder, how many were there before the first trial of a search by stages.
    """

    metric: str
    rows: list[Contender]
    pruned: dict[str, int] = field(default_factory=dict)  # reason -> trials
    records: Sequence[TrialRecord] = ()
    folder: str = ""  # of the search, below which the runs are
    kept_embeddings: Mapping[str, int] = field(default_factory=dict)

    @property
    def winner(self) -> Contender | None:
        """The best model; None where no trial has ended well."""
        return self.rows[0] if self.rows else None

    def _repr_html_(self) -> str:
        columns = _columns(self) if self.rows else None
        cells = {} if columns is None else columns.facts | columns.parameters | columns.places
        return notebook.page(
            notebook.facts({"search": self.folder, "ended early": sum(self.pruned.values()) or None}),
            notebook.facts({} if columns is None else columns.shared),
            notebook.table([*cells], zip(*cells.values(), strict=True), len(self.rows)),
            *map(notebook.picture, sorted(Path(self.folder).glob("*.png")) if self.folder else ()),
        )

    def as_json(self) -> dict[str, Any]:
        """For `--json` and the file."""
        rows = [{"rank": rank, **asdict(row)} for rank, row in enumerate(self.rows, 1)]
        return {
            "metric": self.metric,
            "trials": rows,
            "pruned": self.pruned,
            "kept_embeddings": dict(self.kept_embeddings),
        }


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
        parameters=last.parameters,
        ended="" if last.state == "complete" else "out of time" if last.cut else "pruned",
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
    """Best first, and those last that were pruned: others have had more epochs.

    Of equal values those with a checkpoint come first, then the faster, then that of the lower loss.
    """
    sign = 1.0 if lower_is_better(metric) else -1.0

    def place(row: Contender) -> tuple[bool, float, bool, float, float, int]:
        speed = row.images_per_second or 0.0
        return row.ended == "pruned", sign * row.value, row.freed, -speed, row.loss, row.trial

    return sorted(rows, key=place)


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
    """At most ten rows, best first. What is the same in all of them is said once, above.

    Where a column for each parameter is wider than the terminal, they share one.
    """
    if not board.rows:
        return
    columns = _columns(board)
    if columns.shared:
        say(console, f"all         {', '.join(f'{name} {value}' for name, value in columns.shared.items())}")
    table = _table(columns.facts | columns.parameters | columns.places)
    if is_wider(console, table):
        pairs = [" ".join(f"{k}={v}" for k, v in row.items() if v) for row in _rows(columns.parameters)]
        table = _table(columns.facts | ({"parameters": pairs} if pairs else {}) | columns.places)
    print_table(console, table)


@dataclass(frozen=True, kw_only=True)
class _BoardColumns:
    """The cells of the first rows by the names of their columns. shared: what a column says that says nothing else."""

    shared: dict[str, str]
    facts: dict[str, list[str]]
    parameters: dict[str, list[str]]
    places: dict[str, list[str]]


def _columns(board: Leaderboard) -> _BoardColumns:
    """What the table of a leaderboard says, and what is said once above it."""
    rows = board.rows[:TOP]
    differing = differences(rows)
    names = dict.fromkeys(name for row in (*(row.parameters for row in rows), *differing) for name in row)
    parameters = {
        name: [_short(row.parameters.get(name, row.settings.get(name, ""))) for row in rows]
        for name in names
        if name not in _PLACES
    }
    facts = {
        "#": [str(rank) for rank in range(1, len(rows) + 1)],
        "arch": [printable(short(row.arch)) for row in rows],
        "px": [str(row.size or "") for row in rows],
        board.metric: [shown(board.metric, row.value) for row in rows],
        "trained": [spent(row.seconds) for row in rows],
        "img/s" if any(row.size for row in rows) else "texts/s": [
            "" if row.images_per_second is None else f"{row.images_per_second:,.0f}" for row in rows
        ],
        "MB": [f"{row.megabytes:.1f}" for row in rows],
        "stage": [row.stage for row in rows],
    }
    if any(row.ended for row in rows):
        facts["ended"] = [row.ended for row in rows]
    own = {"#", board.metric, "trained", "ended"}  # what a row is read for
    once = {
        name: cells[0]
        for name, cells in (facts | parameters).items()
        if len(rows) > 1 and name not in own and len(set(cells)) == 1
    }
    return _BoardColumns(
        shared={name: value for name, value in once.items() if value},
        facts={name: cells for name, cells in facts.items() if name not in once},
        parameters={name: cells for name, cells in parameters.items() if name not in once},
        places={"run": [row.run for row in rows]},
    )


def _rows(columns: Mapping[str, list[str]]) -> Iterator[dict[str, str]]:
    """Columns as rows."""
    for cells in zip(*columns.values(), strict=True):
        yield dict(zip(columns, cells, strict=True))


def _table(columns: Mapping[str, list[str]]) -> Table:
    """Numbers stand below each other; what is no number is never cut."""
    table = Table(box=None, pad_edge=False)
    for name, cells in columns.items():
        number = all(_is_number(cell) for cell in cells)
        table.add_column(name, justify="right" if number else "left", no_wrap=number, overflow="fold")
    for row in _rows(columns):
        table.add_row(*row.values())
    return table


def _is_number(cell: str) -> bool:
    return not cell or cell[0].isdigit() or cell[:2].removeprefix("-").isdigit()


def _short(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)
