"""Class folders and manifests as lists of entries."""

import csv
import io
import json
import os
import re
import tarfile
from datetime import date

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from rich.console import Console

from fastimg.config.commands import Convert
from fastimg.convert.pipeline import convert
from fastimg.convert.sources import resolve as sources
from fastimg.convert.sources.columns import AskedTarget, Columns
from fastimg.convert.sources.samples import Entries
from fastimg.convert.strays import strays
from fastimg.errors import UsageError
from fastimg.loaders import open_dataset
from fastimg.loaders.errors import DataError


def read_source(src, columns):
    return sources.read_source(src, columns, src.parent)


ROWS = [
    {"path": "b/1.jpg", "label": "dog", "split": "train", "photographer": "Ann"},
    {"path": "a/2.jpg", "label": "cat", "split": "train", "photographer": "Bo, Jr."},
    {"path": "a/1.jpg", "label": "cat", "split": "validation", "photographer": ""},
]


@pytest.fixture
def files(tmp_path, encode):
    """A folder with the files that ROWS name."""
    for i, row in enumerate(ROWS):
        file = tmp_path / row["path"]
        file.parent.mkdir(exist_ok=True)
        file.write_bytes(encode(seed=i))
    return tmp_path


def quoted(value):
    return f'"{value}"' if "," in value else value


def write_manifest(folder, kind, rows=ROWS):
    src = folder / f"set.{kind}"
    if kind == "jsonl":
        src.write_text("".join(json.dumps(row) + "\n" for row in rows))
    elif kind == "parquet":
        pq.write_table(pa.Table.from_pylist(rows), src)
    else:
        separator = "\t" if kind == "tsv" else ","
        lines = [list(rows[0]), *([quoted(str(value)) for value in row.values()] for row in rows)]
        src.write_text("".join(separator.join(line) + "\n" for line in lines))
    return src


def write_csv(folder, *lines):
    src = folder / "set.csv"
    src.write_text("\n".join(lines) + "\n")
    return src


@pytest.mark.parametrize("kind", ["csv", "tsv", "jsonl", "parquet"])
def test_every_kind_of_manifest_gives_the_same_entries(files, kind):
    source = read_source(write_manifest(files, kind), Columns())
    assert (source.kind, source.classes) == (kind, ("cat", "dog"))
    first = 1 if kind in ("jsonl", "parquet") else 2
    size = {row["path"]: (files / row["path"]).stat().st_size for row in ROWS}
    listed = {split: [entry[:5] for entry in entries] for split, entries in source.splits.items()}
    assert listed == {
        "train": [
            ("a/2.jpg", 0, size["a/2.jpg"], first + 1, {"photographer": "Bo, Jr."}),
            ("b/1.jpg", 1, size["b/1.jpg"], first, {"photographer": "Ann"}),
        ],
        "val": [("a/1.jpg", 0, size["a/1.jpg"], first + 2, {"photographer": ""})],
    }


def test_folder_without_splits(image_folder):
    (image_folder / "red" / "notes.txt").write_text("none")
    source = read_source(image_folder, Columns())
    assert (source.kind, source.classes, source.ignored.total) == ("folder", ("blue", "green", "red"), 1)
    assert list(source.splits) == ["train"] and len(source.splits["train"]) == 36
    assert source.splits["train"][0][:3] == ("blue/000.jpg", 0, (image_folder / "blue/000.jpg").stat().st_size)


def test_folder_with_splits(tmp_path, encode):
    for name in ("train/a", "train/b", "valid/a", "test/b"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "1.png").write_bytes(encode(kind="PNG"))
    source = read_source(tmp_path, Columns())
    assert {split: len(entries) for split, entries in source.splits.items()} == {"train": 2, "val": 1, "test": 1}


def test_a_broken_link_has_no_size(image_folder):
    (image_folder / "red" / "gone.jpg").symlink_to("nowhere.jpg")
    source = read_source(image_folder, Columns())
    entry = next(entry for entry in source.splits["train"] if entry.path == "red/gone.jpg")
    assert entry.size == -1 and source.problem(entry) == "no such file"


def test_a_pipe_is_not_opened(image_folder):
    os.mkfifo(image_folder / "red" / "pipe.jpg")
    source = read_source(image_folder, Columns())
    assert source.ignored.reasons == {"not a regular file": 1}
    assert all(entry.path != "red/pipe.jpg" for entry in source.splits["train"])


def test_integer_labels_are_sorted_as_integers(files):
    source = read_source(write_csv(files, "path,label", "a/1.jpg,10", "a/2.jpg,9", "b/1.jpg,-1"), Columns())
    assert source.classes == ("-1", "9", "10")
    assert [entry.label for entry in source.splits["train"]] == [2, 1, 0]


def test_integers_among_strings_are_strings(files):
    source = read_source(write_csv(files, "path,label", "a/1.jpg,10", "a/2.jpg,9", "b/1.jpg,x"), Columns())
    assert source.classes == ("10", "9", "x")


def test_floats_that_pandas_made_of_integers(files):
    src = write_manifest(files, "parquet", [{"path": "a/1.jpg", "label": 2.0}, {"path": "a/2.jpg", "label": 1.0}])
    assert read_source(src, Columns()).classes == ("1", "2")


def test_named_and_usual_columns(files):
    src = write_csv(files, "photo,Class,fold", "a/1.jpg,x,train", "a/2.jpg,x,test")
    source = read_source(src, Columns(path="photo", split="fold"))
    assert list(source.splits) == ["test", "train"] and source.splits["train"][0].extra is None


def test_absolute_paths_are_shown_relative_to_the_manifest(files):
    source = read_source(write_csv(files, "path,label", f"{files}/a/1.jpg,x", "./a/../a/2.jpg,x"), Columns())
    assert [entry.path for entry in source.splits["train"]] == ["a/1.jpg", "a/2.jpg"]


def test_byte_order_mark_and_blank_lines(files):
    src = files / "set.csv"
    src.write_text("path,label\n\na/1.jpg,x\n", encoding="utf-8-sig")
    assert [(entry.path, entry.row) for entry in read_source(src, Columns()).splits["train"]] == [("a/1.jpg", 3)]


def test_other_columns_become_json(files):
    row = {"path": "a/1.jpg", "label": "x", "day": date(2024, 5, 1), "weight": float("nan"), "box": [1, 2]}
    source = read_source(write_manifest(files, "parquet", [row]), Columns())
    assert source.splits["train"][0].extra == {"day": "2024-05-01", "weight": None, "box": [1, 2]}


def test_fingerprint_follows_paths_labels_sizes_and_columns(files):
    seen = set()
    for lines in (("a/1.jpg,x,1", "a/2.jpg,x,1"), ("a/1.jpg,x,1", "a/2.jpg,y,1"), ("a/1.jpg,x,1", "b/1.jpg,x,1")):
        seen.add(read_source(write_csv(files, "path,label,n", *lines), Columns()).fingerprint())
    seen.add(read_source(write_csv(files, "path,label,n", "a/1.jpg,x,2", "b/1.jpg,x,1"), Columns()).fingerprint())
    (files / "b/1.jpg").write_bytes(b"shorter")
    source = read_source(files / "set.csv", Columns())
    seen.add(source.fingerprint())
    assert len(seen) == 5 and source.fingerprint() in seen


@pytest.mark.parametrize(
    ("lines", "columns", "message"),
    [
        ([], Columns(), "the manifest is empty; give a header"),
        (["path,label"], Columns(), "no rows"),
        (["pth,label", "a,x"], Columns(), "no path column .*it has pth, label; did you mean pth.*--path-column"),
        (["path,kind", "a,x"], Columns(), "no label column .*it has path, kind; name it with --label-column"),
        (["path,label", "a,x"], Columns(label="lable"), "no column 'lable' .*it has path, label; did you mean label?"),
        (["path,label", "a,x"], Columns(split="fold"), "no column 'fold'"),
        (["path,label", "a,x"], Columns(label="path"), "three columns; path, path names one of them twice"),
        (["path,file,label", "a,b,x"], Columns(path="file"), "'path' beside --path-column file .*rename it"),
        (["path,label,label", "a,x,x"], Columns(), "two columns of the header have the same name"),
        (["path,label", "a/1.jpg,", "a/2.jpg, "], Columns(), "every label in column 'label' is empty; fill them in"),
        (["path,label", ",x"], Columns(), "row 2: '' in column 'path' is not a path"),
        (["path,label", "a/1.jpg,x,y"], Columns(), "row 2: 3 fields under a header of 2"),
        (
            ["path,label,split", "a/1.jpg,x,fold1"],
            Columns(),
            "row 2: 'fold1' is not a split; use one of train, training, val",
        ),
        (["path,label,split", "a/1.jpg,x,val"], Columns(), "no row of the training split .*it has val"),
        (
            ["path,label,split", "a/1.jpg,x,train", "a/2.jpg,y,val"],
            Columns(),
            "row 3: the training split has no class 'y', which val has",
        ),
        (["path,label", '"a/1.jpg,x'], Columns(), "cannot be read .*unexpected end of data"),
    ],
)
def test_invalid_manifests(files, lines, columns, message):
    src = files / "set.csv"
    src.write_text("".join(line + "\n" for line in lines))
    with pytest.raises((DataError, UsageError), match=f"{re.escape(str(src))}: .*{message}"):
        read_source(src, columns)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("set.jsonl", b'{"path": "a", "label": "x"}\n{"path"\n', "row 2: not valid JSON"),
        (
            "set.jsonl",
            b'{"path": "\\ud800.jpg", "label": "x"}\n',
            r"row 1: '.ud800.jpg' in column 'path' is not a path",
        ),
        ("set.jsonl", b"[1]\n", "row 1: not a JSON object"),
        ("set.jsonl", b'{"path": "a", "label": null}\n{"path": "b"}\n', "every label in column 'label' is empty"),
        (
            "set.jsonl",
            b'{"path": "a", "label": 0.5}\n',
            "row 1: the label 0.5 .*is not a whole number; name the column of classes .*--labels-are-classes",
        ),
        ("set.parquet", b"not parquet", "cannot be read"),
        ("set.csv", b"path,label\n\xff\xfe,x\n", "cannot be read .*utf-8"),
        ("set.xlsx", b"", "neither a folder, nor a manifest that ends in .csv, .tsv, .jsonl, .parquet"),
    ],
)
def test_unreadable_manifests(tmp_path, name, content, message):
    src = tmp_path / name
    src.write_bytes(content)
    with pytest.raises(DataError, match=f"{re.escape(str(src))}: .*{message}"):
        read_source(src, Columns())


def test_bytes_in_a_column(files):
    src = write_manifest(files, "parquet", [{"path": "a/1.jpg", "label": "x", "thumbnail": b"\0"}])
    with pytest.raises(DataError, match="row 1: the column 'thumbnail' holds bytes"):
        read_source(src, Columns())


def test_a_missing_source(tmp_path):
    with pytest.raises(DataError, match="no such file or folder"):
        read_source(tmp_path / "nowhere", Columns())


def test_a_folder_has_no_columns(image_folder):
    with pytest.raises(UsageError, match=r"--label-column: .* is a folder and has no columns"):
        read_source(image_folder, Columns(label="label"))


def test_half_a_surrogate_pair_in_a_label_and_a_column(files):
    (files / "set.jsonl").write_text('{"path": "a/1.jpg", "label": "\\ud800", "text": "\\udfff"}\n')
    source = read_source(files / "set.jsonl", Columns())
    (entry,) = source.splits["train"]
    assert source.classes == ("\ud800",) and json.loads(source.read(entry).note)["text"] == "\udfff"
    assert source.fingerprint() == read_source(files / "set.jsonl", Columns()).fingerprint()
    assert Entries([entry._replace(path="\udfff \udc80")])[0].path == "\udfff \udc80"


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
        ["1.0", "2.0", "1.0"],  # integers as floats, as pandas writes them
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


def test_windows_paths_and_surrounding_blanks(files):
    src = write_csv(files, "path,label", "a\\1.jpg,x", " a/2.jpg ,y", ".\\b\\1.jpg,y", "b\\9.jpg,y")
    source = read_source(src, Columns())
    assert [entry.path for entry in source.splits["train"]] == ["a/1.jpg", "a/2.jpg", "b/1.jpg", "b\\9.jpg"]
    assert [entry.size > 0 for entry in source.splits["train"]] == [True, True, True, False]
    (said,) = source.remarks
    assert said == (
        f"{src}: 3 paths lead to files without the blanks around them, or with / for each \\ (row 2: 'a\\\\1.jpg' is "
        "'a/1.jpg')"
    )
    (files / "a\\1.jpg").write_bytes(b"itself")  # a file whose name contains the backslash
    assert read_source(src, Columns()).splits["train"][1].path == "a\\1.jpg"


def test_paths_none_of_which_exists(files, monkeypatch):
    (files / "lists").mkdir()
    src = write_csv(files / "lists", "path,label", "a/1.jpg,x", "a/2.jpg,y")
    message = (
        r"none of its 2 paths leads to a file, such as 'a/1.jpg'; paths are absolute or relative to the manifest's f"
    )
    with pytest.raises(DataError, match=message):
        read_source(src, Columns())
    monkeypatch.chdir(files)
    with pytest.raises(DataError, match="they exist relative to the current directory, so move the manifest there"):
        read_source(src, Columns())


def test_files_in_several_rows(files):
    src = write_csv(files, "path,label", "a/1.jpg,x", "a/2.jpg,y", "b/1.jpg,y", "./a/1.jpg,x", "a/2.jpg,x")
    (said,) = read_source(src, Columns()).remarks
    assert said == (
        f"{src}: 2 files are in several rows, 1 of them with different labels; 'a/2.jpg' is in rows 3 (y), 6 (x)"
    )
    rows = ("a/1.jpg,y", "a/2.jpg,x", "b/1.jpg,x", "./a/1.jpg,y")  # classes are numbered by name, not by row
    src = write_csv(files, "path,label", *rows)
    for columns in (Columns(), Columns(targets=(AskedTarget("label", "class"),))):
        assert (
            read_source(src, columns)
            .remarks[-1]
            .endswith("0 of them with different labels; 'a/1.jpg' is in rows 2 (y), 5 (y)")
        )


def write_tar(file, image, ext="jpg"):
    with tarfile.open(file, "w", format=tarfile.USTAR_FORMAT) as archive:
        for name, content in ((f"0.{ext}", image), ("0.cls", b"0")):
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))


def write_parquet(file, image):
    file.parent.mkdir(exist_ok=True)
    kind = pa.struct({"bytes": pa.binary(), "path": pa.string()})
    pq.write_table(pa.table({"image": pa.array([{"bytes": image, "path": None}], kind), "label": ["x"]}), file)


STRAYS = ("loose.jpg", "more/raw.dng", "README.md", "more/.hidden")


@pytest.fixture
def shard_folder(tmp_path, image_folder, encode):
    """`shard_folder(kind)`: a folder of shards of that kind, and STRAYS."""

    def make(kind):
        folder = tmp_path / "shards"
        if kind in ("dataset", "betons"):
            made = "beton" if kind == "betons" else "tar"
            convert(Convert(src=image_folder, dst=folder, format=made, workers="2"), Console(quiet=True))
            (folder / ".fastimg").mkdir()
            (folder / ".fastimg/kept.tar").touch()
        if kind == "betons":
            (folder / "dataset.json").unlink()
        if kind == "tars":
            folder.mkdir()
            write_tar(folder / "train-0.tar", encode())
            (folder / "train-0.idx").touch()
        if kind == "parquet":
            folder.mkdir()
            write_parquet(folder / "data/train-00000-of-00001.parquet", encode())
        for name in STRAYS:
            (folder / name).parent.mkdir(exist_ok=True)
            (folder / name).write_bytes(b"x")
        return folder

    return make


@pytest.mark.parametrize("kind", ["dataset", "tars", "betons", "parquet"])
def test_files_next_to_shards_are_counted(kind, shard_folder):
    folder = shard_folder(kind)
    suffix = {"betons": ".beton", "parquet": ".parquet"}.get(kind, ".tar")
    (folder / f"more/x{suffix}").touch()
    source = read_source(folder, Columns())
    what = "parquet files" if kind == "parquet" else "shards"
    assert source.ignored.reasons == {
        f"outside the {what}": 2,
        f"a {suffix} file in an unexpected place": 1,
        f"not among the {what}": 1,
        "hidden by a leading dot": 1,
    }
    assert {path for path, _ in source.ignored.first()} == {*STRAYS, f"more/x{suffix}"}
    source.close()


def test_a_relative_folder_of_shards_has_no_strays(shard_folder, monkeypatch):
    folder = shard_folder("tars")
    monkeypatch.chdir(folder)
    assert strays(type(folder)(), folder.parent.glob("none")).total == 5  # its tar too
    source = sources.read_source(type(folder)(), Columns(), folder.parent)
    assert {path for path, _ in source.ignored.first()} == set(STRAYS)


def test_unlisted_files_are_not_counted_and_that_is_reported(files, tmp_path):
    (files / "other.jpg").touch()
    source = read_source(write_csv(files, "path,label", "a/1.jpg,x"), Columns())
    assert source.ignored.total == 0
    assert source.uncounted == ("set.csv names the files to read; other files beside them are not counted",)


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["val-0.tar", "valid-0.tar", "train-0.tar"], "val and valid are both names of the split val; rename one"),
        (["train.beton", "dev.beton", "Validation.beton"], "Validation and dev are both names of the split val"),
        (["val/x.parquet", "dev/x.parquet"], "dev/ and val/ are both names of the split val; keep one of them"),
    ],
)
def test_two_names_for_one_split_are_refused(names, message, tmp_path, encode):
    for name in names:
        (tmp_path / "d" / name).parent.mkdir(parents=True, exist_ok=True)
        if name.endswith("parquet"):
            write_parquet(tmp_path / "d" / name, encode())
        else:
            (tmp_path / "d" / name).touch()
    with pytest.raises(DataError, match=f"^{re.escape(str(tmp_path / 'd'))}: {message}"):
        read_source(tmp_path / "d", Columns())


@pytest.mark.parametrize("name", ["dev", "Testing", "eval", "TRAINING"])
def test_names_of_splits_in_manifests(name, files):
    rows = ["a/1.jpg,x,train", f"a/2.jpg,x,{name}"]
    splits = read_source(write_csv(files, "path,label,split", *rows), Columns()).splits
    assert set(splits) == {
        "train",
        {"d": "val", "t": "train" if "RAIN" in name else "test", "e": "test"}[name[0].lower()],
    }


def test_a_sample_of_a_format_without_its_plugin_names_the_remedy(tmp_path, heic, heif_plugin):
    write_tar(tmp_path / "train-0.tar", heic(), "heic")
    with pytest.raises(DataError, match=r"a sample without an image that can be decoded \(heic, cls\): HEIC, readable"):
        open_dataset(tmp_path)
    source = read_source(tmp_path, Columns())
    (entry,) = source.splits["train"]
    assert "without an image that can be decoded: HEIC, readable after `pip install" in source.problem(entry)
    heif_plugin(installed=True)
    assert len(open_dataset(tmp_path)) == 1
