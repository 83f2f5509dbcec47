"""Mixup and cutmix: mixes the images of a batch with their partners, and the targets alike."""

from dataclasses import dataclass

import torch

from . import reference
from .backends import apply, backend_of
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
        return reference.mixed(self.share[:, None], values, values[self.partner])


def soften(targets: torch.Tensor, num_classes: int, smoothing: float = 0.0) -> torch.Tensor:
    """Classes [B] -> float32 [B, num_classes]: 1 - smoothing for the class, plus smoothing / num_classes for each."""
    classes = torch.arange(num_classes, device=targets.device)
    return (targets[:, None] == classes).to(torch.float32) * (1.0 - smoothing) + smoothing / num_classes


def mix_images(
    plan: Plan | None, images: torch.Tensor, weight: torch.Tensor | None = None, *, out: torch.Tensor | None = None
) -> tuple[torch.Tensor, Mixture | None]:
    """Mix normalised images [B, C, H, W] as `mix` does, and say how; None where nothing is mixed.

    One pass over images that are channels-last or contiguous; others are copied first. The result is written to `out`
    if given, which has the images' shape, layout, type and device, and shares no memory with them.
    """
    if out is not None:
        _check_out(out, images)
    if plan is None or plan.mixing is None or not len(images):
        return (images if out is None else out.copy_(images)), None
    if not images.is_contiguous() and not images.is_contiguous(memory_format=torch.channels_last):
        images = images.contiguous(memory_format=torch.channels_last)
    words = _words_on(images.device, plan.mixing, *images.shape[2:])
    mixed, share = _mixed(words, images, weight, out)
    return mixed, Mixture(share, words[:, 0].long())


def _words_on(device: torch.device, mixing: Mixing, height: int, width: int) -> torch.Tensor:
    """`words_of` on a device: worked out before, and there already, if they came with the batch."""
    ahead = mixing.ahead
    if ahead is None or not ahead.is_of(mixing, height, width):
        return to_device(words_of(mixing, height, width), device)
    if ahead.sent is not None and ahead.sent.device == device:
        return ahead.sent
    return to_device(ahead.words, device)


def _mixed(
    words: torch.Tensor, images: torch.Tensor, weight: torch.Tensor | None, out: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Images and shares by the code for their device; what has gradients or another type is mixed by plain torch."""
    kind = "reference" if images.requires_grad else backend_of(images.device)
    if kind == "cpu" and images.dtype in (torch.float32, torch.bfloat16):
        from . import cpu  # numba is slow to import, and not needed on a GPU

        return cpu.mix(words, images, weight, out)
    if kind == "fused" and images.dtype in (torch.float32, torch.bfloat16, torch.float16):
        from . import fused

        launched: tuple[torch.Tensor, torch.Tensor] = fused.mix(words, images, weight, out)
        return launched
    mixed, share = reference.mix(words, images, weight)
    return (mixed if out is None else out.copy_(mixed)), share


def _check_out(out: torch.Tensor, images: torch.Tensor) -> None:
    laid_out = any(
        images.is_contiguous(memory_format=form) and out.is_contiguous(memory_format=form)
        for form in (torch.channels_last, torch.contiguous_format)
    )
    if (out.shape, out.dtype, out.device) != (images.shape, images.dtype, images.device) or not laid_out:
        raise ValueError(
            f"out must be as the images are, {images.dtype} {list(images.shape)} on {images.device} and like them "
            f"channels-last or contiguous; got {out.dtype} {list(out.shape)} on {out.device}"
        )
    first, second = sorted((tensor.data_ptr(), tensor.data_ptr() + tensor.nbytes) for tensor in (out, images))
    if len(images) and first[1] > second[0]:
        raise ValueError("out must not share memory with the images: partners are read after an image is written")


def words_of(mixing: Mixing, height: int, width: int) -> torch.Tensor:
    """How images of a size are mixed, int32 [B, 7], one small tensor to copy to a device.

    The partner; the share that is kept, in the bits of float32; whether a box is cut; and the box, as `boxes` has it.
    Raises ValueError for partners outside of the batch.
    """
    partner = mixing.partner.numpy()
    if len(partner) and not 0 <= partner.min() <= partner.max() < len(partner):
        raise ValueError(f"partners are positions in the batch, 0 to {len(partner) - 1}")
    box = boxes(mixing, height, width)
    kept = 1.0 - (box[:, 2] - box[:, 0]) * (box[:, 3] - box[:, 1]) / (height * width)
    words = torch.empty(len(partner), 7, dtype=torch.int32)
    words[:, 0] = mixing.partner
    words[:, 1] = torch.where(mixing.cut, kept.to(torch.float32), mixing.share).view(torch.int32)
    words[:, 2] = mixing.cut
    words[:, 3:] = box
    return words


def boxes(mixing: Mixing, height: int, width: int) -> torch.Tensor:
    """Cutmix's rectangles int64 [B, 4] (top, left, bottom, right), as in torchvision: sides sqrt(1 - lambda), clipped.

    Images that drew mixup have empty rectangles.
    """
    sides = torch.tensor([height, width], dtype=torch.float64)
    centre = (mixing.centre * sides).to(torch.int64)  # [B, 2]
    half = (0.5 * (1.0 - mixing.share.double()).sqrt()[:, None] * sides).to(torch.int64)
    first, last = (centre - half).clamp(min=0), torch.minimum(centre + half, sides.to(torch.int64))
    return torch.where(mixing.cut[:, None], torch.cat([first, last], dim=1), 0)
