"""Conversion between containers: image bytes, labels, keys, further fields and order are preserved."""

import io
import json
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from rich.console import Console

from fastimg.config.commands import Convert
from fastimg.convert.pipeline import convert
from fastimg.convert.report import Report
from fastimg.errors import UserError
from fastimg.loaders.containers.betons.files import BetonFile, BetonWriter
from fastimg.loaders.containers.betons.kinds import BetonField
from fastimg.loaders.containers.datasets import open_dataset
from fastimg.loaders.containers.description import read_description
from fastimg.loaders.decode import decode
from fastimg.loaders.errors import DataError

Members = dict[str, bytes]


def run(src: Path, dst: Path, **flags: Any) -> Report:
    return convert(Convert(src=src, dst=dst, workers="2", **flags), Console(quiet=True))


def npy(value: Any) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, value)
    return buffer.getvalue()


def write_tar(path: Path, samples: dict[str, Members]) -> None:
    path.parent.mkdir(exist_ok=True)
    with tarfile.open(path, "w") as archive:
        for stem, members in samples.items():
            for ext, data in members.items():
                info = tarfile.TarInfo(f"{stem}.{ext}")
                info.size = len(data)
                archive.addfile(info, io.BytesIO(data))


def read_tars(folder: Path, split: str = "train") -> list[Members]:
    """Members of every sample, in order."""
    found: dict[str, Members] = {}
    for tar in sorted(folder.glob(f"{split}-*.tar")):
        with tarfile.open(tar) as archive:
            for info in archive:
                stem, _, ext = info.name.partition(".")
                content = archive.extractfile(info)
                assert content is not None
                found.setdefault(stem, {})[ext] = content.read()
    return list(found.values())


def meaning(members: Members) -> dict[str, Any]:
    """Members with arrays and json as values."""
    values: dict[str, Any] = {}
    for ext, data in members.items():
        kind = ext.rpartition(".")[2]
        if kind == "npy":
            array = np.load(io.BytesIO(data))
            values[ext] = (array.tolist(), array.dtype.str, array.shape)
        else:
            values[ext] = json.loads(data) if kind == "json" else data
    return values


@pytest.fixture
def rich_tar(tmp_path: Path, encode: Any) -> Path:
    """Twelve samples with captions, json, arrays of one or several shapes, a number and a mask; some are missing."""
    samples: dict[str, Members] = {}
    for i in range(12):
        kind, ext = (("JPEG", "jpg"), ("PNG", "png"), ("WEBP", "webp"))[i % 3]
        members = {
            ext: encode((200, 20 * i, 90), (60 + i, 50), i, kind),
            "cls": str(i % 4).encode(),
            "json": json.dumps({"camera": f"c{i}", "path": f"photos/{i}.x"} if i % 2 else {"camera": f"c{i}"}).encode(),
            "txt": f"a caption, número {i}".encode(),
            "box.npy": npy(np.arange(4, dtype=np.float32) + i),
            "seen.npy": npy(np.int64(i)),
            "points.npy": npy(np.ones((i + 1, 2), np.uint8)),
            "meta.json": json.dumps([i, {"deep": None}]).encode(),
            "mask.png": encode((9, 9, 9), (8, 8), i, "PNG"),
        }
        if i % 5 == 4:
            del members["txt"], members["box.npy"], members["meta.json"]
        if i == 3:
            members["txt"] = b""
        samples[f"shot {i}/key_{i}"] = members
    write_tar(tmp_path / "foreign" / "train-000.tar", samples)
    return tmp_path / "foreign"


@pytest.mark.parametrize("tile", ["off", "auto"])
def test_a_tar_through_a_beton_and_back(rich_tar: Path, tmp_path: Path, tile: str) -> None:
    run(rich_tar, tmp_path / "tar", tile=tile)
    run(tmp_path / "tar", tmp_path / "beton", format="beton", tile=tile)
    run(tmp_path / "beton", tmp_path / "back", tile=tile)
    first, last = read_tars(tmp_path / "tar"), read_tars(tmp_path / "back")
    assert [meaning(sample) for sample in last] == [meaning(sample) for sample in first]
    if tile == "off":
        with tarfile.open(rich_tar / "train-000.tar") as archive:
            images = [archive.extractfile(m).read() for m in archive if m.name.endswith((".jpg", ".webp"))]  # type: ignore[union-attr]
        assert [data for sample in last for ext, data in sample.items() if ext in ("jpg", "webp")] == images
    run(tmp_path / "back", tmp_path / "again", format="beton", tile=tile)
    assert (tmp_path / "again/train.beton").read_bytes() == (tmp_path / "beton/train.beton").read_bytes()


def test_notes_and_keys_of_a_foreign_tar(rich_tar: Path, tmp_path: Path) -> None:
    run(rich_tar, tmp_path / "tar")
    notes = [json.loads(sample["json"]) for sample in read_tars(tmp_path / "tar")]
    assert notes[0] == {"path": "shot 0/key_0", "camera": "c0"}
    assert notes[1] == {"__key__": "shot 1/key_1", "path": "photos/1.x", "camera": "c1"}
    dataset = open_dataset(tmp_path / "tar")
    assert dataset.labels.tolist() == [i % 4 for i in range(12)] and dataset.classes == ("0", "1", "2", "3")
    dataset.close()
    assert read_description(tmp_path / "tar")["named"] is False


def test_images_that_a_beton_cannot_hold(rich_tar: Path, tmp_path: Path) -> None:
    report = run(rich_tar, tmp_path / "beton", format="beton")
    assert report.outcomes["kept: as raw pixels: png"] == 4 and report.outcomes["kept: as raw pixels: webp"] == 4
    with BetonFile(tmp_path / "beton/train.beton") as beton:
        assert set(beton.fields) == {
            *("image", "label", "json", "original", "txt", "box", "seen", "points.npy", "meta", "mask.png")
        }
        assert (beton.fields["box"].kind, beton.fields["seen"].kind) == ("ndarray", "int")
        for i in range(12):
            sample = beton.sample(i)
            if i % 3:
                np.testing.assert_array_equal(sample["image"], decode(sample["original"]))
            else:
                assert sample["original"] == b"" and isinstance(sample["image"], bytes)
    report = run(rich_tar, tmp_path / "small", format="beton", originals="drop")
    with BetonFile(tmp_path / "small/train.beton") as beton:
        assert "original" not in beton.fields
    back = run(tmp_path / "small", tmp_path / "png")
    assert back.outcomes["kept: raw pixels, without loss as png"] == 8
    report = run(rich_tar, tmp_path / "refused", format="beton", originals="refuse")
    assert report.images == 4 and len(report.skipped) == 8
    assert report.skipped[0].reason == "png that a .beton cannot hold, and --originals refuse"


def test_orientation_is_applied_in_a_beton(image_folder: Path, tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    pixels = np.tile(np.arange(64, dtype=np.uint8)[None, :, None] * 3, (48, 1, 3))
    Image.fromarray(pixels).save(image_folder / "red/turned.jpg", exif=exif, quality=95, subsampling=0)
    run(image_folder, tmp_path / "beton", format="beton", no_shuffle=True)
    with BetonFile(tmp_path / "beton/train.beton") as beton:
        turned = next(s for s in map(beton.sample, range(len(beton))) if s["json"]["path"] == "red/turned.jpg")
    source = (image_folder / "red/turned.jpg").read_bytes()
    assert turned["original"] == source or decode(turned["original"]).tolist() == decode(source).tolist()
    upright = decode(turned["image"])
    assert upright.shape == (64, 48, 3)
    assert np.abs(upright.astype(int) - decode(source)).max() <= 6
    run(tmp_path / "beton", tmp_path / "tar", tile="off")
    (back,) = [s["jpg"] for s in read_tars(tmp_path / "tar") if json.loads(s["json"])["path"] == "red/turned.jpg"]
    assert decode(back).tolist() == decode(source).tolist()


def test_a_foreign_beton(tmp_path: Path, encode: Any) -> None:
    fields = {
        "img": BetonField("rgb"),
        "target": BetonField("int"),
        "weight": BetonField("float"),
        "caption": BetonField("bytes"),
        "box": BetonField("tensor", np.dtype("<i2"), (2, 2)),
        "extra": BetonField("json"),
    }
    with BetonWriter(tmp_path / "some.beton", fields) as beton:
        for i in range(5):
            image = encode(seed=i) if i % 2 else np.full((9, 7, 3), 40 * i, np.uint8)
            beton.add(
                {
                    "img": image,
                    "target": 3 - i % 3,
                    "weight": i / 4,
                    "caption": b"c" * i,
                    "box": np.full((2, 2), i, np.int16),
                    "extra": {"i": i},
                }
            )
    report = run(tmp_path / "some.beton", tmp_path / "tar", tile="off")
    assert (report.splits, report.classes) == ({"train": 5}, 4)
    for i, sample in enumerate(read_tars(tmp_path / "tar")):
        seen = meaning(sample)
        image = seen.pop("jpg" if i % 2 else "png")
        if i % 2:
            assert image == encode(seed=i)
        else:
            assert (decode(image) == 40 * i).all() and decode(image).shape == (9, 7, 3)
        assert seen == {
            "cls": str(3 - i % 3).encode(),
            "json": {"path": f"train/{i:09d}"},
            "weight.npy": (i / 4, "<f8", ()),
            "caption": b"c" * i,
            "box.npy": ([[i, i], [i, i]], "<i2", (2, 2)),
            "extra.json": {"i": i},
        }


def test_class_names_and_splits_survive(image_folder: Path, tmp_path: Path) -> None:
    run(image_folder, tmp_path / "tar", val_fraction=0.25)
    run(tmp_path / "tar", tmp_path / "beton", format="beton")
    run(tmp_path / "beton", tmp_path / "back")
    one, two, three = (read_description(tmp_path / name) for name in ("tar", "beton", "back"))
    for other in (two, three):
        assert other["classes"] == ["blue", "green", "red"] and other["named"] is True
        for split, content in one["splits"].items():
            assert other["splits"][split]["class_counts"] == content["class_counts"]
    for split in ("train", "val"):
        assert read_tars(tmp_path / "tar", split) == read_tars(tmp_path / "back", split)


@pytest.mark.parametrize("flag", [{"shuffle": True}, {"no_shuffle": True}, {}])
def test_a_dataset_keeps_its_order_by_default(image_folder: Path, tmp_path: Path, flag: dict[str, bool]) -> None:
    run(image_folder, tmp_path / "tar")
    run(tmp_path / "tar", tmp_path / "other", **flag)
    assert (read_tars(tmp_path / "tar") == read_tars(tmp_path / "other")) is not bool(flag.get("shuffle"))


def test_samples_without_labels(tmp_path: Path, encode: Any) -> None:
    write_tar(tmp_path / "foreign/a.tar", {f"{i}": {"jpg": encode(seed=i), "txt": b"words"} for i in range(3)})
    report = run(tmp_path / "foreign", tmp_path / "tar")
    assert (report.images, report.classes) == (3, 0)
    assert all("cls" not in sample for sample in read_tars(tmp_path / "tar"))
    run(tmp_path / "tar", tmp_path / "beton", format="beton")
    run(tmp_path / "beton", tmp_path / "back")
    assert read_tars(tmp_path / "back") == read_tars(tmp_path / "tar")


def test_labels_that_are_names(tmp_path: Path, encode: Any) -> None:
    write_tar(tmp_path / "foreign/a.tar", {f"{i}": {"jpg": encode(), "cls": b"dog" if i else b"cat"} for i in range(3)})
    run(tmp_path / "foreign", tmp_path / "tar")
    assert read_description(tmp_path / "tar")["classes"] == ["cat", "dog"]
    assert open_dataset(tmp_path / "tar").labels.tolist() == [0, 1, 1]


def test_a_sample_without_an_image_is_named(tmp_path: Path, encode: Any) -> None:
    samples = {"a/x": {"jpg": encode(), "cls": b"0"}, "a/y": {"txt": b"no image", "cls": b"0"}, "a/z": {"jpg": b"?"}}
    write_tar(tmp_path / "foreign/a.tar", samples)
    report = run(tmp_path / "foreign", tmp_path / "tar")
    assert report.images == 1
    assert [tuple(skipped) for skipped in report.skipped] == [
        ("a/y", "a sample without an image"),
        ("a/z", "not an image in a format that Pillow knows"),
    ]
    with pytest.raises(DataError, match=r"a\.tar: a/y: a sample without an image"):
        run(tmp_path / "foreign", tmp_path / "fail", on_error="fail")


def test_an_extension_that_an_index_cannot_hold_is_named(tmp_path: Path, encode: Any) -> None:
    write_tar(tmp_path / "foreign/a.tar", {"a": {"jpg": encode(), "my field.txt": b""}, "b": {"jpg": encode()}})
    report = run(tmp_path / "foreign", tmp_path / "tar")
    assert report.images == 1 and "my field.txt" in report.skipped[0].reason


def test_a_field_that_a_beton_cannot_hold_is_refused(tmp_path: Path, encode: Any) -> None:
    write_tar(tmp_path / "foreign/a.tar", {"a": {"jpg": encode(), "a-very-long-name.txt": b"x"}})
    with pytest.raises(DataError, match="1 to 16 characters"):
        run(tmp_path / "foreign", tmp_path / "beton", format="beton")
    assert not (tmp_path / "beton").exists()


def test_a_member_name_that_a_tar_cannot_hold_is_named(tmp_path: Path, encode: Any) -> None:
    write_tar(tmp_path / "foreign/a.tar", {"a": {"jpg": encode(), "x" * 100: b""}, "b": {"jpg": encode()}})
    report = run(tmp_path / "foreign", tmp_path / "tar")
    assert report.images == 1 and "at most 100 bytes" in report.skipped[0].reason


def test_members_that_differ_only_in_case(tmp_path: Path, encode: Any) -> None:
    """Notes are recognised in any case; an image whose member would get another member's name is left out."""
    clash = {"png": encode(), "JPG": b"by its content a .jpg"}
    write_tar(tmp_path / "foreign/a.tar", {"a": {"jpg": encode(), "JSON": b'{"path": "x"}'}, "b": clash})
    report = run(tmp_path / "foreign", tmp_path / "tar", tile="off")
    assert [skipped.reason for skipped in report.skipped] == ["it has two members .jpg"]
    (sample,) = read_tars(tmp_path / "tar")
    assert list(sample) == ["jpg", "json"] and json.loads(sample["json"])["path"] == "x"


@pytest.mark.parametrize("content", [b"PK\x03\x04 no zip", b"", b"\x93NUMPY", b"\x80\x04\x95"])
def test_an_invalid_npy_is_kept_as_bytes(tmp_path: Path, encode: Any, content: bytes) -> None:
    archive = io.BytesIO()
    np.savez(archive, a=np.zeros(3))
    fields = {"v.npy": content, "w.npy": archive.getvalue()}
    write_tar(tmp_path / "foreign/a.tar", {"a": {"jpg": encode(), "cls": b"0"} | fields})
    run(tmp_path / "foreign", tmp_path / "beton", format="beton")
    run(tmp_path / "beton", tmp_path / "tar")
    (sample,) = read_tars(tmp_path / "tar")
    assert {ext: sample[ext] for ext in fields} == fields


def test_a_number_under_the_name_of_a_label(tmp_path: Path, encode: Any) -> None:
    numbers = {"npy": npy(np.int64(5)), "target.npy": npy(np.int64(6)), "size.npy": npy(np.int64(7))}
    write_tar(tmp_path / "foreign/a.tar", {"a": {"jpg": encode(), "cls": b"3"} | numbers})
    run(tmp_path / "foreign", tmp_path / "beton", format="beton")
    with BetonFile(tmp_path / "beton/train.beton") as reader:
        assert [name for name, field in reader.fields.items() if field.kind == "int"] == ["label", "size"]
    assert open_dataset(tmp_path / "beton").labels.tolist() == [3]
    run(tmp_path / "beton", tmp_path / "tar")
    (sample,) = read_tars(tmp_path / "tar")
    assert {ext: sample[ext] for ext in numbers} == numbers


def test_two_images_of_one_sample(tmp_path: Path, encode: Any) -> None:
    left, right = encode(seed=1), encode(seed=2)
    write_tar(tmp_path / "foreign/a.tar", {"a": {"left.jpeg": left, "right.jpeg": right, "cls": b"1"}})
    run(tmp_path / "foreign", tmp_path / "tar", tile="off")
    (sample,) = read_tars(tmp_path / "tar")
    assert (sample["left.jpg"], sample["right.jpeg"]) == (left, right)
    write_tar(tmp_path / "deep/a.tar", {"a": {"depth.png": encode(kind="PNG"), "jpg": right, "CLS": b"3"}})
    run(tmp_path / "deep", tmp_path / "D", tile="off")
    (deep,) = read_tars(tmp_path / "D")
    assert list(deep) == ["jpg", "cls", "json", "depth.png"] and (deep["jpg"], deep["cls"]) == (right, b"3")
    dataset = open_dataset(tmp_path / "tar")
    assert "left.jpg" in dataset.sample_name(0) and dataset.labels.tolist() == [1]


def test_shards_next_to_class_folders_are_refused(image_folder: Path, tmp_path: Path, encode: Any) -> None:
    write_tar(image_folder / "archive.tar", {"a": {"jpg": encode()}})
    with pytest.raises(
        DataError, match=r"both subfolders of images and shards \(archive\.tar\); move one of them away"
    ):
        run(image_folder, tmp_path / "out")
    assert run(image_folder / "archive.tar", tmp_path / "out").images == 1


def test_a_source_with_an_altered_index_is_refused(image_folder: Path, tmp_path: Path) -> None:
    run(image_folder, tmp_path / "tar")
    index = tmp_path / "tar/train-00000.idx"
    index.write_bytes(index.read_bytes().replace(b"cls", b"txt"))
    with pytest.raises(DataError, match=r"train-00000\.idx: cut short or altered"):
        run(tmp_path / "tar", tmp_path / "out")


def test_large_jpegs_need_no_large_pages(tmp_path: Path, encode: Any) -> None:
    write_tar(tmp_path / "foreign/a.tar", {"a": {"jpg": encode(size=(2000, 2000))}})
    for fraction, page_size in ((0.0, 1 << 23), (1.0, 1 << 24)):
        run(tmp_path / "foreign", tmp_path / "beton", format="beton", raw_fraction=fraction, overwrite=True)
        with BetonFile(tmp_path / "beton/train.beton") as reader:
            assert reader.page_size == page_size


def test_an_unfinished_conversion_as_a_source_is_refused(image_folder: Path, tmp_path: Path) -> None:
    (tmp_path / "half").mkdir()
    (tmp_path / "half/convert.json").write_text("{}")
    with pytest.raises(DataError, match="did not finish"):
        run(tmp_path / "half", tmp_path / "out")
    with pytest.raises(UserError, match="not made by fastimg convert"):
        run(image_folder, tmp_path / "half")
