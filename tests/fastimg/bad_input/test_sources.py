"""Sources that are missing, empty, or without classes."""

import json
import shutil

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from .readers import READERS


@pytest.mark.parametrize("command", READERS)
def test_a_source_that_is_missing(command, commands, tmp_path, refuses):
    refuses(1, [tmp_path / "no", "check the path"], *commands[command](tmp_path / "no"))


@pytest.mark.parametrize("command", READERS)
def test_a_source_without_classes(command, commands, tmp_path, refuses):
    (tmp_path / "flat").mkdir()
    refuses(1, [tmp_path / "flat", "no class folders"], *commands[command](tmp_path / "flat"))


@pytest.mark.parametrize("command", sorted({*READERS} - {"eval"}))
def test_an_empty_class(command, commands, folder, refuses):
    shutil.rmtree(folder / "train" / "red")
    (folder / "train" / "red").mkdir()
    refuses(1, [folder / "train" / "red", "the class is empty", "add images or remove"], *commands[command](folder))


@pytest.mark.parametrize("command", READERS)
def test_a_class_only_in_the_validation_split(command, commands, folder, refuses):
    """eval takes data without a training split, and names the classes that the model does not know."""
    shutil.copytree(folder / "val" / "red", folder / "val" / "pink")
    told = [folder / "val" / "pink", "no class 'pink'", "add it there or remove"]
    if command == "eval":
        told = [folder, "classes that the model was not trained on: pink (", "evaluate on data without them"]
    refuses(1, told, *commands[command](folder))


def test_training_on_a_single_class_is_refused(folder, commands, refuses, cli, tmp_path):
    for name in ("train/red", "train/green", "val/red", "val/green"):
        shutil.rmtree(folder / name)
    told = ["every image of the training split is of one class, 'blue'", "add images of another class"]
    refuses(1, [folder, *told], *commands["train"](folder))
    refuses(1, [folder, *told], *commands["train"](folder), "--num-classes", 3, "--dry-run")
    ran = cli(*commands["convert"](folder))
    assert ran.code == 0
    assert f"{folder}: there is only one class, 'blue'; `train` refuses such a dataset" in ran.err
    refuses(1, told, *commands["train"](tmp_path / "new/out"))


def test_several_classes_but_images_of_only_one(tmp_path, encode, commands, refuses, cli):
    names = {"info": {"features": {"label": {"_type": "ClassLabel", "names": ["cat", "dog"]}}}}
    table = pa.table({"image": [encode(seed=i) for i in range(8)], "label": [1] * 8})
    pq.write_table(table.replace_schema_metadata({"huggingface": json.dumps(names)}), tmp_path / "set.parquet")
    assert cli(*commands["convert"](tmp_path / "set.parquet")).code == 0
    refuses(1, ["every image of the training split is of one class, 'dog'"], *commands["train"](tmp_path / "new/out"))


def test_a_label_that_is_not_among_the_classes(shards, commands, refuses):
    description = json.loads((shards / "dataset.json").read_text())
    description["classes"].pop()
    (shards / "dataset.json").write_text(json.dumps(description))
    counts = "class_counts has 3 classes, and there are 2 classes"
    refuses(1, [shards, counts, "convert again"], *commands["train"](shards))
    for split in description["splits"].values():
        del split["class_counts"]  # as in datasets of older versions
    (shards / "dataset.json").write_text(json.dumps(description))
    refuses(1, [shards, "label 2 is not among its 2 classes", "convert again"], *commands["train"](shards))


def test_a_manifest_row_without_its_file(folder, tmp_path, commands, refuses, cli):
    rows = [f"data/train/{name}/0.jpg,{name}" for name in ("red", "green", "blue")]
    manifest = tmp_path / "list.csv"
    manifest.write_text("path,label\n" + "\n".join([*rows, "data/gone.jpg,red"]) + "\n")
    texts = [f"{manifest}: row 5: data/gone.jpg: no such file", "--on-error skip"]
    refuses(1, texts, *commands["convert"](manifest), "--on-error", "fail")
    ran = cli(*commands["convert"](manifest))
    assert ran.code == 0 and "data/gone.jpg: no such file" in ran.out
