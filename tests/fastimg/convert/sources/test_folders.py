"""Class folders as lists of entries."""

import os

import pytest

from fastimg.convert.sources.columns import Columns
from fastimg.errors import UsageError

from .manifests import read_source


def test_folder_without_splits(image_folder):
    (image_folder / "red" / "notes.txt").write_text("none")
    source = read_source(image_folder, Columns())
    assert (source.kind, source.classes, source.ignored.total) == ("folder", ("blue", "green", "red"), 1)
    assert list(source.splits) == ["train"] and len(source.splits["train"]) == 36
    assert source.splits["train"][0][:3] == ("blue/000.jpg", 0, (image_folder / "blue/000.jpg").stat().st_size)


def test_folder_with_splits(tmp_path, encode):
    for name in ("train/a", "train/b", "valid/a", "test/b"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "1.png").write_bytes(encode(kind="PNG"))
    source = read_source(tmp_path, Columns())
    assert {split: len(entries) for split, entries in source.splits.items()} == {"train": 2, "val": 1, "test": 1}


def test_a_broken_link_has_no_size(image_folder):
    (image_folder / "red" / "gone.jpg").symlink_to("nowhere.jpg")
    source = read_source(image_folder, Columns())
    entry = next(entry for entry in source.splits["train"] if entry.path == "red/gone.jpg")
    assert entry.size == -1 and source.problem(entry) == "no such file"


def test_a_pipe_is_not_opened(image_folder):
    os.mkfifo(image_folder / "red" / "pipe.jpg")
    source = read_source(image_folder, Columns())
    assert source.ignored.reasons == {"not a regular file": 1}
    assert all(entry.path != "red/pipe.jpg" for entry in source.splits["train"])


def test_a_folder_has_no_columns(image_folder):
    with pytest.raises(UsageError, match=r"--label-column: .* is a folder and has no columns"):
        read_source(image_folder, Columns(label="label"))
