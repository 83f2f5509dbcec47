"""Where a conversion may write, what it may overwrite, and disks that fail."""

import errno
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

import fastimg.convert.journal
from fastimg.config.commands import Convert
from fastimg.convert.pipeline import convert
from fastimg.errors import UsageError, UserError
from fastimg.loaders.containers.datasets import list_splits
from fastimg.loaders.containers.tars.shards import ShardWriter
from fastimg.loaders.errors import DataError

from .conversions import contents


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
        ({"delete_first": True}, "--delete-first has no effect without --overwrite"),
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


def test_a_disk_that_is_full_from_the_start(config, console, monkeypatch):
    """For a source that is first copied to a temporary file."""

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("fastimg.convert.sources.spools.os.write", full)
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
    def broken(self):
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


@pytest.mark.usefixtures("shared_locks")
def test_a_process_that_was_forked_meanwhile_locks_out_nobody(tmp_path):
    for _ in range(2):
        with fastimg.convert.journal.locked(tmp_path):
            pass
