"""Plans: what happens to each image of a batch, drawn once on the host as a value that can be replayed anywhere.

An image's draw is keyed by (seed, epoch, sample id, stage), and independent of the batch, the rank and the device. The
generator is SplitMix64's finaliser (Steele, Lea, Flood 2014), chained over the key.
"""

import functools
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import torch

from .ops import BINS, MAX_SIDE, STATISTICS, TRIVIAL, Op, rotation, trivial_table
from .policy import Policy, Range

_FLIP_STAGE = 0xF1
_ROTATE_STAGE = 0xF2
_JITTER_STAGE = 0xF3
_TRIVIAL_STAGE = 0xF4
_ERASE_STAGE = 0xF5
_MIX_STAGE = 0xF6
_ERASE_TRIES = 10  # torchvision's
_JITTER = {"brightness": Op.BRIGHTNESS, "contrast": Op.CONTRAST, "saturation": Op.COLOR}

Doubles = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Erasing:
    """Rectangles to erase in E of the images. Sides depend on the image's size, so they are drawn as fractions."""

    rows: torch.Tensor  # int64 [E], positions in the batch
    area: torch.Tensor  # float64 [E, 10], fraction of the image's area, for ten tries
    ratio: torch.Tensor  # float64 [E, 10], height over width
    corner: torch.Tensor  # float64 [E, 10, 2], position between top and bottom, left and right, in [0, 1)


@dataclass(frozen=True)
class Mixing:
    """How each image of the batch is mixed with a partner [B]."""

    partner: torch.Tensor  # int64 [B], a position in the same batch
    share: torch.Tensor  # float32 [B], lambda: the share kept of the image itself, a multiple of 2^-16
    cut: torch.Tensor  # bool [B], cutmix; else mixup
    centre: torch.Tensor  # float64 [B, 2], of cutmix's box, y and x, in [0, 1)


@dataclass(frozen=True)
class Plan:
    """A struct of arrays over the batch [B], on the host. `sized` adds what depends on the size of the images.

    `trivial` is a row of `ops.trivial_table()`: ((operation * 31) + bin) * 2 + negative, 0 for no operation. `ops` are
    executed from left to right, after the warp; K, from 0 to 4, is a property of the policy.
    """

    hflip: torch.Tensor  # bool [B]
    vflip: torch.Tensor  # bool [B]
    angle: torch.Tensor  # float64 [B], degrees, counter-clockwise
    trivial: torch.Tensor  # int64 [B]
    ops: torch.Tensor  # int32 [B, K], Op
    magnitudes: torch.Tensor  # float32 [B, K]
    erasing: Erasing | None = None
    mixing: Mixing | None = None
    policy: Policy | None = None  # it was drawn from this policy

    def __len__(self) -> int:
        return len(self.hflip)

    @property
    def unmixed(self) -> "Plan":
        """The plan without mixup and cutmix, for callers of `apply` that call `mix` themselves afterwards."""
        return self if self.mixing is None else replace(self, mixing=None)

    @property
    def flips(self) -> bool:
        """Whether any image is flipped."""
        return bool(self.hflip.any() or self.vflip.any())

    @functools.cached_property
    def columns(self) -> tuple[frozenset[Op], ...]:
        """The operations in each of the K columns."""
        return tuple(frozenset(map(Op, np.flatnonzero(np.bincount(column)).tolist())) for column in self.ops.numpy().T)

    @property
    def passes(self) -> int:
        """The number of columns that need statistics of the images: at most 2, contrast jitter and TrivialAugment."""
        return sum(bool(ops & STATISTICS) for ops in self.columns)

    def sized(self, height: int, width: int) -> "Sized":
        """The plan for images of this size, in integers. Raises ValueError for sides above 8,192 pixels."""
        if max(height, width) > MAX_SIDE:
            raise ValueError(
                f"images of {width} x {height} pixels are too large to augment; sides may have up to {MAX_SIDE} pixels"
            )
        batch, count = self.ops.shape
        words = np.empty((batch, Sized.FIXED + 2 * count), np.int32)
        words[:, :6] = self._affine(height, width)
        words[:, 6:10] = _boxes(self.erasing, batch, height, width)
        words[:, 10 : 10 + count] = self.ops.numpy()
        words[:, 10 + count :] = self.magnitudes.numpy().view(np.int32)
        return Sized(torch.from_numpy(words))

    def _affine(self, height: int, width: int) -> npt.NDArray[np.int32]:
        """Inverse affines [B, 6] in Q16: flips, then the rotation, then TrivialAugment's warp, as one resampling.

        As in Pillow's `affine_fixed`, the source of pixel (x, y) is
        ((a0 x + a1 y + a2) >> 16, (a3 x + a4 y + a5) >> 16).
        """
        rows, hflip, vflip, angle = (t.numpy() for t in (self.trivial, self.hflip, self.vflip, self.angle))
        if not angle.any():  # then there are few different ones
            return _affines(height, width).take(rows * 4 + (2 * hflip.view(np.uint8) + vflip.view(np.uint8)), axis=0)
        return _fixed(rows, hflip, vflip, angle, height, width)


@dataclass(frozen=True)
class Sized:
    """A plan for images of one size: int32 [B, 10 + 2 K], one small tensor to copy to a device."""

    words: torch.Tensor
    FIXED = 10

    @property
    def affine(self) -> torch.Tensor:
        """int32 [B, 6], Q16: the source of pixel (x, y) is ((a0 x + a1 y + a2) >> 16, (a3 x + a4 y + a5) >> 16).

        Sources outside the image are zeros. No sum overflows 32 bits.
        """
        return self.words[:, :6]

    @property
    def box(self) -> torch.Tensor:
        """int32 [B, 4]: top, left, bottom and right of the erased box, the last two exclusive; zeros for none."""
        return self.words[:, 6:10]

    @property
    def ops(self) -> torch.Tensor:
        """int32 [B, K], Op."""
        return self.words[:, 10 : 10 + self._count]

    @property
    def magnitudes(self) -> torch.Tensor:
        """float32 [B, K]."""
        return self.words[:, 10 + self._count :].view(torch.float32)

    @property
    def _count(self) -> int:
        return (self.words.shape[1] - Sized.FIXED) // 2

    def to(self, device: torch.device) -> "Sized":
        """Copy to a device, without waiting for work enqueued there."""
        return Sized(to_device(self.words, device))


def to_device(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Copy a host tensor to a device, without waiting for work enqueued there."""
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor.to(device)


def draw(policy: Policy, ids: npt.NDArray[np.int64] | torch.Tensor, seed: int, epoch: int) -> Plan:
    """Draw the plan, on the host, for a batch of samples with these `ids` [B]."""
    keys = np.asarray(ids, dtype=np.int64)
    uniforms = functools.partial(_uniforms, seed, epoch, keys)
    flips = uniforms(_FLIP_STAGE, 2) < (policy.hflip, policy.vflip)
    if policy.hflip and policy.hflip_alternates:
        begun = _uniforms(seed, 0, keys, _FLIP_STAGE, 2)[:, 0] < policy.hflip  # in epoch 0
        flips[:, 0] = begun ^ bool(epoch % 2)
    angle = np.zeros(len(keys))
    if policy.rotate:
        angle = policy.rotate * (2.0 * uniforms(_ROTATE_STAGE, 1)[:, 0] - 1.0)
    columns: list[tuple[npt.NDArray[np.int32], npt.NDArray[np.float32]]] = []
    for number, (name, op) in enumerate(_JITTER.items()):
        low, high = getattr(policy, name)
        if (low, high) != (1.0, 1.0):
            factors = low + (high - low) * uniforms(_JITTER_STAGE, len(_JITTER))[:, number]
            columns.append((np.full(len(keys), op, np.int32), factors.astype(np.float32)))
    rows = np.zeros(len(keys), np.int64)
    if policy.trivial:
        rows = _trivial_rows(uniforms(_TRIVIAL_STAGE, 3))
        columns.append((trivial_table().ops[rows], trivial_table().magnitudes[rows]))
    ops = np.stack([op for op, _ in columns], axis=1) if columns else np.zeros((len(keys), 0), np.int32)
    magnitudes = np.stack([m for _, m in columns], axis=1) if columns else np.zeros((len(keys), 0), np.float32)
    return Plan(
        hflip=torch.from_numpy(flips[:, 0].copy()),
        vflip=torch.from_numpy(flips[:, 1].copy()),
        angle=torch.from_numpy(angle),
        trivial=torch.from_numpy(rows),
        ops=torch.from_numpy(ops),
        magnitudes=torch.from_numpy(magnitudes),
        erasing=_erasing(policy, seed, epoch, keys) if policy.erase else None,
        mixing=_mixing(policy, uniforms(_MIX_STAGE, 4)) if policy.mixes else None,
        policy=policy,
    )


def _trivial_rows(chances: Doubles) -> npt.NDArray[np.int64]:
    """Rows of the table [B] from uniform numbers [B, 3] for operation, bin and sign."""
    numbers = (chances * (len(TRIVIAL), BINS, 2)).astype(np.int64)
    rows: npt.NDArray[np.int64] = (numbers[:, 0] * BINS + numbers[:, 1]) * 2 + numbers[:, 2]
    return rows


@functools.lru_cache(maxsize=8)
def _affines(height: int, width: int) -> npt.NDArray[np.int32]:
    """Affines [868 * 2 * 2, 6] of images that are not rotated: by row of TrivialAugment's table, hflip and vflip."""
    rows, hflip, vflip = np.meshgrid(np.arange(len(trivial_table().ops)), (False, True), (False, True), indexing="ij")
    return _fixed(rows.ravel(), hflip.ravel(), vflip.ravel(), np.zeros(rows.size), height, width)


def _fixed(
    rows: npt.NDArray[np.int64],
    hflip: npt.NDArray[np.bool_],
    vflip: npt.NDArray[np.bool_],
    angle: Doubles,
    height: int,
    width: int,
) -> npt.NDArray[np.int32]:
    """`Plan._affine`, computed."""
    table = trivial_table()
    centre = (width / 2, height / 2)
    linear = table.linear[rows]
    shift = np.where(table.centred[rows, None], _about(centre, linear), table.shift[rows])
    if angle.any():
        turned = rotation(angle)
        linear, shift = _composed(turned, _about(centre, turned), linear, shift)
    a, b, d, e = linear.T
    c, f = shift.T
    fixed = np.stack([a, b, c + a * 0.5 + b * 0.5, d, e, f + d * 0.5 + e * 0.5], axis=1)
    affine = np.floor(fixed * 65536.0 + 0.5).astype(np.int64)
    for flipped, row, side in ((hflip, 0, width), (vflip, 3, height)):
        mirrored = -affine[:, row : row + 3]
        mirrored[:, 2] += side * 65536 - 1  # exactly the mirrored pixel: side - 1 - (position >> 16)
        affine[:, row : row + 3] = np.where(flipped[:, None], mirrored, affine[:, row : row + 3])
    return affine.astype(np.int32)


def _about(centre: tuple[float, float], linear: Doubles) -> Doubles:
    """Translations [B, 2] that make linear maps [B, 4] keep a centre (x, y) fixed, computed in Pillow's order."""
    x, y = centre
    a, b, d, e = linear.T
    return np.stack([(a * -x + b * -y + 0.0) + x, (d * -x + e * -y + 0.0) + y], axis=1)


def _composed(outer: Doubles, outer_shift: Doubles, inner: Doubles, inner_shift: Doubles) -> tuple[Doubles, Doubles]:
    """`outer` after `inner`: (linear [B, 4], shift [B, 2]). Exact where one of them is the identity."""
    a, b, d, e = outer.T
    p, q, r, s = inner.T
    u, v = inner_shift.T
    linear = np.stack([a * p + b * r, a * q + b * s, d * p + e * r, d * q + e * s], axis=1)
    return linear, np.stack([a * u + b * v, d * u + e * v], axis=1) + outer_shift


def _erasing(policy: Policy, seed: int, epoch: int, ids: npt.NDArray[np.int64]) -> Erasing:
    rows = np.flatnonzero(_uniforms(seed, epoch, ids, _ERASE_STAGE, 1)[:, 0] < policy.erase)
    chances = _uniforms(seed, epoch, ids[rows], _ERASE_STAGE, 1 + 4 * _ERASE_TRIES)[:, 1:]
    area, ratio, top, left = chances.reshape(len(rows), _ERASE_TRIES, 4).transpose(2, 0, 1)
    low, high = np.log(policy.erase_ratio)
    return Erasing(
        rows=torch.from_numpy(rows),
        area=torch.from_numpy(_between(policy.erase_scale, area)),
        ratio=torch.from_numpy(np.exp(_between((low, high), ratio))),
        corner=torch.from_numpy(np.stack([top, left], axis=2)),
    )


def _between(limits: Range, chances: Doubles) -> Doubles:
    return limits[0] + (limits[1] - limits[0]) * chances


def _boxes(erasing: Erasing | None, batch: int, height: int, width: int) -> npt.NDArray[np.int32]:
    """int32 [B, 4], as torchvision's RandomErasing: the first of ten tries that fits into the image, or none."""
    boxes = np.zeros((batch, 4), np.int32)
    if erasing is None or not len(erasing.rows):
        return boxes
    pixels = erasing.area.numpy() * (height * width)  # [E, 10]
    ratio = erasing.ratio.numpy()
    sides = np.rint(np.stack([np.sqrt(pixels * ratio), np.sqrt(pixels / ratio)], axis=2)).astype(np.int64)
    fits = (sides < (height, width)).all(axis=2)
    first = fits.argmax(axis=1)
    each = np.arange(len(first))
    side = sides[each, first]
    corner = (erasing.corner.numpy()[each, first] * ((height, width) - side + 1)).astype(np.int64)
    erased = np.concatenate([corner, corner + side], axis=1)
    boxes[erasing.rows.numpy()] = np.where((fits.any(axis=1) & side.all(axis=1))[:, None], erased, 0)
    return boxes


def _mixing(policy: Policy, chances: Doubles) -> Mixing:
    """Pair positions 2 k and 2 k + 1 of a batch; the last of an odd batch is paired with the one before it.

    The order of an epoch is random, so neighbours are random pairs. They are the same for every even batch size and
    every number of ranks.
    """
    batch = len(chances)
    partner = np.arange(batch) ^ 1
    if batch % 2:
        partner[-1] = max(batch - 2, 0)
    cut = chances[:, 0] < (0.5 if policy.mixup else 1.0) if policy.cutmix else np.zeros(batch, np.bool_)
    share = np.where(
        cut, beta_quantile(policy.cutmix or 1.0, chances[:, 1]), beta_quantile(policy.mixup or 1.0, chances[:, 1])
    )
    return Mixing(
        partner=torch.from_numpy(partner),
        share=torch.from_numpy((np.rint(share * 65536) / 65536).astype(np.float32)),
        cut=torch.from_numpy(cut),
        centre=torch.from_numpy(chances[:, 2:].copy()),
    )


def beta_quantile(alpha: float, chances: Doubles) -> Doubles:
    """Turn uniform numbers in [0, 1) into numbers distributed as Beta(alpha, alpha)."""
    knots, cumulative, power = _half_beta(alpha)
    lower = np.minimum(chances, 1.0 - chances)
    x = np.interp(lower, cumulative, knots) ** power
    return np.where(chances < 0.5, x, 1.0 - x)


@functools.lru_cache(maxsize=16)
def _half_beta(alpha: float) -> tuple[Doubles, Doubles, float]:
    """Knots w up to the median and the distribution function at x = w ** power; in w the density is finite."""
    power = max(1.0 / alpha, 1.0)
    w = np.linspace(0.0, 0.5 ** (1.0 / power), 8193)
    x = w**power
    density = (1.0 - x) ** (alpha - 1.0) * (x ** (alpha - 1.0) if alpha > 1.0 else 1.0)
    cumulative = np.concatenate([[0.0], np.cumsum(density[1:] + density[:-1])])
    return w, cumulative * (0.5 / cumulative[-1]), power


_WORD = 0xFFFFFFFFFFFFFFFF
_GOLDEN, _FIRST, _SECOND = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB


def _mix(x: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """SplitMix64's next number; x is overwritten, since new arrays take longer than the arithmetic."""
    x += np.uint64(_GOLDEN)
    x ^= x >> np.uint64(30)
    x *= np.uint64(_FIRST)
    x ^= x >> np.uint64(27)
    x *= np.uint64(_SECOND)
    x ^= x >> np.uint64(31)
    return x


def _mixed(x: int) -> int:
    """`_mix` of one number: a tenth of what it takes with arrays of one."""
    x = (x + _GOLDEN) & _WORD
    x = ((x ^ (x >> 30)) * _FIRST) & _WORD
    x = ((x ^ (x >> 27)) * _SECOND) & _WORD
    return x ^ (x >> 31)


def _uniforms(seed: int, epoch: int, ids: npt.NDArray[np.int64], stage: int, count: int) -> Doubles:
    """Uniform numbers in [0, 1), [B, count]."""
    key = 0
    for part in (seed, epoch, stage):
        key = _mixed(key ^ (part & _WORD))
    base = _mix(np.uint64(key) ^ ids.astype(np.uint64))
    bits = _mix(base[:, None] + np.arange(count, dtype=np.uint64) * np.uint64(_GOLDEN))
    return (bits >> np.uint64(11)).astype(np.float64) * 2.0**-53
