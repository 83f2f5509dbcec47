"""torchvision's augmentation -> the policies of `fastimg.augment` that do the same, and their use on batches.

A script that comes from torchvision has reading and augmentation in one transform. `fastimg.loaders` reads; this is the
`Augmentation` (`loaders/migration/steps`) that it is given for the rest.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from fastimg.augment import Policy, apply, backends, draw, mix
from fastimg.augment.backends import look_up
from fastimg.augment.ops import Op
from fastimg.data import timm_steps
from fastimg.loaders.migration.steps import CannotTakeOver, owned

from . import ffcv_steps
from .erasing import NoiseErasing
from .torchvision_operations import Blur, Changed, OneOf, Shuffled, Step, carried_out

Ids = npt.NDArray[np.int64]
_AUTO = {"imagenet": "tvauto-imagenet", "cifar10": "tvauto-cifar10", "svhn": "tvauto-svhn"}
_PLAIN: dict[str, Any] = {"mean": (0.0, 0.0, 0.0), "std": (1.0, 1.0, 1.0)}


def policy_of(step: Any) -> Step:
    """The policy of a step on uint8 images, before they are scaled, or what does the same where no policy does.

    Raises CannotTakeOver for a step, or arguments of one, that has none.
    """
    name = type(step).__name__
    if is_timms(step):
        return timm_steps.policy_of(step)
    if type(step).__module__.startswith("ffcv.") and name in ffcv_steps.STEPS:
        return ffcv_steps.STEPS[name](step)
    if not type(step).__module__.startswith("torchvision.transforms."):
        theirs = f"give torchvision's {name}, or do it to each image of a batch with then="
        raise CannotTakeOver(owned(step), theirs if name in STEPS or name in POLICIES else "")
    if name in STEPS:
        return STEPS[name](step)
    if name not in POLICIES:
        raise CannotTakeOver(name, _WAYS_OUT.get(name, ""))
    policy = Policy(**POLICIES[name](step), **_PLAIN)
    jitters = sum(getattr(policy, each) != (1.0, 1.0) for each in ("brightness", "contrast", "saturation"))
    return Shuffled(policy) if name == "ColorJitter" and jitters + bool(policy.hue) > 1 else policy


def is_timms(step: Any) -> bool:
    """Whether a step is one of timm's, some of which are called as torchvision's are."""
    return type(step).__module__.startswith("timm.")


def erasing_of(
    step: Any, mean: Sequence[float] | None, std: Sequence[float] | None, normalised: bool
) -> Policy | NoiseErasing:
    """The policy that normalises and erases. `normalised`: Normalize comes before RandomErasing, not after it."""
    if is_timms(step):
        if mean is not None and not normalised:
            raise CannotTakeOver("RandomErasing of timm before Normalize", "put it after Normalize")
        return timm_steps.erasing_of(step, mean, std)
    mean, std = tuple(mean or _PLAIN["mean"]), tuple(std or _PLAIN["std"])
    (smallest, largest), (narrowest, widest) = map(float, step.scale), map(float, step.ratio)
    value = step.value
    if value is None or value == "random":  # of v2 and v1
        return NoiseErasing(
            normalise=Policy(mean=mean, std=std),
            probability=float(step.p),
            area=(smallest, largest),
            log_ratio=(math.log(narrowest), math.log(widest)),
            least=1,
            most=1,
            mode="pixel",
            before=not normalised,
        )
    values = [float(each) for each in value] if isinstance(value, Sequence) else [float(value)]
    if len(values) not in (1, 3):
        raise CannotTakeOver(f"RandomErasing(value={value!r})", "give one number, three for RGB, or 'random'")
    values = values * 3 if len(values) == 1 else values
    if not normalised:
        values = [(each - m) / s for each, m, s in zip(values, mean, std, strict=True)]
    return Policy(
        erase=float(step.p),
        erase_scale=(smallest, largest),
        erase_ratio=(narrowest, widest),
        erase_value=tuple(values),
        mean=mean,
        std=std,
    )


def seconds_to_compile(policies: Sequence[Step]) -> float:
    """About how long the code that applies these on a CPU takes to compile; 0 if that was done before, on this machine.

    Wrappers of policies count as operations that take longest.
    """
    one = torch.zeros(1, dtype=torch.int64)
    plans = [draw(each if isinstance(each, Policy) else Policy(trivial=True), one, 0, 0) for each in policies]
    return max((backends.seconds_to_compile(plan) for plan in plans), default=0.0)


def compiling_nothing() -> AbstractContextManager[None]:
    """Inside the block policies are applied on a CPU without compiled code, to the same bits."""
    return backends.compiling_nothing()


def augmented(
    images: torch.Tensor, policies: Sequence[Step], ids: Ids, seed: int, epoch: int, first: int = 0
) -> torch.Tensor:
    """uint8 images [B, 3, H, W] after one policy after the other, each with draws of its own: views from `first` on."""
    return carried_out(policies, images, ids, seed, epoch, first)


def normalised(
    images: torch.Tensor,
    policy: Policy | NoiseErasing,
    dtype: torch.dtype,
    ids: Ids,
    seed: int,
    epoch: int,
    view: int,
) -> torch.Tensor:
    """uint8 images [B, C, H, W] after a policy that normalises, channels-last, or after a `NoiseErasing`."""
    if isinstance(policy, NoiseErasing):
        return policy(images, dtype, ids, seed, epoch, view)
    return apply(draw(policy, ids, seed, epoch, view), images, dtype=dtype)


def mixed(
    images: torch.Tensor,
    targets: torch.Tensor,
    policy: Policy,
    num_classes: int,
    smoothing: float,
    dtype: torch.dtype,
    ids: Ids,
    seed: int,
    epoch: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    """uint8 images after a policy that normalises and mixes, and targets float32 [B, num_classes]."""
    return mix(draw(policy, ids, seed, epoch), images, targets, num_classes, smoothing, dtype=dtype)


def looked_up(images: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    """uint8 images [B, 3, H, W] -> what a table [3, 256] has for each channel and level, channels-last."""
    return look_up(images, table)


def collated(
    images: torch.Tensor, targets: torch.Tensor, mixup: Any, ids: Ids, seed: int, epoch: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """uint8 images and classes as timm's FastCollateMixup makes them: uint8, and float32 [B, num_classes]."""
    return timm_steps.mixed(images, targets, mixup, ids, seed, epoch)


def softened(targets: torch.Tensor, num_classes: int, smoothing: float) -> torch.Tensor:
    """Classes int64 [B] as float32 [B, num_classes]."""
    nothing = torch.empty((len(targets), 1, 1, 1), device=targets.device)  # only targets are asked for
    return mix(None, nothing, targets, num_classes, smoothing)[1]


def _trivial(step: Any) -> dict[str, Any]:
    _check_nearest(step)
    if step.num_magnitude_bins != 31:
        raise CannotTakeOver(
            f"TrivialAugmentWide(num_magnitude_bins={step.num_magnitude_bins})", "leave num_magnitude_bins out, for 31"
        )
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
        raise CannotTakeOver(f"{name} with a fill", "leave fill out, for black")
    if getattr(step.interpolation, "value", step.interpolation) != "nearest":
        raise CannotTakeOver(f"{name} with {step.interpolation}", "leave interpolation out, for the nearest pixels")


def _jitter(step: Any) -> dict[str, Any]:
    found: dict[str, Any] = {
        name: tuple(map(float, limits))
        for name in ("brightness", "contrast", "saturation")
        if (limits := getattr(step, name)) is not None
    }
    if step.hue is not None:
        low, high = map(float, step.hue)
        if not math.isclose(low, -high):
            raise CannotTakeOver(f"ColorJitter(hue={step.hue})", "give one number")
        found["hue"] = high
    return found


def _rotation(step: Any) -> dict[str, Any]:
    _check_nearest(step)
    low, high = map(float, step.degrees)
    if step.expand or step.center is not None or not math.isclose(low, -high):
        raise CannotTakeOver(
            "RandomRotation that is not by up to an angle to either side, about the centre",
            "give one number, as in RandomRotation(30), without expand and center",
        )
    return {"rotate": high}


def _grayscale(step: Any) -> dict[str, Any]:
    if step.num_output_channels != 3:
        raise CannotTakeOver("Grayscale to one channel", "give num_output_channels=3")
    return {"grayscale": 1.0}


def _blur(step: Any) -> Blur:
    across, down = map(int, step.kernel_size)
    low, high = map(float, step.sigma)
    return Blur((across, down), (low, high))


def _apply(step: Any) -> OneOf:
    return OneOf((float(step.p),), (_sequence(step, step.transforms),))


def _choice(step: Any) -> OneOf:
    weights = np.asarray([1.0] * len(step.transforms) if step.p is None else step.p, np.float64)
    chances = tuple((weights / weights.sum()).tolist())
    return OneOf(chances, tuple(_sequence(step, [each]) for each in step.transforms))


def _sequence(owner: Any, given: Any) -> tuple[Step, ...]:
    """The steps that another one has: each of them, and those of a Compose or a Sequential."""
    found: list[Step] = []
    for step in given:
        name = type(step).__name__
        if name in ("Compose", "Sequential"):
            found += _sequence(owner, step.transforms if name == "Compose" else step.children())
        elif name != "Identity":
            try:
                found.append(policy_of(step))
            except CannotTakeOver as error:
                raise CannotTakeOver(f"{error.what} within {type(owner).__name__}", error.remedy) from None
    return tuple(found)


def _changed(op: Op, magnitude: str = "") -> Callable[[Any], Changed]:
    """One of torchvision's random operations, whose strength is an attribute."""
    return lambda step: Changed(op, float(getattr(step, magnitude)) if magnitude else 0.0, float(step.p))


def _solarized(step: Any) -> Changed:
    threshold = math.ceil(float(step.threshold))  # levels are whole numbers
    if not 0 <= threshold <= 256:
        raise CannotTakeOver(f"RandomSolarize(threshold={step.threshold})", "give a level from 0 to 256")
    return Changed(Op.SOLARIZE, float(threshold), float(step.p))


_WAYS_OUT = {
    **dict.fromkeys(
        ("RandomAffine", "RandomPerspective", "ElasticTransform"),
        "give RandomRotation in its place, or do it to each image of a batch with then=",
    ),
    "Lambda": "leave it out if it makes images RGB, which they are; otherwise give what it does to a batch as then=",
    "RandomOrder": "give the steps in an order",
    "AugMix": 'give Policy(named="augmix-m3-w3") to Loader(...).tuples',
}
STEPS: dict[str, Callable[[Any], Step]] = {
    "GaussianBlur": _blur,
    "RandomApply": _apply,
    "RandomChoice": _choice,
    "RandomSolarize": _solarized,
    "RandomPosterize": _changed(Op.POSTERIZE, "bits"),
    "RandomAdjustSharpness": _changed(Op.SHARPNESS, "sharpness_factor"),
    "RandomInvert": _changed(Op.INVERT),
    "RandomEqualize": _changed(Op.EQUALIZE),
    "RandomAutocontrast": _changed(Op.AUTOCONTRAST),
}
POLICIES: dict[str, Callable[[Any], dict[str, Any]]] = {
    "TrivialAugmentWide": _trivial,
    "RandAugment": _rand,
    "AutoAugment": _auto,
    "ColorJitter": _jitter,
    "RandomHorizontalFlip": lambda step: {"hflip": float(step.p)},  # within another step
    "RandomVerticalFlip": lambda step: {"vflip": float(step.p)},
    "RandomRotation": _rotation,
    "Grayscale": _grayscale,
    "RandomGrayscale": lambda step: {"grayscale": float(step.p)},
}
