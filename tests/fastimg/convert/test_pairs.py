"""Images with texts beside them: from a manifest into either container, appended, merged, resumed and verified."""

import csv
import io
import json

import pytest
from rich.console import Console

from fastimg.config.commands import Convert
from fastimg.convert.pairs import blank
from fastimg.convert.pipeline import convert
from fastimg.errors import UsageError
from fastimg.loaders import DataError, ImageError, open_dataset
from fastimg.loaders.captions.captions import captions_of
from fastimg.loaders.containers.description import read_description
from fastimg.loaders.decode import decode
from fastimg.loaders.runtime.scratch import Scratch

ROWS = [  # image, caption, label
    ("0.jpg", "a fine, red film", "pos"),
    ("1.jpg", "", "neg"),
    ("", "drôle, 映画\nand two lines", "pos"),
    ("2.jpg", "dull", "neg"),
    ("", "  ", "neg"),
    ("3.jpg", "4.jpg", "pos"),
    ("", "a text alone", "neg"),
]


@pytest.fixture
def posts(tmp_path, encode):
    """`posts(name, rows)`: a manifest of these rows, beside its images."""

    def write(name="posts.csv", rows=ROWS, header=("image", "caption", "label")):
        for path in {row[0] for row in rows if row[0]}:
            (tmp_path / path).write_bytes(encode((9 * int(path[0]), 99, 5), (40, 30), int(path[0])))
        with (tmp_path / name).open("w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows([header, *rows])
        return tmp_path / name

    return write


def make(src, dst, **options):
    options = {"text_column": "caption", "no_shuffle": True} | options
    return convert(Convert(src=src, dst=dst, workers="1", **options), Console(file=io.StringIO()))


def told(dst, split="train"):
    """What a split holds: label, text or None, and whether there is an image; its rows in order of their names."""
    images = open_dataset(dst, split)
    captions = captions_of(dst, images)
    rows = []
    for index in range(len(images)):
        text = None
        if captions.has_text[index]:
            text = bytes(captions.read(index, Scratch())).decode()
        else:
            with pytest.raises(ImageError, match="has no text"):
                captions.read(index, Scratch())
        there = bool(captions.has_image[index])
        assert there == (decode(images.read(index, Scratch())).shape != (32, 32, 3))
        rows.append((images.classes[images.labels[index]], text, there))
    images.close()
    captions.close()
    return sorted(rows, key=str)


KEPT = sorted(
    [(row[2], row[1] if row[1].strip() else None, bool(row[0])) for row in ROWS if row[0] or row[1].strip()], key=str
)


@pytest.mark.parametrize("container", ["tar", "beton"])
def test_a_manifest_becomes_images_with_texts_beside_them(posts, tmp_path, container):
    report = make(posts(), tmp_path / "out", format=container)
    assert told(tmp_path / "out") == KEPT
    assert [(skipped.path, skipped.reason) for skipped in report.skipped] == [
        ("posts.csv:6", "neither an image nor a text")
    ]
    assert report.missing == {"image": 2, "text": 1}
    assert json.loads(report.to_json())["missing"] == report.missing
    description = read_description(tmp_path / "out")
    assert description["inputs"] == ["image", "text"]
    assert description["splits"]["train"]["missing_inputs"] == {"image": 2, "text": 1}
    assert "text from 'caption'" in report.columns[0]


def test_a_jsonl_whose_first_row_lacks_the_image_or_the_text(posts, tmp_path):
    posts()
    whole = {"image": "0.jpg", "caption": "a fine film", "label": "pos"}
    for lacking in ("image", "caption"):
        rows = [{name: value for name, value in whole.items() if name != lacking}, whole]
        (tmp_path / "posts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        report = make(tmp_path / "posts.jsonl", tmp_path / lacking, path_column="image")
        assert report.missing == {"image": 0, "text": 0} | {"text" if lacking == "caption" else lacking: 1}


@pytest.mark.parametrize("container", ["tar", "beton"])
def test_texts_survive_appending_merging_and_the_other_container(posts, tmp_path, container):
    first, more = tmp_path / "first", [("4.jpg", "new", "pos"), ("5.jpg", "", "neg")]
    make(posts(), first, format=container)
    report = make(posts("more.csv", more), first, append=True)
    added = sorted([*KEPT, ("pos", "new", True), ("neg", None, True)], key=str)
    assert told(first) == added
    assert report.missing == {"image": 2, "text": 2}
    other = {"tar": "beton", "beton": "tar"}[container]
    make(first, tmp_path / "other", text_column=None, format=other)
    assert told(tmp_path / "other") == added
    second = tmp_path / "second"
    make(posts("more.csv", more), second)
    convert(Convert(src=first, dst=second, more=(tmp_path / "merged",), merge=True, workers="1"), Console(quiet=True))
    assert told(tmp_path / "merged") == sorted([*added, ("pos", "new", True), ("neg", None, True)], key=str)


def test_images_alone_may_be_appended_to_pairs(posts, tmp_path):
    make(posts(), tmp_path / "out")
    make(
        posts("bare.csv", [("4.jpg", "pos"), ("5.jpg", "neg")], ("image", "label")),
        tmp_path / "out",
        text_column=None,
        append=True,
    )
    assert read_description(tmp_path / "out")["splits"]["train"]["missing_inputs"] == {"image": 2, "text": 3}


def test_an_interrupted_conversion_goes_on_to_the_same_bytes(posts, tmp_path, monkeypatch):
    src = posts()
    make(src, tmp_path / "whole", shard_size="1KB")
    from fastimg.convert.journal import Journal

    add = Journal.add

    def stop(self, shard):
        add(self, shard)
        if len(self.finished) == 2:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Journal, "add", stop)
        make(src, tmp_path / "parts", shard_size="1KB")
    make(src, tmp_path / "parts", shard_size="1KB", resume=True)
    files = {path.name: path.read_bytes() for path in (tmp_path / "whole").iterdir() if path.is_file()}
    assert len(files) > 4
    assert {path.name: path.read_bytes() for path in (tmp_path / "parts").iterdir() if path.is_file()} == files


def test_without_a_column_of_texts_nothing_changes(posts, tmp_path):
    make(posts(rows=[row for row in ROWS if row[0]]), tmp_path / "out", text_column=None)
    description = read_description(tmp_path / "out")
    assert "inputs" not in description and "missing_inputs" not in description["splits"]["train"]
    dataset = open_dataset(tmp_path / "out", "train")
    assert captions_of(tmp_path / "out", dataset) is None
    dataset.close()
    assert not (tmp_path / "out/.fastimg").exists()


def test_a_column_of_other_paths_leaves_a_manifest_of_texts(posts, tmp_path):
    rows = [("reviews/1", "fine", "pos"), ("reviews/2", "dull", "neg")]
    with (tmp_path / "texts.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("file", "caption", "label"), *rows])
    make(tmp_path / "texts.csv", tmp_path / "out")
    assert read_description(tmp_path / "out")["content"] == "text"


@pytest.mark.parametrize(
    ("header", "options", "message"),
    [
        (("image", "caption", "label"), {"text_column": "text"}, "no column 'text' .--text-column."),
        (("image", "caption", "label"), {"path_column": "caption"}, "both name 'caption'"),
        (("image", "caption", "label"), {"text_column": "label"}, "label: the column is already its path"),
        (("image", "caption", "label"), {"target": ("caption",)}, "caption: the column is already its path"),
        (("image", "caption", "missing"), {"label_column": "caption"}, "'missing'.* rename it"),
    ],
)
def test_columns_that_cannot_be_read_are_refused(posts, tmp_path, header, options, message):
    with pytest.raises((UsageError, DataError), match=message):
        make(posts(header=header), tmp_path / "out", **options)


def test_texts_that_are_none_are_named(tmp_path, posts):
    posts()
    rows = [{"image": "0.jpg", "caption": 5, "label": "a"}, {"image": "1.jpg", "caption": "b", "label": "a"}]
    rows += [{"image": None, "caption": ["x"], "label": "a"}, {"image": None, "caption": "alone", "label": "b"}]
    (tmp_path / "posts.jsonl").write_text("\n".join(map(json.dumps, rows)))
    report = make(tmp_path / "posts.jsonl", tmp_path / "out")
    assert [skipped.reason for skipped in report.skipped] == ["its text is a number", "its text is a list or an object"]


def test_verify_compares_what_is_missing(posts, tmp_path, cli):
    make(posts(), tmp_path / "out")
    assert cli("verify", tmp_path / "out", "--deep").code == 0
    description = json.loads((tmp_path / "out/dataset.json").read_text())
    description["splits"]["train"]["missing_inputs"]["image"] = 1
    (tmp_path / "out/dataset.json").write_text(json.dumps(description))
    ran = cli("verify", tmp_path / "out")
    assert ran.code == 1 and "samples lack {'image': 2, 'text': 1}" in ran.out


def test_inspect_counts_what_is_missing_and_takes_blank_images_for_no_copies(posts, tmp_path, cli):
    make(posts(), tmp_path / "out")
    ran = cli("inspect", tmp_path / "out", "--no-pictures", "--json")
    found = json.loads(ran.out)
    assert found["missing"] == {"image": 2, "text": 1} and found["duplicates"]["within"] == 0
    assert "2 samples without an image, 1 without a text" in cli("inspect", tmp_path / "out", "--no-pictures").out


def test_the_blank_image_is_a_jpeg_that_every_reader_decodes():
    assert decode(blank()).shape == (32, 32, 3)
