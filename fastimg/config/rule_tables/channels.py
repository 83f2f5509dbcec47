"""Checks of what concerns the channels and the depth of images: gray ones, 16 bits, and bands of a field."""

import math
from collections.abc import Callable
from typing import Any

from fastimg.augment.named import can_be_gray, parse
from fastimg.config import augmentation
from fastimg.config.augmentation import JITTER
from fastimg.config.intent import plain
from fastimg.config.rules import Check
from fastimg.config.training import Train
from fastimg.loaders.backends.settings import RGB_ONLY

from .ranges import is_above_zero, is_share, is_share_above_zero

# Fields of Train that are about pixels, beside those of augmentation.
IMAGE_FIELDS = (
    *("decode", "dct_scaling", "max_pixels", "img_size", "train_crop_size", "val_crop_size", "val_resize_size"),
    *(
        "crop_pct",
        "interpolation",
        "in_chans",
        "image_field",
        "depth",
        "mean",
        "std",
        "progressive",
        "progressive_epochs",
        "tta",
        "blurpool",
        "drop_path",
    ),
    "resident",
)

# Augmentation that looks levels up in tables of 8 bits, or needs statistics of them.
CHANGES_LEVELS = ("aa", *JITTER, "hue", "grayscale_prob", "gaussian_blur_prob", "solarize_prob")


def check_gray(config: Train) -> str | None:
    """What does not go with images of one channel."""
    if config.in_chans != 1 or _sees_deep(config):
        return None
    if config.loader in RGB_ONLY or config.resident:
        where = "--resident keeps" if config.resident else f"--loader {config.loader} makes"
        return f"{where} only RGB images; leave it out"
    if config.decode == "gpu":
        return "--decode gpu makes only RGB images; leave it out"
    chosen = augmentation.effective(config, plain(config))
    for name in ("saturation", "hue", "grayscale_prob"):
        if chosen[name]:
            said = f"--{name.replace('_', '-')}"
            said = (
                "--color-jitter with a third number above 0" if config.color_jitter and name == "saturation" else said
            )
            return f"{said} changes colours, which gray images do not have; leave it out"
    if chosen["kornia"]:
        return "Kornia's augmentations take RGB images; leave them out"
    policy = chosen["aa"]
    if policy == "trivial":
        return "--aa trivial has the operation Color, and gray images have no colours; use --aa trivial-gray"
    if policy not in (None, "trivial-gray") and (coloured := parse(policy).colours):
        remedy = f"use --aa {policy}-gray" if can_be_gray(policy) else "use --aa trivial-gray or rand-m9-gray"
        return f"--aa {policy} has the operation {coloured[0]}, and gray images have no colours; {remedy}"
    return None


def _sees_deep(config: Any) -> bool:
    """Whether the model sees bands, or images of 16 bits."""
    return getattr(config, "image_field", None) is not None or getattr(config, "depth", None) == 16


def deep_check(what: str, given: Callable[[Train], bool], field: str) -> Check:
    """What does not go with images of 16 bits (`field` depth), or with bands (image_field): `what` they are."""

    def check(config: Train) -> str | None:
        if not given(config):
            return None
        if config.loader not in ("auto", "native") or config.resident or config.decode == "gpu":
            flag = "--resident" if config.resident else "--decode gpu" if config.decode == "gpu" else ""
            return f"{what} are read by fastimg's own loader alone; leave {flag or f'--loader {config.loader}'} out"
        chosen = augmentation.effective(config, plain(config))
        for name in CHANGES_LEVELS:
            if chosen[name]:
                said = f"--{name.replace('_', '-')}" + (f" {chosen['aa']}" if name == "aa" else "")
                said = "--color-jitter" if config.color_jitter and name in JITTER else said
                return f"{said} changes levels of 8 bits, and {what} have others; leave it out"
        return "Kornia's augmentations take RGB images of 8 bits; leave them out" if chosen["kornia"] else None

    return Check(field, check)


def check_bands_alone(config: Train) -> str | None:
    """What reads images beside, or in place of, the field."""
    if config.image_field is None:
        return None
    if config.depth is not None:
        return f"its values have the type that they are stored in; leave --depth {config.depth} out"
    if config.text_arch is not None:
        return "--text-arch reads texts beside images, not beside arrays; leave one of them out"
    if config.teacher is not None:
        return "--teacher sees images; leave one of them out"
    return None


def check_channel_count(config: Train) -> str | None:
    if config.in_chans is None or config.image_field is not None or config.in_chans in (1, 3):
        return None
    return "give 1 for gray or 3 for RGB; of other bands name their field with --image-field"


def check_means(config: Train) -> str | None:
    values = config.mean
    if values is None or all(map(math.isfinite if config.image_field is not None else is_share, values)):
        return None
    return "give finite numbers" if config.image_field is not None else "give shares of white, from 0 to 1"


def check_deviations(config: Train) -> str | None:
    values = config.std
    if values is None or all(map(is_above_zero if config.image_field is not None else is_share_above_zero, values)):
        return None
    return "give numbers above 0" if config.image_field is not None else "give shares of white, above 0 and up to 1"
