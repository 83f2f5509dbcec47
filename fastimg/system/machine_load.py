"""How busy the machine is with other processes during a measurement. Does not import torch."""

import multiprocessing
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from fastimg.wording import plural

ROOT = Path("/")


class CpuTimes(NamedTuple):
    """CPU seconds since the machine started: all of them, those in use, and those of this program."""

    total: float
    busy: float
    own: float


@dataclass(frozen=True, kw_only=True)
class Load:
    """What else ran during a measurement. Fields are None if the system does not report them."""

    before: float | None  # load average of the last minute, when the measurement began
    during: float | None  # when it ended; includes the measurement itself
    cores: int  # of the machine
    others: float | None  # share of the processors that other programs used meanwhile

    def text(self) -> str:
        """A description for people."""
        parts = []
        if self.before is not None and self.during is not None:
            loads = f"load average {self.before:.1f} before and {self.during:.1f} after"
            parts.append(f"{loads}, on {plural(self.cores, 'core')}")
        if self.others is not None:
            parts.append(f"other processes used {self.others:.0%} of the processors")
        return "; ".join(parts) or "not known on this system"

    def record(self) -> dict[str, Any]:
        """The same as JSON values."""
        return {
            "before": self.before,
            "during": self.during,
            "cores": self.cores,
            "others_share": None if self.others is None else round(self.others, 4),
        }


class LoadWatch:
    """Watches the machine from its creation on; `load()` reports what happened since."""

    def __init__(
        self,
        cpu_times: Callable[[], CpuTimes | None] | None = None,
        average: Callable[[], float | None] | None = None,
        cores: int | None = None,
    ) -> None:
        self._cpu_times = cpu_times or read_cpu_times
        self._average = average or load_average
        self._cores = cores or os.cpu_count() or 1
        self._began = self._cpu_times()
        self._before = self._average()

    def load(self) -> Load:
        """The load so far."""
        return Load(
            before=self._before,
            during=self._average(),
            cores=self._cores,
            others=share_of_others(self._began, self._cpu_times()),
        )


def share_of_others(before: CpuTimes | None, after: CpuTimes | None) -> float | None:
    """The share of all processors, from 0 to 1, that other programs used."""
    if before is None or after is None or after.total <= before.total:
        return None
    others = (after.busy - before.busy) - (after.own - before.own)
    return min(1.0, max(0.0, others / (after.total - before.total)))


def load_average() -> float | None:
    """The load average of the last minute."""
    try:
        return round(os.getloadavg()[0], 2)
    except OSError:
        return None


def read_cpu_times(root: Path = ROOT) -> CpuTimes | None:
    """CPU times from /proc/stat; None if it does not exist."""
    ticks = os.sysconf("SC_CLK_TCK")
    try:
        line = (root / "proc/stat").read_text().splitlines()[0].split()
        user, nice, system, idle, waiting, *rest = (int(number) / ticks for number in line[1:9])
    except (OSError, ValueError, IndexError):
        return None
    busy = user + nice + system + sum(rest)  # rest: interrupts, and time stolen by the host
    return CpuTimes(total=busy + idle + waiting, busy=busy, own=_own(root, ticks))


def _own(root: Path, ticks: int) -> float:
    """CPU seconds of this process, its finished children, and the running loader processes."""
    times = os.times()
    own = times.user + times.system + times.children_user + times.children_system
    for child in multiprocessing.active_children():
        try:
            fields = (root / "proc" / str(child.pid) / "stat").read_text().rpartition(")")[2].split()
            own += (int(fields[11]) + int(fields[12])) / ticks
        except (OSError, ValueError, IndexError):  # the process has just ended
            continue
    return own
