"""What a forward and backward pass takes, and who runs the two parts of a step that are the same work in every step."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

import torch

from fastimg.loaders import Batch

from .tasks.task import Truth


@dataclass(frozen=True)
class MicroBatch:
    """What one forward and backward pass takes: images [B, ...], the targets of each task, weight [B].

    taught: the teacher's logits [B, C], where they are kept.
    """

    images: torch.Tensor
    targets: tuple[Truth, ...]
    weight: torch.Tensor
    beside: tuple[torch.Tensor, ...] = ()  # what the model takes after the images: texts, and which inputs are there
    taught: torch.Tensor | None = None

    @property
    def tensors(self) -> tuple[torch.Tensor, ...]:
        """All tensors, in an order that depends on the kinds of targets alone."""
        taught = () if self.taught is None else (self.taught,)
        targets = (tensor for truth in self.targets for tensor in truth.tensors)
        return (self.images, *targets, self.weight, *self.beside, *taught)

    def mapped(self, change: Callable[[torch.Tensor], torch.Tensor]) -> "MicroBatch":
        """The same batch with other tensors."""
        targets = tuple(
            Truth(change(truth.values), None if truth.present is None else change(truth.present))
            for truth in self.targets
        )
        return replace(
            self,
            images=change(self.images),
            targets=targets,
            weight=change(self.weight),
            beside=tuple(map(change, self.beside)),
            taught=None if self.taught is None else change(self.taught),
        )


class StepWork(Protocol):
    """Runs `step.forward_backward` and `step.update_weights` of a run: as they are, or as recorded graphs."""

    @property
    def warm(self) -> int:
        """How many steps are slower than those that follow."""

    def room(self, batch: Batch) -> torch.Tensor | None:
        """Where the images of a batch may be written, once the current stream gets there; None for anywhere."""

    def inputs(self, made: MicroBatch) -> MicroBatch:
        """What was made for the batch of the last `room`, as `forward_backward` will read it."""

    def forward_backward(self, batch: MicroBatch) -> None:
        """Add the gradients of a batch that `inputs` returned."""

    def update_weights(self) -> None:
        """The optimiser's step at its groups' rates."""

    def forget(self) -> None:
        """The model is called otherwise from here on, or other parameters learn: nothing recorded is true any more."""

    def tell(self, say: Callable[[str], None]) -> None:
        """Where to say in a line that work goes on otherwise."""
