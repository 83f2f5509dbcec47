"""Opening shards: what is read and rebuilt, and errors that name the file."""

import hashlib
import io
import json
import os
import re
import shutil
import tarfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fastimg.loaders.containers.datasets import list_splits, open_dataset
from fastimg.loaders.containers.derived import kept as kept_files
from fastimg.loaders.containers.derived import records
from fastimg.loaders.containers.description import FORMAT, FORMAT_VERSION, SHARD_KEYS
from fastimg.loaders.containers.tars.shards import ShardWriter, index_path, scan
from fastimg.loaders.errors import DataError, ShardError
from fastimg.loaders.runtime.scratch import Scratch

PER_SHARD = 4


@pytest.fixture
def images(encode):
    """Ten encoded images of different sizes."""
    return [encode((20 * i, 100, 50), (30 + i, 20 + i), seed=i) for i in range(10)]


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


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """The user's cache folder, in tmp_path."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


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


def test_an_altered_header(opened, dataset_folder):
    tar = dataset_folder / "train-00001.tar"
    record, before = opened.records[5], tar.stat()
    with tar.open("r+b") as file:
        file.seek(int(record["offset"]) - 512 + 124)
        file.write(b"%011o" % (int(record["size"]) + 1))
    with pytest.raises(ShardError, match=f"^{re.escape(str(tar))}: was altered while it was in use; copy it again"):
        opened.read(5, Scratch())
    os.utime(tar, ns=(before.st_atime_ns, before.st_mtime_ns))  # only the header itself shows it
    with pytest.raises(
        ShardError, match=rf"^{re.escape(str(tar))}: byte \d+ does not hold a member of \d+ bytes: .*copy both"
    ):
        opened.read(5, Scratch())


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


def write_foreign(path: Path, members: dict[str, bytes]) -> None:
    with tarfile.open(path, "w", format=tarfile.PAX_FORMAT) as archive:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))


def test_tars_of_other_tools_open(tmp_path, images):
    for number in range(2):
        members = {}
        for i in range(3):
            members |= {f"é{'x' * 110}/{i}.cls": b"%d\n" % i, f"é{'x' * 110}/{i}.JPG": images[3 * number + i]}
        write_foreign(tmp_path / f"flowers-train-{number:06d}.tar", members)
    write_foreign(tmp_path / "flowers-val-000000.tar", {"a.jpg": images[9]})
    assert set(list_splits(tmp_path)) == {"flowers-train", "flowers-val"}
    dataset = open_dataset(tmp_path, "flowers-train")
    assert dataset.classes == ("0", "1", "2") and dataset.labels.tolist() == [0, 1, 2, 0, 1, 2]
    assert [bytes(dataset.read(i, Scratch())) for i in range(6)] == images[:6]
    dataset.close()
    unlabelled = open_dataset(tmp_path, "flowers-val")
    assert unlabelled.labels.tolist() == [-1] and unlabelled.classes == ()
    unlabelled.close()


def test_changed_foreign_tars_are_scanned_again(tmp_path, images):
    tar = tmp_path / "all.tar"
    write_foreign(tar, {"0.jpg": images[0], "0.cls": b"0"})
    first = open_dataset(tmp_path)
    write_foreign(tar, {"0.jpg": images[1], "0.cls": b"0", "1.jpg": images[2], "1.cls": b"1"})
    os.utime(tar, ns=(0, 0))
    second = open_dataset(tmp_path)
    assert (len(first), len(second)) == (1, 2) and first.fingerprint != second.fingerprint
    assert bytes(second.read(1, Scratch())) == images[2]
    first.close()
    second.close()


@pytest.fixture
def foreign(tmp_path, images):
    """A foreign tar with a matching index."""
    tar = tmp_path / "foreign" / "train-0.tar"
    tar.parent.mkdir()
    write_foreign(tar, {f"{i}.{ext}": data for i in range(4) for ext, data in (("jpg", images[i]), ("cls", b"%d" % i))})
    samples = scan(tar)
    lines = [" ".join(f"{m.ext} {m.offset} {m.size} {m.name}" for m in sample) for sample in samples]
    index_path(tar).write_text("\n".join([f"v1.2 {len(samples)}", *lines, ""]))
    return tar


def opened_notes(tar, images):
    """The remarks; the samples must be correct."""
    for _ in range(2):  # derived, and then read from the cache
        dataset = open_dataset(tar.parent)
        assert [bytes(dataset.read(i, Scratch())) for i in range(len(dataset))] == images[:4]
        assert dataset.labels.tolist() == [0, 1, 2, 3]
        dataset.close()
    return dataset.notes


def test_a_matching_foreign_index(foreign, images):
    assert opened_notes(foreign, images) == []
    words = [line.split(" ") for line in index_path(foreign).read_text().splitlines()[1:]]
    short = [" ".join(word for i, word in enumerate(line) if i % 4 < 3) for line in words]
    swapped = [" ".join(line[3:] + line[:3]) for line in (line.split(" ") for line in short)]
    for lines in (short, swapped):
        index_path(foreign).write_text("\n".join(["v1.1 4", *lines, ""]))
        assert opened_notes(foreign, images) == []


@pytest.mark.parametrize(
    "spoil",
    [
        lambda text: "",
        lambda text: "v1.2 4\n",
        lambda text: "v1.2 \u00b2\n",
        lambda text: text.replace("v1.2 4", f"v1.2 {'9' * 5000}"),
        lambda text: text.replace("0.jpg", "x.jpg"),
        lambda text: text.replace("jpg 512", "jpg 1024"),
        lambda text: text.replace("cls", "json"),
        lambda text: "v1.2 3\n" + "\n".join(text.splitlines()[1:4]) + "\n",  # a sample is missing
        lambda text: "v1.2 4\n" + "\n".join(sorted(text.splitlines()[1:], reverse=True)) + "\n",
        lambda text: text.replace(" cls", "\ncls").replace("v1.2 4", "v1.2 8"),  # and torn apart
        lambda text: re.sub(r"jpg (\d+) (\d+) 2.jpg", lambda m: f"jpg {m[1]} {int(m[2]) - 1} 2.jpg", text),
    ],
)
def test_a_foreign_index_that_does_not_match(foreign, images, spoil):
    index = index_path(foreign)
    index.write_text(spoil(index.read_text()))
    (note,) = opened_notes(foreign, images)
    assert note.startswith(f"{index} does not fit train-0.tar: the tar was scanned; ")


def test_a_foreign_index_that_is_added_later(foreign, images):
    assert opened_notes(foreign, images) == []
    first = open_dataset(foreign.parent)
    index_path(foreign).write_text("v1.2 0\n")
    assert len(opened_notes(foreign, images)) == 1
    index_path(foreign).unlink()
    assert opened_notes(foreign, images) == []
    second = open_dataset(foreign.parent)
    assert first.fingerprint == second.fingerprint
    first.close()
    second.close()


def test_names_that_are_not_utf8(tmp_path, images):
    folder = tmp_path / os.fsdecode(b"caf\xe9")
    folder.mkdir()
    tar = folder / os.fsdecode(b"train-\xff0.tar")
    write_foreign(tar, {os.fsdecode(b"\xe9.jpg"): images[0], os.fsdecode(b"\xe9.cls"): b"0"})
    index_path(tar).write_bytes(b"\xff")
    for _ in range(2):
        dataset = open_dataset(folder)
        assert bytes(dataset.read(0, Scratch())) == images[0]
        assert dataset.sample_name(0) == f"{tar}: ?.jpg"  # as tarfile writes it before a PAX header
        assert len(dataset.notes) == 1 and str(tar.with_suffix(".idx")) in dataset.notes[0]
        dataset.close()


def test_the_plain_extension_is_the_image(tmp_path, images):
    write_foreign(tmp_path / "a.tar", {"0.CLS": b" 7\n", "0.depth.png": images[1], "0.JPG": images[0]})
    dataset = open_dataset(tmp_path)
    assert bytes(dataset.read(0, Scratch())) == images[0] and dataset.labels.tolist() == [7]
    dataset.close()


def test_hidden_tars_are_ignored(foreign, images):
    (foreign.parent / "._train-0.tar").write_bytes(b"AppleDouble")
    assert list_splits(foreign.parent) == {"train": -1} and opened_notes(foreign, images) == []


@pytest.mark.parametrize("how", ["folder", "link", "pipe"])
def test_a_file_that_is_not_a_tar(foreign, how):
    other = foreign.with_name("train-1.tar")
    {"folder": other.mkdir, "link": lambda: other.symlink_to("nowhere"), "pipe": lambda: os.mkfifo(other)}[how]()
    with pytest.raises(ShardError, match=rf"^{re.escape(str(other))}: (not a file|No such file or directory); "):
        open_dataset(foreign.parent)
    with pytest.raises(ShardError, match=rf"^{re.escape(str(other))}: "):
        scan(other)


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ({"0.cls": b"0"}, r"0.cls: a sample without an image \(cls\); make"),
        ({"0.jpg": b"x", "0.png": b"x"}, r"0.jpg: several images \(jpg, png\); make"),
        ({"0.a.jpg": b"x", "0.b.png": b"x"}, r"0.a.jpg: several images \(a.jpg, b.png\); make"),
        ({"0.cls": b"cat", "0.jpg": b"x"}, "the label b'cat' is not an integer class index"),
        ({"0.cls": b"--1", "0.jpg": b"x"}, "the label b'--1' is not an integer class index"),
        ({"0.cls": b"-2", "0.jpg": b"x"}, "the label b'-2' is not an integer class index"),
        ({"0.cls": b"1048576", "0.jpg": b"x"}, "the label b'1048576' is not an integer class index"),
        ({"0.cls": b"1" * 5000, "0.jpg": b"x"}, "the label b'1{20}' is not an integer class index"),
        ({"0.cls": b"", "0.jpg": b"x"}, "the label b'' is not an integer class index"),
    ],
)
def test_foreign_samples_that_cannot_be_used(tmp_path, members, message):
    write_foreign(tmp_path / "train-0.tar", members)
    with pytest.raises(ShardError, match=f"train-0.tar: .*{message}"):
        open_dataset(tmp_path)


def test_sizes_of_images_with_long_metadata_and_of_none(tmp_path):
    """A JPEG's size is found whether or not its header fits in the first read."""
    members = {}
    for i, comment in enumerate((0, 30_000, 60_000)):
        exif, buffer = Image.Exif(), io.BytesIO()
        exif[0x0112] = 6
        Image.new("RGB", (64, 48)).save(buffer, "JPEG", exif=exif, comment=b"x" * comment)
        members[f"{i}.jpg"] = buffer.getvalue()
    buffer = io.BytesIO()
    Image.new("RGB", (64, 48)).save(buffer, "WEBP")
    members |= {"3.webp": buffer.getvalue(), "4.jpg": b"\xff\xd8\xff", "5.jpg": b""}
    write_foreign(tmp_path / "train-0.tar", members)
    dataset = open_dataset(tmp_path)
    assert dataset.records[["height", "width"]].tolist() == [(64, 48)] * 3 + [(48, 64)] + [(0, 0)] * 2
    dataset.close()


def test_a_truncated_foreign_tar(tmp_path, images):
    tar = tmp_path / "train-0.tar"
    write_foreign(tar, {"0.jpg": images[0], "1.jpg": images[1]})
    os.truncate(tar, 2 * 512 + len(images[0]))
    with pytest.raises(ShardError, match=re.escape(str(tar))):
        open_dataset(tmp_path)


def test_the_fingerprint_depends_on_the_contents(dataset_folder, tmp_path, opened):
    shutil.copytree(dataset_folder, tmp_path / "copy")
    copy = open_dataset(tmp_path / "copy")
    assert copy.fingerprint == opened.fingerprint
    copy.close()
