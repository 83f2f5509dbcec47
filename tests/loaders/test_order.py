"""The order of an epoch is a permutation that the ranks partition, batch by batch."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from fastimg.loaders.order import Slices, epoch_order


@given(n=st.integers(0, 500), seed=st.integers(0, 2**63), epoch=st.integers(0, 10**6))
def test_an_order_is_a_permutation(n, seed, epoch):
    order = epoch_order(n, seed, epoch, "random")
    assert order.dtype == np.int64 and sorted(order.tolist()) == list(range(n))
    assert epoch_order(n, seed, epoch, "random").tolist() == order.tolist()


def test_known_orders():
    assert epoch_order(10, 0, 0, "random").tolist() == [9, 3, 8, 4, 7, 1, 0, 6, 5, 2]
    assert epoch_order(10, 0, 1, "random").tolist() == [4, 9, 3, 7, 1, 6, 2, 5, 0, 8]
    assert epoch_order(10, 1, 0, "random").tolist() == [4, 1, 7, 5, 6, 3, 2, 9, 8, 0]
    expected = [22, 13, 18, 21, 14, 15, 1, 19, 6, 10, 11, 4, 0, 7, 3, 20, 9, 2, 16, 12, 17, 5, 8]
    assert epoch_order(23, 42, 3, "random").tolist() == expected


def test_sequential_is_the_datasets_order():
    assert epoch_order(7, 3, 5, "sequential").tolist() == list(range(7))


def test_every_sample_is_as_often_in_every_place():
    orders = np.array([epoch_order(5, 0, epoch, "random") for epoch in range(4000)])
    for place in orders.T:
        assert stats.chisquare(np.bincount(place, minlength=5)).pvalue > 1e-3


@given(
    n=st.integers(1, 300), batch=st.integers(1, 40), world=st.integers(1, 9), start=st.floats(0, 1, exclude_max=True)
)
def test_ranks_share_what_is_left_of_an_epoch(n, batch, world, start):
    begin = int(start * n)
    ranks = [Slices(n, begin, batch, rank, world) for rank in range(world)]
    (steps,) = {s.steps for s in ranks}
    assert (steps - 1) * batch * world < n - begin <= steps * batch * world
    seen = []
    for step in range(steps):
        for s in ranks:
            positions, weight = s.positions(step)
            assert positions.shape == weight.shape == (batch,)
            assert (positions.dtype, weight.dtype) == (np.int64, np.float32) and set(weight.tolist()) <= {0.0, 1.0}
            assert positions.min() >= 0 and positions.max() < n  # padding too is a sample
            seen += positions[weight == 1].tolist()
    assert seen == list(range(begin, n))  # in order: a global batch is a run of positions


@given(n=st.integers(1, 100), batch=st.integers(1, 9), worlds=st.tuples(st.integers(1, 5), st.integers(1, 5)))
def test_an_epoch_goes_on_with_another_number_of_ranks(n, batch, worlds):
    before, after = worlds
    taken = min(n, batch * before)  # after one step
    first = [p for r in range(before) for p, w in zip(*Slices(n, 0, batch, r, before).positions(0), strict=True) if w]
    rest = [
        p
        for rank in range(after)
        for step in range(Slices(n, taken, batch, rank, after).steps)
        for p, w in zip(*Slices(n, taken, batch, rank, after).positions(step), strict=True)
        if w
    ]
    assert sorted(first + rest) == list(range(n))


def test_padding_wraps_round_with_weight_0():
    positions, weight = Slices(5, 0, 4, 0, 1).positions(1)
    assert positions.tolist() == [4, 0, 1, 2] and weight.tolist() == [1, 0, 0, 0]
    positions, weight = Slices(2, 0, 3, 1, 2).positions(0)  # a rank of padding alone, past the end more than once
    assert positions.tolist() == [1, 0, 1] and weight.tolist() == [0, 0, 0]


@pytest.mark.parametrize(("n", "start", "steps"), [(12, 0, 2), (13, 0, 3), (12, 12, 0), (12, 6, 1), (12, 5, 2)])
def test_steps_that_are_left(n, start, steps):
    assert Slices(n, start, 3, 1, 2).steps == steps and Slices(n, start, 3, 1, 2).global_batch == 6
