"""`fastimg eval RUN RUN ... DATA`: the score of each run, their mean and deviation, and what they predict together.

Runs over folds held out different samples: each sample is then predicted by the run that did not see it, which is the
out-of-fold score. Where all runs may be evaluated on the same samples, the ensemble is the mean of their probabilities.
"""

import json
from collections.abc import Mapping
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from statistics import mean, stdev
from typing import Any

import numpy as np
import numpy.typing as npt
from rich.console import Console
from rich.table import Table
from rich.text import Text

from fastimg.config.commands import Eval
from fastimg.config.intent import BATCH
from fastimg.config.rule_tables import EVAL
from fastimg.config.rules import refuse
from fastimg.data.datasets import (
    check_backend,
    check_classes,
    check_labels,
    check_readable,
    chosen_backend,
    worker_count,
)
from fastimg.data.provenance import Selection, select
from fastimg.errors import UsageError, UserError
from fastimg.loaders import list_splits
from fastimg.models.precision import choose as choose_precision
from fastimg.models.ranks import Ranks, start
from fastimg.system.terminal import print_table, say
from fastimg.wording import plural

from . import inference
from .evaluation import same_classes

_TEST = "test"
_MEANS = ("top1", "balanced_accuracy", "loss")

Doubles = npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class EnsembleScore:
    """What one run, or several together, predict of some samples. Accuracies are fractions, the loss is in nats."""

    part: str  # which samples, in words
    images: int
    top1: float
    balanced_accuracy: float
    loss: float


@dataclass(frozen=True, kw_only=True)
class RunScore(EnsembleScore):
    """The score of one run. `trained_on` says whether it was trained on any of the samples; None if that is unknown."""

    checkpoint: str
    trained_on: bool | None
    warning: str | None
    unreadable: int


@dataclass(frozen=True, kw_only=True)
class RunsEvaluation:
    """Several runs on one dataset: the keys of --json. `deviation` is that of the sample (n - 1)."""

    data: str
    split: str
    runs: list[RunScore]
    mean: dict[str, float]
    deviation: dict[str, float]
    out_of_fold: EnsembleScore | None  # where each sample is predicted by one run
    ensemble: EnsembleScore | None  # where samples are predicted by all
    test: EnsembleScore | None  # the ensemble on the test split, for runs over folds


class Together:
    """Sums of probabilities over runs [N, C], for the samples of one split."""

    def __init__(self, labels: npt.NDArray[np.int64], classes: int) -> None:
        self.labels = labels
        self.sums: Doubles = np.zeros((len(labels), classes))
        self.count = np.zeros(len(labels), np.int64)

    def add(self, ids: npt.NDArray[np.int64], probabilities: Doubles) -> None:
        """What one run predicts of the samples `ids` [B]: probabilities [B, C]."""
        self.sums[ids] += probabilities
        self.count[ids] += 1

    def score(self, chosen: npt.NDArray[np.bool_], part: str) -> EnsembleScore | None:
        """The mean probabilities against the labels, of the `chosen` samples [N]; None if there are none."""
        if not chosen.any():
            return None
        shares = self.sums[chosen] / self.count[chosen][:, None]
        return EnsembleScore(part=part, **_scores(shares, self.labels[chosen]))


def _scores(probabilities: Doubles, labels: npt.NDArray[np.int64]) -> dict[str, Any]:
    hits = probabilities.argmax(axis=1) == labels
    counts = np.bincount(labels)
    recalls = np.bincount(labels, weights=hits)[counts > 0] / counts[counts > 0]
    own = np.maximum(probabilities[np.arange(len(labels)), labels], 1e-38)
    return {
        "images": len(labels),
        "top1": float(hits.mean()),
        "balanced_accuracy": float(recalls.mean()),
        "loss": float(-np.log(own).mean()),
    }


def evaluate_runs(config: Eval, out: Console, err: Console) -> RunsEvaluation:
    """Evaluate several runs and print. Raises UsageError, UserError and DataError, each a sentence."""
    refuse(config, EVAL)
    check_backend(chosen_backend(config.loader))
    check_classes(config.dataset, config.classes)
    if config.plot is not None:
        raise UsageError("--plot has no effect with several runs; leave it out, or evaluate one run")
    if twice := next((run for number, run in enumerate(config.runs) if run in config.runs[:number]), None):
        raise UsageError(f"eval: {twice} is given twice; name each run once")
    runs: list[RunScore] = []
    sums: dict[str, Together] = {}
    with start(config.device) as ranks:
        for run in config.runs:
            runs.append(_evaluate(replace(config, checkpoint=run, data=config.dataset, more=()), sums, ranks, err))
    splits = [split for split in sums if split != _TEST] or [_TEST]
    if len(splits) > 1:
        raise UserError(
            f"{config.dataset}: the runs are evaluated on different splits ({', '.join(splits)}); choose one with "
            "--split"
        )
    result = _together(config, splits[0], runs, sums)
    if config.json:
        print(json.dumps(asdict(result)))
    else:
        _print(result, out)
    return result


def _evaluate(config: Eval, sums: dict[str, Together], ranks: Ranks, err: Console) -> RunScore:
    """The score of one run; what it predicts is added to `sums`. Over folds, it predicts the test split too."""
    engine = inference.load(
        config.checkpoint, ranks.device, choose_precision(ranks.device, config.amp, "auto"), config.tta
    )
    if engine.tasks is not None:
        raise UserError(
            f"{config.checkpoint}: predicts several targets, or numbers or labels, which are not averaged over runs; "
            "evaluate one run at a time"
        )
    history = engine.card.trained_on
    own = select(config.data, config.split, history, config.classes, held_out=True)
    score = _predicted(config, engine, own, sums, ranks)
    folds = history and history[0].fold is not None and config.split is None
    if folds and own.split != _TEST and _TEST in list_splits(config.data, config.classes):
        _predicted(config, engine, select(config.data, _TEST, history, config.classes), sums, ranks)
    say(err, f"evaluated   {config.checkpoint}: {score.part}")
    return score


def _predicted(
    config: Eval, engine: inference.Inference, selection: Selection, sums: dict[str, Together], ranks: Ranks
) -> RunScore:
    """What a run predicts of a selection: its score, and in `sums` its probabilities."""
    backend = chosen_backend(config.loader)
    workers = worker_count(config.workers, ranks)
    batch_size = config.batch_size or BATCH[ranks.device.type]
    with closing(selection.dataset) as dataset:
        inference.check_content(engine, dataset, config.data)
        same_classes(engine.card.classes, dataset, config)
        check_labels(config.data, selection.split, dataset, len(engine.card.classes), "name another split with --split")
        check_readable(backend, config.data, dataset)
        together = sums.setdefault(selection.split, Together(dataset.labels, len(engine.card.classes)))
        arguments = (batch_size, workers, config.max_pixels, config.on_error, backend, selection.indices)
        with closing(engine.loader(dataset, *arguments)) as loader:
            ids, shares = [], []
            for batch, (weight, probabilities) in engine.read(loader, lambda batch, found: (batch.weight, found)):
                ids.append(np.array(batch)[weight > 0])
                shares.append(probabilities[weight > 0].astype(np.float64))
        if not sum(map(len, ids)):
            raise UserError(f"{config.data}: none of the samples of {selection.origin} could be decoded")
        chosen, found = np.concatenate(ids), np.concatenate(shares)
        together.add(chosen, found)
        return RunScore(
            checkpoint=str(config.checkpoint),
            part=selection.origin,
            trained_on=selection.trained_on,
            warning=selection.warning,
            unreadable=len(loader.unreadable),
            **_scores(found, dataset.labels[chosen]),
        )


def _together(config: Eval, split: str, runs: list[RunScore], sums: dict[str, Together]) -> RunsEvaluation:
    own = sums[split]
    alone, shared = own.count == 1, own.count == len(runs)
    values = {name: [getattr(run, name) for run in runs] for name in _MEANS}
    test = sums.get(_TEST) if split != _TEST else None
    words = f"of {len(runs)} runs: the mean of their probabilities"
    return RunsEvaluation(
        data=str(config.dataset),
        split=split,
        runs=runs,
        mean={name: mean(each) for name, each in values.items()},
        deviation={name: stdev(each) for name, each in values.items()},
        out_of_fold=None if shared.any() else own.score(alone, f"{split}, each by the one run that held it out"),
        ensemble=own.score(shared, f"{split}, {words}"),
        test=test.score(test.count == len(runs), f"{_TEST}, {words}") if test is not None else None,
    )


def _print(result: RunsEvaluation, out: Console) -> None:
    table = Table()
    table.add_column("run", overflow="fold")
    for column in ("top-1", "balanced", "loss", "images"):
        table.add_column(column, justify="right")
    for run in result.runs:
        table.add_row(Text(run.checkpoint), *_cells(asdict(run)), f"{run.images:,}")
    table.add_section()
    table.add_row("mean", *_cells(result.mean), "")
    table.add_row("deviation", *_cells(result.deviation), "")
    print_table(out, table, f"{result.data} ({result.split})")
    for name, score in (("out of fold", result.out_of_fold), ("ensemble", result.ensemble), ("ensemble", result.test)):
        if score is not None:
            top1, balanced, loss = _cells(asdict(score))
            images = plural(score.images, "image")
            say(out, f"{name}  top-1 {top1}  balanced accuracy {balanced}  loss {loss}  ({images}; {score.part})")
    for warning in dict.fromkeys(run.warning for run in result.runs if run.warning is not None):
        say(out, f"warning: {warning}", style="yellow")


def _cells(values: Mapping[str, Any]) -> tuple[str, str, str]:
    return f"{values['top1']:.2%}", f"{values['balanced_accuracy']:.2%}", f"{values['loss']:.4f}"
