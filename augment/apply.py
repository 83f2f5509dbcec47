"""Carry out a plan on a batch, on the device that the batch is on."""

import functools

import torch

from .plan import Plan
from .policy import Policy
from .reference import flip, normalisation_table, normalise


def apply(plan: Plan | None, images: torch.Tensor, policy: Policy, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """uint8 images [B, 3, H, W] -> the model's input [B, 3, H, W], channels-last, normalised, in `dtype`.

    `plan` None is evaluation: normalisation alone. Raises ValueError for images of another type or shape.
    """
    if images.dtype != torch.uint8 or images.dim() != 4 or images.shape[1] != 3:
        raise ValueError(f"images must be uint8 [B, 3, H, W]; they are {images.dtype} {list(images.shape)}")
    if plan is not None and len(plan.hflip) != len(images):
        raise ValueError(f"the plan is of {len(plan.hflip)} images; there are {len(images)}")
    if plan is not None and plan.flips:
        images = flip(plan, images)
    return normalise(images, _table(policy, dtype, images.device))


@functools.lru_cache(maxsize=16)
def _table(policy: Policy, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    return normalisation_table(policy, dtype).to(device)
