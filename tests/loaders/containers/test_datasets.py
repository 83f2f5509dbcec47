"""Opening shards: what is read and rebuilt, and errors that name the file."""

import hashlib
import json
import os
import re
import shutil

import numpy as np
import pytest

from fastimg.loaders.containers.datasets import list_splits, open_dataset
from fastimg.loaders.containers.derived import kept as kept_files
from fastimg.loaders.containers.derived import records
from fastimg.loaders.containers.description import FORMAT, FORMAT_VERSION, SHARD_KEYS
from fastimg.loaders.containers.tars.shards import ShardWriter, index_path
from fastimg.loaders.errors import DataError, ShardError
from fastimg.loaders.runtime.scratch import Scratch

PER_SHARD = 4

pytestmark = pytest.mark.usefixtures("cache")


@pytest.fixture
def dataset_folder(tmp_path, images):
    """Three shards of the ten images, labels 0 and 1 in turn."""
    folder = tmp_path / "data"
    folder.mkdir()
    described = []
    for number, start in enumerate(range(0, len(images), PER_SHARD)):
        name = f"train-{number:05d}.tar"
        with ShardWriter(folder / name) as shard:
            for i in range(start, min(start + PER_SHARD, len(images))):
                note = json.dumps({"path": f"class{i % 2}/{i}.jpg"}).encode()
                shard.add(f"{i:09d}", {"jpg": images[i], "cls": str(i % 2).encode(), "json": note})
        written = vars(shard) | {"name": name, "samples": shard.count}
        described.append({key: written[key] for key in SHARD_KEYS})
    description = {
        "format": FORMAT,
        "version": FORMAT_VERSION,
        "container": "tar",
        "classes": ["even", "odd"],
        "splits": {"train": {"samples": len(images), "shards": described}},
    }
    (folder / "dataset.json").write_text(json.dumps(description))
    return folder


@pytest.fixture
def opened(dataset_folder):
    dataset = open_dataset(dataset_folder)
    yield dataset
    dataset.close()


def damage(folder, edit):
    description = json.loads((folder / "dataset.json").read_text())
    edit(description)
    (folder / "dataset.json").write_text(json.dumps(description))


def refresh(folder, number):
    """Describe shard `number` in dataset.json as it is on disk."""
    tar = folder / f"train-{number:05d}.tar"

    def edit(description):
        for prefix, file in (("", tar), ("index_", index_path(tar))):
            content = file.read_bytes()
            shard = description["splits"]["train"]["shards"][number]
            shard[f"{prefix}bytes"], shard[f"{prefix}sha256"] = len(content), hashlib.sha256(content).hexdigest()

    damage(folder, edit)


def test_samples_labels_and_sizes(opened, images):
    scratch = Scratch()
    assert len(opened) == 10 and opened.classes == ("even", "odd")
    assert opened.labels.dtype == np.int64 and opened.labels.tolist() == [0, 1] * 5
    assert opened.records["width"].tolist() == list(range(30, 40))
    assert opened.records["height"].tolist() == list(range(20, 30))
    opened.will_need(np.arange(10))
    for i in (9, 0, 5, 5, 3):
        assert bytes(opened.read(i, scratch)) == images[i]


def test_readable_names_of_samples(opened, dataset_folder):
    assert opened.sample_name(5) == f"{dataset_folder}/train-00001.tar: 000000005.jpg (class1/5.jpg)"


def test_splits(dataset_folder):
    assert list_splits(dataset_folder) == {"train": 10}
    with pytest.raises(DataError, match="no split 'val' in it; it has train"):
        open_dataset(dataset_folder, "val")
    with pytest.raises(DataError, match="no split 'trian' in it; it has train; did you mean train"):
        open_dataset(dataset_folder, "trian")


def test_the_compact_index_is_used_and_rebuilt(dataset_folder, monkeypatch):
    derived = dataset_folder / "train.fidx"
    open_dataset(dataset_folder).close()
    fresh = derived.read_bytes()
    monkeypatch.setattr(records, "_shard_records", None)
    open_dataset(dataset_folder).close()  # nothing is derived a second time
    monkeypatch.undo()
    stale, foreign, flipped = fresh[:8] + bytes(32) + fresh[40:], b"X" + fresh[1:], fresh[:-20] + b"\1" + fresh[-19:]
    for spoilt in (None, b"", fresh[:40], fresh[:-5], fresh + b"more", stale, foreign, flipped):
        derived.unlink() if spoilt is None else derived.write_bytes(spoilt)
        open_dataset(dataset_folder).close()
        assert derived.read_bytes() == fresh


def test_read_only_data_uses_the_cache(dataset_folder, cache, monkeypatch):
    replace_file = kept_files.replace_file

    def read_only(path, content):
        if path.parent == dataset_folder:
            raise PermissionError(13, "Permission denied")
        replace_file(path, content)

    monkeypatch.setattr(kept_files, "replace_file", read_only)
    first = open_dataset(dataset_folder)
    (kept,) = cache.rglob("train.fidx")
    assert not (dataset_folder / "train.fidx").exists()
    monkeypatch.setattr(records, "_shard_records", None)
    again = open_dataset(dataset_folder)
    assert (again.records == first.records).all() and kept.is_file()
    first.close()
    again.close()


def test_a_read_only_home_folder(dataset_folder, monkeypatch):
    def read_only(path, content):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(kept_files, "replace_file", read_only)
    dataset = open_dataset(dataset_folder)
    assert len(dataset) == 10
    dataset.close()


@pytest.mark.parametrize("name", ["train-00001.tar", "train-00001.idx"])
@pytest.mark.parametrize("how", ["missing", "cut"])
def test_missing_and_truncated_files(dataset_folder, name, how):
    open_dataset(dataset_folder).close()
    file = dataset_folder / name
    if how == "missing":
        file.unlink()
    else:
        os.truncate(file, file.stat().st_size - 1)
    message = "missing" if how == "missing" else r"\d+ bytes where dataset.json says \d+: cut short or altered"
    with pytest.raises(ShardError, match=f"^{re.escape(str(file))}: {message}; copy it again, or .*overwrite=True"):
        open_dataset(dataset_folder)


def test_a_tar_that_shrinks_while_it_is_open(opened, dataset_folder):
    tar = dataset_folder / "train-00000.tar"
    os.truncate(tar, 2000)
    with pytest.raises(ShardError, match=f"^{re.escape(str(tar))}: shrank while it was in use; copy it again"):
        opened.read(3, Scratch())


def test_an_altered_header(dataset_folder):
    open_dataset(dataset_folder).close()
    tar = dataset_folder / "train-00001.tar"
    dataset = open_dataset(dataset_folder)
    record, before = dataset.records[5], tar.stat()
    dataset.read(5, Scratch())
    with tar.open("r+b") as file:
        file.seek(int(record["offset"]) - 512 + 124)
        file.write(b"%011o" % (int(record["size"]) + 1))
    os.utime(tar, ns=(before.st_atime_ns, before.st_mtime_ns))
    with pytest.raises(ShardError, match=rf"^{re.escape(str(tar))}: was altered while it was in use; copy it again"):
        dataset.read(5, Scratch())
    dataset.close()
    dataset = open_dataset(dataset_folder)  # altered before, only the header itself shows it
    with pytest.raises(
        ShardError, match=rf"^{re.escape(str(tar))}: byte \d+ does not hold a member of \d+ bytes: .*copy both"
    ):
        dataset.read(5, Scratch())
    dataset.close()


def test_swapped_tars(dataset_folder):
    open_dataset(dataset_folder).close()
    a, b = dataset_folder / "train-00000.tar", dataset_folder / "train-00002.tar"
    a.rename(dataset_folder / "x")
    b.rename(a)
    (dataset_folder / "x").rename(b)
    with pytest.raises(ShardError, match=re.escape(str(a))):
        open_dataset(dataset_folder)


def test_an_altered_index(dataset_folder):
    index = dataset_folder / "train-00001.idx"
    index.write_bytes(index.read_bytes().replace(b"000000005", b"000000006"))
    with pytest.raises(ShardError, match=f"^{re.escape(str(index))}: cut short or altered; copy it again"):
        open_dataset(dataset_folder)


def test_an_index_of_fewer_samples(dataset_folder):
    index = dataset_folder / "train-00001.idx"
    lines = index.read_text().splitlines()
    index.write_text("\n".join(["v1.2 3", *lines[1:4], ""]))
    refresh(dataset_folder, 1)
    with pytest.raises(ShardError, match=f"^{re.escape(str(index))}: 3 samples where dataset.json says 4"):
        open_dataset(dataset_folder)


def test_a_label_beyond_the_classes(dataset_folder):
    damage(dataset_folder, lambda description: description.update(classes=["one"]))
    with pytest.raises(ShardError, match="label 1 is not among its 1 class"):
        open_dataset(dataset_folder)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "not a dataset description"),
        ("[]", "not a dataset description"),
        ('{"format": "x"}', "not a dataset description"),
        (json.dumps({"format": FORMAT, "version": 99}), "written by a newer fastimg; update"),
        (json.dumps({"format": FORMAT, "version": 1, "splits": {"train": {}}}), "not a dataset description"),
        (json.dumps({"format": FORMAT, "version": 1, "splits": []}), "not a dataset description"),
        (json.dumps({"format": FORMAT, "version": 1, "splits": {}}), "not a dataset description"),
        (json.dumps({"format": FORMAT, "version": 1, "splits": {}, "classes": 5}), "not a dataset description"),
        ("[" * 100_000, "not a dataset description"),
    ],
)
def test_an_invalid_dataset_json(dataset_folder, content, message):
    (dataset_folder / "dataset.json").write_text(content)
    with pytest.raises(ShardError, match=f"dataset.json: {message}"):
        open_dataset(dataset_folder)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("name", 5),
        ("name", "a\0b"),
        ("name", "\ud800"),
        ("name", "../train-00001.tar"),
        ("name", ""),
        ("samples", "4"),
        ("samples", 5),
        ("bytes", None),
        ("index_bytes", [1]),
        ("sha256", "x" * 64),
        ("index_sha256", 7),
        ("xxh3", "x" * 32),
        ("xxh3", 7),
        ("identity", "x" * 64),
        ("identity", None),
    ],
)
def test_a_wrong_description_of_a_shard(dataset_folder, key, value):
    damage(dataset_folder, lambda description: description["splits"]["train"]["shards"][1].update({key: value}))
    with pytest.raises(ShardError, match=r"dataset.json: not a dataset description \(.*\); convert again"):
        open_dataset(dataset_folder)


def test_a_split_whose_name_leads_elsewhere(dataset_folder):
    damage(dataset_folder, lambda d: d["splits"].update({"../train": d["splits"]["train"]}))
    with pytest.raises(ShardError, match=r"dataset.json: not a dataset description \(.*'../train'.*\); convert again"):
        open_dataset(dataset_folder, "../train")
    assert not (dataset_folder.parent / "train.fidx").exists()


def test_an_empty_split(dataset_folder):
    damage(dataset_folder, lambda description: description["splits"].update(val={"samples": 0, "shards": []}))
    dataset = open_dataset(dataset_folder, "val")
    assert len(dataset) == 0 and dataset.classes == ("even", "odd")
    dataset.close()


def test_a_conversion_that_did_not_finish(dataset_folder):
    (dataset_folder / "dataset.json").rename(dataset_folder / "convert.json")
    for ask in (open_dataset, list_splits):
        with pytest.raises(DataError, match=r"did not finish; .*resume=True"):
            ask(dataset_folder)


def test_paths_that_are_not_datasets(tmp_path):
    (tmp_path / "file").touch()
    for name, message in (("file", "a file, not a folder"), ("nowhere", "no such folder")):
        for ask in (open_dataset, list_splits):
            with pytest.raises(DataError, match=message):
                ask(tmp_path / name)


def test_the_fingerprint_depends_on_the_contents(dataset_folder, tmp_path, opened):
    shutil.copytree(dataset_folder, tmp_path / "copy")
    copy = open_dataset(tmp_path / "copy")
    assert copy.fingerprint == opened.fingerprint
    copy.close()
