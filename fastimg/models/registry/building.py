"""A model by its name, on the CPU: its module, its classifier, and its weights."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from fastimg.config.training import HF_PREFIX
from fastimg.errors import UsageError
from fastimg.models.blurpool import blur_strides
from fastimg.models.heads import HIDDEN, HeadInit, HeadKind, init_head, replace_head

from .fitting import with_weights
from .model import Model, TextSide
from .other_models import OWN_PREFIX, own_model, text_model, torchvision_model
from .timm_models import timm_model
from .weights import stated_preprocessing


def build(
    arch: str,
    num_classes: int,
    *,
    pretrained: bool = False,
    weights: Path | None = None,
    kwargs: Mapping[str, Any] | None = None,
    img_size: int | None = None,
    size_flag: str = "--img-size",
    classes: tuple[str, ...] | None = None,
    head_init: HeadInit = "zeros",
    blurpool: bool = False,
    head: HeadKind = "linear",
    head_hidden: int = 0,
    max_length: int | None = None,
    text: TextSide | None = None,
) -> Model:
    """Create a model on the CPU.

    If `weights` belong to a model of another size of images, or with other `classes`, they are made to fit: see
    `Model.fitted`. `hf:` models come with their
    weights, unless `text` describes the encoder of a checkpoint.

    Raises UsageError for an unknown name or argument, and UserError if weights cannot be read or do not fit.
    """
    kwargs = dict(kwargs or {})
    _check_channels(arch, kwargs)
    if arch.startswith(HF_PREFIX):
        model = text_model(arch, num_classes, kwargs, head_init, max_length, text)
    elif arch.startswith(OWN_PREFIX):
        model = own_model(arch, num_classes, pretrained, kwargs)
    elif arch.startswith("torchvision/"):
        model = torchvision_model(arch, num_classes, pretrained, kwargs, head_init)
    else:
        model = timm_model(arch, num_classes, pretrained, kwargs, img_size, head_init, size_flag)
    if blurpool:
        if blur_strides(model.module) == 0:
            raise UsageError(
                f"--blurpool: {arch} has no max pooling and no strided convolution of 16 channels; leave it out"
            )
        model = replace(model, blurpool=True)
    if head == "mlp":
        hidden = head_hidden or HIDDEN
        replace_head(model.module, model.classifier, hidden, arch)
        if pretrained or model.text is not None:
            init_head(model.module, model.classifier, head_init)
            model = replace(model, new_head=head_init)
        model = replace(model, head="mlp", head_hidden=hidden)
    if weights is not None:
        model, metadata = with_weights(model, weights, classes, head_init)
        stated = stated_preprocessing(model.preprocessing, metadata, weights).of(model.preprocessing.channels)
        model = replace(model, preprocessing=stated)
    return model


def _check_channels(arch: str, kwargs: Mapping[str, Any]) -> None:
    """Raises UsageError for a model that is not timm's and should read other images than RGB."""
    if kwargs.get("in_chans", 3) != 3 and (arch.startswith((HF_PREFIX, OWN_PREFIX, "torchvision/"))):
        raise UsageError(f"--in-chans {kwargs['in_chans']}: {arch} reads only RGB images; choose one of timm's models")
