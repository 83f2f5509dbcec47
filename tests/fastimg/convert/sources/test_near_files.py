"""What is not there, but almost: files that a table means, and archives and tables in place of a folder."""

import unicodedata
import zipfile

import pytest

from fastimg.convert.sources.columns import Columns
from fastimg.convert.sources.recognition.near_files import NearFiles
from fastimg.loaders import open_dataset
from fastimg.loaders.errors import DataError

from .manifests import read_source, write_csv


def test_the_file_that_a_path_means(tmp_path):
    composed, apart = "caf\u00e9.jpg", "cafe\u0301.jpg"
    for name in ("Images/A.JPG", f"train/{apart}", "train/0a1b.jpeg", "train/notes.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    near = NearFiles(tmp_path)
    found = {"images/a.jpg": "Images/A.JPG", "Images/a.png": "Images/A.JPG", f"train/{composed}": f"train/{apart}"}
    found |= {"0a1b": "train/0a1b.jpeg", "0a1b.jpg": "train/0a1b.jpeg", "old/0A1B.jpg": "train/0a1b.jpeg"}
    found |= {"Train\\0a1b": "train/0a1b.jpeg", str(tmp_path / "Images/a.jpg"): str(tmp_path / "Images/A.JPG")}
    assert {path: near.meant(path) for path in found} == found
    assert [near.meant(path) for path in ("b.jpg", "train/notes", "", "train/")] == [None] * 4


def test_paths_that_nearly_lead_to_files_are_named(files):
    src = write_csv(files, "path,label", "b/1.JPG,x", "a/2.png,y", "a/9.jpg,y", "a/1.jpg,x")
    (remark,) = read_source(src, Columns()).remarks
    assert remark == (
        f"{src}: 3 of 4 paths lead to no file; 2 of the first 3 may mean files of almost the same name: row 2: "
        "'b/1.JPG' may be 'b/1.jpg'; correct them"
    )
    src = write_csv(files, "file_name,label", "1.jpeg,x")
    with pytest.raises(
        DataError, match=r"none of its 1 paths leads to a file.*row 2: '1.jpeg' may be 'a/1.jpg'; corre"
    ):
        read_source(src, Columns())


def test_the_other_unicode_form_of_a_path_is_read(files):
    (files / "a" / "1.jpg").rename(files / "a" / unicodedata.normalize("NFD", "é.jpg"))
    source = read_source(write_csv(files, "path,label", "a/\u00e9.jpg,x", "b/1.jpg,y"), Columns())
    assert [entry.size > 0 for entry in source.splits["train"]] == [True, True]
    assert "1 paths lead to files without the blanks" in source.remarks[0] and "Unicode form" in source.remarks[0]


def test_ids_that_name_images(files):
    src = write_csv(files, "id,breed", "1,pug", "2,akita")
    with pytest.raises(
        DataError, match=r"but 'id' names images: '1' is 'a/1.jpg'; write that, with folder and ext.* --la"
    ):
        read_source(src, Columns())
    with pytest.raises(DataError, match=r"none of its 2 paths leads to a file.*row 2: '1' may be 'a/1.jpg'"):
        read_source(src, Columns(path="id", label="breed"))
    with pytest.raises(DataError, match=r"no path column .* but 'id' holds paths of images, such as 'a/1.jpg'"):
        read_source(write_csv(files, "id,breed,size", "a/1.jpg,pug,1", "b/1.jpg,pug,2"), Columns(label="breed"))


@pytest.mark.parametrize("column", ["file_name", "filepath", "image_path"])
def test_more_usual_columns_of_paths(files, column):
    source = read_source(write_csv(files, f"{column},label", "a/1.jpg,x", "b/1.jpg,y"), Columns())
    assert source.classes == ("x", "y")


def test_an_archive_in_place_of_a_folder(tmp_path):
    (tmp_path / "in").mkdir()
    for name in ("ds.zip", "in/train.zip"):
        with zipfile.ZipFile(tmp_path / name, "w") as archive:
            archive.writestr("cat/1.jpg", b"")
    for src, name in (("ds", "ds.zip"), ("ds.zip", "ds.zip"), ("in", "train.zip")):
        for read in (lambda path: read_source(path, Columns()), open_dataset):
            with pytest.raises(
                DataError, match=rf"{name} is an archive: unpack it, and give the folder that was in it"
            ):
                read(tmp_path / src)
    with pytest.raises(DataError, match="no such f"):
        open_dataset(tmp_path / "other")


@pytest.mark.parametrize("images", ["1.jpg", "images/1.jpg", "train/1.jpg"])
def test_metadata_beside_images(tmp_path, encode, images):
    root = tmp_path / "set"
    (root / images).parent.mkdir(parents=True)
    (root / images).write_bytes(encode())
    (root / "metadata.csv").write_text(f"file_name,label\n{images},x\n")
    for read in (lambda path: read_source(path, Columns()), open_dataset):
        with pytest.raises(DataError, match=r"metadata.csv.*convert *that in place of the folder"):
            read(root)
    assert read_source(root / "metadata.csv", Columns()).classes == ("x",)


def test_metadata_beside_class_folders_is_named(tmp_path, encode):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "1.jpg").write_bytes(encode())
    (tmp_path / "metadata.jsonl").write_text("")
    assert f"the classes are the folders; {tmp_path}/metadata.jsonl is not read" in open_dataset(tmp_path).notes[0]
