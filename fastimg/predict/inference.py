"""Inference: the probabilities for every sample of a dataset, through the loader that training uses."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from fastimg.augment import Policy
from fastimg.config.training import Tta
from fastimg.data.datasets import DatasetPart, build_loader, center_crop, refuse_few_pixels
from fastimg.data.decoder_compilation import Say, compile_decoders
from fastimg.data.model_input import model_input
from fastimg.data.read_back import read_back
from fastimg.embeddings.cache import array_loader
from fastimg.embeddings.text_rows import FreshTokens, PairedLoader, TextRows, inputs_beside
from fastimg.errors import UsageError, UserError
from fastimg.loaders import Batch, BatchSource, Dataset, LoaderConfig
from fastimg.loaders.backends.settings import Backend
from fastimg.loaders.captions.captions import captions_of
from fastimg.models.precision import Precision, choose_trained, set_backends
from fastimg.models.registry import Model
from fastimg.models.tokenizer import TextDecoder
from fastimg.train.checkpoints.format import Card, load_model
from fastimg.train.metrics import answer
from fastimg.train.tasks.joint import Tasks
from fastimg.train.tasks.regression import NumberTask
from fastimg.train.tasks.restored import several


@dataclass(frozen=True)
class Inference:
    """A model on its device, ready for inference."""

    model: Model
    card: Card
    policy: Policy
    precision: Precision
    device: torch.device
    tta: Tta = False  # which views of each image are averaged

    @property
    def tasks(self) -> Tasks | None:
        """What the outputs stand for, where they are not those of a class alone."""
        return several(self.card.targets)

    def refuse_few_pixels(self, max_pixels: int | None) -> None:
        """Raises UsageError for --max-pixels that no image could keep to."""
        if self.model.text is None:
            refuse_few_pixels(max_pixels, center_crop(self.card.preprocessing))

    def compile_decoders(self, dataset: Dataset, indices: npt.NDArray[np.int64] | None, say: Say) -> None:
        """Compile what fastimg's loader needs for such a dataset, before anything else is said to be done."""
        if self.model.text is None and not self.card.preprocessing.is_deep and len(dataset):
            compile_decoders(dataset, indices, say)

    def loader(
        self,
        dataset: Dataset,
        batch_size: int,
        workers: int,
        max_pixels: int | None,
        on_error: str | None,
        backend: Backend = "native",
        indices: npt.NDArray[np.int64] | None = None,
        texts: TextRows | None = None,
    ) -> BatchSource:
        """A loader of every sample of `dataset`, or of those in `indices`, once, in order, cropped as in validation.

        A model of images and texts needs the `texts` beside the images.
        """
        part = DatasetPart(dataset, indices, "the data")
        settings = LoaderConfig(
            batch_size=min(batch_size, len(part)),
            order="sequential",
            workers=workers,
            on_error="fail" if on_error == "fail" else "skip",
        )
        if self.model.text is not None:
            return array_loader(part, TextDecoder(self.model.text.tokenizer), settings, self.device)
        preprocessing = self.card.preprocessing
        crop = center_crop(preprocessing)
        loader = build_loader(part, crop, settings, max_pixels, self.device, backend, seen=preprocessing)
        return loader if texts is None else PairedLoader(loader, texts, self.device)

    def text_rows(self, texts: Dataset, has_image: npt.NDArray[np.bool_]) -> TextRows:
        """The texts beside images, tokenised as they are read."""
        assert self.model.pair is not None
        return TextRows(has_image, FreshTokens(texts, self.model.pair.reader.tokenizer))

    def standardised(self, outputs: torch.Tensor) -> torch.Tensor:
        """Outputs [N, outputs] with numbers in their own units, as an exported file gives them -> logits.

        In the type of the outputs: float64 where one of the numbers needs it.
        """
        if self.tasks is None:
            return outputs
        parts = zip(self.tasks.all, self.tasks.parts(outputs), strict=True)
        return torch.cat(
            [(part - task.mean) / task.std if isinstance(task, NumberTask) else part for task, part in parts], dim=1
        )

    def logits(self, loader: BatchSource) -> Iterator[tuple[Batch, torch.Tensor]]:
        """Yield (batch, logits [B, outputs] on the device) in order.

        Raises ValueError for a module of other outputs.
        """
        with torch.inference_mode():
            for batch in loader:
                inputs = model_input(None, batch.inputs, self.policy, self.precision.input_dtype)
                with self.precision.autocast():
                    beside = inputs_beside(batch, self.precision.input_dtype)
                    logits = answer(self.model.module, inputs, self.tta, beside)
                if logits.shape[1:] != (self.card.num_classes,):  # somebody has replaced its head
                    raise ValueError(
                        f"the module gives outputs of shape {list(logits.shape)}, and the checkpoint states "
                        f"[N, {self.card.num_classes}]; give it as many outputs, or call the module itself"
                    )
                yield batch, logits

    def answers(self, loader: BatchSource) -> Iterator[tuple[Batch, torch.Tensor]]:
        """Yield (batch, probabilities [B, C] on the device) in order; C is the checkpoint's number of classes."""
        for batch, logits in self.logits(loader):
            with torch.inference_mode():
                yield batch, logits[:, : len(self.card.classes)].softmax(dim=1)

    def read(
        self, loader: BatchSource, summarise: Callable[[Batch, torch.Tensor], Sequence[torch.Tensor]]
    ) -> Iterator[tuple[list[int], list[npt.NDArray[Any]]]]:
        """Yield (ids, what `summarise` makes of a batch and its probabilities) in order, from a GPU one batch late.

        Probabilities stay on the device. Arrays are valid until the next ones.
        """
        return read_back(
            (batch.ids.tolist(), summarise(batch, probabilities)) for batch, probabilities in self.answers(loader)
        )


def check_content(engine: "Inference", dataset: Dataset, data: Path) -> None:
    """Raises UserError if the checkpoint does not read this kind of data."""
    texts = dataset.content == "text"
    if texts != (engine.model.text is not None):
        content, expected = ("texts", "images") if texts else ("images", "texts")
        raise UserError(
            f"{data}: contains {content}, but the checkpoint reads {expected}; give other data, or another checkpoint"
        )


def texts_beside(engine: "Inference", dataset: Dataset, data: Path) -> TextRows | None:
    """The texts that the model reads beside the images; None if it reads none. Raises UserError if there are none."""
    if engine.model.pair is None:
        return None
    captions = captions_of(data, dataset)
    if captions is None:
        raise UserError(
            f"{data}: has no texts beside its images, which the checkpoint reads; make it with `fastimg convert "
            "--text-column`, or give another checkpoint"
        )
    return engine.text_rows(captions, captions.has_image)


def load(path: Path, device: torch.device, amp: bool | None, tta: Tta = False, say: Say | None = None) -> Inference:
    """Load a checkpoint's model onto a device, and set torch's switches as training does.

    amp: None for the precision of its training; where the device lacks that, `say` is told.
    Raises UsageError and UserError.
    """
    set_backends(device)
    engine = restore(path, device, amp, tta)
    if say is not None and amp is None and engine.card.precision not in (None, engine.precision.name):
        say(f"precision: {engine.precision.reason}")
    return engine


def restore(path: Path, device: torch.device, amp: bool | None, tta: Tta = False) -> Inference:
    """Load a checkpoint's model onto a device, and leave torch's switches alone. Raises UsageError and UserError."""
    model, card = load_model(path)
    if tta and model.text is not None:
        raise UsageError("--tta: averages over mirror images, and the model reads texts; leave it out")
    model.module.to(device)
    if model.convolutional:
        model.module.to(memory_format=torch.channels_last)
    precision = choose_trained(device, amp, card.precision)
    return Inference(model, card, card.preprocessing.policy, precision, device, tta)
