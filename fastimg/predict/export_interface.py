"""What an exported file takes, answers and says of itself: pixels or tokens in, logits out.

What stands under `preprocessing` in its metadata is explained in docs/export.md.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import nn

from fastimg.loaders.crop import Interpolation
from fastimg.models.registry import Model, Preprocessing, TextSide
from fastimg.models.tokenizer import FILE as TOKENIZER
from fastimg.train.checkpoints.format import Card

_KERNELS: dict[Interpolation, Callable[..., torch.Tensor]] = {
    "bilinear": torch.ops.aten._upsample_bilinear2d_aa,
    "bicubic": torch.ops.aten._upsample_bicubic2d_aa,
}
_FILTERS: dict[Interpolation, str] = {"bilinear": "the triangle filter", "bicubic": "the cubic filter with a = -0.5"}
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


class AnySize(nn.Module):
    """uint8 images [N, 3, H, W] of any size -> logits float32 [N, classes]: `predict`'s resize and crop, then `Pixels`.

    Sides are whole numbers in the graph: `resize * long // short` is the long side truncated, and the crop's place is
    half of what is left over, halves to even. On the CPU the resize has torchvision's bits. Where the file is run on
    other hardware or by another library, it is that one's resize.
    """

    def __init__(self, pixels: nn.Module, card: Card) -> None:
        super().__init__()
        self.pixels = pixels
        p = card.preprocessing
        self.resize, self.crop = p.val_resize, p.val_size
        self.kernel = _KERNELS[p.interpolation]

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """See the class."""
        height, width = images.shape[2], images.shape[3]
        short = torch.sym_min(height, width)
        tall, wide = self.resize * height // short, self.resize * width // short
        resized = self.kernel(images, [tall, wide], False, None, None)
        rows, columns = self._kept(tall, images.device), self._kept(wide, images.device)
        logits: torch.Tensor = self.pixels(resized.index_select(2, rows).index_select(3, columns))
        return logits

    def _kept(self, side: int | torch.SymInt, device: torch.device) -> torch.Tensor:
        """int64 [crop]: the rows or columns in the centre. Slices would ask whether they end inside."""
        left = side - self.crop
        half = left // 2
        return torch.arange(self.crop, device=device) + (half + left % 2 * (half % 2))


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


def of(model: Model, card: Card, any_size: bool = False) -> Subject:
    """What a checkpoint's model takes, and what its file says of itself.

    `any_size`: images of any size are resized and cut inside, `--with-preprocessing`. Of a text model there is no such.
    """
    if model.text is not None:
        assert not any_size
        return _texts(model, card, model.text)
    return _any_size(model, card) if any_size else _images(model, card)


def _images(model: Model, card: Card) -> Subject:
    p = card.preprocessing
    return Subject(
        module=Pixels(model.module, card).eval(),
        examples={"images": torch.zeros(2, 3, p.val_size, p.val_size, dtype=torch.uint8)},
        axes={"images": {0: "batch"}},
        feed=lambda images: (images,),
        metadata=_metadata(card, _steps(p, "by the caller")),
        caller=f"resized to {p.val_resize} ({p.interpolation}, antialiased), cut to the centre {p.val_size}",
        inside=_normalisation(p),
    )


def _any_size(model: Model, card: Card) -> Subject:
    p = card.preprocessing
    return Subject(
        module=AnySize(Pixels(model.module, card), card).eval(),
        examples={"images": torch.zeros(2, 3, p.val_resize + 3, p.val_resize + 11, dtype=torch.uint8)},
        axes={"images": {0: "batch", 2: "height", 3: "width"}},
        feed=lambda images: (images,),
        metadata=_metadata(card, _steps(p, "inside")),
        caller="decoded to upright RGB",
        inside=f"resize to {p.val_resize} ({p.interpolation}, antialiased), centre crop {p.val_size}, "
        + _normalisation(p),
    )


def _normalisation(p: Preprocessing) -> str:
    mean, std = (" ".join(f"{value:g}" for value in values) for values in (p.mean, p.std))
    return f"normalisation (mean {mean}, std {std})"


def _steps(p: Preprocessing, where: Literal["inside", "by the caller"]) -> dict[str, object]:
    """What `predict` does to an image, with every rounding. `where` is it resized and cut?"""
    return {
        "decode": "EXIF orientation applied; RGB of 8 bits: gray repeated, palettes looked up, alpha dropped, CMYK by "
        "Pillow, of 16 bits the high byte; the first frame",
        "resize_and_crop": where,
        "resize": p.val_resize,
        "resize_rule": "shorter side to `resize`, longer side to int(resize * longer / shorter), truncated; small "
        "images are enlarged",
        "interpolation": p.interpolation,
        "antialias": True,
        "resize_filter": f"{_FILTERS[p.interpolation]}, widened by the scale where the image is made smaller, over "
        "pixel centres; across first, then down, rounded to uint8 after each pass, as torchvision's resize of uint8 "
        "tensors",
        "resize_difference": "at most 2 of 255, resized by ONNX Runtime, or by Pillow across first and then down",
        "crop": p.val_size,
        "crop_rule": "top = round((height - crop) / 2), left = round((width - crop) / 2), halves to even",
        "padding": "none: the resized image is never smaller than the crop",
        "normalisation": "inside",
        "mean": p.mean,
        "std": p.std,
    }


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
