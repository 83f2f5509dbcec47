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
    found = simulate.epoch(400_000, 40, 64, window)
    assert found["at_once"] <= found["at_once_formula"] <= found["at_once"] + 2
    assert found["longest_stay"] <= found["longest_stay_formula"]
    assert 0.7 * found["nodes_per_shard_formula"] <= found["nodes_per_shard"] <= found["nodes_per_shard_formula"]


@pytest.mark.parametrize("window", [100, 40_000])
def test_every_sample_of_the_order_is_counted(simulate, window):
    shards, nodes, size = 40, 8, 5_000
    found = simulate.epoch(shards * size, shards, nodes, window)
    of = epoch_order(shards * size, 0, 0, "quasi-random", size, window) // size
    places = [np.flatnonzero(of == shard) for shard in range(shards)]
    readers = [len(np.unique(each // simulate._BATCH % nodes)) for each in places]
    assert found["nodes_per_shard"] == np.mean(readers)
    assert found["longest_stay"] == max(each[-1] - each[0] + 1 for each in places)
