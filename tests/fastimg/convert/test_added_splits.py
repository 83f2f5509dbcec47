"""A validation or test split that is added later, by `--append`, from a source without a training split."""

import json
from dataclasses import replace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fastimg.config.commands import Convert
from fastimg.convert.pipeline import convert
from fastimg.loaders.errors import DataError

from .conversions import samples
from .field_samples import of


@pytest.fixture
def base(write, tmp_path, console):
    """A dataset with the classes cat and dog, and only a training split."""
    source = write({f"images/{name}/{number}.jpg": None for name in ("cat", "dog") for number in range(3)})
    config = Convert(src=source / "images", dst=tmp_path / "out", tile="off", workers="1")
    convert(config, console)
    return replace(config, append=True)


def counts(folder):
    """The number of samples of each class in each split."""
    described = json.loads((folder / "dataset.json").read_text())
    return {
        split: dict(zip(described["classes"], stated["class_counts"], strict=True))
        for split, stated in described["splits"].items()
    }


def images_of(folder, split):
    return {note["path"]: label for note, label, _, _ in samples(folder, split).values()}


def test_a_manifest_with_a_split_column(base, write, console):
    root = write({"v/1.jpg": None, "v/2.jpg": None, "v/3.jpg": None})
    (root / "v.csv").write_text("path,label,split\nv/1.jpg,dog,val\nv/2.jpg,dog,val\nv/3.jpg,cat,val\n")
    convert(replace(base, src=root / "v.csv"), console)
    assert counts(base.dst) == {"train": {"cat": 3, "dog": 3}, "val": {"cat": 1, "dog": 2}}
    assert images_of(base.dst, "val") == {"v/1.jpg": 1, "v/2.jpg": 1, "v/3.jpg": 0}


@pytest.mark.parametrize("level", [None, "leaf"])
def test_a_folder_of_val_alone(base, write, console, level):
    root = write({"later/val/dog/8.jpg": None, "later/val/dog/9.jpg": None})
    convert(replace(base, src=root / "later", classes=level), console)
    assert counts(base.dst) == {"train": {"cat": 3, "dog": 3}, "val": {"cat": 0, "dog": 2}}


def test_val_and_test_of_texts(write, tmp_path, console):
    root = write({"t.csv": "text,label\na b,x\nc d,y\n", "v.csv": "text,label,split\ne f,y,val\ng h,x,test\n"})
    config = Convert(src=root / "t.csv", dst=tmp_path / "out")
    convert(config, console)
    convert(replace(config, src=root / "v.csv", append=True), console)
    assert counts(config.dst) == {"test": {"x": 1, "y": 0}, "train": {"x": 1, "y": 1}, "val": {"x": 0, "y": 1}}


def test_a_folder_of_parquets_of_one_split(base, write, console, encode):
    root = write({"p/a.txt": "x"})
    table = pa.table({"image": [{"bytes": encode(), "path": "a.jpg"}], "label": ["dog"]})
    pq.write_table(table, root / "p" / "validation-00000-of-00001.parquet")
    convert(replace(base, src=root / "p"), console)
    assert counts(base.dst) == {"train": {"cat": 3, "dog": 3}, "val": {"cat": 0, "dog": 1}}


def test_coco_of_val_alone(write, tmp_path, console):
    def annotations(name):
        return {
            "images": [{"id": 1, "file_name": name, "width": 40, "height": 32}],
            "annotations": [{"id": 1, "image_id": 1, "category_id": 1, "bbox": [1, 1, 4, 4]}],
            "categories": [{"id": 1, "name": "cat"}],
        }

    root = write(
        {
            "a/train/1.jpg": None,
            "a/train/_annotations.coco.json": annotations("1.jpg"),
            "b/valid/2.jpg": None,
            "b/valid/_annotations.coco.json": annotations("2.jpg"),
        }
    )
    config = Convert(src=root / "a", dst=tmp_path / "out")
    convert(config, console)
    convert(replace(config, src=root / "b", append=True), console)
    described = json.loads((config.dst / "dataset.json").read_text())
    assert {split: stated["samples"] for split, stated in described["splits"].items()} == {"train": 1, "val": 1}


def test_a_class_that_nothing_is_trained_on(base, write, console):
    root = write({"v/1.jpg": None, "v/2.jpg": None, "later/val/bird/1.jpg": None})
    (root / "v.csv").write_text("path,label,split\nv/1.jpg,dog,val\nv/2.jpg,bird,val\n")
    for source in ("v.csv", "later"):
        with pytest.raises(DataError, match=r"the training split has no class 'bird', which val has; add it there, or"):
            convert(replace(base, src=root / source), console)
    assert counts(base.dst) == {"train": {"cat": 3, "dog": 3}}


def test_a_class_that_only_the_dataset_has_in_training(base, write, console):
    root = write({"v/1.jpg": None, "v/2.jpg": None})
    (root / "v.csv").write_text("path,label,split\nv/1.jpg,dog,train\nv/2.jpg,cat,val\n")
    convert(replace(base, src=root / "v.csv"), console)
    assert counts(base.dst) == {"train": {"cat": 3, "dog": 4}, "val": {"cat": 1, "dog": 0}}


def test_a_new_dataset_needs_a_training_split(write, tmp_path, console):
    root = write({"c/images/val/1.jpg": None, "c/labels/val/1.txt": "0 0.5 0.5 0.1 0.1"})
    with pytest.raises(DataError, match=r"c: has val, and no training split \(train\); add one, or add this to"):
        convert(Convert(src=root / "c", dst=tmp_path / "out"), console)


@pytest.mark.parametrize("name", ["instances_val2017.json", "my_valid.json"])
def test_one_file_of_coco_named_as_a_split(write, tmp_path, console, name):
    def file(number):
        image = {"id": number, "file_name": f"{number}.jpg", "width": 40, "height": 32}
        box = {"id": 1, "image_id": number, "category_id": 1, "bbox": [0, 0, 4, 4], "iscrowd": 0, "area": 16}
        return json.dumps({"images": [image], "annotations": [box], "categories": [{"id": 1, "name": "cat"}]})

    root = write({"1.jpg": None, "2.jpg": None, "first.json": file(1), name: file(2)})
    config = Convert(src=root / "first.json", dst=tmp_path / "out", workers="1")
    convert(config, console)
    convert(replace(config, src=root / name, append=True), console)
    assert list(of(config.dst)) == ["1.jpg"] and list(of(config.dst, "val")) == ["2.jpg"]


def test_voc_with_a_list_of_val_alone(write, tmp_path, console):
    xml = "<annotation></annotation>"
    voc = {"JPEGImages/a.jpg": None, "JPEGImages/b.jpg": None, "Annotations/a.xml": xml, "Annotations/b.xml": xml}
    root = write({**{f"first/{name}": content for name, content in voc.items()}})
    later = write({f"later/{name}": content for name, content in {**voc, "ImageSets/Main/val.txt": "b\n"}.items()})
    config = Convert(src=root / "first", dst=tmp_path / "out", workers="1")
    report = convert(config, console)
    assert report.splits == {"train": 2}
    with pytest.raises(DataError, match=r"ImageSets: has lists of val, but none to train on; add Main/train.txt"):
        convert(replace(config, src=later / "later", dst=tmp_path / "other"), console)
    convert(replace(config, src=later / "later", append=True), console)
    assert list(of(config.dst, "val")) == ["JPEGImages/b.jpg"]
