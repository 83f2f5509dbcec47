"""`fastimg predict`: the most likely classes of images or texts. Unreadable ones are reported, each on its line."""

import json
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import overload

import numpy as np
from rich.console import Console

from fastimg.config.commands import Predict
from fastimg.config.intent import BATCH
from fastimg.config.rule_tables.reading import PREDICT
from fastimg.config.rules import refuse
from fastimg.data.datasets import worker_count
from fastimg.data.elsewhere import local_folder, sources
from fastimg.embeddings.text_rows import TextRows
from fastimg.errors import UsageError, printable
from fastimg.loaders import Dataset, FilesDataset, list_splits, open_dataset
from fastimg.loaders.containers.content import Content
from fastimg.loaders.containers.datasets import is_plain_folder, unfinished
from fastimg.loaders.containers.foreign import is_beton
from fastimg.loaders.folders.stored_files import open_unlabelled
from fastimg.loaders.folders.walk import find_images
from fastimg.loaders.remote.mirrors import mirror_at
from fastimg.loaders.remote.stores import shown
from fastimg.models.ranks import start
from fastimg.system.terminal import say
from fastimg.train.checkpoints.model_files import run_name
from fastimg.wording import plural, with_flags

from . import inference
from .answering.files import find_files
from .answering.in_memory import GivenTexts
from .answering.of_samples import Wanted, answers_of
from .answers import Answer, check_output, print_answers, write_csv
from .files_at_urls import files_at_urls
from .prediction_sheet import PredictionSheet
from .result_places import result_place

Named = tuple[Dataset, Sequence[str], TextRows | None]  # samples, their names, and the texts beside images


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
    columns: list[str] = []
    with result_place("--csv", config.csv, config, overwrite=config.overwrite) as place:
        if place.path is not None:
            check_output("--csv", place.path)
        answers = classify(config, err)
        if place.path is not None:
            columns = write_csv(answers, place.path)
    if place.path is not None and str(place.path) != "-":
        names = columns if len(columns) <= 6 else [*columns[:4], "...", columns[-1]]
        say(err, f"{place.address(place.path)}: {plural(len(answers), 'row')} of {', '.join(names)}")
    if config.json:
        for answer in answers:
            print(printable(json.dumps(answer.as_dict(), ensure_ascii=False)))
    elif config.csv is None:
        print_answers(answers, out)
    errors = [answer for answer in answers if answer.error is not None]
    failed = len(errors)
    if failed:
        given = f"{len(answers):,} files and texts"
        if not (config.text and config.sources):
            given = plural(len(answers), "text" if config.text else "file")
        them = "it" if failed == 1 else "them"
        which = ""
        if config.csv is not None:  # otherwise each file and its reason were printed
            first = with_flags(printable(f"{errors[0].file}: {errors[0].error}"))
            which = f" ({first})" if failed == 1 else f" (the first is {first})"
        say(err, f"{failed:,} of {given} could not be read{which}; check {them}, or replace {them}", "yellow")
    return 1 if failed else 0


def classify(config: Predict, err: Console) -> list[Answer]:
    """An answer for each file or sample, in order, then for each text; and --sheet. Raises UsageError and UserError."""
    refuse(config, PREDICT)
    if not config.sources and not config.text:
        raise UsageError(
            "no images given: name image files, or folders to search for images; for a checkpoint that reads texts, "
            "name .txt files or folders, or give --text '...'"
        )
    tell = partial(say, err)
    with result_place("--sheet", config.sheet, config, overwrite=config.overwrite) as place:
        sheet = None if place.path is None else PredictionSheet(config.max_pixels)
        if place.path is not None:
            check_output("--sheet", place.path)
        with files_at_urls(config.sources, config.storage_option) as fetched:
            sources = (fetched.get(source) or local_folder(source, config, tell) for source in config.sources)
            answers = _answered(replace(config, sources=tuple(sources)), sheet, err)
        urls = {str(path): shown(source) for source, path in fetched.items()}
        answers = [replace(answer, file=urls.get(answer.file, answer.file)) for answer in answers]
        if sheet is not None and place.path is not None:
            note = sheet.draw(place.path, run_name(config.checkpoint), answers)
    if sheet is not None and place.path is not None:
        say(
            err, f"{place.address(place.path)}: pictures of {len(sheet.pictures):,} of {plural(len(answers), 'answer')}"
        )
        if note is not None:
            say(err, f"{place.address(place.path)}: {note}")
    return answers


def _answered(config: Predict, sheet: PredictionSheet | None, err: Console) -> list[Answer]:
    """An answer for each file, folder or dataset, and for each text; pictures of some go to the sheet."""
    answers: list[Answer] = []
    with start(config.device) as ranks:
        engine = inference.load(config.checkpoint, ranks.device, config.amp, config.tta, partial(say, err))
        content: Content = "images" if engine.model.text is None else "text"
        pair = engine.model.pair is not None
        if config.text and content == "images" and not pair:
            raise UsageError(f"--text: {config.checkpoint} reads images, not texts; give image files instead")
        if sheet is not None and content == "text":
            raise UsageError(f"--sheet: {config.checkpoint} reads texts, which have no pictures; leave it out")
        datasets: list[Named] = _pairs(config, engine) if pair else _given_data(config, engine, err)
        if config.text and not pair:
            datasets.append((GivenTexts(config.text), list(config.text), None))
        wanted = Wanted(config.topk, config.threshold)
        wanted.check(engine.tasks)
        engine.refuse_few_pixels(config.max_pixels)
        workers = worker_count(config.workers, ranks)
        batch_size = config.batch_size or BATCH[ranks.device.type]
        for dataset, names, beside in datasets:
            loader = engine.loader(dataset, batch_size, workers, config.max_pixels, "skip", texts=beside)
            try:
                engine.compile_decoders(dataset, None, partial(say, err))
                if sheet is not None:
                    sheet.take(dataset, len(answers), sum(len(each) for each, _, _ in datasets))
                answers += answers_of(engine, loader, names, wanted, err)
            finally:
                loader.close()
                dataset.close()
    return answers


def _given_data(config: Predict, engine: inference.Inference, err: Console) -> list[Named]:
    """The datasets and files of the command line, in order: files, and those of folders, that follow each other are
    one dataset."""
    found: list[Named] = []
    for converted, group in groupby(config.sources, _is_dataset):
        if converted:
            found += _datasets(tuple(group), engine, err)
            continue
        content: Content = "images" if engine.model.text is None else "text"
        bands = engine.card.preprocessing.field is not None
        paths, notes = find_files(tuple(group), content, undecodable=True, bands=bands)
        for note in notes:
            say(err, note)
        files = [str(path) for path in paths]
        found.append((FilesDataset(Path(), files, content=content), files, None))
    return found


def _is_dataset(source: Path) -> bool:
    """Whether a path is opened as a dataset: shards, .beton files, or what is in an object store. A folder of images
    without a dataset.json is not one, whatever else is in it."""
    if mirror_at(source) is not None or (source / "dataset.json").exists() or unfinished(source) or is_beton(source):
        return True
    return source.is_dir() and not is_plain_folder(source) and not find_images(source, undecodable=True)[0]


def _datasets(folders: Sequence[Path], engine: inference.Inference, err: Console) -> list[Named]:
    """All splits of datasets; of folders of files in an object store, all files."""
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
            for note in dataset.notes:
                say(err, with_flags(note))
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
