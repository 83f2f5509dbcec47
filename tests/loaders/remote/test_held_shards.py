"""Shards that stay open between samples."""

import os
from pathlib import Path

import numpy as np
import pytest

from fastimg.loaders.remote.cache.held_shards import HELD, HeldShard, HeldShards
from fastimg.loaders.runtime.scratch import Scratch

from .conftest import PER_SHARD


def open_shard(path: Path) -> HeldShard:
    path.write_bytes(path.name.encode())
    return HeldShard(os.open(path, os.O_RDONLY), path.stat().st_mtime_ns)


def is_open(shard: HeldShard) -> bool:
    try:
        os.fstat(shard.file)
    except OSError:
        return False
    return True


@pytest.fixture
def held():
    shards = HeldShards()
    yield shards
    shards.close()


def test_a_shard_is_given_to_one_at_a_time(held: HeldShards, tmp_path: Path) -> None:
    shard = open_shard(tmp_path / "0")
    held.give(0, shard)
    assert held.take(1) is None
    assert held.take(0) is shard
    assert held.take(0) is None
    held.give(0, shard)


def test_the_one_that_was_read_longest_ago_is_closed(held: HeldShards, tmp_path: Path) -> None:
    files = [open_shard(tmp_path / str(number)) for number in range(HELD + 2)]
    for number, file in enumerate(files):
        held.give(number, file)
    assert [is_open(file) for file in files] == [False] * 2 + [True] * HELD
    assert held.take(1) is None


def test_a_sweep_closes_what_is_gone(held: HeldShards, tmp_path: Path) -> None:
    files = [open_shard(tmp_path / str(number)) for number in range(4)]
    for number, file in enumerate(files):
        held.give(number, file)
    (tmp_path / "1").unlink()
    os.utime(tmp_path / "2", ns=(1, 1))  # somebody has written to it
    held.sweep()
    assert [is_open(file) for file in files] == [True, False, False, True]


def test_files_are_closed_with_their_owner(tmp_path: Path) -> None:
    shards = HeldShards()
    shard = open_shard(tmp_path / "0")
    shards.give(0, shard)
    del shards
    assert not is_open(shard)


def test_a_shard_is_opened_once_for_its_samples(opened, monkeypatch) -> None:
    dataset = opened()
    mirror, asked = dataset.shard_files.mirror, []
    opens = mirror.open
    monkeypatch.setattr(mirror, "open", lambda shard, **more: asked.append(shard.name) or opens(shard, **more))
    scratch = Scratch()
    before = [bytes(dataset.read(index, scratch)) for index in range(PER_SHARD)]
    assert asked == ["train-00000.tar"]
    (mirror.folder / "train-00000.tar").unlink()
    assert [bytes(dataset.read(index, scratch)) for index in range(PER_SHARD)] == before
    assert asked == ["train-00000.tar"] * 2


def test_what_is_only_held_does_not_count_as_used(opened) -> None:
    dataset = opened()
    dataset.read(0, Scratch())
    shard = dataset.shard_files.mirror.folder / "train-00000.tar"
    os.utime(shard, ns=(1, shard.stat().st_mtime_ns))
    none = np.zeros(0, np.int64)
    dataset.shard_files.ahead(none, none, none)
    assert shard.stat().st_atime_ns == 1
