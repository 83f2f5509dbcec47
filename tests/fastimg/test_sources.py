"""Class folders and manifests as lists of entries."""

import json
import os
import re
from datetime import date

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fastimg import sources
from fastimg.errors import UsageError
from fastimg.loaders.errors import DataError
from fastimg.manifest import Columns
from fastimg.samples import Entries


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
def test_every_kind_of_manifest_says_the_same(files, kind):
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
    assert (source.kind, source.classes, source.ignored) == ("folder", ("blue", "green", "red"), 1)
    assert list(source.splits) == ["train"] and len(source.splits["train"]) == 36
    assert source.splits["train"][0][:3] == ("blue/000.jpg", 0, (image_folder / "blue/000.jpg").stat().st_size)


def test_folder_with_splits(tmp_path, encode):
    for name in ("train/a", "train/b", "valid/a", "test/b"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "1.png").write_bytes(encode(kind="PNG"))
    source = read_source(tmp_path, Columns())
    assert {split: len(entries) for split, entries in source.splits.items()} == {"train": 2, "val": 1, "test": 1}


def test_a_link_to_nowhere_has_no_size(image_folder):
    (image_folder / "red" / "gone.jpg").symlink_to("nowhere.jpg")
    source = read_source(image_folder, Columns())
    entry = next(entry for entry in source.splits["train"] if entry.path == "red/gone.jpg")
    assert entry.size == -1 and source.problem(entry) == "no such file"


def test_a_pipe_is_not_opened(image_folder):
    os.mkfifo(image_folder / "red" / "pipe.jpg")
    source = read_source(image_folder, Columns())
    assert source.ignored == 1
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


def test_absolute_paths_are_told_relative_to_the_manifest(files):
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
        (["path,label", "a/1.jpg,x", "a/2.jpg, "], Columns(), "row 3: the label in column 'label' is empty"),
        (["path,label", ",x"], Columns(), "row 2: '' in column 'path' is not a path"),
        (["path,label", "a/1.jpg,x,y"], Columns(), "row 2: 3 fields under a header of 2"),
        (["path,label,split", "a/1.jpg,x,fold1"], Columns(), "row 2: 'fold1' is no split; use one of train, val"),
        (["path,label,split", "a/1.jpg,x,val"], Columns(), "no row of the training split .*it has val"),
        (
            ["path,label,split", "a/1.jpg,x,train", "a/2.jpg,y,val"],
            Columns(),
            "row 3: the training split has no class 'y', which val has",
        ),
        (["path,label", '"a/1.jpg,x'], Columns(), "cannot be read .*unexpected end of data"),
    ],
)
def test_what_is_wrong_with_a_manifest(files, lines, columns, message):
    src = files / "set.csv"
    src.write_text("".join(line + "\n" for line in lines))
    with pytest.raises((DataError, UsageError), match=f"{re.escape(str(src))}: .*{message}"):
        read_source(src, columns)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("set.jsonl", b'{"path": "a", "label": "x"}\n{"path"\n', "row 2: not json"),
        (
            "set.jsonl",
            b'{"path": "\\ud800.jpg", "label": "x"}\n',
            r"row 1: '.ud800.jpg' in column 'path' is not a path",
        ),
        ("set.jsonl", b"[1]\n", "row 1: not a json object"),
        ("set.jsonl", b'{"path": "a", "label": 1}\n{"path": "b"}\n', "row 2: the label in column 'label' is empty"),
        ("set.jsonl", b'{"path": "a", "label": 0.5}\n', "row 1: the label '0.5' .*neither a string nor an integer"),
        ("set.parquet", b"not parquet", "cannot be read"),
        ("set.csv", b"path,label\n\xff\xfe,x\n", "cannot be read .*utf-8"),
        ("set.xlsx", b"", "neither a folder, nor a manifest that ends in .csv, .tsv, .jsonl, .parquet"),
    ],
)
def test_manifests_that_cannot_be_read(tmp_path, name, content, message):
    src = tmp_path / name
    src.write_bytes(content)
    with pytest.raises(DataError, match=f"{re.escape(str(src))}: .*{message}"):
        read_source(src, Columns())


def test_bytes_in_a_column(files):
    src = write_manifest(files, "parquet", [{"path": "a/1.jpg", "label": "x", "thumbnail": b"\0"}])
    with pytest.raises(DataError, match="row 1: the column 'thumbnail' holds bytes"):
        read_source(src, Columns())


def test_a_source_that_is_not_there(tmp_path):
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
