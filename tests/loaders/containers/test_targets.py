"""Targets of a split as columns: look-ups by id, missing values, selections."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from fastimg.loaders.containers.targets import LABEL, TargetColumn


def test_a_missing_class_is_a_zero_that_is_not_present() -> None:
    column = TargetColumn.of_classes(np.array([2, -1, 0]), ("a", "b", "c"))
    values, present = column.rows(np.array([1, 0, 0]))
    assert column.target.name == LABEL
    assert values.tolist() == [0, 2, 2]
    assert present.tolist() == [False, True, True]


def test_a_missing_number_is_nan_in_the_column_and_zero_in_a_batch() -> None:
    values, present = TargetColumn.of_numbers(np.array([1.5, np.nan]), "age").rows(np.array([1, 0]))
    assert values.dtype == np.float32
    assert values.tolist() == [0.0, 1.5]
    assert present.tolist() == [False, True]


def test_an_empty_list_of_labels_is_present_and_no_list_is_not() -> None:
    values, present = TargetColumn.of_labels([[], None, [1, 1, 0]], ("a", "b"), "tags").rows(np.arange(3))
    assert values.tolist() == [[0, 0], [0, 0], [1, 1]]
    assert present.tolist() == [True, False, True]


@given(st.lists(st.none() | st.lists(st.integers(0, 6), max_size=5), min_size=1, max_size=12), st.data())
def test_a_selection_has_the_rows_of_its_samples(labels: list[list[int] | None], data: st.DataObject) -> None:
    column = TargetColumn.of_labels(labels, tuple("abcdefg"), "tags")
    chosen = np.array(data.draw(st.lists(st.integers(0, len(labels) - 1), max_size=8)), np.int64)
    expected = column.rows(chosen)
    selected = column.select(chosen)
    assert len(selected) == len(chosen)
    for mine, theirs in zip(selected.rows(np.arange(len(chosen))), expected, strict=True):
        np.testing.assert_array_equal(mine, theirs)
    for index in chosen.tolist():
        assert column.labels_of(index).tolist() == sorted(set(labels[index] or ()))
