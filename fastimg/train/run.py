"""A training run: what the loop touches."""

import copy
import math
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

from fastimg.augment import Policy
from fastimg.config.commands import Train
from fastimg.config.progressive import Progressive
from fastimg.data.kornia_pass import KorniaPass
from fastimg.data.provenance import TrainedOn
from fastimg.loaders import BatchSource
from fastimg.models.compilation import Compilation
from fastimg.models.ema import Ema
from fastimg.models.precision import Precision
from fastimg.models.ranks import Ranks
from fastimg.models.registry import Model, Preprocessing
from fastimg.train.checkpoints.format import Card
from fastimg.train.reporting.accounting import Account
from fastimg.train.reporting.hints import Probe

from .checkpoints import run_directory as rundir
from .metrics import Meter, Trace
from .optimisers import Schedule
from .patience import DEFAULT_METRIC, Best, Metric, Standing

_TRACED = 2000  # records of steps that a run writes, and no more than one for each epoch beyond


@dataclass(frozen=True)
class Held:
    """A checkpoint that is not written yet."""

    card: Card
    weights: Mapping[str, torch.Tensor]
    training: dict[str, Any]
    averages: Mapping[str, torch.Tensor] | None
    files: Mapping[str, bytes] | None

    def copied(self, learning: Collection[str]) -> "Held":
        """One that further steps do not change: with copies of all that learns, by the names of weights."""
        weights = {name: value.clone() if name in learning else value for name, value in self.weights.items()}
        averages = None if self.averages is None else {name: value.clone() for name, value in self.averages.items()}
        return Held(self.card, weights, copy.deepcopy(self.training), averages, self.files)


@dataclass
class Run:
    """All that the training loop touches."""

    config: Train
    ranks: Ranks
    directory: Path
    model: Model
    trained: nn.Module  # what is called and learns: the model, or on cached embeddings its classifier alone
    parallel: nn.Module  # `trained` as it is called: wrapped for several ranks
    classes: tuple[str, ...]
    class_counts: tuple[int, ...]  # samples of each in the training split
    preprocessing: Preprocessing
    policy: Policy
    kornia: KorniaPass | None  # runs after the policy's pixel operations
    precision: Precision
    optimizer: torch.optim.Optimizer
    scaler: torch.amp.GradScaler
    schedule: Schedule
    loader: BatchSource
    val_loader: BatchSource | None
    train_eval_loader: BatchSource | None  # the training split, cut like validation's
    steps_per_epoch: int
    steps: int  # optimiser steps of the whole run
    embedding: tuple[int, ...] | None = None  # its shape, where training is on cached embeddings
    cached: str | None = None  # of these, in words
    ema: Ema | None = None
    progressive: Progressive | None = None
    compilation: Compilation | None = None
    log: rundir.Log | None = None  # rank 0's
    trained_on: tuple[TrainedOn, ...] = ()  # rank 0's: for the checkpoints
    epoch: int = 0  # epochs done
    step: int = 0  # optimiser steps done
    meter: Meter = field(init=False)  # of the epoch so far, this rank's share
    trace: Trace = field(init=False)  # of single steps, or of a few where there are many
    bad_step: torch.Tensor = field(init=False)  # the first whose loss was no number, on the device
    standing: Standing = field(default_factory=Standing)  # what validations have shown
    seconds: float = 0.0  # of training, over all its parts
    epoch_seconds: float = 0.0  # of training, of this epoch and this process
    account: Account = field(init=False)  # of this process
    told: bool = False  # that it waits for data
    probed: Probe | None = None  # what the native loader would do with the data, where that was asked
    tried: float | None = None  # by how much the native loader was faster, where that was tried
    asked: bool = False  # whether it was to be tried
    held: dict[str, Held] = field(default_factory=dict)  # what `last` and `best` will be, where they wait
    saved_at: float = -math.inf  # when a checkpoint was written, by the monotonic clock

    def __post_init__(self) -> None:
        self.meter = Meter(self.ranks.device)
        self.trace = Trace(math.ceil(self.steps / _TRACED) or 1)
        self.account = Account(self.loader.spent, self.loader.workers)
        self.bad_step = torch.full((), math.inf, dtype=torch.float64, device=self.ranks.device)

    @property
    def best(self) -> Best | None:
        """The validation that the best checkpoint is from."""
        return self.standing.best

    @property
    def patience_metric(self) -> Metric:
        """What --patience watches."""
        return self.config.patience_metric or DEFAULT_METRIC

    @property
    def out_of_patience(self) -> bool:
        """Whether --patience ends the run here."""
        return self.config.patience is not None and self.standing.stale >= self.config.patience

    @property
    def stopped_early(self) -> bool:
        """Whether --patience ended the run before its last epoch."""
        return self.out_of_patience and self.epoch < self.epochs

    @property
    def batch_size(self) -> int:
        """Samples per batch of this rank."""
        assert self.config.batch_size != "auto"
        return self.config.batch_size

    @property
    def unit(self) -> str:
        """What a sample is."""
        return "images" if self.model.text is None else "texts"

    @property
    def epochs(self) -> int:
        """Epochs of the whole run; the last may end early."""
        return math.ceil(self.steps / self.steps_per_epoch)

    @property
    def step_in_epoch(self) -> int:
        """Optimiser steps done in this epoch."""
        return self.step - self.epoch * self.steps_per_epoch

    @property
    def steps_of_epoch(self) -> int:
        """Optimiser steps that this epoch has."""
        return min(self.steps_per_epoch, self.steps - self.epoch * self.steps_per_epoch)

    @property
    def outputs(self) -> int:
        """Numbers that the model gives for an image."""
        return self.config.num_classes or len(self.classes)

    @property
    def global_batch(self) -> int:
        """Samples per optimiser step over all ranks."""
        return self.batch_size * self.config.grad_accum_steps * self.ranks.world_size

    @property
    def true_batch(self) -> int:
        """The same, where the training split has as many."""
        indices = self.loader.indices
        return min(self.global_batch, len(self.loader.dataset if indices is None else indices))

    @property
    def loaders(self) -> list[BatchSource]:
        """All that read."""
        return [loader for loader in (self.loader, self.val_loader, self.train_eval_loader) if loader is not None]

    @property
    def changing(self) -> bool:
        """Whether unfreezing or larger crops were still to come in the epoch that was done last."""
        done, held = self.epoch - 1, self.config.freeze_epochs
        growing = self.progressive is not None and self.progressive.size(done) < self.progressive.size(self.epochs - 1)
        return growing or (held is not None and done < held)

    @property
    def frozen(self) -> bool:
        """Whether --freeze holds in this epoch."""
        held = self.config.freeze_epochs
        return self.config.freeze is not None and (held is None or self.epoch < held)

    def spend(self, began: float) -> float:
        """Count the time since `began` as training. Returns the time."""
        now = time.perf_counter()
        self.seconds, self.epoch_seconds = self.seconds + now - began, self.epoch_seconds + now - began
        return now

    def note_loss(self, loss: torch.Tensor) -> None:
        """Remember on the device whether the loss of this step is a number. Nobody waits for it."""
        at = torch.where(loss.isfinite(), math.inf, float(self.step + 1))
        self.bad_step = torch.minimum(self.bad_step, at.double())

    @contextmanager
    def averaged(self) -> Iterator[None]:
        """Within, the model has the weights that are validated and saved: the moving average, where there is one."""
        if self.ema is None:
            yield
            return
        with self.ema.swapped(self.trained):
            yield
