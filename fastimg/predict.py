"""`fastimg predict`: the likeliest classes of images. A file that cannot be read gets its line, and the rest go on."""

import csv
import io
import json
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.progress import track
from rich.table import Table

from . import inference
from .config import Predict
from .data import worker_count
from .errors import UsageError, UserError, printable
from .loaders import FilesDataset
from .loaders.folder import find_images
from .parallel import start
from .precision import choose as choose_precision


@dataclass(frozen=True)
class Answer:
    """One file: its likeliest classes, likeliest first, or the reason why there are none."""

    file: str
    classes: list[str]
    probabilities: list[float]
    error: str | None = None


def predict(config: Predict, out: Console, err: Console) -> int:
    """Classify and print. Returns the exit code: 1 where no file could be read. Raises UsageError and UserError."""
    if config.topk < 1:
        raise UsageError(f"--topk {config.topk}: give 1 or more")
    if config.json and config.csv:
        raise UsageError("--json and --csv: choose one of them")
    if not config.sources:
        raise UsageError("no images given: name image files, or folders to search for images")
    inference.check_ranges(config.batch_size, config.max_pixels)
    files = find_files(config.sources)
    answers = classify(config, files, err)
    if config.json:
        for answer in answers:
            print(printable(json.dumps(asdict(answer), ensure_ascii=False)))
    elif config.csv is not None:
        _write_csv(answers, config.csv)
    else:
        _print(answers, out)
    failed = sum(answer.error is not None for answer in answers)
    if failed:
        what = f"{failed} of {len(answers)} files could not be read; check their paths, or replace them"
        err.print(what, style="yellow", highlight=False)
    return 1 if failed == len(answers) else 0


def find_files(sources: tuple[Path, ...]) -> list[Path]:
    """The files that are named, and the images in the folders that are named. Raises UserError for an empty folder.

    A file that is not there stays in the list: it gets its line.
    """
    files: list[Path] = []
    for source in sources:
        if source.is_dir():
            found, others = find_images(source)
            if not found:
                raise UserError(f"{source}: no images in this folder ({others} other files); give another, or files")
            files += [Path(name) for name in found]
        elif source.exists() and not source.is_file():
            raise UserError(f"{source}: neither a file nor a folder; give image files")  # a pipe would block for ever
        else:
            files.append(source)
    return files


def classify(config: Predict, files: list[Path], err: Console) -> list[Answer]:
    """An answer for each file, in their order."""
    answers: list[Answer] = []
    with start(config.device) as ranks:
        precision = choose_precision(ranks.device, config.amp, "auto")
        engine = inference.load(config.checkpoint, ranks.device, precision, config.tta)
        names = engine.card.classes
        dataset = FilesDataset(Path(), [str(file) for file in files])
        loader = engine.loader(
            dataset, config.batch_size, worker_count(config.workers, ranks), config.max_pixels, "skip"
        )
        try:
            for batch, shares in track(
                engine.answers(loader), "predicting", len(loader), console=err, transient=True, disable=len(loader) < 3
            ):
                for index, row in zip(batch.ids.tolist()[: len(files) - len(answers)], shares, strict=False):
                    file, reason = str(files[index]), loader.unreadable.get(index)
                    if reason is not None:
                        answers.append(Answer(file, [], [], reason))
                        continue
                    best = np.argsort(-row, kind="stable")[: config.topk]
                    answers.append(Answer(file, [names[i] for i in best], [round(float(row[i]), 6) for i in best]))
        finally:
            loader.close()
    return answers


def _print(answers: list[Answer], out: Console) -> None:
    table = Table()
    table.add_column("file", overflow="fold")
    table.add_column("classes", overflow="fold")
    for answer in answers:
        if answer.error is not None:
            table.add_row(printable(answer.file), f"not read: {answer.error}", style="yellow")
        else:
            shares = zip(answer.classes, answer.probabilities, strict=True)
            table.add_row(printable(answer.file), ", ".join(f"{name} {share:.1%}" for name, share in shares))
    out.print(table, highlight=False, markup=False)


def _write_csv(answers: list[Answer], target: Path) -> None:
    """A row per file: file, error, then class and probability by rank."""
    ranks = max((len(answer.classes) for answer in answers), default=0)
    buffer = io.StringIO(newline="")
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(["file", "error", *(f"{kind}{i + 1}" for i in range(ranks) for kind in ("class", "probability"))])
    for answer in answers:
        pairs = [value for pair in zip(answer.classes, answer.probabilities, strict=True) for value in pair]
        writer.writerow([printable(answer.file), answer.error or "", *pairs])
    if str(target) == "-":
        sys.stdout.write(buffer.getvalue())
        return
    try:
        target.write_text(buffer.getvalue(), encoding="utf-8")
    except OSError as error:
        raise UserError(f"--csv {target}: {error.strerror}; give a file that can be written") from error
