"""Drawing plans: what happens to each image of a batch, as a pure function of (ids, seed, epoch) and a policy.

An image's draw is keyed by (seed, epoch, sample id, stage), and independent of the batch, the rank and the device.
"""

import functools
import operator
from dataclasses import dataclass, field, replace
from typing import SupportsIndex

import numpy as np
import numpy.typing as npt
import torch

from .layers import LayerKey, draw_layers
from .named import NamedPolicy, parse
from .ops import BINS, TRIVIAL, Op, trivial_table
from .plan import Blurring, ChainMix, Erasing, Mixing, Plan, Warps
from .policy import Policy, Range
from .uniforms import Doubles, seed_of, uniform_columns, uniforms

_FLIP_STAGE = 0xF1
_ROTATE_STAGE = 0xF2
_JITTER_STAGE = 0xF3
_TRIVIAL_STAGE = 0xF4
_ERASE_STAGE = 0xF5
_MIX_STAGE = 0xF6
_HUE_STAGE = 0xF7
_SOMETIMES_STAGE = 0xF8  # grey, blur, its radius, solarizing
_CHAINS_STAGE = 0xF9
_ERASE_TRIES = 10  # torchvision's
BLUR_RADIUS = (0.1, 2.0)  # pixels: torchvision's and timm's range
_LARGE = 500.0  # an alpha above which the density of a Beta distribution is too small for a float64
_JITTER = {"brightness": Op.BRIGHTNESS, "contrast": Op.CONTRAST, "saturation": Op.COLOR}


def draw(policy: Policy, ids: npt.NDArray[np.int64] | torch.Tensor, seed: int, epoch: int, view: int = 0) -> Plan:
    """Draw the plan, on the host, for a batch of samples with these `ids` [B].

    view: which of several views of the same images this is. Each has draws of its own, independent of the others: view
        k > 0 draws as view 0 of another seed does, which is a hash of `seed` and k.

    `seed`, `epoch` and `view` may be integers of NumPy, or tensors of one, too: they draw as Python's do.

    Raises ValueError for a negative view, and TypeError for a seed, an epoch or a view that is no integer.
    """
    seed, epoch, view = _integer("seed", seed), _integer("epoch", epoch), _integer("view", view)
    if view < 0:
        raise ValueError(f"view {view}: views are counted from 0")
    seed = seed_of(seed, view)
    keys = np.asarray(ids, dtype=np.int64)
    chances = functools.partial(uniforms, seed, epoch, keys)
    flips = np.zeros((2, len(keys)), np.bool_)  # horizontally, vertically
    if policy.hflip or policy.vflip:
        drawn = uniform_columns(seed, epoch, keys, _FLIP_STAGE, 2 if policy.vflip else 1)
        for number, (column, chance) in enumerate(zip(drawn, (policy.hflip, policy.vflip), strict=False)):
            flips[number] = column < chance
    if policy.hflip and policy.hflip_alternates:
        begun = uniforms(seed, 0, keys, _FLIP_STAGE, 1)[:, 0] < policy.hflip  # in epoch 0
        flips[0] = begun ^ bool(epoch % 2)
    angle = np.zeros(len(keys))
    if policy.rotate:
        angle = policy.rotate * (2.0 * chances(_ROTATE_STAGE, 1)[:, 0] - 1.0)
    trivial = np.zeros(len(keys), np.int64)
    if policy.trivial:
        trivial = _trivial_rows(uniform_columns(seed, epoch, keys, _TRIVIAL_STAGE, 3), policy.trivial == "gray")
    first, *others = _stages(policy, LayerKey(seed, epoch, keys), trivial)
    return replace(
        first,
        hflip=torch.from_numpy(flips[0]),
        vflip=torch.from_numpy(flips[1]),
        angle=torch.from_numpy(angle),
        trivial=torch.from_numpy(trivial),
        erasing=_erasing(policy, seed, epoch, keys) if policy.erase else None,
        mixing=_mixing(policy, chances(_MIX_STAGE, 4)) if policy.mixes else None,
        policy=policy,
        then=tuple(others),
    )


def _integer(name: str, value: SupportsIndex) -> int:
    try:
        return operator.index(value)
    except TypeError:
        raise TypeError(f"{name} must be an integer; got {value!r}: convert it, as in int({name})") from None


@dataclass
class _Stage:
    """A stage of a plan, while it is put together."""

    columns: list[tuple[npt.NDArray[np.int32], npt.NDArray[np.float32]]] = field(default_factory=list)
    kinds: list[frozenset[Op]] = field(default_factory=list)
    warps: Warps | None = None  # of a layer of a named policy
    chain_mix: ChainMix | None = None
    blur: Blurring | None = None

    @property
    def is_full(self) -> bool:
        """Whether it takes no further column: it ends with sharpness, which must be last, or with a blur or a mix."""
        sharpens = any(Op.SHARPNESS in kinds for kinds in self.kinds)
        return sharpens or self.blur is not None or self.chain_mix is not None

    def plan(self, batch: int) -> Plan:
        """The stage as a plan that neither flips nor rotates."""
        ops = [ops for ops, _ in self.columns]
        magnitudes = [amounts for _, amounts in self.columns]
        still = torch.zeros(batch, dtype=torch.bool)
        return Plan(
            hflip=still,
            vflip=still,
            angle=torch.zeros(batch, dtype=torch.float64),
            trivial=torch.zeros(batch, dtype=torch.int64),
            ops=torch.from_numpy(np.stack(ops, axis=1) if ops else np.zeros((batch, 0), np.int32)),
            magnitudes=torch.from_numpy(np.stack(magnitudes, axis=1) if ops else np.zeros((batch, 0), np.float32)),
            kinds=tuple(self.kinds) or None,
            warps=self.warps,
            chain_mix=self.chain_mix,
            blur=self.blur,
        )


@dataclass
class _Draft:
    """The stages of a plan, while it is put together."""

    stages: list[_Stage]

    def add(self, ops: npt.NDArray[np.int32], magnitudes: Doubles, kinds: frozenset[Op]) -> None:
        """Append a column, to the last stage if it takes one more."""
        if self.stages[-1].is_full:
            self.stages.append(_Stage())
        self.stages[-1].columns.append((ops, magnitudes.astype(np.float32)))
        self.stages[-1].kinds.append(kinds)

    def add_to_some(self, op: Op, magnitude: float, chosen: npt.NDArray[np.bool_]) -> None:
        """Append a column in which the images that are `chosen` [B] have an operation."""
        kinds = frozenset({op, Op.IDENTITY})
        self.add(np.where(chosen, op, Op.IDENTITY).astype(np.int32), np.where(chosen, magnitude, 0.0), kinds)


def _stages(policy: Policy, key: LayerKey, trivial: npt.NDArray[np.int64]) -> list[Plan]:
    """A named policy, jitter, TrivialAugment, grey, blur, solarizing: in this order, in as few stages as possible."""
    batch = len(key.ids)
    draft = _Draft(_named(policy, key) or [_Stage()])
    for op, magnitudes in _jitter(policy, key):
        draft.add(np.full(batch, op, np.int32), magnitudes, frozenset({op}))
    if policy.trivial:
        table = trivial_table()
        draft.add(table.ops[trivial], table.magnitudes[trivial].astype(np.float64), frozenset(TRIVIAL.values()))
    if policy.grayscale or policy.blur or policy.solarize:
        chances = uniforms(key.seed, key.epoch, key.ids, _SOMETIMES_STAGE, 4)
        if policy.grayscale:
            draft.add_to_some(Op.COLOR, 0.0, chances[:, 0] < policy.grayscale)
        if policy.blur:
            rows = np.flatnonzero(chances[:, 1] < policy.blur)
            blur = Blurring(torch.from_numpy(rows), torch.from_numpy(_between(BLUR_RADIUS, chances[rows, 2])))
            if draft.stages[-1].blur is not None or draft.stages[-1].chain_mix is not None:
                draft.stages.append(_Stage())
            draft.stages[-1].blur = blur
        if policy.solarize:
            draft.add_to_some(Op.SOLARIZE, 128.0, chances[:, 3] < policy.solarize)
    if draft.stages[-1].blur is not None or draft.stages[-1].chain_mix is not None:
        draft.stages.append(_Stage())  # the last one normalises
    return [stage.plan(batch) for stage in draft.stages]


def _jitter(policy: Policy, key: LayerKey) -> list[tuple[Op, Doubles]]:
    """The operations of colour jitter that the policy has, with a magnitude for each image."""
    found: list[tuple[Op, Doubles]] = []
    for number, (name, op) in enumerate(_JITTER.items()):
        low, high = getattr(policy, name)
        if (low, high) != (1.0, 1.0):
            chances = uniforms(key.seed, key.epoch, key.ids, _JITTER_STAGE, len(_JITTER))[:, number]
            found.append((op, low + (high - low) * chances))
    if policy.hue:
        chances = uniforms(key.seed, key.epoch, key.ids, _HUE_STAGE, 1)[:, 0]
        found.append((Op.HUE, np.trunc(policy.hue * (2.0 * chances - 1.0) * 255.0) % 256.0))
    return found


def _named(policy: Policy, key: LayerKey) -> list[_Stage]:
    """The stages of the policy's named policy: one for each layer, or AugMix's chains."""
    if not policy.named:
        return []
    named = parse(policy.named)
    red, *others = (min(255, round(255 * mean)) for mean in policy.mean)
    green, blue = others or (red, red)
    fill = (0, 0, 0) if named.black else (red, green, blue)
    if not named.width:
        return _layered(named, key, fill)
    batch = len(key.ids)
    chains = tuple(
        tuple(stage.plan(batch) for stage in _layered(named, replace(key, chain=number), fill))
        for number in range(named.width)
    )
    chances = uniforms(key.seed, key.epoch, key.ids, _CHAINS_STAGE, named.width + 1)
    waits = gamma_quantile(named.alpha, chances[:, :-1])
    weights = (waits / waits.sum(axis=1, keepdims=True)).astype(np.float32)
    share = beta_quantile(named.alpha, chances[:, -1]).astype(np.float32)
    return [_Stage(chain_mix=ChainMix(chains, torch.from_numpy(weights), torch.from_numpy(share)))]


def _layered(named: NamedPolicy, key: LayerKey, fill: tuple[int, int, int]) -> list[_Stage]:
    return [
        _Stage([(drawn.ops, drawn.magnitudes)], [drawn.kinds], drawn.warps, None, drawn.blur)
        for drawn in draw_layers(named, key, fill)
    ]


def _trivial_rows(chances: Doubles, gray: bool) -> npt.NDArray[np.int64]:
    """Rows of the table [B] from uniform numbers [3, B] for operation, bin and sign; of `gray` images without Color."""
    names = [number for number, name in enumerate(TRIVIAL) if not (gray and name == "Color")]
    operation, bins, sign = (
        (column * count).astype(np.int64) for column, count in zip(chances, (len(names), BINS, 2), strict=True)
    )
    rows: npt.NDArray[np.int64] = np.array(names).take(operation)
    rows *= BINS
    rows += bins
    rows *= 2
    rows += sign
    return rows


def _erasing(policy: Policy, seed: int, epoch: int, ids: npt.NDArray[np.int64]) -> Erasing:
    rows = np.flatnonzero(uniforms(seed, epoch, ids, _ERASE_STAGE, 1)[:, 0] < policy.erase)
    chances = uniforms(seed, epoch, ids[rows], _ERASE_STAGE, 1 + 4 * _ERASE_TRIES)[:, 1:]
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
    if alpha > _LARGE:
        with np.errstate(divide="ignore"):  # of 0
            density = np.exp((alpha - 1.0) * np.log(4.0 * x * (1.0 - x)))  # relative to that of the median
    else:
        density = (1.0 - x) ** (alpha - 1.0) * (x ** (alpha - 1.0) if alpha > 1.0 else 1.0)
    cumulative = np.concatenate([[0.0], np.cumsum(density[1:] + density[:-1])])
    return w, cumulative * (0.5 / cumulative[-1]), power


def gamma_quantile(alpha: float, chances: Doubles) -> Doubles:
    """Turn uniform numbers in [0, 1) into numbers distributed as Gamma(alpha): divided by their sum, as Dirichlet."""
    if alpha == 1.0:
        return -np.log1p(-chances)
    knots, cumulative, power = _gamma(alpha)
    found: Doubles = np.interp(chances, cumulative, knots) ** power
    return found


@functools.lru_cache(maxsize=16)
def _gamma(alpha: float) -> tuple[Doubles, Doubles, float]:
    """Knots w and the distribution function at x = w ** power; in w the density is finite."""
    power = max(1.0 / alpha, 1.0)
    w = np.linspace(0.0, (alpha + 10.0 * alpha**0.5 + 20.0) ** (1.0 / power), 8194)[1:]
    x = w**power
    density = np.exp(-x) if alpha < 1.0 else np.exp((alpha - 1.0) * np.log(x / alpha) - (x - alpha))
    cumulative = np.cumsum(density)
    return w, cumulative / cumulative[-1], power
