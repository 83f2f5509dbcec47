"""Runs a frozen encoder once per sample: training then reads the cached inputs of the classifier.

The embedding of a sample is the input of the model's classifier. It is captured from complete forward passes in
evaluation mode, so the model is never split: a checkpoint holds the loaded model with its new classifier.
"""

import hashlib
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from fastimg.data.read_back import read_back
from fastimg.errors import UserError
from fastimg.loaders import BatchSource
from fastimg.models.freezing import train_mode
from fastimg.models.registry import Model
from fastimg.wording import plural

from .store import Made

Computed = tuple[list[int], Sequence[torch.Tensor]]  # the ids of a batch; float32 [B, ...] and weights [B]

FORMAT = 1  # of the cached arrays; a new number invalidates all caches


class Head(nn.Module):
    """The classifier of a model, under the same parameter names; the parameters are shared with the model."""

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
    """Within the block, every call of the model appends the input of its classifier to the list."""
    embeddings: list[torch.Tensor] = []
    handle = model.module.get_submodule(model.classifier[0]).register_forward_pre_hook(
        lambda _, inputs: embeddings.append(inputs[0].detach())
    )
    try:
        yield embeddings
    finally:
        handle.remove()


def why_not(model: Model, example: torch.Tensor, trains: bool = True) -> str:
    """Why embeddings cannot replace the model's backbone; empty if they can. Runs the model on an `example` [1, ...].

    The model's output must be the classifier's output. If the model `trains` on the embeddings, nothing in front of the
    classifier may be random.
    """
    if len(model.classifier) != 1:
        return f"{model.arch} has {plural(len(model.classifier), 'classifier')}"
    module = model.module
    head = module.get_submodule(model.classifier[0])
    was_training = module.training
    outputs: list[torch.Tensor] = []

    def replace_output(_: nn.Module, __: Any, logits: torch.Tensor) -> torch.Tensor:
        """Random logits, since the classifier's own may be zeros; the model should return them unchanged."""
        outputs.append(torch.rand_like(logits) + 1)
        return outputs[-1]

    handle = head.register_forward_hook(replace_output)
    devices = [] if example.device.type == "cpu" else [example.device]
    try:
        with torch.inference_mode(), torch.random.fork_rng(devices=devices), captured(model) as embeddings:
            torch.manual_seed(0)
            if example.is_floating_point():  # a blank image may give zeros in every layer
                example = torch.rand_like(example)
            module.eval()
            logits = module(example)
            if len(embeddings) != 1 or not torch.equal(logits, outputs[0]):
                return f"{model.arch} has further layers after its classifier"
            if not trains:
                return ""
            train_mode(module)
            head.eval()
            for seed in range(2):
                torch.manual_seed(seed)
                module(example)
            if not torch.equal(embeddings[1], embeddings[2]):
                return f"{model.arch} has dropout before its classifier"
    finally:
        handle.remove()
        module.train(was_training)
    return ""


def backbone_digest(model: Model) -> str:
    """The SHA-256 of all tensors outside the classifier, buffers included, and of their names."""
    return weights_digest(model.module, without=f"{model.classifier[0]}.")


def weights_digest(module: nn.Module, without: str | None = None) -> str:
    """The SHA-256 of a model's tensors, buffers included, and of their names; those that begin `without` are not."""
    digest = hashlib.sha256()
    for name, tensor in sorted(module.state_dict().items()):
        if without is None or not name.startswith(without):
            content = tensor.detach().cpu().contiguous()
            digest.update(f"{name} {content.dtype} {tuple(content.shape)}\n".encode())
            digest.update(content.reshape(-1).view(torch.uint8).numpy())
    return digest.hexdigest()


@dataclass(frozen=True)
class Encoder:
    """Runs a model over batches. `feed` turns a batch into the model's input; `dtype` is the type of embeddings."""

    model: Model
    autocast: Callable[[], Any]
    feed: Callable[[Any], torch.Tensor]
    dtype: npt.DTypeLike

    def rows(self, loader: BatchSource, samples: int, tick: Callable[[int], object]) -> Iterator[Made]:
        """For each sample of one epoch, in order, its embedding, or the reason why there is none."""
        module = self.model.module
        was_training = module.training
        module.eval()
        try:
            found = self._embeddings(loader)
            yield from rows_of(found, loader, samples, self.dtype, tick, "its embedding", "--cache-embeddings off")
        finally:
            module.train(was_training)

    def _embeddings(self, loader: BatchSource) -> Iterator[Computed]:
        """Ids, and on the device embeddings in float32 [B, ...] and weights [B]."""
        for batch in loader:
            with torch.inference_mode(), captured(self.model) as embeddings, self.autocast():
                self.model.module(self.feed(batch))
                found = embeddings[0].float()
            yield batch.ids.tolist(), (found, batch.weight)


def rows_of(
    computed: Iterable[Computed],
    loader: BatchSource,
    samples: int,
    dtype: npt.DTypeLike,
    tick: Callable[[int], object],
    what: str,
    otherwise: str,
) -> Iterator[Made]:
    """For each sample of one epoch, in order, its row of what was computed, or the reason why there is none.

    Raises UserError for a row that overflows `dtype`: `what` it is, and what to do `otherwise`.
    """
    remaining = samples
    for ids, (found, weights) in read_back(computed):
        with np.errstate(over="ignore"):  # reported below
            arrays = found.astype(dtype)
        real = min(len(weights), remaining)  # the rest of the last batch is padding
        remaining -= real
        for row, index in enumerate(ids[:real]):
            if weights[row] == 0:
                yield loader.unreadable.get(index, "it cannot be read")
                continue
            if not np.isfinite(arrays[row]).all():
                name = loader.dataset.sample_name(index)
                raise UserError(f"{name}: {what} overflows {arrays.dtype.name}; use --cache-dtype fp32, or {otherwise}")
            yield arrays[row]
        tick(real)


def shape_of(model: Model, example: torch.Tensor) -> tuple[int, ...]:
    """The shape of an embedding."""
    was_training = model.module.training
    model.module.eval()
    try:
        with torch.inference_mode(), captured(model) as embeddings:
            model.module(example)
    finally:
        model.module.train(was_training)
    return tuple(embeddings[0].shape[1:])


def size_of(samples: int, shape: tuple[int, ...], dtype: npt.DTypeLike) -> int:
    """The number of bytes that embeddings take on disk, with the padding of tars."""
    data = math.prod(shape) * np.dtype(dtype).itemsize + 128
    return samples * (512 + -(-data // 512) * 512)
