"""What is known of a trial when it has ended."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

TrialState = Literal["complete", "pruned"]
TIME_OVER = "the time was over"  # how the reason of a trial begins that the clock ended


@dataclass(frozen=True, kw_only=True)
class TrialRecord:
    """A trial that has ended.

    state, reason: complete; or pruned, and the sentence that says why (diverged, out of memory, refused, not
        promising).
    parameters: what was drawn for it. settings: the fields of Train that differ from their defaults, YAML's values.
    values: by objective, in the order of --objective; empty where it was pruned before a validation.
    metrics: the best validation, as in metrics.jsonl. reported: the first objective at each epoch that reported it.
    seconds: of this trial alone, without what was paid once. run: its directory, relative to the search's folder.
    """

    number: int
    stage: str  # heads, fine-tuning, final, or trials (where --param alone decides)
    state: TrialState
    reason: str | None = None
    parameters: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    values: tuple[float, ...] = ()
    metrics: Mapping[str, float] = field(default_factory=dict)
    reported: Mapping[int, float] = field(default_factory=dict)
    seconds: float = 0.0
    epochs: int = 0
    run: Path | None = None

    @property
    def cut(self) -> bool:
        """Whether the clock ended it: a search that is given more time goes on with it."""
        return self.state == "pruned" and (self.reason or "").startswith(TIME_OVER)
