"""benchmarks/simulate.py: the order window by window, and formulas beside a small epoch."""

import importlib.util
import sys
from pathlib import Path

import numpy as np
import pytest

from fastimg.loaders.order import epoch_order

BENCHMARKS = Path(__file__).resolve().parents[3] / "benchmarks"


@pytest.fixture
def simulate(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    spec = importlib.util.spec_from_file_location("simulate", BENCHMARKS / "simulate.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module
    sys.modules.pop("measure", None)


@pytest.mark.parametrize(("n", "size", "window"), [(20_000, 500, 1700), (20_000, 500, 64), (1001, 100, 5000)])
def test_the_order_in_parts_is_the_order(simulate, n, size, window):
    parts = np.concatenate(list(simulate.order_in_parts(n, size, window, seed=3, epoch=2)))
    assert np.array_equal(parts, epoch_order(n, 3, 2, "quasi-random", size, window))


@pytest.mark.parametrize("window", [100, 40_000])
def test_the_formulas_bound_what_is_simulated(simulate, window):
    found = simulate.epoch(400_000, 40, 64, window, slots=6)
    assert found["at_once"] <= found["at_once_formula"] <= found["at_once"] + 2
    assert found["longest_stay"] <= found["longest_stay_formula"]
    assert 0.7 * found["nodes_per_shard_formula"] <= found["nodes_per_shard"] <= found["nodes_per_shard_formula"]


@pytest.mark.parametrize("window", [100, 40_000])
def test_every_sample_of_the_order_is_counted(simulate, window):
    shards, nodes, size = 40, 8, 5_000
    found = simulate.epoch(shards * size, shards, nodes, window, slots=6)
    of = epoch_order(shards * size, 0, 0, "quasi-random", size, window) // size
    places = [np.flatnonzero(of == shard) for shard in range(shards)]
    readers = [len(np.unique(each // simulate._BATCH % nodes)) for each in places]
    assert found["nodes_per_shard"] == np.mean(readers)
    assert found["longest_stay"] == max(each[-1] - each[0] + 1 for each in places)


@pytest.mark.parametrize("window", [100, 40_000])
def test_a_cache_of_the_formula_fetches_each_shard_once(simulate, window):
    found = simulate.epoch(400_000, 100, 8, window, slots=3)
    assert found["fetched_again"] == 0
    assert found["fetched_shards_of_a_node"] <= 100
    assert 1 < found["cache_shards_needed"] <= found["cache_shards_formula"]


def test_a_cache_that_gives_up_shards_before_they_were_read_needs_more(simulate):
    """Eight nodes, each of which reads from a shard at few of its steps: those that were read last outlast the next."""
    found = simulate.epoch(400_000, 100, 8, 40_000, slots=3)
    assert found["cache_shards_needed"] >= found["cache_shards_formula"] - simulate._MORE_LARGE
    assert found["cache_shards_by_last_use"] > 1.3 * found["cache_shards_formula"]


def reads_of(simulate, lists):
    """A node that reads these shards at its steps, with one other node beside it."""
    order = np.concatenate([np.concatenate([np.resize(shards, 4), np.full(4, 9)]) for shards in lists])
    reads = simulate.NodeReads([0], 2, 4, 1, 10)
    for start in range(0, len(order), 3):
        reads.note(order[start : start + 3], start)
    return reads.of(0)


def test_what_a_node_reads(simulate):
    reads = reads_of(simulate, [[0, 1], [1, 2], [0]])
    assert list(zip(reads.steps.tolist(), reads.shards.tolist(), strict=True)) == [
        (0, 0),
        (0, 1),
        (1, 1),
        (1, 2),
        (2, 0),
    ]
    assert reads.first[:3].tolist() == [0, 1, 9] and (reads.first[3:] > len(reads.steps)).all()


@pytest.mark.parametrize(("room", "expected"), [(1, (8, 5)), (2, (4, 1)), (3, (3, 0))])
def test_a_cache_that_is_too_small_fetches_again(simulate, room, expected):
    """By hand: steps read 0 1, 1 2 and 0, and each begins with what begins in it."""
    reads = reads_of(simulate, [[0, 1], [1, 2], [0]])
    assert simulate.with_cache(reads, room, world_batch=8, slots=1, ahead=0) == expected
    assert simulate.least_room(reads, 8, 1, 0, most=5) == 3
