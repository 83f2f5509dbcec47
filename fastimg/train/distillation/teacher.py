"""The teacher: a trained model that sees the student's crops as it was trained to see images."""

from dataclasses import dataclass, replace
from itertools import accumulate
from pathlib import Path

import torch
import torch.nn.functional as F

from fastimg.config.commands import Train
from fastimg.errors import UsageError, UserError, printable
from fastimg.models.precision import Precision
from fastimg.models.ranks import Ranks
from fastimg.models.registry import (
    Model,
    Preprocessing,
    build,
    load_weights,
    read_weights,
    repaired,
    stated_classes,
    taken_from,
    with_rows,
)
from fastimg.train.checkpoints.format import Card, load_model
from fastimg.train.checkpoints.stored_models import brought_here
from fastimg.train.tasks.joint import Tasks
from fastimg.train.tasks.restored import several
from fastimg.wording import plural


@dataclass(frozen=True, kw_only=True, eq=False)
class Teacher:
    """A model in evaluation mode, without gradients, that sees the student's crops: mixed and augmented alike.

    They are normalised as it was trained, and resized if it takes another size. It is no part of what trains, and is
    not in checkpoints.
    """

    model: Model
    preprocessing: Preprocessing  # its own
    student: Preprocessing
    order: torch.Tensor | None  # [C] its outputs in the order of the dataset's classes; None: they are
    renormalisation: tuple[torch.Tensor, torch.Tensor] | None  # x * [1, C, 1, 1] + [1, C, 1, 1]; None: the same
    precision: Precision

    @torch.no_grad()
    def logits(self, images: torch.Tensor) -> torch.Tensor:
        """Its logits [B, classes] for images [B, C, H, W] that are normalised for the student. No sync."""
        size = self.preprocessing.val_size
        dtype = images.dtype
        if self.renormalisation is not None:
            scale, shift = self.renormalisation
            images = images.float() * scale + shift
        if images.shape[-2:] != (size, size):  # in float32: torch resizes no bf16 on CPUs
            images = F.interpolate(images.float(), (size, size), mode="bilinear", antialias=True)
        images = images.to(dtype)
        with self.precision.autocast():
            logits: torch.Tensor = self.model.module(images)
        return logits if self.order is None else logits[:, self.order]

    @property
    def words(self) -> tuple[str, ...]:
        """For the effective configuration."""
        size = self.preprocessing.val_size
        resized = "" if size == self.student.train_size else f", on crops resized to {size}"
        return (f"{self.model.arch}{resized}", *self.model.fitted)


def load(config: Train, tasks: Tasks, student: Preprocessing, precision: Precision, ranks: Ranks) -> Teacher | None:
    """The teacher of --teacher on the device. Raises UsageError and UserError for one that cannot teach."""
    if config.teacher is None:
        return None
    classes = tasks.classes
    if tasks.single is None:
        raise UsageError("--teacher: speaks of the classes of one target alone; choose it with --targets")
    if tasks.outputs != len(classes):
        raise UsageError(
            f"--teacher: the model has {plural(tasks.outputs, 'output')} for {plural(len(classes), 'class')}; leave "
            "--num-classes out"
        )
    order = None
    path = brought_here(Path(config.teacher))
    if path.exists():
        model, card = load_model(path)
        if config.teacher_weights is not None:
            raise UsageError("--teacher-weights has no effect with a checkpoint as --teacher; leave one of them out")
        if card.text is not None or card.pair is not None:
            what = "reads texts, and this run has images" if card.pair is None else "reads texts beside images"
            raise UsageError(f"--teacher {config.teacher}: {what}; give one of images")
        first, names = _outputs_of_classes(config.teacher, card, classes)
        _compare(config.teacher, names, classes)
        places = {name: first + place for place, name in enumerate(names)}
        outputs = [places[name] for name in classes]
        if outputs != list(range(card.num_classes)):
            order = torch.tensor(outputs, device=ranks.device)
        preprocessing = card.preprocessing
    else:
        model, preprocessing = _by_name(config, classes, student.channels)
        preprocessing = replace(preprocessing, dtype=student.dtype)
    if preprocessing.channels != student.channels:
        raise UsageError(
            f"--teacher {config.teacher}: sees images of {plural(preprocessing.channels, 'channel')}, and its pupil of "
            f"{student.channels}; give one that sees the same"
        )
    if preprocessing.dtype != student.dtype or preprocessing.field != student.field:
        raise UsageError(
            f"--teacher {config.teacher}: sees pixels of {preprocessing.dtype}, and its pupil of {student.dtype}; give "
            "one that sees the same"
        )
    module = model.module.to(ranks.device).eval().requires_grad_(False)
    if config.channels_last and model.convolutional:
        module = module.to(memory_format=torch.channels_last)
    return Teacher(
        model=replace(model, module=module),
        preprocessing=preprocessing,
        student=student,
        order=order,
        renormalisation=_renormalisation(student, preprocessing, ranks.device),
        precision=precision,
    )


def _renormalisation(
    student: Preprocessing, own: Preprocessing, device: torch.device
) -> tuple[torch.Tensor, torch.Tensor] | None:
    """From the student's normalisation to the teacher's, in float32."""
    if (own.mean, own.std) == (student.mean, student.std):
        return None
    mean, std, before, scale = (
        torch.tensor(values, device=device).reshape(1, -1, 1, 1)
        for values in (own.mean, own.std, student.mean, student.std)
    )
    return scale / std, (before - mean) / std


def _by_name(config: Train, classes: tuple[str, ...], channels: int) -> tuple[Model, Preprocessing]:
    """A teacher by its architecture, with weights whose classifier is for as many classes.

    They are in the dataset's order, unless the file names them: then in the order of the names.
    """
    assert config.teacher is not None
    if config.teacher_weights is None:
        raise UsageError(
            f"--teacher {config.teacher}: there is no such checkpoint; give a run, one of its checkpoints, or an "
            "architecture with --teacher-weights FILE"
        )
    model = build(
        config.teacher, len(classes), kwargs={"in_chans": channels} if channels != 3 else {}, size_flag="--teacher"
    )
    file = brought_here(config.teacher_weights)
    tensors, metadata = read_weights(file)
    tensors, repairs = repaired(model, tensors)
    theirs = stated_classes(model.arch, metadata, file)
    if theirs is not None:
        _compare(config.teacher, theirs, classes)
    model, tensors, rows = with_rows(model, tensors, theirs, classes, "zeros")
    load_weights(model, tensors, f"--teacher-weights {config.teacher_weights}", strict_head=True)
    return replace(model, fitted=(*taken_from(metadata), *repairs, *rows)), model.preprocessing


def _outputs_of_classes(teacher: str, card: Card, classes: tuple[str, ...]) -> tuple[int, tuple[str, ...]]:
    """The first output of the checkpoint's class target, and its classes; of several targets, the one with `classes`.

    Raises UserError where no target, or more than one, has them.
    """
    tasks = several(card.targets)
    if tasks is None:
        return 0, card.classes
    firsts = accumulate((task.outputs for task in tasks.all), initial=0)
    found = [
        (first, task.target.classes)
        for first, task in zip(firsts, tasks.all, strict=False)
        if task.target.kind == "class" and set(task.target.classes) == set(classes)
    ]
    if len(found) != 1:
        predicts = printable(", ".join(f"{task.target.name} ({task.target.kind})" for task in tasks.all))
        which = "more than one of which has" if found else "none of which has"
        raise UserError(
            f"--teacher {teacher}: predicts {predicts}, {which} the dataset's {plural(len(classes), 'class')}; give "
            "one that predicts these alone"
        )
    return found[0]


def _compare(teacher: str, theirs: tuple[str, ...], ours: tuple[str, ...]) -> None:
    """Raises UserError where the teacher's classes are not the dataset's."""
    unknown = [name for name in ours if name not in theirs]
    foreign = [name for name in theirs if name not in ours]
    if unknown or foreign:
        what = f"does not know {printable(unknown[0])!r}" if unknown else f"knows {printable(foreign[0])!r}, too"
        raise UserError(
            f"--teacher {teacher}: {what}; it has {plural(len(theirs), 'class')} and the dataset {len(ours)}, and they "
            "have to be the same"
        )
