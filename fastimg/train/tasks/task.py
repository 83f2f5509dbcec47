"""What a task is: how one target of a batch becomes outputs, a loss and scores."""

from dataclasses import dataclass
from typing import Any, Protocol, Self

import numpy as np
import numpy.typing as npt
import torch

from fastimg.augment.mixing import Mixture
from fastimg.loaders.containers.targets import Target, TargetColumn
from fastimg.models.ranks import Ranks


@dataclass(frozen=True)
class Truth:
    """One target of a batch, on the device.

    values: classes int64 [B], or soft ones float32 [B, C]; labels uint8 [B, C], or soft ones float32; standardised
        numbers float32 [B]. Anything where the target is missing.
    present: bool [B]; None where no sample lacks the target.
    """

    values: torch.Tensor
    present: torch.Tensor | None = None

    def filled(self) -> torch.Tensor:
        """The values, and zeros where the target is missing, so that whatever stands there has no gradient."""
        if self.present is None:
            return self.values
        rows = self.present if self.values.ndim == 1 else self.present[:, None]
        return torch.where(rows, self.values, torch.zeros_like(self.values))

    def masked(self, rows: torch.Tensor) -> torch.Tensor:
        """`rows` [B], and exactly 0 where the target is missing."""
        return rows if self.present is None else torch.where(self.present, rows, torch.zeros_like(rows))

    def weighed(self, weight: torch.Tensor) -> torch.Tensor:
        """The weights of samples [B], 0 where the target is missing."""
        return weight if self.present is None else weight * self.present

    @property
    def tensors(self) -> tuple[torch.Tensor, ...]:
        """What lies on the device."""
        return (self.values,) if self.present is None else (self.values, self.present)


class Counter(Protocol):
    """What is counted of one target over a whole validation, beside its sums."""

    def add(self, logits: torch.Tensor, truth: Truth, weight: torch.Tensor) -> None:
        """Count a batch: logits [B, w], weight [B]. No sync."""

    def read(self, ranks: Ranks) -> "Counted":
        """What was counted on all ranks, all of which call this. A sync point."""


@dataclass(frozen=True, kw_only=True)
class Counted:
    """Scores by name; the thresholds of labels; the classes that have samples and a recall of 0."""

    values: dict[str, float]
    thresholds: tuple[float, ...] = ()
    missed: tuple[int, ...] = ()


class Task(Protocol):
    """One target: a class, several labels or a number."""

    @property
    def target(self) -> Target:
        """Its schema."""

    @property
    def outputs(self) -> int:
        """How many of the model's outputs are its own."""

    @property
    def likelihood(self) -> float:
        """The factor of the loss in a log-likelihood with a learned variance (Kendall, Gal and Cipolla, 2018)."""

    @property
    def metrics(self) -> tuple[str, ...]:
        """The names of its scores, beside the loss, the most important one first."""

    @property
    def sums(self) -> int:
        """The length of `count`."""

    def to(self, device: torch.device) -> Self:
        """The task with its tensors on a device."""

    def column(self, column: TargetColumn) -> TargetColumn:
        """The values as training takes them."""

    def describe(self) -> str:
        """The training loss, in words."""

    def loss(self, logits: torch.Tensor, truth: Truth) -> torch.Tensor:
        """The training loss [B] of logits [B, w]: exactly 0, with no gradient, where the target is missing."""

    def evaluation_loss(self, logits: torch.Tensor, truth: Truth) -> torch.Tensor:
        """The loss [B] that validation tells: without smoothing and weights."""

    def mixed(self, truth: Truth, mixture: Mixture | None) -> Truth:
        """The target of mixed samples, present only where it is in both partners; smoothed where that applies."""

    def count(self, logits: torch.Tensor, losses: torch.Tensor, truth: Truth, weight: torch.Tensor) -> torch.Tensor:
        """Sums over a batch, float64 [sums]: the losses first, the weights last. No sync."""

    def means(self, sums: list[float]) -> dict[str, float]:
        """The scores that `count`'s sums tell."""

    def counter(self, device: torch.device) -> Counter:
        """What a validation counts beside the sums."""

    def stated(self) -> dict[str, Any]:
        """What a checkpoint states about the target, beside its schema."""

    def outputs_of(self, logits: npt.NDArray[np.float32]) -> npt.NDArray[np.float64]:
        """Logits [N, w] as people read them: probabilities [N, w], or numbers in their own units [N, 1]."""

    def logits_of(self, outputs: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """Logits [N, w] with these `outputs_of`: of means over several models, for scoring."""


class NothingMore:
    """The counter of a task whose sums tell everything."""

    def add(self, logits: torch.Tensor, truth: Truth, weight: torch.Tensor) -> None:
        """See Counter."""

    def read(self, ranks: Ranks) -> Counted:
        """See Counter."""
        return Counted(values={})
