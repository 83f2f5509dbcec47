"""Training on images and the texts beside them: the second encoder, and the texts of every sample by its id."""

from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from fastimg.augment import Policy
from fastimg.config import intent
from fastimg.config.commands import Train
from fastimg.data.datasets import DatasetPart
from fastimg.embeddings.cache import Encoding, Keeper, array_loader
from fastimg.embeddings.text_rows import FreshTokens, KeptEmbeddings, KeptTokens, TextRows
from fastimg.loaders import BatchSource, LoaderConfig
from fastimg.loaders.captions.captions import captions_of
from fastimg.loaders.decoders.arrays import TokenDecoder
from fastimg.models.networks.pairs import Combination, build_pair
from fastimg.models.precision import Precision
from fastimg.models.registry import Model, build, load_weights, read_weights, repaired, stated_classes, with_rows
from fastimg.wording import plural

from .choices.stated_weights import Stated

_IMAGE = "image."  # how the names of the image model's tensors begin
COMBINER: Combination = "gated"  # without --combiner


def text_side(config: Train, stated: Stated) -> Model:
    """The encoder of texts: that of --text-arch, or an empty one for the weights of a pair. Raises UserError."""
    assert config.text_arch is not None
    return build(config.text_arch, 1, max_length=config.max_length, text=stated.pair)


def joined(
    config: Train, image: Model, text: Model, num_classes: int, classes: tuple[str, ...], stated: Stated
) -> Model:
    """One model of both encoders, with the weights of --weights if those are of a pair. Raises UsageError."""
    torch.manual_seed(config.seed)
    head_init = config.head_init or "zeros"
    model = build_pair(
        image,
        text,
        num_classes,
        config.combiner or COMBINER,
        head=config.head,
        head_hidden=config.head_hidden or 0,
        head_init=head_init,
    )
    if stated.pair is None:
        return model
    assert config.weights is not None
    tensors, metadata = read_weights(config.weights)
    theirs = stated_classes(image.arch, metadata, config.weights)
    own = {name: value for name, value in tensors.items() if name.startswith(_IMAGE)}
    seen, repairs = repaired(image, {name.removeprefix(_IMAGE): value for name, value in own.items()})
    tensors = {name: value for name, value in tensors.items() if name not in own}
    tensors |= {f"{_IMAGE}{name}": value for name, value in seen.items()}
    model, tensors, rows = with_rows(model, tensors, theirs, classes, head_init)
    kept = load_weights(model, tensors, f"--weights {config.weights}", head_init=head_init)
    assert stated.preprocessing is not None
    return replace(model, new_head=None if kept and not model.kept_rows else head_init, fitted=(*repairs, *rows))


def texts_alone(part: DatasetPart, data: Path) -> DatasetPart:
    """The texts beside the images of a split as its samples, if it has any: for a model of texts alone."""
    captions = captions_of(data, part.dataset)
    if captions is None:
        return part
    own = np.arange(len(captions)) if part.indices is None else part.indices
    return replace(part, dataset=captions, indices=own[captions.has_text[own]])


def blank_words(part: DatasetPart, data: Path) -> str:
    """What to tell about images that are missing, of which a model of images alone sees blank ones."""
    captions = captions_of(data, part.dataset)
    if captions is None or captions.has_image.all():
        return ""
    count = plural(int((~captions.has_image).sum()), "sample")
    return f"{count} of the training split without an image: the model sees a grey one; --text-arch reads their texts"


def with_texts(model: Model, keeper: Keeper, part: DatasetPart, data: Path, stack: ExitStack, dry: bool) -> DatasetPart:
    """A split with the texts beside its images as tokens: from the cache, which a `dry` run does not write."""
    assert model.pair is not None
    captions = captions_of(data, part.dataset)
    assert captions is not None
    stack.callback(captions.close)
    tokenizer = model.pair.reader.tokenizer
    if dry:
        return replace(part, texts=TextRows(captions.has_image, FreshTokens(captions, tokenizer)))
    tokens = keeper.tokens(captions, tokenizer)
    stack.callback(tokens.close)
    return replace(part, texts=TextRows(captions.has_image, KeptTokens(tokens), tokens))


def text_embeddings(
    config: Train, model: Model, precision: Precision, keeper: Keeper, part: DatasetPart, stack: ExitStack
) -> tuple[DatasetPart, Path, int]:
    """A split with kept embeddings of its texts, where they are, and how many were computed now."""
    assert model.pair is not None and isinstance(part.texts, TextRows) and part.texts.tokens is not None
    text, length = model.pair.text, model.pair.reader.tokenizer.length
    device = keeper.ranks.device
    text.module.to(device)
    dtype = np.dtype({"fp16": "f2", "fp32": "f4"}[config.cache_dtype or "fp16"])
    settings = LoaderConfig(
        batch_size=intent.BATCH[device.type], order="sequential", padding="zeros", workers=keeper.workers
    )

    def open_(missing: DatasetPart) -> BatchSource:
        return array_loader(missing, TokenDecoder(length), settings, device)

    encoding = Encoding(
        model=text,
        ranks=keeper.ranks,
        precision=precision,
        policy=Policy(mean=text.preprocessing.mean, std=text.preprocessing.std),
        dtype=dtype.str,
        reads={},
        open_=open_,
    )
    texts = replace(part, dataset=part.texts.tokens, texts=None)
    dataset, folder, made = keeper.arrays(texts, encoding)
    stack.callback(dataset.close)
    rows = replace(part.texts, fetch=KeptEmbeddings(dataset, model.pair.text_width, dtype))
    return replace(part, texts=rows), folder, made
