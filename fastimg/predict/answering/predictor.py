"""A model that stays in memory, for programs that answer one request after the other: `fastimg.load`."""

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TypeGuard

import numpy as np
import torch
from PIL import Image
from rich.console import Console
from torch import nn

from fastimg.config import yaml_file
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
from fastimg.models.ranks import Ranks, choose_device
from fastimg.predict.answers import Answers
from fastimg.predict.inference import Inference, restore
from fastimg.torch_state import as_imported
from fastimg.wording import plural, shortened

from .files import find_files, path_of
from .in_memory import GivenImages, GivenTexts, Picture, pictures_of
from .in_memory import Source as InMemory
from .of_samples import Wanted, answers_of

Source = str | os.PathLike[str] | InMemory

_QUIET = Console(quiet=True, force_terminal=False, force_jupyter=False)
_IN_MEMORY = (bytes, bytearray, memoryview, Image.Image, np.ndarray, torch.Tensor)


class Predictor:
    """A checkpoint's model on its device: what `fastimg.load` returns.

        model = fastimg.load("runs/D-resnet18")
        (answer,) = model.predict(Image.open("a.jpg"))
        print(answer.classes[0], answer.probabilities[0])

    module: the torch module, in evaluation mode: `inputs` -> logits [N, outputs].
    classes: the names of its classes. device: where it is.

    torch's switches and threads stay as they are. Several threads may call it at the same time, but not with the same
    Pillow image.
    """

    def __init__(self, config: Predict) -> None:
        """Load `config.checkpoint`. Raises UsageError and UserError."""
        refuse(config, PREDICT)
        self._device = choose_device(config.device, int(os.environ.get("LOCAL_RANK", 0)))
        self._config = config
        self._engine: Inference = restore(config.checkpoint, self._device, config.amp, config.tta)
        here = Ranks(0, 1, int(os.environ.get("LOCAL_WORLD_SIZE", 1)), self._device, None)
        self._workers = worker_count(config.workers, here)
        self._batch_size = config.batch_size or BATCH[self._device.type]

    def __repr__(self) -> str:
        return f"<Predictor of {self._config.checkpoint}: {self._engine.card.arch} on {self.device}>"

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        return self._device

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
        sources: Source | Iterable[Source] = (),
        *,
        text: str | Iterable[str] | None = (),
        topk: int = 5,
        threshold: float | None = None,
    ) -> Answers:
        """An answer for each image, in order, then for each text; a model of both takes a text for each image.

        sources: files, or folders to search; or images in memory: Pillow's, encoded bytes, files opened in binary mode,
        uint8 or uint16 arrays [H, W, C] in RGB or [H, W], tensors [C, H, W] of these types, and batches of either,
        [N, ...]. For a checkpoint that reads bands: arrays or tensors [C, H, W] of their type. EXIF orientation is
        applied, to Pillow's images too.

        topk: how many classes an answer has. threshold: of several labels, predict those of this probability or more.

        An answer's `file` is the path, or `sources[3]` for an image in memory; its `error` says why one could not be
        read. Raises UsageError for what the checkpoint does not read, ValueError for arrays of other shapes or types
        and for a module whose head was replaced by one of other outputs, and TypeError for what is no image.
        """
        asked = {"topk": topk, "threshold": threshold}
        given = {
            name: value.item() if isinstance(value, np.generic) else value
            for name, value in asked.items()
            if value is not None
        }
        config = replace(self._config, **yaml_file.fitted(given, Predict))
        refuse(config, PREDICT)
        wanted = Wanted(config.topk, config.threshold)
        wanted.check(self._engine.tasks)
        answers = Answers()
        for dataset, names, beside in self._datasets(sources, _texts(text)):
            with self._here(), closing(dataset), closing(self._loader(dataset, beside)) as loader:
                answers += answers_of(self._engine, loader, names, wanted, _QUIET)
        return answers

    def inputs(self, sources: Source | Iterable[Source]) -> torch.Tensor:
        """Images as the model sees them: float32 [N, C, H, W] on the device, cropped and normalised as in validation.

        They are channels-last in memory. Sources are those of `predict`. Raises UserError for an image that cannot be
        read, and UsageError for a checkpoint that reads texts.
        """
        model = self._engine.model
        if model.text is not None or model.pair is not None:
            what = "texts, not images" if model.text is not None else "images and texts"
            raise UsageError(f"inputs(): {self._config.checkpoint} reads {what}; use predict(text=...)")
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
        if self.module.training:
            raise UsageError("the module is in training mode, in which answers change it; call model.module.eval()")
        limit, workers = self._config.max_pixels, min(self._workers, len(dataset))
        return self._engine.loader(dataset, self._batch_size, workers, limit, "skip", texts=beside)

    @contextmanager
    def _here(self) -> Iterator[None]:
        """Within it the model's GPU is this thread's own, which kernels and streams are made on; see `as_imported`."""
        with as_imported(), torch.cuda.device(self._device) if self._device.type == "cuda" else nullcontext():
            yield

    def _datasets(
        self, sources: Source | Iterable[Source], texts: tuple[str, ...]
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
            if any(_in_memory(source) for source in given):
                raise UsageError(f"sources: {checkpoint} reads texts, not images; give text=..., or .txt files")
            for place, source in enumerate(given):
                path = _path(source, place)
                if path.suffix != ".txt" and not path.exists():
                    raise UsageError(f"{shortened(str(path), 60)}: no such file; give texts as text=...")
            files = [file for i, source in enumerate(given) for file in find_files((_path(source, i),), "text")[0]]
            names = [str(file) for file in files]
            found.append((FilesDataset(Path(), names, content="text"), names, None))
        if texts:
            found.append((GivenTexts(texts), list(texts), None))
        if not found:
            raise UsageError("no texts given: give text=..., .txt files, or folders to search for them")
        return found

    def _images(self, sources: Source | Iterable[Source]) -> tuple[list[str], GivenImages]:
        """The names of all images, and the images. Raises UsageError, UserError, ValueError and TypeError."""
        seen = self._engine.card.preprocessing
        bands = None if seen.field is None else seen
        names: list[str] = []
        pictures: dict[int, Picture] = {}
        for place, source in enumerate(_listed(sources)):
            if not _in_memory(source):
                files, _ = find_files((_path(source, place),), "images", undecodable=True, bands=bands is not None)
                names += [str(file) for file in files]
                continue
            try:
                rows = pictures_of(source, bands, self._config.max_pixels)
            except (TypeError, ValueError) as error:
                raise type(error)(f"sources[{place}]: {error}") from error
            single = getattr(source, "ndim", 0) < 4
            for row, picture in enumerate(rows):
                pictures[len(names)] = picture
                names.append(f"sources[{place}]" if single else f"sources[{place}][{row}]")
        if not names:
            raise UsageError("no images given: give files, folders to search for images, or images in memory")
        return names, GivenImages(names, pictures, bands is not None, self._config.max_pixels)


def _in_memory(source: object) -> TypeGuard[InMemory]:
    """Whether a source is an image in memory, or a file that is open."""
    return isinstance(source, _IN_MEMORY) or (hasattr(source, "read") and not isinstance(source, os.PathLike))


def _listed(sources: Source | Iterable[Source]) -> list[Source]:
    """One source, or several, as a list."""
    if isinstance(sources, str | os.PathLike) or _in_memory(sources) or not isinstance(sources, Iterable):
        return [sources]
    return list(sources)


def _texts(text: str | Iterable[str] | None) -> tuple[str, ...]:
    """One text, or several. Raises TypeError and ValueError."""
    given = [text] if isinstance(text, str | bytes) else list(text or ())
    for place, each in enumerate(given):
        if not isinstance(each, str):
            raise TypeError(f"text[{place}] is of type {type(each).__name__}; give text")
        try:
            each.encode("utf-8", "surrogateescape")
        except UnicodeEncodeError as error:
            raise ValueError(f"text[{place}] cannot be written as UTF-8 ({error.reason})") from error
    return tuple(map(str, given))


def _path(source: object, place: int) -> Path:
    """A source that is a path on this machine. Raises TypeError and UsageError."""
    if not isinstance(source, str | os.PathLike):
        raise TypeError(
            f"sources[{place}] is of type {type(source).__name__}; give a path, encoded bytes, an image of Pillow's, "
            "an array or a tensor"
        )
    path = path_of(source, place)
    if (url := url_of(path)) is not None:
        raise UsageError(f"{url}: is in an object store; use fastimg.predict, which fetches it")
    return path
