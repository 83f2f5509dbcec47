"""Augmentation policies: what may happen to an image, as the user specifies it."""

import difflib
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
from numbers import Real
from typing import Any, Literal

from .named import can_be_gray, parse

Range = tuple[float, float]
Triple = tuple[float, float, float]
Channels = tuple[float, ...]  # a number for each channel: three, one, or those of bands

OPERATIONS = (
    *("hflip", "vflip", "rotate", "brightness", "contrast", "saturation", "hue", "trivial", "grayscale", "blur"),
    *("solarize", "erase", "mixup", "cutmix"),
)
_OTHER_NAMES = {
    "horizontal_flip": "hflip",
    "vertical_flip": "vflip",
    "rotation": "rotate",
    "color": "saturation",
    "gaussian_blur": "blur",
    "gray": "grayscale",
    "trivial_augment": "trivial",
    "trivial_augment_wide": "trivial",
    "ta_wide": "trivial",
    "erasing": "erase",
    "reprob": "erase",
}


_LATER_FIELDS = frozenset({"hue", "named", "grayscale", "blur", "solarize", "as_stored"})
# What looks levels up in tables of 8 bits, or needs statistics of them.
CHANGES_LEVELS = ("brightness", "contrast", "saturation", "hue", "trivial", "named", "grayscale", "blur", "solarize")

_FACTORS = ("factors, at least 0 (1 changes nothing)", 0.0, math.inf, (0.6, 1.4))
_RANGES = {  # what the two numbers are, the least and the most that they may be, an example
    **dict.fromkeys(("brightness", "contrast", "saturation"), _FACTORS),
    "erase_scale": ("fractions of an image's area, from 0 to 1", 0.0, 1.0, (0.02, 0.33)),
    "erase_ratio": ("ratios of height to width, above 0", math.ulp(0.0), math.inf, (0.3, 3.3)),
}
_EACH_CHANNEL = "have a number for each channel"
_EXAMPLE = "three for RGB, as in (0.5, 0.5, 0.5), or one for gray, (0.5,)"
_SEQUENCES = {  # what a field must be, and what to give in place of something else
    **{
        name: (f"be two numbers, {meaning}", f"(smallest, largest), as in {example}")
        for name, (meaning, _, _, example) in _RANGES.items()
    },
    **dict.fromkeys(("mean", "std"), (_EACH_CHANNEL, _EXAMPLE)),
    "erase_value": (
        "be one number, or one for each channel, in the normalised image, where 0 is the mean colour",
        "0.0, or as in (0.0, 0.0, 0.0)",
    ),
}


@dataclass(frozen=True, kw_only=True, repr=False)
class Policy:  # more than 12 fields: what a user may ask for, an operation each
    """What each image of a batch draws, in the order in which it is applied.

    `hflip`, `vflip` and `erase` are probabilities. With `hflip_alternates` the images that are mirrored in the first
    epoch are the others in the second, and so on in turn (Jordan 2024): each image is seen both ways in any two epochs.
    `rotate` is in degrees, uniform in [-rotate, rotate]. `brightness`,
    `contrast` and `saturation` are ranges of uniform factors; 1 leaves an image unchanged. `hue` is the largest turn of
    the colour circle to either side, 0.5 for any colour. `trivial` is TrivialAugmentWide (Mueller and Hutter 2021, with
    torchvision's table); `named` is a policy by timm's name, such as rand-m9-mstd0.5-inc1 (`named.parse`), and comes
    before the jitter. `grayscale`, `blur` (Pillow's GaussianBlur, of 0.1 to 2 pixels) and `solarize` (from level 128)
    are probabilities, and come after everything else that changes levels. `mixup` (Zhang et al. 2018) and `cutmix`
    (Yun et al. 2019) are the alphas of Beta(alpha, alpha), 0 for off; if both are given, each image takes one or the
    other with equal probability.

    Normalisation is part of the policy: (x / 255 - mean) / std per channel. With one mean and one std the images are
    gray, [B, 1, H, W]: they are augmented as images of three equal channels would be. `trivial` is then "gray", which
    leaves the operation Color out, and a policy's name ends with -gray. With other numbers of means images are bands,
    [B, C, H, W]: they are moved, normalised, erased and mixed, and nothing changes their levels. With `as_stored`, mean
    and std are in the units of the values as they are stored, (x - mean) / std. Erasing (Zhong et al. 2020) follows, as
    in torchvision: a rectangle with a fraction `erase_scale` of the image's area and sides in `erase_ratio` becomes
    `erase_value`. Mixing comes last.

    Ranges and numbers for each channel may be lists, arrays or tensors, too; they are kept as tuples of floats.

    Raises ValueError, naming the field, for invalid values, and TypeError for what is no such sequence.
    """

    hflip: float = 0.0
    hflip_alternates: bool = False
    vflip: float = 0.0
    rotate: float = 0.0
    brightness: Range = (1.0, 1.0)
    contrast: Range = (1.0, 1.0)
    saturation: Range = (1.0, 1.0)
    hue: float = 0.0
    trivial: bool | Literal["gray"] = False
    named: str = ""
    grayscale: float = 0.0
    blur: float = 0.0
    solarize: float = 0.0
    erase: float = 0.0
    erase_scale: Range = (0.02, 0.33)
    erase_ratio: Range = (0.3, 3.3)
    erase_value: float | Channels = 0.0
    mixup: float = 0.0
    cutmix: float = 0.0
    mean: Channels = (0.485, 0.456, 0.406)
    std: Channels = (0.229, 0.224, 0.225)
    as_stored: bool = False

    def __post_init__(self) -> None:
        for name in _SEQUENCES:
            given = getattr(self, name)
            if type(given) is not tuple or set(map(type, given)) != {float}:
                object.__setattr__(self, name, _floats(name, given))
        for name in ("hflip", "vflip", "grayscale", "blur", "solarize", "erase"):
            if not 0.0 <= (p := getattr(self, name)) <= 1.0:
                raise ValueError(f"{name} must be a probability, from 0 to 1; got {p}")
        if self.hflip_alternates and not self.hflip:
            raise ValueError(
                "hflip_alternates has no effect with hflip=0: "
                "give hflip, as in hflip=0.5, or leave hflip_alternates out"
            )
        if not 0.0 <= self.hue <= 0.5:
            raise ValueError(f"hue must be a share of the colour circle, from 0 to 0.5; got {self.hue}")
        if self.named:
            parse(self.named)
            if self.trivial:
                raise ValueError(f"trivial and named ({self.named}) exclude each other: choose one of them")
        if not 0.0 <= self.rotate <= 180.0:
            raise ValueError(f"rotate must be an angle in degrees, from 0 to 180; got {self.rotate}")
        for name in _RANGES:
            _check_range(name, getattr(self, name))
        for name, alpha in (("mixup", self.mixup), ("cutmix", self.cutmix)):
            if not (alpha >= 0.0 and math.isfinite(alpha)):
                raise ValueError(f"{name} must be the alpha of a Beta distribution, or 0 to turn it off; got {alpha}")
        if isinstance(self.erase_value, str) or not all(math.isfinite(v) for v in self.erase_values):
            raise ValueError(f"erase_value must {_SEQUENCES['erase_value'][0]}; got {self.erase_value!r}")
        for name, values in (("mean", self.mean), ("std", self.std), ("erase_value", self.erase_values)):
            if len(values) != self.channels or not values:
                raise ValueError(f"{name} must {_EACH_CHANNEL}, as mean has {self.channels}; got {values}")
        self._check_colours()
        if not all(math.isfinite(m) for m in self.mean):
            raise ValueError(f"mean must be finite; got {self.mean}")
        if not self.as_stored and not all(0.0 <= m <= 1.0 for m in self.mean):
            raise ValueError(
                f"mean must be shares of white, from 0 to 1; got {self.mean}: divide mean and std by the level of "
                "white, 255 of 8 bits, or set as_stored=True to give them in the units of the stored values"
            )
        if not all(0.0 < s < math.inf for s in self.std):
            raise ValueError(f"std must be above 0, and finite; got {self.std}")
        if not self.as_stored and not all(s <= 1.0 for s in self.std):
            raise ValueError(
                f"std must be shares of white, at most 1; got {self.std}: divide mean and std by the level of white, "
                "255 of 8 bits, or set as_stored=True to give them in the units of the stored values"
            )

    def __repr__(self) -> str:
        """Without the later fields where they are off: cached embeddings of views are keyed by it."""
        said = {field.name: getattr(self, field.name) for field in fields(self)}
        shown = {name: value for name, value in said.items() if value or name not in _LATER_FIELDS}
        return f"Policy({', '.join(f'{name}={value!r}' for name, value in shown.items())})"

    def _check_colours(self) -> None:
        """Raises ValueError, naming the operation, for what gray images have no colours for."""
        if self.trivial not in (False, True, "gray"):
            raise ValueError(f'trivial must be True, False or "gray"; got {self.trivial!r}')
        if self.channels == 3:
            return
        if self.channels != 1:
            if name := self.changes_levels:
                raise ValueError(
                    f"{name} changes levels of RGB or gray images, and these have {self.channels} bands: leave it out"
                )
            return
        changed = {"saturation": self.saturation != (1.0, 1.0), "hue": self.hue, "grayscale": self.grayscale}
        for name in (name for name, asked in changed.items() if asked):
            raise ValueError(f"{name} changes colours, which images of one channel do not have: leave it out")
        if self.trivial is True:
            raise ValueError('trivial has the operation Color; images of one channel take trivial="gray"')
        if self.named and (coloured := parse(self.named).colours):
            raise ValueError(
                f"{self.named} has the operation {coloured[0]}, and images of one channel have no colours: "
                + (f"use {self.named}-gray" if can_be_gray(self.named) else "choose another policy")
            )

    @property
    def channels(self) -> int:
        """The number of channels of the images: 3, 1, or that of bands."""
        return len(self.mean)

    @property
    def changes_levels(self) -> str:
        """The first operation that changes levels, rather than moving them; empty where there is none."""
        plain = {field.name: field.default for field in fields(self)}
        return next((name for name in CHANGES_LEVELS if getattr(self, name) != plain[name]), "")

    @property
    def tripled(self) -> "Policy":
        """The policy for images of three equal channels that does the same as this one, of one channel."""
        assert self.channels == 1
        return replace(self, mean=self.mean * 3, std=self.std * 3, erase_value=self.erase_values * 3)

    @property
    def erase_values(self) -> Channels:
        """`erase_value` for each channel."""
        value = self.erase_value
        return value if isinstance(value, tuple) else (value,) * self.channels

    @property
    def mixes(self) -> bool:
        """Whether images are mixed with others in their batch."""
        return self.mixup > 0.0 or self.cutmix > 0.0


def operation(name: str) -> str:
    """The field of Policy that `name` refers to, in any common spelling, such as `h-flip`, `RandomErasing`, `reprob`.

    Raises ValueError, with the closest known name, for an unknown one.
    """
    plain = name.strip().replace("-", "_").replace(" ", "_").lower()
    known = {**{field: field for field in OPERATIONS}, **_OTHER_NAMES}
    squeezed = {key.replace("_", ""): field for key, field in known.items()}
    for spelling in (plain.replace("_", ""), plain.replace("_", "").removeprefix("random")):
        if spelling in squeezed:
            return squeezed[spelling]
    raise ValueError(f"unknown augmentation {name!r}{_nearest(plain, known)}; choose from {', '.join(OPERATIONS)}")


def _nearest(name: str, names: Iterable[str]) -> str:
    matches = difflib.get_close_matches(name, names, n=1, cutoff=0.6)
    return f" (did you mean {_OTHER_NAMES.get(matches[0], matches[0])!r}?)" if matches else ""


def _check_range(name: str, values: Range) -> None:
    _, least, most, _ = _RANGES[name]
    if len(values) != 2 or not all(least <= v <= most and math.isfinite(v) for v in values):
        raise ValueError(f"{name} must {_SEQUENCES[name][0]}; got {values}")
    if values[0] > values[1]:
        raise ValueError(f"{name} must be (smallest, largest); got {values}: swap them")


def _floats(name: str, given: Any) -> Channels | Real | str:
    """A tuple of floats of any sequence, array or tensor; `erase_value` may be one number, and a text is refused later.

    Raises TypeError for anything else.
    """
    values = _plain(given)
    if name == "erase_value" and isinstance(values, Real | str):
        return values
    if isinstance(values, Sequence) and not isinstance(values, str | bytes):
        numbers = [_plain(value) for value in values]
        if all(isinstance(number, Real) for number in numbers):
            return tuple(map(float, numbers))
    must, example = _SEQUENCES[name]
    raise TypeError(f"{name} must {must}; got {given!r}: give {example}")


def _plain(value: Any) -> Any:
    """An array or tensor as lists or a number, and others as they are: this module imports neither NumPy nor torch."""
    return value.tolist() if hasattr(value, "tolist") else value
