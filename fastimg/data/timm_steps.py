"""timm's augmentation -> policies of `fastimg.augment`; its mixup and cutmix, which it draws by batch, as functions of
batches, and its erasing with noise as a `NoiseErasing`.

The objects are those of timm 1.0's `create_transform` and `FastCollateMixup`, known by their attributes.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from fastimg.augment import Policy
from fastimg.augment.draws import beta_quantile
from fastimg.augment.mixing import soften
from fastimg.augment.named import parse
from fastimg.augment.plan import to_device
from fastimg.augment.reference import inside
from fastimg.loaders.migration.steps import CannotTakeOver
from fastimg.loaders.random import uniforms

from .erasing import NoiseErasing

Ids = npt.NDArray[np.int64]
Box = tuple[int, int, int, int]  # top, left, height, width
_PLAIN = {"mean": (0.0, 0.0, 0.0), "std": (1.0, 1.0, 1.0)}
_MIX_STAGE = 0x7A1
_AUTO = ("original", "originalr", "v0", "v0r", "3a")


def policy_of(step: Any) -> Policy:
    """The policy of timm's RandAugment, AutoAugment or AugMixAugment, by the name from which timm makes it.

    Raises CannotTakeOver for one that no name makes.
    """
    kind = type(step).__name__
    ops = [op for pair in step.policy for op in pair] if kind == "AutoAugment" else list(step.ops)
    settings = ops[0].hparams
    share = 0.3 if kind == "AugMixAugment" else 0.45
    if settings.get("translate_pct", 0.45) != share:
        raise CannotTakeOver(
            f"timm's {kind} with translate_pct={settings.get('translate_pct', 0.45)}", "leave translate_pct out"
        )
    deviation = float(settings.get("magnitude_std", 0))
    if kind == "AugMixAugment":  # whose names have an infinite one, if they do not say
        spread = "" if math.isinf(deviation) else f"-mstd{deviation}"
    else:
        spread = f"-mstd{101.0 if math.isinf(deviation) else deviation}" if deviation else ""
    for name in _names(kind, step, ops[0], spread):
        found = [(choice.name, choice.probability, choice.magnitude) for choice in _choices(name, kind)]
        if found == [(op.name, float(op.prob), float(op.magnitude)) for op in ops]:
            fill = tuple(level / 255 for level in ops[0].kwargs["fillcolor"])
            return Policy(named=name, mean=fill, std=_PLAIN["std"])
    raise CannotTakeOver(f"timm's {kind} with operations of its own", "give one that a name such as rand-m9 makes")


def _names(kind: str, step: Any, op: Any, spread: str) -> list[str]:
    """The names that may have made it."""
    if kind == "AutoAugment":
        return [name + spread for name in _AUTO]
    if kind == "AugMixAugment":
        if step.blended:
            raise CannotTakeOver("timm's AugMix with blended chains", "leave b1 out")
        depth = f"-d{step.depth}" if step.depth > 0 else ""
        return [f"augmix-m{op.magnitude:g}-w{step.width}{depth}-a{float(step.alpha)}{spread}"]
    most = "" if op.magnitude_max is None else f"-mmax{op.magnitude_max}"
    head = f"rand-m{op.magnitude:g}-n{step.num_layers}-p{float(op.prob)}{spread}{most}"
    if step.choice_weights is None:
        return [head, f"{head}-inc1", f"{head}-t3a"]
    weighted = [f"{head}-tweights", f"{head}-t3aw"]
    return [name for name in weighted if _same(parse(name).weights, step.choice_weights)]


def _same(shares: Sequence[float] | None, others: Sequence[float]) -> bool:
    return shares is not None and len(shares) == len(others) and bool(np.allclose(shares, others))


def _choices(name: str, kind: str) -> Any:
    """The operations of a name, in timm's order: of all layers of AutoAugment, of one of the others."""
    rows = parse(name).rows
    return [choice for row in rows for choice in row] if kind == "AutoAugment" else [row[0] for row in rows]


def erasing_of(step: Any, mean: Sequence[float] | None, std: Sequence[float] | None) -> Policy | NoiseErasing:
    """timm's RandomErasing, which makes a rectangle 0, or noise, in the image as it is then.

    Raises CannotTakeOver for one that leaves a part of a batch as it is.
    """
    if step.num_splits > 1:
        raise CannotTakeOver("RandomErasing of timm with num_splits", "leave re_split out")
    mean, std = tuple(mean or _PLAIN["mean"]), tuple(std or _PLAIN["std"])
    if not (step.per_pixel or step.rand_color) and step.max_count == 1:
        low, high = map(math.exp, step.log_aspect_ratio)
        area = (float(step.min_area), float(step.max_area))
        return Policy(erase=float(step.probability), erase_scale=area, erase_ratio=(low, high), mean=mean, std=std)
    mode = "pixel" if step.per_pixel else "rand" if step.rand_color else "const"
    return NoiseErasing(
        normalise=Policy(mean=mean, std=std),
        probability=float(step.probability),
        area=(float(step.min_area), float(step.max_area)),
        log_ratio=(float(step.log_aspect_ratio[0]), float(step.log_aspect_ratio[1])),
        least=int(step.min_count),
        most=int(step.max_count),
        mode=mode,
    )


class DrawnPolicies(NamedTuple):
    """What timm's Mixup draws: of a batch [1], or of each image [B]."""

    share: npt.NDArray[np.float64]  # lambda: what an image keeps of itself
    cut: npt.NDArray[np.bool_]  # cutmix, rather than mixup
    boxes: npt.NDArray[np.int64]  # [n, 4]: top, left, bottom, right; empty where nothing is cut


def draw_mixing(mixup: Any, ids: Ids, seed: int, epoch: int, height: int, width: int) -> DrawnPolicies:
    """As timm's Mixup draws, by its settings: for the batch, keyed by its first sample, or for each image."""
    keys = ids if mixup.mode in ("elem", "half") else ids[: len(ids) // 2] if mixup.mode == "pair" else ids[:1]
    mixes, chooses, share, y, x, tall, wide = uniforms(seed, epoch, keys, _MIX_STAGE, 7).T
    cut = chooses < (mixup.switch_prob if mixup.mixup_alpha > 0 else 1.0)
    cut &= mixup.cutmix_alpha > 0
    kept = np.where(
        cut, beta_quantile(mixup.cutmix_alpha or 1.0, share), beta_quantile(mixup.mixup_alpha or 1.0, share)
    )
    kept = np.where(mixes < mixup.mix_prob, kept, 1.0) if mixup.mixup_enabled else np.ones_like(kept)
    cut &= kept < 1.0
    if mixup.cutmix_minmax is not None:
        least, most = mixup.cutmix_minmax
        sides = []
        for side, chance in ((height, tall), (width, wide)):
            low, high = int(side * least), int(side * most)
            sides.append(low + (chance * (high - low)).astype(np.int64))
        top, left = (y * (height - sides[0] + 1)).astype(np.int64), (x * (width - sides[1] + 1)).astype(np.int64)
        boxes = np.stack([top, left, top + sides[0], left + sides[1]], axis=1)
    else:
        h, w = ((side * np.sqrt(1.0 - kept)).astype(np.int64) for side in (height, width))
        cy, cx = (y * height).astype(np.int64), (x * width).astype(np.int64)
        corners = [cy - h // 2, cx - w // 2, cy + (h + 1) // 2, cx + (w + 1) // 2]
        boxes = np.stack(corners, axis=1).clip(0, (height, width, height, width))
    boxes[~cut] = 0
    if mixup.correct_lam or mixup.cutmix_minmax is not None:
        covered = (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])
        kept = np.where(cut, 1.0 - covered / (height * width), kept)
    drawn = DrawnPolicies(kept, cut, boxes)
    if mixup.mode == "pair":  # the second half has the first one's, from its end to its beginning
        drawn = DrawnPolicies(*(np.concatenate([values, values[::-1]]) for values in drawn))
    return drawn


def mixed(
    images: torch.Tensor, targets: torch.Tensor, mixup: Any, ids: Ids, seed: int, epoch: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """uint8 images and classes as timm's FastCollateMixup makes them: uint8, and float32 [B, num_classes]."""
    drawn = draw_mixing(mixup, ids, seed, epoch, images.shape[2], images.shape[3])
    half = mixup.mode == "half"
    return mixed_by(drawn, images, targets, mixup.num_classes, mixup.label_smoothing, half)


def mixed_by(
    drawn: DrawnPolicies,
    images: torch.Tensor,
    targets: torch.Tensor,
    num_classes: int,
    smoothing: float,
    half: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Each image with that at its place from the end. `half`: only the first half is kept."""
    soft = soften(targets, num_classes, smoothing)
    if not (drawn.share < 1.0).any():
        return (images[: len(images) // 2], soft[: len(soft) // 2]) if half else (images, soft)
    size = len(images) // 2 if half else len(images)
    own, others, own_soft, others_soft = images[:size], images.flip(0)[:size], soft[:size], soft.flip(0)[:size]
    if len(drawn.share) == 1:  # of the batch
        kept = float(drawn.share[0])
        if drawn.cut[0]:
            top, left, bottom, right = drawn.boxes[0].tolist()
            made = own.clone()
            made[:, :, top:bottom, left:right] = others[:, :, top:bottom, left:right]
        else:
            made = _blend(own, others, kept)
        return made, own_soft * kept + others_soft * (1.0 - kept)
    device = images.device
    share = to_device(torch.from_numpy(drawn.share[:size].astype(np.float32)), device)[:, None]  # [B, 1]
    cut = to_device(torch.from_numpy(drawn.cut[:size].copy()), device)[:, None, None, None]
    within = inside(to_device(torch.from_numpy(drawn.boxes[:size].copy()), device), images.shape[2], images.shape[3])
    made = torch.where(cut, torch.where(within, others, own), _blend(own, others, share[:, :, None, None]))
    return made, own_soft * share + others_soft * (1.0 - share)


def _blend(own: torch.Tensor, others: torch.Tensor, share: float | torch.Tensor) -> torch.Tensor:
    """As levels, rounded."""
    blended = own.to(torch.float32) * share + others.to(torch.float32) * (1.0 - share)
    return blended.round_().to(torch.uint8)
