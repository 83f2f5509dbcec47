"""Shards of a store that are read by ranges, with a cache of 0 bytes: each is known by a few places of it."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from fastimg.loaders import open_dataset
from fastimg.loaders.containers.identities import places_of
from fastimg.loaders.errors import ShardError
from fastimg.loaders.runtime.scratch import Scratch

from .conftest import PER_SHARD, SAMPLES, write_shards


@pytest.fixture
def padded(bucket: Path, images: list[bytes]) -> list[bytes]:
    """The images of shards that are all of one size, with what is derived of them."""
    size = max(map(len, images))
    padded = [image.ljust(size, b"\0") for image in images]
    write_shards(bucket / "D", padded)
    open_dataset(bucket / "D").close()
    return padded


def test_exchanged_shards_are_refused(opened: Any, bucket: Path, padded: list[bytes]) -> None:
    a, b = bucket / "D/train-00000.tar", bucket / "D/train-00001.tar"
    first, second = a.read_bytes(), b.read_bytes()
    assert len(first) == len(second) and first != second
    a.write_bytes(second)
    b.write_bytes(first)
    dataset = opened(0)
    for number, shard in ((0, a), (PER_SHARD, b)):
        with pytest.raises(ShardError, match=f"^s3://bucket/D/{shard.name}: another content than dataset.json states"):
            dataset.read(number, Scratch())
    assert bytes(dataset.read(2 * PER_SHARD, Scratch())) == padded[2 * PER_SHARD]


def test_places_are_asked_for_once_whatever_the_number_of_threads(
    opened: Any, server: Any, padded: list[bytes]
) -> None:
    dataset = opened(0)
    asked = len(server.requests)
    with ThreadPoolExecutor(8) as pool:
        read = list(pool.map(lambda index: bytes(dataset.read(index, Scratch())), range(SAMPLES)))
    assert read == padded
    ranges = len(server.requests) - asked - server.heads.count("D/train-00000.tar") * 3
    assert ranges == SAMPLES + 3 * len(places_of(dataset.shard_files.lengths[0].item()))


def test_a_place_that_is_damaged_on_the_way_is_asked_for_again(opened: Any, server: Any, padded: list[bytes]) -> None:
    dataset = opened(0)
    server.faults = [("train-00000.tar", "none"), ("train-00000.tar", "flip")]  # of HEAD, and of a place
    assert bytes(dataset.read(0, Scratch())) == padded[0]
    assert server.faults == []
