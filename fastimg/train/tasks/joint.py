"""All tasks of a run together: which outputs are whose, the weighted loss, and what is told of the scores."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Self, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from fastimg.augment.mixing import Mixture
from fastimg.loaders.containers.targets import LABEL
from fastimg.models.registry import output_names
from fastimg.wording import plural

from .classification import ClassTask
from .score import AnyScore, Score, TargetScores, shown, shows_top5
from .task import Counted, Task, Truth

_Float = TypeVar("_Float", np.float32, np.float64)


class Losses(NamedTuple):
    """The weighted loss of each sample [B], and the loss of each target [B]."""

    total: torch.Tensor
    each: tuple[torch.Tensor, ...]

    def detach(self) -> "Losses":
        """The same numbers, for counting."""
        return Losses(self.total.detach(), tuple(rows.detach() for rows in self.each))


@dataclass(frozen=True, kw_only=True, eq=False)
class Tasks:
    """Tasks whose outputs stand side by side in the model's logits, in their order.

    weights: of the targets' losses in the loss of a sample.
    learned: the weights are learned instead (Kendall, Gal and Cipolla, 2018): of a target with the log-variance s, the
        loss becomes likelihood * exp(-s) * loss + s / 2 where the target is present. `log_variances` [tasks] are
        parameters on the device, which `to` makes.
    """

    all: tuple[Task, ...]
    weights: tuple[float, ...] = (1.0,)
    learned: bool = False
    log_variances: nn.Parameter | None = field(default=None, repr=False)

    @classmethod
    def one_class(cls, task: ClassTask) -> "Tasks":
        """Only a class."""
        return cls(all=(task,))

    @property
    def outputs(self) -> int:
        """Logits per sample."""
        return sum(task.outputs for task in self.all)

    @property
    def slices(self) -> tuple[slice, ...]:
        """Each task's part of the logits."""
        ends = [sum(task.outputs for task in self.all[: place + 1]) for place in range(len(self.all))]
        return tuple(slice(end - task.outputs, end) for end, task in zip(ends, self.all, strict=True))

    @property
    def single(self) -> ClassTask | None:
        """The only task, where it is a class: its scores are told without the target's name."""
        first = self.all[0]
        return first if len(self.all) == 1 and isinstance(first, ClassTask) else None

    @property
    def class_tasks(self) -> tuple[ClassTask, ...]:
        """The tasks of classes."""
        return tuple(task for task in self.all if isinstance(task, ClassTask))

    @property
    def declared(self) -> bool:
        """Whether the data names its targets: a lone `label` is a folder's, or a column's, class."""
        return self.single is None or self.single.target.name != LABEL

    @property
    def classes(self) -> tuple[str, ...]:
        """The classes of the first class target; empty where no target is a class."""
        return next((task.target.classes for task in self.class_tasks), ())

    @property
    def output_names(self) -> tuple[str, ...]:
        """What each output stands for: a class, or of several targets `target=class` and `target`."""
        if self.single is not None:
            return self.single.target.classes
        return output_names((task.target.name, task.target.classes) for task in self.all)

    @property
    def parameters(self) -> list[nn.Parameter]:
        """What is learned beside the model."""
        return [] if self.log_variances is None else [self.log_variances]

    def to(self, device: torch.device) -> Self:
        """The tasks of one run, with parameters of their own on a device."""
        fresh = nn.Parameter(torch.zeros(len(self.all), device=device)) if self.learned else None
        return replace(self, all=tuple(task.to(device) for task in self.all), log_variances=fresh)

    def schema(self) -> str:
        """What is learned: a number of classes, or the targets."""
        if self.single is not None:
            return plural(len(self.single.target.classes), "class")
        kinds = {"class": "class", "multilabel": "label"}
        words = [
            f"{target.name} ({plural(len(target.classes), kinds[target.kind]) if target.classes else 'a number'})"
            for target in (task.target for task in self.all)
        ]
        return f"{plural(len(words), 'target')}: {', '.join(words)}"

    def describe(self) -> str:
        """The loss of a sample, in words."""
        if self.single is not None:
            return self.single.describe()
        words = [f"{task.target.name}: {task.describe()}" for task in self.all]
        if self.learned:
            words.append("weighed by learned uncertainties")
        elif set(self.weights) != {1.0}:
            names = (task.target.name for task in self.all)
            words.append(f"weights {', '.join(f'{n} {w:g}' for n, w in zip(names, self.weights, strict=True))}")
        return "; ".join(words)

    def losses(self, logits: torch.Tensor, truths: Sequence[Truth]) -> Losses:
        """Training losses. A target that a sample lacks adds exactly 0 to its loss."""
        return self._joined(logits, truths, lambda task, own, truth: task.loss(own, truth))

    def evaluation_losses(self, logits: torch.Tensor, truths: Sequence[Truth]) -> Losses:
        """The losses that validation tells: without smoothing, and without weights of labels."""
        return self._joined(logits, truths, lambda task, own, truth: task.evaluation_loss(own, truth))

    def _joined(
        self,
        logits: torch.Tensor,
        truths: Sequence[Truth],
        loss: Callable[[Task, torch.Tensor, Truth], torch.Tensor],
    ) -> Losses:
        parts = self.parts(logits)
        each = tuple(loss(task, own, truth) for task, own, truth in zip(self.all, parts, truths, strict=True))
        terms = [
            self._weighed(place, rows, truth) for place, (rows, truth) in enumerate(zip(each, truths, strict=True))
        ]
        total = terms[0]
        for term in terms[1:]:
            total = total + term
        return Losses(total, each)

    def _weighed(self, place: int, rows: torch.Tensor, truth: Truth) -> torch.Tensor:
        if self.log_variances is not None:
            variance = self.log_variances[place]
            return truth.masked(self.all[place].likelihood * torch.exp(-variance) * rows + 0.5 * variance)
        weight = self.weights[place]
        return rows if weight == 1.0 else weight * rows

    def parts(self, logits: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Each task's logits [B, w]."""
        if len(self.all) == 1:
            return (logits,)
        return tuple(logits[:, part] for part in self.slices)

    def outputs_of(self, logits: npt.NDArray[np.float32]) -> npt.NDArray[np.float64]:
        """Logits [N, outputs] as people read them, side by side: see Task."""
        own = self._columns(logits)
        return np.concatenate([task.outputs_of(part) for task, part in zip(self.all, own, strict=True)], axis=1)

    def logits_of(self, outputs: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """Logits [N, outputs] with these `outputs_of`."""
        own = self._columns(outputs)
        return np.concatenate([task.logits_of(part) for task, part in zip(self.all, own, strict=True)], axis=1)

    def _columns(self, values: npt.NDArray[_Float]) -> list[npt.NDArray[_Float]]:
        return [values] if len(self.all) == 1 else [values[:, part] for part in self.slices]

    def mixed(self, truths: Sequence[Truth], mixture: Mixture | None) -> tuple[Truth, ...]:
        """The targets of mixed samples."""
        return tuple(task.mixed(truth, mixture) for task, truth in zip(self.all, truths, strict=True))

    @property
    def sums(self) -> int:
        """The length of `count`."""
        return sum(task.sums for task in self.all) + (0 if len(self.all) == 1 else 2)

    def count(
        self, logits: torch.Tensor, losses: Losses, truths: Sequence[Truth], weight: torch.Tensor
    ) -> torch.Tensor:
        """Sums over a batch, float64 [sums]: of several targets first the weighted losses and the weights. No sync."""
        parts = self.parts(logits)
        own = [
            task.count(part, rows, truth, weight)
            for task, part, rows, truth in zip(self.all, parts, losses.each, truths, strict=True)
        ]
        if len(own) == 1:
            return own[0]
        return torch.cat([torch.stack([(losses.total * weight).sum(), weight.sum()]).double(), *own])

    def score(self, sums: Sequence[float], counted: Sequence[Counted] = ()) -> AnyScore:
        """The scores that sums over batches tell, with what a validation counted beside them."""
        if self.single is not None:
            score = Score.of(sums)
            for found in counted:
                score = replace(score, balanced_accuracy=found.values.get("balanced_accuracy"), missed=found.missed)
            return score
        several = len(self.all) > 1
        rest = list(sums[2:] if several else sums)
        values: dict[str, float] = {}
        thresholds: dict[str, tuple[float, ...]] = {}
        for place, task in enumerate(self.all):
            own, rest = rest[: task.sums], rest[task.sums :]
            told = task.means(own) | (dict(counted[place].values) if counted else {})
            values |= {f"{task.target.name}.{name}": value for name, value in told.items() if several or name != "loss"}
            if counted and counted[place].thresholds:
                thresholds[task.target.name] = counted[place].thresholds
        total, samples = (sums[0], sums[1]) if several else (sums[0], sums[-1])
        return TargetScores(
            loss=total / max(samples, 1.0), samples=round(samples), values=values, thresholds=thresholds
        )

    def present(self, sums: Sequence[float]) -> dict[str, int]:
        """How many samples have each target, by the sums of `count`: the last of a task's sums is its weights'."""
        rest = list(sums[2:] if len(self.all) > 1 else sums)
        found = {}
        for task in self.all:
            found[task.target.name] = round(rest[task.sums - 1])
            rest = rest[task.sums :]
        return found

    def record(self, score: AnyScore) -> dict[str, float]:
        """A score for logs."""
        return score.as_dict(len(self.classes)) if isinstance(score, Score) else score.as_dict()

    def line(self, score: AnyScore) -> str:
        """A score for a progress line, beside the loss."""
        if isinstance(score, Score):
            return f"top1 {score.top1:6.2%}"
        firsts = (f"{task.target.name}.{task.metrics[0]}" for task in self.all)
        told = [name if name in score.values else f"{name.rpartition('.')[0]}.loss" for name in firsts]
        return "  ".join(f"{name} {shown(name, score.values[name])}" for name in told if name in score.values)

    def words(self, score: AnyScore) -> str:
        """A validation in words."""
        if isinstance(score, Score):
            top5 = f"  top5 {score.top5:.2%}" if shows_top5(len(self.classes)) else ""
            balanced = f"  balanced {score.balanced_accuracy:.2%}" if score.balanced_accuracy is not None else ""
            return f"loss {score.loss:.4f}  top1 {score.top1:.2%}{top5}{balanced}"
        return f"loss {score.loss:.4f}  {'  '.join(f'{n} {shown(n, v)}' for n, v in self.told(score))}"

    def told(self, score: TargetScores) -> list[tuple[str, float]]:
        """The scores by name, in the order of the targets, the most important first."""
        names = [f"{task.target.name}.{metric}" for task in self.all for metric in task.metrics]
        return [(name, score.values[name]) for name in names if name in score.values]

    @property
    def metrics(self) -> tuple[str, ...]:
        """What --metric may name. A lone class goes without the target's name."""
        if self.single is not None:
            return ("loss", *self.single.metrics)
        several = len(self.all) > 1
        own = [(task.target.name, (("loss",) if several else ()) + task.metrics) for task in self.all]
        return ("loss", *(f"{name}.{metric}" for name, metrics in own for metric in metrics))

    def stated(self, thresholds: Mapping[str, Sequence[float]] | None = None) -> tuple[dict[str, Any], ...]:
        """What a checkpoint states of each target; nothing of data that names no targets."""
        if not self.declared:
            return ()
        chosen = thresholds or {}
        return tuple(
            {
                "name": task.target.name,
                "kind": task.target.kind,
                **({"classes": list(task.target.classes)} if task.target.classes else {}),
                "outputs": task.outputs,
                **task.stated(),
                **({"thresholds": list(chosen[task.target.name])} if task.target.name in chosen else {}),
            }
            for task in self.all
        )
