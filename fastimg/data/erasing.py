"""Erasing that no policy of `fastimg.augment` has: noise for each pixel or rectangle, and several rectangles."""

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from fastimg.augment import Policy, apply, draw
from fastimg.loaders.random import hashes, uniforms

Ids = npt.NDArray[np.int64]
_ERASE_STAGE = 0x7A2
_NOISE_STAGE = 0x7A3
_TRIES = 10  # for a rectangle that fits


@dataclass(frozen=True)
class NoiseErasing:
    """RandomErasing of a batch by timm or torchvision: one or several rectangles of an image, of noise or of 0."""

    normalise: Policy
    probability: float
    area: tuple[float, float]
    log_ratio: tuple[float, float]
    least: int  # rectangles
    most: int
    mode: str  # "const", "rand": a colour for each rectangle, "pixel": for each pixel
    before: bool = False  # Normalize comes after it, and changes the noise, too
    mixes: bool = False  # as of a Policy

    def __call__(
        self, images: torch.Tensor, dtype: torch.dtype, ids: Ids, seed: int, epoch: int, view: int
    ) -> torch.Tensor:
        """uint8 [B, 3, H, W] -> normalised and erased."""
        found = apply(draw(self.normalise, ids, seed, epoch, view), images, dtype=dtype)
        stage = _ERASE_STAGE + (view << 16)
        chances = uniforms(seed, epoch, ids, stage, 2 + self.most * _TRIES * 4)
        keys = hashes(seed, epoch, ids, _NOISE_STAGE + (view << 16)) >> np.uint64(1)
        generator = torch.Generator(found.device)
        given = (self.normalise.mean, self.normalise.std) if self.before else ((0.0,), (1.0,))
        mean, std = (torch.tensor(each, device=found.device)[:, None, None] for each in given)
        for row in np.flatnonzero(chances[:, 0] < self.probability).tolist():
            generator.manual_seed(int(keys[row]))
            count = self.least + int(chances[row, 1] * (self.most - self.least + 1))
            tries = chances[row, 2:].reshape(self.most, _TRIES, 4)[:count]
            for top, left, height, width in self.boxes(tries, count, images.shape[2], images.shape[3]):
                place = found[row, :, top : top + height, left : left + width]
                if self.mode == "const":
                    value = torch.zeros((1, 1, 1), device=found.device)
                else:
                    shape = (place.shape[0], 1, 1) if self.mode == "rand" else tuple(place.shape)
                    value = torch.randn(shape, generator=generator, device=found.device)
                place.copy_((value - mean) / std)
        return found

    def boxes(
        self, tries: npt.NDArray[np.float64], count: int, height: int, width: int
    ) -> list[tuple[int, int, int, int]]:
        """(top, left, height, width) of each rectangle of which one of the tries [count, 10, 4] fits."""
        made = []
        low, high = self.log_ratio
        for drawn in tries.tolist():
            for share, ratio, y, x in drawn:
                area = (self.area[0] + (self.area[1] - self.area[0]) * share) * height * width / count
                aspect = math.exp(low + (high - low) * ratio)
                h, w = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
                if h < height and w < width:
                    made.append((int(y * (height - h + 1)), int(x * (width - w + 1)), h, w))
                    break
        return made
