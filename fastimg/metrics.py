"""What is counted: sums on the device that are read only when somebody looks."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn

from .augment import Policy
from .augmentation import model_input
from .loaders import BatchSource
from .parallel import Ranks
from .precision import Precision


class Meter:
    """Weighted sums of loss, top-1 and top-5 hits, and weights, as one float64 tensor [4] on the device."""

    def __init__(self, device: torch.device) -> None:
        self.sums = torch.zeros(4, dtype=torch.float64, device=device)

    def add(self, logits: torch.Tensor, losses: torch.Tensor, targets: torch.Tensor, weight: torch.Tensor) -> None:
        """Count a batch: logits [B, C], losses [B], targets [B] or soft ones [B, C], weight [B].

        Of soft targets the class with the largest share is the one to hit.
        """
        if targets.is_floating_point():
            targets = targets.argmax(dim=1)
        ranked = logits.topk(min(5, logits.shape[1]), dim=1).indices  # [B, 5]
        hits = ranked == targets[:, None]
        rows = torch.stack([losses, hits[:, 0].float(), hits.any(dim=1).float(), torch.ones_like(losses)])
        self.sums += (rows * weight).sum(dim=1).double()

    def read(self) -> "Score":
        """The means so far. A sync point."""
        loss, top1, top5, count = self.sums.tolist()
        count_ = max(count, 1.0)
        return Score(loss=loss / count_, top1=top1 / count_, top5=top5 / count_, samples=round(count))


@dataclass(frozen=True, kw_only=True)
class Score:
    """Means over samples of weight 1: loss in nats, accuracies as shares."""

    loss: float
    top1: float
    top5: float
    samples: int

    def as_dict(self, classes: int) -> dict[str, float]:
        """For logs; top-5 only where it says something."""
        values = {"loss": self.loss, "top1": self.top1, "samples": self.samples}
        return {**values, "top5": self.top5} if shows_top5(classes) else values


def shows_top5(classes: int) -> bool:
    """Whether top-5 accuracy says something: with ten classes or more."""
    return classes >= 10


def answer(model: nn.Module, images: torch.Tensor, tta: bool = False) -> torch.Tensor:
    """Logits [B, C] in float32 of images [B, 3, H, W]; `tta`: the mean of each image's and its mirror image's."""
    logits: torch.Tensor = model(images).float()
    return (logits + model(images.flip(3)).float()) / 2 if tta else logits


def evaluate(
    model: nn.Module, loader: BatchSource, policy: Policy, precision: Precision, ranks: Ranks, tta: bool = False
) -> Score:
    """Loss (without label smoothing) and accuracy over a whole loader, every sample counted once over all ranks."""
    meter = Meter(ranks.device)
    model.eval()
    with torch.inference_mode():
        for batch in loader:
            with precision.autocast():
                logits = answer(model, model_input(None, batch.inputs, policy, precision.input_dtype), tta)
            losses = F.cross_entropy(logits, batch.targets, reduction="none")
            meter.add(logits, losses, batch.targets, batch.weight)
    ranks.sum(meter.sums)
    return meter.read()
