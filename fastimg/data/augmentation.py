"""Augmentation that was chosen, in words and as the policy that draws it.

The order in which things happen is Policy's, whatever the order of a list: crop, flips and rotation (one resampling
with TrivialAugment's warp, or with the first of a named policy), a policy by timm's name, brightness, contrast,
saturation, hue, TrivialAugment, grey, blur, solarizing, then Kornia's in the list's order, on images in [0, 1] that are
not normalised yet; then normalisation, erasing, and mixup or cutmix.
"""

from fastimg.augment.policy import Policy
from fastimg.config.augmentation import JITTER, TRIVIAL, arguments_shown, listed
from fastimg.config.commands import Augmenting
from fastimg.wording import plural


def order_note(config: Augmenting) -> str:
    """A sentence where a list's order is not the order in which things happen, else empty."""
    if not isinstance(config.augmentation, list):
        return ""
    said = listed(config.augmentation)
    if said.order == said.sorted:
        return ""
    return f"augmentation: whatever the list's order, it happens as {', '.join(said.sorted)}"


def policy_of(config: Augmenting, mean: tuple[float, ...], std: tuple[float, ...], as_stored: bool = False) -> Policy:
    """The policy of an effective configuration. With `as_stored`, mean and std are in the units of the values."""
    return Policy(
        hflip=config.hflip or 0.0,
        hflip_alternates=config.alternating_flip,
        vflip=config.vflip or 0.0,
        rotate=config.rotate or 0.0,
        brightness=config.brightness or (1.0, 1.0),
        contrast=config.contrast or (1.0, 1.0),
        saturation=config.saturation or (1.0, 1.0),
        hue=config.hue or 0.0,
        trivial="gray" if config.aa == "trivial-gray" else config.aa == "trivial",
        named=config.aa if config.aa and config.aa not in (*TRIVIAL, "none") else "",
        grayscale=config.grayscale_prob or 0.0,
        blur=config.gaussian_blur_prob or 0.0,
        solarize=config.solarize_prob or 0.0,
        erase=config.reprob or 0.0,
        mixup=config.mixup or 0.0,
        cutmix=config.cutmix or 0.0,
        mean=mean,
        std=std,
        as_stored=as_stored,
    )


def sentence(config: Augmenting, crop: int | None) -> str:
    """An effective configuration in words, in the order in which things happen."""
    if config.no_aug:
        return "no augmentation (validation's crops)"
    words = []
    if config.scale is not None and config.ratio is not None:  # synthetic pixels are not cropped
        words = [
            f"random resized crop {crop} (scale {config.scale[0]:g} to {config.scale[1]:g}, "
            f"ratio {config.ratio[0]:.3g} to {config.ratio[1]:.3g})"
        ]
    if config.crop_padding is not None:
        words = [f"random crop {crop} of the image mirrored by {plural(config.crop_padding, 'pixel')} at its edges"]
    words += [f"hflip {config.hflip or 0:g}{', alternating' if config.alternating_flip else ''}"]
    words += [f"vflip {config.vflip:g}"] if config.vflip else []
    words += [f"rotate {config.rotate:g} degrees to either side"] if config.rotate else []
    words += [config.aa] if config.aa and config.aa not in TRIVIAL else []
    words += [f"{name} {value[0]:g} to {value[1]:g}" for name in JITTER if (value := getattr(config, name))]
    words += [f"hue by up to {config.hue:g}"] if config.hue else []
    words += ["TrivialAugment"] if config.aa == "trivial" else []
    words += ["TrivialAugment without Color"] if config.aa == "trivial-gray" else []
    words += [f"grayscale {config.grayscale_prob:g}"] if config.grayscale_prob else []
    words += [f"gaussian blur {config.gaussian_blur_prob:g}"] if config.gaussian_blur_prob else []
    words += [f"solarize {config.solarize_prob:g}"] if config.solarize_prob else []
    for entry in config.kornia or []:
        words += [f"Kornia's {name}({arguments_shown(given)})" for name, given in entry.items()]
    words += [f"erasing {config.reprob:g}"] if config.reprob else []
    mixes = [f"{name} {value:g}" for name in ("mixup", "cutmix") if (value := getattr(config, name))]
    return ", ".join([*words, *([" or ".join(mixes)] if mixes else [])])
