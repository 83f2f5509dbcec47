"""Shards that were asked for, and not read yet, outlast those that were read, which may not be needed any more."""

import gc
import os
import threading
import time
import weakref
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from fastimg.loaders.remote import awaited_shards
from fastimg.loaders.runtime.scratch import Scratch

from .conftest import PER_SHARD, SAMPLES


def here(dataset: Any) -> list[int]:
    return sorted(int(path.stem[-1]) for path in dataset.shard_files.mirror.folder.glob("*.tar"))


def seconds_from_now(dataset: Any, number: int) -> float:
    path = dataset.shard_files.mirror.folder / f"train-0000{number}.tar"
    return os.stat(path).st_atime - time.time()


def read(dataset: Any, number: int) -> bytes:
    return bytes(dataset.read(number * PER_SHARD, Scratch()))


def ask(dataset: Any, number: int) -> None:
    """Ask for a shard, and wait until it is here, and marked."""
    dataset.will_need(np.array([number * PER_SHARD]))
    deadline = time.monotonic() + 30
    while number not in here(dataset) or seconds_from_now(dataset, number) < 1:
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.fixture
def two_fit(opened: Callable[..., Any], bucket) -> Any:
    """The dataset, with a cache that holds two of its three shards, and now holds none."""
    sizes = [path.stat().st_size for path in (bucket / "D").glob("*.tar")]
    beside = 20_000  # dataset.json, and what is derived
    dataset = opened(cache_limit=sum(sizes) - min(sizes) + beside)
    for path in dataset.shard_files.mirror.folder.glob("*.tar"):
        path.unlink()
    dataset.close()
    return dataset


@pytest.mark.parametrize("asked", [True, False])
def test_one_that_was_asked_for_stays(two_fit: Any, asked: bool) -> None:
    if asked:
        ask(two_fit, 0)
    else:
        two_fit.shard_files.mirror.bring(two_fit.shard_files._shards[0])
    read(two_fit, 1)
    read(two_fit, 2)
    assert here(two_fit) == ([0, 2] if asked else [1, 2])


def test_one_that_was_read_is_like_others_again(two_fit: Any) -> None:
    ask(two_fit, 0)
    assert seconds_from_now(two_fit, 0) > awaited_shards.AWAITED - 5
    read(two_fit, 0)
    assert seconds_from_now(two_fit, 0) <= 0
    read(two_fit, 1)
    read(two_fit, 2)
    assert here(two_fit) == [1, 2]


def test_one_that_is_read_in_a_group(two_fit: Any) -> None:
    ask(two_fit, 0)
    encoded = Scratch().group(2)
    two_fit.read_group([0, 1], encoded)
    assert encoded[0] or encoded[1]
    assert seconds_from_now(two_fit, 0) <= 0


def test_one_that_is_here_already_and_open(two_fit: Any) -> None:
    """As in the next epoch: its file is held open, and was marked as used a moment before."""
    read(two_fit, 0)
    ask(two_fit, 0)
    read(two_fit, 1)
    read(two_fit, 2)
    assert here(two_fit) == [0, 2]
    read(two_fit, 0)
    assert seconds_from_now(two_fit, 0) <= 0


def test_all_of_them_are_given_up_where_there_is_no_other(two_fit: Any) -> None:
    ask(two_fit, 0)
    ask(two_fit, 1)
    ask(two_fit, 2)
    assert len(here(two_fit)) == 2 and 2 in here(two_fit)
    assert [read(two_fit, number) for number in range(3)]


def test_a_slow_training_renews_the_mark(two_fit: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    ask(two_fit, 0)
    path = two_fit.shard_files.mirror.folder / "train-00000.tar"
    os.utime(path, ns=(1, path.stat().st_mtime_ns))
    none = np.zeros(0, np.int64)
    later = time.monotonic() + awaited_shards.AWAITED / 2 + 1
    monkeypatch.setattr(awaited_shards.time, "monotonic", lambda: later)
    two_fit.will_need(none)
    assert seconds_from_now(two_fit, 0) > awaited_shards.AWAITED - 5


def test_an_order_that_asks_for_much_fetches_nothing_twice(two_fit: Any) -> None:
    """Two shards are asked for; the third one, which is needed at once, does not take their place for good."""
    before = two_fit.shard_files.mirror.cache.spent.files
    ask(two_fit, 1)
    read(two_fit, 0)
    ask(two_fit, 2)  # takes the place of the first, which was read
    assert here(two_fit) == [1, 2]
    for index in range(PER_SHARD, SAMPLES):
        two_fit.read(index, Scratch())
    assert two_fit.shard_files.mirror.cache.spent.files - before == 3


def test_files_that_nobody_has_end_their_threads(two_fit: Any) -> None:
    ask(two_fit, 0)
    count = sum(thread.name.startswith("fastimg-ahead") for thread in threading.enumerate())
    assert count > 0
    files = weakref.ref(two_fit.shard_files)
    two_fit.shard_files = SimpleNamespace(close=lambda: None)
    gc.collect()
    assert files() is None
    deadline = time.monotonic() + 30
    while any(thread.name.startswith("fastimg-ahead") for thread in threading.enumerate()):
        assert time.monotonic() < deadline
        time.sleep(0.01)
