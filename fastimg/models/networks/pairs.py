"""Images and texts together: an image trunk and a text encoder side by side, a combiner, and one classifier.

The parameters are named `image.*`, `text.*`, `combiner.*` and `classifier.*`. Where a sample lacks an input, the
combiner takes a learned vector in place of that input's features.
"""

from dataclasses import replace
from typing import Literal

import torch
from torch import nn

from fastimg.errors import UsageError
from fastimg.models.heads import HIDDEN, HeadInit, HeadKind, init_head, replace_head
from fastimg.models.registry import Model, Pair

Combination = Literal["concat", "gated"]

WIDTH = 512  # features of the gated combiner


class Features(nn.Module):
    """The features of both inputs, each layer-normed, or the learned vector of an input that is missing."""

    def __init__(self, image: int, text: int) -> None:
        super().__init__()
        self.image_norm = nn.LayerNorm(image)
        self.text_norm = nn.LayerNorm(text)
        self.no_image = nn.Parameter(torch.zeros(image))
        self.no_text = nn.Parameter(torch.zeros(text))

    def both(self, image: torch.Tensor, text: torch.Tensor, present: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Features [B, I] and [B, T]; `present` bool [B, 2]: whether a sample has an image, and a text."""
        seen = torch.where(present[:, :1], self.image_norm(image), self.no_image)
        read = torch.where(present[:, 1:], self.text_norm(text), self.no_text)
        return seen, read


class Concatenation(Features):
    """Features side by side: [B, I], [B, T] -> [B, I + T]."""

    def __init__(self, image: int, text: int) -> None:
        super().__init__(image, text)
        self.width = image + text

    def forward(self, image: torch.Tensor, text: torch.Tensor, present: torch.Tensor) -> torch.Tensor:
        """See the class."""
        return torch.cat(self.both(image, text, present), dim=1)


class GatedUnit(Features):
    """A gate for each feature chooses between image and text: [B, I], [B, T] -> [B, WIDTH].

    z * tanh(A i) + (1 - z) * tanh(B t), where z = sigmoid(C [i, t]): the gated multimodal unit of Arevalo, Solorio,
    Montes-y-Gomez and Gonzalez (2017), on layer-normed features.
    """

    def __init__(self, image: int, text: int) -> None:
        super().__init__(image, text)
        self.width = WIDTH
        self.from_image = nn.Linear(image, WIDTH)
        self.from_text = nn.Linear(text, WIDTH)
        self.gate = nn.Linear(image + text, WIDTH)

    def forward(self, image: torch.Tensor, text: torch.Tensor, present: torch.Tensor) -> torch.Tensor:
        """See the class."""
        seen, read = self.both(image, text, present)
        gate = torch.sigmoid(self.gate(torch.cat([seen, read], dim=1)))
        return gate * torch.tanh(self.from_image(seen)) + (1 - gate) * torch.tanh(self.from_text(read))


COMBINERS: dict[Combination, type[Concatenation] | type[GatedUnit]] = {"concat": Concatenation, "gated": GatedUnit}


class PairClassifier(nn.Module):
    """Images [B, 3, H, W] and tokens [B, L], and which are there, bool [B, 2] -> logits [B, classes].

    Instead of either, the encoder's features may be given: [B, I] or [B, T], as kept by a frozen one.
    """

    def __init__(self, image: nn.Module, text: nn.Module, combiner: Concatenation | GatedUnit, classes: int) -> None:
        super().__init__()
        self.image = image
        self.text = text
        self.combiner = combiner
        self.classifier = nn.Linear(combiner.width, classes)

    def forward(self, images: torch.Tensor, texts: torch.Tensor, present: torch.Tensor) -> torch.Tensor:
        """See the class."""
        seen = self.image(images) if images.ndim == 4 else images
        read = texts if texts.is_floating_point() else self.text(texts)
        logits: torch.Tensor = self.classifier(self.combiner(seen, read, present))
        return logits


def build_pair(
    image: Model,
    text: Model,
    num_classes: int,
    combiner: Combination,
    *,
    head: HeadKind = "linear",
    head_hidden: int = 0,
    head_init: HeadInit = "zeros",
) -> Model:
    """A model of both encoders, without their own classifiers. Raises UsageError for an image model that has none.

    Its combiner starts from drawn weights, its classifier as `head_init` says.
    """
    width = _take_classifier(image, "--arch")
    text_width = _take_classifier(text, "--text-arch")
    module = PairClassifier(image.module, text.module, COMBINERS[combiner](width, text_width), num_classes)
    if head == "mlp":
        replace_head(module, ("classifier",), head_hidden or HIDDEN, "the pair")
    init_head(module, "classifier", head_init)
    return replace(
        image,
        module=module,
        classifier=("classifier",),
        pair=Pair(image=image, text=text, combiner=combiner, text_width=text_width),
        head=head,
        head_hidden=(head_hidden or HIDDEN) if head == "mlp" else 0,
        new_head=head_init,
    )


def _take_classifier(model: Model, flag: str) -> int:
    """Replace a linear classifier by the identity. Returns the number of features."""
    names = model.classifier
    layer = model.module.get_submodule(names[0]) if len(names) == 1 else None
    if not isinstance(layer, nn.Linear):
        raise UsageError(f"{flag} {model.arch}: its classifier is not one linear layer; choose another model")
    holder, _, name = names[0].rpartition(".")
    setattr(model.module.get_submodule(holder), name, nn.Identity())
    return layer.in_features
