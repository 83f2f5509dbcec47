"""The plans of augmentation, drawn by the loader's threads: the trainer finds them in the batch, and on the device.

Loaders without threads of their own, and images that are kept on the device, have none: the trainer draws them.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from fastimg.augment import Plan, Policy, draw
from fastimg.augment.ahead import count_words, sent, work_out, write
from fastimg.loaders import Batch
from fastimg.loaders.preparation import PreparedBatch


class _Drawn(NamedTuple):
    policy: Policy
    seed: int
    epoch: int
    plan: Plan


class Planning:
    """A `Preparation` of a loader: draws the plans of a policy, and works them out for the size of its images."""

    def __init__(self, policy: Policy, device: torch.device) -> None:
        self._policy = policy
        self._device = device

    def count_words(self, rows: int, shape: tuple[int, ...]) -> int:
        """See `Preparation`."""
        return count_words(self._plan(np.arange(rows), 0, 0, shape))

    def make(
        self, keys: npt.NDArray[np.int64], seed: int, epoch: int, shape: tuple[int, ...], words: npt.NDArray[np.int32]
    ) -> object:
        """See `Preparation`."""
        plan = self._plan(keys, seed, epoch, shape)
        write(plan, words)
        return _Drawn(self._policy, seed, epoch, plan)

    def _plan(self, keys: npt.NDArray[np.int64], seed: int, epoch: int, shape: tuple[int, ...]) -> Plan:
        plan = draw(self._policy, keys, seed, epoch)
        if len(shape) != 3:  # embeddings are not augmented
            return plan
        height, width, _ = shape
        return work_out(plan, height, width, self._device)


def plan_of(policy: Policy, batch: Batch, seed: int, epoch: int) -> Plan:
    """The plan of a batch's images, as a thread of the loader has drawn it, or drawn here.

    What tries a few steps of a run counts no epochs, while its loader may go on to the next: its plans are drawn here.
    """
    drawn = batch.made if isinstance(batch, PreparedBatch) else None
    if not isinstance(drawn, _Drawn) or drawn.policy is not policy or (drawn.seed, drawn.epoch) != (seed, epoch):
        return draw(policy, batch.keys, seed, epoch)
    assert isinstance(batch, PreparedBatch)
    return drawn.plan if batch.words is None else sent(drawn.plan, batch.words)
