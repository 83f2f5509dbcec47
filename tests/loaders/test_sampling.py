"""Samples drawn with repetition: as often as their weights say, the same for all ranks, each time with other crops."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from fastimg.loaders import ImageDecoder, Loader, LoaderConfig, RandomCrop, RandomResizedCrop, Sampling
from fastimg.loaders.backends.resident import ResidentImages, ResidentLoader
from fastimg.loaders.backends.torch_loader import TorchLoader
from fastimg.loaders.order import repeats_of
from fastimg.loaders.random import keyed

pytestmark = pytest.mark.usefixtures("watchdog")
CPU = torch.device("cpu")
RARE = Sampling(np.where(np.arange(23) < 3, 10.0, 0.5))  # of the fixture `files`


@given(
    weights=st.lists(st.floats(1e-3, 1e6) | st.just(0.0), min_size=1, max_size=80).filter(any),
    seed=st.integers(0, 2**63),
    epoch=st.integers(0, 10**6),
)
def test_an_epoch_has_as_many_draws_as_samples_in_shares_of_the_weights(weights, seed, epoch):
    sampling = Sampling(np.array(weights))
    order = sampling.order(seed, epoch)
    assert order.shape == (len(weights),) and order.dtype == np.int64
    assert (order == Sampling(np.array(weights)).order(seed, epoch)).all()
    expected = len(weights) * sampling.weights / sampling.weights.sum()
    counts = np.bincount(order, minlength=len(weights))
    assert (np.abs(counts - expected) < 1 + 1e-9).all()
    assert not counts[sampling.weights == 0].any()


def test_known_draws():
    assert Sampling(np.array([1.0, 1.0, 6.0, 0.0])).order(0, 0).tolist() == [2, 2, 1, 2]


def test_frequencies_are_the_weights():
    """Of single samples over many epochs; another weighting is told apart by the same test."""
    weights = np.array([0.2, 0.3, 0.5, 1.0, 1.0, 2.0, 2.5])
    counts = sum(np.bincount(Sampling(weights).order(1, epoch), minlength=7) for epoch in range(800))
    expected = counts.sum() * weights / weights.sum()
    assert stats.chisquare(counts, expected).pvalue > 1e-3
    assert stats.chisquare(counts, np.full(7, counts.mean())).pvalue < 1e-9


def test_every_sample_of_one_weight_is_drawn_beside_every_other():
    """Systematic draws in a fixed order would take every second sample, always the same ones together."""
    weights = np.array([0.5] * 8 + [4.0])  # of the first eight, about half in an epoch
    drawn = np.array([np.bincount(Sampling(weights).order(0, epoch), minlength=9)[:8] for epoch in range(600)])
    together = drawn.T @ drawn
    pairs = together[np.triu_indices(8, 1)]
    assert stats.chisquare(pairs).pvalue > 1e-3


def test_every_draw_is_as_often_in_every_place():
    places = [Sampling(np.array([3.0, 1.0, 1.0, 1.0])).order(0, epoch).tolist().index(0) for epoch in range(3000)]
    firsts = np.bincount(places, minlength=4)
    assert firsts[0] > firsts[1] > firsts[2]  # two of four draws are of sample 0


@pytest.mark.parametrize("weights", [[], [0.0, 0.0], [1.0, -1.0], [1.0, np.nan], [1.0, np.inf], [[1.0]]])
def test_weights_that_are_none(weights):
    with pytest.raises(ValueError, match="weights must be finite numbers of 0 or more"):
        Sampling(np.array(weights))


def test_weights_whose_sum_is_infinite():
    with pytest.raises(ValueError, match="the sum of the weights is infinite; divide them by the largest"):
        Sampling(np.array([1e308, 1e308, 1e308]))


def test_repeats_count_within_the_epoch():
    order = np.array([5, 2, 5, 5, 0, 2])
    repeats = repeats_of(order)
    assert repeats.tolist() == [0, 0, 1, 2, 0, 1]
    keys = keyed(order, repeats)
    assert len(set(keys.tolist())) == 6 and keys[[0, 1, 4]].tolist() == [5, 2, 0]
    assert keyed(order, None) is order


@pytest.mark.parametrize("order", ["sequential", "quasi-random"])
def test_other_orders_take_each_sample_once(order):
    with pytest.raises(ValueError, match="takes every sample once"):
        LoaderConfig(batch_size=2, order=order, sampling=RARE)


def test_as_many_weights_as_samples(build, numbers):
    with pytest.raises(ValueError, match="sampling has 23 weights for 5 samples"):
        build(numbers(5), sampling=RARE)


def drawn(loader):
    """(id, how often it came before, its pixels) of every real row of an epoch."""
    found = []
    for batch in loader:
        for row in np.flatnonzero(batch.weight.numpy()):
            key = int(batch.keys[row])
            assert key & 0xFFFFFFFF == int(batch.ids[row])
            found.append((key & 0xFFFFFFFF, key >> 32, batch.inputs[row].numpy().tobytes()))
    return found


def test_ranks_and_workers_share_the_draws(build, numbers):
    whole = drawn(build(numbers(23), batch_size=6, sampling=RARE, seed=3))
    assert [sample for sample, _, _ in whole] == RARE.order(3, 0).tolist()
    loaders = [
        build(numbers(23), batch_size=2, sampling=RARE, seed=3, rank=rank, world_size=3, workers=2) for rank in range(3)
    ]
    batches = zip(*loaders, strict=True)
    shared = [int(key) for step in batches for batch in step for key in batch.keys[batch.weight > 0]]
    assert shared == [sample + (again << 32) for sample, again, _ in whole]


def test_an_epoch_continues_where_it_stopped(build, numbers, frozen):
    loader = build(numbers(23), batch_size=4, sampling=RARE)
    expected = [frozen(batch) for _ in range(2) for batch in loader]
    first = build(numbers(23), batch_size=4, sampling=RARE)
    for batch, _ in zip(first, range(2), strict=False):
        assert frozen(batch) in expected
        state = first.state_dict()
    again = build(numbers(23), batch_size=4, sampling=Sampling(RARE.weights.copy()), workers=3)
    again.load_state_dict(state)
    done = state["position"] // 4
    assert [frozen(batch) for _ in range(2) for batch in again] == expected[done:]
    for other in (None, Sampling(RARE.weights + 1)):
        with pytest.raises(ValueError, match="the state was made with order random, drawn by weights"):
            build(numbers(23), batch_size=4, sampling=other).load_state_dict(state)


def test_a_sample_that_comes_again_has_another_crop(files, build):
    decoder = ImageDecoder(RandomResizedCrop(size=16))
    once = {sample: pixels for sample, _, pixels in drawn(build(files, decoder, batch_size=4))}
    found = drawn(build(files, decoder, batch_size=4, sampling=RARE))
    assert all(pixels == once[sample] for sample, again, pixels in found if again == 0)
    assert len({pixels for _, _, pixels in found}) == len(found) > len({sample for sample, _, _ in found})


@pytest.mark.parametrize("crop", [RandomResizedCrop(size=16), RandomCrop(size=16, padding=2)])
def test_images_in_memory_are_drawn_alike(files, crop):
    config = LoaderConfig(batch_size=4, sampling=RARE, workers=1)
    expected = drawn(Loader(files, ImageDecoder(crop), config))
    loader = ResidentLoader(ResidentImages(files, crop, CPU, workers=1), crop, config)
    assert drawn(loader) == expected
    loader.close()


def test_torchs_loader_draws_alike(files):
    crop = RandomResizedCrop(size=16)
    config = LoaderConfig(batch_size=4, sampling=RARE, workers=1)
    expected = drawn(Loader(files, ImageDecoder(crop), config))
    with TorchLoader(files, crop, config, CPU) as loader:
        found = drawn(loader)
    assert [row[:2] for row in found] == [row[:2] for row in expected]
    assert len({pixels for _, _, pixels in found}) == len(found)
