"""Counter-based randomness: a number is a function of (seed, epoch, sample id, stage, position), not of who asks.

SplitMix64's finaliser (Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators, 2014) chained over the key.
"""

import operator

import numpy as np
import numpy.typing as npt

Keys = npt.NDArray[np.uint64]

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_BITS = 0xFFFFFFFFFFFFFFFF


def _mix(x: Keys) -> Keys:
    x = x + _GOLDEN
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def _mix_one(x: int) -> int:
    """`_mix` of one number, which NumPy takes longer for."""
    x = (x + 0x9E3779B97F4A7C15) & _BITS
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _BITS
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _BITS
    return x ^ (x >> 31)


def hashes(seed: int, epoch: int, ids: npt.NDArray[np.int64], stage: int) -> Keys:
    """64 random bits for each of `ids` [N]."""
    key = 0
    for part in (seed, epoch, stage):
        key = _mix_one(key ^ (operator.index(part) & _BITS))  # of NumPy's integers, too
    return _mix(np.uint64(key) ^ ids.astype(np.uint64))


def keyed(ids: npt.NDArray[np.int64], repeats: npt.NDArray[np.int64] | None) -> npt.NDArray[np.int64]:
    """What stands for samples [N] that come again within an epoch: the first time their ids, later other numbers."""
    return ids if repeats is None else ids + (repeats << 32)


def uniforms(
    seed: int, epoch: int, ids: npt.NDArray[np.int64], stage: int, count: int
) -> npt.NDArray[np.float64]:  # [N, count]
    """`count` numbers in [0, 1) for each of `ids` [N]."""
    if not count:
        return np.zeros((len(ids), 0))
    steps = np.arange(count, dtype=np.uint64) * _GOLDEN
    bits = _mix(hashes(seed, epoch, ids, stage)[:, None] + steps)
    return (bits >> np.uint64(11)).astype(np.float64) * 2.0**-53
