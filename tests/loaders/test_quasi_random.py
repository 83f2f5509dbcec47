"""Loaders with every order: no duplicates on resuming, and blocks are fetched before they are read."""

from collections import OrderedDict

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fastimg.loaders import DataError, Loader, LoaderConfig
from fastimg.loaders.batch import Field
from fastimg.loaders.containers.targets import TargetColumn
from fastimg.loaders.decoder import Decoder

ORDERS = ("random", "quasi-random", "sequential")


class Numbers:
    """Sample i is the number i. Records fetches and reads."""

    classes = ()
    notes = ()

    def __init__(self, n):
        self.name, self.fingerprint = "numbers", f"numbers {n}"
        self.labels = np.arange(n)
        self.calls = []  # ("fetch", ids) or ("read", id)

    def __len__(self):
        return len(self.labels)

    @property
    def targets(self):
        return (TargetColumn.of_classes(self.labels, self.classes),)

    def read(self, index, scratch):
        self.calls.append(("read", index))
        view = scratch.encoded(8)
        view[:] = int(index).to_bytes(8, "little")
        return view

    def will_need(self, indices):
        self.calls.append(("fetch", indices.tolist()))

    def sample_name(self, index):
        return f"numbers/{index}"

    def close(self):
        pass


class Stamp(Decoder):
    """Writes the sample's number."""

    fields = (Field("inputs", (1, 1, 3), np.dtype(np.uint8)),)

    def fill_row(self, data, draws, row, scratch):
        row["inputs"][...] = data[0]


def build(n, indices=None, **options):
    options = {"batch_size": 4, "workers": 1, "block": 4, "window": 40} | options
    return Loader(Numbers(n), Stamp(), LoaderConfig(**options), indices=indices)


def real(batch):
    there = batch.weight > 0
    assert (batch.inputs[there, 0, 0, 0] == batch.ids[there] % 256).all()
    return batch.ids[there].tolist()


def take(loader, steps):
    """(ids of this many batches, the state after them)."""
    batches, found = iter(loader), []
    for _ in range(steps):
        found += real(next(batches))
    state = loader.state_dict()
    batches.close()
    loader.close()
    return found, state


@settings(max_examples=60, deadline=None)
@given(
    n=st.integers(6, 90),
    order=st.sampled_from(ORDERS),
    part=st.booleans(),
    goes=st.lists(st.tuples(st.integers(1, 9), st.integers(1, 3), st.integers(1, 3)), min_size=2, max_size=3),
    data=st.data(),
)
def test_an_epoch_in_several_parts_by_other_ranks_and_workers(n, order, part, goes, data):
    ids = np.random.default_rng(n).permutation(n)[: n - n // 3] if part else None
    expected = list(range(n)) if ids is None else sorted(ids.tolist())
    seen, state = [], None
    for number, (batch, world, workers) in enumerate(goes):
        left = len(expected) - len(seen)
        steps = -(-left // (batch * world))
        if number < len(goes) - 1:
            steps = data.draw(st.integers(0, steps - 1))
        ends = []
        for rank in range(world):
            loader = build(n, ids, order=order, batch_size=batch, world_size=world, rank=rank, workers=workers)
            if state is not None:
                loader.load_state_dict(state)
            ends.append(take(loader, steps))
        seen += [i for found, _ in ends for i in found]
        if steps:
            ((state, *others),) = [[end for _, end in ends]]
            assert all(other == state for other in others)
    assert sorted(seen) == expected


@pytest.mark.parametrize("order", ORDERS)
def test_resuming_equals_an_uninterrupted_run(order):
    whole = build(50, order=order, workers=3)
    expected = [real(batch) for _ in range(2) for batch in whole]
    whole.close()
    for stop in (1, 6, 12, 13, 20):
        loader, done = build(50, order=order), []
        while len(done) < stop:
            for batch in loader:
                done.append(real(batch))
                if len(done) == stop:
                    break
        state = loader.state_dict()
        loader.close()
        again = build(50, order=order, workers=2, prefetch=2)
        again.load_state_dict(state)
        while len(done) < len(expected):
            done += [real(batch) for batch in again]
        again.close()
        assert done == expected


def test_a_state_of_another_order_is_refused():
    state = build(20, order="quasi-random").state_dict()
    assert state["order"] == "quasi-random, blocks of 4, window 40"
    build(20, order="quasi-random").load_state_dict(state)
    with pytest.raises(ValueError, match=r"order quasi-random, blocks of 4, window 40, but the loader has random$"):
        build(20).load_state_dict(state)
    for options in ({"block": 5}, {"window": 41}):
        with pytest.raises(ValueError, match="the state was made with order quasi-random"):
            build(20, order="quasi-random", **options).load_state_dict(state)
    build(20, block=5).load_state_dict(build(20).state_dict())  # random does not use it


@pytest.mark.parametrize("shape", [{"block": 0}, {"block": 41}, {"block": 0, "window": 0}])
def test_invalid_blocks_and_windows(shape):
    with pytest.raises(ValueError, match="block must be 1 or more, and window no smaller"):
        build(20, **shape)


def test_blocks_of_a_subset_follow_the_stored_order():
    part = np.random.default_rng(0).permutation(400)[:200]
    loader = build(400, part, order="quasi-random", block=20, window=20, batch_size=20)
    spans = [max(ids) - min(ids) for ids in map(real, loader)]
    loader.close()
    assert np.median(spans) < 200  # of 400: batches of the window's two blocks, which are adjacent
    mixed = build(400, np.sort(part)[::-1], order="quasi-random", block=20, window=20, batch_size=20)
    assert [max(ids) - min(ids) for ids in map(real, mixed)] == spans
    mixed.close()


def test_samples_are_requested_once_before_they_are_read():
    dataset = Numbers(2000)
    config = LoaderConfig(batch_size=16, order="quasi-random", block=8, window=256, workers=2)
    loader = Loader(dataset, Stamp(), config)
    for _ in loader:
        pass
    loader.close()
    asked, repeated = set(), 0
    for call, what in dataset.calls:
        if call == "read":
            assert what in asked
        else:
            repeated += len(asked.intersection(what))
            asked.update(what)
    assert asked == set(range(2000))
    assert repeated <= 256  # in the first batches, which request their own samples and then blocks


@pytest.mark.parametrize("order", ["random", "sequential"])
def test_other_orders_request_each_batch(order):
    dataset = Numbers(10)
    loader = Loader(dataset, Stamp(), LoaderConfig(batch_size=4, order=order, workers=1))
    ids = [batch.ids[: 4 if order == "random" else batch.samples].tolist() for batch in loader]
    loader.close()
    assert [what for call, what in dataset.calls if call == "fetch"] == ids  # an evaluation does not read its padding


def test_an_epoch_reads_each_block_about_once_with_a_small_cache():
    """The loader's requests and reads, with a cache of one and a half windows that drops the oldest first."""
    n, window = 8000, 800
    fetched = {}
    for order in ("quasi-random", "random"):
        dataset = Numbers(n)
        config = LoaderConfig(batch_size=16, order=order, block=10, window=window, workers=2)
        loader = Loader(dataset, Stamp(), config)
        for _ in loader:
            pass
        loader.close()
        cache, fetched[order] = OrderedDict(), 0
        for _, what in dataset.calls:
            for block in dict.fromkeys(np.atleast_1d(what) // 10):
                if block not in cache:
                    fetched[order] += 1
                    cache[block] = None
                    if len(cache) > 1.5 * window / 10:
                        cache.popitem(last=False)
    assert fetched["quasi-random"] < 1.03 * n / 10 and fetched["random"] > 8 * n / 10


def test_padding_with_samples_or_zeros():
    for order, padding, real_pixels in (
        ("random", None, True),
        ("random", "zeros", False),
        ("sequential", None, False),
        ("sequential", "samples", True),
    ):
        loader = build(20, np.arange(10, 20), order=order, padding=padding)
        *_, last = loader
        pixels = last.inputs[:, 0, 0, 0].tolist()
        assert last.weight.tolist() == [1, 1, 0, 0] and pixels[:2] == last.ids[:2].tolist()
        assert pixels[2:] == (last.ids[2:].tolist() if real_pixels else [0, 0])
        loader.close()
    for order in ORDERS:
        with pytest.raises(DataError, match="2 samples for 3 ranks"):
            build(2, order=order, padding="samples", world_size=3)
