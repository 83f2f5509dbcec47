"""The interface of an exported file: pixels or tokens in, logits out, and metadata.

docs/export.md explains the `preprocessing` field of the metadata.
"""

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import nn

from fastimg.loaders.crop import Interpolation
from fastimg.models.registry import Model, Preprocessing, TextSide
from fastimg.models.tokenizer import FILE as TOKENIZER
from fastimg.train.checkpoints.format import Card
from fastimg.train.tasks.regression import NumberTask
from fastimg.train.tasks.restored import several

_KERNELS: dict[Interpolation, Callable[..., torch.Tensor]] = {
    "bilinear": torch.ops.aten._upsample_bilinear2d_aa,
    "bicubic": torch.ops.aten._upsample_bicubic2d_aa,
}
_FILTERS: dict[Interpolation, str] = {"bilinear": "the triangle filter", "bicubic": "the cubic filter with a = -0.5"}
_TOKENS = 7  # length of the example texts; torch.export would take a length of 1 for a constant


LOGITS = "logits"  # the only output of a model of one class


@dataclass(frozen=True, kw_only=True)
class Subject:
    """The module to export, from the caller's inputs to logits float32 [N, classes], with its description.

    Of several targets it gives a tuple: for each, logits float32 [N, w], or its number [N, 1] in its own units, of
    `NumberTask.exported_type`.
    """

    module: nn.Module
    outputs: tuple[str, ...] = (LOGITS,)  # their names
    examples: dict[str, torch.Tensor]  # by input name, of two samples; one would be taken for a constant
    axes: dict[str, dict[int, str]]  # the names of the dynamic axes of each input
    max_sizes: dict[str, int] = field(default_factory=dict)  # of axes, by name
    feed: Callable[[torch.Tensor], tuple[torch.Tensor, ...]]  # a loader's batch -> the inputs
    metadata: dict[str, str]
    files: dict[str, bytes] = field(default_factory=dict)  # to be written next to the file
    caller: str  # a description of what is left to the caller
    inside: str  # a description of what the module does

    def inputs(self) -> list[str]:
        """Name, type and shape of each input, such as `images uint8 [batch, 3, 224, 224]`."""
        descriptions = []
        for name, example in self.examples.items():
            shape = [self.axes[name].get(axis, str(size)) for axis, size in enumerate(example.shape)]
            descriptions.append(f"{name} {str(example.dtype).removeprefix('torch.')} [{', '.join(shape)}]")
        return descriptions


class OwnOutputs(nn.Module):
    """A model's logits -> what is exported of them: those of the checkpoint's classes, or of each of its targets."""

    def __init__(self, card: Card) -> None:
        super().__init__()
        self.classes = len(card.classes)
        self.tasks = several(card.targets)
        for place, task in enumerate(self.tasks.all if self.tasks is not None else ()):
            if isinstance(task, NumberTask):  # tensors: the ONNX exporter writes a Python float as float32
                self.register_buffer(f"std{place}", torch.tensor(task.std, dtype=task.exported_type))
                self.register_buffer(f"mean{place}", torch.tensor(task.mean, dtype=task.exported_type))

    def forward(self, logits: torch.Tensor) -> torch.Tensor | tuple[torch.Tensor, ...]:
        """See `Subject`."""
        logits = logits.float()
        if self.tasks is None:
            return logits[:, : self.classes]
        parts = [logits[:, part] for part in self.tasks.slices]
        return tuple(
            part.to(task.exported_type) * getattr(self, f"std{place}") + getattr(self, f"mean{place}")
            if isinstance(task, NumberTask)
            else part
            for place, (task, part) in enumerate(zip(self.tasks.all, parts, strict=True))
        )


def _names(card: Card, inputs: Iterable[str]) -> tuple[str, ...]:
    """The names of the outputs: the targets', which no input has."""
    tasks = several(card.targets)
    if tasks is None:
        return (LOGITS,)
    taken = set(inputs)
    return tuple(f"{name}_output" if name in taken else name for name in (task.target.name for task in tasks.all))


class Pixels(nn.Module):
    """Images [N, C, H, W] -> logits float32 [N, classes]: normalisation, the model, the checkpoint's outputs.

    The images are uint8; of 16 bits uint16, and bands of their own type.
    """

    mean: torch.Tensor
    std: torch.Tensor

    def __init__(self, model: nn.Module, card: Card) -> None:
        super().__init__()
        self.model = model
        self.own = OwnOutputs(card)
        for name, values in (("mean", card.preprocessing.mean), ("std", card.preprocessing.std)):
            levels = torch.tensor(values, dtype=torch.float64) * _white(card.preprocessing)
            self.register_buffer(name, levels.float().view(1, -1, 1, 1))

    def forward(self, images: torch.Tensor) -> torch.Tensor | tuple[torch.Tensor, ...]:
        """See the class."""
        outputs: torch.Tensor | tuple[torch.Tensor, ...] = self.own(self.model((images.float() - self.mean) / self.std))
        return outputs


def _white(p: Preprocessing) -> int:
    """The level of white, which mean and std are shares of; 1 for bands, whose units they have."""
    return 1 if p.field is not None else 65535 if p.dtype == "uint16" else 255


class AnySize(nn.Module):
    """uint8 images [N, C, H, W] of any size -> logits float32 [N, classes]: `predict`'s resize and crop, then `Pixels`.

    Sides are integers in the graph: `resize * long // short` truncates the long side, and the crop starts at half of
    the remainder, rounded to even. On a CPU the resize gives torchvision's bits; on other hardware or in another
    library it is the resize of that library.
    """

    def __init__(self, pixels: nn.Module, card: Card) -> None:
        super().__init__()
        self.pixels = pixels
        p = card.preprocessing
        self.resize = p.val_resize
        self.crop = p.val_size
        self.kernel = _KERNELS[p.interpolation]

    def forward(self, images: torch.Tensor) -> torch.Tensor | tuple[torch.Tensor, ...]:
        """See the class."""
        height, width = images.shape[2], images.shape[3]
        short = torch.sym_min(height, width)
        tall, wide = self.resize * height // short, self.resize * width // short
        resized = self.kernel(images, [tall, wide], False, None, None)
        rows, columns = self._kept(tall, images.device), self._kept(wide, images.device)
        cut = resized.index_select(2, rows).index_select(3, columns)
        outputs: torch.Tensor | tuple[torch.Tensor, ...] = self.pixels(cut)
        return outputs

    def _kept(self, side: int | torch.SymInt, device: torch.device) -> torch.Tensor:
        """int64 [crop]: the rows or columns in the centre. (Slices would add guards on their bounds to the graph.)"""
        left = side - self.crop
        half = left // 2
        return torch.arange(self.crop, device=device) + (half + left % 2 * (half % 2))


class Tokens(nn.Module):
    """int64 ids and mask [N, L], with a mask of 1 for tokens and 0 for padding -> logits float32 [N, classes]."""

    def __init__(self, model: nn.Module, card: Card) -> None:
        super().__init__()
        self.model = model
        self.own = OwnOutputs(card)

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor | tuple[torch.Tensor, ...]:
        """See the class. Where the mask is 0, ids may be any in the vocabulary."""
        outputs: torch.Tensor | tuple[torch.Tensor, ...] = self.own(
            self.model.read(input_ids, attention_mask)  # type: ignore[operator]
        )
        return outputs


def of(model: Model, card: Card, any_size: bool = False) -> Subject:
    """The interface of a checkpoint's model.

    With `any_size` (`--with-preprocessing`), the module resizes and crops images itself; text models have no such form.
    """
    if model.text is not None:
        assert not any_size
        return _texts(model, card, model.text)
    return _any_size(model, card) if any_size else _images(model, card)


def _images(model: Model, card: Card) -> Subject:
    p = card.preprocessing
    return Subject(
        module=Pixels(model.module, card).eval(),
        outputs=_names(card, ("images",)),
        examples={"images": p.blank(2, p.val_size, torch.device("cpu")).contiguous()},
        axes={"images": {0: "batch"}},
        feed=lambda images: (images,),
        metadata=_metadata(card, _steps(p, "by the caller")),
        caller=f"resize to {p.val_resize} ({p.interpolation}, antialiased), centre crop to {p.val_size}",
        inside=_normalisation(p),
    )


def _any_size(model: Model, card: Card) -> Subject:
    p = card.preprocessing
    return Subject(
        module=AnySize(Pixels(model.module, card), card).eval(),
        outputs=_names(card, ("images",)),
        examples={"images": torch.zeros(2, p.channels, p.val_resize + 3, p.val_resize + 11, dtype=torch.uint8)},
        axes={"images": {0: "batch", 2: "height", 3: "width"}},
        feed=lambda images: (images,),
        metadata=_metadata(card, _steps(p, "inside")),
        caller=f"decode to upright {_colours(p)}",
        inside=f"resize to {p.val_resize} ({p.interpolation}, antialiased), centre crop to {p.val_size}, "
        + _normalisation(p),
    )


def _normalisation(p: Preprocessing) -> str:
    mean, std = (" ".join(f"{value:g}" for value in values) for values in (p.mean, p.std))
    return f"normalisation (mean {mean}, std {std})"


_DIFFERENCE = "at most 2 of 255, resized by ONNX Runtime, or by Pillow across first and then down"


def _colours(p: Preprocessing) -> str:
    return "gray" if p.channels == 1 else "RGB"


def _decoding(p: Preprocessing) -> str:
    if p.field is not None:
        return f"an array of {p.channels} bands of {p.dtype} ({p.field}), as it is stored"
    others = (
        "the luma of a JPEG, as libjpeg's grayscale output; other colours by BT.601, as Pillow's convert('L')"
        if p.channels == 1
        else "gray repeated"
    )
    levels = "levels of 8 bits times 257" if p.is_deep else "of 16 bits the high byte"
    return (
        f"EXIF orientation applied; {_colours(p)} of {p.depth} bits: {others}, palettes looked up, alpha dropped, CMYK "
        f"by Pillow, {levels}; the first frame"
    )


def _rounding(p: Preprocessing) -> str:
    if not p.is_deep:
        return "across first, then down, rounded to uint8 after each pass, as torchvision's resize of uint8 tensors"
    return f"in float32, as torchvision's resize of floats{'' if p.dtype == 'float32' else ', rounded at the end'}"


def _steps(p: Preprocessing, where: Literal["inside", "by the caller"]) -> dict[str, object]:
    """What `predict` does to an image, with all roundings. `where` says who resizes and crops it."""
    return {
        "decode": _decoding(p),
        "resize_and_crop": where,
        "resize": p.val_resize,
        "resize_rule": "shorter side to `resize`, longer side to int(resize * longer / shorter), truncated; small "
        "images are enlarged",
        "interpolation": p.interpolation,
        "antialias": True,
        "resize_filter": f"{_FILTERS[p.interpolation]}, widened by the scale where the image is made smaller, over "
        f"pixel centres; {_rounding(p)}",
        **({} if p.is_deep else {"resize_difference": _DIFFERENCE}),
        "crop": p.val_size,
        "crop_rule": "top = round((height - crop) / 2), left = round((width - crop) / 2), halves to even",
        "padding": "none: the resized image is never smaller than the crop",
        "normalisation": "inside",
        "mean": p.mean,
        "std": p.std,
    }


def _texts(model: Model, card: Card, text: TextSide) -> Subject:
    length = text.tokenizer.length
    pad = int(text.settings["pad"])
    size = min(_TOKENS, length)
    mask = torch.ones(2, size, dtype=torch.int64)
    mask[1, -1] = 0
    axes = {0: "batch", 1: "length"}

    def feed(tokens: torch.Tensor) -> tuple[torch.Tensor, ...]:
        real = tokens >= 0
        return tokens.masked_fill(~real, pad).long(), real.long()

    return Subject(
        module=Tokens(model.module, card).eval(),
        outputs=_names(card, ("input_ids", "attention_mask")),
        examples={"input_ids": torch.full((2, size), pad), "attention_mask": mask},
        axes={"input_ids": axes, "attention_mask": axes},
        max_sizes={"length": length},
        feed=feed,
        metadata=_metadata(card, {"tokenizer": TOKENIZER, "length": length, "pad": pad}),
        files=text.tokenizer.files(),
        caller=f"tokenise with {TOKENIZER}, to at most {length} including special tokens; the mask is 0 for padding",
        inside=f"{text.settings['pooling']} pooling",
    )


def _metadata(card: Card, preprocessing: dict[str, object]) -> dict[str, str]:
    """JSON by name: `fastimg`, the checkpoint's card, and the parts of it that callers in other programs need."""
    targets = {} if several(card.targets) is None else {"targets": json.dumps(card.targets)}
    return {
        "fastimg": card.to_json(),
        "classes": json.dumps(card.classes),
        **targets,
        "preprocessing": json.dumps(preprocessing),
    }
