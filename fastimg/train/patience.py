"""Which of two validations is better, and how long ago the last improvement was.

The best checkpoint has the highest top-1 accuracy; on a tie, the lowest loss. `--patience` watches one more metric, so
that a run never stops while either of the two improves.
"""

import math
from dataclasses import asdict, dataclass
from typing import Any, Literal

from .metrics import Score

Metric = Literal["loss", "top1", "balanced_accuracy"]
DEFAULT_METRIC: Metric = "loss"
_NAMES: dict[Metric, str] = {
    "loss": "validation loss",
    "top1": "top-1 accuracy",
    "balanced_accuracy": "balanced accuracy",
}


@dataclass(frozen=True)
class Best:
    """The best validation so far, by some metric."""

    score: Score
    epoch: int


@dataclass(frozen=True)
class Standing:
    """What the validations of a run have shown so far."""

    best: Best | None = None  # by top-1: what RUN/best holds
    watched: Best | None = None  # by the metric of --patience
    stale: int = 0  # validations since the last improvement that count for --patience

    def after(self, score: Score, epoch: int, metric: Metric, counts: bool = True) -> "Standing":
        """The standing after one more validation. One that does not count uses up no patience."""
        latest = Best(score, epoch)
        is_best = self.best is None or is_better(score, self.best.score, "top1")
        is_watched = self.watched is None or is_better(score, self.watched.score, metric)
        return Standing(
            best=latest if is_best else self.best,
            watched=latest if is_watched else self.watched,
            stale=0 if is_best or is_watched or not counts else self.stale + 1,
        )

    def state_dict(self) -> dict[str, Any]:
        """For a checkpoint."""
        return asdict(self)

    @classmethod
    def from_state(cls, training: dict[str, Any]) -> "Standing":
        """From a checkpoint's training state. Older ones have no watched metric: their best takes its place."""
        best, watched = (
            None if stated is None else Best(Score(**stated["score"]), stated["epoch"])
            for stated in (training["best"], training.get("watched", training["best"]))
        )
        return cls(best, watched, training["stale"])


def is_better(score: Score, other: Score, metric: Metric) -> bool:
    """By `metric`; the lower loss decides if accuracies tie. A loss of NaN never wins."""
    if metric != "loss":
        ours = _accuracy(score, metric)
        theirs = _accuracy(other, metric)
        if ours != theirs:
            return ours > theirs
    return score.loss < other.loss or (math.isnan(other.loss) and not math.isnan(score.loss))


def _accuracy(score: Score, metric: Metric) -> float:
    value: float | None = getattr(score, metric)
    return -1.0 if value is None else value  # older checkpoints have no balanced accuracy


def rule(patience: int, metric: Metric) -> str:
    """When the run stops, in words."""
    validations = "validation" if patience == 1 else "validations"
    direction = "lower" if metric == "loss" else "higher"
    return f"stops after {patience} {validations} without a {direction} {_NAMES[metric]} or a new best checkpoint"


def stopped(standing: Standing, metric: Metric, epoch: int) -> str:
    """Why a run stopped after `epoch`: the best value of the metric and its epoch."""
    best = standing.best
    watched = standing.watched
    assert best is not None and watched is not None
    name = _NAMES[metric]
    shown = f"lowest {name} {watched.score.loss:.4f}"
    if metric != "loss":
        shown = f"highest {name} {_accuracy(watched.score, metric):.2%}"
    epochs = epoch - max(best.epoch, watched.epoch)
    words = f"no better for {epochs} {'epoch' if epochs == 1 else 'epochs'}: {shown} in epoch {watched.epoch}"
    if best.epoch != watched.epoch:
        words += f", best checkpoint (top-1 {best.score.top1:.2%}) in epoch {best.epoch}"
    return words
