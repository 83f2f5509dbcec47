"""How busy a machine is with other processes, while something is measured on it. Nothing here imports torch."""

import multiprocessing
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from fastimg.wording import plural

ROOT = Path("/")


class CpuTimes(NamedTuple):
    """Seconds of processors since the machine was started: all there were, those in use, and those of this program."""

    total: float
    busy: float
    own: float


@dataclass(frozen=True, kw_only=True)
class Load:
    """What else went on. None: the system does not say."""

    before: float | None  # load average of the last minute, when the measurement began
    during: float | None  # when it ended; what was measured is in it
    cores: int  # of the machine
    others: float | None  # share of its processors that other programs took meanwhile

    def text(self) -> str:
        """For a person."""
        words = []
        if self.before is not None and self.during is not None:
            loads = f"load average {self.before:.1f} before and {self.during:.1f} after"
            words.append(f"{loads}, on {plural(self.cores, 'core')}")
        if self.others is not None:
            words.append(f"other processes took {self.others:.0%} of the processors")
        return "; ".join(words) or "not known on this system"

    def record(self) -> dict[str, Any]:
        """For json."""
        return {
            "before": self.before,
            "during": self.during,
            "cores": self.cores,
            "others_share": None if self.others is None else round(self.others, 4),
        }


class LoadWatch:
    """Looks at the machine from now on: `load()` says what went on since."""

    def __init__(
        self,
        spent: Callable[[], CpuTimes | None] | None = None,
        average: Callable[[], float | None] | None = None,
        cores: int | None = None,
    ) -> None:
        self._spent, self._average = spent or read_cpu_times, average or load_average
        self._cores = cores or os.cpu_count() or 1
        self._began, self._before = self._spent(), self._average()

    def load(self) -> Load:
        """So far."""
        return Load(
            before=self._before,
            during=self._average(),
            cores=self._cores,
            others=share_of_others(self._began, self._spent()),
        )


def share_of_others(before: CpuTimes | None, after: CpuTimes | None) -> float | None:
    """The share of all processors, from 0 to 1, that was in use and not by this program."""
    if before is None or after is None or after.total <= before.total:
        return None
    others = (after.busy - before.busy) - (after.own - before.own)
    return min(1.0, max(0.0, others / (after.total - before.total)))


def load_average() -> float | None:
    """Processes that wanted to run, on average over the last minute."""
    try:
        return round(os.getloadavg()[0], 2)
    except OSError:
        return None


def read_cpu_times(root: Path = ROOT) -> CpuTimes | None:
    """From /proc/stat; None where there is none."""
    ticks = os.sysconf("SC_CLK_TCK")
    try:
        line = (root / "proc/stat").read_text().splitlines()[0].split()
        user, nice, system, idle, waiting, *rest = (int(number) / ticks for number in line[1:9])
    except (OSError, ValueError, IndexError):
        return None
    busy = user + nice + system + sum(rest)  # rest: interrupts, and what the host took from this virtual machine
    return CpuTimes(total=busy + idle + waiting, busy=busy, own=_own(root, ticks))


def _own(root: Path, ticks: int) -> float:
    """Of this process, of its children that have ended, and of the loader's processes that run."""
    times = os.times()
    own = times.user + times.system + times.children_user + times.children_system
    for child in multiprocessing.active_children():
        try:
            fields = (root / "proc" / str(child.pid) / "stat").read_text().rpartition(")")[2].split()
            own += (int(fields[11]) + int(fields[12])) / ticks
        except (OSError, ValueError, IndexError):  # it has just ended
            continue
    return own
