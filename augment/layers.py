"""The layers of a named policy, drawn: each is one operation for every image of a batch, in timm's strengths."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from .named import PLAIN_LEVEL, NamedPolicy
from .ops import Op, rotation
from .plan import Blurring, Plan, Warps
from .uniforms import Doubles, uniforms

_ORDER_STAGE = 0x1F0
_LAYER_STAGE = 0x200  # of layer 0; each chain of AugMix has its own, 0x10 apart
_PER_LAYER = 6  # uniform numbers: the row, whether at all, two for the magnitude, the sign, the blur's radius

# timm's operations, by the operation of a level that they are; what is not here moves pixels or blurs.
OPERATIONS: dict[str, Op] = {
    "AutoContrast": Op.AUTOCONTRAST,
    "Equalize": Op.EQUALIZE,
    "Invert": Op.INVERT,
    **dict.fromkeys(("Posterize", "PosterizeIncreasing", "PosterizeOriginal"), Op.POSTERIZE),
    **dict.fromkeys(("Solarize", "SolarizeIncreasing"), Op.SOLARIZE),
    "SolarizeAdd": Op.SOLARIZE_ADD,
    **dict.fromkeys(("Color", "ColorIncreasing", "Desaturate"), Op.COLOR),
    **dict.fromkeys(("Contrast", "ContrastIncreasing"), Op.CONTRAST),
    **dict.fromkeys(("Brightness", "BrightnessIncreasing"), Op.BRIGHTNESS),
    **dict.fromkeys(("Sharpness", "SharpnessIncreasing"), Op.SHARPNESS),
}
TORCHVISIONS = {"Identity": Op.IDENTITY, "PosterizeTo": Op.POSTERIZE, "SolarizeFrom": Op.SOLARIZE}  # its further ones
_OPS = OPERATIONS | TORCHVISIONS
MOVES = frozenset({"Rotate", "ShearX", "ShearY", "TranslateXRel", "TranslateYRel"})
BLURS = frozenset({"GaussianBlur", "GaussianBlurRand"})


class Drawn(NamedTuple):
    """What a layer does to a batch: operations, their magnitudes, and warps and blurs where the policy has them."""

    ops: npt.NDArray[np.int32]  # [B]
    magnitudes: npt.NDArray[np.float32]  # [B]
    kinds: frozenset[Op]  # what `ops` may hold, whatever was drawn
    warps: Warps | None
    blur: Blurring | None


@dataclass(frozen=True)
class LayerKey:
    """What a batch's layers are drawn from."""

    seed: int
    epoch: int
    ids: npt.NDArray[np.int64]
    chain: int = 0  # of AugMix


def draw_layers(policy: NamedPolicy, key: LayerKey, fill: tuple[int, int, int]) -> list[Drawn]:
    """The layers of one chain, in their order. `fill` is the colour of what lies outside of an image that is warped."""
    chances = [_chances(key, layer) for layer in range(policy.layers)]
    rows = _rows(policy, key, chances)
    if policy.width and not policy.depth:  # of a chain of AugMix, one to all of its layers
        lasting = 1 + (
            uniforms(key.seed, key.epoch, key.ids, _ORDER_STAGE + key.chain, 1)[:, 0] * policy.layers
        ).astype(int)
    else:
        lasting = np.full(len(key.ids), policy.layers)
    return [
        _layer(policy, layer, rows[:, layer], chances[layer], layer < lasting, fill) for layer in range(policy.layers)
    ]


def _chances(key: LayerKey, layer: int) -> Doubles:
    return uniforms(key.seed, key.epoch, key.ids, _LAYER_STAGE + 0x10 * key.chain + layer, _PER_LAYER)


def _rows(policy: NamedPolicy, key: LayerKey, chances: list[Doubles]) -> npt.NDArray[np.int64]:
    """The row of the policy's table that each image [B] takes in each layer: [B, L]."""
    count = len(policy.rows)
    if policy.weights is not None:  # the first arrivals of independent clocks: a draw without putting back
        waits = -np.log1p(-uniforms(key.seed, key.epoch, key.ids, _ORDER_STAGE, count)) / policy.weights
        return np.argsort(waits, axis=1, kind="stable")[:, : policy.layers]
    chosen = [chances[0 if policy.together else layer][:, 0] for layer in range(policy.layers)]
    return (np.stack(chosen, axis=1) * count).astype(np.int64)


def _layer(
    policy: NamedPolicy,
    layer: int,
    rows: npt.NDArray[np.int64],
    chances: Doubles,
    lasts: npt.NDArray[np.bool_],
    fill: tuple[int, int, int],
) -> Drawn:
    choices = [row[layer] for row in policy.rows]
    happens = lasts & (chances[:, 1] <= np.array([one.probability for one in choices])[rows])
    levels = _levels(policy, np.array([one.magnitude for one in choices])[rows], chances)
    sign = np.where(chances[:, 4] > 0.5, -1.0, 1.0)
    ops, magnitudes = np.zeros(len(rows), np.int32), np.zeros(len(rows), np.float32)
    linear = np.tile([1.0, 0.0, 0.0, 1.0], (len(rows), 1))
    shift, centred, radius = np.zeros((len(rows), 2)), np.zeros(len(rows), np.bool_), np.zeros(len(rows))
    names = policy.names(layer)
    for name in sorted(names):
        mine = np.flatnonzero(happens & np.array([one.name == name for one in choices])[rows])
        level, signed = levels[mine], levels[mine] / PLAIN_LEVEL * sign[mine]
        if name in _OPS:
            ops[mine] = _OPS[name]
            magnitudes[mine] = strength(name, level, sign[mine])
        elif name == "Rotate":
            linear[mine], centred[mine] = rotation(signed * 30.0), True
        elif name in ("ShearX", "ShearY"):
            linear[mine, 1 if name == "ShearX" else 2] = signed * 0.3
        elif name in ("TranslateXRel", "TranslateYRel"):
            shift[mine, 0 if name == "TranslateXRel" else 1] = signed * policy.translate
        elif name == "GaussianBlur":
            radius[mine] = (0.1 + 1.9 * (level / PLAIN_LEVEL)).clip(0.1, 2.0)
        else:
            assert name == "GaussianBlurRand"
            radius[mine] = 0.1 + (2.0 * np.minimum(level / PLAIN_LEVEL, 1.0) - 0.1) * chances[mine, 5]
    blurred = np.flatnonzero(radius)
    warps = None
    if names & MOVES:
        warps = Warps(
            linear=torch.from_numpy(linear),
            shift=torch.from_numpy(shift),
            centred=torch.from_numpy(centred),
            fill=fill,
            truncates=policy.truncates,
        )
    blur = Blurring(torch.from_numpy(blurred), torch.from_numpy(radius[blurred])) if names & BLURS else None
    kinds = frozenset(_OPS.get(name, Op.IDENTITY) for name in names) | {Op.IDENTITY}
    return Drawn(ops, magnitudes, kinds, warps, blur)


def _levels(policy: NamedPolicy, magnitudes: Doubles, chances: Doubles) -> Doubles:
    """Magnitudes [B] with the policy's noise (Box and Muller 1958), within its limits."""
    if np.isinf(policy.spread):
        magnitudes = magnitudes * chances[:, 2]
    elif policy.spread:
        normal = np.sqrt(-2.0 * np.log1p(-chances[:, 2])) * np.cos(2.0 * np.pi * chances[:, 3])
        magnitudes = magnitudes + policy.spread * normal
    return magnitudes.clip(0.0, policy.most)


def strength(name: str, level: Doubles, sign: Doubles) -> Doubles:
    """The magnitude of a plan [N] for an operation of timm's at strengths `level`; `sign` is 1 or -1."""
    share = level / PLAIN_LEVEL
    whole = (share * 4).astype(np.int64)
    match name:
        case "PosterizeTo" | "SolarizeFrom":
            return level
        case "Posterize":
            return whole.clip(max=8).astype(np.float64)
        case "PosterizeIncreasing":
            return (4.0 - whole).clip(min=0)
        case "PosterizeOriginal":
            return (whole + 4.0).clip(max=8)
        case "Solarize":
            return np.minimum(256.0, (share * 256).astype(np.int64))
        case "SolarizeIncreasing":
            return 256.0 - np.minimum(256, (share * 256).astype(np.int64))
        case "SolarizeAdd":
            return np.minimum(128.0, (share * 110).astype(np.int64))
        case "Desaturate":
            return (1.0 - (0.5 + 0.5 * share).clip(0.5, 1.0)).clip(0.0, 1.0)
        case "Color" | "Contrast" | "Brightness" | "Sharpness":
            return share * 1.8 + 0.1
        case "ColorIncreasing" | "ContrastIncreasing" | "BrightnessIncreasing" | "SharpnessIncreasing":
            return np.maximum(0.1, 1.0 + share * 0.9 * sign)
        case _:
            return np.zeros(len(level))


def layer_names(plan: Plan, row: int) -> list[str]:
    """What a plan that a named policy drew does to an image, in words: Equalize, Rotate. Of AugMix, nothing."""
    words = []
    for stage in plan.stages:
        if stage.kinds is None or Op.IDENTITY not in stage.kinds[0]:
            continue  # no layer, but colour jitter
        op = Op(int(stage.ops[row, 0]))
        if op is not Op.IDENTITY:
            words.append(op.name.replace("_", " ").capitalize())
        elif stage.blur is not None and row in stage.blur.rows:
            words.append("Blur")
        elif stage.warps is not None:
            words += _moves(stage.warps.linear[row].tolist(), stage.warps.shift[row].tolist())
    return words


def _moves(linear: list[float], shift: list[float]) -> list[str]:
    if linear != [1.0, 0.0, 0.0, 1.0]:
        return ["Rotate"] if linear[1] and linear[2] else ["Shear"]
    return ["Translate"] if any(shift) else []
