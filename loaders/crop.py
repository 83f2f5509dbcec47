"""Which pixels of an image the model sees: boxes in upright pixels, drawn or computed, apart from being cut out."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple, Protocol

Interpolation = Literal["bilinear", "bicubic"]


class Window(NamedTuple):
    """Cut `box` out of the image, resize it to `size`, and keep the output's square that begins at `at`."""

    box: tuple[int, int, int, int]  # x, y, width, height in source pixels
    size: tuple[int, int]  # width, height after the resize
    at: tuple[int, int]  # x, y in the resized image


class Crop(Protocol):
    """A rule for the window of an image. It uses `draws` numbers in [0, 1) per image."""

    @property
    def size(self) -> int:
        """Side of the square output in pixels."""

    @property
    def interpolation(self) -> Interpolation:
        """Filter of the antialiased resize."""

    @property
    def draws(self) -> int:
        """Random numbers that one image takes."""

    def window(self, width: int, height: int, draws: Sequence[float]) -> Window:
        """The window of an upright image of `width` x `height`."""


@dataclass(frozen=True, kw_only=True)
class RandomResizedCrop:
    """torchvision's RandomResizedCrop: area from `scale`, aspect log-uniform from `ratio`, ten tries, else centre."""

    size: int
    scale: tuple[float, float] = (0.08, 1.0)
    ratio: tuple[float, float] = (3 / 4, 4 / 3)
    interpolation: Interpolation = "bilinear"
    draws: int = 22  # two for each of ten tries, two for the place

    def window(self, width: int, height: int, draws: Sequence[float]) -> Window:
        """See `Crop`."""
        low, high = math.log(self.ratio[0]), math.log(self.ratio[1])
        for i in range(0, 20, 2):
            area = width * height * (self.scale[0] + (self.scale[1] - self.scale[0]) * draws[i])
            aspect = math.exp(low + (high - low) * draws[i + 1])
            w, h = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
            if 0 < w <= width and 0 < h <= height:
                box = (int(draws[20] * (width - w + 1)), int(draws[21] * (height - h + 1)), w, h)
                return Window(box, (self.size, self.size), (0, 0))
        w, h = width, height
        if width / height < self.ratio[0]:
            h = max(1, round(width / self.ratio[0]))
        elif width / height > self.ratio[1]:
            w = max(1, round(height * self.ratio[1]))
        return Window(((width - w) // 2, (height - h) // 2, w, h), (self.size, self.size), (0, 0))


@dataclass(frozen=True, kw_only=True)
class CenterCrop:
    """torchvision's Resize(resize) of the shorter side, then CenterCrop(size)."""

    size: int
    resize: int
    interpolation: Interpolation = "bilinear"
    draws: int = 0

    def __post_init__(self) -> None:
        if self.resize < self.size:
            raise ValueError(f"a crop of {self.size} does not fit an image resized to {self.resize}")

    def window(self, width: int, height: int, draws: Sequence[float]) -> Window:
        """See `Crop`."""
        short, long = min(width, height), max(width, height)
        scaled = int(self.resize * long / short)
        w, h = (self.resize, scaled) if width <= height else (scaled, self.resize)
        at = (round((w - self.size) / 2.0), round((h - self.size) / 2.0))
        return Window((0, 0, width, height), (w, h), at)


def sized(crop: Crop, size: int) -> Crop:
    """`crop` made smaller: the same boxes of the same draws, with an output of `size` pixels.

    Raises ValueError where `size` is none of 1 to the crop's own, TypeError for a crop that is not of this module.
    """
    if size == crop.size:
        return crop
    if not 1 <= size <= crop.size:
        raise ValueError(f"size {size}: give 1 to {crop.size} pixels, or make the loader with the largest crop")
    if isinstance(crop, CenterCrop):
        return replace(crop, size=size, resize=round(crop.resize * size / crop.size))
    if isinstance(crop, RandomResizedCrop):
        return replace(crop, size=size)
    raise TypeError(f"{type(crop).__name__} has one size; give a RandomResizedCrop or a CenterCrop")
