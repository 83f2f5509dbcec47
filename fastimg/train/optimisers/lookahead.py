"""Lookahead: weights that return to their running average now and then."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from timm.optim.sgdw import SGDW

from fastimg.models.ranks import local_shards


@dataclass(frozen=True, kw_only=True)
class Lookahead:
    """Lookahead (Zhang et al., 2019) with an average that grows slower over the run, as in airbench (Jordan, 2024).

    Every `every` steps, past BEGIN of the run, the weights are set to their running average, which has by then moved a
    part of the way to them: it keeps DECAY ** every * progress ** 3 of itself. The average is in the optimiser's state,
    so that it is saved with it.
    """

    every: int
    steps: int  # of the whole run

    BEGIN: ClassVar[float] = 0.3
    DECAY: ClassVar[float] = 0.95
    KEY: ClassVar[str] = "lookahead"

    @torch.no_grad()
    def step(self, optimizer: torch.optim.Optimizer, step: int) -> None:
        """After step `step`, counted from 1. No sync."""
        if step % self.every or step < self.BEGIN * self.steps:
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
