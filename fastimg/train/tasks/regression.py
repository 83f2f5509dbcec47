"""The task of a number: smooth L1 on standardised numbers; mean absolute error and R2 in the number's own units."""

from dataclasses import dataclass, field, replace
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F

from fastimg.augment.mixing import Mixture
from fastimg.loaders.containers.targets import Target, TargetColumn
from fastimg.wording import legible

from .task import NothingMore, Truth


@dataclass(frozen=True, kw_only=True)
class NumberTask:
    """A number, of which the model predicts (number - mean) / std; both are those of the training part."""

    target: Target
    mean: float
    std: float
    outputs: int = field(default=1, init=False)
    likelihood: float = field(default=0.5, init=False)
    sums: int = field(default=6, init=False)
    metrics: tuple[str, ...] = field(default=("mae", "r2"), init=False)

    @property
    def exported_type(self) -> torch.dtype:
        """float32, which is off by up to 6e-6 deviations here; float64 where the mean is further from 0 than that."""
        return torch.float32 if abs(self.mean) <= 100 * self.std and 1e-30 < self.std < 1e30 else torch.float64

    def to(self, device: torch.device) -> Self:
        """See Task."""
        return self

    def column(self, column: TargetColumn) -> TargetColumn:
        """See Task. Standardised in float64: large numbers with a small spread keep it."""
        return replace(column, values=(column.values - self.mean) / self.std)

    def describe(self) -> str:
        """See Task."""
        return f"smooth L1 of (x - {legible(self.mean)}) / {legible(self.std)}"

    def loss(self, logits: torch.Tensor, truth: Truth) -> torch.Tensor:
        """See Task."""
        return truth.masked(F.smooth_l1_loss(logits.float()[:, 0], truth.filled(), reduction="none"))

    def evaluation_loss(self, logits: torch.Tensor, truth: Truth) -> torch.Tensor:
        """See Task."""
        return self.loss(logits, truth)

    def mixed(self, truth: Truth, mixture: Mixture | None) -> Truth:
        """See Task. Mixing is refused before a run begins: a mixed picture has no number between the two."""
        assert mixture is None
        return truth

    def count(self, logits: torch.Tensor, losses: torch.Tensor, truth: Truth, weight: torch.Tensor) -> torch.Tensor:
        """See Task. Sums of losses, absolute errors, squared errors, numbers, their squares, and weights."""
        numbers = truth.filled().double()
        error = logits[:, 0].double() - numbers
        rows = torch.stack(
            [losses.double(), error.abs(), error.square(), numbers, numbers.square(), torch.ones_like(error)]
        )
        return (rows * truth.weighed(weight)).sum(dim=1)

    def means(self, sums: list[float]) -> dict[str, float]:
        """See Task. R2 as scikit-learn has it, for two samples or more."""
        loss, absolute, squared, total, squares, count = sums
        if not count:
            return {}
        values = {"loss": loss / count, "mae": absolute / count * self.std}
        if count < 2:
            return values
        spread = squares - total * total / count
        if spread <= 1e-12 * squares:  # one number alone
            return {**values, "r2": 1.0 if squared == 0 else 0.0}
        return {**values, "r2": 1.0 - squared / spread}

    def counter(self, device: torch.device) -> NothingMore:
        """See Task."""
        return NothingMore()

    def stated(self) -> dict[str, Any]:
        """See Task."""
        return {"mean": self.mean, "std": self.std}

    def outputs_of(self, logits: npt.NDArray[np.float32]) -> npt.NDArray[np.float64]:
        """See Task. Numbers in their own units."""
        numbers: npt.NDArray[np.float64] = logits.astype(np.float64) * self.std + self.mean
        return numbers

    def logits_of(self, outputs: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """See Task. Standardised numbers."""
        logits: npt.NDArray[np.float64] = (outputs - self.mean) / self.std
        return logits
