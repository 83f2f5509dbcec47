"""The targets of a batch: look-ups by the ids of its samples."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from fastimg.augment.plan import to_device
from fastimg.loaders import Batch
from fastimg.loaders.containers.targets import TargetColumn

from .task import Truth


@dataclass(frozen=True, eq=False)
class TargetLookup:
    """The columns of a split, one for each task. None: `Batch.targets` is this target, and no sample lacks it."""

    columns: Sequence[TargetColumn | None]

    def truths(self, batch: Batch) -> tuple[Truth, ...]:
        """The targets of a batch, on its device. No sync."""
        device = batch.inputs.device
        return tuple(
            Truth(batch.targets) if column is None else truth(column, batch.ids.numpy(), device)
            for column in self.columns
        )


def truth(column: TargetColumn, ids: npt.NDArray[np.int64], device: torch.device) -> Truth:
    """One target of the samples `ids` [B], on a device. No sync."""
    values, present = column.rows(ids)
    there = None if present.all() else to_device(torch.from_numpy(present), device)
    return Truth(to_device(torch.from_numpy(values), device), there)
