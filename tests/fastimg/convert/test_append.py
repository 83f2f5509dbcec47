"""`convert --append` and `--merge`: nothing is encoded again, old samples stay, any interruption can be resumed."""

import io
import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from rich.console import Console

import fastimg.convert.writers
from fastimg.config.commands import Convert
from fastimg.convert.pipeline import convert
from fastimg.errors import UsageError, UserError
from fastimg.loaders.containers.betons.files import BetonFile
from fastimg.loaders.containers.datasets import open_dataset
from fastimg.loaders.containers.description import read_description
from fastimg.loaders.errors import DataError
from fastimg.loaders.runtime.scratch import Scratch

from .conversions import kill_while_moving, move_pages

QUIET = Console(quiet=True)
FORMATS = pytest.mark.parametrize("container", ["tar", "beton"])


@pytest.fixture
def more(tmp_path: Path, encode: Any) -> Path:
    """A second folder with one known and one new class; the new one comes first in name order."""
    for name in ("amber", "green"):
        (tmp_path / "more" / name).mkdir(parents=True)
        for i in range(5):
            (tmp_path / "more" / name / f"{i}.jpg").write_bytes(encode((200, 150, 20), (50, 40), seed=i))
    (tmp_path / "more/amber/p.png").write_bytes(encode(kind="PNG"))
    return tmp_path / "more"


@pytest.fixture
def config(image_folder: Path, tmp_path: Path) -> Convert:
    return Convert(src=image_folder, dst=tmp_path / "D", shard_size="30KB", workers="2", val_fraction=0.25)


def contents(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir()}


def samples(folder: Path, split: str = "train") -> list[tuple[str, bytes]]:
    """(class, image) in order."""
    dataset, scratch = open_dataset(folder, split), Scratch()
    try:
        return [
            (dataset.classes[label], bytes(dataset.read(i, scratch))) for i, label in enumerate(dataset.labels.tolist())
        ]
    finally:
        dataset.close()


def appending(config: Convert, src: Path, **flags: Any) -> Convert:
    return Convert(src=src, dst=config.dst, append=True, shard_size="30KB", workers="2", **flags)


@FORMATS
def test_old_samples_stay_and_new_ones_follow(container: Any, config: Convert, more: Path, tmp_path: Path) -> None:
    convert(replace(config, format=container), QUIET)
    before, there = contents(config.dst), samples(config.dst)
    val = samples(config.dst, "val")
    report = convert(appending(config, more), QUIET)
    assert (report.images, report.added, report.classes) == (47, 11, 4)
    after = samples(config.dst)
    assert after[: len(there)] == there and samples(config.dst, "val") == val
    convert(Convert(src=more, dst=tmp_path / "alone", format=container), QUIET)
    assert after[len(there) :] == samples(tmp_path / "alone")
    description = read_description(config.dst)
    assert description["classes"] == ["blue", "green", "red", "amber"]
    assert description["splits"]["train"]["class_counts"] == [9, 9 + 5, 9, 6]
    assert description["splits"]["val"]["class_counts"] == [3, 3, 3, 0]
    if container == "tar":
        now = contents(config.dst)
        assert all(now[name] == content for name, content in before.items() if name.endswith((".tar", ".idx")))
    else:
        assert sorted(contents(config.dst)) == ["dataset.json", "train-00001.beton", "val.beton"]
        with BetonFile(config.dst / "train-00001.beton") as beton:
            assert len(beton) == 38
        assert json.loads((config.dst / "dataset.json").read_text())["splits"]["train"]["shards"][0]["samples"] == 38


@FORMATS
def test_repeated_appends(container: Any, config: Convert, more: Path, tmp_path: Path, encode: Any) -> None:
    convert(replace(config, format=container), QUIET)
    convert(appending(config, more), QUIET)
    (tmp_path / "third/red").mkdir(parents=True)
    (tmp_path / "third/red/1.jpg").write_bytes(encode(seed=77))
    report = convert(appending(config, tmp_path / "third"), QUIET)
    assert (report.images, report.added) == (48, 1)
    assert samples(config.dst)[-1][0] == "red" and len(samples(config.dst)) == 39
    with pytest.raises(UserError, match="already converted or appended"):
        convert(appending(config, more), QUIET)
    with pytest.raises(UserError, match="already converted or appended"):
        convert(appending(config, config.src), QUIET)
    assert convert(appending(config, tmp_path / "third", resume=True), QUIET).images == 48  # complete already


def uncompressed(root: Path, kind: str, seed: int) -> Path:
    """A source of images of one size, and so with the same listing as one of another seed."""
    rng = np.random.default_rng(seed)
    lines = ["path,label"]
    for number in range(20):
        file = root / "images" / "ab"[number % 2] / (f"{number}.npy" if kind == "npy" else f"{number}.bmp")
        file.parent.mkdir(parents=True, exist_ok=True)
        pixels = rng.integers(0, 256, (9, 7, 3), np.uint8)
        if kind == "npy":
            np.save(file, pixels.transpose(2, 0, 1))
        else:
            Image.fromarray(pixels).save(file)
        lines.append(f"{file.relative_to(root)},{file.parent.name}")
    (root / "list.csv").write_text("\n".join(lines) + "\n")
    if kind in ("tar", "beton"):
        convert(Convert(src=root / "images", dst=root / kind, format=kind, workers="1"), QUIET)
    return root / {"csv": "list.csv", "tar": "tar", "beton": "beton"}.get(kind, "images")


@pytest.mark.parametrize("kind", ["folder", "csv", "npy", "tar", "beton"])
def test_other_images_of_the_same_names_and_sizes(kind: str, tmp_path: Path) -> None:
    flags: dict[str, Any] = {"dst": tmp_path / "D", "workers": "1", "image_field": "x" if kind == "npy" else None}
    one, other = (uncompressed(tmp_path / str(seed), kind, seed) for seed in range(2))
    convert(Convert(src=one, **flags), QUIET)
    assert convert(Convert(src=other, append=True, resume=True, **flags), QUIET).added == 20
    for src in (one, other):
        with pytest.raises(UserError, match="the same samples were already converted or appended"):
            convert(Convert(src=src, append=True, **flags), QUIET)
    again = convert(Convert(src=other, append=True, resume=True, **flags), QUIET)
    assert (again.images, len(set(samples(tmp_path / "D")))) == (40, 40)


def test_a_dataset_that_does_not_state_what_is_in_its_files(tmp_path: Path) -> None:
    """As earlier versions made it: names and sizes tell alone."""
    one, other = (uncompressed(tmp_path / str(seed), "folder", seed) for seed in range(2))
    config = Convert(src=one, dst=tmp_path / "D", workers="1")
    convert(config, QUIET)
    with pytest.raises(UserError, match=r"started with something else: the source \(what is in its files\);"):
        convert(replace(config, src=other, resume=True), QUIET)
    file = tmp_path / "D/dataset.json"
    description = json.loads(file.read_text())
    del description["options"]["contents"]
    file.write_text(json.dumps(description))
    assert convert(replace(config, resume=True), QUIET).images == 20
    with pytest.raises(UserError, match="the same samples were already converted or appended"):
        convert(replace(config, src=other, append=True), QUIET)


@FORMATS
@pytest.mark.parametrize("stop_at", [0, 3, 10])
def test_interrupted_and_resumed(
    container: Any, config: Convert, more: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stop_at: int
) -> None:
    convert(replace(config, format=container), QUIET)
    shutil.copytree(config.dst, tmp_path / "whole")
    append = replace(appending(config, more), shard_size="9KB")
    convert(replace(append, dst=tmp_path / "whole"), QUIET)
    before = samples(config.dst)
    store = fastimg.convert.writers.BetonStore if container == "beton" else fastimg.convert.writers.TarStore
    add, count = store.add, iter(range(stop_at))

    def stop(*arguments: Any) -> None:
        if next(count, None) is None:
            raise KeyboardInterrupt
        add(*arguments)

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(store, "add", stop)
        convert(append, QUIET)
    assert samples(config.dst) == before  # still a dataset, unchanged
    with pytest.raises(UserError, match="unfinished append; continue it with"):
        convert(append, QUIET)
    convert(replace(append, resume=True), QUIET)
    assert contents(config.dst) == contents(tmp_path / "whole")


@pytest.mark.parametrize("writes", [0, 1, 7, 12])
def test_killed_while_pages_are_moved(
    config: Convert, more: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, writes: int
) -> None:
    convert(replace(config, format="beton"), QUIET)
    shutil.copytree(config.dst, tmp_path / "whole")
    append, before = appending(config, more), samples(config.dst)
    move_pages(monkeypatch, limit=30)  # 27 samples and 11 more
    convert(replace(append, dst=tmp_path / "whole"), QUIET)
    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        kill_while_moving(patched, config.dst, tmp_path / "killed", writes)
        convert(append, QUIET)
    shutil.rmtree(config.dst)
    (tmp_path / "killed").rename(config.dst)
    assert samples(config.dst) == before
    convert(replace(append, resume=True), QUIET)
    assert contents(config.dst) == contents(tmp_path / "whole")


def test_a_failing_append_leaves_nothing(config: Convert, more: Path) -> None:
    convert(config, QUIET)
    before = contents(config.dst)
    (more / "green/bad.jpg").write_bytes(b"no image")
    with pytest.raises(DataError, match=r"bad\.jpg"):
        convert(appending(config, more, on_error="fail"), QUIET)
    assert contents(config.dst) == before


@FORMATS
def test_an_append_of_which_nothing_can_be_decoded(config: Convert, more: Path, container: Any) -> None:
    convert(replace(config, format=container), QUIET)
    before = contents(config.dst)
    images = {image: image.read_bytes() for image in more.rglob("*.*")}
    for image in images:
        image.write_bytes(b"no image".ljust(len(images[image])))
    told = r"nothing was added: 11 images were left out \(11 not an image .*\), such as (amber|green)/\w.\w+; repair"
    with pytest.raises(DataError, match=told):
        convert(appending(config, more), QUIET)
    assert contents(config.dst) == before
    for image, content in images.items():  # of the same names and sizes, repaired
        image.write_bytes(content)
    assert convert(appending(config, more), QUIET).added == len(images)


@FORMATS
def test_a_new_split_of_which_nothing_can_be_decoded(
    config: Convert, more: Path, tmp_path: Path, container: Any
) -> None:
    convert(replace(config, format=container, val_fraction=0.0), QUIET)
    before = contents(config.dst)
    shutil.copytree(more, tmp_path / "split/train")
    (tmp_path / "split/val/green").mkdir(parents=True)
    (tmp_path / "split/val/green/bad.jpg").write_bytes(b"no image")
    with pytest.raises(
        DataError, match=r"no image of the split val can be decoded \(val/green/bad\.jpg: .*remove them"
    ):
        convert(appending(config, tmp_path / "split"), QUIET)
    assert contents(config.dst) == before
    shutil.copy(more / "green/1.jpg", tmp_path / "split/val/green")
    convert(appending(config, tmp_path / "split"), QUIET)
    (tmp_path / "split/val/green/1.jpg").write_bytes(b"no image any more")
    convert(appending(config, tmp_path / "split"), QUIET)  # to a split that has samples
    assert len(samples(config.dst, "val")) == 1


@FORMATS
@pytest.mark.parametrize("flags", [{"overwrite": True}, {"append": True}])
def test_a_source_in_the_destination_is_left_alone(
    config: Convert, tmp_path: Path, container: Any, flags: dict[str, bool]
) -> None:
    convert(replace(config, format=container), QUIET)
    before = contents(config.dst)
    (shard,) = (name for name in before if name in ("train-00000.tar", "train.beton"))
    (tmp_path / "links").mkdir()
    (tmp_path / "links" / shard).symlink_to(config.dst / shard)
    for src in (config.dst / shard, config.dst, tmp_path / "links"):
        with pytest.raises(UsageError, match=r"lies in the destination|destination lies in the source"):
            convert(Convert(src=src, dst=config.dst, workers="1", **flags), QUIET)
        assert contents(config.dst) == before


WRITES = "not in the form that this version of fastimg writes"
READS = "not a dataset description"  # what every command needs


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        ({"outcomes": None}, READS),
        ({"outcomes": {"tiled": "many"}}, WRITES),
        ({"skipped": [5]}, WRITES),
        ({"schema": [[]]}, READS),
        ({"options": []}, READS),
        ({"schema": "\ud800"}, READS),
        ({"appended": {}}, READS),
    ],
    ids=str,
)
def test_a_foreign_dataset_json(config: Convert, more: Path, damage: dict[str, Any], reason: str) -> None:
    convert(config, QUIET)
    file = config.dst / "dataset.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | damage))
    for again in (appending(config, more), replace(config, resume=True)):
        with pytest.raises(DataError, match=rf"dataset.json: {reason} \("):
            convert(again, QUIET)


@pytest.mark.parametrize("key", ["class_counts", "source_bytes"])
def test_a_foreign_split(config: Convert, more: Path, key: str) -> None:
    convert(config, QUIET)
    file = config.dst / "dataset.json"
    description = json.loads(file.read_text())
    del description["splits"]["val"][key]
    file.write_text(json.dumps(description))
    with pytest.raises(DataError, match=f"missing required field `{key}`"):
        convert(appending(config, more), QUIET)


@FORMATS
def test_foreign_shards_next_to_a_dataset_stay(config: Convert, more: Path, container: Any) -> None:
    config = replace(config, format=container)
    convert(config, QUIET)
    (config.dst / "test.beton").write_bytes(b"mine")
    before = contents(config.dst)
    with pytest.raises(UserError, match=r"test\.beton does not belong to the dataset and would be deleted; move it"):
        convert(appending(config, more), QUIET)
    convert(replace(config, resume=True), QUIET)
    assert contents(config.dst) == before


def test_appending_and_overwriting_exclude_each_other(config: Convert, more: Path) -> None:
    convert(config, QUIET)
    with pytest.raises(UsageError, match="--append adds to what is there, --overwrite replaces it; give only one"):
        convert(replace(config, append=True, overwrite=True), QUIET)


def test_nothing_to_append_to(config: Convert, more: Path) -> None:
    with pytest.raises(UserError, match="no dataset to append to"):
        convert(appending(config, more), QUIET)
    assert not config.dst.exists()


def test_fields_that_a_beton_does_not_have(config: Convert, more: Path, tmp_path: Path) -> None:
    for image in config.src.rglob("*.png"):
        image.unlink()
    convert(replace(config, format="beton"), QUIET)
    before = contents(config.dst)
    with pytest.raises(UserError, match=r"no field original .*--merge"):
        convert(appending(config, more), QUIET)
    assert contents(config.dst) == before
    report = convert(Convert(src=config.dst, dst=more, more=(tmp_path / "M",), merge=True, format="beton"), QUIET)
    assert report.images == 27 + 11
    with pytest.raises(UsageError, match="--format tar"):
        convert(appending(config, more, format="tar"), QUIET)


def test_merge_of_two_datasets(config: Convert, more: Path, tmp_path: Path) -> None:
    convert(config, QUIET)
    convert(Convert(src=more, dst=tmp_path / "E", format="beton"), QUIET)
    merge = Convert(src=config.dst, dst=tmp_path / "E", more=(tmp_path / "M",), merge=True)
    report = convert(replace(merge, no_shuffle=True), QUIET)
    assert (report.images, report.classes, report.reencoded) == (47, 4, 0)
    assert report.dst == str(tmp_path / "M")
    assert samples(tmp_path / "M", "val") == samples(config.dst, "val")
    merged = samples(tmp_path / "M")
    ours, theirs = samples(config.dst), samples(tmp_path / "E")
    assert merged[: len(ours)] == ours
    assert [name for name, _ in merged[len(ours) :]] == [name for name, _ in theirs]
    assert [data for _, data in merged[len(ours) :] if data[:2] == b"\xff\xd8"] == [
        data for _, data in theirs if data[:2] == b"\xff\xd8"
    ]
    convert(replace(merge, overwrite=True), QUIET)
    shuffled = samples(tmp_path / "M")
    assert sorted(shuffled) == sorted(merged) and shuffled != merged


def test_labels_without_names_are_numbers(config: Convert, tmp_path: Path) -> None:
    convert(config, QUIET)
    convert(Convert(src=config.src, dst=tmp_path / "B", format="beton"), QUIET)
    shutil.copy(tmp_path / "B/train.beton", tmp_path / "lone.beton")
    said = Console(record=True, file=io.StringIO(), width=300)
    merge = Convert(src=config.dst, dst=tmp_path / "lone.beton", more=(tmp_path / "M",), merge=True)
    convert(merge, said)
    assert "labels without names are taken as indices" in said.export_text()
    assert read_description(tmp_path / "M")["splits"]["train"]["class_counts"] == [21, 21, 21]


@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        ({"merge": True}, "at least two sources"),
        ({"more": (Path("x"),)}, "3 paths"),
        ({"merge": True, "append": True, "more": (Path("x"),)}, "one of them"),
        ({"raw_fraction": 0.5}, "no effect with --format tar"),
        ({"raw_below": "64KB"}, "no effect with --format tar"),
        ({"raw_below": "-1", "format": "beton"}, "--raw-below -1: give a number of bytes.*64KB"),
        ({"raw_below": "9", "raw_fraction": 1.0, "format": "beton"}, "--raw-below has no effect"),
        ({"originals": "drop"}, "no effect with --format tar"),
        ({"quality": 80}, "--quality has no effect"),
        ({"quality": 0, "jpeg": "reencode"}, "give 1 to 100"),
        ({"raw_fraction": 2.0, "format": "beton"}, "share of 0 to 1"),
        ({"compare": True, "tile": "off"}, "--compare has no effect"),
        ({"shuffle": True, "no_shuffle": True}, "one of them"),
        ({"max_size": 0}, "--max-size 0"),
    ],
)
def test_flags_that_make_no_sense(config: Convert, flags: dict[str, Any], reason: str) -> None:
    base = None
    if flags.get("append"):
        base = convert(config, QUIET)
    with pytest.raises(UsageError, match=reason):
        convert(replace(config, **flags), QUIET)
    assert base or not config.dst.exists()
