"""The order of an epoch is a permutation that the ranks partition, batch by batch."""

import time
import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from torch.utils.data import DistributedSampler

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


def test_every_sample_is_equally_often_at_every_place():
    orders = np.array([epoch_order(5, 0, epoch, "random") for epoch in range(4000)])
    for place in orders.T:
        assert stats.chisquare(np.bincount(place, minlength=5)).pvalue > 1e-3


@given(
    n=st.integers(1, 300), batch=st.integers(1, 40), world=st.integers(1, 9), start=st.floats(0, 1, exclude_max=True)
)
def test_ranks_share_the_rest_of_an_epoch(n, batch, world, start):
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
            assert positions.min() >= 0 and positions.max() < n  # padding is a sample, too
            seen += positions[weight == 1].tolist()
    assert seen == list(range(begin, n))  # sequential: a global batch is a run of positions


@given(n=st.integers(1, 100), batch=st.integers(1, 9), worlds=st.tuples(st.integers(1, 5), st.integers(1, 5)))
def test_an_epoch_resumes_with_another_number_of_ranks(n, batch, worlds):
    before, after = worlds
    taken = Slices(n, 0, batch, 0, before).end(0)  # after one step
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
    positions, weight = Slices(2, 1, 3, 1, 2).positions(0)  # a rank with only padding, more than once past the end
    assert positions.tolist() == [0, 1, 0] and weight.tolist() == [0, 0, 0]


@given(
    n=st.integers(1, 300),
    batch=st.integers(1, 20),
    world=st.integers(1, 9),
    start=st.floats(0, 1),
    even=st.booleans(),
)
def test_the_last_steps_are_divided_evenly(n, batch, world, start, even):
    """150 samples in batches of 32 on two ranks: 75 and 75, not 86 and 64."""
    begin = int(start * n)
    ranks = [Slices(n, begin, batch, rank, world, even=even) for rank in range(world)]
    real = np.array([[s.positions(step)[1].sum() for s in ranks] for step in range(ranks[0].steps)]).reshape(-1, world)
    assert np.all(real[:-2] == batch)
    if even:
        assert np.all(real.max(1, initial=0) - real.min(1, initial=batch) <= 1)
    if even and batch > 1 and n - begin >= world:
        assert real.min() >= 1  # no rank has a batch of padding alone
    if not even:  # all ranks have the rows of one process
        one = Slices(n, begin, batch * world, 0, 1)
        for step in range(len(real)):
            rows = [s.positions(step) for s in ranks]
            for part, whole in zip(zip(*rows, strict=True), one.positions(step), strict=True):
                assert np.array_equal(np.concatenate(part), whole)
            assert all(s.end(step) == one.end(step) for s in ranks)
    assert [s.end(len(real) - 1) for s in ranks if len(real)] == [n] * (world if len(real) else 0)


def test_incomplete_steps_can_be_left_out():
    whole = [Slices(50, 3, 4, rank, 3, drop_last=True) for rank in range(3)]
    assert [s.steps for s in whole] == [3, 3, 3] and whole[0].end(2) == 39
    assert sorted(p for s in whole for p in s.span(0, 3).tolist()) == list(range(3, 39))
    assert all(s.positions(step)[1].all() for s in whole for step in range(3))


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize(
    ("n", "batch", "world"), [(36, 8, 2), (35, 8, 2), (33, 8, 2), (33, 1, 2), (10, 4, 3), (7, 2, 7)]
)
def test_uneven_samples_are_left_out_as_by_a_distributed_sampler(n, batch, world, shuffle):
    samplers = [DistributedSampler(range(n), world, rank, shuffle, drop_last=True) for rank in range(world)]
    ranks = [Slices(n, 0, batch, rank, world, drop_last="uneven") for rank in range(world)]
    assert all(s.steps == -(-len(sampler) // batch) for s, sampler in zip(ranks, samplers, strict=True))
    real = [[p for step in range(s.steps) for p, w in zip(*s.positions(step), strict=True) if w] for s in ranks]
    assert [len(positions) for positions in real] == [len(sampler) for sampler in samplers]
    assert sorted(p for positions in real for p in positions) == list(range(n - n % world))
    assert all(sorted(positions) == s.span(0, s.steps).tolist() for positions, s in zip(real, ranks, strict=True))


@pytest.mark.parametrize(("n", "start", "steps"), [(12, 0, 2), (13, 0, 3), (12, 12, 0), (12, 6, 1), (12, 5, 2)])
def test_steps_that_are_left(n, start, steps):
    assert Slices(n, start, 3, 1, 2).steps == steps and Slices(n, start, 3, 1, 2).global_batch == 6


# Quasi-random: blocks within a window


quasi = st.fixed_dictionaries({"block": st.integers(1, 50), "window": st.integers(1, 700)})


@given(n=st.integers(0, 500), seed=st.integers(0, 2**63), epoch=st.integers(0, 10**6), shape=quasi)
def test_a_quasi_random_order_is_a_permutation(n, seed, epoch, shape):
    order = epoch_order(n, seed, epoch, "quasi-random", **shape)
    assert order.dtype == np.int64 and sorted(order.tolist()) == list(range(n))
    assert epoch_order(n, seed, epoch, "quasi-random", **shape).tolist() == order.tolist()


def test_known_quasi_random_orders():
    assert epoch_order(12, 0, 0, "quasi-random", 3, 6).tolist() == [11, 9, 1, 0, 2, 10, 3, 4, 5, 8, 7, 6]
    assert epoch_order(12, 0, 1, "quasi-random", 3, 6).tolist() == [4, 3, 5, 1, 2, 7, 0, 11, 9, 6, 8, 10]
    assert epoch_order(12, 1, 0, "quasi-random", 3, 6).tolist() == [4, 5, 3, 1, 10, 9, 11, 2, 7, 0, 6, 8]
    assert epoch_order(10, 5, 7, "quasi-random", 4, 1000).tolist() == [7, 0, 9, 5, 2, 4, 8, 3, 1, 6]


@given(n=st.integers(1, 3000), seed=st.integers(0, 99), shape=quasi)
def test_a_block_is_begun_and_finished_within_a_window(n, seed, shape):
    block, window = shape["block"], shape["window"]
    order = epoch_order(n, seed, 0, "quasi-random", **shape)
    first, last = np.full(-(-n // block), n), np.full(-(-n // block), -1)
    np.minimum.at(first, order // block, np.arange(n))
    np.maximum.at(last, order // block, np.arange(n))
    begun = np.searchsorted(np.sort(first), np.arange(n), "right")
    finished = np.searchsorted(np.sort(last), np.arange(n), "left")
    assert (begun - finished).max() <= -(-window // block) + 1


def test_the_window_of_a_large_dataset_is_used_and_never_exceeded():
    n, block, window = 200_000, 32, 8192
    order = epoch_order(n, 0, 0, "quasi-random", block, window)
    first, last = np.full(n // block, n), np.full(n // block, -1)
    np.minimum.at(first, order // block, np.arange(n))
    np.maximum.at(last, order // block, np.arange(n))
    positions = np.arange(n)
    open_blocks = np.searchsorted(np.sort(first), positions, "right") - np.searchsorted(np.sort(last), positions)
    assert 0.9 * window / block < open_blocks[window:-window].mean() <= window / block
    assert open_blocks.max() <= window // block + 1


def test_blocks_come_in_any_sequence_and_samples_in_any_place_of_them():
    """With a window of one block, every block is equally often at every place, and within it every sample."""
    orders = np.array([epoch_order(20, 0, epoch, "quasi-random", 4, 1) for epoch in range(3000)])
    for place in range(5):
        blocks = orders[:, 4 * place : 4 * place + 4] // 4
        assert (blocks == blocks[:, :1]).all()  # whole blocks: the window moves no sample out of its block
        assert stats.chisquare(np.bincount(blocks[:, 0], minlength=5)).pvalue > 1e-3
    for place in range(4):
        assert stats.chisquare(np.bincount(orders[:, place] % 4, minlength=4)).pvalue > 1e-3


def test_a_window_of_twice_the_data_is_random():
    orders = np.array([epoch_order(6, 0, epoch, "quasi-random", 2, 12) for epoch in range(4000)])
    for place in orders.T:
        assert stats.chisquare(np.bincount(place, minlength=6)).pvalue > 1e-3
    together = (orders[:, 0] // 2 == orders[:, 1] // 2).mean()  # neighbours in the data are neighbours only by chance
    assert stats.binomtest(round(together * 4000), 4000, 1 / 5).pvalue > 1e-3


def classes_in_a_batch(order, classes, batch):
    """(mean number of classes, mean entropy in bits) of the batches of class-sorted data."""
    n = len(order)
    counts, entropy = [], []
    for labels in (order * classes // n)[: n // batch * batch].reshape(-1, batch):
        found = np.bincount(labels, minlength=classes)
        counts.append(np.count_nonzero(found))
        share = found[found > 0] / batch
        entropy.append(-(share * np.log2(share)).sum())
    return np.array(counts), np.array(entropy)


@pytest.mark.parametrize(("classes", "batch"), [(10, 64), (100, 64), (100, 256), (1000, 256)])
def test_batches_of_class_sorted_data_are_mixed_nearly_as_at_random(classes, batch):
    """The measure: distinct classes of a batch and the entropy of its classes, compared with those of `random`."""
    n = 300_000
    ours, our_bits = classes_in_a_batch(epoch_order(n, 0, 0, "quasi-random"), classes, batch)
    best, best_bits = classes_in_a_batch(epoch_order(n, 0, 0, "random"), classes, batch)
    assert ours.mean() > 0.88 * best.mean() and our_bits.mean() > 0.96 * best_bits.mean()
    assert ours.min() > 0.75 * best.min()  # at the ends of an epoch, too
    stored, bits = classes_in_a_batch(np.arange(n), classes, batch)  # the possible loss
    assert stored.mean() < 2 and bits.mean() < 1


def test_a_million_samples_are_fast_and_take_eight_bytes_each():
    for policy in ("random", "quasi-random"):
        tracemalloc.start()
        order = epoch_order(1_000_000, 0, 0, policy)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert order.nbytes == 8_000_000 and peak < 13_000_000  # the rest does not grow with n, except for the blocks
        began = time.thread_time()
        epoch_order(1_000_000, 0, 1, policy)
        assert time.thread_time() - began < 1  # of the processor: 15 ms


def test_too_many_samples_for_a_key():
    with pytest.raises(ValueError, match="2147483648 samples: an order must have fewer than 2147483648"):
        epoch_order(2**31, 0, 0, "random")


# Going on


@st.composite
def interrupted(draw):
    """(n, ids of the subset or None, seed, policy and its shape, [(batch, ranks, steps)]): an epoch in parts."""
    n = draw(st.integers(1, 400))
    policy = draw(st.sampled_from(["random", "quasi-random", "sequential"]))
    goes = draw(st.lists(st.tuples(st.integers(1, 17), st.integers(1, 6), st.integers(0, 9)), min_size=1, max_size=4))
    return n, draw(st.integers(0, 2**40)), draw(st.integers(0, 50)), policy, draw(quasi), goes


@given(interrupted())
def test_an_epoch_that_is_resumed_by_other_ranks_has_every_sample_once(case):
    n, seed, epoch, policy, shape, goes = case
    order = epoch_order(n, seed, epoch, policy, **shape)
    position, seen = 0, []
    for number, (batch, world, steps) in enumerate(goes):
        again = epoch_order(n, seed, epoch, policy, **shape)  # all that a resumed run knows
        assert (again == order).all()
        ranks = [Slices(n, position, batch, rank, world) for rank in range(world)]
        if number == len(goes) - 1:
            steps = ranks[0].steps
        steps = min(steps, ranks[0].steps)
        for step in range(steps):
            for slices in ranks:
                positions, weight = slices.positions(step)
                seen += again[positions[weight == 1]].tolist()
        position = ranks[0].end(steps - 1)
    assert (
        position == n and seen == order.tolist()
    )  # no duplicates, none missing, and in the order of an uninterrupted run


@given(n=st.integers(1, 300), batch=st.integers(1, 20), world=st.integers(1, 9), start=st.floats(0, 1))
def test_equal_ranks_are_filled_up_behind_the_samples(n, batch, world, start):
    """What a last step is filled up with lies behind its samples, those of all ranks one after the other."""
    begin = int(start * n)
    ranks = [Slices(n, begin, batch, rank, world, equal=True) for rank in range(world)]
    seen = []
    for step in range(ranks[0].steps):
        parts = [positions[weight > 0] for positions, weight in (s.positions(step) for s in ranks)]
        assert len({len(part) for part in parts}) == 1 and ranks[0].end(step) == min(
            n, begin + (step + 1) * batch * world
        )
        seen += np.concatenate(parts)[: ranks[0].remainder or None if step == ranks[0].steps - 1 else None].tolist()
        assert sum(map(len, parts)) - (ranks[0].end(step) - ranks[0].end(step - 1)) < world
    assert seen == list(range(begin, n))
    assert sorted(np.concatenate([s.span(0, s.steps) for s in ranks]).tolist()) == seen


@given(n=st.integers(1, 300), batch=st.integers(1, 20), world=st.integers(1, 5), start=st.floats(0, 1), data=st.data())
def test_a_span_equals_its_batches_without_padding(n, batch, world, start, data):
    slices = Slices(n, int(start * n), batch, data.draw(st.integers(0, world - 1)), world)
    first = data.draw(st.integers(0, slices.steps))
    stop = data.draw(st.integers(first, slices.steps))
    expected = []
    for step in range(first, stop):
        positions, weight = slices.positions(step)
        expected += positions[weight == 1].tolist()
    assert slices.span(first, stop).tolist() == expected
