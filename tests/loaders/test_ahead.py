"""Work done ahead on other threads than the consumer's: read-ahead requests, and the next epoch's order."""

import gc
import threading
import weakref

import numpy as np
import pytest
import torch

from fastimg.loaders import LoaderConfig
from fastimg.loaders.epochs import epochs as module
from fastimg.loaders.epochs import next_order
from fastimg.loaders.epochs.config import slots_for
from fastimg.loaders.order import epoch_order


@pytest.fixture
def asking(numbers):
    """`asking(n)`: numbers that record the requests and their threads."""

    class Asking(numbers):
        def __init__(self, n):
            super().__init__(n)
            self.asked = []
            self.read_before = []  # samples that were read before they were requested
            self._known = set()

        def will_need(self, indices):
            self.asked.append((threading.current_thread().name, indices.tolist()))
            self._known.update(indices.tolist())

        def read(self, index, scratch):
            if index not in self._known:
                self.read_before.append(index)
            return super().read(index, scratch)

    return Asking


def test_threads_of_the_loader_request_read_ahead(asking, build, read):
    data = asking(50)
    loader = build(data, workers=1, seed=3)
    ids = [id for batch in read(loader) for id in batch.ids][:50]
    loader.close()
    assert {name.rpartition("-")[0] for name, _ in data.asked} == {"fastimg-loader"}
    assert [id for _, asked in data.asked for id in asked][:50] == ids  # the most urgent first
    assert data.read_before == []  # one thread requests before it reads


def test_a_thread_asks_while_it_is_busy_with_an_earlier_batch(asking, stamp, build):
    """A batch is requested long before its own turn."""
    data, asked_at, handed, all_handed = asking(40), {}, [], threading.Event()

    class Watching(stamp):
        def fill_row(self, encoded, draws, row, scratch):
            number = int.from_bytes(encoded, "little")
            assert all_handed.wait(60)
            asked_at[number] = sum(len(asked) for _, asked in data.asked)
            super().fill_row(encoded, draws, row, scratch)

    loader = build(data, Watching(), workers=1, order="sequential", prefetch=5)
    pool = loader._ready_pool()
    fill = pool.fill

    def counting(*arguments):
        fill(*arguments)
        handed.append(1)
        if len(handed) == 5:  # of four samples each, before any is used
            all_handed.set()

    pool.fill = counting
    for _ in loader:
        pass
    loader.close()
    assert asked_at[4] >= 20 and asked_at[39] == 40


def test_errors_reach_the_consumer(asking, build, read):
    class Gone(asking):
        def will_need(self, indices):
            raise module.DataError("gone")

    loader = build(Gone(20))
    with pytest.raises(module.DataError, match=r"^gone$"):
        read(loader)
    loader.close()


def test_slots_of_each_device(numbers, build):
    assert (slots_for("cpu"), slots_for("cuda")) == (3, 6)
    for given, slots in ((None, 3), (2, 2), (7, 7)):
        loader = build(numbers(20), prefetch=given)
        assert loader.slots == slots == len(loader._slots)
        loader.close()
    settings = LoaderConfig(batch_size=2)
    plan = module.Epochs(numbers(20), settings, None, 1, torch.device("cuda", 0))  # nothing is allocated
    assert settings.prefetch is None and plan.slots == 6


@pytest.fixture
def orders(monkeypatch):
    """The epochs whose orders were computed, and the thread that did it."""
    made = []

    def noting(n, seed, epoch, *rest):
        made.append((epoch, threading.current_thread().name))
        return epoch_order(n, seed, epoch, *rest)

    monkeypatch.setattr(next_order, "epoch_order", noting)
    return made


@pytest.mark.parametrize("options", [{"order": "random"}, {"order": "quasi-random", "block": 4, "window": 20}])
def test_the_next_order_is_ready_when_the_epoch_begins(options, numbers, build, read, orders, monkeypatch):
    plain = build(numbers(50), **options)
    expected = [read(plain) for _ in range(3)]
    plain.close()
    assert [epoch for epoch, _ in orders] == [0, 1, 2]  # too few samples for a thread
    orders.clear()
    monkeypatch.setattr(module, "_PREPARED", 1)
    loader = build(numbers(50), **options)
    assert [read(loader) for _ in range(3)] == expected
    loader.close()
    main = threading.current_thread().name
    assert orders[0] == (0, main) and sorted(orders[1:]) == [(epoch, "fastimg-order") for epoch in (1, 2, 3)]


def test_another_epoch_has_its_own_order(numbers, build, read, orders, monkeypatch):
    """The prepared order is dropped if the consumer continues elsewhere."""
    monkeypatch.setattr(module, "_PREPARED", 1)
    loader, plain = build(numbers(50)), build(numbers(50))
    first = read(loader)
    for epoch in (7, 0):
        loader.set_epoch(epoch)
        plain.set_epoch(epoch)
        assert read(loader) == read(plain)
    batches = iter(loader)
    next(batches)
    state = loader.state_dict()
    rest = [batch.ids.tolist() for batch in batches]
    loader.load_state_dict(state)  # in the middle of an epoch whose successor is prepared
    assert [batch.ids.tolist() for batch in loader] == rest and rest != [batch.ids for batch in first][1:]
    for each in (loader, plain):
        each.close()


def test_an_error_of_the_thread_is_raised_in_the_consumer(numbers, build, read, monkeypatch):
    monkeypatch.setattr(module, "_PREPARED", 1)
    loader = build(numbers(50))
    read(loader)
    monkeypatch.setattr(next_order, "epoch_order", lambda *_: (_ for _ in ()).throw(MemoryError("no room")))
    read_again = next_order.OrderAhead(1, loader._next_order._make)
    with pytest.raises(MemoryError, match="no room"):
        read_again.take()
    loader.close()


def test_an_order_is_computed_where_no_thread_can_start(numbers, build, read, monkeypatch):
    expected = [read(loader := build(numbers(50))), read(loader)]
    loader.close()
    monkeypatch.setattr(module, "_PREPARED", 1)
    start = threading.Thread.start

    def refused(thread):
        if thread.name == "fastimg-order":
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refused)
    loader = build(numbers(50))
    assert [read(loader), read(loader)] == expected
    loader.close()


@pytest.mark.parametrize("kind", [np.asarray, torch.from_numpy])
def test_indices_are_those_that_were_given(numbers, build, read, kind):
    """Whoever gave them may use the array for something else."""
    own = np.arange(10)
    loader, expected = build(numbers(50), indices=kind(own)), read(build(numbers(50), indices=np.arange(10)))
    own[:] = 7
    assert read(loader) == expected
    loader.close()


def test_a_prepared_order_does_not_keep_an_unused_loader(numbers, build, read, monkeypatch):
    monkeypatch.setattr(module, "_PREPARED", 1)
    loader = build(numbers(50))
    read(loader)
    kept = weakref.ref(loader)
    gc.disable()
    try:
        del loader
        assert kept() is None
    finally:
        gc.enable()


def test_an_order_is_a_pure_function_of_its_arguments():
    made = [
        next_order.make_order(LoaderConfig(batch_size=4), next_order.Slices(99, 0, 4, 0, 1), 2, None, 4)
        for _ in range(2)
    ]
    assert np.array_equal(made[0].order, made[1].order) and sorted(made[0].order) == list(range(99))
