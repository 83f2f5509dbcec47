"""Mixup and cutmix: mixes the images of a batch with their partners, and the targets alike."""

from dataclasses import dataclass

import torch

from .backends import apply
from .plan import Mixing, Plan, to_device
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

    Images are augmented and normalised as in `apply`, to `dtype` and with `policy` if given, and then mixed. Floating
    point images [B, 3, H, W] are taken to be normalised already and are only mixed.

    Each image keeps a share lambda of itself and takes 1 - lambda from its partner: as levels (mixup, Zhang et al.
    2018) or as a rectangle (cutmix, Yun et al. 2019, with torchvision's box; lambda is then the area outside it).
    Targets are smoothed first, by `soften`; a negative one, as -1 for none, has no class. If `weight`
    [B] is given, partners of weight 0 (padding, unreadable images) are not mixed in. With a plan that does not mix,
    targets become soft and images are as `apply` returns them.

    Images are mixed in float32 and rounded once to their type. Raises ValueError for arguments that do not fit
    together, and on the CPU for targets of `num_classes` or more. On a GPU looking at them would be a sync point, so
    they are not checked there, and have no class either.
    """
    if targets.shape != images.shape[:1] or targets.is_floating_point():
        raise ValueError(
            f"targets must be integer class indices [{len(images)}]; got {targets.dtype} {list(targets.shape)}"
        )
    if num_classes < 1:
        raise ValueError(f"num_classes must be at least 1; got {num_classes}")
    if targets.device.type == "cpu" and len(targets) and (largest := int(targets.max())) >= num_classes:
        raise ValueError(
            f"targets must be classes below num_classes, {num_classes}; got {largest}: give num_classes of all "
            "classes, or -1 for a sample without one"
        )
    if weight is not None and weight.shape != targets.shape:
        raise ValueError(f"weight must have a number for each image, [{len(images)}]; got {list(weight.shape)}")
    if plan is not None and len(plan) != len(images):
        raise ValueError(f"the plan and the batch differ in size: {len(plan)} and {len(images)}")
    if not 0.0 <= smoothing < 1.0:
        raise ValueError(f"smoothing must be at least 0 and below 1; got {smoothing}")
    if images.dtype in (torch.uint8, torch.uint16):
        if not dtype.is_floating_point:
            raise ValueError(f"images are mixed after normalisation, so dtype must be floating point; got {dtype}")
        images = apply(None if plan is None else plan.unmixed, images, policy, dtype)
    elif not images.is_floating_point():
        raise ValueError(f"images must be uint8, or normalised and floating point; got {images.dtype}")
    soft = soften(targets, num_classes, smoothing)
    images, mixture = mix_images(plan, images, weight)
    return images, soft if mixture is None else mixture.blend(soft)


@dataclass(frozen=True)
class Mixture:
    """How the images of a batch were mixed: the share [B] that each keeps of itself, and its partner's row [B]."""

    share: torch.Tensor
    partner: torch.Tensor

    def blend(self, values: torch.Tensor) -> torch.Tensor:
        """Soft targets [B, C], mixed as the images were."""
        return _blend(self.share[:, None], values, values[self.partner])


def soften(targets: torch.Tensor, num_classes: int, smoothing: float = 0.0) -> torch.Tensor:
    """Classes [B] -> float32 [B, num_classes]: 1 - smoothing for the class, plus smoothing / num_classes for each."""
    classes = torch.arange(num_classes, device=targets.device)
    return (targets[:, None] == classes).to(torch.float32) * (1.0 - smoothing) + smoothing / num_classes


def mix_images(
    plan: Plan | None, images: torch.Tensor, weight: torch.Tensor | None = None
) -> tuple[torch.Tensor, Mixture | None]:
    """Mix normalised images [B, 3, H, W] as `mix` does, and say how; None where nothing is mixed."""
    if plan is None or plan.mixing is None or not len(images):
        return images, None
    device = images.device
    height, width = images.shape[2:]
    partner = to_device(plan.mixing.partner, device)
    box = boxes(plan.mixing, height, width)  # [B, 4]
    kept = 1.0 - (box[:, 2] - box[:, 0]) * (box[:, 3] - box[:, 1]) / (height * width)
    share = to_device(torch.where(plan.mixing.cut, kept.to(torch.float32), plan.mixing.share), device)  # [B]
    cut = to_device(plan.mixing.cut, device)
    box = to_device(box, device)
    if weight is not None:
        share = torch.where(weight[partner] > 0, share, 1.0)
        cut = cut & (weight[partner] > 0)
    others = images[partner]
    blended = _blend(share[:, None, None, None], images, others)
    pasted = torch.where(inside(box, height, width), others, images)
    whole = (share == 1.0)[:, None, None, None]
    mixed = torch.where(cut[:, None, None, None], pasted, torch.where(whole, images, blended))
    return mixed, Mixture(share, partner)


def _blend(share: torch.Tensor, own: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    return (own.to(torch.float32) * share + other.to(torch.float32) * (1.0 - share)).to(own.dtype)


def boxes(mixing: Mixing, height: int, width: int) -> torch.Tensor:
    """Cutmix's rectangles int64 [B, 4] (top, left, bottom, right), as in torchvision: sides sqrt(1 - lambda), clipped.

    Images that drew mixup have empty rectangles.
    """
    sides = torch.tensor([height, width], dtype=torch.float64)
    centre = (mixing.centre * sides).to(torch.int64)  # [B, 2]
    half = (0.5 * (1.0 - mixing.share.double()).sqrt()[:, None] * sides).to(torch.int64)
    first, last = (centre - half).clamp(min=0), torch.minimum(centre + half, sides.to(torch.int64))
    return torch.where(mixing.cut[:, None], torch.cat([first, last], dim=1), 0)


def inside(box: torch.Tensor, height: int, width: int) -> torch.Tensor:
    """bool [B, 1, H, W]: which pixels lie inside boxes [B, 4]."""
    top, left, bottom, right = box.T[:, :, None, None]
    y = torch.arange(height, device=box.device)[:, None]
    x = torch.arange(width, device=box.device)
    within: torch.Tensor = (y >= top) & (y < bottom) & (x >= left) & (x < right)
    return within[:, None]
