"""What the trials of a search came to: the models in order, with what they cost and in what they differ."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Column, Table

from fastimg.errors import printable
from fastimg.loaders.containers.atomic import replace_file
from fastimg.system.progress import duration
from fastimg.system.terminal import print_table
from fastimg.train.checkpoints.format import MODEL, read_card
from fastimg.train.tasks.score import lower_is_better, shown

from .folder import BOARD
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

    value: the best that it reached. seconds: of training, over all its trials. size: the side of its images, in pixels;
        0 of texts. megabytes: of its weights. images_per_second: at prediction, None where it was not measured.
    settings: those in which trials may differ.
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

    @property
    def winner(self) -> Contender | None:
        """The best model; None where no trial has ended well."""
        return self.rows[0] if self.rows else None

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


def described(row: Contender, folder: Path) -> Contender:
    """With what its checkpoint says: architecture, size of images, size of weights."""
    file = folder / row.run / "best" / MODEL
    card = read_card(file)
    size = 0 if card.text is not None else card.preprocessing.val_size
    return replace(row, arch=card.arch, size=size, megabytes=round(file.stat().st_size / 1e6, 2))


def ordered(rows: Iterable[Contender], metric: str) -> list[Contender]:
    """Best first. Of equal values the faster model comes first, then the one of the lower loss."""
    sign = 1.0 if lower_is_better(metric) else -1.0
    return sorted(rows, key=lambda row: (sign * row.value, -(row.images_per_second or 0.0), row.loss, row.trial))


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


def print_board(board: Leaderboard, console: Console) -> None:
    """At most ten rows, best first."""
    rows = board.rows[:TOP]
    if not rows:
        return
    numbers = ("px", board.metric, "trained", "img/s", "MB")
    columns = [Column(name, justify="right", no_wrap=True) for name in numbers]
    table = Table(
        Column("#", justify="right"), "arch", *columns, "stage", Column("differs in", overflow="fold"), "run", box=None
    )
    for rank, (row, differing) in enumerate(zip(rows, differences(rows), strict=True), 1):
        speed = "" if row.images_per_second is None else f"{row.images_per_second:,.0f}"
        table.add_row(
            str(rank),
            printable(row.arch),
            str(row.size or ""),
            shown(board.metric, row.value),
            duration(row.seconds),
            speed,
            f"{row.megabytes:.1f}",
            row.stage,
            "  ".join(f"{name} {_short(value)}" for name, value in differing.items()),
            row.run,
        )
    print_table(console, table)


def _short(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)
