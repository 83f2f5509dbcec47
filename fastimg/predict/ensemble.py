"""`fastimg eval RUN RUN ... DATA`: the score of each run, their mean and deviation, and what they predict together.

Runs over folds held out different samples: each sample is then predicted by the run that did not see it, which is the
out-of-fold score. Where all runs may be evaluated on the same samples, the ensemble is the mean of their probabilities,
and of the numbers that they predict.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from functools import partial
from statistics import mean, stdev
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from rich.console import Console
from rich.table import Table
from rich.text import Text

from fastimg import notebook
from fastimg.config.commands import Eval
from fastimg.config.rule_tables.reading import EVAL
from fastimg.config.rules import refuse
from fastimg.data.datasets import check_backend, check_classes, chosen_backend, filled_splits
from fastimg.data.decoder_compilation import Say
from fastimg.data.elsewhere import local_folder
from fastimg.data.provenance import Selection, select
from fastimg.data.read_back import read_back
from fastimg.errors import UsageError, UserError, printable
from fastimg.loaders.containers.targets import LABEL, Target, TargetColumn
from fastimg.loaders.remote.stores import shown as path_shown
from fastimg.models.ranks import Ranks, start
from fastimg.system.terminal import print_table, say
from fastimg.train.metrics import Meter
from fastimg.train.tasks.classification import ClassTask
from fastimg.train.tasks.joint import Tasks
from fastimg.train.tasks.lookup import truth
from fastimg.train.tasks.restored import averaged
from fastimg.train.tasks.score import shown
from fastimg.wording import plural

from . import inference
from .evaluated_part import opened
from .target_evaluation import columns_of

_TEST = "test"
_ROWS = 4096  # samples that are scored at once

Doubles = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class EnsembleScore:
    """What one run, or several together, predict of some samples.

    scores: as --metric names them: `top1` of a class alone, else `age.mae`. Accuracies are fractions, losses in nats.
    present: how many samples have each target, by its name; empty for a class alone.
    """

    part: str  # which samples, in words
    images: int
    scores: dict[str, float]
    present: dict[str, int]

    def as_dict(self) -> dict[str, Any]:
        """For JSON: the scores beside the other fields."""
        fields: dict[str, Any] = asdict(self)
        del fields["scores"]
        return fields | self.scores


@dataclass(frozen=True, kw_only=True)
class RunScore(EnsembleScore):
    """The score of one run. `trained_on` says whether it was trained on any of the samples; None if that is unknown."""

    checkpoint: str
    trained_on: bool | None
    warning: str | None
    unreadable: int


@dataclass(frozen=True, kw_only=True)
class RunsEvaluation:
    """Several runs on one dataset. `mean` and `deviation`, that of the sample (n - 1), are of scores that all have."""

    data: str
    split: str
    runs: list[RunScore]
    mean: dict[str, float]
    deviation: dict[str, float]
    out_of_fold: EnsembleScore | None  # where each sample is predicted by one run
    ensemble: EnsembleScore | None  # where samples are predicted by all
    test: EnsembleScore | None  # the ensemble on the test split, for runs over folds

    def _repr_html_(self) -> str:
        names = list(dict.fromkeys(name for run in self.runs for name in run.scores))
        together = {"out of fold": self.out_of_fold, "ensemble": self.ensemble, "ensemble on test": self.test}
        rows: list[tuple[str, Mapping[str, float], object]] = [
            *((run.checkpoint, run.scores, f"{run.images:,}") for run in self.runs),
            ("mean", self.mean, ""),
            ("deviation", self.deviation, ""),
            *((name, score.scores, f"{score.images:,}") for name, score in together.items() if score is not None),
        ]
        cells = (
            (name, *(shown(metric, scores[metric]) if metric in scores else "" for metric in names), images)
            for name, scores, images in rows
        )
        return notebook.page(
            notebook.facts({"data": f"{self.data} ({self.split})"}), notebook.table(("run", *names, "images"), cells)
        )

    def as_dict(self) -> dict[str, Any]:
        """The keys of --json."""
        together = {"out_of_fold": self.out_of_fold, "ensemble": self.ensemble, "test": self.test}
        return {
            **asdict(self),
            "runs": [run.as_dict() for run in self.runs],
            **{name: None if score is None else score.as_dict() for name, score in together.items()},
        }


class Together:
    """Sums over runs of probabilities, and of numbers in their own units [N, outputs], for the samples of one split."""

    def __init__(self, columns: Sequence[TargetColumn], outputs: int) -> None:
        self.columns = columns
        self.sums: Doubles = np.zeros((len(columns[0]), outputs))
        self.count = np.zeros(len(columns[0]), np.int64)

    def add(self, ids: Ints, outputs: Doubles) -> None:
        """What one run predicts of the samples `ids` [B]: outputs [B, outputs]."""
        self.sums[ids] += outputs
        self.count[ids] += 1

    def score(self, tasks: Tasks, chosen: npt.NDArray[np.bool_], part: str) -> EnsembleScore | None:
        """The means against the targets, of the `chosen` samples [N]; None if there are none."""
        ids = np.flatnonzero(chosen)
        if not len(ids):
            return None
        return EnsembleScore(part=part, **scored(tasks, self.columns, ids, self.sums[ids] / self.count[ids][:, None]))


def scored(tasks: Tasks, columns: Sequence[TargetColumn], ids: Ints, outputs: Doubles) -> dict[str, Any]:
    """`images`, `scores` and `present` of what is predicted of the samples `ids` [B]: outputs [B, outputs]."""
    host = torch.device("cpu")
    own = [task.column(column) for task, column in zip(tasks.all, columns, strict=True)]
    meter = Meter(tasks, host, whole=True)
    for at in range(0, len(ids), _ROWS):
        rows = slice(at, at + _ROWS)
        logits = torch.from_numpy(tasks.logits_of(outputs[rows])).float()
        truths = [truth(column, ids[rows], host) for column in own]
        meter.add(logits, tasks.evaluation_losses(logits, truths), truths, torch.ones(len(logits)))
    score = meter.read(Ranks(0, 1, 1, host, None))
    names = (
        tasks.metrics[1:] if len(tasks.all) > 1 else tasks.metrics
    )  # a sum of losses says nothing that theirs do not
    values = {name: score.value(name) for name in names}
    return {
        "images": score.samples,
        "scores": {name: value for name, value in values.items() if value is not None},
        "present": {} if tasks.single is not None else meter.present(),
    }


class RunsTogether:
    """What runs predict of each split, one run after the other."""

    def __init__(self) -> None:
        self.splits: dict[str, Together] = {}
        self._first: Tasks | None = None
        self._stated: list[tuple[dict[str, Any], ...]] = []

    def expect(self, config: Eval, engine: inference.Inference, tasks: Tasks) -> None:
        """The next run is this one. Raises UserError if it predicts other targets than the first."""
        self._first = self._first or tasks
        if _targets(tasks) != _targets(self._first):
            raise UserError(
                f"{config.checkpoint}: predicts {tasks.schema()}, and the first run {self._first.schema()}; name runs "
                "with the same targets"
            )
        self._stated.append(engine.card.targets)

    def add(self, split: str, columns: Sequence[TargetColumn], ids: Ints, outputs: Doubles) -> None:
        """What the run predicts of samples of a split."""
        self.splits.setdefault(split, Together(columns, outputs.shape[1])).add(ids, outputs)

    @property
    def tasks(self) -> Tasks:
        """Those of the mean of all runs."""
        assert self._first is not None
        return self._first if self._first.single is not None else averaged(self._stated)


def evaluate_runs(config: Eval, out: Console, err: Console) -> RunsEvaluation:
    """Evaluate several runs and print. Raises UsageError, UserError and DataError, each a sentence."""
    refuse(config, EVAL)
    check_backend(chosen_backend(config.loader))
    check_classes(config.dataset, config.classes)
    if config.output is not None:
        raise UsageError("--output has no effect with several runs; leave it out, or evaluate one run")
    if twice := next((run for number, run in enumerate(config.runs) if run in config.runs[:number]), None):
        raise UsageError(f"eval: {twice} is given twice; name each run once")
    runs: list[RunScore] = []
    together = RunsTogether()
    data = local_folder(config.dataset, config)
    with start(config.device) as ranks:
        for run in config.runs:
            runs.append(_evaluate(replace(config, checkpoint=run, data=data, more=()), together, ranks, err))
    splits = [split for split in together.splits if split != _TEST] or [_TEST]
    if len(splits) > 1:
        raise UserError(
            f"{config.dataset}: the runs are evaluated on different splits ({', '.join(splits)}); choose one with "
            "--split"
        )
    result = _result(config, splits[0], runs, together)
    if config.json:
        print(json.dumps(result.as_dict()))
    else:
        _print(result, out)
    return result


def _evaluate(config: Eval, together: RunsTogether, ranks: Ranks, err: Console) -> RunScore:
    """The score of one run; what it predicts is added to the others. Over folds, it predicts the test split too."""
    tell = partial(say, err)
    engine = inference.load(config.checkpoint, ranks.device, config.amp, config.tta, tell)
    history = engine.card.trained_on
    own = select(config.data, config.split, history, config.classes, held_out=True)
    score = _predicted(config, engine, own, together, ranks, tell, first=True)
    folds = history and history[0].fold is not None and config.split is None
    if folds and own.split != _TEST and _TEST in filled_splits(config.data, config.classes, evaluates=True):
        _predicted(config, engine, select(config.data, _TEST, history, config.classes), together, ranks, tell)
    say(err, f"evaluated   {config.checkpoint}: {score.part}")
    return score


def _predicted(
    config: Eval,
    engine: inference.Inference,
    selection: Selection,
    together: RunsTogether,
    ranks: Ranks,
    tell: Say,
    first: bool = False,
) -> RunScore:
    """What a run predicts of a selection, the first or the second one of it: its score; its outputs are added."""
    with closing(selection.dataset):
        found, loader = opened(config, engine, selection, ranks, tell)
        with closing(loader):
            tasks, columns = _scored_targets(config, engine, selection, found, tell)
            if first:
                together.expect(config, engine, tasks)
            ids, outputs = [np.zeros(0, np.int64)], list[Doubles]()
            answers = ((batch.ids.tolist(), (batch.weight, logits)) for batch, logits in engine.logits(loader))
            for batch, (weight, logits) in read_back(answers):
                ids.append(np.array(batch)[weight > 0])
                outputs.append(tasks.outputs_of(logits[weight > 0]))
        chosen = np.concatenate(ids)
        if not len(chosen):
            raise UserError(f"{config.data}: none of the samples of {selection.origin} could be decoded")
        predicted = np.concatenate(outputs)
        together.add(selection.split, columns, chosen, predicted)
        return RunScore(
            checkpoint=str(config.checkpoint),
            part=selection.origin,
            trained_on=selection.trained_on,
            warning=selection.warning,
            unreadable=len(loader.unreadable),
            **scored(tasks, columns, chosen, predicted),
        )


def _scored_targets(
    config: Eval, engine: inference.Inference, selection: Selection, tasks: Tasks | None, tell: Say
) -> tuple[Tasks, list[TargetColumn]]:
    """The tasks of a run and their columns; without `tasks` the checkpoint's classes, which are the data's labels."""
    if tasks is not None:
        return tasks, columns_of(config, tasks, selection, tell)
    target = Target(name=LABEL, kind="class", classes=engine.card.classes)
    column = TargetColumn.of_classes(selection.dataset.labels, target.classes)
    return Tasks.one_class(ClassTask(target=target, outputs=len(target.classes))), [column]


def _targets(tasks: Tasks) -> Sequence[object]:
    """What is predicted; the name of a class alone makes no difference."""
    return tasks.classes if tasks.single is not None else [task.target for task in tasks.all]


def _result(config: Eval, split: str, runs: list[RunScore], together: RunsTogether) -> RunsEvaluation:
    own, tasks = together.splits[split], together.tasks
    alone, shared = own.count == 1, own.count == len(runs)
    values = {
        name: [run.scores[name] for run in runs] for name in runs[0].scores if all(name in run.scores for run in runs)
    }
    test = together.splits.get(_TEST) if split != _TEST else None
    words = f"of {len(runs)} runs: the mean of their {'probabilities' if tasks.single is not None else 'outputs'}"
    held_out = f"{split}, each by the one run that held it out"
    return RunsEvaluation(
        data=path_shown(config.dataset),
        split=split,
        runs=runs,
        mean={name: mean(each) for name, each in values.items()},
        deviation={name: stdev(each) for name, each in values.items()},
        out_of_fold=None if shared.any() else own.score(tasks, alone, held_out),
        ensemble=own.score(tasks, shared, f"{split}, {words}"),
        test=test.score(tasks, test.count == len(runs), f"{_TEST}, {words}") if test is not None else None,
    )


def _print(result: RunsEvaluation, out: Console) -> None:
    for target in result.runs[0].present or [""]:
        _print_table(result, target, out)
    for name, score in (("out of fold", result.out_of_fold), ("ensemble", result.ensemble), ("ensemble", result.test)):
        if score is not None:
            told = "  ".join(f"{metric} {shown(metric, value)}" for metric, value in score.scores.items())
            say(out, printable(f"{name}  {told}  ({plural(score.images, 'image')}; {score.part})"))
    for warning in dict.fromkeys(run.warning for run in result.runs if run.warning is not None):
        say(out, f"warning: {warning}", style="yellow")


def _print_table(result: RunsEvaluation, target: str, out: Console) -> None:
    """The runs' scores of one target; "" is a class alone."""
    every = dict.fromkeys(name for run in result.runs for name in run.scores)
    names = [name for name in every if name.rpartition(".")[0] in ("", target)]

    def cells(scores: Mapping[str, float]) -> Iterable[str]:
        return (shown(name, scores[name]) if name in scores else "" for name in names)

    table = Table()
    table.add_column("run", overflow="fold")
    for name in names:
        table.add_column(name.rpartition(".")[2], justify="right")
    table.add_column("images", justify="right")
    for run in result.runs:
        table.add_row(Text(run.checkpoint), *cells(run.scores), f"{run.present.get(target, run.images):,}")
    table.add_section()
    table.add_row("mean", *cells(result.mean), "")
    table.add_row("deviation", *cells(result.deviation), "")
    print_table(out, table, f"{result.data} ({result.split}){f', {printable(target)}' if target else ''}")
