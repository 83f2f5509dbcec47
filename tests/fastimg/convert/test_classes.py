"""Which classes a conversion finds: of labels, of nested folders, and of several sources."""

import json
import shutil
from pathlib import Path

import pytest

from fastimg.config.commands import Convert
from fastimg.convert.pipeline import convert
from fastimg.errors import UsageError
from fastimg.loaders.containers.description import read_description
from fastimg.loaders.errors import DataError


def write_table(folder, labels):
    """`folder/set.csv`: one row per label, using the images in turn."""
    files = sorted(folder.rglob("*.jpg"))
    rows = [f"{files[i % len(files)].relative_to(folder)},{label}" for i, label in enumerate(labels)]
    (folder / "set.csv").write_text("\n".join(["path,label", *rows, ""]))
    return folder / "set.csv"


def test_labels_are_classes_if_declared(image_folder, tmp_path, cli):
    src = write_table(image_folder, range(100))
    ran = cli("convert", src, tmp_path / "out")
    assert ran.code == 1 and "look like identifiers" in ran.err and not (tmp_path / "out").exists()
    ran = cli("convert", src, tmp_path / "out", "--labels-are-classes")
    assert ran.code == 0 and "100 of 100 classes" in ran.out
    assert "--labels-are-classes makes a class of each of 100 different ones" in ran.err
    assert read_description(tmp_path / "out")["options"]["labels_are_classes"] is True
    again = ("convert", src, tmp_path / "out", "--resume")
    assert "already complete" in cli(*again, "--labels-are-classes").err
    more = write_table(image_folder, [*range(99, -1, -1)])  # each label is unique, and known
    assert cli("convert", more, tmp_path / "out", "--append").code == 0
    assert read_description(tmp_path / "out")["splits"]["train"]["class_counts"] == [2] * 100


def test_labels_that_look_like_classes_need_no_option(image_folder, tmp_path, cli):
    ran = cli("convert", write_table(image_folder, "abab"), tmp_path / "out")
    assert ran.code == 0 and "labels_are_classes" not in read_description(tmp_path / "out")["options"]


@pytest.mark.parametrize("container", ["folder", "tar", "beton"])
def test_classes_of_containers_are_not_judged(container, tmp_path, encode, cli):
    src = tmp_path / "src"
    for i in range(20):
        (src / f"{i / 8}|{i}").mkdir(parents=True)
        (src / f"{i / 8}|{i}" / "1.jpg").write_bytes(encode(seed=i))
    if container != "folder":
        assert cli("convert", src, tmp_path / "D", "--format", container).code == 0
        src = tmp_path / "D"
    ran = cli("convert", src, tmp_path / "out")
    assert ran.code == 0 and "20 of 20 classes" in ran.out
    ran = cli("convert", src, tmp_path / "E", "--labels-are-classes")
    assert ran.code == 2 and "--labels-are-classes has no effect: " in ran.err and not (tmp_path / "E").exists()


def test_a_table_and_a_folder_merge_with_any_labels(image_folder, tmp_path, cli):
    src = write_table(image_folder, ["blue|red", "red", "blue"])
    ran = cli("convert", src, image_folder, tmp_path / "out", "--merge", "--labels-are-classes")
    assert ran.code == 0 and read_description(tmp_path / "out")["classes"] == ["blue", "blue|red", "red", "green"]


@pytest.mark.parametrize("target", [(), ("label",)])
def test_zeros_before_integers_are_kept_where_classes_have_them(target, image_folder, tmp_path, cli):
    """A table of integers alone is added to classes that are no numbers."""
    flags = [flag for name in target for flag in ("--target", name)]

    def table(name, *labels):
        write_table(image_folder, labels).rename(image_folder / name)
        return image_folder / name

    def classes(*arguments):
        ran = cli("convert", *arguments, *(flags if "folder" not in str(arguments[0]) else ()))
        assert ran.code == 0, ran.err
        (dst,) = (path for path in arguments if path in tmp_path.iterdir())
        return read_description(dst)["classes"], ran.err

    shutil.copytree(image_folder / "red", tmp_path / "a" / "folder" / "007")
    shutil.copytree(image_folder / "red", tmp_path / "a" / "folder" / "x12")
    names, integers = table("names.csv", "007", "x12"), table("integers.csv", "007", "008", "007", "10", "9")
    wanted = ["007", "x12", "008", "9", "10"]
    assert classes(tmp_path / "a" / "folder", tmp_path / "D")[0] == wanted[:2]
    assert classes(integers, tmp_path / "D", "--append")[0] == wanted
    assert classes(names, tmp_path / "E")[0] == wanted[:2]
    assert classes(integers, tmp_path / "E", "--append")[0] == wanted
    assert classes(names, integers, tmp_path / "F", "--merge")[0] == wanted
    assert classes(integers, names, tmp_path / "G", "--merge")[0] == ["007", "008", "9", "10", "x12"]
    found, said = classes(integers, tmp_path / "H")
    assert found == ["7", "8", "9", "10"] and "all integers and named as such: '007' is class 7" in said
    more = table("more.csv", "009", "7", "7")
    assert classes(more, tmp_path / "H", "--append")[0] == ["7", "8", "9", "10"]
    assert classes(more, integers, tmp_path / "I", "--merge")[0] == ["7", "9", "8", "10"]


def test_a_single_class_is_reported(image_folder, tmp_path, cli):
    ran = cli("convert", write_table(image_folder, "aaa"), tmp_path / "out")
    assert ran.code == 0
    assert "set.csv: there is only one class, 'a'; `train` refuses such a dataset, which has nothing to" in ran.err
    ran = cli("convert", write_table(image_folder, "bbb"), tmp_path / "out", "--append")
    assert ran.code == 0 and "only one class" not in ran.err


def test_classes_with_almost_the_same_spelling(image_folder, tmp_path, cli):
    ran = cli("convert", write_table(image_folder, ["dog", "Dog", "cat", "a  b", "A b"]), tmp_path / "out")
    assert ran.code == 0
    told = "classes that differ only in upper and lower case, spaces or Unicode forms stay apart: 'A b' and 'a  b'; "
    assert told + "'Dog' and 'dog'; write them alike if they are the same" in ran.err
    ran = cli("convert", write_table(image_folder, ["DOG", "cat"]), tmp_path / "out", "--append")
    assert "'Dog' and 'dog' and 'DOG'" in ran.err


def test_classes_that_look_alike_are_one(image_folder, tmp_path, cli):
    composed, apart = "caf\u00e9", "cafe\u0301"
    ran = cli("convert", write_table(image_folder, [composed, "tea", apart]), tmp_path / "out")
    assert read_description(tmp_path / "out")["classes"] == [composed, "tea"]
    assert r"look alike, but differ in the Unicode form of their accents, in 1 class: 'cafe\u0301' is" in ran.err
    ran = cli("convert", write_table(image_folder, [apart, "tea"]), tmp_path / "out", "--append")
    assert read_description(tmp_path / "out")["classes"] == [composed, "tea"]
    assert r"its class 'cafe\u0301' is 'caf\xe9', as it looks alike in another Unicode form" in ran.err


def test_which_columns_were_used_is_reported(image_folder, tmp_path, cli):
    src = write_table(image_folder, "abab")
    src.write_text(src.read_text().replace(",", ";"))
    report = json.loads(cli("convert", src, tmp_path / "out", "--json").out)
    assert report["columns"] == [f"{src}: path from column 'path', label from 'label', columns separated by ';'"]


def nested(root, encode, above=""):
    for i, name in enumerate(("animals/a", "animals/b", "plants/c", "plants/d")):
        (root / above / name).mkdir(parents=True)
        for j in range(3):
            (root / above / name / f"{j}.jpg").write_bytes(encode(seed=3 * i + j))
    return root


@pytest.mark.parametrize(
    ("flags", "classes", "said"),
    [
        ({}, ["animals", "plants"], True),
        ({"classes": "top"}, ["animals", "plants"], False),
        ({"classes": "leaf"}, ["a", "b", "c", "d"], False),
    ],
)
def test_nested_folders(flags, classes, said, tmp_path, encode, console):
    config = Convert(src=nested(tmp_path / "nested", encode), dst=tmp_path / "out", workers="2", **flags)
    assert convert(config, console).classes == len(classes)
    assert read_description(config.dst)["classes"] == classes
    assert ("use --classes leaf to take the innermost folder as the class" in console.file.getvalue()) == said


def test_names_of_splits_are_recognised_and_reported(tmp_path, encode, console):
    nested(tmp_path / "split", encode, "Training")
    nested(tmp_path / "split", encode, "valid")
    report = convert(Convert(src=tmp_path / "split", dst=tmp_path / "out", workers="2", classes="top"), console)
    assert (report.splits, report.classes) == ({"train": 12, "val": 12}, 2)
    assert "folders are read as splits: Training/ as train, valid/ as val" in console.file.getvalue()
    nested(tmp_path / "split", encode, "train")
    with pytest.raises(DataError, match="Training/ and train/ are both names of the split train; keep one of them"):
        convert(Convert(src=tmp_path / "split", dst=tmp_path / "other"), console)


def test_classes_has_no_effect_on_other_sources(config, image_folder, tmp_path, console):
    convert(config, console)
    (tmp_path / "list.csv").write_text("path,label\nimages/red/000.jpg,x\n")
    for src in (config.dst, tmp_path / "list.csv", Path("sklearn:digits")):
        with pytest.raises(UsageError, match=f"^--classes leaf has no effect: {src} is neither a folder"):
            convert(Convert(src=src, dst=tmp_path / "second", classes="leaf"), console)
    merged = Convert(src=config.dst, dst=image_folder, more=(tmp_path / "m",), merge=True, classes="leaf", workers="2")
    assert convert(merged, console).images == 72
