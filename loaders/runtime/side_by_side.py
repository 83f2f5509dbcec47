"""Work for threads that somebody waits for, who may not need it any more."""

import threading
from collections.abc import Callable, Iterable
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from typing import TypeVar

from .stopping import cancelled_by, check

_POLL = 0.1  # seconds between two looks at whether it is still needed
_A = TypeVar("_A")
_B = TypeVar("_B")


def side_by_side(work: Callable[[_A], _B], items: Iterable[_A], threads: int, name: str) -> list[_B]:
    """What `work` returns for each item, in order; on threads of this call alone, none of which is left afterwards.

    Raises the first error, and Cancelled where the caller's thread is cancelled; within `work`, `check` does then, too.
    """
    over = threading.Event()

    def within(item: _A) -> _B:
        with cancelled_by(over.is_set):
            return work(item)

    pool = ThreadPoolExecutor(threads, name)
    try:
        found = [pool.submit(within, item) for item in items]
        waiting = set(found)
        while waiting:
            check()
            done, waiting = wait(waiting, _POLL, FIRST_COMPLETED)
            for each in done:
                each.result()
        return [each.result() for each in found]
    finally:
        over.set()
        pool.shutdown(wait=True, cancel_futures=True)
