"""Tables in which each class has a column of 0 and 1."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fastimg.convert.sources.columns import Columns
from fastimg.loaders.containers.targets import Target
from fastimg.loaders.errors import DataError

from .manifests import read_source, write_csv, write_manifest


def rows_of(*cells, **more):
    paths = ("b/1.jpg", "a/2.jpg", "a/1.jpg")
    return [{"path": path, **row, **more} for path, row in zip(paths, cells, strict=True)]


@pytest.mark.parametrize("kind", ["csv", "tsv", "jsonl", "parquet"])
@pytest.mark.parametrize(("no", "yes"), [(0, 1), (0.0, 1.0), (False, True)])
def test_one_1_in_every_row_is_the_class(files, kind, no, yes):
    rows = rows_of({"cat": no, "dog": yes}, {"cat": yes, "dog": no}, {"cat": yes, "dog": no}, weight=3)
    src = write_manifest(files, kind, rows)
    source = read_source(src, Columns())
    assert source.classes == ("cat", "dog") and not source.targets
    labels = {entry.path: (source.classes[entry.label], entry.extra) for entry in source.splits["train"]}
    weight = "3" if kind in ("csv", "tsv") else 3
    assert labels == {
        "a/1.jpg": ("cat", {"weight": weight}),
        "a/2.jpg": ("cat", {"weight": weight}),
        "b/1.jpg": ("dog", {"weight": weight}),
    }
    said = f"{src}: no column of labels, but 2 columns of 0 and 1 (cat, dog), with one 1 in every row: they are the cl"
    assert source.remarks[0].startswith(said)
    source.close()


def test_several_1_in_a_row_are_several_labels(files):
    src = write_csv(files, "path,x,y,z,split", "b/1.jpg,1,1,0,train", "a/2.jpg,0,0,0,train", "a/1.jpg,0,1,0,val")
    source = read_source(src, Columns())
    assert source.targets == (Target(name="labels", kind="multilabel", classes=("x", "y")),)
    found = [(entry.path, entry.label, entry.extra["labels"]) for split in source.splits.values() for entry in split]
    assert found == [("a/2.jpg", -1, []), ("b/1.jpg", -1, ["x", "y"]), ("a/1.jpg", -1, ["y"])]
    assert source.remarks[0].endswith(
        "3 columns of 0 and 1 (x, y, z), with several 1 in 1 of 3 rows and none in 1: they are the target 'labels', of "
        "several labels; name other columns with --target or --label-column"
    )


@pytest.mark.parametrize("cell", ["", "2", "x"])
def test_a_few_cells_that_are_neither_are_refused(files, cell):
    rows = [f"b/1.jpg,{number % 2},{(number + 1) % 2},{number + 5}" for number in range(12)]
    src = write_csv(files, "path,cat,dog,width", *rows, f"a/2.jpg,{cell},1,7")
    with pytest.raises(DataError, match=f"row 14: 'cat' is '{cell}', where other rows have 0 or 1"):
        read_source(src, Columns())


@pytest.mark.parametrize(
    "lines",
    [
        ["path,cat,dog", "b/1.jpg,1,0", "a/2.jpg,,1"],  # not known
        ["path,cat,dog", "b/1.jpg,1,0", "a/2.jpg,-1,1"],
        ["path,cat,width", "b/1.jpg,1,40", "a/2.jpg,0,1"],
        ["path,cat,dog", "b/1.jpg,0,0", "a/2.jpg,0,0"],
    ],
)
def test_what_is_not_one_hot_has_no_labels(files, lines):
    with pytest.raises(DataError, match="no label column"):
        read_source(write_csv(files, *lines), Columns())


def test_a_column_of_labels_counts(files):
    src = write_csv(files, "path,label,cat,dog", "b/1.jpg,x,1,0", "a/2.jpg,y,0,1")
    assert read_source(src, Columns()).classes == ("x", "y")
    assert read_source(src, Columns(label="cat")).classes == ("0", "1")


def test_texts(tmp_path):
    rows = [{"comment": "so", "toxic": 1, "rude": 1}, {"comment": "well", "toxic": 0, "rude": 0}]
    for src in (write_csv(tmp_path, "comment,toxic,rude", "so,1,1", "well,0,0"), tmp_path / "t.parquet"):
        if src.suffix == ".parquet":
            pq.write_table(pa.Table.from_pylist(rows), src)
        source = read_source(src, Columns(text="comment"))
        assert [entry.row for entry in source.splits["train"]] in ([2, 3], [1, 2])
        assert source.targets == (Target(name="labels", kind="multilabel", classes=("rude", "toxic")),)
        source.close()
