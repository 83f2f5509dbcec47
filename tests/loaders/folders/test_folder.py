"""Image folders: listing, and files as a dataset. (Their conversion is tested with the other sources.)"""

import dataclasses
import json
import os
import re
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from PIL import Image

from fastimg.loaders import DataError, FilesDataset, ImageError, list_splits, open_dataset
from fastimg.loaders.folders import formats
from fastimg.loaders.folders.folder import list_folder
from fastimg.loaders.folders.formats import image_extensions, register_plugins, undecodable_extensions
from fastimg.loaders.folders.walk import find_images
from fastimg.loaders.runtime.scratch import Scratch


def touch(root, *names):
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(name.encode())
    return root


def test_extensions_are_those_of_images():
    found = image_extensions()
    assert {".jpg", ".jpeg", ".mpo", ".png", ".webp", ".gif", ".bmp", ".tif", ".tiff"} <= found
    assert found.isdisjoint({".txt", ".pdf", ".json", ".tar", ""})  # pdf is written by Pillow, not read


def test_a_folder_without_splits_is_for_training(tmp_path):
    touch(tmp_path, "b/2.jpg", "b/10.PNG", "a/deep/a/x.webp", "a/1.jpg", "a/notes.txt", "b/.hidden.jpg", ".git/x.jpg")
    listing = list_folder(tmp_path)
    assert listing.classes == ("a", "b") and listing.notes == ()
    assert listing.ignored.reasons == {"without an image's extension": 1, "hidden by a leading dot": 2}
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
        (["x.jpg"], "has no class folders; put the images"),
        (["train/0.tar", "val/0.tar"], "train: has no class folders, but 0.tar; put the tars of all splits into one"),
        (["a/1.md"], r"a: the class is empty \(other files: 1 without an image's extension \(.md\)\); add images"),
        (["a/1.txt", "b/1.jpg"], r"a: the class is empty \(other files: .*\); add images"),
        (["a/1.txt", "b/1.md"], r"b: the class is empty \(other files: 1 not a .txt file \(.md\)\); add .txt files"),
        (["train/a/1.jpg", "val/b/1.jpg"], "val/b: the training split has no class 'b'"),
        (["train/a/1.jpg", "val/a/1.txt"], "val: the split has no images in class folders; add"),
        (["train/a/1.jpg", "val/a/1.jpg", "valid/a/1.jpg"], "val/ and valid/ are both names of the split val; keep"),
        (
            ["train/a/1.jpg", "Training/a/1.jpg"],
            "Training/ and train/ are both names of the split train; keep one of them",
        ),
        (["train/a/1.jpg", "testing/a/1.jpg", "EVAL/a/1.jpg"], "EVAL/ and testing/ are both names of the split test;"),
        (["train/a/1.jpg", "other/a/1.jpg"], "other/ is not a split but is next to train/; move it away"),
        (
            ["train/a/1.jpg", "val/a/1.jpg", "x/1.jpg", "y/1.jpg"],
            "x/ and y/ are not splits but are next to train/ and val/; move them away",
        ),
        (["val/a/1.jpg", "test/a/1.jpg"], "has test, val but no train/"),
    ],
)
def test_layouts_that_are_refused(tmp_path, names, message):
    touch(tmp_path, *names)
    with pytest.raises(DataError, match=f"^{re.escape(str(tmp_path))}.*{message}"):
        list_folder(tmp_path)


def under(root):
    """The number of files at any depth, following links to folders."""
    return sum(len(files) for _, _, files in os.walk(root, followlinks=True))


@pytest.mark.parametrize("above", ["", "train/"])
@pytest.mark.parametrize("level", [None, "leaf"])
def test_macos_folders_are_neither_classes_nor_splits(tmp_path, above, level):
    added = [f"__MACOSX/{above}a/._1.jpg", f"__MACOSX/._{above}a", "__MACOSX/x.jpg", f"{above}a/__MACOSX/2.jpg"]
    touch(tmp_path, f"{above}a/1.jpg", f"{above}b/2.jpg", f"{above}.DS_Store", *added)
    listing = list_folder(tmp_path, level)
    assert listing.classes == ("a", "b") and listing.notes == ()
    assert listing.files == {"train": [(f"{above}a/1.jpg", 0), (f"{above}b/2.jpg", 1)]}
    reason = "in __MACOSX, which macOS adds to archives"
    assert listing.ignored.reasons == {reason: 4, "hidden by a leading dot": 1}
    assert 2 + listing.ignored.total == under(tmp_path)
    assert listing.ignored.summary() == f"4 {reason}; 1 hidden by a leading dot"
    assert find_images(tmp_path)[0] == [str(tmp_path / above / name) for name in ("a/1.jpg", "b/2.jpg")]


CLUTTER = [
    *("loose.jpg", "LOOSE.PNG", "README.md", ".hidden.jpg", ".git/objects/x", ".git/a.jpg", "a/.cache/deep/b.jpg"),
    *("a/notes", "b/labels.csv", "b/deep/er/c.xml"),
]


@pytest.mark.parametrize(
    ("used", "loose"),
    [
        (["a/1.jpg", "b/2.gif", "b/b/3.avif"], {"outside any class folder": 2}),
        (
            ["train/a/1.jpg", "train/b/2.jpg", "val/b/b/3.jpg"],
            {"next to the split folders, not in a class folder": 2},
        ),
    ],
)
def test_every_file_is_used_or_ignored(tmp_path, used, loose):
    above = "train/" if used[0].startswith("train") else ""
    clutter = [name if "/" not in name or name[0] == "." else above + name for name in CLUTTER]
    touch(tmp_path, *used, *clutter)
    listing = list_folder(tmp_path)
    assert sum(map(len, listing.files.values())) == len(used)
    assert len(used) + listing.ignored.total == under(tmp_path)
    reasons = {**loose, "without an image's extension": 4, "hidden by a leading dot": 4}
    assert listing.ignored.reasons == reasons
    assert list(listing.ignored.reasons) == list(reasons)  # the most important first
    assert listing.ignored.extensions == {".jpg": 4, "": 2, ".csv": 1, ".md": 1, ".png": 1, ".xml": 1}
    assert {path for path, _ in listing.ignored.first()} == set(clutter)
    (note,) = listing.all_notes()
    assert note.startswith(
        f"{tmp_path}: 10 of 13 files are not used: 2 {next(iter(loose))} (.jpg 1, .png 1); 4 without"
    )
    assert note.endswith("; 4 hidden by a leading dot; the first is LOOSE.PNG")
    assert list(open_dataset(tmp_path).notes) == [note]


def test_files_next_to_the_classes_of_one_split(tmp_path):
    touch(tmp_path, "train/a/1.jpg", "val/a/2.jpg", "val/3.jpg", "val/x.md", "val/.4.jpg", "val/.x/5.jpg")
    listing = list_folder(tmp_path)
    assert listing.ignored.first() == [
        ("val/3.jpg", "outside any class folder"),
        ("val/x.md", "without an image's extension"),
        ("val/.4.jpg", "hidden by a leading dot"),
        ("val/.x/5.jpg", "hidden by a leading dot"),
    ]


def test_every_file_of_a_folder_of_texts_is_used_or_ignored(tmp_path):
    touch(tmp_path, "a/1.txt", "b/2.txt", "loose.txt", "loose.jpg", "a/x.md", ".x.txt")
    listing = list_folder(tmp_path)
    assert listing.content == "text" and under(tmp_path) == 2 + listing.ignored.total
    assert listing.ignored.reasons == {
        "outside any class folder": 1,
        "not a .txt file": 2,
        "hidden by a leading dot": 1,
    }


def test_of_many_ignored_files_the_first_of_every_reason_are_named(tmp_path):
    touch(tmp_path, "a/1.jpg", "x.md", ".y", *(f"{i:03}.jpg" for i in range(30)))
    first = list_folder(tmp_path).ignored.first()
    assert [path for path, _ in first] == [*(f"{i:03}.jpg" for i in range(8)), "x.md", ".y"]
    stored = list_folder(tmp_path).ignored
    again = type(stored).of_json(json.loads(json.dumps(stored.to_json())))
    assert (again.counts, again.first(), again.summary()) == (stored.counts, first, stored.summary())


def test_a_visible_link_into_a_hidden_folder_is_followed(tmp_path):
    touch(tmp_path, "a/.store/1.jpg", "b/2.jpg", ".all/3.jpg")
    (tmp_path / "a/shown").symlink_to(tmp_path / "a/.store")
    (tmp_path / ".again").symlink_to(tmp_path / "b")
    listing = list_folder(tmp_path)
    assert listing.files == {"train": [("a/shown/1.jpg", 0), ("b/2.jpg", 1)]}
    assert listing.ignored.first() == [(".all/3.jpg", "hidden by a leading dot")]


NESTED = ["animals/a/1.jpg", "animals/b/2.jpg", "plants/c/3.jpg", "plants/d/4.jpg", "plants/d/5.jpg"]


def test_nested_folders_are_read_from_the_top_and_both_readings_are_named(tmp_path):
    listing = list_folder(touch(tmp_path, *NESTED))
    assert listing.classes == ("animals", "plants") and [label for _, label in listing.files["train"]] == [
        0,
        0,
        1,
        1,
        1,
    ]
    (note,) = listing.notes
    assert "the classes are the 2 folders at the top (animals, plants), but 5 of 5 files are in folders below" in note
    assert "use classes=leaf to take the innermost folder as the class, which gives 4 (a, b, c, d)" in note
    assert list_folder(tmp_path, "top") == dataclasses.replace(listing, notes=())


@pytest.mark.parametrize("above", ["", "train/"])
def test_the_folder_that_a_file_lies_in_can_be_its_class(tmp_path, above):
    touch(tmp_path, *(above + name for name in NESTED), f"{above}plants/6.jpg", f"{above}plants/.e/7.jpg")
    listing = list_folder(tmp_path, "leaf")
    assert listing.classes == ("a", "b", "c", "d", "plants") and listing.notes == ()
    assert [(path[len(above) :], listing.classes[label]) for path, label in listing.files["train"]] == [
        *(("animals/a/1.jpg", "a"), ("animals/b/2.jpg", "b")),
        *(("plants/6.jpg", "plants"), ("plants/c/3.jpg", "c"), ("plants/d/4.jpg", "d"), ("plants/d/5.jpg", "d")),
    ]
    assert listing.ignored.total == 1
    dataset = open_dataset(tmp_path, classes="leaf")
    assert dataset.classes == listing.classes and len(dataset) == 6


def test_leaves_with_the_same_name_are_one_class_with_a_remark(tmp_path):
    touch(tmp_path, "ann/cat/1.jpg", "ann/dog/2.jpg", "bo/cat/3.jpg")
    listing = list_folder(tmp_path, "leaf")
    assert listing.classes == ("cat", "dog") and [label for _, label in listing.files["train"]] == [0, 1, 0]
    assert listing.notes == (f"{tmp_path}: folders of the same name are one class: cat (ann/cat, bo/cat)",)


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["train/x/a/1.jpg", "val/x/b/2.jpg"], "val/x/b: the training split has no class 'b'; add it there"),
        (["x/a/1.jpg", "x/b/2.md"], "x/b: the class is empty; add images or remove"),
        (["x/a/1.md"], r"x: the class is empty \(other files: 1 without an image's extension \(.md\)\); add"),
    ],
)
def test_leaves_that_are_refused(tmp_path, names, message):
    touch(tmp_path, *names)
    with pytest.raises(DataError, match=f"^{re.escape(str(tmp_path))}/{message}"):
        list_folder(tmp_path, "leaf")


def test_only_class_folders_can_name_classes_by_folders(tmp_path):
    (tmp_path / "x.beton").write_bytes(b"")
    with pytest.raises(ValueError, match="its classes are not named by folders; leave out classes='leaf'"):
        open_dataset(tmp_path, classes="leaf")


@pytest.mark.parametrize(
    ("train", "val", "test", "note"),
    [
        ("train", "val", "test", None),
        ("Training", "valid", "test", "Training/ as train, valid/ as val"),
        ("TRAIN", "dev", "Testing", "TRAIN/ as train, dev/ as val, Testing/ as test"),
        ("training", "Validation", "eval", "training/ as train, Validation/ as val, eval/ as test"),
    ],
)
def test_usual_names_of_splits_are_splits(tmp_path, train, val, test, note):
    touch(tmp_path, f"{train}/a/1.jpg", f"{val}/a/2.jpg", f"{test}/a/3.jpg")
    listing = list_folder(tmp_path)
    assert listing.classes == ("a",) and {split: len(files) for split, files in listing.files.items()} == {
        "test": 1,
        "train": 1,
        "val": 1,
    }
    assert listing.notes == (() if note is None else (f"{tmp_path}: folders are read as splits: {note}",))


def test_a_class_with_the_name_of_a_split_is_reported(tmp_path):
    listing = list_folder(touch(tmp_path, "prod/1.jpg", "dev/2.jpg"))
    assert listing.classes == ("dev", "prod")
    assert listing.notes == (f"{tmp_path}: has no train/, so dev/ and the other folders are read as classes",)


UNDECODABLE = {
    "x.HEIC": "HEIC, readable after `pip install pillow-heif`",
    "x.jxl": "JPEG XL, readable after `pip install pillow-jxl-plugin`",
    "x.cr2": "camera raw, which must be converted to JPEG or PNG first",
    "x.svg": "SVG, which must be converted to JPEG or PNG first",
}


@pytest.mark.usefixtures("heif_plugin")
@pytest.mark.parametrize(("name", "reason"), UNDECODABLE.items())
def test_undecodable_formats_are_distinguished_from_other_files(tmp_path, name, reason):
    touch(tmp_path, "a/1.jpg", f"a/{name}", "a/x.md")
    listing = list_folder(tmp_path)
    assert listing.ignored.reasons == {reason: 1, "without an image's extension": 1}
    found, ignored = find_images(tmp_path, undecodable=True)
    assert found == [f"{tmp_path}/a/1.jpg", f"{tmp_path}/a/{name}"] and ignored.total == 1


def test_a_class_with_only_heic_files_names_the_remedy(tmp_path, heif_plugin):
    touch(tmp_path, "a/1.heic", "a/2.heic")
    with pytest.raises(DataError, match=r"a: the class is empty \(other files: 2 HEIC, .*`pip install pillow-heif`"):
        list_folder(tmp_path)
    heif_plugin(installed=True)
    assert len(list_folder(tmp_path).files["train"]) == 2 and ".heic" in image_extensions()


@pytest.mark.usefixtures("heif_plugin")
def test_a_plugin_that_cannot_be_imported_is_named(tmp_path, monkeypatch):
    (tmp_path / "pillow_heif.py").write_text("raise ImportError('no libheif')\n")
    monkeypatch.delitem(sys.modules, "pillow_heif")
    monkeypatch.syspath_prepend(tmp_path)
    register_plugins.cache_clear()
    reason = undecodable_extensions()[".heic"]
    assert reason == "HEIC, and pillow_heif, which reads it, cannot be imported (no libheif)"


def test_plugins_are_registered_while_nobody_reads_pillows_tables(heif_plugin, monkeypatch):
    heif_plugin(installed=True)
    readers = []

    def reads():
        reading = formats._REGISTERING.acquire(blocking=False)
        if reading:
            formats._REGISTERING.release()
        return reading

    with ThreadPoolExecutor(1) as pool:
        monkeypatch.setattr(
            sys.modules["pillow_heif"], "register_heif_opener", lambda: readers.append(pool.submit(reads).result())
        )
        register_plugins()
        assert readers == [False] and pool.submit(reads).result()


def test_formats_that_this_pillow_does_not_support(monkeypatch):
    assert undecodable_extensions().keys().isdisjoint(image_extensions())
    monkeypatch.delitem(Image.OPEN, "AVIF", raising=False)
    monkeypatch.delitem(Image.OPEN, "WEBP", raising=False)
    found = undecodable_extensions()
    assert found[".avif"] == "AVIF, readable after `pip install 'pillow>=11.3'`"
    assert found[".webp"] == "in a format that this Pillow was built without (`pip install -U pillow`)"


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


def test_scratch_is_reused(tmp_path):
    (tmp_path / "long.jpg").write_bytes(b"x" * 100_000)
    dataset, scratch = FilesDataset(touch(tmp_path, "a.jpg"), ["long.jpg", "a.jpg"]), Scratch()
    assert bytes(dataset.read(0, scratch)) == b"x" * 100_000
    held = scratch.nbytes
    assert 100_000 <= held < 200_000
    assert bytes(dataset.read(1, scratch)) == b"a.jpg" and scratch.nbytes == held


def test_unreadable_files(tmp_path):
    touch(tmp_path, "empty/x")
    (tmp_path / "folder.jpg").mkdir()
    (tmp_path / "empty.jpg").touch()
    (tmp_path / "dangling.jpg").symlink_to("nowhere")
    dataset = FilesDataset(tmp_path, ["gone.jpg", "folder.jpg", "dangling.jpg", "empty.jpg"])
    for i, message in enumerate(("No such file or directory", "Is a directory", "No such file or directory")):
        with pytest.raises(ImageError, match=f"^{message}$"):
            dataset.read(i, Scratch())
    assert len(dataset.read(3, Scratch())) == 0  # the decoder reports the reason


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


def test_the_fingerprint_depends_on_paths_and_labels(tmp_path):
    def of(*args, **options):
        return FilesDataset(tmp_path, *args, **options).fingerprint

    same = of(["a", "b"], ("x", "y"), [0, 1])
    assert of(["a", "b"], ("x", "y"), [0, 1]) == same
    others = [of(["b", "a"], labels=[0, 1]), of(["a", "b"], labels=[1, 0]), of(["a", "b"]), of(["a"], labels=[0])]
    assert len({same, *others}) == 5
    assert of([os.fsdecode(b"\xff.jpg")])  # a name that is not text


SPLIT_ABOVE = ["ds/train/cat/1.jpg", "ds/train/dog/2.jpg", "ds/val/cat/3.jpg", "ds/val/dog/4.jpg"]
SPLIT_INSIDE = ["cat/train/1.jpg", "cat/Valid/2.jpg", "dog/train/3.jpg", "dog/test/4.jpg"]


@pytest.mark.parametrize("classes", [None, "top", "leaf"])
@pytest.mark.parametrize(
    ("names", "message"),
    [
        (SPLIT_ABOVE, r"source: the splits train/ and val/ are in ds/; give \S+source/ds$"),
        ([f"a/{name}" for name in SPLIT_ABOVE], r"source: the splits train/ and val/ are in a/ds/; give \S+/a/ds$"),
        ([*SPLIT_ABOVE, "docs/readme.md"], r"the splits train/ and val/ are in ds/; give \S+/ds$"),
        ([*SPLIT_ABOVE, "ds/extra/cat/5.jpg"], r"the splits train/ and val/ are in ds/; give \S+/ds$"),
        (
            [name.replace("/train", "/train_set") for name in SPLIT_ABOVE[:2]] + ["ds/test_set/cat/3.jpg"],
            "are in ds/; give",
        ),
        (
            [f"{top}/{name[3:]}" for name in SPLIT_ABOVE for top in "ab"],
            "a/ and b/ have splits of their own .*; give one",
        ),
        ([f"ds/{name}" for name in SPLIT_INSIDE], "the class folders, with the splits .* in them, are in ds/; give"),
        (
            [*SPLIT_INSIDE, "bird/5.jpg"],
            "bird: its files are in none of Valid/, test/ and train/, which are the splits",
        ),
        ([*SPLIT_INSIDE, "dog/5.jpg"], "dog: its files are in none of Valid/, test/ and train/"),
        (
            ["train/train/cat/1.jpg", "train/val/cat/2.jpg"],
            "train: is read as the split train, but holds train/ and val/",
        ),
    ],
)
def test_splits_further_down_are_never_mixed(tmp_path, names, message, classes):
    with pytest.raises(DataError, match=message):
        list_folder(touch(tmp_path / "source", *names), classes)


def test_splits_inside_class_folders(tmp_path):
    root = touch(tmp_path, *SPLIT_INSIDE, "dog/test/deep.md")
    listing = list_folder(root)
    assert listing.classes == ("cat", "dog")
    assert listing.files == {
        "train": [("cat/train/1.jpg", 0), ("dog/train/3.jpg", 1)],
        "val": [("cat/Valid/2.jpg", 0)],
        "test": [("dog/test/4.jpg", 1)],
    }
    assert listing.notes == (f"{root}: the splits are in the class folders, which hold Valid/, test/ and train/",)
    assert listing.ignored.total == 1 and listing.files == list_folder(root, "top").files
    assert list_splits(root) == {"train": 2, "val": 1, "test": 1}
    assert open_dataset(root, "test").labels.tolist() == [1]
    with pytest.raises(DataError, match=r"in the class folders are splits, not classes; leave out classes=leaf$"):
        list_folder(root, "leaf")
    with pytest.raises(DataError, match=r"bird/test: the training split has no class 'bird'"):
        list_folder(touch(root, "bird/test/5.jpg"))
    with pytest.raises(DataError, match="its class folders hold test/ and val/ but no train/; add it"):
        list_folder(touch(tmp_path / "other", "cat/val/1.jpg", "dog/test/2.jpg"))
    root = touch(tmp_path / "one", "cat/1.jpg", "cat/val/2.jpg", "dog/3.jpg", "dog/val/4.jpg")
    with pytest.raises(DataError, match="cat/val/, dog/val/ look like splits inside class folders, where there is no"):
        list_folder(root)
    assert list_folder(root, "top").classes == ("cat", "dog")


def test_folders_that_are_splits_under_other_names(tmp_path):
    names = ["seg_train/seg_train/cat/1.jpg", "seg_train/seg_train/dog/2.jpg", "seg_test/seg_test/cat/3.jpg"]
    root = touch(tmp_path / "source", *names)
    for classes in (None, "leaf"):
        with pytest.raises(
            DataError, match=r"seg_test/ and seg_train/ look like splits, not classes; rename them to te"
        ):
            list_folder(root, classes)
    assert list_folder(root, "top").classes == ("seg_test", "seg_train")
    (root / "seg_train").rename(root / "train")
    (root / "seg_test").rename(root / "test")
    listing = list_folder(root)
    assert listing.classes == ("cat", "dog")
    assert listing.files["test"] == [("test/seg_test/cat/3.jpg", 0)] and len(listing.files["train"]) == 2
    assert listing.notes == (f"{root}: folders are read as splits: train/seg_train/ as train, test/seg_test/ as test",)


@pytest.mark.parametrize(
    "names",
    [
        ["vehicles/train/1.jpg", "vehicles/bus/2.jpg", "animals/cat/3.jpg"],  # a train is a vehicle, too
        ["train_station/1.jpg", "test_tube/2.jpg", "tower/3.jpg"],
        ["train/1.jpg", "bus/2.jpg"],
    ],
)
def test_classes_that_are_called_as_splits_are(tmp_path, names):
    root = touch(tmp_path, *names)
    if any(name.startswith("train/") for name in names):
        with pytest.raises(DataError):  # bus/ is not a split
            list_folder(root)
    else:
        assert len(list_folder(root).files["train"]) == 3


def test_class_folders_that_look_alike_are_refused(tmp_path):
    composed, apart = "caf\u00e9", "cafe\u0301"
    for number, names in enumerate(
        ([f"{composed}/1.jpg", f"{apart}/2.jpg"], [f"train/{composed}/1.jpg", "train/b/1.jpg", f"val/{apart}/2.jpg"])
    ):
        root = touch(tmp_path / str(number), *names)
        if len({path.name for path in root.rglob("caf*")}) == 1:
            pytest.skip("the file system keeps one form")
        with pytest.raises(DataError, match=r"two class folders are called .* forms \('cafe\\u0301' and"):
            list_folder(root)
    assert list_folder(touch(tmp_path / "x", f"{apart}/1.jpg", "b/1.jpg")).classes == ("b", apart)
