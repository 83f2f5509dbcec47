"""What a training is asked to be, before its model is built: which architecture, from which start, on which pixels."""

import math
from pathlib import Path
from typing import Literal

from fastimg.loaders.remote.stores import url_of

from . import augmentation
from .commands import Embed, Train
from .training import HF_PREFIX, NEWEST_RUN, LossKind, Order
from .training import SCHEDULE_FREE as SCHEDULE_FREE
from .values import durations
from .values.progressive import Progressive
from .values.progressive import parse as parse_progressive

ARCH = "resnet50"  # where neither a flag nor the weights name another
EPOCHS = 10  # where neither --epochs nor --duration is given
# Where --batch-size is left out, by type of device: with smaller batches a GPU waits for its kernels to be launched.
# Divides the size of a shard of embeddings.
BATCH = {"cpu": 64, "cuda": 256}


def batch(config: Train, device: str) -> int | Literal["auto"]:
    """--batch-size, or what goes with this type of device where it is left out."""
    return BATCH[device] if config.batch_size is None else config.batch_size


def trackers(config: Train) -> tuple[str, ...]:
    """The trackers that --log names: one after the other, or separated by commas; each once."""
    return tuple(dict.fromkeys(name for words in config.log for name in words.split(",")))


def plain(config: Train) -> bool:
    """Whether training sees images as validation does: with --no-aug, or a frozen backbone and no augmentation.

    Texts are never augmented either.
    """
    return config.no_aug or reads_text(config) or (sees_frozen(config) and not augmentation.asked(config))


def reads_text(config: Train | Embed) -> bool:
    """Whether the model is a text encoder."""
    return architecture(config).startswith(HF_PREFIX)


def architecture(config: Train | Embed) -> str:
    """The name of the model, once what its weights state has been adopted."""
    return config.arch or ARCH


def order(config: Train) -> Order:
    """The order of training images: --order, or by default random, and from an object store quasi-random."""
    elsewhere = config.data is not None and url_of(config.data) is not None
    return config.order or ("quasi-random" if elsewhere and config.sampler is None else "random")


def named_run(resume: str | None) -> Path | None:
    """The directory of the run that --resume names; None where it names none."""
    return None if resume is None or resume in NEWEST_RUN else Path(resume)


def tuned(config: Train) -> bool:
    """Whether training starts from trained weights."""
    return config.pretrained or config.weights is not None or reads_text(config) or config.text_arch is not None


def head_alone(config: Train) -> bool:
    """Whether nothing but the classifier ever trains."""
    return config.freeze == "backbone" and config.freeze_epochs is None


def loss_kind(config: Train) -> LossKind:
    """The loss, by either of its two flags."""
    return config.loss or ("bce" if config.bce_loss else "cross-entropy")


def sees_frozen(config: Train) -> bool:
    """Whether the encoder that sees the images, or reads the texts where there are no images, never trains."""
    return config.freeze_epochs is None and config.freeze in ("backbone", "image")


def reads_frozen(config: Train) -> bool:
    """Whether the encoder of texts beside images never trains."""
    return config.text_arch is not None and config.freeze_epochs is None and config.freeze in ("backbone", "text")


def epochs(config: Train) -> int | None:
    """The epochs of a run, a part of one counted as one; None where --duration is in a unit that needs the data.

    Raises UsageError.
    """
    if config.duration is None:
        return config.epochs or EPOCHS
    span = durations.parse(config.duration, "--duration", whole=True)
    return math.ceil(span.value) if span.unit == "ep" else None


def progressive(config: Train, known: int | None = None) -> Progressive:
    """The crop sizes of --progressive, for a run of so many epochs where they are `known`. Raises UsageError."""
    assert config.progressive is not None
    total = epochs(config) if known is None else known
    return parse_progressive(config.progressive, config.progressive_epochs, total)
