"""What ranks on a cluster and the process that started them tell each other: an actor beside that process."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class RankFault:
    """Why training cannot go on, as a sentence for the user: it would fail again in the same way."""

    words: str
    exit_code: int


class RankBoard:
    """Lines to print, and what has been said once: the run's directory, a fault, a signal to stop.

    Each call answers at once.
    """

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._run: Path | None = None
        self._fault: RankFault | None = None
        self._signal = 0

    def say(self, line: str) -> None:
        """Rank 0 prints."""
        self._lines.append(line)

    def lines(self) -> list[str]:
        """What has been printed since this was called last."""
        lines, self._lines = self._lines, []
        return lines

    def begin(self, run: Path) -> None:
        """The run can be resumed from this directory."""
        self._run = run

    def run(self) -> Path | None:
        """The run's directory, once there is one."""
        return self._run

    def refuse(self, fault: RankFault) -> None:
        """Training cannot go on; the first reason counts."""
        self._fault = self._fault or fault

    def fault(self) -> RankFault | None:
        """Why training cannot go on."""
        return self._fault

    def stop(self, signal: int) -> None:
        """Ask rank 0 to stop after a step, with a checkpoint."""
        self._signal = signal

    def signal(self) -> int:
        """The number of the signal that rank 0 is asked to stop by; 0 for none."""
        return self._signal
