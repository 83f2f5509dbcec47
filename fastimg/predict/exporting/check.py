"""Checks that an exported file gives its checkpoint's outputs, on samples read as in `predict` or `eval`."""

import contextlib
import tempfile
from collections.abc import Collection, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image

from fastimg.data.datasets import DatasetPart, build_loader, center_crop, filled_splits, open_filled
from fastimg.data.elsewhere import as_given
from fastimg.embeddings.cache import array_loader
from fastimg.errors import UserError
from fastimg.loaders import BatchSource, Dataset, FilesDataset, LoaderConfig, list_splits
from fastimg.loaders.backends.settings import Backend
from fastimg.loaders.containers.content import Content, samples_of
from fastimg.loaders.containers.datasets import is_plain_folder
from fastimg.loaders.decode import decode
from fastimg.loaders.runtime.scratch import Scratch
from fastimg.models.registry import Model, Preprocessing
from fastimg.models.tokenizer import TextDecoder
from fastimg.predict import inference
from fastimg.predict.answering.files import find_files
from fastimg.predict.answering.in_memory import GivenTexts
from fastimg.wording import plural

from .graph import Run, reason


class Form(NamedTuple):
    """The inputs of a check, and its tolerance."""

    whole: bool  # whole images of any size, one by one; else images as the loader crops them
    bound: float  # on differences of probabilities and of standardised numbers, in float32


BOUND = 1e-4
CUT = Form(False, BOUND)
WHOLE = Form(True, BOUND)  # resized by torch, with the loader's bits on a CPU
WHOLE_ELSEWHERE = Form(True, 2e-2)  # by ONNX Runtime, up to 2 of 255 off; docs/export.md has the effect
SAMPLES = 64
NOISE = 16
_BATCH = 8


@dataclass(frozen=True, kw_only=True)
class Agreement:
    """How far the file's outputs are from the checkpoint's: the largest differences, None for NaN or infinite ones.

    Probabilities are of classes and labels, and `top1` counts classes; numbers are in deviations of the training part.
    """

    samples: int
    origin: str  # a description of the samples
    unreadable: int
    logits: float | None
    probabilities: float | None
    numbers: float | None
    top1: int  # samples for which both name the same class
    bound: float
    agrees: bool  # both are within the bound; two equally likely classes may still swap places

    def as_dict(self, kinds: Collection[str]) -> dict[str, Any]:
        """For JSON: without differences of a kind that no target has."""
        told = asdict(self)
        if "number" not in kinds:
            del told["numbers"]
        elif len(kinds) == 1:
            del told["probabilities"], told["top1"]
        return told


def compare(file: Path, run: Run, engine: inference.Inference, data: Path | None, form: Form = CUT) -> Agreement:
    """Compare the outputs of `run`, from `file`, and of `engine`, on the CPU in float32.

    Raises UserError and DataError.
    """
    counted = 0
    same = 0
    logits = torch.zeros(())
    probabilities = torch.zeros(())
    numbers = torch.zeros(())
    channels = engine.card.preprocessing.channels
    with _samples(engine, data, form) as (loader, origin), _recorded_logits(engine) as recorded:
        for batch, _ in engine.logits(loader):
            real = batch.weight > 0
            if form.whole:
                parts = [_run(file, run, image) for image in _whole(loader.dataset, batch.ids[real], channels)]
                actual = torch.cat([torch.empty(0, recorded[-1].shape[1]), *parts])
            else:
                actual = _run(file, run, batch.inputs)[real]
            expected = recorded.pop()[real]
            actual = engine.standardised(actual)
            counted += len(actual)
            found, wanted = _read(engine, actual), _read(engine, expected)
            same += int((found.likeliest == wanted.likeliest).all(dim=1).sum())
            logits = torch.maximum(logits, _largest(actual - expected))
            probabilities = torch.maximum(probabilities, _largest(found.probabilities - wanted.probabilities))
            numbers = torch.maximum(numbers, _largest(found.numbers - wanted.numbers))
        unreadable = loader.unreadable
    if counted == 0:
        why = next(iter(unreadable.values()))
        raise UserError(
            f"--check-data {data}: none of its {plural(len(unreadable), 'sample')} could be read ({why}); "
            "give other samples"
        )
    return Agreement(
        samples=counted,
        origin=origin,
        unreadable=len(unreadable),
        logits=_number(logits),
        probabilities=_number(probabilities),
        numbers=_number(numbers),
        top1=same,
        bound=form.bound,
        agrees=bool(probabilities <= form.bound and numbers <= form.bound),
    )


class _Outputs(NamedTuple):
    """What logits [N, outputs] say: probabilities of classes and labels, standardised numbers, likeliest classes."""

    probabilities: torch.Tensor
    numbers: torch.Tensor
    likeliest: torch.Tensor  # int64 [N, class targets]


def _read(engine: inference.Inference, logits: torch.Tensor) -> _Outputs:
    if engine.tasks is None:
        return _Outputs(logits.softmax(1), logits[:, :0], logits.argmax(1, keepdim=True))
    parts: dict[str, list[torch.Tensor]] = {"class": [], "multilabel": [], "number": []}
    for task, part in zip(engine.tasks.all, engine.tasks.parts(logits), strict=True):
        parts[task.target.kind].append(part)
    shares = [part.softmax(1) for part in parts["class"]] + [part.sigmoid() for part in parts["multilabel"]]
    likeliest = [part.argmax(1, keepdim=True) for part in parts["class"]]
    nothing = logits[:, :0]
    return _Outputs(
        torch.cat([nothing, *shares], dim=1),
        torch.cat([nothing, *parts["number"]], dim=1),
        torch.cat([nothing.long(), *likeliest], dim=1),
    )


def _run(file: Path, run: Run, batch: torch.Tensor) -> torch.Tensor:
    """Logits of a batch: of the first sample, then of the rest, as the graph was traced with neither batch size."""
    try:
        return torch.cat([run(rows) for rows in (batch[:1], batch[1:]) if len(rows)])
    except Exception as error:
        raise UserError(f"{file}: was written but cannot be run ({reason(error)}); do not use it") from error


def _whole(dataset: Dataset, ids: torch.Tensor, channels: int) -> Iterator[torch.Tensor]:
    """Upright images uint8 [1, C, H, W], each at its own size."""
    for index in ids.tolist():
        pixels = decode(dataset.read(index, Scratch()), channels=channels)
        # `copy` gives axes of length 1 the strides that torch's resize takes for granted; see `resample`.
        yield torch.from_numpy(pixels.transpose(2, 0, 1).copy())[None]


@contextlib.contextmanager
def _samples(engine: inference.Inference, data: Path | None, form: Form) -> Iterator[tuple[BatchSource, str]]:
    """A loader of up to SAMPLES samples, evenly spaced in `data`, or of noise; and a description of them."""
    with contextlib.ExitStack() as stack:
        if data is not None:
            dataset, origin = open_data(data, engine.model)
        elif form.whole or engine.card.preprocessing.is_deep:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            names = _write_noise(folder, engine.card.preprocessing)
            dataset = FilesDataset(folder, names)
            origin = "noise images of several sizes"
        elif engine.model.text is None:
            dataset = FilesDataset(Path("noise"), [str(i) for i in range(NOISE)])
            origin = "noise images"
        else:
            texts = _random_texts(engine.model.text.tokenizer.length)
            dataset = GivenTexts(texts)
            origin = "texts of random letters"
        stack.callback(dataset.close)
        indices = np.unique(np.linspace(0, len(dataset) - 1, min(SAMPLES, len(dataset))).astype(np.int64))
        settings = LoaderConfig(batch_size=min(_BATCH, len(indices)), order="sequential", workers=1)
        part = DatasetPart(dataset, indices, origin)
        if engine.model.text is not None:
            loader = array_loader(part, TextDecoder(engine.model.text.tokenizer), settings, engine.device)
        else:
            crop = center_crop(engine.card.preprocessing)
            seen = engine.card.preprocessing
            backend: Backend = "synthetic" if data is None and not form.whole and not seen.is_deep else "native"
            loader = build_loader(part, crop, settings, None, engine.device, backend, seen=seen)
        stack.callback(loader.close)
        yield loader, origin


def open_data(data: Path, model: Model) -> tuple[Dataset, str]:
    """Open a dataset as `eval` does, or files and plain folders as `predict` does. Returns it with a description.

    Raises UserError.
    """
    if not data.exists():
        raise UserError(f"--check-data {data}: no such file or folder; give a dataset, or a folder of samples")
    content: Content = "images" if model.text is None else "text"
    origin = f"{samples_of(content)} from {as_given(data)}"
    if is_plain_folder(data):
        files = [str(file) for file in find_files((data,), content)[0]]
        return FilesDataset(Path(), files, content=content), origin
    splits = filled_splits(data) or list_splits(data)
    split = next((name for name in ("val", "test", "train") if name in splits), next(iter(splits)))
    dataset = open_filled(data, split)
    if dataset.content != content:
        dataset.close()
        contains, expected = samples_of(dataset.content), samples_of(content)
        raise UserError(f"--check-data {data}: contains {contains}, but the checkpoint reads {expected}; give others")
    return dataset, f"{origin} ({split})"


def _write_noise(folder: Path, seen: Preprocessing) -> list[str]:
    """Write what the model reads, with sides from a third to three times its resize size. Returns the files' names."""
    rng = np.random.default_rng(0)
    names = []
    for i in range(NOISE):
        height, width = rng.integers(max(1, seen.val_resize // 3), 3 * seen.val_resize, 2)
        if seen.field is not None:
            names.append(f"{i}.npy")
            np.save(folder / names[-1], _noise_bands(rng, seen, height, width))
            continue
        pixels = rng.integers(0, 256, (height, width, 3), dtype=np.uint8)
        if seen.is_deep:
            pixels = rng.integers(0, 1 << 16, (height, width), dtype=np.uint16)
        names.append(f"{i}.png")
        Image.fromarray(pixels).save(folder / names[-1], compress_level=1)
    return names


def _noise_bands(rng: np.random.Generator, seen: Preprocessing, height: int, width: int) -> npt.NDArray[Any]:
    """Normal noise [C, height, width] of the mean and standard deviation that the model takes for granted."""
    mean, std = (np.array(values)[:, None, None] for values in (seen.mean, seen.std))
    values = rng.standard_normal((seen.channels, height, width)) * std + mean
    if seen.dtype != "float32":
        values = np.rint(values).clip(0, np.iinfo(seen.dtype).max)
    noise: npt.NDArray[Any] = values.astype(seen.dtype)
    return noise


def _random_texts(length: int) -> list[str]:
    """Texts of random words, from one word to more tokens than the model reads."""
    rng = np.random.default_rng(0)

    def word() -> str:
        return bytes(rng.integers(ord("a"), ord("z") + 1, rng.integers(1, 9)).tolist()).decode()

    return [" ".join(word() for _ in range(round(words))) for words in np.geomspace(1, length + 1, NOISE)]


@contextlib.contextmanager
def _recorded_logits(engine: inference.Inference) -> Iterator[list[torch.Tensor]]:
    """Within the block, the logits of `engine`, of the classes or targets that are exported."""
    recorded: list[torch.Tensor] = []
    classes = len(engine.card.classes) if engine.tasks is None else engine.tasks.outputs

    def record(module: torch.nn.Module, inputs: object, logits: torch.Tensor) -> None:
        recorded.append(logits.float()[:, :classes])

    handle = engine.model.module.register_forward_hook(record)
    try:
        yield recorded
    finally:
        handle.remove()


def _largest(difference: torch.Tensor) -> torch.Tensor:
    return difference.abs().max() if difference.numel() else torch.zeros(())


def _number(value: torch.Tensor) -> float | None:
    return float(value) if value.isfinite() else None
