"""What a validation, or training so far, has shown."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

LOWER = ("loss", "mae")  # metrics of which less is better


@dataclass(frozen=True, kw_only=True)
class Score:
    """Means over samples of weight 1: loss in nats, accuracies as shares."""

    loss: float
    top1: float
    top5: float
    samples: int
    balanced_accuracy: float | None = None  # mean recall of the classes that have samples, where classes were counted
    missed: tuple[int, ...] = ()  # classes that have samples and a recall of 0

    @classmethod
    def of(cls, sums: Sequence[float]) -> "Score":
        """Of sums of loss, top-1 hits, top-5 hits and weights."""
        loss, top1, top5, count = sums
        weight = max(count, 1.0)
        return cls(loss=loss / weight, top1=top1 / weight, top5=top5 / weight, samples=round(count))

    def value(self, metric: str) -> float | None:
        """A score by name; None where it was not counted."""
        found: float | None = getattr(self, metric)
        return found

    def as_dict(self, classes: int) -> dict[str, float]:
        """For logs; with top-5 if it is informative, and with recalls if classes were counted."""
        values: dict[str, float] = {"loss": self.loss, "top1": self.top1, "samples": self.samples}
        if self.balanced_accuracy is not None:
            values |= {"balanced_accuracy": self.balanced_accuracy, "zero_recall_classes": len(self.missed)}
        return {**values, "top5": self.top5} if shows_top5(classes) else values


@dataclass(frozen=True, kw_only=True)
class TargetScores:
    """The scores of several targets, or of one that is not a class.

    loss: the mean over samples of the weighted sum of the targets' losses, or the loss of the only target.
    values: by `target.metric`, as in `age.mae`. Each is a mean over the samples that have the target.
    thresholds: of labels, by target: the probability from which on each is predicted.
    """

    loss: float
    samples: int
    values: Mapping[str, float]
    thresholds: Mapping[str, tuple[float, ...]] = field(default_factory=dict)

    def value(self, metric: str) -> float | None:
        """A score by name; None where no sample has the target."""
        return self.loss if metric == "loss" else self.values.get(metric)

    def as_dict(self) -> dict[str, float]:
        """For logs."""
        return {"loss": self.loss, "samples": self.samples, **self.values}


AnyScore = Score | TargetScores


def lower_is_better(metric: str) -> bool:
    """Whether less of a metric is better: of losses and errors."""
    return metric.rpartition(".")[2] in LOWER


def shown(metric: str, value: float) -> str:
    """A value as people read it."""
    kind = metric.rpartition(".")[2]
    return {"loss": f"{value:.4f}", "mae": f"{value:.4g}", "r2": f"{value:.3f}"}.get(kind, f"{value:.2%}")


def shown_scores(score: AnyScore) -> dict[str, str]:
    """The scores of a validation by name, as people read them."""
    names = ("loss", "top1", "balanced_accuracy") if isinstance(score, Score) else ("loss", *score.values)
    return {name: shown(name, value) for name in names if (value := score.value(name)) is not None}


def zero_recall(names: Sequence[str]) -> str:
    """A sentence that names the first ten classes with a recall of 0, and says how many there are."""
    more = f" and {len(names) - 10:,} more" if len(names) > 10 else ""
    classes = "class has" if len(names) == 1 else "classes have"
    return f"{len(names):,} {classes} a recall of 0: {', '.join(names[:10])}{more}"


def shows_top5(classes: int) -> bool:
    """Whether top-5 accuracy is informative: with ten classes or more."""
    return classes >= 10
