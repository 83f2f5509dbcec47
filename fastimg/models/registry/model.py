"""A model with what the trainer must know about it, and how images become its input."""

from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import nn

from fastimg.augment import Policy
from fastimg.models.heads import HeadInit, HeadKind
from fastimg.models.tokenizer import Tokenizer

PixelType = Literal["uint8", "uint16", "float32"]


@dataclass(frozen=True, kw_only=True)
class Preprocessing:
    """How images become the model's input. Sizes are in pixels.

    mean and std are for channels in 0..1; where a `field` of arrays is read in place of images, for its values.
    """

    train_size: int
    val_size: int
    val_resize: int
    interpolation: Literal["bilinear", "bicubic"]
    mean: tuple[float, ...]  # a number for each channel
    std: tuple[float, ...]
    field: str | None = None  # bands that are read in place of images
    dtype: PixelType = "uint8"  # of the levels: uint16 of images of 16 bits

    @property
    def channels(self) -> int:
        """Channels of the images: 3 for RGB, 1 for gray, others of bands."""
        return len(self.mean)

    @property
    def depth(self) -> int:
        """Bits of an image's channel, to which it is decoded."""
        return 16 if self.dtype == "uint16" and self.field is None else 8

    @property
    def is_deep(self) -> bool:
        """Whether what is read is anything but an image of 8 bits: bands, or 16 bits."""
        return self.field is not None or self.dtype != "uint8"

    @property
    def policy(self) -> Policy:
        """The policy that only normalises."""
        return Policy(mean=self.mean, std=self.std, as_stored=self.field is not None)

    def blank(self, batch: int, size: int, device: torch.device) -> torch.Tensor:
        """Blank images [batch, C, size, size] as the loader gives them: channels-last, of their type."""
        shape = (batch, size, size, self.channels)
        return torch.zeros(shape, dtype=getattr(torch, self.dtype), device=device).permute(0, 3, 1, 2)

    def of(self, channels: int) -> "Preprocessing":
        """The same for images of so many channels: where that changes, each mean is the mean of all."""
        if channels == self.channels:
            return self
        mean, std = ((sum(values) / len(values),) * channels for values in (self.mean, self.std))
        return replace(self, mean=mean, std=std)


# For models that read texts and have no pixels.
NO_PIXELS = Preprocessing(
    train_size=1, val_size=1, val_resize=1, interpolation="bilinear", mean=(0.0, 0.0, 0.0), std=(1.0, 1.0, 1.0)
)


@dataclass(frozen=True, kw_only=True)
class TextSide:
    """The part of a model that reads texts: the tokenizer, and the settings to rebuild the encoder from."""

    tokenizer: Tokenizer
    settings: dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Pair:
    """The two encoders of a model of images and texts, each without a classifier; they share the model's parameters."""

    image: "Model"
    text: "Model"
    combiner: Literal["concat", "gated"]
    text_width: int  # features of a text

    @property
    def reader(self) -> TextSide:
        """What reads the texts."""
        assert self.text.text is not None
        return self.text.text


@dataclass(frozen=True)
class Model:  # more than 12 fields: what the trainer needs to know, in one place
    """A module, with what the trainer needs to know about it."""

    module: nn.Module
    arch: str
    kwargs: dict[str, Any]
    classifier: tuple[str, ...]  # prefixes of the classifier's parameters
    preprocessing: Preprocessing  # the model's own
    convolutional: bool
    native_size: int = 0  # image size it was published for, whatever size it is built for; 0 for text models
    blurpool: bool = False
    text: TextSide | None = None  # None: it reads images
    head: HeadKind = "linear"
    head_hidden: int = 0  # units in an mlp's hidden layer
    pair: Pair | None = None  # of a model of images and texts; then the rest is about its images
    new_head: HeadInit | None = None  # how a new classifier on a trained trunk was initialised; None: not a new one
    kept_rows: int = 0  # of a new classifier, those for classes that the weights from a file know
    fitted: tuple[str, ...] = ()  # how weights from a file were made to fit, in words

    def example(self, size: int, batch: int = 1) -> torch.Tensor:
        """A blank input: images [batch, channels, size, size], or tokens [batch, size]."""
        if self.text is None:
            return torch.zeros(batch, self.preprocessing.channels, size, size)
        return torch.zeros(batch, size, dtype=torch.int32)


def head_prefixes(model: Model) -> tuple[str, ...]:
    """What the names of the classifier's parameters begin with."""
    return tuple(f"{name}." for name in model.classifier)


def is_convolutional(module: nn.Module) -> bool:
    """Whether there is more than one convolution; a transformer has one, for its patches."""
    return sum(isinstance(m, nn.Conv2d) for m in module.modules()) > 1
