"""Augmentation policies by the names that timm gives them: `rand-m9-mstd0.5-inc1`, `augmix-m3-w3`, `original`, `3aug`.

The tables are those of timm 1.0 (`timm.data.auto_augment`), whose parser judges this one. RandAugment is by Cubuk et
al. 2020, AutoAugment by Cubuk et al. 2019, AugMix by Hendrycks et al. 2020, 3-Augment by Touvron et al. 2022 (DeiT
III).
"""

import difflib
import functools
import math
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace

PLAIN_LEVEL = 10.0  # timm's denominator: the strength at which an operation reaches the end of its range
_CHOICES = (
    *("AutoContrast", "Equalize", "Invert", "Rotate", "Posterize", "Solarize", "SolarizeAdd", "Color", "Contrast"),
    *("Brightness", "Sharpness", "ShearX", "ShearY", "TranslateXRel", "TranslateYRel"),
)
_GROWS = ("Posterize", "Solarize", "Color", "Contrast", "Brightness", "Sharpness")  # with `inc1`, with the magnitude
_INCREASING = tuple(f"{name}Increasing" if name in _GROWS else name for name in _CHOICES)
_THREE = ("SolarizeIncreasing", "Desaturate", "GaussianBlur")
_THREE_WEIGHTED = {
    **dict.fromkeys(_THREE, 6.0),
    "Rotate": 3.0,
    "ShearX": 2.0,
    "ShearY": 2.0,
    "PosterizeIncreasing": 1.0,
    "AutoContrast": 1.0,
    "ColorIncreasing": 1.0,
    "SharpnessIncreasing": 1.0,
    "ContrastIncreasing": 1.0,
    "BrightnessIncreasing": 1.0,
    "Equalize": 1.0,
    "Invert": 1.0,
}
_WEIGHTED = {
    "Rotate": 3.0,
    "ShearX": 2.0,
    "ShearY": 2.0,
    "TranslateXRel": 1.0,
    "TranslateYRel": 1.0,
    "ColorIncreasing": 0.25,
    "SharpnessIncreasing": 0.25,
    "AutoContrast": 0.25,
    "SolarizeIncreasing": 0.05,
    "SolarizeAdd": 0.05,
    "ContrastIncreasing": 0.05,
    "BrightnessIncreasing": 0.05,
    "Equalize": 0.05,
    "PosterizeIncreasing": 0.05,
    "Invert": 0.05,
}
_AUGMIX = (
    *("AutoContrast", "ColorIncreasing", "ContrastIncreasing", "BrightnessIncreasing", "SharpnessIncreasing"),
    *("Equalize", "Rotate", "PosterizeIncreasing", "SolarizeIncreasing", "ShearX", "ShearY", "TranslateXRel"),
    "TranslateYRel",
)
_SETS = ("weights", "3a", "3aw")
# AutoAugment's pairs for ImageNet: (operation, probability, magnitude), twice. {} is a kind of posterizing.
_ORIGINAL = """
Posterize{} .4 8 Rotate .6 9; Solarize .6 5 AutoContrast .6 5; Equalize .8 8 Equalize .6 3;
Posterize{} .6 7 Posterize{} .6 6; Equalize .4 7 Solarize .2 4; Equalize .4 4 Rotate .8 8; Solarize .6 3 Equalize .6 7;
Posterize{} .8 5 Equalize 1 2; Rotate .2 3 Solarize .6 8; Equalize .6 8 Posterize{} .4 6; Rotate .8 8 Color .4 0;
Rotate .4 9 Equalize .6 2; Equalize 0 7 Equalize .8 8; Invert .6 4 Equalize 1 8; Color .6 4 Contrast 1 8;
Rotate .8 8 Color 1 2; Color .8 8 Solarize .8 7; Sharpness .4 7 Invert .6 8; ShearX .6 5 Equalize 1 9;
Color .4 0 Equalize .6 3; Equalize .4 7 Solarize .2 4; Solarize .6 5 AutoContrast .6 5; Invert .6 4 Equalize 1 8;
Color .6 4 Contrast 1 8; Equalize .8 8 Equalize .6 3
"""
_V0 = """
Equalize .8 1 ShearY .8 4; Color .4 9 Equalize .6 3; Color .4 1 Rotate .6 8; Solarize .8 3 Equalize .4 7;
Solarize .4 2 Solarize .6 2; Color .2 0 Equalize .8 8; Equalize .4 8 SolarizeAdd .8 3; ShearX .2 9 Rotate .6 8;
Color .6 1 Equalize 1 2; Invert .4 9 Rotate .6 0; Equalize 1 9 ShearY .6 3; Color .4 7 Equalize .6 0;
Posterize{} .4 6 AutoContrast .4 7; Solarize .6 8 Color .6 9; Solarize .2 4 Rotate .8 9;
Rotate 1 7 TranslateYRel .8 9; ShearX 0 0 Solarize .8 4; ShearY .8 0 Color .6 4; Color 1 0 Rotate .6 2;
Equalize .8 4 Equalize 0 8; Equalize 1 4 AutoContrast .6 2; ShearY .4 7 SolarizeAdd .6 7;
Posterize{} .8 2 Solarize .6 10; Solarize .6 8 Equalize .6 1; Color .8 6 Rotate .4 5
"""
_PAIRS = {
    **dict.fromkeys(("original", "auto", "autoaugment"), _ORIGINAL.format(*["Original"] * 6)),
    "originalr": _ORIGINAL.format(*["Increasing"] * 6),
    "v0": _V0.format("", ""),
    "v0r": _V0.format("Increasing", "Increasing"),
}
_THREE_NAMES = ("3aug", "3a")
_COLOURED = frozenset({"Color", "ColorIncreasing", "Desaturate"})  # without effect on gray images
GRAY = "gray"  # the last part of a name whose policy leaves these out
HEADS = ("rand", "augmix", "3aug", "auto", "original", "originalr", "v0", "v0r", "tvrand", "tvauto")  # of names
_PARTS = {
    "rand": ("m", "n", "p", "mstd", "mmax", "inc", "t"),
    "tvrand": ("n", "m", "b"),
    "augmix": ("m", "w", "d", "a", "b", "mstd"),
    **dict.fromkeys((*_PAIRS, *_THREE_NAMES), ("mstd",)),
}
_MOST_LAYERS = 8


@dataclass(frozen=True)
class Choice:
    """An operation as timm names it, how probable it is once chosen, and its strength from 0 to 10."""

    name: str
    probability: float
    magnitude: float


@dataclass(frozen=True, kw_only=True)
class NamedPolicy:
    """What a name stands for: in each of `layers`, an image gets one of `rows`' operations, the layer's.

    Row i of `rows` holds one choice for each layer. If `together`, an image draws one row for all layers
    (AutoAugment), else one for each (RandAugment). With `weights`, the rows of an image's layers differ, drawn without
    putting back; without, all are equally probable. `spread` is the magnitude's standard deviation: 0 for none,
    infinite for uniform from 0. Magnitudes are cut off at 0 and `most`. `translate` is the share of a side that
    strength 10 moves.

    AugMix has a `width`: that many chains of layers, of which an image has `depth`, or, with 0, one to all of them;
    they are mixed by weights of Dirichlet(alpha), and with the image by Beta(alpha, alpha).

    `black` is what lies outside of an image that is moved, instead of the mean colour; and if it `truncates`, images
    are moved by whole pixels, as by torchvision.
    """

    rows: tuple[tuple[Choice, ...], ...]
    layers: int
    together: bool = False
    weights: tuple[float, ...] | None = None
    spread: float = 0.0
    most: float = PLAIN_LEVEL
    translate: float = 0.45
    width: int = 0
    depth: int = 0
    alpha: float = 1.0
    black: bool = False
    truncates: bool = False

    def names(self, layer: int) -> frozenset[str]:
        """The operations that may happen in a layer."""
        return frozenset(row[layer].name for row in self.rows)

    @property
    def colours(self) -> list[str]:
        """The operations that change colours alone."""
        return sorted({choice.name for row in self.rows for choice in row} & _COLOURED)

    @property
    def colourless(self) -> "NamedPolicy":
        """The policy without the rows that change colours alone; the others keep their proportions."""
        kept = [number for number, row in enumerate(self.rows) if not any(one.name in _COLOURED for one in row)]
        weights = None
        if self.weights is not None:
            total = sum(self.weights[number] for number in kept)
            weights = tuple(self.weights[number] / total for number in kept)
        return replace(self, rows=tuple(self.rows[number] for number in kept), weights=weights)


def can_be_gray(name: str) -> bool:
    """Whether the policy of a name has a variant for gray images: AutoAugment's pairs go together."""
    return not parse(name).together


@functools.cache
def parse(name: str) -> NamedPolicy:
    """The policy of a name, in timm's spelling; behind it, -gray leaves operations out that change colours alone.

    Raises ValueError for a part of the name that is unknown.
    """
    head, *parts = name.split("-")
    if head in _PARTS and parts and parts[-1] == GRAY:
        whole = parse(name.removesuffix(f"-{GRAY}"))
        if whole.together:
            raise ValueError(f"{name}: {head} has pairs of operations, which go together; rand or augmix can be gray")
        return whole.colourless
    if head == "tvauto":
        return _torchvisions_pairs(name, parts)
    if head not in _PARTS:
        raise ValueError(f"unknown augmentation policy {name!r}{_nearest(head, HEADS)}; there are {', '.join(HEADS)}")
    values = _values(name, head, parts)
    if head == "rand":
        return _rand(name, values)
    if head == "tvrand":
        from .torchvisions import rand

        bins = _whole(name, "b", values, 31, 2, 256)
        return rand(_whole(name, "n", values, 2, 1, _MOST_LAYERS), _whole(name, "m", values, 9, 0, bins - 1), bins)
    spread = _number(name, "mstd", values, math.inf if head == "augmix" else 0.0)
    if head == "augmix":
        return _augmix(name, values, spread)
    if head in _THREE_NAMES:
        rows = tuple(
            (Choice(*one),) for one in (("Solarize", 1.0, 5), ("Desaturate", 1.0, 10), ("GaussianBlurRand", 1.0, 10))
        )
        return NamedPolicy(rows=rows, layers=1, spread=spread)
    words = [pair.split() for pair in _PAIRS[head].split(";")]
    pairs = tuple((Choice(a, float(b), float(c)), Choice(d, float(e), float(f))) for a, b, c, d, e, f in words)
    return NamedPolicy(rows=pairs, layers=2, together=True, spread=spread)


def _torchvisions_pairs(name: str, parts: list[str]) -> NamedPolicy:
    from .torchvisions import AUTO, auto

    if len(parts) != 1 or parts[0] not in AUTO:
        raise ValueError(f"{name}: give tvauto-{', tvauto-'.join(AUTO)}")
    return auto(parts[0])


def _values(name: str, head: str, parts: list[str]) -> dict[str, str]:
    """The parts of a name after its first: {"m": "9", "mstd": "0.5"}."""
    known, values = _PARTS[head], dict[str, str]()
    for part in parts:
        key, value = (part[0], part[1:]) if head == "rand" and part[:1] == "t" else _split(part)
        if key not in known or not value:
            raise ValueError(
                f"{name}: {part!r} is no part of {head}{_nearest(key, known)}; it takes {', '.join(known)}, "
                "each with its value, as in m9"
            )
        if key in values:
            raise ValueError(f"{name}: {key} is given twice; keep one of them")
        values[key] = value
    return values


def _split(part: str) -> tuple[str, str]:
    found = re.fullmatch(r"([a-z]*)(.*)", part)
    return (found[1], found[2]) if found else (part, "")


def _rand(name: str, values: dict[str, str]) -> NamedPolicy:
    spread = _number(name, "mstd", values, 0.0)
    magnitude, layers = _whole(name, "m", values, 10, 0, 100), _whole(name, "n", values, 2, 1, _MOST_LAYERS)
    probability = _number(name, "p", values, 0.5)
    if probability > 1.0:
        raise ValueError(f"{name}: p is a probability, from 0 to 1")
    increasing, chosen = bool(_whole(name, "inc", values, 0, 0, 1)), values.get("t")
    if chosen is not None and chosen not in _SETS:
        raise ValueError(
            f"{name}: t{chosen} is no set of operations{_nearest(chosen, _SETS)}; there are tweights, t3a, t3aw"
        )
    weighted = {"weights": _WEIGHTED, "3aw": _THREE_WEIGHTED}.get(chosen or "")
    names = tuple(weighted) if weighted else _THREE if chosen == "3a" else _INCREASING if increasing else _CHOICES
    shares = None if weighted is None else tuple(share / sum(weighted.values()) for share in weighted.values())
    return NamedPolicy(
        rows=tuple((Choice(one, probability, float(magnitude)),) * layers for one in names),
        layers=layers,
        weights=shares,
        spread=math.inf if spread > 100 else spread,
        most=float(_whole(name, "mmax", values, 10, 1, 100)),
    )


def _augmix(name: str, values: dict[str, str], spread: float) -> NamedPolicy:
    if _whole(name, "b", values, 0, 0, 1):
        raise ValueError(f"{name}: blended chains (b1) are not built in; leave b1 out")
    depth = _whole(name, "d", values, 0, 0, _MOST_LAYERS)
    alpha = _number(name, "a", values, 1.0)
    if alpha < 0.01:
        raise ValueError(f"{name}: a is the alpha of a Beta distribution, 0.01 or more")
    magnitude, layers = _whole(name, "m", values, 3, 0, 10), depth or 3
    rows = tuple((Choice(one, 1.0, float(magnitude)),) * layers for one in _AUGMIX)
    width = _whole(name, "w", values, 3, 1, _MOST_LAYERS)
    return NamedPolicy(rows=rows, layers=layers, spread=spread, translate=0.3, width=width, depth=depth, alpha=alpha)


def _whole(name: str, key: str, values: dict[str, str], default: int, least: int, most: int) -> int:
    text = values.get(key, str(default))
    if not (text.isascii() and text.isdigit() and least <= int(text) <= most):
        raise ValueError(f"{name}: {key} takes a whole number from {least} to {most}, as in {key}{default}")
    return int(text)


def _number(name: str, key: str, values: dict[str, str], default: float) -> float:
    text = values.get(key)
    if text is None:
        return default
    if not re.fullmatch(r"\d+(\.\d*)?|\.\d+", text):
        raise ValueError(f"{name}: {key} takes a number, 0 or more, as in {key}0.5")
    return float(text)


def _nearest(word: str, words: Iterable[str]) -> str:
    matches = difflib.get_close_matches(word, words, n=1, cutoff=0.5)
    return f" (did you mean {matches[0]!r}?)" if matches else ""
