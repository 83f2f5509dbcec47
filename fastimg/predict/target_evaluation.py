"""`fastimg eval` of a model of several targets, or of one that is not a class: the scores of each."""

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table
from rich.text import Text

from fastimg import notebook
from fastimg.config.commands import Eval
from fastimg.data.decoder_compilation import Say
from fastimg.data.provenance import Selection
from fastimg.errors import UserError, printable
from fastimg.loaders import BatchSource
from fastimg.loaders.containers.targets import TargetColumn
from fastimg.models.ranks import Ranks
from fastimg.system.terminal import print_table, say
from fastimg.train.metrics import Meter
from fastimg.train.tasks.joint import Tasks
from fastimg.train.tasks.lookup import TargetLookup
from fastimg.train.tasks.score import AnyScore, TargetScores, shown
from fastimg.wording import plural

from . import inference
from .evaluated_part import EvaluatedPart, renumbered, report_unreadable, tell_absent_of


@dataclass(frozen=True, kw_only=True)
class TargetEvaluation(EvaluatedPart):
    """The result over a split, or over the part of it that training held out: the keys of --json.

    targets: by name, its scores: `loss`; `top1`, `top5` and `balanced_accuracy` of a class; `map` and `f1` of several
        labels; `mae` and `r2` of a number, in its own units. Empty where no sample has the target.
    present: by name, how many samples have the target.
    thresholds: of several labels, by name: the probabilities from which on each is predicted, as training chose them.
    """

    targets: dict[str, dict[str, float]]
    present: dict[str, int]
    thresholds: dict[str, list[float]]

    def _repr_html_(self) -> str:
        rows = (
            (name, metric, shown(metric, value), f"{self.present.get(name, self.images):,}")
            for name, scores in self.targets.items()
            for metric, value in scores.items()
        )
        return notebook.page(
            notebook.facts(self._facts()), notebook.table(("target", "score", "value", "samples"), rows)
        )


def evaluate_targets(
    config: Eval,
    told: Callable[[int], dict[str, Any]],
    engine: inference.Inference,
    tasks: Tasks,
    selection: Selection,
    loader: BatchSource,
    ranks: Ranks,
    out: Console,
    err: Console,
) -> TargetEvaluation:
    """Evaluate and print. Raises UserError where the data lacks a target, or nothing could be read.

    told: number of images -> the fields of `EvaluatedPart`.
    """
    columns = columns_of(config, tasks, selection, partial(say, err))
    lookup = TargetLookup([task.column(column) for task, column in zip(tasks.all, columns, strict=True)])
    meter = Meter(tasks, engine.device, whole=True)
    batches = engine.logits(loader)
    for batch, logits in track(
        batches, "evaluating", len(loader), console=err, transient=True, disable=not err.is_terminal
    ):
        with torch.inference_mode():
            truths = lookup.truths(batch)
            meter.add(logits, tasks.evaluation_losses(logits, truths), truths, batch.weight)
    score = meter.read(ranks)
    report_unreadable(config, selection.dataset, loader, score.samples, err)
    thresholds = score.thresholds if isinstance(score, TargetScores) else {}
    result = TargetEvaluation(
        **told(score.samples),
        targets=_by_name(tasks, score),
        present=meter.present(),
        thresholds={name: list(values) for name, values in thresholds.items()},
    )
    if config.json:
        print(json.dumps(asdict(result)))
    else:
        _print(result, tasks, out)
    return result


def _by_name(tasks: Tasks, score: AnyScore) -> dict[str, dict[str, float]]:
    """The scores of each target, also of a class alone."""
    alone = len(tasks.all) == 1
    found: dict[str, dict[str, float]] = {}
    for task in tasks.all:
        prefix = "" if tasks.single is not None else f"{task.target.name}."
        values = {name: score.value(f"{prefix}{name}") for name in task.metrics}
        values["loss"] = score.value("loss" if alone else f"{prefix}loss")
        found[task.target.name] = {name: value for name, value in values.items() if value is not None}
    return found


def columns_of(config: Eval, tasks: Tasks, selection: Selection, say: Say) -> list[TargetColumn]:
    """The columns of a model's targets, with its numbers of classes. Raises UserError for data that lacks them."""
    columns = {column.target.name: column for column in selection.dataset.targets}
    found = []
    for task in tasks.all:
        name = printable(task.target.name)
        column = columns.get(task.target.name)
        if column is None:
            raise UserError(
                f"{config.data}: has no target {name}, which {config.checkpoint} predicts; evaluate on data that has it"
            )
        if column.target.kind != task.target.kind:
            raise UserError(
                f"{config.data}: its target {name} has another kind than that of {config.checkpoint}; evaluate on data "
                "with the targets that the model was trained on"
            )
        if task.target.kind != "number":
            column = renumbered(column, task.target.classes, config, say)
            tell_absent_of(column, selection, config, say)
        found.append(column)
    return found


def _print(result: TargetEvaluation, tasks: Tasks, out: Console) -> None:
    table = Table()
    table.add_column("target", overflow="fold")
    table.add_column("scores", overflow="fold")
    table.add_column("images", justify="right")
    for task in tasks.all:
        name = task.target.name
        told = _told(result.targets[name], ("loss", *task.metrics))
        table.add_row(Text(printable(name)), told or "no image has it", f"{result.present[name]:,}")
    print_table(out, table, result.heading)
    if result.unreadable:
        say(out, f"{plural(result.unreadable, 'image')} could not be decoded")
    if result.warning is not None:
        say(out, f"warning: {result.warning}", style="yellow")


def _told(scores: dict[str, float], names: Sequence[str]) -> str:
    return "  ".join(f"{name} {shown(name, scores[name])}" for name in names if name in scores)
