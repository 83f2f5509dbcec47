"""Carry out a plan on a batch, on the device that the batch is on."""

import functools
from typing import Literal

import torch

from .plan import Plan
from .policy import Policy
from .reference import augment, normalisation_table, normalise

Backend = Literal["reference", "cpu", "fused"]

DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.uint8)


def apply(
    plan: Plan | None,
    images: torch.Tensor,
    policy: Policy,
    dtype: torch.dtype = torch.float32,
    *,
    backend: Backend | None = None,
) -> torch.Tensor:
    """uint8 images [B, 3, H, W], of any strides -> the model's input [B, 3, H, W], channels-last, in `dtype`.

    float32, bfloat16 and float16 are normalised; uint8 is not. `plan` None is evaluation: normalisation alone. Mixing
    is not applied here: `mix` does it. Every backend gives the same bits. Raises ValueError for images of another type
    or shape.
    """
    if images.dtype != torch.uint8 or images.dim() != 4 or images.shape[1] != 3 or 0 in images.shape[2:]:
        raise ValueError(f"images must be uint8 [B, 3, H, W]; they are {images.dtype} {list(images.shape)}")
    if dtype not in DTYPES:
        raise ValueError(f"images become {', '.join(map(str, DTYPES))}; {dtype} was asked for")
    if plan is not None and len(plan) != len(images):
        raise ValueError(f"the plan is of {len(plan)} images; there are {len(images)}")
    table = _table(policy, dtype, images.device)
    return normalise(images, table) if plan is None else augment(plan, images, table)


@functools.lru_cache(maxsize=16)
def _table(policy: Policy, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    return normalisation_table(policy, dtype).to(device)
