"""Images of 16 bits: flipped, turned, normalised and erased in plain torch, on any device.

In: a plan, uint16 images, a policy. What changes levels is refused by name: its tables and statistics are of 8 bits.
"""

import functools

import torch

from .ops import Op
from .plan import Plan
from .policy import Policy
from .reference import erase, normalisation_table, normalise, warp

LEVELS = 1 << 16
_CHANGES = ("brightness", "contrast", "saturation", "hue", "trivial", "named", "grayscale", "blur", "solarize")


def augment_deep(plan: Plan | None, images: torch.Tensor, policy: Policy, dtype: torch.dtype) -> torch.Tensor:
    """uint16 images [B, C, H, W] -> [B, C, H, W] in `dtype`, channels-last: (x / 65535 - mean) / std, rounded once.

    Raises ValueError for a plan that changes levels, and for a type that is not floating point.
    """
    if not dtype.is_floating_point:
        raise ValueError(f"images of 16 bits become floating point; got dtype {dtype}")
    table = _table(policy, dtype, images.device)
    levels = images.to(torch.int32)
    if plan is None:
        return normalise(levels, table, LEVELS)
    _check(plan, plan.policy or policy)
    sized = plan.sized(*images.shape[2:]).to(images.device)
    return erase(sized.box, normalise(warp(sized.affine, levels), table, LEVELS), table)


def _check(plan: Plan, policy: Policy) -> None:
    """Raises ValueError that names what the plan does to levels."""
    plain = Policy()
    for name in _CHANGES:
        if getattr(policy, name) != getattr(plain, name):
            raise ValueError(f"{name} changes levels of 8 bits, and the images have 16: leave it out, or read 8 bits")
    if plan.then or plan.blur is not None or any(ops - {Op.IDENTITY} for ops in plan.columns):
        raise ValueError("the plan changes levels of 8 bits, and the images have 16: draw it by another policy")


@functools.lru_cache(maxsize=4)
def _table(policy: Policy, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    return normalisation_table(policy, dtype, LEVELS).to(device)
