"""`fastimg predict`: the most likely classes of images or texts. Unreadable ones are reported, each on its line."""

import csv
import io
import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table

from fastimg.config.commands import Predict
from fastimg.config.intent import BATCH
from fastimg.config.rule_tables import PREDICT
from fastimg.config.rules import refuse
from fastimg.data.datasets import worker_count
from fastimg.embeddings.text_rows import TextRows
from fastimg.errors import UsageError, UserError, printable
from fastimg.loaders import Batch, BatchSource, Dataset, FilesDataset, list_splits, open_dataset
from fastimg.loaders.containers.content import Content
from fastimg.loaders.containers.targets import TargetColumn
from fastimg.loaders.folders.formats import undecodable_extensions
from fastimg.loaders.folders.ignored import extension_of
from fastimg.loaders.folders.walk import find_images, find_texts
from fastimg.loaders.runtime.scratch import Scratch
from fastimg.models.precision import choose as choose_precision
from fastimg.models.ranks import start
from fastimg.system.terminal import print_table, say
from fastimg.wording import plural, shortened

from . import inference

Named = tuple[Dataset, list[str], TextRows | None]  # samples, their names, and the texts beside images


class GivenTexts:
    """Texts from the command line, as a dataset."""

    content: Content = "text"
    notes: Sequence[str] = ()
    classes: tuple[str, ...] = ()
    name = "--text"
    fingerprint = ""

    def __init__(self, texts: Sequence[str]) -> None:
        self.labels: npt.NDArray[np.int64] = np.full(len(texts), -1, np.int64)
        self._texts = [text.encode("utf-8", "surrogateescape") for text in texts]

    def __len__(self) -> int:
        return len(self._texts)

    @property
    def targets(self) -> tuple[TargetColumn, ...]:
        """The class, which is unknown for every text."""
        return (TargetColumn.of_classes(self.labels, self.classes),)

    def read(self, index: int, scratch: Scratch) -> memoryview:
        """The text, in UTF-8 if the command line was."""
        return memoryview(self._texts[index])

    def will_need(self, indices: npt.NDArray[np.int64]) -> None:
        """Nothing to fetch."""

    def sample_name(self, index: int) -> str:
        """The beginning of the text."""
        return shortened(self._texts[index].decode("utf-8", "replace"), 60)

    def sample_key(self, index: int) -> str:
        """The same as `sample_name`."""
        return self.sample_name(index)

    def files(self) -> Sequence[Path]:
        """There are none."""
        return ()

    def close(self) -> None:
        """Nothing to close."""


@dataclass(frozen=True)
class Answer:
    """One file or text: its classes, most likely first, or the reason why it could not be read."""

    file: str
    classes: list[str]
    probabilities: list[float]
    error: str | None = None


def predict(config: Predict, out: Console, err: Console) -> int:
    """Classify and print. Returns the exit code: 1 where no file could be read. Raises UsageError and UserError."""
    if config.json and config.csv:
        raise UsageError("--json and --csv: choose one of them")
    answers = classify(config, err)
    if config.json:
        for answer in answers:
            print(printable(json.dumps(asdict(answer), ensure_ascii=False)))
    elif config.csv is not None:
        _write_csv(answers, config.csv)
    else:
        _print(answers, out)
    failed = sum(answer.error is not None for answer in answers)
    if failed:
        given = f"{len(answers):,} files and texts"
        if not (config.text and config.sources):
            given = plural(len(answers), "text" if config.text else "file")
        them = "it" if failed == 1 else "them"
        what = f"{failed:,} of {given} could not be read; check {them}, or replace {them}"
        err.print(what, style="yellow", highlight=False)
    return 1 if failed == len(answers) else 0


def find_files(
    sources: tuple[Path, ...], content: Content = "images", undecodable: bool = False
) -> tuple[list[Path], list[str]]:
    """The given files, and the images or texts in the given folders; and messages about other files there.

    Missing files stay in the list, to be reported later. With `undecodable`, so do images in formats that cannot be
    decoded here. Raises UserError for an empty folder.
    """
    files: list[Path] = []
    notes: list[str] = []
    for source in sources:
        if source.is_dir():
            names, others = find_images(source, undecodable) if content == "images" else find_texts(source)
            if not names:
                what = "images" if content == "images" else ".txt files"
                summary = f" (other files: {others.summary()})" if others.total else ""
                raise UserError(f"{source}: no {what} in this folder{summary}; give another folder, or files")
            files += [Path(name) for name in names]
            notes += others.note(str(source), len(names))
        elif source.exists() and not source.is_file():
            raise UserError(f"{source}: neither a file nor a folder; give files")  # reading a pipe would block forever
        else:
            files.append(source)
    return files, notes


def classify(config: Predict, err: Console) -> list[Answer]:
    """An answer for each file, in order, then for each text. Raises UsageError and UserError."""
    refuse(config, PREDICT)
    if not config.sources and not config.text:
        raise UsageError(
            "no images given: name image files, or folders to search for images; for a checkpoint that reads texts, "
            "name .txt files or folders, or give --text '...'"
        )
    answers: list[Answer] = []
    with start(config.device) as ranks:
        precision = choose_precision(ranks.device, config.amp, "auto")
        engine = inference.load(config.checkpoint, ranks.device, precision, config.tta)
        content: Content = "images" if engine.model.text is None else "text"
        pair = engine.model.pair is not None
        if config.text and content == "images" and not pair:
            raise UsageError(f"--text: {config.checkpoint} reads images, not texts; give image files instead")
        datasets: list[Named] = _pairs(config, engine) if pair else []
        if config.sources and not pair:
            paths, notes = find_files(config.sources, content, undecodable=True)
            for note in notes:
                say(err, note)
            files = [str(path) for path in paths]
            datasets.append((FilesDataset(Path(), files, content=content), files, None))
        if config.text and not pair:
            datasets.append((GivenTexts(config.text), list(config.text), None))
        workers = worker_count(config.workers, ranks)
        batch_size = config.batch_size or BATCH[ranks.device.type]
        for dataset, names, beside in datasets:
            loader = engine.loader(dataset, batch_size, workers, config.max_pixels, "skip", texts=beside)
            try:
                answers += _answers(engine, loader, names, config.topk, err)
            finally:
                loader.close()
    return answers


def _pairs(config: Predict, engine: inference.Inference) -> list[Named]:
    """Images and the texts beside them, for a model of both: datasets, or images with a --text for each, or none."""
    folders = [source for source in config.sources if (source / "dataset.json").exists()]
    found: list[Named] = []
    if folders:
        if config.text or len(folders) < len(config.sources):
            raise UsageError("datasets have their own texts: give them without --text and without other files")
        for folder in folders:
            for split in list_splits(folder):
                dataset = open_dataset(folder, split)
                keys = [dataset.sample_key(index) for index in range(len(dataset))]
                found.append((dataset, keys, inference.texts_beside(engine, dataset, folder)))
        return found
    files = [str(path) for path in find_files(config.sources, "images", undecodable=True)[0]]
    if not files or len(config.text) not in (0, len(files)):
        raise UsageError(
            f"--text: {config.checkpoint} reads images and texts: give a dataset, or images with as many --text "
            f"({plural(len(files), 'image')}, {plural(len(config.text), 'text')}), in the same order, or without any"
        )
    rows = engine.text_rows(GivenTexts(config.text or [""] * len(files)), np.ones(len(files), np.bool_))
    return [(FilesDataset(Path(), files, content="images"), files, rows)]


def _answers(
    engine: inference.Inference, loader: BatchSource, names: list[str], topk: int, err: Console
) -> list[Answer]:
    """An answer for each sample of a loader; `names` are the samples' names."""
    answers: list[Answer] = []
    classes = engine.card.classes
    remedies = undecodable_extensions() if engine.model.text is None else {}

    def likeliest(_: Batch, probabilities: torch.Tensor) -> Sequence[torch.Tensor]:
        """Probabilities and classes [B, topk]; of equally likely classes, the lower index comes first."""
        shares, ranked = probabilities.sort(dim=1, descending=True, stable=True)
        return shares[:, :topk].contiguous(), ranked[:, :topk].contiguous()

    read = engine.read(loader, likeliest)
    for ids, (shares, ranked) in track(
        read, "predicting", len(loader), console=err, transient=True, disable=len(loader) < 3
    ):
        for index, row, best in zip(ids[: len(names) - len(answers)], shares, ranked, strict=False):
            name = names[index]
            reason = loader.unreadable.get(index)
            if reason is not None:
                answers.append(Answer(name, [], [], _reason(name, reason, remedies)))
                continue
            answers.append(Answer(name, [classes[i] for i in best], [round(float(share), 6) for share in row]))
    return answers


def _reason(name: str, reason: str, remedies: Mapping[str, str]) -> str:
    """Why a file was not read: the format of its extension if that cannot be decoded here, else the decoder's reason.

    The decoder knows the content only. Missing and empty files keep its reason.
    """
    remedy = remedies.get(extension_of(name))
    return remedy if remedy and os.path.isfile(name) and os.path.getsize(name) else reason


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
    print_table(out, table)


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
        raise UserError(f"--csv {target}: {error.strerror}; choose a file that can be written") from error
