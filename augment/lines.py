"""Normalisation as a line: level * scale + bias, where that gives the table's bits.

A look-up per value is what the pass over the pixels would wait for; a multiplication and addition costs one
instruction. Which line gives the bits is searched on the host: the two numbers, rounded to float32, and their
neighbours, against all 256 entries of each channel.
"""

import functools
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from .policy import Policy, Triple
from .reference import normalisation_table

NEIGHBOURS = 4  # float32 numbers tried on each side of a scale and of a bias

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True)
class LevelLine:
    """A level's value in each channel: level * scale + bias, rounded as the function says that found the line."""

    scales: Triple
    biases: Triple


@functools.lru_cache(maxsize=16)
def line_of(policy: Policy, dtype: torch.dtype) -> LevelLine | None:
    """The line that gives `normalisation_table(policy, dtype)` bit for bit; None if one of the 768 entries differs.

    It is rounded once to float32, and then to the type.

    None for uint8, whose levels are their own values, and as a rule for float32: the bias alone is rounded as much
    as the entries are.
    """
    if dtype == torch.uint8:
        return None
    table = normalisation_table(policy, dtype)[:768].view(3, 256)
    found = [
        _channel(entries, 1.0 / (255.0 * std), -mean / std)
        for entries, mean, std in zip(table, policy.mean, policy.std, strict=True)
    ]
    pairs = [pair for pair in found if pair is not None]
    if len(pairs) < 3:
        return None
    (red, red_bias), (green, green_bias), (blue, blue_bias) = pairs
    return LevelLine((red, green, blue), (red_bias, green_bias, blue_bias))


@functools.lru_cache(maxsize=16)
def double_line_of(policy: Policy, dtype: torch.dtype) -> LevelLine | None:
    """The line that gives `normalisation_table(policy, torch.float32)` bit for bit in float64, rounded once at the end.

    The product and the sum are rounded to float64, each by itself. None if an entry differs, and for other types.
    """
    if dtype != torch.float32:
        return None
    entries = normalisation_table(policy, dtype)[:768].view(3, 256)
    std = np.array(policy.std) * (1.0 if policy.as_stored else 255.0)
    line = LevelLine(_triple(1.0 / std), _triple(-np.array(policy.mean) / np.array(policy.std)))
    levels = np.arange(256, dtype=np.float64)
    for of_channel, scale, bias in zip(entries, line.scales, line.biases, strict=True):
        values = (levels * np.float64(scale) + np.float64(bias)).astype(np.float32)
        if not same_bits(torch.from_numpy(values), of_channel):
            return None
    return line


def _triple(values: npt.NDArray[np.float64]) -> Triple:
    red, green, blue = values.tolist()
    return red, green, blue


def _channel(entries: torch.Tensor, scale: float, bias: float) -> tuple[float, float] | None:
    """The scale and bias nearest to these that give the entries [256], or None."""
    scales, biases = _around(scale), _around(bias)
    number = np.arange(2 * NEIGHBOURS + 1)
    order = np.argsort(np.add.outer(abs(number - NEIGHBOURS), abs(number - NEIGHBOURS)), axis=None, kind="stable")
    for which in order:
        pair = scales[which // len(number)], biases[which % len(number)]
        values = evaluate(*pair)
        if values is not None and same_bits(torch.from_numpy(values).to(entries.dtype), entries):
            return float(pair[0]), float(pair[1])
    return None


def _around(value: float) -> Floats:
    """The float32 numbers closest to a value, in order."""
    with np.errstate(over="ignore", under="ignore"):
        around = [np.float32(value)]
        for _ in range(NEIGHBOURS):
            around.insert(0, np.nextafter(around[0], np.float32(-np.inf)))
            around.append(np.nextafter(around[-1], np.float32(np.inf)))
    return np.array(around, np.float32)


def evaluate(scale: np.float32, bias: np.float32) -> Floats | None:
    """level * scale + bias, rounded once, for 256 levels; None where float64 cannot tell what that is.

    A product of a level and a float32 has at most 32 bits, so float64 holds it. The sum is exact if adding loses
    nothing (Knuth's two-sum); then one rounding, to float32, is left: what a fused multiply-add does.
    """
    product = np.arange(256, dtype=np.float64) * np.float64(scale)
    added = np.float64(bias)
    total = product + added
    part = total - product
    lost = (product - (total - part)) + (added - part)
    if not np.isfinite(total).all() or lost.any():
        return None
    with np.errstate(over="ignore", under="ignore"):
        return total.astype(np.float32)


def same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors of one type are the same to the bit, the sign of zero included."""
    kind = torch.int32 if one.dtype == torch.float32 else torch.int16
    return torch.equal(one.view(kind), other.view(kind))
