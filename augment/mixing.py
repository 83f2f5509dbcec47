"""Mixup and cutmix: images of a batch mixed with their partners, and targets that say so."""

import torch

from .backends import apply
from .plan import Mixing, Plan, sent
from .policy import Policy


def mix(
    plan: Plan | None,
    images: torch.Tensor,
    targets: torch.Tensor,
    num_classes: int,
    smoothing: float = 0.0,
    weight: torch.Tensor | None = None,
    *,
    policy: Policy | None = None,
    dtype: torch.dtype = torch.float32,
) -> tuple[torch.Tensor, torch.Tensor]:
    """uint8 images [B, 3, H, W] and classes int64 [B] -> (the model's input, soft targets float32 [B, num_classes]).

    The images are augmented and normalised as `apply` does it, to `dtype` and by `policy` where one is given, and then
    mixed. Images [B, 3, H, W] that are floating point are taken to be normalised already, and are mixed only.

    Each image keeps lambda of itself and takes 1 - lambda of its partner: as levels (mixup, Zhang et al. 2018) or as a
    rectangle (cutmix, Yun et al. 2019, torchvision's box; lambda is then what the box leaves). Targets are smoothed
    first: 1 - smoothing for the class, and smoothing / num_classes for every class. Partners of weight 0 (padding,
    images that could not be read), where `weight` [B] is given, are not mixed in. With a plan that does not mix, the
    targets become soft and the images are what `apply` returns.

    Images are mixed in float32 and rounded once to their type. Raises ValueError for what does not fit together.
    """
    if targets.shape != images.shape[:1] or targets.is_floating_point():
        raise ValueError(f"targets must be classes [{len(images)}]; they are {targets.dtype} {list(targets.shape)}")
    if plan is not None and len(plan) != len(images):
        raise ValueError(f"the plan and the images differ in number: {len(plan)} and {len(images)}")
    if not 0.0 <= smoothing < 1.0:
        raise ValueError(f"smoothing is a share, from 0 to below 1; it was {smoothing}")
    if images.dtype == torch.uint8:
        if not dtype.is_floating_point:
            raise ValueError(f"images are mixed after normalisation, as floating point; {dtype} was asked for")
        images = apply(None if plan is None else plan.unmixed, images, policy, dtype)
    elif not images.is_floating_point():
        raise ValueError(f"images must be uint8, or floating point and normalised; they are {images.dtype}")
    classes = torch.arange(num_classes, device=targets.device)
    soft = (targets[:, None] == classes).to(torch.float32) * (1.0 - smoothing) + smoothing / num_classes
    if plan is None or plan.mixing is None or not len(images):
        return images, soft
    device = images.device
    height, width = images.shape[2:]
    partner = sent(plan.mixing.partner, device)
    box = boxes(plan.mixing, height, width)  # [B, 4]
    kept = 1.0 - (box[:, 2] - box[:, 0]) * (box[:, 3] - box[:, 1]) / (height * width)
    share = sent(torch.where(plan.mixing.cut, kept.to(torch.float32), plan.mixing.share), device)  # [B]
    cut, box = sent(plan.mixing.cut, device), sent(box, device)
    if weight is not None:
        share = torch.where(weight[partner] > 0, share, 1.0)
        cut = cut & (weight[partner] > 0)
    others = images[partner]
    blended = _blend(share[:, None, None, None], images, others)
    pasted = torch.where(_inside(box, height, width), others, images)
    whole = (share == 1.0)[:, None, None, None]
    mixed = torch.where(cut[:, None, None, None], pasted, torch.where(whole, images, blended))
    return mixed, _blend(share[:, None], soft, soft[partner])


def _blend(share: torch.Tensor, own: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    return (own.to(torch.float32) * share + other.to(torch.float32) * (1.0 - share)).to(own.dtype)


def boxes(mixing: Mixing, height: int, width: int) -> torch.Tensor:
    """Cutmix's rectangles int64 [B, 4] (top, left, bottom, right), as torchvision: sides sqrt(1 - lambda), cut off.

    They are empty for images that draw mixup.
    """
    sides = torch.tensor([height, width], dtype=torch.float64)
    centre = (mixing.centre * sides).to(torch.int64)  # [B, 2]
    half = (0.5 * (1.0 - mixing.share.double()).sqrt()[:, None] * sides).to(torch.int64)
    first, last = (centre - half).clamp(min=0), torch.minimum(centre + half, sides.to(torch.int64))
    return torch.where(mixing.cut[:, None], torch.cat([first, last], dim=1), 0)


def _inside(box: torch.Tensor, height: int, width: int) -> torch.Tensor:
    """bool [B, 1, H, W]: the pixels in boxes [B, 4]."""
    top, left, bottom, right = box.T[:, :, None, None]
    y = torch.arange(height, device=box.device)[:, None]
    x = torch.arange(width, device=box.device)
    inside: torch.Tensor = (y >= top) & (y < bottom) & (x >= left) & (x < right)
    return inside[:, None]
