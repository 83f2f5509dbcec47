"""`convert --format beton`: deterministic, resumable after any kill, whole or not there, and open to training."""

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import time
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
from fastimg.errors import UserError
from fastimg.loaders.containers.beton import BetonFile, BetonWriter
from fastimg.loaders.containers.datasets import list_splits, open_dataset, read_description, unfinished
from fastimg.loaders.decode import decode

QUIET = Console(quiet=True)


def contents(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir()}


@pytest.fixture
def config(image_folder: Path, tmp_path: Path) -> Convert:
    """36 images in many parts."""
    return Convert(
        src=image_folder, dst=tmp_path / "D", format="beton", shard_size="30KB", workers="2", val_fraction=0.25
    )


@pytest.fixture
def whole(config: Convert, tmp_path: Path) -> dict[str, bytes]:
    convert(replace(config, dst=tmp_path / "whole"), QUIET)
    return contents(tmp_path / "whole")


def stop_after(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    left = iter(range(count))

    def decode_or_stop(*arguments: Any) -> Any:
        if next(left, None) is None:
            raise KeyboardInterrupt
        return decode(*arguments)

    monkeypatch.setattr(fastimg.convert.image_preparation, "decode", decode_or_stop)


def test_what_is_in_the_folder(config: Convert, whole: dict[str, bytes], tmp_path: Path) -> None:
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


def test_the_same_bytes_whatever_the_threads(config: Convert, whole: dict[str, bytes]) -> None:
    convert(replace(config, workers="5"), QUIET)
    assert contents(config.dst) == whole


@pytest.mark.parametrize("stop_at", [0, 5, 20, 30])
def test_interrupted_and_resumed(
    config: Convert, whole: dict[str, bytes], monkeypatch: pytest.MonkeyPatch, stop_at: int
) -> None:
    config = replace(config, tile="off")
    convert(config, QUIET)
    expected = contents(config.dst)
    shutil.rmtree(config.dst)
    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        stop_after(patched, stop_at)
        convert(config, QUIET)
    assert unfinished(config.dst)
    with pytest.raises(UserError, match="unfinished conversion"):
        convert(config, QUIET)
    convert(replace(config, resume=True), QUIET)
    assert contents(config.dst) == expected


def test_resume_from_every_state_that_a_kill_can_leave(
    config: Convert, whole: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    states: list[dict[str, bytes]] = []

    def remember(function: Any) -> Any:
        def before_and_after(*arguments: Any) -> Any:
            states.append(contents(config.dst))
            result = function(*arguments)
            states.append(contents(config.dst))
            return result

        return before_and_after

    with monkeypatch.context() as patched:
        patched.setattr(fastimg.convert.journal.Journal, "add", remember(fastimg.convert.journal.Journal.add))
        patched.setattr(BetonWriter, "_publish", remember(BetonWriter._publish))
        patched.setattr(fastimg.convert.journal.Journal, "remove", remember(fastimg.convert.journal.Journal.remove))
        convert(config, QUIET)
    assert len(states) > 10
    for number, state in enumerate(states):
        shutil.rmtree(config.dst)
        config.dst.mkdir()
        for name, content in state.items():
            torn = content + b"torn" if name.endswith(".part") else content  # written beyond what the journal knows
            (config.dst / name).write_bytes(torn)
        convert(replace(config, resume=True), QUIET)
        assert contents(config.dst) == whole, number


@pytest.mark.parametrize("damage", ["missing", "cut", "journal", "middle", "number", "end"])
def test_resume_does_not_trust_what_changed(
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


def test_a_full_disk(config: Convert, whole: dict[str, bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    part, room = BetonWriter.part, iter(range(3))

    def full(writer: BetonWriter) -> Any:
        if next(room, None) is None:
            raise OSError(errno.ENOSPC, "No space left on device")
        return part(writer)

    with (
        monkeypatch.context() as patched,
        pytest.raises(UserError, match=r"no space left on the disk; free some space, then continue .*--resume"),
    ):
        patched.setattr(BetonWriter, "part", full)
        convert(config, QUIET)
    convert(replace(config, resume=True), QUIET)
    assert contents(config.dst) == whole


def test_a_failing_conversion_leaves_nothing(config: Convert, image_folder: Path) -> None:
    (image_folder / "red/bad.jpg").write_bytes(b"bad")
    with pytest.raises(Exception, match=r"bad\.jpg"):
        convert(replace(config, on_error="fail"), QUIET)
    assert not config.dst.exists()


@pytest.mark.slow
@pytest.mark.parametrize("container", ["tar", "beton"])
def test_killed_and_resumed(container: Any, make_image_folder: Any, tmp_path: Path) -> None:
    """A real SIGKILL, again and again, each time a little later; then an uninterrupted end."""
    source = make_image_folder(60)
    flags = ["--format", container, "--shard-size", "60KB", "--val-fraction", "0.2", "--workers", "2"]
    command = [sys.executable, "-m", "fastimg", "convert", str(source)]
    done = convert(
        Convert(src=source, dst=tmp_path / "whole", format=container, shard_size="60KB", val_fraction=0.2), QUIET
    )
    kills = 0
    for _ in range(3):
        process = subprocess.Popen([*command, str(tmp_path / "D"), *flags, "--resume"], stderr=subprocess.DEVNULL)
        deadline, wanted = time.monotonic() + 60, 2 + 6 * kills
        while process.poll() is None and time.monotonic() < deadline:
            journal = tmp_path / "D/convert.json"
            if journal.exists() and len(journal.read_bytes().splitlines()) >= wanted:
                process.send_signal(signal.SIGKILL)
                break
            time.sleep(0.002)
        process.wait(60)
        kills += process.returncode == -signal.SIGKILL
    assert kills
    convert(
        Convert(src=source, dst=tmp_path / "D", format=container, shard_size="60KB", val_fraction=0.2, resume=True),
        QUIET,
    )
    assert contents(tmp_path / "D") == contents(tmp_path / "whole") and done.images == 180


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
