"""The tasks of a checkpoint: what its outputs mean, as its card states it."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fastimg.loaders.containers.targets import Target

from .classification import ClassTask
from .joint import Tasks
from .regression import NumberTask
from .tagging import MultilabelTask
from .task import Task


def restored(targets: Sequence[Mapping[str, Any]]) -> Tasks:
    """The tasks of `Tasks.stated`, in the order of their outputs."""
    return Tasks(all=tuple(map(_task, targets)), weights=(1.0,) * len(targets))


def several(targets: Sequence[Mapping[str, Any]]) -> Tasks | None:
    """The tasks of a checkpoint, where its outputs are not those of a class alone."""
    if not targets:
        return None
    tasks = restored(targets)
    return None if tasks.single is not None else tasks


def averaged(targets: Sequence[Sequence[Mapping[str, Any]]]) -> Tasks:
    """The tasks of the mean of what several checkpoints predict of the same targets.

    Thresholds of labels, and the mean and deviation by which a number's loss is standardised, are means over them, too.
    """
    return restored([_mean(each) for each in zip(*targets, strict=True)])


def _mean(stated: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    averages = ("mean", "std", "thresholds")
    alike = {name: value for name, value in stated[0].items() if name not in averages}
    means = {
        name: np.mean([each[name] for each in stated], axis=0).tolist()
        for name in averages
        if all(name in each for each in stated)
    }
    return alike | means


def _task(stated: Mapping[str, Any]) -> Task:
    target = Target(name=stated["name"], kind=stated["kind"], classes=tuple(stated.get("classes", ())))
    if target.kind == "class":
        return ClassTask(target=target, outputs=stated["outputs"])
    if target.kind == "number":
        return NumberTask(target=target, mean=stated["mean"], std=stated["std"])
    return MultilabelTask(target=target, thresholds=tuple(stated.get("thresholds", ())))
