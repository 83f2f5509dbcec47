"""Steps of torchvision's transforms that are no Policy: drawn now and then, in an order of their own, or blurred.

A step takes uint8 images [B, 3, H, W] and the keys of what it draws, and returns as many. Draws are a function of the
seed, the epoch, the image's id, and `view`: the number of the step among those of an image.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F

from fastimg.augment import Policy, apply, draw
from fastimg.augment.ops import Op
from fastimg.augment.uniforms import seed_of, uniforms

Ids = npt.NDArray[np.int64]
_STAGE = 0xD1  # of what a step draws itself
_PLAIN = Policy(mean=(0.0, 0.0, 0.0), std=(1.0, 1.0, 1.0))
_BLURRED = 1 << 22  # pixels, with those around them, that are float32 at once


@dataclass(frozen=True)
class Shuffled:
    """The operations of a colour jitter in an order of each image's own, as torchvision's ColorJitter has it."""

    policy: Policy

    def __call__(self, images: torch.Tensor, ids: Ids, seed: int, epoch: int, view: int) -> torch.Tensor:
        """See above."""
        plan = draw(self.policy, ids, seed, epoch, view)
        count = plan.ops.shape[1]
        order = torch.from_numpy(uniforms(seed_of(seed, view), epoch, ids, _STAGE, count).argsort(axis=1))
        any_of = frozenset(map(Op, plan.ops[:1].flatten().tolist()))
        plan = replace(
            plan,
            ops=plan.ops.gather(1, order),
            magnitudes=plan.magnitudes.gather(1, order),
            kinds=(any_of,) * count,
        )
        return apply(plan, images, dtype=torch.uint8)


@dataclass(frozen=True)
class Changed:
    """An operation on the levels of images with probability `p`: torchvision's RandomSolarize and its like."""

    op: Op
    magnitude: float
    p: float

    def __call__(self, images: torch.Tensor, ids: Ids, seed: int, epoch: int, view: int) -> torch.Tensor:
        """See above."""
        plan = draw(_PLAIN, ids, seed, epoch, view)
        chosen = torch.from_numpy(uniforms(seed_of(seed, view), epoch, ids, _STAGE, 1) < self.p)  # [B, 1]
        plan = replace(
            plan,
            ops=torch.where(chosen, int(self.op), int(Op.IDENTITY)).to(torch.int32),
            magnitudes=torch.where(chosen, self.magnitude, 0.0).to(torch.float32),
            kinds=(frozenset({self.op, Op.IDENTITY}),),
        )
        return apply(plan, images, dtype=torch.uint8)


@dataclass(frozen=True)
class Blur:
    """torchvision's GaussianBlur: of each image with a sigma of its own, reflected at the edges."""

    size: tuple[int, int]  # pixels of the kernel, across and down
    sigma: tuple[float, float]

    def __call__(self, images: torch.Tensor, ids: Ids, seed: int, epoch: int, view: int) -> torch.Tensor:
        """See above. Raises ValueError for a kernel that is too large for the images, as torchvision does."""
        across, down = (side // 2 for side in self.size)
        height, width = images.shape[2:]
        if across >= width or down >= height:
            raise ValueError(
                f"GaussianBlur: a kernel of {self.size[0]} x {self.size[1]} pixels is too large for images of "
                f"{width} x {height}; give a smaller one"
            )
        low, high = self.sigma
        sigma = low + (high - low) * uniforms(seed_of(seed, view), epoch, ids, _STAGE, 1)  # [B, 1]
        rows, columns = (_kernels(sigma, side).to(images.device) for side in self.size)
        few = max(1, _BLURRED // (3 * (height + 2 * down) * (width + 2 * across)))
        blurred = torch.empty_like(images)
        for first in range(0, len(images), few):
            part = slice(first, first + few)
            given = images[part].to(torch.float32, memory_format=torch.contiguous_format)
            padded = F.pad(given, (across, across, down, down), mode="reflect")
            along = padded.flatten(0, 1)[None]  # [1, 3 B, H, W], each channel with a kernel of its own
            channels = along.shape[1]
            along = F.conv2d(along, rows[part].repeat_interleave(3, 0)[:, None, None], groups=channels)
            along = F.conv2d(along, columns[part].repeat_interleave(3, 0)[:, None, :, None], groups=channels)
            blurred[part] = along.view(given.shape).round_().clamp_(0, 255)
        return blurred


@dataclass(frozen=True)
class OneOf:
    """One of several sequences of steps for each image, by their probabilities; with what is left of 1, none.

    torchvision's RandomChoice, and of one sequence its RandomApply.
    """

    chances: tuple[float, ...]
    steps: tuple[tuple["Step", ...], ...]

    def __call__(self, images: torch.Tensor, ids: Ids, seed: int, epoch: int, view: int) -> torch.Tensor:
        """See above."""
        inner = seed_of(seed, view)
        drawn = uniforms(inner, epoch, ids, _STAGE, 1)[:, 0]
        chosen = np.searchsorted(np.cumsum(self.chances), drawn, "right")
        changed = images.clone()
        first = 1
        for number, steps in enumerate(self.steps):
            rows = np.flatnonzero(chosen == number)
            if len(rows):
                where = torch.from_numpy(rows).to(images.device)
                changed[where] = carried_out(steps, images[where], ids[rows], inner, epoch, first)
            first += len(steps)
        return changed


Step = Policy | Callable[[torch.Tensor, Ids, int, int, int], torch.Tensor]


def carried_out(
    steps: Sequence[Step], images: torch.Tensor, ids: Ids, seed: int, epoch: int, first: int
) -> torch.Tensor:
    """uint8 images [B, 3, H, W] after one step after the other, each with draws of its own: views from `first` on."""
    for view, step in enumerate(steps, first):
        if isinstance(step, Policy):
            images = apply(draw(step, ids, seed, epoch, view), images, dtype=torch.uint8)
        else:
            images = step(images, ids, seed, epoch, view)
    return images


def _kernels(sigma: npt.NDArray[np.float64], side: int) -> torch.Tensor:
    """float32 [B, side], from sigmas [B, 1]."""
    places = np.arange(side) - side // 2
    weights = np.exp(-0.5 * (places / sigma) ** 2)
    return torch.from_numpy((weights / weights.sum(axis=1, keepdims=True)).astype(np.float32))
