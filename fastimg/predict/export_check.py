"""Whether an exported file answers as its checkpoint does, on the samples that `predict` or `eval` would read."""

import contextlib
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from PIL import Image

from fastimg.data.datasets import Part, build_loader, center_crop
from fastimg.embeddings.cache import array_loader
from fastimg.errors import UserError
from fastimg.loaders import BatchSource, Dataset, FilesDataset, LoaderConfig, list_splits, open_dataset
from fastimg.loaders.backends.settings import Backend
from fastimg.loaders.containers.content import Content, samples_of
from fastimg.loaders.containers.datasets import is_plain_folder
from fastimg.loaders.decode import decode
from fastimg.loaders.runtime.scratch import Scratch
from fastimg.models.registry import Model
from fastimg.models.tokenizer import TextDecoder
from fastimg.wording import plural

from . import inference
from .graph import Run, reason
from .prediction import GivenTexts, find_files


class Form(NamedTuple):
    """What a file is asked with."""

    whole: bool  # whole images of their own sizes, one by one; else what the loader gives, cut by `predict`'s rule
    bound: float  # of probabilities, in float32


BOUND = 1e-4
CUT = Form(False, BOUND)
WHOLE = Form(True, BOUND)  # resized by torch, which has the loader's bits on a CPU
WHOLE_ELSEWHERE = Form(True, 2e-2)  # by ONNX Runtime: up to 2 of 255 off, see docs/export.md for what comes of it
SAMPLES = 64
NOISE = 16
_BATCH = 8


@dataclass(frozen=True, kw_only=True)
class Agreement:
    """How far the file's answers are from the checkpoint's. Differences are the largest; None is not a number."""

    samples: int
    origin: str  # in words
    unreadable: int
    logits: float | None
    probabilities: float | None
    top1: int  # samples for which both name the same class
    bound: float
    agrees: bool  # probabilities within the bound; two classes that are as likely may then change places


def compare(file: Path, run: Run, engine: inference.Inference, data: Path | None, form: Form = CUT) -> Agreement:
    """Ask `run`, which is `file`, and `engine`, on the CPU in float32, the same. Raises UserError and DataError."""
    counted, same = 0, 0
    logits, probabilities = torch.zeros(()), torch.zeros(())
    with _samples(engine, data, form) as (loader, origin), _kept_logits(engine) as kept:
        for batch, shares in engine.answers(loader):
            real = batch.weight > 0
            if form.whole:
                parts = [_ask(file, run, image) for image in _whole(loader.dataset, batch.ids[real])]
                own = torch.cat([torch.empty(0, shares.shape[1]), *parts])
            else:
                own = _ask(file, run, batch.inputs)[real]
            theirs, expected = kept.pop()[real], torch.from_numpy(shares)[real]
            counted += len(own)
            same += int((own.argmax(1) == expected.argmax(1)).sum())
            logits = torch.maximum(logits, _largest(own - theirs))
            probabilities = torch.maximum(probabilities, _largest(own.softmax(1) - expected))
        unreadable = loader.unreadable
    if counted == 0:
        why = next(iter(unreadable.values()))
        raise UserError(
            f"--check-data {data}: none of its {plural(len(unreadable), 'sample')} could be read ({why}); give others"
        )
    return Agreement(
        samples=counted,
        origin=origin,
        unreadable=len(unreadable),
        logits=_number(logits),
        probabilities=_number(probabilities),
        top1=same,
        bound=form.bound,
        agrees=bool(probabilities <= form.bound),
    )


def _ask(file: Path, run: Run, batch: torch.Tensor) -> torch.Tensor:
    """Logits of a batch: of its first sample, and of the rest, for neither is the size that the graph was made with."""
    try:
        return torch.cat([run(rows) for rows in (batch[:1], batch[1:]) if len(rows)])
    except Exception as error:
        raise UserError(f"{file}: was written and cannot be run ({reason(error)}); do not use it") from error


def _whole(dataset: Dataset, ids: torch.Tensor) -> Iterator[torch.Tensor]:
    """Images as they are, upright: uint8 [1, 3, H, W], each of its own size."""
    for index in ids.tolist():
        pixels = torch.from_numpy(np.array(decode(dataset.read(index, Scratch()))))
        yield pixels.permute(2, 0, 1)[None].contiguous()


@contextlib.contextmanager
def _samples(engine: inference.Inference, data: Path | None, form: Form) -> Iterator[tuple[BatchSource, str]]:
    """Up to SAMPLES samples, spread over `data`, or noise; and what they are."""
    with contextlib.ExitStack() as stack:
        if data is not None:
            dataset, origin = open_data(data, engine.model)
        elif form.whole:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            names = _write_noise(folder, engine.card.preprocessing.val_resize)
            dataset, origin = FilesDataset(folder, names), "images of noise of several sizes"
        elif engine.model.text is None:
            dataset, origin = FilesDataset(Path("noise"), [str(i) for i in range(NOISE)]), "images of noise"
        else:
            texts = _random_texts(engine.model.text.tokenizer.length)
            dataset, origin = GivenTexts(texts), "texts of random letters"
        stack.callback(dataset.close)
        indices = np.unique(np.linspace(0, len(dataset) - 1, min(SAMPLES, len(dataset))).astype(np.int64))
        settings = LoaderConfig(batch_size=min(_BATCH, len(indices)), order="sequential", workers=1)
        part = Part(dataset, indices, origin)
        if engine.model.text is not None:
            loader = array_loader(part, TextDecoder(engine.model.text.tokenizer), settings, engine.device)
        else:
            crop = center_crop(engine.card.preprocessing)
            backend: Backend = "synthetic" if data is None and not form.whole else "native"
            loader = build_loader(part, crop, settings, None, engine.device, backend)
        stack.callback(loader.close)
        yield loader, origin


def open_data(data: Path, model: Model) -> tuple[Dataset, str]:
    """A dataset as `eval` opens it, files and folders of them as `predict` does; and what it is. Raises UserError."""
    if not data.exists():
        raise UserError(f"--check-data {data}: no such file or folder; give a dataset, or samples of what it reads")
    content: Content = "images" if model.text is None else "text"
    origin = f"{samples_of(content)} of {data}"
    if is_plain_folder(data):
        found = [str(file) for file in find_files((data,), content)[0]]
        return FilesDataset(Path(), found, content=content), origin
    splits = list_splits(data)
    split = next((name for name in ("val", "test", "train") if name in splits), next(iter(splits)))
    dataset = open_dataset(data, split)
    if dataset.content != content:
        dataset.close()
        held, read = samples_of(dataset.content), samples_of(content)
        raise UserError(f"--check-data {data}: holds {held}, and the checkpoint reads {read}; give other data")
    return dataset, f"{origin} ({split})"


def _write_noise(folder: Path, resize: int) -> list[str]:
    """Images from a third to three times the size that they are resized to, wide and high; their names."""
    drawn = np.random.default_rng(0)
    names = []
    for i in range(NOISE):
        height, width = drawn.integers(max(1, resize // 3), 3 * resize, 2)
        pixels = drawn.integers(0, 256, (height, width, 3), dtype=np.uint8)
        names.append(f"{i}.png")
        Image.fromarray(pixels).save(folder / names[-1], compress_level=1)
    return names


def _random_texts(length: int) -> list[str]:
    """Words of random letters: texts of one word, and longer ones up to more than the model reads."""
    drawn = np.random.default_rng(0)

    def word() -> str:
        return bytes(drawn.integers(ord("a"), ord("z") + 1, drawn.integers(1, 9)).tolist()).decode()

    return [" ".join(word() for _ in range(round(words))) for words in np.geomspace(1, length + 1, NOISE)]


@contextlib.contextmanager
def _kept_logits(engine: inference.Inference) -> Iterator[list[torch.Tensor]]:
    """What the model said before `engine.answers` made probabilities of it."""
    kept: list[torch.Tensor] = []
    classes = len(engine.card.classes)

    def keep(module: torch.nn.Module, inputs: object, logits: torch.Tensor) -> None:
        kept.append(logits.float()[:, :classes])

    handle = engine.model.module.register_forward_hook(keep)
    try:
        yield kept
    finally:
        handle.remove()


def _largest(difference: torch.Tensor) -> torch.Tensor:
    return difference.abs().max() if difference.numel() else torch.zeros(())


def _number(value: torch.Tensor) -> float | None:
    return float(value) if value.isfinite() else None
