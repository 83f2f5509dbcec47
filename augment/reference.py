"""The specification of what a plan does, in plain torch on any device: slow, but written to be read."""

from collections.abc import Callable

import torch

from .ops import LOOKUPS, MAX_BOX, Op, blend, blur_weights, lookup, luma, mean_level, smooth, turned_hue
from .plan import Blurring, ChainMix, Plan, to_device
from .policy import Policy


def augment(plan: Plan | None, images: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    """uint8 images [B, C, H, W], C 3 or 1 -> [B, C, H, W] in the table's type, channels-last.

    One channel counts as three equal ones: the mean for contrast is its own. One nearest-neighbour resampling of the
    source, at most four pixel operations, normalisation and erasing. `table` is `normalisation_table`. Statistics are
    those of an operation's input, zeros from the warp included. With `plan` None images are only normalised.
    """
    if plan is None:
        return normalise(images, table)
    sized = plan.sized(images.shape[2], images.shape[3]).to(images.device)
    images = warp(sized.affine, images, (0, 0, 0) if plan.warps is None else plan.warps.fill)
    for number, ops in enumerate(plan.columns):
        for op in ops - {Op.IDENTITY}:
            rows = to_device(torch.nonzero(plan.ops[:, number] == op)[:, 0], images.device)
            images = images.index_copy(0, rows, operate(op, sized.magnitudes[rows, number], images[rows]))
    return erase(sized.box, normalise(images, table), table)


def warp(affine: torch.Tensor, images: torch.Tensor, fill: tuple[int, int, int] | None = (0, 0, 0)) -> torch.Tensor:
    """Resample images [B, C, H, W] by inverse Q16 affines int32 [B, 6]: nearest, `fill` outside, as in Pillow.

    A `fill` of None is 0 in any number of channels.
    """
    channels = images.shape[1]
    source, inside = sources(affine, *images.shape[2:])
    source = source.flatten(1)[:, None]
    taken = images.flatten(2).gather(2, source.expand(-1, channels, -1)).view(images.shape)
    if fill is None:
        return torch.where(inside[:, None], taken, 0)
    colour = torch.tensor(fill[:channels], dtype=images.dtype).view(-1, 1, 1)
    return torch.where(inside[:, None], taken, to_device(colour, images.device))


def warp_masks(masks: torch.Tensor, affine: torch.Tensor, ignore: int) -> torch.Tensor:
    """Resample integer masks [B, H, W] as `warp` does images, with `ignore` outside."""
    source, inside = sources(affine, *masks.shape[1:])
    taken = masks.flatten(1).gather(1, source.flatten(1)).view(masks.shape)
    return torch.where(inside, taken, ignore)


def sources(affine: torch.Tensor, height: int, width: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The pixel that each pixel shows, int64 [B, H, W] in row-major order, and whether there is one, bool [B, H, W].

    `affine` is int32 [B, 6], inverse and in Q16; where there is no pixel, the first one is named.
    """
    y, x = torch.meshgrid(
        *(torch.arange(n, dtype=torch.int32, device=affine.device) for n in (height, width)), indexing="ij"
    )
    a0, a1, a2, a3, a4, a5 = affine.T[:, :, None, None]  # [B, 1, 1] each
    column = (a0 * x + a1 * y + a2) >> 16  # [B, H, W]
    row = (a3 * x + a4 * y + a5) >> 16
    inside = (column >= 0) & (column < width) & (row >= 0) & (row < height)
    return torch.where(inside, row * width + column, 0).to(torch.int64), inside


def operate(op: Op, magnitude: torch.Tensor, images: torch.Tensor) -> torch.Tensor:
    """Apply one pixel operation to uint8 images [N, C, H, W], with magnitudes float32 [N], as Pillow does."""
    factor = magnitude[:, None, None, None]
    levels = images.to(torch.int32)
    if op in LOOKUPS:
        tables = lookup(op, magnitude, mean_luma(levels), histogram(levels))[:, : levels.shape[1]]
        return tables.flatten(1).gather(1, _entries(levels)).view(images.shape)
    if op is Op.COLOR:
        gray = _gray(levels)[:, None]
        return blend(gray, levels, factor).to(torch.uint8)
    if op is Op.HUE:
        return turned_hue(levels, factor.to(torch.int32)).to(torch.uint8)
    if op is Op.SHARPNESS:
        return blend(_smoothed(levels), levels, factor).to(torch.uint8)
    return images


def mean_luma(levels: torch.Tensor) -> torch.Tensor:
    """The mean L, int64 [N], of int32 images [N, C, H, W]."""
    gray = _gray(levels)
    return mean_level(gray.sum(dim=(1, 2), dtype=torch.int64), gray[0].numel() if len(gray) else 1)


def _gray(levels: torch.Tensor) -> torch.Tensor:
    """The levels int32 [N, H, W] of L; of one channel, which is what L of three equal ones is, its own."""
    return luma(*levels.unbind(1)) if levels.shape[1] == 3 else levels[:, 0]


def histogram(levels: torch.Tensor) -> torch.Tensor:
    """Histograms of the channels, int64 [N, C, 256], of int32 images [N, C, H, W]."""
    channels = levels.shape[1]
    counts = torch.zeros(len(levels), channels * 256, dtype=torch.int64, device=levels.device)
    entries = _entries(levels)
    return counts.scatter_add_(1, entries, torch.ones_like(entries)).view(-1, channels, 256)


def _entries(levels: torch.Tensor) -> torch.Tensor:
    """Indices into tables [C * 256] for int32 images: int64 [N, C * H * W]."""
    channels = torch.arange(levels.shape[1], dtype=torch.int64, device=levels.device).view(-1, 1, 1) * 256
    return (levels + channels).flatten(1)


def _smoothed(levels: torch.Tensor) -> torch.Tensor:
    """ImageFilter.SMOOTH; the outermost pixels, and images with sides below 3 pixels, are unchanged."""
    height, width = levels.shape[2:]
    result = levels.clone()
    if height < 3 or width < 3:
        return result
    parts = [levels[:, :, i : height - 2 + i, j : width - 2 + j] for i in range(3) for j in range(3)]
    centre = parts.pop(4)
    result[:, :, 1:-1, 1:-1] = smooth(torch.stack(parts).sum(dim=0, dtype=torch.int32), centre)
    return result


def blur(blurring: Blurring, images: torch.Tensor) -> torch.Tensor:
    """Blur the images of a uint8 batch [B, C, H, W] that drew it: three boxes along rows, then three along columns.

    Every box rounds to 8 bits; beyond its edges an image goes on with its outermost pixels. Pillow's GaussianBlur.
    """
    rows = to_device(blurring.rows, images.device)
    weights = to_device(torch.from_numpy(blur_weights(blurring.radius.numpy())), images.device).to(torch.int64)
    levels = images[rows].to(torch.int64)
    for axis in (3, 3, 3, 2, 2, 2):
        levels = _boxed(levels, weights, axis)
    return images.index_copy(0, rows, levels.to(torch.uint8))


def _boxed(levels: torch.Tensor, weights: torch.Tensor, axis: int) -> torch.Tensor:
    """Averages int64 [E, C, H, W] over boxes along an axis, with weights int64 [E, 3] of `ops.blur_weights`."""
    side = levels.shape[axis]
    positions = torch.arange(side, device=levels.device)
    box, inside, beyond = weights.T[:, :, None, None, None]
    total = torch.full_like(levels, 1 << 23)
    for distance in range(-MAX_BOX - 1, MAX_BOX + 2):
        there = levels.index_select(axis, (positions + distance).clamp(0, side - 1))
        weight = torch.where(box >= abs(distance), inside, torch.where(box + 1 == abs(distance), beyond, 0))
        total += there * weight
    return total >> 24


def mix_chains(mix: ChainMix, images: torch.Tensor, run: Callable[[Plan, torch.Tensor], torch.Tensor]) -> torch.Tensor:
    """AugMix of a uint8 batch [B, C, H, W]; `run` carries a stage out. In float32, operations rounded one by one."""
    mixed = torch.zeros(images.shape, device=images.device)
    weights = to_device(mix.weights, images.device)[:, :, None, None, None]
    share = to_device(mix.share, images.device)[:, None, None, None]
    for number, stages in enumerate(mix.chains):
        chain = images
        for stage in stages:
            chain = run(stage, chain)
        mixed += chain.to(torch.float32) * weights[:, number]
    blended = blend(images, mixed.clamp(0, 255).to(torch.uint8).to(torch.float32), share)
    return blended.to(torch.uint8)


def normalisation_table(policy: Policy, dtype: torch.dtype, count: int = 256) -> torch.Tensor:
    """The output value for every channel and level, and for erased pixels: [C * 256 + C], rounded once to `dtype`.

    There are `count` levels, 65536 of images of 16 bits. (x / 255 - mean) / std in float64, or (x - mean) / std of
    values `as_stored`, then the policy's `erase_value` per channel. For uint8, the levels themselves, then the levels
    closest to the erase values before normalisation.
    """
    levels = torch.arange(count, dtype=torch.float64) / (1 if policy.as_stored else max(count - 1, 1))
    mean = torch.tensor(policy.mean, dtype=torch.float64)[:, None]
    std = torch.tensor(policy.std, dtype=torch.float64)[:, None]
    erased = torch.tensor(policy.erase_values, dtype=torch.float64)
    if dtype == torch.uint8:
        denormalised = ((erased * std[:, 0] + mean[:, 0]) * 255).round().clamp(0, 255)
        return torch.cat([torch.arange(256).repeat(policy.channels), denormalised]).to(dtype)
    return torch.cat([((levels - mean) / std).flatten(), erased]).to(dtype)


def normalise(images: torch.Tensor, table: torch.Tensor, count: int = 256) -> torch.Tensor:
    """Look up uint8 images [B, C, H, W] in a table of at least C * 256 entries; channels-last, in the table's dtype."""
    levels = images.permute(0, 2, 3, 1).to(torch.int32)  # [B, H, W, C]
    offsets = torch.arange(images.shape[1], dtype=torch.int32, device=images.device) * count
    values = table.index_select(0, (levels + offsets).reshape(-1))
    return values.view(levels.shape).permute(0, 3, 1, 2)


def erase(box: torch.Tensor, images: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    """Fill the boxes int32 [B, 4] of images [B, C, H, W] with the table's last C entries."""
    erased = inside(box, *images.shape[2:])
    return torch.where(erased, table[-images.shape[1] :].view(-1, 1, 1), images)


def mix(words: torch.Tensor, images: torch.Tensor, weight: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
    """Mix floating point images [B, C, H, W] by `mixing.words_of`, on their device; partners of weight 0 are left out.

    Returns the images, and the share float32 [B] that each keeps. In float32, operations rounded one by one, and then
    once to the images' type. A box of a partner, and an image that keeps all of itself, have the bits that they had.
    """
    partner, share, cut = words[:, 0].long(), words[:, 1].view(torch.float32), words[:, 2] > 0
    if weight is not None:
        share = torch.where(weight[partner] > 0, share, 1.0)
        cut = cut & (weight[partner] > 0)
    others = images[partner]
    pasted = torch.where(inside(words[:, 3:], *images.shape[2:]), others, images)
    whole = (share == 1.0)[:, None, None, None]
    blended = torch.where(whole, images, mixed(share[:, None, None, None], images, others))
    return torch.where(cut[:, None, None, None], pasted, blended), share


def mixed(share: torch.Tensor, own: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """`share` of a value of its own, and the rest of another's; in float32, then in the values' type."""
    return (own.to(torch.float32) * share + other.to(torch.float32) * (1.0 - share)).to(own.dtype)


def inside(box: torch.Tensor, height: int, width: int) -> torch.Tensor:
    """bool [B, 1, H, W]: which pixels lie inside boxes [B, 4]: top, left, bottom, right."""
    top, left, bottom, right = box.T[:, :, None, None]  # [B, 1, 1] each
    y = torch.arange(height, dtype=torch.int32, device=box.device)[:, None]
    x = torch.arange(width, dtype=torch.int32, device=box.device)
    within: torch.Tensor = (y >= top) & (y < bottom) & (x >= left) & (x < right)
    return within[:, None]


def flip(plan: Plan, images: torch.Tensor) -> torch.Tensor:
    """Flip the images [B, C, H, W] that the plan names: the same as `warp` for a plan with flips only."""
    for chosen, axis in ((plan.hflip, 3), (plan.vflip, 2)):
        mask = to_device(chosen, images.device)[:, None, None, None]
        images = torch.where(mask, images.flip(axis), images)
    return images
