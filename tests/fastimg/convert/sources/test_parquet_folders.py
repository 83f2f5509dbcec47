"""Folders of parquet files: their shards, splits and keys."""

import pytest

from fastimg.convert.sources.resolve import find_parquets
from fastimg.loaders.errors import DataError

from .parquets import contents, pictures, write, write_pets


@pytest.mark.parametrize(
    "form",
    [
        "{split}-{i:05d}-of-00002.parquet",
        "data/{split}-{i:05d}-of-00002-0123456789abcdef.parquet",
        "{split}/{i:04d}.parquet",
        "data/my_{split}_{i}.parquet",
    ],
)
def test_folder_of_shards(tmp_path, jpegs, read, form):
    for split in ("train", "validation", "test"):
        for i in range(2):
            write_pets(tmp_path / "set" / form.format(split=split, i=i), jpegs)
    (tmp_path / "set" / "README.md").write_text("a set")
    source = read(tmp_path / "set")
    assert {split: len(entries) for split, entries in source.splits.items()} == {"test": 6, "train": 6, "val": 6}
    assert contents(source, "val") == jpegs * 2
    second = source.splits["train"][4]
    assert source.name(second) == f"{tmp_path / 'set' / form.format(split='train', i=1)}: row 2: 1.jpg"


def test_keys_of_a_folder_name_the_file(tmp_path, jpegs, read):
    for split in ("train", "test"):
        write(tmp_path / split / "0000.parquet", {"image": pictures(jpegs), "label": [1, 2, 3]})
    source = read(tmp_path)
    assert [entries[0].path for entries in source.splits.values()] == [
        "test/0000.parquet/000000",
        "train/0000.parquet/000000",
    ]


@pytest.mark.parametrize("names", [("part-0.parquet", "part-1.parquet"), ("test-00000-of-00001.parquet",)])
def test_files_with_no_or_one_split_are_for_training(tmp_path, jpegs, names):
    for name in names:
        write_pets(tmp_path / name, jpegs)
    assert find_parquets(tmp_path) == {"train": [tmp_path / name for name in names]}


def test_folders_that_are_not_parquet_datasets(tmp_path, image_folder, jpegs):
    assert find_parquets(tmp_path / "images") == {}
    write_pets(image_folder / "extra.parquet", jpegs)
    assert find_parquets(image_folder) == {}
    write(tmp_path / "list" / "train.parquet", {"path": ["a.jpg"], "label": [1]})
    assert find_parquets(tmp_path / "list") == {}


def test_unknown_split(tmp_path, jpegs, read):
    for split in ("train", "unsupervised"):
        write_pets(tmp_path / f"{split}-00000.parquet", jpegs)
    with pytest.raises(DataError, match="unsupervised: not among the known splits \\(test, train, val\\); rename"):
        read(tmp_path)
