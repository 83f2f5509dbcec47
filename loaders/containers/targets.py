"""What a sample's targets are: a class, several labels, or a number for each target of the dataset; any may be missing.

`Target` is one target's schema, as dataset.json states it. `TargetColumn` holds its values for all samples of a split,
so that the targets of a batch are a look-up by ids.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

TargetKind = Literal["class", "multilabel", "number"]
LABEL = "label"  # the name of the only target of data that names none: the folder, or the column, of a sample's class


@dataclass(frozen=True, kw_only=True)
class Target:
    """The schema of one target. `classes` names the classes, or the labels of `multilabel`; a number has none."""

    name: str
    kind: TargetKind
    classes: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, eq=False)
class TargetColumn:
    """One target of the N samples of a split.

    values: of a class, int64 [N], -1 where it is missing; of a number, float64 [N], NaN where it is missing; of several
        labels, the int32 indices of all samples one after the other [M], ascending within a sample.
    ends: int64 [N], where each sample's labels end in `values`, for `multilabel` only.
    present: bool [N]. A sample with an empty list of labels has its target; one without a list does not.
    """

    target: Target
    values: npt.NDArray[Any]
    present: npt.NDArray[np.bool_]
    ends: npt.NDArray[np.int64] | None = None

    @classmethod
    def of_classes(cls, labels: npt.NDArray[np.int64], classes: Sequence[str], name: str = LABEL) -> "TargetColumn":
        """The classes of samples: `labels` int64 [N], -1 where there is none."""
        return cls(target=Target(name=name, kind="class", classes=tuple(classes)), values=labels, present=labels >= 0)

    @classmethod
    def of_numbers(cls, numbers: npt.NDArray[np.float64], name: str) -> "TargetColumn":
        """The numbers of samples: float64 [N], NaN where there is none."""
        return cls(target=Target(name=name, kind="number"), values=numbers, present=~np.isnan(numbers))

    @classmethod
    def of_labels(cls, labels: Sequence[Sequence[int] | None], classes: Sequence[str], name: str) -> "TargetColumn":
        """The labels of samples: a list of indices for each, or None where there is none."""
        rows = [sorted(set(row or ())) for row in labels]
        return cls(
            target=Target(name=name, kind="multilabel", classes=tuple(classes)),
            values=np.array([index for row in rows for index in row], np.int32),
            present=np.array([row is not None for row in labels], np.bool_),
            ends=np.cumsum([len(row) for row in rows], dtype=np.int64),
        )

    def __len__(self) -> int:
        return len(self.present)

    def rows(self, ids: npt.NDArray[np.int64]) -> tuple[npt.NDArray[Any], npt.NDArray[np.bool_]]:
        """The targets of the samples `ids` [B], and which of them are present, bool [B].

        A class is int64 [B] and a number float32 [B], both 0 where they are missing; labels are uint8 [B, C] of zeros
        and ones, all zeros where they are missing.
        """
        present = self.present[ids]
        if self.target.kind == "class":
            return np.where(present, self.values[ids], 0), present
        if self.target.kind == "number":
            return np.where(present, self.values[ids], 0.0).astype(np.float32), present
        assert self.ends is not None
        rows = np.zeros((len(ids), len(self.target.classes)), np.uint8)
        for row, index in zip(rows, ids.tolist(), strict=True):
            row[self.labels_of(index)] = 1
        return rows, present

    def labels_of(self, index: int) -> npt.NDArray[np.int32]:
        """The indices of the labels of one sample, ascending. For `multilabel` only."""
        assert self.ends is not None
        return self.values[self.ends[index - 1] if index else 0 : self.ends[index]]

    def select(self, indices: npt.NDArray[np.int64]) -> "TargetColumn":
        """The column of the samples `indices`, in that order."""
        if self.ends is None:
            return TargetColumn(target=self.target, values=self.values[indices], present=self.present[indices])
        rows = [self.labels_of(index) for index in indices.tolist()]
        return TargetColumn(
            target=self.target,
            values=np.concatenate([np.zeros(0, np.int32), *rows]),
            present=self.present[indices],
            ends=np.cumsum([len(row) for row in rows], dtype=np.int64),
        )
