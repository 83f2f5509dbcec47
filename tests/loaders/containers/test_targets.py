"""Targets of a split as columns: look-ups by id, missing values, selections."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from fastimg.loaders import FilesDataset, open_dataset
from fastimg.loaders.containers.arrays import PLACE, ArrayDataset, Views
from fastimg.loaders.containers.betons.files import BetonWriter
from fastimg.loaders.containers.betons.kinds import BetonField
from fastimg.loaders.containers.targets import LABEL, Target, TargetColumn
from fastimg.loaders.containers.tars.shards import ShardWriter

Encode = Callable[..., bytes]


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


def test_data_that_declares_no_targets_has_its_class_as_the_only_one(tmp_path: Path, encode: Encode) -> None:
    image = encode((10, 100, 50), (16, 16))
    with ShardWriter(tmp_path / "train-00000.tar") as shard:
        shard.add("000000000", {"jpg": image, "cls": b"1"})
        shard.add("000000001", {"jpg": image})
    with BetonWriter(tmp_path / "x.beton", {"image": BetonField("rgb"), "label": BetonField("int")}) as beton:
        beton.add({"image": image, "label": 1})
        beton.add({"image": image, "label": -1})
    files = FilesDataset(tmp_path, ["a.jpg", "b.jpg"], ("0", "1"), [1, -1])
    arrays = ArrayDataset(files, [], np.zeros(2, PLACE), "key", {})
    for dataset in (
        open_dataset(tmp_path),
        open_dataset(tmp_path / "x.beton"),
        files,
        arrays,
        Views([arrays, arrays]),
    ):
        (column,) = dataset.targets
        assert column.target == Target(name=LABEL, kind="class", classes=("0", "1"))
        assert column.values.tolist() == [1, -1]
        assert column.present.tolist() == [True, False]
