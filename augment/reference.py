"""The specification of what a plan does, in plain torch, for any device."""

import torch

from .plan import Plan
from .policy import Policy


def normalisation_table(policy: Policy, dtype: torch.dtype) -> torch.Tensor:
    """(x / 255 - mean) / std for every channel and level [3 * 256], computed in float64 and rounded once to `dtype`."""
    levels = torch.arange(256, dtype=torch.float64) / 255
    mean = torch.tensor(policy.mean, dtype=torch.float64)[:, None]
    std = torch.tensor(policy.std, dtype=torch.float64)[:, None]
    return ((levels - mean) / std).to(dtype).flatten()


def flip(plan: Plan, images: torch.Tensor) -> torch.Tensor:
    """Mirror the images [B, 3, H, W] that the plan names: left-right, then top-bottom."""
    for chosen, axis in ((plan.hflip, 3), (plan.vflip, 2)):
        mask = _sent(chosen, images.device)[:, None, None, None]
        images = torch.where(mask, images.flip(axis), images)
    return images


def _sent(flags: torch.Tensor, device: torch.device) -> torch.Tensor:
    """On the device, without waiting for what is enqueued there."""
    return flags.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else flags.to(device)


def normalise(images: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    """Look up uint8 images [B, 3, H, W] in a table [768]; channels-last, in the table's dtype."""
    levels = images.permute(0, 2, 3, 1).to(torch.int32)  # [B, H, W, 3]
    offsets = torch.arange(3, dtype=torch.int32, device=images.device) * 256
    values = table.index_select(0, (levels + offsets).reshape(-1))
    return values.view(levels.shape).permute(0, 3, 1, 2)
