"""Conversion: its output, its errors, clean-up, and resuming."""

import errno
import io
import json
import os
import re
import shutil
import tarfile
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from rich.console import Console

import fastimg.convert.image_preparation
import fastimg.convert.journal
from fastimg.config.commands import Convert
from fastimg.convert.pipeline import convert
from fastimg.convert.report import Report, Skipped, print_report
from fastimg.errors import UsageError, UserError
from fastimg.loaders.containers.datasets import list_splits, open_dataset, unfinished
from fastimg.loaders.containers.description import read_description
from fastimg.loaders.containers.tars.shards import ShardWriter, parse_index
from fastimg.loaders.decode import decode
from fastimg.loaders.errors import DataError
from fastimg.loaders.runtime.scratch import Scratch


@pytest.fixture
def console():
    return Console(file=io.StringIO(), width=200)


@pytest.fixture
def config(image_folder, tmp_path):
    """36 images of 3 classes into shards of a few images each."""
    return Convert(src=image_folder, dst=tmp_path / "out", shard_size="8KB", workers="2", tile="off")


@pytest.fixture
def whole(config, tmp_path, console):
    """The result of an uninterrupted run."""
    convert(replace(config, dst=tmp_path / "whole"), console)
    return contents(tmp_path / "whole")


def contents(folder):
    return {file.name: file.read_bytes() for file in folder.iterdir()}


def samples(folder, split="train"):
    """(original path, class, bytes) of every sample, by its stem's name, read by Python's tarfile."""
    found = {}
    for tar in sorted(folder.glob(f"{split}-*.tar")):
        members = {}
        with tarfile.open(tar) as archive:
            for info in archive:
                stem, _, ext = info.name.partition(".")
                members.setdefault(stem, {})[ext] = archive.extractfile(info).read()
        for stem, fields in members.items():
            (ext,) = fields.keys() - {"cls", "json"}
            found[stem] = (json.loads(fields["json"]), int(fields["cls"]), ext, fields[ext])
    return found


def write_table(folder, labels):
    """`folder/set.csv`: one row per label, using the images in turn."""
    files = sorted(folder.rglob("*.jpg"))
    rows = [f"{files[i % len(files)].relative_to(folder)},{label}" for i, label in enumerate(labels)]
    (folder / "set.csv").write_text("\n".join(["path,label", *rows, ""]))
    return folder / "set.csv"


def stop_after(monkeypatch, count, error=KeyboardInterrupt):
    """Raise `error` when image number `count` is checked."""
    left = iter(range(count))

    def decode_or_stop(*arguments):
        if next(left, None) is None:
            raise error
        return decode(*arguments)

    monkeypatch.setattr(fastimg.convert.image_preparation, "decode", decode_or_stop)


def stop_after_shard(monkeypatch, number):
    """Interrupt the conversion as soon as shard `number` is in the journal, however fast the threads are."""
    add = fastimg.convert.journal.Journal.add

    def add_and_stop(journal, shard):
        add(journal, shard)
        if shard.number == number:
            raise KeyboardInterrupt

    monkeypatch.setattr(fastimg.convert.journal.Journal, "add", add_and_stop)


def test_images_are_stored_as_they_are(config, image_folder, console):
    report = convert(config, console)
    stored = samples(config.dst)
    assert sorted(stored) == [f"{i:09d}" for i in range(36)]
    for note, label, ext, content in stored.values():
        file = image_folder / note["path"]
        assert content == file.read_bytes()
        assert (("blue", "green", "red")[label], "." + ext) == (file.parent.name, file.suffix)
    sizes = sum(file.stat().st_size for file in image_folder.rglob("*.*"))
    written = sum(file.stat().st_size for pattern in ("*.tar", "*.idx") for file in config.dst.glob(pattern))
    assert (report.images, report.classes, report.splits) == (36, 3, {"train": 36})
    assert (report.bytes_in, report.bytes_out, report.skipped, report.ignored) == (sizes, written, [], 0)


def test_contents_of_the_folder(config, console):
    convert(config, console)
    tars = sorted(file.name for file in config.dst.glob("*.tar"))
    assert len(tars) > 3 and tars[:2] == ["train-00000.tar", "train-00001.tar"]
    indexes = [name.replace(".tar", ".idx") for name in tars]
    assert sorted(contents(config.dst)) == sorted([*tars, *indexes, "dataset.json", "train.fidx"])
    description = read_description(config.dst)
    assert description["classes"] == ["blue", "green", "red"]
    assert description["splits"]["train"]["samples"] == 36
    assert description["splits"]["train"]["class_counts"] == [12, 12, 12]
    assert str(config.dst.parent) not in (config.dst / "dataset.json").read_text()


def test_the_index_points_at_the_members(config, console):
    convert(config, console)
    tar = config.dst / "train-00001.tar"
    content = tar.read_bytes()
    with tarfile.open(tar) as archive:
        members = [(info.name, info.offset_data, info.size) for info in archive]
    indexed = parse_index(tar.with_suffix(".idx"), len(content))
    assert [(m.name, m.offset, m.size) for sample in indexed for m in sample] == members
    assert [[m.ext for m in sample][1:] for sample in indexed] == [["cls", "json"]] * len(indexed)


def test_the_dataset_opens_and_reads(config, image_folder, console):
    convert(replace(config, val_fraction=0.25), console)
    assert list_splits(config.dst) == {"train": 27, "val": 9}
    dataset, scratch = open_dataset(config.dst, "val"), Scratch()
    assert Counter(dataset.labels.tolist()) == {0: 3, 1: 3, 2: 3}
    for i in range(9):
        original = re.search(r"\((.*)\)", dataset.sample_name(i))[1]
        assert bytes(dataset.read(i, scratch)) == (image_folder / original).read_bytes()
    dataset.close()


def test_bytes_do_not_depend_on_the_sources_location(config, whole, image_folder, tmp_path, console):
    shutil.move(image_folder, tmp_path / "elsewhere")
    convert(replace(config, src=tmp_path / "elsewhere"), console)
    assert contents(config.dst) == whole


def test_training_is_shuffled_by_the_seed(config, tmp_path, console):
    orders = []
    for seed in (0, 0, 1):
        convert(replace(config, seed=seed, overwrite=True), console)
        orders.append([note["path"] for note, *_ in samples(config.dst).values()])
    assert orders[0] == orders[1] != orders[2] and sorted(orders[0]) == sorted(orders[2]) != orders[0]
    convert(replace(config, no_shuffle=True, overwrite=True), console)
    assert [note["path"] for note, *_ in samples(config.dst).values()] == sorted(orders[0])


def test_held_out_images_are_sorted_and_not_trained_on(config, console):
    report = convert(replace(config, val_fraction=0.2), console)
    train, val = ([note["path"] for note, *_ in samples(config.dst, split).values()] for split in ("train", "val"))
    assert report.splits == {"train": 30, "val": 6}
    assert val == sorted(val) and not set(train) & set(val) and len(set(train) | set(val)) == 36


@pytest.mark.parametrize("kind", ["csv", "tsv", "jsonl"])
def test_manifests_keep_their_columns(kind, image_folder, tmp_path, console):
    rows = [
        {"path": f"images/{name}/{i:03d}.jpg", "label": name, "split": split, "who": f"p{i}"}
        for name in ("red", "blue")
        for i, split in ((0, "train"), (1, "train"), (2, "valid"))
    ]
    src = tmp_path / f"set.{kind}"
    if kind == "jsonl":
        src.write_text("".join(json.dumps(row) + "\n" for row in rows))
    else:
        separator = {"csv": ",", "tsv": "\t"}[kind]
        src.write_text("".join(separator.join(line) + "\n" for line in ([*rows[0]], *(r.values() for r in rows))))
    report = convert(Convert(src=src, dst=tmp_path / "out", tile="off"), console)
    assert report.splits == {"train": 4, "val": 2}
    for note, label, _, content in samples(tmp_path / "out", "val").values():
        assert note == {"path": f"images/{('blue', 'red')[label]}/002.jpg", "who": "p2"}
        assert content == (tmp_path / note["path"]).read_bytes()


def test_odd_images_keep_their_bytes(image_folder, tmp_path, console):
    pixels = Image.fromarray(np.arange(48 * 64 * 3, dtype=np.uint32).reshape(48, 64, 3).astype(np.uint8))
    exif = Image.Exif()
    exif[0x0112] = 6
    odd = image_folder / "red"
    pixels.save(odd / "turned.jpg", exif=exif)
    pixels.convert("CMYK").save(odd / "print.jpg")
    pixels.convert("P").save(odd / "palette.gif")
    pixels.save(odd / "a.tiff")
    pixels.save(odd / "a.webp")
    (odd / "misnamed.jpg").write_bytes((odd / "a.webp").read_bytes())
    report = convert(Convert(src=image_folder, dst=tmp_path / "out", tile="off"), console)
    assert report.images == 42 and not report.skipped
    ext = {}
    for note, _, extension, content in samples(tmp_path / "out").values():
        assert content == (image_folder / note["path"]).read_bytes()
        ext[note["path"]] = extension
    assert ext["red/misnamed.jpg"] == "webp" and ext["red/a.tiff"] == "tif" and ext["red/palette.gif"] == "gif"
    dataset = open_dataset(tmp_path / "out")
    turned = next(i for i in range(42) if "turned" in dataset.sample_name(i))
    assert (dataset.records["width"][turned], dataset.records["height"][turned]) == (48, 64)
    dataset.close()


@pytest.fixture
def damaged(image_folder, encode):
    """Five unusable images: path -> part of the reason."""
    folder = image_folder / "red"
    (folder / "cut.jpg").write_bytes(encode()[:-200])
    (folder / "empty.jpg").write_bytes(b"")
    (folder / "text.png").write_text("no image")
    (folder / "huge.png").write_bytes(encode(size=(400, 300), kind="PNG"))
    (folder / "gone.jpg").symlink_to("nowhere")
    return {
        "red/cut.jpg": "truncated",
        "red/empty.jpg": "empty",
        "red/text.png": "not an image",
        "red/huge.png": "400 x 300 pixels are more than max_pixels=10000",
        "red/gone.jpg": "no such file",
    }


def test_undecodable_images_are_left_out_and_named(config, damaged, console):
    report = convert(replace(config, max_pixels=10_000), console)
    assert report.images == 36 and len(report.skipped) == 5
    for path, reason in report.skipped:
        assert damaged[path] in reason
    assert len(samples(config.dst)) == 36 and max(samples(config.dst)) > f"{35:09d}"  # numbers have gaps


def test_left_out_images_do_not_move_others(config, image_folder, tmp_path, console):
    convert(config, console)
    before = samples(config.dst)
    gone = image_folder / "blue" / "004.jpg"
    gone.write_bytes(bytes(gone.stat().st_size))
    convert(replace(config, dst=tmp_path / "other"), console)
    after = samples(tmp_path / "other")
    assert after == {stem: sample for stem, sample in before.items() if sample[0]["path"] != "blue/004.jpg"}


def test_an_empty_shard_is_not_written(config, image_folder, console):
    convert(replace(config, no_shuffle=True), console)
    for note, *_ in list(samples(config.dst).values())[:8]:
        file = image_folder / note["path"]
        file.write_bytes(bytes(file.stat().st_size))
    report = convert(replace(config, no_shuffle=True, overwrite=True), console)
    assert report.images == 28 and not (config.dst / "train-00000.tar").exists()
    assert len(open_dataset(config.dst)) == 28


@pytest.mark.parametrize("name", ["cut.jpg", "empty.jpg", "text.png", "huge.png", "gone.jpg"])
def test_undecodable_images_stop_the_run(config, damaged, image_folder, console, name):
    for other in damaged.keys() - {f"red/{name}"}:
        (image_folder / other).unlink()
    file = image_folder / "red" / name
    with pytest.raises(DataError, match=f"^{re.escape(str(file))}: .*{damaged[f'red/{name}']}.*--on-error skip"):
        convert(replace(config, on_error="fail", max_pixels=10_000, dst=config.dst / "deep"), console)
    assert not config.dst.exists()


def test_a_row_without_its_file(image_folder, tmp_path, console):
    src = tmp_path / "set.csv"
    src.write_text("path,label\nimages/red/000.jpg,a\nimages/red/nowhere.jpg,a\n")
    config = Convert(src=src, dst=tmp_path / "out")
    with pytest.raises(DataError, match=r"set\.csv: row 3: images/red/nowhere\.jpg: no such file; .*--on-error skip"):
        convert(replace(config, on_error="fail"), console)
    assert not config.dst.exists()
    report = convert(config, console)
    assert report.images == 1 and report.skipped == [Skipped("images/red/nowhere.jpg", "no such file")]


@pytest.mark.parametrize("container", ["tar", "beton"])
def test_a_row_without_a_label(image_folder, tmp_path, console, container):
    src = tmp_path / "set.csv"
    rows = ["red/000.jpg,a", "red/001.jpg,", "red/001.jpg,b", "red/002.jpg, "]
    src.write_text("path,label\n" + "".join(f"images/{row}\n" for row in rows))
    config = Convert(src=src, dst=tmp_path / "out", format=container)
    with pytest.raises(DataError, match=r"set\.csv: row 3: images/red/001\.jpg: the label is empty; .*--on-error skip"):
        convert(replace(config, on_error="fail"), console)
    assert not config.dst.exists()
    report = convert(config, console)
    assert report.images == 2 and report.classes == 2
    left_out = {f"images/red/{name}.jpg": "the label is empty" for name in ("001", "002")}
    assert dict(report.skipped) == left_out and len(report.skipped) == 2


@pytest.mark.parametrize("val_fraction", [0.0, 0.25])
def test_a_class_without_usable_images(config, image_folder, console, val_fraction):
    for file in (image_folder / "green").iterdir():
        file.write_bytes(b"no image")
    with pytest.raises(DataError, match=r"no training image of class 'green' can be decoded \(.*not an image"):
        convert(replace(config, val_fraction=val_fraction), console)
    assert not config.dst.exists()


def test_a_split_without_usable_images(tmp_path, encode, console):
    for name, content in (("train/a/1.jpg", encode()), ("val/a/1.jpg", b"no image")):
        (tmp_path / "src" / name).parent.mkdir(parents=True)
        (tmp_path / "src" / name).write_bytes(content)
    with pytest.raises(DataError, match="no image of the split val can be decoded"):
        convert(Convert(src=tmp_path / "src", dst=tmp_path / "out"), console)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"val_fraction": 1.0}, "--val-fraction 1.0: give a share"),
        ({"val_fraction": -0.1}, "--val-fraction -0.1"),
        ({"val_fraction": float("nan")}, "--val-fraction nan"),
        ({"shard_size": "many"}, "--shard-size many"),
        ({"shard_size": "9" * 400}, "--shard-size 99999"),
        ({"workers": "0"}, "--workers 0: give auto or a number of threads, 1 or more"),
        ({"workers": "two"}, "--workers two"),
        ({"seed": -1}, "--seed -1"),
        ({"max_pixels": 0}, "--max-pixels 0"),
        ({"resume": True, "overwrite": True}, "give only one of them"),
    ],
)
def test_flags_that_make_no_sense(config, console, flags, message):
    with pytest.raises(UsageError, match=message):
        convert(replace(config, **flags), console)
    assert not config.dst.exists()


def test_val_fraction_with_a_validation_split(tmp_path, encode, console):
    for split in ("train", "validation"):
        (tmp_path / "src" / split / "a").mkdir(parents=True)
        (tmp_path / "src" / split / "a" / "1.jpg").write_bytes(encode())
    with pytest.raises(UsageError, match="already has a validation split; leave out --val-fraction"):
        convert(Convert(src=tmp_path / "src", dst=tmp_path / "out", val_fraction=0.1), console)


def test_val_fraction_of_single_images(tmp_path, encode, console):
    (tmp_path / "src" / "a").mkdir(parents=True)
    (tmp_path / "src" / "a" / "1.jpg").write_bytes(encode())
    with pytest.raises(DataError, match="no class has two images"):
        convert(Convert(src=tmp_path / "src", dst=tmp_path / "out", val_fraction=0.1), console)


@pytest.mark.parametrize("inside", [".", "red/out", "red/../out"])
def test_destination_in_the_source(config, image_folder, console, inside):
    with pytest.raises(UsageError, match="the destination lies in the source"):
        convert(replace(config, dst=image_folder / inside), console)
    assert not (image_folder / "out").exists()


@pytest.mark.parametrize("flags", [{}, {"resume": True}, {"overwrite": True}])
@pytest.mark.parametrize(
    ("description", "journal"),
    [
        (b'{"format": "another"}', b"[]\n"),
        (b"[" * 100_000, b"[" * 100_000 + b"\n"),
        (b"", b'{"format": "fastimg conversion", "options": []}\n'),
    ],
    ids=["another", "deep", "no options"],
)
def test_a_foreign_folder_is_not_changed(config, console, flags, description, journal):
    config.dst.mkdir()
    theirs = {"train-00000.tar": b"theirs", "dataset.json": description, "convert.json": journal}
    for name, content in theirs.items():
        (config.dst / name).write_bytes(content)
    with pytest.raises(UserError, match="not empty, and not made by fastimg convert; give a new or empty"):
        convert(replace(config, **flags), console)
    assert contents(config.dst) == theirs


def test_destination_is_a_file(config, console):
    config.dst.write_text("mine")
    with pytest.raises(UserError, match="is a file, but the dataset needs a folder"):
        convert(replace(config, overwrite=True), console)
    assert config.dst.read_text() == "mine"


def test_an_empty_folder_is_used_and_kept(config, image_folder, console):
    config.dst.mkdir()
    convert(replace(config, resume=True), console)
    shutil.rmtree(config.dst)
    config.dst.mkdir()
    (image_folder / "red" / "bad.jpg").write_bytes(b"bad")
    with pytest.raises(DataError):
        convert(replace(config, on_error="fail"), console)
    assert contents(config.dst) == {}


def test_a_folder_with_only_an_embedding_cache_counts_as_empty(config, console):
    cache = config.dst / ".fastimg" / "embeddings"
    cache.mkdir(parents=True)
    convert(config, console)
    assert cache.exists() and list_splits(config.dst)


def test_overwrite_deletes_only_converted_files(config, tmp_path, console):
    convert(replace(config, shard_size="2KB", val_fraction=0.3), console)
    (config.dst / "notes.txt").write_text("mine")
    (config.dst / "train-00000.tar.bak").write_text("mine")
    with pytest.raises(UserError, match=r"already holds a dataset; .*--overwrite"):
        convert(config, console)
    convert(replace(config, overwrite=True), console)
    convert(replace(config, dst=tmp_path / "fresh"), console)
    mine = {"notes.txt": b"mine", "train-00000.tar.bak": b"mine"}
    assert contents(config.dst) == contents(tmp_path / "fresh") | mine


def test_an_invalid_source_overwrites_nothing(config, tmp_path, console):
    convert(config, console)
    before = contents(config.dst)
    with pytest.raises(DataError, match="no such file"):
        convert(replace(config, src=tmp_path / "nowhere", overwrite=True), console)
    assert contents(config.dst) == before


def test_resume_of_a_complete_conversion(config, image_folder, console):
    first = convert(config, console)
    before = contents(config.dst)
    again = convert(replace(config, resume=True, workers="1"), console)
    assert "already complete" in console.file.getvalue()
    assert replace(again, seconds=0, images_per_second=0) == replace(first, seconds=0, images_per_second=0)
    assert contents(config.dst) == before
    with pytest.raises(UserError, match=r"something else: --seed \(0 there, 1 here\), --shard-size \(8000 there, 9000"):
        convert(replace(config, resume=True, seed=1, shard_size="9KB"), console)
    (image_folder / "red" / "000.jpg").unlink()
    with pytest.raises(UserError, match=r"something else: the source \(its paths, labels or sizes\); .*--overwrite"):
        convert(replace(config, resume=True), console)
    assert contents(config.dst) == before


def test_finished_shards_are_not_made_again(config, console, monkeypatch):
    stop_after_shard(monkeypatch, 0)
    with pytest.raises(KeyboardInterrupt):
        convert(config, console)
    monkeypatch.undo()
    times = {tar: tar.stat().st_mtime_ns for tar in config.dst.glob("*.tar")}
    assert times
    convert(replace(config, resume=True), console)
    assert {tar: tar.stat().st_mtime_ns for tar in times} == times


@pytest.mark.parametrize("damage", ["missing", "cut", "index", "journal", "next line", "name", "deep"])
def test_resume_does_not_trust_changed_files(config, whole, console, monkeypatch, damage):
    stop_after_shard(monkeypatch, 1)
    with pytest.raises(KeyboardInterrupt):
        convert(config, console)
    monkeypatch.undo()
    tar, index, journal = (config.dst / name for name in ("train-00001.tar", "train-00001.idx", "convert.json"))
    if damage == "missing":
        tar.unlink()
    elif damage == "cut":
        os.truncate(tar, 1000)
    elif damage == "index":
        index.write_bytes(index.read_bytes().replace(b"jpg", b"png"))
    elif damage == "journal":
        os.truncate(journal, journal.stat().st_size - 20)
    elif damage == "name":
        journal.write_bytes(journal.read_bytes().replace(b'"name":"', b'"name":"../D/'))
    elif damage == "deep":
        journal.write_bytes(journal.read_bytes() + b'{"x":' + b"[" * 100_000 + b"\n")
    else:
        journal.write_bytes(journal.read_bytes() + b"\0\0\n")
    convert(replace(config, resume=True), console)
    assert contents(config.dst) == whole


def test_overwrite_of_an_unfinished_conversion(config, whole, console, monkeypatch):
    stop_after(monkeypatch, 20)
    with pytest.raises(KeyboardInterrupt):
        convert(replace(config, seed=5), console)
    monkeypatch.undo()
    convert(replace(config, overwrite=True), console)
    assert contents(config.dst) == whole


def test_a_failing_resume_keeps_finished_shards(config, image_folder, console, monkeypatch):
    (image_folder / "red" / "bad.jpg").write_bytes(b"bad")
    config = replace(config, on_error="fail", no_shuffle=True)  # red is last
    stop_after(monkeypatch, 20)
    with pytest.raises(KeyboardInterrupt):
        convert(config, console)
    monkeypatch.undo()
    before = contents(config.dst)
    with pytest.raises(DataError, match=r"bad\.jpg"):
        convert(replace(config, resume=True), console)
    assert contents(config.dst).items() >= {k: v for k, v in before.items() if k != "convert.json"}.items()
    assert unfinished(config.dst)


def test_a_disk_that_is_full_from_the_start(config, console, monkeypatch):
    """For a source that is first copied to a temporary file."""

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("fastimg.convert.sources.streams.os.write", full)
    with pytest.raises(
        UserError, match=rf"{config.dst}: no space left on the disk; free some space, then convert again"
    ):
        convert(replace(config, src=Path("sklearn:digits")), console)
    assert not config.dst.exists()


def test_a_destination_is_refused_before_the_source_is_read(config, console, monkeypatch):
    convert(config, console)
    monkeypatch.setattr("fastimg.convert.pipeline.read_source", None)
    with pytest.raises(UserError, match="already holds a dataset"):
        convert(config, console)


def test_links_in_a_circle(config, tmp_path, console):
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(UserError, match="loop: File exists; check the path"):
        convert(replace(config, dst=tmp_path / "loop"), console)
    with pytest.raises(DataError, match="loop: no such file or folder"):
        convert(replace(config, src=tmp_path / "loop"), console)


def test_another_error_of_the_disk_leaves_nothing(config, console, monkeypatch):

    def broken(self, data):
        raise OSError(errno.EIO, "Input/output error", str(self.path))

    monkeypatch.setattr(ShardWriter, "_write", broken)
    with pytest.raises(UserError, match=r"train-00000\.tar: Input/output error"):
        convert(config, console)
    assert not config.dst.exists()


def test_a_second_conversion_is_locked_out(config, console):
    config.dst.mkdir()
    with (
        fastimg.convert.journal.locked(config.dst),
        pytest.raises(UserError, match="another conversion is writing to it"),
    ):
        convert(config, console)


def test_unusual_errors_of_decoders(config, console, monkeypatch):
    """Pillow's AVIF plugin raises RuntimeError on damaged files."""
    stop_after(monkeypatch, 35, RuntimeError("Failed to decode image"))
    report = convert(config, console)
    assert [reason for _, reason in report.skipped] == ["the decoder failed (RuntimeError: Failed to decode image)"]


def test_an_image_that_changes_during_the_conversion(config, image_folder, console, monkeypatch):
    file = image_folder / "red" / "000.jpg"
    monkeypatch.setattr("fastimg.convert.pipeline._check_missing", lambda *_: file.write_bytes(b"another size"))
    report = convert(config, console)
    assert report.skipped == [Skipped("red/000.jpg", "changed after the source was listed")]


def test_file_names_that_are_not_utf8(config, image_folder, encode, console):
    name = os.fsdecode(b"caf\xe9.jpg")
    (image_folder / "red" / name).write_bytes(encode())
    (image_folder / "red" / ("x" + name)).write_bytes(b"bad")
    report = convert(config, console)
    assert report.images == 37 and report.skipped[0].path == r"red/xcaf\udce9.jpg"
    assert f"red/{name}" in {note["path"] for note, *_ in samples(config.dst).values()}
    print_report(report, console)


def test_the_number_of_images_in_memory_is_bounded(config, console, monkeypatch):
    started, written, widest = [], [], 0
    add = ShardWriter.add

    def counting_decode(*arguments):
        started.append(1)
        return decode(*arguments)

    def counting_add(self, stem, fields):
        nonlocal widest
        widest = max(widest, len(started) - len(written))
        written.append(1)
        return add(self, stem, fields)

    monkeypatch.setattr(fastimg.convert.image_preparation, "decode", counting_decode)
    monkeypatch.setattr(ShardWriter, "add", counting_add)
    convert(replace(config, workers="1"), console)
    assert len(written) == 36 and widest <= fastimg.convert.image_preparation.AHEAD + 1


def test_report(console):
    report = Report(
        dst="[out]",
        format="tar",
        images=1200,
        added=1200,
        classes=2,
        splits={"train": 1000, "val": 200},
        bytes_in=5_000_000,
        bytes_out=6_000_000,
        skipped=[Skipped(f"a/{i}.jpg", "the file is empty") for i in range(14)],
        tiled=1100,
        reencoded=0,
        kept=100,
        outcomes={"tiled": 1100, "kept: png": 90, "kept: bmp": 10},
        ignored=13,
        ignored_names=[Skipped(f"{i}.jpg", "loose") for i in range(10)],
        ignored_summary="12 loose (.jpg); 1 hidden",
        seconds=2.0,
        images_per_second=600.0,
    )
    print_report(report, console)
    shown = console.file.getvalue()
    for text in (
        "[out]",
        "1,200 of 2 classes (train 1,000, val 200)",
        "600 img/s",
        "5.0 MB in, 6.0 MB out",
        "14 images: 14 the",
        "1,100 JPEGs",
        "100 as they were: 90 png, 10 bmp",
    ):
        assert text in shown
    assert "skipped a/9.jpg: the file is empty" in shown and "a/10.jpg" not in shown and "... and 4 more" in shown
    assert "ignored" in shown and "13 files: 12 loose (.jpg); 1 hidden" in shown
    assert "ignored 9.jpg: loose" in shown and "... and 3 more" in shown
    told = json.loads(report.to_json())
    assert told["ignored"] == 13 and told["ignored_names"][9] == {"path": "9.jpg", "reason": "loose"}
    assert told["skipped"][0] == {"path": "a/0.jpg", "reason": "the file is empty"} and told["images"] == 1200


def test_labels_are_classes_if_declared(image_folder, tmp_path, cli):
    src = write_table(image_folder, range(100))
    ran = cli("convert", src, tmp_path / "out")
    assert ran.code == 1 and "look like identifiers" in ran.err and not (tmp_path / "out").exists()
    ran = cli("convert", src, tmp_path / "out", "--labels-are-classes")
    assert ran.code == 0 and "100 of 100 classes" in ran.out
    assert "--labels-are-classes makes a class of each of 100 different ones" in ran.err
    assert read_description(tmp_path / "out")["options"]["labels_are_classes"] is True
    again = ("convert", src, tmp_path / "out", "--resume")
    assert "already complete" in cli(*again, "--labels-are-classes").err
    more = write_table(image_folder, [*range(99, -1, -1)])  # each label is unique, and known
    assert cli("convert", more, tmp_path / "out", "--append").code == 0
    assert read_description(tmp_path / "out")["splits"]["train"]["class_counts"] == [2] * 100


def test_labels_that_look_like_classes_need_no_option(image_folder, tmp_path, cli):
    ran = cli("convert", write_table(image_folder, "abab"), tmp_path / "out")
    assert ran.code == 0 and "labels_are_classes" not in read_description(tmp_path / "out")["options"]


@pytest.mark.parametrize("container", ["folder", "tar", "beton"])
def test_classes_of_containers_are_not_judged(container, tmp_path, encode, cli):
    src = tmp_path / "src"
    for i in range(20):
        (src / f"{i / 8}|{i}").mkdir(parents=True)
        (src / f"{i / 8}|{i}" / "1.jpg").write_bytes(encode(seed=i))
    if container != "folder":
        assert cli("convert", src, tmp_path / "D", "--format", container).code == 0
        src = tmp_path / "D"
    ran = cli("convert", src, tmp_path / "out")
    assert ran.code == 0 and "20 of 20 classes" in ran.out
    ran = cli("convert", src, tmp_path / "E", "--labels-are-classes")
    assert ran.code == 2 and "--labels-are-classes has no effect: " in ran.err and not (tmp_path / "E").exists()


def test_a_table_and_a_folder_merge_with_any_labels(image_folder, tmp_path, cli):
    src = write_table(image_folder, ["blue|red", "red", "blue"])
    ran = cli("convert", src, image_folder, tmp_path / "out", "--merge", "--labels-are-classes")
    assert ran.code == 0 and read_description(tmp_path / "out")["classes"] == ["blue", "blue|red", "red", "green"]


def test_a_single_class_is_reported(image_folder, tmp_path, cli):
    ran = cli("convert", write_table(image_folder, "aaa"), tmp_path / "out")
    assert ran.code == 0
    assert "set.csv: there is only one class, 'a'; `train` refuses such a dataset, which has nothing to" in ran.err
    ran = cli("convert", write_table(image_folder, "bbb"), tmp_path / "out", "--append")
    assert ran.code == 0 and "only one class" not in ran.err


def test_classes_with_almost_the_same_spelling(image_folder, tmp_path, cli):
    ran = cli("convert", write_table(image_folder, ["dog", "Dog", "cat", "a  b", "A b"]), tmp_path / "out")
    assert ran.code == 0
    told = "classes that differ only in upper and lower case or spaces stay apart: 'A b' and 'a  b'; 'Dog' and 'dog'; "
    assert told + "write them alike if they are the same" in ran.err
    ran = cli("convert", write_table(image_folder, ["DOG", "cat"]), tmp_path / "out", "--append")
    assert "'Dog' and 'dog' and 'DOG'" in ran.err


def test_which_columns_were_used_is_reported(image_folder, tmp_path, cli):
    src = write_table(image_folder, "abab")
    src.write_text(src.read_text().replace(",", ";"))
    report = json.loads(cli("convert", src, tmp_path / "out", "--json").out)
    assert report["columns"] == [f"{src}: path from column 'path', label from 'label', columns separated by ';'"]


@pytest.fixture
def loose(image_folder, encode, heic, heif_plugin):
    """The class folder, and 15 images next to its classes, two HEICs in one class, a note and a hidden file."""
    for i in range(15):
        (image_folder / f"IMG_{i:02}.jpg").write_bytes(encode(seed=i))
    for i in range(2):
        (image_folder / f"red/{i}.heic").write_bytes(heic(i))
    (image_folder / "red/empty.jpg").touch()
    (image_folder / "README.md").write_text("x")
    (image_folder / "blue/.DS_Store").write_text("x")
    return image_folder


HEIC = "HEIC, readable after `pip install pillow-heif`"


def test_used_skipped_and_ignored_files_add_up(config, loose, console):
    report = convert(config, console)
    files = sum(path.is_file() for path in loose.rglob("*"))
    assert (report.images, len(report.skipped), report.ignored) == (36, 1, 19)
    assert report.images + len(report.skipped) + report.ignored == files
    reasons = {"outside any class folder": 15, HEIC: 2, "without an image's extension": 1}
    reasons["hidden by a leading dot"] = 1
    assert report.ignored_reasons == reasons and list(report.ignored_reasons) == list(reasons)
    assert report.ignored_extensions == {".jpg": 15, ".heic": 2, "": 1, ".md": 1}
    print_report(report, console)
    shown = console.file.getvalue()
    assert "19 files: 15 outside any class folder (.jpg); 2 HEIC, readable after" in shown
    for line in (
        "ignored IMG_00.jpg: outside any class folder",
        f"ignored red/0.heic: {HEIC}",
        "ignored README.md: without an image's extension",
        "ignored blue/.DS_Store: hidden by a leading dot",
        "... and 9 more",
    ):
        assert f"\n{line}\n" in shown
    told = json.loads(report.to_json())
    assert (told["ignored"], told["ignored_reasons"]) == (19, reasons) and len(told["ignored_names"]) == 10
    assert told["ignored_names"][0] == {"path": "IMG_00.jpg", "reason": "outside any class folder"}
    stored = read_description(config.dst)["ignored"]
    assert (stored["files"], stored["counts"][HEIC], stored["names"][HEIC]) == (
        *(19, {".heic": 2}),
        ["red/0.heic", "red/1.heic"],
    )
    again = convert(replace(config, resume=True), console)
    assert (again.ignored, again.ignored_names) == (report.ignored, report.ignored_names)


def test_ignored_files_add_up_over_appending_and_merging(config, loose, encode, tmp_path, console):
    (tmp_path / "more/red").mkdir(parents=True)
    (tmp_path / "more/red/1.jpg").write_bytes(encode(seed=77))
    (tmp_path / "more/0.jpg").write_bytes(encode(seed=78))
    convert(config, console)
    appended = convert(Convert(src=tmp_path / "more", dst=config.dst, append=True, workers="2"), console)
    merged = Convert(src=loose, dst=tmp_path / "more", more=(tmp_path / "merged",), merge=True, workers="2")
    for report in (appended, convert(merged, console)):
        assert (report.images, len(report.skipped), report.ignored) == (37, 1, 20)
        assert report.ignored_reasons["outside any class folder"] == 16


def test_appending_to_a_dataset_without_counts_of_ignored_files(config, tmp_path, encode, console):
    convert(config, console)
    description = read_description(config.dst)
    del description["ignored"]
    (config.dst / "dataset.json").write_text(json.dumps(description))
    (tmp_path / "more/red").mkdir(parents=True)
    for name in ("red/1.jpg", "0.jpg"):
        (tmp_path / "more" / name).write_bytes(encode(seed=77))
    assert convert(Convert(src=tmp_path / "more", dst=config.dst, append=True, workers="2"), console).ignored == 1


def test_heic_is_stored_if_its_plugin_is_installed(config, loose, heic, heif_plugin, console):
    heif_plugin(installed=True)
    (loose / "red/really_heic.jpg").write_bytes(heic(9))
    report = convert(config, console)
    assert (report.images, report.ignored) == (39, 17)
    stored = {note["path"]: (ext, content) for note, _, ext, content in samples(config.dst).values()}
    assert stored["red/0.heic"] == ("heif", heic(0)) and stored["red/really_heic.jpg"] == ("heif", heic(9))
    dataset, scratch = open_dataset(config.dst), Scratch()
    assert {decode(dataset.read(i, scratch)).shape[2] for i in range(39)} == {3}
    dataset.close()
    heif_plugin(installed=False)  # a machine without the plugin
    second = convert(replace(config, src=config.dst, dst=config.dst.parent / "second"), console)
    assert len(second.skipped) == 3
    assert {reason for _, reason in second.skipped} == {f"a sample without an image that can be decoded: {HEIC}"}


@pytest.mark.parametrize("kind", ["GIF", "AVIF"])
def test_images_of_other_formats_are_kept(kind, config, image_folder, console):
    name, suffix = f"red/other.{kind.lower()}", kind.lower()
    frames = [Image.fromarray(np.full((24, 32, 3), shade, np.uint8)) for shade in (60, 200)]
    frames[0].save(image_folder / name, kind, save_all=True, append_images=frames[1:])
    original = (image_folder / name).read_bytes()
    plain = open_dataset(image_folder)
    (at,) = (i for i in range(len(plain)) if plain.sample_name(i).endswith(name))
    pixels = decode(plain.read(at, Scratch()))
    assert abs(pixels.astype(int) - 60).max() <= 3  # the first frame
    report = convert(replace(config, tile="auto"), console)
    assert report.outcomes[f"kept: {suffix}"] == 1
    assert (suffix, original) in {(ext, content) for _, _, ext, content in samples(config.dst).values()}
    beton = replace(config, dst=config.dst.parent / "beton", format="beton")
    assert convert(beton, console).outcomes[f"kept: as raw pixels: {suffix}"] == 1
    back = replace(config, src=beton.dst, dst=config.dst.parent / "back")
    convert(back, console)
    assert (suffix, original) in {(ext, content) for _, _, ext, content in samples(back.dst).values()}
    dataset = open_dataset(beton.dst)
    (raw,) = (i for i in range(len(dataset)) if name in dataset.sample_name(i))
    np.testing.assert_array_equal(decode(dataset.read(raw, Scratch())), pixels)
    dataset.close()


def nested(root, encode, above=""):
    for i, name in enumerate(("animals/a", "animals/b", "plants/c", "plants/d")):
        (root / above / name).mkdir(parents=True)
        for j in range(3):
            (root / above / name / f"{j}.jpg").write_bytes(encode(seed=3 * i + j))
    return root


@pytest.mark.parametrize(
    ("flags", "classes", "said"),
    [
        ({}, ["animals", "plants"], True),
        ({"classes": "top"}, ["animals", "plants"], False),
        ({"classes": "leaf"}, ["a", "b", "c", "d"], False),
    ],
)
def test_nested_folders(flags, classes, said, tmp_path, encode, console):
    config = Convert(src=nested(tmp_path / "nested", encode), dst=tmp_path / "out", workers="2", **flags)
    assert convert(config, console).classes == len(classes)
    assert read_description(config.dst)["classes"] == classes
    assert ("use --classes leaf to take the innermost folder as the class" in console.file.getvalue()) == said


def test_names_of_splits_are_recognised_and_reported(tmp_path, encode, console):
    nested(tmp_path / "split", encode, "Training")
    nested(tmp_path / "split", encode, "valid")
    report = convert(Convert(src=tmp_path / "split", dst=tmp_path / "out", workers="2", classes="top"), console)
    assert (report.splits, report.classes) == ({"train": 12, "val": 12}, 2)
    assert "folders are read as splits: Training/ as train, valid/ as val" in console.file.getvalue()
    nested(tmp_path / "split", encode, "train")
    with pytest.raises(DataError, match="Training/ and train/ are both names of the split train; keep one of them"):
        convert(Convert(src=tmp_path / "split", dst=tmp_path / "other"), console)


def test_classes_has_no_effect_on_other_sources(config, image_folder, tmp_path, console):
    convert(config, console)
    (tmp_path / "list.csv").write_text("path,label\nimages/red/000.jpg,x\n")
    for src in (config.dst, tmp_path / "list.csv", Path("sklearn:digits")):
        with pytest.raises(UsageError, match=f"^--classes leaf has no effect: {src} is not a folder of class folders;"):
            convert(Convert(src=src, dst=tmp_path / "second", classes="leaf"), console)
    merged = Convert(src=config.dst, dst=image_folder, more=(tmp_path / "m",), merge=True, classes="leaf", workers="2")
    assert convert(merged, console).images == 72
