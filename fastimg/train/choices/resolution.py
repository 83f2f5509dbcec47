"""From what the user asked for to what is done: every open choice is made.

The result is a `Train` without open choices: it is printed, written to config.yaml, and runs again to the same end.
"""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from fastimg.config.augmentation import effective
from fastimg.config.commands import Train
from fastimg.config.intent import (
    EPOCHS,
    SCHEDULE_FREE,
    head_alone,
    order,
    plain,
    progressive,
    reads_frozen,
    reads_text,
    tuned,
)
from fastimg.config.rule_tables.training import TRAIN
from fastimg.config.rules import without_effect
from fastimg.config.values import durations
from fastimg.data.datasets import DatasetPart, chosen_backend
from fastimg.errors import UsageError
from fastimg.loaders.backends.settings import IGNORED_SETTINGS
from fastimg.loaders.decode import MAX_PIXELS
from fastimg.loaders.epochs.config import slots_for
from fastimg.loaders.jpeg.decoding.region import Scaling
from fastimg.loaders.order import WINDOW
from fastimg.loaders.remote.stores import shown, url_of
from fastimg.models.ema import DECAY
from fastimg.models.ranks import Ranks
from fastimg.models.registry import Model, Preprocessing
from fastimg.train.checkpoints.stored_models import setting_of
from fastimg.train.distillation.loss import TEMPERATURE, WEIGHT
from fastimg.train.optimisers import catalogue
from fastimg.train.optimisers.schedules import Schedule
from fastimg.wording import plural

STAND_IN = 1.0  # the learning rate as long as --lr find has not found one
_BASE = 256  # the batch that a learning rate is for, as timm has it


def scales(config: Train) -> Scaling:
    """Whether training crops may be decoded smaller than they are, and how."""
    scaling = "dct_scaling" not in IGNORED_SETTINGS[chosen_backend(config.loader)] and not config.resident
    if config.image_field is not None or config.depth == 16:  # no JPEGs
        return False
    if not scaling or config.dct_scaling == "off" or config.decode == "gpu" or plain(config):
        return False
    return True if config.dct_scaling == "auto" else config.dct_scaling


def preprocessing(config: Train, own: Preprocessing) -> Preprocessing:
    """The model's own preprocessing with what the user set. Raises UsageError for sizes that do not fit together."""
    size = config.img_size
    val_size = config.val_crop_size or size or own.val_size
    share = config.crop_pct or own.val_size / own.val_resize
    val_resize = config.val_resize_size or max(val_size, int(val_size / share))
    if val_resize < val_size:
        raise UsageError(
            f"--val-resize-size {val_resize} is smaller than the crop of {val_size}; raise it to that at least"
        )
    for name, given in (("--mean", config.mean), ("--std", config.std)):
        if given is not None and len(given) != own.channels:
            what = "images have" if own.field is None else f"the field {own.field!r} has"
            unit = "channel" if own.field is None else "band"
            raise UsageError(
                f"{name} {' '.join(f'{value:g}' for value in given)}: {what} {plural(own.channels, unit)}; "
                "give a number for each"
            )
    train_size = config.train_crop_size or size or own.train_size
    if config.crop_padding is not None and config.crop_padding >= train_size and not plain(config):
        raise UsageError(
            f"--crop-padding {config.crop_padding}: crops of {train_size} pixels can be mirrored by up to "
            f"{train_size - 1}; give less"
        )
    if config.progressive is not None:
        train_size = progressive(config).large
    if plain(config):
        if config.train_crop_size not in (None, val_size):
            raise UsageError(
                f"--train-crop-size {train_size} has no effect without augmentation: training sees validation's crops "
                f"of {val_size}; leave it out, or give --img-size"
            )
        train_size = val_size
    return Preprocessing(
        train_size=train_size,
        val_size=val_size,
        val_resize=val_resize,
        interpolation=config.interpolation or own.interpolation,
        mean=config.mean or own.mean,
        std=config.std or own.std,
        field=own.field,
        dtype=own.dtype,
    )


def resolve(
    config: Train,
    data: Path,
    model: Model,
    pre: Preprocessing,
    validation: DatasetPart | None,
    ranks: Ranks,
    searched: bool = False,
    samples: int | None = None,
) -> Train:
    """`config` with every open choice made; its batch size is a number, which was `searched` for or given.

    `samples` are those of the training split: no step has more.
    """
    trained = tuned(config)
    reader = model.pair.reader if model.pair else model.text
    rate = _learning_rate(config, model, true_batch(config, ranks, samples), searched)[0]
    sched = config.sched or ("constant" if config.opt in SCHEDULE_FREE else "linear" if trained else "cosine")
    augmenting: dict[str, Any] = effective(config, plain(config))
    chosen = replace(
        config,
        data=data.resolve() if config.data is None or url_of(config.data) is None else config.data,
        order=order(config),
        weights=setting_of(config.weights) if config.weights else None,
        output=config.output if url_of(config.output) else config.output.resolve(),
        val_split=validation.split if validation else None,
        val_fraction=_held_out(config, validation),
        order_window=config.order_window or WINDOW,
        decode="gpu" if config.decode == "gpu" else "cpu",
        train_crop_size=None if config.progressive else pre.train_size,
        val_crop_size=pre.val_size,
        val_resize_size=pre.val_resize,
        img_size=None,
        crop_pct=None,
        **_pixels(pre),
        **augmenting,
        loader=chosen_backend(config.loader),
        prefetch=config.prefetch or slots_for(ranks.device.type),
        profile=None,
        on_error=config.on_error or "skip",
        max_pixels=config.max_pixels or MAX_PIXELS,
        epochs=(config.epochs or EPOCHS) if config.duration is None else None,
        lr=rate,
        lr_scale=None,
        lr_base_size=None,
        head_init=model.new_head,
        momentum=_momentum(config),
        teacher=_teacher(config),
        teacher_weights=setting_of(config.teacher_weights) if config.teacher_weights else None,
        kd_temperature=config.kd_temperature or TEMPERATURE,
        kd_weight=WEIGHT if config.kd_weight is None else config.kd_weight,
        weight_decay=_weight_decay(config),
        norm_weight_decay=config.norm_weight_decay or 0.0,
        sched=sched,
        warmup=_warmup(config, trained),
        warmup_epochs=None,
        warmup_fraction=None,
        warmup_lr=_scaled(config, config.warmup_lr, rate),
        min_lr=_lowest_rate(config, rate),
        decay=_decay(config),
        decay_epochs=None,
        decay_rate=config.decay_rate or 0.1,
        model_ema_decay=DECAY if config.model_ema_decay is None else config.model_ema_decay,
        strategy="auto" if ranks.backend is None else "fsdp" if config.strategy == "fsdp" else "ddp",
        recipe=None,
        config=None,
        resume=None,
        dry_run=False,
        device=ranks.device.type,
        head_hidden=model.head_hidden or None,
        cache_dtype=_kept_as(config),
        cache_dir=config.cache_dir.resolve() if config.cache_dir else None,
        max_length=reader.tokenizer.length if reader else None,
        combiner=model.pair.combiner if model.pair else None,
        patience_metric=config.patience_metric or "loss",
    )
    return replace(chosen, **without_effect(chosen, TRAIN))


def _pixels(pre: Preprocessing) -> dict[str, Any]:
    """What is read of images, and how it becomes the model's input."""
    return {
        "interpolation": pre.interpolation,
        "in_chans": pre.channels,
        "image_field": pre.field,
        "depth": 16 if pre.depth == 16 else None,
        "mean": pre.mean,
        "std": pre.std,
    }


def _held_out(config: Train, validation: DatasetPart | None) -> float | None:
    """The share of the training split that validates; None where a split or a fold does."""
    if validation is None:
        return 0.0
    return validation.held_out if config.fold is None else None


def views(config: Train) -> int:
    """How many embeddings are kept of a sample, by a choice that was made; 0: none."""
    return 0 if config.cache_embeddings in (None, "off") else int(config.cache_embeddings)


def keeps_texts(config: Train) -> bool:
    """Whether embeddings are kept of the texts beside images, by a choice that was made."""
    return reads_frozen(config) and config.cache_embeddings != "off"


def _kept_as(config: Train) -> Literal["fp16", "fp32"] | None:
    if config.cache_teacher is not None:
        return config.cache_dtype or "fp32"
    return (config.cache_dtype or "fp16") if views(config) or keeps_texts(config) else None


def schedule(config: Train, steps_per_epoch: int, ranks: Ranks, samples: int | None = None) -> Schedule:
    """The schedule of a resolved configuration, and with it the length of the run."""
    assert not isinstance(config.lr, str) and config.sched is not None and config.warmup is not None
    batch = true_batch(config, ranks, samples)
    whole = config.duration or f"{config.epochs}ep"
    steps = max(1, math.ceil(durations.parse(whole, "--duration", whole=True).steps(steps_per_epoch, batch)))
    drops = math.inf
    if config.decay is not None:
        drops = durations.parse(config.decay, "--decay").steps(steps_per_epoch, batch, steps)
    warmup = round(durations.parse(config.warmup, "--warmup").steps(steps_per_epoch, batch, steps))
    if warmup > steps:
        raise UsageError(
            f"--warmup {config.warmup}: would be {plural(warmup, 'step')} of a run that has {steps}; give less, "
            "such as 0.2dur"
        )
    return Schedule(
        kind=config.sched,
        lr=config.lr,
        steps=steps,
        warmup_steps=warmup,
        warmup_lr=config.warmup_lr or 0.0,
        min_lr=config.min_lr or 0.0,
        decay_steps=drops,
        decay_rate=config.decay_rate or 1.0,
    )


def rate_words(config: Train, model: Model, batch: int, searched: bool) -> str:
    """Where the learning rate comes from, empty where it was given as it is. `batch` is the true one."""
    return _learning_rate(config, model, batch, searched)[1]


def true_batch(config: Train, ranks: Ranks, samples: int | None) -> int:
    """Samples in an optimiser step over all ranks: no more than the training split has."""
    assert isinstance(config.batch_size, int)
    asked = config.batch_size * config.grad_accum_steps * ranks.world_size
    return asked if samples is None else max(1, min(asked, samples))


def _weight_decay(config: Train) -> float:
    if config.weight_decay is not None:
        return config.weight_decay
    return catalogue.weight_decay(config.opt)


def _teacher(config: Train) -> str | None:
    """A path in full, an architecture or a URL as it is."""
    if config.teacher is None or not Path(config.teacher).exists():
        return config.teacher
    return shown(setting_of(Path(config.teacher)))


def _momentum(config: Train) -> float | None:
    if not catalogue.takes_momentum(config.opt):
        return None
    return 0.9 if config.momentum is None else config.momentum


def _warmup(config: Train, tuned: bool) -> str:
    if config.warmup is not None:
        return durations.parse(config.warmup, "--warmup").text
    if config.warmup_epochs is not None:
        return durations.Span(float(config.warmup_epochs), "ep").text
    if config.warmup_fraction is not None:
        return durations.Span(float(config.warmup_fraction), "dur").text
    return "0.2dur" if tuned else "0.05dur"


def _decay(config: Train) -> str:
    if config.decay is not None:
        return durations.parse(config.decay, "--decay").text
    if config.decay_epochs is None:
        return f"{1 / 3!r}dur"
    return durations.Span(float(config.decay_epochs), "ep").text


def _learning_rate(config: Train, model: Model, batch: int, searched: bool) -> tuple[float, str]:
    """The peak learning rate, and in words how it was found.

    A rate that was given is taken as it is, unless the batch was searched for or --lr-scale asks for more. `auto` is
    what was shown to work, at a batch that goes with it.
    """
    if config.lr == "find":
        return STAND_IN, ""
    if config.lr == "auto":
        rate, base = _usual_rate(config, model)
    else:
        rate, base = config.lr, config.lr_base_size or _BASE
    follows = config.lr == "auto" or searched or config.lr_scale is not None
    rule = scaling_rule(config) if follows else "none"
    words = "auto" if config.lr == "auto" else ""
    if words and config.opt not in ("adamw", "sgd"):
        words = f"{catalogue.relative(config.opt)}'s"
    if rule == "none":
        return rate, words
    if batch != base:
        origin = f"{words}, " if words.endswith("'s") else ""
        words = f"{origin}{rate:g} at batch {base}, {rule} to {batch}"
    return _at_batch(rate, base, batch, rule), words


def scaling_rule(config: Train) -> Literal["linear", "sqrt", "none"]:
    """How a rate follows the batch: as --lr-scale says, else as the optimiser's steps ask for."""
    return config.lr_scale or ("linear" if catalogue.relative(config.opt) == "sgd" else "sqrt")


def _at_batch(rate: float, base: int, batch: int, rule: Literal["linear", "sqrt", "none"]) -> float:
    """A rate that is for batches of `base`, for those of `batch`."""
    if rule == "none":
        return rate
    return float(f"{rate * (batch / base) ** (1.0 if rule == 'linear' else 0.5):.3g}")


def _lowest_rate(config: Train, rate: float) -> float:
    """--min-lr for a peak of `rate`. Raises UsageError where the schedule would end above its peak."""
    lowest = _scaled(config, config.min_lr, rate)
    if lowest > rate and config.lr != "find":
        raise UsageError(f"--min-lr {config.min_lr:g}: the learning rate is {rate:g}, and would rise; give less")
    return lowest


def _scaled(config: Train, given: float | None, rate: float) -> float:
    """A rate of the schedule, scaled as --lr was (to `rate`): the schedule keeps its shape with any batch."""
    if given is None or isinstance(config.lr, str) or rate == config.lr:
        return given or 0.0
    return float(f"{given * rate / config.lr:.3g}")


def rate_at(config: Train, model: Model, batch: int) -> float:
    """What --lr auto comes to, for a batch of so many samples over all ranks."""
    rate, base = _usual_rate(config, model)
    return _at_batch(rate, base, batch, scaling_rule(config))


def _usual_rate(config: Train, model: Model) -> tuple[float, int]:
    """(peak learning rate, the batch that it is for), by optimiser, starting weights and kind of model.

    A new head on a frozen trunk: 1e-3 (benchmarks/heads.py), but 1e-2 for a linear one on sentence embeddings, which
    are smaller numbers. Fine-tuning: 3e-4 for a CNN, 5e-5 for a transformer. SGD takes more: its steps are not
    normalised.
    """
    adam = catalogue.relative(config.opt) == "adamw"
    if head_alone(config):
        rate = 1e-2 if reads_text(config) and config.head == "linear" else 1e-3
        return (rate if adam else rate * 3, 64)
    if tuned(config):
        reads = model.pair is not None and not reads_frozen(config)  # a transformer
        rate = 3e-4 if model.convolutional and not reads else 5e-5
        return (rate if adam else rate * 50, 64)
    return (1e-3, 256) if adam else (0.5, 1024)
