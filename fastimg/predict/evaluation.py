"""`fastimg eval`: accuracy, precision and recall per class, and a confusion matrix."""

import json
from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table
from rich.text import Text
from sklearn.metrics import confusion_matrix, precision_recall_fscore_support

from fastimg import notebook
from fastimg.config.commands import Eval
from fastimg.config.rule_tables.reading import EVAL
from fastimg.config.rules import refuse
from fastimg.data.datasets import check_backend, check_classes, chosen_backend
from fastimg.data.elsewhere import local_folder
from fastimg.data.provenance import file_label, select
from fastimg.errors import UsageError, UserError
from fastimg.loaders import Batch, BatchSource
from fastimg.loaders.decode import MAX_PIXELS
from fastimg.loaders.errors import not_written
from fastimg.models.ranks import start
from fastimg.system.terminal import print_table, say
from fastimg.train.checkpoints import format as checkpoint
from fastimg.train.checkpoints.model_files import run_name
from fastimg.train.reporting.confusion import plot_confusion
from fastimg.train.tasks.score import shows_top5, zero_recall
from fastimg.wording import plural, with_flags

from . import inference
from .evaluated_part import EvaluatedPart, opened, report_unreadable, stated
from .mistakes import Predictions, mistake_files, write_mistakes
from .result_places import renewed_words, result_place
from .target_evaluation import TargetEvaluation, evaluate_targets


@dataclass(frozen=True, kw_only=True)
class ClassScore:
    """The scores of one class. Precision and recall are fractions; a class that is never predicted has precision 0."""

    name: str
    precision: float
    recall: float
    images: int


@dataclass(frozen=True, kw_only=True)
class Evaluation(EvaluatedPart):  # more than 12 fields: the keys of --json, which are flat
    """The result over a split, or over the part of it that training held out. Accuracies are fractions.

    `loss` is the mean cross-entropy in nats, and `balanced_accuracy` the mean recall over the classes that have images.
    """

    top1: float
    balanced_accuracy: float
    top5: float | None  # None for fewer than ten classes
    loss: float
    zero_recall: list[str]  # classes with images, none of which was predicted correctly
    classes: list[ClassScore]
    confusion: list[list[int]]  # [true][predicted]
    plot: str
    mistakes: str  # a csv file
    mistakes_sheet: str | None  # a picture; None for texts

    def _repr_html_(self) -> str:
        scores = {
            "top-1": notebook.share(self.top1),
            "balanced accuracy": notebook.share(self.balanced_accuracy),
            "top-5": None if self.top5 is None else notebook.share(self.top5),
            "loss": f"{self.loss:.4f}",
            "mistakes": self.mistakes,
        }
        rows = (
            (score.name, notebook.share(score.precision), _recall(score), f"{score.images:,}")
            for score in self.classes[: notebook.ROWS]
        )
        return notebook.page(
            notebook.facts(self._facts() | scores),
            notebook.line(zero_recall(self.zero_recall)) if self.zero_recall else "",
            notebook.table(("class", "precision", "recall", "images"), rows, len(self.classes)),
            notebook.picture(self.plot),
            notebook.picture(self.mistakes_sheet),
        )


def evaluate_checkpoint(config: Eval, out: Console, err: Console) -> Evaluation | TargetEvaluation:
    """Evaluate and print. Raises UserError and DataError, each a sentence."""
    refuse(config, EVAL)
    asked, config = config, replace(config, data=local_folder(config.data, config, partial(say, err)))
    backend = chosen_backend(config.loader)
    check_backend(backend)
    with (
        result_place("--output", config.output, config, overwrite=config.overwrite) as place,
        start(config.device) as ranks,
    ):
        engine = inference.load(config.checkpoint, ranks.device, config.amp, config.tta, partial(say, err))
        check_classes(config.data, config.classes)
        selection = select(config.data, config.split, engine.card.trained_on, config.classes)
        dataset = selection.dataset
        for remark in dataset.notes:
            say(err, with_flags(remark))
        tasks, loader = opened(config, engine, selection, ranks, partial(say, err))
        if backend != "native":
            say(err, f"loader: {loader.describe()}")
        file = checkpoint.find(config.checkpoint)
        with closing(loader), closing(dataset):
            told = partial(stated, asked, file, selection, loader)
            if tasks is not None:
                if config.output is not None:
                    raise UsageError(
                        "--output has no effect: a confusion matrix shows one class, which all samples have; leave it "
                        "out"
                    )
                return evaluate_targets(config, told, engine, tasks, selection, loader, ranks, out, err)
            found = _predictions(engine, loader, err)
            report_unreadable(config, dataset, loader, len(found.truth), err)
            label = file_label(config.data, selection, engine.card.trained_on)
            plot = place.path or file.parent / f"confusion-{label}.png"
            names = engine.card.classes
            matrix = confusion_matrix(found.truth, found.predicted, labels=np.arange(len(names)))
            title = f"{run_name(config.checkpoint)} on {selection.origin}"
            renewed = renewed_words([plot, *mistake_files(plot.parent, label, dataset.content == "text")])
            remarks = _draw(matrix, names, title, plot)
            most = config.max_pixels or MAX_PIXELS
            mistakes = write_mistakes(found, dataset, names, label, title, plot.parent, most)
    if renewed:
        say(err, renewed)
    sheet = None if mistakes.sheet is None else place.address(mistakes.sheet)
    part = told(len(found.truth))
    part |= {"plot": place.address(plot), "mistakes": place.address(mistakes.table), "mistakes_sheet": sheet}
    result = _result(part, names, found, matrix)
    for remark in remarks or filter(None, [mistakes.note]):  # once: both are about the same names
        say(err, f"{result.plot}: {remark}")
    if mistakes.undecodable:
        say(err, f"{sheet}: {plural(mistakes.undecodable, 'image')} could not be decoded again, and are grey")
    if config.json:
        print(json.dumps(asdict(result)))
    else:
        _print(result, out)
    return result


def _result(
    part: dict[str, Any],
    names: tuple[str, ...],
    found: Predictions,
    matrix: npt.NDArray[np.int64],
) -> Evaluation:
    """The scores of what was predicted of `part`."""
    truth, predicted = found.truth, found.predicted
    scores = precision_recall_fscore_support(truth, predicted, labels=np.arange(len(names)), zero_division=0.0)
    recalls = [(name, float(recall)) for name, recall, count in zip(names, scores[1], scores[3], strict=True) if count]
    return Evaluation(
        **part,
        top1=float((truth == predicted).mean()),
        balanced_accuracy=float(np.mean([recall for _, recall in recalls])),
        top5=float(found.top5.mean()) if shows_top5(len(names)) else None,
        loss=float(found.losses.mean()),
        zero_recall=[name for name, recall in recalls if recall == 0],
        classes=[
            ClassScore(name=name, precision=float(p), recall=float(r), images=int(n))
            for name, p, r, n in zip(names, scores[0], scores[1], scores[3], strict=True)
        ],
        confusion=matrix.tolist(),
    )


def _draw(matrix: npt.NDArray[np.int64], names: Sequence[str], part: str, plot: Path) -> list[str]:
    """Draw the confusion matrix. Returns messages about what it leaves out. Raises UserError and UsageError."""
    images = int(matrix.sum())
    try:
        return plot_confusion(matrix, names, f"{part}: top-1 {matrix.trace() / images:.2%} of {images}", plot)
    except OSError as error:
        raise UserError(f"--output {plot}: {not_written(error, 'choose a file that can be written')}") from error
    except ValueError as error:  # matplotlib's message names the formats that it can write
        raise UsageError(f"--output {plot}: {error}; give a name that ends in .png") from error


def _scored(batch: Batch, probabilities: torch.Tensor) -> Sequence[torch.Tensor]:
    """Of each row [B], on the device: weight, true class, likeliest class, its share, the true one's place and share.

    Places count from 0. Of classes that are equally likely, the one with the lowest index comes first, as in a stable
    sort; a model that gives NaN finds all of them equally likely.
    """
    targets = batch.targets
    shares = probabilities.nan_to_num(nan=-1.0)
    own = shares.gather(1, targets[:, None])
    classes = torch.arange(shares.shape[1], device=shares.device)
    ahead = (shares > own) | ((shares == own) & (classes < targets[:, None]))
    likeliest = shares.argmax(dim=1)
    share, confidence = (probabilities.gather(1, chosen[:, None])[:, 0] for chosen in (targets, likeliest))
    return batch.weight, targets, likeliest, confidence, ahead.sum(dim=1), share


def _predictions(engine: inference.Inference, loader: BatchSource, err: Console) -> Predictions:
    """What is predicted of every readable sample."""
    parts: list[tuple[npt.NDArray[Any], ...]] = []
    read = engine.read(loader, _scored)
    steps = track(read, "evaluating", len(loader), console=err, transient=True, disable=not err.is_terminal)
    for ids, (weight, targets, first, confidence, place, share) in steps:
        real = weight > 0
        losses = -np.log(np.maximum(share[real].astype(np.float64), 1e-38))
        confidences = confidence[real].astype(np.float64)
        parts.append((np.array(ids)[real], targets[real], first[real], confidences, place[real] < 5, losses))
    return Predictions(*map(np.concatenate, zip(*parts, strict=True)))


def _recall(score: ClassScore) -> str:
    return f"{score.recall:.2%}" if score.images else "-"


def _print(result: Evaluation, out: Console) -> None:
    table = Table()
    table.add_column("class", overflow="fold")
    for column in ("precision", "recall", "images"):
        table.add_column(column, justify="right")
    for score in result.classes[:100]:
        table.add_row(Text(score.name), f"{score.precision:.2%}", _recall(score), str(score.images))
    if len(result.classes) > 100:
        table.add_row(f"... {len(result.classes) - 100} more, see --json", "", "", "")
    print_table(out, table, result.heading)
    top5 = f"  top-5 {result.top5:.2%}" if result.top5 is not None else ""
    left_out = f"  ({result.unreadable} could not be decoded)" if result.unreadable else ""
    balanced = f"balanced accuracy {result.balanced_accuracy:.2%}"
    out.print(f"top-1 {result.top1:.2%}  {balanced}{top5}  loss {result.loss:.4f}{left_out}", highlight=False)
    if result.zero_recall:
        say(out, zero_recall(result.zero_recall), style="yellow")
    if result.warning is not None:
        say(out, f"warning: {result.warning}", style="yellow")
    say(out, f"confusion matrix: {result.plot}")
    count = plural(round(result.images * (1 - result.top1)), "mistake")
    sheet = (
        ", which are texts and no pictures" if result.mistakes_sheet is None else f"; pictures: {result.mistakes_sheet}"
    )
    say(out, f"{count}: {result.mistakes}{sheet}")
