"""Manifests whose delimiter or header has to be found."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fastimg.convert.sources.columns import Columns
from fastimg.errors import UsageError
from fastimg.loaders.errors import DataError

from .manifests import read_source, write_csv, write_manifest


@pytest.mark.parametrize(
    ("name", "lines", "delimiter"),
    [
        ("set.csv", ["path;label", "a/1.jpg;x", "a/2.jpg;y, or z"], "';'"),
        ("set.csv", ["path\tlabel\tn", "a/1.jpg\tx\t1,5", "a/2.jpg\ty, or z\t2,5"], "tabs"),
        ("set.csv", ["path|label", "a/1.jpg|x", "a/2.jpg|y, or z"], "'|'"),
        ("set.tsv", ["path,label", "a/1.jpg,x", 'a/2.jpg,"y, or z"'], "','"),
        ("set.csv", ["path;label;n,m", "a/1.jpg;x;1,5", "a/2.jpg;y, or z;2"], "';'"),  # commas too, unevenly
        ("set.csv", ["path;label;n,m", "a/1.jpg;x;1,5", 'a/2.jpg;"y, or z";2'], "';'"),
        ("set.csv", ["a/1.jpg;x", "a/2.jpg;y, or z"], "';'"),  # no header
        ("set.csv", ["photo;kind", "a/1.jpg;x", 'a/2.jpg;"y, or z"'], "';'"),  # unknown names
        ("set.csv", ["path,label", "a/1.jpg,x", 'a/2.jpg,"y, or z"'], ""),
        ("set.csv", ["path,label;n", "a/1.jpg,x", 'a/2.jpg,"y, or z"'], ""),
        ("set.tsv", ["path\tlabel", "a/1.jpg\tx", "a/2.jpg\ty, or z"], ""),
    ],
)
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_the_delimiter_is_detected(files, name, lines, delimiter, end):
    src = files / name
    src.write_bytes(end.join(["\ufeff" + lines[0], *lines[1:], ""]).encode())
    named = {"path": "photo", "label": "kind"} if "photo" in lines[0] else {}
    label = {"label": "label;n"} if "label;n" in lines[0] and "path," in lines[0] else {}
    source = read_source(src, Columns(**named, **label))
    assert source.classes == ("x", "y, or z") and len(source.splits["train"]) == 2
    (told,) = source.columns
    assert told.partition(", columns separated by ")[2] == delimiter


def test_quotes_around_a_delimiter_survive(files):
    src = write_csv(files, "path;label;by", 'a/1.jpg;"x;""1""";"A', 'B"', "a/2.jpg;y;C")
    source = read_source(src, Columns(labels_are_classes=True))
    assert source.classes == ('x;"1"', "y") and source.splits["train"][0].extra == {"by": "A\nB"}


@pytest.mark.parametrize("first", ["sep=;\r\n", '"sep=;"\n', "\ufeffSEP=;\n"])
@pytest.mark.parametrize("header", ["path;label\n", ""])
def test_excels_first_line_names_the_delimiter_and_is_not_a_row(files, first, header):
    src = files / "set.csv"
    src.write_bytes((first + header + "a/1.jpg;cat, or so\nb/1.jpg;dog\n").encode())
    source = read_source(src, Columns(no_header=not header))
    assert source.classes == ("cat, or so", "dog")
    assert [(entry.path, entry.row) for entry in source.splits["train"]] == [
        ("a/1.jpg", 2 if header else 1),
        ("b/1.jpg", 3 if header else 2),
    ]


def test_an_explicit_delimiter(files):
    src = write_csv(files, "path:label", "a/1.jpg:x", "a/2.jpg:y")
    source = read_source(src, Columns(delimiter=":"))
    assert source.classes == ("x", "y") and source.columns[0].endswith("columns separated by ':'")
    with pytest.raises(DataError, match=r"no path column .*it has path:label"):
        read_source(src, Columns())


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["a|b;c", "1|2;3"], "its columns may be separated by ';' or '|'; choose one with --delimiter"),
        (["path;label", "a/1.jpg;x", "a/2.jpg;y;z"], "row 3: 3 fields under a header of 2"),
        (["path,label", "a/1.jpg;x", "a/2.jpg;y"], "row 2: 1 field under a header of 2"),
        (["photo,kind", "a/1.jpg,x;y", "a/2.jpg,x,z;y"], "row 3: 3 fields where the first row has 2; .*--delimiter"),
        (
            ["so; good, yes,x", "bad; no,y"],
            "row 2: 2 fields where the first row has 3; .*--delimiter",
        ),  # too few rows to decide
    ],
)
def test_columns_without_a_consistent_delimiter(files, lines, message):
    with pytest.raises((DataError, UsageError), match=message):
        read_source(write_csv(files, *lines), Columns())


def test_a_delimiter_for_a_source_without_one(files):
    with pytest.raises(UsageError, match="--delimiter: no character separates the columns of"):
        read_source(write_manifest(files, "jsonl"), Columns(delimiter=";"))
    with pytest.raises(UsageError, match=r"--delimiter: .* is a folder and has no columns"):
        read_source(files, Columns(delimiter=";"))
    (files / "parquets").mkdir()
    table = pa.table({"image": [(files / "a/1.jpg").read_bytes()], "label": ["x"]})
    pq.write_table(table, files / "parquets" / "train.parquet")
    for columns in (Columns(delimiter=";"), Columns(no_header=True)):
        with pytest.raises(UsageError, match=r"the columns of .*parquets.*; leave it out"):
            read_source(files / "parquets", columns)


@pytest.mark.parametrize(
    ("lines", "columns", "chosen"),
    [
        (["a/1.jpg,x", "a/2.jpg,image"], Columns(), "1, as label: 2"),
        (["image,a/1.jpg", "x,a/2.jpg"], Columns(), "2, as label: 1"),  # a class with the name of a column
        (["gone.jpg,x", "a/1.jpg,image"], Columns(), "1, as label: 2"),
        (["a/1.jpg,x", "a/2.jpg,image"], Columns(no_header=True), "1, as label: 2"),
        (["a/1.jpg,x,1", "a/2.jpg,image,2"], Columns(label="2"), "1, as label: 2"),
        (["1,a/1.jpg,x", "2,a/2.jpg,image"], Columns(path="2", label="3"), None),
    ],
)
def test_images_without_a_header(files, lines, columns, chosen):
    src = write_csv(files, *lines)
    source = read_source(src, columns)
    assert source.classes == ("image", "x") and len(source.splits["train"]) == 2
    assert sorted(entry.row for entry in source.splits["train"]) == [1, 2]
    found = "--no-header" if columns.no_header else f"its first line is a row: {lines[0].replace(',', ', ')!r}"
    width = len(lines[0].split(","))
    numbered = f"{src}: no header ({found}): columns are numbered 1 to {width}"
    taken = f"; taken as path: {chosen}; if that is wrong, give --path-column N --label-column M --no-header"
    assert source.remarks == (numbered + (taken if chosen else ""),)


@pytest.mark.parametrize(
    ("lines", "columns", "message"),
    [
        (
            ["a/1.jpg,x,1"],
            Columns(),
            "numbered 1 to 3, and column 1 holds the paths; name the column of labels with --label-c",
        ),
        (["a/1.jpg,x"], Columns(label="3"), "no column '3' .*it has 1, 2"),
        (["x.jpg,kind", "a/1.jpg,x"], Columns(path="x.jpg"), "no label column .*it has x.jpg, kind"),
    ],
)
def test_images_without_a_header_whose_columns_are_unclear(files, lines, columns, message):
    with pytest.raises((DataError, UsageError), match=message):
        read_source(write_csv(files, *lines), columns)
