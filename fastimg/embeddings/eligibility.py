"""Whether a run trains on cached embeddings: what was asked for, and what can be."""

import torch

from fastimg.config import augmentation, intent
from fastimg.config.commands import Train
from fastimg.data.datasets import chosen_backend
from fastimg.errors import UsageError
from fastimg.loaders.decoders.arrays import MULTIPLE
from fastimg.models.registry import Model, Preprocessing

from .encoder import shape_of, why_not

OFF = "off"


def choose(config: Train, model: Model, preprocessing: Preprocessing) -> tuple[str | None, str]:
    """What --cache-embeddings becomes: a number of views or off, None where the encoder is not frozen; and why off.

    Raises UsageError where embeddings were asked for that cannot stand for the encoder.
    """
    if not intent.head_alone(config):
        return None, ""
    asked = config.cache_embeddings
    if asked == OFF:
        return OFF, "asked for"
    reason = _reason(config, model, preprocessing)
    if reason and asked is not None:
        raise UsageError(f"--cache-embeddings {asked}: {reason}; leave it out")
    if reason:
        return OFF, reason
    if asked is None and not intent.plain(config):
        return OFF, "augmentation was asked for; --cache-embeddings K keeps K augmented views of each image"
    return asked or "1", ""


def shape(model: Model, preprocessing: Preprocessing) -> tuple[int, ...]:
    """The shape of an embedding."""
    return shape_of(model, _example(model, preprocessing))


def _example(model: Model, preprocessing: Preprocessing) -> torch.Tensor:
    device = next(model.module.parameters()).device
    return model.example(MULTIPLE if model.text else preprocessing.val_size).to(device)


def _reason(config: Train, model: Model, preprocessing: Preprocessing) -> str:
    """Why there can be no cached embeddings, empty where there can."""
    if config.strategy == "fsdp":
        return "a classifier alone is nothing to share with --strategy fsdp"
    if chosen_backend(config.loader) == "synthetic":
        return "the pixels of --loader synthetic are nobody's"
    happens = augmentation.effective(config, intent.plain(config))
    if happens["mixup"] or happens["cutmix"]:
        return "mixed images have no embeddings of their own"
    if config.kornia or _names_kornia(config):
        return "what Kornia draws belongs to a batch"
    if config.progressive is not None:
        return "--progressive changes the images from epoch to epoch"
    if config.tta:
        return "--tta answers to mirror images too, of which no embeddings are kept"
    return why_not(model, _example(model, preprocessing))


def _names_kornia(config: Train) -> bool:
    if not isinstance(config.augmentation, list):
        return False
    return bool(augmentation.listed(config.augmentation).kornia)
