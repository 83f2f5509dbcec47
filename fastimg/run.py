"""A training run: what the loop touches, and how it is saved and restored."""

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import nn

from . import checkpoint, rundir
from .augment import Policy
from .config import Train
from .errors import UserError
from .kornia_pass import KorniaPass
from .loaders import BatchSource
from .metrics import Meter, Score
from .models import Model, Preprocessing, read_weights
from .optim import Schedule
from .parallel import Ranks, agree_on_buffers
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
    def steps(self) -> int:
        """Optimiser steps of the whole run."""
        return self.steps_per_epoch * self.config.epochs

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
        return self.config.batch_size * self.config.grad_accum_steps * self.ranks.world_size


def save(run: Run, best: bool = False) -> None:
    """Write a checkpoint of this step, by rank 0, with what going on needs; all ranks call it."""
    agree_on_buffers(run.model.module, run.ranks)
    sums = run.ranks.sum(run.meter.sums.clone())
    if run.ranks.first:
        card = checkpoint.Card(
            arch=run.model.arch,
            kwargs=run.model.kwargs,
            classes=run.classes,
            num_classes=run.outputs,
            preprocessing=run.preprocessing,
            step=run.step,
            epoch=run.epoch,
            metrics=asdict(run.best.score) if run.best and best else {},
        )
        training = {
            "step": run.step,
            "epoch": run.epoch,
            "global_batch": run.global_batch,
            "loader": run.loader.state_dict(),
            "optimizer": run.optimizer.state_dict(),
            "scaler": run.scaler.state_dict(),
            "meter": sums.cpu(),
            "best": asdict(run.best) if run.best else None,
            "stale": run.stale,
            "seconds": run.seconds,
        }
        try:
            saved = checkpoint.save(run.directory, card, run.model.module, training)
            checkpoint.point(run.directory, "last", saved)
            if best:
                checkpoint.point(run.directory, "best", saved)
            checkpoint.prune(run.directory, run.config.checkpoint_hist)
        except (OSError, RuntimeError, SafetensorError) as error:  # a full disk, as each library says it
            raise UserError(
                f"{run.directory}: the checkpoint of step {run.step} could not be written ({error}); make room, then "
                "go on from the one before it with --resume auto"
            ) from error
    run.ranks.barrier()


def restore(run: Run, saved: Path, training: dict[str, Any]) -> None:
    """Stand where the checkpoint stood. Raises DataError where the data is not the same."""
    tensors, _ = read_weights(saved / checkpoint.MODEL)
    run.model.module.load_state_dict(tensors)
    run.optimizer.load_state_dict(training["optimizer"])
    run.scaler.load_state_dict(training["scaler"])
    run.step, run.epoch = training["step"], training["epoch"]
    run.stale, run.seconds = training["stale"], training["seconds"]
    if training["best"] is not None:
        run.best = Best(Score(**training["best"]["score"]), training["best"]["epoch"])
    if run.ranks.first:  # the sums over all ranks go on in one of them
        run.meter.sums.copy_(training["meter"])
    run.loader.load_state_dict(training["loader"])
