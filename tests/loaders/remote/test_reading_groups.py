"""Several samples of shards of a store, read in one call: those whose shards are here; the others one by one."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fastimg.loaders import open_dataset
from fastimg.loaders.runtime import file_reads
from fastimg.loaders.runtime.scratch import Scratch

from .conftest import PER_SHARD, SAMPLES


def one_by_one(dataset: Any, indices: Sequence[int]) -> list[bytes]:
    scratch = Scratch()
    return [bytes(dataset.read(index, scratch)) for index in indices]


def together(dataset: Any, indices: Sequence[int]) -> list[bytes | None]:
    encoded = Scratch().group(len(indices))
    dataset.read_group(indices, encoded)
    return [data and bytes(data) for data in map(encoded.__getitem__, range(len(indices)))]


def files_open() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_what_is_here_is_read_and_nothing_is_fetched(opened, server) -> None:
    dataset = opened()  # without indexes, so all shards were fetched for them
    indices = [0, PER_SHARD, 1, 2 * PER_SHARD, SAMPLES - 1, 0, PER_SHARD - 1, PER_SHARD + 1]
    expected = one_by_one(dataset, indices)
    assert together(dataset, indices) == expected
    (dataset.shard_files.mirror.folder / "train-00001.tar").unlink()
    dataset.close()
    requests = len(server.requests)
    elsewhere = [index // PER_SHARD == 1 for index in indices]
    found = together(dataset, indices)
    assert found == [None if missing else data for data, missing in zip(expected, elsewhere, strict=True)]
    assert len(server.requests) == requests
    assert one_by_one(dataset, indices) == expected == together(dataset, indices)
    assert len(server.requests) > requests


def test_a_shard_is_opened_once_for_a_group(opened, monkeypatch) -> None:
    dataset = opened()
    expected = one_by_one(dataset, range(SAMPLES))
    dataset.close()
    asked = []
    mirror = dataset.shard_files.mirror
    opens = mirror.open
    monkeypatch.setattr(mirror, "open", lambda shard, **more: asked.append(shard.name) or opens(shard, **more))
    for _ in range(2):
        assert together(dataset, range(0, SAMPLES, 3)) == expected[::3]
    assert sorted(asked) == ["train-00000.tar", "train-00001.tar", "train-00002.tar"]


def test_a_shard_that_is_taken_meanwhile_is_read_again(opened, monkeypatch) -> None:
    dataset = opened()
    expected = one_by_one(dataset, range(SAMPLES))
    shard = dataset.shard_files.mirror.folder / "train-00001.tar"
    fill = file_reads.fill_parts

    def taken_before(*given: Any) -> Any:
        with shard.open("r+b") as file:
            file.write(bytes(shard.stat().st_size))
        shard.unlink()
        return fill(*given)

    monkeypatch.setattr(file_reads, "fill_parts", taken_before)
    indices = [0, PER_SHARD, 2 * PER_SHARD, PER_SHARD + 1]
    assert together(dataset, indices) == [expected[0], None, expected[2 * PER_SHARD], None]
    assert one_by_one(dataset, indices) == [expected[index] for index in indices]


def test_what_was_only_deleted_counts_and_is_closed(opened) -> None:
    dataset = opened()
    expected = one_by_one(dataset, range(SAMPLES))
    before = files_open()
    for path in dataset.shard_files.mirror.folder.glob("*.tar"):
        path.unlink()
    indices = [0, PER_SHARD, 2 * PER_SHARD]
    assert together(dataset, indices) == [expected[index] for index in indices]
    assert files_open() == before - 3
    assert together(dataset, indices) == [None] * 3


def test_a_file_that_was_cut_short_leaves_the_reason_to_a_single_read(opened) -> None:
    dataset = opened()
    expected = one_by_one(dataset, range(SAMPLES))
    shard = dataset.shard_files.mirror.folder / "train-00000.tar"
    os.truncate(shard, 600)
    assert together(dataset, [0, PER_SHARD]) == [None, expected[PER_SHARD]]
    assert one_by_one(dataset, [0]) == expected[:1]


def test_by_ranges_each_sample_is_a_request(opened) -> None:
    dataset = opened()
    dataset.shard_files.by_ranges = True  # as with a cache of 0 bytes
    assert together(dataset, [0, 1]) == [None, None]


def test_nothing_stays_open_where_opening_fails(opened, monkeypatch) -> None:
    dataset = opened()
    one_by_one(dataset, range(SAMPLES))
    dataset.close()
    mirror = dataset.shard_files.mirror
    opens, before = mirror.open, files_open()

    def fail(shard: Any, **more: Any) -> int:
        if shard.name == "train-00001.tar":
            raise OSError("no more descriptors")
        return opens(shard, **more)

    monkeypatch.setattr(mirror, "open", fail)
    try:
        together(dataset, [0, PER_SHARD])
    except OSError:
        dataset.close()
    assert files_open() == before


def test_threads_that_share_a_cache_that_is_too_small(too_small) -> None:
    dataset, expected = too_small
    wrong: list[int] = []
    in_groups: list[int] = []

    def read(first: int) -> None:
        for step in range(30):
            indices = [(first + 7 * step + place) % SAMPLES for place in range(6)]
            for index, data in zip(indices, together(dataset, indices), strict=True):
                in_groups.extend([index] if data else [])
                if (data or one_by_one(dataset, [index])[0]) != expected[index]:
                    wrong.append(index)

    too_small.read_by_four_threads(read)
    assert not wrong and in_groups


def test_files_that_nobody_converted(server, bucket: Path, cache_dir: Path, images: list[bytes]) -> None:
    for number, image in enumerate([*images[:5], b""]):
        place = bucket / "photos" / ("cats", "dogs")[number % 2]
        place.mkdir(parents=True, exist_ok=True)
        (place / f"{number}.jpg").write_bytes(image)
    dataset = open_dataset("s3://bucket/photos", cache_dir=cache_dir, storage_options=server.options)
    indices = range(len(dataset))
    assert together(dataset, indices) == [None] * 6
    expected = one_by_one(dataset, indices)
    assert together(dataset, indices) == [data or None for data in expected]  # an empty one is left to `read`
    dataset.close()
