"""What a conversion writes: images as they are, their index, their order, and their bytes."""

import json
import os
import re
import shutil
import tarfile
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

import fastimg.convert.image_preparation
from fastimg.config.commands import Convert
from fastimg.convert.pipeline import convert
from fastimg.convert.report import print_report
from fastimg.loaders.containers.datasets import list_splits, open_dataset
from fastimg.loaders.containers.description import read_description
from fastimg.loaders.containers.tars.shards import ShardWriter, parse_index
from fastimg.loaders.decode import decode
from fastimg.loaders.runtime.scratch import Scratch

from .conversions import contents, samples


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
