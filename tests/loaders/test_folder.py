"""Image folders: how they are listed, and files as a dataset. (How conversion uses them is tested with the sources.)"""

import os
import re

import numpy as np
import pytest

from fastimg.loaders import DataError, FilesDataset, ImageError, list_splits, open_dataset
from fastimg.loaders.folder import list_folder
from fastimg.loaders.formats import image_extensions
from fastimg.loaders.scratch import Scratch


def touch(root, *names):
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(name.encode())
    return root


def test_extensions_are_those_of_images():
    found = image_extensions()
    assert {".jpg", ".jpeg", ".png", ".webp", ".gif", ".bmp", ".tif", ".tiff"} <= found
    assert found.isdisjoint({".txt", ".pdf", ".json", ".tar", ""})  # pdf is written by Pillow, not read


def test_a_folder_without_splits_is_for_training(tmp_path):
    touch(tmp_path, "b/2.jpg", "b/10.PNG", "a/deep/a/x.webp", "a/1.jpg", "a/notes.txt", "b/.hidden.jpg", ".git/x.jpg")
    listing = list_folder(tmp_path)
    assert listing.classes == ("a", "b") and listing.notes == ()
    assert listing.ignored.reasons == {"not an image by its extension": 1, "hidden by a leading dot": 2}
    assert listing.files == {"train": [("a/1.jpg", 0), ("a/deep/a/x.webp", 0), ("b/10.PNG", 1), ("b/2.jpg", 1)]}


@pytest.mark.parametrize("name", ["val", "valid", "validation", "Val"])
def test_splits_share_the_classes_of_training(tmp_path, name):
    touch(tmp_path, "train/a/1.jpg", "train/b/1.jpg", f"{name}/b/2.jpg", "test/a/3.jpg")
    listing = list_folder(tmp_path)
    assert listing.classes == ("a", "b")
    assert {split: files for split, files in listing.files.items() if split != "train"} == {
        "val": [(f"{name}/b/2.jpg", 1)],
        "test": [("test/a/3.jpg", 0)],
    }
    assert list_splits(tmp_path) == {"train": 2, "val": 1, "test": 1}


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["x.jpg"], "no class folders in it"),
        (["a/1.md"], r"a: the class is empty \(1 other files: 1 not an image by its extension \(.md\)\); add images"),
        (["a/1.txt", "b/1.jpg"], r"a: the class is empty \(1 other files: .*\); add images"),
        (["a/1.txt", "b/1.md"], r"b: the class is empty \(1 other files: 1 not a .txt file \(.md\)\); add .txt files"),
        (["train/a/1.jpg", "val/b/1.jpg"], "val/b: the training split has no class 'b'"),
        (["train/a/1.jpg", "val/a/1.txt"], "val: the split is empty"),
        (["train/a/1.jpg", "val/a/1.jpg", "valid/a/1.jpg"], "val/ and valid/ are both names of the split val; keep"),
        (
            ["train/a/1.jpg", "Training/a/1.jpg"],
            "Training/ and train/ are both names of the split train; keep one of them",
        ),
        (["train/a/1.jpg", "testing/a/1.jpg", "EVAL/a/1.jpg"], "EVAL/ and testing/ are both names of the split test;"),
        (["train/a/1.jpg", "other/a/1.jpg"], "other/ is not a split and lies beside train/; move"),
        (
            ["train/a/1.jpg", "val/a/1.jpg", "x/1.jpg", "y/1.jpg"],
            "x/ and y/ are not splits and lie beside train/ and val/",
        ),
        (["val/a/1.jpg", "test/a/1.jpg"], "has test, val but no train/"),
    ],
)
def test_layouts_that_are_refused(tmp_path, names, message):
    touch(tmp_path, *names)
    with pytest.raises(DataError, match=f"^{re.escape(str(tmp_path))}.*{message}"):
        list_folder(tmp_path)


def test_links_are_followed_and_loops_are_not(tmp_path):
    touch(tmp_path, "data/a/1.jpg", "elsewhere/2.jpg")
    (tmp_path / "data/b").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "elsewhere/again").symlink_to(tmp_path / "elsewhere")
    assert list_folder(tmp_path / "data").files == {"train": [("a/1.jpg", 0), ("b/2.jpg", 1)]}


def test_a_folder_opens_as_a_dataset(image_folder):
    dataset = open_dataset(image_folder)
    assert len(dataset) == 36 and dataset.classes == ("blue", "green", "red")
    assert np.bincount(dataset.labels).tolist() == [12, 12, 12] and dataset.labels.dtype == np.int64
    scratch = Scratch()
    for i in (0, 35, 3, 20):
        with open(dataset.sample_name(i), "rb") as file:
            assert bytes(dataset.read(i, scratch)) == file.read()
        assert f"/{dataset.classes[dataset.labels[i]]}/" in dataset.sample_name(i)
    with pytest.raises(DataError, match="no split 'val'"):
        open_dataset(image_folder, "val")
    dataset.will_need(np.arange(3))
    dataset.close()


def test_files_without_labels(tmp_path):
    dataset = FilesDataset(touch(tmp_path, "a.jpg", "b.jpg"), ["b.jpg", "a.jpg"])
    assert dataset.labels.tolist() == [-1, -1] and dataset.labels.dtype == np.int64 and dataset.classes == ()
    assert bytes(dataset.read(0, Scratch())) == b"b.jpg" and dataset.sample_name(1) == f"{tmp_path}/a.jpg"


def test_scratch_is_used_again(tmp_path):
    (tmp_path / "long.jpg").write_bytes(b"x" * 100_000)
    dataset, scratch = FilesDataset(touch(tmp_path, "a.jpg"), ["long.jpg", "a.jpg"]), Scratch()
    assert bytes(dataset.read(0, scratch)) == b"x" * 100_000
    held = scratch.nbytes
    assert 100_000 <= held < 200_000
    assert bytes(dataset.read(1, scratch)) == b"a.jpg" and scratch.nbytes == held


def test_files_that_cannot_be_read(tmp_path):
    touch(tmp_path, "empty/x")
    (tmp_path / "folder.jpg").mkdir()
    (tmp_path / "empty.jpg").touch()
    (tmp_path / "dangling.jpg").symlink_to("nowhere")
    dataset = FilesDataset(tmp_path, ["gone.jpg", "folder.jpg", "dangling.jpg", "empty.jpg"])
    for i, message in enumerate(("No such file or directory", "Is a directory", "No such file or directory")):
        with pytest.raises(ImageError, match=f"^{message}$"):
            dataset.read(i, Scratch())
    assert len(dataset.read(3, Scratch())) == 0  # the decoder says what is wrong with it


def test_a_file_that_shrinks_while_it_is_read(tmp_path, monkeypatch):
    dataset = FilesDataset(touch(tmp_path, "a.jpg"), ["a.jpg"])
    stat = os.fstat

    def shrink(descriptor):
        size = stat(descriptor)
        os.truncate(tmp_path / "a.jpg", 2)
        return size

    monkeypatch.setattr(os, "fstat", shrink)
    with pytest.raises(ImageError, match="shrank while it was read"):
        dataset.read(0, Scratch())


def test_the_fingerprint_is_of_paths_and_labels(tmp_path):
    def of(*args, **options):
        return FilesDataset(tmp_path, *args, **options).fingerprint

    same = of(["a", "b"], ("x", "y"), [0, 1])
    assert of(["a", "b"], ("x", "y"), [0, 1]) == same
    others = [of(["b", "a"], labels=[0, 1]), of(["a", "b"], labels=[1, 0]), of(["a", "b"]), of(["a"], labels=[0])]
    assert len({same, *others}) == 5
    assert of([os.fsdecode(b"\xff.jpg")])  # a name that is no text
