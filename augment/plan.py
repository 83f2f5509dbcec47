"""Plans: what happens to each image of a batch, drawn once on the host as a value that can be replayed anywhere.

`draws` makes them, and `ahead` works out what it takes to apply them. A plan is a chain of stages, each of which
resamples an image at most once and then changes its levels.
"""

import functools
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from .ops import MAX_SIDE, STATISTICS, Op, rotation, trivial_table
from .policy import Policy
from .uniforms import Doubles


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
    ahead: "MixingAhead | None" = None  # if it was worked out


@dataclass(frozen=True)
class MixingAhead:
    """How images of one size are mixed, worked out before: `mixing.words_of`."""

    mixing: Mixing
    height: int
    width: int
    words: torch.Tensor  # int32 [B, 7] on the host
    sent: torch.Tensor | None = None  # the same on the device

    def is_of(self, mixing: Mixing, height: int, width: int) -> bool:
        """Whether it was made of what `mixing` has, for this size."""
        mine = self.mixing
        parts = (mine.partner, mine.share, mine.cut, mine.centre)
        same = all(
            a is b for a, b in zip(parts, (mixing.partner, mixing.share, mixing.cut, mixing.centre), strict=True)
        )
        return same and (height, width) == (self.height, self.width)


@dataclass(frozen=True)
class Warps:
    """A warp of each image [B], as Pillow's inverse maps: x' = l0 x + l1 y + ..., y' = l2 x + l3 y + ..."""

    linear: torch.Tensor  # float64 [B, 4]
    shift: torch.Tensor  # float64 [B, 2], as shares of the width and the height, for those that are not centred
    centred: torch.Tensor  # bool [B], whether the warp turns about the image's centre
    fill: tuple[int, int, int]  # the colour of what lies outside the image
    truncates: bool = False  # whether shifts are cut to whole pixels rather than rounded


@dataclass(frozen=True)
class Blurring:
    """Pillow's GaussianBlur of E of the images."""

    rows: torch.Tensor  # int64 [E], positions in the batch
    radius: torch.Tensor  # float64 [E], the standard deviation in pixels


@dataclass(frozen=True)
class ChainMix:
    """AugMix: chains of stages, all of which begin with the image, mixed with each other and then with the image."""

    chains: tuple[tuple["Plan", ...], ...]  # W chains of stages
    weights: torch.Tensor  # float32 [B, W], of each chain
    share: torch.Tensor  # float32 [B], of the mixture


@dataclass(frozen=True)
class Plan:  # more than 12 fields: an operation each
    """A struct of arrays over the batch [B], on the host. `sized` adds what depends on the size of the images.

    `trivial` is a row of `ops.trivial_table()`: ((operation * 31) + bin) * 2 + negative, 0 for no operation. `ops` are
    executed from left to right, after the warp; K is a property of the policy.

    A plan is a stage; `then` are the stages that follow it, on the levels that it makes. Erasing and mixing come at the
    end of all. Within a stage, the order is: flips, rotation and warp as one resampling, `ops`, `chain_mix`, `blur`.
    The last stage neither mixes chains nor blurs.
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
    warps: Warps | None = None  # instead of TrivialAugment's
    kinds: tuple[frozenset[Op], ...] | None = None  # what each column may hold, whatever this batch drew
    chain_mix: ChainMix | None = None
    blur: Blurring | None = None
    then: tuple["Plan", ...] = ()
    ahead: "Ahead | None" = None  # of this stage, if it was worked out

    def __len__(self) -> int:
        return len(self.hflip)

    @property
    def unmixed(self) -> "Plan":
        """The plan without mixup and cutmix, for callers of `apply` that call `mix` themselves afterwards."""
        return self if self.mixing is None else replace(self, mixing=None)

    @property
    def stages(self) -> tuple["Plan", ...]:
        """The stages one after the other, each without `then`; the last has the erasing."""
        if not self.then:
            return (self,)
        first = replace(self, then=(), erasing=None, mixing=None)
        return (first, *self.then[:-1], replace(self.then[-1], erasing=self.erasing, mixing=self.mixing))

    @property
    def bare(self) -> "Plan":
        """A plan of one stage that changes nothing but what is erased and mixed."""
        still, batch = torch.zeros_like(self.hflip), len(self)
        return Plan(
            hflip=still,
            vflip=still,
            angle=torch.zeros_like(self.angle),
            trivial=torch.zeros_like(self.trivial),
            ops=torch.zeros(batch, 0, dtype=torch.int32),
            magnitudes=torch.zeros(batch, 0),
            erasing=self.erasing,
            mixing=self.mixing,
            policy=self.policy,
        )

    @property
    def flips(self) -> bool:
        """Whether any image is flipped."""
        return bool(self.hflip.any() or self.vflip.any())

    @property
    def mirrors(self) -> bool:
        """Whether this stage only flips and erases, whatever a batch of its policy draws."""
        return self.ops.shape[1] == 0 and self.warps is None and not self.angle.any() and not self.trivial.any()

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
        if self.ahead is not None and self.ahead.is_of(self, height, width):
            return self.ahead.sized
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
        if self.warps is None and not angle.any():  # then there are few different ones
            return _affines(height, width).take(rows * 4 + (2 * hflip.view(np.uint8) + vflip.view(np.uint8)), axis=0)
        return _fixed(*self._unflipped(height, width), hflip, vflip, height, width)

    def inverse(self, height: int, width: int) -> tuple[Doubles, Doubles]:
        """`Sized.affine`, not rounded: place p = (x, y) shows what was at linear [B, 2, 2] p + shift [B, 2].

        Of this stage alone. Places are in pixels from the image's corner: the first pixel's centre is (0.5, 0.5).
        """
        linear, shift = (part.copy() for part in self._unflipped(height, width))
        for flips, row, side in ((self.hflip, 0, width), (self.vflip, 1, height)):
            flipped = flips.numpy()
            linear[flipped, 2 * row : 2 * row + 2] *= -1.0
            shift[flipped, row] = side - shift[flipped, row]
        return linear.reshape(-1, 2, 2), shift

    def _unflipped(self, height: int, width: int) -> tuple[Doubles, Doubles]:
        """The linear maps [B, 4] and shifts [B, 2] of the rotation and the warp."""
        angle = self.angle.numpy()
        if self.warps is not None:
            linear, shift = _resolved(self.warps, height, width)
        else:
            linear, shift = _tabled(self.trivial.numpy(), height, width)
        if not angle.any():
            return linear, shift
        turned = rotation(angle)
        return _composed(turned, _about((width / 2, height / 2), turned), linear, shift)


@dataclass(frozen=True)
class Ahead:
    """What applying a stage to images of one size takes, worked out before."""

    stage: Plan
    height: int
    width: int
    sized: "Sized"
    launch: Any = None  # of the fused backend: a `launches.Launch`
    sent: torch.Tensor | None = None  # the launch's words on the device

    def is_of(self, stage: Plan, height: int, width: int) -> bool:
        """Whether it was made of what `stage` has, for this size: where a part was replaced, it is worked out anew."""
        if (height, width) != (self.height, self.width):
            return False
        return all(getattr(stage, name) is getattr(self.stage, name) for name in _WORKED_OUT)


# The fields of a stage that `Ahead` is made of.
_WORKED_OUT = (*("hflip", "vflip", "angle", "trivial", "ops", "magnitudes"), *("erasing", "warps", "kinds"))


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
    """Copy a host tensor to a device, for work enqueued there from now on.

    The copy does not wait for what was enqueued before: it has a stream of its own.
    """
    if device.type != "cuda":
        return tensor.to(device)
    copies, current = _copies(device), torch.cuda.current_stream(device)
    with torch.cuda.stream(copies):
        copied = tensor.pin_memory().to(device, non_blocking=True)
    current.wait_stream(copies)
    copied.record_stream(current)  # its memory is used again only after what reads it there
    return copied


@functools.cache
def _copies(device: torch.device) -> torch.cuda.Stream:
    stream: torch.cuda.Stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    return stream


@functools.lru_cache(maxsize=8)
def _affines(height: int, width: int) -> npt.NDArray[np.int32]:
    """Affines [868 * 2 * 2, 6] of images that are not rotated: by row of TrivialAugment's table, hflip and vflip."""
    rows, hflip, vflip = np.meshgrid(np.arange(len(trivial_table().ops)), (False, True), (False, True), indexing="ij")
    linear, shift = _tabled(rows.ravel(), height, width)
    return _fixed(linear, shift, hflip.ravel(), vflip.ravel(), height, width)


def _tabled(rows: npt.NDArray[np.int64], height: int, width: int) -> tuple[Doubles, Doubles]:
    """The linear maps [B, 4] and shifts [B, 2] of rows of TrivialAugment's table."""
    table = trivial_table()
    linear = table.linear[rows]
    return linear, np.where(table.centred[rows, None], _about((width / 2, height / 2), linear), table.shift[rows])


def _resolved(warps: Warps, height: int, width: int) -> tuple[Doubles, Doubles]:
    """The linear maps [B, 4] and shifts [B, 2] of warps, for images of this size.

    Where nothing is turned or sheared, the shift is of whole pixels: rounded, as the centre of a pixel is by Pillow, or
    truncated.
    """
    linear, shift = warps.linear.numpy(), warps.shift.numpy() * (width, height)
    shift = np.where(warps.centred.numpy()[:, None], _about((width / 2, height / 2), linear), shift)
    moved = (linear == (1.0, 0.0, 0.0, 1.0)).all(axis=1)
    whole = np.trunc(shift) if warps.truncates else np.floor(shift + 0.5)
    return linear, np.where(moved[:, None], whole, shift)


def _fixed(
    linear: Doubles,
    shift: Doubles,
    hflip: npt.NDArray[np.bool_],
    vflip: npt.NDArray[np.bool_],
    height: int,
    width: int,
) -> npt.NDArray[np.int32]:
    """`Plan._affine`, computed."""
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
