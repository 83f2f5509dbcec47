"""Read-ahead requests: everything once, in time, in large pieces, and nothing else."""

import contextlib
import sys
from collections import OrderedDict

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastimg.loaders import open_dataset
from fastimg.loaders.containers import readahead
from fastimg.loaders.containers.readahead import WholeBlocks, pieces
from fastimg.loaders.containers.tars.shards import ShardWriter
from fastimg.loaders.order import Slices, epoch_order
from fastimg.loaders.runtime import compiled, file_reads
from fastimg.loaders.runtime.compiling_nothing import compiling_nothing

SHAPES = {
    "n": st.integers(1, 600),
    "block": st.integers(1, 40),
    "window": st.integers(1, 500),
    "batch": st.integers(1, 30),
    "world": st.integers(1, 5),
    "start": st.floats(0, 1),
}


@given(**SHAPES)
def test_every_sample_is_requested_once_and_in_time(n, block, window, batch, world, start):
    order = epoch_order(n, 0, 0, "quasi-random", block, window)
    begin = int(start * n)
    everything = []
    for rank in range(world):
        slices = Slices(n, begin, batch, rank, world)
        blocks = WholeBlocks(order, slices, block)
        asked, by_block = set(), []
        for step in range(slices.steps):
            *urgent, ahead = blocks.before(step)
            by_block += ahead.tolist()
            asked.update(ahead.tolist(), *(samples.tolist() for samples in urgent))
            assert asked.issuperset(order[slices.span(step, step + 1)].tolist())
        assert len(by_block) == len(set(by_block))
        everything += by_block
    assert len(everything) == len(set(everything))  # no samples of another rank
    assert set(everything) <= set(order[begin:].tolist())  # nor left-over samples


def test_half_a_window_is_not_requested_at_once():
    order = epoch_order(50_000, 0, 0, "quasi-random", 16, 8192)
    slices = Slices(50_000, 0, 64, 0, 1)
    blocks = WholeBlocks(order, slices, 16)
    found = [blocks.before(step) for step in range(slices.steps)]
    assert len(found[0]) == 2 and sorted(found[0][0].tolist()) == sorted(order[:64].tolist())
    assert max(len(ahead) for *_, ahead in found) <= 4 * 64
    steady = found[len(found) // 4 : len(found) // 2]
    assert all(len(parts) == 1 for parts in steady)  # blocks are requested before any of their samples is needed
    assert 0.8 * 64 < np.mean([len(ahead) for (ahead,) in steady]) < 1.2 * 64
    for (ahead,) in steady:
        assert (np.diff(ahead.reshape(-1, 16)) == 1).all()  # as whole blocks


def listed(wanted):
    """(file, offset, size) of each request."""
    return list(zip(*(column.tolist() for column in wanted), strict=True))


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 300), st.integers(1, 40)), max_size=40), st.randoms())
def test_pieces_hold_the_extents_and_little_else(drawn, random):
    extents, ends = [], {}
    for file, gap, size in drawn:  # distances in kilobytes
        start = ends.get(file, 0) + 1024 * gap
        extents.append((file, start, 1024 * size))
        ends[file] = start + 1024 * size
    shuffled = extents + random.sample(extents, len(extents) // 3)  # some twice: a hard link, or padding
    random.shuffle(shuffled)
    columns = np.array(shuffled, np.int64).reshape(-1, 3).T
    found = listed(pieces(*columns))
    assert found == sorted(found) and all(0 < size <= 131072 for _, _, size in found)
    covered = {(file, kb) for file, at, size in found for kb in range(at // 1024, (at + size) // 1024)}
    needed = {(file, kb) for file, at, size in extents for kb in range(at // 1024, (at + size) // 1024)}
    assert sum(size for _, _, size in found) == 1024 * len(covered)  # nothing twice
    assert covered >= needed
    for file, kb in covered - needed:  # a gap of at most 16 KB between two extents
        assert any((file, kb - i) in needed for i in range(1, 17)) and any(
            (file, kb + i) in needed for i in range(1, 17)
        )


@pytest.fixture
def shards(tmp_path):
    """Two shards of 100 samples, each with an image of 4 KB and a label."""
    from PIL import Image

    Image.new("RGB", (8, 8)).save(tmp_path / "one.jpg")
    image = (tmp_path / "one.jpg").read_bytes()
    (tmp_path / "one.jpg").unlink()
    for number in range(2):
        with ShardWriter(tmp_path / f"train-{number:05d}.tar") as shard:
            for i in range(100):
                shard.add(f"{100 * number + i:09d}", {"jpg": image + bytes(4000 - len(image)), "cls": b"0"})
    return tmp_path


def test_a_block_of_a_tar_is_one_request(shards, monkeypatch):
    asked = []
    monkeypatch.setattr("fastimg.loaders.containers.watch.ask_all", lambda wanted: asked.extend(listed(wanted)))
    dataset = open_dataset(shards)
    dataset.will_need(np.arange(20, 40)[::-1])
    ((_, offset, size),) = asked
    member = 512 + 4096 + 512 + 512
    assert (offset, size) == (20 * member, 19 * member + 512 + 4000)
    asked.clear()
    dataset.will_need(np.array([95, 97, 103, 50]))  # apart: one each, one for two neighbours
    assert [(offset // member, size) for _, offset, size in asked] == [
        (50, 4512),
        (95, 2 * member + 4512),
        (3, 4512),
    ]
    assert len({file for file, _, _ in asked}) == 2
    dataset.will_need(np.zeros(0, np.int64))
    dataset.close()
    assert len(asked) == 3


def test_small_shards_are_asked_for_as_a_whole_once(shards, monkeypatch):
    asked = []
    monkeypatch.setattr("fastimg.loaders.containers.watch.ask_all", lambda wanted: asked.extend(listed(wanted)))
    with contextlib.closing(open_dataset(shards)) as dataset:
        dataset.will_need(np.arange(0, 20))
        assert len(asked) == 1  # one request for neighbours
        dataset.will_need(np.arange(0, 200, 30))
        member = 512 + 4096 + 512 + 512  # an image and its label
        assert sum(size for _, _, size in asked[1:]) == 2 * (99 * member + 512 + 4000)
        asked.clear()
        dataset.will_need(np.arange(200))
        assert not asked


def test_large_samples_are_asked_for_when_they_are_needed():
    needed = np.arange(10)
    for samples, nbytes in ((100, 100 << 20), (1 << 20, 1 << 29)):  # large samples, and many small ones
        asked = readahead.Asked(samples, nbytes)
        for _ in range(samples):
            assert asked.before(needed) is needed


def test_systems_without_the_call(monkeypatch):
    monkeypatch.delattr(readahead.os, "posix_fadvise")
    readahead.ask(-1, 0, 10)
    readahead.ask_all(pieces(*np.array([[-1], [0], [10]])))


@pytest.fixture
def advised(monkeypatch):
    """Requests from Python."""
    asked = []
    monkeypatch.setattr(readahead.os, "posix_fadvise", lambda *given: asked.append(given), raising=False)
    monkeypatch.setattr(readahead.os, "POSIX_FADV_WILLNEED", 3, raising=False)
    return asked


def test_a_thread_without_machine_code_asks_from_python(advised, monkeypatch):
    monkeypatch.setattr(compiled, "is_ready", lambda function: False)
    wanted = pieces(*np.array([[5, 4], [0, 70_000], [200_000, 10]]))
    with compiling_nothing():
        readahead.ask_all(wanted)
    assert advised == [(4, 70_000, 10, 3), (5, 0, 131_072, 3), (5, 131_072, 68_928, 3)]


def test_nothing_is_not_asked_for(advised):
    """The system takes it for the rest of the file."""
    readahead.ask(4, 100, 0)
    readahead.ask_all(pieces(*np.array([[4], [100], [0]])))
    assert advised == []


def test_reading_ahead_imports_no_compiler(advised, monkeypatch):
    """Where nothing else in the process has: texts need none."""
    monkeypatch.delitem(sys.modules, file_reads.__name__)
    readahead.ask_all(pieces(*np.array([[4], [0], [10]])))
    assert advised == [(4, 0, 10, 3)] and file_reads.__name__ not in sys.modules


def fetched(order, slices, ahead, held):
    """Samples that a cache of `held` samples fetches in an epoch, if the oldest are dropped first, as on Linux."""
    cache, count = OrderedDict(), 0
    asked = [ahead.before(step) for step in range(slices.steps)]
    for step in range(slices.steps + 3):  # batches are read while later ones are requested
        samples = [np.concatenate(asked[step])] if step < slices.steps else []
        if step >= 3:
            samples.append(order[slices.span(step - 3, step - 2)])
        for sample in np.concatenate(samples).tolist():
            if sample not in cache:
                count += 1
                cache[sample] = None
                if len(cache) > held:
                    cache.popitem(last=False)
    return count


def test_an_epoch_reads_everything_about_once_from_a_small_cache():
    n, block, window = 65_536, 16, 6144
    held = 3 * window // 2  # a seventh of the data
    slices = Slices(n, 0, 256, 0, 1)
    for seed in range(2):
        order = epoch_order(n, seed, 0, "quasi-random", block, window)
        assert fetched(order, slices, WholeBlocks(order, slices, block), held) <= 1.01 * n


def test_two_ranks_that_share_a_cache_read_everything_about_once():
    n, block, window = 65_536, 16, 6144
    order = epoch_order(n, 0, 0, "quasi-random", block, window)
    parts = [Slices(n, 0, 128, rank, 2) for rank in range(2)]
    count = sum(fetched(order, part, WholeBlocks(order, part, block), 3 * window // 4) for part in parts)
    assert count <= 1.01 * n  # ranks have disjoint samples, so half a cache each is one cache for both


def test_a_random_order_fetches_a_block_again_for_nearly_every_sample():
    n, block, held = 65_536, 16, 9216
    cache, count = OrderedDict(), 0
    for number in (epoch_order(n, 0, 0, "random") // block).tolist():
        if number not in cache:
            count += 1
            cache[number] = None
            if len(cache) > held // block:
                cache.popitem(last=False)
    assert count > 12 * n / block  # 16 samples
