"""Models that are not timm's: ours, torchvision's, and Hugging Face's text encoders."""

import warnings
from dataclasses import replace
from typing import Any

import torchvision
from torch import nn

from fastimg.errors import UsageError, UserError, nearest, reason_of
from fastimg.models.heads import HeadInit, init_head
from fastimg.models.networks import airnet
from fastimg.models.text_encoder import TextClassifier, empty_encoder, load_encoder, width_of

from .model import NO_PIXELS, Model, Preprocessing, TextSide, is_convolutional
from .timm_models import download_message
from .weights import load_weights

OWN_PREFIX = "fastimg/"
OWN = {"fastimg/airnet": airnet.AirNet}


def own_model(arch: str, num_classes: int, pretrained: bool, kwargs: dict[str, Any]) -> Model:
    """`fastimg/NAME`. Raises UsageError."""
    if arch not in OWN:
        raise UsageError(f"--arch {arch}: fastimg has no such model of its own{nearest(arch, OWN)}")
    if pretrained:
        raise UsageError(f"--pretrained: there are no weights for {arch}; leave it out, or give --weights FILE")
    try:
        module = OWN[arch](num_classes, **kwargs)
    except (TypeError, ValueError, RuntimeError) as error:
        raise UsageError(f"--model-kwargs: {arch} does not accept them: {reason_of(error)}") from error
    size = airnet.SIZE
    preprocessing = Preprocessing(
        train_size=size, val_size=size, val_resize=size, interpolation="bilinear", mean=airnet.MEAN, std=airnet.STD
    )
    return Model(module, arch, kwargs, ("head",), preprocessing, True, size)


def torchvision_model(
    arch: str, num_classes: int, pretrained: bool, kwargs: dict[str, Any], head_init: HeadInit
) -> Model:
    """`torchvision/NAME`, with the preprocessing of its newest weights. Raises UsageError and UserError."""
    name = arch.removeprefix("torchvision/")
    names = torchvision.models.list_models(module=torchvision.models)
    if name not in names:
        raise UsageError(f"--arch {arch}: torchvision has no such classifier{nearest(name, names)}")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # about the initialisation of GoogLeNet and Inception
            module = torchvision.models.get_model(name, weights=None, num_classes=num_classes, **kwargs)
    except TypeError as error:
        raise UsageError(f"--model-kwargs: {arch} does not accept them: {error}") from error
    if getattr(module, "aux_logits", False):
        raise UsageError(f"--arch {arch}: has auxiliary heads; add --model-kwargs aux_logits=False init_weights=True")
    linears = [n for n, m in module.named_modules() if isinstance(m, nn.Linear | nn.Conv2d)]
    published = torchvision.models.get_model_weights(name).DEFAULT
    transforms = published.transforms()
    preprocessing = Preprocessing(
        train_size=transforms.crop_size[0],
        val_size=transforms.crop_size[0],
        val_resize=transforms.resize_size[0],
        interpolation="bicubic" if transforms.interpolation.value == "bicubic" else "bilinear",
        mean=tuple(transforms.mean),
        std=tuple(transforms.std),
    )
    native_size = preprocessing.val_size
    model = Model(module, arch, kwargs, (linears[-1],), preprocessing, is_convolutional(module), native_size)
    if pretrained:
        try:
            tensors = published.get_state_dict(progress=False, check_hash=True)
        except Exception as error:
            raise UserError(download_message(arch, error)) from error
        kept = load_weights(model, tensors, f"torchvision's {name}", head_init=head_init)
        model = replace(model, new_head=None if kept else head_init)
    return model


def text_model(
    arch: str,
    num_classes: int,
    kwargs: dict[str, Any],
    head_init: HeadInit,
    max_length: int | None,
    text: TextSide | None,
) -> Model:
    """`hf:NAME` with its weights, or the encoder that a checkpoint's `text` describes. Raises UserError."""
    if text is None:
        encoder, tokenizer, settings = load_encoder(arch, dict(kwargs), max_length)
        text = TextSide(tokenizer=tokenizer, settings=settings)
    else:
        encoder = empty_encoder(text.settings)
    settings = text.settings
    module = TextClassifier(encoder, width_of(encoder), num_classes, settings["pooling"], settings["pad"])
    init_head(module, "classifier", head_init)
    return Model(module, arch, kwargs, ("classifier",), NO_PIXELS, False, text=text, new_head=head_init)
