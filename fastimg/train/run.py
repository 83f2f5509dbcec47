"""A training run: its setup, which never changes; its progress, which moves; and its accounting, which is only counted.

run.setup       the configuration, the ranks, the data, the model, the optimiser
run.progress    step, epoch, the meter, the validations so far, the writer of checkpoints
run.accounting  seconds, the log, where the time goes; nothing in here influences the weights
"""

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import nn

from fastimg.augment import Policy
from fastimg.config.commands import Train
from fastimg.config.values.durations import interval
from fastimg.config.values.progressive import Progressive
from fastimg.data.kornia_pass import KorniaPass
from fastimg.data.provenance import TrainedOn
from fastimg.loaders import BatchSource
from fastimg.loaders.epochs.plan import crop_epoch_of
from fastimg.loaders.runtime.times import Backlog
from fastimg.models.compilation import Compilation
from fastimg.models.ema import Ema
from fastimg.models.precision import Precision
from fastimg.models.ranks import Ranks
from fastimg.models.registry import Model, Preprocessing
from fastimg.train.checkpoints.writer import Pace, Writer
from fastimg.train.reporting.accounting import Account
from fastimg.train.reporting.timeline import Timeline

from . import patience
from .checkpoints import run_directory as rundir
from .counts import StepCounts
from .distillation.loss import Distillation
from .metrics import FirstBad, Meter, Trace
from .optimisers.lookahead import Lookahead
from .optimisers.schedule_free import ScheduleFreeAverage
from .optimisers.schedules import Schedule
from .patience import Best, Standing
from .tasks.joint import Tasks
from .tasks.lookup import TargetLookup
from .trackers.fanout import Trackers
from .work import StepWork

_TRACED = 2000  # records of steps that a run writes; more only if it has more epochs than that


@dataclass(frozen=True, kw_only=True)
class TrainingData:
    """What a run reads."""

    loader: BatchSource
    val_loader: BatchSource | None
    train_eval_loader: BatchSource | None  # the training split, cropped like validation
    targets: TargetLookup
    val_targets: TargetLookup
    classes: tuple[str, ...]  # of the first class target
    class_counts: tuple[int, ...]  # samples per class in the training split
    embedding: tuple[int, ...] | None = None  # the shape of an embedding, if training on cached ones
    embedding_note: str | None = None  # about the cached embeddings, for people
    trained_on: tuple[TrainedOn, ...] = ()  # for checkpoints; only rank 0 has it

    @property
    def loaders(self) -> list[BatchSource]:
        """All loaders."""
        loaders = (self.loader, self.val_loader, self.train_eval_loader)
        return [loader for loader in loaders if loader is not None]

    @property
    def samples(self) -> int:
        """Samples in the training split."""
        indices = self.loader.indices
        return len(self.loader.dataset if indices is None else indices)


@dataclass(frozen=True, kw_only=True)
class ModelInput:
    """How a batch of uint8 images becomes the model's input."""

    preprocessing: Preprocessing
    policy: Policy
    kornia: KorniaPass | None = None  # runs after the policy's pixel operations
    progressive: Progressive | None = None


@dataclass(frozen=True, kw_only=True)
class Optimisation:
    """What changes the weights."""

    optimizer: torch.optim.Optimizer
    scaler: torch.amp.GradScaler
    schedule: Schedule
    steps_per_epoch: int
    ema: Ema | ScheduleFreeAverage | None = None
    lookahead: Lookahead | None = None


@dataclass(frozen=True, kw_only=True)
class Setup:
    """What never changes in a run."""

    config: Train
    ranks: Ranks
    directory: Path
    model: Model
    trained: nn.Module  # what learns: the model, or on cached embeddings only its classifier
    precision: Precision
    input: ModelInput
    tasks: Tasks
    data: TrainingData
    optimisation: Optimisation
    distillation: Distillation | None = None

    @property
    def batch_size(self) -> int:
        """Samples per batch on this rank."""
        assert isinstance(self.config.batch_size, int)
        return self.config.batch_size

    @property
    def nominal_batch(self) -> int:
        """Samples per optimiser step on this rank, if every batch is full."""
        return self.batch_size * self.config.grad_accum_steps

    @property
    def global_batch(self) -> int:
        """Samples per optimiser step over all ranks, if every batch is full."""
        return self.nominal_batch * self.ranks.world_size

    @property
    def true_batch(self) -> int:
        """Samples per optimiser step over all ranks; at most as many as the training split has."""
        return min(self.global_batch, self.data.samples)

    @property
    def steps(self) -> int:
        """Optimiser steps of the whole run."""
        return self.optimisation.schedule.steps

    @property
    def epochs(self) -> int:
        """Epochs of the whole run; the last may end early."""
        return math.ceil(self.steps / self.optimisation.steps_per_epoch)

    def view(self, epoch: int) -> int:
        """The epoch whose crops and augmentation are shown in an epoch: with --cache-teacher, one of the first."""
        return crop_epoch_of(epoch, self.config.cache_teacher)

    @property
    def unit(self) -> str:
        """What samples are called."""
        return "images" if self.model.text is None else "texts"

    @property
    def stepped(self) -> str:
        """What a step takes, as speeds name it: embeddings of images or texts, where those are kept."""
        return self.unit if self.data.embedding is None else "embeddings"

    @property
    def outputs(self) -> int:
        """Logits per sample."""
        return self.tasks.outputs

    @property
    def metric(self) -> str:
        """The metric that decides which checkpoint is the best."""
        return patience.deciding(self.config, self.tasks)

    @property
    def patience_metric(self) -> str:
        """The metric that --patience watches."""
        return patience.watched(self.config, self.tasks)

    def frozen(self, epoch: int) -> bool:
        """Whether --freeze holds in this epoch, counted from 0."""
        limit = self.config.freeze_epochs
        return self.config.freeze is not None and (limit is None or epoch < limit)

    def changing(self, epoch: int) -> bool:
        """Whether this epoch still comes before unfreezing, or before the largest crops."""
        progressive = self.input.progressive
        limit = self.config.freeze_epochs
        growing = progressive is not None and progressive.size(epoch) < progressive.size(self.epochs - 1)
        return growing or (limit is not None and epoch < limit)

    @contextmanager
    def averaged(self) -> Iterator[None]:
        """Within, the model has the weights that are validated and saved: the average, if there is one."""
        if self.optimisation.ema is None:
            yield
            return
        with self.optimisation.ema.swapped(self.trained):
            yield


@dataclass(kw_only=True)
class Progress:  # more than 12 fields: all that moves
    """What moves. `parallel`, `parameters` and `compilation` change when --freeze ends."""

    parallel: nn.Module  # `Setup.trained` as it is called: wrapped for several ranks
    parameters: list[nn.Parameter]  # those that learn
    compilation: Compilation | None
    meter: Meter  # of the epoch so far, this rank's share
    first_bad: FirstBad  # step whose loss was not finite
    counts: StepCounts  # of a step's samples, and requests to save or to stop
    writer: Writer  # of checkpoints; only rank 0 writes
    pace: Pace  # of checkpoints within an epoch
    work: StepWork = field(init=False)  # what runs a step's passes and update; `assembly` chooses it
    epoch: int = 0  # epochs done
    step: int = 0  # optimiser steps done
    standing: Standing = field(default_factory=Standing)  # the validations so far
    thresholds: dict[str, tuple[float, ...]] = field(default_factory=dict)  # of labels, from the last validation


@dataclass(kw_only=True)
class Accounting:
    """What is only counted and written down."""

    account: Account  # of this process
    trace: Trace  # of single steps, or of a few at a time in long runs
    log: rundir.Log | None = None  # only rank 0 has it
    trackers: Trackers | None = None  # only rank 0 has them, where --log names some
    timeline: Timeline | None = None  # of rank 0, with --trace
    backlog: Backlog = field(default_factory=lambda: Backlog(torch.device("cpu")))
    seconds: float = 0.0  # of training, over all parts of a resumed run
    epoch_seconds: float = 0.0  # of training, in this epoch and this process
    epoch_loss: float | None = None  # the mean over the epoch that has just ended; None where that is not known
    out_of_time: bool = False  # --max-time ended the run
    warned: bool = False  # that the run waits for its data

    def spend(self, began: float) -> float:
        """Count the time since `began` as training. Returns the time now."""
        now = time.perf_counter()
        self.seconds += now - began
        self.epoch_seconds += now - began
        return now


@dataclass(frozen=True, kw_only=True)
class Run:
    """Everything that the training loop touches."""

    setup: Setup
    progress: Progress
    accounting: Accounting

    @classmethod
    def start(cls, setup: Setup, parallel: nn.Module, compilation: Compilation | None) -> "Run":
        """A run before its first step."""
        device = setup.ranks.device
        loader = setup.data.loader
        progress = Progress(
            parallel=parallel,
            parameters=learning(setup.trained),
            compilation=compilation,
            meter=Meter(setup.tasks, device),
            first_bad=FirstBad(device),
            counts=StepCounts(setup.ranks, setup.nominal_batch),
            writer=Writer(setup.directory, setup.config.checkpoint_hist, device),
            pace=Pace(interval(setup.config.save_interval, "--save-interval")),
        )
        accounting = Accounting(
            account=Account(loader.spent, loader.workers),
            trace=Trace(math.ceil(setup.steps / _TRACED) or 1),
            backlog=Backlog(device),
        )
        return cls(setup=setup, progress=progress, accounting=accounting)

    @property
    def step_in_epoch(self) -> int:
        """Optimiser steps done in this epoch."""
        return self.progress.step - self.progress.epoch * self.setup.optimisation.steps_per_epoch

    @property
    def steps_of_epoch(self) -> int:
        """Optimiser steps that this epoch has."""
        steps_per_epoch = self.setup.optimisation.steps_per_epoch
        return min(steps_per_epoch, self.setup.steps - self.progress.epoch * steps_per_epoch)

    @property
    def best(self) -> Best | None:
        """The validation that the best checkpoint is from."""
        return self.progress.standing.best

    @property
    def out_of_patience(self) -> bool:
        """Whether --patience ends the run here."""
        patience = self.setup.config.patience
        return patience is not None and self.progress.standing.stale >= patience

    @property
    def stopped_early(self) -> bool:
        """Whether --patience ended the run before its last epoch."""
        return self.out_of_patience and self.progress.epoch < self.setup.epochs


def learning(module: nn.Module) -> list[nn.Parameter]:
    """The parameters that have gradients."""
    return [parameter for parameter in module.parameters() if parameter.requires_grad]
