"""Uniform numbers that are a pure function of (seed, epoch, sample id, stage): every draw of a plan comes from them.

The generator is SplitMix64's finaliser (Steele, Lea, Flood 2014), chained over the key.
"""

import numpy as np
import numpy.typing as npt

Doubles = npt.NDArray[np.float64]

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


def seed_of(seed: int, view: int) -> int:
    """The seed of view number `view` of an image: the seed itself for the first, a hash of both for the others."""
    return seed if view == 0 else _mixed(_mixed(seed & _WORD) ^ view)


def uniform_columns(seed: int, epoch: int, ids: npt.NDArray[np.int64], stage: int, count: int) -> Doubles:
    """Uniform numbers in [0, 1), [count, B]."""
    key = 0
    for part in (seed, epoch, stage):
        key = _mixed(key ^ (part & _WORD))
    base = _mix(np.uint64(key) ^ ids.astype(np.uint64))
    bits = _mix(base + (np.arange(count, dtype=np.uint64) * np.uint64(_GOLDEN))[:, None])
    bits >>= np.uint64(11)
    drawn = bits.astype(np.float64)
    drawn *= 2.0**-53
    return drawn


def uniforms(seed: int, epoch: int, ids: npt.NDArray[np.int64], stage: int, count: int) -> Doubles:
    """The same, [B, count]."""
    return np.ascontiguousarray(uniform_columns(seed, epoch, ids, stage, count).T)
