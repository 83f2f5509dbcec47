"""What `train` and `inspect` do to images: flags and YAML's list, checked, made one policy, and put into words.

The order in which things happen is Policy's, whatever the order of a list: crop, flips and rotation (one resampling
with TrivialAugment's warp), brightness, contrast, saturation, TrivialAugment, then Kornia's in the list's order, on
images in [0, 1] that are not normalised yet; then normalisation, erasing, and mixup or cutmix.
"""

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch

from fastimg.augment import Plan, Policy, apply, operation
from fastimg.config.commands import Augmenting
from fastimg.errors import UsageError, nearest

from .kornia_pass import KorniaPass

Entry = str | dict[str, Any]
Kornia = list[dict[str, dict[str, Any]]]

CROP, DEFAULT_HFLIP = ((0.08, 1.0), (3 / 4, 4 / 3)), 0.5
JITTER = ("brightness", "contrast", "saturation")
FIELDS = tuple(field.name for field in dataclasses.fields(Augmenting) if field.name != "no_aug")
_PIXELS = ("hflip", "vflip", "rotate", *JITTER, "aa", "reprob", "mixup", "cutmix")  # what a list can say
_FIELD = {"trivial": "aa", "erase": "reprob"}  # where the flag has another name than the operation

# Arguments of the operations in YAML, with their defaults: Ludwig's where Ludwig has the operation.
_ARGUMENTS: dict[str, dict[str, float]] = {
    "hflip": {"p": 0.5},
    "vflip": {"p": 0.5},
    "rotate": {"degree": 15.0},
    **{name: {"min": 0.5, "max": 2.0} for name in JITTER},
    "trivial": {},
    "erase": {"p": 0.1},
    "mixup": {"alpha": 0.2},
    "cutmix": {"alpha": 1.0},
}
_NAMES = (
    *(*_ARGUMENTS, *(f"random_{name}" for name in ("rotate", *JITTER, "erasing", "blur"))),
    *("random_horizontal_flip", "random_vertical_flip", "trivial_augment", "auto_augmentation"),
)
_BLUR = "RandomGaussianBlur"


def _is_share(value: float) -> bool:
    return 0 <= value <= 1


def _is_alpha(value: float) -> bool:
    return value == 0 or 0.001 <= value <= 100  # beyond, the distribution is a point or two, to float64


def _are_factors(values: tuple[float, float]) -> bool:
    return 0 <= values[0] <= values[1] < math.inf


_RULES: dict[str, tuple[Callable[[Any], bool], str]] = {
    **dict.fromkeys(("hflip", "vflip", "reprob"), (_is_share, "a probability, from 0 to 1")),
    **dict.fromkeys(("mixup", "cutmix"), (_is_alpha, "the alpha of a Beta distribution: 0 (never), or 0.001 to 100")),
    **dict.fromkeys(JITTER, (_are_factors, "two factors from 0 up, the smaller first")),
    "rotate": (lambda degrees: 0 <= degrees <= 180, "degrees to either side, from 0 to 180"),
    "color_jitter": (lambda strengths: all(0 <= x < math.inf for x in strengths), "three strengths, 0 or more"),
}


class Listed(NamedTuple):
    """What YAML's `augmentation:` says."""

    settings: dict[str, Any]  # fields of Augmenting; what is not in it does not happen
    kornia: Kornia
    order: list[str]  # the operations' names as they were written, in their order
    sorted: list[str]  # the same, in the order in which they happen


def asked(config: Augmenting) -> list[str]:
    """The fields with which the user asks for augmentation."""
    values = {name: getattr(config, name) for name in FIELDS}
    return [name for name, value in values.items() if value is not None and value != "none" and value != []]


def flag(field: str) -> str:
    """How a person writes a field of Augmenting."""
    return f"{field}: (YAML)" if field in ("augmentation", "kornia") else f"--{field.replace('_', '-')}"


def check(config: Augmenting) -> None:
    """Refuse values out of range, pairs that say two things, and a list that cannot be. Raises UsageError."""
    if config.no_aug:
        for name in asked(config):
            raise UsageError(f"{flag(name)} has no effect with --no-aug; leave one of them out")
    for name in JITTER:
        if config.color_jitter is not None and getattr(config, name) is not None:
            raise UsageError(f"{flag(name)} has no effect with --color-jitter; leave one of them out")
    for name, (fine, what) in _RULES.items():
        value = getattr(config, name)
        if value is not None and not fine(value):
            raise UsageError(f"{flag(name)}: give {what}")
    if config.augmentation not in (None, False):
        listed(config.augmentation)


def listed(value: bool | list[Entry] | None) -> Listed:
    """YAML's `augmentation:`, true or a list. Raises UsageError naming the entry and what to write."""
    if value is True:
        value = ["random_horizontal_flip", "random_rotate"]
    settings: dict[str, Any] = {}
    kornia: Kornia = []
    written: list[tuple[str, str]] = []  # (its place in the order, its name)
    for entry in value or []:
        name, arguments = _parted(entry)
        if name[:1].isupper():
            kornia.append({name: dict(arguments)})
            written.append(("kornia", name))
            continue
        if name == "random_blur":  # Ludwig's: torchvision's gaussian_blur, for one batch in two
            kornia.append({_BLUR: _blur(arguments)})
            written.append(("kornia", name))
            continue
        op, arguments = _operation(name, arguments)
        field = _FIELD.get(op, op)
        if field in settings:
            raise UsageError(f"augmentation: {name} is given twice; keep one of them")
        settings[field] = _setting(name, op, arguments)
        if field in _RULES and not _RULES[field][0](settings[field]):
            raise UsageError(f"augmentation: {name}: {_shown(arguments)}: give {_RULES[field][1]}")
        written.append((field, name))
    happens = (*_PIXELS[:7], "kornia", *_PIXELS[7:])
    ranked = sorted(written, key=lambda pair: happens.index(pair[0]))
    return Listed(settings, kornia, [name for _, name in written], [name for _, name in ranked])


def _parted(entry: object) -> tuple[str, dict[str, Any]]:
    """`name`, `{name: {arguments}}` or Ludwig's `{type: name, arguments}` as (name, arguments)."""
    if isinstance(entry, str):
        return entry, {}
    if isinstance(entry, dict):
        if isinstance(entry.get("type"), str):
            return entry["type"], {key: value for key, value in entry.items() if key != "type"}
        if len(entry) == 1:
            ((name, arguments),) = entry.items()
            if isinstance(name, str) and (arguments is None or isinstance(arguments, dict)):
                return name, arguments or {}
    raise UsageError(
        f"augmentation: {entry!r} is no augmentation; write a name, or {{name: {{argument: value}}}}, "
        "{random_rotate: {degree: 15}} for example"
    )


def _operation(name: str, arguments: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """The operation of Policy that is meant, and its arguments."""
    if name == "auto_augmentation":  # Ludwig's
        method = arguments.get("method")
        if method != "trivial_augment" or len(arguments) > 1:
            raise UsageError(f"augmentation: auto_augmentation: method {method!r}: trivial_augment alone is built in")
        return "trivial", {}
    try:
        return operation(name), arguments
    except ValueError as error:
        near = nearest(name, _NAMES) or f"; there are {', '.join(_ARGUMENTS)}"
        raise UsageError(
            f"augmentation: no augmentation is called {name!r}{near} (Kornia's go by their class's name)"
        ) from error


def _setting(name: str, op: str, arguments: Mapping[str, Any]) -> Any:
    """The value of the flag that says the same."""
    known = _ARGUMENTS[op]
    given = {"degree" if key == "degrees" and op == "rotate" else key: value for key, value in arguments.items()}
    for key, value in given.items():
        if key not in known:
            takes = ", ".join(known) or "no argument"
            raise UsageError(f"augmentation: {name} has no argument {key!r}; it takes {takes}")
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise UsageError(f"augmentation: {name}: {key} is a number; it was {value!r}")
    values = [float(value) for value in {**known, **given}.values()]
    return "trivial" if op == "trivial" else values[0] if len(values) == 1 else (values[0], values[1])


def _blur(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Kornia's arguments for Ludwig's random_blur: torchvision's sigma for the kernel, in one image of two."""
    size = arguments.get("kernel_size", 3)
    if set(arguments) - {"kernel_size"} or type(size) is not int or size < 1 or size % 2 == 0:
        raise UsageError(f"augmentation: random_blur: {_shown(arguments)}: it takes kernel_size, an odd number")
    sigma = round(0.3 * ((size - 1) * 0.5 - 1) + 0.8, 6)
    return {"kernel_size": [size, size], "sigma": [sigma, sigma], "p": 0.5}


def _shown(arguments: Mapping[str, Any]) -> str:
    return ", ".join(f"{key}={value}" for key, value in arguments.items())


def order_note(config: Augmenting) -> str:
    """A sentence where a list's order is not the order in which things happen, else empty."""
    if not isinstance(config.augmentation, list):
        return ""
    said = listed(config.augmentation)
    if said.order == said.sorted:
        return ""
    return f"augmentation: whatever the list's order, it happens as {', '.join(said.sorted)}"


def effective(config: Augmenting, plain: bool) -> dict[str, Any]:
    """Every field of Augmenting with its choice made; None for what does not happen. `plain`: validation's crops."""
    settings: dict[str, Any] = dict.fromkeys(FIELDS)
    if plain:
        return {**settings, "no_aug": True}
    said = None if config.augmentation is None else listed(config.augmentation)
    chosen = {"hflip": DEFAULT_HFLIP} if said is None else dict(said.settings)
    if config.color_jitter is not None:
        chosen |= {name: (max(0.0, 1.0 - x), 1.0 + x) for name, x in zip(JITTER, config.color_jitter, strict=True)}
    chosen |= {name: getattr(config, name) for name in _PIXELS if getattr(config, name) is not None}
    settings |= {name: value for name, value in chosen.items() if value not in (0.0, (1.0, 1.0), "none")}
    return settings | {
        "no_aug": False,
        "scale": config.scale or CROP[0],
        "ratio": config.ratio or CROP[1],
        "hflip": chosen.get("hflip", 0.0),
        "vflip": chosen.get("vflip", 0.0),
        "aa": "trivial" if settings["aa"] else None,
        "kornia": [*(config.kornia or []), *(said.kornia if said else [])] or None,
    }


def policy_of(config: Augmenting, mean: tuple[float, float, float], std: tuple[float, float, float]) -> Policy:
    """The policy of an effective configuration."""
    return Policy(
        hflip=config.hflip or 0.0,
        vflip=config.vflip or 0.0,
        rotate=config.rotate or 0.0,
        brightness=config.brightness or (1.0, 1.0),
        contrast=config.contrast or (1.0, 1.0),
        saturation=config.saturation or (1.0, 1.0),
        trivial=config.aa == "trivial",
        erase=config.reprob or 0.0,
        mixup=config.mixup or 0.0,
        cutmix=config.cutmix or 0.0,
        mean=mean,
        std=std,
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
    words += [f"hflip {config.hflip or 0:g}"]
    words += [f"vflip {config.vflip:g}"] if config.vflip else []
    words += [f"rotate {config.rotate:g} degrees to either side"] if config.rotate else []
    words += [f"{name} {value[0]:g} to {value[1]:g}" for name in JITTER if (value := getattr(config, name))]
    words += ["TrivialAugment"] if config.aa == "trivial" else []
    words += [f"Kornia's {name}({_shown(given)})" for entry in config.kornia or [] for name, given in entry.items()]
    words += [f"erasing {config.reprob:g}"] if config.reprob else []
    mixes = [f"{name} {value:g}" for name in ("mixup", "cutmix") if (value := getattr(config, name))]
    return ", ".join([*words, *([" or ".join(mixes)] if mixes else [])])


def model_input(
    plan: Plan | None,
    images: torch.Tensor,
    policy: Policy,
    dtype: torch.dtype,
    kornia: KorniaPass | None = None,
    seed: int = 0,
) -> torch.Tensor:
    """`apply`, with Kornia's augmentations between the pixel operations and normalisation; `mix` comes after it.

    uint8 images [B, 3, H, W] -> [B, 3, H, W] in `dtype`. What Kornia makes is rounded to 8 bits, so that normalisation
    is the table that it always is. Tokens [B, L] stay what they are; embeddings are cast.
    """
    if images.dtype != torch.uint8:
        return images.to(dtype) if images.is_floating_point() else images
    if plan is None:
        return apply(None, images, policy, dtype)
    plan = plan.unmixed
    if kornia is None:
        return apply(plan, images, policy, dtype)
    levels = kornia(apply(dataclasses.replace(plan, erasing=None), images, policy, torch.uint8), seed)
    return apply(_erasing_alone(plan), levels, policy, dtype)


def _erasing_alone(plan: Plan) -> Plan | None:
    if plan.erasing is None:
        return None
    none, batch = torch.zeros(len(plan), dtype=torch.bool), len(plan)
    return dataclasses.replace(
        plan,
        hflip=none,
        vflip=none,
        angle=torch.zeros(batch, dtype=torch.float64),
        trivial=torch.zeros(batch, dtype=torch.int64),
        ops=torch.zeros(batch, 0, dtype=torch.int32),
        magnitudes=torch.zeros(batch, 0),
    )
