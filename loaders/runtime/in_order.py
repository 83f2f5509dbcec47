"""Threads that work a bounded distance ahead of whoever takes the results, in order."""

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


@contextmanager
def working_threads(count: int, name: str) -> Iterator[ThreadPoolExecutor]:
    """Threads for the block. If it ends with an error, or by Ctrl-C, work that has not begun is not waited for."""
    with ThreadPoolExecutor(count, name) as pool:
        try:
            yield pool
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def in_order(
    pool: ThreadPoolExecutor,
    work: Callable[[_Item], _Result],
    items: Iterator[_Item],
    most: int,
    least: int | None = None,
    room: int = 0,
    size: Callable[[_Item], int] = lambda item: 0,
) -> Iterator[_Result]:
    """Yield results in the order of `items`. Up to `most` are in flight: `least`, and more while they fit in `room`."""
    least = most if least is None else least
    window: deque[tuple[Future[_Result], int]] = deque()
    pending_bytes = 0
    waiting = next(items, None)
    while window or waiting is not None:
        while waiting is not None and len(window) < most and (len(window) < least or pending_bytes < room):
            pending_bytes += size(waiting)
            window.append((pool.submit(work, waiting), size(waiting)))
            waiting = next(items, None)
        future, nbytes = window.popleft()
        yield future.result()
        pending_bytes -= nbytes
