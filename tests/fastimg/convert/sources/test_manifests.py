"""Manifests of images: the entries of every kind, their columns, and what is refused."""

import json
import re
from datetime import date

import pytest

from fastimg.convert.sources.columns import AskedField, AskedTarget, Columns
from fastimg.convert.sources.samples import Entries
from fastimg.errors import UsageError
from fastimg.loaders.errors import DataError

from . import parquets
from .manifests import ROWS, read_source, write_csv, write_manifest


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


def test_class_names_in_the_schema_of_a_parquet(files):
    def write(*labels, splits=("train", "train", "train")):
        columns = {"path": ["b/1.jpg", "a/2.jpg", "a/1.jpg"], "label": list(labels), "split": list(splits)}
        return parquets.write(files / "set.parquet", columns, metadata=parquets.features(label=["owl", "cat", "dog"]))

    source = read_source(write(2, 0, -1), Columns())
    assert source.classes == ("owl", "dog") and not source.from_table
    listed = {entry.path: entry for entry in source.splits["train"]}
    assert {path: entry.label for path, entry in listed.items()} == {"b/1.jpg": 1, "a/2.jpg": 0, "a/1.jpg": -1}
    assert source.problem(listed["a/1.jpg"]) == "the label is empty"
    source = read_source(write(2, 0, -1, splits=("train", "train", "test")), Columns())
    assert list(source.splits) == ["train"]
    assert "the split test is left out: its 1 row has no label" in source.remarks[-1]
    source = read_source(write(2, 0, -1), Columns(targets=(AskedTarget("label"),)))
    assert source.classes == ("owl", "dog") and source.targets[0].classes == ("owl", "dog")
    with pytest.raises(DataError, match=r"row 1: the label 3 in column 'label' is not one of the 3 classes"):
        read_source(write(3, 0, 1), Columns())
    with pytest.raises(DataError, match=r"every label in column 'label' is empty"):
        read_source(write(-1, -1, -1), Columns())


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


def test_half_a_surrogate_pair_in_a_label_and_a_column(files):
    (files / "set.jsonl").write_text('{"path": "a/1.jpg", "label": "\\ud800", "text": "\\udfff"}\n')
    source = read_source(files / "set.jsonl", Columns())
    (entry,) = source.splits["train"]
    assert source.classes == ("\ud800",) and json.loads(source.read(entry).note)["text"] == "\udfff"
    assert source.fingerprint() == read_source(files / "set.jsonl", Columns()).fingerprint()
    assert Entries([entry._replace(path="\udfff \udc80")])[0].path == "\udfff \udc80"


def test_windows_paths_and_surrounding_blanks(files):
    src = write_csv(files, "path,label", "a\\1.jpg,x", " a/2.jpg ,y", ".\\b\\1.jpg,y", "b\\9.jpg,y")
    source = read_source(src, Columns())
    assert [entry.path for entry in source.splits["train"]] == ["a/1.jpg", "a/2.jpg", "b/1.jpg", "b\\9.jpg"]
    assert [entry.size > 0 for entry in source.splits["train"]] == [True, True, True, False]
    (said,) = source.remarks
    assert said == (
        f"{src}: 3 paths lead to files without the blanks around them, with / for each \\, or in another Unicode form "
        "(row 2: 'a\\\\1.jpg' is 'a/1.jpg')"
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


def test_columns_that_the_first_row_of_a_jsonl_lacks(files):
    """A key that only some rows have is a column; the others have an empty cell there."""

    def read(*rows, **columns):
        return read_source(write_manifest(files, "jsonl", list(rows)), Columns(**columns))

    first, second = {"path": "a/1.jpg", "label": "x"}, {"path": "a/2.jpg", "label": "x"}
    with pytest.raises(DataError, match=r"set.jsonl: row 1: has no split; use one of train, training, val"):
        read(first, second | {"split": "val"})
    with pytest.raises(DataError, match=r"set.jsonl: row 1: has no split"):
        read(first, second | {"fold": "val"}, split="fold")
    source = read({"path": "a/1.jpg"}, second)
    assert [source.problem(entry) for entry in source.splits["train"]] == ["the label is empty", None]
    source = read(first, second | {"age": 3}, targets=(AskedTarget("age", "number"),))
    assert [json.loads(source.read(entry).note).get("age") for entry in source.splits["train"]] == [None, 3]
    source = read(first, second | {"age": 3}, fields=(AskedField("age", "number"),))
    assert [entry.extra["age"] for entry in source.splits["train"]] == [None, 3]
    source = read({"path": "a/1.jpg", "age": 3}, second | {"age": 3}, fields=(AskedField("age", "number"),))
    assert [entry.label for entry in source.splits["train"]] == [-1, 0]
    with pytest.raises(DataError, match=r"the column 'path' beside --path-column image would hide"):
        read({"image": "a/1.jpg", "label": "x"}, {"image": "a/2.jpg", "path": "b", "label": "x"})
    # The columns of the first row come first.
    source = read({"path": "a/1.jpg", "class": "x"}, {"path": "a/2.jpg", "class": "y", "label": "z"})
    assert source.classes == ("x", "y") and source.splits["train"][1].extra == {"label": "z"}


def test_dots_behind_a_symbolic_link(files, encode):
    """`link/..` is the folder above the one that it leads to, as for the operating system."""
    (files / "elsewhere/deep").mkdir(parents=True)
    (files / "elsewhere/1.jpg").write_bytes(encode(seed=7))
    (files / "a/link").symlink_to(files / "elsewhere/deep")
    rows = ("a/link/../1.jpg,x", "a/../a/2.jpg,x", "a/link/../../a/1.jpg,x")
    source = read_source(write_csv(files, "path,label", *rows), Columns())
    entries = sorted(source.splits["train"], key=lambda entry: entry.row)
    assert [entry.path for entry in entries] == ["a/link/../1.jpg", "a/2.jpg", "a/1.jpg"]
    wanted = [encode(seed=7), *((files / name).read_bytes() for name in ("a/2.jpg", "a/1.jpg"))]
    assert [source.read(entry).image for entry in entries] == wanted


def test_absolute_paths_in_a_manifest_behind_a_symbolic_link(files):
    (files / "lists/deep").mkdir(parents=True)
    write_csv(files / "lists/deep", "path,label", f"{files}/a/1.jpg,x", f"{files}/lists/deep/../../b/1.jpg,x")
    (files / "here").symlink_to(files / "lists/deep")
    sources = [read_source(files / folder / "set.csv", Columns()) for folder in ("lists/deep", "here")]
    for source in sources:
        entries = source.splits["train"]
        assert [entry.path for entry in entries] == ["../../a/1.jpg", "../../b/1.jpg"]
        assert source.read(entries[0]).image == (files / "a/1.jpg").read_bytes()
    assert sources[0].fingerprint() == sources[1].fingerprint()
