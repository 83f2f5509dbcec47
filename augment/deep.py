"""Images of 16 bits and bands: flipped, turned, normalised and erased in plain torch, on any device.

In: a plan; uint16 images, or uint8, uint16 or float32 bands; a policy. What changes levels is refused by name: its
tables and statistics are of 8 bits.
"""

import functools

import torch

from .ops import Op
from .plan import Plan
from .policy import Policy
from .reference import erase, flip, normalisation_table, normalise, warp

LEVELS = {torch.uint8: 1 << 8, torch.uint16: 1 << 16}


def takes(images: torch.Tensor, policy: Policy) -> bool:
    """Whether these images are augmented here: all but uint8 ones of three channels or one."""
    return images.dtype != torch.uint8 or policy.as_stored or policy.channels not in (1, 3)


def augment_deep(plan: Plan | None, images: torch.Tensor, policy: Policy, dtype: torch.dtype) -> torch.Tensor:
    """Images [B, C, H, W] of uint8, uint16 or float32 -> [B, C, H, W] in `dtype`, channels-last.

    Whole numbers become (x / 65535 - mean) / std (255 for uint8), or (x - mean) / std where the policy says
    `as_stored`, computed in float64 and rounded once. float32 becomes (x - mean) / std, computed in float32.

    Raises ValueError for a plan that changes levels, and for a type that is not floating point.
    """
    if not dtype.is_floating_point:
        raise ValueError(f"images of 16 bits, and bands, become floating point; got dtype {dtype}")
    whole = images.dtype in LEVELS
    levels = images.to(torch.int32) if whole else images
    if plan is None:
        return _normalised(levels, policy, dtype, LEVELS.get(images.dtype))
    _check(plan, plan.policy or policy, images)
    sized = plan.sized(*images.shape[2:]).to(images.device)
    turned = bool(plan.angle.any()) or plan.warps is not None or bool(plan.trivial.any())
    levels = warp(sized.affine, levels, None) if turned else flip(plan, levels)
    table = _table(policy, dtype, images.device, LEVELS.get(images.dtype, 1))
    return erase(sized.box, _normalised(levels, policy, dtype, LEVELS.get(images.dtype)), table)


def _normalised(levels: torch.Tensor, policy: Policy, dtype: torch.dtype, count: int | None) -> torch.Tensor:
    """Levels int32 of `count`, or float32 ones, normalised to `dtype`, channels-last."""
    if count is not None:
        return normalise(levels, _table(policy, dtype, levels.device, count), count)
    mean, std = _moments(policy, levels.device)
    return ((levels - mean) / std).to(dtype, memory_format=torch.channels_last)


def _check(plan: Plan, policy: Policy, images: torch.Tensor) -> None:
    """Raises ValueError that names what the plan does to levels."""
    sixteen = images.dtype == torch.uint16
    have = "the images have 16" if sixteen else f"these are bands of {str(images.dtype).removeprefix('torch.')}"
    if name := policy.changes_levels:
        raise ValueError(f"{name} changes levels of 8 bits, and {have}: leave it out, or read images of 8 bits")
    if plan.then or plan.blur is not None or any(ops - {Op.IDENTITY} for ops in plan.columns):
        raise ValueError(f"the plan changes levels of 8 bits, and {have}: draw it by another policy")


@functools.lru_cache(maxsize=4)
def _table(policy: Policy, dtype: torch.dtype, device: torch.device, count: int) -> torch.Tensor:
    return normalisation_table(policy, dtype, count).to(device)


@functools.lru_cache(maxsize=4)
def _moments(policy: Policy, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Mean and standard deviation float32 [C, 1, 1]."""
    mean, std = (torch.tensor(values, dtype=torch.float32, device=device) for values in (policy.mean, policy.std))
    return mean.view(-1, 1, 1), std.view(-1, 1, 1)
