"""A frozen encoder runs once: what reaches the classifier is kept for every sample, and training reads that.

The embedding of a sample is the input of the model's classifier. It is captured from whole forward passes in evaluation
mode, so the model is never taken apart: what is saved is the model that was loaded, with its new classifier.
"""

import hashlib
import math
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from fastimg.convert.journal import CACHE
from fastimg.errors import UserError
from fastimg.loaders import BatchSource
from fastimg.loaders.runtime.cache import cache_folder
from fastimg.models.registry import Model, train_mode
from fastimg.wording import plural

from .store import Made

FORMAT = 1  # of what a cache holds; another number, and everything is made again


class Head(nn.Module):
    """The classifier of a model, under the names that it has there: its parameters are the model's own."""

    def __init__(self, module: nn.Module, name: str) -> None:
        super().__init__()
        holder: nn.Module = self
        *path, last = name.split(".")
        for part in path:
            holder.add_module(part, nn.Module())
            holder = getattr(holder, part)
        holder.add_module(last, module.get_submodule(name))
        self._name = name

    def forward(self, embeddings: torch.Tensor) -> torch.Tensor:
        """Embeddings [B, ...] -> logits [B, classes]."""
        logits: torch.Tensor = self.get_submodule(self._name)(embeddings)
        return logits


@contextmanager
def captured(model: Model) -> Iterator[list[torch.Tensor]]:
    """Within, every call of the model adds what its classifier is given to the list."""
    found: list[torch.Tensor] = []
    handle = model.module.get_submodule(model.classifier[0]).register_forward_pre_hook(
        lambda _, inputs: found.append(inputs[0].detach())
    )
    try:
        yield found
    finally:
        handle.remove()


def why_not(model: Model, example: torch.Tensor, trains: bool = True) -> str:
    """Why the embeddings of a model cannot stand for its backbone, empty where they can, by an `example` [1, ...].

    What the classifier answers must be the model's answer; and where it trains on them, nothing before it may draw.
    """
    if len(model.classifier) != 1:
        return f"{model.arch} has {plural(len(model.classifier), 'classifier')}"
    module, head = model.module, model.module.get_submodule(model.classifier[0])
    was_training, answers = module.training, list[torch.Tensor]()

    def answer(_: nn.Module, __: Any, logits: torch.Tensor) -> torch.Tensor:
        """Other logits than the classifier's own, which may be zeros, that the model shall give as they are."""
        answers.append(torch.rand_like(logits) + 1)
        return answers[-1]

    handle = head.register_forward_hook(answer)
    devices = [] if example.device.type == "cpu" else [example.device]
    try:
        with torch.inference_mode(), torch.random.fork_rng(devices=devices), captured(model) as found:
            torch.manual_seed(0)
            if example.is_floating_point():  # what is blank may be zeros in every layer
                example = torch.rand_like(example)
            module.eval()
            logits = module(example)
            if len(found) != 1 or not torch.equal(logits, answers[0]):
                return f"{model.arch} does more after its classifier"
            if not trains:
                return ""
            train_mode(module)
            head.eval()
            for seed in range(2):
                torch.manual_seed(seed)
                module(example)
            if not torch.equal(found[1], found[2]):
                return f"{model.arch} has dropout before its classifier"
    finally:
        handle.remove()
        module.train(was_training)
    return ""


def backbone_digest(model: Model) -> str:
    """sha256 of all tensors, buffers included, that the classifier does not have, and of what they are called."""
    digest = hashlib.sha256()
    head = f"{model.classifier[0]}."
    for name, tensor in sorted(model.module.state_dict().items()):
        if not name.startswith(head):
            content = tensor.detach().cpu().contiguous()
            digest.update(f"{name} {content.dtype} {tuple(content.shape)}\n".encode())
            digest.update(content.reshape(-1).view(torch.uint8).numpy())
    return digest.hexdigest()


@dataclass(frozen=True)
class Encoder:
    """Runs a model over batches. `feed` makes its input of a batch; `dtype` is what embeddings are kept in."""

    model: Model
    autocast: Callable[[], Any]
    feed: Callable[[Any], torch.Tensor]
    dtype: npt.DTypeLike

    def rows(self, loader: BatchSource, samples: int, tick: Callable[[int], object]) -> Iterator[Made]:
        """What becomes of each of the samples of one epoch, in its order: its embedding, or why there is none."""
        module, left = self.model.module, samples
        was_training = module.training
        module.eval()
        try:
            for batch in loader:
                with torch.inference_mode(), captured(self.model) as found, self.autocast():
                    module(self.feed(batch))
                with np.errstate(over="ignore"):  # told of below
                    arrays = found[0].float().cpu().numpy().astype(self.dtype)
                counted = batch.weight.tolist()
                real = min(len(counted), left)  # what is left of the last batch is padding
                left -= real
                for row, index in enumerate(batch.ids.tolist()[:real]):
                    if counted[row] == 0:
                        yield loader.unreadable.get(index, "it cannot be read")
                        continue
                    if not np.isfinite(arrays[row]).all():
                        raise UserError(
                            f"{loader.dataset.sample_name(index)}: its embedding has numbers that {arrays.dtype.name} "
                            "cannot hold; use --cache-dtype fp32, or --cache-embeddings off"
                        )
                    yield arrays[row]
                tick(real)
        finally:
            module.train(was_training)


def shape_of(model: Model, example: torch.Tensor) -> tuple[int, ...]:
    """The shape of an embedding."""
    was_training = model.module.training
    model.module.eval()
    try:
        with torch.inference_mode(), captured(model) as found:
            model.module(example)
    finally:
        model.module.train(was_training)
    return tuple(found[0].shape[1:])


def cache_root(data: Path, given: Path | None) -> Path:
    """Where what is derived from a dataset is kept: as told, beside shards of ours, else in the user's cache."""
    if given is not None:
        return given
    if (data / "dataset.json").exists() and os.access(data, os.W_OK):
        return data / CACHE
    key = hashlib.sha256(os.fsencode(data.resolve())).hexdigest()[:16]
    return cache_folder() / key


def size_of(samples: int, shape: tuple[int, ...], dtype: npt.DTypeLike) -> int:
    """Bytes that the embeddings take on disk, tars' padding included."""
    data = math.prod(shape) * np.dtype(dtype).itemsize + 128
    return samples * (512 + -(-data // 512) * 512)
