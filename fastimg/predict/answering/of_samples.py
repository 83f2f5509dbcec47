"""An answer for each sample of a loader: the likeliest classes, labels or numbers, or why it could not be read."""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from rich.console import Console
from rich.progress import track

from fastimg.data.read_back import read_back
from fastimg.errors import UsageError
from fastimg.loaders import Batch, BatchSource
from fastimg.loaders.folders.formats import undecodable_extensions
from fastimg.loaders.folders.ignored import extension_of
from fastimg.predict.answers import Answer
from fastimg.predict.inference import Inference
from fastimg.train.tasks.joint import Tasks
from fastimg.train.tasks.regression import NumberTask
from fastimg.train.tasks.tagging import MultilabelTask
from fastimg.train.tasks.task import Task


@dataclass(frozen=True)
class Wanted:
    """How many classes an answer has, and from which probability on a label is predicted (None: its own threshold)."""

    topk: int
    threshold: float | None = None

    def check(self, tasks: Tasks | None) -> None:
        """Raises UsageError for a threshold that nothing is compared with."""
        labels = tasks is not None and any(task.target.kind == "multilabel" for task in tasks.all)
        if self.threshold is not None and not labels:
            raise UsageError("--threshold has no effect: the model has no target of several labels; leave it out")


def answers_of(
    engine: Inference, loader: BatchSource, names: Sequence[str], wanted: Wanted, err: Console
) -> list[Answer]:
    """An answer for each sample of a loader, in order; `names` are the samples' names."""
    tasks = engine.tasks
    told = _classes(engine, loader, wanted.topk) if tasks is None else _targets(tasks, engine, loader, wanted)
    answers: list[Answer] = []
    remedies = undecodable_extensions() if engine.model.text is None else {}
    quiet = len(loader) < 3 or not err.is_terminal
    for ids, row_of in track(told, "predicting", len(loader), console=err, transient=True, disable=quiet):
        for row, index in enumerate(ids[: len(names) - len(answers)]):
            name = names[index]
            reason = loader.unreadable.get(index)
            if reason is None:
                answers.append(Answer(name, *row_of(row)))
            else:
                answers.append(Answer(name, [], [], _reason(name, reason, remedies), None if tasks is None else {}))
    return answers


_Told = tuple[list[str], list[float], None, Mapping[str, Mapping[str, Any]] | None]  # an Answer without its file
_Batches = Iterator[tuple[list[int], Callable[[int], _Told]]]  # ids, and what is told of a row


def _classes(engine: Inference, loader: BatchSource, topk: int) -> _Batches:
    """The likeliest classes; of equally likely ones, the lower index comes first."""
    classes = engine.card.classes

    def likeliest(_: Batch, probabilities: torch.Tensor) -> Sequence[torch.Tensor]:
        """Probabilities and classes [B, topk]."""
        shares, ranked = probabilities.sort(dim=1, descending=True, stable=True)
        return shares[:, :topk].contiguous(), ranked[:, :topk].contiguous()

    for ids, (shares, ranked) in engine.read(loader, likeliest):

        def told(row: int, shares: Any = shares, ranked: Any = ranked) -> _Told:
            return [classes[i] for i in ranked[row]], [round(float(share), 6) for share in shares[row]], None, None

        yield ids, told


def _targets(tasks: Tasks, engine: Inference, loader: BatchSource, wanted: Wanted) -> _Batches:
    """What a model of several targets, or of one that is not a class, predicts."""
    read = read_back((batch.ids.tolist(), (logits,)) for batch, logits in engine.logits(loader))
    for ids, (logits,) in read:
        own = [logits[:, part] for part in tasks.slices]
        outputs = [task.outputs_of(part) for task, part in zip(tasks.all, own, strict=True)]

        def told(row: int, outputs: Any = outputs) -> _Told:
            targets = {
                task.target.name: _target(task, values[row], wanted)
                for task, values in zip(tasks.all, outputs, strict=True)
            }
            first = next((each for each in targets.values() if "classes" in each), {})
            return first.get("classes", []), first.get("probabilities", []), None, targets

        yield ids, told


def _target(task: Task, values: npt.NDArray[np.float64], wanted: Wanted) -> dict[str, Any]:
    """What is predicted of one target of one sample."""
    if isinstance(task, NumberTask):
        return {"number": float(values[0])}
    names = task.target.classes
    ranked = np.argsort(-values, kind="stable")
    if isinstance(task, MultilabelTask):
        own = np.array(task.thresholds or (0.5,) * len(names))
        limits = own if wanted.threshold is None else np.full(len(names), wanted.threshold)
        ranked = ranked[values[ranked] >= limits[ranked]]
        return {"labels": [names[i] for i in ranked], "probabilities": [round(float(values[i]), 6) for i in ranked]}
    best = ranked[: wanted.topk]
    return {"classes": [names[i] for i in best], "probabilities": [round(float(values[i]), 6) for i in best]}


def _reason(name: str, reason: str, remedies: Mapping[str, str]) -> str:
    """Why a file was not read: the format of its extension if that cannot be decoded here, else the decoder's reason.

    The decoder knows the content only. Missing and empty files keep its reason.
    """
    remedy = remedies.get(extension_of(name))
    return remedy if remedy and os.path.isfile(name) and os.path.getsize(name) else reason
