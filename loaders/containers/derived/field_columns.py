"""`<split>.ffld`: the fields that dataset.json states: numbers, and where each other value is."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fastimg.loaders.containers.betons.files import BetonFile
from fastimg.loaders.containers.betons.kinds import beton_field
from fastimg.loaders.containers.fields import ABSENT, POSITION, FieldColumn, StoredField
from fastimg.loaders.containers.tars.grouping import Sample
from fastimg.loaders.containers.tars.shards import index_path, parse_index
from fastimg.loaders.errors import ShardError

from .kept import DerivedPlace, kept_columns
from .notes import notes_of_beton, notes_of_tars

SUFFIX, MAGIC = ".ffld", b"FIMGFLD1"


def field_columns(
    place: DerivedPlace,
    fields: Sequence[StoredField],
    count: int,
    fingerprint: str,
    lengths: npt.NDArray[np.uint64] | None,
    derive: Callable[[], list[FieldColumn]],
) -> list[FieldColumn]:
    """The columns of `fields` for the `count` samples of a split: kept ones, or those of `derive`.

    `lengths`: the bytes of each shard, in which kept positions must be; None where there are no kept ones.
    Raises ShardError if a sample states something that is not a value of its field.
    """

    def unpacked(schema: StoredField, content: memoryview, count: int) -> tuple[FieldColumn, memoryview]:
        column, rest = FieldColumn.unpacked(schema, content, count)
        if lengths is not None and not column.is_inside(lengths):
            raise ValueError("positions outside the shards")
        return column, rest

    return kept_columns(place.file(SUFFIX, MAGIC), fields, count, fingerprint, derive, FieldColumn.packed, unpacked)


def fields_of_tars(shards: Iterable[Path], fields: Sequence[StoredField]) -> list[FieldColumn]:
    """The columns of `fields` from the indexes of our shards and, for numbers, their notes. Raises ShardError."""
    samples = (parse_index(index_path(shard), shard.stat().st_size) for shard in shards)
    return fields_of_samples(samples, notes_of_tars(shards), fields)


def fields_of_samples(
    shards: Iterable[list[Sample]], notes: Iterator[tuple[str, dict[str, Any]]], fields: Sequence[StoredField]
) -> list[FieldColumn]:
    """The columns of `fields` from the samples of each shard and, for numbers, the notes of all. Raises ShardError."""
    placed = [field for field in fields if field.member]
    found: dict[str, list[tuple[int, int, int]]] = {field.name: [] for field in placed}
    for number, shard in enumerate(shards):
        for sample in shard:
            members = {member.ext: (member.offset, member.size, number) for member in sample}
            for field in placed:
                found[field.name].append(members.get(field.member, (0, 0, 0)))
    numbers = [field for field in fields if not field.member]
    columns = _number_columns(notes, numbers) if numbers else {}
    for field in placed:
        positions = np.array(found[field.name], POSITION)
        columns[field.name] = FieldColumn(schema=field, present=positions["offset"] > 0, positions=positions)
    return [columns[field.name] for field in fields]


def _number_columns(
    notes: Iterator[tuple[str, dict[str, Any]]], fields: Sequence[StoredField]
) -> dict[str, FieldColumn]:
    """The numbers that notes state under the names of fields. Raises ShardError."""
    values: dict[str, list[int | float]] = {field.name: [] for field in fields}
    present: dict[str, list[bool]] = {field.name: [] for field in fields}
    for name, note in notes:
        for field in fields:
            value = note.get(field.name)
            if value is not None and (isinstance(value, bool) or not isinstance(value, int | float)):
                raise ShardError(f"{name}: field {field.name!r}: {value!r} is not a number; convert again")
            values[field.name].append(0 if value is None else value)
            present[field.name].append(value is not None)
    return {
        field.name: FieldColumn(
            schema=field,
            present=np.array(present[field.name], np.bool_),
            numbers=np.array(values[field.name], np.dtype(field.dtype).newbyteorder("<")),
        )
        for field in fields
    }


def fields_of_beton(reader: BetonFile, fields: Sequence[StoredField], names: Sequence[str]) -> list[FieldColumn]:
    """The columns of `fields` from the fields `names` of a .beton and its notes. Raises ShardError."""
    notes = list(notes_of_beton(reader)) if any(field.optional or not field.member for field in fields) else []
    columns = _number_columns(iter(notes), [field for field in fields if not field.member])
    for field, name in zip(fields, names, strict=True):
        found = reader.fields.get(name)
        fits = found is not None and found.kind == beton_field(field).kind
        if not fits or (found is not None and found.dtype is not None and found.shape != field.shape):
            raise ShardError(f"{reader.path}: no field {name} for the field {field.name!r}; convert again")
        if field.member:
            positions = np.zeros(len(reader), POSITION)
            positions["offset"], positions["size"] = reader.extents(name)
            lacking = [field.member in (note.get(ABSENT) or ()) for _, note in notes] if field.optional else None
            present = np.ones(len(reader), np.bool_) if lacking is None else ~np.array(lacking, np.bool_)
            columns[field.name] = FieldColumn(schema=field, present=present, positions=positions)
    return [columns[field.name] for field in fields]
