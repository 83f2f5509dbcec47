"""`<split>.fcol`: the targets that dataset.json declares, except for the class in .cls, as a column for each.

So the notes of a tar are parsed once.
"""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fastimg.loaders.containers.betons.files import BetonFile
from fastimg.loaders.containers.betons.kinds import ABSENT_LABELS, BETON_KINDS, BetonField
from fastimg.loaders.containers.targets import Target, TargetColumn, TargetValues, packed, unpacked
from fastimg.loaders.errors import ShardError

from .kept import DerivedPlace, kept_columns
from .notes import notes_of_tars

SUFFIX, MAGIC = ".fcol", b"FIMGCOL1"
_U1 = np.dtype(np.uint8)


def target_columns(
    place: DerivedPlace,
    targets: Sequence[Target],
    count: int,
    fingerprint: str,
    derive: Callable[[], list[TargetColumn]],
) -> list[TargetColumn]:
    """The columns of `targets` for the `count` samples of a split: kept ones, or those of `derive`.

    Raises ShardError if a sample states something that is not a value of its target.
    """
    return kept_columns(place.file(SUFFIX, MAGIC), targets, count, fingerprint, derive, packed, unpacked)


def columns_of_tars(shards: Iterable[Path], targets: Sequence[Target]) -> list[TargetColumn]:
    """The columns of `targets` from the notes in our shards. Raises ShardError."""
    return columns_of_notes(notes_of_tars(shards), targets)


def columns_of_notes(notes: Iterable[tuple[str, dict[str, Any]]], targets: Sequence[Target]) -> list[TargetColumn]:
    """The columns of `targets` from the names and notes of all samples. Raises ShardError."""
    values = [TargetValues(target) for target in targets]
    for name, note in notes:
        for each in values:
            try:
                each.add(note.get(each.target.name))
            except ValueError as error:
                raise ShardError(f"{name}: target {each.target.name!r}: {error}; convert again") from error
    return [each.column() for each in values]


def columns_of_beton(reader: BetonFile, targets: Sequence[Target], fields: Sequence[str]) -> list[TargetColumn]:
    """The columns of `targets` from their `fields` in a .beton. Raises ShardError."""
    columns = []
    for target, name in zip(targets, fields, strict=True):
        several = target.kind == "multilabel"
        expected = BetonField(BETON_KINDS[target.kind], *((_U1, (len(target.classes),)) if several else ()))
        if reader.fields.get(name) != expected:
            raise ShardError(
                f"{reader.path}: no field {name} ({expected.kind}) for the target {target.name!r}; convert again"
            )
        if several:
            columns.append(_labels_of_beton(reader, target, name))
            continue
        column = reader.column(name).copy()
        if target.kind == "number":
            columns.append(TargetColumn.of_numbers(column, target.name))
            continue
        if len(column) and not -1 <= column.min() <= column.max() < len(target.classes):
            raise ShardError(f"{reader.path}: {name} has numbers that are not among its classes; convert again")
        columns.append(TargetColumn.of_classes(column.astype(np.int64), target.classes, target.name))
    return columns


def _labels_of_beton(reader: BetonFile, target: Target, name: str) -> TargetColumn:
    rows: list[npt.NDArray[np.int64] | None] = []
    for index in range(len(reader)):
        row = reader.value(name, index)
        if not ((row <= 1).all() or (row == ABSENT_LABELS).all()):
            raise ShardError(f"{reader.path}: {name} of sample {index} is not of zeros and ones; convert again")
        rows.append(None if row[0] == ABSENT_LABELS else np.flatnonzero(row))
    return TargetColumn.of_labels(rows, target.classes, target.name)
