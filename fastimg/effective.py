"""From what the user asked for to what is done: impossible or idle flags are refused, open choices are made.

The result is a `Train` without open choices: it is printed, written to config.yaml, and runs again to the same end.
"""

import dataclasses
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

from . import augmentation, duration
from .config import Train
from .data import Part, check_backend, chosen_backend
from .ema import DECAY
from .errors import UsageError
from .loaders import LoaderConfig, nvcodec
from .loaders.backends import IDLE
from .loaders.decode import MAX_PIXELS
from .loaders.order import BLOCK, WINDOW
from .models import Model, Preprocessing
from .optim import Schedule
from .parallel import Ranks
from .progressive import Progressive
from .progressive import parse as parse_progressive
from .textmodel import PREFIX
from .trainconfig import COMPILE_MODES

EPOCHS = 10  # where nothing is said
_BASE = 256  # the batch that a learning rate is for, as timm has it


def check(config: Train) -> None:
    """Refuse values out of range, and flags that would have no effect. Raises UsageError naming the remedy."""
    augmentation.check(config)
    _check_text(config)
    check_backend(chosen_backend(config.loader), vars(config))
    happens = augmentation.effective(config, plain(config))
    bare, batch = plain(config), config.batch_size
    tuned = _tuned(config)
    given = [
        (config.epochs, "--epochs", config.duration, "--duration"),
        (config.warmup, "--warmup", config.warmup_epochs, "--warmup-epochs"),
        (config.warmup, "--warmup", config.warmup_fraction, "--warmup-fraction"),
        (config.warmup_epochs, "--warmup-epochs", config.warmup_fraction, "--warmup-fraction"),
        (config.decay, "--decay", config.decay_epochs, "--decay-epochs"),
        (config.crop_pct, "--crop-pct", config.val_resize_size, "--val-resize-size"),
        (config.train_crop_size, "--train-crop-size", config.progressive, "--progressive"),
    ]
    for one, flag, two, other in given:
        if one is not None and two is not None:
            raise UsageError(f"{flag} has no effect with {other}; leave one of them out")
    needs = [
        (config.freeze_epochs, "--freeze-epochs", config.freeze, "--freeze"),
        (config.progressive_epochs, "--progressive-epochs", config.progressive, "--progressive"),
        (config.model_ema_decay, "--model-ema-decay", config.model_ema or None, "--model-ema"),
        (config.head_init, "--head-init", tuned or None, "--pretrained or --weights"),
        (config.head_hidden, "--head-hidden", config.head == "mlp" or None, "--head mlp"),
        (config.cache_embeddings, "--cache-embeddings", head_alone(config) or None, "--freeze backbone all the time"),
        (config.cache_dtype, "--cache-dtype", head_alone(config) or None, "--freeze backbone all the time"),
        (config.cache_dir, "--cache-dir", head_alone(config) or reads_text(config) or None, "--freeze backbone"),
        (config.max_length, "--max-length", reads_text(config) or None, "a text encoder (--arch hf:NAME)"),
    ]
    for value, flag, other_value, other in needs:
        if value is not None and other_value is None:
            raise UsageError(f"{flag} has no effect without {other}; add that, or leave it out")
    idle = [
        (config.momentum is not None and config.opt != "sgd", "--momentum", f"--opt {config.opt}"),
        (config.decay_epochs is not None and config.sched != "step", "--decay-epochs", "any --sched but step"),
        (config.decay is not None and config.sched != "step", "--decay", "any --sched but step"),
        (config.decay_rate is not None and config.sched != "step", "--decay-rate", "any --sched but step"),
        (config.min_lr is not None and config.sched in ("step", "constant"), "--min-lr", f"--sched {config.sched}"),
        (
            config.order_window is not None and config.order != "quasi-random",
            "--order-window",
            f"--order {config.order}",
        ),
        (config.dct_scaling == "off" and config.decode == "gpu", "--dct-scaling", "--decode gpu"),
        (config.dct_scaling == "off" and config.no_aug, "--dct-scaling", "--no-aug"),
        (config.pretrained and config.weights is not None, "--pretrained", "--weights"),
        (config.lr_base_size is not None and config.lr == "auto", "--lr-base-size", "--lr auto"),
        (config.lr_base_size is not None and config.lr_scale == "none", "--lr-base-size", "--lr-scale none"),
        (config.layer_decay is not None and head_alone(config), "--layer-decay", "--freeze backbone"),
        (config.ghost_bn is not None and config.ghost_bn == batch, "--ghost-bn", f"--batch-size {batch}"),
        (config.ghost_bn is not None and config.sync_bn, "--ghost-bn", "--sync-bn"),
        (
            config.ghost_bn is not None and head_alone(config) and config.head == "linear",
            "--ghost-bn",
            "--freeze backbone and --head linear",
        ),
        (
            config.cache_dtype is not None and config.cache_embeddings == "off",
            "--cache-dtype",
            "--cache-embeddings off",
        ),
        (config.grad_checkpointing and head_alone(config), "--grad-checkpointing", "--freeze backbone"),
        (config.progressive is not None and bare, "--progressive", "--no-aug" if config.no_aug else "no augmentation"),
        (config.tta and config.val_fraction == 0 and not config.evaluate_training_set, "--tta", "--val-fraction 0"),
        (config.patience is not None and config.val_fraction == 0, "--patience", "--val-fraction 0"),
        (config.val_interval != 1 and config.val_fraction == 0, "--val-interval", "--val-fraction 0"),
        (
            config.img_size is not None and config.train_crop_size is not None and config.val_crop_size is not None,
            "--img-size",
            "--train-crop-size and --val-crop-size",
        ),
        *((happens[name] and batch == 1, f"--{name}", "--batch-size 1") for name in ("mixup", "cutmix")),
    ]
    for useless, flag, other in idle:
        if useless:
            raise UsageError(f"{flag} has no effect with {other}; leave one of them out")
    ranges = [
        (batch == "auto" or batch >= 1, "--batch-size", "1 or more, or auto"),
        (config.grad_accum_steps >= 1, "--grad-accum-steps", "1 or more"),
        (config.epochs is None or config.epochs >= 1, "--epochs", "1 or more"),
        (config.freeze_epochs is None or config.freeze_epochs >= 1, "--freeze-epochs", "1 or more"),
        (config.ghost_bn is None or config.ghost_bn >= 2, "--ghost-bn", "2 or more"),
        (config.head_hidden is None or config.head_hidden >= 1, "--head-hidden", "1 or more"),
        (config.max_length is None or config.max_length >= 4, "--max-length", "4 or more"),
        (_are_views(config.cache_embeddings), "--cache-embeddings", "a number of views, 1 or more, or off"),
        (config.lr_base_size is None or config.lr_base_size >= 1, "--lr-base-size", "1 or more"),
        (config.layer_decay is None or 0 < config.layer_decay <= 1, "--layer-decay", "a share above 0 and up to 1"),
        (
            config.norm_weight_decay is None or 0 <= config.norm_weight_decay < math.inf,
            "--norm-weight-decay",
            "0 or more",
        ),
        (
            config.model_ema_decay is None or 0 <= config.model_ema_decay < 1,
            "--model-ema-decay",
            "a share from 0 up to, not including, 1",
        ),
        (config.compile is None or config.compile in COMPILE_MODES, "--compile", f"one of {', '.join(COMPILE_MODES)}"),
        (config.seed >= 0, "--seed", "0 or more"),
        (config.prefetch is None or config.prefetch >= 2, "--prefetch", "2 or more"),
        (config.order_window is None or config.order_window >= BLOCK, "--order-window", f"a block's {BLOCK} or more"),
        (config.max_pixels is None or config.max_pixels >= 1, "--max-pixels", "1 or more"),
        (config.log_interval >= 1, "--log-interval", "1 or more"),
        (config.save_interval >= 1, "--save-interval", "1 or more"),
        (config.val_interval >= 1, "--val-interval", "1 or more"),
        (config.checkpoint_hist >= 0, "--checkpoint-hist", "0 or more"),
        (config.patience is None or config.patience >= 1, "--patience", "1 or more"),
        (config.lr == "auto" or 0 < config.lr < math.inf, "--lr", "a number above 0, or auto"),
        (config.weight_decay is None or config.weight_decay >= 0, "--weight-decay", "0 or more"),
        (config.momentum is None or 0 <= config.momentum < 1, "--momentum", "a number from 0 up to, not including, 1"),
        (config.clip_grad is None or config.clip_grad > 0, "--clip-grad", "a number above 0"),
        (0 <= config.smoothing < 1, "--smoothing", "a share from 0 up to, not including, 1"),
        (config.crop_pct is None or 0 < config.crop_pct <= 1, "--crop-pct", "a share above 0 and up to 1"),
        (config.warmup_epochs is None or config.warmup_epochs >= 0, "--warmup-epochs", "0 or more"),
        (
            config.warmup_fraction is None or 0 <= config.warmup_fraction <= 1,
            "--warmup-fraction",
            "a share from 0 to 1",
        ),
        (config.min_lr is None or config.min_lr >= 0, "--min-lr", "0 or more"),
        (config.decay_epochs is None or config.decay_epochs > 0, "--decay-epochs", "a number above 0"),
        (config.decay_rate is None or 0 < config.decay_rate <= 1, "--decay-rate", "a number above 0 and up to 1"),
        (config.drop_path is None or 0 <= config.drop_path < 1, "--drop-path", "a rate from 0 up to, not including, 1"),
        (config.mean is None or all(0 <= m <= 1 for m in config.mean), "--mean", "shares of white, from 0 to 1"),
        (config.std is None or all(0 < s <= 1 for s in config.std), "--std", "shares of white, above 0 and up to 1"),
        *(
            (
                getattr(config, name) is None or 1 <= getattr(config, name) <= 16384,
                f"--{name.replace('_', '-')}",
                _PIXELS,
            )
            for name in ("img_size", "train_crop_size", "val_crop_size", "val_resize_size")
        ),
    ]
    for fine, flag, what in ranges:
        if not fine:
            raise UsageError(f"{flag}: give {what}")
    if config.ghost_bn is not None and batch != "auto" and batch % config.ghost_bn:
        raise UsageError(
            f"--ghost-bn {config.ghost_bn}: does not divide the batch of {batch}; choose a divisor, or another "
            "--batch-size"
        )
    if batch == "auto" and config.strategy == "fsdp":
        raise UsageError(
            "--batch-size auto: is found by one process for itself, and --strategy fsdp shares the model; give a number"
        )
    if bare and (config.cache_embeddings or "1") not in ("1", "off"):
        raise UsageError(
            f"--cache-embeddings {config.cache_embeddings}: without augmentation all views are the same; ask for some, "
            "with --hflip 0.5 say, or leave the number out"
        )
    for flag, text in (("--warmup", config.warmup), ("--decay", config.decay)):
        if text is not None:
            duration.parse(text, flag)
    if config.duration is not None:
        duration.parse(config.duration, "--duration", whole=True)
    if config.freeze_epochs is not None and config.freeze_epochs >= (config.epochs or EPOCHS):
        raise UsageError(
            f"--freeze-epochs {config.freeze_epochs}: the run has {config.epochs or EPOCHS} epochs, so that nothing "
            "would be unfrozen; give fewer, or leave it out"
        )
    if config.progressive is not None:
        progressive(config)


def _are_views(text: str | None) -> bool:
    return text in (None, "off") or (text.isascii() and text.isdigit() and int(text) >= 1)


def _check_text(config: Train) -> None:
    """Refuse what has no effect on texts."""
    if not reads_text(config):
        return
    defaults: dict[str, Any] = {field.name: field.default for field in dataclasses.fields(Train)}
    for name in (*_OF_IMAGES, *augmentation.FIELDS, "no_aug"):
        if getattr(config, name) != defaults[name]:
            raise UsageError(f"{augmentation.flag(name)} has no effect on texts (--arch {config.arch}); leave it out")
    if chosen_backend(config.loader) != "native":
        raise UsageError(f"--loader {config.loader}: reads images; texts are read by fastimg's own, leave it out")
    if config.pretrained:
        raise UsageError(f"--pretrained has no effect: {config.arch} comes with its weights; leave it out")


# Fields of Train that are about pixels.
_OF_IMAGES = (
    *("decode", "dct_scaling", "max_pixels", "img_size", "train_crop_size", "val_crop_size", "val_resize_size"),
    *("crop_pct", "interpolation", "mean", "std", "progressive", "progressive_epochs", "tta", "blurpool", "drop_path"),
)

_PIXELS = "a size from 1 to 16384 pixels"


def scales(config: Train) -> bool:
    """Whether training crops may be decoded smaller than they are."""
    native = "dct_scaling" not in IDLE[chosen_backend(config.loader)]
    return native and config.dct_scaling == "auto" and config.decode != "gpu" and not plain(config)


def check_device(config: Train, device: str) -> None:
    """Refuse what the run's device (its type) cannot do, or would do without effect."""
    if config.compile == "reduce-overhead" and device != "cuda":
        raise UsageError(
            f"--compile reduce-overhead: has no effect on {device}, it is CUDA graphs; use --compile default"
        )
    if config.decode != "gpu":
        return
    if device != "cuda":
        raise UsageError(f"--decode gpu: the run is on {device}; start it on a CUDA device, or leave --decode out")
    if not nvcodec.installed():
        raise UsageError(
            f"--decode gpu needs nvImageCodec, which is not installed: {nvcodec.INSTALL}; or leave --decode out"
        )


def plain(config: Train) -> bool:
    """Whether training sees what validation sees: texts, as told, or with a frozen backbone and no augmentation."""
    return config.no_aug or reads_text(config) or (head_alone(config) and not augmentation.asked(config))


def reads_text(config: Train) -> bool:
    """Whether the model is a text encoder."""
    return config.arch.startswith(PREFIX)


def _tuned(config: Train) -> bool:
    """Whether training starts from trained weights."""
    return config.pretrained or config.weights is not None or reads_text(config)


def head_alone(config: Train) -> bool:
    """Whether nothing but the classifier ever trains."""
    return config.freeze == "backbone" and config.freeze_epochs is None


def progressive(config: Train, epochs: int | None = None) -> Progressive:
    """What --progressive says, for a run of so many epochs; --duration's are not known at first. Raises UsageError."""
    assert config.progressive is not None
    if epochs is None and config.duration is None:
        epochs = config.epochs or EPOCHS
    return parse_progressive(config.progressive, config.progressive_epochs, epochs)


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
    train_size = config.train_crop_size or size or own.train_size
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
    )


def resolve(
    config: Train,
    data: Path,
    model: Model,
    pre: Preprocessing,
    validation: Part | None,
    ranks: Ranks,
    searched: bool = False,
) -> Train:
    """`config` with every open choice made; its batch size is a number, which was `searched` for or given."""
    tuned = _tuned(config)
    opt, sched = config.opt, config.sched or ("linear" if tuned else "cosine")
    loader = chosen_backend(config.loader)
    cropped: dict[str, Any] = augmentation.effective(config, plain(config))
    cropped |= {name: None for name in ("scale", "ratio") if name in IDLE[loader]}
    chosen = replace(
        config,
        data=data.resolve(),
        weights=config.weights.resolve() if config.weights else None,
        output=config.output.resolve(),
        val_split=validation.split if validation else None,
        val_fraction=validation.held_out if validation else 0.0,
        order_window=(config.order_window or WINDOW) if config.order == "quasi-random" else None,
        decode="auto" if "decode" in IDLE[loader] else "gpu" if config.decode == "gpu" else "cpu",
        train_crop_size=None if config.progressive else pre.train_size,
        val_crop_size=pre.val_size,
        val_resize_size=pre.val_resize,
        img_size=None,
        crop_pct=None,
        interpolation=pre.interpolation,
        mean=pre.mean,
        std=pre.std,
        **cropped,
        loader=loader,
        prefetch=None if "prefetch" in IDLE[loader] else config.prefetch or LoaderConfig.prefetch,
        on_error=None if "on_error" in IDLE[loader] else config.on_error or "skip",
        max_pixels=None if "max_pixels" in IDLE[loader] else config.max_pixels or MAX_PIXELS,
        epochs=(config.epochs or EPOCHS) if config.duration is None else None,
        lr=_learning_rate(config, model, _global_batch(config, ranks), searched)[0],
        lr_scale=None,
        lr_base_size=None,
        head_init=(config.head_init or "zeros") if tuned else None,
        momentum=(0.9 if config.momentum is None else config.momentum) if opt == "sgd" else None,
        weight_decay=config.weight_decay if config.weight_decay is not None else (0.05 if opt == "adamw" else 5e-5),
        norm_weight_decay=config.norm_weight_decay or 0.0,
        sched=sched,
        warmup=_warmup(config, tuned),
        warmup_epochs=None,
        warmup_fraction=None,
        min_lr=(config.min_lr or 0.0) if sched in ("cosine", "linear") else None,
        decay=_decay(config) if sched == "step" else None,
        decay_epochs=None,
        decay_rate=(config.decay_rate or 0.1) if sched == "step" else None,
        model_ema_decay=(DECAY if config.model_ema_decay is None else config.model_ema_decay)
        if config.model_ema
        else None,
        strategy="auto" if ranks.backend is None else "fsdp" if config.strategy == "fsdp" else "ddp",
        recipe=None,
        config=None,
        resume=None,
        dry_run=False,
        device=ranks.device.type,
        head_hidden=model.head_hidden or None,
        cache_dtype=(config.cache_dtype or "fp16") if views(config) else None,
        cache_dir=config.cache_dir.resolve() if config.cache_dir else None,
        max_length=model.text.tokenizer.length if model.text else None,
    )
    if model.text is None:
        return chosen
    fields: dict[str, Any] = {field.name: field.default for field in dataclasses.fields(Train)}
    idle = {name: fields[name] for name in (*_OF_IMAGES, *augmentation.FIELDS)}
    return replace(chosen, **idle)


def views(config: Train) -> int:
    """How many embeddings are kept of a sample, by a choice that was made; 0: none."""
    return 0 if config.cache_embeddings in (None, "off") else int(config.cache_embeddings)


def schedule(config: Train, steps_per_epoch: int, ranks: Ranks) -> Schedule:
    """The schedule of a resolved configuration, and with it the length of the run."""
    assert config.lr != "auto" and config.sched is not None and config.warmup is not None
    batch, whole = _global_batch(config, ranks), config.duration or f"{config.epochs}ep"
    steps = max(1, math.ceil(duration.parse(whole, "--duration", whole=True).steps(steps_per_epoch, batch)))
    drops = math.inf
    if config.decay is not None:
        drops = duration.parse(config.decay, "--decay").steps(steps_per_epoch, batch, steps)
    warmup = round(duration.parse(config.warmup, "--warmup").steps(steps_per_epoch, batch, steps))
    if warmup > steps:
        raise UsageError(
            f"--warmup {config.warmup}: would be {warmup} steps of a run that has {steps}; give less, such as 0.2dur"
        )
    return Schedule(
        kind=config.sched,
        lr=config.lr,
        steps=steps,
        warmup_steps=warmup,
        min_lr=config.min_lr or 0.0,
        decay_steps=drops,
        decay_rate=config.decay_rate or 1.0,
    )


def rate_words(config: Train, model: Model, global_batch: int, searched: bool) -> str:
    """Where the learning rate comes from, empty where it was given as it is."""
    return _learning_rate(config, model, global_batch, searched)[1]


def _global_batch(config: Train, ranks: Ranks) -> int:
    assert config.batch_size != "auto"
    return config.batch_size * config.grad_accum_steps * ranks.world_size


def _warmup(config: Train, tuned: bool) -> str:
    if config.warmup is not None:
        return duration.parse(config.warmup, "--warmup").text
    if config.warmup_epochs is not None:
        return f"{config.warmup_epochs!r}ep"
    if config.warmup_fraction is not None:
        return f"{config.warmup_fraction!r}dur"
    return "0.2dur" if tuned else "0.05dur"


def _decay(config: Train) -> str:
    if config.decay is not None:
        return duration.parse(config.decay, "--decay").text
    return f"{1 / 3!r}dur" if config.decay_epochs is None else f"{config.decay_epochs!r}ep"


def _learning_rate(config: Train, model: Model, global_batch: int, searched: bool) -> tuple[float, str]:
    """The peak learning rate, and in words how it was found.

    A rate that was given is taken as it is, unless the batch was searched for or --lr-scale asks for more. `auto` is
    what was shown to work, at a batch that goes with it.
    """
    if config.lr == "auto":
        rate, base = _shown_to_work(config, model)
    else:
        rate, base = config.lr, config.lr_base_size or _BASE
    rule = config.lr_scale
    if rule is None:
        rule = "none" if config.lr != "auto" and not searched else "linear" if config.opt == "sgd" else "sqrt"
    if rule == "none":
        return rate, "auto" if config.lr == "auto" else ""
    factor = (global_batch / base) ** (1.0 if rule == "linear" else 0.5)
    found = "auto" if config.lr == "auto" else ""
    if global_batch != base:
        found = f"{rate:g} at batch {base}, {rule} to {global_batch}"
    return float(f"{rate * factor:.3g}"), found


def _shown_to_work(config: Train, model: Model) -> tuple[float, int]:
    """(peak learning rate, the batch that it is for), by optimiser, starting weights and kind of model.

    A new head on a frozen trunk: 1e-3 (benchmarks/heads.py), but 1e-2 for a linear one on sentence embeddings, which
    are smaller numbers. Fine-tuning: 3e-4 for a CNN, 5e-5 for a transformer. SGD takes more: its steps are not
    normalised.
    """
    adam = config.opt == "adamw"
    if head_alone(config):
        rate = 1e-2 if reads_text(config) and config.head == "linear" else 1e-3
        return (rate if adam else rate * 3, 64)
    if _tuned(config):
        rate = 3e-4 if model.convolutional else 5e-5
        return (rate if adam else rate * 50, 64)
    return (1e-3, 256) if adam else (0.5, 1024)
