"""The exponential moving average of a model's weights (Polyak and Juditsky, 1992), kept alongside the model."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

from .ranks import local_shards

DECAY = 0.9998


class Ema:
    """Averages of the parameters and floating-point buffers, in the module's own order.

    At step t, counted from 0, the decay is min(decay, (1 + t) / (10 + t)), so that the average adapts quickly at first.
    With `every` N the average moves after every N-th step only, and N times as far, at most all the way: as in
    torchvision's references, where `--model-ema-steps` multiplies 1 - decay.

    The module's tensors are looked up once, as an optimiser's are: they are changed in place as long as it lives.
    """

    def __init__(self, module: nn.Module, decay: float = DECAY, every: int = 1) -> None:
        self.decay = decay
        self.every = every
        own = _averaged(module)
        self.tensors = {name: tensor.clone() for name, tensor in own.items()}
        self._own = local_shards(own.values())
        self._averages = local_shards(self.tensors.values())

    @torch.no_grad()
    def update(self, step: int) -> None:
        """Move towards the module's tensors, after step `step`; a function of the step, so that resuming is exact."""
        if (step + 1) % self.every:
            return
        share = 1.0 - min(self.decay, (1 + step) / (10 + step))
        torch._foreach_lerp_(self._averages, self._own, min(1.0, self.every * share))

    @contextmanager
    def swapped(self, module: nn.Module) -> Iterator[None]:
        """Within the block, the module holds the averages; afterwards it has its own weights back."""
        self._swap(module)
        try:
            yield
        finally:
            self._swap(module)

    @torch.no_grad()
    def _swap(self, module: nn.Module) -> None:
        for name, own in _averaged(module).items():
            average = self.tensors[name]
            copy = own.clone()
            own.copy_(average)
            average.copy_(copy)


def _averaged(module: nn.Module) -> dict[str, torch.Tensor]:
    named = [*module.named_parameters(), *module.named_buffers()]
    return {name: tensor.detach() for name, tensor in named if tensor.is_floating_point()}
