"""What `fastimg eval` evaluates: the part of a dataset, its loader, and what every result states about them."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from rich.console import Console

from fastimg.config.commands import Eval
from fastimg.config.intent import BATCH
from fastimg.data.datasets import check_labels, check_readable, chosen_backend, worker_count
from fastimg.data.decoder_compilation import Say
from fastimg.data.provenance import Selection
from fastimg.errors import UsageError, UserError, printable
from fastimg.loaders import BatchSource, Dataset
from fastimg.loaders.containers.content import singular
from fastimg.loaders.containers.targets import TargetColumn
from fastimg.loaders.remote.stores import url_of
from fastimg.models.ranks import Ranks
from fastimg.system.terminal import say
from fastimg.train.tasks.classification import ClassTask
from fastimg.train.tasks.joint import Tasks
from fastimg.train.tasks.restored import restored
from fastimg.wording import plural

from .inference import Inference, check_content, texts_beside

_NAMED = 5  # classes in a message


@dataclass(frozen=True, kw_only=True)
class EvaluatedPart:
    """Which samples a checkpoint was evaluated on.

    `trained_on` says whether the model was trained on any of them, as recorded in the checkpoint; None if unknown.
    """

    checkpoint: str
    data: str
    split: str
    part: str  # a description: the split, which part of it, or the name of a folder without splits
    trained_on: bool | None
    warning: str | None
    images: int
    unreadable: int

    @property
    def heading(self) -> str:
        """The data, the part of it unless that is its name, and the number of images."""
        part = "" if self.part == Path(self.data).name else f" ({self.part})"
        return f"{self.data}{part}, {plural(self.images, 'image')}"

    def _facts(self) -> dict[str, object]:
        """What a notebook shows above the scores."""
        return {
            "checkpoint": self.checkpoint,
            "data": self.heading,
            "not readable": self.unreadable or None,
            "warning": self.warning,
        }


def stated(config: Eval, file: Path, selection: Selection, loader: BatchSource, images: int) -> dict[str, Any]:
    """The fields of `EvaluatedPart`, after `images` samples of the loader were evaluated."""
    return {
        "checkpoint": str(file),
        "data": url_of(config.data) or str(config.data),
        "split": selection.split,
        "part": selection.origin,
        "trained_on": selection.trained_on,
        "warning": selection.warning,
        "images": images,
        "unreadable": len(loader.unreadable),
    }


def opened(
    config: Eval, engine: Inference, selection: Selection, ranks: Ranks, say: Say
) -> tuple[Tasks | None, BatchSource]:
    """The targets to score, None for one class that all samples have; and the loader of the selection.

    What that first has to compile is said.
    Raises UsageError and UserError for data that the checkpoint cannot be evaluated on.
    """
    dataset = selection.dataset
    check_content(engine, dataset, config.data)
    tasks = _tasks(engine, dataset)
    if tasks is None:
        classes = engine.card.classes
        _number_classes(classes, dataset, config, say)
        check_labels(config.data, selection.split, dataset, len(classes), "name another split with --split")
        _tell_absent(classes, selection, config, say)
    backend = chosen_backend(config.loader)
    check_readable(backend, config.data, dataset)
    if backend != "native" and engine.model.text is not None:
        raise UsageError(f"--loader {backend}: does not read texts; leave it out")
    engine.refuse_few_pixels(config.max_pixels)
    if backend == "native":
        engine.compile_decoders(dataset, selection.indices, say)
    texts = texts_beside(engine, dataset, config.data)
    workers = worker_count(config.workers, ranks)
    batch_size = config.batch_size or BATCH[ranks.device.type]
    return tasks, engine.loader(
        dataset, batch_size, workers, config.max_pixels, config.on_error, backend, selection.indices, texts
    )


def report_unreadable(config: Eval, dataset: Dataset, loader: BatchSource, images: int, err: Console) -> None:
    """Name the first samples that were left out. Raises UserError if no sample is left."""
    for index, reason in list(loader.unreadable.items())[:5]:
        say(err, f"left out {dataset.sample_name(index)}: {reason}")
    if images == 0:
        samples = plural(len(loader.unreadable), singular(dataset.content))
        raise UserError(f"{config.data}: none of its {samples} could be decoded; see the reasons above")


def _tasks(engine: Inference, dataset: Dataset) -> Tasks | None:
    """The targets to score, where they are not one class that all samples have, and batches with it."""
    first = next((column for column in dataset.targets if column.target.kind == "class"), None)
    if not engine.card.targets:
        if first is None or not first.declared or first.present.all():
            return None
        target = replace(first.target, classes=engine.card.classes)
        return Tasks.one_class(ClassTask(target=target, outputs=len(target.classes)))
    tasks = restored(engine.card.targets)
    alone = tasks.single is not None and first is not None and first.target.name == tasks.single.target.name
    return None if alone and first is not None and first.present.all() else tasks


def _number_classes(classes: tuple[str, ...], dataset: Dataset, config: Eval, say: Say) -> None:
    """Give the samples the numbers that the checkpoint has for their classes; see `_numbers`."""
    if dataset.classes == classes:
        return
    dataset.labels = _numbers(classes, dataset.classes, dataset.labels, str(config.data), config, say)[dataset.labels]
    dataset.classes = classes


def renumbered(column: TargetColumn, classes: tuple[str, ...], config: Eval, say: Say) -> TargetColumn:
    """A target of classes or labels with the numbers that the checkpoint has for them; see `_numbers`."""
    if column.target.classes == classes:
        return column
    target = replace(column.target, classes=classes)
    if not column.present.any():
        return replace(column, target=target)
    subject = f"{config.data}: target {printable(column.target.name)}"
    values = _numbers(classes, column.target.classes, column.values, subject, config, say)[column.values]
    if column.ends is not None:  # ascending within a sample, as they were
        samples = np.repeat(np.arange(len(column)), np.diff(column.ends, prepend=0))
        values = values[np.lexsort((values, samples))].astype(column.values.dtype)
    return replace(column, target=target, values=values)


def _numbers(
    classes: tuple[str, ...], own: Sequence[str], values: npt.NDArray[Any], subject: str, config: Eval, say: Say
) -> npt.NDArray[np.int64]:
    """The number that the checkpoint has for each of the data's `own` classes, found by name: it may know more of them.

    At the end stands -1, for -1: no class. Raises UserError for samples of classes that it does not know.
    """
    if not set(own) & set(classes):
        raise UserError(
            f"{subject}: its classes differ from those of {config.checkpoint}: none of {_listed(own)} "
            f"is among {_listed(classes)}; evaluate on data with the classes the model was trained on"
        )
    places = {name: place for place, name in enumerate(classes)}
    counts = np.bincount(values[values >= 0], minlength=len(own)).tolist()
    unknown = {name: count for name, count in zip(own, counts, strict=True) if name not in places}
    if any(unknown.values()):
        named = _listed([f"{name} ({count:,})" for name, count in unknown.items() if count])
        raise UserError(
            f"{subject}: its classes differ from those of {config.checkpoint}: it has samples of classes that the "
            f"model was not trained on: {named}; evaluate on data without them"
        )
    if unknown:
        say(f"{subject}: left out, without samples and unknown to the model: {_listed(list(unknown))}")
    return np.array([places.get(name, -1) for name in own] + [-1], np.int64)


def tell_absent_of(column: TargetColumn, selection: Selection, config: Eval, say: Say) -> None:
    """Name the classes or labels of a target of which there is nothing to evaluate."""
    chosen = column if selection.indices is None else column.select(selection.indices)
    subject = f"{config.data}: target {printable(column.target.name)}"
    if chosen.present.any():  # else no sample has the target, which its row says
        _tell(chosen.target.classes, chosen.values, subject, say)


def _tell_absent(classes: tuple[str, ...], selection: Selection, config: Eval, say: Say) -> None:
    """Name the classes of which there is nothing to evaluate."""
    labels = selection.dataset.labels
    _tell(classes, labels if selection.indices is None else labels[selection.indices], str(config.data), say)


def _tell(classes: tuple[str, ...], values: npt.NDArray[Any], subject: str, say: Say) -> None:
    present = np.bincount(values[values >= 0], minlength=len(classes)).tolist()
    absent = [name for name, count in zip(classes, present, strict=True) if not count]
    if absent:
        say(
            f"{subject}: no samples of {len(absent):,} of {plural(len(classes), 'class')} ({_listed(absent)}); "
            "averages are over the others"
        )


def _listed(names: Sequence[str]) -> str:
    return ", ".join(map(printable, names[:_NAMED])) + (", ..." if len(names) > _NAMED else "")
