"""FFCV's operations on uint8 images -> steps that do the same: see `torchvision_operations` for what a step is.

A script that comes from FFCV has them in the pipeline of its images; `fastimg.loaders` knows the operations by the
names of their classes, and is given these by `torchvision_steps`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from fastimg.augment import Policy
from fastimg.augment.uniforms import seed_of, uniforms

from .torchvision_operations import OneOf, Step

Ids = npt.NDArray[np.int64]
Colour = tuple[int, int, int]
_STAGE = 0xD2  # of what a step draws


@dataclass(frozen=True)
class Translate:
    """FFCV's RandomTranslate: by up to `padding` pixels in each direction, with a colour where the image was."""

    padding: int
    fill: Colour

    def __call__(self, images: torch.Tensor, ids: Ids, seed: int, epoch: int, view: int) -> torch.Tensor:
        """See above."""
        _, _, height, width = images.shape
        room = 2 * self.padding + 1
        shifts = (_drawn(seed, epoch, ids, view) * room).astype(np.int64)
        down, right = _to(shifts, images.device).T
        padded = _filled(self.fill, (len(images), height + room - 1, width + room - 1), images.device)
        padded[:, self.padding : self.padding + height, self.padding : self.padding + width] = images.permute(
            0, 2, 3, 1
        )
        rows = down[:, None] + torch.arange(height, device=images.device)
        columns = right[:, None] + torch.arange(width, device=images.device)
        image = torch.arange(len(images), device=images.device)[:, None, None]
        return padded[image, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)


@dataclass(frozen=True)
class Cutout:
    """FFCV's Cutout: a square of `side` pixels, anywhere in the image, becomes a colour."""

    side: int
    fill: Colour

    def __call__(self, images: torch.Tensor, ids: Ids, seed: int, epoch: int, view: int) -> torch.Tensor:
        """See above. Raises ValueError for a square that is larger than the images."""
        _, _, height, width = images.shape
        if self.side > min(height, width):
            raise ValueError(f"Cutout({self.side}) of images of {width} x {height} pixels; give a smaller square")
        room = np.array([height - self.side + 1, width - self.side + 1])
        top, left = _to((_drawn(seed, epoch, ids, view) * room).astype(np.int64), images.device).T
        inside = _inside(top, self.side, height)[:, :, None] & _inside(left, self.side, width)[:, None, :]
        colour = _filled(self.fill, (1, 1, 1), images.device).permute(0, 3, 1, 2)
        return torch.where(inside[:, None], colour, images)


def _drawn(seed: int, epoch: int, ids: Ids, view: int) -> npt.NDArray[np.float64]:
    """Two numbers for each image [B, 2]."""
    return uniforms(seed_of(seed, view), epoch, ids, _STAGE, 2)


def _to(values: npt.NDArray[np.int64], device: torch.device) -> torch.Tensor:
    return torch.from_numpy(values).to(device, non_blocking=True)


def _filled(colour: Colour, shape: tuple[int, int, int], device: torch.device) -> torch.Tensor:
    """uint8 [B, H, W, 3] of one colour."""
    filled = torch.empty((*shape, 3), dtype=torch.uint8, device=device)
    for channel, level in enumerate(colour):
        filled[..., channel] = level
    return filled


def _inside(first: torch.Tensor, count: int, size: int) -> torch.Tensor:
    """Whether each of `size` places is one of `count` from `first` [B] on: [B, size]."""
    places = torch.arange(size, device=first.device) - first[:, None]
    return (places >= 0) & (places < count)


def _colour(fill: Any) -> Colour:
    red, green, blue = (int(level) for level in np.broadcast_to(np.asarray(fill), (3,)))
    return red, green, blue


def _factor(name: str) -> Callable[[Any], Step]:
    def sometimes(step: Any) -> Step:
        limits: Any = (max(0.0, 1.0 - float(step.magnitude)), 1.0 + float(step.magnitude))
        return OneOf((float(step.p),), ((Policy(**{name: limits}),),))

    return sometimes


# FFCV's class -> the step, of an object's attributes
STEPS: dict[str, Callable[[Any], Step]] = {
    "RandomBrightness": _factor("brightness"),
    "RandomContrast": _factor("contrast"),
    "RandomSaturation": _factor("saturation"),
    "RandomTranslate": lambda step: Translate(int(step.padding), _colour(step.fill)),
    "Cutout": lambda step: Cutout(int(step.crop_size), _colour(step.fill)),
}
