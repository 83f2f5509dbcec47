"""Texts in tars and betons: round trips, foreign files, additions, and interruptions."""

import json

import pytest

import fastimg.convert.text_preparation
from fastimg.errors import UsageError
from fastimg.loaders import DataError, open_dataset
from fastimg.loaders.containers.betons.files import BetonWriter
from fastimg.loaders.containers.betons.kinds import BetonField
from fastimg.loaders.containers.tars.shards import ShardWriter, index_path

from ..conversions import contents
from .manifests import ROWS, manifest, members, texts


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
