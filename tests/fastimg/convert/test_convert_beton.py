"""`convert --format beton`: deterministic, resumable after any kill, complete or absent, and usable for training."""

import json
import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from rich.console import Console

import fastimg.convert.image_preparation
import fastimg.convert.journal
from fastimg.config.commands import Convert
from fastimg.convert.pipeline import convert
from fastimg.loaders.containers.betons.files import BetonFile
from fastimg.loaders.containers.datasets import list_splits, open_dataset
from fastimg.loaders.containers.description import read_description

from .conversions import contents, kill_while_moving, move_pages

QUIET = Console(quiet=True)


@pytest.fixture
def config(image_folder: Path, tmp_path: Path) -> Convert:
    """36 images in many parts."""
    return Convert(
        src=image_folder, dst=tmp_path / "D", format="beton", shard_size="30KB", workers="2", val_fraction=0.25
    )


def test_contents_of_the_folder(config: Convert, whole: dict[str, bytes], tmp_path: Path) -> None:
    assert sorted(whole) == ["dataset.json", "train.beton", "val.beton"]
    folder = tmp_path / "whole"
    assert list_splits(folder) == {"train": 27, "val": 9}
    description = read_description(folder)
    assert description["container"] == "beton" and description["options"]["format"] == "beton"
    assert description["schema"]["image"] == {"kind": "rgb"}
    for split, count in (("train", 27), ("val", 9)):
        dataset = open_dataset(folder, split)
        assert len(dataset) == count and dataset.classes == ("blue", "green", "red")
        assert dataset.sample_name(0).endswith((".jpg)", ".png)"))
        dataset.close()


@pytest.mark.parametrize("damage", ["missing", "cut", "journal", "middle", "number", "end"])
def test_resume_does_not_trust_changed_files(
    config: Convert, whole: dict[str, bytes], monkeypatch: pytest.MonkeyPatch, damage: str
) -> None:
    add = fastimg.convert.journal.Journal.add

    def stop(journal: Any, shard: Any) -> None:
        add(journal, shard)
        if shard.number == 2:
            raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(fastimg.convert.journal.Journal, "add", stop)
        convert(config, QUIET)
    part, journal = config.dst / ".train.beton.part", config.dst / "convert.json"
    if damage == "missing":
        part.unlink()
    elif damage == "cut":
        os.truncate(part, part.stat().st_size - 5000)
    elif damage == "journal":
        os.truncate(journal, journal.stat().st_size - 20)
    else:
        lines = journal.read_bytes().splitlines(keepends=True)
        shard = json.loads(lines[2])
        samples, metadata, table, end, file_end = shard["part"]
        change = {"number": {"number": 10**18}, "end": {"part": [samples, metadata, table, end + 10**18, file_end]}}
        changed = [json.dumps(shard | change[damage]).encode() + b"\n"] if damage in change else []
        journal.write_bytes(b"".join(lines[:2] + changed + lines[3:]))
    convert(replace(config, resume=True), QUIET)
    assert contents(config.dst) == whole


@pytest.mark.parametrize("again", ["resume", "overwrite"])
@pytest.mark.parametrize("writes", [0, 1, 7])
def test_killed_while_pages_are_moved(
    config: Convert, image_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, writes: int, again: str
) -> None:
    (image_folder / "red/bad.jpg").write_bytes(b"bad")  # so that there are fewer samples than files
    config = replace(config, val_fraction=0.0)
    move_pages(monkeypatch, limit=36)
    convert(replace(config, dst=tmp_path / "expected"), QUIET)
    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        kill_while_moving(patched, config.dst, tmp_path / "killed", writes)
        convert(config, QUIET)
    assert contents(config.dst).keys() == {"convert.json"}
    shutil.rmtree(config.dst)
    (tmp_path / "killed").rename(config.dst)
    convert(replace(config, **{again: True}), QUIET)
    assert contents(config.dst) == contents(tmp_path / "expected")


def test_a_failing_conversion_leaves_nothing(config: Convert, image_folder: Path) -> None:
    (image_folder / "red/bad.jpg").write_bytes(b"bad")
    with pytest.raises(Exception, match=r"bad\.jpg"):
        convert(replace(config, on_error="fail"), QUIET)
    assert not config.dst.exists()


def test_a_beton_trains(config: Convert, whole: dict[str, bytes], tmp_path: Path, cli: Any, fast: Any) -> None:
    ran = cli("train", tmp_path / "whole", *fast, "-o", tmp_path / "runs", "--name", "b")
    assert ran.code == 0, ran.err
    ran = cli("eval", tmp_path / "runs/b", tmp_path / "whole", "--json")
    assert ran.code == 0 and '"images": 9' in ran.out


def test_verify_finds_a_changed_byte(whole: dict[str, bytes], tmp_path: Path, cli: Any) -> None:
    ran = cli("verify", tmp_path / "whole", "--deep")
    assert ran.code == 0 and "no fault (2 shards, 36 images decoded)" in ran.out
    with (tmp_path / "whole/train.beton").open("r+b") as file:
        file.seek(-3, os.SEEK_END)
        file.write(b"\1")
    ran = cli("verify", tmp_path / "whole")
    assert ran.code == 1 and "its content was altered" in ran.out


def test_a_large_sample_gets_larger_pages(tmp_path: Path) -> None:
    (tmp_path / "images/a").mkdir(parents=True)
    Image.fromarray(np.zeros((1700, 1800, 3), np.uint8)).save(tmp_path / "images/a/large.png")
    convert(Convert(src=tmp_path / "images", dst=tmp_path / "D", format="beton"), QUIET)
    with BetonFile(tmp_path / "D/train.beton") as beton:
        assert beton.page_size == 1 << 24 and beton.sample(0)["image"].shape == (1700, 1800, 3)
