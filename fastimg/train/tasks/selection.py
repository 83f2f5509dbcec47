"""Which targets a run trains on, and how each is weighed: --targets, --target-weights, --bce-pos-weight."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from fastimg.config import augmentation, intent, recipes
from fastimg.config.commands import Train
from fastimg.config.rules import is_set
from fastimg.data import class_balance
from fastimg.data.datasets import DatasetPart
from fastimg.errors import UsageError, UserError, nearest, printable
from fastimg.loaders import Dataset
from fastimg.loaders.containers.targets import TargetColumn
from fastimg.train.losses import LossSettings
from fastimg.wording import legible, plural

from .classification import ClassTask
from .joint import Tasks
from .lookup import TargetLookup
from .regression import NumberTask
from .tagging import MultilabelTask
from .task import Task

UNCERTAINTY = "uncertainty"  # --target-weights that are learned
BALANCED = "balanced"  # --bce-pos-weight by the counts of labels


@dataclass(frozen=True, kw_only=True)
class ChosenTargets:
    """The tasks of a run, and where the targets of its training and validation samples are looked up."""

    tasks: Tasks
    train: TargetLookup
    val: TargetLookup
    class_counts: tuple[int, ...]  # samples of each class of the first class target, in the whole training split


def of_labels(config: Train, dataset: Dataset) -> ChosenTargets:
    """The labels that every batch has, whatever the data names: for measuring speed."""
    classes = dataset.classes or ("one", "two")
    column = TargetColumn.of_classes(dataset.labels, classes)
    task = _class_task(config, column, np.flatnonzero(column.present), max(2, len(classes)))
    lookup = TargetLookup((None if column.present.all() else column,))
    counts = _class_counts([column])
    return ChosenTargets(tasks=Tasks.one_class(task), train=lookup, val=lookup, class_counts=counts)


def choose(config: Train, data: Path, part: DatasetPart, val_part: DatasetPart | None = None) -> ChosenTargets:
    """The targets that --targets names, else all of the dataset's.

    Raises UsageError for flags that name no target or have no effect, and UserError for a target that cannot be
    learned from this data.
    """
    columns = _chosen(config, data, part)
    tasks = tuple(_task(config, data, part, column) for column in columns)
    several = len(tasks) > 1
    if config.num_classes is not None and (several or tasks[0].target.kind != "class"):
        raise UsageError(
            f"--num-classes {config.num_classes}: goes with a class alone; leave it out, or name one with --targets"
        )
    if config.sampler is not None and not (part.dataset.labels >= 0).any():
        raise UsageError("--sampler has no effect: the samples have no classes; leave it out")
    _check_flags(config, tasks)
    learned = config.target_weights == UNCERTAINTY
    weights = (1.0,) * len(tasks) if learned else _weights(config.target_weights, tasks)

    def lookup(found: Sequence[TargetColumn], of: DatasetPart) -> TargetLookup:
        classes = [column.target.name for column in of.dataset.targets if column.target.kind == "class"]
        own = [
            None if column.target.name in classes[:1] and column.present.all() else task.column(column)
            for task, column in zip(tasks, found, strict=True)
        ]
        return TargetLookup(own)

    train = lookup(columns, part)
    val = train
    if val_part is not None:
        found = [_same(data, column, val_part) for column in columns]
        val = lookup(found, val_part)
        _check_metric(config, data, tasks, found, val_part)
    return ChosenTargets(
        tasks=Tasks(all=tasks, weights=weights, learned=learned),
        train=train,
        val=val,
        class_counts=_class_counts(columns),
    )


def _class_counts(columns: Sequence[TargetColumn]) -> tuple[int, ...]:
    """Samples of each class of the first target that is one."""
    for column in columns:
        if column.target.kind == "class":
            return tuple(np.bincount(column.values[column.present], minlength=len(column.target.classes)).tolist())
    return ()


def _chosen(config: Train, data: Path, part: DatasetPart) -> list[TargetColumn]:
    """The columns of the targets, in the order of --targets. Raises UsageError."""
    columns = {column.target.name: column for column in part.dataset.targets}
    if config.targets is None:
        return list(columns.values())
    names = [name.strip() for name in config.targets.split(",")]
    for place, name in enumerate(names):
        if name not in columns:
            raise UsageError(
                f"--targets {config.targets}: {data} has no target {name!r}, but {printable(', '.join(columns))}"
                f"{nearest(name, columns)}"
            )
        if name in names[:place]:
            raise UsageError(f"--targets {config.targets}: names {name!r} twice; name it once")
    return [columns[name] for name in names]


def _task(config: Train, data: Path, part: DatasetPart, column: TargetColumn) -> Task:
    """The task of a target. Raises UserError where the training part has nothing to learn from."""
    target = column.target
    rows = np.arange(len(column)) if part.indices is None else part.indices
    rows = rows[column.present[rows]]
    if not len(rows):
        raise _not_learnable(data, part, target.name, "is missing for every {unit} of the training split")
    if target.kind == "class":
        _check_classes(data, part, column, rows)
        names = [each.target.name for each in part.dataset.targets if each.target.kind == "class"]
        return _class_task(config, column, rows, len(target.classes), target.name == names[0])
    if target.kind == "number":
        numbers = column.values[rows].astype(np.float64)
        mean, std = float(numbers.mean()), float(numbers.std())
        if not (math.isfinite(mean) and math.isfinite(std)):
            raise _not_learnable(data, part, target.name, "is infinite, or too large, in the training split")
        if (numbers == numbers[0]).all() or std == 0.0:
            raise _not_learnable(
                data, part, target.name, f"is {legible(numbers[0])} for every {{unit}} of the training split"
            )
        return NumberTask(target=target, mean=mean, std=std)
    counts = np.bincount(
        np.concatenate([column.labels_of(index) for index in rows.tolist()]), minlength=len(target.classes)
    )
    if ((counts == 0) | (counts == len(rows))).all():
        raise _not_learnable(data, part, target.name, "has the same labels for every {unit} of the training split")
    pos_weight = _pos_weight(config.bce_pos_weight, counts, len(rows))
    return MultilabelTask(target=target, settings=_loss(config), pos_weight=pos_weight)


def _loss(config: Train) -> LossSettings:
    """The loss of several labels: they are not smoothed, which would take rare ones for common."""
    settings = LossSettings(kind=intent.loss_kind(config))
    return settings if config.focal_gamma is None else replace(settings, focal_gamma=config.focal_gamma)


def _class_task(
    config: Train, column: TargetColumn, rows: npt.NDArray[np.int64], classes: int, drawn_by: bool = True
) -> ClassTask:
    """The task of a class, with what its loss takes from the number of samples of each class.

    drawn_by: --sampler draws by these classes, which are those of the data's first class target.
    Raises UserError and UsageError for files of weights.
    """
    target = column.target
    outputs = config.num_classes or classes
    counts = class_balance.class_counts(column.values[rows], outputs)
    if drawn_by:
        counts = class_balance.drawn(config.sampler, target.classes, counts)
    weights = priors = None
    if config.class_weights is not None:
        weights = class_balance.class_weights(config.class_weights, target.classes, counts)
    if config.logit_adjust:
        priors = config.logit_adjust * class_balance.log_priors(counts)
    settings = replace(
        _loss(config),
        smoothing=config.smoothing,
        class_weights=None if weights is None else torch.from_numpy(weights).float(),
        log_priors=None if priors is None else torch.from_numpy(priors).float(),
    )
    return ClassTask(
        target=target,
        outputs=outputs,
        settings=settings,
        counts=tuple(counts.astype(int).tolist()),
        class_weights=config.class_weights,
        logit_adjust=config.logit_adjust,
    )


def _check_classes(data: Path, part: DatasetPart, column: TargetColumn, rows: npt.NDArray[np.int64]) -> None:
    labels = column.values[rows]
    classes = column.target.classes
    if labels.max() >= len(classes):
        raise UserError(
            f"{data}: the target {printable(column.target.name)} has the class {labels.max()}, and there are "
            f"{plural(len(classes), 'class')}; convert it again"
        )
    whole = column.values[column.present]
    if not (whole == whole[0]).all():
        return
    what = "text" if part.dataset.content == "text" else "image"
    if len(part.dataset.targets) == 1:
        raise UserError(
            f"{data}: every {what} of the training split is of one class, {printable(classes[whole[0]])!r}, so there "
            f"is nothing to learn; add {what}s of another class"
        )
    name = printable(classes[whole[0]])
    raise _not_learnable(data, part, column.target.name, f"is {name!r} for every {{unit}} of the training split")


def _not_learnable(data: Path, part: DatasetPart, name: str, why: str) -> UserError:
    unit = "text" if part.dataset.content == "text" else "image"
    others = [column.target.name for column in part.dataset.targets if column.target.name != name]
    remedy = f"leave it out with --targets {','.join(others)}" if others else "convert it again with other values"
    return UserError(
        printable(f"{data}: the target {name} {why.format(unit=unit)}, so there is nothing to learn; {remedy}")
    )


def _pos_weight(asked: str | None, counts: npt.NDArray[np.int64], samples: int) -> torch.Tensor | None:
    """The factor of each label's loss where it is there; balanced: the samples without it for each one with it."""
    if asked is None:
        return None
    if asked == BALANCED:
        return torch.from_numpy(np.where(counts > 0, (samples - counts) / np.maximum(counts, 1), 1.0)).float()
    return torch.full((len(counts),), float(asked))


def _check_flags(config: Train, tasks: Sequence[Task]) -> None:
    """Raises UsageError for flags that these targets cannot take or do not need."""
    kinds = {task.target.kind for task in tasks}
    classes = [task.target.name for task in tasks if task.target.kind == "class"]
    for name in ("class_weights", "logit_adjust"):
        if getattr(config, name) and not classes:
            raise UsageError(f"--{name.replace('_', '-')} has no effect: no target is a class; leave it out")
    smoothed = is_set(config, "smoothing") and not recipes.has_set(config.recipe, "smoothing", config.smoothing)
    if smoothed and not classes:
        raise UsageError("--smoothing has no effect: no target is a class; leave it out")
    if config.class_weights not in (None, "balanced", "effective") and len(classes) > 1:
        raise UsageError(
            f"--class-weights {config.class_weights}: holds the weights of one target's classes, and "
            f"{printable(' and '.join(classes))} are classes; use balanced or effective"
        )
    losses = {"loss": config.loss, "bce_loss": config.bce_loss, "focal_gamma": config.focal_gamma}
    for name, value in losses.items():
        if value and not kinds & {"class", "multilabel"}:
            raise UsageError(f"--{name.replace('_', '-')} has no effect: every target is a number; leave it out")
    if config.bce_pos_weight is not None and "multilabel" not in kinds:
        raise UsageError("--bce-pos-weight has no effect: no target has several labels; leave it out")
    numbers = [task.target.name for task in tasks if task.target.kind == "number"]
    applied = augmentation.effective(config, intent.plain(config))
    for name in ("mixup", "cutmix"):
        if applied[name] and numbers:
            raise UsageError(
                f"--{name}: mixes targets, and {printable(numbers[0])} is a number, which a mixed image does not have; "
                f"leave --{name} out, or train without that target (--targets)"
            )
    if config.target_weights is not None and len(tasks) == 1:
        raise UsageError("--target-weights has no effect with a single target; leave it out")


def _weights(asked: str | None, tasks: Sequence[Task]) -> tuple[float, ...]:
    """The weight of each target, 1 where none is given. Raises UsageError."""
    weights = {task.target.name: 1.0 for task in tasks}
    for pair in asked.split(",") if asked is not None else ():
        name, equals, value = (text.strip() for text in pair.rpartition("="))
        if equals and name not in weights:
            raise UsageError(
                f"--target-weights {asked}: there is no target {name!r}, but {printable(', '.join(weights))}"
                f"{nearest(name, weights)}"
            )
        try:
            weights[name] = float(value)
        except ValueError:
            weights[name] = 0.0
        if not equals or not 0 < weights[name] < math.inf:
            raise UsageError(
                f"--target-weights {asked}: give name=weight pairs, as in {tasks[0].target.name}=1, with weights above "
                "0, or uncertainty"
            )
    return tuple(weights[task.target.name] for task in tasks)


def _same(data: Path, column: TargetColumn, val_part: DatasetPart) -> TargetColumn:
    """The column of the same target in the validation part. Raises UserError."""
    target = column.target
    for other in val_part.dataset.targets:
        found = other.target
        if found.name == target.name:
            if found.kind == target.kind and found.classes == target.classes[: len(found.classes)]:
                return other if found == target else _renamed(other, column)
            raise UserError(
                f"{data}: the target {printable(target.name)} has another kind, or other classes, in "
                f"{val_part.origin} than in the training split; convert it again"
            )
    raise UserError(
        f"{data}: the target {printable(target.name)} is not in {val_part.origin}; convert it again, or leave the "
        "target out with --targets"
    )


def _renamed(other: TargetColumn, column: TargetColumn) -> TargetColumn:
    """The column with all of the training split's classes, of which it has the first ones."""
    return replace(other, target=column.target)


def _check_metric(
    config: Train, data: Path, tasks: Sequence[Task], found: Sequence[TargetColumn], val_part: DatasetPart
) -> None:
    """Raises UserError where no validation sample has the target of --metric."""
    if config.metric is None:
        return
    for task, column in zip(tasks, found, strict=True):
        if config.metric.startswith(f"{task.target.name}."):
            rows = slice(None) if val_part.indices is None else val_part.indices
            if not column.present[rows].any():
                raise UserError(
                    f"--metric {config.metric}: no sample of {val_part.origin} has the target "
                    f"{printable(task.target.name)}; choose another metric"
                )
