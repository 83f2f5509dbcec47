"""Puts a resolved configuration, a model and data together into a run: loaders, optimiser, schedule, wrappers."""

import math
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import nn

from fastimg.config import intent
from fastimg.config.commands import Train
from fastimg.data import augmentation, kornia_pass
from fastimg.data.datasets import DatasetPart, center_crop, train_crop
from fastimg.data.planning import Planning
from fastimg.data.provenance import TrainedOn
from fastimg.embeddings.encoder import Head
from fastimg.errors import UsageError
from fastimg.loaders import BatchSource
from fastimg.loaders.crop import CropRule
from fastimg.loaders.decoders.arrays import ArrayDecoder
from fastimg.models.ema import DECAY, Ema
from fastimg.models.precision import Precision
from fastimg.models.ranks import Ranks
from fastimg.models.registry import Model, Preprocessing
from fastimg.models.sync_norm import share_statistics

from .choices import refusals
from .choices import resolution as effective
from .distillation.loss import distillation
from .graphs import work_of
from .opening import open_loader
from .optimisers import catalogue
from .optimisers.construction import build_optimizer
from .optimisers.lookahead import Lookahead
from .optimisers.schedule_free import ScheduleFree, ScheduleFreeAverage
from .parts import Parts
from .run import ModelInput, Optimisation, Run, Setup, TrainingData
from .tasks.joint import Tasks
from .tasks.selection import ChosenTargets
from .wrapping import compiled, wrapped


@dataclass(frozen=True, kw_only=True)
class Blueprint:
    """All that a run is assembled from. `config` is resolved: it leaves no choice open."""

    config: Train
    directory: Path
    model: Model
    preprocessing: Preprocessing
    precision: Precision
    parts: Parts
    targets: ChosenTargets
    trained_on: tuple[TrainedOn, ...] = ()  # for checkpoints; only rank 0 has it


@dataclass(frozen=True, kw_only=True)
class OpenBlueprint:
    """A run whose batch size and learning rate may still be open: what is searched for is tried with runs made of it.

    part, val_part: images, texts or tokens; `parts` may hold their embeddings.
    """

    config: Train
    data: Path
    directory: Path
    model: Model
    preprocessing: Preprocessing
    precision: Precision
    part: DatasetPart
    val_part: DatasetPart | None
    parts: Parts
    targets: ChosenTargets
    trained_on: tuple[TrainedOn, ...]
    ranks: Ranks

    def blueprint(self, batch_size: int, lr: float | None = None) -> Blueprint:
        """With every choice made. A rate that was found is for this batch: it is not scaled."""
        config = replace(self.config, batch_size=batch_size)
        if lr is not None:
            config = replace(config, lr=lr, lr_scale="none")
        searched = self.config.batch_size == "auto"
        resolved = effective.resolve(
            config, self.data, self.model, self.preprocessing, self.val_part, self.ranks, searched, len(self.part)
        )
        return Blueprint(
            config=resolved,
            directory=self.directory,
            model=self.model,
            preprocessing=self.preprocessing,
            precision=self.precision,
            parts=self.parts,
            targets=self.targets,
            trained_on=self.trained_on,
        )

    def alone(self, batch_size: int) -> Run:
        """A run to time a batch size with: each rank steps by itself, and nothing is compiled or validated."""
        whole = self.blueprint(batch_size)
        config = replace(whole.config, strategy="auto", compile=None, cuda_graphs="off", val_fraction=0.0)
        return assemble(replace(whole, config=config, parts=self._training_alone()), self.ranks, alone=True)

    def together(self, batch_size: int) -> Run:
        """A run to try learning rates with: all ranks step together, and nothing is compiled, validated or averaged."""
        whole = self.blueprint(batch_size, effective.STAND_IN)
        config = replace(
            whole.config, compile=None, cuda_graphs="off", val_fraction=0.0, model_ema=False, lookahead=None
        )
        return assemble(replace(whole, config=config, parts=self._training_alone()), self.ranks)

    def _training_alone(self) -> Parts:
        return replace(self.parts, val=None, evaluated=None)


def assemble(blueprint: Blueprint, ranks: Ranks, *, alone: bool = False) -> Run:
    """A run on the device, before its first step. Raises UsageError for a flag that has no effect on this model.

    An `alone` run reads the share of its rank, but steps by itself: it is not wrapped, and exchanges nothing.
    """
    config = blueprint.config
    module = blueprint.model.module
    if config.sync_bn and not alone and not share_statistics(module, ranks):
        raise UsageError(f"--sync-bn has no effect: {config.arch} has no batch norm; leave it out")
    inputs = _model_input(blueprint, ranks)
    module = module.to(ranks.device)
    if config.channels_last and blueprint.model.convolutional:
        module = module.to(memory_format=torch.channels_last)
    model = replace(blueprint.model, module=module)
    whole = blueprint.parts.embedding is None or model.pair is not None  # a pair takes embeddings in place of inputs
    trained = module if whole else Head(module, model.classifier[0])
    data = _data(replace(blueprint, model=model), ranks)
    if not config.no_aug:
        data.loader.prepare(Planning(inputs.policy, ranks.device))
    parallel = trained if alone else wrapped(trained, config, ranks, blueprint.precision)
    tasks = blueprint.targets.tasks.to(ranks.device)
    optimisation = _optimisation(blueprint, ranks, trained, tasks, batches=len(data.loader))
    epochs = math.ceil(optimisation.schedule.steps / optimisation.steps_per_epoch)
    if not alone:  # with a batch that is tried, a number of steps is another number of epochs
        refusals.check_epochs(config, epochs)
    if config.progressive is not None:
        inputs = replace(inputs, progressive=intent.progressive(config, epochs))
    setup = Setup(
        config=config,
        ranks=ranks.alone() if alone else ranks,
        directory=blueprint.directory,
        model=model,
        trained=trained,
        precision=blueprint.precision,
        input=inputs,
        tasks=tasks,
        data=data,
        optimisation=optimisation,
        distillation=distillation(
            config, tasks, blueprint.preprocessing, blueprint.precision, ranks, blueprint.parts.taught
        ),
    )
    run = Run.start(setup, parallel, compiled(parallel, config))
    run.progress.work = work_of(run)
    return run


def _model_input(blueprint: Blueprint, ranks: Ranks) -> ModelInput:
    config = blueprint.config
    preprocessing = blueprint.preprocessing
    kornia = None
    if config.kornia:
        kornia = kornia_pass.build(config.kornia, preprocessing.train_size, ranks.device)
    as_stored = preprocessing.field is not None
    policy = augmentation.policy_of(config, preprocessing.mean, preprocessing.std, as_stored)
    return ModelInput(preprocessing=preprocessing, policy=policy, kornia=kornia)


def _data(blueprint: Blueprint, ranks: Ranks) -> TrainingData:
    config = blueprint.config
    model = blueprint.model
    parts = blueprint.parts
    preprocessing = blueprint.preprocessing
    dtype = np.dtype({"fp16": "f2", "fp32": "f4"}[config.cache_dtype or "fp16"])
    arrays = None if parts.embedding is None else ArrayDecoder(parts.embedding, dtype)
    if config.no_aug:
        crop: CropRule = center_crop(preprocessing)
    else:
        crop = train_crop(preprocessing, config)
    scaling = effective.scales(config)
    sampler = config.sampler
    loader = open_loader(
        config, ranks, parts.train, crop, intent.order(config), "samples", model, arrays, scaling, sampler
    )

    def evaluation(part: DatasetPart | None) -> BatchSource | None:
        if part is None:
            return None
        return open_loader(config, ranks, part, center_crop(preprocessing), "sequential", "zeros", model, arrays)

    return TrainingData(
        loader=loader,
        val_loader=evaluation(parts.val),
        train_eval_loader=evaluation(parts.evaluated),
        targets=blueprint.targets.train,
        val_targets=blueprint.targets.val,
        classes=blueprint.targets.tasks.classes,
        class_counts=blueprint.targets.class_counts,
        embedding=parts.embedding,
        embedding_note=parts.words,
        trained_on=blueprint.trained_on,
    )


def _optimisation(
    blueprint: Blueprint, ranks: Ranks, trained: nn.Module, tasks: Tasks, *, batches: int
) -> Optimisation:
    """Made after wrapping, since FSDP replaces the parameters; `batches` is how many an epoch has."""
    config = blueprint.config
    assert not isinstance(config.lr, str) and config.weight_decay is not None
    optimizer = build_optimizer(
        trained,
        config.opt,
        config.lr,
        config.weight_decay,
        config.momentum,
        impl=config.opt_impl,
        norm_weight_decay=config.norm_weight_decay or 0.0,
        norm_lr_scale=config.norm_lr_scale or 1.0,
        layer_decay=config.layer_decay,
        frozen_too=config.freeze_epochs is not None,
        eps=config.opt_eps,
        betas=config.opt_betas,
        kwargs=catalogue.parsed(config.opt_kwargs),
    )
    if tasks.parameters:
        if config.strategy == "fsdp" and blueprint.precision.dtype is torch.float16:
            raise UsageError(
                "--target-weights uncertainty: the variances are not sharded, as the weights are, and torch's gradient "
                "scaler does not take both; give --amp-dtype bf16, or numbers"
            )
        optimizer.add_param_group({"params": tasks.parameters, "weight_decay": 0.0, "lr_scale": 1.0})
    steps_per_epoch = math.ceil(batches / config.grad_accum_steps)
    ema: Ema | ScheduleFreeAverage | None = None
    if config.model_ema:
        decay = DECAY if config.model_ema_decay is None else config.model_ema_decay
        ema = Ema(trained, decay, config.model_ema_steps)
    elif isinstance(optimizer, ScheduleFree):
        ema = ScheduleFreeAverage(trained, optimizer)
    schedule = effective.schedule(config, steps_per_epoch, ranks, len(blueprint.parts.train))
    return Optimisation(
        optimizer=optimizer,
        scaler=blueprint.precision.scaler(),
        schedule=schedule,
        steps_per_epoch=steps_per_epoch,
        ema=ema,
        lookahead=Lookahead.of(trained, config.lookahead, schedule.steps) if config.lookahead else None,
    )
