"""What a tracker is told of a run, and the protocol between both."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol


@dataclass(frozen=True, kw_only=True)
class TrackedRun:
    """A run as a tracker sees it. Checkpoints are told by their paths, and stay where they are."""

    directory: Path
    config: Mapping[str, Any]  # effective settings, as in config.yaml
    step: int  # done before; above 0 where the run is resumed
    key: str | None  # what the tracker called this run before; None for a new one

    @property
    def checkpoints(self) -> dict[str, str]:
        """Where the run's checkpoints will be, by link."""
        return {name: str((self.directory / name).resolve()) for name in ("best", "last")}


class Tracker(Protocol):
    """One tracker's run. Its methods may raise anything: `Trackers` drops a tracker that does."""

    @property
    def key(self) -> str:
        """By what the tracker finds this run again, when it is resumed."""

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        """Numbers after optimiser step `step`, by names such as val/top1."""

    def picture(self, name: str, file: Path) -> None:
        """A picture, as a PNG file in the run's directory."""

    def close(self) -> None:
        """Write what is left; no more calls follow."""
