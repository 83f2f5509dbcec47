"""Held-out samples and the stored order."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastimg.convert.plan import assign_shards, parse_size
from fastimg.data.splits import shuffled, stratified_split
from fastimg.errors import UsageError

labels_of = st.lists(st.integers(-1, 5), max_size=80).map(lambda labels: np.array(labels, np.int64))


@given(labels=labels_of, fraction=st.floats(0, 1, exclude_max=True), seed=st.integers(0, 2**40))
def test_split_is_a_stratified_partition(labels, fraction, seed):
    keep, held = stratified_split(labels, fraction, seed)
    assert sorted([*keep, *held]) == list(range(len(labels)))
    assert (np.diff(keep) > 0).all() and (np.diff(held) > 0).all()
    for label in np.unique(labels):
        n = int((labels == label).sum())
        out = int((labels[held] == label).sum())
        assert out == (0 if fraction == 0 else min(max(round(fraction * n), 1), n - 1))


def test_split_is_seeded():
    labels = np.repeat(np.arange(4), 50)
    first, again, other = (stratified_split(labels, 0.2, seed)[1].tolist() for seed in (1, 1, 2))
    assert first == again != other


def test_split_and_shuffle_do_not_change_between_versions():
    labels = np.array([0, 1] * 6)
    assert stratified_split(labels, 0.4, 0)[1].tolist() == [4, 7, 10, 11]
    assert shuffled(8, 0).tolist() == [0, 4, 6, 3, 5, 7, 1, 2]


@pytest.mark.parametrize("fraction", [-0.1, 1.0, float("nan")])
def test_split_refuses_other_fractions(fraction):
    with pytest.raises(ValueError, match="not in"):
        stratified_split(np.zeros(4, np.int64), fraction, 0)


@given(n=st.integers(0, 200), seed=st.integers(0, 2**40))
def test_shuffle_is_a_permutation(n, seed):
    assert sorted(shuffled(n, seed)) == list(range(n))


@given(sizes=st.lists(st.integers(0, 50), min_size=1, max_size=60), shard_size=st.integers(1, 120))
def test_shards_are_full_within_their_limit(sizes, shard_size):
    starts = assign_shards(sizes, shard_size)
    bounds = [*starts, len(sizes)]
    assert starts[0] == 0 and all(a < b for a, b in itertools.pairwise(bounds))
    for start, end in zip(starts, bounds[1:], strict=True):
        held = sum(sizes[start:end])
        assert held <= shard_size or sum(size > 0 for size in sizes[start:end]) == 1
        if end < len(sizes):
            assert held + sizes[end] > shard_size


@pytest.mark.parametrize(
    ("text", "size"),
    [("256MB", 256_000_000), ("1.5 gb", 1_500_000_000), ("64KiB", 65536), ("1000", 1000), ("7B", 7)],
)
def test_sizes(text, size):
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "0", "-1MB", "MB", "12 potatoes", "1e6", "0.1"])
def test_invalid_sizes(text):
    with pytest.raises(UsageError, match=r"--shard-size .*as in 256MB"):
        parse_size(text)
