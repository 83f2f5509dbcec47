"""Work on several threads that somebody waits for."""

import threading
import time

import pytest

from fastimg.loaders.runtime.side_by_side import side_by_side
from fastimg.loaders.runtime.stopping import Cancelled, cancelled_by, check

NAME = "fastimg-tested"


def work_until_cancelled() -> None:
    while True:
        check()
        time.sleep(0.001)


def own_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith(NAME)]


@pytest.mark.parametrize("threads", [1, 2, 5, 50])
def test_results_are_in_order(threads: int) -> None:
    names = set()
    together = threading.Barrier(min(threads, 20), timeout=30)

    def work(number: int) -> int:
        names.add(threading.current_thread().name)
        if number < together.parties:  # each thread has one of these
            together.wait()
        return number * number

    assert side_by_side(work, range(20), threads, NAME) == [number * number for number in range(20)]
    assert threading.current_thread().name in names
    assert len(names) == min(threads, 20)
    assert own_threads() == []


def test_there_may_be_nothing_to_do() -> None:
    assert side_by_side(len, [], 4, NAME) == []


def test_as_many_work_at_once_as_there_are_threads() -> None:
    together = threading.Barrier(3, timeout=30)
    assert len(set(side_by_side(lambda _: together.wait(), range(3), 3, NAME))) == 3


@pytest.mark.parametrize("failing", range(3))
def test_an_error_ends_the_others(failing: int) -> None:
    together = threading.Barrier(3, timeout=30)
    stopped = []

    def work(number: int) -> None:
        together.wait()
        if number == failing:
            raise OSError(f"of {number}")
        with pytest.raises(Cancelled):
            work_until_cancelled()
        stopped.append(number)
        check()

    with pytest.raises(OSError, match=f"of {failing}"):
        side_by_side(work, range(3), 3, NAME)
    assert sorted(stopped) == sorted({0, 1, 2} - {failing})
    assert own_threads() == []


def test_what_waits_is_not_begun_after_an_error() -> None:
    begun = []

    def work(number: int) -> None:
        begun.append(number)
        raise OSError

    with pytest.raises(OSError):
        side_by_side(work, range(100), 2, NAME)
    assert len(begun) <= 2


def test_a_caller_that_is_cancelled_ends_them_all() -> None:
    together = threading.Barrier(3, timeout=30)
    over = threading.Event()

    def work(number: int) -> None:
        if together.wait() == 0:
            over.set()
        work_until_cancelled()

    with cancelled_by(over.is_set), pytest.raises(Cancelled):
        side_by_side(work, range(3), 3, NAME)
    assert own_threads() == []


def test_a_caller_that_waits_for_the_others_can_be_cancelled() -> None:
    over, caller = threading.Event(), threading.current_thread()
    together = threading.Barrier(2, timeout=30)

    def work(number: int) -> None:
        together.wait()
        if threading.current_thread() is caller:
            threading.Timer(0.05, over.set).start()
            return
        work_until_cancelled()

    with cancelled_by(over.is_set), pytest.raises(Cancelled):
        side_by_side(work, range(2), 2, NAME)
    assert own_threads() == []
