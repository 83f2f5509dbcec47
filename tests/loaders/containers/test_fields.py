"""Fields as they are stored: schemas in JSON, arrays as .npy files, and the columns of a split."""

import io
import threading
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from fastimg.loaders.containers.fields import (
    DTYPES,
    POSITION,
    FieldColumn,
    SplitFields,
    StoredField,
    check_fields,
    packed_npy,
    unpacked_items,
    unpacked_npy,
)
from fastimg.loaders.errors import DataError, ShardError

ARRAYS = st.sampled_from([np.dtype(name) for name in DTYPES]).flatmap(
    lambda dtype: hnp.arrays(dtype, hnp.array_shapes(min_dims=1, max_dims=3, min_side=1, max_side=4))
)


def schema_of(array: np.ndarray[Any, Any], kind: Any) -> StoredField:
    shape = array.shape[1:] if kind == "ragged" else array.shape
    return StoredField(name="x", kind=kind, dtype=array.dtype.name, shape=shape)


@given(ARRAYS, st.sampled_from(["array", "ragged"]))
def test_arrays_come_back_from_npy_and_numpy_writes_the_same(array: Any, kind: Any) -> None:
    schema = schema_of(array, kind)
    data = packed_npy(array)
    buffer = io.BytesIO()
    np.save(buffer, array)
    assert data == buffer.getvalue()
    for found in (unpacked_npy(schema, data), unpacked_items(schema, array.tobytes())):
        assert found.dtype == array.dtype
        np.testing.assert_array_equal(found, array)


def test_a_ragged_field_may_be_empty_and_arrays_of_another_layout_are_stored_in_order() -> None:
    schema = StoredField(name="boxes", kind="ragged", shape=(4,), geometry="box")
    assert unpacked_npy(schema, packed_npy(np.zeros((0, 4), np.float32))).shape == (0, 4)
    assert unpacked_items(schema, b"").shape == (0, 4)
    grid = StoredField(name="grid", kind="array", shape=(3, 2))
    turned = np.arange(6, dtype=">f4").reshape(2, 3).T
    np.testing.assert_array_equal(unpacked_npy(grid, packed_npy(turned)), turned)


@pytest.mark.parametrize(
    ("array", "reason"),
    [
        (np.zeros((2, 4), np.float64), "not an .npy file of float32"),
        (np.asfortranarray(np.zeros((2, 4), np.float32)), None),
        (np.zeros((2, 3), np.float32), r"24 bytes are not items of \[4\] float32"),
    ],
)
def test_an_array_that_does_not_fit_its_field_is_refused(array: Any, reason: str | None) -> None:
    schema = StoredField(name="boxes", kind="ragged", shape=(4,), geometry="box")
    buffer = io.BytesIO()
    np.save(buffer, array)
    with pytest.raises(ValueError, match=reason or "not an .npy file of float32"):
        unpacked_npy(schema, buffer.getvalue())
    with pytest.raises(ValueError, match="8 bytes are not"):
        unpacked_items(StoredField(name="x", kind="array", shape=(3,)), bytes(8))


FIELDS = (
    StoredField(name="age", kind="number", dtype="int64", optional=True),
    StoredField(name="boxes", kind="ragged", shape=(4,), geometry="box", longest=7),
    StoredField(name="names", kind="ragged", dtype="int64", along="boxes", longest=7, classes=("cat", "dog")),
    StoredField(name="mask", kind="image", dtype="uint16", geometry="mask"),
    StoredField(name="points", kind="array", shape=(17, 2), geometry="keypoint"),
    StoredField(name="note", kind="bytes", longest=9),
)


@pytest.mark.parametrize("field", FIELDS, ids=lambda field: field.name)
def test_a_schema_comes_back_from_json(field: StoredField) -> None:
    assert StoredField.of_json(field.to_json()) == field


def test_members_are_named_by_kind() -> None:
    members = ["", "boxes.npy", "names.npy", "mask.png", "points.npy", "note.bin"]
    assert [field.member for field in FIELDS] == members


@pytest.mark.parametrize(
    "changed",
    [
        *({"kind": "picture"}, {"name": ""}, {"name": 3}, {"dtype": "object"}, {"dtype": "float128"}),
        *({"geometry": "circle"}, {"geometry": "box", "shape": [3]}, {"shape": [0]}, {"shape": ["4"]}),
        *({"longest": "7"}, {"classes": [1]}),
    ],
)
def test_what_is_no_schema_is_refused(changed: dict[str, Any]) -> None:
    stated = FIELDS[1].to_json() | changed
    with pytest.raises((LookupError, TypeError, ValueError)):
        StoredField.of_json(stated)


def test_a_field_goes_along_a_ragged_one() -> None:
    by_name = {field.name: field for field in FIELDS}
    check_fields(by_name)
    for other in ("mask", "nothing"):
        with pytest.raises((LookupError, ValueError)):
            check_fields(by_name | {"names": StoredField(name="names", kind="ragged", along=other)})


@given(st.lists(st.none() | st.integers(-(2**40), 2**40), max_size=9))
def test_columns_come_back_from_bytes(values: list[int | None]) -> None:
    present = np.array([value is not None for value in values], np.bool_)
    numbers = FieldColumn(schema=FIELDS[0], present=present, numbers=np.array([value or 0 for value in values], "<i8"))
    places = np.zeros(len(values), POSITION)
    places["offset"] = np.arange(len(values))
    positions = FieldColumn(schema=FIELDS[1], present=present, positions=places)
    rest = memoryview(numbers.packed() + positions.packed())
    found = []
    for schema in FIELDS[:2]:
        column, rest = FieldColumn.unpacked(schema, rest, len(values))
        found.append(column)
    assert not len(rest)
    np.testing.assert_array_equal(found[0].numbers, numbers.numbers)
    np.testing.assert_array_equal(found[1].positions, places)
    for column in found:
        np.testing.assert_array_equal(column.present, present)


def split_fields(stored: list[bytes | None]) -> SplitFields:
    """A ragged field of boxes, whose sample i is stored at 100 * (i + 1)."""
    positions = np.zeros(len(stored), POSITION)
    positions["offset"] = 100 * (np.arange(len(stored)) + 1)
    positions["size"] = [len(data or b"") for data in stored]
    present = np.array([data is not None for data in stored])
    column = FieldColumn(schema=FIELDS[1], present=present, positions=positions)
    return SplitFields({"boxes": column}, lambda _, offset, size: (stored[offset // 100 - 1] or b"")[:size], False)


def test_values_are_read_by_any_thread_and_faults_are_named() -> None:
    boxes = [np.full((i, 4), i, np.float32) for i in range(8)]
    fields = split_fields([*map(packed_npy, boxes), None, b"altered"])
    wrong: list[int] = []

    def look() -> None:
        for _ in range(20):
            wrong.extend(i for i in range(8) if not np.array_equal(fields.read("D", "boxes", i), boxes[i]))  # type: ignore[arg-type]

    threads = [threading.Thread(target=look) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert fields.read("D", "boxes", 8) is None
    with pytest.raises(ShardError, match=r"D: boxes of sample 9: not an .npy file of float32"):
        fields.read("D", "boxes", 9)
    with pytest.raises(DataError, match="D: no field 'box'; it has boxes"):
        fields.read("D", "box", 0)
