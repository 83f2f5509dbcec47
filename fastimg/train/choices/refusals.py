"""Flags that are refused: out of range, without effect, or impossible together or on a device."""

import dataclasses
import math
from typing import Any

from fastimg.config import spans as duration
from fastimg.config.commands import Train
from fastimg.config.training import COMPILE_MODES
from fastimg.data import augmentation
from fastimg.data.datasets import check_backend, chosen_backend
from fastimg.data.intent import head_alone, plain, reads_text, tuned
from fastimg.errors import UsageError
from fastimg.loaders.backends import nvcodec
from fastimg.loaders.order import BLOCK
from fastimg.wording import plural

from .resolution import EPOCHS, OF_IMAGES, progressive

_PIXELS = "a size from 1 to 16384 pixels"


def check(config: Train) -> None:
    """Refuse values out of range, and flags that would have no effect. Raises UsageError naming the remedy."""
    augmentation.check(config)
    _check_text(config)
    check_backend(chosen_backend(config.loader), vars(config))
    happens = augmentation.effective(config, plain(config))
    bare, batch = plain(config), config.batch_size
    trained = tuned(config)
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
        (config.head_init, "--head-init", trained or None, "--pretrained or --weights"),
        (config.head_hidden, "--head-hidden", config.head == "mlp" or None, "--head mlp"),
        (config.cache_embeddings, "--cache-embeddings", head_alone(config) or None, "--freeze backbone all the time"),
        (config.cache_dtype, "--cache-dtype", head_alone(config) or None, "--freeze backbone all the time"),
        (config.cache_dir, "--cache-dir", head_alone(config) or reads_text(config) or None, "--freeze backbone"),
        (config.patience_metric, "--patience-metric", config.patience, "--patience"),
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
        (config.sync_bn and head_alone(config) and config.head == "linear", "--sync-bn", "--freeze backbone"),
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
            f"--freeze-epochs {config.freeze_epochs}: the run has {plural(config.epochs or EPOCHS, 'epoch')}, "
            "so that nothing "
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
    for name in (*OF_IMAGES, *augmentation.FIELDS, "no_aug"):
        if getattr(config, name) != defaults[name]:
            raise UsageError(f"{augmentation.flag(name)} has no effect on texts (--arch {config.arch}); leave it out")
    if chosen_backend(config.loader) != "native":
        raise UsageError(f"--loader {config.loader}: reads images; texts are read by fastimg's own, leave it out")
    if config.pretrained:
        raise UsageError(f"--pretrained has no effect: {config.arch} comes with its weights; leave it out")


def check_device(config: Train, device: str) -> None:
    """Refuse what the run's device (its type) cannot do, or would do without effect."""
    if config.compile == "reduce-overhead" and device != "cuda":
        raise UsageError(
            f"--compile reduce-overhead: has no effect on {device}, it is CUDA graphs; use --compile default"
        )
    if config.augment_stream != "auto" and device != "cuda":
        raise UsageError(f"--augment-stream has no effect on {device}, which has one stream; leave it out")
    if config.decode != "gpu":
        return
    if device != "cuda":
        raise UsageError(f"--decode gpu: the run is on {device}; start it on a CUDA device, or leave --decode out")
    if not nvcodec.installed():
        raise UsageError(
            f"--decode gpu needs nvImageCodec, which is not installed: {nvcodec.INSTALL}; or leave --decode out"
        )
