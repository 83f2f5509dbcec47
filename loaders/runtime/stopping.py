"""How a thread that waits for something slow learns that nobody needs it any more."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_thread = threading.local()


class Cancelled(BaseException):
    """The iteration is over, so what is read for it is dropped. A decoder lets it propagate."""


@contextmanager
def cancelled_by(is_over: Callable[[], bool]) -> Iterator[None]:
    """In the block, `check` on this thread asks `is_over`."""
    before = getattr(_thread, "is_over", None)
    _thread.is_over = is_over
    try:
        yield
    finally:
        _thread.is_over = before


def stop_of_thread() -> Callable[[], bool]:
    """What `check` asks on this thread."""
    is_over: Callable[[], bool] | None = getattr(_thread, "is_over", None)
    return is_over or (lambda: False)


def check() -> None:
    """Raises Cancelled if what this thread does is not needed any more."""
    is_over: Callable[[], bool] | None = getattr(_thread, "is_over", None)
    if is_over is not None and is_over():
        raise Cancelled
