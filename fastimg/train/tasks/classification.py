"""The task of a class: cross-entropy or another loss of classes; accuracies."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F

from fastimg.augment.mixing import Mixture, soften
from fastimg.loaders.containers.targets import Target, TargetColumn
from fastimg.models.ranks import Ranks
from fastimg.train.losses import CROSS_ENTROPY, LossSettings, losses

from .score import shows_top5
from .task import Counted, Truth


@dataclass(frozen=True, kw_only=True)
class ClassTask:
    """One of C classes. `outputs` is C, or more where --num-classes asks for them."""

    target: Target
    outputs: int
    settings: LossSettings = CROSS_ENTROPY
    counts: tuple[int, ...] = ()  # samples of each class in the training part
    class_weights: str | None = None  # where the weights of `settings` come from
    logit_adjust: float | None = None  # how many times the log priors its `log_priors` are
    likelihood: float = field(default=1.0, init=False)
    sums: int = field(default=4, init=False)

    @property
    def metrics(self) -> tuple[str, ...]:
        """See Task."""
        top5 = ("top5",) if shows_top5(len(self.target.classes)) else ()
        return ("top1", *top5, "balanced_accuracy")

    def to(self, device: torch.device) -> Self:
        """See Task."""
        weights, priors = (
            None if values is None else values.to(device)
            for values in (self.settings.class_weights, self.settings.log_priors)
        )
        return replace(self, settings=replace(self.settings, class_weights=weights, log_priors=priors))

    def column(self, column: TargetColumn) -> TargetColumn:
        """See Task."""
        return column

    def describe(self) -> str:
        """See Task."""
        loss = self.settings
        words = [
            {
                "cross-entropy": "cross-entropy",
                "bce": "binary cross-entropy of each class",
                "focal": f"focal, gamma {loss.focal_gamma:g}",
                "asymmetric": f"asymmetric, gammas {loss.gamma_positive:g} and {loss.gamma_negative:g}",
            }[loss.kind],
            f"label smoothing {loss.smoothing:g}",
        ]
        if loss.class_weights is not None:
            weights = loss.class_weights[loss.class_weights > 0]
            words += [f"classes weigh {weights.min():.3g} to {weights.max():.3g} ({self.class_weights})"]
        if loss.log_priors is not None:
            words += [f"logits adjusted by {self.logit_adjust:g} x log priors"]
        return ", ".join(words)

    def loss(self, logits: torch.Tensor, truth: Truth) -> torch.Tensor:
        """See Task. In nats."""
        values = truth.filled()
        settings = self.settings
        if values.is_floating_point():  # `mixed` has smoothed them
            settings = replace(settings, smoothing=settings.smoothing - self._early)
        return truth.masked(losses(logits, values, settings))

    @property
    def _early(self) -> float:
        """The smoothing before images are mixed; with weights or priors the loss smooths, class by class."""
        plain = self.settings.class_weights is None and self.settings.log_priors is None
        return self.settings.smoothing if plain else 0.0

    def evaluation_loss(self, logits: torch.Tensor, truth: Truth) -> torch.Tensor:
        """See Task. Cross-entropy, in nats."""
        return truth.masked(F.cross_entropy(logits, truth.filled(), reduction="none"))

    def mixed(self, truth: Truth, mixture: Mixture | None) -> Truth:
        """See Task. Soft classes float32 [B, outputs]."""
        soft = soften(truth.filled(), self.outputs, self._early)
        if mixture is None:
            return replace(truth, values=soft)
        return Truth(mixture.blend(soft), both_present(truth.present, mixture))

    def count(self, logits: torch.Tensor, losses: torch.Tensor, truth: Truth, weight: torch.Tensor) -> torch.Tensor:
        """See Task. Sums of losses, top-1 hits, top-5 hits and weights.

        For soft targets, the class with the largest share counts as the right one.
        """
        ranks = ranks_of(logits, hard(truth))
        five = min(5, logits.shape[1])
        rows = torch.stack([losses, (ranks < 1).float(), (ranks < five).float(), torch.ones_like(losses)])
        return (rows * truth.weighed(weight)).sum(dim=1).double()

    def means(self, sums: list[float]) -> dict[str, float]:
        """See Task."""
        loss, top1, top5, count = sums
        if not count:
            return {}
        values = {"loss": loss / count, "top1": top1 / count}
        return {**values, "top5": top5 / count} if shows_top5(len(self.target.classes)) else values

    def counter(self, device: torch.device) -> "RecallCounter":
        """See Task."""
        return RecallCounter(device, len(self.target.classes))

    def stated(self) -> dict[str, Any]:
        """See Task."""
        return {}

    def outputs_of(self, logits: npt.NDArray[np.float32]) -> npt.NDArray[np.float64]:
        """See Task. Probabilities of the classes."""
        own = logits[:, : len(self.target.classes)].astype(np.float64)
        shares = np.exp(own - own.max(axis=1, keepdims=True))
        probabilities: npt.NDArray[np.float64] = shares / shares.sum(axis=1, keepdims=True)
        return probabilities

    def logits_of(self, outputs: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """See Task. Logarithms."""
        logits: npt.NDArray[np.float64] = np.log(np.maximum(outputs, 1e-38))
        return logits


def hard(truth: Truth) -> torch.Tensor:
    """Classes [B]; of soft ones, the one with the largest share."""
    values = truth.filled()
    return values.argmax(dim=1) if values.is_floating_point() else values


def ranks_of(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """How many classes are predicted before the right one, int64 [B]; logits [B, C], targets int64 [B].

    Of equal logits the class with the lower index comes first, as in `predict`. NaN comes before all numbers, as in
    `torch.topk`; a right class whose own logit is NaN has rank C, so that it is never a hit.
    """
    own = logits.gather(1, targets[:, None])
    not_lower = torch.arange(logits.shape[1], device=logits.device) >= targets[:, None]
    behind = (logits < own) | ((logits <= own) & not_lower)  # all are False where `own` is NaN
    return logits.shape[1] - behind.sum(dim=1)


def both_present(present: torch.Tensor | None, mixture: Mixture) -> torch.Tensor | None:
    """Where a mixed sample has its target: where both partners have it, if it was mixed."""
    if present is None:
        return None
    return present & (present[mixture.partner] | (mixture.share == 1.0))


class RecallCounter:
    """The weight and the top-1 hits of each class: float64 [classes, 2]."""

    def __init__(self, device: torch.device, classes: int) -> None:
        self.by_class = torch.zeros((classes, 2), dtype=torch.float64, device=device)

    def add(self, logits: torch.Tensor, truth: Truth, weight: torch.Tensor) -> None:
        """See Counter."""
        targets = hard(truth)
        weight = truth.weighed(weight)
        hits = ranks_of(logits, targets) < 1
        counted = torch.stack([weight, weight * hits], dim=1).double()  # [B, 2]
        self.by_class.index_add_(0, targets.long(), counted)  # unlike bincount, no sync on a GPU

    def read(self, ranks: Ranks) -> Counted:
        """See Counter."""
        balanced, missed = recalls(ranks.sum(self.by_class).tolist())
        values = {} if balanced is None else {"balanced_accuracy": balanced}
        return Counted(values=values, missed=missed)


def recalls(by_class: Sequence[Sequence[float]]) -> tuple[float | None, tuple[int, ...]]:
    """The mean recall over the classes that have samples, None if none has; and the classes with a recall of 0."""
    found = {index: hits / count for index, (count, hits) in enumerate(by_class) if count > 0}
    if not found:
        return None, ()
    return math.fsum(found.values()) / len(found), tuple(index for index, recall in found.items() if recall == 0)
