"""Whether a run can train on cached embeddings, and whether it should."""

import torch

from fastimg.config import augmentation, intent
from fastimg.config.commands import Train
from fastimg.data.datasets import chosen_backend
from fastimg.errors import UsageError
from fastimg.loaders.decoders.arrays import MULTIPLE
from fastimg.models.input_size import once
from fastimg.models.registry import Model, Preprocessing

from .encoder import shape_of, why_not

OFF = "off"


def choose(config: Train, model: Model, preprocessing: Preprocessing) -> tuple[str | None, str]:
    """The value of --cache-embeddings (a number of views, off, or None if the encoder is not frozen), and why off.

    Raises UsageError if embeddings were asked for but cannot replace the encoder.
    """
    asked = config.cache_embeddings
    if not intent.sees_frozen(config):  # embeddings of texts beside images may be cached
        return (OFF if asked == OFF else None), ""
    if asked == OFF:
        return OFF, "as requested"
    reason = _reason(config, model, preprocessing)
    if reason and asked is not None:
        raise UsageError(f"--cache-embeddings {asked}: {reason}; leave it out")
    if reason:
        return OFF, reason
    if asked is None and not intent.plain(config):
        return OFF, "augmentation is on; --cache-embeddings K caches K augmented views of each image"
    return asked or "1", ""


def shape(model: Model, preprocessing: Preprocessing) -> tuple[int, ...]:
    """The shape of an embedding."""
    return once(model, ("embedding", preprocessing), lambda: shape_of(model, _example(model, preprocessing)))


def _example(model: Model, preprocessing: Preprocessing) -> torch.Tensor:
    device = next(model.module.parameters()).device
    return model.example(MULTIPLE if model.text else preprocessing.val_size).to(device)


def _reason(config: Train, model: Model, preprocessing: Preprocessing) -> str:
    """Why embeddings cannot be cached; empty if they can."""
    if preprocessing.field is not None:
        return f"embeddings are kept by the images' content, and the model reads the field {preprocessing.field!r}"
    if config.strategy == "fsdp":
        return "--strategy fsdp has nothing to shard when only the classifier trains"
    if chosen_backend(config.loader) == "synthetic":
        return "--loader synthetic makes up its pixels"
    operations = augmentation.effective(config, intent.plain(config))
    if operations["mixup"] or operations["cutmix"]:
        return "mixed images have no embeddings of their own"
    if config.kornia or _names_kornia(config):
        return "Kornia's augmentation depends on the whole batch"
    if config.progressive is not None:
        return "--progressive changes the images from epoch to epoch"
    if config.tta:
        return "--tta also evaluates mirror images, for which no embeddings are cached"
    return once(model, ("why not", preprocessing), lambda: why_not(model, _example(model, preprocessing)))


def _names_kornia(config: Train) -> bool:
    if not isinstance(config.augmentation, list):
        return False
    return bool(augmentation.listed(config.augmentation).kornia)
