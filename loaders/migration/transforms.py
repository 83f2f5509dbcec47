"""A torchvision transform -> what the loader does itself: a crop, a flip, a type, a normalisation.

Transforms are known by their names and attributes: torchvision is not imported, which would take seconds.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NoReturn, cast

import torch

from fastimg.loaders.crop import CenterCrop, Interpolation, RandomResizedCrop, Window, pair

from .steps import CannotTakeOver, augmentation, is_given

_KNOWN = (
    "RandomResizedCrop, Resize((height, width)), Resize(side) before CenterCrop, flips, TrivialAugmentWide, "
    "RandAugment, AutoAugment, ColorJitter, RandomGrayscale, ToTensor or PILToTensor, ToImage, "
    "ToDtype(torch.float32, scale=True), ConvertImageDtype(torch.float32), Normalize and RandomErasing"
)
_NOTHING = ("PILToTensor", "ToImage", "ToPureTensor", "Identity")  # images are tensors already


@dataclass(frozen=True, kw_only=True)
class Squash:
    """torchvision's Resize((height, width)): the whole image, whatever its shape becomes. See `CropRule`."""

    size: tuple[int, int]
    interpolation: Interpolation = "bilinear"
    draws: int = 0

    def window(self, width: int, height: int, draws: Sequence[float]) -> Window:
        """See `CropRule`."""
        return Window((0, 0, width, height), (self.size[1], self.size[0]), (0, 0))


@dataclass(frozen=True)
class ImageTransform:
    """What a torchvision transform does to images."""

    crop: RandomResizedCrop | CenterCrop | Squash
    flip: float = 0.0  # probability
    scaled: bool = False  # float32 from 0 to 1; else uint8
    mean: tuple[float, ...] | None = None  # one per channel; None: not normalised
    std: tuple[float, ...] | None = None
    policies: tuple[Any, ...] = ()  # one after the other, on uint8
    erasing: Any = None  # the policy that normalises and erases


def translated(transform: Any) -> ImageTransform:
    """The transform, of torchvision.transforms or its v2, or a sequence of them, as a value.

    Raises ValueError, with what to do, for any other transform, and where one lacks that makes images equal in size.
    """
    found: ImageTransform | None = None
    resize: Any = None  # waits for its CenterCrop
    flip, scaled = 0.0, False
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    policies: list[Any] = []
    erasing: Any = None  # RandomErasing, and whether Normalize came before it
    for step in _flat(transform):
        name = type(step).__name__
        if not type(step).__module__.startswith("torchvision.transforms"):
            _refuse(getattr(step, "__name__", name))
        if resize is not None and name != "CenterCrop":
            _refuse("Resize(side) without CenterCrop right after it (or give Resize((height, width)))")
        if found is not None and name in ("RandomResizedCrop", "Resize", "CenterCrop"):
            _refuse(f"{name} after another crop")
        if mean is not None and name == "Normalize":
            _refuse("Normalize, the second time")
        match name:
            case "RandomResizedCrop":
                found = ImageTransform(
                    RandomResizedCrop(
                        size=pair(step.size),
                        scale=(float(step.scale[0]), float(step.scale[1])),
                        ratio=(float(step.ratio[0]), float(step.ratio[1])),
                        interpolation=_interpolation(step),
                    )
                )
            case "Resize" if isinstance(step.size, Sequence) and len(step.size) == 2:
                found = ImageTransform(Squash(size=pair(step.size), interpolation=_interpolation(step)))
            case "Resize":
                resize = step
            case "CenterCrop":
                found = ImageTransform(_center(resize, step))
                resize = None
            case "RandomHorizontalFlip":
                flip = flip + step.p - 2 * flip * step.p  # of one or several: an odd number of them
            case "ToTensor":
                scaled = True
            case "ToDtype" | "ConvertImageDtype":
                if step.dtype is not torch.float32 or not getattr(step, "scale", True):
                    _refuse(f"{name} that is not to torch.float32 from 0 to 1")
                scaled = True
            case "Normalize":
                if not scaled:
                    _refuse("Normalize of uint8 (put ToTensor before it)")
                mean, std = (
                    values * 3 if len(values) == 1 else values for values in map(_floats, (step.mean, step.std))
                )
                if not len(mean) == len(std) == 3 or 0.0 in std:
                    _refuse("Normalize without one or three values for RGB, or with a std of 0")
            case "RandomErasing":
                if not scaled:
                    _refuse("RandomErasing of uint8 (put ToTensor before it)")
                if erasing is not None:
                    _refuse("RandomErasing, the second time")
                erasing = (step, mean is not None)
            case _ if name not in _NOTHING:
                if found is None or scaled:
                    _refuse(f"{name} {'after ToTensor' if scaled else 'before the crop'}" if name in _MOVED else name)
                policies.append(_policy(step))
    if resize is not None:
        _refuse("Resize(side) without CenterCrop right after it (or give Resize((height, width)))")
    if found is None:
        _refuse(
            "a transform without RandomResizedCrop, CenterCrop or Resize((height, width)), which make all images of a "
            "batch equal in size"
        )
    erases = None if erasing is None else _erasing(erasing[0], mean, std, erasing[1])
    return replace(found, flip=flip, policies=tuple(policies), scaled=scaled, mean=mean, std=std, erasing=erases)


_MOVED = ("TrivialAugmentWide", "RandAugment", "AutoAugment", "ColorJitter", "RandomVerticalFlip", "RandomGrayscale")


def _policy(step: Any) -> Any:
    """The policy of a step. Raises ValueError."""
    if not is_given():
        _refuse(type(step).__name__)
    try:
        return augmentation().policy_of(step)
    except CannotTakeOver as error:
        _refuse(str(error))
    except ValueError as error:
        _refuse(f"{type(step).__name__} ({error})")


def _erasing(step: Any, mean: Any, std: Any, normalised: bool) -> Any:
    if not is_given():
        _refuse("RandomErasing")
    try:
        return augmentation().erasing_of(step, mean, std, normalised)
    except CannotTakeOver as error:
        _refuse(str(error))
    except ValueError as error:
        _refuse(f"RandomErasing with these numbers ({error})")


def _flat(transform: Any) -> Iterator[Any]:
    """The steps of a Compose, of those in it, or of a sequence."""
    if type(transform).__name__ == "Compose" or isinstance(transform, Sequence):
        for step in getattr(transform, "transforms", transform):
            yield from _flat(step)
    else:
        yield transform


def _center(resize: Any, crop: Any) -> CenterCrop:
    if resize is None:
        _refuse("CenterCrop without Resize right before it")
    sides = resize.size if isinstance(resize.size, Sequence) else [resize.size]
    if len(sides) != 1 or getattr(resize, "max_size", None) is not None:
        _refuse(f"Resize({resize.size}), which does not keep the aspect ratio (give Resize(side))")
    return CenterCrop(size=pair(crop.size), resize=int(sides[0]), interpolation=_interpolation(resize))


def _interpolation(step: Any) -> Interpolation:
    value = getattr(step.interpolation, "value", step.interpolation)
    if value not in ("bilinear", "bicubic") or getattr(step, "antialias", True) is False:
        _refuse(f"{type(step).__name__} with {value} and antialias={getattr(step, 'antialias', True)}")
    return cast(Interpolation, value)


def _floats(values: Any) -> tuple[float, ...]:
    return tuple(map(float, values))


def _refuse(what: str) -> NoReturn:
    raise ValueError(
        f"ImageFolderLoader cannot take over {what}; it does {_KNOWN}. Leave it out, and apply it to the batches"
    )
