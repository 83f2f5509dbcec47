"""The operations: TrivialAugmentWide's table, and each one's effect on pixels, in Pillow's arithmetic.

Everything is integer arithmetic, or single IEEE operations on float32 or float64 in a fixed order, each rounded
separately (no fused multiply-add), so every device gives the same bits. Pillow on x86-64 is the judge
(`tests/augment/test_pillow.py`); a Pillow whose compiler fused the multiplication and the addition of a blend may
differ by one level.
"""

import functools
import math
from enum import IntEnum
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

BINS = 31
MAX_BOX = 1  # pixels: the whole radius of the boxes of a blur, which is of 2 pixels at most
MAX_SIDE = 8192  # pixels: up to here every coordinate that a warp can reach fits Q16 in 32 bits, as in Pillow


class Op(IntEnum):
    """Pixel operations, applied after the warp. Comments say what a plan's `magnitude` means."""

    IDENTITY = 0
    BRIGHTNESS = 1  # factor
    COLOR = 2  # factor
    CONTRAST = 3  # factor
    SHARPNESS = 4  # factor
    POSTERIZE = 5  # number of bits kept
    SOLARIZE = 6  # the smallest level that is inverted
    AUTOCONTRAST = 7
    EQUALIZE = 8
    INVERT = 9
    SOLARIZE_ADD = 10  # what is added to levels below 128
    HUE = 11  # added to the hue of Pillow's HSV, 0 to 255


LOOKUPS = frozenset(Op) - {Op.IDENTITY, Op.COLOR, Op.SHARPNESS, Op.HUE}
STATISTICS = frozenset({Op.CONTRAST, Op.AUTOCONTRAST, Op.EQUALIZE})  # lookups that depend on the image

# torchvision's names, in its order, and the pixel operation of each.
TRIVIAL: dict[str, Op] = {
    **dict.fromkeys(("Identity", "ShearX", "ShearY", "TranslateX", "TranslateY", "Rotate"), Op.IDENTITY),
    "Brightness": Op.BRIGHTNESS,
    "Color": Op.COLOR,
    "Contrast": Op.CONTRAST,
    "Sharpness": Op.SHARPNESS,
    "Posterize": Op.POSTERIZE,
    "Solarize": Op.SOLARIZE,
    "AutoContrast": Op.AUTOCONTRAST,
    "Equalize": Op.EQUALIZE,
}


class TrivialTable(NamedTuple):
    """One row per (operation, bin, sign) [14 * 31 * 2]: row = (operation * 31 + bin) * 2 + (1 if negative)."""

    ops: npt.NDArray[np.int32]  # [868] Op
    magnitudes: npt.NDArray[np.float32]  # [868]
    linear: npt.NDArray[np.float64]  # [868, 4] inverse warp: x' = l0 x + l1 y + ..., y' = l2 x + l3 y + ...
    shift: npt.NDArray[np.float64]  # [868, 2] its translation, if it is not centred
    centred: npt.NDArray[np.bool_]  # [868] whether the warp turns about the image's centre


@functools.cache
def trivial_table() -> TrivialTable:
    """torchvision 0.26's `TrivialAugmentWide._AUGMENTATION_SPACE` with 31 bins, as applied to Pillow images."""
    rows = len(TRIVIAL) * BINS * 2
    table = TrivialTable(
        np.zeros(rows, np.int32),
        np.zeros(rows, np.float32),
        np.tile(np.array([1.0, 0.0, 0.0, 1.0]), (rows, 1)),
        np.zeros((rows, 2)),
        np.zeros(rows, np.bool_),
    )
    spaces = {name: _magnitudes(name) for name in TRIVIAL}
    for row in range(rows):
        number, rest = divmod(row, BINS * 2)
        name = tuple(TRIVIAL)[number]
        magnitude = float(spaces[name][rest // 2]) * (-1.0 if rest % 2 else 1.0)
        table.ops[row] = TRIVIAL[name]
        if name in ("Brightness", "Color", "Contrast", "Sharpness"):
            table.magnitudes[row] = 1.0 + magnitude  # Pillow takes the factor as a float
        elif name == "Posterize":
            table.magnitudes[row] = abs(magnitude)
        elif name == "Solarize":
            table.magnitudes[row] = math.ceil(255.0 * abs(magnitude))  # level < threshold, for integer levels
        elif name == "ShearX":
            table.linear[row, 1] = math.tan(math.radians(math.degrees(math.atan(magnitude))))
        elif name == "ShearY":
            angle = math.radians(math.degrees(math.atan(magnitude)))
            table.linear[row, 2] = -math.sin(-angle) / math.cos(angle)
        elif name == "TranslateX":
            table.shift[row, 0] = -int(magnitude)
        elif name == "TranslateY":
            table.shift[row, 1] = -int(magnitude)
        elif name == "Rotate":
            table.linear[row] = rotation(np.array([magnitude]))[0]
            table.centred[row] = True
    return table


def _magnitudes(name: str) -> torch.Tensor:
    if name in ("TranslateX", "TranslateY"):
        return torch.linspace(0.0, 32.0, BINS)
    if name == "Rotate":
        return torch.linspace(0.0, 135.0, BINS)
    if name == "Posterize":
        return (8 - torch.arange(BINS) / ((BINS - 1) / 6)).round()
    if name == "Solarize":
        return torch.linspace(1.0, 0.0, BINS)
    return torch.linspace(0.0, 0.99, BINS)


def rotation(degrees: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Inverse rotations [..., 4], counter-clockwise on the screen, as `PIL.Image.rotate` computes them."""
    angle = -np.radians(degrees % 360.0)
    cos = np.round(np.cos(angle), 15)
    sin = np.round(np.sin(angle), 15)
    return np.stack([cos, sin, np.round(-np.sin(angle), 15), cos], axis=-1)


def blend(degenerate: torch.Tensor, image: torch.Tensor, factor: torch.Tensor) -> torch.Tensor:
    """Pillow's ImagingBlend: degenerate + factor * (image - degenerate), clamped to 0..255 and truncated.

    One float32 multiplication and one addition, each rounded. `factor` is float32; the result has the type of `image`.
    """
    base = degenerate.to(torch.float32)
    product = factor * (image.to(torch.float32) - base)
    return (base + product).clamp(0, 255).to(image.dtype)


def luma(red: torch.Tensor, green: torch.Tensor, blue: torch.Tensor) -> torch.Tensor:
    """Pillow's L (ITU-R 601-2) from int32 levels, in Q16, rounded."""
    return (red * 19595 + green * 38470 + blue * 7471 + 0x8000) >> 16


def turned_hue(levels: torch.Tensor, turn: torch.Tensor) -> torch.Tensor:
    """Turn the hue of int32 levels [N, 3, ...] by `turn`, int32 [N, 1, ...], as Pillow's HSV and back: same type."""
    red, green, blue = levels.unbind(1)
    most, least = levels.amax(dim=1), levels.amin(dim=1)
    span = (most - least).clamp(min=1).to(torch.float32)
    r, g, b = ((most - channel).to(torch.float32) / span for channel in (red, green, blue))
    yellow = (2.0 + r.double() - b.double()).to(torch.float32)
    sector = torch.where(
        red == most, b - g, torch.where(green == most, yellow, (4.0 + g.double() - r.double()).float())
    )
    whole = sector.double() / 6.0 + 1.0
    hue = torch.where(whole >= 1.0, whole - 1.0, whole).to(torch.float32)
    level = (hue.double() * 255.0).to(torch.int32).clamp(0, 255)
    level = (torch.where(most == least, 0, level) + turn.squeeze(1)) & 255
    saturation = (span / most.clamp(min=1).to(torch.float32)).double()
    share = torch.where(most == least, 0, (saturation * 255.0).to(torch.int32)).to(torch.float64)
    share = (share / 255.0).to(torch.float32)  # of the saturation
    position = level.double() * 6.0 / 255.0
    side = torch.floor(position).to(torch.int32)
    part = (position - side).to(torch.float32)
    value = most.double()
    p, q, t = (
        torch.floor(value * (1.0 - kept) + 0.5).to(torch.int32).clamp(0, 255)
        for kept in (share.double(), (share * part).double(), share.double() * (1.0 - part.double()))
    )
    side = side % 6
    channels = ((most, q, p, p, t, most), (t, most, most, q, p, p), (p, p, t, most, most, q))
    sides = torch.arange(6, device=levels.device).view(6, *[1] * side.dim()) == side
    mixed = [torch.where(sides, torch.stack(six), 0).sum(dim=0) for six in channels]
    return torch.where((share == 0)[:, None], most[:, None], torch.stack(mixed, dim=1).to(levels.dtype))


def blur_weights(radius: npt.NDArray[np.float64]) -> npt.NDArray[np.int32]:
    """Pillow's three boxes for a Gaussian of this radius [E]: int32 [E, 3], the box's whole radius and its weights.

    Those are of the pixels of the box, and of the pixel beyond either end, in 2^-24. In float32, in Pillow's order.
    """
    one = np.float32(1)
    variance = radius.astype(np.float32) * radius.astype(np.float32) / np.float32(3)
    length = np.sqrt(12.0 * variance.astype(np.float64) + 1.0).astype(np.float32)
    whole = np.floor((length.astype(np.float64) - 1.0) / 2.0).astype(np.float32)
    rest = (np.float32(2) * whole + one) * (whole * (whole + one) - np.float32(3) * variance)
    rest /= np.float32(6) * (variance - (whole + one) * (whole + one))
    width = whole + rest
    inside = (np.float32(1 << 24) / (width * np.float32(2) + one)).astype(np.int64)
    box = width.astype(np.int64)
    beyond = ((1 << 24) - (box * 2 + 1) * inside) // 2
    return np.stack([box, inside, beyond], axis=1).astype(np.int32)


def smooth(around: torch.Tensor, centre: torch.Tensor) -> torch.Tensor:
    """Pillow's SMOOTH of int32 levels: (sum of the eight neighbours + 5 * centre) / 13, rounded. There are no ties."""
    return (2 * (around + 5 * centre) + 13) // 26


def mean_level(total: torch.Tensor, pixels: int) -> torch.Tensor:
    """The mean from int64 sums of levels, rounded half up, as in ImageEnhance.Contrast."""
    return (2 * total + pixels) // (2 * pixels)


def lookup(op: Op, magnitude: torch.Tensor, mean: torch.Tensor, histogram: torch.Tensor) -> torch.Tensor:
    """The look-up tables uint8 [B, 3, 256] of `op`, one of LOOKUPS.

    `magnitude` is float32 [B]; `mean` int64 [B], the mean L, for contrast; `histogram` int64 [B, 3, 256], for
    autocontrast and equalize. Arguments that an operation does not need are ignored.
    """
    device = magnitude.device
    levels = torch.arange(256, dtype=torch.int32, device=device)  # [256]
    amount = magnitude[:, None]  # [B, 1]
    if op is Op.BRIGHTNESS:
        tables = blend(torch.zeros_like(levels), levels, amount)
    elif op is Op.CONTRAST:
        tables = blend(mean[:, None].to(torch.int32), levels, amount)
    elif op is Op.POSTERIZE:
        dropped = (8 - amount).to(torch.int32)
        tables = (levels >> dropped) << dropped
    elif op is Op.SOLARIZE:
        tables = torch.where(levels < amount, levels, 255 - levels)
    elif op is Op.INVERT:
        tables = (255 - levels).expand(len(amount), -1)
    elif op is Op.SOLARIZE_ADD:
        tables = torch.where(levels < 128, (levels + amount.to(torch.int32)).clamp(max=255), levels)
    elif op is Op.AUTOCONTRAST:
        return _autocontrast(histogram)
    elif op is Op.EQUALIZE:
        return _equalize(histogram)
    else:
        raise AssertionError(op)
    return tables.to(torch.uint8)[:, None, :].expand(-1, 3, -1)


def _autocontrast(histogram: torch.Tensor) -> torch.Tensor:
    """ImageOps.autocontrast: in float64, since some of its products fall just short of an integer."""
    levels = torch.arange(256, dtype=torch.int64, device=histogram.device)
    present = histogram > 0  # [B, 3, 256]
    low = torch.where(present, levels, 255).amin(dim=2, keepdim=True)
    high = torch.where(present, levels, 0).amax(dim=2, keepdim=True)
    span = (high - low).clamp(min=1).double()
    scale = torch.full_like(span, 255.0) / span  # `255.0 / span` would be 255 * (1 / span)
    offset = -low.double() * scale
    product = levels.double() * scale
    stretched = (product + offset).clamp(0, 255).to(torch.int64)
    return torch.where(high <= low, levels, stretched).to(torch.uint8)


def _equalize(histogram: torch.Tensor) -> torch.Tensor:
    """ImageOps.equalize."""
    levels = torch.arange(256, dtype=torch.int64, device=histogram.device)
    below = histogram.cumsum(dim=2) - histogram  # pixels darker than a level
    total = histogram.sum(dim=2, keepdim=True)
    top = torch.where(histogram > 0, levels, 0).amax(dim=2, keepdim=True)
    step = (total - histogram.gather(2, top)) // 255  # 0 if there is only one level
    spread = (step // 2 + below) // step.clamp(min=1)
    return torch.where(step == 0, levels, spread.clamp(max=255)).to(torch.uint8)
