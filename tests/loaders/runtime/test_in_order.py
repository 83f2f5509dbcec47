"""Threads that work ahead of whoever takes the results, in order."""

import threading

import pytest

from fastimg.loaders.runtime.in_order import in_order, working_threads

from .pools import ending


@pytest.mark.parametrize(("most", "least", "room"), [(1, None, 0), (5, None, 0), (50, 2, 20), (50, 1, 0)])
def test_results_come_in_order_and_few_are_in_flight(most, least, room):
    begun = []

    def work(item):
        begun.append(item)
        return 2 * item

    with working_threads(3, "test") as pool:
        for count, result in enumerate(in_order(pool, work, iter(range(40)), most, least, room, lambda item: 10)):
            assert result == 2 * count
            ahead = most if least is None else max(least, room // 10)
            assert len(begun) <= count + 1 + ahead
    assert sorted(begun) == list(range(40))


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_work_that_has_not_begun_is_dropped_after_an_error(error, monkeypatch):
    """The first item is worked on until the block has ended."""
    ended, begun = ending(monkeypatch, "test"), threading.Event()
    done = []

    def work(item):
        begun.set()
        ended.wait()
        done.append(item)

    def block():
        with working_threads(1, "test") as pool:
            for item in range(40):
                pool.submit(work, item)
            begun.wait()
            raise error

    with pytest.raises(error):
        block()
    assert done == [0]
