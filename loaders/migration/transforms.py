"""A torchvision transform -> what the loader does itself: a crop, a flip, a type, a normalisation.

Transforms are known by their names and attributes: torchvision is not imported, which would take seconds.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, NoReturn, cast

import torch

from fastimg.loaders.crop import CenterCrop, CropRule, Interpolation, RandomResizedCrop, pair

from .crops import FreeCrop, KeepRatio, Squash, Whole
from .filters import EitherFilter
from .finish import Finish
from .steps import CannotTakeOver, augmentation, is_given, owned

_THEN = "leave it out, and do it to each image of a batch with then=, a function of (images, targets)"
# images are tensors already, and RGB
_NOTHING = ("PILToTensor", "MaybePILToTensor", "ToImage", "ToPureTensor", "RGB", "Identity")


@dataclass(frozen=True)
class ImageTransform:
    """What a torchvision transform does to images."""

    crop: CropRule
    finish: Finish


def translated(transform: Any, size: Callable[[], tuple[int, int]] | None = None) -> ImageTransform:
    """The transform, of torchvision.transforms or its v2 or of timm, or a sequence of them, as a value.

    `size` tells the first image's (height, width), which is asked for where nothing makes images equal in size.

    Raises ValueError, with what to do, for any other transform, and where one lacks that makes images equal in size.
    """
    crop: CropRule | None = None
    resize: Any = None  # waits for its crop
    pad: Any = None  # waits for its RandomCrop
    flip, vertical, scaled = 0.0, 0.0, False
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    policies: list[Any] = []
    erasing: Any = None  # RandomErasing, and whether Normalize came before it
    for name, step in _steps(transform):
        keeps = type(resize).__name__ == "ResizeKeepRatio"
        if resize is not None and name not in (_AFTER_KEEPING if keeps else _MAY_FOLLOW):
            _refuse_alone(resize)
        if pad is not None and name not in _MAY_FOLLOW - {"CenterCrop", "Pad"}:
            _refuse(*_ALONE_PAD)
        if crop is not None and name in _CROPS:
            resize, crop = _again(crop, name), None
        if mean is not None and name == "Normalize":
            _refuse("Normalize, the second time", "give one Normalize that does what both do")
        if mean is not None and name in ("CenterCrop", "RandomCrop", "Pad"):
            _refuse(f"{name} after Normalize", "put it before ToTensor")
        match name:
            case "RandomResizedCrop" | "RandomResizedCropAndInterpolation":
                either = isinstance(step.interpolation, tuple)  # timm's "random"
                box = RandomResizedCrop(
                    size=pair(step.size),
                    scale=(float(step.scale[0]), float(step.scale[1])),
                    ratio=(float(step.ratio[0]), float(step.ratio[1])),
                    interpolation="bilinear" if either else _interpolation(step),
                )
                crop = EitherFilter(crop=box) if either else box
            case "Resize" if isinstance(step.size, Sequence) and len(step.size) == 2:
                crop = Squash(size=pair(step.size), interpolation=_interpolation(step))
            case "Resize" | "ResizeKeepRatio":
                resize = step
            case "CenterCrop" | "CenterCropOrPad" | "RandomCropOrPad" if keeps:
                crop, resize = _keeping_ratio(resize, step, name), None
            case "CenterCrop":
                crop, resize = _center(resize, step), None
            case "Pad":
                if crop is not None:
                    resize, crop = _again(crop, name), None
                pad = step
            case "RandomCrop":
                crop = _cut(resize, _padded(pad, step), scaled)
                resize = pad = None
                left, top, right, bottom = crop.padding
                if (flip and left != right) or (vertical and top != bottom):
                    _refuse("a flip before RandomCrop with unequal padding", "put the flip after the crop")
            case "RandomHorizontalFlip":
                flip = _either(flip, step.p)
            case "RandomVerticalFlip":
                vertical = _either(vertical, step.p)
            case "ToTensor" | "MaybeToTensor":
                scaled = True
            case "ToDtype" | "ConvertImageDtype" if _dtype(step) is torch.uint8 and not scaled:
                pass  # they are
            case "ToDtype" | "ConvertImageDtype":
                if _dtype(step) is not torch.float32 or not getattr(step, "scale", True):
                    _refuse(
                        f"{name} that is not to torch.float32 from 0 to 1",
                        f"give {name}(torch.float32{', scale=True' if name == 'ToDtype' else ''}), and change the "
                        "batches with then=",
                    )
                scaled = True
            case "Normalize":
                if not scaled:
                    _refuse("Normalize of uint8", "put ToTensor before it")
                mean, std = (
                    values * 3 if len(values) == 1 else values for values in map(_floats, (step.mean, step.std))
                )
                if not len(mean) == len(std) == 3 or 0.0 in std:
                    _refuse(
                        f"Normalize(mean={step.mean}, std={step.std})",
                        "give one value, or three for RGB, and no std of 0",
                    )
            case "RandomErasing":
                if not scaled:
                    _refuse("RandomErasing of uint8", "put ToTensor before it")
                if erasing is not None:
                    _refuse("RandomErasing, the second time")
                erasing = (step, mean is not None)
            case _ if name not in _NOTHING:
                policy = _policy(step)  # first: one that is refused anywhere is not to be moved
                if scaled:
                    _refuse(f"{name} after ToTensor", "put it before ToTensor")
                if crop is None and size is None:
                    _refuse(f"{name} before the crop", "put it after the crop")
                policies.append((name, policy))
        if name in _CROPS and name not in ("Resize", "ResizeKeepRatio") and policies:
            _refuse(f"{policies[0][0]} before the crop", "put it after the crop")
    if resize is not None:
        _refuse_alone(resize)
    if pad is not None:
        _refuse(*_ALONE_PAD)
    if crop is None:
        if size is None:
            _refuse(
                "a transform that leaves images unequal in size",
                "put RandomResizedCrop, CenterCrop or Resize((height, width)) into it",
            )
        crop = Whole(size=size())
    erases = None if erasing is None else _erasing(erasing[0], mean, std, erasing[1])
    finish = Finish(
        flip=flip,
        vertical=vertical,
        policies=tuple(policy for _, policy in policies),
        last=erases,
        scaled=scaled,
        mean=mean,
        std=std,
        channels_first=True,
    )
    return ImageTransform(crop, finish)


_AFTER_KEEPING = {"CenterCrop", "CenterCropOrPad", "RandomCropOrPad"}  # timm's
_CROPS = (
    *("RandomResizedCrop", "RandomResizedCropAndInterpolation", "Resize", "CenterCrop", "RandomCrop"),
    *("ResizeKeepRatio", "CenterCropOrPad", "RandomCropOrPad"),
)
_ALONE_PAD = ("Pad without RandomCrop right after it", "put RandomCrop there, or give RandomCrop its padding")
_MAY_FOLLOW = {"CenterCrop", "RandomCrop", "Pad", "RandomHorizontalFlip", "RandomVerticalFlip", "ToTensor", *_NOTHING}


def _either(first: float, second: float) -> float:
    """The probability of an odd number of two flips."""
    return first + second - 2 * first * second


def _again(crop: CropRule, name: str) -> SimpleNamespace:
    """Resize((height, width)), from which another crop is cut."""
    if not (name in ("CenterCrop", "RandomCrop", "Pad") and isinstance(crop, Squash)):
        _refuse(f"{name} after another crop")
    return SimpleNamespace(size=crop.size, interpolation=crop.interpolation)


def _padded(pad: Any, step: Any) -> Any:
    """A RandomCrop that pads as the Pad before it does."""
    if pad is None:
        return step
    if step.padding or step.pad_if_needed:
        _refuse("Pad before RandomCrop with padding of its own", "give all of the padding to one of them")
    sides = [pad.padding] if isinstance(pad.padding, int) else list(pad.padding)
    return SimpleNamespace(
        size=step.size,
        padding=(sides * 4)[:4],  # left, top, right, bottom
        padding_mode=pad.padding_mode,
        fill=pad.fill,
        pad_if_needed=False,
    )


def _policy(step: Any) -> Any:
    """The policy of a step. Raises ValueError."""
    if not is_given():
        _refuse(type(step).__name__)
    try:
        return augmentation().policy_of(step)
    except CannotTakeOver as error:
        _refuse(error.what, error.remedy)
    except ValueError as error:
        _refuse(f"{type(step).__name__} ({error})")


def _erasing(step: Any, mean: Any, std: Any, normalised: bool) -> Any:
    if not is_given():
        _refuse("RandomErasing")
    try:
        return augmentation().erasing_of(step, mean, std, normalised)
    except CannotTakeOver as error:
        _refuse(error.what, error.remedy)
    except ValueError as error:
        _refuse(f"RandomErasing with these numbers ({error})")


def _steps(transform: Any) -> Iterator[tuple[str, Any]]:
    """The name and attributes of each step: of a Compose, a Sequential or a sequence, and of those in it.

    Raises ValueError for what is not a class of torchvision or timm.
    """
    name, module = type(transform).__name__, type(transform).__module__
    library = module.startswith(("torchvision.transforms", "timm.data."))
    if (name == "Compose" and library) or isinstance(transform, Sequence):
        for step in getattr(transform, "transforms", transform):
            yield from _steps(step)
    elif module.startswith("torch.nn.modules.") and name == "Sequential":
        for step in transform.children():
            yield from _steps(step)
    elif name == "ImageClassification" and library:  # `weights.transforms()`
        yield "Resize", SimpleNamespace(size=transform.resize_size, interpolation=transform.interpolation)
        yield "CenterCrop", SimpleNamespace(size=transform.crop_size)
        yield "ToTensor", None
        yield "Normalize", SimpleNamespace(mean=transform.mean, std=transform.std)
    elif module.startswith("torch.nn.modules.") and name == "Identity":
        return
    elif not library:
        if any("transform" in attribute for attribute in getattr(transform, "__dict__", ())):
            views = "if it makes several crops, give views=[transform, transform] in its place; if it does not, "
            _refuse(owned(transform), views + _THEN)
        if is_given():
            _policy(transform)  # which names torchvision's of the same name
        _refuse(owned(transform))
    elif module.startswith("timm.data.") and name not in _TIMMS:
        _refuse(f"timm's {name}")
    else:
        yield name, transform


_TIMMS = (
    *("RandomErasing", "RandomResizedCropAndInterpolation", "MaybeToTensor", "MaybePILToTensor", "ResizeKeepRatio"),
    *("CenterCropOrPad", "RandomCropOrPad", "RandAugment", "AutoAugment", "AugMixAugment"),
)


def _center(resize: Any, crop: Any) -> CenterCrop | FreeCrop:
    size = pair(tuple(crop.size) * 2 if isinstance(crop.size, Sequence) and len(crop.size) == 1 else crop.size)
    side, interpolation = _resized(resize)
    if isinstance(side, int) and side >= max(size):
        return CenterCrop(size=size, resize=side, interpolation=interpolation)
    return FreeCrop(size=size, resize=side, interpolation=interpolation, draws=0)


def _keeping_ratio(resize: Any, step: Any, name: str) -> KeepRatio | EitherFilter:
    """timm's ResizeKeepRatio, and the crop after it."""
    fill = getattr(step, "fill", 0)
    levels = {fill} if isinstance(fill, int | float) else {*fill}
    if getattr(step, "padding_mode", "constant") == "reflect":
        levels = {None}
    elif len(levels) > 1:
        _refuse(f"{name} with fill={fill}", 'give crop_mode="squash" or "center"')
    either = isinstance(resize.interpolation, tuple)
    (level,) = levels
    crop = KeepRatio(
        size=pair(step.size),
        resize=pair(resize.size),
        longest=float(resize.longest),
        scale_chance=float(resize.random_scale_prob),
        scale=(float(resize.random_scale_range[0]), float(resize.random_scale_range[1])),
        scale_of_area=bool(resize.random_scale_area),
        aspect_chance=float(resize.random_aspect_prob),
        aspect=(float(resize.random_aspect_range[0]), float(resize.random_aspect_range[1])),
        anywhere=name == "RandomCropOrPad",
        fill=None if level is None else int(level),
        interpolation="bilinear" if either else _interpolation(resize),
    )
    return EitherFilter(crop=crop) if either else crop


def _resized(resize: Any) -> tuple[int | tuple[int, int] | None, Interpolation]:
    """The side, or (height, width), that a Resize makes, and its filter; None where there is no Resize."""
    if resize is None:
        return None, "bilinear"
    if getattr(resize, "max_size", None) is not None:
        _refuse(f"Resize with max_size={resize.max_size}", "give Resize((height, width)), or leave max_size out")
    sides = tuple(resize.size) if isinstance(resize.size, Sequence) else (resize.size,)
    return int(sides[0]) if len(sides) == 1 else pair(sides), _interpolation(resize)


def _cut(resize: Any, step: Any, scaled: bool) -> FreeCrop:
    """The RandomCrop of torchvision."""
    if step.padding_mode not in ("constant", "reflect"):
        _refuse(f"RandomCrop(padding_mode={step.padding_mode!r})", 'give "constant" or "reflect"')
    fills = [step.fill] if isinstance(step.fill, int | float) else step.fill
    if step.padding_mode == "constant" and (isinstance(fills, Mapping) or len({float(each) for each in fills}) != 1):
        _refuse(f"RandomCrop(fill={step.fill!r})", "give one number")
    level = None if step.padding_mode == "reflect" else round(float(fills[0]) * (255 if scaled else 1))
    side, interpolation = _resized(resize)
    return FreeCrop(
        size=pair(step.size),
        resize=side,
        padding=_sides(step),
        pads=bool(step.pad_if_needed),
        fill=level,
        interpolation=interpolation,
    )


def _sides(step: Any) -> tuple[int, int, int, int]:
    """The padding of a RandomCrop: left, top, right, bottom."""
    given = [step.padding or 0] if isinstance(step.padding, int | None) else [int(side) for side in step.padding]
    if len(given) < 4:
        given = [*given, *given][:2] * 2
    elif ".v2." in type(step).__module__:  # left, right, top, bottom
        given = [given[0], given[2], given[1], given[3]]
    return given[0], given[1], given[2], given[3]


def _interpolation(step: Any) -> Interpolation:
    name, given = type(step).__name__, step.interpolation
    if isinstance(given, tuple):  # timm's "random"
        _refuse(f"{name} that draws its interpolation", "give bilinear or bicubic in place of random")
    value = getattr(given, "value", given)
    if value not in ("bilinear", "bicubic") or getattr(step, "antialias", True) is False:
        _refuse(
            f"{name} with {value} and antialias={getattr(step, 'antialias', True)}",
            "give bilinear or bicubic interpolation, with antialias=True",
        )
    return cast(Interpolation, value)


def _dtype(step: Any) -> Any:
    """What a ToDtype makes of images, by their kind if it distinguishes kinds."""
    if not isinstance(step.dtype, Mapping):
        return step.dtype
    found = {getattr(kind, "__name__", kind): dtype for kind, dtype in step.dtype.items()}
    return next((found[kind] for kind in ("Image", "Tensor", "others") if kind in found), None)


def _floats(values: Any) -> tuple[float, ...]:
    return tuple(map(float, values))


def _refuse_alone(resize: Any) -> NoReturn:
    """Refuses a resize that leaves the other side as it comes."""
    name = type(resize).__name__
    if name == "ResizeKeepRatio":  # timm's
        _refuse(f"{name} without CenterCrop right after it", f"put CenterCrop({resize.size}) right after it")
    side = _resized(resize)[0]
    _refuse(
        f"Resize({side}) without CenterCrop or RandomCrop right after it",
        f"give Resize(({side}, {side})), or put CenterCrop({side}) right after it, so that images are equal in size",
    )


def _refuse(what: str, remedy: str = "") -> NoReturn:
    raise ValueError(
        f"ImageFolderLoader cannot take over {what}: {remedy or _THEN}. help(ImageFolderLoader) and "
        "docs/migrate/imagefolder.md list what it takes over"
    ) from None
