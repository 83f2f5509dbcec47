"""Tars of other tools: what is opened, indexes that do not match, and samples that cannot be used."""

import io
import os
import re
import tarfile
from pathlib import Path

import pytest
from PIL import Image

from fastimg.loaders.containers.datasets import list_splits, open_dataset
from fastimg.loaders.containers.tars.shards import index_path, scan
from fastimg.loaders.errors import ShardError
from fastimg.loaders.runtime.scratch import Scratch

pytestmark = pytest.mark.usefixtures("cache")


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
