"""Augmentation as the user asks for it: flags, and YAML's list, which is read here into the fields of the flags."""

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from fastimg.augment.named import HEADS, parse
from fastimg.errors import UsageError, nearest

from .training import Augmenting

Entry = str | dict[str, Any]
Kornia = list[dict[str, dict[str, Any]]]

DEFAULT_SCALE = (0.08, 1.0)
DEFAULT_RATIO = (3 / 4, 4 / 3)
DEFAULT_HFLIP = 0.5
JITTER = ("brightness", "contrast", "saturation")
FIELDS = tuple(field.name for field in dataclasses.fields(Augmenting) if field.name != "no_aug")
_ON_NO_LIST = ("augmentation", "scale", "ratio", "crop_padding", "alternating_flip")
ON_A_LIST = tuple(name for name in FIELDS if name not in _ON_NO_LIST)  # what a list replaces
_LEVELS = ("hflip", "vflip", "rotate", *JITTER, "hue", "aa", "grayscale_prob", "gaussian_blur_prob", "solarize_prob")
_PIXELS = (*_LEVELS, "reprob", "mixup", "cutmix")  # the flags that a list can set
_FIELD = {  # where the flag has another name than the operation
    "trivial": "aa",
    "erase": "reprob",
    "grayscale": "grayscale_prob",
    "blur": "gaussian_blur_prob",
    "solarize": "solarize_prob",
}
_THREE_JITTER = (0.7, 1.3)  # DeiT III's, after 3-Augment

# Arguments of the operations in YAML, with their defaults: Ludwig's where Ludwig has the operation.
_ARGUMENTS: dict[str, dict[str, float]] = {
    "hflip": {"p": 0.5},
    "vflip": {"p": 0.5},
    "rotate": {"degree": 15.0},
    **{name: {"min": 0.5, "max": 2.0} for name in JITTER},
    "hue": {"max": 0.1},
    "trivial": {},
    "grayscale": {"p": 0.2},
    "blur": {"p": 0.5},
    "solarize": {"p": 0.2},
    "erase": {"p": 0.1},
    "mixup": {"alpha": 0.2},
    "cutmix": {"alpha": 1.0},
}
_NAMES = (
    *(*_ARGUMENTS, *(f"random_{name}" for name in ("rotate", *JITTER, "erasing", "blur"))),
    *("random_horizontal_flip", "random_vertical_flip", "trivial_augment", "auto_augmentation", "gaussian_blur"),
    *("random_grayscale", "random_solarize", *HEADS),
)
_BLUR = "RandomGaussianBlur"
TRIVIAL = ("trivial", "ta_wide", "trivial-gray")
_THREE = ("3aug", "3a")
_CALLED = {  # as torchvision, and those who use it, call policies
    **dict.fromkeys(("trivialaugmentwide", "trivialaugment", "tawide", "ta"), "trivial"),
    **dict.fromkeys(("randaugment", "ra"), "rand-m9-mstd0.5"),
    **dict.fromkeys(("autoaugment", "aa"), "auto"),
    "augmix": "augmix-m3-w3",
}


def _is_share(value: float) -> bool:
    return 0 <= value <= 1


def _is_alpha(value: float) -> bool:
    return value == 0 or 0.001 <= value <= 100  # beyond, the distribution is a point or two, to float64


def _are_factors(values: tuple[float, float]) -> bool:
    return 0 <= values[0] <= values[1] < math.inf


def _are_shares(values: tuple[float, float]) -> bool:
    return 0 < values[0] <= values[1] <= 1


def _are_ratios(values: tuple[float, float]) -> bool:
    return 0 < values[0] <= values[1] < math.inf


_CHANCES = ("hflip", "vflip", "grayscale_prob", "gaussian_blur_prob", "solarize_prob")

# The values that a field may have, as a test and in words: for flags, and for the entries of a list.
VALUES: dict[str, tuple[Callable[[Any], bool], str]] = {
    **dict.fromkeys((*_CHANCES, "reprob"), (_is_share, "a probability, from 0 to 1")),
    **dict.fromkeys(("mixup", "cutmix"), (_is_alpha, "the alpha of a Beta distribution: 0 (never), or 0.001 to 100")),
    **dict.fromkeys(JITTER, (_are_factors, "two factors from 0 up, the smaller first")),
    "crop_padding": (lambda pixels: 1 <= pixels <= 16384, "1 pixel or more"),
    "scale": (_are_shares, "shares above 0 and up to 1, the smaller first"),
    "ratio": (_are_ratios, "ratios above 0, the smaller first"),
    "hue": (lambda share: 0 <= share <= 0.5, "a share of the colour circle, from 0 to 0.5"),
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
    return [name for name, value in values.items() if was_given(value) and value != "none" and value != []]


def was_given(value: object) -> bool:
    """Whether a field of Augmenting is set: to 0, too, which turns something off."""
    return value is not None and value is not False


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
        named = (name.split("-")[0] in HEADS or name in TRIVIAL) and not arguments
        op, arguments = ("trivial", {}) if named else _operation(name, arguments)
        field = _FIELD.get(op, op)
        if field in settings:
            raise UsageError(f"augmentation: {name} is given twice; keep one of them")
        settings[field] = named_policy(name, "augmentation") if named else _setting(name, op, arguments)
        if field in VALUES and not VALUES[field][0](settings[field]):
            raise UsageError(f"augmentation: {name}: {arguments_shown(arguments)}: give {VALUES[field][1]}")
        written.append((field, name))
    levels: tuple[str, ...] = _LEVELS
    if settings.get("aa", "trivial") not in TRIVIAL:  # named policies come before the jitter
        levels = (*_LEVELS[:3], "aa", *(name for name in _LEVELS[3:] if name != "aa"))
    happens = (*levels, "kornia", *_PIXELS[len(levels) :])
    ranked = sorted(written, key=lambda pair: happens.index(pair[0]))
    return Listed(settings, kornia, [name for _, name in written], [name for _, name in ranked])


def named_policy(name: str, said: str) -> str:
    """A policy by timm's name. Raises UsageError that names `said`, and the part of the name that is unknown."""
    if name in TRIVIAL:
        return "trivial" if name == "ta_wide" else name
    try:
        parse(name)
    except ValueError as error:
        raise UsageError(f"{said}: {error}") from error
    return name


def check_policy(config: Augmenting) -> None:
    """Whether there is the policy that --aa names. Raises UsageError."""
    if config.aa is not None and config.aa not in TRIVIAL and config.aa != "none":
        called = _CALLED.get(config.aa.lower().replace("-", "").replace("_", ""))
        if called is not None and config.aa.split("-")[0] not in HEADS:
            raise UsageError(f"--aa {config.aa}: unknown policy; write {called}")
        if config.aa.split("-")[0] not in HEADS and (near := nearest(config.aa, (*TRIVIAL, "none"))):
            raise UsageError(f"--aa {config.aa}: unknown policy{near}")
        named_policy(config.aa, "--aa")


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
        f"augmentation: {entry!r} is not an augmentation; write a name, or {{name: {{argument: value}}}}, "
        "{random_rotate: {degree: 15}} for example"
    )


def _operation(name: str, arguments: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """The operation of Policy that is meant, and its arguments."""
    if name == "auto_augmentation":  # Ludwig's
        method = arguments.get("method")
        if method != "trivial_augment" or len(arguments) > 1:
            raise UsageError(f"augmentation: auto_augmentation: method {method!r}: trivial_augment alone is built in")
        return "trivial", {}
    from fastimg.augment import operation  # not above: it imports torch, which takes seconds

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
        given = arguments_shown(arguments)
        raise UsageError(f"augmentation: random_blur: {given}: it takes kernel_size, an odd number")
    sigma = round(0.3 * ((size - 1) * 0.5 - 1) + 0.8, 6)
    return {"kernel_size": [size, size], "sigma": [sigma, sigma], "p": 0.5}


def arguments_shown(arguments: Mapping[str, Any]) -> str:
    """Arguments of an operation, as name=value."""
    return ", ".join(f"{key}={value}" for key, value in arguments.items())


def effective(config: Augmenting, plain: bool) -> dict[str, Any]:
    """Every field of Augmenting with its choice made; None for what does not happen. `plain`: validation's crops."""
    settings: dict[str, Any] = dict.fromkeys(FIELDS)
    if plain:
        return {**settings, "alternating_flip": False, "no_aug": True}
    said = None if config.augmentation is None else listed(config.augmentation)
    chosen = {"hflip": DEFAULT_HFLIP} if said is None else dict(said.settings)
    if config.color_jitter is not None:
        chosen |= {name: (max(0.0, 1.0 - x), 1.0 + x) for name, x in zip(JITTER, config.color_jitter, strict=True)}
    chosen |= {name: getattr(config, name) for name in _PIXELS if getattr(config, name) is not None}
    if chosen.get("aa") in _THREE and not any(name in chosen for name in JITTER):
        chosen |= dict.fromkeys(JITTER, _THREE_JITTER)
    settings |= {name: value for name, value in chosen.items() if value not in (0.0, (1.0, 1.0), "none")}
    return settings | {
        "no_aug": False,
        "scale": None if config.crop_padding else config.scale or DEFAULT_SCALE,
        "ratio": None if config.crop_padding else config.ratio or DEFAULT_RATIO,
        "crop_padding": config.crop_padding,
        "alternating_flip": config.alternating_flip,
        "hflip": chosen.get("hflip", 0.0),
        "vflip": chosen.get("vflip", 0.0),
        "aa": "trivial" if settings["aa"] == "ta_wide" else settings["aa"],
        "kornia": [*(config.kornia or []), *(said.kornia if said else [])] or None,
    }
