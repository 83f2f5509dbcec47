"""Going on after an interruption: finished shards stay, changed files are not trusted."""

import os
from dataclasses import replace

import pytest

import fastimg.convert.journal
from fastimg.convert.pipeline import convert
from fastimg.errors import UserError
from fastimg.loaders.containers.datasets import unfinished
from fastimg.loaders.errors import DataError

from .conversions import contents, stop_after


def stop_after_shard(monkeypatch, number):
    """Interrupt the conversion as soon as shard `number` is in the journal, however fast the threads are."""
    add = fastimg.convert.journal.Journal.add

    def add_and_stop(journal, shard):
        add(journal, shard)
        if shard.number == number:
            raise KeyboardInterrupt

    monkeypatch.setattr(fastimg.convert.journal.Journal, "add", add_and_stop)


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
