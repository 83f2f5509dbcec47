"""What an exported file takes, answers and says of itself: pixels or tokens in, logits out."""

import json
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import nn

from .checkpoint import Card
from .models import Model, TextSide
from .tokenizer import FILE as TOKENIZER

_TOKENS = 7  # of an example's texts: one would be taken for a constant


@dataclass(frozen=True, kw_only=True)
class Subject:
    """A module that takes what callers have and answers with logits float32 [N, classes], and what is told of it."""

    module: nn.Module
    examples: dict[str, torch.Tensor]  # by the name of the input, of two samples: one would be taken for a constant
    axes: dict[str, dict[int, str]]  # of each input, those of any size, and what they are called
    most: dict[str, int] = field(default_factory=dict)  # the largest size of an axis, by what it is called
    feed: Callable[[torch.Tensor], tuple[torch.Tensor, ...]]  # a loader's batch -> the inputs
    metadata: dict[str, str]
    files: dict[str, bytes] = field(default_factory=dict)  # what stands beside the file
    caller: str  # what is the caller's to do, in words
    inside: str  # what the module does itself, in words

    def inputs(self) -> list[str]:
        """Name, type and shape of each input, in words: `images uint8 [batch, 3, 224, 224]`."""
        told = []
        for name, example in self.examples.items():
            shape = [self.axes[name].get(axis, str(size)) for axis, size in enumerate(example.shape)]
            told.append(f"{name} {str(example.dtype).removeprefix('torch.')} [{', '.join(shape)}]")
        return told


class Pixels(nn.Module):
    """uint8 images [N, 3, H, W] -> logits float32 [N, classes]: normalisation, the model, the checkpoint's classes."""

    mean: torch.Tensor
    std: torch.Tensor

    def __init__(self, model: nn.Module, card: Card) -> None:
        super().__init__()
        self.model = model
        self.classes = len(card.classes)
        for name, values in (("mean", card.preprocessing.mean), ("std", card.preprocessing.std)):
            levels = torch.tensor(values, dtype=torch.float64) * 255
            self.register_buffer(name, levels.float().view(1, 3, 1, 1))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """See the class."""
        logits: torch.Tensor = self.model((images.float() - self.mean) / self.std)
        return logits.float()[:, : self.classes]


class Tokens(nn.Module):
    """int64 ids and mask [N, L], a mask of 1 for tokens and 0 for padding -> logits float32 [N, classes]."""

    def __init__(self, model: nn.Module, classes: int) -> None:
        super().__init__()
        self.model = model
        self.classes = classes

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        """See the class. Ids under a mask of 0 may be anything that the vocabulary holds."""
        logits: torch.Tensor = self.model.read(input_ids, attention_mask)  # type: ignore[operator]
        return logits.float()[:, : self.classes]


def of(model: Model, card: Card) -> Subject:
    """What a checkpoint's model takes, and what its file says of itself."""
    return _images(model, card) if model.text is None else _texts(model, card, model.text)


def _images(model: Model, card: Card) -> Subject:
    p = card.preprocessing
    steps = {"resize": p.val_resize, "crop": p.val_size, "interpolation": p.interpolation, "antialias": True}
    mean, std = (" ".join(f"{value:g}" for value in values) for values in (p.mean, p.std))
    return Subject(
        module=Pixels(model.module, card).eval(),
        examples={"images": torch.zeros(2, 3, p.val_size, p.val_size, dtype=torch.uint8)},
        axes={"images": {0: "batch"}},
        feed=lambda images: (images,),
        metadata=_metadata(card, {**steps, "normalisation": "inside", "mean": p.mean, "std": p.std}),
        caller=f"resized to {p.val_resize} ({p.interpolation}, antialiased), cut to the centre {p.val_size}",
        inside=f"normalisation (mean {mean}, std {std})",
    )


def _texts(model: Model, card: Card, text: TextSide) -> Subject:
    length, pad = text.tokenizer.length, int(text.settings["pad"])
    size = min(_TOKENS, length)
    mask = torch.ones(2, size, dtype=torch.int64)
    mask[1, -1] = 0
    axes = {0: "batch", 1: "length"}

    def feed(tokens: torch.Tensor) -> tuple[torch.Tensor, ...]:
        real = tokens >= 0
        return tokens.masked_fill(~real, pad).long(), real.long()

    return Subject(
        module=Tokens(model.module, len(card.classes)).eval(),
        examples={"input_ids": torch.full((2, size), pad), "attention_mask": mask},
        axes={"input_ids": axes, "attention_mask": axes},
        most={"length": length},
        feed=feed,
        metadata=_metadata(card, {"tokenizer": TOKENIZER, "length": length, "pad": pad}),
        files=text.tokenizer.files(),
        caller=f"tokens of {TOKENIZER}, at most {length}, special ones included; the mask is 0 for padding",
        inside=f"{text.settings['pooling']} pooling",
    )


def _metadata(card: Card, preprocessing: dict[str, object]) -> dict[str, str]:
    """JSON by name: `fastimg`, the whole card as in a checkpoint, and of it, for other programs, what callers need."""
    return {
        "fastimg": card.to_json(),
        "classes": json.dumps(card.classes),
        "preprocessing": json.dumps(preprocessing),
    }
