"""A training run: what the loop touches."""

from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import nn

from . import rundir
from .augment import Policy
from .config import Train
from .kornia_pass import KorniaPass
from .loaders import BatchSource
from .metrics import Meter, Score
from .models import Model, Preprocessing
from .optim import Schedule
from .parallel import Ranks
from .precision import Precision


@dataclass(frozen=True)
class Best:
    """The best validation so far."""

    score: Score
    epoch: int


@dataclass
class Run:
    """All that the training loop touches."""

    config: Train
    ranks: Ranks
    directory: Path
    model: Model
    parallel: nn.Module  # the model as it is called: wrapped for several ranks
    classes: tuple[str, ...]
    preprocessing: Preprocessing
    policy: Policy
    kornia: KorniaPass | None  # runs after the policy's pixel operations
    precision: Precision
    optimizer: torch.optim.Optimizer
    scaler: torch.amp.GradScaler
    schedule: Schedule
    loader: BatchSource
    val_loader: BatchSource | None
    steps_per_epoch: int
    epochs: int
    log: rundir.Log | None = None  # rank 0's
    epoch: int = 0  # epochs done
    step: int = 0  # optimiser steps done
    meter: Meter = field(init=False)  # of the epoch so far, this rank's share
    best: Best | None = None
    stale: int = 0  # validations since the best
    seconds: float = 0.0  # of training, over all its parts

    def __post_init__(self) -> None:
        self.meter = Meter(self.ranks.device)

    @property
    def batch_size(self) -> int:
        """Samples per batch of this rank."""
        assert self.config.batch_size != "auto"
        return self.config.batch_size

    @property
    def steps(self) -> int:
        """Optimiser steps of the whole run."""
        return self.steps_per_epoch * self.epochs

    @property
    def step_in_epoch(self) -> int:
        """Optimiser steps done in this epoch."""
        return self.step - self.epoch * self.steps_per_epoch

    @property
    def outputs(self) -> int:
        """Numbers that the model gives for an image."""
        return self.config.num_classes or len(self.classes)

    @property
    def global_batch(self) -> int:
        """Samples per optimiser step over all ranks."""
        return self.batch_size * self.config.grad_accum_steps * self.ranks.world_size
