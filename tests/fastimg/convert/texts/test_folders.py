"""Folders of texts."""

import json

import pytest

from fastimg.loaders import DataError, open_dataset

from .manifests import members, text_folder, texts, write


@pytest.mark.parametrize("splits", [("",), ("train", "test")])
def test_folders_of_texts(splits, tmp_path, make):
    root = text_folder(tmp_path / "texts", splits)
    write(root / splits[0] / "pos/notes.md", "no text")
    dst, report = make(root, no_shuffle=True)
    assert (report.ignored, report.images, report.columns) == (1, 8 * len(splits), [])
    for split in splits:
        expected = [(f"{name} text {i} of {split}\n", name) for name in ("neg", "pos") for i in range(4)]
        assert texts(dst, split or "train") == texts(root, split or "train") == expected
    path = f"{splits[0]}/neg/0.txt".lstrip("/")
    assert json.loads(members(dst / "train-00000.tar")["000000000.json"]) == {"path": path}


def test_a_folder_with_one_image_is_an_image_folder(image_folder, tmp_path, make):
    write(image_folder / "blue/caption.txt", "a caption")
    _, report = make(image_folder)
    assert (report.content, report.ignored) == ("images", 1)
    root = text_folder(tmp_path / "texts")
    (image_folder / "blue/000.jpg").rename(root / "pos/picture.jpg")
    with pytest.raises(DataError, match=r"neg: the class is empty \(other files: 4 without an image.*\); add images"):
        open_dataset(root)


def test_files_that_are_not_texts(tmp_path, make):
    root = text_folder(tmp_path / "texts")
    write(root / "neg/0.txt", b"caf\xe9")
    write(root / "neg/1.txt", b"")
    write(root / "pos/0.txt", "\ufeff\n")
    _, report = make(root)
    assert dict(report.skipped) == {
        "neg/0.txt": "not UTF-8",
        "neg/1.txt": "empty",
        "pos/0.txt": "nothing but white space",
    }
    with pytest.raises(DataError, match=r"neg/0\.txt: not UTF-8"):
        make(root, on_error="fail")
