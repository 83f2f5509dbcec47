"""The counter-based generator: its streams are fixed forever, uniform, and independent over every part of the key."""

import numpy as np
import pytest
from scipy import stats

from fastimg.loaders.random import hashes, uniforms

N = 20_000
IDS = np.arange(N)
MASK = 2**64 - 1


def mix(x):
    """SplitMix64's next() for the state `x`, in Python's integers."""
    x = (x + 0x9E3779B97F4A7C15) & MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK
    return x ^ (x >> 31)


def test_the_mixer_is_splitmix64():
    """The published first outputs for the seeds 0 and 1234567."""
    assert (mix(0), mix(1234567)) == (0xE220A8397B1DCDAF, 6457827717110365317)


@pytest.mark.parametrize(("seed", "epoch", "stage"), [(0, 0, 0), (42, 7, 12), (-1, 3, 2), (2**64 + 5, 2**40, 0xF1)])
def test_hashes_are_chained_over_the_key(seed, epoch, stage):
    ids = [0, 1, 2, 10**6, 2**40, 2**62]
    key = 0
    for part in (seed, epoch, stage):
        key = mix(key ^ (part & MASK))
    assert hashes(seed, epoch, np.array(ids), stage).tolist() == [mix(key ^ i) for i in ids]


def test_known_answers():
    ids = np.array([0, 1, 2, 10**6, 2**40])
    assert hashes(0, 0, ids, 0).tolist() == [
        *(0x2130748AAAC80268, 0x2A4F111B3BE57715, 0x4F833D459789AC77, 0x80A739E008D67014, 0x74A65C17D8FD62A2)
    ]
    assert hashes(42, 7, ids, 12).tolist() == [
        *(0x162691E79F47978F, 0x0CB572FF882B7B14, 0x05346F4D32922005, 0xB041765B52FA6942, 0x29C86149BA5905D5)
    ]
    assert uniforms(42, 7, ids[:3], 12, 2).tolist() == [
        [0.5542890880356227, 0.945568099380259],
        [0.5752550608404174, 0.6114178453386638],
        [0.3312408361386423, 0.7342595231820502],
    ]


def test_numbers_of_an_id_do_not_depend_on_other_ids():
    table = uniforms(1, 2, IDS[:50], 3, 22)
    assert table.shape == (50, 22) and table.dtype == np.float64
    assert (uniforms(1, 2, np.array([31, 7]), 3, 22) == table[[31, 7]]).all()
    assert (uniforms(1, 2, IDS[:50], 3, 5) == table[:, :5]).all()  # asking for fewer changes none
    assert uniforms(1, 2, IDS[:50], 3, 0).shape == (50, 0) and uniforms(1, 2, IDS[:0], 3, 4).shape == (0, 4)


def test_uniform_on_0_1():
    table = uniforms(5, 0, IDS, 1, 8)
    assert table.min() >= 0.0 and table.max() < 1.0
    for column in table.T:
        assert stats.chisquare(np.histogram(column, 100, (0, 1))[0]).pvalue > 1e-3
    low = hashes(5, 0, IDS, 1) & np.uint64(63)  # the low bits too
    assert stats.chisquare(np.bincount(low.astype(np.int64), minlength=64)).pvalue > 1e-3


@pytest.mark.parametrize(
    "pair",
    [
        lambda: (uniforms(0, 0, IDS, 0, 1), uniforms(0, 0, IDS + 1, 0, 1)),
        lambda: (uniforms(0, 0, IDS, 0, 1), uniforms(0, 1, IDS, 0, 1)),
        lambda: (uniforms(0, 0, IDS, 0, 1), uniforms(1, 0, IDS, 0, 1)),
        lambda: (uniforms(0, 1, IDS, 0, 1), uniforms(1, 0, IDS, 0, 1)),
        lambda: (uniforms(0, 0, IDS, 0, 1), uniforms(0, 0, IDS, 1, 1)),
        lambda: (uniforms(0, 0, IDS, 0, 2)[:, :1], uniforms(0, 0, IDS, 0, 2)[:, 1:]),
        lambda: (uniforms(0, 0, IDS, 0, 1), uniforms(0, 0, IDS ^ 1, 0, 1)),
    ],
    ids=["ids", "epochs", "seeds", "epoch and seed swapped", "stages", "positions", "neighbours"],
)
def test_independent_over_the_key(pair):
    a, b = (x.ravel() for x in pair())
    joint = np.histogram2d(a, b, 10, ((0, 1), (0, 1)))[0]
    assert stats.chisquare(joint.ravel()).pvalue > 1e-3
    assert abs(np.corrcoef(a, b)[0, 1]) < 4 / np.sqrt(N)


def test_hashes_are_unique():
    seen = np.concatenate([hashes(seed, epoch, IDS, stage) for seed in (0, 1) for epoch in (0, 1) for stage in (0, 1)])
    assert len(np.unique(seen)) == 8 * N
