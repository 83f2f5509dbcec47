"""Crops that torchvision and timm have and a `Loader` has not: of any size and place, or none."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

from fastimg.loaders.crop import Interpolation, Window
from fastimg.loaders.errors import ImageError


@dataclass(frozen=True, kw_only=True)
class Squash:
    """torchvision's Resize((height, width)): the whole image, whatever its shape becomes. See `CropRule`."""

    size: tuple[int, int]
    interpolation: Interpolation = "bilinear"
    draws: int = 0

    def window(self, width: int, height: int, draws: Sequence[float]) -> Window:
        """See `CropRule`."""
        return Window((0, 0, width, height), (self.size[1], self.size[0]), (0, 0))


@dataclass(frozen=True, kw_only=True)
class CenterSquare:
    """FFCV's CenterCropRGBImageDecoder: a square in the middle, of `ratio` of the shorter side. See `CropRule`."""

    size: tuple[int, int]
    ratio: float
    interpolation: Interpolation = "bilinear"
    draws: int = 0

    def window(self, width: int, height: int, draws: Sequence[float]) -> Window:
        """See `CropRule`."""
        side = max(1, int(self.ratio * min(width, height)))
        return Window(((width - side) // 2, (height - side) // 2, side, side), (self.size[1], self.size[0]), (0, 0))

    def sized(self, size: tuple[int, int]) -> Self:
        """The same boxes, shown in another size."""
        return replace(self, size=size)


@dataclass(frozen=True, kw_only=True)
class FreeCrop:
    """torchvision's RandomCrop, after Resize(`resize`) if there is one; with no draws its CenterCrop. See `CropRule`.

    What lies beyond the image has the level `fill`; None: it is mirrored about its outermost pixels.
    """

    size: tuple[int, int]
    resize: int | tuple[int, int] | None = None  # of the shorter side, or (height, width); None: as it is
    padding: tuple[int, int, int, int] = (0, 0, 0, 0)  # left, top, right, bottom
    pads: bool = False  # further, on both sides, where an image is smaller than the crop
    fill: int | None = 0
    interpolation: Interpolation = "bilinear"
    draws: int = 2

    def window(self, width: int, height: int, draws: Sequence[float]) -> Window:
        """See `CropRule`. Raises ImageError for an image that is smaller than the crop, as torchvision does."""
        tall, wide = self.size
        if isinstance(self.resize, int):
            w, h = _shorter(width, height, self.resize)
        else:
            h, w = self.resize or (height, width)
        if not self.draws:
            at = tuple(round(room / 2.0) if room >= 0 else -(-room // 2) for room in (w - wide, h - tall))
            return Window((0, 0, width, height), (w, h), (at[0], at[1]))
        left, top, right, bottom = self.padding
        across, down = w + left + right, h + top + bottom
        if self.pads and (short := wide - across) > 0:
            left, across = left + short, across + 2 * short
        if self.pads and (short := tall - down) > 0:
            top, down = top + short, down + 2 * short
        if across < wide or down < tall:
            raise ImageError(f"{across} x {down} pixels, with their padding, are fewer than a crop of {wide} x {tall}")
        x, y = int(draws[0] * (across - wide + 1)), int(draws[1] * (down - tall + 1))
        return Window((0, 0, width, height), (w, h), (x - left, y - top))


@dataclass(frozen=True, kw_only=True)
class Whole:
    """The image as it is, where all have one size. See `CropRule`."""

    size: tuple[int, int]
    interpolation: Interpolation = "bilinear"
    draws: int = 0

    def window(self, width: int, height: int, draws: Sequence[float]) -> Window:
        """See `CropRule`. Raises ImageError for an image of another size."""
        if (height, width) != self.size:
            raise ImageError(
                f"{width} x {height} pixels, and the first image has {self.size[1]} x {self.size[0]}: without a crop "
                "or Resize((height, width)) in the transform all have to be equal"
            )
        return Window((0, 0, width, height), (width, height), (0, 0))


@dataclass(frozen=True, kw_only=True)
class KeepRatio:
    """timm's ResizeKeepRatio, and a crop of what it makes: in the middle, or anywhere if `anywhere`. See `CropRule`.

    The image is scaled to cover `resize`, with `longest` 1 to fit into it; then, where drawn, by a share of the area
    and by an aspect ratio. What lies beyond the image has the level `fill`; None: it is mirrored about its outermost
    pixels.
    """

    size: tuple[int, int]
    resize: tuple[int, int]
    longest: float = 0.0
    scale_chance: float = 0.0
    scale: tuple[float, float] = (1.0, 1.0)
    scale_of_area: bool = False  # 0.5 then shows half of the area; else it halves the sides
    aspect_chance: float = 0.0
    aspect: tuple[float, float] = (1.0, 1.0)
    anywhere: bool = False
    fill: int | None = None
    interpolation: Interpolation = "bilinear"

    @property
    def draws(self) -> int:
        """Of the scale, the aspect ratio and the place."""
        return 6 if self.scale_chance or self.aspect_chance or self.anywhere else 0

    def window(self, width: int, height: int, draws: Sequence[float]) -> Window:
        """See `CropRule`."""
        tall, wide = self.size
        ratios = height / self.resize[0], width / self.resize[1]
        ratio = max(ratios) * self.longest + min(ratios) * (1.0 - self.longest)
        down = across = 1.0
        if draws and draws[0] < self.scale_chance:
            factor = self.scale[0] + (self.scale[1] - self.scale[0]) * draws[1]
            down = across = 1.0 / math.sqrt(factor) if self.scale_of_area else factor
        if draws and draws[2] < self.aspect_chance:
            low, high = map(math.log, self.aspect)
            aspect = math.sqrt(math.exp(low + (high - low) * draws[3]))
            down, across = down / aspect, across * aspect
        h, w = max(1, round(height * down / ratio)), max(1, round(width * across / ratio))
        if self.anywhere:
            x, y = (_anywhere(room, draw) for room, draw in ((w - wide, draws[4]), (h - tall, draws[5])))
        else:
            x, y = (round(room / 2.0) if room >= 0 else -(-room // 2) for room in (w - wide, h - tall))
        return Window((0, 0, width, height), (w, h), (x, y))


def _anywhere(room: int, draw: float) -> int:
    """From 0 to `room`, which is below 0 where there is none."""
    place = int(draw * (abs(room) + 1))
    return place if room >= 0 else -place


def _shorter(width: int, height: int, side: int) -> tuple[int, int]:
    """(width, height) of an image whose shorter side is made `side`, truncated to whole pixels."""
    if width <= height:
        return side, int(side * height / width)
    return int(side * width / height), side
