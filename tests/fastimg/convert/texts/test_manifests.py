"""Manifests of texts to either container: columns, labels, and rows that are skipped or refused."""

import json
import tarfile

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fastimg.convert.report import print_report
from fastimg.errors import UsageError
from fastimg.loaders import DataError
from fastimg.loaders.containers.betons.files import BetonFile
from fastimg.loaders.containers.description import read_description

from .manifests import ROWS, manifest, members, said, texts, write


@pytest.mark.parametrize("container", ["tar", "beton"])
@pytest.mark.parametrize("kind", ["csv", "tsv", "jsonl", "parquet"])
def test_every_kind_of_manifest_gives_the_same_texts(kind, container, tmp_path, make):
    dst, report = make(manifest(tmp_path, kind), no_shuffle=True, format=container)
    assert texts(dst) == ROWS
    description = read_description(dst)
    assert (description["content"], description["classes"]) == ("text", ["neg", "pos"])
    assert (report.content, report.images, report.kept, report.skipped) == ("text", 6, 6, [])
    assert report.columns == [f"{tmp_path}/set.{kind}: text from column 'text', label from 'label'"]
    first = 1 + (kind in ("csv", "tsv"))
    if container == "tar":
        stored = members(dst / "train-00000.tar")
        assert list(stored)[:3] == ["000000000.txt", "000000000.cls", "000000000.json"]
        assert json.loads(stored["000000001.json"]) == {"path": f"set.{kind}:{first + 1}", "n": "1"}
    else:
        with BetonFile(dst / "train.beton") as beton:
            assert {name: field.kind for name, field in beton.fields.items()} == {
                "txt": "bytes",
                "label": "int",
                "json": "json",
            }
            assert beton.sample(1)["json"] == {"path": f"set.{kind}:{first + 1}", "n": "1"}


def test_explicit_columns(tmp_path, make):
    rows = [("one.jpg", "yes"), ("two.jpg", "no")]
    src = manifest(tmp_path, "csv", rows, ("path", "verdict"))
    dst, report = make(src, text_column="path", label_column="verdict", no_shuffle=True)
    assert texts(dst) == rows
    assert "text from column 'path', label from 'verdict'" in report.columns[0]


@pytest.mark.parametrize("name", ["Text", "sentence", "review", "content", "DOCUMENT"])
def test_columns_named_as_texts(name, tmp_path, make):
    dst, _ = make(manifest(tmp_path, "csv", names=(name, "label")), no_shuffle=True)
    assert texts(dst) == ROWS


def test_a_split_column_and_a_fraction_held_out(tmp_path, make):
    rows = [f"text {i},{i % 2},{'test' if i > 7 else 'train'}" for i in range(10)]
    src = write(tmp_path / "set.csv", "\n".join(["text,label,split", *rows]))
    dst, report = make(src, val_fraction=0.25, seed=1)
    assert report.splits == {"test": 2, "train": 6, "val": 2}
    assert texts(dst, "test") == [("text 8", "0"), ("text 9", "1")]
    assert sorted(label for _, label in texts(dst, "val")) == ["0", "1"]
    assert [text for text, _ in texts(dst)] != sorted(text for text, _ in texts(dst))


@pytest.mark.parametrize(
    ("content", "options", "message"),
    [
        ("a,b\nc,d\n", {}, "it is unclear which is the label .*--text-column N --label-column M --no-header"),
        ("one,x y,2\ntwo,z,3\n", {}, "numbered 1 to 3; choose the columns with --text-column N --label-column M"),
        ("comment,mood\nvery good,1\nbad,0\nfine,1\ndull,0\ngood,1\n", {}, "'comment, mood', may be a header"),
        ("comment,mood\ngood,1\n", {"text_column": "coment"}, "no column 'coment'.*it has comment, mood; did you mean"),
        ("text,label\ngood,1\n", {"text_column": "txt"}, "no column 'txt' .*did you mean text"),
        ("text,lable\ngood,1\n", {}, "no label column .*did you mean lable.*--label-column"),
        ("good,1\n", {"text_column": "3", "no_header": True}, "no column '3' .*it has 1, 2"),
        ("text,label\ngood,1\n", {"text_column": "text", "path_column": "label"}, "names one of them twice"),
        ("text,label\ngood,1\n", {"label_column": "text"}, "names one of them twice"),
        ("text,label\ngood,1\nbad\n", {}, "row 3: 1 field under a header of 2"),
        ("text,label\ngood, \n", {}, "every label in column 'label' is empty"),
        ("text,label\ngood,\udcff\n", {}, "row 2: the label .* is not UTF-8"),
        ("text,label,split\ngood,1,fold1\n", {}, "row 2: 'fold1' is not a split"),
        ("text,label\n", {}, "no rows"),
    ],
)
def test_manifests_of_texts_that_are_refused(content, options, message, tmp_path, make):
    src = write(tmp_path / "set.csv", content.encode("utf-8", "surrogateescape"))
    with pytest.raises((DataError, UsageError), match=message):
        make(src, **options)
    assert not (tmp_path / "out0").exists()


def test_a_text_without_a_label(tmp_path, make):
    src = write(tmp_path / "set.csv", b"text,label\ngood,1\nbad,0\nso so,\nfine, \n")
    with pytest.raises(DataError, match=r"set\.csv: row 4: the label is empty; .*--on-error skip"):
        make(src, on_error="fail")
    _, report = make(src)
    assert report.images == 2 and report.classes == 2
    assert dict(report.skipped) == {"set.csv:4": "the label is empty", "set.csv:5": "the label is empty"}


def test_labels_of_texts_that_do_not_look_like_classes(tmp_path, make, console):
    rows = [f"text {i},{i / 8}" for i in range(20)]
    src = write(tmp_path / "set.csv", "\n".join(["text,label", *rows]))
    with pytest.raises(DataError, match=r"column 'label' look like numbers with fractions.*--labels-are-classes"):
        make(src)
    dst, report = make(src, labels_are_classes=True)
    assert report.classes == 20 and read_description(dst)["options"]["labels_are_classes"] is True
    src = write(tmp_path / "set.jsonl", '{"text": "good", "label": ["a", "b"]}\n')
    with pytest.raises(DataError, match=r"row 1: the label \['a', 'b'\] in column 'label' is a list, not one class"):
        make(src)


def test_a_manifest_of_images_without_a_header_stays_one(tmp_path, make):
    src = write(tmp_path / "set.csv", "a/1.jpg,x\na/2.jpg,y\nb/1.jpg,x\nb/2.jpg,y\n")
    with pytest.raises(DataError, match=r"no path column .*--path-column, or a column of texts with --text-column"):
        make(src)


def test_a_manifest_of_images_takes_numbered_columns(image_folder, tmp_path, make):
    files = sorted(image_folder.rglob("*.jpg"))
    src = write(tmp_path / "set.csv", "".join(f"{file},{file.parent.name}\n" for file in files))
    _, report = make(src, no_header=True, path_column="1", label_column="2")
    assert (report.content, report.images, report.classes) == ("images", len(files), 3)


BAD = [b"good,1", b"\xff\xfe,1", b",1", b" \t ,0", b"also good,0", b'"caf\xe9",0']
REASONS = {3: "not UTF-8", 4: "empty", 5: "nothing but white space", 7: "not UTF-8"}


def test_rows_that_are_not_texts_are_skipped_and_named(tmp_path, make, console):
    src = write(tmp_path / "set.csv", b"text,label\n" + b"\n".join(BAD) + b"\n")
    dst, report = make(src, no_shuffle=True)
    assert texts(dst) == [("good", "1"), ("also good", "0")]
    assert dict(report.skipped) == {f"set.csv:{row}": reason for row, reason in REASONS.items()}
    print_report(report, console)
    assert "4 texts: 2 not UTF-8, 1 empty, 1 nothing but white space" in said(console)
    with pytest.raises(DataError, match=r"set\.csv: row 3: not UTF-8; repair or remove it"):
        make(src, on_error="fail", dst=tmp_path / "fail")
    assert not (tmp_path / "fail").exists()


def test_further_columns_that_are_not_utf_8(tmp_path, make):
    src = write(tmp_path / "set.csv", b"text,label,by\ngood,1,Ren\xe9\nbad,0,Ren\xc3\xa9\nfine,1,x\n")
    dst, report = make(src, no_shuffle=True)
    assert texts(dst) == [("bad", "0"), ("fine", "1")]
    assert report.skipped == [("set.csv:2", "not UTF-8 (column 'by')")]


def test_values_that_are_not_texts(tmp_path, make):
    values = ["good", None, 5, ["x"], "\ud800", ""]
    src = write(tmp_path / "set.jsonl", "".join(json.dumps({"text": v, "label": "x"}) + "\n" for v in values))
    write(src, src.read_text() + '{"label": "x"}\n')
    _, report = make(src)
    reasons = [reason for _, reason in sorted(report.skipped)]
    assert reasons == [
        "no text (null)",
        "not text but a number",
        "not text but a list or an object",
        "not UTF-8",
        "empty",
        "no text (null)",
    ]


def test_columns_that_the_first_row_of_a_jsonl_lacks(tmp_path, make):
    def rows(*rows):
        return write(tmp_path / "set.jsonl", "".join(json.dumps(row) + "\n" for row in rows))

    first, second = {"text": "one", "label": "x"}, {"text": "two", "label": "x"}
    with pytest.raises(DataError, match=r"set.jsonl: row 1: has no split; use one of train, training, val"):
        make(rows(first, second | {"split": "val"}))
    dst, report = make(rows({"text": "one"}, second), no_shuffle=True)
    assert texts(dst) == [("two", "x")] and report.skipped == [("set.jsonl:1", "the label is empty")]
    dst, report = make(rows(first, second | {"stars": 0.5}), target=("stars",))
    assert report.targets == [{"name": "stars", "kind": "number", "missing": 1}]


def test_all_rows_of_a_jsonl_tell_whether_it_has_texts(tmp_path, make):
    def rows(*rows):
        return write(tmp_path / "set.jsonl", "".join(json.dumps(row) + "\n" for row in rows))

    one, two = {"text": "one", "label": "x"}, {"text": "two", "label": "x"}
    dst, report = make(rows({"label": "x"}, one, two), no_shuffle=True)
    assert texts(dst) == [("one", "x"), ("two", "x")]
    assert report.skipped == [("set.jsonl:1", "no text (null)")]
    dst, _ = make(rows(one | {"path": None}, two | {"path": ""}), no_shuffle=True)
    assert texts(dst) == [("one", "x"), ("two", "x")]
    with tarfile.open(dst / "train-00000.tar") as tar:
        notes = [json.loads(tar.extractfile(name).read()) for name in tar.getnames() if name.endswith(".json")]
    assert notes == [{"path": "set.jsonl:1"}, {"path": "set.jsonl:2"}]
    dst, _ = make(rows(one | {"path": None}, two), text_column="text", no_shuffle=True)
    assert texts(dst) == [("one", "x"), ("two", "x")]
    with pytest.raises(DataError, match=r"set.jsonl: row 1: None in column 'path' is not a path"):
        make(rows(one, two | {"path": "1.jpg"}))  # images and their captions
    with pytest.raises(DataError, match=r"set.jsonl: no path column"):
        make(rows({"label": "x"}))


def test_parquet_with_class_names_and_invalid_text(tmp_path, make):
    info = {"info": {"features": {"label": {"_type": "ClassLabel", "names": ["world", "business", "arts"]}}}}
    column = pa.array([b"one", b"\xff", None, b"two"], pa.binary()).view(pa.string())
    table = pa.table({"text": column, "label": [1, 0, 0, 0]})
    pq.write_table(table.replace_schema_metadata({"huggingface": json.dumps(info)}), tmp_path / "set.parquet")
    dst, report = make(tmp_path / "set.parquet", no_shuffle=True)
    assert texts(dst) == [("one", "business"), ("two", "world")]
    assert read_description(dst)["classes"] == ["world", "business"]
    assert [reason for _, reason in sorted(report.skipped)] == ["not UTF-8", "no text (null)"]
    pq.write_table(pa.table({"text": [1, 2], "label": [1, 0]}), tmp_path / "numbers.parquet")
    with pytest.raises(DataError, match=r"the column 'text' is of type int64, not of strings"):
        make(tmp_path / "numbers.parquet")


def test_the_class_label_that_says_that_there_is_none(tmp_path, make, console):
    """Hugging Face's -1, as in the test splits of GLUE."""

    def table(**columns):
        info = {"info": {"features": {"label": {"_type": "ClassLabel", "names": ["bad", "good"]}}}}
        metadata = {"huggingface": json.dumps(info)}
        pq.write_table(pa.table(columns).replace_schema_metadata(metadata), tmp_path / "set.parquet")
        return tmp_path / "set.parquet"

    rows = {"text": ["one", "two", "three", "four", "five"], "label": [1, 0, -1, -1, -1]}
    dst, report = make(table(**rows, split=["train", "train", "train", "test", "test"]), no_shuffle=True)
    assert texts(dst) == [("one", "good"), ("two", "bad")] and report.splits == {"train": 2}
    assert report.skipped == [("set.parquet:3", "the label is empty")]
    assert "set.parquet: the split test is left out: its 2 rows have no label" in said(console)
    with pytest.raises(DataError, match=r"set\.parquet: every label in column 'label' is empty; fill them in"):
        make(table(text=["one", "two"], label=[-1, -1]))
    with pytest.raises(DataError, match=r"row 2: the label -2 in column 'label' is not one of the 2 classes"):
        make(table(text=["one", "two"], label=[1, -2]))
