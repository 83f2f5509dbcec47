"""What all measurements share: the environment they ran in, timing, records and tables."""

import importlib.metadata
import json
import os
import platform
import statistics
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

from fastimg import __version__
from fastimg.loaders.runtime.cpus import available_cpus
from fastimg.wording import number

from .terminal import is_wider, print_table

if TYPE_CHECKING:
    import torch

PACKAGES = (
    *("torch", "torchvision", "timm", "simplejpeg", "pillow", "numpy", "numba"),
    *("kornia", "ffcv", "nvidia-dali-cuda130", "webdataset"),
)


@dataclass(frozen=True)
class Spread:
    """Median, smallest and largest of `n` repeats."""

    median: float
    low: float
    high: float
    n: int

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread":
        """Of at least one value."""
        return cls(statistics.median(values), min(values), max(values), len(values))

    def fields(self, name: str) -> dict[str, float | int]:
        """For a record: `name`, `name_low`, `name_high`, `n`."""
        median, low, high = (_rounded(v) for v in (self.median, self.low, self.high))
        return {name: median, f"{name}_low": low, f"{name}_high": high, "n": self.n}

    def text(self) -> str:
        """For a table's cell."""
        return f"{self.median:.4g} ({self.low:.4g} - {self.high:.4g}, n={self.n})"

    def rate(self) -> str:
        """For a line, of a number of things a second."""
        return f"{number(self.median)} ({number(self.low)} - {number(self.high)}, n={self.n})"

    def rates(self, unit: str) -> dict[str, str | int]:
        """For a table, of a number of things a second: as `columns`."""
        return {unit: number(self.median), "range": f"{number(self.low)} - {number(self.high)}", "n": self.n}

    def columns(self, unit: str) -> dict[str, str | int]:
        """For a table: the median in `unit`, the range, n."""
        return {unit: f"{self.median:.4g}", "range": f"{self.low:.4g} - {self.high:.4g}", "n": self.n}


def environment() -> dict[str, Any]:
    """Hardware, versions, commit, and how busy the machine is. Contains no paths of this machine."""
    import torch

    return {
        "cpu": cpu_model(),
        "cores": available_cpus(),
        "load": round(os.getloadavg()[0], 2),  # of the last minute, by all programs
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "cuda": torch.version.cuda,
        "python": platform.python_version(),
        "fastimg": __version__,
        **{name: _version(name) for name in PACKAGES},
        "commit": commit(),
    }


def flat(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row with every Spread in it spelled out, and floats rounded to five digits."""
    record: dict[str, Any] = {}
    for name, value in row.items():
        if isinstance(value, Spread):
            record |= value.fields(name)
        else:
            record[name] = _rounded(value) if isinstance(value, float) else value
    return record


def append(path: Path, record: Mapping[str, Any]) -> None:
    """Add a record, with the time in UTC, as one line of json."""
    path.parent.mkdir(parents=True, exist_ok=True)
    stamped = {"time": datetime.now(UTC).isoformat(timespec="seconds"), **record}
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(stamped, allow_nan=False) + "\n")


def interleaved(variants: Mapping[str, Callable[[], float]], repeats: int, warmups: int = 1) -> dict[str, Spread]:
    """Call each variant in turn, for `repeats` rounds after `warmups` rounds that do not count.

    Whatever slows the machine down for a while then affects all variants. A variant returns its measurement.
    """
    values: dict[str, list[float]] = {name: [] for name in variants}
    for turn in range(warmups + repeats):
        for name, measure in variants.items():
            value = measure()
            if turn >= warmups:
                values[name].append(value)
    return {name: Spread.of(measured) for name, measured in values.items()}


def seconds(call: Callable[[], object], device: "torch.device") -> float:
    """Duration of one call: between CUDA events on a GPU, by the clock on a CPU."""
    if device.type != "cuda":
        began = time.perf_counter()
        call()
        return time.perf_counter() - began
    import torch

    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    start.record()
    call()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end)) / 1000


def wall_seconds(call: Callable[[], object], device: "torch.device") -> float:
    """Duration of one call by the clock, until the device is idle again, so that waiting for the host counts."""
    synchronise(device)
    began = time.perf_counter()
    call()
    synchronise(device)
    return time.perf_counter() - began


def synchronise(device: "torch.device") -> None:
    """Wait until the device is idle."""
    if device.type == "cuda":
        import torch

        torch.cuda.synchronize(device)


_SPREAD = "range"  # the column that a narrow terminal leaves out, so that no number breaks


def show(console: Console, title: str, rows: Sequence[Mapping[str, Any]]) -> None:
    """Print a small table with one column per key, in order of first appearance."""
    table = _table(rows, Table())
    if is_wider(console, table):
        table = _table(rows, Table(box=None, pad_edge=False))
    if is_wider(console, table) and any(_SPREAD in row for row in rows):
        kept = [{name: value for name, value in row.items() if name != _SPREAD} for row in rows]
        table = _table(kept, Table(box=None, pad_edge=False))
        title += f" ({_SPREAD}: on a wider terminal)"
    print_table(console, table, title)


def _table(rows: Sequence[Mapping[str, Any]], table: Table) -> Table:
    columns = list(dict.fromkeys(key for row in rows for key in row))
    for column in columns:
        numeric = all(isinstance(row.get(column, 0), int | float) for row in rows)
        table.add_column(column, justify="right" if numeric else "left", overflow="fold")
    for row in rows:
        table.add_row(*(_cell(row.get(column)) for column in columns))
    return table


def _cell(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def _rounded(value: float) -> float:
    return float(f"{value:.5g}")


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def cpu_model() -> str:
    """The processor's name."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())


def commit() -> str | None:
    """The checkout's commit, followed by `+changes` if tracked files differ from it. None outside a checkout."""
    root = Path(__file__).resolve().parents[2]
    if not (root / ".git").exists():  # installed inside a checkout of something else
        return None
    try:
        head = _git(root, "rev-parse", "--short=12", "HEAD")
        changed = _git(root, "status", "--porcelain", "--untracked-files=no", "--", "loaders", "augment", "fastimg")
    except (OSError, subprocess.CalledProcessError):
        return None
    return head + ("+changes" if changed else "")


def _git(root: Path, *arguments: str) -> str:
    environ = {**os.environ, "GIT_OPTIONAL_LOCKS": "0"}
    done = subprocess.run(["git", "-C", root, *arguments], capture_output=True, text=True, check=True, env=environ)
    return done.stdout.strip()
