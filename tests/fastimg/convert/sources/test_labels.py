"""Labels of manifests: which look like classes, which do not, and how they are normalised."""

import csv
from decimal import Decimal
from pathlib import Path

import pytest

from fastimg.convert.sources.columns import AskedTarget, Columns
from fastimg.convert.sources.combined import Side, onto
from fastimg.convert.sources.labels import class_remarks
from fastimg.convert.sources.samples import Source
from fastimg.loaders.containers.targets import Target
from fastimg.loaders.errors import DataError

from .manifests import read_source, write_csv, write_manifest


def labelled(folder, labels, kind="csv", column="label"):
    """A manifest with one row per label, all for the same image."""
    rows = [{"path": "a/1.jpg", column: label} for label in labels]
    if kind != "csv":
        return write_manifest(folder, kind, rows)
    src = folder / "set.csv"
    with src.open("w", newline="") as file:
        writer = csv.DictWriter(file, ("path", column))
        writer.writeheader()
        writer.writerows(rows)
    return src


REMEDY = (
    "; name the column of classes with --label-column, or make each different label a class with --labels-are-classes"
)


@pytest.mark.parametrize(
    ("labels", "reason"),
    [
        (
            range(100),
            "look like identifiers, not like classes: 100 of 100 rows have a label that no other row has, such",
        ),
        ([f"{i}.jpg" for i in range(11)] + ["x"] * 9, "look like identifiers, not like classes: 11 of 20 rows have"),
        (["0.5", "1.0", "2", "1"], "look like numbers with fractions, such as '0.5', not like classes"),
        (["1e-3", "2", "2", "3"] * 3 + ["NA"], "look like numbers with fractions, such as '1e-3'"),
        (["0,5", "0,75"], "look like numbers with fractions, such as '0,5', '0,75'"),
        (["daisy|roses", "tulips", "daisy"], "look like lists in 1 of 3 rows, such as 'daisy|roses': a sample has one"),
        (["a", "b"] * 50 + ["a|b"], "look like lists in 1 of 101 rows, such as 'a|b'"),
        (["a;b", "c"], "look like lists in 1 of 2 rows, such as 'a;b'"),
        (["a,b", "c,d"], "look like lists in 2 of 2 rows, such as 'a,b', 'c,d'"),
        (["a, b", "b, c", "a, c", "a"], "look like lists in 3 of 4 rows, such as 'a, b', 'a, c', 'b, c'"),
        (['["a", "b"]', "['a']", "[1 0]", "[]"], "look like lists in 4 of 4 rows"),
        (['{"a": 1}', "b"], "look like lists in 1 of 2 rows"),
        (["7 1 2", "0"], "look like lists in 1 of 2 rows, such as '7 1 2'"),
    ],
)
def test_labels_that_do_not_look_like_classes(files, labels, reason):
    src = labelled(files, labels)
    with pytest.raises(DataError) as refused:
        read_source(src, Columns())
    assert str(refused.value).startswith(f"{src}: the labels in column 'label' {reason}")
    assert str(refused.value).endswith(REMEDY)
    source = read_source(src, Columns(labels_are_classes=True))
    assert len(source.splits["train"]) == len(labels) and len(source.classes) == len(set(labels))
    each = f"--labels-are-classes makes a class of each of {len(set(labels))} different ones"
    assert reason in source.remarks[0] and source.remarks[0].endswith(each)


@pytest.mark.parametrize(
    "labels",
    [
        ["x", "y", "z"],  # a first test with three images
        range(19),
        [i // 2 for i in range(100)],  # fine-grained: two images of each class
        [*range(10), *range(10, 20), *range(10, 20)],  # half of the classes have one image
        [f"{i % 10}" for i in range(100)],
        ["1.0", "2.0", "beta"],  # versions
        ["tench, Tinca tinca", "goldfish, Carassius auratus", "Paris, France", "Nice, France"],
        ["golden retriever", "golden eagle", "bald eagle"],
        ["v1.2", "v1.3", "3.5mm jack"],
        ["[unknown]", "(none)", "C++ / C#"],
        ["2024-05-01", "2024-05-02"],
    ],
)
def test_labels_that_may_be_classes(files, labels):
    source = read_source(labelled(files, labels), Columns())
    assert len(source.classes) == len(set(labels)) and all("labels" not in remark for remark in source.remarks[:-1])
    remarks = read_source(labelled(files, labels), Columns(labels_are_classes=True)).remarks
    assert "the labels in column 'label' look like classes: --labels-are-classes changes nothing" in remarks[0]


def test_lists_of_labels_between_spaces(files):
    labels = ["scab frog_eye", "scab", "frog_eye", "healthy"] * 5
    with pytest.raises(DataError) as refused:
        read_source(labelled(files, labels, column="class"), Columns())
    several = "; learn several labels with --target class:multilabel --label-delimiter ' ', "
    fault = "look like lists in 5 of 20 rows, such as 'scab frog_eye': a sample has one class"
    assert str(refused.value).endswith(fault + REMEDY.replace("; ", several))
    assert len(read_source(labelled(files, labels), Columns(labels_are_classes=True)).classes) == 4


@pytest.mark.parametrize("kind", ["tsv", "jsonl", "parquet"])
def test_labels_of_every_kind_of_manifest_are_judged(files, kind):
    with pytest.raises(DataError, match=r"the labels in column 'label' look like lists .*'x\|y'.*--labels-are-classes"):
        read_source(labelled(files, ["x|y", "x", "y"], kind), Columns())
    with pytest.raises(DataError, match=r"the labels in column 'label' look like identifiers.*--labels-are-classes"):
        read_source(labelled(files, range(20), kind), Columns())


@pytest.mark.parametrize(
    ("label", "reason", "name"),
    [(0.5, "is not a whole number", "0.5"), (["a", "b"], "is a list, not one class", '["a", "b"]')],
)
@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_labels_that_are_not_strings(files, kind, label, reason, name):
    src = labelled(files, [label], kind)
    with pytest.raises(DataError) as refused:
        read_source(src, Columns())
    assert str(refused.value) == f"{src}: row 1: the label {label} in column 'label' {reason}{REMEDY}"
    assert read_source(src, Columns(labels_are_classes=True)).classes == (name,)


def test_labels_known_as_classes_are_not_judged(files):
    src = labelled(files, range(30))
    known = frozenset(map(str, range(20)))
    assert len(read_source(src, Columns(known_classes=known)).classes) == 30
    with pytest.raises(DataError, match="20 of 30 rows have a label that no other row has"):
        read_source(src, Columns(known_classes=frozenset(map(str, range(10)))))


def test_labels_are_judged_before_their_splits(files):
    src = write_csv(files, "path,label,split", "a/1.jpg,0.5,train", "a/2.jpg,0.7,val")
    with pytest.raises(DataError, match="look like numbers with fractions"):
        read_source(src, Columns())


def test_normalised_labels(files):
    source = read_source(labelled(files, [" x", "y ", "x", "y"]), Columns())
    assert source.classes == ("x", "y")
    assert "the labels in column 'label' lose the blanks around them in 2 rows, as in ' x'" in source.remarks[0]
    source = read_source(labelled(files, ["007", "7", "10"]), Columns())
    assert source.classes == ("7", "10")
    assert source.remarks[0].endswith("are all integers and named as such: '007' is class 7")


@pytest.mark.parametrize(
    "labels", [["1.0", "2.0", "10.0", "1"], ["1", "10.", "2.00", "1.0"], ["+1.0", "01", "2", "10"]]
)
@pytest.mark.parametrize("kind", ["csv", "jsonl", "parquet"])
def test_whole_floats_are_integers(files, labels, kind):
    source = read_source(labelled(files, labels, kind), Columns())
    assert source.classes == ("1", "2", "10")
    (remark,) = [remark for remark in source.remarks if "named as such" in remark]
    first = sorted(label for label in labels if label not in ("1", "2", "10"))[0]
    assert remark.endswith(f"are all integers and named as such: {first!r} is class 1" + "0" * first.startswith("10"))
    targets = read_source(labelled(files, labels, kind), Columns(targets=(AskedTarget("label", "class"),))).targets
    assert targets[0].classes == ("1", "2", "10")


def test_floats_and_decimals_of_parquet(files):
    for values in ([1.0, 2.0, 10.0], [Decimal("1.00"), Decimal(2), Decimal(10)], ["1.0", "2", "10"]):
        assert read_source(labelled(files, values, "parquet"), Columns()).classes == ("1", "2", "10")


class CountedName(str):
    """A name that counts how often names are looked up."""

    hashed = 0

    def __hash__(self):
        CountedName.hashed += 1
        return super().__hash__()


def test_classes_are_joined_without_comparing_each_with_each():
    known = tuple(CountedName(f"{number:03}") for number in range(0, 1000, 2))
    classes = tuple(CountedName(f"{number:03}") for number in range(500))
    kinds = ("class", "multilabel")
    source = Source(Path("S"), "folder", classes, {}, (), targets=targets_of(kinds, classes))
    matched = onto(source, Side(known, True, targets_of(kinds, known)))
    expected = (*known, *(name for name in classes if int(name) % 2))
    assert [matched.classes, *(target.classes for target in matched.targets)] == [expected] * 3
    assert CountedName.hashed < 20 * len(expected)


def targets_of(kinds, classes):
    return tuple(Target(name=kind, kind=kind, classes=classes) for kind in kinds)


@pytest.mark.parametrize(
    ("labels", "doubtful"),
    [
        (["0.0", "1.0", "nan", "1.0"], "'nan'"),
        (["0", "1", "-1", "1"], "'-1'"),
        (["cat", "dog", "nan"], None),
        (["-2", "-1", "0"], None),
        (["0", "1", "x"], None),
    ],
)
def test_a_class_that_may_stand_for_a_missing_label_is_named(files, labels, doubtful):
    remarks = class_remarks(read_source(labelled(files, labels), Columns()))
    assert [f"{doubtful} is a class, beside 2 classes that are numbers" in remark for remark in remarks] == (
        [True] if doubtful else []
    )


def test_a_table_in_the_folder_of_another_split_is_named(files):
    (files / "test/a").mkdir(parents=True)
    (files / "a/1.jpg").rename(files / "test/a/1.jpg")
    source = read_source(labelled(files / "test", ["cat", "dog"]), Columns())
    assert any("its rows are training samples, although it is in test/" in remark for remark in source.remarks)
