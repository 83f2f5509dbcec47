"""Masks, boxes and keypoints, moved as a plan moves the images that they belong to.

    images = apply(plan, batch.inputs)
    masks = apply_masks(plan, batch.fields["mask"])
    moved = apply_boxes(plan, batch.fields["boxes"], batch.counts["boxes"], size=(224, 224))
    labels = moved.along(batch.fields["box_labels"])

Masks follow the images' own inverse map, pixel by pixel. Boxes and points are in pixels from the image's corner, so the
centre of the first pixel is (0.5, 0.5); they take the inverse of that map, which is not rounded for them. What
changes levels alone (colours, blur, erasing) moves nothing. Everything runs on the device of its tensors.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch

from .plan import Plan, to_device
from .reference import warp_masks

_MASK_TYPES = (torch.uint8, torch.int16, torch.int32, torch.int64)


class MovedBoxes(NamedTuple):
    """Boxes after a plan. Those that were dropped are left out, and the others stand in their order before."""

    boxes: torch.Tensor  # [B, N, 4], xyxy in pixels; zeros after the last one
    counts: torch.Tensor  # int32 [B]
    visible: torch.Tensor  # float32 [B, N], the share of each box's area that is left; zeros after the last one
    order: torch.Tensor  # int64 [B, N], the place that each had before

    def along(self, values: torch.Tensor) -> torch.Tensor:
        """What belongs to the boxes, such as labels [B, N, ...], in their order now; zeros after the last one."""
        if values.shape[:2] != self.order.shape:
            raise ValueError(f"values must be {[*self.order.shape, '...']}, one for each box; got {list(values.shape)}")
        return _ordered(values, self.order, self.counts)


def apply_masks(plan: Plan | None, masks: torch.Tensor, ignore: int = 255) -> torch.Tensor:
    """Integer masks [B, H, W] of images of the same size -> masks [B, H, W], by nearest neighbour.

    Each pixel is that of the mask which the augmented image shows there; `ignore` stands where the image shows none.
    What is erased keeps its mask. The result is on the masks' device, and of their type.

    Raises ValueError for masks that are not integers or do not fit the plan, for an `ignore` that their type cannot
    hold, and for a plan that mixes images (mixup, cutmix, AugMix).
    """
    if masks.dim() != 3 or masks.dtype not in _MASK_TYPES or 0 in masks.shape:
        raise ValueError(f"masks must be integers [B, H, W], and not empty; got {masks.dtype} {list(masks.shape)}")
    limits = torch.iinfo(masks.dtype)
    if not limits.min <= ignore <= limits.max:
        raise ValueError(f"ignore={ignore}: masks of {masks.dtype} hold {limits.min} to {limits.max}")
    _check(plan, masks, "masks")
    _, height, width = masks.shape
    moved = masks
    for stage in _moving(plan, height, width):
        moved = _warped(moved, stage.sized(height, width).affine, ignore)
    return masks.clone() if moved is masks else moved  # the caller's, like the other results


def _warped(masks: torch.Tensor, affine: torch.Tensor, ignore: int) -> torch.Tensor:
    """Masks [B, H, W] by inverse affines, int32 [B, 6] on the host. Compiled code for the CPU gives the same."""
    if masks.device.type == "cpu":
        from . import cpu  # numba is slow to import, and not needed on a GPU

        return cpu.warp(masks, affine, ignore)
    return warp_masks(masks, to_device(affine, masks.device), ignore)


def apply_boxes(
    plan: Plan | None,
    boxes: torch.Tensor,
    counts: torch.Tensor | None,
    size: int | tuple[int, int],
    *,
    visible: torch.Tensor | None = None,
    min_visibility: float = 0.0,
) -> MovedBoxes:
    """Boxes [B, N, 4], xyxy in pixels, of images of `size` (a side, or height and width) -> where they are afterwards.

    A box becomes the smallest upright box around its four moved corners, clipped to the image; with several stages,
    one after the other. What is left of its area is its visible share, which is multiplied over the stages, and with
    `visible` [B, N] where that is given (the share that the crop left). Boxes that are empty, have coordinates that are
    not numbers, or of which less than `min_visibility` is left, are dropped. `counts` [B] says how many boxes each
    image has; None: all N.

    Raises ValueError for boxes, counts and shares that do not fit together or with the plan, and for a plan that mixes
    images.
    """
    height, width = _sides(size)
    if boxes.dim() != 3 or boxes.shape[2] != 4 or not boxes.is_floating_point():
        raise ValueError(f"boxes must be floating point [B, N, 4]; got {boxes.dtype} {list(boxes.shape)}")
    if not 0.0 <= min_visibility <= 1.0:
        raise ValueError(f"min_visibility={min_visibility}: give a share of a box's area, 0 to 1")
    _check(plan, boxes, "boxes")
    shape = boxes.shape[:2]
    if visible is not None and visible.shape != shape:
        raise ValueError(f"visible must be {list(shape)}, one share for each box; got {list(visible.shape)}")
    keep = _real(counts, boxes) & _filled(boxes)
    share = torch.ones(shape, dtype=torch.float64, device=boxes.device) if visible is None else visible.double()
    current = boxes.double()
    limits = to_device(torch.tensor([width, height], dtype=torch.float64), boxes.device)
    for linear, shift in _forward(plan, height, width, boxes.device):
        x0, y0, x1, y1 = current.unbind(dim=-1)  # a list as an index would be copied to a GPU, and waited for
        corners = torch.stack([x0, y0, x1, y0, x1, y1, x0, y1], dim=-1).view(*shape, 4, 2)
        corners = torch.einsum("bij,bnkj->bnki", linear, corners) + shift[:, None, None]
        low, high = corners.amin(dim=2), corners.amax(dim=2)
        first, last = (torch.minimum(end.clamp(min=0.0), limits) for end in (low, high))
        share = share * torch.nan_to_num((last - first).prod(dim=2) / (high - low).prod(dim=2))
        current = torch.cat([first, last], dim=2)
    keep = keep & _filled(current) & (share > 0) & (share >= min_visibility)
    order = torch.argsort((~keep).to(torch.uint8), dim=1, stable=True)
    left = keep.sum(dim=1, dtype=torch.int32)
    moved, share = current.to(boxes.dtype), share.to(torch.float32)
    return MovedBoxes(_ordered(moved, order, left), left, _ordered(share, order, left), order)


def apply_keypoints(
    plan: Plan | None,
    points: torch.Tensor,
    size: int | tuple[int, int],
    *,
    counts: torch.Tensor | None = None,
    mirrored: Sequence[int] | None = None,
) -> torch.Tensor:
    """Points [B, ..., 2], xy in pixels, of images of `size` (a side, or height and width) -> where they are afterwards.

    NaN stands for a missing point, and for one that leaves the image. `counts` [B] says how many of the points
    [B, N, ..., 2] are real; the others become zeros. `mirrored` [K] names for each of the points [B, ..., K, 2] the one
    that takes its place where an image shows a mirror image: with left and right eye it is (1, 0).

    Raises ValueError for points that do not fit the plan or `mirrored`, and for a plan that mixes images.
    """
    height, width = _sides(size)
    if points.dim() < 2 or points.shape[-1] != 2 or not points.is_floating_point():
        raise ValueError(f"points must be floating point [B, ..., 2]; got {points.dtype} {list(points.shape)}")
    if mirrored is not None and sorted(mirrored) != list(range(points.shape[-2] if points.dim() > 2 else 0)):
        raise ValueError(f"mirrored={list(mirrored)}: name each of the points {list(points.shape)} [..., K, 2] once")
    _check(plan, points, "points")
    real = None if counts is None else _real(counts, points)
    current = points.double().reshape(len(points), -1, 2)
    limits = to_device(torch.tensor([width, height], dtype=torch.float64), points.device)
    turned = torch.ones(len(points), dtype=torch.float64, device=points.device)
    for linear, shift in _forward(plan, height, width, points.device):
        current = torch.einsum("bij,bnj->bni", linear, current) + shift[:, None]
        inside = ((current >= 0) & (current <= limits)).all(dim=2, keepdim=True)
        current = torch.where(inside, current, torch.nan)
        turned = turned * (linear[:, 0, 0] * linear[:, 1, 1] - linear[:, 0, 1] * linear[:, 1, 0])
    moved = current.view(points.shape).to(points.dtype)
    if mirrored is not None:
        places = to_device(torch.tensor(list(mirrored), dtype=torch.int64), points.device)
        is_mirrored = (turned < 0).view(-1, *(1 for _ in points.shape[1:]))
        moved = torch.where(is_mirrored, moved.index_select(points.dim() - 2, places), moved)
    return moved if real is None else _zeroed(moved, real)


def _check(plan: Plan | None, values: torch.Tensor, name: str) -> None:
    if plan is None:
        return
    if len(plan) != len(values):
        raise ValueError(f"the plan and the {name} differ in size: {len(plan)} and {len(values)}")
    if plan.mixing is not None:
        raise ValueError(
            f"the plan mixes images (mixup or cutmix), which {name} cannot follow: leave mixing out of the policy, or "
            "give plan.unmixed"
        )
    if any(stage.chain_mix is not None for stage in plan.stages):
        raise ValueError(f"the plan blends several warps of an image (AugMix), which {name} cannot follow")


def _sides(size: int | tuple[int, int]) -> tuple[int, int]:
    height, width = (size, size) if isinstance(size, int) else size
    if height < 1 or width < 1:
        raise ValueError(f"size={size}: give the images' side in pixels, or (height, width)")
    return height, width


def _real(counts: torch.Tensor | None, values: torch.Tensor) -> torch.Tensor:
    """bool [B, N]: which of the padded values [B, N, ...] are there."""
    batch, most = values.shape[:2]
    if counts is None:
        return torch.ones(batch, most, dtype=torch.bool, device=values.device)
    if counts.shape != (batch,):
        raise ValueError(f"counts must be [{batch}], one for each image; got {list(counts.shape)}")
    return torch.arange(most, device=values.device) < counts[:, None]


def _filled(boxes: torch.Tensor) -> torch.Tensor:
    """bool [B, N]: which boxes [B, N, 4] have an area, neither inverted nor of coordinates that are no numbers."""
    return (boxes[..., 2:] > boxes[..., :2]).all(dim=2)


def _moving(plan: Plan | None, height: int, width: int) -> Iterator[Plan]:
    """The stages that move any pixel."""
    for stage in () if plan is None else plan.stages:
        linear, shift = stage.inverse(height, width)
        if shift.any() or (linear != np.eye(2)).any():
            yield stage


def _forward(
    plan: Plan | None, height: int, width: int, device: torch.device
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Where each stage moves a place p: linear [B, 2, 2] p + shift [B, 2], float64."""
    for stage in _moving(plan, height, width):
        linear, shift = stage.inverse(height, width)
        forward = np.linalg.inv(linear)
        maps = np.concatenate([forward, -(forward @ shift[:, :, None])], axis=2)  # [B, 2, 3]
        both = to_device(torch.from_numpy(maps), device)
        yield both[..., :2], both[..., 2]


def _ordered(values: torch.Tensor, order: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
    """Values [B, N, ...] in another order [B, N], with zeros from `counts` [B] on."""
    places = order.view(*order.shape, *(1 for _ in values.shape[2:])).expand_as(values)
    return _zeroed(values.gather(1, places), _real(counts, values))


def _zeroed(values: torch.Tensor, real: torch.Tensor) -> torch.Tensor:
    return torch.where(real.view(*real.shape, *(1 for _ in values.shape[2:])), values, 0)
