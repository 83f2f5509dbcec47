"""Which of two validations is better, and how long ago the last improvement was.

The best checkpoint of a class has the highest top-1 accuracy, of several targets the lowest weighted loss; on a tie,
the lowest loss. `--patience` watches one more metric, so that a run never stops while either of the two improves.
`--metric` names one metric for both.
"""

import math
from dataclasses import asdict, dataclass
from typing import Any

from fastimg.config.commands import Train
from fastimg.errors import UsageError, nearest, printable

from .tasks.joint import Tasks
from .tasks.score import AnyScore, Score, TargetScores, lower_is_better, shown

DEFAULT_METRIC = "loss"
_NAMES = {
    "loss": "validation loss",
    "top1": "top-1 accuracy",
    "top5": "top-5 accuracy",
    "balanced_accuracy": "balanced accuracy",
}


def check(config: Train, tasks: Tasks) -> None:
    """Raises UsageError for metrics that the targets do not have."""
    deciding(config, tasks)
    watched(config, tasks)


def deciding(config: Train, tasks: Tasks) -> str:
    """The metric by which a checkpoint is the best."""
    if config.metric is not None:
        return named(config.metric, tasks)
    return DEFAULT_METRIC if tasks.single is None else "top1"


def watched(config: Train, tasks: Tasks) -> str:
    """The metric that --patience watches."""
    if config.metric is not None:
        return named(config.metric, tasks)
    metric = config.patience_metric or DEFAULT_METRIC
    if metric not in tasks.metrics:
        raise UsageError(
            f"--patience-metric {metric}: there are several targets, or none is a class; use --metric with one of "
            f"{', '.join(tasks.metrics)}"
        )
    return metric


def named(metric: str, tasks: Tasks) -> str:
    """The metric that --metric names; of a lone target its name may be there or not. Raises UsageError."""
    if metric in tasks.metrics:
        return metric
    if len(tasks.all) == 1:
        target = tasks.all[0].target.name
        other = metric.removeprefix(f"{target}.") if tasks.single is not None else f"{target}.{metric}"
        if other in tasks.metrics:
            return other
    raise UsageError(
        f"--metric {metric}: give one of {printable(', '.join(tasks.metrics))}{nearest(metric, tasks.metrics)}"
    )


@dataclass(frozen=True)
class Best:
    """The best validation so far, by some metric."""

    score: AnyScore
    epoch: int


@dataclass(frozen=True)
class Standing:
    """What the validations of a run have shown so far."""

    best: Best | None = None  # by the metric that decides: what RUN/best holds
    watched: Best | None = None  # by the metric of --patience
    stale: int = 0  # validations since the last improvement that count for --patience

    def after(self, score: AnyScore, epoch: int, metric: str, counts: bool = True, decides: str = "top1") -> "Standing":
        """The standing after one more validation. One that does not count uses up no patience.

        `decides` says which checkpoint is the best, `metric` is watched.
        """
        latest = Best(score, epoch)
        is_best = self.best is None or is_better(score, self.best.score, decides)
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
            None if stated is None else Best(_score(stated["score"]), stated["epoch"])
            for stated in (training["best"], training.get("watched", training["best"]))
        )
        return cls(best, watched, training["stale"])


def _score(stated: dict[str, Any]) -> AnyScore:
    return Score(**stated) if "top1" in stated else TargetScores(**stated)


def is_better(score: AnyScore, other: AnyScore, metric: str) -> bool:
    """By `metric`; the lower loss decides if others tie. A loss of NaN never wins."""
    if metric != "loss":
        ours = _height(score, metric)
        theirs = _height(other, metric)
        if ours != theirs:
            return ours > theirs
    return score.loss < other.loss or (math.isnan(other.loss) and not math.isnan(score.loss))


def _height(score: AnyScore, metric: str) -> float:
    """A metric of which more is better. What was not counted, as by older checkpoints, is the worst."""
    value = score.value(metric)
    if value is None or math.isnan(value):
        return -math.inf
    return -value if lower_is_better(metric) else value


def words(metric: str) -> str:
    """A metric's name as people read it."""
    return _NAMES.get(metric, metric)


def rule(patience: int, metric: str) -> str:
    """When the run stops, in words."""
    validations = "validation" if patience == 1 else "validations"
    direction = "lower" if lower_is_better(metric) else "higher"
    return f"stops after {patience} {validations} without a {direction} {words(metric)} or a new best checkpoint"


def stopped(standing: Standing, metric: str, epoch: int, decides: str = "top1") -> str:
    """Why a run stopped after `epoch`: the best value of the metric and its epoch."""
    best = standing.best
    watched = standing.watched
    assert best is not None and watched is not None
    value = watched.score.value(metric)
    direction = "lowest" if lower_is_better(metric) else "highest"
    told = f"{direction} {words(metric)}" + ("" if value is None else f" {shown(metric, value)}")
    epochs = epoch - max(best.epoch, watched.epoch)
    text = f"no better for {epochs} {'epoch' if epochs == 1 else 'epochs'}: {told} in epoch {watched.epoch}"
    if best.epoch != watched.epoch:
        value = best.score.value(decides)
        name = "top-1" if decides == "top1" else words(decides)
        text += (
            f", best checkpoint ({name}{'' if value is None else f' {shown(decides, value)}'}) in epoch {best.epoch}"
        )
    return text
