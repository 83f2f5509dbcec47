"""Learning rate schedules: the rate as a function of the step."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """The learning rate as a pure function of the step: linear warmup, then decay over the remaining steps."""

    kind: Literal["cosine", "linear", "step", "constant"]
    lr: float  # at the end of warmup
    steps: int  # of the whole run
    warmup_steps: int
    warmup_lr: float = 0.0  # that warmup rises from
    min_lr: float = 0.0
    decay_steps: float = math.inf  # step schedule: between drops, counted from the start
    decay_rate: float = 0.1

    def __call__(self, step: int) -> float:
        """Learning rate of step `step`, counted from 0. A benchmark may take more steps than the run has."""
        if step < self.warmup_steps:
            return self.warmup_lr + (self.lr - self.warmup_lr) * (step + 1) / self.warmup_steps
        share = min(1.0, (step - self.warmup_steps) / max(1, self.steps - self.warmup_steps))
        decays: dict[str, Callable[[], float]] = {
            "cosine": lambda: self.min_lr + (self.lr - self.min_lr) * 0.5 * (1 + math.cos(math.pi * share)),
            "linear": lambda: self.lr + (self.min_lr - self.lr) * share,
            "step": lambda: self.lr * self.decay_rate ** math.floor(step / self.decay_steps),
            "constant": lambda: self.lr,
        }
        return decays[self.kind]()


@dataclass(frozen=True, kw_only=True)
class RisingRate(Schedule):
    """A rate that begins at `lr` and is multiplied by `factor` after every step: of the range test (`--lr find`)."""

    factor: float

    def __call__(self, step: int) -> float:
        """Learning rate of step `step`, counted from 0."""
        return self.lr * self.factor**step
