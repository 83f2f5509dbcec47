"""Threads that compile nothing: a loader's, so that no epoch waits in its middle. It does not need numba."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

_thread = threading.local()


@contextmanager
def compiling_nothing() -> Iterator[None]:
    """Inside the block, `compiled.may_call` tells this thread to do without functions that are not ready."""
    before = compiles_nothing()
    _thread.compiles_nothing = True
    try:
        yield
    finally:
        _thread.compiles_nothing = before


def compiles_nothing() -> bool:
    """Whether this thread is inside such a block."""
    return bool(getattr(_thread, "compiles_nothing", False))
