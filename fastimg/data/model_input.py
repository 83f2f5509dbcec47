"""A uint8 batch and its plan -> what the model is given, with Kornia's augmentations in their place."""

import dataclasses

import torch

from fastimg.augment import Plan, Policy, apply

from .kornia_pass import KorniaPass


def model_input(
    plan: Plan | None,
    images: torch.Tensor,
    policy: Policy,
    dtype: torch.dtype,
    kornia: KorniaPass | None = None,
    seed: int = 0,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """`apply`, with Kornia's augmentations between the pixel operations and normalisation; `mix` comes after it.

    uint8 images [B, 3, H, W] -> [B, 3, H, W] in `dtype`; so images of 16 bits, and bands with their policy. What Kornia
    makes is rounded to 8 bits, so that normalisation is the table that it always is. Tokens [B, L] stay what they are;
    embeddings are cast. If `out` is given, the result is written into it.
    """
    pixels = images.dtype in (torch.uint8, torch.uint16) or (images.dtype == torch.float32 and policy.as_stored)
    if not pixels:
        cast = images.to(dtype) if images.is_floating_point() else images
        return cast if out is None else out.copy_(cast)
    if plan is None:
        return apply(None, images, policy, dtype, out=out)
    plan = plan.unmixed
    if kornia is None:
        return apply(plan, images, policy, dtype, out=out)
    levels = kornia(apply(dataclasses.replace(plan, erasing=None), images, policy, torch.uint8), seed)
    return apply(None if plan.erasing is None else plan.bare, levels, policy, dtype, out=out)
