"""Loss and accuracy, summed on the device and read only when they are shown."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from fastimg.augment import Policy
from fastimg.data.model_input import model_input
from fastimg.embeddings.text_rows import inputs_beside
from fastimg.loaders import BatchSource
from fastimg.models.precision import Precision
from fastimg.models.ranks import Ranks


class Meter:
    """Weighted sums of loss, top-1 and top-5 hits, and weights, as one float64 tensor [4] on the device.

    With `classes`, also the weight and the top-1 hits of each class: float64 [classes, 2], which hard targets index.
    """

    def __init__(self, device: torch.device, classes: int = 0) -> None:
        self.sums = torch.zeros(4, dtype=torch.float64, device=device)
        self.by_class = torch.zeros((classes, 2), dtype=torch.float64, device=device)

    def add(self, logits: torch.Tensor, losses: torch.Tensor, targets: torch.Tensor, weight: torch.Tensor) -> None:
        """Count a batch: logits [B, C], losses [B], targets [B] or soft ones [B, C], weight [B].

        For soft targets, the class with the largest share counts as the right one. No sync.
        """
        if targets.is_floating_point():
            targets = targets.argmax(dim=1)
        ranked = logits.topk(min(5, logits.shape[1]), dim=1).indices  # [B, 5]
        hits = ranked == targets[:, None]
        rows = torch.stack([losses, hits[:, 0].float(), hits.any(dim=1).float(), torch.ones_like(losses)])
        self.sums += (rows * weight).sum(dim=1).double()
        if len(self.by_class):
            counted = torch.stack([weight, weight * hits[:, 0]], dim=1).double()  # [B, 2]
            self.by_class.index_add_(0, targets.long(), counted)  # unlike bincount, no sync on a GPU

    def read(self) -> "Score":
        """The means so far. A sync point."""
        balanced, missed = _recalls(self.by_class.tolist())
        return replace(Score.of(self.sums.tolist()), balanced_accuracy=balanced, missed=missed)


class OnTheWay:
    """Numbers on the way to the host, behind the work that is enqueued now.

    On a GPU they are copied into pinned memory, and an event says when they have arrived: reading them then waits for
    that event, not for all that was enqueued since.
    """

    def __init__(self, tensor: torch.Tensor) -> None:
        self._arrived: torch.cuda.Event | None = None
        self._host = tensor
        if tensor.is_cuda:
            self._host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
            self._host.copy_(tensor, non_blocking=True)
            self._arrived = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._arrived.record(torch.cuda.current_stream(tensor.device))

    def read(self) -> Any:
        """The numbers as (nested) lists. A sync point where they have not arrived yet."""
        if self._arrived is not None:
            self._arrived.synchronize()
        return self._host.tolist()


@dataclass(frozen=True)
class TracedSteps:
    """Sums of several stretches of steps, on the way to the host."""

    steps: list[int]  # the last of each stretch
    sums: OnTheWay  # [stretches, 4], over all ranks

    def read(self) -> list[tuple[int, "Score"]]:
        """(Step, score of the steps since the one before). A sync point where the sums have not arrived yet."""
        scores = [Score.of(row) for row in self.sums.read()]
        return [(step, score) for step, score in zip(self.steps, scores, strict=True) if score.samples]


class Trace:
    """Training step by step: a meter's sums are copied on the device every few steps, and fetched for the log."""

    def __init__(self, every: int) -> None:
        self._every = every
        self._noted: list[tuple[int, torch.Tensor]] = []

    def begin(self, step: int, meter: Meter) -> None:
        """Training starts, or continues, after `step`: what `meter` has counted so far was noted before."""
        self._noted = [(step, meter.sums.clone())]

    def note(self, step: int, meter: Meter, due: bool) -> None:
        """`step` is done; `due` notes it in any case. A step that is noted again counts once. No sync."""
        if (due or step % self._every == 0) and self._noted[-1][0] != step:
            self._noted.append((step, meter.sums.clone()))

    def fetch(self, ranks: Ranks) -> TracedSteps:
        """Send what was noted since the last call to the host, summed over all ranks. No sync; all ranks call it."""
        if len(self._noted) < 2:
            return TracedSteps([], OnTheWay(torch.empty(0, 4)))
        sums = ranks.sum(torch.stack([sums for _, sums in self._noted]).diff(dim=0))
        steps = [step for step, _ in self._noted[1:]]
        self._noted = self._noted[-1:]
        return TracedSteps(steps, OnTheWay(sums))


def _recalls(by_class: list[list[float]]) -> tuple[float | None, tuple[int, ...]]:
    """The mean recall over the classes that have samples, None if none has; and the classes with a recall of 0."""
    recalls = {index: hits / count for index, (count, hits) in enumerate(by_class) if count > 0}
    if not recalls:
        return None, ()
    return math.fsum(recalls.values()) / len(recalls), tuple(index for index, recall in recalls.items() if recall == 0)


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

    def as_dict(self, classes: int) -> dict[str, float]:
        """For logs; with top-5 if it is informative, and with recalls if classes were counted."""
        values: dict[str, float] = {"loss": self.loss, "top1": self.top1, "samples": self.samples}
        if self.balanced_accuracy is not None:
            values |= {"balanced_accuracy": self.balanced_accuracy, "zero_recall_classes": len(self.missed)}
        return {**values, "top5": self.top5} if shows_top5(classes) else values


def zero_recall(names: Sequence[str]) -> str:
    """A sentence that names the first ten classes with a recall of 0, and says how many there are."""
    more = f" and {len(names) - 10:,} more" if len(names) > 10 else ""
    classes = "class has" if len(names) == 1 else "classes have"
    return f"{len(names):,} {classes} a recall of 0: {', '.join(names[:10])}{more}"


def shows_top5(classes: int) -> bool:
    """Whether top-5 accuracy is informative: with ten classes or more."""
    return classes >= 10


def answer(
    model: nn.Module, images: torch.Tensor, tta: bool = False, beside: tuple[torch.Tensor, ...] = ()
) -> torch.Tensor:
    """Logits [B, C] in float32 of images [B, 3, H, W]; `tta`: the mean of each image's and its mirror image's.

    `beside` is what the model takes after the images.
    """
    logits: torch.Tensor = model(images, *beside).float()
    if not tta:
        return logits
    own = logits.clone()  # the next call of a model with CUDA graphs writes to the same memory
    mirrored: torch.Tensor = model(images.flip(3), *beside).float()
    return (own + mirrored) / 2


def evaluate(
    model: nn.Module,
    loader: BatchSource,
    policy: Policy,
    precision: Precision,
    ranks: Ranks,
    classes: int,
    tta: bool = False,
) -> Score:
    """Loss (without label smoothing) and accuracy over a whole loader, every sample counted once over all ranks."""
    meter = Meter(ranks.device, classes)
    model.eval()
    with torch.inference_mode():
        for batch in loader:
            with precision.autocast():
                images = model_input(None, batch.inputs, policy, precision.input_dtype)
                logits = answer(model, images, tta, inputs_beside(batch, precision.input_dtype))
            losses = F.cross_entropy(logits, batch.targets, reduction="none")
            meter.add(logits, losses, batch.targets, batch.weight)
    ranks.sum(meter.sums)
    ranks.sum(meter.by_class)
    return meter.read()
