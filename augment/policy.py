"""What may happen to an image, as the user states it."""

import difflib
import math
from collections.abc import Iterable
from dataclasses import dataclass

Range = tuple[float, float]
Triple = tuple[float, float, float]

OPERATIONS = ("hflip", "vflip", "rotate", "brightness", "contrast", "saturation", "trivial", "erase", "mixup", "cutmix")
_OTHER_NAMES = {
    "horizontal_flip": "hflip",
    "vertical_flip": "vflip",
    "rotation": "rotate",
    "color": "saturation",
    "trivial_augment": "trivial",
    "trivial_augment_wide": "trivial",
    "ta_wide": "trivial",
    "erasing": "erase",
    "reprob": "erase",
}


@dataclass(frozen=True, kw_only=True)
class Policy:
    """What each image of a batch draws for itself, in the order in which it happens to the image.

    Flips and erasing are probabilities. `rotate` is in degrees, uniform in [-rotate, rotate]. `brightness`, `contrast`
    and `saturation` are ranges of factors, uniform; 1 leaves an image as it is. `trivial` is TrivialAugmentWide
    (Mueller and Hutter 2021, torchvision's table). Mixup (Zhang et al. 2018) and cutmix (Yun et al. 2019) are the
    alphas of their Beta(alpha, alpha), 0 for off; where both are given, each image takes one or the other with
    probability a half.

    The normalisation is part of the policy: (x / 255 - mean) / std per channel. Erasing (Zhong et al. 2020) comes after
    it, as in torchvision: an area of `erase_scale` of the image, with sides in `erase_ratio`, becomes `erase_value`.
    Mixing comes last.

    Raises ValueError, naming the field, for what cannot be.
    """

    hflip: float = 0.0
    vflip: float = 0.0
    rotate: float = 0.0
    brightness: Range = (1.0, 1.0)
    contrast: Range = (1.0, 1.0)
    saturation: Range = (1.0, 1.0)
    trivial: bool = False
    erase: float = 0.0
    erase_scale: Range = (0.02, 0.33)
    erase_ratio: Range = (0.3, 3.3)
    erase_value: float | Triple = 0.0
    mixup: float = 0.0
    cutmix: float = 0.0
    mean: Triple = (0.485, 0.456, 0.406)
    std: Triple = (0.229, 0.224, 0.225)

    def __post_init__(self) -> None:
        for name, p in (("hflip", self.hflip), ("vflip", self.vflip), ("erase", self.erase)):
            if not 0.0 <= p <= 1.0:
                raise ValueError(f"{name} is a probability, from 0 to 1; it was {p}")
        if not 0.0 <= self.rotate <= 180.0:
            raise ValueError(f"rotate is in degrees to either side, from 0 to 180; it was {self.rotate}")
        factors = {"brightness": self.brightness, "contrast": self.contrast, "saturation": self.saturation}
        for name, limits in factors.items():
            _check_range(name, limits, "factors from 0 up, of which 1 changes nothing", 0.0, math.inf)
        _check_range("erase_scale", self.erase_scale, "shares of an image's area, from 0 to 1", 0.0, 1.0)
        _check_range("erase_ratio", self.erase_ratio, "height over width, above 0", math.ulp(0.0), math.inf)
        for name, alpha in (("mixup", self.mixup), ("cutmix", self.cutmix)):
            if not (alpha >= 0.0 and math.isfinite(alpha)):
                raise ValueError(f"{name} is the alpha of a Beta distribution, above 0, or 0 for none; it was {alpha}")
        if isinstance(self.erase_value, str) or not all(math.isfinite(v) for v in self.erase_values):
            raise ValueError(
                "erase_value is a number, or three, of the normalised image, where 0 is the mean colour; "
                f"it was {self.erase_value!r}"
            )
        for name, values in (("mean", self.mean), ("std", self.std), ("erase_value", self.erase_values)):
            if len(values) != 3:
                raise ValueError(f"{name} has three numbers, red, green and blue; it was {values}")
        if not all(math.isfinite(m) for m in self.mean):
            raise ValueError(f"mean must be finite; it was {self.mean}")
        if not all(s > 0.0 for s in self.std):  # nan neither
            raise ValueError(f"std must be above 0; it was {self.std}")

    @property
    def erase_values(self) -> Triple:
        """`erase_value` for red, green and blue."""
        value = self.erase_value
        return value if isinstance(value, tuple) else (value, value, value)

    @property
    def mixes(self) -> bool:
        """Whether images are mixed with others of their batch."""
        return self.mixup > 0.0 or self.cutmix > 0.0


def operation(name: str) -> str:
    """The field of Policy that `name`, as people write it, means: `h-flip`, `RandomErasing` and `reprob` are known.

    Raises ValueError with the nearest name for one that means nothing here.
    """
    plain = name.strip().replace("-", "_").replace(" ", "_").lower()
    known = {**{field: field for field in OPERATIONS}, **_OTHER_NAMES}
    squeezed = {key.replace("_", ""): field for key, field in known.items()}
    for spelling in (plain.replace("_", ""), plain.replace("_", "").removeprefix("random")):
        if spelling in squeezed:
            return squeezed[spelling]
    raise ValueError(f"no augmentation is called {name!r}{_nearest(plain, known)}; there are {', '.join(OPERATIONS)}")


def _nearest(name: str, names: Iterable[str]) -> str:
    found = difflib.get_close_matches(name, names, n=1, cutoff=0.6)
    return f": did you mean {_OTHER_NAMES.get(found[0], found[0])!r}?" if found else ""


def _check_range(name: str, values: Range, meaning: str, least: float, most: float) -> None:
    if len(values) != 2 or not all(least <= v <= most and math.isfinite(v) for v in values):
        raise ValueError(f"{name} has two numbers, {meaning}; it was {values}")
    if values[0] > values[1]:
        raise ValueError(f"{name} is (smallest, largest); it was {values}: exchange them")
