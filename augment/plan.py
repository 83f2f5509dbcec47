"""What happens to each image of a batch: drawn once on the host, a value that can be replayed anywhere.

The draw of an image is keyed by (seed, epoch, sample id, stage): the same whatever the batch, the rank or the device.
The generator is SplitMix64's finaliser (Steele, Lea, Flood 2014) chained over the key.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from .policy import Policy

_FLIP_STAGE = 0xF1


@dataclass(frozen=True)
class Plan:
    """Struct of arrays over the batch [B]."""

    hflip: torch.Tensor  # bool [B]
    vflip: torch.Tensor  # bool [B]

    @property
    def flips(self) -> bool:
        """Whether any image is flipped."""
        return bool(self.hflip.any() or self.vflip.any())


def draw(policy: Policy, ids: npt.NDArray[np.int64] | torch.Tensor, seed: int, epoch: int) -> Plan:
    """The plan of a batch of sample `ids` [B], on the host."""
    keys = np.asarray(ids, dtype=np.int64)
    chances = _uniforms(seed, epoch, keys, _FLIP_STAGE, 2)
    return Plan(torch.from_numpy(chances[:, 0] < policy.hflip), torch.from_numpy(chances[:, 1] < policy.vflip))


def _mix(x: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    x = x + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def _uniforms(seed: int, epoch: int, ids: npt.NDArray[np.int64], stage: int, count: int) -> npt.NDArray[np.float64]:
    """[B, count] numbers in [0, 1)."""
    key = np.zeros(1, np.uint64)
    for part in (seed, epoch, stage):
        key = _mix(key ^ np.uint64(part & 0xFFFFFFFFFFFFFFFF))
    base = _mix(key ^ ids.astype(np.uint64))
    bits = _mix(base[:, None] + np.arange(count, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15))
    return (bits >> np.uint64(11)).astype(np.float64) * 2.0**-53
