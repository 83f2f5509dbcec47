"""torchvision's RandAugment and AutoAugment as named policies: tvrand-n2-m9-b31, tvauto-imagenet.

Their operations, probabilities and strengths are those of torchvision 0.26 to 0.29, which judges them in
`tests/augment/test_torchvisions.py`; AutoAugment's pairs are by Cubuk et al. 2019. timm's policies of the same origin
have other operations and strengths (`named`).
"""

import math
import struct

from .named import Choice, NamedPolicy

AUTO_BINS = 10  # strengths of AutoAugment
_RAND = (
    *("Identity", "ShearX", "ShearY", "TranslateX", "TranslateY", "Rotate", "Brightness", "Color", "Contrast"),
    *("Sharpness", "Posterize", "Solarize", "AutoContrast", "Equalize"),
)
# torchvision's name -> that of the operation here, of which strength 10 is the end of torchvision's range
_NAMES = {
    "TranslateX": "TranslateXRel",
    "TranslateY": "TranslateYRel",
    **{name: f"{name}Increasing" for name in ("Brightness", "Color", "Contrast", "Sharpness")},
    "Posterize": "PosterizeTo",
    "Solarize": "SolarizeFrom",
}
_TRANSLATE = 150.0 / 331.0  # of a side
_MOST = 256.0  # PosterizeTo's bits and SolarizeFrom's level are their strengths
# (operation, probability, magnitude), twice
AUTO = {
    "imagenet": """
Posterize .4 8 Rotate .6 9; Solarize .6 5 AutoContrast .6 0; Equalize .8 0 Equalize .6 0;
Posterize .6 7 Posterize .6 6; Equalize .4 0 Solarize .2 4; Equalize .4 0 Rotate .8 8; Solarize .6 3 Equalize .6 0;
Posterize .8 5 Equalize 1 0; Rotate .2 3 Solarize .6 8; Equalize .6 0 Posterize .4 6; Rotate .8 8 Color .4 0;
Rotate .4 9 Equalize .6 0; Equalize 0 0 Equalize .8 0; Invert .6 0 Equalize 1 0; Color .6 4 Contrast 1 8;
Rotate .8 8 Color 1 2; Color .8 8 Solarize .8 7; Sharpness .4 7 Invert .6 0; ShearX .6 5 Equalize 1 0;
Color .4 0 Equalize .6 0; Equalize .4 0 Solarize .2 4; Solarize .6 5 AutoContrast .6 0; Invert .6 0 Equalize 1 0;
Color .6 4 Contrast 1 8; Equalize .8 0 Equalize .6 0
""",
    "cifar10": """
Invert .1 0 Contrast .2 6; Rotate .7 2 TranslateX .3 9; Sharpness .8 1 Sharpness .9 3; ShearY .5 8 TranslateY .7 9;
AutoContrast .5 0 Equalize .9 0; ShearY .2 7 Posterize .3 7; Color .4 3 Brightness .6 7;
Sharpness .3 9 Brightness .7 9; Equalize .6 0 Equalize .5 0; Contrast .6 7 Sharpness .6 5;
Color .7 7 TranslateX .5 8; Equalize .3 0 AutoContrast .4 0; TranslateY .4 3 Sharpness .2 6;
Brightness .9 6 Color .2 8; Solarize .5 2 Invert 0 0; Equalize .2 0 AutoContrast .6 0; Equalize .2 0 Equalize .6 0;
Color .9 9 Equalize .6 0; AutoContrast .8 0 Solarize .2 8; Brightness .1 3 Color .7 0;
Solarize .4 5 AutoContrast .9 0; TranslateY .9 9 TranslateY .7 9; AutoContrast .9 0 Solarize .8 3;
Equalize .8 0 Invert .1 0; TranslateY .7 9 AutoContrast .9 0
""",
    "svhn": """
ShearX .9 4 Invert .2 0; ShearY .9 8 Invert .7 0; Equalize .6 0 Solarize .6 6; Invert .9 0 Equalize .6 0;
Equalize .6 0 Rotate .9 3; ShearX .9 4 AutoContrast .8 0; ShearY .9 8 Invert .4 0; ShearY .9 5 Solarize .2 6;
Invert .9 0 AutoContrast .8 0; Equalize .6 0 Rotate .9 3; ShearX .9 4 Solarize .3 3; ShearY .8 8 Invert .7 0;
Equalize .9 0 TranslateY .6 6; Invert .9 0 Equalize .6 0; Contrast .3 3 Rotate .8 4; Invert .8 0 TranslateY 0 2;
ShearY .7 6 Solarize .4 8; Invert .6 0 Rotate .8 4; ShearY .3 7 TranslateX .9 3; ShearX .1 6 Invert .6 0;
Solarize .7 2 TranslateY .6 7; ShearY .8 4 Invert .8 0; ShearX .7 9 TranslateY .8 3; ShearY .8 5 AutoContrast .7 0;
ShearX .7 2 Invert .1 0
""",
}


def rand(layers: int, magnitude: int, bins: int) -> NamedPolicy:
    """RandAugment(num_ops=layers, magnitude, num_magnitude_bins=bins)."""
    rows = tuple((_choice(name, 1.0, magnitude, bins),) * layers for name in _RAND)
    return NamedPolicy(rows=rows, layers=layers, most=_MOST, translate=_TRANSLATE, black=True, truncates=True)


def auto(name: str) -> NamedPolicy:
    """AutoAugment of one of the policies `AUTO`."""
    rows = []
    for pair in AUTO[name].split(";"):
        words = pair.split()
        rows.append(tuple(_choice(words[i], float(words[i + 1]), int(words[i + 2]), AUTO_BINS) for i in (0, 3)))
    return NamedPolicy(
        rows=tuple(rows), layers=2, together=True, most=_MOST, translate=_TRANSLATE, black=True, truncates=True
    )


def _choice(name: str, probability: float, magnitude: int, bins: int) -> Choice:
    """One of torchvision's operations at place `magnitude` of `bins` strengths."""
    end = {"Rotate": 30.0, "ShearX": 0.3, "ShearY": 0.3}.get(name, 0.9)
    level = 10.0 * _spaced(0.0, end, magnitude, bins) / end
    if name in ("TranslateX", "TranslateY"):
        level = 10.0 * magnitude / (bins - 1)
    elif name == "Posterize":
        level = 8.0 - round(magnitude / ((bins - 1) / 4))
    elif name == "Solarize":  # what is at least this level is inverted
        level = float(math.ceil(_spaced(255.0, 0.0, magnitude, bins)))
    return Choice(_NAMES.get(name, name), probability, level)


def _spaced(start: float, end: float, place: int, count: int) -> float:
    """torch.linspace(start, end, count)[place], in float32 as torch computes it."""
    step = _float32(_float32(_float32(end) - start) / (count - 1))
    if place < count // 2:
        return _float32(start + _float32(step * place))
    return _float32(_float32(end) - _float32(step * (count - place - 1)))


def _float32(number: float) -> float:
    return float(struct.unpack("f", struct.pack("f", number))[0])
