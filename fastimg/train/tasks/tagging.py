"""The task of several labels: a yes-or-no question for each; average precision and F1."""

from dataclasses import dataclass, field, replace
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import torch

from fastimg.augment.mixing import Mixture
from fastimg.loaders.containers.targets import Target, TargetColumn
from fastimg.models.ranks import Ranks
from fastimg.train.losses import CROSS_ENTROPY, LossSettings, multilabel_losses

from .classification import both_present
from .ranking import ranked_scores
from .task import Counted, Truth


@dataclass(frozen=True, kw_only=True)
class MultilabelTask:
    """Any number of C labels. `pos_weight` [C] multiplies the loss of a label where it is there.

    thresholds: of a checkpoint, the probabilities from which on labels are predicted; empty where a validation is to
        choose them.
    """

    target: Target
    settings: LossSettings = CROSS_ENTROPY
    pos_weight: torch.Tensor | None = None
    thresholds: tuple[float, ...] = ()
    likelihood: float = field(default=1.0, init=False)
    sums: int = field(default=2, init=False)
    metrics: tuple[str, ...] = field(default=("map", "f1"), init=False)

    @property
    def outputs(self) -> int:
        """See Task."""
        return len(self.target.classes)

    def to(self, device: torch.device) -> Self:
        """See Task."""
        return self if self.pos_weight is None else replace(self, pos_weight=self.pos_weight.to(device))

    def column(self, column: TargetColumn) -> TargetColumn:
        """See Task."""
        return column

    def describe(self) -> str:
        """See Task."""
        loss = self.settings
        words = {
            "focal": f"focal of each label, gamma {loss.focal_gamma:g}",
            "asymmetric": f"asymmetric of each label, gammas {loss.gamma_positive:g} and {loss.gamma_negative:g}",
        }.get(loss.kind, "binary cross-entropy of each label")
        if self.pos_weight is None:
            return words
        return f"{words}, where it applies times {self.pos_weight.min():.3g} to {self.pos_weight.max():.3g}"

    def loss(self, logits: torch.Tensor, truth: Truth) -> torch.Tensor:
        """See Task. Summed over labels, in nats."""
        return truth.masked(multilabel_losses(logits, truth.filled(), self.settings, self.pos_weight))

    def evaluation_loss(self, logits: torch.Tensor, truth: Truth) -> torch.Tensor:
        """See Task. Binary cross-entropy, summed over labels, in nats."""
        return truth.masked(multilabel_losses(logits, truth.filled(), CROSS_ENTROPY))

    def mixed(self, truth: Truth, mixture: Mixture | None) -> Truth:
        """See Task. Shares of labels float32 [B, C]."""
        shares = truth.filled().float()
        if mixture is None:
            return replace(truth, values=shares)
        return Truth(mixture.blend(shares), both_present(truth.present, mixture))

    def count(self, logits: torch.Tensor, losses: torch.Tensor, truth: Truth, weight: torch.Tensor) -> torch.Tensor:
        """See Task. Sums of losses and weights."""
        own = truth.weighed(weight)
        return torch.stack([(losses * own).sum(), own.sum()]).double()

    def means(self, sums: list[float]) -> dict[str, float]:
        """See Task."""
        loss, count = sums
        return {"loss": loss / count} if count else {}

    def counter(self, device: torch.device) -> "LabelCounter":
        """See Task."""
        return LabelCounter(self.thresholds)

    def stated(self) -> dict[str, Any]:
        """See Task."""
        return {}

    def outputs_of(self, logits: npt.NDArray[np.float32]) -> npt.NDArray[np.float64]:
        """See Task. A probability for each label."""
        probabilities: npt.NDArray[np.float64] = torch.from_numpy(logits).double().sigmoid().numpy()
        return probabilities

    def logits_of(self, outputs: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """See Task. Log odds."""
        inside = np.clip(outputs, 1e-38, 1.0 - 1e-16)
        logits: npt.NDArray[np.float64] = np.log(inside) - np.log1p(-inside)
        return logits


class LabelCounter:
    """Keeps the logits and labels of a whole validation on the device: average precision ranks all samples.

    With C labels that is 5 bytes x C for each sample.
    """

    def __init__(self, thresholds: tuple[float, ...] = ()) -> None:
        self._thresholds = thresholds
        self._logits: list[torch.Tensor] = []
        self._labels: list[torch.Tensor] = []
        self._counts: list[torch.Tensor] = []

    def add(self, logits: torch.Tensor, truth: Truth, weight: torch.Tensor) -> None:
        """See Counter."""
        self._logits.append(logits.float().clone())  # a model with CUDA graphs writes to the same memory again
        self._labels.append(truth.filled().to(torch.uint8))
        self._counts.append((truth.weighed(weight) > 0).to(torch.uint8))

    def read(self, ranks: Ranks) -> Counted:
        """See Counter. F1 is that at the thresholds, which are chosen on the same samples where none are given."""
        if not self._logits:
            return Counted(values={})
        logits, labels, counts = (
            ranks.rows(torch.cat(rows)).flatten(0, 1) for rows in (self._logits, self._labels, self._counts)
        )
        there = counts > 0
        logits, labels = logits[there], labels[there] > 0
        found = ranked_scores(logits, labels)
        if self._thresholds:
            found = found.at(logits, labels, self._thresholds)
        own = found.positives > 0
        if not bool(own.any()):
            return Counted(values={}, thresholds=tuple(found.thresholds.tolist()))
        values = {"map": float(found.precision[own].mean()), "f1": float(found.f1[own].mean())}
        return Counted(values=values, thresholds=tuple(found.thresholds.tolist()))
