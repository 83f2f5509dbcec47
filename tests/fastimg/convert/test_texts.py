"""Texts: every kind of source to either container and back, errors, messages, and resuming."""

import csv
import io
import json
import tarfile

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from rich.console import Console

import fastimg.convert.text_preparation
from fastimg.config.commands import Convert
from fastimg.convert.pipeline import convert
from fastimg.convert.report import print_report
from fastimg.errors import UsageError
from fastimg.loaders import DataError, open_dataset
from fastimg.loaders.containers.betons.files import BetonFile, BetonWriter
from fastimg.loaders.containers.betons.kinds import BetonField
from fastimg.loaders.containers.description import read_description
from fastimg.loaders.containers.tars.shards import ShardWriter, index_path
from fastimg.loaders.runtime.scratch import Scratch

ROWS = [
    ("a fine film", "pos"),
    ('  "quoted", with a comma\tand a tab ', "neg"),
    ("drôle, 映画 🎬", "pos"),
    ('he said ""no""\nand left', "neg"),
    ("x" * 200_000, "pos"),
    ("dull", "neg"),
]


@pytest.fixture
def console():
    return Console(file=io.StringIO(), width=400)


@pytest.fixture
def make(tmp_path, console):
    """`make(src, **options)`: convert into a fresh folder; returns the folder and the report."""
    count = iter(range(100))

    def run(src, **options):
        dst = options.pop("dst", tmp_path / f"out{next(count)}")
        report = convert(Convert(src=src, dst=dst, workers="2", **options), console)
        return dst, report

    return run


def said(console):
    return console.file.getvalue()


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def manifest(folder, kind, rows=ROWS, names=("text", "label")):
    """One row per pair, with a further column `n`."""
    path = folder / f"set.{kind}"
    table = [dict(zip(names, row, strict=True)) | {"n": f"{i}"} for i, row in enumerate(rows)]
    if kind == "parquet":
        pq.write_table(pa.Table.from_pylist(table), path)
    elif kind == "jsonl":
        write(path, "".join(json.dumps(row) + "\n" for row in table))
    else:
        with path.open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, (*names, "n"), delimiter="\t" if kind == "tsv" else ",")
            writer.writeheader()
            writer.writerows(table)
    return path


def texts(folder, split="train"):
    """(text, class) of every sample, as read by a loader."""
    dataset, scratch = open_dataset(folder, split), Scratch()
    assert dataset.content == "text"
    found = [
        (bytes(dataset.read(i, scratch)).decode(), dataset.classes[label]) for i, label in enumerate(dataset.labels)
    ]
    dataset.close()
    return found


def members(tar):
    """Contents by member name, as read by Python's tarfile."""
    with tarfile.open(tar) as archive:
        return {info.name: archive.extractfile(info).read() for info in archive}


def contents(folder):
    return {file.name: file.read_bytes() for file in folder.iterdir()}


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


LINES = ['"Good", he said', 'it is "so-so"', '"all of it"', "un'quoted", 'ends with "', "", "  spaces  ", "drôle"]


def test_a_tsv_without_a_header_is_split_at_lines_and_tabs(tmp_path, make, console):
    lines = [f"{text}\t{i % 2}" for i, text in enumerate(LINES) if text] * 2
    for end in ("\n", "\r\n"):
        dst, _ = make(write(tmp_path / "set.tsv", end.join(lines) + end), no_shuffle=True)
        assert [f"{text}\t{label}" for text, label in texts(dst)] == lines
    assert (
        "no header (none of the names in its first line is a known column): columns are numbered 1 to 2; taken as "
        "text: 1, as label: 2 (7 and 2 different values in 14 rows)" in said(console)
    )
    assert "quotes in it are text, because there is no header" in said(console)


def test_byte_order_marks_and_line_ends_are_not_text(tmp_path, make):
    lines = [("x", text) for text in ("one", "two ", "three\r")] + [("y", "four")]
    content = b"\xef\xbb\xbf" + b"".join(f"{label}\t{text}\r\n".encode() for label, text in lines)
    dst, _ = make(write(tmp_path / "set.tsv", content), no_shuffle=True)
    assert texts(dst) == [(text, label) for label, text in lines]


def test_a_tsv_with_quotes_that_are_text(tmp_path, make, console):
    lines = [f"{text}\t{i % 2}" for i, text in enumerate(LINES) if text]
    dst, _ = make(write(tmp_path / "set.tsv", "\n".join(["sentence\tlabel", *lines])), no_shuffle=True)
    assert [f"{text}\t{label}" for text, label in texts(dst)] == lines
    assert "quotes in it are text, because not all of them enclose a field" in said(console)


@pytest.mark.parametrize(
    ("lines", "first"),
    [
        (['"a ""b"" c"\t0', "d\t1"], 'a "b" c'),  # doubled: csv's
        (['"a"\t0', '"b"\t1'], "a"),  # all texts are quoted
        (['"a\tb"\t0', "c\t1"], "a\tb"),  # lines have different numbers of tabs
        (['"a"\t0', "b\t1"], '"a"'),  # csv would not have quoted it
        (['"a\t0', 'b"\t1'], '"a'),  # every line has its two fields
        (['"a "b""\t0', "c\t1"], '"a "b""'),
    ],
)
def test_whether_quotes_in_a_tsv_are_text(lines, first, tmp_path, make):
    dst, _ = make(write(tmp_path / "set.tsv", "\n".join(["text\tlabel", *lines]) + "\n"), no_shuffle=True)
    assert texts(dst)[0] == (first, "0")


def test_a_csv_without_a_header(tmp_path, make, console):
    src = write(tmp_path / "set.csv", '\ufeff0,"one, two"\n1,three\n0,four\n1,"say ""five"""\n')
    dst, report = make(src, no_shuffle=True)
    expected = [("one, two", "0"), ("three", "1"), ("four", "0"), ('say "five"', "1")]
    assert texts(dst) == expected
    assert "taken as text: 2, as label: 1" in said(console)
    assert texts(make(src, text_column="2", no_shuffle=True)[0]) == expected
    assert texts(make(src, no_header=True, text_column="2", label_column="1", no_shuffle=True)[0]) == expected
    assert "text from column '2', label from '1'" in report.columns[0]
    assert json.loads(members(dst / "train-00000.tar")["000000003.json"]) == {"path": "set.csv:4"}


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


@pytest.mark.parametrize(
    ("name", "separator", "said_of_it"),
    [
        ("set.csv", ";", "';'"),
        ("set.csv", "|", "'|'"),
        ("set.csv", "\t", "tabs"),
        ("set.tsv", ",", "','"),
        ("set.tsv", ";", "';'"),
        ("set.csv", ",", ""),
        ("set.tsv", "\t", ""),
    ],
)
@pytest.mark.parametrize("header", [True, False])
def test_the_delimiter_of_texts_and_labels_is_detected(name, separator, said_of_it, header, tmp_path, make):
    rows = [('good; "fine", and | so on\tand on', "pos"), ("a\nb", "neg"), ("so, so", "pos"), ("bad", "neg")]
    rows = rows * 3
    if separator == "\t" and (name == "set.tsv" or not header):  # quotes are text, and every line is a row
        rows = [(text.replace("\t", " ").replace("\n", " "), label) for text, label in rows]
        table = "".join(f"{text}\t{label}\r\n" for text, label in rows)
    else:
        file = io.StringIO(newline="")
        csv.writer(file, delimiter=separator).writerows(rows)
        table = file.getvalue()
    src = write(tmp_path / name, (f"text{separator}label\r\n" if header else "") + table)
    dst, report = make(src, no_shuffle=True)
    assert texts(dst) == rows
    assert report.columns[0].partition(", columns separated by ")[2] == said_of_it


def test_an_explicit_delimiter(tmp_path, make):
    src = write(tmp_path / "set.csv", "good:pos\nbad:neg\nfine:pos\ndull:neg\n")
    dst, report = make(src, delimiter=":", no_shuffle=True)
    assert texts(dst)[0] == ("good", "pos") and report.columns[0].endswith("columns separated by ':'")
    src = write(tmp_path / "tabs.csv", "text\tlabel\ngood\tpos\nbad\tneg\n")
    for spelled in ("tab", "\\t", "\t"):
        assert texts(make(src, delimiter=spelled, no_shuffle=True)[0]) == [("good", "pos"), ("bad", "neg")]
    for wrong in ("", ";;", "x", '"', "\n"):
        with pytest.raises(UsageError, match=r"--delimiter .*: give one character, such as ',' ';' or '|', or tab"):
            make(src, delimiter=wrong)


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


def text_folder(root, splits=("",)):
    for split in splits:
        for label in ("neg", "pos"):
            for i in range(4):
                write(root / split / label / f"{i}.txt", f"{label} text {i} of {split}\n")
    return root


@pytest.mark.parametrize("splits", [("",), ("train", "test")])
def test_folders_of_texts(splits, tmp_path, make):
    root = text_folder(tmp_path / "texts", splits)
    write(root / splits[0] / "pos/notes.md", "no text")
    dst, report = make(root, no_shuffle=True)
    assert (report.ignored, report.images, report.columns) == (1, 8 * len(splits), [])
    for split in splits:
        expected = [(f"{name} text {i} of {split}\n", name) for name in ("neg", "pos") for i in range(4)]
        assert texts(dst, split or "train") == texts(root, split or "train") == expected
    path = f"{splits[0]}/neg/0.txt".lstrip("/")
    assert json.loads(members(dst / "train-00000.tar")["000000000.json"]) == {"path": path}


def test_a_folder_with_one_image_is_an_image_folder(image_folder, tmp_path, make):
    write(image_folder / "blue/caption.txt", "a caption")
    _, report = make(image_folder)
    assert (report.content, report.ignored) == ("images", 1)
    root = text_folder(tmp_path / "texts")
    (image_folder / "blue/000.jpg").rename(root / "pos/picture.jpg")
    with pytest.raises(DataError, match=r"neg: the class is empty \(other files: 4 without an image.*\); add images"):
        open_dataset(root)


def test_files_that_are_not_texts(tmp_path, make):
    root = text_folder(tmp_path / "texts")
    write(root / "neg/0.txt", b"caf\xe9")
    write(root / "neg/1.txt", b"")
    write(root / "pos/0.txt", "\ufeff\n")
    _, report = make(root)
    assert dict(report.skipped) == {
        "neg/0.txt": "not UTF-8",
        "neg/1.txt": "empty",
        "pos/0.txt": "nothing but white space",
    }
    with pytest.raises(DataError, match=r"neg/0\.txt: not UTF-8"):
        make(root, on_error="fail")


def test_round_trip(tmp_path, make):
    tar, _ = make(manifest(tmp_path, "csv"))
    beton, _ = make(tar, format="beton")
    back, _ = make(beton)
    assert texts(tar) == texts(beton) == texts(back) and sorted(texts(tar)) == sorted(ROWS)
    assert contents(back)["train-00000.tar"] == contents(tar)["train-00000.tar"]


def test_foreign_tars(tmp_path, make):
    folder = tmp_path / "theirs"
    folder.mkdir()
    with ShardWriter(folder / "data-0.tar") as shard:
        for i, (text, label) in enumerate(ROWS):
            shard.add(f"s{i}", {"json": b"{}", "txt": text.encode(), "cls": str(int(label == "pos")).encode()})
    index_path(folder / "data-0.tar").unlink()
    numbers = [(text, str(int(label == "pos"))) for text, label in ROWS]
    assert texts(folder) == numbers
    assert texts(folder) == numbers  # read from the compact index
    assert (folder / "train.fidx").exists()
    dst, _ = make(folder)
    assert texts(dst) == numbers
    with ShardWriter(folder / "data-1.tar") as shard:
        shard.add("x", {"jpg": b"", "txt": b"a caption", "cls": b"0"})
    with pytest.raises(DataError, match=r"s0\.json: a sample without an image"):
        open_dataset(folder)


def test_foreign_betons(tmp_path, make):
    fields = {
        "text": BetonField("bytes"),
        "y": BetonField("int"),
        "original": BetonField("bytes"),
        "image": BetonField("bytes"),
    }
    with BetonWriter(tmp_path / "a.beton", fields) as beton:
        for text, label in ROWS:
            row = {"text": text.encode(), "y": int(label == "pos"), "original": b"raw", "image": b""}
            beton.add(row)
    numbers = [(text, str(int(label == "pos"))) for text, label in ROWS]
    assert texts(tmp_path / "a.beton") == numbers
    dst, _ = make(tmp_path / "a.beton")
    assert texts(dst) == numbers
    assert members(dst / "train-00000.tar")["000000000.original"] == b"raw"
    with BetonWriter(tmp_path / "b.beton", {"note": BetonField("bytes"), "y": BetonField("int")}) as beton:
        beton.add({"note": b"x", "y": 0})
    with pytest.raises(DataError, match=r"\(note, y\) holds images, and none of bytes is called txt or text"):
        open_dataset(tmp_path / "b.beton")
    with BetonWriter(tmp_path / "c.beton", {"txt": BetonField("bytes"), "text": BetonField("bytes")}) as beton:
        beton.add({"txt": b"x", "text": b"y"})
    with pytest.raises(DataError, match="txt, text are both texts; rename one"):
        open_dataset(tmp_path / "c.beton")


def test_a_field_called_image_in_a_beton_of_texts(tmp_path, make):
    with ShardWriter(tmp_path / "a.tar") as shard:
        for i in range(3):
            shard.add(f"{i}", {"txt": b"a text", "image": b"of bytes", "cls": b"0"})
    first, _ = make(tmp_path / "a.tar", format="beton")
    again, _ = make(first)
    assert texts(first) == texts(again) == [("a text", "0")] * 3
    assert members(again / "train-00000.tar")["000000002.image"] == b"of bytes"


@pytest.mark.parametrize("container", ["tar", "beton"])
def test_a_description_of_another_content(container, tmp_path, make):
    dst, _ = make(manifest(tmp_path, "csv"), format=container)
    file, told = dst / "dataset.json", (dst / "dataset.json").read_text()
    file.write_text(told.replace('"content": "text"', '"content": "images"', 1))
    with pytest.raises(DataError, match=r"holds text where dataset\.json says images|a sample without an image"):
        open_dataset(dst)
    file.write_text(told.replace('"content": "text"', '"content": "sounds"', 1))
    with pytest.raises(DataError, match=r"not a dataset description .*content 'sounds'"):
        open_dataset(dst)


def test_a_caption_of_an_image_is_a_field(encode, tmp_path, make):
    with ShardWriter(tmp_path / "a.tar") as shard:
        for i in range(4):
            shard.add(f"{i}", {"txt": b"a caption", "jpg": encode(seed=i), "cls": b"0"})
    dst, report = make(tmp_path / "a.tar")
    assert report.content == "images" and "content" not in json.loads((dst / "dataset.json").read_text())
    dataset = open_dataset(dst)
    assert dataset.content == "images" and dataset.records["width"].min() > 0
    dataset.close()
    assert make(dst, format="beton")[1].content == "images"


@pytest.mark.parametrize("container", ["tar", "beton"])
def test_appending_and_merging(container, tmp_path, make, image_folder):
    (tmp_path / "more").mkdir()
    first, more = manifest(tmp_path, "csv"), manifest(tmp_path / "more", "jsonl", [("new", "meh"), ("newer", "pos")])
    dst, _ = make(first, format=container)
    _, report = make(more, dst=dst, append=True)
    assert (report.images, report.added, report.classes) == (8, 2, 3)
    assert sorted(texts(dst)) == sorted([*ROWS, ("new", "meh"), ("newer", "pos")])
    both = tmp_path / "both"
    make(first, dst=more, more=(both,), merge=True, format=container)
    assert sorted(texts(both)) == sorted(texts(dst))
    before = contents(dst)
    with pytest.raises(UsageError, match=r"holds texts and .*images images: a dataset holds only one kind"):
        make(image_folder, dst=dst, append=True)
    with pytest.raises(UsageError, match=r"images holds images and .*set\.csv texts: a dataset holds only one kind"):
        make(image_folder, dst=first, more=(tmp_path / "mixed",), merge=True)
    images, _ = make(image_folder, format=container)
    with pytest.raises(UsageError, match=r"holds images and .*set\.csv texts"):
        make(first, dst=images, append=True)
    assert contents(dst) == before and not (tmp_path / "mixed").exists()


@pytest.mark.parametrize("container", ["tar", "beton"])
def test_interrupted_anywhere_and_resumed_gives_the_same_bytes(container, tmp_path, make, monkeypatch):
    rows = [(f"text {i} " * 100, str(i % 2)) for i in range(24)]
    src = manifest(tmp_path, "csv", [*rows, ("", "0")])
    options = {"shard_size": "8KB", "format": container, "val_fraction": 0.25}
    whole = contents(make(src, **options)[0])
    for count in (0, 5, 13, 24):
        left, fault = iter(range(count)), fastimg.convert.text_preparation.text_fault

        def fault_or_stop(data, left=left, fault=fault):
            if next(left, None) is None:
                raise KeyboardInterrupt
            return fault(data)

        dst = tmp_path / f"cut{count}"
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(fastimg.convert.text_preparation, "text_fault", fault_or_stop)
            make(src, dst=dst, **options)
            raise KeyboardInterrupt  # after the last of 24 texts
        make(src, dst=dst, resume=True, **options)
        assert contents(dst) == whole


@pytest.mark.parametrize(
    ("flag", "value"),
    [
        *(("tile", "off"), ("max_size", 10), ("quality", 90), ("jpeg", "reencode"), ("raw_fraction", 0.5)),
        *(("originals", "drop"), ("compare", True), ("max_pixels", 100)),
    ],
)
def test_flags_about_images_are_refused(flag, value, tmp_path, make):
    beton = {"format": "beton"} if flag in ("quality", "raw_fraction", "originals") else {}
    with pytest.raises(UsageError, match=rf"--{flag.replace('_', '-')} has no effect on texts"):
        make(manifest(tmp_path, "csv"), **{flag: value}, **beton)


@pytest.mark.parametrize("options", [{"text_column": "text"}, {"no_header": True}])
def test_flags_about_columns_are_refused_without_columns(options, image_folder, tmp_path, make):
    flag = "--" + next(iter(options)).replace("_", "-")
    with pytest.raises(UsageError, match=rf"{flag}: .* is a folder and has no columns"):
        make(image_folder, **options)
    if "no_header" in options:
        with pytest.raises(UsageError, match=r"--no-header: the columns of .*set\.jsonl have names"):
            make(manifest(tmp_path, "jsonl"), **options)


def test_verify(tmp_path, make, cli):
    dst, _ = make(manifest(tmp_path, "csv"))
    ran = cli("verify", dst, "--deep")
    assert (ran.code, "no fault (1 shard, 6 texts read)" in ran.out) == (0, True)
    root = text_folder(tmp_path / "texts")
    write(root / "neg/0.txt", b"caf\xe9")
    write(root / "pos/3.txt", b" ")
    ran = cli("verify", root, "--deep", "--json")
    assert ran.code == 1
    assert json.loads(ran.out)["faults"] == [
        {"name": str(root / "neg/0.txt"), "fault": "not UTF-8"},
        {"name": str(root / "pos/3.txt"), "fault": "nothing but white space"},
    ]
    ran = cli("verify", dst, "--max-pixels", 5)
    assert (ran.code, "--max-pixels has no effect on texts" in ran.err) == (2, True)


def test_inspect(tmp_path, cli, monkeypatch):
    monkeypatch.chdir(tmp_path)
    root = text_folder(tmp_path / "texts", ("train", "test"))
    write(root / "test/neg/0.txt", "neg text 0 of train\n")  # a leak
    write(root / "train/pos/9.txt", "pos text 1 of train\n")  # a copy
    write(root / "train/pos/8.txt", b"\xff")
    write(root / "train/pos/7.txt", "lots of\x1b words " * 50)
    before = sorted(tmp_path.rglob("*"))
    ran = cli("inspect", root, "--json")
    found = json.loads(ran.out)
    assert (found["content"], found["texts"], found["samples"]) == ("text", 19, {"train": 11, "test": 8})
    assert found["splits"]["train"] == {"neg": 4, "pos": 7}
    assert found["words"] == {"min": 5, "median": 5, "mean": 13.1, "p95": 150, "max": 150}
    assert found["characters"]["max"] == 750
    assert (found["duplicates"]["within"], found["duplicates"]["leaked"], found["unreadable"]) == (1, 1, 1)
    assert len(found["shown"]) == 10 and {len(one["text"]) for one in found["shown"]} > {80}
    ran = cli("inspect", root, "--samples", 3)
    assert "neg text" in ran.out and "1 text identical to one in another split" in ran.out
    assert "\x1b" not in ran.out and str(root / "train/pos/8.txt") in ran.out
    assert sorted(tmp_path.rglob("*")) == before  # no pictures
    for flag in (("--img-size", 32), ("--headers-only",), ("--output", "x"), ("--hflip", 0.5)):
        ran = cli("inspect", root, *flag)
        assert (ran.code, f"{flag[0]} has no effect on texts" in ran.err) == (2, True)


def test_the_command_line(tmp_path, cli):
    src = write(tmp_path / "set.csv", "1,it is good\n0,it is bad\n1,so fine\n0,not so fine\n")
    ran = cli("convert", src, tmp_path / "D", "--text-column", 2, "--label-column", 1, "--no-header", "--json")
    assert (ran.code, json.loads(ran.out)["content"]) == (0, "text")
    ran = cli("convert", src, tmp_path / "E")
    assert ran.code == 0 and "texts" in ran.out and "text from column '2'" in ran.out and "tiled" not in ran.out
