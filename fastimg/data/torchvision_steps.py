"""torchvision's augmentation -> the policies of `fastimg.augment` that do the same, and their use on batches.

A script that comes from torchvision has reading and augmentation in one transform. `fastimg.loaders` reads; this is the
`Augmentation` (`loaders/migration/steps`) that it is given for the rest.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from fastimg.augment import Policy, apply, draw
from fastimg.loaders.migration.steps import CannotTakeOver

Ids = npt.NDArray[np.int64]
_AUTO = {"imagenet": "tvauto-imagenet", "cifar10": "tvauto-cifar10", "svhn": "tvauto-svhn"}
_PLAIN = {"mean": (0.0, 0.0, 0.0), "std": (1.0, 1.0, 1.0)}


def policy_of(step: Any) -> Policy:
    """The policy of a step on uint8 images, before they are scaled.

    Raises CannotTakeOver for a step, or arguments of one, that has none.
    """
    name = type(step).__name__
    if name not in POLICIES:
        raise CannotTakeOver(name)
    return Policy(**POLICIES[name](step), mean=_PLAIN["mean"], std=_PLAIN["std"])


def erasing_of(step: Any, mean: Sequence[float] | None, std: Sequence[float] | None, normalised: bool) -> Policy:
    """The policy that normalises and erases. `normalised`: Normalize comes before RandomErasing, not after it."""
    value = step.value
    if not isinstance(value, int | float | tuple | list):
        raise CannotTakeOver(f"RandomErasing(value={value!r}) (give numbers)")
    values = [float(each) for each in value] if isinstance(value, tuple | list) else [float(value)]
    values = values * 3 if len(values) == 1 else values
    mean, std = mean or _PLAIN["mean"], std or _PLAIN["std"]
    if not normalised:
        values = [(each - m) / s for each, m, s in zip(values, mean, std, strict=True)]
    (smallest, largest), (narrowest, widest) = map(float, step.scale), map(float, step.ratio)
    return Policy(
        erase=float(step.p),
        erase_scale=(smallest, largest),
        erase_ratio=(narrowest, widest),
        erase_value=tuple(values),
        mean=tuple(mean),
        std=tuple(std),
    )


def augmented(images: torch.Tensor, policies: Sequence[Policy], ids: Ids, seed: int, epoch: int) -> torch.Tensor:
    """uint8 images [B, 3, H, W] after one policy after the other, each with draws of its own."""
    for view, policy in enumerate(policies):
        images = apply(draw(policy, ids, seed, epoch, view), images, dtype=torch.uint8)
    return images


def erased(images: torch.Tensor, policy: Policy, ids: Ids, seed: int, epoch: int) -> torch.Tensor:
    """uint8 images [B, 3, H, W] as float32, normalised and erased."""
    return apply(draw(policy, ids, seed, epoch), images).contiguous()


def _trivial(step: Any) -> dict[str, Any]:
    _check_nearest(step)
    if step.num_magnitude_bins != 31:
        raise CannotTakeOver("TrivialAugmentWide with other than 31 bins")
    return {"trivial": True}


def _rand(step: Any) -> dict[str, Any]:
    _check_nearest(step)
    return {"named": f"tvrand-n{step.num_ops}-m{step.magnitude}-b{step.num_magnitude_bins}"}


def _auto(step: Any) -> dict[str, Any]:
    _check_nearest(step)
    return {"named": _AUTO[step.policy.value]}


def _check_nearest(step: Any) -> None:
    """Outside of an image that is moved is black, and pixels are the nearest ones: torchvision's defaults."""
    name, fill = type(step).__name__, getattr(step, "fill", None)
    fills = fill.values() if isinstance(fill, Mapping) else [fill]
    if any(each is not None and np.any(np.asarray(each) != 0) for each in fills):
        raise CannotTakeOver(f"{name} with a fill")
    if getattr(step.interpolation, "value", step.interpolation) != "nearest":
        raise CannotTakeOver(f"{name} with {step.interpolation}")


def _jitter(step: Any) -> dict[str, Any]:
    found: dict[str, Any] = {
        name: tuple(map(float, limits))
        for name in ("brightness", "contrast", "saturation")
        if (limits := getattr(step, name)) is not None
    }
    if step.hue is not None:
        low, high = map(float, step.hue)
        if not math.isclose(low, -high):
            raise CannotTakeOver(f"ColorJitter(hue={step.hue}) (give one number)")
        found["hue"] = high
    return found


POLICIES: dict[str, Callable[[Any], dict[str, Any]]] = {
    "TrivialAugmentWide": _trivial,
    "RandAugment": _rand,
    "AutoAugment": _auto,
    "ColorJitter": _jitter,
    "RandomVerticalFlip": lambda step: {"vflip": float(step.p)},
    "RandomGrayscale": lambda step: {"grayscale": float(step.p)},
}
