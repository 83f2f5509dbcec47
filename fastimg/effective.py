"""From what the user asked for to what is done: impossible or idle flags are refused, open choices are made.

The result is a `Train` without open choices: it is printed, written to config.yaml, and runs again to the same end.
"""

import math
from dataclasses import replace
from pathlib import Path

from . import augmentation
from .config import Train
from .data import Part, check_backend, chosen_backend
from .errors import UsageError
from .loaders import LoaderConfig, nvcodec
from .loaders.backends import IDLE
from .loaders.decode import MAX_PIXELS
from .loaders.order import BLOCK, WINDOW
from .models import Model, Preprocessing
from .parallel import Ranks

_SCRATCH_LR = {"adamw": (1e-3, 256), "sgd": (0.5, 1024)}  # learning rate at a global batch


def check(config: Train) -> None:
    """Refuse values out of range, and flags that would have no effect. Raises UsageError naming the remedy."""
    augmentation.check(config)
    check_backend(chosen_backend(config.loader), vars(config))
    happens = augmentation.effective(config, _plain(config))
    idle = [
        (config.momentum is not None and config.opt != "sgd", "--momentum", f"--opt {config.opt}"),
        (config.decay_epochs is not None and config.sched != "step", "--decay-epochs", "any --sched but step"),
        (config.decay_rate is not None and config.sched != "step", "--decay-rate", "any --sched but step"),
        (config.min_lr is not None and config.sched in ("step", "constant"), "--min-lr", f"--sched {config.sched}"),
        (
            config.warmup_epochs is not None and config.warmup_fraction is not None,
            "--warmup-epochs",
            "--warmup-fraction",
        ),
        (
            config.order_window is not None and config.order != "quasi-random",
            "--order-window",
            f"--order {config.order}",
        ),
        (config.dct_scaling == "off" and config.decode == "gpu", "--dct-scaling", "--decode gpu"),
        (config.dct_scaling == "off" and config.no_aug, "--dct-scaling", "--no-aug"),
        (config.pretrained and config.weights is not None, "--pretrained", "--weights"),
        (config.crop_pct is not None and config.val_resize_size is not None, "--crop-pct", "--val-resize-size"),
        (config.patience is not None and config.val_fraction == 0, "--patience", "--val-fraction 0"),
        (config.val_interval != 1 and config.val_fraction == 0, "--val-interval", "--val-fraction 0"),
        (
            config.img_size is not None and config.train_crop_size is not None and config.val_crop_size is not None,
            "--img-size",
            "--train-crop-size and --val-crop-size",
        ),
        *((happens[name] and config.batch_size == 1, f"--{name}", "--batch-size 1") for name in ("mixup", "cutmix")),
    ]
    for useless, flag, other in idle:
        if useless:
            raise UsageError(f"{flag} has no effect with {other}; leave one of them out")
    ranges = [
        (config.batch_size == "auto" or config.batch_size >= 1, "--batch-size", "1 or more, or auto"),
        (config.grad_accum_steps >= 1, "--grad-accum-steps", "1 or more"),
        (config.epochs is None or config.epochs >= 1, "--epochs", "1 or more"),
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


_PIXELS = "a size from 1 to 16384 pixels"


def scales(config: Train) -> bool:
    """Whether training crops may be decoded smaller than they are."""
    native = "dct_scaling" not in IDLE[chosen_backend(config.loader)]
    return native and config.dct_scaling == "auto" and config.decode != "gpu" and not _plain(config)


def check_decode(config: Train, device: str) -> None:
    """Refuse --decode gpu where there is no GPU, or nothing to decode on it. `device` is the type of the run's."""
    if config.decode != "gpu":
        return
    if device != "cuda":
        raise UsageError(f"--decode gpu: the run is on {device}; start it on a CUDA device, or leave --decode out")
    if not nvcodec.installed():
        raise UsageError(
            f"--decode gpu needs nvImageCodec, which is not installed: {nvcodec.INSTALL}; or leave --decode out"
        )


def _plain(config: Train) -> bool:
    """Whether training sees validation's crops: as told, or with a frozen backbone and no augmentation asked for."""
    return config.no_aug or (config.freeze is not None and not augmentation.asked(config))


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
    if _plain(config):
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
    config: Train, data: Path, model: Model, pre: Preprocessing, validation: Part | None, ranks: Ranks
) -> Train:
    """`config` with every open choice made."""
    tuned = config.pretrained or config.weights is not None
    frozen = config.freeze is not None
    opt, epochs = config.opt, config.epochs or 10
    sched = config.sched or ("linear" if tuned else "cosine")
    assert config.batch_size != "auto"
    global_batch = config.batch_size * config.grad_accum_steps * ranks.world_size
    loader = chosen_backend(config.loader)
    cropped = augmentation.effective(config, _plain(config))
    cropped |= {name: None for name in ("scale", "ratio") if name in IDLE[loader]}
    fraction = config.warmup_fraction
    if fraction is None and config.warmup_epochs is None:
        fraction = 0.2 if tuned else 0.05
    return replace(
        config,
        data=data.resolve(),
        weights=config.weights.resolve() if config.weights else None,
        output=config.output.resolve(),
        val_split=validation.split if validation else None,
        val_fraction=validation.held_out if validation else 0.0,
        order_window=(config.order_window or WINDOW) if config.order == "quasi-random" else None,
        decode="auto" if "decode" in IDLE[loader] else "gpu" if config.decode == "gpu" else "cpu",
        train_crop_size=pre.train_size,
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
        epochs=epochs,
        lr=_default_lr(opt, tuned, frozen, model.convolutional, global_batch) if config.lr == "auto" else config.lr,
        momentum=(0.9 if config.momentum is None else config.momentum) if opt == "sgd" else None,
        weight_decay=config.weight_decay if config.weight_decay is not None else (0.05 if opt == "adamw" else 5e-5),
        sched=sched,
        warmup_fraction=fraction,
        min_lr=(config.min_lr or 0.0) if sched in ("cosine", "linear") else None,
        decay_epochs=(config.decay_epochs or epochs / 3) if sched == "step" else None,
        decay_rate=(config.decay_rate or 0.1) if sched == "step" else None,
        config=None,
        resume=None,
        dry_run=False,
        device=ranks.device.type,
    )


def _default_lr(opt: str, tuned: bool, frozen: bool, convolutional: bool, global_batch: int) -> float:
    """From scratch: scaled with the global batch, linearly for SGD, by the square root for AdamW. Else what was shown
    to work: 1e-3 for a new head on a frozen trunk, 3e-4 for a whole CNN, 5e-5 for a whole transformer (SGD: 50 times
    that, as its steps are not normalised).
    """
    if frozen or tuned:
        lr = 1e-3 if frozen else 3e-4 if convolutional else 5e-5
        return lr if opt == "adamw" else 3e-3 if frozen else lr * 50
    lr, batch = _SCRATCH_LR[opt]
    scaled = lr * (global_batch / batch) ** (1.0 if opt == "sgd" else 0.5)
    return float(f"{scaled:.3g}")
