"""The targets of a batch: look-ups by the ids of its samples."""

from collections.abc import Sequence
from dataclasses import dataclass

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
        return tuple(Truth(batch.targets) if column is None else _rows(column, batch) for column in self.columns)


def _rows(column: TargetColumn, batch: Batch) -> Truth:
    values, present = column.rows(batch.ids.numpy())
    device = batch.inputs.device
    there = None if present.all() else to_device(torch.from_numpy(present), device)
    return Truth(to_device(torch.from_numpy(values), device), there)
