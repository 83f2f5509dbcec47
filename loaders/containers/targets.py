"""What a sample's targets are: a class, several labels, or a number for each target of the dataset; any may be missing.

`Target` is one target's schema, as dataset.json states it. `TargetColumn` holds its values for all samples of a split,
so that the targets of a batch are a look-up by ids. `TargetValues` makes columns of what samples state by name: the
name of a class, a list of labels, or a number.
"""

import math
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from fastimg.loaders.wording import plural

from .extents import are_flags

TargetKind = Literal["class", "multilabel", "number"]
KINDS: tuple[TargetKind, ...] = get_args(TargetKind)
LABEL = "label"  # the name of the only target of data that names none: the folder, or the column, of a sample's class


@dataclass(frozen=True, kw_only=True)
class Target:
    """The schema of one target. `classes` names the classes, or the labels of `multilabel`; a number has none."""

    name: str
    kind: TargetKind
    classes: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """The target as dataset.json states it."""
        names = {} if self.kind == "number" else {"classes": list(self.classes)}
        return {"name": self.name, "kind": self.kind, **names}

    @classmethod
    def of_json(cls, stated: dict[str, Any]) -> "Target":
        """The target that dataset.json states. Raises LookupError, TypeError or ValueError if it is not valid."""
        name, kind, classes = stated["name"], stated["kind"], stated.get("classes", [])
        if kind not in KINDS or not isinstance(name, str) or not name:
            raise ValueError(f"target {name!r} of kind {kind!r}")
        if not all(isinstance(label, str) for label in classes) or len(set(classes)) < len(classes):
            raise ValueError(f"classes of {name!r}")
        return cls(name=name, kind=kind, classes=tuple(classes))


def first_class(targets: Sequence[Target]) -> Target | None:
    """The class that a dataset's `labels` and `classes` are of; None if no target is a class."""
    return next((target for target in targets if target.kind == "class"), None)


@dataclass(frozen=True, kw_only=True, eq=False)
class TargetColumn:
    """One target of the N samples of a split.

    values: of a class, int64 [N], -1 where it is missing; of a number, float64 [N], NaN where it is missing; of several
        labels, the int32 indices of all samples one after the other [M], ascending within a sample.
    ends: int64 [N], where each sample's labels end in `values`, for `multilabel` only.
    present: bool [N]. A sample with an empty list of labels has its target; one without a list does not.
    declared: whether the data names the target, which samples may then lack; not so a folder's or a column's class.
    """

    target: Target
    values: npt.NDArray[Any]
    present: npt.NDArray[np.bool_]
    ends: npt.NDArray[np.int64] | None = None
    declared: bool = True

    @classmethod
    def of_classes(
        cls, labels: npt.NDArray[np.int64], classes: Sequence[str], name: str | None = None
    ) -> "TargetColumn":
        """The classes of samples: `labels` int64 [N], -1 where there is none. Without a name they are not declared."""
        target = Target(name=name or LABEL, kind="class", classes=tuple(classes))
        return cls(target=target, values=labels, present=labels >= 0, declared=name is not None)

    @classmethod
    def of_numbers(cls, numbers: npt.NDArray[np.float64], name: str) -> "TargetColumn":
        """The numbers of samples: float64 [N], NaN where there is none."""
        return cls(target=Target(name=name, kind="number"), values=numbers, present=~np.isnan(numbers))

    @classmethod
    def of_labels(cls, labels: Sequence[Iterable[int] | None], classes: Sequence[str], name: str) -> "TargetColumn":
        """The labels of samples: a list of indices for each, or None where there is none."""
        rows = [sorted({int(index) for index in (() if row is None else row)}) for row in labels]
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
            return replace(self, values=self.values[indices], present=self.present[indices])
        rows = [self.labels_of(index) for index in indices.tolist()]
        return replace(
            self,
            values=np.concatenate([np.zeros(0, np.int32), *rows]),
            present=self.present[indices],
            ends=np.cumsum([len(row) for row in rows], dtype=np.int64),
        )


class TargetValues:
    """Collects one target of samples, one after the other, as their notes state it."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self._index = {name: index for index, name in enumerate(target.classes)}
        self._values: array[Any] = array("d" if target.kind == "number" else "q")
        self._ends = array("q")
        self._present = bytearray()

    def parse(self, value: Any) -> Any:
        """A stated value as an index, as ascending indices, or as a float; None if it is missing.

        Raises ValueError if it is not a value of this target.
        """
        kind = self.target.kind
        if value is None:
            return None
        if kind == "number":
            if not isinstance(value, int | float) or isinstance(value, bool) or not math.isfinite(value):
                raise ValueError(f"{value!r} is not a number")
            return float(value)
        if kind == "class":
            return self._place(value)
        if not isinstance(value, list):
            raise ValueError(f"{value!r} is not a list of labels")
        return sorted({self._place(name) for name in value})

    def _place(self, name: Any) -> int:
        if not isinstance(name, str) or name not in self._index:
            raise ValueError(f"{name!r} is not among its {plural(len(self._index), 'class')}")
        return self._index[name]

    def add(self, value: Any) -> None:
        """Add what the next sample states. Raises ValueError."""
        parsed = self.parse(value)
        self._present.append(parsed is not None)
        if self.target.kind == "multilabel":
            self._values.extend(parsed or ())
            self._ends.append(len(self._values))
        elif self.target.kind == "number":
            self._values.append(math.nan if parsed is None else parsed)
        else:
            self._values.append(-1 if parsed is None else parsed)

    def column(self) -> TargetColumn:
        """The column of the samples so far."""
        values = np.array(self._values)
        several = self.target.kind == "multilabel"
        return TargetColumn(
            target=self.target,
            values=values.astype(np.int32) if several else values,
            present=np.frombuffer(bytes(self._present), np.bool_),
            ends=np.array(self._ends, np.int64) if several else None,
        )


def packed(column: TargetColumn) -> bytes:
    """A column as bytes: which samples have it, u1 [N]; where their labels end, <i8 [N]; and its values."""
    ends = b"" if column.ends is None else column.ends.astype("<i8").tobytes()
    return column.present.astype("u1").tobytes() + ends + column.values.astype(_STORED[column.target.kind]).tobytes()


def unpacked(target: Target, content: memoryview, count: int) -> tuple[TargetColumn, memoryview]:
    """The column of `count` samples at the beginning of `content`, and what follows. Raises ValueError if it is none.

    It is none if it is cut short, or says what no sample can have.
    """
    flags = np.frombuffer(content, np.uint8, count)
    present = flags.view(np.bool_)
    content = content[count:]
    ends = None
    size = count
    if target.kind == "multilabel":
        ends = np.frombuffer(content, "<i8", count).astype(np.int64)
        content = content[8 * count :]
        size = int(ends[-1]) if count else 0
    stored = _STORED[target.kind]
    if not are_flags(flags) or not 0 <= size * stored.itemsize <= len(content):
        raise ValueError("not a column of these samples")
    values = np.frombuffer(content, stored, size)
    kind = {"class": np.int64, "number": np.float64, "multilabel": np.int32}[target.kind]
    column = TargetColumn(target=target, values=values.astype(kind), present=present, ends=ends)
    if not _is_possible(column):
        raise ValueError("values that no sample can have")
    return column, content[size * stored.itemsize :]


def _is_possible(column: TargetColumn) -> bool:
    """Whether the values of a column are among its classes, finite, ascending, and there where they should be."""
    values, present, ends = column.values, column.present, column.ends
    if column.target.kind == "number":
        return bool((np.isfinite(values) == present).all() and (np.isnan(values) == ~present).all())
    count = len(column.target.classes)
    if ends is None:
        return bool(((values >= -1) & (values < count) & ((values >= 0) == present)).all())
    begins = np.append(0, ends[:-1]) if len(ends) else ends
    counts = ends - begins
    if not (counts >= 0).all() or counts[~present].any() or not ((values >= 0) & (values < count)).all():
        return False
    first = np.zeros(len(values) + 1, np.bool_)  # where the labels of a sample begin
    first[begins] = True
    return bool((first[1:-1] | (values[1:] > values[:-1])).all())


_STORED: dict[TargetKind, np.dtype[Any]] = {
    "class": np.dtype("<i4"),
    "number": np.dtype("<f8"),
    "multilabel": np.dtype("<i4"),
}
