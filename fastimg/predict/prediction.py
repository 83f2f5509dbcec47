"""`fastimg predict`: the most likely classes of images or texts. Unreadable ones are reported, each on its line."""

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, overload

import numpy as np
import numpy.typing as npt
import torch
from rich.console import Console
from rich.progress import track

from fastimg.config.commands import Predict
from fastimg.config.intent import BATCH
from fastimg.config.rule_tables.reading import PREDICT
from fastimg.config.rules import refuse
from fastimg.data.datasets import worker_count
from fastimg.data.elsewhere import local_folder, sources
from fastimg.data.read_back import read_back
from fastimg.embeddings.text_rows import TextRows
from fastimg.errors import UsageError, UserError, printable
from fastimg.loaders import Batch, BatchSource, Dataset, FilesDataset, list_splits, open_dataset
from fastimg.loaders.containers.content import Content
from fastimg.loaders.containers.fields import WithFields
from fastimg.loaders.containers.targets import TargetColumn
from fastimg.loaders.folders.bands import is_bands
from fastimg.loaders.folders.formats import undecodable_extensions
from fastimg.loaders.folders.ignored import extension_of
from fastimg.loaders.folders.stored_files import open_unlabelled
from fastimg.loaders.folders.walk import find_images, find_texts
from fastimg.loaders.remote.mirrors import mirror_at
from fastimg.loaders.remote.stores import shown
from fastimg.loaders.runtime.scratch import Scratch
from fastimg.models.precision import choose as choose_precision
from fastimg.models.ranks import start
from fastimg.system.terminal import say
from fastimg.train.tasks.joint import Tasks
from fastimg.train.tasks.regression import NumberTask
from fastimg.train.tasks.tagging import MultilabelTask
from fastimg.train.tasks.task import Task
from fastimg.wording import plural, shortened

from . import inference
from .answers import Answer, print_answers, write_csv
from .files_at_urls import files_at_urls
from .result_places import result_place

Named = tuple[Dataset, Sequence[str], TextRows | None]  # samples, their names, and the texts beside images


class GivenTexts(WithFields):
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


class SampleKeys(Sequence[str]):
    """The keys of the samples of a dataset, each looked up when it is asked for: in a shard that was just read."""

    def __init__(self, dataset: Dataset) -> None:
        self._dataset = dataset

    def __len__(self) -> int:
        return len(self._dataset)

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        if isinstance(index, slice):
            return [self[place] for place in range(*index.indices(len(self)))]
        return self._dataset.sample_key(index)


def predict(config: Predict, out: Console, err: Console) -> int:
    """Classify and print. Returns the exit code: 1 where a file could not be read. Raises UsageError and UserError."""
    if config.json and config.csv:
        raise UsageError("--json and --csv: choose one of them")
    with result_place("--csv", config.csv, config) as place:
        answers = classify(config, err)
        if place.path is not None:
            write_csv(answers, place.path)
    if config.json:
        for answer in answers:
            print(printable(json.dumps(answer.as_dict(), ensure_ascii=False)))
    elif config.csv is None:
        print_answers(answers, out)
    failed = sum(answer.error is not None for answer in answers)
    if failed:
        given = f"{len(answers):,} files and texts"
        if not (config.text and config.sources):
            given = plural(len(answers), "text" if config.text else "file")
        them = "it" if failed == 1 else "them"
        what = f"{failed:,} of {given} could not be read; check {them}, or replace {them}"
        err.print(what, style="yellow", highlight=False)
    return 1 if failed else 0


def find_files(
    sources: tuple[Path, ...], content: Content = "images", undecodable: bool = False, bands: bool = False
) -> tuple[list[Path], list[str]]:
    """The given files, and the images or texts in the given folders; and messages about other files there.

    Missing files stay in the list, to be reported later. With `undecodable`, so do images in formats that cannot be
    decoded here. With `bands`, they are .npy and TIFF files. Raises UserError for an empty folder.
    """
    if bands:
        return _find_bands(sources), []
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


def _find_bands(sources: tuple[Path, ...]) -> list[Path]:
    """The given files of bands, and those in the given folders. Raises UserError."""
    files: list[Path] = []
    for source in sources:
        if not source.is_dir() and not is_bands(source.name):
            raise UserError(f"{source}: the checkpoint reads bands; give .npy or TIFF files, or folders of them")
        found = sorted(path for path in source.rglob("*") if is_bands(path.name)) if source.is_dir() else [source]
        if not found:
            raise UserError(f"{source}: no .npy or TIFF files in this folder; give another folder, or files")
        files += found
    return files


def classify(config: Predict, err: Console) -> list[Answer]:
    """An answer for each file, in order, then for each text. Raises UsageError and UserError."""
    refuse(config, PREDICT)
    if not config.sources and not config.text:
        raise UsageError(
            "no images given: name image files, or folders to search for images; for a checkpoint that reads texts, "
            "name .txt files or folders, or give --text '...'"
        )
    tell = partial(say, err)
    with files_at_urls(config.sources, config.storage_option) as fetched:
        sources = (fetched.get(source) or local_folder(source, config, tell) for source in config.sources)
        answers = _answered(replace(config, sources=tuple(sources)), err)
    urls = {str(path): shown(source) for source, path in fetched.items()}
    return [replace(answer, file=urls.get(answer.file, answer.file)) for answer in answers]


def _answered(config: Predict, err: Console) -> list[Answer]:
    """An answer for each file, folder or dataset, and for each text."""
    answers: list[Answer] = []
    with start(config.device) as ranks:
        precision = choose_precision(ranks.device, config.amp, "auto")
        engine = inference.load(config.checkpoint, ranks.device, precision, config.tta)
        content: Content = "images" if engine.model.text is None else "text"
        pair = engine.model.pair is not None
        if config.text and content == "images" and not pair:
            raise UsageError(f"--text: {config.checkpoint} reads images, not texts; give image files instead")
        fetched = [] if pair else [source for source in config.sources if mirror_at(source) is not None]
        files_given = tuple(source for source in config.sources if source not in fetched)
        datasets: list[Named] = _pairs(config, engine) if pair else _datasets(fetched, engine, config, err)
        if files_given and not pair:
            bands = engine.card.preprocessing.field is not None
            paths, notes = find_files(files_given, content, undecodable=True, bands=bands)
            for note in notes:
                say(err, note)
            files = [str(path) for path in paths]
            datasets.append((FilesDataset(Path(), files, content=content), files, None))
        if config.text and not pair:
            datasets.append((GivenTexts(config.text), list(config.text), None))
        tasks = engine.tasks
        labels = tasks is not None and any(task.target.kind == "multilabel" for task in tasks.all)
        if config.threshold is not None and not labels:
            raise UsageError("--threshold has no effect: the model has no target of several labels; leave it out")
        workers = worker_count(config.workers, ranks)
        batch_size = config.batch_size or BATCH[ranks.device.type]
        for dataset, names, beside in datasets:
            loader = engine.loader(dataset, batch_size, workers, config.max_pixels, "skip", texts=beside)
            try:
                if tasks is None:
                    answers += _answers(engine, loader, names, config.topk, err)
                else:
                    answers += _answers_of(tasks, engine, loader, names, config, err)
            finally:
                loader.close()
                dataset.close()
    return answers


def _datasets(folders: Sequence[Path], engine: inference.Inference, config: Predict, err: Console) -> list[Named]:
    """All splits of datasets in an object store; of folders of files there, all files."""
    found: list[Named] = []
    for folder in folders:
        plain = open_unlabelled(folder, "images" if engine.model.text is None else "text")
        if plain is not None:
            for note in plain.notes:
                say(err, note)
            found.append((plain, [plain.sample_name(index) for index in range(len(plain))], None))
            continue
        for split in list_splits(folder):
            dataset = open_dataset(folder, split)
            inference.check_content(engine, dataset, folder)
            found.append((dataset, SampleKeys(dataset), None))
    for line in sources([dataset for dataset, _, _ in found]):
        say(err, line)
    return found


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
    engine: inference.Inference, loader: BatchSource, names: Sequence[str], topk: int, err: Console
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
    quiet = len(loader) < 3 or not err.is_terminal
    for ids, (shares, ranked) in track(read, "predicting", len(loader), console=err, transient=True, disable=quiet):
        for index, row, best in zip(ids[: len(names) - len(answers)], shares, ranked, strict=False):
            name = names[index]
            reason = loader.unreadable.get(index)
            if reason is not None:
                answers.append(Answer(name, [], [], _reason(name, reason, remedies)))
                continue
            answers.append(Answer(name, [classes[i] for i in best], [round(float(share), 6) for share in row]))
    return answers


def _answers_of(
    tasks: Tasks, engine: inference.Inference, loader: BatchSource, names: Sequence[str], config: Predict, err: Console
) -> list[Answer]:
    """What a model of several targets predicts of each sample of a loader."""
    answers: list[Answer] = []
    remedies = undecodable_extensions() if engine.model.text is None else {}
    read = read_back((batch.ids.tolist(), (logits,)) for batch, logits in engine.logits(loader))
    quiet = len(loader) < 3 or not err.is_terminal
    for ids, (logits,) in track(read, "predicting", len(loader), console=err, transient=True, disable=quiet):
        own = [logits[:, part] for part in tasks.slices]
        outputs = [task.outputs_of(part) for task, part in zip(tasks.all, own, strict=True)]
        for row, index in enumerate(ids[: len(names) - len(answers)]):
            name = names[index]
            reason = loader.unreadable.get(index)
            if reason is not None:
                answers.append(Answer(name, [], [], _reason(name, reason, remedies), {}))
                continue
            told = {
                task.target.name: _told(task, values[row], config)
                for task, values in zip(tasks.all, outputs, strict=True)
            }
            first = next((each for each in told.values() if "classes" in each), {})
            answers.append(Answer(name, first.get("classes", []), first.get("probabilities", []), None, told))
    return answers


def _told(task: Task, values: npt.NDArray[np.float64], config: Predict) -> dict[str, Any]:
    """What is predicted of one target of one sample."""
    if isinstance(task, NumberTask):
        return {"number": float(f"{values[0]:.7g}")}
    names = task.target.classes
    ranked = np.argsort(-values, kind="stable")
    if isinstance(task, MultilabelTask):
        own = np.array(task.thresholds or (0.5,) * len(names))
        limits = own if config.threshold is None else np.full(len(names), config.threshold)
        ranked = ranked[values[ranked] >= limits[ranked]]
        return {"labels": [names[i] for i in ranked], "probabilities": [round(float(values[i]), 6) for i in ranked]}
    best = ranked[: config.topk]
    return {"classes": [names[i] for i in best], "probabilities": [round(float(values[i]), 6) for i in best]}


def _reason(name: str, reason: str, remedies: Mapping[str, str]) -> str:
    """Why a file was not read: the format of its extension if that cannot be decoded here, else the decoder's reason.

    The decoder knows the content only. Missing and empty files keep its reason.
    """
    remedy = remedies.get(extension_of(name))
    return remedy if remedy and os.path.isfile(name) and os.path.getsize(name) else reason
