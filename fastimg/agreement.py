"""Whether an exported file answers as its checkpoint does, on the samples that `predict` or `eval` would read."""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from . import inference
from .data import Part, build_loader, center_crop, is_plain_folder
from .errors import UserError
from .graph import Run, reason
from .loaders import BatchSource, Dataset, FilesDataset, LoaderConfig, list_splits, open_dataset
from .predict import find_files

BOUND = 1e-4  # of probabilities, in float32
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


def compare(file: Path, run: Run, engine: inference.Inference, data: Path | None) -> Agreement:
    """Ask `run`, which is `file`, and `engine`, on the CPU in float32, the same. Raises UserError and DataError."""
    counted, same = 0, 0
    logits, probabilities = torch.zeros(()), torch.zeros(())
    with _samples(engine, data) as (loader, origin), _kept_logits(engine) as kept:
        for batch, shares in engine.answers(loader):
            real = batch.weight > 0
            own = _ask(file, run, batch.inputs)[real]
            theirs, expected = kept.pop()[real], torch.from_numpy(shares)[real]
            counted += len(own)
            same += int((own.argmax(1) == expected.argmax(1)).sum())
            logits = torch.maximum(logits, _largest(own - theirs))
            probabilities = torch.maximum(probabilities, _largest(own.softmax(1) - expected))
        unreadable = len(loader.unreadable)
    if counted == 0:
        raise UserError(f"--check-data {data}: none of {unreadable} images could be read; give others")
    return Agreement(
        samples=counted,
        origin=origin,
        unreadable=unreadable,
        logits=_number(logits),
        probabilities=_number(probabilities),
        top1=same,
        bound=BOUND,
        agrees=bool(probabilities <= BOUND),
    )


def _ask(file: Path, run: Run, batch: torch.Tensor) -> torch.Tensor:
    """Logits of a batch: of its first sample, and of the rest, for neither is the size that the graph was made with."""
    try:
        return torch.cat([run(rows) for rows in (batch[:1], batch[1:]) if len(rows)])
    except Exception as error:
        raise UserError(f"{file}: was written and cannot be run ({reason(error)}); do not use it") from error


@contextlib.contextmanager
def _samples(engine: inference.Inference, data: Path | None) -> Iterator[tuple[BatchSource, str]]:
    """Up to SAMPLES samples, spread over `data`, or noise; and what they are."""
    dataset: Dataset
    if data is None:
        dataset, origin = FilesDataset(Path("noise"), [str(i) for i in range(NOISE)]), "images of noise"
        loader = engine.loader(dataset, _BATCH, 1, None, None, "synthetic")
    else:
        dataset, origin = open_data(data)
        indices = np.unique(np.linspace(0, len(dataset) - 1, min(SAMPLES, len(dataset))).astype(np.int64))
        settings = LoaderConfig(batch_size=min(_BATCH, len(indices)), order="sequential", workers=1)
        part = Part(dataset, indices, origin)
        loader = build_loader(part, center_crop(engine.card.preprocessing), settings, None, engine.device)
    try:
        yield loader, origin
    finally:
        loader.close()
        dataset.close()


def open_data(data: Path) -> tuple[Dataset, str]:
    """A dataset as `eval` opens it, image files and folders as `predict` does; and what it is. Raises UserError."""
    if not data.exists():
        raise UserError(f"--check-data {data}: no such file or folder; give a dataset or a folder of images")
    if not is_plain_folder(data):
        splits = list_splits(data)
        split = next((name for name in ("val", "test", "train") if name in splits), next(iter(splits)))
        return open_dataset(data, split), f"images of {data} ({split})"
    return FilesDataset(Path(), [str(file) for file in find_files((data,))]), f"images of {data}"


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
