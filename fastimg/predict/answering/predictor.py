"""A model that stays in memory, for programs that answer one request after the other: `fastimg.load`."""

import os
from collections.abc import Sequence
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from rich.console import Console
from torch import nn

from fastimg.config.commands import Predict
from fastimg.config.intent import BATCH
from fastimg.config.rule_tables.reading import PREDICT
from fastimg.config.rules import refuse
from fastimg.data.datasets import worker_count
from fastimg.data.model_input import model_input
from fastimg.embeddings.text_rows import TextRows
from fastimg.errors import UsageError, UserError
from fastimg.loaders import BatchSource, Dataset, FilesDataset
from fastimg.loaders.remote.stores import url_of
from fastimg.models.precision import choose as choose_precision
from fastimg.models.ranks import Ranks, choose_device
from fastimg.predict.answers import Answer
from fastimg.predict.inference import Inference, restore
from fastimg.wording import plural

from .files import find_files
from .in_memory import GivenImages, GivenTexts, Picture, split_batch
from .of_samples import Wanted, answers_of

Source = str | os.PathLike[str] | Picture

_QUIET = Console(quiet=True, force_terminal=False, force_jupyter=False)
_IN_MEMORY = (bytes, bytearray, memoryview, Image.Image, np.ndarray, torch.Tensor)


class Predictor:
    """A checkpoint's model on its device: what `fastimg.load` returns.

        model = fastimg.load("runs/D-resnet18")
        (answer,) = model.predict(Image.open("a.jpg"))
        print(answer.classes[0], answer.probabilities[0])

    module: the torch module, in evaluation mode: `inputs` -> logits [N, outputs].
    classes: the names of its classes. device: where it is.

    torch's switches and threads stay as they are. Several threads may call it at the same time.
    """

    def __init__(self, config: Predict) -> None:
        """Load `config.checkpoint`. Raises UsageError and UserError."""
        refuse(config, PREDICT)
        self.device = choose_device(config.device, int(os.environ.get("LOCAL_RANK", 0)))
        self._config = config
        precision = choose_precision(self.device, config.amp, "auto")
        self._engine: Inference = restore(config.checkpoint, self.device, precision, config.tta)
        here = Ranks(0, 1, int(os.environ.get("LOCAL_WORLD_SIZE", 1)), self.device, None)
        self._workers = worker_count(config.workers, here)
        self._batch_size = config.batch_size or BATCH[self.device.type]

    def __repr__(self) -> str:
        return f"<Predictor of {self._config.checkpoint}: {self._engine.card.arch} on {self.device}>"

    @property
    def module(self) -> nn.Module:
        """The torch module, in evaluation mode."""
        return self._engine.model.module

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of the classes, in the order of the outputs; of several targets, those of the first class."""
        return tuple(self._engine.card.classes)

    def predict(
        self,
        sources: Source | Sequence[Source] = (),
        *,
        text: str | Sequence[str] = (),
        topk: int = 5,
        threshold: float | None = None,
    ) -> list[Answer]:
        """An answer for each image, in order, then for each text; a model of both takes a text for each image.

        sources: files, or folders to search; or images in memory: Pillow's, encoded bytes, uint8 arrays [H, W, C] in
        RGB or [H, W], uint8 tensors [C, H, W], and batches of either, [N, ...]. For a checkpoint that reads bands:
        arrays or tensors [C, H, W] of their type. EXIF orientation is applied, to Pillow's images too.

        topk: how many classes an answer has. threshold: of several labels, predict those of this probability or more.

        An answer's `file` is the path, or `sources[3]` for an image in memory; its `error` says why one could not be
        read. Raises UsageError for what the checkpoint does not read, and ValueError for arrays of other shapes or
        types.
        """
        config = replace(self._config, topk=topk, threshold=threshold)
        refuse(config, PREDICT)
        wanted = Wanted(topk, threshold)
        wanted.check(self._engine.tasks)
        answers: list[Answer] = []
        for dataset, names, beside in self._datasets(sources, (text,) if isinstance(text, str) else tuple(text)):
            with self._here(), closing(dataset), closing(self._loader(dataset, beside)) as loader:
                answers += answers_of(self._engine, loader, names, wanted, _QUIET)
        return answers

    def inputs(self, sources: Source | Sequence[Source]) -> torch.Tensor:
        """Images as the model sees them: float32 [N, C, H, W] on the device, cropped and normalised as in validation.

        Sources are those of `predict`. Raises UserError for an image that cannot be read.
        """
        if self._engine.model.text is not None:
            raise UsageError(f"inputs(): {self._config.checkpoint} reads texts, not images; use predict(text=...)")
        names, dataset = self._images(sources)
        parts: list[torch.Tensor] = []
        with self._here(), torch.no_grad(), closing(dataset), closing(self._loader(dataset)) as loader:
            for batch in loader:
                inputs = model_input(None, batch.inputs, self._engine.policy, torch.float32)
                parts.append(inputs[: len(names) - sum(map(len, parts))].clone())
        for index, reason in loader.unreadable.items():
            raise UserError(f"{names[index]}: {reason}")
        return torch.cat(parts)

    def _loader(self, dataset: Dataset, beside: TextRows | None = None) -> BatchSource:
        """Batches of every sample, in order; what cannot be read is skipped, and named by the loader."""
        limit = self._config.max_pixels
        return self._engine.loader(dataset, self._batch_size, self._workers, limit, "skip", texts=beside)

    def _here(self) -> AbstractContextManager[object]:
        """Within it the model's GPU is this thread's own, which kernels and streams are made on."""
        return torch.cuda.device(self.device) if self.device.type == "cuda" else nullcontext()

    def _datasets(
        self, sources: Source | Sequence[Source], texts: tuple[str, ...]
    ) -> list[tuple[Dataset, Sequence[str], TextRows | None]]:
        """What is to be answered: samples, their names, and the texts beside images. Raises UsageError."""
        checkpoint, model = self._config.checkpoint, self._engine.model
        if model.pair is not None:
            names, images = self._images(sources)
            if len(texts) not in (0, len(names)):
                raise UsageError(
                    f"text: {checkpoint} reads images and texts: give as many texts as images "
                    f"({plural(len(names), 'image')}, {plural(len(texts), 'text')}), in the same order, or none"
                )
            beside = self._engine.text_rows(GivenTexts(texts or [""] * len(names)), np.ones(len(names), np.bool_))
            return [(images, names, beside)]
        if model.text is None:
            if texts:
                raise UsageError(f"text: {checkpoint} reads images, not texts; give images instead")
            names, images = self._images(sources)
            return [(images, names, None)]
        found: list[tuple[Dataset, Sequence[str], TextRows | None]] = []
        if given := _listed(sources):
            if any(isinstance(source, _IN_MEMORY) for source in given):
                raise UsageError(f"sources: {checkpoint} reads texts, not images; give text=..., or .txt files")
            files = [file for i, source in enumerate(given) for file in find_files((_path(source, i),), "text")[0]]
            names = [str(file) for file in files]
            found.append((FilesDataset(Path(), names, content="text"), names, None))
        if texts:
            found.append((GivenTexts(texts), list(texts), None))
        if not found:
            raise UsageError("no texts given: give text=..., .txt files, or folders to search for them")
        return found

    def _images(self, sources: Source | Sequence[Source]) -> tuple[list[str], GivenImages]:
        """The names of all images, and the images. Raises UsageError, UserError and ValueError."""
        bands = self._engine.card.preprocessing.field is not None
        names: list[str] = []
        pictures: dict[int, Picture] = {}
        for place, source in enumerate(_listed(sources)):
            if not isinstance(source, _IN_MEMORY):
                files, _ = find_files((_path(source, place),), "images", undecodable=True, bands=bands)
                names += [str(file) for file in files]
                continue
            rows = split_batch(source, bands)
            single = rows[0] is source or getattr(source, "ndim", 0) < 4
            for row, picture in enumerate(rows):
                pictures[len(names)] = picture
                names.append(f"sources[{place}]" if single else f"sources[{place}][{row}]")
        if not names:
            raise UsageError("no images given: give files, folders to search for images, or images in memory")
        return names, GivenImages(names, pictures, bands)


def _listed(sources: Source | Sequence[Source]) -> list[Source]:
    """One source, or several, as a list."""
    if isinstance(sources, (str, os.PathLike, *_IN_MEMORY)):
        return [sources]
    return list(sources)


def _path(source: object, place: int) -> Path:
    """A source that is a path on this machine. Raises TypeError and UsageError."""
    if not isinstance(source, str | os.PathLike):
        raise TypeError(
            f"sources[{place}] is of type {type(source).__name__}; give a path, encoded bytes, an image of Pillow's, "
            "an array or a tensor"
        )
    path = Path(source)
    if (url := url_of(path)) is not None:
        raise UsageError(f"{url}: is in an object store; use fastimg.predict, which fetches it")
    return path
