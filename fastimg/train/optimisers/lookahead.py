"""Lookahead: weights, and norms' running statistics, that return to their running average now and then."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Self

import torch
from timm.optim.sgdw import SGDW
from torch import nn

from fastimg.models.ranks import local_shards


@dataclass(frozen=True, kw_only=True)
class Lookahead:
    """Lookahead (Zhang et al., 2019) with an average that grows slower over the run, as in airbench (Jordan, 2024).

    Every `every` steps, past BEGIN of the run, the weights are set to their running average, which has by then moved a
    part of the way to them: it keeps DECAY ** every * progress ** 3 of itself. The average is in the optimiser's state,
    so that it is saved with it.

    So are `statistics`, a module's floating-point buffers by name: what norms have seen of the weights before is then
    averaged as the weights are. Their `averages` are saved beside the optimiser's state.
    """

    every: int
    steps: int  # of the whole run
    statistics: Mapping[str, torch.Tensor] = field(default_factory=dict, repr=False)
    averages: Mapping[str, torch.Tensor] = field(default_factory=dict, repr=False)

    BEGIN: ClassVar[float] = 0.3
    DECAY: ClassVar[float] = 0.95
    KEY: ClassVar[str] = "lookahead"

    @classmethod
    def of(cls, module: nn.Module, every: int, steps: int) -> Self:
        """For a module on its device, whose buffers are changed in place as long as it lives."""
        statistics = {name: buffer for name, buffer in module.named_buffers() if buffer.is_floating_point()}
        averages = {name: buffer.clone() for name, buffer in statistics.items()}
        return cls(every=every, steps=steps, statistics=statistics, averages=averages)

    def due(self, step: int) -> bool:
        """Whether `step` changes anything after step `step`, counted from 1."""
        return step % self.every == 0 and step >= self.BEGIN * self.steps

    @torch.no_grad()
    def restore(self, averages: Mapping[str, torch.Tensor]) -> None:
        """Go on from saved averages of statistics; from the statistics themselves where none were saved."""
        for name, average in self.averages.items():
            average.copy_(averages.get(name, self.statistics[name]))

    @torch.no_grad()
    def step(self, optimizer: torch.optim.Optimizer, step: int) -> None:
        """After step `step`, counted from 1. No sync. Statistics must be the same on all ranks."""
        if not self.due(step):
            return
        kept = self.DECAY**self.every * (step / self.steps) ** 3
        # A state that is not empty counts as made: AdamW's has to be AdamW's own first.
        bare = isinstance(optimizer, torch.optim.SGD | SGDW)
        everything = [p for group in optimizer.param_groups for p in group["params"]]
        weights = [p for p in everything if p.requires_grad and (bare or optimizer.state.get(p))]
        fresh = [p for p in weights if self.KEY not in optimizer.state[p]]
        for p in fresh:
            optimizer.state[p][self.KEY] = p.detach().clone()
        averages = local_shards(optimizer.state[p][self.KEY] for p in weights)
        own = local_shards(weights)
        if own:
            torch._foreach_lerp_(averages, own, 1.0 - kept)
            torch._foreach_copy_(own, averages)
        if not self.statistics:
            return
        of_norms, seen = list(self.averages.values()), list(self.statistics.values())
        if step - self.every < max(1, self.BEGIN * self.steps):  # the first time: there was nothing to average before
            torch._foreach_copy_(of_norms, seen)
            return
        torch._foreach_lerp_(of_norms, seen, 1.0 - kept)
        torch._foreach_copy_(seen, of_norms)
